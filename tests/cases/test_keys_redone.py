"""Calls that gave rows other keys, undone and redone among calls that wrote these rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import (
    FORCE,
    Refusal,
    plan,
    redo,
    revert,
    revert_as_planned,
    rows,
    scalar,
    status,
)
from tests.support.undoing import everything, track, write

pytestmark = pytest.mark.core

MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "merge": {"merge": True},
    "skip": {"on_conflict": "skip"},
    "skip and merge": {"on_conflict": "skip", "merge": True},
    "cascade": {"on_conflict": "cascade"},
}


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make a row of which there must never be two."""
    db.execute("create table t (id int primary key, c int, name text)")
    db.execute("insert into t values (2, 0, 'only one')")
    track(db, "t", capture="all")
    return db


def try_redo(db: Connection, call: str, **arguments: Any) -> bool:
    """Redo as planned, or find it refused and nothing changed. Return whether it was done."""
    undone_by = scalar(db, "select revert_id from agentundo.invocations where id = %s", call)
    outcome = revert_as_planned(db, ["public.t"], undone_by, **arguments)
    return not isinstance(outcome, Refusal) and outcome.status == "reverted"


# What has been undone does not stand again -------------------------------------------------------


@pytest.mark.parametrize("moves", ["id = 5", "id = 5, name = 'renamed'"])
@pytest.mark.parametrize("mode", MODES)
def test_a_move_redone_does_not_carry_what_was_undone(t: Connection, mode: str, moves: str) -> None:
    write(t, "update t set c = 1", tag="writes")
    write(t, f"update t set {moves}", tag="moves")
    assert revert(t, "moves").status == "reverted"
    assert revert(t, "writes").status == "reverted"
    assert rows(t, "table t") == [(2, 0, "only one")]
    if try_redo(t, "moves", **MODES[mode]):
        name = "renamed" if "renamed" in moves else "only one"
        assert rows(t, "table t") == [(5, 0, name)]
        assert revert(t, "moves").status == "reverted"
    assert rows(t, "table t") == [(2, 0, "only one")]
    assert status(t, "writes") == "reverted"


def test_a_move_redone_does_not_carry_a_difference_that_was_undone(t: Connection) -> None:
    t.execute("select agentundo.set_merge('t', 'c', 'delta')")
    write(t, "update t set c = c + 1", tag="writes")
    write(t, "update t set id = 5", tag="moves")
    assert revert(t, "moves").status == "reverted"
    assert revert(t, "writes").status == "reverted"
    t.execute("update t set c = c + 10")
    done = try_redo(t, "moves", merge=True)
    assert rows(t, "table t") == [(5 if done else 2, 10, "only one")]


def test_a_move_and_a_write_that_were_undone_are_both_redone(t: Connection) -> None:
    """In the order in which they were made; nothing is in doubt then."""
    write(t, "update t set c = 1", tag="writes")
    write(t, "update t set id = 5", tag="moves")
    after = everything(t)
    revert(t, "moves")
    revert(t, "writes")
    assert redo(t, "writes").status == "reverted"
    assert redo(t, "moves").status == "reverted"
    assert_same(after, everything(t))


# The row stands once -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, "force"])
def test_a_write_redone_after_the_move_before_it_was_undone_doubles_no_row(
    t: Connection, mode: str
) -> None:
    """What was written to a row that is not there is nothing, until it is there again."""
    write(t, "update t set id = 12", tag="moves")
    write(t, "update t set c = c + 5", tag="writes")
    assert revert(t, "writes").status == "reverted"
    assert revert(t, "moves").status == "reverted"
    assert rows(t, "table t") == [(2, 0, "only one")]
    done = try_redo(t, "writes", **(FORCE if mode == "force" else MODES[mode]))
    found = rows(t, "table t")
    assert found == [(2, 0, "only one")]
    assert status(t, "writes") == ("committed" if done else "reverted")
    if done:
        assert redo(t, "moves").status == "reverted"
        assert rows(t, "table t") == [(12, 5, "only one")]


@pytest.mark.parametrize("first", ["moves", "writes"])
def test_a_write_and_the_move_before_it_are_redone_in_any_order(t: Connection, first: str) -> None:
    write(t, "update t set id = 12", tag="moves")
    write(t, "update t set c = c + 5", tag="writes")
    revert(t, "writes")
    revert(t, "moves")
    for call in sorted(("moves", "writes"), reverse=first == "writes"):
        assert redo(t, call).status == "reverted"
    assert rows(t, "table t") == [(12, 5, "only one")]
    for call in ("writes", "moves"):
        assert revert(t, call).status == "reverted"
    assert rows(t, "table t") == [(2, 0, "only one")]


def test_a_write_of_a_row_that_somebody_moved_back_is_not_redone_at_the_other_key(
    t: Connection,
) -> None:
    write(t, "update t set id = 12", tag="moves")
    write(t, "update t set c = c + 5", tag="writes")
    revert(t, "writes")
    t.execute("update t set id = 2")
    done = try_redo(t, "writes")
    assert rows(t, "table t") == [(2, 5 if done else 0, "only one")]


def test_a_write_of_a_row_whose_making_was_undone_goes_there_and_back(t: Connection) -> None:
    before = everything(t)
    write(t, "insert into t values (7, 200, 'made')", tag="makes")
    write(t, "update t set c = c + 5 where id = 7", tag="writes")
    revert(t, "writes")
    revert(t, "makes")
    assert_same(before, everything(t))
    done = try_redo(t, "writes")
    after = everything(t)
    assert len(rows(t, "select from t where name = 'made'")) <= 1
    if done:
        assert revert(t, "writes").status == "reverted"
        assert_same(before, everything(t))
        assert redo(t, "writes").status == "reverted"
        assert_same(after, everything(t))
    else:
        assert_same(before, after)
    try_redo(t, "makes")
    assert len(rows(t, "select from t where name = 'made'")) <= 1


# What a plan names -------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(
    "statements",
    [
        ["update t set id = 3", "update t set id = 4"],
        ["update t set id = 3", "update t set id = 4", "update t set id = 5"],
        ["update t set id = 3", "update t set c = 1", "update t set id = 4"],
    ],
)
def test_each_line_has_a_key_after_a_row_that_moved_twice_was_redone(
    t: Connection, statements: list[str], merge: bool
) -> None:
    before = everything(t)
    write(t, *statements, tag="call")
    after = everything(t)
    for _ in range(2):
        found = plan(t, "call", merge=merge)
        assert [one.key for one in found if one.acts] == [{"id": 2}]
        assert all(one.key for one in found), found
        assert revert(t, "call", merge=merge).status == "reverted"
        assert_same(before, everything(t))
        assert redo(t, "call", merge=merge).status == "reverted"
        assert_same(after, everything(t))


# Others have been at its keys --------------------------------------------------------------------

THROUGH = ("update t set id = 6 where id = 2", "update t set id = 2 where id = 3")


@pytest.mark.parametrize(
    "meanwhile", ["delete from t where id = 3", "update t set id = 33 where id = 3"]
)
def test_rows_that_moved_through_each_other_are_not_redone_without_one_of_them(
    db: Connection, meanwhile: str
) -> None:
    db.execute("create table t (id int primary key, name text)")
    db.execute("insert into t values (2, 'two'), (3, 'three')")
    track(db, "t", capture="all")
    write(db, *THROUGH, tag="moves")
    assert revert(db, "moves").status == "reverted"
    db.execute(meanwhile.encode())
    now = rows(db, "select * from t order by id")
    assert not try_redo(db, "moves")
    assert redo(db, "moves", on_conflict="skip").counts[:3] == (0, 0, 0)
    assert rows(db, "select * from t order by id") == now


def test_a_row_made_where_another_was_is_not_redone_over_it(db: Connection) -> None:
    db.execute("create table t (id int primary key, name text)")
    db.execute("insert into t values (4, 'four')")
    track(db, "t", capture="agent")
    write(db, "update t set id = 14", tag="moves")
    write(db, "insert into t values (4, 'five')", tag="makes")
    revert(db, "makes")
    revert(db, "moves")
    assert not try_redo(db, "makes")
    assert rows(db, "table t") == [(4, "four")]
    assert redo(db, "moves").status == "reverted"
    assert redo(db, "makes").status == "reverted"
    assert rows(db, "select * from t order by id") == [(4, "five"), (14, "four")]


def test_a_row_that_stayed_is_redone_beside_one_that_moved_and_was_changed(db: Connection) -> None:
    """The undo wrote both at once, and then they said the same: it has to know which one moved."""
    db.execute("create table t (id int primary key, c int, name text)")
    db.execute("insert into t values (5, 3, 'a'), (2, 3, 'a')")
    track(db, "t")
    write(
        db,
        "update t set name = '' where id = 2",
        "update t set c = c",
        "update t set id = 15 where id = 5",
        tag="call",
    )
    done = rows(db, "select * from t order by id")
    assert revert(db, "call").status == "reverted"
    write(db, "update t set c = 8, name = 'b' where id = 5", tag="other")
    assert redo(db, "call", on_conflict="skip").rows_skipped == 1
    assert rows(db, "select * from t order by id") == [done[0], (5, 8, "b")]
