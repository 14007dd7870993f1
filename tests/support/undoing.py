"""Writing as an agent, taking it back, and what must hold each time that is done."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pyagentundo.results import RevertResult
from pyagentundo.testing import assert_reversible
from tests.support.state import Snapshot, assert_same
from tests.support.state import everything as everything
from tests.support.undo import Connection, Refusal, plan, refused, revert

_numbers = itertools.count(1)


def track(conn: Connection, *tables: str, capture: str = "agent") -> None:
    """Track tables."""
    for table in tables:
        conn.execute("select agentundo.track(%s::regclass, %s)", [table, capture])


def write(conn: Connection, *statements: str, tag: str | None = None) -> str:
    """Run statements in one transaction under a tag; return the invocation's id."""
    tag = tag or f"call-{next(_numbers)}"
    with conn.transaction():
        conn.execute("select agentundo.tag(%s)", [tag])
        for statement in statements:
            conn.execute(statement.encode())
    return tag


def triggers(conn: Connection) -> list[tuple[Any, ...]]:
    """Read every trigger with its state: O, A, R or D."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(
            "select tgrelid::regclass::text, tgname::text, tgenabled::text from pg_trigger"
            " where not tgisinternal order by 1, 2"
        )
        return cursor.fetchall()


def assert_keys_hold(conn: Connection) -> None:
    """Fail if a foreign key would not validate when dropped, added again and validated."""
    with conn.transaction(force_rollback=True), conn.cursor(row_factory=tuple_row) as cursor:
        # What is rolled back need not be followed by our event trigger.
        cursor.execute("select set_config('agentundo.internal', 'on', true)")
        cursor.execute("set constraints all immediate")
        cursor.execute(
            "select conrelid::regclass::text, conname::text, pg_get_constraintdef(c.oid),"
            " c.convalidated,"
            " t.relkind = 'p' and current_setting('server_version_num')::int < 180000"
            " from pg_constraint c join pg_class t on t.oid = conrelid"
            " where contype = 'f' and conparentid = 0"
            " and pg_get_constraintdef(c.oid) !~ 'NOT ENFORCED' order by 1, 2"
        )
        for table, name, definition, validated, at_once in cursor.fetchall():
            if not validated:
                continue
            constraint = sql.Identifier(name)
            alter = sql.SQL("alter table ") + sql.SQL(table)
            cursor.execute(alter + sql.SQL(" drop constraint {}").format(constraint))
            # A partitioned table cannot have it added without a check before 18.
            cursor.execute(
                alter
                + sql.SQL(" add constraint {} ").format(constraint)
                + sql.SQL(definition + ("" if at_once else " not valid"))
            )
            cursor.execute(alter + sql.SQL(" validate constraint {}").format(constraint))


def assert_undone(
    conn: Connection, *statements: str, tag: str | None = None, again: bool = True
) -> RevertResult:
    """Write under a tag and take it back; nobody else writes.

    What must hold: the revert does what its plan said, all tables are bit for bit what they were,
    foreign keys validate, and triggers have the states that they had. Redoing gives what the agent
    had left, and taking back once more the state before.

    Returns:
        The result of the first revert.

    """
    done = assert_reversible(conn, lambda conn: write(conn, *statements, tag=tag), redo=again)
    assert {row.status for row in done.plan} <= {"ok", "done"}
    planned = Counter(row.action for row in done.plan if row.status == "ok")
    assert planned, "the statements changed nothing: there is nothing to undo"
    written = done.revert.rows_deleted, done.revert.rows_inserted, done.revert.rows_updated
    assert written == (planned["delete"], planned["insert"], planned["update"])
    assert (done.revert.rows_skipped, done.revert.conflicts) == (0, 0)
    assert_keys_hold(conn)
    return done.revert


def assert_refused(conn: Connection, what: str | list[str], **arguments: Any) -> Refusal:
    """Revert what must be refused as UN001, naming a row's table. Nothing may have changed."""
    armed = triggers(conn)
    before = everything(conn)
    with refused("UN001") as caught:
        revert(conn, what, **arguments)
    assert caught.detail["total"] >= 1
    assert caught.conflicts[0]["relation"]
    _assert_restored(conn, before, armed)
    return caught.refusal


def assert_restored_or_refused(conn: Connection, what: str, before: Snapshot) -> bool:
    """Revert, where refusing is as good as putting everything back. Return whether it was done."""
    armed = triggers(conn)
    after = everything(conn)
    try:
        result = revert(conn, what)
    except psycopg.Error as error:
        code, state = error.sqlstate, after
    else:
        code, state = result.status, before
    assert code in ("UN001", "reverted")
    _assert_restored(conn, state, armed)
    return code == "reverted"


def reasons(conn: Connection, what: str | list[str], **arguments: Any) -> Counter[str | None]:
    """Count the reasons of the conflicts in a plan."""
    return Counter(row.reason for row in plan(conn, what, **arguments) if row.status == "conflict")


def _assert_restored(conn: Connection, state: Snapshot, armed: list[tuple[Any, ...]]) -> None:
    assert_same(state, everything(conn))
    assert triggers(conn) == armed
    assert_keys_hold(conn)
