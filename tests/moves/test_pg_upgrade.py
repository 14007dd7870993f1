"""A cluster is upgraded in place: rows keep their versions, tables their numbers."""

from __future__ import annotations

import pytest

from tests.support import matrix, moving
from tests.support.clusters import upgraded
from tests.support.servers import start


@pytest.mark.slow
def test_what_was_written_before_pg_upgrade_goes_back_after_it() -> None:
    """From 15 to 18; databases with nothing but agentundo in them are upgraded along."""
    server = start(matrix.binaries(15))
    try:
        database = server.database(installed=True)
        database.init()
        dsn = server.dsn(database.dbname)
        with moving.opened(dsn) as here:
            story = moving.begin(here)
        with upgraded(server, matrix.binaries(18)), moving.opened(dsn) as there:
            assert there.info.server_version // 10000 == 18
            assert moving.errors(there) == []
            moving.assert_arrived(there, story, "version")
            moving.assert_goes_on(there)
            moving.assert_goes_back(there, story)
            there.execute("select agentundo.sync()")
            moving.assert_goes_on(there, "after sync")
    finally:
        server.close()
