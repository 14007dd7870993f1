"""Copies of the files keep the versions of rows and the numbers of tables: nothing is lost."""

from __future__ import annotations

from contextlib import closing

import psycopg

from tests.conftest import Connection
from tests.support import moving
from tests.support.servers import Server
from tests.support.standby import standby
from tests.support.undo import plan


def test_database_made_from_another_as_its_template(
    db: Connection, dsn: str, server: Server
) -> None:
    story = moving.begin(db)
    old = db.info.dbname
    db.close()
    new = f"{old}_copy"
    with psycopg.connect(server.dsn(), autocommit=True) as janitor:
        janitor.execute(f"create database {new} template {old}".encode())
        try:
            with moving.opened(server.dsn(new)) as there:
                _assert_nothing_is_lost(there, story)
        finally:
            janitor.execute(f"drop database {new} with (force)".encode())


def test_standby_that_takes_over(own_server: Server) -> None:
    with own_server.database(installed=True) as database:
        with moving.opened(own_server.dsn(database.dbname)) as here:
            story = moving.begin(here)
        with standby(own_server, database.dbname) as dsn, closing(psycopg.connect(dsn)) as there:
            assert moving.bases(plan(there, "first")) == {"version"}
            there.rollback()
            there.autocommit = True
            there.execute("select pg_promote()")
            _assert_nothing_is_lost(there, story)


def _assert_nothing_is_lost(there: Connection, story: moving.Story) -> None:
    assert moving.errors(there) == []
    moving.assert_arrived(there, story, "version")
    moving.assert_goes_on(there)
    moving.assert_goes_back(there, story)
