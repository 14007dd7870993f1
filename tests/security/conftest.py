"""Impatient connections, and a role that owns a schema and tells as whom its code runs."""

from __future__ import annotations

import pytest
from psycopg import sql

from tests.cases.conftest import connect as connect
from tests.conftest import Connection, MakeRole


@pytest.fixture
def mallory(db: Connection, make_role: MakeRole) -> str:
    """Return a role that owns a schema and notes in `hers.proof` as whom its code has run."""
    role = make_role()
    db.execute(
        sql.SQL(
            "create schema hers authorization {role}; grant usage on schema hers to public;"
            "set role {role}; create table hers.proof (who text);"
            "grant insert on hers.proof to public;"
            "create function hers.note() returns void language sql volatile as"
            " 'insert into hers.proof values (current_user)';"
            "create function hers.one(int) returns int immutable language plpgsql as $$ begin"
            " if current_user like 'agentundo%' then perform hers.note(); end if; return 1; end $$;"
            "reset role"
        ).format(role=sql.Identifier(role))
    )
    return role


def proof(db: Connection) -> set[str]:
    """Return as whom mallory's code has run."""
    return {who for (who,) in db.execute("select who from hers.proof")}
