"""A database as the pages take it for granted, and a shell beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.servers import Server
from tests.support.shell import Shell

#: Roles that the pages name.
PEOPLE = ("crm_owner", "crm_app", "crm_bot", "dana", "eve", "olga")


@pytest.fixture
def people(server: Server) -> Iterator[None]:
    """Create the roles that are missing, dropped after the database: roles span databases."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        there = {name for (name,) in conn.execute("select rolname from pg_roles")}
        missing = [name for name in PEOPLE if name not in there]
        for name in missing:
            conn.execute(f"create role {name} login".encode())
        yield
        for name in missing:
            conn.execute(f"drop role {name}".encode())


@pytest.fixture
def db(people: None, db: Connection) -> Connection:
    """Make the tables of a small CRM."""
    db.execute(
        "create table deals (id text primary key, stage text not null, owner text,"
        "   amount numeric(12,2));"
        " insert into deals values"
        "   ('D-881', 'Offered', 'dana', 12000), ('D-882', 'Offered', 'dana', 900);"
        " create table accounts (id int primary key, balance numeric(12,2) not null);"
        " insert into accounts values (1, 100), (2, 50);"
        " create table people (id int primary key, name text);"
        " insert into people values (4711, 'Ada');"
        " alter table deals owner to crm_owner; alter table accounts owner to crm_owner;"
        " alter table people owner to crm_owner;"
        " grant select, update on deals to eve;"
        " grant select, insert, update, delete on deals, accounts, people to crm_bot, crm_app;"
        " grant select on deals, accounts to dana, olga"
    )
    return db


@pytest.fixture
def shell(server: Server, dsn: str, tmp_path: Path) -> Shell:
    """Return a shell in which psql and agentundo find the database."""
    return Shell.of(dsn, server.bindir, tmp_path)
