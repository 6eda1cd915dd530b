"""The official SDK against a real server, and a record of what every public method of it came to.

Each public method of the SDK's classes is wrapped when this is loaded. After the last test the record
becomes the table in ``docs/compat/daytona.md``; a method that no test called, or that neither worked nor
was refused with a reason, fails the run, and so does a table that is not what the page says.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pathlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import daytona
import pytest
from daytona.handle.pty_handle import PtyHandle

PAGE = pathlib.Path(__file__).parents[3] / "docs/compat/daytona.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
MODULES = [
    "daytona", "sandbox", "process", "filesystem", "git", "code_interpreter", "snapshot", "volume", "secret",
    "warm_pool", "lsp_server", "computer_use",
]
#: Not calls of the server.
LEFT_OUT = {"Sandbox.model_post_init", "SnapshotService.process_image_context"}

WORKED: set[str] = set()
REFUSED: dict[str, str] = {}
EVERY: list[str] = []


def reason(error: BaseException | None) -> str | None:
    """Why something was refused, when that is what happened. Some calls raise what lies below the SDK."""
    while error is not None:
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or getattr(error, "status", None)
        if response is not None and response.status_code == 501:
            try:
                return str(json.loads(response.read())["message"])
            except Exception:
                return "the SDK does not pass on why"
        if status == 501:
            body = getattr(error, "body", None)
            if body:
                return str(json.loads(body)["message"])
            text = str(error)
            return text.split(": ", 1)[1] if text.startswith("Failed") and ": " in text else text
        error = error.__cause__ or error.__context__
    return None


def _note(name: str, error: BaseException | None) -> None:
    if error is None:
        WORKED.add(name)
    elif told := reason(error):
        REFUSED.setdefault(name, told)


def _recorded(name: str, call: Any) -> Any:
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def later(*args: Any, **named: Any) -> Any:
            try:
                result = await call(*args, **named)
            except Exception as error:
                _note(name, error)
                raise
            _note(name, None)
            return result

        return later

    def drained(iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from iterator
        except Exception as error:
            _note(name, error)
            raise
        _note(name, None)

    @functools.wraps(call)
    def now(*args: Any, **named: Any) -> Any:
        try:
            result = call(*args, **named)
        except Exception as error:
            _note(name, error)
            raise
        if inspect.isgenerator(result):
            return drained(result)
        _note(name, None)
        return result

    return now


def _wrap(cls: type) -> None:
    for key, value in list(vars(cls).items()):
        name = f"{cls.__name__}.{key}"
        if key.startswith("_") or name in LEFT_OUT or not inspect.isfunction(value):
            continue
        EVERY.append(name)
        setattr(cls, key, _recorded(name, value))


for _module in (importlib.import_module(f"daytona._sync.{name}") for name in MODULES):
    for _cls in list(vars(_module).values()):
        if inspect.isclass(_cls) and _cls.__module__ == _module.__name__ and not _cls.__name__.startswith("_"):
            _wrap(_cls)
_wrap(PtyHandle)


def table() -> str:
    lines = ["| method | here |", "|---|---|"]
    for name in EVERY:
        if name in WORKED:
            lines.append(f"| `{name}` | works |")
        else:
            lines.append(f"| `{name}` | refused: {REFUSED[name]} |")
    works = sum(name in WORKED for name in EVERY)
    lines += ["", f"{works} of {len(EVERY)} work, {len(EVERY) - works} are refused with the reason given."]
    return "\n".join(lines)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus != 0 or session.config.option.keyword or session.config.option.collectonly:
        return
    unknown = [name for name in EVERY if name not in WORKED and name not in REFUSED]
    if unknown:
        print(f"\nnobody knows what becomes of: {', '.join(unknown)}")
        session.exitstatus = 1
        return
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    current = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if current == text:
        return
    if os.environ.get("COVE_WRITE_TABLES"):
        PAGE.write_text(current)
        return
    print(f"\n{PAGE.name} does not say what this run found; COVE_WRITE_TABLES=1 writes it")
    session.exitstatus = 1


def ask(key: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    request = urllib.request.Request(os.environ["DAYTONA_API_URL"] + path, method=method)
    request.add_header("Authorization", f"Bearer {key}")
    data = None
    if body is not None:
        request.add_header("Content-Type", "application/json")
        data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data, timeout=300) as answer:
            body = answer.read()
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            return answer.status, json.loads(body) if is_json else body
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="session")
def client() -> daytona.Daytona:
    return daytona.Daytona()


@pytest.fixture(scope="session")
def box(client: daytona.Daytona) -> Iterator[daytona.Sandbox]:
    made = client.create()
    yield made
    made.delete(wait=True)


@pytest.fixture
def bystander(client: daytona.Daytona) -> Iterator[daytona.Sandbox]:
    """One of its own, for tests that change how it is."""
    made = client.create()
    yield made
    try:
        made.delete()
    except daytona.DaytonaNotFoundError:
        pass
