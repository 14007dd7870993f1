# Made by .ci/make_sync.py of pyagentundo/_aio/cursors.py: change that one, not this.
"""Reading much without holding it: cursors on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg

from pyagentundo import _json, errors, results
from pyagentundo._calls import new_id
from pyagentundo._sync.units import Connection, Unit
from pyagentundo.selection import check_number

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
    check_number("page_rows", page_rows)
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
        # A rollback closes the cursor; so does whoever ends the caller's transaction.
        unit.rollback(error)
        raise
