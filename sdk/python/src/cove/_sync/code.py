# Written by tools/generate_sync.py from cove/_async/code.py; edit that one.
"""The code interpreter: contexts that keep their variables between runs, and rich results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import errors
from .._wire import NDJSON, Call, milliseconds, present, sandbox_path, segment
from ..types import CodeContextInfo, CodeError, CodeOutput, CodeResult, Language, decode
from . import _io

if TYPE_CHECKING:
    from .sandbox import Sandbox

Told = Callable[[str], None]
Shown = Callable[[CodeOutput], None]


class Code:
    """``box.code``. Runs without a context share one default context per language.

    >>> with Sandbox() as box:
    ...     _ = box.code.run("import math; radius = 2")
    ...     (box.code.run("round(math.pi * radius ** 2, 2)")).text
    '12.57'

    The value of the last expression is a result, in all its formats: ``text``, ``html``, ``json``,
    ``png`` (matplotlib's figures among them).
    """

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    def run(
        self,
        code: str,
        *,
        language: Optional[Language] = None,
        timeout: Optional[float] = None,
        check: Optional[bool] = None,
        on_stdout: Optional[Told] = None,
        on_stderr: Optional[Told] = None,
        on_result: Optional[Shown] = None,
    ) -> CodeResult:
        """Runs code (default: Python) and waits until it ends.

        >>> with Sandbox() as box:
        ...     result = box.code.run("print('half'); 1 / 0")
        ...     result.stdout, result.error.name
        ...     box.code.run("cd /tmp; pwd", language="bash").stdout
        ('half\\n', 'ZeroDivisionError')
        '/tmp\\n'

        The callbacks receive output and results as they arrive. After ``timeout`` seconds the code is
        interrupted, variables are kept, and this raises :class:`~cove.CodeTimedOut`; with ``check=False``
        the result says ``timed_out`` instead. With ``check=True`` an exception in the code raises
        :class:`~cove.CodeFailed`. Cancelling this call interrupts the code.
        """
        return self._run(
            code,
            language=language,
            context=None,
            timeout=timeout,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )

    def context(
        self,
        language: Language = "python",
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> CodeContext:
        """Creates another context with its own variables.

        >>> with Sandbox() as box:
        ...     with box.code.context(cwd="/srv") as apart:
        ...         (apart.run("import os; os.getcwd()")).text
        "'/srv'"
        """
        body = present(language=language, cwd=cwd, user=user, env=dict(env) if env else None)
        call = Call("POST", sandbox_path(self._box._reach(), "/code/contexts"), json=body)
        return CodeContext(self, decode(CodeContextInfo, self._box._client._json(call)))

    def contexts(self) -> list[CodeContext]:
        """Lists the running contexts."""
        call = Call("GET", sandbox_path(self._box._reach(), "/code/contexts"))
        found = (self._box._client._json(call))["items"]
        return [CodeContext(self, decode(CodeContextInfo, item)) for item in found]

    def _interrupt(self, context: str) -> None:
        path = sandbox_path(self._box._reach(), f"/code/contexts/{segment(context)}/interrupt")
        self._box._client._done(Call("POST", path))

    def _run(
        self,
        code: str,
        *,
        language: Optional[Language],
        context: Optional[str],
        timeout: Optional[float],
        check: Optional[bool],
        on_stdout: Optional[Told],
        on_stderr: Optional[Told],
        on_result: Optional[Shown],
    ) -> CodeResult:
        body = present(language=language, context=context, timeout_ms=milliseconds(timeout))
        body["code"] = code
        path = sandbox_path(self._box._reach(), "/code/run")
        call = Call("POST", path, json=body, headers={"accept": NDJSON}, patience=None)
        said: dict[str, list[str]] = {"stdout": [], "stderr": []}
        results: list[CodeOutput] = []
        thrown: Optional[CodeError] = None
        end: Optional[Mapping[str, Any]] = None
        running: Optional[str] = None
        try:
            for event in self._box._client._lines(call):
                kind = event.get("type")
                if kind == "started":
                    running = str(event["context"]["id"])
                elif kind in said:
                    said[kind].append(event["text"])
                    callback = on_stdout if kind == "stdout" else on_stderr
                    if callback is not None:
                        _io.tell(callback, event["text"])
                elif kind == "result":
                    results.append(decode(CodeOutput, event["result"]))
                    if on_result is not None:
                        _io.tell(on_result, results[-1])
                elif kind == "error":
                    thrown = decode(CodeError, event["error"])
                elif kind == "failed":
                    raise errors.from_detail(event.get("error"))
                elif kind == "end":
                    end = event
        except _io.Cancelled:
            if running is not None:
                _io.quietly(self._interrupt, running)
            raise
        if end is None:
            raise errors.ConnectionError("lost the connection before the code ended")
        result = CodeResult(
            context=str(end["context"]),
            stdout="".join(said["stdout"]),
            stderr="".join(said["stderr"]),
            results=tuple(results),
            error=thrown,
            exit_code=end.get("exit_code"),
            timed_out=bool(end.get("timed_out")),
            context_ended=bool(end.get("context_ended")),
            truncated=bool(end.get("truncated")),
            duration=int(end.get("duration_ms", 0)) / 1000,
        )
        return result._checked(check)


class CodeContext:
    """A context with its own variables. The end of a block deletes it."""

    def __init__(self, code: Code, info: CodeContextInfo) -> None:
        self._code = code
        #: What it is: language, directory, user.
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def language(self) -> Language:
        return self.info.language

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.language}>"

    def __enter__(self) -> CodeContext:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.delete()
        except errors.NotFoundError:
            pass

    def run(
        self,
        code: str,
        *,
        language: Optional[Language] = None,
        timeout: Optional[float] = None,
        check: Optional[bool] = None,
        on_stdout: Optional[Told] = None,
        on_stderr: Optional[Told] = None,
        on_result: Optional[Shown] = None,
    ) -> CodeResult:
        """Runs code in this context, like ``box.code.run``."""
        return self._code._run(
            code,
            language=language,
            context=self.id,
            timeout=timeout,
            check=check,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
        )

    def interrupt(self) -> None:
        """Interrupts the code that runs now. Variables are kept."""
        self._code._interrupt(self.id)

    def delete(self) -> None:
        """Deletes the context."""
        self._code._box._client._done(self._call("DELETE"))

    def _call(self, method: str, rest: str = "") -> Call:
        sandbox = self._code._box._reach()
        return Call(method, sandbox_path(sandbox, f"/code/contexts/{segment(self.id)}{rest}"))
