"""Directories of this machine as tar, and back. What comes out of a sandbox is not trusted."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Optional, Union

from .errors import CoveError

LocalPath = Union[str, "os.PathLike[str]"]
#: An archive up to this size stays in memory.
SPOOL_MEMORY = 8 * 1024 * 1024
#: Entries taken out of one archive.
ENTRIES_MAX = 1_000_000


def spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(max_size=SPOOL_MEMORY)


def _plain(entry: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isreg() or entry.isdir() or entry.issym() or entry.islnk() else None


@contextmanager
def pack(directory: LocalPath) -> Iterator[IO[bytes]]:
    """A directory's content as an archive, owned by nobody in particular."""
    with pack_context(directory) as file:
        yield file


@contextmanager
def pack_context(directory: Optional[LocalPath], sources: Iterable[tuple[str, str]] = ()) -> Iterator[IO[bytes]]:
    """The context of a build: what is in a directory, if there is one, and files from elsewhere under their names."""
    with spool() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(os.listdir(directory)) if directory is not None else ():
                archive.add(os.path.join(directory or "", name), arcname=name, filter=_plain)
            for name, place in sources:
                # A link is followed if it is the source itself.
                archive.add(os.path.realpath(place), arcname=name, filter=_plain)
        file.seek(0)
        yield file


@contextmanager
def replacing(path: LocalPath) -> Iterator[IO[bytes]]:
    """A new file that takes its place only when it is whole."""
    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a directory")
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".cove-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def unpack(file: IO[bytes], target: LocalPath) -> None:
    """Writes an archive's entries below ``target`` and nowhere else."""
    root = os.path.realpath(target)
    os.makedirs(root, exist_ok=True)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r") as archive:
        for number, entry in enumerate(archive):
            if number >= ENTRIES_MAX:
                raise CoveError(f"the archive has more than {ENTRIES_MAX} entries")
            place = _place(root, entry.name)
            if place == root:
                continue
            if entry.isdir():
                os.makedirs(place, exist_ok=True)
            elif entry.isreg():
                _clear(place)
                content = archive.extractfile(entry)
                if content is None:
                    continue
                with open(place, "xb") as out:
                    while piece := content.read(1024 * 1024):
                        out.write(piece)
                os.chmod(place, stat.S_IMODE(entry.mode) & 0o777)
            elif entry.issym():
                aim = os.path.normpath(os.path.join(os.path.dirname(place), entry.linkname))
                if not os.path.isabs(entry.linkname) and _inside(root, aim):
                    _clear(place)
                    os.symlink(entry.linkname, place)
            elif entry.islnk():
                origin = _place(root, entry.linkname)
                if os.path.isfile(origin) and not os.path.islink(origin):
                    _clear(place)
                    os.link(origin, place)


def _inside(root: str, path: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _place(root: str, name: str) -> str:
    """Where an entry goes; its directory is really below the root, whatever links came before."""
    path = os.path.normpath(os.path.join(root, name))
    parent = os.path.realpath(os.path.dirname(path))
    if path != root and not (_inside(root, path) and _inside(root, parent)):
        raise CoveError(f"the sandbox sent an archive that reaches outside its directory: {name!r}")
    os.makedirs(parent if path != root else root, exist_ok=True)
    return path


def _clear(place: str) -> None:
    if os.path.islink(place) or os.path.isfile(place):
        os.unlink(place)
