"""A transaction or, inside of one, a savepoint, and the tag that holds in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pyagentundo import _json, _statements, _states, errors
from pyagentundo._calls import SETTINGS, Call
from pyagentundo._concurrency import async_finish

Connection = psycopg.AsyncConnection[Any]


async def fetch(
    conn: Connection, query: str, parameters: dict[str, Any] | None = None, *, rows: Any = tuple_row
) -> list[Any]:
    """Return what a query of ours finds, whatever rows and types the connection makes otherwise."""
    # Not conn.cursor(): its factory may want other placeholders.
    async with psycopg.AsyncCursor(conn, row_factory=rows) as cursor:
        _json.load_exactly(cursor)
        with errors.explained(conn.info.user):
            # Prepared statements would not survive a pooler in transaction mode.
            await cursor.execute(query.encode(), parameters, prepare=False)
            return await cursor.fetchall()


class CommitLost(Exception):
    """The connection broke while the server was committing; the cause is psycopg's error."""


class AsyncUnit:
    """A transaction of our own on a connection, or a savepoint in the one that is open.

    Args:
        conn: where.

    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        #: Whether the transaction is the caller's.
        self.joined = _states.require_usable(conn)
        self._block: AbstractAsyncContextManager[psycopg.AsyncTransaction] | None = None
        self._transaction: psycopg.AsyncTransaction | None = None
        self._former: Sequence[str | None] = ()
        self._id = ""

    async def begin(self) -> None:
        """Open it."""
        block = self.conn.transaction()
        self._transaction = await block.__aenter__()
        self._block = block

    async def tag(self, call: Call, *, xid: str | None = None) -> None:
        """Tag what is written from here on.

        Args:
            call: whose tag.
            xid: the transaction that recorded it, which ours has to see.

        Raises:
            UsageError: it does not.

        """
        parameters = {**call.parameters(), "xid": xid or None}
        (*former, sees, _), *_ = await fetch(self.conn, _statements.TAG, parameters)
        self._former = former
        self._id = call.id
        if not sees:
            raise errors.UsageError(
                "The open transaction does not see the record, which is newer than its snapshot.",
                hint="Begin REPEATABLE READ and SERIALIZABLE transactions with the invocation, or"
                " use record='inline'.",
            )

    async def require_tag(self) -> None:
        """Make sure that the tag has been in force up to here.

        Raises:
            UsageError: the block ended the transaction, changed the tag or hid an error.

        """
        self.require_whole()
        found = await fetch(self.conn, _statements.STILL_TAGGED, {"id": self._id})
        if found != [(True,)]:
            raise self.torn()

    def require_whole(self) -> None:
        """Make sure that there is something to commit.

        Raises:
            UsageError: a statement failed, and the block went on as if it had not.

        """
        if _states.has_failed(self.conn):
            raise errors.UsageError(
                "A statement failed inside the block and its error was not passed on: everything"
                " was rolled back.",
                hint="Let the error out of the block, or put the statement into a"
                " conn.transaction() of its own.",
            )

    def torn(self) -> errors.UsageError:
        """Return what to raise when the tag is not in force any more."""
        return errors.UsageError(
            f"The tag of {self._id!r} was gone at the end of the block: what was written after"
            " that is not under it.",
            hint="Do not commit, roll back or tag by hand inside the block.",
        )

    async def refuse_writes(self) -> None:
        """Let nothing be written until the end, which has to be a rollback."""
        async with psycopg.AsyncCursor(self.conn) as cursor:
            await cursor.execute(_statements.READ_ONLY.encode(), prepare=False)

    async def commit(self) -> None:
        """End it well; a tag of the caller's transaction is in force again.

        Raises:
            CommitLost: nobody knows whether the server committed.
            psycopg.Error: it did not.

        """
        if self.joined and self._former:
            values = {"names": list(SETTINGS), "values": list(self._former)}
            await fetch(self.conn, _statements.UNTAG, values)
        block, self._block = self._block, None
        if block is None:
            return
        if _states.is_lost(self.conn):
            raise psycopg.OperationalError("the connection was lost before COMMIT")
        try:
            await async_finish(block.__aexit__, None, None, None)
        except psycopg.Error as error:
            if not self.joined and _states.is_lost(self.conn):
                raise CommitLost from error
            raise

    async def rollback(self, error: BaseException | None = None) -> bool:
        """Take back what was done in it; does nothing when it has ended, never raises for less.

        Returns:
            Whether the error was psycopg's `Rollback`, and meant this.

        """
        block, self._block = self._block, None
        if block is None:
            return False
        if error is None:
            error = psycopg.Rollback(self._transaction)
        return bool(await async_finish(block.__aexit__, type(error), error, error.__traceback__))
