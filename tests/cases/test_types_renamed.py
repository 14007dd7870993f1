"""Types that are renamed or move, and columns that leave them: history stays what it was."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, revert, rows
from tests.support.undoing import assert_refused, everything, reasons, track, write

pytestmark = pytest.mark.core

TYPES = {
    "composite": ("as (x int, y text)", "(1,a)", "(2,b)"),
    "range": ("as range (subtype = int)", "[1,3)", "[5,9)"),
    "enum": ("as enum ('one', 'two')", "one", "two"),
}
MOVES = [
    "alter type q.kind rename to sort",
    "alter type q.kind set schema public",
    "alter schema q rename to elsewhere",
]


@pytest.fixture
def typed(db: Connection, kind: str, array: bool) -> Connection:
    """Make a table with a column of a type of its own; a call deletes a row and changes another."""
    made, first, second = TYPES[kind]
    of_type = "q.kind[]" if array else "q.kind"
    one, other = (
        f"array['{cell}']::{of_type}" if array else f"'{cell}'" for cell in (first, second)
    )
    db.execute(f"create schema q; create type q.kind {made}".encode())
    db.execute(f"create table t (id int primary key, c {of_type}, n int)".encode())
    db.execute(f"insert into t values (1, {one}, 0), (2, {one}, 0), (3, null, 0)".encode())
    track(db, "t", capture="all")
    write(db, f"delete from t where id <> 2; update t set c = {other}", tag="call")
    return db


@pytest.mark.parametrize("array", [False, True], ids=["plain", "array"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("move", MOVES)
def test_a_type_that_is_called_something_else_is_the_same(typed: Connection, move: str) -> None:
    typed.execute(move.encode())
    assert {row.status for row in plan(typed, "call")} == {"ok"}
    assert revert(typed, "call").counts == (0, 2, 1, 0, 0)
    first = rows(typed, "select c::text from t where id = 1")
    assert first[0][0] is not None
    assert rows(typed, "select id, c::text, n from t order by id") == [
        (1, *first[0], 0),
        (2, *first[0], 0),
        (3, None, 0),
    ]
    write(typed, "update t set c = null", tag="again")
    revert(typed, "again")
    assert rows(typed, "select c::text from t where id = 1") == first


@pytest.mark.parametrize("array", [False, True], ids=["plain", "array"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_column_that_has_left_its_type_is_a_conflict_and_the_type_may_go(
    typed: Connection, kind: str, array: bool
) -> None:
    reason = "row_changed" if kind == "enum" and not array else "schema_changed"  # labels are text
    typed.execute("alter table t alter c type text using 'made up'")
    now = everything(typed)
    assert set(reasons(typed, "call")) == {reason}
    assert_refused(typed, "call")
    assert_same(now, everything(typed))
    typed.execute("drop type q.kind")
    assert set(reasons(typed, "call")) == {reason}
    assert rows(typed, "select object from agentundo.check() where severity = 'error'") == []


@pytest.mark.parametrize("array", [False, True], ids=["plain", "array"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_dropped_column_lets_its_type_go(typed: Connection) -> None:
    typed.execute("alter table t drop column c")
    typed.execute("drop type q.kind")
    assert revert(typed, "call").counts == (0, 2, 1, 0, 0)
    assert rows(typed, "select id, n from t order by id") == [(1, 0), (2, 0), (3, 0)]


def test_a_column_that_came_between_two_turns_is_not_left_behind(db: Connection) -> None:
    db.execute("create table t (id int primary key, a int, c int); insert into t values (1, 0, 0)")
    track(db, "t", capture="all")
    write(db, "update t set a = 1", tag="call")
    db.execute("alter table t add e int default 7")
    db.execute("update t set c = 5")
    write(db, "update t set e = 1", tag="call")
    now = everything(db)
    assert_refused(db, "call", merge=True)
    assert_same(now, everything(db))
