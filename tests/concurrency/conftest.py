"""Sessions that work side by side on two tracked tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.conftest import Connect, Connection
from tests.support.sessions import PATIENT, Session

NewSession = Callable[..., Session]


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with deals and notes, both tracked."""
    conn = connect(options=PATIENT)
    make_tables(conn)
    return conn


def make_tables(conn: Connection) -> None:
    """Make five deals and three notes that refer to them, tracked."""
    conn.execute("create table deals (id int primary key, stage text, owner text, amount int)")
    conn.execute("create table notes (id int primary key, deal int references deals, body text)")
    conn.execute("insert into deals select n, 'New', 'eve', 100 * n from generate_series(1, 5) n")
    conn.execute("insert into notes select n, n, 'note' from generate_series(1, 3) n")
    conn.execute("select agentundo.track('deals'), agentundo.track('notes')")


@pytest.fixture
def session(db: Connection, connect: Connect) -> Iterator[NewSession]:
    """Return what opens one more session; all are stopped before the database goes."""
    observer = connect(options=PATIENT)
    with ExitStack() as opened:

        def make(**options: Any) -> Session:
            options.setdefault("options", PATIENT)
            return opened.enter_context(closing(Session(connect(**options), observer)))

        yield make
