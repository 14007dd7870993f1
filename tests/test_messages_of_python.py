"""What the Python says when it refuses, word for word, where no other test looks at the words.

tests/test_messages.py tells which messages are looked at nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pyagentundo import AgentUndo, AgentUndoError, InvocationPending, PoolTimeout, UsageError
from pyagentundo._binaries import find_binaries
from pyagentundo._sync.pool import Pool
from pyagentundo.cli import main
from pyagentundo.embedded import EmbeddedServer, _wait_until_gone
from tests.conftest import Connection


@pytest.fixture
def undo(db: Connection, dsn: str) -> AgentUndo:
    db.execute("create table t (id int primary key); select agentundo.track('t')")
    return AgentUndo(dsn, timeout=5)


def said(error: type[AgentUndoError], call: Callable[[], Any]) -> str:
    """Return the message of an error that has a hint."""
    with pytest.raises(error) as raised:
        call()
    assert raised.value.hint
    return raised.value.message


def test_arguments_that_cannot_be_meant(undo: AgentUndo) -> None:
    wrong: Any = 5
    with undo:
        assert said(UsageError, lambda: undo.tool(wrong)) == "The tool's name is 5, no text."
        assert (
            said(UsageError, lambda: undo.plan("call", merge=wrong))
            == "merge is 5, neither True nor False."
        )
        assert said(UsageError, lambda: undo.log(run=wrong)) == "run is of type int, not a text."
        assert (
            said(UsageError, lambda: undo.row_history("t", {"id": "one"}))
            == 'This is no key of t: invalid input syntax for type integer: "one".'
        )


def test_a_call_that_is_being_made_elsewhere(undo: AgentUndo) -> None:
    with undo:
        undo.record(id="call")
        assert said(InvocationPending, lambda: undo.invocation(id="call").__enter__()) == (
            "Invocation 'call' is pending: it is being made elsewhere, or whoever made it died."
        )


def test_a_tool_whose_work_is_still_to_come(undo: AgentUndo) -> None:
    @undo.tool
    def later(conn: Any) -> Any:
        return (conn for _ in ())

    with undo:
        assert said(UsageError, later) == (
            "The tool returned a generator: what that does would happen after the call, untagged"
            " and not to be undone."
        )


def test_a_pool_that_is_used_up(dsn: str) -> None:
    pool = Pool(dsn, None, size=1, timeout=0, what="records")

    def second() -> None:
        with pool.connection():
            pass

    with pool.connection():
        assert said(PoolTimeout, second) == "All 1 connections for records were in use for 0 s."
    pool.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["demo", "--keep", "--stop", "."],
            "--keep begins a demo and --stop ends one: give one of them.",
        ),
        (
            ["history", "t", '{"id": ' + "[" * 100_000],
            "The key is no JSON object: nested too deeply.",
        ),
        (
            ["purge", "--older-than", "30", "--yes"],
            "Invalid value for --older-than: '30' has a number without a unit, which would be"
            " seconds. Give one such as '30 days', '12 hours' or '1 month'.",
        ),
    ],
    ids=["demo", "history", "purge"],
)
def test_commands(dsn: str, undo: AgentUndo, arguments: list[str], message: str) -> None:
    environment = {} if arguments[0] == "demo" else {"AGENTUNDO_DATABASE_URL": dsn}
    result = CliRunner().invoke(main, arguments, env=environment)
    assert result.exit_code == 2
    assert f"Error: {message}\n" in result.stderr


def test_root_without_anybody_to_run_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwall", lambda: [SimpleNamespace(pw_name="root")])
    assert said(AgentUndoError, EmbeddedServer().start).startswith(
        "PostgreSQL does not run as root, and none of "
    )


def test_a_server_that_cannot_be_made(tmp_path: Path) -> None:
    bindir = tmp_path / "bin"
    bindir.mkdir()
    for name in ("initdb", "postgres", "pg_ctl"):
        program = bindir / name
        program.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no room\nexit 1\n')
        program.chmod(0o755)
    for directory in (tmp_path, bindir):
        directory.chmod(0o755)
    assert find_binaries() != bindir
    assert said(AgentUndoError, EmbeddedServer(bindir=bindir).start) == "initdb failed: no room"


def test_a_server_that_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyagentundo.embedded._STOP_SECONDS", -1)
    pid_file = tmp_path / "data" / "postmaster.pid"
    pid_file.parent.mkdir()
    pid_file.write_text("4711\n")
    assert (
        said(AgentUndoError, lambda: _wait_until_gone(pid_file))
        == f"The server in {tmp_path} does not stop."
    )
