"""Snapshots and the sandboxes that start from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import errors
from .._limits import LEASE_DEFAULT_S
from .._wire import Call, present, query, segment
from ..types import SandboxInfo, SnapshotInfo, decode
from . import _io
from .client import AsyncClient

if TYPE_CHECKING:
    import os

    from .sandbox import AsyncSandbox

#: Forks that are deleted at once.
DELETE_AT_ONCE = 16
#: Seconds a snapshot or a fork may take: much memory goes to disk.
PATIENCE = 600.0


def _path(snapshot: str, rest: str = "") -> str:
    return f"/v1/snapshots/{segment(snapshot)}{rest}"


class AsyncSnapshot:
    """A saved state of a sandbox, to roll back to or to start others from. It outlives its sandbox.

    >>> async with AsyncSandbox() as box:
    ...     await box.files.write("/srv/state", "good")
    ...     good = await box.snapshot()
    ...     await box.files.write("/srv/state", "bad")
    ...     _ = await box.rollback(good)
    ...     await box.files.read("/srv/state")
    4
    3
    'good'
    """

    def __init__(self, client: AsyncClient, info: SnapshotInfo) -> None:
        self._client = client
        #: What is known about it: size, kind, where it was taken.
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> Optional[str]:
        return self.info.name

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{named}>"

    @classmethod
    async def get(cls, snapshot: str, *, client: Optional[AsyncClient] = None) -> AsyncSnapshot:
        """Returns an existing snapshot, by id or name."""
        client = client or AsyncClient.default()
        return cls(client, decode(SnapshotInfo, await client._json(Call("GET", _path(snapshot)))))

    @classmethod
    async def list(cls, *, client: Optional[AsyncClient] = None) -> _List[AsyncSnapshot]:
        """Lists the snapshots of the organisation."""
        client = client or AsyncClient.default()
        pages = client._pages(Call("GET", "/v1/snapshots"))
        return [cls(client, decode(SnapshotInfo, item)) async for item in pages]

    async def fork(
        self,
        count: int = 1,
        *,
        memory: bool = False,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
    ) -> AsyncForks:
        """Creates sandboxes from this state; with ``memory`` they continue its processes."""
        return await AsyncForks._make(
            self._client, _path(self.id, "/fork"), count, memory=memory, name=name, labels=labels
        )

    async def delete(self) -> None:
        """Deletes it. Sandboxes and snapshots made from it stay."""
        await self._client._done(Call("DELETE", _path(self.id)))

    async def export(self, target: Union[str, os.PathLike[str]]) -> None:
        """Writes it to a file that another server can import."""
        from .. import _trees

        with _trees.replacing(target) as file:
            pieces = self._client._pieces(Call("GET", _path(self.id, "/export"), patience=None))
            async for piece in pieces:
                file.write(piece)

    @classmethod
    async def load(
        cls,
        source: Union[str, os.PathLike[str]],
        *,
        name: Optional[str] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncSnapshot:
        """Imports a file that :meth:`export` wrote."""
        from .files import _rewound

        client = client or AsyncClient.default()
        with open(source, "rb") as file:
            call = Call(
                "POST",
                "/v1/snapshots/import",
                params=query(name=name),
                content=_rewound(file),
                patience=None,
            )
            answer = await client._json(call)
        return cls(client, decode(SnapshotInfo, answer.get("snapshot")))


class AsyncForks:
    """Copies of a sandbox. The end of a block deletes them all. Each has a lease, as :class:`AsyncSandbox` has.

    >>> async with AsyncSandbox() as box:
    ...     await box.files.write("/srv/seed", "1")
    ...     async with await box.fork(3) as forks:
    ...         [await fork.files.read("/srv/seed") for fork in forks]
    1
    ['1', '1', '1']
    """

    def __init__(self, boxes: Iterable[AsyncSandbox]) -> None:
        self._boxes = list(boxes)

    @classmethod
    async def _make(
        cls,
        client: AsyncClient,
        path: str,
        count: int,
        *,
        memory: bool,
        name: Optional[str],
        labels: Optional[Mapping[str, str]],
    ) -> AsyncForks:
        from .sandbox import AsyncSandbox

        body: dict[str, Any] = present(name=name, labels=dict(labels) if labels else None)
        body.update(count=count, memory=memory, lease=client._leases.request(LEASE_DEFAULT_S, None))
        answers = await client._json(Call("POST", path, json=body, patience=PATIENCE).once())
        made, refused = [], []
        for answer in answers:
            if "sandbox" in answer:
                info = SandboxInfo.from_wire(answer["sandbox"])
                made.append(AsyncSandbox._of(client, info, lease=LEASE_DEFAULT_S))
            else:
                refused.append(errors.from_detail(answer.get("error")))
        forks = cls(made)
        if refused:
            await forks.delete()
            raise errors.ForkFailed(refused)
        return forks

    def __len__(self) -> int:
        return len(self._boxes)

    def __iter__(self) -> Iterator[AsyncSandbox]:
        return iter(self._boxes)

    def __getitem__(self, index: int) -> AsyncSandbox:
        return self._boxes[index]

    async def __aenter__(self) -> AsyncForks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()

    async def delete(self) -> None:
        """Deletes them all. A fork that no longer exists is not an error."""

        async def one(box: AsyncSandbox) -> None:
            await box.__aexit__()

        outcomes = await _io.each(one, self._boxes, DELETE_AT_ONCE)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


#: ``list`` is a method above.
_List = list
