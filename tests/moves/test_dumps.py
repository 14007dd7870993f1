"""A database is dumped and restored elsewhere, whole, in every form that there is.

Restored rows have other versions, tables other numbers, columns too where some had been dropped. So
what was written before is compared by value; `check` says that, and `sync` makes versions worth
something again.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pyagentundo import installer
from tests.conftest import Connection, MakeRole
from tests.support import moving
from tests.support.dump import FORMS, move
from tests.support.moving import COPIED, RENUMBERED
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.undo import refused, revert, write

pytestmark = pytest.mark.core


@pytest.mark.parametrize("form", FORMS)
def test_what_was_written_before_a_dump_goes_back_after_the_restore(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path, form: str
) -> None:
    story = moving.begin(db)
    move(server, FORMS[form], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        moving.assert_arrived(there, story, "value")
        there.execute("select agentundo.sync()")
        assert moving.errors(there) == []
        moving.assert_goes_on(there)
        moving.assert_goes_back(there, story)


@pytest.mark.parametrize("form", ["plain", "custom, one transaction"])
def test_until_sync_a_write_to_a_table_with_other_numbers_is_refused(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path, form: str
) -> None:
    """All else works from the first moment on."""
    story = moving.begin(db, capture="all")
    move(server, FORMS[form], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        assert moving.errors(there) == [COPIED, RENUMBERED]
        with refused("UN008") as caught:
            write(there, "new", "update app.deals set owner = 'bot'")
        assert "sync('app.deals')" in caught.hint
        assert_same(story.left, snapshot(there, *moving.TABLES))
        write(there, "other", "update app.notes set body = 'new'")
        assert revert(there, "other").status == "reverted"
        moving.assert_goes_back(there, story)


def test_ordinary_owner_of_two_databases_moves_one_to_the_other(
    server: Server, dsn: str, make_role: MakeRole, tmp_path: Path
) -> None:
    """Whoever could install it can restore it: nothing in the dump takes more rights."""
    owner = make_role()
    with server.database(installed=False) as old, server.database(installed=False) as new:
        with psycopg.connect(server.dsn(), autocommit=True) as janitor:
            for name in (old.dbname, new.dbname):
                janitor.execute(f"alter database {name} owner to {owner}".encode())
        source, target = (server.dsn(one.dbname, user=owner) for one in (old, new))
        with moving.opened(source) as here:
            installer.install(here)
            story = moving.begin(here)
        move(server, FORMS["plain"], source, target, tmp_path)
        with moving.opened(target) as there:
            moving.assert_arrived(there, story, "value")
            there.execute("select agentundo.sync()")
            assert moving.errors(there) == []
            moving.assert_goes_on(there)
            moving.assert_goes_back(there, story)
