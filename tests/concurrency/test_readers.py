"""Looking at what could be undone, where nothing may be written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyagentundo.embedded import EmbeddedServer
from tests.concurrency.conftest import make_tables
from tests.conftest import Connection
from tests.support.deals import TABLES
from tests.support.servers import SETTINGS, Server
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, revert, rows, scalar, write
from tests.support.waiting import wait_until

READERS = (
    "select * from agentundo.plan('agent')",
    "select * from agentundo.plan(array['agent', 'other'], 'skip', true)",
    "select * from agentundo.plan('agent', 'cascade')",
    "select * from agentundo.plan_run('run')",
    "select * from agentundo.plan_summary(array['agent'])",
    "select * from agentundo.diff('agent')",
    "select * from agentundo.row_history('deals', '{\"id\": 1}')",
    "select agentundo.row_version('deals', '{\"id\": 1}')",
    "select * from agentundo.undoable()",
    "select * from agentundo.check()",
    "select agentundo.version()",
    *(
        f"select * from agentundo.{view}"
        for view in ("invocations", "runs", "changes", "events", "effects", "tracked")
    ),
)


def write_and_revert(db: Connection) -> None:
    """Leave an invocation in conflict with another, one without a key, one taken back."""
    db.execute("create table log (line text, n int); select agentundo.track('log')")
    write(db, "agent", "update deals set stage = 'Won'; delete from notes", run="run", step=1)
    write(db, "other", "update deals set owner = 'bot' where id = 1", run="run", step=2)
    write(db, "logged", "insert into log values ('a', 1), ('a', 1)", run="run", step=3)
    write(db, "undone", "update deals set amount = 0 where id = 2", run="more")
    revert(db, "undone")
    db.execute("select agentundo.record_effect('agent', 'mail', 'none', 'a mail')")


@pytest.fixture
def written(db: Connection) -> Connection:
    """Connect to a database in which there is something to look at."""
    write_and_revert(db)
    return db


def answers(conn: Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {query: rows(conn, query) for query in READERS}


@pytest.mark.core
def test_everything_that_reads_works_in_a_read_only_transaction(written: Connection) -> None:
    expected = answers(written)
    assert all(expected[query] for query in READERS if "check" not in query)
    assert {row.status for row in plan(written, "agent")} == {"ok", "conflict"}
    for level in ("read committed", "serializable"):
        with written.transaction():
            written.execute(f"set transaction isolation level {level}, read only".encode())
            assert answers(written) == expected
            # No lock that anybody else could notice, and no transaction id.
            assert scalar(written, "select pg_current_xact_id_if_assigned()") is None
            modes = "select distinct mode from pg_locks where pid = pg_backend_pid() and granted"
            taken = {mode for (mode,) in rows(written, f"{modes} and locktype <> 'virtualxid'")}
            assert taken <= {"AccessShareLock", "SIReadLock"}


@pytest.mark.core
def test_revert_in_a_read_only_transaction_is_refused(written: Connection) -> None:
    before = snapshot(written, *TABLES)
    written.execute("set default_transaction_read_only = on")
    for call in ("revert('logged')", "redo('undone')", "revert_run('run')"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            written.execute(f"select agentundo.{call}".encode())
    assert_same(before, snapshot(written, *TABLES))


# On a hot standby -------------------------------------------------------------------------------


class Standby(EmbeddedServer):
    """A server that starts as a copy of another one and follows it."""

    def __init__(self, primary: EmbeddedServer) -> None:
        # In place of what pg_basebackup writes, which libpq of another version may not understand.
        follow = {"primary_conninfo": primary.dsn()}
        super().__init__(bindir=primary.bindir, settings={**SETTINGS, **follow})
        self._primary = primary

    def _initdb(self) -> None:
        command: list[str | Path] = [self.bindir / "pg_basebackup", "--checkpoint=fast"]
        command += ["--write-recovery-conf", "--no-sync", f"--pgdata={self._directory / 'data'}"]
        result = self._run([*command, f"--dbname={self._primary.dsn()}"])
        assert result.returncode == 0, result.stdout.decode()


@pytest.mark.core
def test_everything_that_reads_works_on_a_hot_standby(own_server: Server) -> None:
    assert own_server.embedded is not None
    with (
        own_server.database(installed=True) as janitor,
        closing(psycopg.connect(own_server.dsn(janitor.dbname), autocommit=True)) as primary,
        Standby(own_server.embedded) as server,
        closing(psycopg.connect(server.dsn(janitor.dbname), autocommit=True)) as standby,
    ):
        primary.execute("set synchronous_commit = on")  # what is not flushed is not sent
        make_tables(primary)
        write_and_revert(primary)
        primary.execute("create table last ()")
        arrived = "select to_regclass('last') is not null"
        wait_until(lambda: bool(scalar(standby, arrived)), what="the standby")
        expected = answers(primary)
        assert scalar(standby, "select pg_is_in_recovery()")
        assert answers(standby) == expected
        for call in ("revert('logged')", "redo('undone')"):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                standby.execute(f"select agentundo.{call}".encode())
