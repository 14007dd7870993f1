"""PgBouncer in transaction mode, with a single connection to the server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PATIENCE = 10.0
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
def pooler(dsn: str, folder: Path) -> Iterator[str]:
    """Run PgBouncer before a database; skips the test where there is none.

    Args:
        dsn: how the pool connects, in key=value form.
        folder: for its settings; others must be able to read it.

    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("needs PgBouncer")
    parts = conninfo_to_dict(dsn)
    server = {name: parts[name] for name in ("host", "port", "user", "password") if name in parts}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    written = folder / "pgbouncer.ini"
    written.write_text(_SETTINGS.format(server=make_conninfo("", **server), port=port))
    # It refuses root, and the server's socket may be for the server's user alone.
    run_as: dict[str, Any] = {}
    if os.geteuid() == 0:
        host = str(parts.get("host", ""))
        owner = Path(host).stat().st_uid if host.startswith("/") else 65534
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
        run_as = {"user": owner or 65534, "group": 65534, "extra_groups": []}
    process = subprocess.Popen(
        [program, written],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **run_as,
    )
    pooled = make_conninfo("", host="127.0.0.1", port=port, user="any", dbname=parts["dbname"])
    try:
        _wait_for(pooled, process)
        yield pooled
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _wait_for(dsn: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return
