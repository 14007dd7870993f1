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
from tests.support.undo import revert, rows, tag, write

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
