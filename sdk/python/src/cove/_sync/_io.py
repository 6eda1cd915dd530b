"""What differs between the flavours beyond ``await``; the twin of ``cove._async._io``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Union

from .._settings import Settings

if TYPE_CHECKING:
    import httpx

    from .client import Client
    from .process import Stream

A = TypeVar("A")
R = TypeVar("R")

#: Connections a client opens at most; streams that are followed hold one each.
CONNECTIONS_MAX = 256


def open_http(settings: Settings, timeout: httpx.Timeout, verify: Any) -> httpx.Client:
    import httpx

    return httpx.Client(
        base_url=settings.url,
        timeout=timeout,
        verify=verify,
        # A proxy of the environment is for the internet, not for this machine.
        trust_env=not settings.is_local,
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
    )


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def tell(callback: Callable[[A], None], value: A) -> None:
    """Calls back."""
    callback(value)


#: What is raised in a call that is cancelled.
Cancelled = KeyboardInterrupt


def quietly(work: Callable[..., object], *args: Any) -> None:
    """Does the work of a call that is given up; nobody hears of its errors."""
    try:
        work(*args)
    except Exception:
        pass


@contextmanager
def ending(stream: Stream) -> Generator[None, None, None]:
    """Ends the command when the block is interrupted."""
    try:
        yield
    except Cancelled:
        quietly(stream._end)
        raise


def each(work: Callable[[A], R], items: Iterable[A], concurrency: int) -> list[Union[R, BaseException]]:
    """The work on each item, some at once in threads; results and exceptions in the order of the items."""
    from concurrent.futures import ThreadPoolExecutor

    def one(item: A) -> Union[R, BaseException]:
        try:
            return work(item)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="cove") as pool:
        return list(pool.map(one, items))


_default: dict[Settings, Client] = {}
_lock = threading.Lock()


def shared(settings: Settings, make: Callable[[Settings], Client]) -> Client:
    """One client for each server, kept as long as the program runs."""
    with _lock:
        if settings not in _default:
            _default[settings] = make(settings)
        return _default[settings]
