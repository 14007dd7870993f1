"""Tables without a key: rows are told apart by what they say, and equal ones are counted."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import refused, revert
from tests.support.undoing import assert_refused, assert_undone, everything, reasons, track, write

pytestmark = pytest.mark.core


@pytest.fixture
def bag(db: Connection) -> Connection:
    db.execute(
        "create table t (a int, b text, j json);"
        "insert into t values (1, 'x', '{}'), (1, 'x', '{}'), (1, 'x', '{}'), (1, 'x', '{ }'),"
        " (null, null, null), (null, null, null), (2, null, 'null')"
    )
    track(db, "t")
    return db


def one(where: str) -> str:
    """Name a single row of several equal ones."""
    return f"ctid = (select min(ctid) from t where {where})"


def test_duplicates_and_nulls_come_back_as_often_as_they_were(bag: Connection) -> None:
    assert_undone(bag, "delete from t")
    assert_undone(bag, f"delete from t where {one('a = 1')}")
    assert_undone(bag, "delete from t where a is null", f"delete from t where {one('a = 1')}")
    assert_undone(bag, f"update t set b = 'y' where {one('a = 1')}")
    assert_undone(bag, "update t set b = 'y'")
    assert_undone(bag, "insert into t values (1, 'x', '{}'), (null, null, null), (9, '9', null)")
    assert_undone(bag, "insert into t select * from t")


def test_rows_that_became_equal_to_others_go_back(bag: Connection) -> None:
    assert_undone(bag, "update t set a = 1, b = 'x', j = '{}'")
    assert_undone(bag, "update t set a = null, b = null, j = null where a = 2")


def test_several_changes_of_equal_rows_in_one_call_go_back(bag: Connection) -> None:
    assert_undone(
        bag,
        "update t set a = 5 where a = 1",
        "update t set a = 6 where a = 5 and b = 'x'",
        "insert into t values (1, 'x', '{}')",
        "delete from t where a is null",
        "insert into t values (null, null, null)",
        "update t set a = 1 where a = 6",
    )


def test_there_and_back_again_in_one_call_leaves_nothing_to_do(bag: Connection) -> None:
    before = everything(bag)
    call = write(bag, "update t set a = 7 where a = 2", "update t set a = 2 where a = 7")
    assert revert(bag, call).counts == (0, 0, 0, 0, 0)
    assert_same(before, everything(bag))


def test_somebodys_equal_row_is_left_alone(bag: Connection) -> None:
    """The agent's row and hers say the same; taking one away leaves the other."""
    call = write(bag, "insert into t values (3, 'same', null)")
    bag.execute("insert into t values (3, 'same', null)")
    hers = bag.execute("select ctid::text from t where a = 3 order by ctid desc").fetchone()
    result = revert(bag, call)
    assert (result.status, result.rows_deleted) == ("reverted", 1)
    assert bag.execute("select ctid::text from t where a = 3").fetchone() == hers


def test_a_row_that_somebody_changed_is_a_conflict(bag: Connection) -> None:
    call = write(
        bag, "update t set b = 'agent' where a = 2", "insert into t values (8, 'new', null)"
    )
    bag.execute("update t set b = 'hers' where a = 2")
    state = everything(bag)
    assert "row_changed" in reasons(bag, call)
    assert_refused(bag, call)
    assert_same(state, everything(bag))


def test_a_row_that_somebody_deleted_is_a_conflict(bag: Connection) -> None:
    call = write(bag, "update t set b = 'agent' where a = 2")
    bag.execute("delete from t where a = 2")
    assert reasons(bag, call)
    assert_refused(bag, call)


def test_skip_does_not_double_a_row_that_somebody_changed(bag: Connection) -> None:
    call = write(
        bag, "update t set b = 'agent' where a = 2", "insert into t values (8, 'new', null)"
    )
    bag.execute("update t set b = 'hers' where a = 2")
    result = revert(bag, call, on_conflict="skip")
    assert result.status == "partially_reverted"
    assert bag.execute("select a, b from t where a in (2, 8)").fetchall() == [(2, "hers")]


def test_untouched_equal_rows_are_never_deleted(bag: Connection) -> None:
    """Of equal rows the agent's own ones go, as often as it made them."""
    old = bag.execute("select ctid::text from t order by ctid").fetchall()
    call = write(bag, "insert into t select 1, 'x', '{}' from generate_series(1, 3)")
    assert revert(bag, call).rows_deleted == 3
    assert bag.execute("select ctid::text from t order by ctid").fetchall() == old


def test_equal_rows_of_another_partition_are_left_alone(db: Connection) -> None:
    """Rows are named by partition and place: the same place in another partition is another row."""
    db.execute(
        "create table t (region text, v int) partition by list (region);"
        "create table t_a partition of t for values in ('a', 'c');"
        "create table t_b partition of t for values in ('b', 'd');"
        "insert into t values ('a', 1), ('b', 1), ('a', 1), ('b', 1), ('b', null)"
    )
    track(db, "t")
    assert_undone(db, "delete from t where region = 'a'")
    assert_undone(db, "insert into t values ('a', 1)")
    assert_undone(db, "insert into t_b values ('b', 1)")
    assert_undone(db, "update t set region = 'b' where region = 'a'")
    assert_undone(db, "update t set region = case region when 'a' then 'd' else 'c' end, v = 5")
    assert_undone(db, "delete from t")
    call = write(db, "insert into t values ('a', 7)")
    db.execute("insert into t values ('b', 7)")
    assert revert(db, call).rows_deleted == 1
    assert db.execute("select region from t where v = 7").fetchall() == [("b",)]


def test_a_keyless_table_with_generated_columns_comes_back(db: Connection) -> None:
    db.execute(
        "create table t (a numeric, b numeric generated always as (a * 2) stored, c float8);"
        "insert into t (a, c) values (1.0, 0), (1.00, '-0'), (1.0, '-0'), ('NaN', 'NaN'), (null,"
        " null)"
    )
    track(db, "t")
    assert_undone(db, "delete from t")
    assert_undone(db, "update t set a = 1.00 where a = 1")
    assert_undone(db, "update t set c = 0")


def test_a_column_that_was_retyped_since_and_written_by_others_is_a_conflict(
    db: Connection,
) -> None:
    db.execute("create table t (id int, day date); insert into t values (1, '2026-01-01')")
    track(db, "t", capture="all")
    call = write(db, "update t set day = 'infinity'")
    db.execute("alter table t alter column day type text using day::text")
    db.execute("update t set day = 'b'")
    assert reasons(db, call) == {"schema_changed": 2}
    assert_refused(db, call)


def test_a_table_without_columns_is_refused(db: Connection) -> None:
    """Its rows say nothing, so none could be told from another or put back."""
    db.execute("create table t ()")
    with refused("UN004"):
        track(db, "t")


def test_a_unique_key_that_allows_nulls_is_no_key(db: Connection) -> None:
    db.execute(
        "create table t (a int unique, b int); insert into t values (null, 1), (null, 1), (3, 3)"
    )
    track(db, "t")
    assert_undone(db, "delete from t where a is null")
    assert_undone(db, "update t set b = 2")
    assert_undone(db, "update t set a = 5 where a = 3")


def test_a_unique_value_that_somebody_has_taken_is_a_conflict(db: Connection) -> None:
    db.execute("create table t (a int unique, b int); insert into t values (1, 1), (2, 2)")
    track(db, "t")
    call = write(db, "delete from t")
    db.execute("insert into t values (1, 7)")
    before = everything(db)
    assert reasons(db, call) == {"unique_taken": 1}
    assert_refused(db, call)
    assert revert(db, call, on_conflict="skip").counts == (0, 1, 0, 1, 1)
    db.execute("delete from t where a = 2")
    assert_same(before, everything(db))
