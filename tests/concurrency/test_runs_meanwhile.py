"""A run goes on while it is taken back: what it commits meanwhile belongs to it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connect, Connection, MakeRole
from tests.support.deals import TABLES, deal
from tests.support.sessions import Session, failure, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import FORCE, Result, plan_run, redo, revert_run, rows, status, tag, write

pytestmark = pytest.mark.core

MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "merge": {"merge": True},
    "skip": {"on_conflict": "skip"},
    "cascade": {"on_conflict": "cascade"},
    "force": FORCE,
}


def begin(agent: Session, call: str, statement: str, **companions: Any) -> None:
    agent.run("begin")
    tag(agent.conn, call, **companions)
    agent.run(statement)


def reverting(reverter: Session, run: str, **arguments: Any) -> Future[Result]:
    return reverter.later(revert_run, reverter.conn, run, **arguments)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_writes_the_same_row_comes_along(
    db: Connection, session: NewSession, mode: str
) -> None:
    """It is the revert itself that waits for it: not somebody else's later work."""
    before = snapshot(db, *TABLES)
    write(db, "first", "update deals set stage = 'first' where id = 1", run="run")
    agent, reverter = session(), session()
    begin(agent, "second", "update deals set stage = 'second' where id = 1", run="run")
    running = reverting(reverter, "run", **MODES[mode])
    reverter.wait_until_blocked(running, by=agent)
    agent.run("commit")

    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert result.invocations == ["first", "second"]
    assert_same(before, snapshot(db, *TABLES))
    assert (status(db, "first"), status(db, "second")) == ("reverted", "reverted")
    assert revert_run(db, "run").status == "already_reverted"

    again = redo(db, "second")
    assert (again.status, again.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert deal(db, 1) == ("second", "eve", 100)


def test_a_call_that_writes_another_row_comes_along(db: Connection, session: NewSession) -> None:
    """The revert waits for a person; the run has gone on before that one is done."""
    before = snapshot(db, *TABLES)
    write(db, "first", "update deals set stage = 'first' where id = 1", run="run")
    person, agent, reverter = session(), session(), session()
    begin(agent, "second", "update deals set stage = 'second' where id = 2", run="run")
    person.run("begin", "select from deals where id = 1 for update")
    running = reverting(reverter, "run")
    reverter.wait_until_blocked(running, by=person)
    agent.run("commit")
    person.run("commit")

    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (0, 0, 2, 0, 0))
    assert result.invocations == ["first", "second"]
    assert_same(before, snapshot(db, *TABLES))
    assert (status(db, "first"), status(db, "second")) == ("reverted", "reverted")
    assert rows(db, "select kind from agentundo.events") == [("invocation_reverted",)]


def test_a_call_in_another_table_comes_along(db: Connection, session: NewSession) -> None:
    """Neither is there a row in common, nor a table that the revert has locked."""
    before = snapshot(db, *TABLES)
    write(db, "first", "update deals set stage = 'first' where id = 1", run="run")
    person, agent, reverter = session(), session(), session()
    begin(agent, "second", "delete from notes", run="run")
    person.run("begin", "lock table deals in access exclusive mode")
    running = reverting(reverter, "run")
    reverter.wait_until_blocked(running, by=person)
    agent.run("commit")
    person.run("commit")

    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (0, 3, 1, 0, 0))
    assert result.invocations == ["first", "second"]
    assert_same(before, snapshot(db, *TABLES))


def test_of_a_run_from_a_step_on_only_later_calls_come_along(
    db: Connection, session: NewSession
) -> None:
    write(db, "second", "update deals set stage = 'second' where id = 2", run="run", step=2)
    left = snapshot(db, *TABLES)
    first, third, person, reverter = session(), session(), session(), session()
    begin(first, "first", "update deals set stage = 'first' where id = 1", run="run", step=1)
    begin(third, "third", "update deals set stage = 'third' where id = 3", run="run", step=3)
    person.run("begin", "select from deals where id = 2 for update")
    running = reverting(reverter, "run", from_step=2)
    reverter.wait_until_blocked(running, by=person)
    first.run("commit")
    third.run("commit")
    person.run("commit")

    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (0, 0, 2, 0, 0))
    assert result.invocations == ["second", "third"]
    assert deal(db, 1) == ("first", "eve", 100)
    db.execute("update deals set stage = 'New' where id = 1")
    db.execute("update deals set stage = 'second' where id = 2")
    assert_same(left, snapshot(db, *TABLES))
    assert status(db, "first") == "committed"


def test_a_call_of_another_scope_does_not_come_along(db: Connection, session: NewSession) -> None:
    write(db, "ours", "update deals set stage = 'ours' where id = 1", run="run", scope="acme")
    person, agent, reverter = session(), session(), session()
    begin(
        agent, "theirs", "update deals set stage = 'theirs' where id = 2", run="run", scope="other"
    )
    person.run("begin", "select from deals where id = 1 for update")
    running = reverting(reverter, "run", scope="acme")
    reverter.wait_until_blocked(running, by=person)
    agent.run("commit")
    person.run("commit")
    result = outcome(running)
    assert (result.status, result.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert result.invocations == ["ours"]
    assert (deal(db, 1), deal(db, 2)) == (("New", "eve", 100), ("theirs", "eve", 200))
    assert status(db, "theirs") == "committed"


def test_a_call_on_behalf_of_somebody_else_is_no_way_around_the_policy(
    db: Connection, session: NewSession, connect: Connect, make_role: MakeRole
) -> None:
    """Who may revert the run as it was may not revert what has come to it: nothing is done."""
    app = make_role(member_of="agentundo_app")
    db.execute(f"grant select on deals, notes to {app}".encode())
    write(
        db, "mine", "update deals set stage = 'mine' where id = 1", run="run", on_behalf_of="dana"
    )
    person, agent, reverter = session(), session(), session(user=app)
    begin(
        agent,
        "others",
        "update deals set stage = 'others' where id = 2",
        run="run",
        on_behalf_of="eve",
    )
    person.run("begin", "select from deals where id = 1 for update")
    running = reverting(reverter, "run", reverted_by="dana")
    reverter.wait_until_blocked(running, by=person)
    agent.run("commit")
    edited = snapshot(db, *TABLES)
    person.run("commit")
    error = failure(running)
    assert error.sqlstate == "UN003"
    assert "'dana' may not revert invocation 'others'" in str(error.diag.message_primary)
    assert_same(edited, snapshot(db, *TABLES))
    assert (status(db, "mine"), status(db, "others")) == ("committed", "committed")
    assert rows(db, "select * from agentundo.events") == []


def test_a_call_that_was_only_tagged_keeps_its_step(db: Connection) -> None:
    """Undoing it makes a record of it, in which its step must not get lost."""
    before = snapshot(db, *TABLES)
    for step in (5, 6):
        statement = f"update deals set stage = 'step {step}' where id = {step - 4}"
        write(db, f"call {step}", statement, run="run", step=step)
    last = revert_run(db, "run", from_step=6)
    assert (last.status, last.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert last.invocations == ["call 6"]
    assert plan_run(db, "run", from_step=6) == []
    assert revert_run(db, "run", from_step=6).status == "already_reverted"
    assert (status(db, "call 5"), status(db, "call 6")) == ("committed", "reverted")
    both = revert_run(db, "run", from_step=5)
    assert (both.status, both.invocations) == ("reverted", ["call 5"])
    assert_same(before, snapshot(db, *TABLES))
