# Written by tools/generate_sync.py from cove/_async/snapshot.py; edit that one.
"""Snapshots and the sandboxes that start from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import errors
from .._limits import LEASE_DEFAULT_S
from .._wire import Call, present, query, segment
from ..types import SandboxInfo, SnapshotInfo, decode
from . import _io
from .client import Client

if TYPE_CHECKING:
    import os

    from .sandbox import Sandbox

#: Forks that are deleted at once.
DELETE_AT_ONCE = 16
#: Seconds a snapshot or a fork may take: much memory goes to disk.
PATIENCE = 600.0


def _path(snapshot: str, rest: str = "") -> str:
    return f"/v1/snapshots/{segment(snapshot)}{rest}"


class Snapshot:
    """A saved state of a sandbox, to roll back to or to start others from. It outlives its sandbox.

    >>> with Sandbox() as box:
    ...     box.files.write("/srv/state", "good")
    ...     good = box.snapshot()
    ...     box.files.write("/srv/state", "bad")
    ...     _ = box.rollback(good)
    ...     box.files.read("/srv/state")
    4
    3
    'good'
    """

    def __init__(self, client: Client, info: SnapshotInfo) -> None:
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
    def get(cls, snapshot: str, *, client: Optional[Client] = None) -> Snapshot:
        """Returns an existing snapshot, by id or name."""
        client = client or Client.default()
        return cls(client, decode(SnapshotInfo, client._json(Call("GET", _path(snapshot)))))

    @classmethod
    def list(cls, *, client: Optional[Client] = None) -> _List[Snapshot]:
        """Lists the snapshots of the organisation."""
        client = client or Client.default()
        pages = client._pages(Call("GET", "/v1/snapshots"))
        return [cls(client, decode(SnapshotInfo, item)) for item in pages]

    def fork(
        self,
        count: int = 1,
        *,
        memory: bool = False,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
    ) -> Forks:
        """Creates sandboxes from this state; with ``memory`` they continue its processes."""
        return Forks._make(
            self._client, _path(self.id, "/fork"), count, memory=memory, name=name, labels=labels
        )

    def delete(self) -> None:
        """Deletes it. Sandboxes and snapshots made from it stay."""
        self._client._done(Call("DELETE", _path(self.id)))

    def export(self, target: Union[str, os.PathLike[str]]) -> None:
        """Writes it to a file that another server can import."""
        from .. import _trees

        with _trees.replacing(target) as file:
            pieces = self._client._pieces(Call("GET", _path(self.id, "/export"), patience=None))
            for piece in pieces:
                file.write(piece)

    @classmethod
    def load(
        cls,
        source: Union[str, os.PathLike[str]],
        *,
        name: Optional[str] = None,
        client: Optional[Client] = None,
    ) -> Snapshot:
        """Imports a file that :meth:`export` wrote."""
        from .files import _rewound

        client = client or Client.default()
        with open(source, "rb") as file:
            call = Call(
                "POST",
                "/v1/snapshots/import",
                params=query(name=name),
                content=_rewound(file),
                patience=None,
            )
            answer = client._json(call)
        return cls(client, decode(SnapshotInfo, answer.get("snapshot")))


class Forks:
    """Copies of a sandbox. The end of a block deletes them all. Each has a lease, as :class:`Sandbox` has.

    >>> with Sandbox() as box:
    ...     box.files.write("/srv/seed", "1")
    ...     with box.fork(3) as forks:
    ...         [fork.files.read("/srv/seed") for fork in forks]
    1
    ['1', '1', '1']
    """

    def __init__(self, boxes: Iterable[Sandbox]) -> None:
        self._boxes = list(boxes)

    @classmethod
    def _make(
        cls,
        client: Client,
        path: str,
        count: int,
        *,
        memory: bool,
        name: Optional[str],
        labels: Optional[Mapping[str, str]],
    ) -> Forks:
        from .sandbox import Sandbox

        body: dict[str, Any] = present(name=name, labels=dict(labels) if labels else None)
        body.update(count=count, memory=memory, lease=client._leases.request(LEASE_DEFAULT_S, None))
        answers = client._json(Call("POST", path, json=body, patience=PATIENCE).once())
        made, refused = [], []
        for answer in answers:
            if "sandbox" in answer:
                info = SandboxInfo.from_wire(answer["sandbox"])
                made.append(Sandbox._of(client, info, lease=LEASE_DEFAULT_S))
            else:
                refused.append(errors.from_detail(answer.get("error")))
        forks = cls(made)
        if refused:
            forks.delete()
            raise errors.ForkFailed(refused)
        return forks

    def __len__(self) -> int:
        return len(self._boxes)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._boxes)

    def __getitem__(self, index: int) -> Sandbox:
        return self._boxes[index]

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Deletes them all. A fork that no longer exists is not an error."""

        def one(box: Sandbox) -> None:
            box.__exit__()

        outcomes = _io.each(one, self._boxes, DELETE_AT_ONCE)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


#: ``list`` is a method above.
_List = list
