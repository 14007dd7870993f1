"""Tables are tracked by several at the same time, and while others have begun before that.

Each worker of an application may track its tables at its start, each migration some of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import Session, all_at_once, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, refused, revert, rows, scalar, tag, write

pytestmark = pytest.mark.core

TRACKED = """
select t.relation, t.capture, t.health from agentundo.tracked t
where t.relation not in ('public.deals', 'public.notes') order by 1
"""


def errors(db: Connection) -> list[tuple[object, ...]]:
    return rows(db, "select * from agentundo.check() where severity = 'error'")


def assert_captured(db: Connection, table: str) -> None:
    """Write to a table of ids under a tag, and take it back."""
    before = snapshot(db, table)
    write(db, f"agent in {table}", f"insert into {table} values (1000)")
    result = revert(db, f"agent in {table}")
    assert (result.status, result.counts) == ("reverted", (1, 0, 0, 0, 0))
    assert_same(before, snapshot(db, table))


def test_two_migrations_track_tables_that_refer_to_the_same_one(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create table parent (id int primary key);"
        "create table one (id int primary key, parent int references parent);"
        "create table two (id int primary key, parent int references parent)"
    )
    first, second = session(), session()
    first.run("begin", "select agentundo.track('one')")
    tracking = second.run_later("select agentundo.track('two')")
    second.wait_until_blocked(tracking, by=first)
    first.run("commit")
    outcome(tracking)
    assert rows(db, TRACKED) == [("public.one", "agent", "ok"), ("public.two", "agent", "ok")]
    assert errors(db) == []
    assert_captured(db, "public.one")
    assert_captured(db, "public.two")


def test_two_migrations_track_tables_of_a_schema_that_nobody_has_opened(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create schema apart; create table apart.one (id int primary key);"
        "create table apart.two (id int primary key)"
    )
    first, second = session(), session()
    first.run("begin", "select agentundo.track('apart.one')")
    tracking = second.run_later("select agentundo.track('apart.two')")
    second.wait_until_blocked(tracking, by=first)
    first.run("commit")
    outcome(tracking)
    assert rows(db, TRACKED) == [("apart.one", "agent", "ok"), ("apart.two", "agent", "ok")]
    assert errors(db) == []
    assert_captured(db, "apart.one")
    assert_captured(db, "apart.two")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("capture", ["null", "'all'"])
def test_a_table_that_somebody_else_has_just_begun_to_track(
    db: Connection, session: NewSession, ends: str, capture: str
) -> None:
    db.execute("create table fresh (id int primary key)")
    first, second = session(), session()
    first.run("begin", "select agentundo.track('fresh', 'agent')")
    tracking = second.later(rows, second.conn, f"select agentundo.track('fresh', {capture})::text")
    second.wait_until_blocked(tracking, by=first)
    first.run(ends)
    assert outcome(tracking) == [("fresh",)]
    mode = "all" if capture == "'all'" else "agent"
    assert rows(db, TRACKED) == [("public.fresh", mode, "ok")]
    assert rows(db, "select count(*) from agentundo._tracked") == [(3,)]
    assert errors(db) == []
    db.execute("insert into fresh values (1)")
    assert rows(db, "select relation, rows from agentundo.changes") == (
        [("public.fresh", 1)] if mode == "all" else []
    )
    assert_captured(db, "public.fresh")


def test_parents_and_heirs_that_somebody_else_has_just_begun_to_track(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create table kin (id int primary key); create table heir () inherits (kin);"
        "alter table heir add primary key (id)"
    )
    first, second = session(), session()
    first.run("begin", "select agentundo.track('heir')")
    tracking = second.later(rows, second.conn, "select agentundo.track('kin')::text")
    second.wait_until_blocked(tracking, by=first)
    first.run("commit")
    assert outcome(tracking) == [("kin",), ("heir",)]
    assert rows(db, TRACKED) == [("public.heir", "agent", "ok"), ("public.kin", "agent", "ok")]
    assert errors(db) == []
    assert_captured(db, "public.kin")


def test_the_workers_of_an_application_track_at_their_start(
    db: Connection, session: NewSession
) -> None:
    workers = [session() for _ in range(4)]

    def track(table: str) -> Callable[[Connection], object]:
        return lambda conn: rows(conn, f"select agentundo.track('{table}')::text")

    for number in range(4):
        table = f"fresh_{number}"
        db.execute(f"create table {table} (id int primary key)".encode())
        answers = all_at_once(workers, *[track(table)] * len(workers))
        assert answers == [[(table,)]] * len(workers)
        assert_captured(db, f"public.{table}")
    assert rows(db, TRACKED) == [(f"public.fresh_{n}", "agent", "ok") for n in range(4)]
    assert errors(db) == []


# Transactions that have begun before ------------------------------------------------------------

LEVELS = ("repeatable read", "serializable")


@pytest.fixture(params=LEVELS)
def early(request: pytest.FixtureRequest, session: NewSession) -> Callable[[], Session]:
    """Return what begins a transaction whose snapshot is taken now."""

    def begin() -> Session:
        person = session()
        person.run(f"begin isolation level {request.param}", "select from notes")
        return person

    return begin


@pytest.mark.parametrize("tagged", [False, True], ids=["person", "agent"])
def test_a_write_of_a_transaction_that_began_before_its_table_was_tracked(
    db: Connection, early: Callable[[], Session], tagged: bool
) -> None:
    """It cannot know how to capture it; whoever begins anew can."""
    db.execute("create table fresh (id int primary key)")
    person = early()
    db.execute("select agentundo.track('fresh', 'all')")
    for statement in (
        "insert into fresh values (1)",
        "update deals set stage = 'mine' where id = 1; insert into fresh values (1)",
    ):
        person.run("savepoint attempt")
        if tagged:
            tag(person.conn, "agent")
        with refused("40001") as caught:
            person.run(statement)
        assert caught.message == "agentundo: a table is tracked since this transaction began"
        assert caught.hint == "Begin a new transaction, then repeat the write."
        person.run("rollback to attempt")
    person.run("update deals set owner = 'mia' where id = 1", "commit")
    assert rows(db, "select * from fresh") == []
    assert rows(db, "select stage, owner from deals where id = 1") == [("New", "mia")]
    person.run("begin", "insert into fresh values (1)", "commit")
    assert rows(db, "select * from fresh") == [(1,)]
    assert rows(db, "select relation, rows from agentundo.changes where invocation is null") == [
        ("public.fresh", 1)
    ]


def test_a_write_that_nobody_captures_does_not_mind_when_its_table_was_tracked(
    db: Connection, early: Callable[[], Session]
) -> None:
    db.execute("create table fresh (id int primary key)")
    person = early()
    db.execute("select agentundo.track('fresh', 'agent')")
    person.run("insert into fresh values (1)", "update fresh set id = 2", "truncate fresh")
    person.run("insert into fresh values (3)", "commit")
    assert rows(db, "select * from fresh") == [(3,)]
    assert rows(db, "select * from agentundo.changes") == []
    assert_captured(db, "public.fresh")


def test_a_write_to_a_partition_that_is_younger_than_the_transaction(
    db: Connection, early: Callable[[], Session]
) -> None:
    db.execute(
        "create table fresh (id int primary key) partition by range (id);"
        "create table fresh_1 partition of fresh for values from (0) to (10);"
        "select agentundo.track('fresh', 'all')"
    )
    person = early()
    db.execute("create table fresh_2 partition of fresh for values from (10) to (20)")
    person.run("savepoint attempt")
    with refused("40001") as caught:
        person.run("insert into fresh_2 values (11)")
    assert "a table is tracked since this transaction began" in caught.message
    person.run("rollback to attempt", "insert into fresh values (1)", "commit")
    assert rows(db, "select * from fresh") == [(1,)]


@pytest.mark.parametrize("mark", ["select agentundo.sync('log')", "truncate log"])
@pytest.mark.parametrize("key", ["id int primary key", "id int"], ids=["key", "no key"])
def test_a_truncate_that_is_older_than_what_we_know_of_the_table_is_told_to_begin_anew(
    db: Connection, early: Callable[[], Session], key: str, mark: str
) -> None:
    """Else what an agent wrote before it would be taken for the equal row that came after it."""
    db.execute(f"create table log ({key}, v text); select agentundo.track('log')".encode())
    person = early()
    db.execute(mark.encode())
    write(db, "agent", "insert into log values (2, 'agent')")
    left = snapshot(db, "public.log")
    with pytest.raises(psycopg.errors.SerializationFailure):
        person.run("truncate log", "insert into log values (2, 'agent')", "commit")
    person.run("rollback")
    assert_same(left, snapshot(db, "public.log"))
    person.run("begin", "truncate log", "insert into log values (2, 'agent')", "commit")
    left = snapshot(db, "public.log")
    assert [row.status for row in plan(db, "agent")] == ["conflict"]
    with refused("UN001"):
        revert(db, "agent")
    assert_same(left, snapshot(db, "public.log"))
    assert errors(db) == []


@pytest.mark.parametrize("keep", [True, False], ids=["history kept", "history gone"])
def test_a_revert_that_began_before_its_table_was_untracked(
    db: Connection, early: Callable[[], Session], keep: bool
) -> None:
    """It is told to begin anew, not that a foreign key acts which is not there."""
    db.execute("create table log (id int primary key, v text); insert into log values (1, 'old')")
    db.execute("select agentundo.track('log')")
    write(db, "agent", "update log set v = 'agent'")
    person = early()
    db.execute("select agentundo.untrack('log', %s)", [keep])
    edited = snapshot(db, "public.log")
    with pytest.raises(psycopg.errors.SerializationFailure):
        revert(person.conn, "agent")
    person.run("rollback")
    assert_same(edited, snapshot(db, "public.log"))
    if keep:
        assert revert(db, "agent").status == "reverted"
        assert scalar(db, "select v from log") == "old"


@pytest.mark.parametrize("call", ["track('fresh', 'all')", "track_schema('public')", "sync()"])
def test_tracking_asks_for_a_transaction_that_sees_what_the_tables_are_now(
    db: Connection, early: Callable[[], Session], call: str
) -> None:
    """It would write down what a table has been, and then every write would be refused."""
    db.execute("create table fresh (id int primary key)")
    owner = early()
    db.execute("alter table fresh add column v int")
    with refused("25001") as caught:
        owner.run(f"select agentundo.{call}")
    assert "does not run under" in caught.message
    assert caught.hint == "Run it in a READ COMMITTED transaction."
    owner.run("rollback")
    db.execute("select agentundo.track('fresh', 'all'); insert into fresh values (1, 2)")
