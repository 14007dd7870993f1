"""What is locked of a table in partitions: the root first, or nothing.

Whoever alters such a table locks its root, then a partition. A session that has a lock on the
partition already and then wants the root waits for him, and he for it.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import PATIENT, Session, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import refused, revert, rows, scalar, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: A revert waits for a unique value for a second before it gives way.
SLOW_TO_GIVE_WAY = f"{PATIENT} -c deadlock_timeout=8s"
DETACH = "alter table parts detach partition parts_1"
HELD = """
select c.relname::text, l.mode from pg_locks l join pg_class c on c.oid = l.relation
where l.pid = %s and l.granted and c.relname like 'parts%%' and c.relkind in ('r', 'p')
  and c.relnamespace = 'public'::regnamespace
order by 1, 2
"""


@pytest.fixture
def parts(db: Connection) -> Connection:
    """Make a table of two partitions, one of them divided again; all writes are captured."""
    db.execute(
        "create table parts (id int, half int, v text, primary key (id, half))"
        " partition by list (half);"
        "create table parts_0 partition of parts for values in (0) partition by range (id);"
        "create table parts_0_low partition of parts_0 for values from (0) to (100);"
        "create table parts_1 partition of parts for values in (1);"
        "insert into parts select n, n % 2, 'old' from generate_series(1, 12) n;"
        "select agentundo.track('parts', 'all')"
    )
    return db


def partitions_held(db: Connection, session: Session) -> list[tuple[str, str]]:
    """Return the locks that a session has on partitions, if it has none on their root."""
    held = [(name, mode) for name, mode in rows(db, HELD, session.pid)]
    return [] if "parts" in dict(held) else held


#: What looks at tracked tables, or makes us look at them, on behalf of something else.
LOOKS = [
    "select * from agentundo.check()",
    "select * from agentundo.tracked",
    "select * from agentundo.plan('agent')",
    "select * from agentundo.undoable()",
    "select * from agentundo.changes",
    "select * from agentundo.invocations",
    "select agentundo.sync('deals')",
    "create type mood as enum ('sad', 'glad')",
    "create domain short as text check (length(value) < 10)",
    "create schema elsewhere",
    "create table elsewhere (id int primary key, deal int references deals)",
    "alter table deals add column rank int",
    "drop table notes",
]


@pytest.mark.parametrize("look", LOOKS)
def test_no_partition_is_locked_without_its_root(
    parts: Connection, session: NewSession, look: str
) -> None:
    write(parts, "agent", "update parts set v = 'agent'; update deals set stage = 'Won'")
    somebody = session()
    somebody.run("begin", look)
    assert partitions_held(parts, somebody) == []
    somebody.run("commit")


@pytest.mark.parametrize(
    "look", ["select * from agentundo.check()", "create type mood as enum ('sad', 'glad')"]
)
def test_a_partition_goes_while_somebody_has_looked_and_then_writes(
    parts: Connection, session: NewSession, look: str
) -> None:
    """He writes while the partition is waited for, if it is: neither stands in the other's way."""
    person, migration = session(), session()
    person.run("begin", look)
    detaching = migration.run_later("set lock_timeout = '3s'", DETACH)
    waits = "select pg_blocking_pids(%s) <> '{}'"
    wait_until(
        lambda: detaching.done() or bool(scalar(parts, waits, migration.pid)),
        what="the partition to go, or to be waited for",
    )
    person.run("update parts set v = 'mia' where id = 2", "commit")
    outcome(detaching)
    assert rows(parts, "select id, half, v from parts where id < 4 order by id") == [(2, 0, "mia")]


@pytest.mark.parametrize("look", ["select from agentundo.check()", "create schema elsewhere"])
def test_a_partition_goes_while_somebody_has_looked_and_stays(
    parts: Connection, session: NewSession, look: str
) -> None:
    person = session()
    person.run("begin", look)
    session().run("set lock_timeout = '3s'", DETACH)
    person.run("commit")
    assert scalar(parts, "select count(*) from parts") == 6
    assert rows(parts, "select object from agentundo.check() where severity = 'error'") == []


def test_a_partition_goes_before_the_next_attempt_of_a_revert(
    parts: Connection, session: NewSession
) -> None:
    """The revert was in the way of a unique value, and has let go of everything in between."""
    write(parts, "agent", "delete from parts where id = 3")
    writer, migration = session(), session()
    reverter = session(options=SLOW_TO_GIVE_WAY)
    writer.run("begin", "insert into parts values (3, 1, 'mia')")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    migrating = migration.run_later("begin", "lock table only parts")
    reverter.wait_until_blocked(running, by=migration)
    writer.run("commit")
    outcome(migrating)
    reverter.wait_until_blocked(running, by=migration)
    assert rows(parts, HELD, reverter.pid) == []
    migration.run("set lock_timeout = '3s'", DETACH, "rollback")
    kept = snapshot(parts, "public.parts")
    assert outcome(running).counts == (0, 0, 0, 1, 1)
    assert_same(kept, snapshot(parts, "public.parts"))
    assert rows(parts, "select * from parts where id = 3") == [(3, 1, "mia")]


def test_a_partition_that_is_being_detached_is_written_and_taken_back(
    parts: Connection, session: NewSession
) -> None:
    """Its rows are captured until the detachment is finished, which an old transaction delays.

    Whoever asks the table does not see them any more, so they go back when they are there again.
    """
    before = snapshot(parts, "public.parts")
    reader, owner, person = session(), session(), session()
    reader.run("begin", "select from parts")
    detaching = owner.run_later(f"{DETACH} concurrently")
    owner.wait_until_blocked(detaching, by=reader)
    write(parts, "agent", "update parts_1 set v = 'agent' where id = 1")
    person.run("update parts_1 set v = 'mia' where id = 3")
    with refused("UN001"):
        revert(parts, "agent")
    parts.execute("select pg_cancel_backend(%s)", [owner.pid])
    with pytest.raises(psycopg.errors.QueryCanceled):
        outcome(detaching)
    reader.run("rollback")
    person.run("update parts_1 set v = 'old' where id = 3")  # it stays half detached
    captured = "select invocation, rows from agentundo.changes where relation = 'public.parts'"
    assert [tag for tag, _ in rows(parts, captured)].count(None) == 2
    parts.execute(f"{DETACH} finalize".encode())
    parts.execute(
        "alter table parts attach partition parts_1 for values in (1); select agentundo.sync()"
    )
    assert revert(parts, "agent").status == "reverted"
    assert_same(before, snapshot(parts, "public.parts"))
