# Made by .ci/make_sync.py of pyagentundo/_aio/cursors.py: change that one, not this.
"""Reading much without holding it: cursors on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from pyagentundo import _json, _states, errors, results
from pyagentundo._arguments import required
from pyagentundo._calls import new_id
from pyagentundo._sync.units import Connection, Unit

T = TypeVar("T")


def pages(
    conn: Connection,
    query: str,
    parameters: dict[str, Any],
    cls: Callable[..., T],
    page_rows: int,
) -> Iterator[T]:
    """Yield what a query finds, so many rows at a time.

    Without an open transaction one is opened until the end. In the caller's, only the first page is
    in a savepoint: an error there leaves the transaction usable, and nothing of ours is open while
    the caller looks at rows.
    """
    required(page_rows=page_rows)
    unit = Unit(conn)
    unit.begin()
    name = f"agentundo_{new_id()}"  # several may be open in one transaction
    rows: Any = results.row_of(cls)  # type: ignore[arg-type]
    cursor = psycopg.ServerCursor(conn, name, row_factory=rows)
    try:
        _json.load_exactly(cursor)
        with errors.explained(conn.info.user):
            cursor.execute(query.encode(), parameters)
            page = cursor.fetchmany(page_rows)
        if unit.joined:
            unit.commit()
        while page:
            for row in page:
                yield row
            page = cursor.fetchmany(page_rows) if len(page) == page_rows else []
        cursor.close()
        unit.commit()
    except BaseException as error:
        unit.rollback(error)
        _discard(cursor)
        raise


def _discard(cursor: psycopg.ServerCursor[Any]) -> None:
    """Close a cursor that may be gone already, without harm to the transaction that is open."""
    conn = cursor.connection
    if not _states.is_lost(conn) and _states.is_open(conn):
        with suppress(psycopg.Error):
            with conn.transaction():
                cursor.close()
    # What is left of it here; nothing is sent.
    psycopg.Cursor.close(cursor)
