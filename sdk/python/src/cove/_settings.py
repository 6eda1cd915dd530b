"""Which server, and with which key.

Arguments win over the environment (``COVE_URL``, ``COVE_CONTEXT``, ``COVE_API_KEY``, ``COVE_CA_FILE``), and that
over the current context of ``cove login``. On the server's own machine root needs none of them: the address and the
first key are in the data directory (``COVE_DATA_DIR``, default ``/var/lib/cove``). The rules are those of the
command line.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional
from urllib.parse import urlsplit

from .errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_DATA_DIR = "/var/lib/cove"


@dataclass(frozen=True)
class Settings:
    """The address of a server, the key, and the certificates to trust."""

    url: str
    api_key: Optional[str]
    ca_file: Optional[str] = None
    ca_pem: Optional[str] = None

    @property
    def is_local(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def trust(self) -> Optional[ssl.SSLContext]:
        """Trusts only the named certificates; None: those of the system."""
        import ssl

        if self.url.startswith("http:"):
            # Reading the system's certificates takes longer than a sandbox.
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not (self.ca_file or self.ca_pem):
            return None
        try:
            if self.ca_file:
                return ssl.create_default_context(cafile=self.ca_file)
            # Comments between certificates may have any characters.
            pem = (self.ca_pem or "").encode("ascii", "ignore").decode()
            return ssl.create_default_context(cadata=pem)
        except (OSError, ValueError) as error:
            source = self.ca_file or "the context"
            raise ConfigurationError(f"cannot use the certificates of {source}: {error}") from error


@dataclass(frozen=True)
class _Context:
    url: str
    api_key: str
    ca_pem: Optional[str] = None


def _word(directory: str, name: str) -> Optional[str]:
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _contexts_file() -> Optional[str]:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        config = os.path.join(home, ".config")
    return os.path.join(config, "cove", "contexts.json")


def _refuse_unknown(value: Mapping[str, Any], known: set[str]) -> None:
    for name in value:
        if name not in known:
            raise ValueError(f"unknown field {name!r}")


def _parse(text: bytes) -> tuple[Optional[str], dict[str, _Context]]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    _refuse_unknown(data, {"current", "contexts"})
    current, contexts = data.get("current"), data.get("contexts", {})
    if not (current is None or isinstance(current, str)) or not isinstance(contexts, dict):
        raise ValueError("current must be a name, contexts an object")
    found = {}
    for name, value in contexts.items():
        if not isinstance(value, dict):
            raise ValueError(f"context {name!r} is not an object")
        _refuse_unknown(value, {"url", "api_key", "ca_pem"})
        url, key, ca = value.get("url"), value.get("api_key"), value.get("ca_pem")
        if not isinstance(url, str) or not isinstance(key, str) or not (ca is None or isinstance(ca, str)):
            raise ValueError(f"context {name!r} needs url and api_key, as texts")
        found[name] = _Context(url, key, ca)
    return current, found


def _contexts() -> tuple[Optional[str], dict[str, _Context]]:
    """The current context's name, and all contexts by name."""
    path = _contexts_file()
    if path is None:
        return None, {}
    try:
        with open(path, "rb") as file:
            # Windows has no such bits.
            if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigurationError(
                    f"other users may read or change {path}, which has API keys; run: chmod 600 {path}"
                )
            return _parse(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None, {}
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        hint = "delete the file and run `cove login` again"
        raise ConfigurationError(f"cannot read {path}: {error}; {hint}") from error


def _context(name: Optional[str]) -> Optional[_Context]:
    """The context of that name; without a name the current one."""
    current, contexts = _contexts()
    wanted = name or current
    if not wanted:
        return None
    if wanted not in contexts:
        known = ", ".join(sorted(contexts))
        hint = f"known contexts: {known}" if known else "`cove login URL` adds one"
        raise ConfigurationError(f"there is no context {json.dumps(wanted)}; {hint}")
    return contexts[wanted]


def _chosen(url: Optional[str], context: Optional[str]) -> tuple[Optional[str], Optional[_Context]]:
    """The address or the context that names the server; neither means this machine's."""
    if url and context:
        raise ConfigurationError("url and context both name a server; give one of them")
    if url or context:
        return url, _context(context) if context else None
    url, context = os.environ.get("COVE_URL"), os.environ.get("COVE_CONTEXT")
    if url and context:
        raise ConfigurationError("COVE_URL and COVE_CONTEXT both name a server; set one of them")
    if context:
        return None, _context(context)
    if url or os.environ.get("COVE_DATA_DIR"):
        return url or None, None
    return None, _context(None)


def resolve(
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    ca_file: Optional[str] = None,
    context: Optional[str] = None,
) -> Settings:
    """The settings in force."""
    data_dir = os.environ.get("COVE_DATA_DIR") or DEFAULT_DATA_DIR
    named, login = _chosen(url, context)
    local = None if login else _word(data_dir, "url")
    where = ((login.url if login else named) or local or DEFAULT_URL).rstrip("/")
    if urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
        raise ConfigurationError(f"not the address of a server: {where!r}; it should look like {DEFAULT_URL}")
    key = api_key or os.environ.get("COVE_API_KEY") or (login.api_key if login else None)
    # The root key belongs to the server of this machine and is shown to no other.
    if key is None and (named is None or (local is not None and where == local.rstrip("/"))):
        key = _word(data_dir, "root.key")
    ca = ca_file or os.environ.get("COVE_CA_FILE") or None
    return Settings(where, key, ca, login.ca_pem if login and not ca else None)
