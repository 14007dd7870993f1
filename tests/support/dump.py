"""Dumps of a database as text that can be compared."""

from __future__ import annotations

import difflib
import itertools
import re
import subprocess

from tests.support.servers import Server


def dump(server: Server, dsn: str, *options: str) -> str:
    """Return ``pg_dump`` of a database, by default of its schema, without what differs anyway."""
    program = server.bindir / "pg_dump" if server.bindir else "pg_dump"
    command = [program, *(options or ["--schema-only"]), f"--dbname={dsn}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"^\\(un)?restrict .*\n", "", text, flags=re.MULTILINE)
    # Capture functions know the number of their table, which is another one in each database.
    return re.sub(r"<>\) \d+::pg_catalog\.oid", "<>) OID", text)


def assert_same_dump(expected: str, actual: str) -> None:
    """Fail with the lines that differ."""
    lines = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), "expected", "actual", lineterm="", n=2
    )
    assert expected == actual, "dumps differ\n" + "\n".join(itertools.islice(lines, 60))
