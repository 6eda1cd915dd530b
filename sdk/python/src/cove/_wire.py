"""What both flavours of the client share and that does no I/O: requests as values, when to try again,
errors from answers, lines from bytes, bodies from arguments."""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union
from urllib.parse import quote

from . import errors
from ._limits import EXEC_STDIN_MAX
from .types import FileMatch, GitFile, GitStatus, Output, Result

#: Tries of one request, the first included.
ATTEMPTS_MAX = 6
#: Pauses between tries grow from the first to the second, in seconds.
PAUSE_FIRST = 0.05
PAUSE_MAX = 5.0
#: The longest a server may ask us to wait before the next try.
RETRY_AFTER_MAX = 30.0
#: For how long a broken stream is taken up again, in seconds.
RECONNECT_FOR = 30.0
RECONNECT_PAUSE = 0.2
#: Seconds that ending a cancelled command may take.
CANCEL_PATIENCE = 10.0
#: Bytes of each stream that a result keeps.
OUTPUT_MAX = 64 * 1024 * 1024
#: The longest line of a live answer.
LINE_MAX = 64 * 1024 * 1024
#: Bytes read and sent at once.
CHUNK = 256 * 1024

NDJSON = "application/x-ndjson"


@dataclass
class Call:
    """One request."""

    method: str
    path: str
    params: dict[str, str] = field(default_factory=dict)
    json: Any = None
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds without a byte before it is given up; ``None``: as long as it takes.
    patience: Optional[float] = 120.0
    #: May be sent again although the server may have acted on it.
    repeatable: bool = False

    def __post_init__(self) -> None:
        if self.method in ("GET", "DELETE"):
            self.repeatable = True

    def body(self) -> Any:
        if self.json is None:
            return self.content() if callable(self.content) else self.content
        return json.dumps(self.json, separators=(",", ":")).encode()

    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers)
        if self.json is not None:
            headers["content-type"] = "application/json"
        elif self.content is not None:
            headers.setdefault("content-type", "application/octet-stream")
        return headers

    @property
    def resendable(self) -> bool:
        """Whether the body is still there for a second try: what comes piece by piece is not, unless it
        can be made again (the content is a function then)."""
        return self.content is None or isinstance(self.content, bytes) or callable(self.content)

    def once(self) -> Call:
        """The same with a key of its own, so that the server acts on it once however often it comes."""
        self.headers["idempotency-key"] = os.urandom(16).hex()
        self.repeatable = True
        return self


def segment(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="")


def sandbox_path(sandbox: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{segment(sandbox)}{rest}"


def present(**values: Any) -> dict[str, Any]:
    """Those that are not ``None``."""
    return {key: value for key, value in values.items() if value is not None}


def query(**values: Any) -> dict[str, str]:
    """Those that say something, as the query string has them."""
    told: dict[str, str] = {}
    for key, value in values.items():
        if value is None or value is False:
            continue
        told[key] = "true" if value is True else str(value)
    return told


def failure(status: int, headers: Mapping[str, str], body: bytes) -> errors.ApiError:
    """The error of an answer that is not a success."""
    retry_after: Optional[float] = None
    try:
        retry_after = float(headers["retry-after"])
    except (KeyError, ValueError):
        pass
    try:
        detail = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        detail = None
    return errors.from_detail(detail, status, retry_after)


def pause_before(
    attempt: int, error: Optional[errors.ApiError], random_part: Optional[float] = None
) -> float:
    """Seconds to wait before try number ``attempt`` (the second is 1)."""
    if error is not None and error.retry_after is not None:
        return min(error.retry_after, RETRY_AFTER_MAX)
    share = os.urandom(1)[0] / 255 if random_part is None else random_part
    return float(min(PAUSE_MAX, PAUSE_FIRST * 2 ** (attempt - 1)) * (0.5 + share / 2))


def worth_another_try(call: Call, error: errors.ApiError) -> bool:
    """Whether the server said that it did nothing and that later is better."""
    if error.code in ("rate_limited", "unavailable", "no_capacity", "runner_unreachable"):
        return True
    return call.repeatable and error.status in (502, 503, 504) and error.code != "port_closed"


class Lines:
    """JSON values from the bytes of a live answer."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._kind = ""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The values, one of each line."""
        for line in self._whole(data):
            if line.strip():
                yield self._value(line)

    def events(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """The values of server-sent events, each with its name, which may be empty."""
        for line in self._whole(data):
            name, _, value = line.decode(errors="replace").partition(":")
            if name == "event":
                self._kind = value.strip()
            elif name == "data":
                kind, self._kind = self._kind, ""
                yield kind, self._value(value)

    def _whole(self, data: bytes) -> list[bytes]:
        self._rest += data
        if len(self._rest) > LINE_MAX:
            raise errors.ProtocolError("a line of the answer is too long")
        *whole, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return whole

    @staticmethod
    def _value(text: Union[str, bytes]) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise errors.ProtocolError("a line of the answer is not JSON") from None


def matches(output: str) -> list[FileMatch]:
    """What ``grep -HnZ`` wrote."""
    found = []
    for line in output.split("\n"):
        path, zero, rest = line.partition("\0")
        number, _, text = rest.partition(":")
        if zero and number.isdigit():
            found.append(FileMatch(path, int(number), text))
    return found


def git_status(output: str) -> GitStatus:
    """What ``git status --porcelain=v2 --branch -z`` wrote."""
    heads: dict[str, str] = {}
    files = []
    entries = iter(output.split("\0"))
    for entry in entries:
        kind = entry[:2]
        if kind == "# ":
            name, _, value = entry[2:].partition(" ")
            heads[name] = value
        elif kind == "1 ":
            files.append(GitFile(entry.split(" ", 8)[8], entry[2], entry[3]))
        elif kind == "2 ":
            files.append(GitFile(entry.split(" ", 9)[9], entry[2], entry[3]))
            next(entries, None)  # where it was before
        elif kind == "u ":
            files.append(GitFile(entry.split(" ", 10)[10], "U", "U"))
        elif kind == "? ":
            files.append(GitFile(entry[2:], "?", "?"))
    branch, commit = heads.get("branch.head"), heads.get("branch.oid")
    ahead, _, behind = heads.get("branch.ab", "+0 -0").partition(" ")
    return GitStatus(
        branch=None if branch == "(detached)" else branch,
        commit=None if commit == "(initial)" else commit,
        upstream=heads.get("branch.upstream"),
        ahead=abs(int(ahead)),
        behind=abs(int(behind)),
        files=tuple(files),
    )


class Transcript:
    """Follows a command's events: where each stream is, what it wrote, how it ended."""

    def __init__(self, keep: int = OUTPUT_MAX) -> None:
        self.process: Optional[str] = None
        self.offsets = {"stdout": 0, "stderr": 0}
        self.exit: Optional[Mapping[str, Any]] = None
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._keep = keep
        self._truncated = False
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    def take(self, event: Any) -> Optional[Output]:
        """Notes an event; some output when it is that."""
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "started":
            self.process = str(event["process"]["id"])
        elif kind == "exit":
            self.exit = event
        elif kind in ("stdout", "stderr"):
            return self._output(kind, event)
        elif kind == "error":
            raise errors.from_detail(event.get("error"))
        return None

    def _output(
        self, stream: Literal["stdout", "stderr"], event: Mapping[str, Any]
    ) -> Optional[Output]:
        text, data = event.get("text"), event.get("data")
        payload = text.encode() if isinstance(text, str) else base64.b64decode(data or "")
        offset, dropped = int(event["offset"]), int(event.get("dropped", 0))
        self.offsets[stream] = offset + len(payload)
        if "hint" in event and not payload:
            # Said by the server, not by the command; the exit has it as well.
            return None
        kept = self._kept[stream]
        room = self._keep - len(kept)
        kept += payload[: max(room, 0)]
        if len(payload) > room or dropped:
            self._truncated = True
        return Output(stream, payload, self._decoders[stream].decode(payload), offset, dropped)

    def result(self, command: Optional[str]) -> Result:
        end = self.exit
        if end is None:
            raise errors.ProtocolError("the output ended before the command")
        return Result(
            exit_code=int(end["exit_code"]),
            stdout_bytes=bytes(self._kept["stdout"]),
            stderr_bytes=bytes(self._kept["stderr"]),
            signal=end.get("signal"),
            oom=bool(end.get("oom")),
            timed_out=bool(end.get("timed_out")),
            duration=int(end.get("duration_ms", 0)) / 1000,
            process=self.process,
            truncated=self._truncated,
            memory_limit_bytes=end.get("memory_limit_bytes"),
            memory_peak_bytes=end.get("memory_peak_bytes"),
            command=command,
            hint=end.get("hint"),
        )


def shown(command: Union[str, Sequence[str]]) -> str:
    """A command for people to read."""
    return command if isinstance(command, str) else " ".join(str(part) for part in command)


def milliseconds(seconds: Optional[float]) -> Optional[int]:
    if seconds is None:
        return None
    if seconds <= 0:
        raise ValueError("a timeout must be more than 0 seconds")
    return max(1, round(seconds * 1000))


def whole_seconds(name: str, seconds: Optional[float]) -> Optional[int]:
    if seconds is None:
        return None
    if seconds < 1:
        raise ValueError(f"{name} must be at least one second")
    return round(seconds)


def command_body(
    command: Union[str, Sequence[str]],
    *,
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    user: Optional[str],
    timeout: Optional[float],
) -> dict[str, Any]:
    """The part that exec and background processes have in common."""
    body = present(cwd=cwd, user=user, timeout_ms=milliseconds(timeout))
    if isinstance(command, str):
        body["command"] = command
    else:
        body["argv"] = [str(part) for part in command]
    if env:
        body["env"] = dict(env)
    return body


def input_fields(data: Union[str, bytes, None]) -> dict[str, Any]:
    if data is None:
        return {}
    if isinstance(data, str):
        check_input(len(data.encode()))
        return {"stdin": data}
    check_input(len(data))
    return {"stdin_base64": base64.b64encode(data).decode()}


def check_input(size: int) -> None:
    if size > EXEC_STDIN_MAX:
        raise ValueError(
            f"input has {size} bytes, and a command takes at most {EXEC_STDIN_MAX} with it; "
            "start the command with stdin=True and send the input, or write it to a file"
        )


_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$", re.IGNORECASE)


def megabytes(name: str, value: Union[int, str, None]) -> Optional[int]:
    """``512`` (MiB), ``"512M"``, ``"2G"``."""
    if value is None or isinstance(value, int):
        return value
    match = _SIZE.match(value)
    if not match:
        raise ValueError(f"{name} must be a number of MiB, or text like '512M' or '2G', not {value!r}")
    factor = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}[match[2].lower()]
    return max(1, round(float(match[1]) * factor))


def create_body(
    *,
    image: Optional[str],
    snapshot: Optional[str],
    memory_too: bool,
    template: Optional[str],
    name: Optional[str],
    cpu: Optional[float],
    memory: Union[int, str, None],
    disk: Union[int, str, None],
    env: Optional[Mapping[str, str]],
    labels: Optional[Mapping[str, str]],
    user: Optional[str],
    workdir: Optional[str],
    network: Union[str, Sequence[str], Mapping[str, Any], None],
    isolation: Optional[str],
    accel: Optional[str],
    identity: Optional[Mapping[str, Any]],
    secrets: Optional[Sequence[Mapping[str, Any]]],
    lifecycle: Mapping[str, Optional[float]],
    resources: Optional[Mapping[str, Any]],
    volumes: Optional[list[dict[str, Any]]],
    placement: Optional[Mapping[str, Any]],
) -> dict[str, Any]:
    limits = dict(resources or {})
    limits.update(present(cpu=cpu, memory_mb=megabytes("memory", memory), disk_mb=megabytes("disk", disk)))
    life = {key: whole_seconds(key, value) for key, value in lifecycle.items() if value is not None}
    return present(
        image=image,
        snapshot=snapshot,
        memory=memory_too or None,
        template=template,
        name=name,
        isolation=isolation,
        accel=accel,
        identity=None if identity is None else dict(identity),
        secrets=[dict(one) for one in secrets] if secrets else None,
        resources=limits or None,
        env=dict(env) if env else None,
        labels=dict(labels) if labels else None,
        user=user,
        workdir=workdir,
        network=network_body(network),
        lifecycle=life or None,
        volumes=volumes,
        placement=placement_body(placement),
    )


def placement_body(placement: Optional[Mapping[str, Any]]) -> Optional[dict[str, Any]]:
    """``tolerate`` may be any collection of names, but not one name."""
    if placement is None:
        return None
    body = dict(placement)
    if "tolerate" in body:
        if isinstance(body["tolerate"], str):
            raise ValueError("placement: tolerate is a list of taints")
        body["tolerate"] = sorted(body["tolerate"])
    return body


def network_body(network: Union[str, Sequence[str], Mapping[str, Any], None]) -> Optional[dict[str, Any]]:
    """``"none"``, ``"open"``, a list of what may be reached, or the policy itself."""
    if network is None:
        return None
    if isinstance(network, str):
        if network not in ("none", "open", "allowlist"):
            raise ValueError(f"network is 'none', 'open' or a list of what may be reached, not {network!r}")
        return {"mode": network}
    if isinstance(network, Mapping):
        return dict(network)
    return {"mode": "allowlist", "allow": list(network)}
