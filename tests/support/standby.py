"""A hot standby of a test's server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.servers import Server
from tests.support.waiting import wait_until


@contextmanager
def standby(server: Server, dbname: str) -> Iterator[str]:
    """Run a hot standby of an embedded server; yield the DSN of a database on it."""
    assert server.embedded is not None
    embedded = server.embedded
    owner = embedded.log.parent.joinpath("data").stat()
    base = Path(tempfile.mkdtemp(prefix="agentundo-standby-", dir="/tmp"))
    data = base / "data"
    as_owner: dict[str, Any] = {}
    process = None
    try:
        if os.geteuid() == 0:
            shutil.chown(base, owner.st_uid, owner.st_gid)
            as_owner = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        backup: list[str | Path] = [embedded.bindir / "pg_basebackup", f"--pgdata={data}"]
        backup += ["--write-recovery-conf"]
        backup += ["--checkpoint=fast", "--no-sync", f"--dbname={server.dsn()}"]
        subprocess.run(backup, check=True, capture_output=True, cwd=base, **as_owner)
        settings = {**embedded_settings(server), "port": "5432", "listen_addresses": ""}
        options = [f"--{name}={value}" for name, value in settings.items()]
        command: list[str | Path] = [embedded.bindir / "postgres", "-D", data]
        command += [f"--unix_socket_directories={base}"]
        with (base / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, cwd=base, **as_owner
            )
        dsn = make_conninfo(server.dsn(dbname), host=str(base), port=5432)

        def caught_up() -> bool:
            assert process is not None
            assert process.poll() is None, (base / "log").read_text()
            try:
                with psycopg.connect(dsn) as conn, psycopg.connect(server.dsn()) as primary:
                    where = primary.execute("select pg_current_wal_lsn()").fetchone()
                    assert where is not None
                    query = "select pg_is_in_recovery() and pg_last_wal_replay_lsn() >= %s::pg_lsn"
                    return conn.execute(query, where).fetchone() == (True,)
            except psycopg.OperationalError:
                return False

        wait_until(caught_up, what="the standby to catch up")
        yield dsn
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        shutil.rmtree(base, ignore_errors=True)


def embedded_settings(server: Server) -> dict[str, str]:
    """Read what a standby must not have less of than its primary."""
    names = [
        "max_connections", "max_prepared_transactions", "max_locks_per_transaction",
        "max_worker_processes", "max_wal_senders",
    ]  # fmt: skip
    with psycopg.connect(server.dsn()) as conn:
        query = "select name, setting from pg_settings where name = any (%s)"
        return dict(conn.execute(query, [names]).fetchall())
