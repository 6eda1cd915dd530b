"""The errors, one class per family of the server's error codes.

All derive from :class:`CoveError`. A request that the server refuses raises an :class:`ApiError` with a
stable ``code``, a ``message``, often a ``hint`` with the next step, and the ``request_id`` for the
server's log.

>>> import cove
>>> with cove.Sandbox() as box:
...     try:
...         box.files.read("/no/such/file")
...     except cove.PathNotFoundError as error:
...         print(error.code)
path_not_found
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .types import CodeResult, Result


class CoveError(Exception):
    """The base of all errors of this package."""


class ConfigurationError(CoveError):
    """No server or no key is configured."""


class ConnectionError(CoveError, builtins.ConnectionError):
    """The server cannot be reached, or the connection was lost and could not be resumed."""


class ProtocolError(CoveError):
    """The server sent an answer that this package cannot read."""


class WaitTimeout(CoveError, builtins.TimeoutError):
    """A wait timed out."""


#: Characters of output, and of the command, in the message of a :class:`CommandFailed`.
_TAIL_MAX = 2000
_COMMAND_MAX = 300


class CommandFailed(CoveError):
    """A command failed, and ``check`` was set.

    ``result`` has its output and how it ended.

    >>> import cove
    >>> with cove.Sandbox() as box:
    ...     try:
    ...         box.run("ls /none", check=True)
    ...     except cove.CommandFailed as error:
    ...         print(error)
    command `ls /none` exited with 2:
    ls: cannot access '/none': No such file or directory
    """

    def __init__(self, result: Result) -> None:
        self.result = result
        command = result.command
        if command is None:
            what = "the command"
        else:
            what = f"command `{command[:_COMMAND_MAX]}{'…' if len(command) > _COMMAND_MAX else ''}`"
        if result.oom:
            how = "was killed because it ran out of memory"
        elif result.timed_out:
            how = "was killed because its timeout passed"
        else:
            how = f"exited with {result.exit_code}"
            if result.signal is not None:
                how += f" (signal {result.signal})"
        tail = (result.stderr.strip() or result.stdout.strip())[-_TAIL_MAX:]
        hint = f"\n({result.hint})" if result.hint else ""
        super().__init__(f"{what} {how}" + (f":\n{tail}" if tail else "") + hint)


class CommandTimedOut(CommandFailed, builtins.TimeoutError):
    """A command's ``timeout`` passed. Pass ``check=False`` to get the result instead."""


class CodeFailed(CoveError):
    """Code raised an exception, or its ``timeout`` passed.

    ``result`` has its output and how it ended.
    """

    def __init__(self, result: CodeResult) -> None:
        self.result = result
        if result.timed_out:
            how = "the code was interrupted because its timeout passed"
        elif result.error is not None:
            how = str(result.error)
        else:
            how = f"the code exited with {result.exit_code}"
        super().__init__(how)


class CodeTimedOut(CodeFailed, builtins.TimeoutError):
    """The code's ``timeout`` passed. Pass ``check=False`` to get the result instead."""


class BuildFailed(CoveError):
    """A build of a template failed or was cancelled. The message has the step and the end of its output."""


class ForkFailed(CoveError):
    """Some of the requested forks could not be created.

    ``errors`` has the reasons; the other forks were deleted.
    """

    def __init__(self, errors: list[ApiError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} forks could not be made, the first because {errors[0]}")


class ApiError(CoveError):
    """The server refused a request."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: Optional[str] = None,
        request_id: Optional[str] = None,
        status: int = 0,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.request_id = request_id
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message + (f" ({self.hint})" if self.hint else "")

    def __repr__(self) -> str:
        told = f"code={self.code!r}, message={self.message!r}, request_id={self.request_id!r}"
        return f"{type(self).__name__}({told})"


class AuthenticationError(ApiError):
    """The key is missing, unknown or revoked."""


class ForbiddenError(ApiError):
    """The key's scopes do not allow this."""


class InvalidRequestError(ApiError, ValueError):
    """The request is invalid."""


class NotFoundError(ApiError, LookupError):
    """There is no sandbox, snapshot, image or process of that name."""


class ConflictError(ApiError):
    """The present state does not allow it; the hint says what to do first."""


class AlreadyExistsError(ConflictError):
    """The name is taken."""


class InUseError(ConflictError):
    """Something still uses it."""


class ProcessGoneError(ApiError):
    """The process has ended, or its record is no longer kept."""


class FileError(ApiError, OSError):
    """An error about a path in the sandbox."""


class PathNotFoundError(FileError, FileNotFoundError):
    """The path does not exist."""


class PathExistsError(FileError, FileExistsError):
    """The path exists already."""


class PathIsADirectoryError(FileError, IsADirectoryError):
    """The path is a directory, and the operation needs a file."""


class PathNotADirectoryError(FileError, NotADirectoryError):
    """The path is not a directory, and the operation needs one."""


class PathPermissionError(FileError, PermissionError):
    """The user in the sandbox lacks the permission for the path."""


class DiskFullError(FileError):
    """The sandbox's disk is full."""


class LimitError(ApiError):
    """A quota of the organisation or a limit of the sandbox would be exceeded."""


class RateLimitError(ApiError):
    """Too many requests; ``retry_after`` says when to try again."""


class UnavailableError(ApiError):
    """The server or its host lacks a resource now; ``retry_after`` says when to try again."""


class UnsupportedError(ApiError, NotImplementedError):
    """This server cannot do it."""


class GuestError(ApiError):
    """The sandbox runs, but the guest program in it does not answer."""


class TimedOutError(ApiError, builtins.TimeoutError):
    """The server did not finish in time."""


class ServerError(ApiError):
    """The server failed. Its log has more under the ``request_id``."""


#: Which class stands for which code.
BY_CODE: dict[str, type[ApiError]] = {
    "malformed_request": InvalidRequestError,
    "invalid_request": InvalidRequestError,
    "command_not_found": InvalidRequestError,
    "no_such_user": InvalidRequestError,
    "method_not_allowed": InvalidRequestError,
    "payload_too_large": InvalidRequestError,
    "uri_too_long": InvalidRequestError,
    "unsupported_media_type": InvalidRequestError,
    "range_not_satisfiable": InvalidRequestError,
    "headers_too_large": InvalidRequestError,
    "unauthenticated": AuthenticationError,
    "forbidden": ForbiddenError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "stale": ConflictError,
    "not_capturable": ConflictError,
    "unfit_host": ConflictError,
    "unchanged": ConflictError,
    "idempotency_key_reused": ConflictError,
    "already_exists": AlreadyExistsError,
    "in_use": InUseError,
    "process_gone": ProcessGoneError,
    "path_not_found": PathNotFoundError,
    "path_exists": PathExistsError,
    "not_a_directory": PathNotADirectoryError,
    "is_a_directory": PathIsADirectoryError,
    "directory_not_empty": FileError,
    "permission_denied": PathPermissionError,
    "disk_full": DiskFullError,
    "quota_exceeded": LimitError,
    "limit_reached": LimitError,
    "too_many_processes": LimitError,
    "rate_limited": RateLimitError,
    "no_capacity": UnavailableError,
    "runner_unreachable": UnavailableError,
    "unavailable": UnavailableError,
    "unsupported": UnsupportedError,
    "guest_unreachable": GuestError,
    "port_closed": GuestError,
    "request_timeout": TimedOutError,
    "timed_out": TimedOutError,
    "internal": ServerError,
}


def from_detail(detail: Any, status: int = 0, retry_after: Optional[float] = None) -> ApiError:
    """The exception for the ``error`` object of an answer."""
    detail = detail if isinstance(detail, dict) else {}
    code = str(detail.get("code", "internal" if status >= 500 else "unknown"))
    message = str(detail.get("message", f"the server answered with status {status}"))
    hint, request_id = detail.get("hint"), detail.get("request_id")
    kind = BY_CODE.get(code, ServerError if status >= 500 else ApiError)
    return kind(
        code,
        message,
        hint=None if hint is None else str(hint),
        request_id=None if request_id is None else str(request_id),
        status=status,
        retry_after=retry_after,
    )
