"""What the measurements share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that something takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def write(
    conn: Connection,
    *statements: str,
    tag: str | None = None,
    run: str | None = None,
    step: int | None = None,
) -> float:
    """Run statements in one transaction, under a tag if one is given; return its seconds."""

    def transaction() -> None:
        with conn.transaction():
            if tag:
                conn.execute("select agentundo.tag(%s, run => %s, step => %s)", [tag, run, step])
            for statement in statements:
                conn.execute(statement.encode())

    return timed(transaction)
