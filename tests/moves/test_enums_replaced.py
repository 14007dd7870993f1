"""An enum is replaced by another type: labels are told by their names."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run, write
from tests.support.undo import plan, refused, revert, rows


def _replace(db: Connection, labels: str, *before: str) -> None:
    run(db, *before, f"create type stage_new as enum ({labels})")
    run(db, "alter table t alter s type stage_new using s::text::stage_new", "drop type stage")
    run(db, "alter type stage_new rename to stage", "select agentundo.sync()")


@pytest.fixture
def t(db: Connection) -> Connection:
    run(
        db,
        "create type stage as enum ('Open', 'Won', 'Lost')",
        "create table t (id int primary key, s stage)",
        "insert into t values (1, 'Open'), (3, 'Lost')",
        "create table notes (id int primary key, t int references t)",
        "insert into notes values (30, 3)",
        "select agentundo.track('t'), agentundo.track('notes')",
    )
    return db


@pytest.mark.parametrize("followed", [True, False], ids=["followed", "not followed"])
def test_labels_of_another_enum_are_told_by_their_names(t: Connection, followed: bool) -> None:
    """Not by their places: it is another type, in which they may have any order."""
    if not followed:
        run(t, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    before = snapshot(t, "t", "notes")
    write(
        t, "update t set s = 'Won' where id = 1", "delete from notes", "delete from t where id = 3"
    )
    _replace(t, "'New', 'Lost', 'Won', 'Open'")
    assert revert(t, "inv").status == "reverted"
    assert_same(before, snapshot(t, "t", "notes"))


def test_label_that_the_other_enum_lacks_is_a_conflict(t: Connection) -> None:
    write(
        t, "update t set s = 'Won' where id = 1", "delete from notes", "delete from t where id = 3"
    )
    _replace(t, "'Open', 'Won'")
    found = {(row.relation, (row.key or {})["id"]): row.reason for row in plan(t, "inv")}
    assert found == {
        ("public.t", 1): None,
        ("public.t", 3): "schema_changed",
        ("public.notes", 30): "missing_parent",
    }
    with refused("UN001"):
        revert(t, "inv")
    assert revert(t, "inv", on_conflict="skip").status == "partially_reverted"
    assert rows(t, "select id, s::text from t") == [(1, "Open")]


@pytest.mark.parametrize(
    "changes",
    [
        ["alter type stage rename value 'Won' to 'Gained'", "alter type stage add value 'Won'"],
        [
            "alter type stage rename value 'Won' to 'Gained'",
            "alter type stage rename value 'Gained' to 'Won'",
        ],
    ],
    ids=["another label of that name", "there and back"],
)
def test_a_label_that_comes_back_does_not_keep_history_from_following(
    t: Connection, changes: list[str]
) -> None:
    run(t, "update t set s = 'Won' where id = 3")
    before = snapshot(t, "t", "notes")
    write(t, "delete from notes", "delete from t where id = 3")
    run(t, *changes, "select agentundo.sync()")
    assert rows(t, "select * from agentundo.check() where severity = 'error'") == []
    assert revert(t, "inv").status == "reverted"
    label = "Won" if "Gained' to" in changes[1] else "Gained"
    assert rows(t, "select s::text from t where id = 3") == [(label,)]
    if label == "Won":
        assert_same(before, snapshot(t, "t", "notes"))


def test_an_enum_is_replaced_twice_and_has_its_first_labels_again(t: Connection) -> None:
    run(t, "update t set s = 'Won' where id = 3")
    before = snapshot(t, "t", "notes")
    write(t, "update t set s = 'Won' where id = 1")
    _replace(t, "'Won', 'Lost'")
    _replace(t, "'Open', 'Won', 'Lost'")
    assert rows(t, "select * from agentundo.check() where severity = 'error'") == []
    assert revert(t, "inv").status == "reverted"
    assert_same(before, snapshot(t, "t", "notes"))
