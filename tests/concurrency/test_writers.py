"""People and agents write while a revert is on its way.

Whoever holds a row first, finishes first: the revert waits or gives way, then sees it.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES, deal
from tests.support.sessions import PATIENT, Session, failure, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, plan, refused, revert, rows, scalar, status, tag, write
from tests.support.undoing import triggers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core


def reason(error: psycopg.Error) -> list[tuple[str, str]]:
    """Return the conflicts that a refusal names as (key or relation, reason)."""
    assert error.sqlstate == "UN001", error
    detail = json.loads(error.diag.message_detail or "{}")
    return [(str(c.get("key")), c["reason"]) for c in detail["conflicts"]]


# The agent itself, under the same id ------------------------------------------------------------


def test_write_committed_under_the_id_after_its_revert_can_go_back_too(
    db: Connection, session: NewSession
) -> None:
    """It was open while the revert ran, so the revert neither saw it nor may claim it."""
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    agent = session()
    agent.run("begin")
    tag(agent.conn, "agent")
    agent.run("update deals set stage = 'Won' where id = 2")

    first = revert(db, "agent")
    assert (first.status, first.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert revert(db, "agent").status == "already_reverted"
    agent.run("commit")

    assert deal(db, 2) == ("Won", "eve", 200)
    assert status(db, "agent") == "partially_reverted"
    second = revert(db, "agent")
    assert (second.status, second.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert second.revert_id != first.revert_id
    assert_same(before, snapshot(db, *TABLES))
    assert revert(db, "agent").status == "already_reverted"
    assert status(db, "agent") == "reverted"


@pytest.mark.parametrize("where", ["id = 1", "id = 2"], ids=["same row", "other row"])
def test_write_committed_under_the_id_during_its_revert_is_taken_or_left_whole(
    db: Connection, session: NewSession, where: str
) -> None:
    """The revert waits for the agent's second write, which commits while it waits.

    It may take that one along or leave it to the next revert. It may not do the one and record the
    other.
    """
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 3)")
    agent, reverter = session(), session()
    agent.run("begin")
    tag(agent.conn, "agent")
    agent.run("update deals set owner = 'bot' where id = 3")
    agent.run(f"update deals set owner = 'bot' where {where}")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=agent)
    agent.run("commit")
    first = outcome(running)

    assert first.status == "reverted"
    left = scalar(
        db,
        "select count(*) from agentundo.changes where invocation = 'agent' and covered_by is null",
    )
    if left:
        assert snapshot(db, *TABLES) != before
        assert status(db, "agent") == "partially_reverted"
        assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "agent") == "reverted"
    again = revert(db, "agent")
    assert again.status == "already_reverted"
    assert again.counts == (0, 0, 0, 0, 0)


def test_pending_invocation_that_writes_while_it_is_reverted(
    db: Connection, session: NewSession
) -> None:
    """Its first transaction is taken back; the second, still open, belongs to the next revert."""
    before = snapshot(db, *TABLES)
    db.execute("select agentundo.record_invocation('agent', tool => 'close_deals')")
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    agent, reverter = session(), session()
    agent.run("begin")
    tag(agent.conn, "agent")
    agent.run("delete from notes where id = 3")
    assert outcome(reverter.later(revert, reverter.conn, "agent")).status == "reverted"
    agent.run("commit")
    result = revert(db, "agent")
    assert (result.status, result.counts) == ("reverted", (0, 1, 0, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


def test_deferred_trigger_writes_after_the_call_was_marked_as_committed(db: Connection) -> None:
    """Its write comes at COMMIT, under the tag still in force, and goes back with the rest."""
    db.execute(
        "create function note() returns trigger language plpgsql as $$ begin"
        " insert into notes values (new.id + 100, new.id, 'deferred'); return null; end $$;"
        "create constraint trigger note after update on deals deferrable initially deferred"
        " for each row execute function note()"
    )
    before, armed = snapshot(db, *TABLES), triggers(db)
    db.execute("select agentundo.record_invocation('agent', tool => 'close_deals')")
    with db.transaction():
        tag(db, "agent")
        db.execute("update deals set stage = 'Won' where id = 1")
        db.execute("select agentundo.commit_invocation('agent')")
    assert scalar(db, "select count(*) from notes where body = 'deferred'") == 1
    assert status(db, "agent") == "committed"
    result = revert(db, "agent")
    assert (result.status, result.counts) == ("reverted", (1, 0, 1, 0, 0))
    assert_same(before, snapshot(db, *TABLES))
    assert triggers(db) == armed


# Somebody else ----------------------------------------------------------------------------------


def test_writer_between_plan_and_revert_is_seen(db: Connection, session: NewSession) -> None:
    write(db, "agent", "update deals set stage = 'Won'")
    assert {row.status for row in plan(db, "agent")} == {"ok"}
    session().run("update deals set owner = 'mia' where id = 2")
    before = snapshot(db, *TABLES)
    with refused("UN001") as caught:
        revert(db, "agent")
    assert [(c["key"], c["reason"]) for c in caught.conflicts] == [({"id": 2}, "row_changed")]
    assert_same(before, snapshot(db, *TABLES))


#: What the agent did, what a person does meanwhile in an open transaction, and why that stands in
#: the way once it is committed.
MEANWHILE = {
    "other column": (
        "update deals set stage = 'Won'",
        "update deals set owner = 'mia' where id = 3",
        "row_changed",
    ),
    "same column": (
        "update deals set stage = 'Won'",
        "update deals set stage = 'Lost' where id = 3",
        "row_changed",
    ),
    "same values": (
        "update deals set stage = 'Won'",
        "update deals set stage = 'Won' where id = 3",
        "row_rewritten",
    ),
    "deleted": (
        "update deals set stage = 'Won'",
        "delete from notes where deal = 3; delete from deals where id = 3",
        "row_deleted",
    ),
    "deleted and inserted": (
        "update deals set stage = 'Won' where id = 5",
        "delete from deals where id = 5; insert into deals values (5, 'New', 'mia', 0)",
        "row_changed",
    ),
    "key given to a new row": (
        "delete from deals where id = 5",
        "insert into deals values (5, 'New', 'mia', 0)",
        "row_exists",
    ),
    "edit of a row that the agent inserted": (
        "insert into deals values (6, 'New', 'bot', 0)",
        "update deals set owner = 'mia' where id = 6",
        "row_changed",
    ),
    "edit through the parent of a child that comes back": (
        "delete from notes where id = 1",
        "delete from notes where deal = 1; delete from deals where id = 1",
        "missing_parent",
    ),
}


@pytest.mark.parametrize("kind", MEANWHILE)
def test_revert_waits_for_an_open_edit_then_sees_it(
    db: Connection, session: NewSession, kind: str
) -> None:
    """First the person thinks better of it, the next time not."""
    did, meanwhile, why = MEANWHILE[kind]
    before = snapshot(db, *TABLES)
    person, reverter = session(), session()

    write(db, "first", did)
    person.run("begin", meanwhile)
    running = reverter.later(revert, reverter.conn, "first")
    reverter.wait_until_blocked(running, by=person)
    person.run("rollback")
    assert outcome(running).status == "reverted"
    assert_same(before, snapshot(db, *TABLES))

    write(db, "second", did)
    person.run("begin", meanwhile)
    running = reverter.later(revert, reverter.conn, "second")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    edited = snapshot(db, *TABLES)
    assert [given for _, given in reason(failure(running))] == [why]
    assert_same(edited, snapshot(db, *TABLES))
    assert status(db, "second") == "committed"
    assert rows(db, "select invocation from agentundo.events") == [("first",)]


def test_own_difference_is_subtracted_from_what_an_open_edit_leaves(
    db: Connection, session: NewSession
) -> None:
    db.execute("select agentundo.set_merge('deals', 'amount', 'delta')")
    write(db, "agent", "update deals set amount = amount + 7 where id = 1")
    person, reverter = session(), session()
    person.run("begin", "update deals set amount = amount + 1000 where id = 1")
    running = reverter.later(revert, reverter.conn, "agent", merge=True)
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    assert outcome(running).status == "reverted"
    assert deal(db, 1) == ("New", "eve", 1100)


def test_writer_waits_for_an_open_revert_and_loses_nothing(
    db: Connection, session: NewSession
) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    reverter, person = session(), session()
    reverter.run("begin")
    revert(reverter.conn, "agent")
    writing = person.run_later("update deals set owner = 'mia' where id = 1")
    person.wait_until_blocked(writing, by=reverter)
    reverter.run("commit")
    outcome(writing)
    assert deal(db, 1) == ("New", "mia", 100)


def test_row_that_moves_to_another_partition_meanwhile_is_a_conflict(
    db: Connection, session: NewSession
) -> None:
    """Waiting for such a row ends in a serialization failure, also under READ COMMITTED."""
    db.execute(
        "create table orders (id int, region text, state text, primary key (id, region))"
        " partition by list (region);"
        "create table orders_eu partition of orders for values in ('eu');"
        "create table orders_us partition of orders for values in ('us');"
        "insert into orders values (1, 'eu', 'open'), (2, 'eu', 'open');"
        "select agentundo.track('orders')"
    )
    write(db, "agent", "update orders set state = 'paid'")
    person, reverter = session(), session()
    person.run("begin", "update orders set region = 'us' where id = 1")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    edited = snapshot(db, "public.orders")
    assert [given for _, given in reason(failure(running))] == ["row_deleted"]
    assert_same(edited, snapshot(db, "public.orders"))


def test_row_without_a_key_that_is_edited_meanwhile(db: Connection, session: NewSession) -> None:
    """Without a key nothing is locked beforehand: the row is looked at when it is changed."""
    db.execute(
        "create table log (line text, n int);"
        "insert into log values ('a', 1), ('a', 1), ('b', 2);"
        "select agentundo.track('log')"
    )
    before = snapshot(db, "public.log")
    person, reverter = session(), session()

    write(db, "first", "insert into log values ('agent', 3)")
    person.run("begin", "update log set line = 'mia' where n = 3")
    running = reverter.later(revert, reverter.conn, "first")
    reverter.wait_until_blocked(running, by=person)
    person.run("rollback")
    assert outcome(running).status == "reverted"
    assert_same(before, snapshot(db, "public.log"))

    write(db, "second", "insert into log values ('agent', 3)")
    person.run("begin", "update log set line = 'mia' where n = 3")
    running = reverter.later(revert, reverter.conn, "second")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    edited = snapshot(db, "public.log")
    assert [given for _, given in reason(failure(running))] == ["row_changed"]
    assert_same(edited, snapshot(db, "public.log"))


def test_column_added_meanwhile_keeps_its_value(db: Connection, session: NewSession) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1; delete from notes")
    person, reverter = session(), session()
    person.run("begin", "alter table deals add column rank int default 7", "table deals")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    person.run("commit")
    assert outcome(running).counts == (0, 3, 1, 0, 0)
    assert rows(db, "select * from deals where id <= 2 order by id") == [
        (1, "New", "eve", 100, 7),
        (2, "New", "eve", 200, 7),
    ]


# Children of rows that would go -----------------------------------------------------------------

ACTIONS = ("no action", "restrict", "cascade", "set null", "set default")
CHILDREN = tuple(f"public.child_{number}" for number in range(len(ACTIONS)))


@pytest.fixture(params=["tracked children", "untracked children"])
def children(db: Connection, request: pytest.FixtureRequest) -> Connection:
    """Make a table of children of deals for each thing that a foreign key can do on DELETE."""
    for child, action in zip(CHILDREN, ACTIONS, strict=True):
        db.execute(
            f"create table {child} (id int primary key, deal int default 1"
            f" references deals on delete {action}, body text)".encode()
        )
        if request.param == "tracked children":
            db.execute("select agentundo.track(%s::regclass)", [child])
    return db


def test_child_added_while_the_revert_waits_for_it(
    children: Connection, session: NewSession
) -> None:
    """The child's own transaction holds the parent: the revert waits, then finds a dependent."""
    tables = (*TABLES, *CHILDREN)
    person, reverter = session(), session()
    for number, child in enumerate(CHILDREN):
        deal = 10 + number
        write(children, child, f"insert into deals values ({deal}, 'New', 'bot', 0)")
        person.run("begin", f"insert into {child} values (1, {deal}, 'precious')")
        running = reverter.later(revert, reverter.conn, child)
        reverter.wait_until_blocked(running, by=person)
        person.run("commit")
        edited = snapshot(children, *tables)
        assert [given for _, given in reason(failure(running))] == ["has_dependents"]
        assert_same(edited, snapshot(children, *tables))


def test_child_that_comes_after_the_revert_has_its_parent_is_refused(
    children: Connection, session: NewSession
) -> None:
    """The revert holds the parent: the child waits and then learns that the parent is gone."""
    tables = (*TABLES, *CHILDREN)
    before = snapshot(children, *tables)
    person, reverter = session(), session()
    for number, child in enumerate(CHILDREN):
        deal = 10 + number
        write(children, child, f"insert into deals values ({deal}, 'New', 'bot', 0)")
        reverter.run("begin")
        assert revert(reverter.conn, child).status == "reverted"
        adding = person.run_later(f"insert into {child} values (1, {deal}, 'too late')")
        person.wait_until_blocked(adding, by=reverter)
        reverter.run("commit")
        assert failure(adding).sqlstate == "23503"
        assert_same(before, snapshot(children, *tables))


def test_child_can_be_added_while_its_parent_only_gets_old_values_back(
    db: Connection, session: NewSession
) -> None:
    db.execute("create table plain (id int primary key, v text); insert into plain values (1, 'a')")
    db.execute("select agentundo.track('plain')")
    write(db, "agent", "update plain set v = 'b'")
    reverter, person = session(), session()
    reverter.run("begin")
    revert(reverter.conn, "agent")
    # What a foreign key check takes; a plain update of the row lets it through.
    person.run("begin", "set local lock_timeout = '5s'", "select from plain for key share", "end")
    reverter.run("commit")


# Who is the victim ------------------------------------------------------------------------------


def finishes(person: Session, running: Future[Any]) -> None:
    """Fail if the person, rather than the revert, was made to give up."""
    try:
        outcome(running)
    except psycopg.errors.DeadlockDetected as error:
        raise AssertionError("a writer was chosen as the deadlock victim of a revert") from error
    person.run("commit")


def test_writer_who_crosses_a_revert_is_not_the_deadlock_victim(
    db: Connection, session: NewSession
) -> None:
    """The person holds row 5 and wants row 1, the revert has row 1 and wants row 5."""
    write(db, "agent", "update deals set stage = 'Won'")
    person, reverter = session(), session()
    person.run("begin", "update deals set owner = 'mia' where id = 5")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    finishes(person, person.run_later("update deals set owner = 'mia' where id = 1"))
    edited = snapshot(db, *TABLES)
    assert {given for _, given in reason(failure(running))} == {"row_changed"}
    assert_same(edited, snapshot(db, *TABLES))


def test_writer_who_has_waited_long_for_a_revert_is_not_the_deadlock_victim(
    db: Connection, session: NewSession
) -> None:
    """The revert, holding row 1, waits for row 2 first, later for row 5, which the person has.

    The server looks for a deadlock when somebody has waited for a second, and ends the one who
    looks. So it is not enough that each single wait of the revert is short.
    """
    write(db, "agent", "update deals set stage = 'Won'")
    person, other, reverter = session(), session(), session()
    person.run("begin", "update deals set owner = 'mia' where id = 5")
    other.run("begin", "update deals set owner = 'joe' where id = 2")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=other)
    writing = person.run_later("update deals set owner = 'mia' where id = 1")

    def waited() -> bool:
        query = "select clock_timestamp() - query_start > '0.4 s' from pg_stat_activity"
        return writing.done() or bool(scalar(db, f"{query} where pid = %s", person.pid))

    wait_until(waited, what="the person to have waited")
    other.run("commit")
    finishes(person, writing)
    edited = snapshot(db, *TABLES)
    assert {given for _, given in reason(failure(running))} == {"row_changed"}
    assert_same(edited, snapshot(db, *TABLES))


SILENCED = """
create function touch() returns trigger language plpgsql as
$$ begin new.owner := upper(new.owner); return new; end $$;
create trigger touch before update on deals for each row execute function touch();
"""


def test_writer_on_a_table_with_a_trigger_is_not_the_deadlock_victim(
    db: Connection, session: NewSession
) -> None:
    """Silencing the trigger needs the table; the writer has a row in it and wants another table's.

    Here the agent changed notes and deals: a revert that locked notes first would have the row
    that the writer wants next.
    """
    db.execute(SILENCED)
    write(db, "agent", "update notes set body = 'agent'; update deals set stage = 'Won'")
    armed = triggers(db)
    person, reverter = session(), session()
    person.run("begin", "update deals set amount = 1 where id = 5")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    finishes(person, person.run_later("update notes set body = 'mia' where id = 1"))
    edited = snapshot(db, *TABLES)
    assert {given for _, given in reason(failure(running))} == {"row_changed"}
    assert_same(edited, snapshot(db, *TABLES))
    assert triggers(db) == armed


def test_writer_who_holds_a_parent_is_not_the_deadlock_victim(
    db: Connection, session: NewSession
) -> None:
    """The revert has note 2 and, to put note 1 back, must see that the deal is there and stays."""
    write(db, "agent", "delete from notes where id = 1; update notes set body = 'x' where id = 2")
    person, reverter = session(), session()
    person.run("begin", "select from deals where id = 1 for update")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=person)
    finishes(person, person.run_later("update notes set body = 'mia' where id = 2"))
    edited = snapshot(db, *TABLES)
    assert {given for _, given in reason(failure(running))} == {"row_changed"}
    assert_same(edited, snapshot(db, *TABLES))


def test_idle_writer_holds_up_the_revert_but_nobody_behind_it(
    db: Connection, session: NewSession
) -> None:
    """A revert that must silence a trigger queues for the table, and others queue behind it.

    It has to leave the queue again: another writer gets through while the idle one is still idle.
    """
    db.execute(SILENCED)
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    idle, other, reverter = session(), session(), session()
    idle.run("begin", "update notes set body = 'x'", "lock table deals in row exclusive mode")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=idle)
    other.run("update deals set amount = amount where id = 5")
    assert not running.done()
    assert deal(db, 1) == ("Won", "EVE", 100)
    idle.run("rollback")
    assert outcome(running).status == "reverted"
    assert deal(db, 1) == ("New", "eve", 100)
    db.execute("alter table deals disable trigger touch")
    db.execute("update deals set owner = 'eve' where id = 5")
    assert_same(before, snapshot(db, *TABLES))


def test_revert_that_waits_in_vain_gives_up_and_leaves_nothing(
    db: Connection, session: NewSession
) -> None:
    """The caller's own lock_timeout is how long it tries."""
    db.execute(SILENCED)
    write(db, "agent", "update deals set stage = 'Won'")
    armed, after = triggers(db), snapshot(db, *TABLES)
    person, reverter = session(), session()
    person.run("begin", "update deals set amount = 1 where id = 5")
    reverter.run("set lock_timeout = '1s'")
    error = failure(reverter.later(revert, reverter.conn, "agent"))
    assert error.sqlstate == "55P03"
    person.run("rollback")
    assert_same(after, snapshot(db, *TABLES))
    assert triggers(db) == armed
    assert rows(db, "select * from agentundo.events") == []
    assert scalar(reverter.conn, "show lock_timeout") == "1s"
    assert revert(reverter.conn, "agent").status == "reverted"
    assert scalar(reverter.conn, "show lock_timeout") == "1s"


# Transactions that have nothing to do with it ---------------------------------------------------


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_long_open_transaction_changes_nothing(
    db: Connection, session: NewSession, level: str
) -> None:
    """One was open before the agent wrote, with a snapshot and an id of its own, and still is."""
    db.execute("create table elsewhere (id int)")
    old = session()
    old.run(
        f"begin isolation level {level}",
        "insert into elsewhere values (1)",
        "select count(*) from deals",
    )
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    write(db, "later", "update deals set owner = 'bot' where id = 1")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert [(c["key"], c["reason"]) for c in caught.conflicts] == [({"id": 1}, "row_changed")]
    result: Result = revert(db, ["agent", "later"])
    assert (result.status, result.counts) == ("reverted", (0, 1, 5, 0, 0))
    assert_same(before, snapshot(db, *TABLES))
    old.run("commit")
    assert_same(before, snapshot(db, *TABLES))


def test_many_rows_of_two_tables_go_back_however_long_it_takes_to_lock_them(
    db: Connection, session: NewSession
) -> None:
    """Nobody is there to give way to."""
    db.execute(
        "create table many (id int primary key, v text);"
        "insert into many select n, 'old' from generate_series(1, 8000) n;"
        "create table few (id int primary key, v text); insert into few values (1, 'old');"
        "select agentundo.track('many'); select agentundo.track('few')"
    )
    tables = ("public.many", "public.few")
    before = snapshot(db, *tables)
    write(db, "agent", "update few set v = 'agent'; update many set v = 'agent'")
    reverter = session(options=f"{PATIENT} -c deadlock_timeout=8ms -c lock_timeout=4s")
    result = revert(reverter.conn, "agent")
    assert (result.status, result.counts) == ("reverted", (0, 0, 8001, 0, 0))
    assert_same(before, snapshot(db, *tables))


@pytest.mark.parametrize("timeout", ["1ms", "2ms", "3ms"])
def test_lock_timeout_holds_where_deadlocks_are_looked_for_at_once(
    db: Connection, session: NewSession, timeout: str
) -> None:
    """A wait of less than a millisecond is none, not one without end."""
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    edited = snapshot(db, *TABLES)
    person = session()
    impatient = f"-c statement_timeout=5s -c deadlock_timeout={timeout} -c lock_timeout=300ms"
    reverter = session(options=impatient)
    person.run("begin", "select from deals where id = 1 for update")
    with refused("55P03") as caught:
        revert(reverter.conn, "agent")
    assert "somebody holds rows or tables of this undo for longer than" in caught.message
    assert_same(edited, snapshot(db, *TABLES))
    assert scalar(reverter.conn, "show lock_timeout") == "300ms"
    person.run("rollback")
    assert revert(reverter.conn, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
