"""Which server, and with which key.

What is passed wins over the environment (``COVE_URL``, ``COVE_API_KEY``). On the server's own machine
root needs neither: the address and the first key are in the data directory (``COVE_DATA_DIR``,
``/var/lib/cove``), as for the command line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional
from urllib.parse import urlsplit

from .errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_DATA_DIR = "/var/lib/cove"


@dataclass(frozen=True)
class Settings:
    """The address of a server and the key."""

    url: str
    api_key: Optional[str]
    ca_file: Optional[str] = None

    @property
    def is_local(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def _word(directory: str, name: str) -> Optional[str]:
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def resolve(
    url: Optional[str] = None, api_key: Optional[str] = None, ca_file: Optional[str] = None
) -> Settings:
    """The settings in force."""
    data_dir = os.environ.get("COVE_DATA_DIR") or DEFAULT_DATA_DIR
    local = _word(data_dir, "url")
    told = url or os.environ.get("COVE_URL") or None
    where = (told or local or DEFAULT_URL).rstrip("/")
    if urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
        raise ConfigurationError(f"not the address of a server: {where!r}; it should look like {DEFAULT_URL}")
    key = api_key or os.environ.get("COVE_API_KEY") or None
    # The root key belongs to the server of this machine and is shown to no other.
    if key is None and (told is None or (local is not None and where == local.rstrip("/"))):
        key = _word(data_dir, "root.key")
    return Settings(where, key, ca_file or os.environ.get("COVE_CA_FILE") or None)
