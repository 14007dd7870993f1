"""A row that comes back while a revert is on its way, and the children that it gets then.

The revert has looked for the row and has not found it. When it is about to take the row away, it
must not take what refers to it along: a foreign key of a table that is not tracked would do that.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES
from tests.support.sessions import PATIENT, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import FORCE, revert, rows, scalar, status, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: Tables in the order in which rows are put back; the first of them takes as long as the gate is
#: shut, for a session of this name that has begun to put rows back.
GATED = """
create function take_long() returns boolean language plpgsql security definer as $$ begin
  while current_setting('application_name') = 'slow' and exists (
      select from pg_locks where locktype = 'advisory' and objid = 7 and granted)
    and exists (
      select from pg_locks
      where relation = 'agentundo._restoring'::regclass and pid = pg_backend_pid())
  loop
    perform pg_sleep(0.005);
  end loop;
  return true;
end $$;
create domain slow as text check (take_long());
create table before_it (id int primary key, v slow);
create table parents (id int primary key, name text);
create table after_it (id int primary key, name text);
create table children (id int primary key, parent int references parents on delete cascade);
insert into before_it values (1, 'old');
insert into after_it values (1, 'old');
select agentundo.track(t) from unnest(array['before_it', 'parents', 'after_it']) t;
"""
#: A revert waits for a row for a second before it gives way, and so still has its other locks.
SLOW_TO_GIVE_WAY = f"{PATIENT} -c deadlock_timeout=8s"
#: How the revert is asked for, and whether the table is rewritten before, so that values decide.
ASKED: dict[str, tuple[bool, dict[str, Any]]] = {
    "force": (False, FORCE),
    "force after a rewrite": (True, FORCE),
    "abort after a rewrite": (True, {}),
    "skip after a rewrite": (True, {"on_conflict": "skip"}),
}


@pytest.mark.parametrize("action", ["cascade", "set null", "set default"])
@pytest.mark.parametrize("asked", ASKED)
def test_child_of_a_row_that_came_back_meanwhile_survives(
    db: Connection, session: NewSession, asked: str, action: str
) -> None:
    """The revert waits for note 1 when deal 6 comes back and somebody calls about it."""
    rewritten, arguments = ASKED[asked]
    db.execute(
        "create table calls (id int primary key, deal int default 1 references deals"
        f" on delete {action}, body text)".encode()
    )
    write(
        db,
        "agent",
        "insert into deals values (6, 'New', 'bot', 0); update notes set body = 'bot' where id = 1",
    )
    if rewritten:
        db.execute("vacuum full deals")
    person, holder = session(), session()
    reverter = session(options=SLOW_TO_GIVE_WAY)
    person.run("delete from deals where id = 6")
    holder.run("begin", "update notes set body = body where id = 1")
    running = reverter.later(revert, reverter.conn, "agent", **arguments)
    reverter.wait_until_blocked(running, by=holder)
    db.execute("insert into deals values (6, 'New', 'bot', 0)")
    person.run("begin", "insert into calls values (1, 6, 'precious')")
    holder.run("rollback")
    waits = "select %s = any (pg_blocking_pids(%s))"
    wait_until(
        lambda: running.done() or bool(scalar(db, waits, person.pid, reverter.pid)),
        what="the revert to wait for the child or to be done",
    )
    person.run("commit")
    error = running.exception(timeout=60)

    assert rows(db, "select * from calls") == [(1, 6, "precious")]
    assert rows(db, "select * from deals where id = 6") == [(6, "New", "bot", 0)]
    if error is None:
        assert running.result().rows_deleted == 0
    else:
        assert isinstance(error, psycopg.Error)
        assert error.sqlstate == "UN001", error
        assert rows(db, "select body from notes where id = 1") == [("bot",)]
        assert status(db, "agent") == "committed"


def test_row_that_came_back_and_has_no_children_goes_by_force(
    db: Connection, session: NewSession
) -> None:
    """Nobody holds it, so nothing keeps the revert from what it was asked for."""
    before = snapshot(db, *TABLES)
    write(
        db,
        "agent",
        "insert into deals values (6, 'New', 'bot', 0); update notes set body = 'bot' where id = 1",
    )
    db.execute("delete from deals where id = 6")
    holder, reverter = session(), session(options=SLOW_TO_GIVE_WAY)
    holder.run("begin", "update notes set body = body where id = 1")
    running = reverter.later(revert, reverter.conn, "agent", **FORCE)
    reverter.wait_until_blocked(running, by=holder)
    db.execute("insert into deals values (6, 'New', 'mia', 0)")
    holder.run("rollback")
    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (1, 0, 1, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("asked", ["force", "force after a rewrite", "abort after a rewrite"])
def test_row_that_came_back_gets_no_children_while_it_is_taken_away(
    db: Connection, session: NewSession, asked: str
) -> None:
    """Who refers to it now waits, and is told that it has gone: he is not swept away unheard."""
    rewritten, arguments = ASKED[asked]
    db.execute(GATED)
    write(
        db,
        "agent",
        "update before_it set v = 'bot'; insert into parents values (6, 'bot');"
        "update after_it set name = 'bot'",
    )
    if rewritten:
        db.execute("vacuum full parents")
    db.execute("delete from parents where id = 6")
    holder, person = session(), session()
    reverter = session(options=SLOW_TO_GIVE_WAY, application_name="slow")
    holder.run("begin", "select from after_it for update")
    running = reverter.later(revert, reverter.conn, "agent", **arguments)
    reverter.wait_until_blocked(running, by=holder)
    db.execute("insert into parents values (6, 'bot')")
    db.execute("select pg_advisory_lock(7)")
    holder.run("rollback")
    sleeps = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    wait_until(
        lambda: running.done() or bool(scalar(db, sleeps, reverter.pid)),
        what="the revert to put rows back",
    )
    assert not running.done()
    writing = person.run_later("insert into children values (1, 6)")
    person.wait_until_blocked(writing, by=reverter)
    db.execute("select pg_advisory_unlock(7)")
    assert outcome(running).rows_deleted == 1
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        outcome(writing)
    assert rows(db, "table parents") == []
    assert rows(db, "table before_it") == [(1, "old")]
    assert rows(db, "table after_it") == [(1, "old")]


def test_a_rule_of_merge_changes_after_the_undo_that_went_by_it(
    db: Connection, session: NewSession
) -> None:
    """It had decided to subtract; without the rule it would put back what it had found."""
    db.execute(GATED)
    db.execute(
        "create table stock (id int primary key, n int); insert into stock values (1, 100);"
        "select agentundo.track('stock', 'all'), agentundo.set_merge('stock', 'n', 'delta')"
    )
    write(db, "agent", "update before_it set v = 'bot'; update stock set n = n + 10")
    db.execute("update stock set n = n + 1")
    owner, reverter = session(), session(application_name="slow")
    db.execute("select pg_advisory_lock(7)")
    running = reverter.later(revert, reverter.conn, "agent", merge=True)
    sleeps = "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    wait_until(
        lambda: running.done() or bool(scalar(db, sleeps, reverter.pid)),
        what="the revert to put rows back",
    )
    deciding = owner.run_later("select agentundo.set_merge('stock', 'n', null)")
    owner.wait_until_blocked(deciding, by=reverter)
    db.execute("select pg_advisory_unlock(7)")
    assert outcome(running).rows_updated == 2
    outcome(deciding)
    assert rows(db, "table stock") == [(1, 101)]
