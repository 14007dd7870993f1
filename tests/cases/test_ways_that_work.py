"""What a refusal offers works, and force makes no second copy of a row."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.undo import (
    FORCE,
    Refusal,
    plan,
    refused,
    revert,
    revert_as_planned,
    rows,
)
from tests.support.undoing import track, write

pytestmark = pytest.mark.core

WAYS: dict[str, dict[str, Any]] = {
    "merge": {"merge": True},
    "skip": {"on_conflict": "skip"},
    "cascade": {"on_conflict": "cascade"},
    "force": FORCE,
}


def offered(db: Connection, what: str, **arguments: Any) -> set[str]:
    """Revert what must be refused; return the ways out that the hint names."""
    with refused("UN001") as caught:
        revert(db, what, **arguments)
    return {way for way in WAYS if way in caught.hint}


def assert_they_work(db: Connection, what: str, ways: set[str]) -> dict[str, list[Any]]:
    """Go each way; none may be refused. Return what the table holds after each."""
    left = {}
    for way in sorted(ways):
        with db.transaction(force_rollback=True):
            planned = {row.status for row in plan(db, what, **_asked(WAYS[way]))}
            assert "conflict" not in planned, way
            assert revert(db, what, **WAYS[way]).status in ("reverted", "partially_reverted"), way
            left[way] = rows(db, "select * from t order by 1")
    return left


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in arguments.items() if n not in ("reverted_by", "reason")}


# Rows without a key ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "others"),
    [
        ("insert into t values (1, 'x')", "update t set b = 'theirs' where a = 1"),
        ("insert into t values (1, 'x')", "delete from t where a = 1"),
        ("update t set b = 'x' where a = 2", "update t set b = 'theirs' where a = 2"),
        ("update t set b = 'x' where a = 2", "delete from t where a = 2"),
        ("update t set b = 'x'", "update t set b = 'theirs' where a = 2"),
    ],
)
@pytest.mark.parametrize("by", ["a person", "an agent"])
def test_of_rows_without_a_key_what_is_offered_works(
    db: Connection, by: str, agents: str, others: str
) -> None:
    """Merge has no row to look at there, and force none that it could overwrite."""
    db.execute("create table t (a int, b text); insert into t values (2, 'two'), (3, 'three')")
    track(db, "t", capture="all")
    write(db, agents, tag="call")
    if by == "an agent":
        write(db, others, tag="later")
    else:
        db.execute(others.encode())
    now = rows(db, "select * from t order by 1")
    ways = offered(db, "call")
    assert "skip" in ways
    assert "merge" not in ways
    if by == "a person":
        ways.discard("cascade")  # is offered whoever stands in the way; goes on for agents only
    left = assert_they_work(db, "call", ways)
    assert [row for row in left["skip"] if row[1] == "theirs"] == [
        row for row in now if row[1] == "theirs"
    ]
    for found in left.values():
        assert len({key for key, _ in found}) == len(found)
    assert rows(db, "select * from t order by 1") == now


@pytest.mark.parametrize("arguments", [{"merge": True}, {"on_conflict": "cascade"}])
def test_of_rows_without_a_key_a_second_refusal_offers_what_works(
    db: Connection, arguments: dict[str, Any]
) -> None:
    db.execute("create table t (a int, b text)")
    track(db, "t", capture="all")
    write(db, "insert into t values (1, 'x'), (2, 'y')", tag="call")
    db.execute("update t set b = 'theirs' where a = 1")
    ways = offered(db, "call", **arguments) - {"cascade"}
    left = assert_they_work(db, "call", ways)
    assert left["skip"] == [(1, "theirs")]


# A key that somebody has taken -------------------------------------------------------------------


@pytest.mark.parametrize("moves", ["id = 11", "id = 11, v = 'moved'"])
@pytest.mark.parametrize("by", ["a person", "an agent"])
def test_force_works_where_somebody_has_taken_the_former_key_or_is_not_offered(
    db: Connection, by: str, moves: str
) -> None:
    db.execute("create table t (id int primary key, v text); insert into t values (1, 'one')")
    track(db, "t", capture="all")
    write(db, f"update t set {moves} where id = 1", tag="call")
    if by == "an agent":
        write(db, "insert into t values (1, 'theirs')", tag="later")
    else:
        db.execute("insert into t values (1, 'theirs')")
    now = rows(db, "select * from t order by 1")
    ways = offered(db, "call") - {"cascade"}
    left = assert_they_work(db, "call", ways)
    assert left["skip"] == now
    outcome = revert_as_planned(db, ["public.t"], "call", **FORCE)
    if "force" in ways:
        assert left["force"] == [(1, "one")]  # theirs is overwritten
        assert not isinstance(outcome, Refusal)
        assert rows(db, "table t") == [(1, "one")]
    else:
        assert isinstance(outcome, Refusal)
        assert rows(db, "select * from t order by 1") == now


def test_cascade_works_where_an_agent_has_taken_the_former_key_or_is_not_offered(
    db: Connection,
) -> None:
    db.execute("create table t (id int primary key, v text); insert into t values (1, 'one')")
    track(db, "t", capture="all")
    write(db, "update t set id = 11 where id = 1", tag="call")
    write(db, "insert into t values (1, 'theirs')", tag="later")
    left = assert_they_work(db, "call", offered(db, "call") & {"cascade"})
    assert left.get("cascade", [(1, "one")]) == [(1, "one")]


# A row that somebody has moved further -----------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "others"),
    [
        ("update t set id = 13 where id = 3", ["update t set id = 14 where id = 13"]),
        ("update t set id = 13, v = 'x' where id = 3", ["update t set id = 14 where id = 13"]),
        (
            "update t set id = 13 where id = 3",
            ["update t set id = 14, v = 'theirs' where id = 13"],
        ),
        (
            "update t set id = 13 where id = 3",
            ["update t set id = 14 where id = 13", "update t set id = 15 where id = 14"],
        ),
        ("update t set v = 'x' where id = 3", ["update t set id = 14 where id = 3"]),
    ],
    ids=["moved", "moved and written", "moved on and written", "moved on twice", "written"],
)
@pytest.mark.parametrize("by", ["a person", "an agent"])
def test_force_makes_no_second_copy_of_a_row_that_was_moved_on(
    db: Connection, by: str, agents: str, others: list[str]
) -> None:
    """It puts the row back that is there, or is refused."""
    db.execute(
        "create table t (id int primary key, v text, serial text);"
        "insert into t values (3, 'three', 'SN-3'), (4, 'four', 'SN-4')"
    )
    track(db, "t", capture="all")
    write(db, agents, tag="call")
    for number, statement in enumerate(others):
        if by == "an agent":
            write(db, statement, tag=f"later-{number}")
        else:
            db.execute(statement.encode())
    now = rows(db, "select * from t order by serial")
    outcome = revert_as_planned(db, ["public.t"], "call", **FORCE)
    found = rows(db, "select * from t order by serial")
    assert [serial for _, _, serial in found] == ["SN-3", "SN-4"]
    assert found[1] == (4, "four", "SN-4")
    if isinstance(outcome, Refusal):
        assert found == now
