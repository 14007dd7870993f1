"""A table is rewritten while a transaction with an older snapshot wants to write to it.

It cannot know what was done since, so it is told to begin anew, as anybody is who meets a row
that was changed since; clients repeat that by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import Session
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, revert, rows, status, tag, write

pytestmark = pytest.mark.core

REWRITES = [
    "vacuum full things",
    "cluster things using things_pkey",
    "alter table things alter v type bigint",
    "alter table things alter v type text",
    "alter table things add column at timestamptz default clock_timestamp()",
    "alter table things add column n int default 7",
    "alter table things drop column w",
    "alter table things rename column w to x",
]
WRITES = [
    "update things set v = '10' where id = 1",
    "insert into things (id, v) values (4, '4')",
    "delete from things where id = 2",
]


@pytest.fixture(params=["repeatable read", "serializable"])
def early(
    request: pytest.FixtureRequest, db: Connection, session: NewSession
) -> Callable[[], Session]:
    """Return what begins a transaction whose snapshot is taken now."""
    db.execute(
        "create table things (id int primary key, v int, w int);"
        "insert into things select n, n, n from generate_series(1, 3) n;"
        "select agentundo.track('things', 'all')"
    )

    def begin() -> Session:
        person = session()
        person.run(f"begin isolation level {request.param}", "select from deals")
        return person

    return begin


@pytest.mark.parametrize("tagged", [True, False], ids=["agent", "person"])
@pytest.mark.parametrize("write_it", WRITES)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_write_with_an_old_snapshot_is_told_to_begin_anew(
    db: Connection, early: Callable[[], Session], rewrite: str, write_it: str, tagged: bool
) -> None:
    """Or it is done and can be taken back. Begun anew it succeeds, without sync()."""
    writer = early()
    db.execute(rewrite.encode())
    before = snapshot(db, "public.things")
    if tagged:
        tag(writer.conn, "agent")
    try:
        writer.run(write_it, "commit")
    except psycopg.errors.SerializationFailure:
        writer.run("rollback")
        assert_same(before, snapshot(db, "public.things"))
        write(writer.conn, "agent", write_it) if tagged else writer.run(write_it)
    assert snapshot(db, "public.things") != before
    captured = "select invocation, rows from agentundo.changes where relation = 'public.things'"
    assert rows(db, captured) == [("agent" if tagged else None, 1)]
    if tagged:
        assert revert(db, "agent").status == "reverted"
        assert_same(before, snapshot(db, "public.things"))
    health = "select health from agentundo.tracked where relation = 'public.things'"
    assert rows(db, health) == [("ok",)]


# An undo that looks -------------------------------------------------------------------------------

#: What is done so that an older snapshot sees an empty table.
EMPTIED = [
    "begin; create temp table kept on commit drop as select * from things; truncate things;"
    " insert into things select * from kept; commit",
    "alter table things set unlogged",
    "alter table things alter v type numeric(12, 4)",
]


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "not followed"])
@pytest.mark.parametrize("emptied", EMPTIED)
def test_an_undo_with_an_old_snapshot_does_not_take_the_table_for_empty(
    db: Connection, early: Callable[[], Session], emptied: str, followed: bool
) -> None:
    """It would answer that nothing is left to do, and the call would count as undone."""
    write(db, "agent", "insert into things values (4, 4, 4)")
    reverter = early()
    if not followed:  # as where nobody was superuser
        db.execute("set event_triggers = off" if db.info.server_version >= 170000 else "select 1")
    for statement in emptied.split("; "):
        db.execute(statement.encode())
    with pytest.raises(psycopg.errors.SerializationFailure):
        revert(reverter.conn, "agent", on_conflict="skip")
    reverter.run("rollback")
    assert status(db, "agent") == "committed"
    assert rows(db, "select count(*) from things") == [(4,)]


@pytest.mark.parametrize("emptied", EMPTIED[1:])
def test_a_plan_that_waited_for_a_rewrite_does_not_take_the_table_for_empty(
    db: Connection, early: Callable[[], Session], session: NewSession, emptied: str
) -> None:
    early().run("rollback")
    write(db, "agent", "insert into things values (4, 4, 4); update things set w = 0 where id = 2")
    owner, reader = session(), session()
    owner.run("begin", emptied)
    planning = reader.later(plan, reader.conn, "agent")
    reader.wait_until_blocked(planning, by=owner)
    owner.run("commit")
    assert [
        (row.key and row.key["id"], row.action, row.status) for row in planning.result(timeout=60)
    ] == [
        (2, "update", "ok"),
        (4, "delete", "ok"),
    ]
