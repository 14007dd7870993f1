"""`AsyncAgentUndo`: everything together."""

from __future__ import annotations

from typing import Self

from pyagentundo._aio.reading import AsyncReading
from pyagentundo._aio.recording import AsyncRecording
from pyagentundo._aio.undoing import AsyncUndoing


class AsyncAgentUndo(AsyncRecording, AsyncUndoing, AsyncReading):
    """Undo for what agents write to a PostgreSQL database.

    Without a connection each call is a READ COMMITTED transaction of its own, committed on return.
    Given one, we never commit or roll back what is the caller's: the call joins the transaction
    that is open there as a savepoint, or opens one for itself.

    Made from a DSN or a pool it may be shared, by the tasks of one event loop. Nothing connects
    before it is needed. Close it, or use it in an ``async with`` block.

    Args:
        source: where the database is: a DSN or URL, a connection, or a pool of psycopg_pool.
            By default AGENTUNDO_DATABASE_URL, DATABASE_URL, or libpq's own variables.
        dsn: for records, when `source` is a connection; a pool's own is known.
        record: ``own`` commits records on connections of our own, before the data: no record, no
            write. ``inline`` writes them in the data's transaction, for test suites that roll back.
        pool_size: how many connections of our own for records, and as many for everything else;
            at least 1.
        timeout: seconds to wait for one of them, 0 or more.

    Raises:
        UsageError: the source is none of these, a DSN is empty, or a limit is none.

    """

    async def __aenter__(self) -> Self:
        return self
