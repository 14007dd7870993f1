"""Dumps in which history, or all that is ours, was left out."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import move
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import plan, revert


def test_history_without_its_images_is_not_said_to_be_taken_back(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    story = moving.begin(db)
    dumped = "pg_dump -Fc --exclude-table-data=agentundo_history.* -f FILE -d SOURCE"
    move(server, [dumped, "pg_restore -e -d TARGET FILE"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        there.execute("select agentundo.sync()")
        assert moving.errors(there) != []
        planned = plan(there, "first")
        assert planned
        assert {row.status for row in planned} == {"conflict"}
        with pytest.raises(psycopg.Error):
            revert(there, "first")
        assert_same(story.left, snapshot(there, *moving.TABLES))
        moving.assert_goes_on(there)


def test_tables_are_tracked_anew_where_all_of_ours_was_left_out(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    moving.begin(db)
    dumped = "pg_dump -Fc --exclude-table-data=agentundo*.* -f FILE -d SOURCE"
    move(server, [dumped, "pg_restore -e -d TARGET FILE"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        run(there, *(f"select agentundo.track('{table}')" for table in moving.TABLES))
        moving.assert_goes_on(there)
