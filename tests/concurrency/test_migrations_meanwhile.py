"""Migrations side by side, and what they do to writers, where each concerns something else.

What we know of a table is locked by whoever changes that table, until he commits; by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connect, Connection
from tests.support.deals import TABLES
from tests.support.sessions import PATIENT, Session, failure
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, revert, rows, scalar, write

pytestmark = pytest.mark.core

#: DDL that concerns no tracked table.
ELSEWHERE = [
    "create type mood as enum ('sad', 'glad')",
    "create domain short as text check (length(value) < 10)",
    "create schema elsewhere",
]
TRACKED = "select relation, health from agentundo.tracked order by relation"
BOTH_OK = [("public.deals", "ok"), ("public.notes", "ok")]


@pytest.fixture
def loud(connect: Connect, session: NewSession) -> Callable[[], tuple[Session, list[str]]]:
    """Return what opens a session that waits for locks for two seconds, and lists its warnings."""

    def make() -> tuple[Session, list[str]]:
        opened = session(options=f"{PATIENT} -c lock_timeout=2s")
        told: list[str] = []
        opened.conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
        return opened, told

    return make


Loud = Callable[[], tuple[Session, list[str]]]


def errors(db: Connection) -> list[tuple[Any, ...]]:
    return rows(db, "select object, problem from agentundo.check() where severity = 'error'")


# Somebody has made something, and has not committed ---------------------------------------------


@pytest.fixture(params=ELSEWHERE)
def migration(request: pytest.FixtureRequest, db: Connection, session: NewSession) -> Session:
    """Begin a migration that concerns no tracked table."""
    opened = session()
    opened.run("begin", request.param)
    return opened


def test_a_table_is_emptied(db: Connection, migration: Session, loud: Loud) -> None:
    """Not only at once: a migration that reads the table next would have to wait in turn."""
    owner, told = loud()
    owner.run("truncate notes")
    migration.run("select count(*) from notes", "commit")
    assert told == []
    assert rows(db, "select * from notes") == []
    assert rows(db, TRACKED) == BOTH_OK


def test_an_emptied_table_comes_back(db: Connection, migration: Session, loud: Loud) -> None:
    before = snapshot(db, *TABLES)
    agent, told = loud()
    write(agent.conn, "agent", "truncate notes")
    migration.run("commit")
    result = revert(db, "agent")
    assert (result.status, result.counts) == ("reverted", (0, 3, 0, 0, 0))
    assert told == []
    assert_same(before, snapshot(db, *TABLES))


def test_a_column_is_added_and_followed(db: Connection, migration: Session, loud: Loud) -> None:
    owner, told = loud()
    owner.run("alter table notes add column stars int default 3")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK
    before = snapshot(db, *TABLES)
    write(owner.conn, "agent", "update notes set stars = 5; insert into notes values (9, 1, '', 1)")
    migration.run("commit")
    assert rows(db, TRACKED) == BOTH_OK
    assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def test_a_table_goes(db: Connection, migration: Session, loud: Loud) -> None:
    owner, told = loud()
    owner.run("drop table notes")
    migration.run("commit")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK[:1]
    assert errors(db) == []


def test_a_table_comes_and_is_tracked(db: Connection, migration: Session, loud: Loud) -> None:
    owner, told = loud()
    owner.run("create table log (id int primary key)", "select agentundo.track('log')")
    migration.run("commit")
    assert told == []
    assert rows(db, TRACKED) == [BOTH_OK[0], ("public.log", "ok"), BOTH_OK[1]]


def test_everything_is_looked_at_anew(db: Connection, migration: Session, loud: Loud) -> None:
    owner, told = loud()
    owner.run("select agentundo.sync()")
    migration.run("commit")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK


def test_a_table_goes_that_the_migration_wants_to_read(
    db: Connection, migration: Session, loud: Loud
) -> None:
    """Neither waits for the other in a circle."""
    owner, told = loud()
    owner.run("begin", "lock table notes")
    reading = migration.run_later("select count(*) from notes")
    migration.wait_until_blocked(reading, by=owner)
    owner.run("drop table notes", "commit")
    assert failure(reading).sqlstate == "42P01"
    migration.run("rollback")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK[:1]
    assert errors(db) == []


# Somebody has a table, and has not committed ----------------------------------------------------


@pytest.mark.parametrize("made", ELSEWHERE)
@pytest.mark.parametrize(
    "held",
    ["truncate notes", "alter table notes add column stars int", "select agentundo.sync('notes')"],
)
def test_something_is_made_while_a_table_is_changed(
    db: Connection, session: NewSession, loud: Loud, held: str, made: str
) -> None:
    owner, (other, told) = session(), loud()
    owner.run("begin", held)
    other.run(made)
    owner.run("commit")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK
    assert errors(db) == []


# What concerns a tracked table is followed ------------------------------------------------------


@pytest.fixture
def moods(db: Connection) -> Connection:
    """Make a tracked table in a schema of its own with an enum, a domain over it and an array."""
    db.execute(
        "create schema apart; create type apart.mood as enum ('bad', 'fair', 'good');"
        "create domain apart.felt as apart.mood;"
        "create table apart.days (id int primary key, m apart.mood, d apart.felt, a apart.mood[]);"
        "insert into apart.days values (1, 'bad', 'bad', '{bad,good}'), (2, 'fair', null, null);"
        "select agentundo.track('apart.days', 'all')"
    )
    return db


#: What is done, and what the table is called then if it has another name.
FOLLOWED = {
    "alter type apart.mood rename value 'bad' to 'awful'": None,
    "alter type apart.mood add value 'odd' before 'fair'": None,
    "alter type apart.mood rename to feeling": None,
    "alter type apart.mood set schema public": None,
    "alter domain apart.felt add check (value <> 'good')": None,
    "alter domain apart.felt rename to thought": None,
    "alter schema apart rename to away": "away.days",
    "alter table apart.days rename to nights; alter schema apart rename to away": "away.nights",
    "alter type apart.mood rename value 'bad' to 'x';"
    " alter type apart.mood rename value 'good' to 'bad';"
    " alter type apart.mood rename value 'x' to 'good'": None,
}


@pytest.mark.parametrize("done", FOLLOWED)
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_what_changes_under_a_table_is_followed(
    moods: Connection, done: str, together: bool
) -> None:
    """Its labels go back as what they are called now, and the table has its present name."""
    write(moods, "agent", "update apart.days set m = 'fair', a = '{fair}' where id = 1")
    for statement in [done] if together else done.split(";"):
        moods.execute(statement.encode())
    table = FOLLOWED[done] or "apart.days"
    assert rows(moods, TRACKED) == [(table, "ok"), *BOTH_OK]
    assert errors(moods) == []
    assert [row.status for row in plan(moods, "agent")] == ["ok"]
    assert revert(moods, "agent").status == "reverted"
    ((left, *back),) = rows(moods, f"select d::text, m::text, a[1]::text from {table} where id = 1")
    assert back == [left, left]


def test_a_label_renamed_beside_an_open_migration_is_followed(
    moods: Connection, session: NewSession, loud: Loud
) -> None:
    write(moods, "agent", "update apart.days set m = 'fair' where id = 1")
    migration, (owner, told) = session(), loud()
    migration.run("begin", "create schema elsewhere", "create type shade as enum ('bad')")
    owner.run("alter type apart.mood rename value 'bad' to 'awful'")
    migration.run("commit")
    assert told == []
    assert revert(moods, "agent").status == "reverted"
    assert scalar(moods, "select m::text from apart.days where id = 1") == "awful"


def test_a_label_renamed_in_a_transaction_that_has_made_others(moods: Connection) -> None:
    with moods.transaction():
        moods.execute("create type shade as enum ('dark'); create schema elsewhere")
        write(moods, "agent", "update apart.days set m = 'fair' where id = 1")
        moods.execute("alter type apart.mood rename value 'bad' to 'awful'")
        moods.execute("alter type shade rename value 'dark' to 'black'")
    assert revert(moods, "agent").status == "reverted"
    assert scalar(moods, "select m::text from apart.days where id = 1") == "awful"
    assert errors(moods) == []


# With a snapshot that is older than what we know of the tables ----------------------------------

LEVELS = ["repeatable read", "serializable"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "since",
    [
        "select agentundo.track('notes', 'all')",
        "alter table notes add column stars int",
        "select agentundo.track('deals', 'all')",
        "truncate notes",
        "create type mood as enum ('sad', 'glad')",
        "create schema elsewhere",
    ],
)
def test_a_table_is_dropped_whose_tracking_has_changed_since(
    db: Connection, session: NewSession, level: str, since: str
) -> None:
    """It goes whatever we know of it; what is left behind the next sync() finds."""
    owner = session()
    owner.run(f"begin isolation level {level}", "select 1 from deals")
    db.execute(since.encode())
    owner.run("drop table notes", "commit")
    assert scalar(db, "select to_regclass('notes')") is None
    db.execute("select agentundo.sync()")
    assert rows(db, TRACKED) == BOTH_OK[:1]
    assert errors(db) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("since", ELSEWHERE)
def test_a_table_is_altered_and_something_else_was_made_since(
    db: Connection, loud: Loud, level: str, since: str
) -> None:
    owner, told = loud()
    owner.run(f"begin isolation level {level}", "select 1 from deals")
    db.execute(since.encode())
    owner.run("alter table notes add column stars int", "commit")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK
    before = snapshot(db, *TABLES)
    write(db, "agent", "update notes set stars = 5")
    assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_with_a_snapshot_from_before_something_else_was_made(
    db: Connection, session: NewSession, level: str
) -> None:
    before = snapshot(db, *TABLES)
    agent = session()
    agent.run(f"begin isolation level {level}", "select 1 from deals")
    for number, made in enumerate(ELSEWHERE):
        db.execute(made.encode())
        write(agent.conn, "agent", f"update notes set body = '{number}'")
    agent.run("commit")
    assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def test_nobody_waits_for_a_migration_that_has_made_everything(
    db: Connection, session: NewSession, loud: Loud
) -> None:
    """One after the other, in one open transaction, as a tool for migrations does."""
    migration, (owner, told) = session(), loud()
    migration.run("begin", *ELSEWHERE)
    try:
        owner.run(
            "truncate notes",
            "alter table deals add column stars int",
            "select agentundo.set_merge('deals', 'amount', 'delta')",
            "drop table notes",
        )
    except psycopg.errors.LockNotAvailable as error:
        raise AssertionError("somebody waited for a migration of something else") from error
    migration.run("commit")
    assert told == []
    assert rows(db, TRACKED) == BOTH_OK[:1]
