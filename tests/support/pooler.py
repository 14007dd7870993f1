"""PgBouncer in transaction mode, with a single connection to the server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PATIENCE = 10.0
_ATTEMPTS = 5
_SETTINGS = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 1
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pooler(dsn: str) -> Iterator[str]:
    """Run PgBouncer before a database; skips the test where there is none.

    Args:
        dsn: how the pool connects, in key=value form.

    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("needs PgBouncer")
    # Not under pytest's own folders: whom PgBouncer runs as may not get through those.
    with tempfile.TemporaryDirectory(prefix="agentundo-pooler-") as folder:
        process, pooled = _started(program, dsn, Path(folder))
        try:
            yield pooled
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def _started(program: str, dsn: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    parts = conninfo_to_dict(dsn)
    server = {name: parts[name] for name in ("host", "port", "user", "password") if name in parts}
    # It refuses root, and the server's socket may be for the server's user alone.
    run_as: dict[str, Any] = {}
    if os.geteuid() == 0:
        host = str(parts.get("host", ""))
        owner = Path(host).stat().st_uid if host.startswith("/") else 65534
        folder.chmod(0o755)
        run_as = {"user": owner or 65534, "group": 65534, "extra_groups": []}
    settings, log = folder / "pgbouncer.ini", folder / "log"
    for _ in range(_ATTEMPTS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings.write_text(_SETTINGS.format(server=make_conninfo("", **server), port=port))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, settings], stdin=subprocess.DEVNULL, stdout=out, stderr=out, **run_as
            )
        pooled = make_conninfo("", host="127.0.0.1", port=port, user="any", dbname=parts["dbname"])
        if _answers(pooled, process):
            return process, pooled
        # Somebody else may have taken the port between our look and its start.
        process.kill()
        process.wait(_PATIENCE)
    raise RuntimeError(f"PgBouncer does not start: {log.read_text()}")


def _answers(dsn: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    return False
