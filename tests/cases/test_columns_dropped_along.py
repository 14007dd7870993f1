"""A column that goes because something else was dropped CASCADE is followed like any other."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.undo import rows
from tests.support.undoing import assert_undone, track

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("made", "column", "dropped"),
    [
        ("create type mood as enum ('sad')", "m mood", "drop type mood cascade"),
        ("create domain small as int", "m small", "drop domain small cascade"),
        ("create schema x; create type x.pair as (a int)", "m x.pair", "drop schema x cascade"),
        ("create extension citext", "m citext", "drop extension citext cascade"),
        (
            "create function twice(int) returns int immutable language sql return $1 * 2",
            "m int generated always as (twice(v)) stored",
            "drop function twice cascade",
        ),
    ],
)
def test_a_column_that_was_dropped_along_is_followed(
    db: Connection, made: str, column: str, dropped: str
) -> None:
    db.execute(made.encode())
    db.execute(f"create table t (id int primary key, v int, {column})".encode())
    db.execute("insert into t (id, v) values (1, 1), (2, 2)")
    track(db, "t")
    db.execute(dropped.encode())
    assert rows(db, "select object from agentundo.check() where severity = 'error'") == []
    assert_undone(db, "update t set v = 7", "delete from t where id = 1")
