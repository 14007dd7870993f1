"""The whole state of tables, for comparing before with after bit for bit.

What is exact about it is `pyagentundo.testing`'s: users compare with the same.
"""

from __future__ import annotations

from typing import Any

import psycopg

from pyagentundo.testing._running import ask
from pyagentundo.testing._state import TableState, all_tables, differences, tables

Snapshot = dict[str, TableState]


def snapshot(conn: psycopg.Connection[Any], *names: str) -> Snapshot:
    """Read tables whole, partitions and inheritance children included.

    Args:
        conn: any connection that may read them; an open transaction is left as it was.
        names: tables, as ``regclass`` reads them.

    """
    return ask(conn, tables(names))


def everything(conn: psycopg.Connection[Any]) -> Snapshot:
    """Read all tables that are not ours, tracked or not; named as our tests name them."""
    return {name.removeprefix("public."): one for name, one in ask(conn, all_tables()).items()}


def assert_same(before: Snapshot, after: Snapshot) -> None:
    """Fail with the rows that differ, are missing or new, if the two differ in anything."""
    complaints = ["\n".join(lines) for lines in differences(before, after).values()]
    assert not complaints, "state differs\n" + "\n".join(complaints)
