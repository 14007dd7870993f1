"""A revert whose snapshot is older than what others have done.

Under REPEATABLE READ and SERIALIZABLE it gives the right result or a serialization failure, which
tells the caller to begin anew. It never acts on what its snapshot shows of rows that have moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES, TOUCH
from tests.support.sessions import Session, failure, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import FORCE, revert, rows, scalar, status, write
from tests.support.undoing import assert_keys_hold, triggers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

LEVELS = ("repeatable read", "serializable")


@pytest.fixture(params=LEVELS)
def late(request: pytest.FixtureRequest, session: NewSession) -> Callable[[], Session]:
    """Return what begins a transaction whose snapshot is taken now and does not move any more."""

    def begin() -> Session:
        reverter = session()
        reverter.run(f"begin isolation level {request.param}", "select count(*) from deals")
        return reverter

    return begin


MODES: tuple[dict[str, Any], ...] = (
    {},
    {"merge": True},
    {"on_conflict": "skip"},
    {"on_conflict": "cascade"},
    FORCE,
)


def assert_begin_anew(
    reverter: Session, what: str, modes: Sequence[dict[str, Any]] = MODES
) -> None:
    """Fail unless the revert ends in a serialization failure, whatever the mode."""
    for mode in modes:
        reverter.run("savepoint attempt")
        with pytest.raises(psycopg.Error) as raised:
            revert(reverter.conn, what, **mode)
        assert raised.value.sqlstate == "40001", f"{what}, {mode}: {raised.value}"
        reverter.run("rollback to attempt")


def test_alone_it_is_right(db: Connection, late: Callable[[], Session]) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    reverter = late()
    result = revert(reverter.conn, "agent")
    reverter.run("commit")
    assert (result.status, result.counts) == ("reverted", (0, 1, 5, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


def test_others_work_on_other_rows_is_no_obstacle(
    db: Connection, session: NewSession, late: Callable[[], Session]
) -> None:
    """Neither is it at SERIALIZABLE, where it may also have to begin anew."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    reverter = late()
    session().run("update deals set owner = 'mia' where id = 5")
    try:
        revert(reverter.conn, "agent")
        reverter.run("commit")
    except psycopg.errors.SerializationFailure:
        reverter.run("rollback")
        revert(db, "agent")
    assert rows(db, "select id, stage, owner from deals where id in (1, 5) order by id") == [
        (1, "New", "eve"),
        (5, "New", "mia"),
    ]


#: What the agent did, and what a person committed after the revert's snapshot was taken.
SINCE = {
    "other column": (
        "update deals set stage = 'Won' where id in (1, 2)",
        "update deals set owner = 'mia' where id = 1",
    ),
    "same values": (
        "update deals set stage = 'Won' where id = 3",
        "update deals set stage = 'Won' where id = 3",
    ),
    "deleted": (
        "update deals set stage = 'Won' where id = 4",
        "delete from deals where id = 4",
    ),
    "deleted what was inserted": (
        "insert into deals values (10, 'New', 'bot', 0)",
        "delete from deals where id = 10",
    ),
    "key given to a new row": (
        "delete from deals where id = 5",
        "insert into deals values (5, 'New', 'mia', 0)",
    ),
    "moved to another key": (
        "insert into deals values (11, 'New', 'bot', 0)",
        "update deals set id = 12 where id = 11",
    ),
    "parent gone": (
        "delete from notes where id = 2",
        "delete from deals where id = 2",
    ),
}


def test_what_was_committed_since_the_snapshot_is_a_serialization_failure(
    db: Connection, late: Callable[[], Session]
) -> None:
    for kind, (did, _) in SINCE.items():
        write(db, kind, did)
    reverter = late()
    for _, since in SINCE.values():
        db.execute(since.encode())
    edited = snapshot(db, *TABLES)
    for kind in SINCE:
        assert_begin_anew(reverter, kind)
    assert_same(edited, snapshot(db, *TABLES))
    assert {status(db, kind) for kind in SINCE} == {"committed"}


def test_unique_value_taken_since_the_snapshot_is_a_serialization_failure(
    db: Connection, late: Callable[[], Session]
) -> None:
    db.execute("create unique index on notes (body) where body <> 'note'")
    db.execute("update notes set body = 'only one' where id = 1")
    write(db, "agent", "update notes set body = 'agent' where id = 1")
    reverter = late()
    db.execute("update notes set body = 'only one' where id = 2")
    edited = snapshot(db, *TABLES)
    assert_begin_anew(reverter, "agent", MODES[:1])
    assert_same(edited, snapshot(db, *TABLES))


def test_children_that_came_since_the_snapshot_are_not_swept_away(
    db: Connection, late: Callable[[], Session]
) -> None:
    """Whatever the foreign key would do on DELETE, it must not do it to a row nobody looked at."""
    actions = ("no action", "restrict", "cascade", "set null", "set default")
    tables = [f"public.child_{number}" for number in range(len(actions))]
    for number, (table, action) in enumerate(zip(tables, actions, strict=True)):
        db.execute(
            f"create table {table} (id int primary key, deal int default 1"
            f" references deals on delete {action})".encode()
        )
        db.execute("select agentundo.track(%s::regclass)", [table])
        write(db, table, f"insert into deals values ({10 + number}, 'New', 'bot', 0)")
    reverter = late()
    for number, table in enumerate(tables):
        db.execute(f"insert into {table} values (1, {10 + number})".encode())
    edited = snapshot(db, *TABLES, *tables)
    for table in tables:
        assert_begin_anew(reverter, table, MODES[:1])
    reverter.run("rollback")
    assert_same(edited, snapshot(db, *TABLES, *tables))
    assert_keys_hold(db)


def test_open_edit_is_waited_for(
    db: Connection, session: NewSession, late: Callable[[], Session]
) -> None:
    """Rolled back it was nothing, committed it is newer than the snapshot.

    It may take longer than the revert likes to hold its own locks.
    """

    def waited() -> bool:
        query = "select clock_timestamp() - query_start > '1.2 s' from pg_stat_activity"
        return running.done() or bool(scalar(db, f"{query} where pid = %s", reverter.pid))

    before = snapshot(db, *TABLES)
    write(db, "first", "update deals set stage = 'Won'")
    person, reverter = session(), late()
    person.run("begin", "update deals set owner = 'mia' where id = 3")
    running = reverter.later(revert, reverter.conn, "first")
    reverter.wait_until_blocked(running, by=person)
    wait_until(waited, what="a long wait")
    person.run("rollback")
    assert outcome(running).status == "reverted"
    reverter.run("commit")
    assert_same(before, snapshot(db, *TABLES))

    write(db, "second", "update deals set stage = 'Won'")
    reverter = late()
    person.run("begin", "update deals set owner = 'mia' where id = 3")
    running = reverter.later(revert, reverter.conn, "second")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    edited = snapshot(db, *TABLES)
    assert failure(running).sqlstate == "40001"
    reverter.run("rollback")
    assert_same(edited, snapshot(db, *TABLES))


def test_second_revert_from_an_older_snapshot_does_nothing_twice(
    db: Connection, session: NewSession, late: Callable[[], Session]
) -> None:
    """For a recorded call there is a row to lock, for one only tagged the first revert makes it."""
    before = snapshot(db, *TABLES)
    db.execute("select agentundo.record_invocation('recorded', tool => 'close_deals')")
    for invocation in ("recorded", "tagged"):
        write(
            db,
            invocation,
            "update deals set stage = 'Won' where id = 1; delete from notes where id = 2;"
            "insert into deals values (6, 'New', 'bot', 0)",
        )
        reverter = late()
        assert revert(db, invocation).status == "reverted"
        assert_begin_anew(reverter, invocation)
        reverter.run("rollback")
        assert_same(before, snapshot(db, *TABLES))
    assert len(rows(db, "select * from agentundo.events")) == 2


def test_write_under_the_id_since_the_snapshot_belongs_to_the_next_revert(
    db: Connection, late: Callable[[], Session]
) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    reverter = late()
    write(db, "agent", "update deals set stage = 'Won' where id = 2")
    first = revert(reverter.conn, "agent")
    reverter.run("commit")
    assert (first.status, first.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert status(db, "agent") == "partially_reverted"
    second = revert(db, "agent")
    assert (second.status, second.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


def test_triggers_are_silenced_and_armed_as_before(
    db: Connection, late: Callable[[], Session]
) -> None:
    db.execute(
        TOUCH + "create trigger touch before update on deals for each row execute function touch();"
        "create trigger replica before update on deals for each row execute function touch();"
        "alter table deals enable replica trigger replica"
    )
    before, armed = snapshot(db, *TABLES), triggers(db)
    write(db, "agent", "update deals set stage = 'Won'")
    reverter = late()
    assert revert(reverter.conn, "agent").status == "reverted"
    reverter.run("commit")
    assert_same(before, snapshot(db, *TABLES))
    assert triggers(db) == armed
