"""A few connections of our own, opened when they are first needed.

Records are committed apart from the data, so they need another connection than the caller's.
Taking it from the caller's pool would deadlock as soon as as many callers hold one as the pool has.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import pq

from pyagentundo import dsn as dsns
from pyagentundo._concurrency import AsyncSlots, async_resolve
from pyagentundo.errors import PoolTimeout

#: Of the arguments of the caller's pool: those that choose the adapter, not the server.
_NOT_OURS = {"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"}


class AsyncPool:
    """Connections in autocommit mode, READ COMMITTED, without prepared statements.

    Args:
        conninfo: a DSN, or a function that returns one.
        options: further arguments for connecting, or a function that returns them.
        size: how many at most.
        timeout: seconds to wait for one when all are in use.
        what: what they are for, in messages.

    """

    def __init__(
        self,
        conninfo: Any,
        options: Any = None,
        *,
        size: int,
        timeout: float,
        what: str,
    ) -> None:
        self._conninfo = conninfo
        self._options = options
        self._size = size
        self._timeout = timeout
        self._what = what
        self._slots = AsyncSlots(size)
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._pid = os.getpid()
        # Also at the end of the program, and where there is no loop any more to close them in.
        self._finalizer = weakref.finalize(self, _drop, self._idle, self._pid)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection that works, without an open transaction.

        Raises:
            PoolTimeout: none came free in time.
            DsnError: a new one cannot be opened.

        """
        self._after_fork()
        if not await self._slots.acquire(self._timeout):
            raise PoolTimeout(
                f"All {self._size} connections for {self._what} were in use for"
                f" {self._timeout:g} s.",
                hint="Finish plans and logs that are being iterated, or give a larger pool_size.",
            )
        try:
            conn = self._reusable() or await self._open()
            try:
                yield conn
            finally:
                if _is_idle(conn):
                    self._idle.append(conn)
                else:
                    await conn.close()
        finally:
            await self._slots.release()

    async def close(self) -> None:
        """Close what is idle; what is lent out goes on and is kept when it comes back."""
        while self._idle:
            await self._idle.pop().close()

    def _reusable(self) -> psycopg.AsyncConnection[Any] | None:
        while self._idle:
            conn = self._idle.pop()
            # Reads what has come, without waiting: a farewell of the server, then its end.
            with suppress(psycopg.OperationalError):
                conn.pgconn.consume_input()
                conn.pgconn.consume_input()
            if _is_idle(conn):
                return conn
            conn.pgconn.finish()
        return None

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        given = await async_resolve(self._options) or {}
        options = {name: value for name, value in given.items() if name not in _NOT_OURS}
        dsn, options, source = dsns.prepare(await async_resolve(self._conninfo), options)
        try:
            conn = await psycopg.AsyncConnection.connect(dsn, **options, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise dsns.unreachable(dsn, source, error) from error
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return conn

    def _after_fork(self) -> None:
        """Leave the connections of the parent process to it."""
        if self._pid == os.getpid():
            return
        for conn in self._idle:
            # Closed without a farewell, which would end the session of the parent process.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, conn.fileno())
            os.close(nowhere)
            conn.pgconn.finish()
        self._idle.clear()
        self._pid = os.getpid()
        self._slots = AsyncSlots(self._size)
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _drop, self._idle, self._pid)


def _is_idle(conn: psycopg.AsyncConnection[Any]) -> bool:
    return not conn.closed and conn.info.transaction_status == pq.TransactionStatus.IDLE


def _drop(idle: list[psycopg.AsyncConnection[Any]], pid: int) -> None:
    if pid == os.getpid():
        for conn in idle:
            conn.pgconn.finish()
