"""A shell as a reader of the documentation has it: psql and agentundo at hand, a database named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.terminal import ROOT, Session, shell_on_terminal

_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
}


@dataclass(frozen=True)
class Shell:
    """Runs commands of the documentation.

    Attributes:
        environment: variables beside those of the test run.

    """

    environment: dict[str, str]

    @classmethod
    def of(cls, dsn: str, bindir: Path | None, scratch: Path) -> Shell:
        """Return a shell for a database.

        Args:
            dsn: the database.
            bindir: where its psql is; None: on PATH, or the test is skipped.
            scratch: where to put the command.

        """
        psql = bindir / "psql" if bindir else shutil.which("psql")
        if psql is None or not Path(psql).exists():
            pytest.skip("needs psql")
        command = scratch / "agentundo"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pyagentundo "$@"\n')
        command.chmod(0o755)
        address = {k: str(v) for k, v in conninfo_to_dict(dsn).items() if v is not None}
        named = {_VARIABLES[name]: address[name] for name in _VARIABLES if name in address}
        path = os.pathsep.join([str(scratch), str(Path(psql).parent), os.environ["PATH"]])
        return cls(
            {**named, "AGENTUNDO_DATABASE_URL": dsn, "PATH": path, "PYTHONPATH": str(ROOT)}
            | {"PAGER": "", "PSQLRC": os.devnull, "TZ": "UTC"}
        )

    def run(self, command: str, *, code: int = 0) -> str:
        """Run a command without a terminal; return what it prints."""
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            env={**os.environ, **self.environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def sql(self, script: str) -> str:
        """Run SQL as psql does; the first error fails."""
        return self.run(f"psql -X -q -v ON_ERROR_STOP=1 <<'END_OF_SQL'\n{script}\nEND_OF_SQL")

    def type(self, command: str, *, columns: int = 80) -> Session:
        """Run a command on a terminal."""
        return shell_on_terminal(command, columns=columns, **self.environment)
