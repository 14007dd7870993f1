"""Upgrades an embedded server to a newer major version, with pg_upgrade."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import SETTINGS, Server
from tests.support.waiting import wait_until


@contextmanager
def upgraded(server: Server, bindir: Path) -> Iterator[None]:
    """Stop a server and run its upgraded cluster in its place, under the same address.

    Args:
        server: an embedded one; it does not run any more afterwards. Every database that
            pg_upgrade has objections to makes this fail.
        bindir: the programs of the newer version.

    """
    assert server.embedded is not None
    embedded = server.embedded
    old, new, sockets = (embedded.directory / name for name in ("data", "upgraded", "s"))
    superuser = psycopg.conninfo.conninfo_to_dict(server.dsn())["user"]
    _run(server, [embedded.bindir / "pg_ctl", "-D", old, "-m", "fast", "stop"])
    made: list[str | Path] = [bindir / "initdb", "-D", new, f"--username={superuser}"]
    made += ["--encoding=UTF8", "--locale=C", "--no-sync", "--auth-local=trust"]
    if int(_run(server, [bindir / "initdb", "--version"]).split()[-1].split(".")[0]) >= 18:
        made += ["--no-data-checksums"]  # they became the default, and both must have them or not
    _run(server, made)
    moved: list[str | Path] = [bindir / "pg_upgrade", "-U", str(superuser), "-s", sockets]
    moved += ["-b", embedded.bindir, "-B", bindir, "-d", old, "-D", new]
    _run(server, moved)
    options = {**SETTINGS, "fsync": "off", "port": str(embedded.port)}
    options |= {"listen_addresses": "", "unix_socket_directories": str(sockets)}
    command = [str(bindir / "postgres"), "-D", str(new)]
    command += [f"--{name}={value}" for name, value in options.items()]
    with (embedded.directory / "upgraded.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=embedded.directory, **_as_owner(server)
        )
    try:
        wait_until(lambda: _answers(server), what="the upgraded server")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def _as_owner(server: Server) -> dict[str, Any]:
    """Return how to start a program as the user whose files the server has, if we are root."""
    assert server.embedded is not None
    if os.geteuid() != 0:
        return {}
    owner = (server.embedded.directory / "data").stat()
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}


def _run(server: Server, command: Sequence[str | Path]) -> str:
    assert server.embedded is not None
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in command],
        cwd=server.embedded.directory,
        capture_output=True,
        text=True,
        check=False,
        **_as_owner(server),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _answers(server: Server) -> bool:
    try:
        psycopg.connect(server.dsn()).close()
    except psycopg.OperationalError:
        return False
    return True
