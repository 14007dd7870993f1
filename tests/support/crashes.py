"""Stopping a test's server as a power cut would, and starting it again on the same files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import Server
from tests.support.waiting import wait_until


class Crashing:
    """A server that can be stopped without a checkpoint; it has to have been started durable.

    Args:
        server: nobody else's, with ``synchronous_commit`` on: else commits may be lost, as they
            may with any server that runs without.

    """

    def __init__(self, server: Server) -> None:
        assert server.embedded is not None
        self._embedded = server.embedded
        self._data = server.embedded.directory / "data"
        self._pg_ctl = server.embedded.bindir / "pg_ctl"
        self._dsn = server.dsn()
        owner = self._data.stat()
        #: The server refuses to run as root.
        self._as_owner: dict[str, Any] = (
            {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
            if os.geteuid() == 0
            else {}
        )
        # A postmaster whose parent waits for it would stay a zombie, which pg_ctl takes for alive.
        self._options = _options(self._data / "postmaster.opts")

    def crash(self) -> None:
        """Stop it at once: no checkpoint, no good-bye to sessions."""
        self._run("stop", "-m", "immediate", "-W")
        process = self._embedded._process
        if process is not None:
            process.wait(30)
        wait_until(
            lambda: not (self._data / "postmaster.pid").exists() or self._is_gone(),
            what="the server to be gone",
        )

    def restart(self) -> None:
        """Start it again; returns when it has recovered and takes connections."""
        with self._embedded.log.open("ab") as log:
            command: list[str | Path] = [self._embedded.bindir / "postgres", *self._options]
            self._embedded._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._data.parent,
                start_new_session=True,
                **self._as_owner,
            )

        def answers() -> bool:
            try:
                psycopg.connect(self._dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(answers, what="the server to recover", seconds=60)

    def _is_gone(self) -> bool:
        return self._run("status", check=False).returncode == 3

    def _run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command: list[str | Path] = [self._pg_ctl, *arguments, "-D", self._data]
        return subprocess.run(
            command, check=check, capture_output=True, cwd=self._data.parent, **self._as_owner
        )


def _options(file: Path) -> list[str]:
    """Read what the server was started with, its program left out."""
    _, *options = file.read_text().strip().split(' "')
    return [option.rstrip('"') for option in options]
