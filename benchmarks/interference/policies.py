"""Ways to undo an invocation: those of agentundo, and for comparison those of others.

Each undoes the invocation of one history in the current transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.common import Connection
from benchmarks.interference.model import (
    AGENT,
    TABLES,
    History,
    Place,
    State,
    Values,
)
from benchmarks.interference.play import Versions


@dataclass(frozen=True)
class Situation:
    """What a policy may know.

    Attributes:
        history: where the tables are, and the id to undo.
        former: the rows before the invocation.
        left: the rows as it left them.
        versions: of the rows as it left them.

    """

    history: History
    former: State
    left: State
    versions: Versions


@dataclass(frozen=True)
class Policy:
    """A way to undo.

    Attributes:
        name: what it is called in the tables.
        capture: the capture mode that it needs; None: no history at all.
        undo: does it.
        arguments: of ``agentundo.revert``, for those of ours.

    """

    name: str
    capture: str | None
    undo: Callable[[Connection, Situation], None]
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def takes_along(self) -> bool:
        """Whether it is asked to take other agents' later work along."""
        return self.arguments.get("on_conflict") == "cascade"


# Ours -------------------------------------------------------------------------------------------

_MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "skip": {"on_conflict": "skip"},
    "merge": {"merge": True},
    "skip + merge": {"on_conflict": "skip", "merge": True},
    "cascade": {"on_conflict": "cascade"},
    "cascade + merge": {"on_conflict": "cascade", "merge": True},
    "force": {"on_conflict": "force", "reverted_by": "dana", "reason": "wrong deal"},
}


def _revert(arguments: dict[str, Any]) -> Callable[[Connection, Situation], None]:
    named = "".join(f", {name} => %({name})s" for name in arguments)
    query = f"select agentundo.revert(%(id)s{named})".encode()

    def undo(conn: Connection, situation: Situation) -> None:
        try:
            with conn.transaction():
                conn.execute(query, {"id": situation.history.invocation_id(AGENT), **arguments})
        except psycopg.Error as error:
            if error.sqlstate != "UN001":
                raise

    return undo


# Those of others --------------------------------------------------------------------------------


def _snapshot(conn: Connection, situation: Situation) -> None:
    """Put back the whole tables, as a restored backup does."""
    for table in reversed(TABLES):
        conn.execute(
            f"delete from {table} where id between %s and %s".encode(), situation.history.range
        )
    for (table, _), values in sorted(situation.former.items(), key=lambda item: _order(item[0])):
        _insert(conn, table, values)


def _by_row(
    condition: Callable[[Situation, Place], tuple[str, list[Any]]],
) -> Callable[[Connection, Situation], None]:
    """Undo row by row, by key, where a condition on the row holds."""

    def undo(conn: Connection, situation: Situation) -> None:
        def put_back(place: Place, former: Values | None, left: Values | None) -> None:
            table, key = place
            if left is None:
                assert former
                _insert(conn, table, former)
                return
            text, parameters = condition(situation, place)
            if former is None:
                query = f"delete from {table} t where id = %s and {text}"
                conn.execute(query.encode(), [key, *parameters])
            else:
                _set(conn, table, key, former, text, parameters)

        _each(conn, situation, put_back)

    return undo


def _blind(conn: Connection, situation: Situation) -> None:
    """Apply the images by key, whatever stands there now."""

    def put_back(place: Place, former: Values | None, left: Values | None) -> None:
        table, key = place
        if former is None:
            conn.execute(f"delete from {table} where id = %s".encode(), [key])
        elif not _set(conn, table, key, former, "true", []) and left is None:
            _insert(conn, table, former)

    _each(conn, situation, put_back)


def _columns(conn: Connection, situation: Situation) -> None:
    """Put back those columns that have the values that the agent left."""

    def put_back(place: Place, former: Values | None, left: Values | None) -> None:
        table, key = place
        if left is None:
            assert former
            _insert(conn, table, former)
        elif former is None:
            text, parameters = _same_values(situation, place)
            query = f"delete from {table} t where id = %s and {text}"
            conn.execute(query.encode(), [key, *parameters])
        else:
            for column, value in former.items():
                if value != left[column]:
                    text = f"{column} is not distinct from %s"
                    _set(conn, table, key, {column: value}, text, [left[column]])

    _each(conn, situation, put_back)


def _same_values(situation: Situation, place: Place) -> tuple[str, list[Any]]:
    left = situation.left[place]
    return " and ".join(f"{column} is not distinct from %s" for column in left), list(left.values())


def _same_version(situation: Situation, place: Place) -> tuple[str, list[Any]]:
    return "xmin::text = %s", [situation.versions.get(place)]


def _each(
    conn: Connection,
    situation: Situation,
    put_back: Callable[[Place, Values | None, Values | None], None],
) -> None:
    """Do something for each row that the agent wrote; again for those that a constraint refused."""
    left = list(_net(situation))
    while left:
        refused = []
        for place, former, after in left:
            try:
                with conn.transaction():
                    put_back(place, former, after)
            except psycopg.IntegrityError:
                refused.append((place, former, after))
        if len(refused) == len(left):
            break
        left = refused


def _net(situation: Situation) -> Iterator[tuple[Place, Values | None, Values | None]]:
    """Yield what the invocation did, key by key; parents first."""
    for place in sorted(situation.former.keys() | situation.left.keys(), key=_order):
        former, left = situation.former.get(place), situation.left.get(place)
        if former != left:
            yield place, former, left


def _order(place: Place) -> tuple[int, int]:
    return list(TABLES).index(place[0]), place[1]


def _insert(conn: Connection, table: str, values: Values) -> None:
    query = f"insert into {table} ({', '.join(values)}) values ({', '.join(['%s'] * len(values))})"
    query += " on conflict (id) do nothing"
    conn.execute(query.encode(), list(values.values()))


def _set(
    conn: Connection, table: str, key: int, values: Values, condition: str, parameters: list[Any]
) -> int:
    listed = ", ".join(f"{column} = %s" for column in values)
    query = f"update {table} t set {listed} where id = %s and {condition}"
    return conn.execute(query.encode(), [*values.values(), key, *parameters]).rowcount


POLICIES = [
    Policy("restore a snapshot", None, _snapshot),
    Policy("blind inverse", None, _blind),
    Policy("compare values, row", None, _by_row(_same_values)),
    Policy("compare values, column", None, _columns),
    Policy("compare row versions", None, _by_row(_same_version)),
    *(
        Policy(f"`{capture}`: {mode}", capture, _revert(arguments), arguments)
        for capture in ("agent", "all")
        for mode, arguments in _MODES.items()
    ),
]
