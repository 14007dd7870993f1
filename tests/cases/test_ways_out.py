"""What a refusal says of the way out is true; a changed column is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.undo import plan, refused, revert, write
from tests.support.undoing import track

pytestmark = pytest.mark.core


def test_a_conflict_over_a_changed_column_names_it(db: Connection) -> None:
    db.execute("create table p (id int primary key, v int, w int); insert into p values (1, 1, 1)")
    track(db, "p")
    write(db, "agent", "update p set v = 5, w = 5")
    db.execute("alter table p alter v type text using 'v' || v")
    (row,) = plan(db, "agent")
    assert (row.reason, row.columns) == ("schema_changed", ["v"])
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.conflicts[0]["columns"] == ["v"]


def test_no_way_is_offered_that_is_none(db: Connection) -> None:
    """Neither merge nor force puts a value back that somebody else has, or breaks a key."""
    db.execute(
        "create table p (id int primary key, code text unique); insert into p values (1, 'a')"
    )
    track(db, "p")
    write(db, "agent", "update p set code = 'x'")
    db.execute("insert into p values (2, 'a')")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["unique_taken"]
    assert "skip" in caught.hint
    assert "merge" not in caught.hint
    assert "force" not in caught.hint


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        ({}, {"merge", "skip", "cascade", "force"}),
        ({"merge": True}, {"skip", "cascade", "force"}),
        ({"on_conflict": "cascade"}, {"merge", "skip", "force"}),
        ({"on_conflict": "cascade", "merge": True}, {"skip", "force"}),
    ],
)
def test_what_was_asked_for_is_not_offered_again(
    db: Connection, arguments: dict[str, Any], offered: set[str]
) -> None:
    db.execute("create table p (id int primary key, v int); insert into p values (1, 1), (2, 2)")
    track(db, "p")
    write(db, "agent", "update p set v = 5")
    db.execute("update p set v = 6 where id = 1")
    with refused("UN001") as caught:
        revert(db, "agent", **arguments)
    assert caught.reasons == ["row_changed"]
    assert {way for way in ("merge", "skip", "cascade", "force") if way in caught.hint} == offered


def test_merge_and_force_are_not_offered_where_they_help_only_some_of_the_rows(
    db: Connection,
) -> None:
    db.execute(
        "create table p (id int primary key, code text unique, v int);"
        " insert into p values (1, 'a', 1), (2, 'b', 1)"
    )
    track(db, "p")
    write(db, "agent", "update p set code = 'x', v = 2 where id = 1; update p set v = 2")
    db.execute("insert into p values (3, 'a', 1)")
    db.execute("update p set v = 3 where id = 2")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert set(caught.reasons) == {"row_changed", "unique_taken"}
    assert "skip" in caught.hint
    assert "cascade" in caught.hint
    assert "merge" not in caught.hint
    assert "force" not in caught.hint
