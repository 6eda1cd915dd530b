"""The connection to a server: requests with retries, and calls that are not about one sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Any, Optional

from .. import errors
from .._leases import Leases
from .._settings import Settings, resolve
from .._wire import (
    ATTEMPTS_MAX,
    CHUNK,
    NDJSON,
    RECONNECT_FOR,
    RECONNECT_PAUSE,
    Call,
    Lines,
    failure,
    pause_before,
    present,
    query,
    segment,
    whole_seconds,
    worth_another_try,
)
from ..types import Approval, Event, ImageInfo, Key, Scope, Secret, SecretLimit, SecretUser, SshKey, decode
from . import _io

if TYPE_CHECKING:
    import httpx

#: Seconds to reach the server.
CONNECT_TIMEOUT = 10.0


class AsyncClient:
    """A server and a key. Most programs need none: sandboxes find the server by themselves.

    Without arguments ``COVE_URL`` and ``COVE_API_KEY`` are used, then the context that ``cove login`` stored. On the
    server's own machine root needs neither. ``context`` names another login.

    >>> async with AsyncClient() as client:
    ...     print([image.names for image in await client.images()] != [])
    True
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        ca_file: Optional[str] = None,
        context: Optional[str] = None,
    ) -> None:
        self._use(resolve(url, api_key, ca_file, context))

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        self._http: Optional[httpx.AsyncClient] = None
        self._leases = Leases(self._settings)

    @classmethod
    def default(cls) -> AsyncClient:
        """The client of sandboxes that are created without one."""

        return _io.shared(resolve(), cls._with)

    @classmethod
    def _with(cls, settings: Settings) -> AsyncClient:
        client = cls.__new__(cls)
        client._use(settings)
        return client

    @property
    def url(self) -> str:
        return self._settings.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections and stops renewing leases."""
        self._leases.stop()
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def images(self) -> list[ImageInfo]:
        """Lists the images that sandboxes can start from."""
        data = await self._json(Call("GET", "/v1/images"))
        return [decode(ImageInfo, item) for item in data["items"]]

    async def image(self, name: str) -> ImageInfo:
        """Returns an image by name or id."""
        return decode(ImageInfo, await self._json(Call("GET", f"/v1/images/{segment(name)}")))

    async def pull(
        self, reference: str, *, username: Optional[str] = None, password: Optional[str] = None
    ) -> ImageInfo:
        """Pulls an image from an OCI registry, ``docker.io/library/python:3.12-slim`` for one."""
        body: dict[str, Any] = {"type": "registry", "reference": reference}
        if username is not None:
            body.update(username=username, password=password)
        return await self._image_job(body)

    async def _image_job(self, body: Mapping[str, Any]) -> ImageInfo:
        last: Any = None
        call = Call("POST", "/v1/images", json=body, headers={"accept": NDJSON}, patience=None)
        async for job in self._lines(call):
            last = job
        if not isinstance(last, dict) or last.get("state") == "running":
            raise errors.ConnectionError("the server ended before the image was ready")
        if last.get("error"):
            raise errors.from_detail(last["error"])
        return decode(ImageInfo, last.get("image"))

    async def remove_image(self, name: str) -> None:
        """Removes an image that no sandbox uses."""
        await self._done(Call("DELETE", f"/v1/images/{segment(name)}"))

    async def usage(self, sandbox: Optional[str] = None) -> dict[str, Any]:
        """Returns the usage of the organisation or of one sandbox: CPU, memory and disk over time."""
        data = await self._json(Call("GET", "/v1/usage", params=query(sandbox=sandbox)))
        total: dict[str, Any] = data["total"]
        return total

    async def events(self, after: Optional[int] = None) -> list[Event]:
        """Lists the kept events of all sandboxes, oldest first."""
        data = await self._json(Call("GET", "/v1/events", params=query(after=after)))
        return [Event.from_wire(item) for item in data["items"]]

    async def follow_events(self, after: Optional[int] = None) -> AsyncGenerator[Event, None]:
        """Yields new events of all sandboxes without end; with ``after``, first those after that event.
        After a lost connection it reconnects and continues after the last event.
        """
        events = self._events("/v1/events", after)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def keys(self) -> list[Key]:
        """Lists the API keys that this key can see."""
        return [decode(Key, item) async for item in self._pages(Call("GET", "/v1/keys"))]

    async def create_key(
        self,
        name: str,
        scopes: Sequence[Scope] = ("manage",),
        *,
        expires: Optional[float] = None,
        org: Optional[str] = None,
        sandbox: Optional[str] = None,
    ) -> Key:
        """Creates an API key. Its ``token`` is shown only here; ``expires`` is in seconds.

        ``sandbox`` binds it to one sandbox, by id or name: nothing else exists for the key.

        >>> async with AsyncClient() as client:
        ...     key = await client.create_key("reader", ["read"], expires=3600)
        ...     print(key.scopes, key.token is not None)
        ...     await client.revoke_key(key.id)
        ['read'] True
        """
        body = present(name=name, expires_in_s=whole_seconds("expires", expires), org=org, sandbox=sandbox)
        body["scopes"] = list(scopes)
        return decode(Key, await self._json(Call("POST", "/v1/keys", json=body)))

    async def revoke_key(self, id: str) -> None:
        """Revokes a key immediately and for ever."""
        await self._done(Call("DELETE", f"/v1/keys/{segment(id)}"))

    async def ssh_keys(self) -> list[SshKey]:
        """Lists the public keys that can log in to the organisation's sandboxes over SSH."""
        return [decode(SshKey, item) async for item in self._pages(Call("GET", "/v1/ssh-keys"))]

    async def add_ssh_key(self, name: str, public_key: str, *, expires: Optional[float] = None) -> SshKey:
        """Adds a public key (a line like that of ``id_ed25519.pub``) for SSH logins; ``expires`` is in
        seconds.
        """
        body = present(
            name=name, public_key=public_key.strip(), expires_in_s=whole_seconds("expires", expires)
        )
        return decode(SshKey, await self._json(Call("POST", "/v1/ssh-keys", json=body)))

    async def remove_ssh_key(self, id: str) -> None:
        """Removes a public key for SSH logins."""
        await self._done(Call("DELETE", f"/v1/ssh-keys/{segment(id)}"))

    async def secrets(self) -> list[Secret]:
        """Lists the secrets of the organisation. No call returns a value."""
        return [Secret.from_wire(item) async for item in self._pages(Call("GET", "/v1/secrets"))]

    async def set_secret(
        self,
        name: str,
        value: str,
        *,
        hosts: Sequence[str] = (),
        use: str = "bearer",
        ask: bool = False,
        limits: Sequence[SecretLimit] = (),
    ) -> Secret:
        """Keeps a secret, or a new value of one, for requests to ``hosts``.

        ``use`` says where in a request it belongs: ``bearer``, ``basic``, ``header:NAME``,
        ``query:NAME``, ``form:NAME``, ``totp:PLACE:NAME``, ``sigv4:REGION/SERVICE``, or ``exposed``,
        without hosts, for a value that sandboxes hold themselves. With ``ask`` each request that uses it
        waits for :meth:`approve`.
        ``limits`` bound what all requests that use it may use, for example
        ``SecretLimit("requests", per="day", max=1000)``.

        >>> async with AsyncClient() as client:
        ...     secret = await client.set_secret("example", "not-a-real-key", hosts=["api.example.com"])
        ...     print(secret.hosts, secret.use)
        ...     await client.remove_secret("example")
        ['api.example.com'] bearer
        """
        body = {
            "name": name,
            "value": value,
            "hosts": list(hosts),
            "use": use,
            "ask": ask,
            "limits": [asdict(limit) for limit in limits],
        }
        return Secret.from_wire(await self._json(Call("POST", "/v1/secrets", json=body)))

    async def secret_uses(self, name: str) -> list[SecretUser]:
        """Lists the sandboxes that used a secret, the latest first."""
        path = f"/v1/secrets/{segment(name)}/uses"
        return [SecretUser.from_wire(item) async for item in self._pages(Call("GET", path))]

    async def remove_secret(self, name: str) -> None:
        """Removes a secret and closes connections that used it."""
        await self._done(Call("DELETE", f"/v1/secrets/{segment(name)}"))

    async def approvals(self) -> list[Approval]:
        """Lists requests of sandboxes that wait for an approval, and decided ones; oldest first."""
        return [decode(Approval, item) async for item in self._pages(Call("GET", "/v1/approvals"))]

    async def approve(self, id: str, *, seconds: Optional[float] = None) -> None:
        """Lets a request with a secret be sent once.

        With ``seconds``, all requests of its sandbox with the secret to the host may be sent for that time.
        """
        body = present(decision="approve", for_seconds=whole_seconds("seconds", seconds))
        await self._done(Call("POST", f"/v1/approvals/{segment(id)}", json=body))

    async def deny(self, id: str) -> None:
        """Denies a request with a secret, or revokes its approval."""
        await self._done(Call("POST", f"/v1/approvals/{segment(id)}", json={"decision": "deny"}))

    # What follows is for the other modules of this package.

    def _connect(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            timeout = httpx.Timeout(CONNECT_TIMEOUT, read=120.0, write=120.0, pool=None)
            self._http = _io.open_http(self._settings, timeout, self._settings.trust() or True)
        return self._http

    async def _send(self, call: Call) -> httpx.Response:
        """The answer's head, its body still to come. Tries again where that is safe and may help."""
        import httpx

        http = self._connect()
        headers = call.all_headers()
        if self._settings.api_key:
            headers["authorization"] = f"Bearer {self._settings.api_key}"
        attempt = 0
        while True:
            attempt += 1
            last = attempt >= ATTEMPTS_MAX or not call.resendable
            refused: Optional[errors.ApiError] = None
            try:
                request = http.build_request(
                    call.method,
                    call.path,
                    params=call.params or None,
                    content=call.body(),
                    headers=headers,
                    timeout=httpx.Timeout(CONNECT_TIMEOUT, read=call.patience, write=120.0, pool=None),
                )
                response = await http.send(request, stream=True)
                if response.status_code < 400:
                    return response
                try:
                    body = await response.aread()
                finally:
                    await response.aclose()
                refused = failure(response.status_code, response.headers, body)
                if call.method == "DELETE" and attempt > 1 and refused.code == "not_found":
                    return response
                if last or not worth_another_try(call, refused):
                    raise refused
            except httpx.HTTPError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise errors.ConnectionError(
                        f"the certificate of {self.url} is not trusted: {error}; "
                        "name a PEM file that has it: COVE_CA_FILE, or ca_file of the client"
                    ) from error
                # Without a connection the server saw nothing of it.
                unseen = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if last or not (unseen or call.repeatable):
                    reason = f"cannot reach {self.url}" if unseen else "lost the connection"
                    hint = "; is it running? COVE_URL, or `cove login`, says where it is" if unseen else ""
                    raise errors.ConnectionError(f"{reason}: {error}{hint}") from error
            await _io.sleep(pause_before(attempt, refused))

    async def _bytes(self, call: Call) -> bytes:
        response = await self._send(call)
        try:
            return await response.aread()
        except Exception as error:
            raise self._broken(error) from error
        finally:
            await response.aclose()

    async def _json(self, call: Call) -> Any:
        import json

        data = await self._bytes(call)
        try:
            return json.loads(data)
        except ValueError:
            raise errors.ProtocolError("the server's answer is not JSON") from None

    async def _done(self, call: Call) -> None:
        await self._bytes(call)

    async def _pieces(self, call: Call) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        response = await self._send(call)
        try:
            async for piece in response.aiter_bytes(CHUNK):
                yield piece
        except Exception as error:
            raise self._broken(error) from error
        finally:
            await response.aclose()

    async def _raw(self, call: Call) -> AsyncGenerator[bytes, None]:
        """The body as it comes, without waiting for a whole piece."""
        response = await self._send(call)
        try:
            async for piece in response.aiter_raw():
                yield piece
        except Exception as error:
            raise self._broken(error) from error
        finally:
            await response.aclose()

    async def _lines(self, call: Call) -> AsyncGenerator[Any, None]:
        """The JSON values of a live answer as they come."""
        lines = Lines()
        pieces = self._raw(call)
        try:
            async for piece in pieces:
                for value in lines.feed(piece):
                    yield value
        finally:
            await pieces.aclose()

    async def _events(self, path: str, after: Optional[int]) -> AsyncGenerator[Event, None]:
        """Events as they happen, over broken connections and restarts of the server."""
        lost_since: Optional[float] = None
        while True:
            params = query(follow=True)
            if after is not None:
                params["after"] = str(after)
            pieces = self._raw(Call("GET", path, params=params, patience=None))
            lines = Lines()
            begun = monotonic()
            reason: errors.CoveError = errors.ConnectionError("the server closed the stream of events")
            try:
                async for piece in pieces:
                    for kind, data in lines.events(piece):
                        if kind == "lost":
                            raise errors.CoveError(
                                "some events were lost, because they were not read in time; "
                                "begin again with events()"
                            )
                        event = Event.from_wire(data)
                        after, lost_since = event.id, None
                        yield event
            except errors.ConnectionError as error:
                reason = error
            finally:
                await pieces.aclose()
            now = monotonic()
            if lost_since is None or now - begun > RECONNECT_FOR:
                lost_since = now
            if now - lost_since > RECONNECT_FOR:
                raise reason
            await _io.sleep(RECONNECT_PAUSE)

    async def _pages(self, call: Call) -> AsyncGenerator[Any, None]:
        """The items of a list, page by page."""
        while True:
            page = await self._json(call)
            for item in page["items"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return
            call.params["cursor"] = cursor

    @staticmethod
    def _broken(error: Exception) -> Exception:
        import httpx

        if isinstance(error, httpx.HTTPError):
            return errors.ConnectionError(f"lost the connection: {error}")
        return error

    async def _reconnecting(self, first: Call, again: Any) -> AsyncGenerator[Any, None]:
        """The values of a live answer over broken connections and restarts of the server.

        ``again()`` is the call that goes on where the values so far ended, or ``None`` when there is
        nothing to go on with.
        """
        call: Call = first
        lost_since: Optional[float] = None
        while True:
            values = self._lines(call)
            try:
                async for value in values:
                    if isinstance(value, dict) and value.get("type") == "error":
                        problem = errors.from_detail(value.get("error"))
                        if problem.code not in ("unavailable", "guest_unreachable"):
                            raise problem
                        reason: errors.CoveError = problem
                        break
                    lost_since = None
                    yield value
                    if isinstance(value, dict) and value.get("type") == "exit":
                        return
                else:
                    reason = errors.ConnectionError("the output ended early")
            except errors.ConnectionError as error:
                reason = error
            finally:
                await values.aclose()
            now = monotonic()
            lost_since = lost_since or now
            onward = again()
            if onward is None or now - lost_since > RECONNECT_FOR:
                raise reason
            call = onward
            await _io.sleep(RECONNECT_PAUSE)
