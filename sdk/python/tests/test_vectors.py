"""The behaviour that all SDKs share: ``sdk/vectors``, run by the tests of each."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import re
import secrets
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_connections import drop, reply, server

import cove
from cove import AsyncClient, AsyncSandbox, AsyncVolume, Client, Image, Sandbox, SecretLimit, Volume
from cove._settings import resolve
from cove._trees import pack_context
from cove._wire import Call

VECTORS = Path(__file__).resolve().parent.parent.parent / "vectors"


def load(name: str) -> list[Any]:
    return [pytest.param(one, id=one["name"]) for one in json.loads((VECTORS / name).read_text())]


def field(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value


def argument(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$"}:
            return field(known, value["$"])
        if set(value) == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: argument(item, known) for key, item in value.items()}
    return [argument(item, known) for item in value] if isinstance(value, list) else value


def agree(told: Any, wanted: Any, known: Mapping[str, Any], where: str) -> None:
    if isinstance(wanted, dict) and set(wanted) == {"matches"}:
        assert re.search(wanted["matches"], told), f"{where}: {told!r}"
    elif isinstance(wanted, dict) and set(wanted) in ({"$"}, {"base64"}):
        assert told == argument(wanted, known), f"{where}: {told!r}"
    elif isinstance(wanted, dict):
        for key, item in wanted.items():
            agree(field(told, key), item, known, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(told) == len(wanted), f"{where}: {told!r}"
        for number, (one, item) in enumerate(zip(told, wanted)):
            agree(one, item, known, f"{where}[{number}]")
    else:
        assert told == wanted, f"{where}: {told!r} is not {wanted!r}"


def failed(error: BaseException, wanted: Mapping[str, Any], where: str) -> None:
    expected = getattr(cove, wanted["error"]) if "error" in wanted else (ValueError, cove.CoveError)
    assert isinstance(error, expected), f"{where}: {error!r}"
    assert getattr(error, "code", None) == wanted.get("code", getattr(error, "code", None)), where
    for part in wanted.get("says", ()):
        assert part in str(error), f"{where}: {error}"


async def settled(value: Any) -> Any:
    """The same for both flavours."""
    return await value if inspect.isawaitable(value) else value


async def collected(result: Any, how: str) -> Any:
    if hasattr(result, "__aiter__"):
        values = [value async for value in result]
    else:
        values = list(result)
    if how == "values":
        return values
    texts = {"stdout": "", "stderr": ""}
    for value in values:
        texts[value.stream] += value.text
    return texts


def arguments(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = argument(dict(values), known)
    if "limits" in options:
        options["limits"] = [SecretLimit(**limit) for limit in options["limits"]]
    return options


async def create(sandbox: Any, options: Mapping[str, Any]) -> Any:
    """An asynchronous sandbox is made when it is first used."""
    box = sandbox(**options)
    return await box.__aenter__() if sandbox is AsyncSandbox else box


async def follow(known: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    for number, step in enumerate(steps):
        where = f"step {number + 1}, {step['do']}"
        on = known[step.get("on", "box")]
        args = [argument(value, known) for value in step.get("args", ())]
        options = arguments(step.get("options", {}), known)
        try:
            if on in (Sandbox, AsyncSandbox) and step["do"] == "create":
                result = create(on, options)
            else:
                result = field(on, step["do"])(*args, **options)
            result = await settled(result) if not hasattr(result, "__aiter__") else result
            if "collect" in step:
                result = await collected(result, step["collect"])
        except Exception as error:
            if "fails" not in step:
                raise
            failed(error, step["fails"], where)
            continue
        assert "fails" not in step, f"{where}: it worked: {result!r}"
        assert "hides" not in step or step["hides"] not in repr(result), f"{where}: {result!r}"
        if "as" in step:
            known[step["as"]] = result
        if "expect" in step:
            agree(result, step["expect"], known, where)


@pytest.mark.parametrize("vector", load("sandboxes.json"))
@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_sandboxes(vector: dict[str, Any], flavour: str) -> None:
    async def go() -> None:
        settings = vector.get("create", {})
        if flavour == "sync":
            with Sandbox(**settings) as box:
                await follow({"box": box}, vector["steps"])
        else:
            async with AsyncSandbox(**settings) as async_box:
                await follow({"box": async_box}, vector["steps"])

    asyncio.run(go())


@pytest.mark.parametrize("vector", load("resources.json"))
@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_resources(vector: dict[str, Any], flavour: str) -> None:
    unique = f"vectors-{secrets.token_hex(4)}"
    known: dict[str, Any] = {"name": unique, "other_name": f"{unique}-other"}

    async def go() -> None:
        if flavour == "sync":
            with Client() as client, Client() as other:
                more = {"client": client, "other": other, "Sandbox": Sandbox, "Volume": Volume}
                await follow({**known, **more}, vector["steps"])
        else:
            async with AsyncClient() as client, AsyncClient() as other:
                more = {"client": client, "other": other, "Sandbox": AsyncSandbox, "Volume": AsyncVolume}
                await follow({**known, **more}, vector["steps"])

    asyncio.run(go())


def ask(client: Client, call: str) -> None:
    box = Sandbox._of(client, cove.types.decode(cove.SandboxInfo, SANDBOX))
    if call == "images":
        client.images()
    elif call == "create":
        Sandbox(client=client)
    elif call == "delete":
        client._done(Call("DELETE", "/v1/sandboxes/x"))
    elif call == "exec":
        box.run("true")
    elif call == "upload":
        box.files.write("/srv/x", (piece for piece in [b"one", b"two"]))
    elif call == "upload_file":
        box.files.upload(__file__, "/srv/x")
    else:
        raise AssertionError(f"{call} is not known here")


SANDBOX = {
    "id": "sbx_x",
    "state": "running",
    "image": "debian",
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
    "last_active_at": "2026-01-01T00:00:00Z",
    "generation": 1,
}


@pytest.mark.parametrize("vector", load("wire.json"))
def test_wire(vector: dict[str, Any]) -> None:
    def answer(handler: Any, number: int) -> None:
        told = vector["answers"][min(number, len(vector["answers"])) - 1]
        if told.get("drop"):
            drop(handler)
        else:
            headers = {name.replace("-", "_"): value for name, value in told.get("headers", {}).items()}
            reply(handler, told["status"], told.get("body"), told.get("text"), **headers)

    with server(answer) as (url, asked), Client(url, "key") as client:
        if "fails" in vector:
            with pytest.raises(cove.CoveError) as told:
                ask(client, vector["call"])
            failed(told.value, vector["fails"], vector["call"])
        else:
            ask(client, vector["call"])
    assert len(asked) == vector["requests"]
    keys = {key for _, _, key, _ in asked}
    if vector.get("same_body"):
        assert len({body for _, _, _, body in asked}) == 1 and asked[0][3]
    if vector.get("one_key"):
        assert len(keys) == 1 and None not in keys
    if vector.get("no_key"):
        assert keys == {None}


@pytest.mark.parametrize("vector", load("settings.json"))
def test_settings(vector: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(text: str) -> str:
        return text.replace("{dir}", str(tmp_path))

    for variable in list(os.environ):
        if variable.startswith("COVE_") or variable == "XDG_CONFIG_HOME":
            monkeypatch.delenv(variable)
    for variable, value in {"HOME": "{dir}/home", **vector.get("env", {})}.items():
        monkeypatch.setenv(variable, here(value))
    files = dict(vector.get("files", {}))
    if "contexts" in vector:
        files["home/.config/cove/contexts.json"] = json.dumps(vector["contexts"])
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(int(vector.get("mode", "0600"), 8))
    options = vector.get("options", {})
    if "fails" in vector:
        with pytest.raises(cove.ConfigurationError) as told:
            resolve(**options)
        assert all(here(part) in str(told.value) for part in vector["fails"]), told.value
        assert "hides" not in vector or vector["hides"] not in str(told.value)
        return
    settings = resolve(**options)
    for name, wanted in vector["expect"].items():
        assert getattr(settings, name) == wanted, name
    with Client(**options) as client:
        assert client.url == settings.url


def made(vector: Mapping[str, Any], directory: Path) -> Image:
    for name, content in vector.get("files", {}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def plain(value: Any) -> Any:
        return directory / value["file"] if isinstance(value, dict) and set(value) == {"file"} else value

    begin, *args = vector.get("from", ["debian"])
    image: Image = getattr(Image, begin)(*map(plain, args))
    for method, *args in vector["steps"]:
        before = image.dockerfile
        following = getattr(image, method)(*map(plain, args))
        assert image.dockerfile == before
        image = following
    return image


@pytest.mark.parametrize("vector", load("images.json"))
def test_an_image_is_this_dockerfile(vector: Any, tmp_path: Path) -> None:
    if "fails" in vector:
        with pytest.raises(ValueError) as told:
            made(vector, tmp_path)
        assert all(part in str(told.value) for part in vector["fails"]), told.value
        return
    image = made(vector, tmp_path)
    assert image.dockerfile == vector["dockerfile"]
    assert image._archived_ignore() == vector.get("ignore")
    with pack_context(image.context, image.sources) as file, tarfile.open(fileobj=file) as archive:
        contents = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
        assert {name: content and content.read().decode() for name, content in contents.items()} == vector.get(
            "archive", {}
        )


def test_what_no_dockerfile_can_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unicode"):
        Image.debian().run(["echo", "\ud800"])
    with pytest.raises(FileNotFoundError):
        Image.debian().copy(tmp_path / "missing", "/srv/")
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", "/"):
        with pytest.raises(ValueError, match="neither a file nor a directory"):
            Image.debian().copy(source, "/srv/")
    (tmp_path / ".cove-copy").symlink_to("nowhere")
    (tmp_path / "Dockerfile").write_text("FROM debian")
    image = Image.from_dockerfile(tmp_path / "Dockerfile").copy(tmp_path / "Dockerfile", "/srv/")
    with pytest.raises(ValueError, match="the context has .cove-copy"):
        image._archived_ignore()
    with pytest.raises(TypeError, match="has its own"):
        cove.Template.build("x", tmp_path, image=image)
    with pytest.raises(TypeError, match="Template.build"):
        Sandbox(image=image)  # type: ignore[arg-type]


def test_links_are_followed_only_where_a_copy_names_them(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("text")
    (tmp_path / "real" / "inner").symlink_to("/etc/passwd")
    (tmp_path / "link").symlink_to("real")
    image = Image.debian().copy(tmp_path / "link", "/srv")
    with pack_context(image.context, image.sources) as file, tarfile.open(fileobj=file) as archive:
        kinds = {entry.name: (entry.isdir(), entry.issym()) for entry in archive}
    assert kinds == {
        ".cove-copy/0/link": (True, False),
        ".cove-copy/0/link/file": (False, False),
        ".cove-copy/0/link/inner": (False, True),
    }
