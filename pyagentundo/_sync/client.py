# Made by .ci/make_sync.py of pyagentundo/_aio/client.py: change that one, not this.
"""`AgentUndo`: everything together."""

from __future__ import annotations

from typing import Self

from pyagentundo._sync.reading import Reading
from pyagentundo._sync.recording import Recording
from pyagentundo._sync.undoing import Undoing


class AgentUndo(Recording, Undoing, Reading):
    """Undo for what agents write to a PostgreSQL database.

    Without a connection each call is a READ COMMITTED transaction of its own, committed on return.
    Given one, we never commit or roll back what is the caller's: the call joins the transaction
    that is open there as a savepoint, or opens one for itself.

    Made from a DSN or a pool it may be shared, by the threads of a process. Nothing connects
    before it is needed. Close it, or use it in a ``with`` block.

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

    def __enter__(self) -> Self:
        return self
