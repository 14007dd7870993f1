"""Rows that are found by what they say, and undos beside people who never stop writing.

A row without a key cannot be locked before it is found: what becomes of it in between, and what
comes to depend on it, has to be seen all the same. That two people got in the way says nothing
about a third.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import PATIENT, Session, failure, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import FORCE, Result, plan, revert, rows, status, write
from tests.support.undoing import assert_keys_hold
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: A revert gives way after an eighth of this, at most a second: it waits until a person is done.
STUBBORN = f"{PATIENT} -c deadlock_timeout=100s"
ACTIONS = ("no action", "restrict", "cascade", "set null", "set default")
CHILDREN = tuple(f"public.child_{number}" for number in range(len(ACTIONS)))

#: Parents whose rows cannot be found by their key, by why that is, and their type then; the second
#: statement comes after the agent has written.
KEYLESS = {
    "a key that may be null": (
        "create table parent (id text unique, v text)",
        "select",
    ),
    "a key that has come since": (
        "create table parent (id text unique, v text)",
        "alter table parent add other int generated always as identity primary key",
    ),
    "a key that is no key of the table since": (
        "create table parent (id text unique, v text, other int generated always as identity,"
        " primary key (other))",
        "alter table parent drop column other",
    ),
}


@pytest.fixture(params=KEYLESS)
def parents(db: Connection, request: pytest.FixtureRequest) -> Connection:
    """Make parents, and tables of children; the agent has inserted all parents but number 1."""
    made, altered = KEYLESS[request.param]
    db.execute(f"{made}; insert into parent (id, v) values ('1', 'default')".encode())
    db.execute("select agentundo.track('parent')")
    for number, child in enumerate(CHILDREN):
        write(db, child, f"insert into parent (id, v) values ('{10 + number}', 'agent')")
    db.execute(altered.encode())
    for child, action in zip(CHILDREN, ACTIONS, strict=True):
        db.execute(
            f"create table {child} (id int primary key, parent text default '1'"
            f" references parent (id) on delete {action}, body text)".encode()
        )
    return db


def person_adds_a_child(
    person: Session, reverter: Session, number: int, **arguments: Any
) -> Future[Result]:
    """Let a person commit a child while the revert waits for its parent."""
    child = CHILDREN[number]
    person.run("begin", f"insert into {child} values (1, '{10 + number}', 'precious')")
    running = reverter.later(revert, reverter.conn, child, **arguments)
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    return running


def test_a_child_that_comes_while_its_parent_is_waited_for_is_not_swept_away(
    parents: Connection, session: NewSession
) -> None:
    """Whatever the foreign key would do on DELETE: no plan has shown it."""
    tables = ("public.parent", *CHILDREN)
    person, reverter = session(), session(options=STUBBORN)
    for number, child in enumerate(CHILDREN):
        running = person_adds_a_child(person, reverter, number)
        edited = snapshot(parents, *tables)
        error = failure(running)
        assert error.sqlstate == "UN001", (child, error)
        assert "has_dependents" in str(error.diag.message_primary), child
        assert_same(edited, snapshot(parents, *tables))
        assert status(parents, child) == "committed"
        assert [(row.action, row.status, row.reason) for row in plan(parents, child)] == [
            ("delete", "conflict", "has_dependents")
        ]
    assert_keys_hold(parents)
    assert rows(parents, "select * from agentundo.events") == []


def test_skip_leaves_the_parent_of_a_child_that_comes_meanwhile(
    parents: Connection, session: NewSession
) -> None:
    tables = ("public.parent", *CHILDREN)
    person, reverter = session(), session(options=STUBBORN)
    for number, child in enumerate(CHILDREN):
        running = person_adds_a_child(person, reverter, number, on_conflict="skip")
        edited = snapshot(parents, *tables)
        result = outcome(running)
        assert (result.status, result.counts) == ("partially_reverted", (0, 0, 0, 1, 1)), child
        assert_same(edited, snapshot(parents, *tables))
    assert_keys_hold(parents)


def test_force_does_not_sweep_away_a_child_that_comes_meanwhile(
    parents: Connection, session: NewSession
) -> None:
    tables = ("public.parent", *CHILDREN)
    person, reverter = session(), session(options=STUBBORN)
    for number, child in enumerate(CHILDREN):
        running = person_adds_a_child(person, reverter, number, **FORCE)
        edited = snapshot(parents, *tables)
        assert failure(running).sqlstate == "UN001", child
        assert_same(edited, snapshot(parents, *tables))
    assert_keys_hold(parents)


def test_a_child_that_a_person_thinks_better_of_is_no_obstacle(
    parents: Connection, session: NewSession
) -> None:
    person, reverter = session(), session(options=STUBBORN)
    for number, child in enumerate(CHILDREN):
        person.run("begin", f"insert into {child} values (1, '{10 + number}', 'precious')")
        running = reverter.later(revert, reverter.conn, child)
        reverter.wait_until_blocked(running, by=person)
        person.run("rollback")
        result = outcome(running)
        assert (result.status, result.counts) == ("reverted", (1, 0, 0, 0, 0)), child
    assert rows(parents, "select id, v from parent") == [("1", "default")]
    assert all(rows(parents, f"select * from {child}") == [] for child in CHILDREN)


@pytest.mark.parametrize("parts", ["", "partition by list (id)"], ids=["whole", "partitioned"])
@pytest.mark.parametrize("action", ["cascade", "set null", "set default", "no action"])
def test_a_child_that_comes_to_a_new_value_is_not_taken_along_to_the_old_one(
    db: Connection, session: NewSession, action: str, parts: str
) -> None:
    """Nor emptied: the update goes back where nobody has come to refer to what it made."""
    db.execute(f"create table parent (id int unique, v text) {parts}".encode())
    if parts:
        db.execute("create table parent_1 partition of parent for values in (1, 2)")
    db.execute(
        "create table child (id int primary key, parent int default 7"
        f" references parent (id) on update {action} on delete {action});"
        "insert into parent values (1, 'x'); select agentundo.track('parent')".encode()
    )
    write(db, "agent", "update parent set id = 2")
    person, reverter = session(), session(options=STUBBORN)
    person.run("begin", "insert into child values (1, 2)")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    error = failure(running)
    assert error.sqlstate == "UN001"
    assert "has_dependents (child_parent_fkey)" in str(error.diag.message_primary)
    assert rows(db, "select * from parent") == [(2, "x")]
    assert rows(db, "select * from child") == [(1, 2)]
    assert status(db, "agent") == "committed"
    assert_keys_hold(db)


# People who go on writing -----------------------------------------------------------------------

PEOPLE = 4


def blocks(db: Connection, one: Session, other: Session) -> bool:
    return rows(db, "select %s = any (pg_blocking_pids(%s))", one.pid, other.pid) == [(True,)]


def let_each_commit(
    db: Connection, people: list[Session], reverter: Session, running: Future[Result]
) -> None:
    """Let each person commit once the revert waits for that one, in whatever order that is."""
    waiting = list(people)

    def met() -> bool:
        return running.done() or any(blocks(db, one, reverter) for one in waiting)

    while waiting:
        wait_until(met, what="the revert to wait for somebody")
        assert not running.done(), f"ended instead of waiting: {running.exception()!r}"
        for one in [one for one in waiting if blocks(db, one, reverter)]:
            one.run("commit")
            waiting.remove(one)


def test_rows_without_a_key_that_people_edit_one_after_the_other_are_skipped(
    db: Connection, session: NewSession
) -> None:
    """Each takes his row as soon as the revert has let go of it for the one before."""
    db.execute("create table log (n int, line text, note text); select agentundo.track('log')")
    write(db, "agent", f"insert into log select n, 'agent' from generate_series(1, {PEOPLE + 2}) n")
    reverter, last = session(options=STUBBORN), session()
    last.run("begin", f"update log set note = 'mine' where n = {PEOPLE + 2}")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    for number in range(PEOPLE + 1, 2, -1):
        reverter.wait_until_blocked(running, by=last)
        following = session()
        following.run("begin")
        editing = following.run_later(f"update log set note = 'mine' where n = {number}")
        following.wait_until_blocked(editing, by=reverter)
        last.run("commit")
        outcome(editing)
        last = following
    reverter.wait_until_blocked(running, by=last)
    last.run("commit")

    result = outcome(running)
    assert (result.status, result.counts) == ("partially_reverted", (2, 0, 0, 4, 4))
    assert rows(db, "select * from log order by n") == [
        (number, "agent", "mine") for number in range(3, PEOPLE + 3)
    ]


def test_rows_whose_parents_are_deleted_one_after_the_other_are_skipped(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create table parent (id int primary key);"
        f"insert into parent select generate_series(1, {PEOPLE + 2});"
        "create table child (id int primary key, parent int references parent);"
        "insert into child select id, id from parent; select agentundo.track('child')".encode()
    )
    write(db, "agent", "delete from child")
    people, reverter = [session() for _ in range(PEOPLE)], session()
    for number, person in enumerate(people, start=1):
        person.run("begin", f"delete from parent where id = {number}")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    let_each_commit(db, people, reverter, running)
    result = outcome(running)
    assert (result.status, result.counts) == ("partially_reverted", (0, 2, 0, 4, 4))
    assert rows(db, "select * from child order by id") == [(5, 5), (6, 6)]
    assert rows(db, "select * from parent order by id") == [(5,), (6,)]
    assert_keys_hold(db)


def test_rows_whose_unique_value_is_taken_one_after_the_other_are_skipped(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create table seat (id int primary key, number int unique);"
        f"insert into seat select n, n from generate_series(1, {PEOPLE + 2}) n;"
        "select agentundo.track('seat')".encode()
    )
    write(db, "agent", "delete from seat")
    people, reverter = [session() for _ in range(PEOPLE)], session()
    for number, person in enumerate(people, start=1):
        person.run("begin", f"insert into seat values ({100 + number}, {number})")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    let_each_commit(db, people, reverter, running)
    result = outcome(running)
    assert (result.status, result.counts) == ("partially_reverted", (0, 2, 0, 4, 4))
    assert rows(db, "select * from seat order by id") == [
        (5, 5),
        (6, 6),
        *((100 + number, number) for number in range(1, PEOPLE + 1)),
    ]


def test_misfortunes_of_every_kind_one_after_the_other(db: Connection, session: NewSession) -> None:
    """A parent that goes, a value that is taken, a key that is given away: each of them once."""
    db.execute(
        "create table parent (id int primary key);"
        "insert into parent select generate_series(1, 4);"
        "create table seat (id int primary key, parent int references parent, number int unique);"
        "insert into seat select n, n, n from generate_series(1, 4) n;"
        "select agentundo.track('seat')"
    )
    write(db, "agent", "delete from seat")
    orphan, taker, maker = people = [session() for _ in range(3)]
    reverter = session()
    orphan.run("begin", "delete from parent where id = 1")
    taker.run("begin", "insert into seat values (102, 4, 2)")
    maker.run("begin", "insert into seat values (3, 4, 103)")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    let_each_commit(db, people, reverter, running)
    result = outcome(running)
    assert (result.status, result.counts) == ("partially_reverted", (0, 1, 0, 3, 3))
    assert rows(db, "select * from seat order by id") == [(3, 4, 103), (4, 4, 4), (102, 4, 2)]
    assert_keys_hold(db)
