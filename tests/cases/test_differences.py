"""Columns that add up: what a merge subtracts is just what the set has added."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert, rows
from tests.support.undoing import assert_refused, everything, track, write

pytestmark = pytest.mark.core


def adds_up(db: Connection, table: str, *columns: str) -> None:
    for column in columns:
        db.execute("select agentundo.set_merge(%s::regclass, %s, 'delta')", [table, column])


def test_another_column_of_an_earlier_turn_is_not_forgotten(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, note text, n int, more text);"
        " insert into t values (1, 'was', 100, ''), (2, 'was', 100, '')"
    )
    track(db, "t", capture="all")
    adds_up(db, "t", "n")
    write(db, "update t set note = 'agent'", tag="call")
    db.execute("update t set more = 'theirs' where id = 1")
    write(db, "update t set n = n + 20", tag="call")
    revert(db, "call", merge=True)
    assert rows(db, "select * from t order by id") == [
        (1, "was", 100, "theirs"),
        (2, "was", 100, ""),
    ]


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_redo_brings_its_own_difference_and_nobody_elses(db: Connection, capture: str) -> None:
    db.execute("create table t (id int primary key, n int); insert into t values (1, 100)")
    track(db, "t", capture=capture)
    adds_up(db, "t", "n")
    write(db, "update t set n = n + 1", tag="first")
    write(db, "update t set n = n + 5", tag="second")
    revert(db, "second", merge=True)
    revert(db, "first", merge=True)
    assert rows(db, "table t") == [(1, 100)]
    redo(db, "second", merge=True)
    assert rows(db, "table t") == [(1, 105)]
    redo(db, "first", merge=True)
    assert rows(db, "table t") == [(1, 106)]
    revert(db, "second", merge=True)
    assert rows(db, "table t") == [(1, 101)]


@pytest.mark.parametrize(
    ("type_", "lowest", "highest"),
    [
        ("smallint", -32768, 32767),
        ("int", -2147483648, 2147483647),
        ("bigint", -9223372036854775808, 9223372036854775807),
    ],
)
def test_a_difference_may_be_larger_than_the_type_and_what_is_left_may_not(
    db: Connection, type_: str, lowest: int, highest: int
) -> None:
    db.execute(f"create table t (id int primary key, n {type_})".encode())
    db.execute("insert into t values (1, %s), (2, %s)", [lowest + 1, lowest])
    track(db, "t", capture="all")
    adds_up(db, "t", "n")
    write(db, f"update t set n = {highest}", tag="call")
    db.execute("update t set n = n - 1")
    result = revert(db, "call", on_conflict="skip", merge=True)
    assert (result.rows_updated, result.rows_skipped) == (1, 1)
    assert rows(db, "select * from t order by id") == [(1, lowest), (2, highest - 1)]


def test_differences_of_every_type_that_adds_up(db: Connection) -> None:
    """Whatever the session would print of them."""
    db.execute(
        "create table t (id int primary key, f float8, r real, i interval, m money,"
        " d numeric(9, 3)); insert into t values (1, 0, 0, '1 mon -1 day +01:00', 10, 0.001)"
    )
    track(db, "t", capture="all")
    adds_up(db, "t", "f", "r", "i", "m", "d")
    write(
        db,
        "update t set f = 0.123456789012345, r = 0.25, i = '-1 mon +1 day -02:00',"
        " m = m + 5.25::money, d = d + 1.5",
        tag="call",
    )
    db.execute("update t set f = f + 1, r = r + 1, i = i + '1 day', m = m + 1::money, d = d + 1")
    db.execute("set extra_float_digits = -12; set intervalstyle = sql_standard")
    assert [(row.status, row.reason) for row in plan(db, "call", merge=True)] == [("merge", None)]
    revert(db, "call", merge=True)
    db.execute("reset extra_float_digits; reset intervalstyle")
    assert rows(
        db,
        "select f = 0.123456789012345::float8 + 1 - 0.123456789012345::float8, r, i::text,"
        " m::numeric, d from t",
    ) == [(True, 1.0, "1 mon 01:00:00", Decimal("11.00"), Decimal("1.001"))]


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN"])
def test_nothing_is_subtracted_of_what_is_no_finite_number(db: Connection, value: str) -> None:
    db.execute("create table t (id int primary key, n float8); insert into t values (1, 1), (2, 1)")
    track(db, "t", capture="all")
    adds_up(db, "t", "n")
    write(
        db, f"update t set n = '{value}' where id = 1; update t set n = n + 1 where id = 2", tag="c"
    )
    db.execute("update t set n = 7 where id = 1; update t set n = n + 1 where id = 2")
    now = everything(db)
    assert_refused(db, "c", merge=True)
    assert_same(now, everything(db))
    revert(db, "c", on_conflict="skip", merge=True)
    assert rows(db, "select * from t order by id") == [(1, 7.0), (2, 2.0)]
