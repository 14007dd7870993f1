"""Columns that add up, when some of what was added has been undone, and perhaps done again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.undo import (
    Refusal,
    Result,
    redo,
    revert,
    revert_as_planned,
    revert_run,
    rows,
    status,
)
from tests.support.undoing import track, write

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make a row with a column that adds up, and one that does not."""
    db.execute("create table t (id int primary key, b int, s text)")
    db.execute("insert into t values (1, 100, 'i')")
    track(db, "t", capture="all")
    db.execute("select agentundo.set_merge('t', 'b', 'delta')")
    return db


def undo(db: Connection, what: str | list[str], **arguments: Any) -> Result | None:
    """Take back as planned; return None if that was refused."""
    outcome = revert_as_planned(db, ["public.t"], what, **arguments)
    return None if isinstance(outcome, Refusal) else outcome


def row(db: Connection) -> Any:
    (found,) = rows(db, "select b, s from t")
    return found


# Undone together, and done again -----------------------------------------------------------------


#: What each call of the run adds.
ADDED = {"d1": 2, "d0": 1}


@pytest.fixture
def redone(t: Connection) -> Connection:
    """Undo a run of two calls, let a person add 10, and do the run again."""
    for call, added in ADDED.items():
        with t.transaction():
            t.execute("select agentundo.tag(%s, run => 'R')", [call])
            t.execute("update t set b = b + %s", [added])
    assert revert_run(t, "R").status == "reverted"
    t.execute("update t set b = b + 10")
    assert redo(t, "d1", merge=True).status == "reverted"
    assert row(t) == (113, "i")
    return t


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("order", [["d0", "d1"], ["d1", "d0"]])
def test_one_of_two_that_were_done_again_takes_its_own_difference(
    redone: Connection, order: list[str], merge: bool
) -> None:
    """Or is refused; the other's stands while that call does."""
    expected = 113
    for call in order:
        if undo(redone, call, merge=merge):
            expected -= ADDED[call]
        else:
            assert status(redone, call) == "committed"
        assert row(redone) == (expected, "i")


def test_both_that_were_done_again_take_both_differences(redone: Connection) -> None:
    assert undo(redone, ["d0", "d1"], merge=True)
    assert row(redone) == (110, "i")


@pytest.mark.parametrize("merge", [False, True])
def test_one_of_two_that_were_done_again_is_redone_with_its_own_difference(
    redone: Connection, merge: bool
) -> None:
    if undo(redone, "d0", merge=merge):
        redone.execute("update t set b = b + 100")
        redo(redone, "d0", merge=True)
        assert row(redone) == (213, "i")
    else:
        assert row(redone) == (113, "i")


# A set of which one has been undone --------------------------------------------------------------


@pytest.fixture
def merged(t: Connection) -> Connection:
    """Undo, by merge, one of two calls after which a person has added 10."""
    write(t, "update t set s = 'x'", tag="says")
    write(t, "update t set b = b - 3", tag="takes")
    t.execute("update t set b = b + 10")
    assert revert(t, "takes", on_conflict="skip", merge=True).status == "reverted"
    assert row(t) == (110, "x")
    return t


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_conflict": "skip", "merge": True},
        {"on_conflict": "skip"},
        {"merge": True},
        {},
        {"on_conflict": "cascade"},
        {"on_conflict": "cascade", "merge": True},
    ],
)
def test_a_difference_that_was_subtracted_is_not_added_again(
    merged: Connection, arguments: dict[str, Any]
) -> None:
    """The word goes back, or stays where it has to be left; the sum is right already."""
    done = undo(merged, ["says", "takes"], **arguments)
    assert row(merged) in ((110, "i"), (110, "x"))
    if done and done.status == "reverted":
        assert row(merged) == (110, "i")
    assert revert(merged, "says", on_conflict="skip", merge=True).status in (
        "reverted",
        "already_reverted",
    )
    assert row(merged) == (110, "i")


@pytest.mark.parametrize("added", [[7], [7, -2]])
def test_nor_is_it_when_others_have_added_since(merged: Connection, added: list[int]) -> None:
    for one in added:
        merged.execute("update t set b = b + %s", [one])
    undo(merged, ["says", "takes"], on_conflict="skip", merge=True)
    assert row(merged) in ((110 + sum(added), "i"), (110 + sum(added), "x"))
    revert(merged, "says", on_conflict="skip", merge=True)
    assert row(merged) == (110 + sum(added), "i")


def test_a_set_subtracts_what_of_it_has_not_been_subtracted(t: Connection) -> None:
    """Two of the set count, and one of them has been undone."""
    write(t, "update t set b = b - 3", tag="one")
    write(t, "update t set b = b - 20", tag="two")
    t.execute("update t set b = b + 10")
    assert revert(t, "one", on_conflict="skip", merge=True).status == "reverted"
    assert row(t) == (90, "i")
    if undo(t, ["one", "two"], on_conflict="skip", merge=True):
        assert row(t)[0] in (90, 110)
    assert revert(t, "two", on_conflict="skip", merge=True).status in (
        "reverted",
        "already_reverted",
    )
    assert row(t) == (110, "i")


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("first", ["earlier", "later"])
def test_a_redo_adds_its_own_difference_though_others_stay_undone(
    t: Connection, first: str, merge: bool
) -> None:
    """The image that the call had left has the other's difference in it, which is undone."""
    write(t, "update t set b = b + 1", tag="earlier")
    write(t, "update t set b = b + 10", tag="later")
    assert revert(t, "later", merge=True).status == "reverted"
    assert row(t) == (101, "i")
    assert revert(t, "earlier", merge=merge).status == "reverted"
    assert row(t) == (100, "i")
    assert redo(t, first, merge=merge).status == "reverted"
    assert row(t) == (101 if first == "earlier" else 110, "i")
    assert redo(t, "later" if first == "earlier" else "earlier", merge=True).status == "reverted"
    assert row(t) == (111, "i")


def test_an_undone_calls_value_beside_its_difference_does_not_come_back(t: Connection) -> None:
    """The image that a redone call had found is of another one, who is undone by now."""
    write(t, "update t set s = 'one', b = b + 10", tag="first")
    write(t, "update t set s = 'two', b = b - 7", tag="second")
    assert revert(t, "second", merge=True).status == "reverted"
    assert revert(t, "first", merge=True).status == "reverted"
    assert redo(t, "second", merge=True).status == "reverted"
    assert row(t) == (93, "two")
    assert revert(t, "second", merge=True).status == "reverted"
    assert row(t) == (100, "i")


def test_a_column_of_an_earlier_turn_is_not_forgotten_for_a_later_difference(
    t: Connection,
) -> None:
    t.execute("alter table t add column person text")
    write(t, "update t set s = 'x'", tag="call")
    t.execute("update t set person = 'mia'")
    write(t, "update t set b = b + 7", tag="call")
    assert revert(t, "call", merge=True).status == "reverted"
    assert rows(t, "table t") == [(1, 100, "i", "mia")]
    assert redo(t, "call", merge=True).status == "reverted"
    assert rows(t, "table t") == [(1, 107, "x", "mia")]
    outcome = undo(t, "call", merge=True)
    if outcome is None:
        assert rows(t, "table t") == [(1, 107, "x", "mia")]
        assert status(t, "call") == "committed"
    else:
        assert rows(t, "table t") == [(1, 100, "i", "mia")]
