# Written by tools/generate_sync.py from cove/_async/volume.py; edit that one.
"""Volumes: directories that outlive sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

from .. import errors
from .._wire import Call, megabytes, placement_body, present, query, segment
from ..types import FileInfo, VolumeInfo, decode
from .client import Client


def _path(volume: str, rest: str = "") -> str:
    return f"/v1/volumes/{segment(volume)}{rest}"


class Volume:
    """A directory that outlives sandboxes, mounted in one or in several at once. It is not part of any
    sandbox's snapshot.

    >>> volume = Volume.create("doc-notes", size="64M")
    >>> with Sandbox(volumes={"/notes": volume}) as box:
    ...     _ = box.run("echo kept > /notes/today")
    >>> volume.read("/today")
    'kept\\n'
    >>> volume.delete()
    """

    def __init__(self, client: Client, info: VolumeInfo) -> None:
        self._client = client
        #: What is known about it: name, size, what it holds.
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r}>"

    @classmethod
    def create(
        cls,
        name: str,
        *,
        size: Union[int, str, None] = None,
        source: Union[str, Volume, None] = None,
        read_only: bool = False,
        placement: Optional[Mapping[str, Any]] = None,
        client: Optional[Client] = None,
    ) -> Volume:
        """Creates a volume; ``size`` is MiB or text like ``"20G"``. With ``source`` it is a copy of that
        volume; with ``read_only`` the copy never changes. ``placement`` chooses its host, as for a sandbox.
        """
        client = client or Client.default()
        body: dict[str, Any] = present(
            name=name,
            size_mb=megabytes("size", size),
            read_only=read_only or None,
            placement=placement_body(placement),
        )
        if source is not None:
            body["from"] = source.id if isinstance(source, Volume) else source
        answer = client._json(Call("POST", "/v1/volumes", json=body).once())
        return cls(client, decode(VolumeInfo, answer))

    @classmethod
    def get(cls, volume: str, *, client: Optional[Client] = None) -> Volume:
        """Returns an existing volume, by id or name."""
        client = client or Client.default()
        return cls(client, decode(VolumeInfo, client._json(Call("GET", _path(volume)))))

    @classmethod
    def list(cls, *, client: Optional[Client] = None) -> _List[Volume]:
        """Lists the volumes of the organisation."""
        client = client or Client.default()
        pages = client._pages(Call("GET", "/v1/volumes"))
        return [cls(client, decode(VolumeInfo, item)) for item in pages]

    def delete(self) -> None:
        """Deletes it and everything in it. Refused with :class:`InUseError` while a sandbox mounts it."""
        self._client._done(Call("DELETE", _path(self.id)))

    def read(self, path: str) -> str:
        """Reads a text file. This and the calls below need no sandbox."""
        return self.read_bytes(path).decode()

    def read_bytes(self, path: str) -> bytes:
        """Reads a file as bytes."""
        call = Call("GET", _path(self.id, "/files"), params=query(path=path))
        return self._client._bytes(call)

    def write(
        self,
        path: str,
        content: Union[str, bytes],
        *,
        mode: Optional[int] = None,
        owner: Optional[str] = None,
    ) -> int:
        """Writes a file atomically and returns its size. Missing directories are created."""
        data = content.encode() if isinstance(content, str) else content
        mode_text = None if mode is None else f"{mode:04o}"
        params = query(path=path, mode=mode_text, owner=owner, parents=True)
        call = Call("PUT", _path(self.id, "/files"), params=params, content=data, patience=None)
        call.repeatable = True
        return int((self._client._json(call))["bytes"])

    def files(self, path: str = "/", *, depth: int = 1) -> _List[FileInfo]:
        """Lists a directory; with ``depth``, also the directories below it."""
        params = query(path=path, depth=depth)
        listing = self._client._json(Call("GET", _path(self.id, "/files/list"), params=params))
        if listing.get("truncated"):
            raise errors.CoveError(f"{path} has more entries than a listing may have; list what is below it")
        return [decode(FileInfo, item) for item in listing["items"]]

    def stat(self, path: str) -> FileInfo:
        """Returns the metadata of a path."""
        call = Call("GET", _path(self.id, "/files/stat"), params=query(path=path))
        return decode(FileInfo, self._client._json(call))

    def mkdir(self, path: str, *, mode: Optional[int] = None) -> None:
        """Creates a directory and its parents."""
        body = present(path=path, mode=None if mode is None else f"{mode:04o}")
        body["parents"] = True
        self._client._done(Call("POST", _path(self.id, "/files/mkdir"), json=body))

    def move(self, source: str, target: str) -> None:
        """Renames a file or directory."""
        body = {"from": source, "to": target}
        self._client._done(Call("POST", _path(self.id, "/files/move"), json=body))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with ``recursive``, any directory."""
        params = query(path=path, recursive=recursive)
        self._client._done(Call("DELETE", _path(self.id, "/files"), params=params))


#: A volume by id or name, the volume itself, or ``{"volume": …, "read_only": True}``.
Mounted = Union[str, Volume, Mapping[str, Any]]


def mounts(volumes: Optional[Mapping[str, Mounted]]) -> Optional[_List[dict[str, Any]]]:
    """The mounts of a create, from where to what."""
    if volumes is None:
        return None
    found = []
    for path, what in volumes.items():
        mount = dict(what) if isinstance(what, Mapping) else {"volume": what}
        volume = mount.get("volume")
        if isinstance(volume, Volume):
            mount["volume"] = volume.id
        found.append({**mount, "path": path})
    return found


#: ``list`` is a method above.
_List = list
