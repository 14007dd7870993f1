"""agentundo is upgraded while others use what the upgrade makes anew."""

from __future__ import annotations

import pytest

from pyagentundo import installer
from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES
from tests.support.sessions import outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import revert, rows, write

pytestmark = pytest.mark.core

#: What holds something that an upgrade replaces, until its transaction ends.
OPEN = [
    "select agentundo.sync()",
    "select agentundo.track('log')",
    "alter table deals add column stars int",
    "alter table notes add column stars int",
]


@pytest.mark.parametrize("held", OPEN)
def test_an_upgrade_that_was_overtaken_is_tried_again(
    db: Connection, session: NewSession, held: str
) -> None:
    """A function that somebody else has just replaced fails it with "concurrently updated"."""
    db.execute("create table log (id int primary key)")
    other, upgrader = session(), session()
    other.run("begin", held)
    running = upgrader.later(installer.upgrade, upgrader.conn)
    upgrader.wait_until_blocked(running, by=other)
    other.run("commit")
    assert outcome(running).action == "re-applied"
    assert rows(db, "select object from agentundo.check() where severity = 'error'") == []
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes")
    assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
