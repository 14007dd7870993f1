"""What most cases do: write as an agent, take it back, and look at every row.

Statements go through here as plain text; nothing in them is a parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tests.support import undo
from tests.support.state import Snapshot, assert_same, snapshot
from tests.support.undo import Connection


def run(conn: Connection, *statements: str) -> None:
    """Execute statements, one after the other."""
    for statement in statements:
        conn.execute(statement.encode())


def value(conn: Connection, query: str, *parameters: Any) -> Any:
    """Return the one value of a query."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        ((one,),) = cursor.execute(query.encode(), parameters or None).fetchall()
    return one


def make_t(conn: Connection, count: int) -> None:
    """Make and track `t`, a table of integers: `id` and `v`, 1 and 1, 2 and 2 and so on."""
    run(
        conn,
        "create table t (id int primary key, v int)",
        f"insert into t select n, n from generate_series(1, {count}) n",
        "select agentundo.track('t')",
    )


def tag(conn: Connection, invocation: str = "inv") -> None:
    """Tag the open transaction the plain way, which needs no right on our schema."""
    conn.execute("select set_config('agent.invocation', %s, true)", [invocation])


def write(conn: Connection, *statements: str, invocation: str = "inv") -> None:
    """Execute statements in one transaction under a tag."""
    with conn.transaction():
        tag(conn, invocation)
        run(conn, *statements)


def try_to_write(
    conn: Connection, *statements: str, invocation: str = "inv"
) -> psycopg.Error | None:
    """Write under a tag; return the error if there was one."""
    try:
        write(conn, *statements, invocation=invocation)
    except psycopg.Error as error:
        return error
    return None


def changes(conn: Connection, invocation: str | None = "inv") -> list[tuple[str, str, int]]:
    """Return an invocation's changes as (relation, operation, rows), in order."""
    query = (
        "select relation, operation, rows from agentundo.changes"
        " where invocation is not distinct from %s order by change"
    )
    with conn.cursor(row_factory=tuple_row) as cursor:
        found = cursor.execute(query, [invocation]).fetchall()
    return [(relation, operation, count) for relation, operation, count in found]


def images(conn: Connection, relation: str) -> dict[str, int]:
    """Count the row images in a tracked table's history, O (before) and N (after)."""
    known = "select history::text from agentundo._tracked where relation = %s::regclass"
    counted = f"select _image::text, count(*) from {value(conn, known, relation)} group by 1"
    with conn.cursor(row_factory=tuple_row) as cursor:
        return dict(cursor.execute(counted.encode()).fetchall())


def assert_goes_back(
    conn: Connection, before: Snapshot, invocation: str = "inv", *, redone: bool = True
) -> None:
    """Take an invocation back after which nobody has written: all is exactly as before.

    The plan must say what the revert then does. Then redo it, which must bring exactly the state
    that the agent had left, and take it back again.
    """
    tables = list(before)
    after = snapshot(conn, *tables)
    assert before != after, "the agent changed nothing: the test would prove nothing"
    _take_back(conn, invocation)
    assert_same(before, snapshot(conn, *tables))
    if redone:
        assert undo.redo(conn, invocation).status == "reverted"
        assert_same(after, snapshot(conn, *tables))
        _take_back(conn, invocation)
        assert_same(before, snapshot(conn, *tables))
    assert undo.revert(conn, invocation).status == "already_reverted"
    assert_same(before, snapshot(conn, *tables))


def assert_undoable(
    conn: Connection,
    tables: Iterable[str],
    *statements: str,
    invocation: str = "inv",
    redone: bool = True,
) -> None:
    """Write under a tag in one transaction, then see that it goes back; see `assert_goes_back`."""
    before = snapshot(conn, *tables)
    write(conn, *statements, invocation=invocation)
    assert_goes_back(conn, before, invocation, redone=redone)


def _take_back(conn: Connection, invocation: str) -> None:
    planned = undo.plan(conn, invocation)
    assert {row.status for row in planned} <= {"ok", "done"}, planned
    result = undo.revert(conn, invocation)
    assert result.status == "reverted", result
    acting = Counter(row.action for row in planned if row.acts)
    assert result.counts == (acting["delete"], acting["insert"], acting["update"], 0, 0)
