"""What is refused is refused with a reason, and what is another's does not exist."""

from __future__ import annotations

import os
from typing import Any

import pytest
from conftest import ask, reason
from daytona import Daytona, DaytonaError, Sandbox
from daytona.common.secret import CreateSecretParams, UpdateSecretParams
from daytona.common.computer_use import ScreenshotOptions, ScreenshotRegion
from daytona_toolbox_api_client import LspPosition


def refused(call: Any, *args: Any, **named: Any) -> None:
    with pytest.raises(Exception) as told:
        call(*args, **named)
    assert reason(told.value), told.value


def test_what_is_not_here_says_so(client: Daytona, box: Sandbox) -> None:
    refused(box.update_secrets, {"A": "b"})
    refused(box.get_metrics)
    refused(client.secret.list)
    refused(client.secret.get, "s")
    refused(client.secret.create, CreateSecretParams(name="s", value="v"))
    refused(client.secret.update, "s", UpdateSecretParams(value="v"))
    refused(client.secret.delete, "s")
    refused(client.warm_pool.list)
    refused(client.warm_pool.create, "debian", 1)
    refused(client.warm_pool.update, "w", 1)
    refused(client.warm_pool.delete, "w")


def test_language_servers_are_refused(box: Sandbox) -> None:
    server = box.create_lsp_server("python", "/home/daytona")
    refused(server.start)
    refused(server.stop)
    refused(server.did_open, "/home/daytona/a.py")
    refused(server.did_close, "/home/daytona/a.py")
    refused(server.document_symbols, "/home/daytona/a.py")
    refused(server.workspace_symbols, "a")
    refused(server.sandbox_symbols, "a")
    refused(server.completions, "/home/daytona/a.py", LspPosition(line=0, character=0))


def test_there_is_no_screen(box: Sandbox, tmp_path: Any) -> None:
    screen = box.computer_use
    region = ScreenshotRegion(x=0, y=0, width=1, height=1)
    for call in (
        screen.start, screen.stop, screen.get_status, screen.mouse.get_position, screen.display.get_info,
        screen.display.get_windows, screen.screenshot.take_full_screen, screen.screenshot.take_compressed,
        screen.recording.list, screen.accessibility.get_tree, screen.accessibility.find_nodes,
    ):
        refused(call)
    for call in (screen.get_process_status, screen.restart_process, screen.get_process_logs, screen.get_process_errors):
        refused(call, "xvfb")
    refused(screen.screenshot.take_region, region)
    refused(screen.screenshot.take_compressed_region, region, ScreenshotOptions())
    mouse, keyboard = screen.mouse, screen.keyboard
    for call in (mouse.move, mouse.click):
        refused(call, 1, 1)
    for call in (mouse.down, mouse.up):
        refused(call)
    refused(mouse.drag, 1, 1, 2, 2)
    refused(mouse.scroll, 1, 1, "up")
    for call in (keyboard.type, keyboard.press, keyboard.hotkey, keyboard.down, keyboard.up):
        refused(call, "a")
    refused(screen.recording.start)
    for call in (screen.recording.stop, screen.recording.get, screen.recording.delete):
        refused(call, "r")
    refused(screen.recording.download, "r", str(tmp_path / "r"))
    refused(screen.accessibility.focus_node, "n")
    refused(screen.accessibility.invoke_node, "n")
    refused(screen.accessibility.set_node_value, "n", "v")


ROUTES = [
    ("GET", "/sandbox/{id}", None),
    ("DELETE", "/sandbox/{id}", None),
    *(("POST", f"/sandbox/{{id}}/{deed}", None) for deed in (
        "start", "stop", "pause", "archive", "autostop/1", "autopause/1", "autoarchive/1", "autodelete/1", "ttl/1",
        "public/true", "last-activity", "fork", "resize", "network-settings",
    )),
    ("POST", "/sandbox/{id}/snapshot", {"name": "stolen"}),
    ("PUT", "/sandbox/{id}/labels", {"labels": {}}),
    ("GET", "/sandbox/{id}/toolbox-proxy-url", None),
    ("GET", "/sandbox/{id}/ports/80/preview-url", None),
    ("GET", "/sandbox/{id}/ports/80/signed-preview-url", None),
    ("POST", "/sandbox/{id}/ports/80/signed-preview-url/t/expire", None),
    ("POST", "/toolbox/{id}/env", {"set": {"A": "b"}}),
    ("POST", "/toolbox/{id}/process/execute", {"command": "true"}),
    ("POST", "/toolbox/{id}/process/code-run", {"code": "1", "language": "python"}),
    ("GET", "/toolbox/{id}/work-dir", None),
    ("GET", "/toolbox/{id}/user-home-dir", None),
    ("GET", "/toolbox/{id}/files?path=/", None),
    ("DELETE", "/toolbox/{id}/files?path=/etc/passwd", None),
    ("GET", "/toolbox/{id}/files/info?path=/", None),
    ("GET", "/toolbox/{id}/files/download?path=/etc/passwd", None),
    ("GET", "/toolbox/{id}/files/find?path=/&pattern=x", None),
    ("GET", "/toolbox/{id}/files/search?path=/&pattern=x", None),
    ("POST", "/toolbox/{id}/files/replace", {"files": ["/x"], "pattern": "a", "newValue": "b"}),
    ("POST", "/toolbox/{id}/files/folder?path=/x&mode=755", None),
    ("POST", "/toolbox/{id}/files/move?source=/x&destination=/y", None),
    ("POST", "/toolbox/{id}/files/permissions?path=/x&mode=777", None),
    ("POST", "/toolbox/{id}/files/bulk-download", {"paths": ["/etc/passwd"]}),
    ("POST", "/toolbox/{id}/files/upload-v2?path=/x", None),
    ("GET", "/toolbox/{id}/process/session", None),
    ("POST", "/toolbox/{id}/process/session", {"sessionId": "s"}),
    ("GET", "/toolbox/{id}/process/session/entrypoint", None),
    ("GET", "/toolbox/{id}/process/session/entrypoint/logs", None),
    ("GET", "/toolbox/{id}/process/session/s", None),
    ("DELETE", "/toolbox/{id}/process/session/s", None),
    ("POST", "/toolbox/{id}/process/session/s/exec", {"command": "true"}),
    ("GET", "/toolbox/{id}/process/session/s/command/c", None),
    ("GET", "/toolbox/{id}/process/session/s/command/c/logs", None),
    ("POST", "/toolbox/{id}/process/session/s/command/c/input", {"data": "x"}),
    ("GET", "/toolbox/{id}/process/pty", None),
    ("POST", "/toolbox/{id}/process/pty", {"id": "p"}),
    ("GET", "/toolbox/{id}/process/pty/p", None),
    ("DELETE", "/toolbox/{id}/process/pty/p", None),
    ("POST", "/toolbox/{id}/process/pty/p/resize", {"cols": 1, "rows": 1}),
    ("GET", "/toolbox/{id}/process/interpreter/context", None),
    ("POST", "/toolbox/{id}/process/interpreter/context", {}),
    ("DELETE", "/toolbox/{id}/process/interpreter/context/c", None),
    ("GET", "/toolbox/{id}/process/interpreter/execute", None),
    ("GET", "/toolbox/{id}/port", None),
    ("GET", "/toolbox/{id}/port/80/in-use", None),
    ("GET", "/toolbox/{id}/system/metrics", None),
    ("GET", "/toolbox/{id}/git/status?path=/home/daytona", None),
    ("GET", "/toolbox/{id}/git/branches?path=/home/daytona", None),
    ("GET", "/toolbox/{id}/git/history?path=/home/daytona", None),
    ("GET", "/toolbox/{id}/git/remotes?path=/home/daytona", None),
    ("GET", "/toolbox/{id}/git/config?key=user.name", None),
    ("POST", "/toolbox/{id}/git/init", {"path": "/x"}),
    ("POST", "/toolbox/{id}/git/clone", {"path": "/x", "url": "http://x"}),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=[f"{row[0]} {row[1]}" for row in ROUTES])
def test_another_tenant_s_sandbox_does_not_exist(box: Sandbox, method: str, path: str, body: Any) -> None:
    status, told = ask(os.environ["OTHER_API_KEY"], method, path.replace("{id}", box.id), body)
    assert (status, told["statusCode"]) == (404, 404), told
    assert told["source"] == ("DAYTONA_DAEMON" if "/toolbox/" in path else "DAYTONA_API")
    assert ask("nobody", method, path.replace("{id}", box.id), body)[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/toolbox/{id}/nowhere",
        "/toolbox/..%2f{id}/work-dir",
        "/toolbox/{id}/process/pty/..%2f..%2fx",
        "/toolbox/{id}/files?path=%00",
        "/toolbox/{id}/files/info?path=/etc/passwd&user=root",
        "/toolbox/{id}/files/download?path=" + "x" * 5000,
    ],
)
def test_odd_paths_are_answered_in_form(box: Sandbox, path: str) -> None:
    status, told = ask(os.environ["DAYTONA_API_KEY"], "GET", path.replace("{id}", box.id))
    assert status in (400, 404) and told["statusCode"] == status and told["message"] and told["code"], told


def test_unknown_fields_are_refused(box: Sandbox) -> None:
    key = os.environ["DAYTONA_API_KEY"]
    for path, body in [
        ("/sandbox", {"surprise": 1}),
        (f"/toolbox/{box.id}/process/execute", {"command": "true", "privileged": True}),
        (f"/toolbox/{box.id}/process/session", {"sessionId": "a/b"}),
        (f"/toolbox/{box.id}/process/session", {"sessionId": ""}),
        (f"/toolbox/{box.id}/process/execute", {"command": " "}),
        (f"/toolbox/{box.id}/process/execute", {"command": "true", "timeout": -1}),
    ]:
        status, told = ask(key, "POST", path, body)
        assert (status, told["code"]) == (400, "BAD_REQUEST"), told


def test_a_session_s_command_is_not_any_process(box: Sandbox) -> None:
    """Commands are reached through their own session only, never through another's name."""
    box.process.create_session("mine")
    from daytona import SessionExecuteRequest

    ran = box.process.execute_session_command("mine", SessionExecuteRequest(command="true"))
    box.process.create_session("other")
    with pytest.raises(DaytonaError) as told:
        box.process.get_session_command("other", ran.cmd_id)
    assert told.value.status_code == 404
    for name in ("mine", "other"):
        box.process.delete_session(name)
