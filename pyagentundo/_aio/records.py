"""Where a call's record is written: apart from the data and committed first, or with the data.

Both ways answer the same questions; `AsyncRecording` decides when to ask them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import psycopg
from psycopg import errors as pg

from pyagentundo import _ambient, _statements, _states, errors
from pyagentundo._aio.base import AsyncBase
from pyagentundo._aio.units import AsyncUnit, Connection, fetch
from pyagentundo._calls import Call
from pyagentundo._concurrency import async_finish, async_sleep
from pyagentundo.results import Recorded

#: Seconds before each look at a record whose COMMIT was not answered: a server may be restarting.
_LOOKS = (0, 0.5, 2, 5)


class AsyncOwnRecord:
    """A record on a connection of our own.

    Args:
        base: whose connections.
        role: who writes the data.

    """

    #: Whether the record lives and dies with the data's transaction.
    early = False

    def __init__(self, base: AsyncBase, role: str) -> None:
        self._base = base
        self._role = role
        #: Whether there is a pending record of ours to close.
        self.stands = False

    async def begin(self, call: Call) -> Recorded:
        """Record a call as pending, committed on return.

        Raises:
            RecordUnavailable: it cannot be written.
            InvocationPending: the same call is being made elsewhere.
            InvocationClosed: the id is taken by another call, or was reverted.

        """
        return await async_finish(self._begin, call)

    async def _begin(self, call: Call) -> Recorded:
        try:
            async with self._base._records.connection() as conn:
                await self._base._verify(conn, "records")
                found = await _record(conn, call, self._role, wait=_statements.RECORD_WAIT)
        except pg.LockNotAvailable as error:
            raise _states.pending(call.id, why="is about to commit") from error
        except (errors.DsnError, errors.PoolTimeout, psycopg.Error) as error:
            raise _states.not_recorded(error) from error
        self.stands = found.created
        return found

    async def fail(self, call_id: str, error: str | BaseException) -> None:
        """Mark the record as failed, committed on return.

        Raises:
            AgentUndoError: it could not be.
            psycopg.Error: it could not be.

        """
        await async_finish(self._fail, call_id, error)

    async def _fail(self, call_id: str, error: str | BaseException) -> None:
        parameters = {
            "id": call_id,
            "error": _ambient.describe(error),
            "wait": _statements.RECORD_WAIT,
        }
        async with self._base._records.connection() as conn:
            await self._base._verify(conn, "records")
            await fetch(conn, _statements.FAIL, parameters)

    async def committed(self, call: Call) -> bool | None:
        """Find out whether a call was committed, once nobody can be at it any more.

        Returns:
            None if that cannot be told.

        """
        return await async_finish(_look, self._base, call, self._role)


class AsyncInlineRecord:
    """A record in the data's own transaction.

    Args:
        base: whose connections can tell what became of it.
        conn: where the data goes.
        joined: whether the transaction is the caller's.

    """

    def __init__(self, base: AsyncBase, conn: Connection, *, joined: bool) -> None:
        self._base = base
        self._conn = conn
        self.early = not joined
        self.stands = False

    async def begin(self, call: Call) -> Recorded:
        """Record a call as pending, in the open transaction."""
        try:
            if self.early:
                return await self._begin(call)
            unit = AsyncUnit(self._conn)
            await unit.begin()
            try:
                found = await self._begin(call)
                await unit.commit()
            except BaseException as error:
                await unit.rollback(error)
                raise
        except psycopg.Error as error:
            raise _states.not_recorded(error) from error
        self.stands = found.created
        return found

    async def _begin(self, call: Call) -> Recorded:
        return await _record(self._conn, call, self._conn.info.user, wait=None)

    async def fail(self, call_id: str, error: str | BaseException) -> None:
        """Mark the record as failed, in the open transaction."""
        unit = AsyncUnit(self._conn)
        await unit.begin()
        try:
            parameters = {"id": call_id, "error": _ambient.describe(error), "wait": None}
            await fetch(self._conn, _statements.FAIL, parameters)
            await unit.commit()
        except BaseException as failure:
            await unit.rollback(failure)
            raise

    async def committed(self, call: Call) -> bool | None:
        """Find out whether a call was committed; None if there is no other connection to look."""
        if not self._base._addressed:
            return None
        return await async_finish(_look, self._base, call, self._conn.info.user)


async def _record(conn: Connection, call: Call, role: str, *, wait: str | None) -> Recorded:
    parameters: dict[str, Any] = {**call.parameters(), "role": role, "wait": wait}
    row, *_ = await fetch(conn, _statements.RECORD, parameters)
    return Recorded(*row)


async def _look(base: AsyncBase, call: Call, role: str) -> bool | None:
    for pause in _LOOKS:
        await async_sleep(pause)
        try:
            # Waits for the lock of a session that is still committing. What it writes itself, where
            # there is no record, is rolled back.
            async with (
                base._records.connection() as conn,
                conn.transaction(force_rollback=True),
            ):
                asked = dataclasses.replace(call, again=False)
                found = await _record(conn, asked, role, wait=_statements.RECORD_WAIT)
        except pg.LockNotAvailable:
            return None
        except errors.InvocationClosed:
            # It has been reverted: since, or before it was made again.
            return None if call.again else True
        except (errors.AgentUndoError, psycopg.Error):
            continue
        return not found.created and found.status == "committed"
    return None
