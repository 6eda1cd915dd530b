"""Commands while they run: streams that survive their connection, background processes, terminals."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import errors
from .._wire import NDJSON, OUTPUT_MAX, Call, Transcript, query, sandbox_path, segment, shown
from ..types import Output, ProcessInfo, Result, decode
from . import _io

if TYPE_CHECKING:
    from .client import AsyncClient
    from .sandbox import AsyncSandbox


class AsyncProcess:
    """A command in the background. It keeps running without a client, also after this program has ended.

    Iterating yields its output from the beginning, live, until it ends. No byte is lost or repeated when
    the connection breaks or the server restarts.

    >>> async with AsyncSandbox() as box:
    ...     process = await box.start("read name; echo hello $name", stdin=True)
    ...     await process.send("Ada\\n")
    ...     (await process.wait()).stdout
    'hello Ada\\n'
    """

    def __init__(
        self, client: Optional[AsyncClient], sandbox: str, id: str, command: Optional[str] = None
    ) -> None:
        self._at = client
        self._sandbox = sandbox
        self._id: Optional[str] = id or None
        self._command = command

    @property
    def _client(self) -> AsyncClient:
        if self._at is None:
            raise errors.CoveError("the command has not been started yet")
        return self._at

    @property
    def id(self) -> str:
        """The process's id in its sandbox."""
        if self._id is None:
            raise errors.CoveError("the command has not been started yet")
        return self._id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} in {self._sandbox}>"

    def _path(self, rest: str = "") -> str:
        return sandbox_path(self._sandbox, f"/processes/{segment(self.id)}{rest}")

    def _follow(self, transcript: Transcript, follow: bool = True) -> Call:
        offsets = transcript.offsets
        params = query(stdout_from=offsets["stdout"], stderr_from=offsets["stderr"], follow=follow)
        return Call("GET", self._path("/output"), params=params, patience=None)

    async def info(self) -> ProcessInfo:
        """Returns its command, user, start time and result."""
        return decode(ProcessInfo, await self._client._json(Call("GET", self._path())))

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.output()

    async def output(self, *, follow: bool = True) -> AsyncGenerator[Output, None]:
        """Yields its output from the beginning until it ends. Without ``follow``, only the output so far."""
        transcript = Transcript(keep=0)
        call = self._follow(transcript, follow)
        if not follow:
            async for event in self._client._lines(call):
                told = transcript.take(event)
                if told is not None:
                    yield told
            return
        async for event in self._client._reconnecting(call, lambda: self._follow(transcript)):
            told = transcript.take(event)
            if told is not None:
                yield told

    async def wait(self, *, check: Optional[bool] = None) -> Result:
        """Waits until it ends and returns its result with the kept output. ``check`` works as in ``run``."""
        transcript = Transcript()
        transcript.process = self.id
        async for event in self._client._reconnecting(
            self._follow(transcript), lambda: self._follow(transcript)
        ):
            transcript.take(event)
        return transcript.result(self._command)._checked(check)

    async def send(self, data: Union[str, bytes], *, close: bool = False) -> None:
        """Writes to its input; with ``close``, closes the input afterwards."""
        content = data.encode() if isinstance(data, str) else data
        await self._client._done(
            Call("POST", self._path("/stdin"), params=query(close=close), content=content)
        )

    async def close_stdin(self) -> None:
        """Closes its input."""
        await self.send(b"", close=True)

    async def signal(self, signal: Union[str, int]) -> None:
        """Sends a signal, ``"INT"`` or ``2``, to its whole process group."""
        await self._client._done(Call("POST", self._path("/signal"), json={"signal": str(signal)}))

    async def terminate(self) -> None:
        """Sends SIGTERM."""
        await self.signal("TERM")

    async def kill(self) -> None:
        """Sends SIGKILL."""
        await self.signal("KILL")


class AsyncStream(AsyncProcess):
    """A command in the foreground, followed from its first byte. Made by ``box.stream(...)``.

    >>> async with AsyncSandbox() as box:
    ...     stream = box.stream("for i in 1 2 3; do echo $i; done")
    ...     print("".join([out.text async for out in stream]).split())
    ...     print((await stream.result()).exit_code)
    ['1', '2', '3']
    0
    """

    def __init__(self, box: AsyncSandbox, body: Mapping[str, Any], keep: int = OUTPUT_MAX) -> None:
        super().__init__(None, "", "", shown(body.get("command") or body.get("argv") or ""))
        self._transcript = Transcript(keep)
        self._events = self._run(box, dict(body))

    async def _run(self, box: AsyncSandbox, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        self._sandbox, self._at = await box._reach(), box._client
        path = sandbox_path(self._sandbox, "/exec")
        call = Call("POST", path, json=body, headers={"accept": NDJSON}, patience=None)
        events = self._client._reconnecting(call, self._again)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def _again(self) -> Optional[Call]:
        return self._follow(self._transcript) if self._id else None

    async def _begin(self) -> None:
        """Waits until the command's id is known."""
        async for event in self._events:
            self._transcript.take(event)
            self._id = self._transcript.process
            return

    async def _end(self) -> None:
        """Kills the command and waits for its end."""
        await self.kill()
        await self.close()
        await super().wait(check=False)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while True:
            event = await self._events.__anext__()
            told = self._transcript.take(event)
            self._id = self._transcript.process
            if told is not None:
                return told

    async def result(self, *, check: Optional[bool] = None) -> Result:
        """Waits until it ends and returns its result; output that was not read is skipped."""
        async for _ in self:
            pass
        return self._transcript.result(self._command)._checked(check)

    async def wait(self, *, check: Optional[bool] = None) -> Result:
        return await self.result(check=check)

    async def close(self) -> None:
        """Stops following. The command keeps running."""
        await self._events.aclose()


class AsyncTerminal(AsyncProcess):
    """A command with a terminal (default: a shell): send input and wait for output.

    >>> async with AsyncSandbox() as box:
    ...     async with await box.terminal() as terminal:
    ...         await terminal.send("echo $((6 * 7))\\n")
    ...         print(await terminal.expect(r"\\b42\\b") != "")
    True
    """

    def __init__(
        self, client: AsyncClient, sandbox: str, id: str, command: Optional[str] = None
    ) -> None:
        super().__init__(client, sandbox, id, command)
        self._transcript = Transcript(keep=0)
        self._screen = ""

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.kill()
        except (errors.ProcessGoneError, errors.NotFoundError):
            pass

    async def resize(self, cols: int, rows: int) -> None:
        """Changes the terminal's size."""
        await self._client._done(Call("POST", self._path("/resize"), json={"cols": cols, "rows": rows}))

    async def read(self, timeout: float = 1.0) -> str:
        """Returns the output since the last read; waits at most ``timeout`` seconds for some."""
        await self._more(monotonic() + timeout)
        text, self._screen = self._screen, ""
        return text

    async def expect(self, pattern: str, timeout: float = 30.0) -> str:
        """Waits until the output matches the regular expression and returns the text up to the end of the
        match.
        """
        compiled = re.compile(pattern)
        deadline = monotonic() + timeout
        while True:
            found = compiled.search(self._screen)
            if found:
                text, self._screen = self._screen[: found.end()], self._screen[found.end() :]
                return text
            if not await self._more(deadline):
                tail = self._screen[-500:]
                raise errors.WaitTimeout(f"{pattern!r} did not appear; the terminal ends with {tail!r}")

    async def _more(self, deadline: float) -> bool:
        """Reads the output so far, or the next output before the deadline."""
        while True:
            came = False
            async for event in self._client._lines(self._follow(self._transcript, follow=False)):
                told = self._transcript.take(event)
                if told is not None:
                    self._screen += told.text
                    came = True
            if came:
                return True
            if monotonic() >= deadline or self._transcript.exit is not None:
                return False
            await _io.sleep(0.02)
