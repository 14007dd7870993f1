"""A database as the recipes take it for granted, and their code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pyagentundo import AgentUndo
from tests.conftest import Connect, Connection
from tests.support import pages
from tests.support.undo import IMPATIENT

TABLE = "public.deals"
Recipe = Callable[[str], dict[str, Any]]


@pytest.fixture
def db(connect: Connect, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """Connect to a database with two tracked deals, which the environment names."""
    conn = connect(options=IMPATIENT)
    conn.execute(
        "create table deals (id int primary key, stage text not null, amount numeric(12,2));"
        " insert into deals values (1, 'Open', 1000), (2, 'Open', 2000)"
    )
    conn.execute("select agentundo.track('deals', 'all')")
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", dsn)
    return conn


@pytest.fixture
def recipe(db: Connection) -> Iterator[Recipe]:
    """Return what runs the code of a recipe and returns its names."""
    with ExitStack() as opened:

        def get(title: str) -> dict[str, Any]:
            with asyncio.Runner() as runner:
                names = pages.run(pages.section("recipes.md", title), {}, runner)
            if isinstance(names["undo"], AgentUndo):
                opened.callback(names["undo"].close)
            return names

        yield get


@pytest.fixture
def undo(dsn: str, db: Connection) -> Iterator[AgentUndo]:
    """Return an `AgentUndo` to look with."""
    with AgentUndo(dsn) as undo:
        yield undo
