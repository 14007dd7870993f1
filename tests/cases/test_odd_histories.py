"""Histories that random tests have found: each was once taken back wrongly, or not at all."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import FORCE, plan, redo, revert, status
from tests.support.undoing import assert_refused, assert_undone, everything, reasons, track, write

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "migration",
    [
        "alter table t alter v type bigint; alter table t alter v type int",
        "alter table t alter v type bigint",
        "alter table t add column w int default 3; alter table t alter w type bigint",
    ],
)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_column_retyped_before_anything_was_captured_under_it(
    db: Connection, migration: str, when: str
) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    track(db, "t")
    if when == "later":
        write(db, "update t set v = v + 1")
    db.execute(migration.encode())
    before = everything(db)
    calls = [write(db, "delete from t where id = 1"), write(db, "update t set v = v + 1")]
    for call in reversed(calls):
        assert {row.status for row in plan(db, call)} == {"ok"}
        assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize("ids", [["a", "b"], ["a", "a"]])
def test_rows_without_a_key_written_again_after_their_undo(db: Connection, ids: list[str]) -> None:
    db.execute("create table t (a int, b text); insert into t values (1, 'x'), (2, 'y'), (2, 'y')")
    track(db, "t")
    before = everything(db)
    write(db, "delete from t where a = 1", tag=ids[0])
    assert revert(db, ids[0]).status == "reverted"
    write(db, "update t set b = 'z' where a = 1", tag=ids[1])
    assert revert(db, sorted(set(ids))).status == "reverted"
    assert_same(before, everything(db))
    assert redo(db, ids[1]).status == "reverted"
    assert revert(db, ids[1]).status == "reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize(
    "statement",
    [
        "insert into t values (3, 1)",
        "update t set v = 5",
        "delete from t where id = 2",
        "delete from t; insert into t values (1, 1)",
    ],
)
def test_statement_triggers_fire_for_nothing_that_is_not_done(
    db: Connection, statement: str
) -> None:
    """Neither on the table itself nor on one to which a key would have acted."""
    db.execute(
        "create table t (id int primary key, v int); insert into t values (1, 1), (2, 2);"
        "create table c (id int primary key, t int references t on delete cascade"
        " on update cascade);"
        "create table log (n int generated always as identity primary key, what text);"
        "create function f() returns trigger language plpgsql security definer"
        " set search_path = public as"
        " $$ begin insert into log (what) values (tg_op || tg_table_name); return null; end $$"
    )
    for table in ("t", "c"):
        for operation in ("insert", "update", "delete"):
            db.execute(
                f"create trigger {operation} after {operation} on {table}"
                " for each statement execute function f()".encode()
            )
    track(db, "t", "c", "log")
    before = everything(db)
    call = write(db, statement)
    assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))


def test_a_partly_redone_call_can_be_taken_back(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v int); insert into t values (1, 1), (2, 2), (3, 3)"
    )
    track(db, "t")
    call = write(db, "update t set v = v + 10")
    assert revert(db, call).status == "reverted"
    db.execute("update t set v = 99 where id = 2")
    before = everything(db)
    assert redo(db, call, on_conflict="skip").status == "partially_reverted"
    assert status(db, call) == "partially_reverted"
    assert {(row.key or {})["id"] for row in plan(db, call) if row.acts} == {1, 3}
    assert revert(db, call).counts == (0, 0, 2, 0, 0)
    assert status(db, call) == "reverted"
    assert_same(before, everything(db))
    assert revert(db, call).status == "already_reverted"
    assert redo(db, call).counts == (0, 0, 2, 0, 0)
    assert revert(db, call).counts == (0, 0, 2, 0, 0)
    assert_same(before, everything(db))


def test_a_unique_value_that_two_rows_of_the_set_had_one_after_the_other(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, u int unique); insert into t values (1, 5), (3, 7)"
    )
    track(db, "t")
    first = write(db, "delete from t where id in (1, 3)")
    db.execute("insert into t values (2, 5)")
    second = write(db, "delete from t where id = 2")
    assert reasons(db, [first, second]) == {"unique_taken": 1}
    assert_refused(db, [first, second])
    assert_refused(db, [first, second], **FORCE)
    assert revert(db, [first, second], on_conflict="skip").counts == (0, 2, 0, 1, 1)
    assert db.execute("select * from t order by id").fetchall() == [(2, 5), (3, 7)]


@pytest.mark.parametrize("default", ["gen_random_uuid()", "clock_timestamp()", "random()", "7"])
def test_a_default_that_came_later_is_recorded_as_it_was_made(db: Connection, default: str) -> None:
    kind = {"g": "uuid", "c": "timestamptz", "r": "float8", "7": "int"}[default[0]]
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    track(db, "t")
    call = write(db, "delete from t where id = 1")
    db.execute(f"alter table t add column a {kind} default {default}".encode())
    after = everything(db)
    assert revert(db, call).status == "reverted"
    there = everything(db)
    (shown,) = db.execute(
        "select after ->> 'a' = (select to_jsonb(a) #>> '{}' from t where id = 1)"
        " from agentundo.row_history('t', '{\"id\": 1}') order by change desc limit 1"
    ).fetchone() or (None,)
    assert shown is True
    assert redo(db, call).status == "reverted"
    assert_same(after, everything(db))
    assert revert(db, call).status == "reverted"
    assert {t: s for t, s in everything(db).items() if t != "t"} == {
        t: s for t, s in there.items() if t != "t"
    }


def test_foreign_keys_bind_no_rows_of_inheriting_tables(db: Connection) -> None:
    db.execute(
        "create table par (id int primary key); create table ch (id int primary key, p int"
        " references par); create table ch_c () inherits (ch);"
        "create table ipar (id int primary key); create table ipar_c () inherits (ipar);"
        "create table kid (id int primary key, p int references ipar);"
        "insert into ipar values (1); insert into kid values (1, 1)"
    )
    track(db, "par", "ch", "ipar", "kid")
    call = write(db, "insert into par values (1)")
    db.execute("insert into ch_c values (1, 1)")
    assert reasons(db, call) == {}
    assert revert(db, call).counts == (1, 0, 0, 0, 0)
    call = write(db, "delete from kid")
    db.execute("delete from ipar; insert into ipar_c values (1)")
    assert reasons(db, call) == {"missing_parent": 1}
    assert_refused(db, call)


def test_altering_the_parent_of_an_inheritance_tree_is_followed_below(db: Connection) -> None:
    db.execute("create table p (id int primary key); create table pc (ex int) inherits (p)")
    track(db, "p")
    db.execute("alter table p add column a int default 5")
    errors = "select * from agentundo.check() where severity = 'error'"
    assert db.execute(errors).fetchall() == []
    assert_undone(db, "insert into pc values (1, 2, 3)", "insert into p values (2, 9)")


def test_a_merge_in_which_nothing_is_left_to_put_back_writes_nothing(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int, w int); insert into t values (1, 1, 1)")
    track(db, "t")
    call = write(db, "update t set v = v")
    db.execute("update t set w = 2")
    before = everything(db)
    xmin = db.execute("select xmin from t").fetchone()
    assert [row.status for row in plan(db, call, merge=True)] == ["done"]
    assert revert(db, call, merge=True).counts == (0, 0, 0, 0, 0)
    assert db.execute("select xmin from t").fetchone() == xmin
    assert_same(before, everything(db))


@pytest.mark.parametrize("again", [False, True])
def test_a_partitioned_table_that_was_rewritten_is_compared_by_value(
    db: Connection, again: bool
) -> None:
    db.execute(
        "create table t (id int primary key, v int) partition by range (id);"
        "create table t1 partition of t for values from (0) to (10);"
        "create table t2 partition of t for values from (10) to (20);"
        "insert into t values (1, 1), (2, 2), (11, 1)"
    )
    track(db, "t")
    call = write(db, "update t set v = v + 10")
    db.execute("alter table t add column a float8 default random()")
    later = write(db, "update t set v = v + 100 where id = 2")
    if again:
        db.execute("vacuum full t1")
    assert {row.status for row in plan(db, later)} == {"ok"}
    assert revert(db, later).status == "reverted"
    assert {(row.detail or {})["basis"] for row in plan(db, call)} <= {"value", "version"}
    assert reasons(db, call) == {}
    assert revert(db, call).status == "reverted"
    assert db.execute("select id, v from t order by id").fetchall() == [(1, 1), (2, 2), (11, 1)]


@pytest.mark.parametrize(
    "writes",
    [
        ["delete from t where id = 2", "insert into t values (2, 2), (3, 3)"],
        ["update t set v = 5 where id = 2", "update t set v = 2 where id = 2 or id = 3"],
    ],
)
@pytest.mark.parametrize("transactions", [1, 2])
def test_two_partial_undos_leave_rows_that_came_to_nothing(
    db: Connection, writes: list[str], transactions: int
) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    if "update" in writes[0]:
        db.execute("insert into t values (3, 3)")
    track(db, "t")
    for chunk in [writes] if transactions == 1 else [[one] for one in writes]:
        write(db, *chunk, tag="call")
    db.execute("update t set v = 8 where id = 3")
    before = everything(db)
    for _ in range(3):
        assert revert(db, "call", on_conflict="skip").status == "partially_reverted"
        assert_same(before, everything(db))
    assert revert(db, "call", **FORCE).status == "reverted"
    rows = db.execute("select * from t order by id").fetchall()
    assert rows == [(1, 1), (2, 2)] + ([(3, 3)] if "update" in writes[0] else [])


def test_a_redo_that_skipped_everything_has_redone_nothing(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    track(db, "t")
    call = write(db, "update t set v = 5")
    revert(db, call)
    db.execute("update t set v = 9")
    before = everything(db)
    assert redo(db, call, on_conflict="skip").counts == (0, 0, 0, 1, 1)
    assert status(db, call) == "reverted"
    assert revert(db, call).status == "already_reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize("together", [False, True])
def test_undoing_what_came_to_nothing_does_not_stop_earlier_undos(
    db: Connection, together: bool
) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 0)")
    track(db, "t")
    before = everything(db)
    write(db, "update t set v = 1", tag="a")
    write(db, "update t set v = 5", "update t set v = 1", tag="b")
    assert revert(db, "b").status == "reverted"
    assert reasons(db, "a") == {}
    assert revert(db, ["a", "b"] if together else "a").status == "reverted"
    assert_same(before, everything(db))
