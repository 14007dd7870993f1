"""Looking at what could be undone, where nothing may be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyagentundo.embedded import EmbeddedServer
from tests.conftest import Connect, Connection
from tests.support.servers import Server
from tests.support.sessions import PATIENT
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, revert, rows, scalar, write
from tests.support.waiting import wait_until

TABLES = ("public.deals", "public.notes")
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


@pytest.fixture
def written(db: Connection) -> Connection:
    """Leave one invocation in conflict with another, one taken back, one that ran into nothing."""
    db.execute("create table log (line text, n int); select agentundo.track('log')")
    write(db, "agent", "update deals set stage = 'Won'; delete from notes", run="run", step=1)
    write(db, "other", "update deals set owner = 'bot' where id = 1", run="run", step=2)
    write(db, "logged", "insert into log values ('a', 1), ('a', 1)", run="run", step=3)
    write(db, "undone", "update deals set amount = 0 where id = 2", run="more")
    revert(db, "undone")
    db.execute("select agentundo.record_effect('agent', 'mail', 'none', 'a mail')")
    return db


def answers(conn: Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {query: rows(conn, query) for query in READERS}


@pytest.mark.core
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_everything_that_reads_works_in_a_read_only_transaction(
    written: Connection, level: str
) -> None:
    expected = answers(written)
    assert all(expected[query] for query in READERS if "check" not in query)
    assert {row.status for row in plan(written, "agent")} == {"ok", "conflict"}
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
    for call in ("revert('logged')", "redo('undone')", "revert_run('run')"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), written.transaction():
            written.execute("set transaction read only")
            written.execute(f"select agentundo.{call}".encode())
    assert_same(before, snapshot(written, *TABLES))


# On a hot standby -------------------------------------------------------------------------------


@pytest.fixture
def primary(own_server: Server) -> Server:
    """A server that standbys can follow."""
    assert own_server.embedded is not None
    with psycopg.connect(own_server.dsn(), autocommit=True) as conn:
        assert scalar(conn, "show wal_level") == "replica"
        assert scalar(conn, "show full_page_writes") == "off"
        conn.execute("alter system set full_page_writes = on")
    return own_server
