"""What an undo is about, put together for people: calls, rows, what stands in the way, how long.

The decisions are the server's; this only asks for them and sorts them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli import _json, _queries
from pyagentundo.cli._connection import Connection

#: Up to so many rows are shown one by one; beyond that they are counted.
FEW = 20
#: Of so many rows that force overwrites it is looked up who wrote them, where all are shown.
_MANY = 1000
#: A revert looks once more, locks and writes: measured, it takes two to three times as long as the
#: summary of its plan.
_REVERT_TO_PLAN = 2.5
#: A plan's rows that a revert would write, and those that it would leave.
ACTS = ("ok", "merge")
LEFT = ("conflict", "skip")


@dataclass(frozen=True)
class Overwritten:
    """Later work that an undo by force destroys.

    Attributes:
        total: in how many rows.
        rows: the first of them, as conflicts are: with ``reason``, and ``by`` where history knows
            who wrote the row.
        unasked: of how many rows it took too long to look up who wrote them.

    """

    total: int = 0
    rows: Sequence[dict[str, Any]] = ()
    unasked: int = 0

    def named(self, rows: Iterable[DictRow]) -> Iterator[DictRow]:
        """Pass the rows of a plan on, with ``by`` where it is known whose work is overwritten."""
        known = {_place(row): row["by"] for row in self.rows if "by" in row}
        for row in rows:
            if "forced" in (row["detail"] or {}) and _place(row) in known:
                row["by"] = known[_place(row)]
            yield row

    def told(self) -> dict[str, Any]:
        """Return what programs are told beside a plan."""
        return {"rows_overwritten": self.total, "overwritten": list(self.rows[:FEW])}


def _place(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["relation"], _json.dumps(row["key"], indent=None)


@dataclass(frozen=True)
class Plan:
    """A plan with all that is said beside it.

    Attributes:
        redo: it takes a revert back.
        calls: those that go back (or are done again), the newest first. Those of which
            nothing is left to go back are none.
        more: how many of them the role may not be told about.
        counts: rows per table, action and status, as ``plan_summary`` returns them; ``conflicts``
            hold ``by`` where history knows who wrote the row, ``constraint`` and ``in_the_way``
            where a constraint, and the table that it is of, keep it from going back, ``table_gone``
            where its own table is no more.
        rows: the rows themselves, as ``plan`` returns them; None when they are too many.
        by_row: they are shown from elsewhere.
        overwritten: later work that force destroys; None where the undo is not by force.
        effects: what left the database, which no revert of rows takes back.
        uncovered: tables that were written and are not tracked, as far as the calls were recorded.
        unread: what the role may not SELECT of these tables, in words; keys, values and names of
            these are not in the plan.
        unasked: of how many rows in the way it took too long to look up who wrote them.
        live: the columns that each table has now.
        reverts: where nothing is left to undo, what has taken it back.
        seconds: an estimate of how long it will take.

    """

    redo: bool
    calls: list[DictRow]
    more: int
    counts: list[DictRow]
    rows: list[DictRow] | None
    by_row: bool
    overwritten: Overwritten | None
    effects: list[DictRow]
    uncovered: list[str]
    unread: list[str]
    unasked: int
    live: dict[str, set[str]]
    reverts: list[DictRow]
    seconds: float

    def total(self, *statuses: str, action: str | None = None) -> int:
        """Return the number of rows of these statuses."""
        return sum(
            count["rows"]
            for count in self.counts
            if count["status"] in statuses and action in (None, count["action"])
        )

    @property
    def conflicts(self) -> list[dict[str, Any]]:
        """The first rows that stand in the way or would be left out."""
        return [
            {"relation": count["relation"], "status": count["status"], **conflict}
            for count in self.counts
            for conflict in count["conflicts"] or []
        ]

    @property
    def tables(self) -> list[str]:
        """The tables in which rows would be written."""
        return sorted({count["relation"] for count in self.counts if count["status"] in ACTS})

    @property
    def is_refused(self) -> bool:
        """Whether the revert would change nothing because of what stands in its way."""
        return self.total("conflict") > 0

    @property
    def is_whole(self) -> bool:
        """Whether all goes back."""
        return self.total(*LEFT) == 0


def make(
    conn: Connection, how: dict[str, Any], *, redone: list[str] | None = None, by_row: bool = False
) -> Plan:
    """Plan an undo.

    Args:
        conn: a connection; nothing is changed.
        how: the arguments of ``plan_summary``.
        redone: for a redo, the invocations that are done again.
        by_row: the rows will be shown from elsewhere and are not wanted here.

    Raises:
        AgentUndoError: as the server says.

    """
    began = time.monotonic()
    counts = _queries.call(conn, "plan_summary", how)
    seconds = time.monotonic() - began
    in_the_way = _with_relation(counts)
    _queries.mark_gone(conn, in_the_way)
    unasked = _queries.add_writers(conn, in_the_way, how)
    few = not by_row and sum(count["rows"] for count in counts) <= FEW
    lost = overwritten(conn, how, by_row=by_row)
    rows = list(with_outcome(conn, _queries.call(conn, "plan", how), lost)) if few else None
    ids = _all_of(conn, how, redone)
    told = _queries.told_of(conn, ids, how.get("scope"))
    relations = sorted({count["relation"] for count in counts})
    return Plan(
        redo=redone is not None,
        calls=[one for one in told if redone or one["undoable"]],
        more=len(ids) - len(told),
        counts=counts,
        rows=rows,
        by_row=by_row,
        overwritten=lost,
        **_beside(conn, ids, how, redone=redone),
        unread=_queries.unread(conn, relations),
        unasked=unasked,
        reverts=[] if counts or redone else _queries.reverts_of(conn, ids, how.get("scope")),
        live=_queries.live_columns(conn, relations),
        seconds=seconds * _REVERT_TO_PLAN,
    )


def beside(
    conn: Connection, how: dict[str, Any], *, redone: list[str] | None = None
) -> dict[str, list[Any]]:
    """Return the ``effects`` and the ``uncovered`` tables of a plan, without its rows."""
    return _beside(conn, _all_of(conn, how, redone), how, redone=redone)


def _beside(
    conn: Connection, ids: list[str], how: dict[str, Any], *, redone: list[str] | None
) -> dict[str, list[Any]]:
    """Return what a revert does not take back. A redo leaves it as it is."""
    if redone:
        return {"effects": [], "uncovered": []}
    return {
        "effects": _queries.effects(conn, ids, how.get("scope")),
        "uncovered": _queries.uncovered(conn, ids),
    }


def _all_of(conn: Connection, how: dict[str, Any], redone: list[str] | None) -> list[str]:
    """Return the calls that an undo is about, with those that cascade takes along."""
    ids = redone or list(how["invocations"])
    if how.get("on_conflict") == "cascade":
        ids = [*ids, *_drawn_in(conn, how, ids)]
    return ids


def overwritten(
    conn: Connection, how: dict[str, Any], *, by_row: bool = False
) -> Overwritten | None:
    """Return whose later work an undo would destroy; None where it is not by force."""
    if how.get("on_conflict") != "force":
        return None
    total, rows = _queries.overwritten(conn, how, _MANY if by_row else FEW)
    unasked = _queries.add_writers(conn, rows, how)
    return Overwritten(total, rows, unasked + (total - len(rows) if by_row else 0))


def with_outcome(
    conn: Connection, rows: Iterable[DictRow], lost: Overwritten | None
) -> Iterator[DictRow]:
    """Pass the rows of a plan on, with what a merge writes under ``before``.

    From a column with the rule ``delta`` the call's own difference is subtracted, so it does not
    become what it was before the call. Where force overwrites somebody's work, ``by`` says whose.
    """
    for row in (lost or Overwritten()).named(rows):
        delta = (row["detail"] or {}).get("delta")
        if row["status"] == "merge" and delta and row["before"] and row["current"]:
            left = _queries.subtracted(conn, row["relation"], row["current"], delta)
            now = {name: f"{row['current'].get(name)} - {delta[name]}" for name in delta}
            row["before"] = {**row["before"], **now, **left}
        yield row


def _with_relation(counts: list[DictRow]) -> list[dict[str, Any]]:
    """Return the conflicts themselves, each with the table in which it is."""
    found = []
    for count in counts:
        for conflict in count["conflicts"] or []:
            conflict["relation"] = count["relation"]
            found.append(conflict)
    return found


def _drawn_in(conn: Connection, how: dict[str, Any], ids: list[str]) -> list[str]:
    """Return the later invocations that cascade takes back too."""
    query = (
        "select distinct p.invocation as id from agentundo.plan(invocations => %(invocations)s,"
        " on_conflict => 'cascade', merge => %(merge)s, scope => %(scope)s) p"
        " where p.invocation <> all (%(invocations)s)"
    )
    values = {"merge": False, "scope": None, **how}
    return [row["id"] for row in conn.execute(query.encode(), values) if row["id"] not in ids]
