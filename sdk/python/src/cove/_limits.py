"""Limits and defaults of the server that this client relies on, by the names of the crate ``cove-limits``.

A test of the server compares every line with that crate.
"""

from __future__ import annotations

#: Items of a list page.
PAGE_MAX = 1000
#: Bytes of standard input that travel with a command.
EXEC_STDIN_MAX = 16777216
#: Milliseconds between SIGTERM and SIGKILL when a stop does not say.
STOP_GRACE_DEFAULT_MS = 10000
#: Seconds that a lease holds without being renewed.
LEASE_DEFAULT_S = 300
#: Leases that one request renews.
LEASES_RENEWED_MAX = 256
