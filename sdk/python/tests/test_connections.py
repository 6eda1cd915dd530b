"""Retries and settings, against sockets that misbehave."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Optional

import pytest

import cove
from cove import Client
from cove._settings import resolve
from cove._wire import Call, pause_before

Answer = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def server(answer: Answer, tls: Optional[ssl.SSLContext] = None) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers as told; what was asked of it."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = b""
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append((self.command, self.path, self.headers.get("idempotency-key"), body))
            answer(self, len(asked))

        do_GET = do_POST = do_DELETE = do_PUT = _any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{http.server_address[1]}", asked
        finally:
            http.shutdown()
            thread.join()


def reply(
    handler: BaseHTTPRequestHandler, status: int, body: Any, text: Optional[str] = None, **headers: str
) -> None:
    data = (json.dumps(body) if text is None else text).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def refusal(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "no", "hint": "wait", "request_id": "req_1"}}


def drop(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def test_a_busy_server_is_asked_again() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number < 3:
            reply(handler, 429, refusal("rate_limited"), retry_after="0")
        else:
            reply(handler, 200, {"items": []})

    with server(answer) as (url, asked), Client(url, "key") as client:
        assert client.images() == [] and len(asked) == 3


def test_creates_carry_one_key_over_all_tries() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number < 3:
            drop(handler)
        else:
            reply(handler, 422, refusal("invalid_request"))

    with server(answer) as (url, asked), Client(url, "key") as client:
        with pytest.raises(cove.InvalidRequestError) as told:
            cove.Sandbox(client=client)
        assert len(asked) == 3 and len({key for _, _, key, _ in asked}) == 1 and asked[0][2]
        assert (told.value.hint, told.value.request_id, told.value.status) == ("wait", "req_1", 422)


def test_what_cannot_be_repeated_is_sent_once() -> None:
    with server(lambda handler, _: drop(handler)) as (url, asked), Client(url, "key") as client:
        with pytest.raises(cove.ConnectionError):
            client._json(Call("POST", "/v1/anything", json={}))
        assert len(asked) == 1


def test_a_delete_that_was_done_on_the_first_try_is_done() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            drop(handler)
        else:
            reply(handler, 404, refusal("not_found"))

    with server(answer) as (url, asked), Client(url, "key") as client:
        client._done(Call("DELETE", "/v1/sandboxes/x"))
        with pytest.raises(cove.NotFoundError):
            client._done(Call("DELETE", "/v1/sandboxes/x"))
        assert len(asked) == 3


def test_tries_end() -> None:
    with server(lambda h, _: reply(h, 503, refusal("unavailable"), retry_after="0")) as (url, asked):
        with Client(url, "key") as client, pytest.raises(cove.UnavailableError):
            client.images()
        assert len(asked) == 6


def test_a_server_that_is_not_there_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cove._sync._io.sleep", lambda seconds: None)
    with pytest.raises(cove.ConnectionError, match=r"127\.0\.0\.1:1"):
        Client("http://127.0.0.1:1", "key").images()


def test_answers_that_are_not_the_servers_are_errors_too() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        status, body = [(404, "gone"), (500, []), (200, {"items": [{"id": 1}]})][number - 1]
        reply(handler, status, body)

    with server(answer) as (url, _), Client(url, "key") as client:
        with pytest.raises(cove.ApiError):
            client.images()
        with pytest.raises(cove.ServerError):
            client.images()
        with pytest.raises(cove.ProtocolError):
            client.images()


def test_a_wrong_key_is_an_authentication_error(server: str) -> None:
    with pytest.raises(cove.AuthenticationError):
        Client(server, "cove_wrong").images()


def test_a_certificate_of_ones_own_is_trusted_when_its_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *request, *subject, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with server(lambda handler, _: reply(handler, 200, {"items": []}), context) as (url, asked):
        with Client(url, "key", ca_file=str(certificate)) as client:
            assert client.images() == []
        with Client(url, "key") as client, pytest.raises(cove.ConnectionError, match="not trusted.*COVE_CA_FILE"):
            client.images()
        assert len(asked) == 1
        for name in ("COVE_URL", "COVE_API_KEY", "COVE_CA_FILE", "COVE_CONTEXT", "COVE_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        login = {"url": url, "api_key": "key", "ca_pem": f"# Ü\n{certificate.read_text()}"}
        contexts = tmp_path / "cove" / "contexts.json"
        contexts.parent.mkdir(mode=0o700)
        contexts.touch(mode=0o600)
        contexts.write_text(json.dumps({"current": "own", "contexts": {"own": login}}))
        assert Client.default().images() == [] and len(asked) == 2
        contexts.write_text(json.dumps({"current": "own", "contexts": {"own": {**login, "ca_pem": "none"}}}))
        with Client() as client, pytest.raises(cove.ConfigurationError, match="certificates of the context"):
            client.images()
        with Client(url, "key", ca_file=str(key)) as client, pytest.raises(cove.ConfigurationError, match="key.pem"):
            client.images()


def test_pauses_grow_and_end() -> None:
    pauses = [pause_before(attempt, None, 1.0) for attempt in range(1, 20)]
    assert pauses == sorted(pauses) and pauses[0] == 0.05 and pauses[-1] == 5.0
    told = cove.RateLimitError("rate_limited", "no", retry_after=1e9)
    assert pause_before(1, told) == 30.0


def test_settings_come_from_arguments_then_the_environment_then_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COVE_URL", "COVE_API_KEY", "COVE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COVE_DATA_DIR", str(tmp_path))
    assert resolve().url == "http://127.0.0.1:7070" and resolve().api_key is None
    (tmp_path / "url").write_text("http://127.0.0.1:9\n")
    (tmp_path / "root.key").write_text("secret\n")
    assert (resolve().url, resolve().api_key) == ("http://127.0.0.1:9", "secret")
    # The root key is shown to no other server.
    assert resolve("http://elsewhere.example").api_key is None
    monkeypatch.setenv("COVE_URL", "http://elsewhere.example/")
    assert (resolve().url, resolve().api_key) == ("http://elsewhere.example", None)
    monkeypatch.setenv("COVE_API_KEY", "mine")
    assert resolve().api_key == "mine" and resolve(api_key="other").api_key == "other"
    with pytest.raises(cove.ConfigurationError):
        resolve("nowhere")
