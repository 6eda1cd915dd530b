"""What differs between the flavours beyond ``await``; its twin in ``cove._sync`` is written by hand."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Union

from .._settings import Settings
from .._wire import CANCEL_PATIENCE

if TYPE_CHECKING:
    import httpx

    from .client import AsyncClient
    from .process import AsyncStream

A = TypeVar("A")
R = TypeVar("R")

#: Connections a client opens at most; streams that are followed hold one each.
CONNECTIONS_MAX = 256


def open_http(settings: Settings, timeout: httpx.Timeout, verify: Any) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        base_url=settings.url,
        timeout=timeout,
        verify=verify,
        # A proxy of the environment is for the internet, not for this machine.
        trust_env=not settings.is_local,
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
    )


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def tell(callback: Callable[[A], Union[Awaitable[None], None]], value: A) -> None:
    """Calls back, and waits when that is something to wait for."""
    answer = callback(value)
    if inspect.isawaitable(answer):
        await answer


#: What is raised in a call that is cancelled.
Cancelled = asyncio.CancelledError


async def quietly(work: Callable[..., Awaitable[object]], *args: Any) -> None:
    """Does the work of a call that is given up: not for long, and nobody hears of its errors."""
    try:
        await asyncio.wait_for(work(*args), CANCEL_PATIENCE)
    except Exception:
        pass


@asynccontextmanager
async def ending(stream: AsyncStream) -> AsyncGenerator[None, None]:
    """Ends the command when the block is cancelled, also while it is being started."""
    begin = asyncio.ensure_future(stream._begin())

    async def end() -> None:
        await begin
        await stream._end()

    try:
        # A command can be ended when its id is known, so a cancelled start goes on until then.
        await asyncio.shield(begin)
        yield
    except Cancelled:
        await quietly(end)
        raise


async def each(
    work: Callable[[A], Awaitable[R]], items: Iterable[A], concurrency: int
) -> list[Union[R, BaseException]]:
    """The work on each item, some at once; results and exceptions in the order of the items."""
    gate = asyncio.Semaphore(concurrency)

    async def one(item: A) -> R:
        async with gate:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items), return_exceptions=True)


_default: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Settings, AsyncClient]] = (
    weakref.WeakKeyDictionary()
)


def shared(settings: Settings, make: Callable[[Settings], AsyncClient]) -> AsyncClient:
    """One client for each server, kept as long as the event loop its connections belong to."""
    clients = _default.setdefault(asyncio.get_running_loop(), {})
    if settings not in clients:
        clients[settings] = make(settings)
    return clients[settings]
