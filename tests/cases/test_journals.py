"""What a row comes back to after undo and redo, with what other agents and people did in between.

Each test writes, undoes and does again in an order of its own, and then looks at the whole table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.undo import FORCE, plan, redo, refused, revert, rows, status
from tests.support.undoing import track, write

pytestmark = pytest.mark.core

Row = tuple[Any, ...]
Make = Callable[..., Connection]
CAPTURES = pytest.mark.parametrize("capture", ["agent", "all"])


@pytest.fixture
def make(db: Connection) -> Make:
    """Return what makes and tracks a table `t` with these rows."""

    def made(
        *there: str, columns: str = "id int primary key, v int", capture: str = "agent"
    ) -> Connection:
        db.execute(f"create table t ({columns})".encode())
        for row in there:
            db.execute(f"insert into t values ({row})".encode())
        track(db, "t", capture=capture)
        return db

    return made


def table(db: Connection) -> list[Row]:
    """Return the whole table."""
    return rows(db, "select * from t order by 1, 2")


def states(db: Connection, *calls: str, **arguments: Any) -> list[str]:
    """Return the states in which the plan has the rows."""
    return sorted({row.status for row in plan(db, list(calls), **arguments)})


def assert_in_the_way(db: Connection, call: str, reason: str, **arguments: Any) -> None:
    """Fail unless one row stands in the way, and nothing changes."""
    before = table(db)
    assert [row.reason for row in plan(db, call, **arguments) if row.status == "conflict"] == [
        reason
    ]
    with refused("UN001") as caught:
        revert(db, call, **arguments)
    assert caught.reasons == [reason]
    assert table(db) == before


# Who made and who deleted it are both undone ----------------------------------------------------


def _made_and_deleted(make: Make, *also: str) -> Connection:
    db = make()
    write(db, "insert into t values (1, 1), (2, 2)", tag="made")
    write(db, "delete from t where id = 2", *also, tag="deleted")
    return db


def test_skip_and_then_cascade_leave_nothing_of_either(make: Make) -> None:
    db = _made_and_deleted(make, "update t set v = 9 where id = 1")
    assert revert(db, "made", on_conflict="skip").status == "partially_reverted"
    assert table(db) == [(1, 9)]
    assert revert(db, "made", on_conflict="cascade").status == "reverted"
    assert table(db) == []
    assert status(db, "made") == status(db, "deleted") == "reverted"


@pytest.mark.parametrize("second", [["made", "deleted"], "deleted"], ids=["both", "the deleter"])
def test_skip_and_then_the_deleter_bring_nothing_back(make: Make, second: str | list[str]) -> None:
    db = _made_and_deleted(make)
    db.execute("update t set v = 9 where id = 1")
    assert revert(db, "made", on_conflict="skip").counts == (0, 0, 0, 1, 1)
    revert(db, second, on_conflict="skip")
    assert table(db) == [(1, 9)]
    revert(db, "made", **FORCE)
    assert table(db) == []


def test_a_row_of_which_one_call_was_skipped_is_deleted_again(make: Make) -> None:
    db = make("1, 0", "2, 0")
    write(db, "update t set v = 1", tag="set")
    write(db, "delete from t where id = 2", tag="deleted")
    db.execute("update t set v = 9 where id = 1")
    assert revert(db, "deleted").status == "reverted"
    assert revert(db, "set", on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert table(db) == [(1, 9), (2, 0)]
    assert redo(db, "deleted", on_conflict="skip").status == "reverted"
    assert table(db) == [(1, 9)]


# A person wrote while a deletion was undone, and then somebody deleted again -------------------


@CAPTURES
@pytest.mark.parametrize(
    "person",
    [
        ("update t set v = 100",),
        ("delete from t", "insert into t values (1, 100)"),
    ],
    ids=["edited", "made anew"],
)
def test_what_a_person_wrote_comes_back(make: Make, capture: str, person: tuple[str, ...]) -> None:
    db = make("1, 1", capture=capture)
    write(db, "delete from t where id = 1", tag="first")
    revert(db, "first")
    for statement in person:
        db.execute(statement.encode())
    write(db, "delete from t where id = 1", tag="second")
    assert redo(db, "first").status == "reverted"
    assert table(db) == []
    assert revert(db, "second").counts == (0, 1, 0, 0, 0)
    assert table(db) == [(1, 100)]


@CAPTURES
@pytest.mark.parametrize(
    "later", ["update t set v = 101 where id = 1", "delete from t where id = 1"]
)
def test_undo_and_redo_of_others_long_ago_change_nothing(
    make: Make, capture: str, later: str
) -> None:
    db = make("1, 1", "9, 9", capture=capture)
    write(db, "update t set v = 0 where id = 9", tag="elsewhere")
    write(db, "delete from t where id = 1", tag="deleted")
    revert(db, "deleted")
    redo(db, "deleted")
    revert(db, "elsewhere")
    db.execute("insert into t values (1, 100)")
    write(db, later, tag="later")
    assert redo(db, "elsewhere").status == "reverted"
    assert revert(db, "later").status == "reverted"
    assert table(db) == [(1, 100), (9, 0)]


@CAPTURES
def test_a_row_that_a_person_made_after_the_agents_comes_back(make: Make, capture: str) -> None:
    db = make(capture=capture)
    write(db, "insert into t values (3, 3)", tag="made")
    write(db, "delete from t where id = 3", tag="deleted")
    db.execute("insert into t values (3, 300)")
    write(db, "delete from t where id = 3", tag="again")
    assert revert(db, "made").status == "reverted"
    assert revert(db, "again").counts == (0, 1, 0, 0, 0)
    assert table(db) == [(3, 300)]


# An earlier call was undone by merge ------------------------------------------------------------

WIDE = "id int primary key, v int, w int, x int"


def _merged(make: Make, capture: str, *more: str) -> Connection:
    """`a` sets v, `b` sets w, more set others; then a is undone beside them."""
    db = make("1, 0, 0, 0", columns=WIDE, capture=capture)
    for call, column in zip(["a", "b", *more], "vwx", strict=False):
        write(db, f"update t set {column} = 1", tag=call)
    assert revert(db, "a", merge=True).status == "reverted"
    return db


@CAPTURES
@pytest.mark.parametrize("merge", [False, True], ids=["whole rows", "merge"])
def test_the_call_that_is_left_goes_back_either_way(make: Make, capture: str, merge: bool) -> None:
    """Nobody else has anything in the row any more."""
    db = _merged(make, capture)
    assert table(db) == [(1, 0, 1, 0)]
    assert states(db, "b", merge=merge) == ["ok"]
    done = revert(db, "b", merge=merge)
    assert (done.status, done.counts, table(db)) == ("reverted", (0, 0, 1, 0, 0), [(1, 0, 0, 0)])
    assert redo(db, "b", merge=merge).status == "reverted"
    assert table(db) == [(1, 0, 1, 0)]
    assert redo(db, "a", merge=True).status == "reverted"
    assert table(db) == [(1, 1, 1, 0)]


@CAPTURES
def test_of_two_who_are_left_the_later_one_is_in_the_way_but_with_merge(
    make: Make, capture: str
) -> None:
    db = _merged(make, capture, "c")
    assert_in_the_way(db, "b", "row_changed")
    (row,) = plan(db, "b", merge=True)
    assert (row.status, row.columns) == ("merge", ["w"])
    assert states(db, "c") == ["merge"], "x alone: the rest of the image is of before"
    assert revert(db, ["b", "c"]).status == "reverted"
    assert table(db) == [(1, 0, 0, 0)]


@CAPTURES
def test_an_undo_by_merge_between_two_writes_of_a_call_is_nobody(make: Make, capture: str) -> None:
    db = _merged(make, capture)
    write(db, "update t set x = 1", tag="b")
    assert states(db, "b") == ["ok"]
    assert revert(db, "b").status == "reverted"
    assert table(db) == [(1, 0, 0, 0)]


@CAPTURES
def test_a_call_that_wrote_before_and_after_it_takes_only_its_own_column_back(
    make: Make, capture: str
) -> None:
    """No image has the row without both: the column goes back, not the image."""
    db = make("1, 0, 0, 0", columns=WIDE, capture=capture)
    for call, statement in (("h", "w = 1"), ("x", "x = 1"), ("s", "v = 1")):
        write(db, f"update t set {statement}", tag=call)
    assert revert(db, "h", merge=True).status == "reverted"
    write(db, "update t set v = 2", tag="s")
    assert table(db) == [(1, 2, 0, 1)]
    assert revert(db, "s").status == "reverted"
    assert table(db) == [(1, 0, 0, 1)]
    assert redo(db, "s").status == "reverted"
    assert table(db) == [(1, 2, 0, 1)]


@CAPTURES
@pytest.mark.parametrize("mode", [{}, FORCE, {"on_conflict": "skip"}], ids=str)
def test_a_row_deleted_after_an_undo_by_merge_comes_back_without_it(
    make: Make, capture: str, mode: dict[str, str]
) -> None:
    db = _merged(make, capture)
    write(db, "delete from t", tag="c")
    assert revert(db, ["b", "c"], **mode).status == "reverted"
    assert table(db) == [(1, 0, 0, 0)]
    assert redo(db, "a", merge=True).status == "reverted"
    assert table(db) == [(1, 1, 0, 0)]


@CAPTURES
def test_merge_leaves_a_column_that_a_person_set_after_its_undo(make: Make, capture: str) -> None:
    db = _merged(make, capture)
    db.execute("update t set v = 1, x = 7")
    (row,) = plan(db, "b", merge=True)
    assert (row.status, row.columns) == ("merge", ["w"])
    assert revert(db, "b", merge=True).status == "reverted"
    assert table(db) == [(1, 1, 0, 7)]


@CAPTURES
@pytest.mark.parametrize(
    ("order", "left"),
    [
        (["b"], (1, 0, 0, 1)),
        (["c"], (1, 0, 1, 0)),
        (["b", "c"], (1, 0, 0, 0)),
        (["c", "b"], (1, 0, 0, 0)),
        ([["b", "c"]], (1, 0, 0, 0)),
    ],
    ids=["b", "c", "b, c", "c, b", "together"],
)
def test_of_three_the_others_go_back_after_the_first(
    make: Make, capture: str, order: list[str | list[str]], left: Row
) -> None:
    db = _merged(make, capture, "c")
    for what in order:
        assert revert(db, what, merge=True).status == "reverted"
    assert table(db) == [left]


def test_redo_puts_back_only_the_calls_own_columns(make: Make) -> None:
    """The image that b left has what a had set, too; but a is undone."""
    db = make("1, 0, 0, 0", columns=WIDE)
    write(db, "update t set v = 1", tag="a")
    write(db, "update t set w = 1", tag="b")
    revert(db, "b")
    revert(db, "a")
    db.execute("update t set x = 5")
    assert redo(db, "b", merge=True).status == "reverted"
    assert table(db) == [(1, 0, 1, 5)]
    assert redo(db, "a", merge=True).status == "reverted"
    assert table(db) == [(1, 1, 1, 5)]
    assert revert(db, "b", merge=True).status == "reverted"
    assert table(db) == [(1, 1, 0, 5)]


@CAPTURES
@pytest.mark.parametrize("merge", [False, True], ids=["whole", "merge"])
def test_the_value_of_a_call_that_is_undone_does_not_come_back(
    make: Make, capture: str, merge: bool
) -> None:
    """The redo of b leaves what neither call had left: b's column beside those of nobody."""
    db = make("1, 0, 0, 0", columns=WIDE, capture=capture)
    write(db, "update t set v = 1, w = 1", tag="a")
    write(db, "update t set v = 2", tag="b")
    revert(db, "b")
    revert(db, "a")
    assert redo(db, "b", merge=merge).status == "reverted"
    assert table(db) == [(1, 2, 0, 0)]
    assert revert(db, "b", merge=merge).status == "reverted"
    assert table(db) == [(1, 0, 0, 0)]


# Rows that got other keys -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("second", [("made", "moved"), ("moved", "made")], ids=" ".join)
@pytest.mark.parametrize("first", [("made", "moved"), ("moved", "made")], ids=" ".join)
def test_rows_made_and_moved_are_not_doubled(
    make: Make, count: int, first: tuple[str, str], second: tuple[str, str]
) -> None:
    db = make()
    write(db, f"insert into t select n, 5 from generate_series(1, {count}) n", tag="made")
    write(db, "update t set id = id + 10", tag="moved")
    for call in first:
        assert revert(db, call).status == "reverted"
    assert table(db) == []
    if first == second == ("moved", "made"):
        # There is nothing at the old keys that could move.
        with refused("UN001") as caught:
            redo(db, "moved")
        assert set(caught.reasons) == {"row_deleted"}
        assert table(db) == []
        second = ("made", "moved")
    for call in second:
        assert redo(db, call).status == "reverted"
    assert table(db) == [(key + 10, 5) for key in range(1, count + 1)]


def test_a_row_is_not_made_again_over_one_that_has_not_moved_again(make: Make) -> None:
    """Done again in turn: the row that was made stands at the old key, the moved one beside it."""
    db = make("1, 3")
    write(db, "update t set id = 2 where id = 1", tag="moved")
    write(db, "insert into t values (1, 0)", tag="made")
    assert revert(db, "made").status == "reverted"
    assert (revert(db, "moved").status, table(db)) == ("reverted", [(1, 3)])
    with refused("UN001"):
        redo(db, "made")
    assert table(db) == [(1, 3)]
    assert redo(db, "moved").counts == (0, 0, 1, 0, 0)
    assert redo(db, "made").counts == (0, 1, 0, 0, 0)
    assert table(db) == [(1, 0), (2, 3)]
    assert revert(db, ["made", "moved"]).status == "reverted"
    assert table(db) == [(1, 3)]


def test_a_row_moves_again_though_it_was_deleted_later(make: Make) -> None:
    db = make()
    write(db, "insert into t values (1, 5)", tag="made")
    write(db, "update t set id = 11", tag="moved")
    write(db, "delete from t", tag="deleted")
    for call in ("made", "moved", "deleted"):
        assert revert(db, call).status == "reverted"
    assert table(db) == []
    assert redo(db, "made").status == "reverted"
    assert table(db) == [(1, 5)]
    assert redo(db, "moved").status == "reverted"
    assert table(db) == [(11, 5)]
    assert redo(db, "deleted").status == "reverted"
    assert table(db) == []


def test_a_moved_row_that_was_deleted_later_comes_back_under_its_old_key(make: Make) -> None:
    db = make("1, 5")
    write(db, "update t set id = 11", tag="moved")
    write(db, "delete from t", tag="deleted")
    assert revert(db, "moved", on_conflict="skip").rows_skipped == 1
    assert revert(db, "deleted").counts == (0, 1, 0, 0, 0)
    assert table(db) == [(11, 5)]
    assert revert(db, "moved").status == "reverted"
    assert table(db) == [(1, 5)]


@pytest.mark.parametrize("then", [["set", "made"], ["made", "set"]], ids=" ".join)
def test_a_row_made_and_set_is_what_the_last_who_stands_left(make: Make, then: list[str]) -> None:
    db = make()
    write(db, "insert into t values (1, 5)", tag="made")
    write(db, "update t set v = 6", tag="set")
    write(db, "delete from t", tag="deleted")
    for call in ("made", "deleted", "set"):
        assert revert(db, call).status == "reverted"
    assert table(db) == []
    for call in then:  # to set what nobody has made is nothing, until somebody has
        assert redo(db, call).status == "reverted"
        only_made = then[0] == call == "made"
        assert table(db) == ([] if then[0] == call == "set" else [(1, 5 if only_made else 6)])


def test_a_row_made_anew_is_all_its_makers_when_it_is_made_again(make: Make) -> None:
    db = make("1, 1")
    db.execute("alter table t add column note text default 'was'")
    write(db, "update t set note = 'set'", tag="set")
    write(db, "delete from t", tag="deleted")
    write(db, "insert into t values (1, 0, 'set')", tag="made")
    assert revert(db, ["deleted", "made"]).status == "reverted"
    assert revert(db, "set").status == "reverted"
    assert rows(db, "table t") == [(1, 1, "was")]
    assert redo(db, "made").status == "reverted"
    assert rows(db, "table t") == [(1, 0, "set")]


def test_an_undo_does_what_its_plan_says_beside_its_own_earlier_one(make: Make) -> None:
    db = make("1, 1", "2, 2", "3, 3")
    write(db, "delete from t where id = 2", tag="deletes")
    write(db, "update t set v = 9 where id = 1", tag="writes")
    assert revert(db, ["deletes", "writes"]).status == "reverted"
    write(db, "update t set v = v where id >= 2", tag="writes")
    write(db, "delete from t where id = 3", tag="goes")
    assert revert(db, "goes").status == "reverted"
    planned = [row.action for row in plan(db, "writes") if row.status == "ok"]
    assert revert(db, "writes").counts == (0, 0, planned.count("update"), 0, 0)
    assert table(db) == [(1, 1), (2, 2), (3, 3)]


# A later call was undone in part ----------------------------------------------------------------


def _partly(make: Make, first: str, capture: str = "agent") -> Connection:
    """`first` writes row 2, `later` both rows; a person has row 1; row 2 is as first left it."""
    db = make("1, 1", *(["2, 2"] if first.startswith("update") else []), capture=capture)
    write(db, first, tag="first")
    write(db, "update t set v = 5", tag="later")
    db.execute("update t set v = 6 where id = 1")
    assert revert(db, "later", on_conflict="skip").counts == (0, 0, 1, 1, 1)
    return db


@CAPTURES
@pytest.mark.parametrize("mode", ["abort", "skip"])
@pytest.mark.parametrize(
    ("first", "left"),
    [
        ("insert into t values (2, 20)", [(1, 6)]),
        ("update t set v = 20 where id = 2", [(1, 6), (2, 2)]),
    ],
    ids=["made", "set"],
)
def test_a_call_goes_back_after_a_later_one_in_part(
    make: Make, capture: str, mode: str, first: str, left: list[Row]
) -> None:
    db = _partly(make, first, capture)
    assert table(db) == [(1, 6), (2, 20)]
    assert states(db, "first") == ["ok"]
    assert revert(db, "first", on_conflict=mode).status == "reverted"
    assert table(db) == left


def test_a_call_that_wrote_again_after_a_later_one_in_part(make: Make) -> None:
    """What came between its two writes is undone: they are one turn."""
    db = _partly(make, "update t set v = 20 where id = 2")
    write(db, "update t set v = 21 where id = 2", tag="first")
    assert states(db, "first") == ["ok"]
    assert revert(db, "first").status == "reverted"
    assert table(db) == [(1, 6), (2, 2)]


def test_merge_after_a_later_call_in_part(make: Make) -> None:
    """With capture 'all': the column that the partial undo put back is nobody else's."""
    db = make("1, 1, 0", "2, 2, 0", columns="id int primary key, v int, x int", capture="all")
    write(db, "update t set v = 20 where id = 2", tag="first")
    write(db, "update t set v = 30", tag="later")
    db.execute("update t set v = 99 where id = 1")
    assert revert(db, "later", on_conflict="skip").status == "partially_reverted"
    db.execute("update t set x = 5 where id = 2")
    (row,) = plan(db, "first", merge=True)
    assert (row.status, row.columns) == ("merge", ["v"])
    assert revert(db, "first", merge=True).status == "reverted"
    assert table(db) == [(1, 99, 0), (2, 2, 5)]


def test_many_rows_after_later_calls_in_part(make: Make) -> None:
    """Skip leaves those that a person wrote, and no others."""
    db = make(columns=WIDE.replace(", x int", ""))
    db.execute("insert into t select n, 0, 0 from generate_series(1, 60) n")
    write(db, "update t set v = 1", tag="a")
    write(db, "delete from t where id % 2 = 0", tag="b")
    write(db, "update t set v = v + 1 where id % 3 = 0", tag="c")
    db.execute("update t set w = 9 where id % 5 = 0")
    for call in "abca":
        revert(db, call, on_conflict="skip")
    # Rows 2, 4, 6, … were gone when the person wrote, all others with a 5 are his.
    theirs = {n: 2 if n % 3 == 0 else 1 for n in range(5, 61, 10)}
    assert table(db) == [(n, theirs.get(n, 0), 9 if n in theirs else 0) for n in range(1, 61)]


def test_redo_of_what_was_undone_in_part(make: Make) -> None:
    db = make("1, 1", "2, 2")
    write(db, "update t set v = 30", tag="first")
    db.execute("update t set v = 99 where id = 1")
    assert revert(db, "first", on_conflict="skip").counts == (0, 0, 1, 1, 1)
    write(db, "update t set v = v + 1", tag="second")
    assert revert(db, "second").counts == (0, 0, 2, 0, 0)
    assert redo(db, "first").status == "reverted"
    assert table(db) == [(1, 99), (2, 30)]
    assert redo(db, "second").status == "reverted"
    assert table(db) == [(1, 100), (2, 3)]


# A column came in between -----------------------------------------------------------------------


def test_redo_of_a_row_without_a_later_column_is_a_conflict(make: Make) -> None:
    """Its undo had found the row gone; what the new column was to be, nobody knows."""
    db = make()
    write(db, "insert into t values (1, 1)", tag="made")
    write(db, "delete from t", tag="deleted")
    db.execute("alter table t add column w int")
    assert revert(db, "made").counts == (0, 0, 0, 0, 0)
    assert revert(db, "deleted").counts == (0, 0, 0, 0, 0)
    with refused("UN001") as caught:
        redo(db, "made")
    assert caught.reasons == ["schema_changed"]
    assert table(db) == []
    assert status(db, "made") == "reverted"


# One call in two turns --------------------------------------------------------------------------


@pytest.fixture
def turns(make: Make) -> Connection:
    """`a` sets 1, `b` sets 5, `a` sets 6."""
    db = make("1, 0")
    for call, value in (("a", 1), ("b", 5), ("a", 6)):
        write(db, f"update t set v = {value}", tag=call)
    return db


@pytest.mark.parametrize("arguments", [{"on_conflict": "skip"}, FORCE], ids=["skip", "force"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_both_turns_of_a_call_go_back(
    turns: Connection, arguments: dict[str, str], again: bool
) -> None:
    revert(turns, "a", **arguments)
    assert table(turns) == [(1, 5)]
    if again:
        assert revert(turns, "a").status == "already_reverted"
        assert table(turns) == [(1, 5)]
    assert states(turns, "b") == ["ok"]
    assert revert(turns, "b").status == "reverted"
    assert table(turns) == [(1, 0)]


def test_cascade_after_the_call_itself_has_gone(turns: Connection) -> None:
    revert(turns, "a", on_conflict="skip")
    assert revert(turns, "a", on_conflict="cascade").status == "already_reverted"
    assert table(turns) == [(1, 5)]
    assert revert(turns, ["a", "b"]).status == "reverted"
    assert table(turns) == [(1, 0)]


@pytest.mark.parametrize(
    ("what", "mode"), [(["a", "b"], "abort"), ("a", "cascade"), ("b", "cascade")], ids=str
)
def test_both_calls_at_once(turns: Connection, what: str | list[str], mode: str) -> None:
    done = revert(turns, what, on_conflict=mode)
    assert done.status == "reverted"
    assert set(done.invocations) == {"a", "b"}
    assert table(turns) == [(1, 0)]


# A person deleted while a deletion was undone ---------------------------------------------------


@CAPTURES
def test_a_row_that_a_person_deleted_before_the_redo_stays_away(make: Make, capture: str) -> None:
    db = make("1, 1", capture=capture)
    write(db, "delete from t", tag="deleted")
    revert(db, "deleted")
    db.execute("delete from t")
    assert redo(db, "deleted").counts == (0, 0, 0, 0, 0)
    _stays_away(db, "deleted")


@CAPTURES
def test_a_row_that_others_made_and_a_person_deleted_stays_away(make: Make, capture: str) -> None:
    db = make(capture=capture)
    write(db, "insert into t values (1, 1)", tag="made")
    write(db, "delete from t", tag="deleted")
    revert(db, "deleted")
    db.execute("delete from t")
    assert redo(db, "deleted").counts == (0, 0, 0, 0, 0)
    assert revert(db, "made").status == "reverted"
    _stays_away(db, "deleted")
    _stays_away(db, "made", act=redo)


def _stays_away(db: Connection, call: str, act: Callable[..., Any] = revert) -> None:
    """Fail if the row comes back, whether the undo is refused or has nothing to do."""
    if "conflict" in states(db, call) and act is revert:
        assert_in_the_way(db, call, "row_deleted")
    else:
        assert act(db, call).status == "reverted"
    assert table(db) == []


# The same deletion twice ------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["first", ["first", "second"]], ids=["the same", "another"])
def test_two_deletions_with_an_undo_in_between_are_one_turn(
    make: Make, what: str | list[str]
) -> None:
    db = make("1, 0")
    calls = [what] if isinstance(what, str) else what
    write(db, "delete from t", tag="first")
    assert revert(db, "first").status == "reverted"
    write(db, "delete from t", tag=calls[-1])
    assert redo(db, "first").status == "reverted"
    assert table(db) == []
    assert states(db, *calls) == ["ok"]
    assert revert(db, what).counts == (0, 1, 0, 0, 0)
    assert table(db) == [(1, 0)]
    assert {status(db, call) for call in calls} == {"reverted"}


def test_an_undo_and_a_redo_in_one_bring_the_row_back(make: Make) -> None:
    """The deletion goes back, and the row's making is done again."""
    db = make()
    write(db, "insert into t values (1, 1)", tag="made")
    write(db, "delete from t", tag="deleted")
    undone = revert(db, "made").revert_id
    assert undone
    assert revert(db, ["deleted", undone]).counts == (0, 1, 0, 0, 0)
    assert table(db) == [(1, 1)]
    assert status(db, "made") == "committed"
    assert status(db, "deleted") == "reverted"


def test_one_call_that_set_a_row_before_and_after_its_undo(make: Make) -> None:
    db = make("1, 0")
    write(db, "update t set v = 1", tag="call")
    assert revert(db, "call").status == "reverted"
    write(db, "update t set v = 2", tag="call")
    assert states(db, "call") == ["ok"]
    assert revert(db, "call").status == "reverted"
    assert table(db) == [(1, 0)]
