"""Our own connections: few, opened late, closed at the end, and not shared with a child process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pyagentundo import AgentUndo
from tests.api.conftest import MakeUndo
from tests.conftest import Connection
from tests.support.undo import scalar
from tests.support.waiting import wait_until

_OURS = (
    "select count(*) from pg_stat_activity"
    " where application_name = 'agentundo' and datname = current_database()"
)


def test_nothing_connects_before_it_is_needed(db: Connection, dsn: str) -> None:
    undo = AgentUndo(dsn)
    assert scalar(db, _OURS) == 0
    undo.undoable()
    assert scalar(db, _OURS) == 1
    undo.record()
    undo.record()
    assert scalar(db, _OURS) == 2
    undo.close()
    wait_until(lambda: scalar(db, _OURS) == 0, what="our sessions to end")
    undo.undoable()  # opened again
    del undo
    gc.collect()
    wait_until(lambda: scalar(db, _OURS) == 0, what="our sessions to end")


def test_from_the_environment(db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", dsn)
    with AgentUndo() as undo:
        assert undo.record().created


def test_the_pools_own_address(db: Connection, dsn: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    kwargs = {"dbname": parts.pop("dbname"), "row_factory": psycopg.rows.dict_row}
    address = psycopg.conninfo.make_conninfo("", **parts)
    with ConnectionPool(address, kwargs=kwargs, min_size=1) as pool, AgentUndo(pool) as undo:
        with undo.invocation() as inv:
            inv.connection.execute("update deals set stage = 'x'")
        assert undo.get(inv.id).rows == 3
    with (
        ConnectionPool(lambda: address, kwargs=lambda: kwargs, min_size=1) as pool,
        AgentUndo(pool) as undo,
    ):
        assert undo.record().created
    with ConnectionPool("host=nowhere", open=False) as pool, AgentUndo(pool, dsn=dsn) as undo:
        assert undo.record().created


def test_records_do_not_wait_for_each_other_for_ever(undo: AgentUndo, db: Connection) -> None:
    threads = [threading.Thread(target=undo.record) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(undo.log(limit=100)) == 30
    assert scalar(db, _OURS) <= 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_process_leaves_the_parents_connections_alone(
    db: Connection, dsn: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from pyagentundo import AgentUndo\n"
        "undo = AgentUndo(sys.argv[1])\n"
        "undo.record(id='parent'); undo.undoable()\n"
        "child = os.fork()\n"
        "undo.record(id=f'after {child == 0}'); undo.undoable()\n"
        "if child == 0: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "undo.record(id='at the end'); undo.undoable()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script, dsn],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    with AgentUndo(dsn) as undo:
        assert {one.id for one in undo.log()} == {
            "parent",
            "after True",
            "after False",
            "at the end",
        }


def test_through_a_pooler_nothing_is_prepared(make_undo: MakeUndo, db: Connection) -> None:
    undo = make_undo(pool_size=1)
    for _ in range(20):
        with undo.invocation() as inv:
            pass
    with undo._calls.connection() as conn:
        assert scalar(conn, "select count(*) from pg_prepared_statements") == 0
    assert inv.status == "committed"
