"""Reading much without holding it: cursors on the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from pyagentundo import _json, _states, errors, results
from pyagentundo._aio.units import AsyncUnit, Connection
from pyagentundo._arguments import required
from pyagentundo._calls import new_id

T = TypeVar("T")


async def pages(
    conn: Connection,
    query: str,
    parameters: dict[str, Any],
    cls: Callable[..., T],
    page_rows: int,
) -> AsyncIterator[T]:
    """Yield what a query finds, so many rows at a time.

    Without an open transaction one is opened until the end. In the caller's, only the first page is
    in a savepoint: an error there leaves the transaction usable, and nothing of ours is open while
    the caller looks at rows.
    """
    required(page_rows=page_rows)
    unit = AsyncUnit(conn)
    await unit.begin()
    name = f"agentundo_{new_id()}"  # several may be open in one transaction
    rows: Any = results.row_of(cls)  # type: ignore[arg-type]
    cursor = psycopg.AsyncServerCursor(conn, name, row_factory=rows)
    try:
        _json.load_exactly(cursor)
        with errors.explained(conn.info.user):
            await cursor.execute(query.encode(), parameters)
            page = await cursor.fetchmany(page_rows)
        if unit.joined:
            await unit.commit()
        while page:
            for row in page:
                yield row
            page = await cursor.fetchmany(page_rows) if len(page) == page_rows else []
        await cursor.close()
        await unit.commit()
    except BaseException as error:
        await unit.rollback(error)
        await _discard(cursor)
        raise


async def _discard(cursor: psycopg.AsyncServerCursor[Any]) -> None:
    """Close a cursor that may be gone already, without harm to the transaction that is open."""
    conn = cursor.connection
    if not _states.is_lost(conn) and _states.is_open(conn):
        with suppress(psycopg.Error):
            async with conn.transaction():
                await cursor.close()
    # What is left of it here; nothing is sent.
    await psycopg.AsyncCursor.close(cursor)
