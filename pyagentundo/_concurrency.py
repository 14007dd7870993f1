"""The few things that differ between threads and tasks, each once for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Whether the code around it is that for tasks.
ASYNC, SYNC = True, False


class Slots:
    """So many holders at once; the others wait, with a limit."""

    def __init__(self, number: int) -> None:
        self._free = threading.BoundedSemaphore(number)

    def acquire(self, timeout: float) -> bool:
        """Take a slot; return False if none came free in so many seconds."""
        return self._free.acquire(timeout=timeout)

    def release(self) -> None:
        """Give the slot back."""
        self._free.release()


class AsyncSlots:
    """So many holders at once; the others wait, with a limit."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.BoundedSemaphore(number)

    async def acquire(self, timeout: float) -> bool:
        """Take a slot; return False if none came free in so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            return False
        return True

    async def release(self) -> None:
        """Give the slot back."""
        self._free.release()


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


async def async_sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


def finish(function: Callable[..., T], *args: Any) -> T:
    """Call a function; only tasks can be cancelled."""
    return function(*args)


async def async_finish(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Call a function and see it through to its end, even if this task is cancelled meanwhile.

    For what must not be left half done: a rollback, a COMMIT, the mark in a record. Some callers
    cancel again and again until a task is gone, so once is not enough.

    Raises:
        asyncio.CancelledError: the work is done, and then the cancellation takes its course.

    """
    task = asyncio.ensure_future(function(*args))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from None if task.cancelled() else task.exception()
    return task.result()


def resolve(value: Any) -> Any:
    """Return a value, or what it returns when it is a function."""
    return value() if callable(value) else value


async def async_resolve(value: Any) -> Any:
    """Return a value, or what it returns when it is a function, of either kind."""
    found = value() if callable(value) else value
    if inspect.isawaitable(found):
        awaited: Awaitable[Any] = found
        return await awaited
    return found
