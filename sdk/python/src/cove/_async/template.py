"""Templates: named, versioned starting points of sandboxes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable, Optional, Union

from .._image import Image
from .._wire import Call, megabytes, network_body, present, query, segment
from ..errors import BuildFailed
from ..types import TemplateInfo, decode
from .client import AsyncClient
from .files import _rewound
from .snapshot import AsyncSnapshot
from .volume import Mounted, mounts


def _path(template: str, rest: str = "") -> str:
    return f"/v1/templates/{segment(template)}{rest}"


def _text(context: Union[str, os.PathLike[str]], name: str) -> str:
    with open(os.path.join(context, name), encoding="utf-8") as file:
        return file.read()


class AsyncTemplate:
    """One version of a template: a snapshot that sandboxes start from, and defaults for their settings.
    It never changes; tags point at versions.

    >>> async with AsyncSandbox() as box:
    ...     _ = await box.run("echo made > /made")
    ...     snapshot = await box.snapshot()
    >>> template = await AsyncTemplate.create("doc-tools", snapshot, env={"MODE": "fast"})
    >>> async with AsyncSandbox(template=template) as box:
    ...     print((await box.run("cat /made; echo $MODE")).stdout, end="")
    made
    fast
    >>> await template.delete()
    >>> await snapshot.delete()
    """

    def __init__(self, client: AsyncClient, info: TemplateInfo) -> None:
        self._client = client
        #: What is known about it: name, version, tags, snapshot, defaults.
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> int:
        return self.info.version

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}:{self.version}>"

    @classmethod
    async def create(
        cls,
        name: str,
        snapshot: Union[str, AsyncSnapshot],
        *,
        memory: bool = False,
        tags: Sequence[str] = (),
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        workdir: Optional[str] = None,
        network: Union[str, Sequence[str], Mapping[str, Any], None] = None,
        cpu: Optional[float] = None,
        memory_limit: Union[int, str, None] = None,
        disk: Union[int, str, None] = None,
        resources: Optional[Mapping[str, Any]] = None,
        lifecycle: Optional[Mapping[str, Any]] = None,
        volumes: Optional[Mapping[str, Mounted]] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncTemplate:
        """Creates a new version of ``name``. With ``memory`` sandboxes continue the snapshot's processes.
        ``tags`` are moved to the new version (default: ``latest``). The other arguments are defaults of
        sandboxes from it; ``memory_limit`` and ``disk`` are MiB or text like ``"2G"``, and ``volumes``
        have the form that a sandbox takes. Volumes of the snapshot's sandbox are not included.
        """
        if isinstance(tags, str):
            raise TypeError("tags: a list of tags, not one text")
        client = client or AsyncClient.default()
        limits = dict(resources or {})
        limits.update(
            present(cpu=cpu, memory_mb=megabytes("memory_limit", memory_limit), disk_mb=megabytes("disk", disk))
        )
        defaults = present(
            resources=limits or None,
            env=dict(env) if env else None,
            user=user,
            workdir=workdir,
            network=network_body(network),
            lifecycle=dict(lifecycle) if lifecycle else None,
            volumes=mounts(volumes) or None,
        )
        body = present(
            name=name,
            snapshot=snapshot.id if isinstance(snapshot, AsyncSnapshot) else snapshot,
            memory=memory or None,
            tags=_List(tags) or None,
            defaults=defaults or None,
        )
        answer = await client._json(Call("POST", "/v1/templates", json=body).once())
        return cls(client, decode(TemplateInfo, answer))

    @classmethod
    async def build(
        cls,
        name: str,
        context: Union[str, os.PathLike[str], None] = None,
        *,
        dockerfile: Optional[str] = None,
        image: Optional[Image] = None,
        tags: Sequence[str] = (),
        args: Optional[Mapping[str, str]] = None,
        target: Optional[str] = None,
        network: Union[str, Sequence[str], Mapping[str, Any], None] = None,
        no_cache: bool = False,
        pull: bool = False,
        start: Optional[str] = None,
        ready: Optional[str] = None,
        ready_timeout: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory_limit: Union[int, str, None] = None,
        disk: Union[int, str, None] = None,
        on_log: Optional[Callable[[Mapping[str, Any]], None]] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncTemplate:
        """Builds a new version of ``name`` from an :class:`Image` or a Dockerfile: the text
        ``dockerfile``, or the file ``Dockerfile`` in the directory ``context``. ``COPY`` copies files of
        that directory, except those that its ``.dockerignore`` names. ``network`` is the network policy
        of the steps (default: ``preset:packages``). ``ready`` is a command that succeeds once the server,
        the ``CMD`` or ``start``, runs; the server is then captured running. ``on_log`` receives each line
        of the log. A failed build raises :class:`~cove.BuildFailed`.

        >>> text = "FROM debian\\nRUN echo made > /made\\n"
        >>> template = await AsyncTemplate.build("doc-built", dockerfile=text, network="none")
        >>> async with AsyncSandbox(template=template) as box:
        ...     print((await box.run("cat /made")).stdout, end="")
        made
        >>> await template.delete()
        """
        from .. import _trees

        if isinstance(tags, str):
            raise TypeError("tags: a list of tags, not one text")
        if image is not None and (context is not None or dockerfile is not None):
            raise TypeError("an image has its own dockerfile and context")
        if image is None and context is None and dockerfile is None:
            raise TypeError("give an image, or a context, a dockerfile or both")
        if ready is None and (start is not None or ready_timeout is not None):
            raise TypeError("start and ready_timeout go with ready")
        client = client or AsyncClient.default()
        ignore = None
        sources: tuple[tuple[str, str], ...] = ()
        if image is not None:
            context, dockerfile, sources = image.context, image.dockerfile, image.sources
            ignore = image._archived_ignore()
        elif context is not None:
            if dockerfile is None:
                dockerfile = _text(context, "Dockerfile")
            if os.path.exists(os.path.join(context, ".dockerignore")):
                ignore = _text(context, ".dockerignore")
        limits = present(cpu=cpu, memory_mb=megabytes("memory_limit", memory_limit), disk_mb=megabytes("disk", disk))
        defaults = present(resources=limits or None, env=dict(env) if env else None)
        server = None if ready is None else present(command=start, ready=ready, timeout_s=ready_timeout)
        body = present(
            name=name,
            tags=_List(tags) or None,
            dockerfile=dockerfile,
            ignore=ignore,
            args=dict(args) if args else None,
            target=target,
            network=network_body(network),
            no_cache=no_cache or None,
            pull=pull or None,
            start=server,
            defaults=defaults or None,
        )
        build = await client._json(Call("POST", "/v1/builds", json=body))
        path = f"/v1/builds/{segment(build['id'])}"
        try:
            with _trees.pack_context(context, sources) as archive:
                await client._done(
                    Call(
                        "PUT",
                        f"{path}/context",
                        content=_rewound(archive),
                        headers={"content-type": "application/x-tar"},
                        patience=None,
                    )
                )
            ended: Any = None
            lines = client._lines(Call("GET", f"{path}/log", patience=None))
            async for line in lines:
                if line["type"] == "end":
                    ended = line["build"]
                elif on_log is not None:
                    on_log(line)
        except BaseException:
            await client._done(Call("DELETE", path))
            raise
        if ended is None:
            ended = await client._json(Call("GET", path))
        if ended["state"] != "done":
            raise BuildFailed(ended.get("error") or f"the build is {ended['state']}")
        return await cls.get(ended["template"], client=client)

    @classmethod
    async def get(cls, template: str, *, client: Optional[AsyncClient] = None) -> AsyncTemplate:
        """Returns an existing version: ``name``, ``name:tag``, ``name:version`` or its id."""
        client = client or AsyncClient.default()
        return cls(client, decode(TemplateInfo, await client._json(Call("GET", _path(template)))))

    @classmethod
    async def list(cls, name: Optional[str] = None, *, client: Optional[AsyncClient] = None) -> _List[AsyncTemplate]:
        """Lists the versions of all templates of the organisation, or of one, newest first."""
        client = client or AsyncClient.default()
        pages = client._pages(Call("GET", "/v1/templates", params=query(name=name)))
        return [cls(client, decode(TemplateInfo, item)) async for item in pages]

    async def tag(self, tag: str) -> None:
        """Points a tag at this version."""
        answer = await self._client._json(Call("PUT", _path(self.id, f"/tags/{segment(tag)}")))
        self.info = decode(TemplateInfo, answer)

    async def untag(self, tag: str) -> None:
        """Removes a tag of the template from any version."""
        await self._client._done(Call("DELETE", _path(self.name, f"/tags/{segment(tag)}")))
        self.info = replace(self.info, tags=[each for each in self.info.tags if each != tag])

    async def delete(self) -> None:
        """Deletes this version. Sandboxes from it and its snapshot stay."""
        await self._client._done(Call("DELETE", _path(self.id)))


#: ``list`` is a method above.
_List = list
