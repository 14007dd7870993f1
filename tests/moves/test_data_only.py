"""The data are restored into a schema that is there already, with all triggers switched off.

`pg_restore --disable-triggers` switches them on again the ordinary way, so that ours would be
silent under `session_replication_role = replica`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import FORMS, move
from tests.support.moving import COPIED
from tests.support.servers import Server
from tests.support.there_and_back import changes
from tests.support.undo import revert, rows, write

pytestmark = pytest.mark.core


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_triggers_that_a_restore_has_switched_off_and_on_are_reported_and_mended(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path, capture: str
) -> None:
    """Where no event trigger does it at once."""
    story = moving.begin(db, capture=capture, followed=False)
    move(server, FORMS["schema, then data"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        moving.assert_arrived(there, story, "value")
        found = moving.errors(there)
        assert COPIED in found
        for table in ("deals", "notes", "visits_1", "lines"):
            problem = (
                "trigger agentundo_update is not ENABLE ALWAYS;"
                " writes under session_replication_role = replica are not captured"
            )
            assert (f"app.{table}", problem) in found
        there.execute("select agentundo.sync()")
        assert moving.errors(there) == []
        with there.transaction():
            there.execute("set local session_replication_role = replica")
            write(there, "replica", "update app.notes set body = 'new' where id = 10")
        assert changes(there, "replica") == [("app.notes", "update", 1)]
        assert revert(there, "replica").status == "reverted"
        moving.assert_goes_back(there, story)


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_nothing_of_what_is_restored_is_captured(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path, capture: str
) -> None:
    """Our event trigger must not arm the triggers that pg_restore has just switched off."""
    story = moving.begin(db, capture=capture)
    move(server, FORMS["schema, then data"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        assert COPIED in moving.errors(there)
        everything = "select change, invocation, relation, rows from agentundo.changes order by 1"
        assert rows(there, everything) == rows(db, everything)
        moving.assert_arrived(there, story, "value")
        there.execute("select agentundo.sync()")
        assert moving.errors(there) == []
        moving.assert_goes_on(there)
        moving.assert_goes_back(there, story)
