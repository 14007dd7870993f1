"""A database with a tracked table, one that is not tracked, and a sequence."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection
from tests.support.undo import IMPATIENT

TABLES = (
    "create table deals (id int primary key, stage text, amount numeric(12,2));"
    "insert into deals values (1, 'Open', 1000), (2, 'Open', 2000);"
    "create table audit (n serial, note text)"
)
WIN = "update deals set stage = 'Won' where id = 1"


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Make the tables; connect in autocommit mode."""
    conn = connect(options=IMPATIENT)
    conn.execute(TABLES.encode())
    conn.execute("select agentundo.track('deals')")
    return conn
