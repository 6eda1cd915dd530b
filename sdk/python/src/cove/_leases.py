"""Renews the leases of a client's sandboxes, for both flavours.

A thread does it, so that neither a busy event loop nor a long computation lets a lease run out. It holds no sandbox
object and no client: collecting either never deletes anything. Without the client nobody renews any more, and the
server puts the sandboxes away.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any, Optional

from . import errors
from ._limits import LEASES_RENEWED_MAX
from ._wire import Call, present, whole_seconds

if TYPE_CHECKING:
    from ._settings import Settings
    from ._sync.client import Client

#: Renewals in the time after which a lease runs out.
RENEWALS = 3
#: Seconds until a renewal that failed is repeated.
RETRY_PAUSE = 5.0


class Leases:
    """The leases that one client holds."""

    def __init__(self, settings: Settings) -> None:
        self.holder = f"python-{secrets.token_hex(8)}"
        self._renewer = _Renewer(settings, self.holder)
        weakref.finalize(self, self._renewer.stop).atexit = False

    def request(self, within: float, delete_after: Optional[float]) -> dict[str, Any]:
        """The lease in the form of the API."""
        return present(
            holder=self.holder,
            renew_within_s=whole_seconds("lease", within),
            delete_after_s=whole_seconds("lease_delete_after", delete_after),
        )

    def hold(self, sandbox: str, within: float) -> None:
        """Starts to renew it."""
        self._renewer.hold(sandbox, within)

    def drop(self, sandbox: str) -> None:
        """Stops renewing it."""
        self._renewer.drop(sandbox)

    def stop(self) -> None:
        """Stops all renewals."""
        self._renewer.stop()


class _Renewer:
    def __init__(self, settings: Settings, holder: str) -> None:
        self._settings = settings
        self._holder = holder
        self._held: dict[str, float] = {}
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def hold(self, sandbox: str, within: float) -> None:
        with self._lock:
            self._held[sandbox] = within
            # A thread does not survive the fork of its process.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="cove-leases", daemon=True)
                self._thread.start()
        self._woken.set()

    def drop(self, sandbox: str) -> None:
        with self._lock:
            self._held.pop(sandbox, None)
        self._woken.set()

    def stop(self) -> None:
        with self._lock:
            self._held.clear()
        self._woken.set()

    def _run(self) -> None:
        client: Optional[Client] = None
        next_at: Optional[float] = None
        last = monotonic()
        while True:
            with self._lock:
                if not self._held:
                    self._thread = None
                    break
                pause = min(self._held.values()) / RENEWALS
            wait = (last + pause if next_at is None else next_at) - monotonic()
            if wait > 0:
                self._woken.wait(wait)
                self._woken.clear()
                continue
            try:
                if client is None:
                    client = self._connect()
                self._renew(client)
                last, next_at = monotonic(), None
            except Exception:
                # The server may be restarting. A lease that ran out meanwhile is renewed too.
                next_at = monotonic() + min(pause, RETRY_PAUSE)
        if client is not None:
            client.close()

    def _connect(self) -> Client:
        from ._sync.client import Client

        return Client._with(self._settings)

    def _renew(self, client: Client) -> None:
        with self._lock:
            held = list(self._held)
        for begin in range(0, len(held), LEASES_RENEWED_MAX):
            body = {"holder": self._holder, "sandboxes": held[begin : begin + LEASES_RENEWED_MAX]}
            answer = client._json(Call("POST", "/v1/leases/renew", json=body))
            for lost in answer["lost"]:
                self.drop(lost)


def is_lost(error: errors.CoveError, told: Any, holder: str) -> bool:
    """Whether a refusal means that somebody else has the lease now, by the sandbox as it is."""
    lease = told.get("lease") if isinstance(told, dict) else None
    return isinstance(error, errors.ConflictError) and (not lease or lease.get("holder") != holder)
