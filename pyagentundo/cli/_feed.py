"""Events in the order of their numbers, none left out and none twice.

Numbers are given out when an event is written and seen when its transaction commits, so a lower
number can appear after a higher one. Whoever remembers the last number that he saw would miss it.
Therefore nothing is handed out beyond a missing number until everybody who could still fill it has
finished: until no transaction runs any more that ran when the gap was noticed. (What writes an
event has written something else before, so it counts as running.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import DictRow

from pyagentundo.cli._connection import Connection

#: How many of the newest events are shown when nothing else was said.
_NEWEST = 20
_PAGE = 1000
#: How often to look while a number is missing, in seconds.
_GAP_PAUSE = 0.2


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which events: those after a number, or else the newest ones; of a kind, scope and time."""

    after: int | None = None
    kind: str | None = None
    scope: str | None = None
    since: datetime | None = None
    limit: int | None = None

    def includes(self, row: DictRow) -> bool:
        """Tell whether an event is one of these."""
        return (
            self.kind in (None, row["kind"])
            and self.scope in (None, row["scope"])
            and (self.since is None or row["at"] >= self.since)
        )


def now(conn: Connection, wanted: Wanted) -> Iterator[DictRow]:
    """Yield the events that there are, the oldest first."""
    if wanted.after is None:
        yield from _newest(conn, wanted)
        return
    left = wanted.limit
    for row in _after(conn, wanted.after):
        if left == 0:
            return
        if wanted.includes(row):
            yield row
            left = None if left is None else left - 1


def follow(conn: Connection, wanted: Wanted, *, every: float) -> Iterator[DictRow]:
    """Yield the events that there are and those that come; does not end.

    Args:
        conn: in autocommit mode; it listens where the server lets it.
        wanted: which.
        every: seconds between two looks when no notification arrives.

    """
    hears = _listen(conn)
    last = wanted.after
    if last is None:
        last = _last_number(conn)
        yield from _newest(conn, wanted, until=last)
    gap = _Gap()
    while True:
        moved = False
        for row in _after(conn, last):
            if row["event"] > last + 1 and not gap.is_dead(conn, last + 1, row["event"] - 1):
                break
            last, moved, gap = row["event"], True, _Gap()
            if wanted.includes(row):
                yield row
        if not moved:
            _wait(conn, _GAP_PAUSE if gap.open else every, hears=hears)


class _Gap:
    """Missing numbers, and the transactions that could still fill them."""

    def __init__(self) -> None:
        self.open = False
        self._until = 0

    def is_dead(self, conn: Connection, first: int, last: int) -> bool:
        """Tell whether nobody can fill any of these numbers any more."""
        snapshot = conn.execute(
            "select pg_snapshot_xmin(s)::text::bigint as oldest, pg_snapshot_xmax(s)::text::bigint"
            " as next from pg_current_snapshot() s"
        ).fetchall()[0]
        if not self.open:
            self.open, self._until = True, snapshot["next"]
        if snapshot["oldest"] < self._until:
            return False
        # Who could fill it has finished; it may have been filled since we looked.
        return not conn.execute(
            "select event from agentundo.events where event between %s and %s limit 1",
            [first, last],
        ).fetchall()


def _newest(conn: Connection, wanted: Wanted, until: int | None = None) -> Iterator[DictRow]:
    conditions: dict[str, Any] = {
        "kind = %(kind)s": wanted.kind,
        "scope = %(scope)s": wanted.scope,
        "at >= %(since)s": wanted.since,
        "event <= %(until)s": until,
    }
    where = " and ".join(text for text, value in conditions.items() if value is not None) or "true"
    values = {**vars(wanted), "until": until}
    values["limit"] = _NEWEST if wanted.limit is None else wanted.limit
    rows = conn.execute(
        f"select * from agentundo.events where {where}"
        " order by event desc limit %(limit)s".encode(),
        values,
    ).fetchall()
    yield from reversed(rows)


def _after(conn: Connection, number: int) -> Iterator[DictRow]:
    while True:
        rows = conn.execute(
            "select * from agentundo.events where event > %s order by event limit %s",
            [number, _PAGE],
        ).fetchall()
        yield from rows
        if len(rows) < _PAGE:
            return
        number = rows[-1]["event"]


def _last_number(conn: Connection) -> int:
    rows = conn.execute("select coalesce(max(event), 0) as last from agentundo.events").fetchall()
    return int(rows[0]["last"])


def _listen(conn: Connection) -> bool:
    """Ask to be woken up; a standby, and some poolers, do not do that."""
    try:
        conn.execute("listen agentundo")
    except psycopg.Error:
        return False
    return True


def _wait(conn: Connection, seconds: float, *, hears: bool) -> None:
    """Wait for a notification, and no longer than this. It is only a wake-up: anybody sends one."""
    if not hears:
        time.sleep(seconds)
        return
    for _ in conn.notifies(timeout=seconds, stop_after=1):
        return
