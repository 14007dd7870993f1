"""One schema is dumped and put back where it was, or the history is left out of a dump.

The tables are other ones then. Our triggers come along with them and must not pretend to capture:
captured writes are refused, `check` says so, and `track` makes it right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import move
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import FORCE, plan, refused, revert, write

pytestmark = pytest.mark.core

_STRAY = (
    "it carries triggers of ours but is not tracked here: a dump has brought them;"
    " captured writes are refused"
)


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "not followed"])
@pytest.mark.parametrize("what", ["schema", "table"])
def test_what_is_put_back_from_a_dump_of_its_own_is_another_table(
    db: Connection, dsn: str, server: Server, tmp_path: Path, followed: bool, what: str
) -> None:
    story = moving.begin(db, followed=followed)
    chosen = {"schema": "-n app", "table": "-t app.deals"}[what]
    gone = {"schema": "drop schema app cascade", "table": "drop table app.deals cascade"}[what]
    move(server, [f"pg_dump -Fc {chosen} -f FILE -d SOURCE"], dsn, dsn, tmp_path)
    run(db, gone)
    move(server, ["pg_restore -e -d TARGET FILE"], dsn, dsn, tmp_path)
    assert_same(story.left, snapshot(db, *moving.TABLES))

    assert ("app.deals", _STRAY) in moving.errors(db)
    with refused("UN008") as caught:
        write(db, "lost", "update app.deals set owner = 'bot'")
    assert "agentundo.track('app.deals')" in caught.hint
    for arguments in ({}, FORCE):
        with refused("UN001") as caught:
            revert(db, "second", **arguments)
        assert set(caught.reasons) == {"schema_changed"}
    assert_same(story.left, snapshot(db, *moving.TABLES))

    run(db, "select agentundo.sync()", *(f"select agentundo.track('{t}')" for t in moving.TABLES))
    assert moving.errors(db) == []
    moving.assert_goes_on(db)
    assert {row.reason for row in plan(db, "second")} == {"schema_changed"}
    assert_same(story.left, snapshot(db, *moving.TABLES))
