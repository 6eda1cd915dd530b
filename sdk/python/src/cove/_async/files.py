"""Files in a sandbox: content as text or bytes, directories as tar, metadata."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import IO, TYPE_CHECKING, Any, Optional, Union

from .. import errors
from .._wire import CHUNK, Call, matches, present, query, sandbox_path
from ..types import FileChange, FileInfo, FileMatch, decode

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

Content = Union[str, bytes, IO[bytes], Iterable[bytes]]
LocalPath = Union[str, "os.PathLike[str]"]


class AsyncFiles:
    """``box.files``. Paths are absolute; ``user`` is the user whose permissions apply (default: the
    sandbox's user).

    >>> async with AsyncSandbox() as box:
    ...     await box.files.write("/srv/notes.txt", "one\\ntwo\\n")
    ...     await box.files.read("/srv/notes.txt")
    8
    'one\\ntwo\\n'
    """

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box

    async def _call(self, method: str, rest: str = "", **more: Any) -> Call:
        return Call(method, sandbox_path(await self._box._reach(), f"/files{rest}"), **more)

    async def read(self, path: str, *, user: Optional[str] = None) -> str:
        """Reads a text file."""
        return (await self.read_bytes(path, user=user)).decode()

    async def read_bytes(
        self, path: str, *, start: int = 0, length: Optional[int] = None, user: Optional[str] = None
    ) -> bytes:
        """Reads a file as bytes, or ``length`` bytes of it from ``start``."""
        headers = {}
        if length == 0:
            return b""
        if start or length is not None:
            end = "" if length is None else str(start + length - 1)
            headers["range"] = f"bytes={start}-{end}"
        call = await self._call("GET", params=query(path=path, user=user), headers=headers)
        return await self._box._client._bytes(call)

    async def stream(self, path: str, *, user: Optional[str] = None) -> AsyncGenerator[bytes, None]:
        """Reads a file of any size in chunks.

        >>> async with AsyncSandbox() as box:
        ...     _ = await box.run("head -c 1000000 /dev/zero > /tmp/zeros")
        ...     sum([len(piece) async for piece in box.files.stream("/tmp/zeros")])
        1000000
        """
        pieces = self._box._client._pieces(await self._call("GET", params=query(path=path, user=user)))
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def write(
        self,
        path: str,
        content: Content,
        *,
        mode: Optional[int] = None,
        owner: Optional[str] = None,
        user: Optional[str] = None,
        parents: bool = True,
        append: bool = False,
    ) -> int:
        """Writes a file atomically: readers see the old or the new content. Returns its size.

        ``content`` is text, bytes, an open file or an iterable of bytes. Missing directories are created.
        """
        data: Any = content.encode() if isinstance(content, str) else content
        if not isinstance(data, bytes):
            data = _io_pieces(data)
        return await self._write(
            path, data, mode=mode, owner=owner, user=user, parents=parents, append=append
        )

    async def _write(
        self,
        path: str,
        content: Any,
        *,
        mode: Optional[int] = None,
        owner: Optional[str] = None,
        user: Optional[str] = None,
        parents: bool = True,
        append: bool = False,
    ) -> int:
        params = query(
            path=path,
            user=user,
            owner=owner,
            parents=parents,
            append=append,
            mode=None if mode is None else f"{mode:04o}",
        )
        call = await self._call("PUT", params=params, content=content, patience=None)
        call.repeatable = not append
        return int((await self._box._client._json(call))["bytes"])

    async def append(self, path: str, content: Union[str, bytes], *, user: Optional[str] = None) -> int:
        """Appends to a file."""
        return await self.write(path, content, append=True, user=user)

    async def list(
        self, path: str = "/", *, depth: int = 1, user: Optional[str] = None
    ) -> _List[FileInfo]:
        """Lists a directory; with ``depth``, also the directories below it.

        >>> async with AsyncSandbox() as box:
        ...     await box.files.write("/srv/a/b.txt", "!")
        ...     [file.path for file in await box.files.list("/srv", depth=2)]
        1
        ['/srv/a', '/srv/a/b.txt']
        """
        call = await self._call("GET", "/list", params=query(path=path, depth=depth, user=user))
        listing = await self._box._client._json(call)
        if listing.get("truncated"):
            raise errors.CoveError(f"{path} has more entries than a listing may have; list what is below it")
        return [decode(FileInfo, item) for item in listing["items"]]

    async def stat(self, path: str, *, follow: bool = False, user: Optional[str] = None) -> FileInfo:
        """Returns the metadata of a path; with ``follow``, of the target of a symlink."""
        call = await self._call("GET", "/stat", params=query(path=path, follow=follow, user=user))
        return decode(FileInfo, await self._box._client._json(call))

    async def exists(self, path: str, *, user: Optional[str] = None) -> bool:
        """Whether a path exists."""
        try:
            await self.stat(path, user=user)
        except (errors.PathNotFoundError, errors.PathNotADirectoryError):
            return False
        return True

    async def mkdir(
        self, path: str, *, parents: bool = True, mode: Optional[int] = None, user: Optional[str] = None
    ) -> None:
        """Creates a directory."""
        body = present(path=path, user=user, mode=None if mode is None else f"{mode:04o}")
        await self._box._client._done(await self._call("POST", "/mkdir", json={**body, "parents": parents}))

    async def remove(self, path: str, *, recursive: bool = False, user: Optional[str] = None) -> None:
        """Removes a file or an empty directory; with ``recursive``, any directory."""
        params = query(path=path, recursive=recursive, user=user)
        call = await self._call("DELETE", params=params)
        # A second try could not tell its own work from a path that was never there.
        call.repeatable = False
        await self._box._client._done(call)

    async def move(
        self, source: str, target: str, *, replace: bool = False, user: Optional[str] = None
    ) -> None:
        """Moves or renames a path; with ``replace``, replaces an existing target."""
        body = present(user=user)
        body.update({"from": source, "to": target, "replace": replace})
        await self._box._client._done(await self._call("POST", "/move", json=body))

    async def chmod(
        self,
        path: str,
        mode: Optional[int] = None,
        *,
        owner: Optional[str] = None,
        user: Optional[str] = None,
    ) -> None:
        """Changes mode (``0o755``), owner (``"user:group"``) or both."""
        text = None if mode is None else f"{mode:04o}"
        call = await self._call("POST", "/chmod", json=present(path=path, mode=text, owner=owner, user=user))
        await self._box._client._done(call)

    async def upload(self, source: LocalPath, target: str, *, user: Optional[str] = None) -> None:
        """Copies a file or directory of this machine to the path ``target`` in the sandbox.

        >>> import tempfile, pathlib
        >>> async with AsyncSandbox() as box:
        ...     with tempfile.TemporaryDirectory() as here:
        ...         _ = pathlib.Path(here, "main.py").write_text("print(1)")
        ...         await box.files.upload(here, "/srv/app")
        ...     await box.files.read("/srv/app/main.py")
        'print(1)'
        """
        from .. import _trees

        if not os.path.isdir(source):
            mode = os.stat(source).st_mode & 0o777
            with open(source, "rb") as file:
                await self._write(target, _rewound(file), mode=mode, user=user)
            return
        await self.mkdir(target, user=user)
        with _trees.pack(source) as archive:
            call = await self._call(
                "PUT",
                "/archive",
                params=query(path=target, user=user),
                content=_rewound(archive),
                headers={"content-type": "application/x-tar"},
                patience=None,
            )
            await self._box._client._json(call)

    async def download(self, source: str, target: LocalPath, *, user: Optional[str] = None) -> None:
        """Copies a file or directory from the sandbox to the path ``target`` on this machine.

        The sandbox is not trusted: nothing is written outside ``target``. Links that point out of it,
        devices and setuid bits are left out.
        """
        from .. import _trees

        info = await self.stat(source, follow=True, user=user)
        if not info.is_dir:
            with _trees.replacing(target) as file:
                async for piece in self.stream(source, user=user):
                    file.write(piece)
            return
        with _trees.spool() as archive:
            call = await self._call("GET", "/archive", params=query(path=source, user=user))
            pieces = self._box._client._pieces(call)
            async for piece in pieces:
                archive.write(piece)
            _trees.unpack(archive, target)

    async def find(self, path: str, pattern: str = "*", *, user: Optional[str] = None) -> _List[str]:
        """Returns the paths below a directory whose name matches a shell pattern, sorted.

        >>> async with AsyncSandbox() as box:
        ...     await box.files.write("/srv/app/main.py", "print(1)\\n")
        ...     await box.files.find("/srv", "*.py")
        9
        ['/srv/app/main.py']
        """
        await self.stat(path, user=user)
        command = ["find", path, "-mindepth", "1", "-name", pattern, "-print0"]
        result = await self._box.run(command, user=user, check=True)
        return sorted(found for found in result.stdout.split("\0") if found)

    async def grep(
        self,
        path: str,
        pattern: str,
        *,
        name: Optional[str] = None,
        ignore_case: bool = False,
        literal: bool = False,
        user: Optional[str] = None,
    ) -> _List[FileMatch]:
        """Returns the matching lines of a file, or of all text files below a directory.

        ``pattern`` is an extended regular expression, or plain text with ``literal``. ``name`` limits the
        search to files whose name matches a shell pattern.

        >>> async with AsyncSandbox() as box:
        ...     await box.files.write("/srv/app/main.py", "x = 1\\nprint(x)\\n")
        ...     [(match.path, match.line, match.text) for match in await box.files.grep("/srv", "print")]
        15
        [('/srv/app/main.py', 2, 'print(x)')]
        """
        await self.stat(path, user=user)
        command = ["grep", "-rHnIZ", "-F" if literal else "-E", *(["-i"] if ignore_case else [])]
        command += [*([f"--include={name}"] if name else []), "-e", pattern, "--", path]
        result = await self._box.run(command, user=user)
        # 1 says that nothing matched.
        return matches((result if result.exit_code == 1 else result.check()).stdout)

    async def replace(self, path: str, old: str, new: str, *, user: Optional[str] = None) -> int:
        """Replaces all occurrences of a text in a file and returns their number. Keeps the file's mode
        and owner.

        >>> async with AsyncSandbox() as box:
        ...     await box.files.write("/srv/a", "one two one")
        ...     await box.files.replace("/srv/a", "one", "three")
        ...     await box.files.read("/srv/a")
        11
        2
        'three two three'
        """
        if not old:
            raise ValueError("the text to replace must not be empty")
        text = await self.read(path, user=user)
        count = text.count(old)
        if count:
            info = await self.stat(path, follow=True, user=user)
            owner = None if user else f"{info.uid}:{info.gid}"
            await self.write(path, text.replace(old, new), mode=int(info.mode, 8), owner=owner, user=user)
        return count

    async def watch(
        self, path: str, *, recursive: bool = False, user: Optional[str] = None
    ) -> AsyncGenerator[FileChange, None]:
        """Yields changes below a path without end; the first value says that the watch is ready.

        >>> async with AsyncSandbox() as box:
        ...     changes = box.files.watch("/tmp")
        ...     (await changes.__anext__()).type
        ...     _ = await box.run("touch /tmp/new")
        ...     (await changes.__anext__()).path
        ...     await changes.aclose()
        'ready'
        '/tmp/new'
        """
        params = query(path=path, recursive=recursive, user=user)
        lines = self._box._client._lines(await self._call("GET", "/watch", params=params, patience=None))
        try:
            async for line in lines:
                if line.get("type") == "error":
                    raise errors.from_detail(line.get("error"))
                yield decode(FileChange, line)
        finally:
            await lines.aclose()


#: ``list`` is a method above.
_List = list


def _rewound(file: IO[bytes]) -> Callable[[], AsyncGenerator[bytes, None]]:
    """A file's content from its beginning, for every try."""

    def pieces() -> AsyncGenerator[bytes, None]:
        file.seek(0)
        return _io_pieces(file)

    return pieces


async def _io_pieces(source: Any) -> AsyncGenerator[bytes, None]:
    """What is to be sent, piece by piece."""
    if hasattr(source, "read"):
        while True:
            piece = source.read(CHUNK)
            if not piece:
                return
            yield piece
    for piece in source:
        yield piece
