"""The recipes for psycopg_pool and for PgBouncer in transaction mode."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyagentundo import AgentUndo, AgentUndoError, InvocationPending
from tests.conftest import Connection
from tests.recipes.conftest import TABLE, Recipe
from tests.support.state import assert_same, snapshot
from tests.support.undo import rows
from tests.support.waiting import wait_until


@pytest.fixture
def deals(db: Connection) -> Connection:
    db.execute(
        "create schema crm; create table crm.deals (id text primary key, stage text);"
        " insert into crm.deals values ('D-881', 'Open')"
    )
    db.execute("select agentundo.track('crm.deals')")
    return db


@pytest.fixture
def pgbouncer(db: Connection) -> Iterator[str]:
    """Start PgBouncer in transaction mode, two connections a database; return its DSN."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    info = db.info
    backend = f"host={info.host} port={info.port} user={info.user}"
    if info.password:
        backend += f" password={info.password}"
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        ini = Path(home, "pgbouncer.ini")
        ini.write_text(
            f"[databases]\n* = {backend}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
            f"logfile = {home}/log\n"
        )
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            # It refuses root; the server's socket is its owner's alone.
            owner = Path(info.host if info.host.startswith("/") else "/").stat()
            user = {"user": owner.st_uid or 65534, "group": owner.st_gid, "extra_groups": []}
            for path in (home, ini):
                os.chown(path, user["user"], user["group"])
        process = subprocess.Popen(
            [program, ini], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user
        )
        dsn = make_conninfo(host="127.0.0.1", port=port, dbname=info.dbname, user=info.user)
        try:
            wait_until(lambda: _answers(dsn), what="pgbouncer to answer")
            yield dsn
        finally:
            process.terminate()
            process.wait()


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def test_psycopg_pool(deals: Connection, recipe: Recipe) -> None:
    before = snapshot(deals, "crm.deals")
    recipe("psycopg_pool")
    assert rows(deals, "select tool, status from agentundo.invocations where recorded") == [
        ("win", "reverted")
    ]
    assert_same(before, snapshot(deals, "crm.deals"))


def test_pgbouncer_recipe(
    deals: Connection, pgbouncer: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(deals, "crm.deals")
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", pgbouncer)
    recipe("PgBouncer")
    assert rows(deals, "select tool, status from agentundo.invocations where recorded") == [
        ("win", "reverted")
    ]
    assert_same(before, snapshot(deals, "crm.deals"))


def test_many_clients_of_pgbouncer_do_not_mix_their_tags(db: Connection, pgbouncer: str) -> None:
    db.execute("insert into deals select n, 'Open', 0 from generate_series(10, 17) n")
    failures: list[BaseException] = []

    def client(number: int) -> None:
        try:
            with (
                AgentUndo(pgbouncer, pool_size=1) as undo,
                psycopg.connect(pgbouncer, prepare_threshold=None) as conn,
            ):
                for turn in range(8):
                    name = f"call-{number}-{turn}"
                    with undo.invocation(conn, id=name, actor=f"bot-{number}"):
                        conn.execute("update deals set amount = amount + 1 where id = %s", [number])
                    found = conn.execute(
                        "select nullif(current_setting('agent.invocation', true), '')"
                    ).fetchone()
                    conn.rollback()
                    assert found == (None,)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows(
        db, "select actor, count(*), sum(rows) from agentundo.invocations group by 1 order by 1"
    ) == [(f"bot-{n}", 8, 8) for n in range(10, 18)]


def test_plans_and_failures_through_pgbouncer(db: Connection, pgbouncer: str) -> None:
    before = snapshot(db, TABLE)
    with AgentUndo(pgbouncer) as undo:
        with undo.invocation(id="call-1") as inv:
            inv.connection.execute("update deals set stage = 'Won'")
        assert sum(1 for _ in undo.iter_plan("call-1", page_rows=1)) == 2
        with pytest.raises(ZeroDivisionError), undo.invocation(id="call-2"):
            undo.connection().execute("delete from deals")
            _ = 1 / 0
        assert [(i.id, i.status) for i in undo.invocations(page_rows=1)] == [
            ("call-2", "failed"),
            ("call-1", "committed"),
        ]
        undo.record(id="call-3")
        with pytest.raises(InvocationPending):
            undo.record(id="call-3")
        assert undo.revert("call-1").rows_updated == 2
        with pytest.raises(AgentUndoError):
            undo.get("nobody")
    assert_same(before, snapshot(db, TABLE))
