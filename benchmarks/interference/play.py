"""Plays histories in a database: each transaction really committed, each policy rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.common import Connection
from benchmarks.interference.model import (
    COUNTER,
    PERSON,
    SCHEMA,
    TABLES,
    Add,
    Delete,
    History,
    Insert,
    Place,
    State,
    Transaction,
    Update,
    Value,
    Write,
)

_STATE = " union all ".join(
    f"select '{table}', to_jsonb(t), xmin::text from {table} t where id between %(first)s and"
    " %(last)s"
    for table in TABLES
)
#: Of a row: which transaction wrote it last.
Versions = dict[Place, str]


class Undone(Exception):
    """Ends a policy's transaction: nothing of it may stay."""


def prepare(conn: Connection, capture: str) -> None:
    """Make the tables and track them."""
    # Small undos are mostly planning, and generic plans spare a third of it.
    conn.execute("set plan_cache_mode = force_generic_plan")
    conn.execute(SCHEMA.encode())
    for table in TABLES:
        conn.execute("select agentundo.track(%s::regclass, %s)", [table, capture])
    conn.execute("select agentundo.set_merge('deals', %s, 'delta')", [COUNTER])


def read(conn: Connection, history: History) -> tuple[State, Versions]:
    """Return a history's rows and their versions."""
    first, last = history.range
    state: State = {}
    versions: Versions = {}
    for table, row, version in conn.execute(_STATE.encode(), {"first": first, "last": last}):
        state[table, row["id"]] = row
        versions[table, row["id"]] = version
    return state, versions


def play(conn: Connection, history: History) -> Versions:
    """Write a history; return the versions as the agent left them."""
    _commit(conn, "".join(_sql(insert) for insert in history.before))
    for transaction in history.invocation:
        _commit(conn, _statements(history, transaction))
    _, versions = read(conn, history)
    for transaction in history.later:
        _commit(conn, _statements(history, transaction))
    return versions


@contextmanager
def rolled_back(conn: Connection) -> Iterator[None]:
    """Run something in a transaction of which nothing stays."""
    with conn.transaction(force_rollback=True):
        yield


def _commit(conn: Connection, statements: str) -> None:
    conn.execute(f"begin; {statements} commit".encode())


def _statements(history: History, transaction: Transaction) -> str:
    text = ""
    for part in transaction:
        if part.writer != PERSON:
            text += f"select agentundo.tag('{history.invocation_id(part.writer)}'); "
        text += "".join(_sql(write) for write in part.writes)
    return text


def _sql(write: Write) -> str:
    match write:
        case Insert(table, values):
            listed = ", ".join(map(_literal, values.values()))
            return f"insert into {table} ({', '.join(values)}) values ({listed}); "
        case Update(table, key, values):
            listed = ", ".join(f"{c} = {_literal(value)}" for c, value in values.items())
            return f"update {table} set {listed} where id = {key}; "
        case Add(key, by):
            return f"update deals set {COUNTER} = {COUNTER} + ({by}) where id = {key}; "
        case Delete(table, key):
            return f"delete from {table} where id = {key}; "


def _literal(value: Value) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
