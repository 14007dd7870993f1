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
