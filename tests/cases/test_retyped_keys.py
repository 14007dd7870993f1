"""The key changes its type after agents have written: rows are still told apart by it.

`int` to `bigint` is what grown databases do to their keys. Older images keep the narrow value.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run, write
from tests.support.undo import plan, redo, refused, revert, rows, scalar

pytestmark = pytest.mark.core

_WIDER = {
    "int": ["bigint"],
    "smallint": ["int", "bigint", "numeric"],
    "varchar(20)": ["text"],
    "date": ["timestamp"],
    "real": ["float8"],
}
_KEYS = {
    "date": ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"],
    "real": ["0.1", "2", "3.5", "-4"],
}


@pytest.fixture(params=["at once", "by sync()"])
def followed(request: pytest.FixtureRequest, db: Connection) -> bool:
    """Without event triggers a change of the key is not known before sync()."""
    if request.param == "by sync()":
        run(db, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    return bool(request.param == "at once")


def _make(db: Connection, kind: str, capture: str = "all") -> list[str]:
    keys = [f"'{key}'" for key in _KEYS.get(kind, ["1", "2", "3", "4"])]
    run(
        db,
        f"create table t (id {kind} primary key, v int, w int)",
        *(f"insert into t values ({key}, 1, 1)" for key in keys),
        f"select agentundo.track('t', capture => '{capture}')",
    )
    return keys


@pytest.mark.parametrize("kind", _WIDER)
def test_only_the_row_that_somebody_else_wrote_stays(
    db: Connection, followed: bool, kind: str
) -> None:
    _, two, three, four = _make(db, kind)
    before = snapshot(db, "t")
    write(db, "update t set v = 2", f"delete from t where id = {three}")
    run(db, f"update t set w = 7 where id = {two}")
    for wider in _WIDER[kind]:
        run(db, f"alter table t alter id type {wider}", "select agentundo.sync()")
    run(db, f"update t set w = 8 where id = {four}")
    assert {row.action for row in plan(db, "inv")} == {"update", "insert"}
    with refused("UN001") as caught:
        revert(db, "inv")
    assert caught.reasons == ["row_changed", "row_changed"]
    done = revert(db, "inv", merge=True)
    assert done.counts == (0, 1, 3, 0, 0)
    run(db, f"update t set w = 1 where id in ({two}, {four})")
    for narrower in [*reversed(_WIDER[kind][:-1]), kind]:
        run(db, f"alter table t alter id type {narrower}")
    assert_same(before, snapshot(db, "t"))


def test_changes_before_and_after_are_one_walk(db: Connection, followed: bool) -> None:
    _make(db, "int")
    run(db, "create table same (id bigint primary key, v int, w int)")
    run(db, "insert into same table t")
    write(db, "update t set v = 2", "delete from t where id = 1")
    run(db, "alter table t alter id type bigint", "select agentundo.sync()")
    write(db, "update t set w = 2 where id = 2", "insert into t values (1, 5, 5), (9, 9, 9)")
    assert revert(db, "inv").counts == (1, 0, 4, 0, 0)
    assert rows(db, "table t order by id") == rows(db, "table same order by id")
    assert redo(db, "inv").status == "reverted"
    assert rows(db, "table t order by id") == [
        (1, 5, 5),
        (2, 2, 2),
        (3, 2, 1),
        (4, 2, 1),
        (9, 9, 9),
    ]


def test_what_others_have_undone_since_is_seen(db: Connection, followed: bool) -> None:
    _make(db, "int")
    write(db, "update t set v = 2 where id = 1", invocation="first")
    write(db, "update t set v = 3 where id = 1", invocation="second")
    run(db, "alter table t alter id type bigint")
    assert revert(db, "second").status == "reverted"
    assert scalar(db, "select v from t where id = 1") == 2
    assert revert(db, "first").status == "reverted"
    assert scalar(db, "select v from t where id = 1") == 1


@pytest.mark.parametrize("keys", ["id, n", "n, id"])
def test_one_column_of_several(db: Connection, followed: bool, keys: str) -> None:
    run(
        db,
        f"create table t (id int, n text, v int, primary key ({keys}))",
        "insert into t values (1, 'a', 1), (1, 'b', 1), (2, 'a', 1)",
        "select agentundo.track('t')",
    )
    before = rows(db, "table t order by id, n")
    write(db, "update t set v = 2 where n = 'a'", "delete from t where n = 'b'")
    run(db, "alter table t alter id type bigint")
    assert revert(db, "inv").counts == (0, 1, 2, 0, 0)
    assert rows(db, "table t order by id, n") == before


def test_a_row_that_stands_under_the_key_again_is_seen(db: Connection, followed: bool) -> None:
    _make(db, "int")
    write(db, "delete from t where id = 1")
    run(db, "alter table t alter id type bigint", "select agentundo.sync()")
    run(db, "insert into t values (1, 6, 6)")
    with refused("UN001") as caught:
        revert(db, "inv")
    assert caught.reasons == ["row_exists"]
    run(db, "delete from t where id = 1")
    with refused("UN001") as caught:
        revert(db, "inv")
    assert caught.reasons == ["row_deleted"]
    assert rows(db, "table t order by id") == [(2, 1, 1), (3, 1, 1), (4, 1, 1)]


def test_erasure_and_history_know_both_types(db: Connection, followed: bool) -> None:
    _make(db, "int")
    write(db, "update t set v = 5 where id <= 2")
    run(db, "alter table t alter id type bigint", "select agentundo.sync()")
    write(db, "update t set v = 6 where id <= 2", invocation="later")
    history = "select operation, before ->> 'v', after ->> 'v' from agentundo.row_history('t', %s)"
    assert rows(db, history, '{"id": 1}') == [("update", "1", "5"), ("update", "5", "6")]
    erased = "select images from agentundo.erase('t', %s, 'request 1')"
    assert scalar(db, erased, '{"id": 1}') == 4
    table = scalar(db, "select history from agentundo.tracked")
    assert rows(db, f"select c1, c1_2 from {table} order by c1, c1_2") == [
        (2, None),
        (2, None),
        (None, 2),
        (None, 2),
    ]
    assert rows(db, history, '{"id": 1}') == []


def test_a_key_whose_values_are_others_now_leaves_whole_rows(
    db: Connection, followed: bool
) -> None:
    _make(db, "int")
    write(db, "update t set v = 5 where id <= 2")
    run(db, "alter table t alter id type text", "select agentundo.sync()")
    before = snapshot(db, "t")
    assert {row.reason for row in plan(db, "inv")} == {"schema_changed"}
    with refused("UN001"):
        revert(db, "inv")
    assert_same(before, snapshot(db, "t"))


def test_ddl_under_an_older_snapshot_than_the_first_captured_write(
    db: Connection, connect: Connect
) -> None:
    """The first images are there, whatever the transaction of the DDL can see."""
    _make(db, "int")
    before = rows(db, "table t order by id")
    other = connect()
    run(other, "begin isolation level repeatable read", "select count(*) from t")
    write(db, "delete from t where id = 1")
    run(other, "alter table t alter v type bigint", "commit")
    assert revert(db, "inv").counts == (0, 1, 0, 0, 0)
    assert rows(db, "table t order by id") == before


@pytest.mark.parametrize("schema", ["zone", "another", "milestone"])
def test_the_type_of_the_key_lives_in_a_schema_of_any_name(db: Connection, schema: str) -> None:
    run(
        db,
        f"create schema {schema}",
        f"create extension citext schema {schema}",
        f"create table t (id {schema}.citext primary key, v int)",
        "insert into t values ('a', 1), ('b', 2)",
        "select agentundo.track('t')",
    )
    before = snapshot(db, "t")
    write(
        db,
        "update t set v = 5",
        "update t set v = 6 where id = 'A'",
        "delete from t where id = 'b'",
    )
    assert revert(db, "inv").counts == (0, 1, 1, 0, 0)
    assert_same(before, snapshot(db, "t"))
