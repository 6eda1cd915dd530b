"""The sandbox itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Literal, Optional, TypeVar, Union

from .. import errors
from .._image import Image
from .._leases import is_lost
from .._limits import LEASE_DEFAULT_S, PAGE_MAX, STOP_GRACE_DEFAULT_MS
from .._wire import (
    Call,
    command_body,
    create_body,
    input_fields,
    megabytes,
    network_body,
    present,
    query,
    sandbox_path,
    segment,
    shown,
    whole_seconds,
)
from ..types import (
    Command,
    Egress,
    Event,
    IdentityToken,
    Metrics,
    Port,
    ProcessInfo,
    Result,
    SandboxInfo,
    Service,
    Share,
    SnapshotInfo,
    SshAccess,
    State,
    Timeline,
    decode,
)
from . import _io
from .client import AsyncClient
from .code import AsyncCode
from .files import AsyncFiles
from .git import AsyncGit
from .process import AsyncProcess, AsyncStream, AsyncTerminal
from .snapshot import PATIENCE, AsyncForks, AsyncSnapshot
from .template import AsyncTemplate
from .volume import Mounted, mounts

T = TypeVar("T")
R = TypeVar("R")
Told = Callable[[str], Union[Awaitable[None], None]]

#: Seconds a create may take: an image may have to be made first.
CREATE_PATIENCE = 1200.0
#: What a terminal runs by default.
LOGIN_SHELL: Command = ["/bin/sh", "-c", "exec $(command -v bash || echo sh) -i"]
#: Between two looks for a port, in seconds.
PORT_PAUSE = 0.02


class AsyncSandbox:
    """A machine that is created in milliseconds and deleted at the end of the block.

    >>> async with AsyncSandbox() as box:
    ...     print((await box.run("echo hello")).stdout, end="")
    hello

    Everything has a default; ``AsyncSandbox()`` is a Debian with one CPU and 1 GiB. ``memory`` and
    ``disk`` are MiB or text like ``"2G"``. ``network`` is ``"none"`` (the default), ``"open"``, or a list
    of allowed destinations: ``["pypi.org", "*.example.com", "10.1.0.0/16"]``. ``freeze_after``,
    ``pause_after``, ``stop_after`` and ``delete_after`` are idle seconds after which it is frozen, paused
    to disk, stopped or deleted. At the age of ``max_lifetime`` it is always deleted.

    ``secrets`` lets it use secrets of the organisation by placeholders, whose hosts ``network`` must
    list: ``[{"name": "openai", "env": "OPENAI_API_KEY"}]``, or with ``file`` in place of ``env``. A
    secret with the use ``exposed`` is in the sandbox itself, and needs ``"exposed": True``.

    ``snapshot`` starts from a snapshot's disk instead of an image; with ``restore_memory``, also from its
    processes.

    ``template`` starts from a template with its defaults: the object, ``"name"``, ``"name:tag"``,
    ``"name:version"`` or its id.

    ``placement`` chooses its host in a fleet: ``{"labels": {"gpu": "h100"}, "zone": "eu-1", "tolerate":
    ["lab"], "strategy": "pack"}``, each optional. A taint needs the operator's permission.

    ``volumes`` are the mounts: ``{"/data": volume}``, or ``{"/data": {"volume": volume, "read_only":
    True}}``.

    While this client lives, it renews the lease of the sandbox. Without a renewal for ``lease`` seconds
    (default: 300) the server pauses the sandbox, or stops it where it cannot be paused;
    ``lease_delete_after`` seconds later (default: a day) it deletes it. So a program that is killed
    leaves nothing behind. Garbage collection deletes nothing. :meth:`detach` ends the lease,
    :meth:`connect` takes it over, and ``lease=None`` creates a sandbox without one.

    With ``keep=True`` it has no lease, and the end of the block does not delete it; :meth:`get` finds it
    again. Limits that have no argument here go into ``resources``, as the API names them.
    """

    files: AsyncFiles
    """Its files: :class:`AsyncFiles`."""
    code: AsyncCode
    """Its code interpreter: :class:`AsyncCode`."""
    git: AsyncGit
    """Its working trees: :class:`AsyncGit`."""

    def __init__(
        self,
        image: Optional[str] = None,
        *,
        snapshot: Union[str, AsyncSnapshot, None] = None,
        restore_memory: bool = False,
        template: Union[str, AsyncTemplate, None] = None,
        name: Optional[str] = None,
        cpu: Optional[float] = None,
        memory: Union[int, str, None] = None,
        disk: Union[int, str, None] = None,
        env: Optional[Mapping[str, str]] = None,
        labels: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        workdir: Optional[str] = None,
        network: Union[str, Sequence[str], Mapping[str, Any], None] = None,
        isolation: Optional[str] = None,
        accel: Optional[str] = None,
        identity: Optional[Mapping[str, Any]] = None,
        secrets: Optional[Sequence[Mapping[str, Any]]] = None,
        freeze_after: Optional[float] = None,
        pause_after: Optional[float] = None,
        stop_after: Optional[float] = None,
        delete_after: Optional[float] = None,
        max_lifetime: Optional[float] = None,
        resources: Optional[Mapping[str, Any]] = None,
        volumes: Optional[Mapping[str, Mounted]] = None,
        placement: Optional[Mapping[str, Any]] = None,
        keep: bool = False,
        lease: Optional[float] = LEASE_DEFAULT_S,
        lease_delete_after: Optional[float] = None,
        client: Optional[AsyncClient] = None,
    ) -> None:
        if isinstance(image, Image):
            raise TypeError("image: build it with Template.build(name, image=...), then give the template")
        body = create_body(
            image=image,
            snapshot=snapshot.id if isinstance(snapshot, AsyncSnapshot) else snapshot,
            memory_too=restore_memory,
            template=template.id if isinstance(template, AsyncTemplate) else template,
            name=name,
            cpu=cpu,
            memory=memory,
            disk=disk,
            env=env,
            labels=labels,
            user=user,
            workdir=workdir,
            network=network,
            isolation=isolation,
            accel=accel,
            identity=identity,
            secrets=secrets,
            lifecycle={
                "freeze_after_s": freeze_after,
                "pause_after_s": pause_after,
                "stop_after_s": stop_after,
                "delete_after_s": delete_after,
                "max_lifetime_s": max_lifetime,
            },
            resources=resources,
            volumes=mounts(volumes),
            placement=placement,
        )
        self._prepare(client, body, keep, None if keep else lease, lease_delete_after)
        # sync: self._reach()

    def _prepare(
        self,
        client: Optional[AsyncClient],
        body: Optional[dict[str, Any]],
        keep: bool,
        lease: Optional[float] = None,
        lease_delete_after: Optional[float] = None,
    ) -> None:
        self._given_client = client
        self._body = body
        # The same key for every attempt to make it, so that there is never more than one.
        self._creation = None if body is None else Call("POST", "/v1/sandboxes", json=body).once()
        self._info: Optional[SandboxInfo] = None
        self._keep = keep
        self._lease = lease
        self._lease_delete_after = lease_delete_after
        self._deleted = False
        self.files = AsyncFiles(self)
        self.code = AsyncCode(self)
        self.git = AsyncGit(self)

    @classmethod
    def _of(
        cls, client: Optional[AsyncClient], info: SandboxInfo, *, lease: Optional[float] = None
    ) -> AsyncSandbox:
        """One that exists; with ``lease`` this client has the lease of it, and a block deletes it."""
        box = cls.__new__(cls)
        box._prepare(client, None, lease is None, lease)
        box._info = info
        if lease is not None:
            box._client._leases.hold(info.id, lease)
        return box

    @property
    def _client(self) -> AsyncClient:
        if self._given_client is None:
            self._given_client = AsyncClient.default()
        return self._given_client

    async def _reach(self) -> str:
        """Its id; makes it first where that has not happened yet."""
        if self._info is None:
            if self._creation is None:
                raise errors.CoveError("the sandbox is not known")
            self._creation.patience = CREATE_PATIENCE
            if self._lease is not None and self._body is not None:
                asked = self._client._leases.request(self._lease, self._lease_delete_after)
                self._body.setdefault("lifecycle", {})["lease"] = asked
            self._info = SandboxInfo.from_wire(await self._client._json(self._creation))
            if self._lease is not None:
                self._client._leases.hold(self._info.id, self._lease)
        return self._info.id

    # async only: begin
    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        """``box = await AsyncSandbox()`` creates one without a block; delete it yourself."""
        yield from self._reach().__await__()
        return self

    # async only: end
    async def __aenter__(self) -> AsyncSandbox:
        await self._reach()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._keep and not self._deleted and self._info is not None:
            try:
                await self._delete_held()
            except errors.NotFoundError:
                pass

    async def _delete_held(self) -> None:
        """Deletes it, unless another client has taken its lease over."""
        if self._lease is None:
            return await self.delete()
        leases, path = self._client._leases, sandbox_path(self.id)
        leases.drop(self.id)
        try:
            await self._client._done(Call("DELETE", path, params={"holder": leases.holder}))
        except errors.ConflictError as error:
            if not is_lost(error, await self._client._json(Call("GET", path)), leases.holder):
                raise
        self._deleted = True

    def __repr__(self) -> str:
        if self._info is None:
            return f"<{type(self).__name__} not made yet>"
        named = f" {self._info.name!r}" if self._info.name else ""
        return f"<{type(self).__name__} {self._info.id}{named}>"

    @classmethod
    async def get(cls, sandbox: str, *, client: Optional[AsyncClient] = None) -> AsyncSandbox:
        """Returns an existing sandbox, by id or name. The end of a ``with`` block does not delete it.

        >>> async with AsyncSandbox(name="builder") as box:
        ...     same = await AsyncSandbox.get("builder")
        ...     same.id == box.id
        True
        """
        client = client or AsyncClient.default()
        info = SandboxInfo.from_wire(await client._json(Call("GET", sandbox_path(sandbox))))
        return cls._of(client, info)

    @classmethod
    async def connect(
        cls,
        sandbox: str,
        *,
        lease: float = LEASE_DEFAULT_S,
        lease_delete_after: Optional[float] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncSandbox:
        """Returns an existing sandbox, by id or name, and takes its lease over or starts one.

        The end of a ``with`` block deletes it. The former holder can keep using the sandbox, but no
        longer renews or deletes it.

        >>> box = await AsyncSandbox(name="handed-over")
        >>> async with await AsyncSandbox.connect("handed-over") as mine:
        ...     mine.id == box.id
        True
        """
        client = client or AsyncClient.default()
        body = client._leases.request(lease, lease_delete_after)
        answer = await client._json(Call("PUT", sandbox_path(sandbox, "/lease"), json=body))
        return cls._of(client, SandboxInfo.from_wire(answer), lease=lease)

    async def detach(self) -> AsyncSandbox:
        """Ends the lease: the sandbox stays until it is deleted, and a ``with`` block does not delete it.

        >>> async with AsyncSandbox() as box:
        ...     (await box.detach()).info.lease is None
        True
        >>> await box.delete()
        """
        leases, path = self._client._leases, sandbox_path(await self._reach(), "/lease")
        leases.drop(self.id)
        try:
            await self._client._done(Call("DELETE", path, params={"holder": leases.holder}))
        except errors.ConflictError as error:
            told = await self._client._json(Call("GET", sandbox_path(self.id)))
            if not is_lost(error, told, leases.holder):
                raise
        self._lease, self._keep = None, True
        return await self.refresh()

    @classmethod
    async def list(
        cls,
        *,
        labels: Optional[Mapping[str, str]] = None,
        state: Optional[State] = None,
        name: Optional[str] = None,
        client: Optional[AsyncClient] = None,
    ) -> AsyncGenerator[AsyncSandbox, None]:
        """Lists sandboxes: all, or those that match.

        >>> async with AsyncSandbox(labels={"team": "research"}):
        ...     [box.labels async for box in AsyncSandbox.list(labels={"team": "research"})]
        [{'team': 'research'}]
        """
        client = client or AsyncClient.default()
        pairs = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        params = query(labels=pairs or None, state=state, name=name)
        async for item in client._pages(Call("GET", "/v1/sandboxes", params=params)):
            yield cls._of(client, SandboxInfo.from_wire(item))

    @property
    def info(self) -> SandboxInfo:
        """The state that the server last reported; :meth:`refresh` updates it."""
        if self._info is None:
            raise errors.CoveError("the sandbox has not been created yet; enter its block first")
        return self._info

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> Optional[str]:
        return self.info.name

    @property
    def state(self) -> State:
        return self.info.state

    @property
    def labels(self) -> Mapping[str, str]:
        return self.info.labels

    async def refresh(self) -> AsyncSandbox:
        """Updates :attr:`info` from the server."""
        return await self._told(Call("GET", sandbox_path(await self._reach())))

    async def _told(self, call: Call) -> AsyncSandbox:
        self._info = SandboxInfo.from_wire(await self._client._json(call))
        return self

    async def run(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        input: Union[str, bytes, None] = None,
        timeout: Optional[float] = None,
        check: Optional[bool] = None,
        on_stdout: Optional[Told] = None,
        on_stderr: Optional[Told] = None,
    ) -> Result:
        """Runs a command and waits until it ends.

        A string is for the user's shell; a list is a program and its arguments, without a shell.

        >>> async with AsyncSandbox() as box:
        ...     result = await box.run("echo out; echo err >&2; exit 3")
        ...     result.exit_code, result.stdout, result.stderr
        ...     (await box.run(["tr", "a-z", "A-Z"], input="shout")).stdout
        (3, 'out\\n', 'err\\n')
        'SHOUT'

        ``on_stdout`` and ``on_stderr`` are called with text as it arrives. After ``timeout`` seconds the
        command and its children are killed, and this raises :class:`~cove.CommandTimedOut`; with
        ``check=False`` the result says ``timed_out`` instead. With ``check=True`` any exit code but 0
        raises :class:`~cove.CommandFailed`. Cancelling this call kills the command. A lost connection or
        a restart of the server does not end it: the output continues where it stopped.
        """
        stream = self.stream(command, cwd=cwd, env=env, user=user, input=input, timeout=timeout)
        async with _io.ending(stream):
            async for out in stream:
                callback = on_stdout if out.stream == "stdout" else on_stderr
                if callback is not None and out.text:
                    await _io.tell(callback, out.text)
        return await stream.result(check=check)

    def stream(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        input: Union[str, bytes, None] = None,
        timeout: Optional[float] = None,
    ) -> AsyncStream:
        """Runs a command and yields its output while it runs; ``result()`` of the stream returns its
        result.

        >>> async with AsyncSandbox() as box:
        ...     async for out in box.stream("echo one; echo two >&2"):
        ...         print(out.stream, out.text.strip())
        stdout one
        stderr two
        """
        body = command_body(command, cwd=cwd, env=env, user=user, timeout=timeout)
        body.update(input_fields(input))
        return AsyncStream(self, body)

    async def start(
        self,
        command: Command,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        stdin: bool = False,
        tag: Optional[str] = None,
        keep_output: Optional[int] = None,
    ) -> AsyncProcess:
        """Starts a command in the background, such as a server or a long build.

        ``stdin=True`` keeps its input open for :meth:`AsyncProcess.send`. The sandbox keeps the last
        ``keep_output`` bytes of each stream for later readers (default: 256 KiB).
        """
        body = command_body(command, cwd=cwd, env=env, user=user, timeout=timeout)
        body.update(present(tag=tag, ring_bytes=keep_output, stdin_open=stdin or None))
        return AsyncProcess(self._client, *await self._begin(body), shown(command))

    async def terminal(
        self,
        command: Optional[Command] = None,
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> AsyncTerminal:
        """Opens a terminal with a shell or a command."""
        wanted = LOGIN_SHELL if command is None else command
        body = command_body(wanted, cwd=cwd, env=env, user=user, timeout=None)
        body["pty"] = {"cols": cols, "rows": rows}
        return AsyncTerminal(self._client, *await self._begin(body), shown(wanted))

    async def _begin(self, body: dict[str, Any]) -> tuple[str, str]:
        sandbox = await self._reach()
        info = await self._client._json(Call("POST", sandbox_path(sandbox, "/processes"), json=body))
        return sandbox, str(info["id"])

    async def processes(self) -> _List[ProcessInfo]:
        """Lists the commands of this sandbox, including ended ones that are still recorded."""
        data = await self._client._json(Call("GET", sandbox_path(await self._reach(), "/processes")))
        return [decode(ProcessInfo, item) for item in data["items"]]

    async def process(self, id: str) -> AsyncProcess:
        """Returns a command by id, to follow it, write to it or end it."""
        call = Call("GET", sandbox_path(await self._reach(), f"/processes/{segment(id)}"))
        info = decode(ProcessInfo, await self._client._json(call))
        return AsyncProcess(self._client, self.id, info.id, shown(info.argv))

    async def start_service(
        self,
        name: str,
        command: Command,
        *,
        restart: Literal["no", "on_failure", "always"] = "on_failure",
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> Service:
        """Starts a command that comes back when the sandbox is started, and when it ends if ``restart`` says so.

        ``env`` is kept on the sandbox's disk; variables of the sandbox and its secrets are not.
        """
        body = command_body(command, cwd=cwd, env=env, user=user, timeout=None)
        body |= {"name": name, "restart": restart}
        call = Call("POST", sandbox_path(await self._reach(), "/services"), json=body)
        return decode(Service, await self._client._json(call))

    async def services(self) -> _List[Service]:
        """Lists the services of this sandbox."""
        data = await self._client._json(Call("GET", sandbox_path(await self._reach(), "/services")))
        return [decode(Service, item) for item in data["items"]]

    async def remove_service(self, name: str) -> None:
        """Ends a service and removes it."""
        path = sandbox_path(await self._reach(), f"/services/{segment(name)}")
        await self._client._done(Call("DELETE", path))

    async def ports(self) -> _List[Port]:
        """Lists the TCP ports that programs in the sandbox listen on."""
        data = await self._client._json(Call("GET", sandbox_path(await self._reach(), "/ports")))
        return [decode(Port, item) for item in data["items"]]

    async def wait_for_port(self, port: int, timeout: float = 30.0) -> Port:
        """Waits until a program in the sandbox listens on a port.

        >>> async with AsyncSandbox() as box:
        ...     _ = await box.start("python3 -m http.server 8080")
        ...     (await box.wait_for_port(8080)).port
        8080
        """
        deadline = monotonic() + timeout
        while True:
            for found in await self.ports():
                if found.port == port:
                    return found
            if monotonic() > deadline:
                raise errors.WaitTimeout(f"nothing listens on port {port} after {timeout:g} seconds")
            await _io.sleep(PORT_PAUSE)

    async def share(
        self, port: int, *, expires: Optional[float] = None, public: bool = False
    ) -> Share:
        """Returns a link to a server in the sandbox, for people without a key; by default valid for an
        hour.

        With ``public=True`` no link is needed until :meth:`unshare`.

        >>> async with AsyncSandbox() as box:
        ...     _ = await box.start("python3 -m http.server 8080")
        ...     _ = await box.wait_for_port(8080)
        ...     (await box.share(8080, expires=600)).public
        False
        """
        body = present(expires_s=whole_seconds("expires", expires), public=public or None)
        path = sandbox_path(await self._reach(), f"/ports/{port}/share")
        return Share.from_wire(await self._client._json(Call("POST", path, json=body)))

    async def unshare(self, port: int) -> None:
        """Revokes all links to a port and makes it private."""
        await self._client._done(Call("DELETE", sandbox_path(await self._reach(), f"/ports/{port}/share")))

    async def set_network(self, network: Union[str, Sequence[str], Mapping[str, Any]]) -> AsyncSandbox:
        """Changes what it may reach: ``"none"``, ``"open"``, or a list. Connections that are no longer
        allowed are closed immediately.

        >>> async with AsyncSandbox(network=["pypi.org"]) as box:
        ...     box.info.network["allow"]
        ...     (await box.set_network("none")).info.network["mode"]
        ['pypi.org']
        'none'
        """
        body = {"network": network_body(network)}
        return await self._told(Call("PATCH", sandbox_path(await self._reach()), json=body))

    async def egress(
        self,
        *,
        verdict: Optional[str] = None,
        protocol: Optional[str] = None,
        name: Optional[str] = None,
        after: Optional[int] = None,
        follow: bool = False,
    ) -> AsyncGenerator[Egress, None]:
        """Yields the decisions of its network policy, oldest first; with ``follow``, also new ones
        without end.

        >>> async with AsyncSandbox(network=["*.example.com"]) as box:
        ...     _ = await box.run("getent hosts elsewhere.example.org")
        ...     async for entry in box.egress(verdict="denied", follow=True):
        ...         print(entry.protocol, entry.name)
        ...         break
        dns elsewhere.example.org
        """
        path = sandbox_path(await self._reach(), "/egress")
        params = query(
            after=after, limit=PAGE_MAX, verdict=verdict, protocol=protocol, name=name, follow=follow
        )
        call = Call("GET", path, params=params, patience=None if follow else 120.0)
        if not follow:
            for item in (await self._client._json(call))["items"]:
                yield decode(Egress, item)
            return
        async for line in self._client._lines(call):
            if isinstance(line, dict) and line.get("type") == "entry":
                yield decode(Egress, line)

    async def metrics(self) -> Metrics:
        """Returns its resource usage."""
        call = Call("GET", sandbox_path(await self._reach(), "/metrics"))
        return decode(Metrics, await self._client._json(call))

    async def events(self, after: Optional[int] = None) -> _List[Event]:
        """Lists its events, oldest first."""
        call = Call("GET", sandbox_path(await self._reach(), "/events"), params=query(after=after))
        return [Event.from_wire(item) for item in (await self._client._json(call))["items"]]

    async def follow_events(self, after: Optional[int] = None) -> AsyncGenerator[Event, None]:
        """Yields its new events without end; with ``after``, first those after that event.

        >>> async with AsyncSandbox() as box:
        ...     events = box.follow_events(after=0)
        ...     first = await events.__anext__()
        ...     await events.aclose()
        ...     first.type, first.details["state"]
        ('state', 'running')
        """
        events = self._client._events(sandbox_path(await self._reach(), "/events"), after)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def identity_token(self, audience: str, *, expires: Optional[float] = None) -> IdentityToken:
        """Returns a token that identifies the sandbox, valid for ``expires`` seconds (default: 300, at
        most 900).

        >>> async with AsyncSandbox() as box:
        ...     token = await box.identity_token("sts.amazonaws.com")
        ...     token.subject.endswith(f"/sandbox/{box.id}")
        True
        """
        body = present(audience=audience, expires_s=whole_seconds("expires", expires))
        call = Call("POST", sandbox_path(await self._reach(), "/identity"), json=body)
        return decode(IdentityToken, await self._client._json(call))

    async def ssh(self, *, expires: Optional[float] = None) -> SshAccess:
        """Returns how to log in over SSH, with a token that is valid for ``expires`` seconds.

        >>> async with AsyncSandbox() as box:
        ...     (await box.ssh(expires=600)).command.split()[0]
        'ssh'
        """
        body = present(expires_s=whole_seconds("expires", expires))
        call = Call("POST", sandbox_path(await self._reach(), "/ssh"), json=body)
        return decode(SshAccess, await self._client._json(call))

    async def revoke_ssh(self) -> None:
        """Ends its SSH sessions and revokes all its SSH tokens."""
        await self._client._done(Call("DELETE", sandbox_path(await self._reach(), "/ssh")))

    async def update(
        self,
        *,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory: Union[int, str, None] = None,
        memory_max: Union[int, str, None] = None,
        disk: Union[int, str, None] = None,
        pids: Optional[int] = None,
        freeze_after: Optional[float] = None,
        pause_after: Optional[float] = None,
        stop_after: Optional[float] = None,
        delete_after: Optional[float] = None,
        max_lifetime: Optional[float] = None,
    ) -> AsyncSandbox:
        """Changes its name, labels or limits while it runs; fields that are not given stay.

        >>> async with AsyncSandbox(memory="256M") as box:
        ...     (await box.update(memory="512M")).info.resources.memory_mb
        512
        """
        limits = present(
            cpu=cpu,
            memory_mb=megabytes("memory", memory),
            memory_max_mb=megabytes("memory_max", memory_max),
            disk_mb=megabytes("disk", disk),
            pids=pids,
        )
        times = present(
            freeze_after_s=whole_seconds("freeze_after", freeze_after),
            pause_after_s=whole_seconds("pause_after", pause_after),
            stop_after_s=whole_seconds("stop_after", stop_after),
            delete_after_s=whole_seconds("delete_after", delete_after),
            max_lifetime_s=whole_seconds("max_lifetime", max_lifetime),
        )
        # The server replaces a lifecycle whole.
        lifecycle = {**self.info.lifecycle, **times} if times else None
        body = present(
            name=name,
            labels=None if labels is None else dict(labels),
            resources=limits or None,
            lifecycle=lifecycle,
        )
        return await self._told(Call("PATCH", sandbox_path(await self._reach()), json=body))

    async def stop(self, grace: Optional[float] = None) -> AsyncSandbox:
        """Ends its processes and keeps its disk. They have ``grace`` seconds to end by themselves.

        Without ``grace`` the server's setting applies (default: 10).
        """
        body = present(grace_ms=None if grace is None else round(grace * 1000))
        patience = 120.0 + (STOP_GRACE_DEFAULT_MS / 1000 if grace is None else grace)
        path = sandbox_path(await self._reach(), "/stop")
        return await self._told(Call("POST", path, json=body or None, patience=patience))

    async def pause(self) -> AsyncSandbox:
        """Saves its memory to disk and frees CPU and memory. The next command resumes it where it was.

        >>> async with AsyncSandbox() as box:
        ...     _ = await box.code.run("x = 41")
        ...     (await box.pause()).state
        ...     (await box.code.run("x + 1")).text
        'paused'
        '42'
        """
        return await self._told(Call("POST", sandbox_path(await self._reach(), "/pause"), patience=PATIENCE))

    async def freeze(self) -> AsyncSandbox:
        """Suspends its processes and keeps them in memory; waking takes about a millisecond."""
        return await self._told(Call("POST", sandbox_path(await self._reach(), "/freeze")))

    async def resume(self) -> AsyncSandbox:
        """Runs it again, whether it was stopped, paused or frozen."""
        how = "/start" if (await self.refresh()).state == "stopped" else "/resume"
        return await self._told(Call("POST", sandbox_path(self.id, how), patience=PATIENCE))

    async def snapshot(
        self, name: Optional[str] = None, *, memory: bool = False, durable: bool = False
    ) -> AsyncSnapshot:
        """Keeps its present state: the disk, with ``memory`` its processes too. It goes on meanwhile.

        With ``durable`` the call returns once object storage has it; the server needs one.
        """
        body = present(name=name, memory=memory or None, durable=durable or None)
        path = sandbox_path(await self._reach(), "/snapshots")
        call = Call("POST", path, json=body, patience=PATIENCE).once()
        return AsyncSnapshot(self._client, decode(SnapshotInfo, await self._client._json(call)))

    async def snapshots(self) -> _List[AsyncSnapshot]:
        """Lists its snapshots."""
        pages = self._client._pages(Call("GET", sandbox_path(await self._reach(), "/snapshots")))
        return [AsyncSnapshot(self._client, decode(SnapshotInfo, item)) async for item in pages]

    async def rollback(self, to: Union[str, AsyncSnapshot], *, memory: bool = False) -> AsyncSnapshot:
        """Rolls it back to a snapshot; with ``memory``, its processes too. Returns a snapshot of its
        previous state.
        """
        body = {"snapshot": to.id if isinstance(to, AsyncSnapshot) else to, "memory": memory}
        path = sandbox_path(await self._reach(), "/rollback")
        answer = await self._client._json(Call("POST", path, json=body, patience=PATIENCE))
        self._info = SandboxInfo.from_wire(answer.get("sandbox"))
        return AsyncSnapshot(self._client, decode(SnapshotInfo, answer.get("kept")))

    async def fork(
        self,
        count: int = 1,
        *,
        memory: bool = False,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
    ) -> AsyncForks:
        """Creates copies of it; with ``memory`` they continue its processes.

        The end of a block deletes them; otherwise delete them yourself.
        """
        path = sandbox_path(await self._reach(), "/fork")
        return await AsyncForks._make(self._client, path, count, memory=memory, name=name, labels=labels)

    async def map(
        self,
        work: Callable[[AsyncSandbox, T], Awaitable[R]],
        items: Iterable[T],
        *,
        memory: bool = False,
        concurrency: int = 10,
    ) -> _List[R]:
        """Does the work for each item in its own fork, several at a time, and returns the results in the
        items' order.

        >>> async def attempt(fork: AsyncSandbox, number: int) -> int:
        ...     return int((await fork.run(f"echo $(($(cat /srv/base) + {number}))")).stdout)
        >>> async with AsyncSandbox() as box:
        ...     await box.files.write("/srv/base", "40")
        ...     await box.map(attempt, [1, 2, 3])
        2
        [41, 42, 43]

        All forks start from the same state and are deleted when their work is done. The first exception
        is raised when all have ended.
        """
        todo = list(items)
        if not todo:
            return []
        origin: Union[AsyncSandbox, AsyncSnapshot] = self
        if len(todo) > concurrency:
            origin = await self.snapshot(memory=memory)
        results: list[Union[R, BaseException]] = []

        async def one(pair: tuple[AsyncSandbox, T]) -> R:
            async with pair[0] as fork:
                return await work(fork, pair[1])

        try:
            for begin in range(0, len(todo), concurrency):
                some = todo[begin : begin + concurrency]
                async with await origin.fork(len(some), memory=memory) as forks:
                    results += await _io.each(one, list(zip(forks, some)), concurrency)
        finally:
            if isinstance(origin, AsyncSnapshot):
                await origin.delete()
        good: list[R] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            good.append(result)
        return good

    @asynccontextmanager
    async def attempt(self, *, memory: bool = False) -> AsyncGenerator[AsyncSandbox, None]:
        """All or nothing: when the block raises, the sandbox is rolled back.

        Without ``memory`` only the disk is restored and the processes are ended; with ``memory`` the
        processes are restored too.

        >>> async with AsyncSandbox() as box:
        ...     try:
        ...         async with box.attempt():
        ...             _ = await box.run("rm -rf /usr/lib/python3", check=True)
        ...             raise RuntimeError("that was wrong")
        ...     except RuntimeError:
        ...         await box.files.exists("/usr/lib/python3")
        True
        """
        before = await self.snapshot(memory=memory)
        try:
            yield self
        except BaseException:
            await (await self.rollback(before, memory=memory)).delete()
            await before.delete()
            raise
        await before.delete()

    async def timeline(self) -> Timeline:
        """Returns its snapshots, forks and rollbacks, and its current position."""
        call = Call("GET", sandbox_path(await self._reach(), "/timeline"))
        return Timeline.from_wire(await self._client._json(call))

    async def delete(self) -> None:
        """Deletes it and everything in it."""
        await self._client._done(Call("DELETE", sandbox_path(await self._reach())))
        self._client._leases.drop(self.id)
        self._deleted = True


#: ``list`` is a method above.
_List = list
