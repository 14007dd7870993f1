"""Dumps of a database: as text that can be compared, and restored elsewhere."""

from __future__ import annotations

import difflib
import itertools
import re
import subprocess
from pathlib import Path

import pytest

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


#: Commands that dump and restore a whole database; SOURCE, TARGET and FILE stand for what they say.
#: None of them goes on after an error.
FORMS = {
    "custom": ["pg_dump -Fc -f FILE -d SOURCE", "pg_restore -e -d TARGET FILE"],
    "custom, one transaction": [
        "pg_dump -Fc -f FILE -d SOURCE",
        "pg_restore -e --single-transaction -d TARGET FILE",
    ],
    "custom, in sections": [
        "pg_dump -Fc -f FILE -d SOURCE",
        "pg_restore -e --section=pre-data -d TARGET FILE",
        "pg_restore -e --section=data -d TARGET FILE",
        "pg_restore -e --section=post-data -d TARGET FILE",
    ],
    "directory": ["pg_dump -Fd -j2 -f FILE -d SOURCE", "pg_restore -e -j2 -d TARGET FILE"],
    "tar": ["pg_dump -Ft -f FILE -d SOURCE", "pg_restore -e -d TARGET FILE"],
    "plain": [
        "pg_dump -f FILE -d SOURCE",
        "psql -X -q -o /dev/null -v ON_ERROR_STOP=1 -d TARGET -f FILE",
    ],
    "schema, then data": [
        "pg_dump -Fc -f FILE -d SOURCE",
        "pg_restore -e --schema-only -d TARGET FILE",
        "pg_restore -e --data-only --disable-triggers -d TARGET FILE",
    ],
}


def move(server: Server, commands: list[str], source: str, target: str, folder: Path) -> None:
    """Run commands such as those of `FORMS`; fail if one of them has anything to complain about.

    Args:
        server: whose programs are taken; the test is skipped if they are not at hand.
        commands: words with blanks in between.
        source: the DSN that SOURCE stands for.
        target: the DSN that TARGET stands for.
        folder: where FILE may lie.

    """
    if server.bindir is None:
        pytest.skip("needs the server's own pg_dump")
    stands = {"SOURCE": source, "TARGET": target, "FILE": str(folder / "dump")}
    for command in commands:
        program, *arguments = command.split()
        words = [str(server.bindir / program), *(stands.get(word, word) for word in arguments)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{command}\n{done.stderr}"
