"""Sets and calls that wrote a row in turns with others: what is theirs goes back, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import (
    Refusal,
    Result,
    plan_run,
    redo,
    revert,
    revert_as_planned,
    revert_run,
    rows,
    status,
)
from tests.support.undoing import everything, track, write

pytestmark = pytest.mark.core


def undo(db: Connection, what: str | list[str], **arguments: Any) -> Result:
    """Take back as planned what must not be refused."""
    outcome = revert_as_planned(db, ["public.t"], what, **arguments)
    assert not isinstance(outcome, Refusal), outcome
    return outcome


# Others between the calls of a set ---------------------------------------------------------------


@pytest.fixture
def row(db: Connection) -> Connection:
    """Make a row, and let two calls of a run write it, and somebody another column in between."""
    db.execute("create table t (id int primary key, b int, c int, d int)")
    db.execute("insert into t values (1, 0, 0, 0), (2, 0, 0, 0)")
    track(db, "t", capture="all")
    for call, statement in (
        ("b1", "update t set b = 1"),
        (None, "update t set c = 1 where id = 1"),
        ("b2", "update t set d = 1"),
    ):
        with db.transaction():
            if call:
                db.execute("select agentundo.tag(%s, run => 'r')", [call])
            db.execute(statement.encode())
    return db


def test_a_run_goes_back_by_merge_around_what_others_wrote_in_between(row: Connection) -> None:
    assert {one.status for one in plan_run(row, "r", merge=True)} <= {"ok", "merge"}
    assert revert_run(row, "r", merge=True).counts == (0, 0, 2, 0, 0)
    assert rows(row, "select * from t order by id") == [(1, 0, 1, 0), (2, 0, 0, 0)]
    assert [status(row, call) for call in ("b1", "b2")] == ["reverted", "reverted"]
    assert revert_run(row, "r", merge=True).status == "already_reverted"


@pytest.mark.parametrize("order", [["b1", "b2"], ["b2", "b1"]])
def test_a_set_goes_back_by_merge_as_its_calls_do_one_by_one(
    row: Connection, order: list[str]
) -> None:
    with row.transaction(force_rollback=True):
        for call in ("b2", "b1"):
            assert revert(row, call, merge=True).status == "reverted"
        one_by_one = everything(row)
    after = everything(row)
    assert undo(row, order, merge=True).status == "reverted"
    assert_same(one_by_one, everything(row))
    assert redo(row, "b1", merge=True).status == "reverted"
    assert_same(after, everything(row))


def test_a_set_is_refused_where_others_wrote_its_own_column_in_between(db: Connection) -> None:
    db.execute("create table t (id int primary key, b int, d int); insert into t values (1, 0, 0)")
    track(db, "t", capture="all")
    write(db, "update t set b = 1", tag="b1")
    db.execute("update t set b = 2")
    write(db, "update t set d = 1", tag="b2")
    now = everything(db)
    outcome = revert_as_planned(db, ["public.t"], ["b1", "b2"], merge=True)
    assert isinstance(outcome, Refusal)
    assert outcome.reasons == ["row_changed"]
    assert "b" in outcome.conflicts[0]["columns"]
    assert_same(now, everything(db))
