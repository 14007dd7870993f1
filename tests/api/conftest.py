"""A database with deals that an agent may write, and ways to reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from pyagentundo import AgentUndo
from tests.conftest import Connect, Connection
from tests.support.undo import IMPATIENT

TABLE = "public.deals"
MakeUndo = Callable[..., AgentUndo]


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect, in autocommit mode, to a database with three tracked deals."""
    conn = connect(options=IMPATIENT)
    conn.execute(
        "create table deals (id int primary key, stage text not null, amount numeric(12,2));"
        "insert into deals select n, 'Open', 1000 * n from generate_series(1, 3) n;"
        "create table scratch (n int)"
    )
    conn.execute("select agentundo.track('deals', 'all')")
    return conn


@pytest.fixture
def make_undo(dsn: str) -> Iterator[MakeUndo]:
    """Return what makes an `AgentUndo`, by default of the DSN; closed after the test."""
    with ExitStack() as opened:

        def make(source: Any = None, **options: Any) -> AgentUndo:
            options.setdefault("timeout", 5)
            return opened.enter_context(AgentUndo(source or dsn, **options))

        yield make


@pytest.fixture
def undo(db: Connection, make_undo: MakeUndo) -> AgentUndo:
    """Return an `AgentUndo` of the DSN."""
    return make_undo()


@pytest.fixture
def conn(dsn: str, db: Connection) -> Iterator[psycopg.Connection[Any]]:
    """Connect as applications do: a transaction begins with the first statement."""
    connection = psycopg.connect(dsn, options=IMPATIENT)
    yield connection
    connection.close()
