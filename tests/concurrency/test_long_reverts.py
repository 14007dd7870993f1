"""A revert takes long between its first lock and a later wait, and others wait for it meanwhile.

Whoever has waited for deadlock_timeout looks for a deadlock, and is its victim if he finds one. So
by then the revert must not wait for him in turn, however short.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import Session, failure, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, revert, rows, scalar, status, tag, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: The check of a domain that takes long for a session of this name, while the gate is shut: until
#: somebody has waited for that session for nearly as long as it takes to look for a deadlock.
SLOW = """
create function take_long() returns boolean language plpgsql security definer as $$ begin
  while current_setting('application_name') = 'slow' and exists (
    select from pg_locks where locktype = 'advisory' and objid = 7 and granted)
  loop
    exit when exists (
      select from pg_locks w
      where not w.granted and clock_timestamp() - w.waitstart > interval '0.9 s'
        and pg_backend_pid() = any (pg_blocking_pids(w.pid)));
    perform pg_sleep(0.005);
  end loop;
  return true;
end $$;
create domain slow as text check (take_long());
create table things (id int primary key, name text unique, v slow);
insert into things select n, 'name ' || n, 'old' from generate_series(1, 5) n;
select agentundo.track('things');
"""
THINGS = "public.things"


@pytest.fixture
def slow(db: Connection, session: NewSession) -> Session:
    """Return a session that takes long to look at things."""
    db.execute(SLOW)
    return session(application_name="slow")


@contextmanager
def held_up(db: Connection, slow: Session, running: Future[Result]) -> Iterator[None]:
    """Shut the gate before which a revert has come already, and open it again."""

    def asleep() -> bool:
        query = "select wait_event from pg_stat_activity where pid = %s"
        return running.done() or scalar(db, query, slow.pid) == "PgSleep"

    try:
        wait_until(asleep, what="the revert to look at the table")
        assert not running.done()
        yield
    finally:
        db.execute("select pg_advisory_unlock(7)")


def finishes(running: Future[Any]) -> None:
    """Fail if somebody was made to give up for the revert."""
    try:
        outcome(running)
    except psycopg.errors.DeadlockDetected as error:
        raise AssertionError("somebody was chosen as the deadlock victim of a revert") from error


@pytest.mark.parametrize(
    "wanted",
    ["update things set v = 'mia' where id = 2", "delete from things where id = 2"],
    ids=["update", "delete"],
)
def test_writer_who_has_a_unique_value_that_is_needed_is_not_the_deadlock_victim(
    db: Connection, session: NewSession, slow: Session, wanted: str
) -> None:
    """He wants a row that the revert has, which at last wants the name that he has taken."""
    before = snapshot(db, THINGS)
    write(db, "agent", "update things set name = 'agent ' || id, v = 'agent' where id in (1, 2)")
    edited = snapshot(db, THINGS)
    person = session()
    person.run("begin", "insert into things values (9, 'name 1', 'mia')")
    db.execute("select pg_advisory_lock(7)")
    running = slow.later(revert, slow.conn, "agent")
    with held_up(db, slow, running):
        writing = person.run_later(wanted)
        person.wait_until_blocked(writing, by=slow)
        finishes(writing)
        assert_same(edited, snapshot(db, THINGS))
    person.run("rollback")
    assert outcome(running).status == "reverted"
    assert_same(before, snapshot(db, THINGS))


def test_writer_who_has_a_parent_that_is_needed_is_not_the_deadlock_victim(
    db: Connection, session: NewSession, slow: Session
) -> None:
    """The row that comes back refers to a deal that the writer is about to change."""
    db.execute("alter table things add column deal int references deals")
    db.execute("update things set deal = 1 where id = 1")
    before = snapshot(db, THINGS)
    write(db, "agent", "delete from things where id = 1; update things set v = '' where id = 2")
    person = session()
    person.run("begin", "select from deals where id = 1 for update")
    db.execute("select pg_advisory_lock(7)")
    running = slow.later(revert, slow.conn, "agent")
    with held_up(db, slow, running):
        writing = person.run_later("update things set v = 'mia' where id = 2")
        person.wait_until_blocked(writing, by=slow)
        finishes(writing)
    person.run("rollback")
    assert outcome(running).status == "reverted"
    assert_same(before, snapshot(db, THINGS))


def test_call_that_is_marked_as_committed_is_not_the_deadlock_victim(
    db: Connection, session: NewSession, slow: Session
) -> None:
    """A trigger is to be switched off: what is planned for that is planned before rows are locked.

    The call is still writing under its id, in a transaction in which it reports its end.
    """
    db.execute(
        "create function touch() returns trigger language plpgsql as $$ begin return new; end $$;"
        "create trigger touch before update on things for each row execute function touch()"
    )
    before = snapshot(db, THINGS)
    db.execute("select agentundo.record_invocation('agent', tool => 'edit_things')")
    write(db, "agent", "update things set v = 'agent' where id < 5")
    agent = session()
    agent.run("begin")
    tag(agent.conn, "agent")
    agent.run("update things set v = 'later' where id = 5")
    db.execute("select pg_advisory_lock(7)")
    running = slow.later(revert, slow.conn, "agent")
    with held_up(db, slow, running):
        ending = agent.run_later("select agentundo.commit_invocation('agent')")
        agent.wait_until_blocked(ending, by=slow)
        finishes(ending)
    agent.run("commit")
    assert outcome(running).status in ("reverted", "partially_reverted")
    if status(db, "agent") == "partially_reverted":
        assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, THINGS))
    assert rows(db, "select tgenabled from pg_trigger where tgname = 'touch'") == [("O",)]


def test_an_undo_in_a_transaction_for_which_others_wait_gives_up(
    db: Connection, session: NewSession
) -> None:
    """It cannot let go of what was locked before it: a deadlock that its short waits would hide."""
    write(db, "agent", "update deals set stage = 'agent' where id = 2")
    person, reverter = session(), session()
    person.run("begin", "update deals set owner = 'mia' where id = 2")
    reverter.run("begin", "update deals set owner = 'joe' where id = 1")
    running = reverter.later(revert, reverter.conn, "agent", on_conflict="skip")
    reverter.wait_until_blocked(running, by=person)
    writing = person.run_later("update deals set owner = 'mia' where id = 1")
    person.wait_until_blocked(writing, by=reverter)
    error = failure(running)
    assert error.sqlstate == "55P03"
    assert error.diag.message_primary == (
        "agentundo: others wait for what this transaction had locked before the undo,"
        " and the undo for others"
    )
    assert error.diag.message_hint == ("Give the undo a transaction of its own, and call it again.")
    reverter.run("rollback")
    outcome(writing)
    person.run("commit")
    assert rows(db, "select id, stage, owner from deals where id < 3 order by id") == [
        (1, "New", "mia"),
        (2, "agent", "mia"),
    ]


def test_an_undo_for_which_only_an_upgrade_waits_goes_on(
    db: Connection, session: NewSession
) -> None:
    """What it has read of our own tables is no reason to give up."""
    before = snapshot(db, "public.deals")
    write(db, "agent", "update deals set stage = 'agent' where id = 2")
    person, reverter, upgrade = session(), session(), session()
    person.run("begin", "select from deals where id = 2 for update")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    upgrade.run("begin")
    upgrading = upgrade.run_later("lock table agentundo._change in access exclusive mode")
    upgrade.wait_until_blocked(upgrading, by=reverter)
    turns = "select count(*) from pg_locks where not granted and pid = %s"
    for _ in range(3):  # it has given way, and tried again
        wait_until(lambda: running.done() or scalar(db, turns, reverter.pid) == 0, what="a pause")
        wait_until(lambda: running.done() or scalar(db, turns, reverter.pid) == 1, what="a try")
    assert not running.done()
    person.run("rollback")
    assert outcome(running).status == "reverted"
    outcome(upgrading)
    upgrade.run("rollback")
    assert_same(before, snapshot(db, "public.deals"))
