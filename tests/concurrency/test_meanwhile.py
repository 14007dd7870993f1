"""Plans and reverts that wait while a table, or agentundo itself, is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyagentundo import installer
from tests.concurrency.conftest import NewSession
from tests.conftest import Connect, Connection
from tests.support.deals import TABLES
from tests.support.sessions import PATIENT, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, redo, refused, revert, rows, write

pytestmark = pytest.mark.core

#: A revert gives way after an eighth of this; here it waits until the other one is done.
STUBBORN = f"{PATIENT} -c deadlock_timeout=100s"


@pytest.mark.parametrize(
    "change",
    ["rename column owner to keeper", "drop column owner", "alter column amount type bigint"],
)
@pytest.mark.parametrize("what", [plan, revert], ids=["plan", "revert"])
def test_a_column_changes_while_the_table_is_waited_for(
    db: Connection,
    session: NewSession,
    change: str,
    what: Callable[..., Any],
) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    migration, waiting = session(), session(options=STUBBORN)
    migration.run("begin", f"alter table deals {change}")
    running = waiting.later(what, waiting.conn, "agent")
    waiting.wait_until_blocked(running, by=migration)
    migration.run("commit")
    outcome(running)
    assert [(row.status, row.action) for row in plan(db, "agent")] in ([], [("ok", "update")])


def test_agentundo_is_upgraded_while_a_revert_waits_for_a_row(
    db: Connection,
    session: NewSession,
    connect: Connect,
) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    writer, reverter = session(), session()
    writer.run("begin", "select from deals where id = 1 for update")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=writer)
    installer.upgrade(connect())
    writer.run("commit")
    assert outcome(running).status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize(
    ("what", "mode"),
    [(plan, "abort"), (plan, "cascade"), (revert, "cascade")],
    ids=["plan", "plan cascade", "revert cascade"],
)
def test_agentundo_is_upgraded_while_a_table_is_waited_for(
    db: Connection,
    session: NewSession,
    connect: Connect,
    what: Callable[..., Any],
    mode: str,
) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    holder, waiting = session(), session(options=STUBBORN)
    holder.run("begin", "lock table deals in access exclusive mode")
    running = waiting.later(what, waiting.conn, "agent", on_conflict=mode)
    waiting.wait_until_blocked(running, by=holder)
    installer.upgrade(connect())
    holder.run("commit")
    outcome(running)


def test_a_plan_with_an_old_snapshot_asks_for_a_new_one(
    db: Connection, session: NewSession
) -> None:
    """It sees the columns of then, and the table has those of now."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    old = session()
    old.run("begin isolation level repeatable read", "select 1 from notes")
    db.execute("alter table deals rename column owner to keeper")
    with refused("40001") as caught:
        plan(old.conn, "agent")
    assert "a table was altered while it was looked at" in caught.message
    assert caught.hint == "Call it again, in a new transaction."


def test_a_tracked_table_is_dropped_while_somebody_syncs(
    db: Connection, session: NewSession
) -> None:
    """It must not fail because of us: what it leaves behind the next sync() finds."""
    syncing, owner = session(), session()
    syncing.run("begin", "select agentundo.sync()")
    dropping = owner.run_later("drop table notes")
    try:
        outcome(dropping)
    finally:
        syncing.run("commit")
    assert db.execute("select to_regclass('notes')").fetchone() == (None,)
    db.execute("select agentundo.sync()")
    assert (
        db.execute("select object from agentundo.check() where severity = 'error'").fetchall() == []
    )


def test_all_writes_are_to_be_captured_while_a_migration_is_under_way(
    db: Connection, session: NewSession
) -> None:
    """The table is locked before what we know of it: the migration never waits for us."""
    migration, tracking = session(), session()
    migration.run("begin", "lock table deals in access exclusive mode")
    running = tracking.run_later("select agentundo.track('deals', 'all')")
    tracking.wait_until_blocked(running, by=migration)
    migration.run("alter table deals add column late int", "commit")
    outcome(running)
    found = db.execute(
        "select capture, health from agentundo.tracked where relation = 'public.deals'"
    )
    assert found.fetchall() == [("all", "ok")]


@pytest.mark.parametrize("found", ["id = 1", "id > 5"], ids=["updated", "inserted"])
def test_a_column_is_added_while_the_table_is_waited_for_and_nobody_follows(
    db: Connection, session: NewSession, found: str
) -> None:
    """Without our event triggers, as where the installer was no superuser."""
    db.execute("drop event trigger agentundo_ddl; drop event trigger agentundo_drop")
    before = snapshot(db, *TABLES)
    did = "insert into deals values (6, 'Won', 'bot', 0)" if ">" in found else ""
    write(db, "agent", did or "update deals set stage = 'Won' where id = 1")
    migration, reverter = session(), session(options=STUBBORN)
    migration.run(
        "begin",
        "alter table deals add column rank text not null default 'then'",
        "alter table deals alter rank set default 'now'",
    )
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=migration)
    migration.run("commit")
    result = outcome(running)
    assert (result.status, sum(result.counts)) == ("reverted", 1)
    assert rows(db, "select distinct rank from deals") == [("then",)]

    result = redo(db, "agent")
    assert (result.status, sum(result.counts)) == ("reverted", 1)
    done = "select stage, owner, amount, rank from deals where " + found
    expected = ("Won", "bot", 0, "then") if did else ("Won", "eve", 100, "then")
    assert rows(db, done) == [expected]
    assert rows(db, "select distinct rank from deals") == [("then",)]

    assert revert(db, "agent").status == "reverted"
    db.execute("alter table deals drop column rank")
    assert_same(before, snapshot(db, *TABLES))
