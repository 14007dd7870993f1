"""A database with deals and notes, and the two obstacles that several files need."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection
from tests.support.undo import IMPATIENT, write


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with deals and the notes that refer to them, both tracked."""
    conn = connect(options=IMPATIENT)
    conn.execute(
        "create table deals"
        " (id int primary key, stage text, owner text, amount int, code text unique)"
    )
    conn.execute("create table notes (id int primary key, deal int references deals, body text)")
    conn.execute(
        "insert into deals select n, 'New', 'eve', 100 * n, 'c' || n from generate_series(1, 5) n"
    )
    conn.execute("insert into notes values (1, 1, 'first')")
    conn.execute("select agentundo.track('deals'), agentundo.track('notes')")
    return conn


@pytest.fixture
def other_column(db: Connection) -> Connection:
    """An agent changes the stages of two deals, then a person the owner of the first."""
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    db.execute("update deals set owner = 'mia' where id = 1")
    return db


@pytest.fixture
def same_column(db: Connection) -> Connection:
    """An agent changes stage and amount of two deals, then a person the stage of the first."""
    write(db, "agent", "update deals set stage = 'Won', amount = 0 where id in (1, 2)")
    db.execute("update deals set stage = 'Negotiation' where id = 1")
    return db
