"""All that is in a database, ours included, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.state import Snapshot, assert_same, snapshot
from tests.support.undo import Connection, rows
from tests.support.undoing import assert_keys_hold, everything, triggers


@dataclass(frozen=True)
class Books:
    """Users' tables, our own and history, and the states of triggers."""

    tables: Snapshot
    ours: Snapshot
    armed: list[tuple[Any, ...]]


def read(conn: Connection) -> Books:
    """Read everything, as it is now."""
    ours = rows(
        conn,
        "select oid::regclass::text from pg_class where relkind = 'r' and relnamespace in"
        " ('agentundo'::regnamespace, 'agentundo_history'::regnamespace) order by 1",
    )
    return Books(everything(conn), snapshot(conn, *(name for (name,) in ours)), triggers(conn))


def assert_untouched(before: Books, conn: Connection) -> None:
    """Fail if anything is not as it was."""
    after = read(conn)
    assert_same(before.tables, after.tables)
    assert_same(before.ours, after.ours)
    assert after.armed == before.armed


def assert_sound(conn: Connection, armed: list[tuple[Any, ...]]) -> None:
    """Fail if a trigger, a key or a promise was left broken."""
    assert triggers(conn) == armed
    assert_keys_hold(conn)
    assert rows(conn, "select xid, tracked from agentundo._restoring") == []
    assert rows(conn, "select * from agentundo.check() where severity = 'error'") == []
