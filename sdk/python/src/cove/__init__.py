"""Cove: every agent gets its own computer.

>>> from cove import Sandbox
>>> with Sandbox() as box:
...     print(box.run("echo hello from the sandbox").stdout, end="")
hello from the sandbox

Start with :class:`Sandbox`, or :class:`AsyncSandbox` for ``asyncio``. On the server's own machine no
configuration is needed; elsewhere set ``COVE_URL`` and ``COVE_API_KEY``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors, types
from ._image import Image
from ._sync.client import Client
from ._sync.code import Code, CodeContext
from ._sync.files import Files
from ._sync.git import Git
from ._sync.process import Process, Stream, Terminal
from ._sync.sandbox import Sandbox
from ._sync.snapshot import Forks, Snapshot
from ._sync.template import Template
from ._sync.volume import Volume
from .errors import (
    AlreadyExistsError,
    ApiError,
    AuthenticationError,
    BuildFailed,
    CodeFailed,
    CodeTimedOut,
    CommandFailed,
    CommandTimedOut,
    ConfigurationError,
    ConflictError,
    ConnectionError,
    CoveError,
    DiskFullError,
    FileError,
    ForbiddenError,
    ForkFailed,
    GuestError,
    InUseError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    PathExistsError,
    PathIsADirectoryError,
    PathNotADirectoryError,
    PathNotFoundError,
    PathPermissionError,
    ProcessGoneError,
    ProtocolError,
    RateLimitError,
    ServerError,
    TimedOutError,
    UnavailableError,
    UnsupportedError,
    WaitTimeout,
)
from .types import (
    Approval,
    CodeContextInfo,
    CodeError,
    CodeOutput,
    CodeResult,
    Egress,
    Event,
    FileChange,
    FileInfo,
    FileMatch,
    GitFile,
    GitStatus,
    IdentityToken,
    ImageInfo,
    Key,
    Metrics,
    Output,
    Port,
    ProcessInfo,
    Resources,
    Result,
    SandboxInfo,
    Secret,
    SecretBudget,
    SecretLimit,
    SecretUser,
    Service,
    Share,
    SnapshotInfo,
    SshAccess,
    SshKey,
    TemplateInfo,
    Timeline,
    VolumeInfo,
)

if TYPE_CHECKING:
    from ._async.client import AsyncClient
    from ._async.code import AsyncCode, AsyncCodeContext
    from ._async.files import AsyncFiles
    from ._async.git import AsyncGit
    from ._async.process import AsyncProcess, AsyncStream, AsyncTerminal
    from ._async.sandbox import AsyncSandbox
    from ._async.snapshot import AsyncForks, AsyncSnapshot
    from ._async.template import AsyncTemplate
    from ._async.volume import AsyncVolume

__version__ = "0.1.0"

# Loaded when first asked for: asyncio takes longer to import than all the rest.
_LATER = {
    "AsyncClient": "client",
    "AsyncCode": "code",
    "AsyncCodeContext": "code",
    "AsyncFiles": "files",
    "AsyncForks": "snapshot",
    "AsyncGit": "git",
    "AsyncProcess": "process",
    "AsyncSandbox": "sandbox",
    "AsyncSnapshot": "snapshot",
    "AsyncStream": "process",
    "AsyncTemplate": "template",
    "AsyncTerminal": "process",
    "AsyncVolume": "volume",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"._async.{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "Approval",
    "AsyncClient",
    "AsyncCode",
    "AsyncCodeContext",
    "AsyncFiles",
    "AsyncForks",
    "AsyncGit",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncStream",
    "AsyncTemplate",
    "AsyncTerminal",
    "AsyncVolume",
    "AuthenticationError",
    "BuildFailed",
    "Client",
    "Code",
    "CodeContext",
    "CodeContextInfo",
    "CodeError",
    "CodeFailed",
    "CodeOutput",
    "CodeResult",
    "CodeTimedOut",
    "CommandFailed",
    "CommandTimedOut",
    "ConfigurationError",
    "ConflictError",
    "ConnectionError",
    "CoveError",
    "DiskFullError",
    "Egress",
    "Event",
    "FileChange",
    "FileError",
    "FileInfo",
    "FileMatch",
    "Files",
    "ForbiddenError",
    "ForkFailed",
    "Forks",
    "Git",
    "GitFile",
    "GitStatus",
    "GuestError",
    "IdentityToken",
    "Image",
    "ImageInfo",
    "InUseError",
    "InvalidRequestError",
    "Key",
    "LimitError",
    "Metrics",
    "NotFoundError",
    "Output",
    "PathExistsError",
    "PathIsADirectoryError",
    "PathNotADirectoryError",
    "PathNotFoundError",
    "PathPermissionError",
    "Port",
    "Process",
    "ProcessGoneError",
    "ProcessInfo",
    "ProtocolError",
    "RateLimitError",
    "Resources",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "Secret",
    "SecretBudget",
    "SecretLimit",
    "SecretUser",
    "ServerError",
    "Service",
    "Share",
    "Snapshot",
    "SnapshotInfo",
    "SshAccess",
    "SshKey",
    "Stream",
    "Template",
    "TemplateInfo",
    "Terminal",
    "TimedOutError",
    "Timeline",
    "UnavailableError",
    "UnsupportedError",
    "Volume",
    "VolumeInfo",
    "WaitTimeout",
    "errors",
    "types",
]
