"""Unique values that others take and give up, or that change places, while a revert puts rows back.

A row that is put back by an UPDATE stays the same row: whoever waits for it finds it. One that goes
out and comes in again does not, so there a revert lets nobody else at the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import PATIENT, Session, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, redo, revert, rows, scalar, status, write

pytestmark = pytest.mark.core

#: A revert waits for a unique value for a second before it gives way.
SLOW_TO_GIVE_WAY = f"{PATIENT} -c deadlock_timeout=8s"
SEATS = "public.seats"
SWAP = (
    "update seats set seat = 'none' where id = 1; update seats set seat = 'A' where id = 2;"
    " update seats set seat = 'B' where id = 1"
)


@pytest.fixture
def seats(db: Connection) -> Connection:
    """Make three seats whose names are unique; all writes to them are captured."""
    db.execute(
        "create table seats (id int primary key, guest text, seat text unique);"
        "insert into seats values (1, 'eve', 'A'), (2, 'joe', 'B'), (3, 'mia', 'C');"
        "select agentundo.track('seats', 'all')"
    )
    return db


def update(conn: Connection, statement: str) -> int:
    """Run one statement and return how many rows it says it has changed."""
    return conn.execute(statement.encode()).rowcount


def waits_for(db: Connection, session: Session) -> list[str]:
    """Return the kinds of locks that a session waits for."""
    query = "select locktype from pg_locks where pid = %s and not granted"
    return [kind for (kind,) in rows(db, query, session.pid)]


@pytest.fixture
def crossed(seats: Connection, session: NewSession) -> Callable[[str, str], tuple[Session, Result]]:
    """Return what reverts in an open transaction while the value that is needed comes and goes.

    Somebody takes it in a transaction that is still open when the revert wants it, and commits.
    The revert fails, and by the time that it tries again the value has been given up.
    """

    def cross(invocation: str, value: str) -> tuple[Session, Result]:
        taker, giver = session(), session()
        reverter = session(options=SLOW_TO_GIVE_WAY)
        taker.run("begin", f"insert into seats values (7, 'joe', '{value}')")
        reverter.run("begin")
        running = reverter.later(revert, reverter.conn, invocation)
        reverter.wait_until_blocked(running, by=taker)
        # First in the queue for the table, before the next attempt of the revert.
        giver.run("begin")
        giving = giver.run_later("lock table seats", "delete from seats where id = 7")
        giver.wait_until_blocked(giving, by=taker)
        taker.run("commit")
        outcome(giving)
        giver.run("commit")
        return reverter, outcome(running)

    return cross


def test_a_value_taken_and_given_up_meanwhile_leaves_the_row_where_it_is(
    seats: Connection,
    session: NewSession,
    crossed: Callable[[str, str], tuple[Session, Result]],
) -> None:
    """Who has waited for that row finds it, and his change is not lost."""
    write(seats, "agent", "update seats set seat = 'agent' where id = 1")
    reverter, result = crossed("agent", "A")
    assert (result.status, result.counts) == ("reverted", (0, 0, 1, 0, 0))
    person = session()
    writing = person.later(update, person.conn, "update seats set guest = 'ann' where id = 1")
    person.wait_until_blocked(writing, by=reverter)
    reverter.run("commit")
    assert outcome(writing) == 1
    assert rows(seats, "select * from seats order by id") == [
        (1, "ann", "A"),
        (2, "joe", "B"),
        (3, "mia", "C"),
    ]


def test_a_value_taken_and_given_up_meanwhile_is_written_down_as_an_update(
    seats: Connection, crossed: Callable[[str, str], tuple[Session, Result]]
) -> None:
    """A trigger that is to fire sees what happens to the row, and so does the history."""
    seats.execute(
        "create table log (what text);"
        "create function note() returns trigger language plpgsql security definer as"
        " $$ begin insert into public.log values (tg_op); return null; end $$;"
        "create trigger note after insert or update or delete on seats"
        " for each row execute function note();"
        "select agentundo.set_trigger('seats', 'note', 'fire')"
    )
    before = snapshot(seats, SEATS)
    write(seats, "agent", "update seats set seat = 'agent' where id = 1")
    reverter, result = crossed("agent", "A")
    reverter.run("commit")
    assert (result.status, result.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert_same(before, snapshot(seats, SEATS))
    assert rows(seats, "select * from log") == [("UPDATE",), ("INSERT",), ("DELETE",), ("UPDATE",)]
    changes = "select operation, rows from agentundo.changes where invocation = %s"
    assert rows(seats, changes, result.revert_id) == [("update", 1)]
    assert redo(seats, "agent").counts == (0, 0, 1, 0, 0)
    assert scalar(seats, "select seat from seats where id = 1") == "agent"


def test_a_value_that_stays_taken_is_named(seats: Connection, session: NewSession) -> None:
    write(seats, "agent", "update seats set seat = 'agent' where id = 1")
    taker, reverter = session(), session(options=SLOW_TO_GIVE_WAY)
    taker.run("begin", "insert into seats values (7, 'joe', 'A')")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    reverter.wait_until_blocked(running, by=taker)
    taker.run("commit")
    edited = snapshot(seats, SEATS)
    result = outcome(running)
    assert result.counts == (0, 0, 0, 1, 1)
    assert_same(edited, snapshot(seats, SEATS))


# Values that change places ----------------------------------------------------------------------

#: A table, and what an agent did to it, so that row 1 has to go out and come in again.
MOVING = {
    "unique values swapped": (
        "create table moved (id int primary key, guest text, seat text unique);"
        "insert into moved values (1, 'eve', 'A'), (2, 'joe', 'B')",
        SWAP.replace("seats", "moved"),
    ),
    "values in a circle": (
        "create table moved (id int primary key, guest text, seat text unique);"
        "insert into moved values (1, 'eve', 'A'), (2, 'joe', 'B'), (3, 'mia', 'C')",
        "update moved set seat = seat || '!'; update moved set seat = 'B' where id = 1;"
        " update moved set seat = 'C' where id = 2; update moved set seat = 'A' where id = 3",
    ),
    "generated always as identity": (
        "create table moved (id int primary key, guest text,"
        " number int generated always as identity);"
        "insert into moved (id, guest) values (1, 'eve'), (2, 'joe')",
        "update moved set number = default where id = 1",
    ),
}


@pytest.fixture(params=MOVING)
def moved(db: Connection, request: pytest.FixtureRequest) -> Connection:
    """Make a table to which an agent did what takes more than updates to undo."""
    made, did = MOVING[request.param]
    db.execute(made.encode())
    db.execute("select agentundo.track('moved', 'all')")
    db.execute("create table former as table moved")
    write(db, "agent", did)
    return db


FORMER = "select id, to_jsonb(f) from former f order by id"
NOW = "select id, to_jsonb(m) from moved m order by id"


@pytest.mark.parametrize("capture", ["all", "agent"])
def test_update_of_a_row_that_goes_out_and_comes_in_again_is_not_lost(
    moved: Connection, session: NewSession, capture: str
) -> None:
    moved.execute("select agentundo.track('moved', %s)", [capture])
    person, reverter = session(), session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    writing = person.later(update, person.conn, "update moved set guest = 'ann' where id = 1")
    person.wait_until_blocked(writing, by=reverter)
    waited = waits_for(moved, person)
    reverter.run("commit")
    assert outcome(writing) == 1
    assert waited == ["relation"]
    moved.execute("update former set guest = 'ann' where id = 1")
    assert rows(moved, NOW) == rows(moved, FORMER)


@pytest.mark.parametrize("statement", ["delete from moved", "select from moved for update"])
def test_whoever_wants_such_a_row_gets_it(
    moved: Connection, session: NewSession, statement: str
) -> None:
    person, reverter = session(), session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    wanting = person.later(update, person.conn, statement)
    person.wait_until_blocked(wanting, by=reverter)
    reverter.run("commit")
    assert outcome(wanting) == scalar(moved, "select count(*) from former")
    assert rows(moved, NOW) == ([] if "delete" in statement else rows(moved, FORMER))


def test_child_of_a_row_that_goes_out_and_comes_in_again_is_not_refused(
    moved: Connection, session: NewSession
) -> None:
    """Its parent is there before and after."""
    moved.execute("create table tickets (id int primary key, of int references moved)")
    person, reverter = session(), session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    adding = person.run_later("insert into tickets values (1, 1)")
    person.wait_until_blocked(adding, by=reverter)
    reverter.run("commit")
    outcome(adding)
    assert rows(moved, "select * from tickets") == [(1, 1)]
    assert rows(moved, NOW) == rows(moved, FORMER)


def test_a_row_that_goes_out_and_comes_in_again_can_be_read_meanwhile(
    moved: Connection, session: NewSession
) -> None:
    person, reverter = session(), session()
    edited = rows(moved, NOW)
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    person.run("set statement_timeout = '5s'")
    assert rows(person.conn, NOW) == edited
    reverter.run("commit")
    assert rows(person.conn, NOW) == rows(moved, FORMER)


def test_a_writer_who_has_such_a_row_comes_first(moved: Connection, session: NewSession) -> None:
    """The revert waits for the table without keeping the rows that it has."""
    person, reverter = session(), session()
    person.run("begin", "update moved set guest = guest where id = 2")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    reverter.wait_until_blocked(running, by=person)
    person.run("update moved set guest = 'ann' where id = 1", "commit")
    assert outcome(running).rows_updated < scalar(moved, "select count(*) from former")
    assert scalar(moved, "select guest from moved where id = 1") == "ann"
    assert status(moved, "agent") == "partially_reverted"
