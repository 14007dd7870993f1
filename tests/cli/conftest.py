"""What the tests of the command line share: a database with two calls of an agent, and a runner."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyagentundo.cli import main
from tests.conftest import Connection

Run = Callable[..., Result]
TABLES = ("public.deals", "public.meetings")


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show times in one zone, whatever machine this is."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("PGOPTIONS", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command on a database with agentundo installed, without a terminal."""
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", dsn)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    return run


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Return a connection to a database in which an agent has written two calls of one run."""
    db.execute(
        "create table public.deals (id text primary key, stage text, amount numeric(10, 2));"
        "insert into public.deals values ('D-881', 'Qualified', 10), ('D-882', 'New', 20);"
        "create table public.meetings (id int primary key, deal text, title text)"
    )
    for table in TABLES:
        db.execute("select agentundo.track(%s::regclass)", [table])
    writes(db, "call-1", "update public.deals set stage = 'Won' where id = 'D-881'", step=1)
    writes(db, "call-2", "insert into public.meetings values (1, 'D-881', 'Kickoff')", step=2)
    return db


def writes(
    conn: Connection,
    invocation: str,
    *statements: str,
    step: int | None = 1,
    run: str | None = "run-42",
    tool: str = "crm",
    person: str | None = "Dana",
    scope: str | None = None,
) -> None:
    """Write under a tag, as an agent does."""
    with conn.transaction():
        conn.execute(
            "select agentundo.tag(%s, run => %s, step => %s, tool => %s, actor => 'sales-bot',"
            " on_behalf_of => %s, scope => %s)",
            [invocation, run, step, tool, person, scope],
        )
        for statement in statements:
            conn.execute(statement.encode())


def loaded(result: Result) -> Any:
    """Read what a command printed with --json."""
    return json.loads(result.stdout)
