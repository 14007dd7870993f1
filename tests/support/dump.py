"""Dumps of a database as text that can be compared."""

from __future__ import annotations

import re
import subprocess

from tests.support.servers import Server


def dump(server: Server, dsn: str, *options: str) -> str:
    """Return ``pg_dump`` of a database, by default of its schema, without what differs anyway."""
    program = server.bindir / "pg_dump" if server.bindir else "pg_dump"
    command = [program, *(options or ["--schema-only"]), f"--dbname={dsn}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.sub(r"^\\(un)?restrict .*\n", "", text, flags=re.MULTILINE)
