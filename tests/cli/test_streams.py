"""Standard streams that are missing, full, or read by nobody any more."""

from __future__ import annotations

import os
import subprocess

import psycopg
import pytest

from pyagentundo.cli import _queries
from tests.cli.conftest import Run
from tests.conftest import Connection, MakeRole
from tests.support.terminal import COMMAND, ROOT

READING = [
    ["log"],
    ["log", "--json"],
    ["show", "call-1"],
    ["diff", "call-1"],
    ["plan", "call-1"],
    ["plan", "call-1", "--json", "--rows"],
    ["status"],
    ["history", "public.deals", "D-881"],
    ["events"],
    ["sql"],
    ["install", "--dry-run"],
    ["revert", "call-1", "--dry-run"],
    ["purge", "--older-than", "0 s", "--dry-run"],
    ["completion", "bash"],
    ["--help"],
    ["revert", "--help"],
]
FULL = "stdout cannot be written: No space left on device\n"


def redirected(
    redirection: str, *arguments: str, dsn: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``agentundo`` as a shell does that is told ``agentundo ARGUMENTS REDIRECTION``."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, "AGENTUNDO_DATABASE_URL": dsn},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_reverted(db: Connection) -> bool:
    return db.execute("select stage from public.deals where id = 'D-881'").fetchall() == [
        ("Qualified",)
    ]


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing(deals: Connection, dsn: str, redirection: str) -> None:
    said = redirected(redirection, "revert", "call-1", dsn=dsn)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("reverted: ") == (redirection in ("<&-", "2>&-"))
    assert is_reverted(deals)
    for arguments in READING:
        said = redirected(redirection, *arguments, dsn=dsn)
        assert said.returncode == 0, arguments
        assert said.stderr in ("", "note: dry run: rolled back\n"), arguments
    said = redirected(redirection, "show", "nobody", dsn=dsn)
    assert said.returncode == 1
    assert said.stderr.startswith("error: ") == ("2>" not in redirection)


def test_without_stdin_nobody_can_be_asked(deals: Connection, dsn: str) -> None:
    for command in (
        ["purge"],
        ["untrack", "public.deals", "--drop-history"],
        ["erase", "public.deals", "D-881", "--reason", "r"],
        ["uninstall"],
    ):
        said = redirected("<&-", *command, dsn=dsn)
        assert said.returncode == 2
        assert "There is no terminal to ask on" in said.stderr


def test_full(deals: Connection, dsn: str) -> None:
    deals.execute("select agentundo._emit('test', null)")
    for arguments in READING:
        said = redirected(">/dev/full", *arguments, dsn=dsn)
        assert (said.returncode, said.stderr) == (1, f"error: {FULL}"), arguments
    assert not is_reverted(deals)
    said = redirected("2>/dev/full", "show", "nobody", dsn=dsn)
    assert (said.returncode, said.stdout) == (1, "")


def test_what_is_committed_is_told_elsewhere_and_is_no_failure(
    deals: Connection, dsn: str, make_role: MakeRole
) -> None:
    role = make_role()
    deals.execute("update public.deals set stage = 'Lost' where id = 'D-881'")  # in the way
    for arguments, code, told in (
        (["revert", "call-1", "--on-conflict", "skip", "--yes"], 3, "not reverted: call-1"),
        (["revert", "call-2", "--yes", "--json"], 0, '"status": "reverted"'),
        (["redo", "call-2", "--yes"], 0, "redone: call-2"),
        (["hold", "call-1", "--reason", "r"], 0, "held: call-1, 1 change\n"),
        (["grant", role, "--as", "operator", "--apply"], 0, "granted: grant"),
        (["purge", "--older-than", "0 s", "--yes"], 0, "purged: "),
        (["erase", "public.deals", "D-881", "--reason", "r", "--yes"], 0, "erased: "),
        (["untrack", "public.deals"], 0, "no longer captured"),
        (["track", "public.deals"], 0, "captured from now on"),
        (["uninstall", "--yes"], 0, "removed: agentundo"),
        (["install"], 0, "installed: agentundo"),
    ):
        said = redirected(">/dev/full", *arguments, dsn=dsn)
        assert f"note: {FULL}" in said.stderr, arguments
        assert told in said.stderr.partition(FULL)[2]
        assert "error: " not in said.stderr
        assert said.returncode == code, arguments


def test_read_by_nobody_any_more(deals: Connection, dsn: str) -> None:
    read, write = os.pipe()
    os.close(read)
    said = subprocess.run(
        [*COMMAND, "revert", "call-1", "--dsn", dsn],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert said.returncode == 0
    assert said.stderr.startswith(b"note: stdout cannot be written: Broken pipe\nreverted: call-1")
    assert is_reverted(deals)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_exec_ends_as_its_program_does(deals: Connection, dsn: str, redirection: str) -> None:
    look = "for n in 0 1 2; do readlink /proc/$$/fd/$n; done | grep -c socket; exit 7"
    said = redirected(redirection, "exec", "--", "sh", "-c", look, dsn=dsn)
    assert said.returncode == 7
    assert said.stdout in ("0\n", ""), "the program has not got our connection as its stderr"


@pytest.mark.parametrize("failure", [psycopg.OperationalError("lost"), KeyboardInterrupt()])
def test_a_failure_after_the_commit_says_so(
    deals: Connection, cli: Run, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(_queries, "uncovered", fail)
    assert "What was done before that is committed.\n" in cli("revert", "call-1", code=1).stderr
    assert is_reverted(deals)
    assert "committed" not in cli("show", "nobody", code=1).stderr
