"""Plain values from the server: sandboxes, results, files, ports, metrics.

All are frozen dataclasses. Fields that a newer server adds are ignored, so that old code keeps working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, Optional, TypeVar, Union
from urllib.parse import urlsplit

from .errors import CodeFailed, CodeTimedOut, CommandFailed, CommandTimedOut, ProtocolError

T = TypeVar("T")

#: Where a sandbox is in its life.
State = Literal[
    "creating",
    "running",
    "frozen",
    "pausing",
    "paused",
    "resuming",
    "restoring",
    "stopping",
    "stopped",
    "failed",
    "deleting",
    "gone",
]

#: ``none``: nothing but itself. ``allowlist``: what is listed. ``open``: the internet, but never the
#: host, its neighbours or private ranges.
NetworkMode = Literal["none", "allowlist", "open"]

#: What the code interpreter speaks. TypeScript runs in JavaScript's contexts.
Language = Literal["python", "javascript", "typescript", "bash"]

Command = Union[str, "list[str]", "tuple[str, ...]"]


def moment(text: str) -> datetime:
    """The time of an RFC 3339 text."""
    if text.endswith("Z"):
        text = text[:-1] + "+00:00"
    head, dot, rest = text.partition(".")
    if dot:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        # Before Python 3.11 only three or six digits are read.
        text = f"{head}.{rest[:digits][:6]:0<6}{rest[digits:]}"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ProtocolError(f"not a time: {text!r}") from None


@lru_cache(maxsize=None)
def _shape(kind: Any) -> tuple[tuple[str, str, bool], ...]:
    return tuple((f.name, f.metadata.get("wire", f.name), "datetime" in str(f.type)) for f in fields(kind))


def decode(kind: type[T], data: Any) -> T:
    """Decodes a value of ``kind``."""
    if not isinstance(data, Mapping):
        raise ProtocolError(f"the server sent no {kind.__name__}")
    values: dict[str, Any] = {}
    shape: tuple[tuple[str, str, bool], ...] = _shape(kind)  # type: ignore[arg-type]
    for name, wire, is_time in shape:
        if wire in data:
            value = data[wire]
            values[name] = moment(value) if is_time and isinstance(value, str) else value
    try:
        return kind(**values)
    except TypeError as error:
        raise ProtocolError(f"the server sent an incomplete {kind.__name__}: {error}") from None


@dataclass(frozen=True)
class Resources:
    """Limits in force."""

    cpu: float = 1.0
    memory_mb: int = 1024
    disk_mb: int = 0
    pids: int = 0
    open_files: int = 0
    memory_max_mb: Optional[int] = None
    io_read_mb_s: Optional[int] = None
    io_write_mb_s: Optional[int] = None


@dataclass(frozen=True)
class SandboxInfo:
    """The state of a sandbox when the server last reported it."""

    id: str
    state: State
    image: str
    created_at: datetime
    updated_at: datetime
    last_active_at: datetime
    generation: int
    isolation: str = "container"
    #: With isolation ``vm``: ``kvm``, or ``software`` for emulation.
    accel: Optional[str] = None
    name: Optional[str] = None
    reason: Optional[str] = None
    image_id: Optional[str] = None
    resources: Resources = field(default_factory=Resources)
    env: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    lifecycle: Mapping[str, Any] = field(default_factory=dict)
    #: Its lease: ``holder``, ``renew_within_s``, ``delete_after_s`` and whether it ``lapsed``.
    lease: Optional[Mapping[str, Any]] = None
    labels: Mapping[str, str] = field(default_factory=dict)
    user: Optional[str] = None
    workdir: Optional[str] = None
    no_new_privs: bool = False
    #: What it may know and do about itself: ``grants``, ``task``, ``on_behalf_of``.
    identity: Optional[Mapping[str, Any]] = None
    #: Secrets that it may use by placeholders: ``name``, ``env``, ``file``; with ``exposed`` the value is inside.
    secrets: Sequence[Mapping[str, Any]] = ()
    #: What its creator should know; only after a create.
    warnings: Sequence[str] = ()
    #: Mounted volumes, each with ``volume``, ``path`` and ``read_only``.
    volumes: list[Mapping[str, Any]] = field(default_factory=list)
    #: What it asks of its host: ``labels``, ``zone``, ``tolerate``, ``strategy``.
    placement: Mapping[str, Any] = field(default_factory=dict)
    started_at: Optional[datetime] = None
    stopped_at: Optional[datetime] = None

    @classmethod
    def from_wire(cls, data: Any) -> SandboxInfo:
        if isinstance(data, Mapping):
            data = {**data, "resources": decode(Resources, data.get("resources", {}))}
        return decode(cls, data)


@dataclass(frozen=True)
class Output:
    """A piece of a command's output.

    ``data`` is the bytes; ``text`` is the same as text; pieces end at whole characters, so that they can
    be joined.
    """

    stream: Literal["stdout", "stderr"]
    data: bytes
    text: str
    offset: int
    #: Bytes before this piece that the sandbox no longer had.
    dropped: int = 0


@dataclass(frozen=True)
class Result:
    """The result of a command: exit code and output."""

    exit_code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    signal: Optional[int] = None
    #: The kernel killed it for memory.
    oom: bool = False
    timed_out: bool = False
    duration: float = 0.0
    process: Optional[str] = None
    #: There was more output than is kept here.
    truncated: bool = False
    memory_limit_bytes: Optional[int] = None
    memory_peak_bytes: Optional[int] = None
    #: What was run.
    command: Optional[str] = None
    #: What to do about a failure, if the server knows; for example that the network is off.
    hint: Optional[str] = None

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> Result:
        """Returns itself, or raises :class:`~cove.CommandFailed` if the command failed."""
        if self.timed_out:
            raise CommandTimedOut(self)
        if not self.ok:
            raise CommandFailed(self)
        return self

    def _repr_html_(self) -> str:
        """Notebooks show its output, errors in red, and its exit code if it is not 0."""
        from html import escape

        parts = [f"<pre>{escape(self.stdout)}</pre>"] if self.stdout_bytes else []
        if self.stderr_bytes:
            parts.append(f'<pre style="color: #b00">{escape(self.stderr)}</pre>')
        if not self.ok:
            parts.append(f"<p>exit code {self.exit_code}{', timed out' if self.timed_out else ''}</p>")
        return "".join(parts)

    def _checked(self, check: Optional[bool]) -> Result:
        return self.check() if check or (check is None and self.timed_out) else self

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.stdout


@dataclass(frozen=True)
class ProcessInfo:
    """A command's record in the sandbox."""

    id: str
    pid: int
    argv: list[str]
    cwd: str
    user: str
    started_at: datetime
    exit: Optional[Mapping[str, Any]] = None
    pty: Optional[Mapping[str, int]] = None
    #: ``command``, ``terminal``, ``code_context``, ``dialect_session`` or ``service``.
    kind: str = "command"
    #: The interface that started it.
    owner: Optional[str] = None
    tag: Optional[str] = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_oldest: int = 0
    stderr_oldest: int = 0
    viewers: int = 0
    cpu_ms: int = 0
    memory_bytes: int = 0

    @property
    def running(self) -> bool:
        return self.exit is None


@dataclass(frozen=True)
class Service:
    """A command that comes back when its sandbox is started."""

    name: str
    #: ``pending``, ``running``, ``waiting`` for its next start, or ``ended``.
    state: str
    #: The id of its process, the same for all its runs: ``box.process(service.process)``.
    process: str
    #: ``no``, ``on_failure`` or ``always``.
    restart: str
    #: How often it was started again since the sandbox was started.
    restarts: int = 0
    command: Optional[str] = None
    argv: Optional[list[str]] = None
    cwd: Optional[str] = None
    user: Optional[str] = None
    #: How its last run ended.
    last_exit: Optional[Mapping[str, Any]] = None
    #: Why it could not be started the last time.
    error: Optional[str] = None

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class FileInfo:
    """The metadata of a path."""

    name: str
    path: str
    type: Literal["file", "directory", "symlink", "socket", "fifo", "device", "other"]
    size: int
    #: Octal, like ``0644``.
    mode: str
    uid: int
    gid: int
    owner: str
    group: str
    modified_at: datetime
    symlink_target: Optional[str] = None

    @property
    def is_file(self) -> bool:
        return self.type == "file"

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True)
class FileMatch:
    """A line that matched a search."""

    path: str
    #: Its number, from 1.
    line: int
    text: str


@dataclass(frozen=True)
class GitFile:
    """A changed file.

    ``index`` and ``worktree`` are git's letters: ``M`` modified, ``A`` added, ``D`` deleted, ``R`` renamed,
    ``U`` in conflict, ``?`` not tracked, ``.`` unchanged.
    """

    path: str
    index: str
    worktree: str


@dataclass(frozen=True)
class GitStatus:
    """The state of a working tree."""

    #: Nothing when no branch is checked out.
    branch: Optional[str]
    #: Nothing when nothing was committed yet.
    commit: Optional[str]
    upstream: Optional[str] = None
    ahead: int = 0
    behind: int = 0
    files: tuple[GitFile, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no file is changed."""
        return not self.files


@dataclass(frozen=True)
class FileChange:
    """A change below a watched path."""

    type: Literal["ready", "created", "written", "removed", "renamed", "attributes", "overflow"]
    path: str = ""
    #: Where it was before, when it was renamed.
    source: Optional[str] = field(default=None, metadata={"wire": "from"})
    directory: bool = False


@dataclass(frozen=True)
class Port:
    """A TCP port that a program in the sandbox listens on."""

    port: int
    address: str
    pid: Optional[int] = None
    process: Optional[str] = None
    #: Where its preview is. Private unless shared.
    url: Optional[str] = None
    public: bool = False


@dataclass(frozen=True)
class Share:
    """The address of a shared port."""

    #: For programs and browsers; has the token of the link unless the port is public. On the server's own machine it
    #: needs no names under ``localhost``, which Python does not resolve.
    url: str
    path_url: str
    public: bool
    #: For browsers: a host of its own, so that pages of several ports share nothing.
    browser_url: str
    #: Of the link by itself: programs may send it as ``X-Cove-Token``.
    token: Optional[str] = None
    expires_at: Optional[datetime] = None

    @classmethod
    def from_wire(cls, data: Any) -> Share:
        if isinstance(data, Mapping) and isinstance(data.get("url"), str):
            url = data["url"]
            if (urlsplit(url).hostname or "").endswith(".localhost"):
                query = urlsplit(url).query
                url = str(data.get("path_url")) + (f"?{query}" if query else "")
            data = {**data, "browser_url": data["url"], "url": url}
        return decode(cls, data)


@dataclass(frozen=True)
class Egress:
    """One decision of a sandbox's network policy. A connection has a second entry when it has ended, with
    its bytes.
    """

    id: int
    at: datetime
    protocol: Literal["dns", "tcp", "udp", "icmp", "other"]
    verdict: Literal["allowed", "denied"]
    #: The entry of the policy that allowed it, or why nothing did.
    rule: str
    name: Optional[str] = None
    address: Optional[str] = None
    port: Optional[int] = None
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class Metrics:
    """The resource usage of a sandbox, measured by the host."""

    at: datetime
    running: bool
    cpu_usec: int
    memory_bytes: int
    memory_peak_bytes: int
    memory_limit_bytes: int
    pids: int
    oom_kills: int
    disk_bytes: int
    disk_limit_bytes: int
    network_sent_bytes: int
    network_received_bytes: int


@dataclass(frozen=True)
class Event:
    """An event of a sandbox; ``details`` depend on the ``type``."""

    id: int
    at: datetime
    sandbox: str
    type: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, data: Any) -> Event:
        if isinstance(data, Mapping):
            rest = {k: v for k, v in data.items() if k not in ("id", "at", "sandbox", "type")}
            data = {**data, "details": rest}
        return decode(cls, data)


@dataclass(frozen=True)
class IdentityToken:
    """A signed token that identifies a sandbox: a JWT of OpenID Connect, signed with RS256."""

    token: str
    expires_at: datetime
    #: The ``iss`` claim; its keys are at ``ISSUER/.well-known/jwks.json``.
    issuer: str
    #: The ``sub`` claim: the SPIFFE id of the sandbox.
    subject: str
    audience: str


@dataclass(frozen=True)
class SshAccess:
    """Access to a sandbox over SSH. ``command`` is the command line."""

    command: str
    host: str
    port: int
    user: str
    #: The password; good for this sandbox only.
    token: str
    expires_at: datetime
    host_key: str
    fingerprint: str
    #: A line for a ``known_hosts`` file.
    known_hosts: str


@dataclass(frozen=True)
class SshKey:
    """A public key that can log in to all sandboxes of the organisation."""

    id: str
    name: str
    public_key: str
    fingerprint: str
    created_at: datetime
    expires_at: Optional[datetime] = None


#: What a limit of a secret counts.
BudgetUnit = Literal["requests", "bytes"]

#: Who shares a limit of a secret: each sandbox has its own, or all share one, each day (UTC) or for good.
BudgetScope = Literal["sandbox", "day", "organisation"]


@dataclass(frozen=True)
class SecretLimit:
    """The most that requests with a secret may use."""

    of: BudgetUnit
    per: BudgetScope
    max: int


@dataclass(frozen=True)
class SecretBudget:
    """A limit of a secret, and what was used of it, with what requests under way have reserved."""

    of: BudgetUnit
    per: BudgetScope
    max: int
    used: Optional[int] = None
    renews_at: Optional[datetime] = None


@dataclass(frozen=True)
class Secret:
    """A secret of the organisation, without its value."""

    id: str
    name: str
    version: int
    hosts: list[str]
    use: str
    created_at: datetime
    updated_at: datetime
    uses: int
    last_used_at: Optional[datetime] = None
    #: Each use needs an approval.
    ask: bool = False
    #: What requests that use it may use in all.
    budgets: tuple[SecretBudget, ...] = ()

    @classmethod
    def from_wire(cls, data: Any) -> Secret:
        return _with_budgets(cls, data)


@dataclass(frozen=True)
class Approval:
    """A request with a secret that needs an approval. ``state``: pending, once, timed or denied."""

    id: str
    sandbox: str
    secret: str
    host: str
    method: str
    path: str
    state: str
    waiting: int
    asked_at: datetime
    expires_at: datetime
    #: Of the body; absent if it was not read, and then the request cannot be approved once.
    body_sha256: Optional[str] = None
    body_bytes: Optional[int] = None


@dataclass(frozen=True)
class SecretUser:
    """A sandbox that used a secret."""

    sandbox: str
    uses: int
    last_used_at: datetime
    #: What it used of the limits that each sandbox has by itself.
    budgets: tuple[SecretBudget, ...] = ()

    @classmethod
    def from_wire(cls, data: Any) -> SecretUser:
        return _with_budgets(cls, data)


def _with_budgets(kind: type[T], data: Any) -> T:
    if isinstance(data, Mapping):
        data = {**data, "budgets": tuple(decode(SecretBudget, one) for one in data.get("budgets", ()))}
    return decode(kind, data)


#: What a key allows.
Scope = Literal["read", "use", "manage", "admin"]


@dataclass(frozen=True)
class Key:
    """An API key. ``token`` is known only when the key was just created."""

    id: str
    name: str
    org: str
    scopes: list[Scope]
    created_at: datetime
    root: bool = False
    expires_at: Optional[datetime] = None
    last_used_at: Optional[datetime] = None
    revoked_at: Optional[datetime] = None
    sandbox: Optional[str] = None
    token: Optional[str] = field(default=None, repr=False)


@dataclass(frozen=True)
class ImageInfo:
    """An image that sandboxes can start from."""

    id: str
    names: list[str]
    size_bytes: int
    created_at: datetime
    source: str
    in_use_by: int = 0
    digest: Optional[str] = None


@dataclass(frozen=True)
class CodeOutput:
    """A result of code in all its formats: media type to text or JSON."""

    data: Mapping[str, Any]
    #: The value of the code's last expression.
    main: bool = False

    @property
    def text(self) -> Optional[str]:
        return self._form("text/plain")

    @property
    def html(self) -> Optional[str]:
        return self._form("text/html")

    @property
    def json(self) -> Any:
        return self.data.get("application/json")

    @property
    def png(self) -> Optional[bytes]:
        """The PNG image as bytes."""
        return self.file("image/png")

    def file(self, form: str) -> Optional[bytes]:
        """A binary format as bytes: ``image/jpeg``, ``application/pdf``."""
        import base64

        found = self._form(form)
        return None if found is None else base64.b64decode(found)

    def _form(self, name: str) -> Optional[str]:
        found = self.data.get(name)
        return found if isinstance(found, str) else None

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Notebooks show it in its own formats."""
        return dict(self.data)


@dataclass(frozen=True)
class CodeError:
    """The exception that code raised."""

    name: str
    value: str
    traceback: str

    def __str__(self) -> str:
        return self.traceback.strip() or f"{self.name}: {self.value}"


@dataclass(frozen=True)
class CodeResult:
    """The result of a run of code: output, results and exception."""

    context: str
    stdout: str = ""
    stderr: str = ""
    results: tuple[CodeOutput, ...] = ()
    error: Optional[CodeError] = None
    #: Of a shell's last command.
    exit_code: Optional[int] = None
    timed_out: bool = False
    #: The context's process ended with the run, and what it kept is gone.
    context_ended: bool = False
    truncated: bool = False
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether there was no exception and no timeout, and a shell's exit code is 0."""
        return self.error is None and not self.timed_out and not self.exit_code

    @property
    def main(self) -> Optional[CodeOutput]:
        """The value of the last expression."""
        return next((result for result in self.results if result.main), None)

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression, as text."""
        return None if self.main is None else self.main.text

    @property
    def png(self) -> Optional[bytes]:
        """The first PNG image."""
        return next((result.png for result in self.results if result.png is not None), None)

    def check(self) -> CodeResult:
        """Returns itself, or raises :class:`~cove.CodeFailed` if the code failed."""
        if self.timed_out:
            raise CodeTimedOut(self)
        if not self.ok:
            raise CodeFailed(self)
        return self

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Notebooks show its value, its exception or its output."""
        if self.error is not None:
            return {"text/plain": str(self.error)}
        shown = self.main or next(iter(self.results), None)
        return {"text/plain": self.stdout + self.stderr} if shown is None else dict(shown.data)

    def _checked(self, check: Optional[bool]) -> CodeResult:
        return self.check() if check or (check is None and self.timed_out) else self

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class CodeContextInfo:
    """A running code context."""

    id: str
    language: Language
    cwd: str
    user: str
    started_at: datetime
    default: bool = False


@dataclass(frozen=True)
class SnapshotInfo:
    """One state of a sandbox, with memory or without. It never changes."""

    id: str
    kind: Literal["manual", "auto", "fork", "rollback", "import"]
    memory: bool
    created_at: datetime
    name: Optional[str] = None
    #: Where it was taken; that sandbox may be gone.
    sandbox: Optional[str] = None
    #: The snapshot the sandbox's state had grown from.
    parent: Optional[str] = None
    image_id: Optional[str] = None
    #: What deleting it would free.
    exclusive_bytes: int = 0
    shared_bytes: int = 0
    memory_bytes: int = 0
    #: How long the sandbox stood still for it, in microseconds.
    stopped_us: int = 0
    #: Why its memory cannot be restored on this host.
    unfit: Optional[str] = None
    rolled_back_to: Optional[str] = None
    deleted_at: Optional[datetime] = None
    #: Volumes that its sandbox had, whose content is not in it.
    volumes_not_included: list[Mapping[str, Any]] = field(default_factory=list)
    #: Whether object storage has it: ``none``, ``uploading`` or ``stored``.
    object_storage: str = "none"
    #: The host has it; if not, the next use fetches it from object storage.
    on_host: bool = True


@dataclass(frozen=True)
class TemplateInfo:
    """One version of a template, with the defaults of its sandboxes."""

    id: str
    name: str
    #: Counts from 1 for each name.
    version: int
    #: What sandboxes begin from.
    snapshot: str
    created_at: datetime
    tags: list[str] = field(default_factory=list)
    #: Whether sandboxes go on with the snapshot's processes.
    memory: bool = False
    #: Whether its snapshot is gone although nobody deleted it: no sandbox can begin from it.
    lost: bool = False
    isolation: str = "container"
    #: With isolation ``vm``: ``kvm``, or ``software`` for emulation.
    accel: Optional[str] = None
    resources: Resources = field(default_factory=Resources)
    env: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    lifecycle: Mapping[str, Any] = field(default_factory=dict)
    user: Optional[str] = None
    workdir: Optional[str] = None
    no_new_privs: bool = False
    #: What all sandboxes from it mount.
    volumes: list[Mapping[str, Any]] = field(default_factory=list)
    #: What its sandboxes ask of their hosts.
    placement: Mapping[str, Any] = field(default_factory=dict)
    #: What the Dockerfile says of the image, such as ``cmd`` and ``labels``; absent if it was not built from one.
    image: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class VolumeInfo:
    """The state of a volume when the server last reported it."""

    id: str
    name: str
    size_mb: int
    created_at: datetime
    #: What it holds, as of the host's last look.
    used_bytes: int = 0
    read_only: bool = False
    #: The volume it began as a copy of.
    source: Optional[str] = field(default=None, metadata={"wire": "from"})
    #: Ids of the sandboxes that mount it; only where one volume is asked for.
    used_by: Optional[list[str]] = None


@dataclass(frozen=True)
class TimelineFork:
    """A sandbox that started from another's snapshot."""

    sandbox: str
    state: State
    from_snapshot: str
    created_at: datetime
    name: Optional[str] = None


@dataclass(frozen=True)
class Timeline:
    """The tree a sandbox is part of."""

    sandbox: str
    state: State
    created_at: datetime
    snapshots: tuple[SnapshotInfo, ...] = ()
    forks: tuple[TimelineFork, ...] = ()
    name: Optional[str] = None
    #: The snapshot it began from, when it did not begin from an image.
    from_snapshot: Optional[str] = None
    #: The snapshot its present state grew from.
    head: Optional[str] = None
    truncated: bool = False

    @classmethod
    def from_wire(cls, data: Any) -> Timeline:
        if isinstance(data, Mapping):
            data = {
                **data,
                "snapshots": tuple(decode(SnapshotInfo, one) for one in data.get("snapshots", ())),
                "forks": tuple(decode(TimelineFork, one) for one in data.get("forks", ())),
            }
        return decode(cls, data)
