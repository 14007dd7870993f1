"""Unique values that move among rows, and values that somebody else has taken since."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.foreign_keys import PAIRS
from tests.support.state import assert_same
from tests.support.undo import refused, revert
from tests.support.undoing import (
    assert_refused,
    assert_restored_or_refused,
    assert_undone,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core


def test_primary_keys_that_changed_places_go_back(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key deferrable initially deferred, v text);"
        "insert into t values (1, 'one'), (2, 'two')"
    )
    track(db, "t")
    assert_undone(db, "update t set id = 3 - id")
    assert_undone(db, "update t set id = 3 - id, v = v || '!'")
    db.execute("insert into t select g, g::text from generate_series(3, 9) g")
    assert_undone(db, "update t set id = id % 9 + 1")
    assert_undone(db, "update t set id = 10 - id", "update t set id = id % 9 + 1, v = id::text")


@pytest.mark.parametrize("extra", ["", "where id between 5 and 30", "where id <> 17"])
def test_values_shifted_by_one_under_a_plain_unique_index_go_back(
    db: Connection, extra: str
) -> None:
    """Forwards it happened to work in physical order; backwards it must work by itself."""
    db.execute(
        "create table t (id int primary key, pos int unique, v text);"
        "insert into t select g, g * 10, 'x' from generate_series(1, 50) g"
    )
    track(db, "t")
    # From the last to the first, so that no value is met on the way.
    steps = [f"update t set pos = pos + 10 where id = {n}" for n in range(50, 0, -1)]
    chosen = [
        step
        for n, step in zip(range(50, 0, -1), steps, strict=True)
        if not extra or (5 <= n <= 30 if "between" in extra else n != 17)
    ]
    if extra:
        db.execute("update t set pos = pos + 100000 where id in (17, 31)")
    assert_undone(db, *chosen, again=False)


def test_one_statement_that_shifts_unique_values_goes_back(db: Connection) -> None:
    db.execute("create table t (id int primary key, pos int unique)")
    db.execute("insert into t select 51 - g, 51 - g from generate_series(1, 50) g")
    track(db, "t")
    assert_undone(db, "update t set pos = pos + 1")


def test_unique_values_that_went_round_in_a_circle_go_back(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, a text unique, b text, unique (b, a));"
        "insert into t values (1, 'x', 'p'), (2, 'y', 'q'), (3, 'z', 'r')"
    )
    track(db, "t")
    rotate = [
        "update t set a = '-' where id = 1",
        "update t set a = 'x' where id = 2",
        "update t set a = 'y' where id = 3",
        "update t set a = 'z' where id = 1",
    ]
    assert_undone(db, *rotate)
    assert_undone(db, *rotate, "update t set b = a", "delete from t where id = 3")
    assert_undone(
        db,
        "delete from t where id = 1",
        "update t set a = 'x' where id = 2",
        "insert into t values (4, 'y', 'q')",
    )


@pytest.mark.parametrize(("on_delete", "on_update"), PAIRS)
def test_referenced_values_that_changed_places_never_cascade(
    db: Connection, on_delete: str, on_update: str
) -> None:
    """Putting X and Y back where they were either works or is refused; no child is touched."""
    db.execute(
        "create table p (id int primary key, code text unique deferrable, v int);"
        "create table c (id int primary key, code text default 'D', n int);"
        "insert into p values (1, 'X', 0), (2, 'Y', 0), (3, 'D', 0);"
        "insert into c values (10, 'X', 0), (20, 'Y', 0)"
    )
    # A foreign key needs a unique key that is not deferrable.
    db.execute(
        "alter table p drop constraint p_code_key, add unique (code);"
        "alter table c add foreign key (code) references p (code)"
        f" on delete {on_delete} on update {on_update}".encode()
    )
    track(db, "p", "c")
    before = everything(db)
    call = write(
        db,
        # As agents do it: park the children, move the values, bring the children back.
        "update c set code = null",
        "update p set code = '-' where id = 1",
        "update p set code = 'X', v = 1 where id = 2",
        "update p set code = 'Y' where id = 1",
        "update c set code = case id when 10 then 'X' else 'Y' end",
    )
    assert_restored_or_refused(db, call, before)


@pytest.mark.parametrize(("on_delete", "on_update"), PAIRS)
def test_referenced_values_that_changed_places_spare_a_strangers_child(
    db: Connection, on_delete: str, on_update: str
) -> None:
    db.execute(
        "create table p (id int primary key, code text unique, v int);"
        "create table c (id int primary key, code text default 'D' references p (code)"
        f" on delete {on_delete} on update {on_update});"
        "insert into p values (1, 'X', 0), (2, 'Y', 0), (3, 'D', 0)".encode()
    )
    track(db, "p", "c")
    before = everything(db)
    call = write(
        db,
        "update p set code = '-' where id = 1",
        "update p set code = 'X' where id = 2",
        "update p set code = 'Y' where id = 1",
    )
    db.execute("insert into c values (10, 'X'), (20, 'Y')")
    hers = db.execute("select * from c order by id").fetchall()
    former = {**everything(db), "p": before["p"]}
    assert_restored_or_refused(db, call, former)
    assert db.execute("select * from c order by id").fetchall() == hers


def test_values_that_moved_between_deleted_and_inserted_rows_go_back(db: Connection) -> None:
    """The value X leaves one row and another row carries it on, with children behind it."""
    db.execute(
        "create table p (id int primary key, code text unique);"
        "create table c (id int primary key, code text references p (code));"
        "insert into p values (1, 'X'), (2, 'Y'); insert into c values (10, 'X'), (20, 'Y')"
    )
    track(db, "p", "c")
    assert_undone(
        db,
        "update c set code = 'Y' where id = 10",
        "delete from p where id = 1",
        "insert into p values (3, 'X')",
        "update c set code = 'X' where id = 10",
    )


@pytest.mark.parametrize("index", [
    "create unique index u on t (v)",
    "create unique index u on t (lower(v))",
    "create unique index u on t (v) where active",
    "create unique index u on t ((v || '!'), active) include (id)",
    "alter table t add constraint u exclude using btree (v with =)",
])  # fmt: skip
def test_a_value_taken_since_is_a_conflict(db: Connection, index: str) -> None:
    db.execute("create table t (id int primary key, v text, active boolean default true)")
    db.execute(index.encode())
    db.execute("insert into t values (1, 'a'), (2, 'b'), (3, 'c')")
    track(db, "t")
    call = write(
        db,
        "update t set v = 'z' where id = 1",
        "delete from t where id = 2",
        "update t set v = 'y' where id = 3",
    )
    db.execute("insert into t values (8, 'a', true), (9, 'b', true)")
    assert reasons(db, call) == {"unique_taken": 2}
    refusal = assert_refused(db, call)
    assert refusal.reasons == ["unique_taken", "unique_taken"]
    assert {conflict["constraint"] for conflict in refusal.conflicts} == {"u"}
    assert sorted(conflict["key"]["id"] for conflict in refusal.conflicts) == [1, 2]
    assert_refused(db, call, on_conflict="force", reverted_by="dana", reason="cannot be forced")
    result = revert(db, call, on_conflict="skip")
    assert (result.status, result.rows_updated, result.rows_skipped) == ("partially_reverted", 1, 2)
    rows = db.execute("select id, v from t order by id").fetchall()
    assert rows == [(1, "z"), (3, "c"), (8, "a"), (9, "b")]
    # Once the value is free again the rest goes back.
    db.execute("delete from t where id > 7")
    assert revert(db, call).status == "reverted"
    rows = db.execute("select id, v from t order by id").fetchall()
    assert rows == [(1, "a"), (2, "b"), (3, "c")]


def test_what_a_partial_or_expression_index_does_not_forbid_is_no_conflict(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v text, active boolean);"
        "create unique index on t (v) where active;"
        "create unique index on t (nullif(lower(v), 'free'));"
        "insert into t values (1, 'a', false), (2, 'FREE', true), (3, null, true)"
    )
    track(db, "t")
    call = write(db, "update t set v = 'z' || id, active = false")
    db.execute("insert into t values (8, 'free', true), (9, null, true)")
    assert revert(db, call).status == "reverted"
    rows = db.execute("select id, v from t where id < 5 order by id").fetchall()
    assert rows == [(1, "a"), (2, "FREE"), (3, None)]


def test_unique_nulls_count_as_the_index_says(db: Connection, pg_major: int) -> None:
    if pg_major < 15:
        pytest.skip("NULLS NOT DISTINCT came with PostgreSQL 15")
    db.execute("create table t (id int primary key, v int unique nulls not distinct)")
    db.execute("insert into t values (1, null)")
    track(db, "t")
    call = write(db, "update t set v = 1")
    db.execute("insert into t values (2, null)")
    assert reasons(db, call) == {"unique_taken": 1}
    assert_refused(db, call)


def test_exclusion_constraints_hold(db: Connection) -> None:
    db.execute(
        "create extension btree_gist;"
        "create table t (id int primary key, room int, during int4range,"
        " exclude using gist (room with =, during with &&));"
        "insert into t values (1, 1, '[1,5)'), (2, 1, '[5,9)'), (3, 2, '[1,9)')"
    )
    track(db, "t")
    shift = [
        "update t set during = '[20,25)' where id = 1",
        "update t set during = '[1,5)' where id = 2",
        "update t set during = '[5,9)' where id = 1",
    ]
    assert_undone(db, *shift)
    assert_undone(
        db,
        "update t set room = 3 where id = 1",
        "update t set during = '[1,9)' where id = 2",
        "insert into t values (4, 1, '[9,12)')",
    )
    assert_undone(db, "delete from t where room = 1", "insert into t values (5, 1, '[1,9)')")
    call = write(db, "delete from t where id = 1")
    db.execute("insert into t values (6, 1, '[3,4)')")
    assert reasons(db, call) == {"unique_taken": 1}
    assert_refused(db, call)
    assert_refused(db, call, on_conflict="force", reverted_by="dana", reason="cannot be forced")


def test_a_deferred_unique_constraint_fails_in_the_revert_and_not_at_commit(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v int unique deferrable initially deferred);"
        "insert into t values (1, 1), (2, 2)"
    )
    track(db, "t")
    assert_undone(db, "update t set v = 3 - v")
    call = write(db, "update t set v = 7 where id = 1")
    db.execute("insert into t values (3, 1)")
    with refused("UN001") as caught, db.transaction():
        revert(db, call)
    assert caught.reasons == ["unique_taken"]
    assert reasons(db, call) == {"unique_taken": 1}


def test_a_row_under_a_new_key_meets_somebody_under_its_old_one(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')"
    )
    track(db, "t")
    before = everything(db)
    call = write(db, "update t set id = 7 where id = 1")
    db.execute("insert into t values (1, 'hers')")
    state = everything(db)
    assert assert_refused(db, call).conflicts[0]["reason"] in ("row_exists", "unique_taken")
    assert revert(db, call, on_conflict="skip").status == "partially_reverted"
    assert_same(state, everything(db))
    db.execute("delete from t where id = 1")
    assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))


def test_a_row_under_a_new_key_that_somebody_changed_is_not_doubled(db: Connection) -> None:
    """Skipping must leave it whole under one key, not bring it back under the other as well."""
    db.execute(
        "create table t (id int primary key, v text, w int);"
        "insert into t select g, 'x', g from generate_series(1, 4) g"
    )
    track(db, "t")
    one = write(db, "update t set id = 40 where id = 4")
    two = write(db, "update t set id = id + 10 where id in (1, 2)")
    db.execute("update t set v = 'hers' where id in (40, 11)")
    state = everything(db)
    assert revert(db, one, on_conflict="skip").rows_skipped >= 1
    assert_same(state, everything(db))
    assert revert(db, two, on_conflict="skip").status == "partially_reverted"
    count = db.execute("select count(*), count(distinct w) from t").fetchone()
    assert count == (4, 4)
    assert db.execute("select v from t where id = 11").fetchone() == ("hers",)


def test_rows_of_two_tables_with_unique_values_go_back_together(db: Connection) -> None:
    db.execute(
        "create table a (id int primary key, code text unique);"
        "create table b (id int primary key, code text unique references a (code) on update"
        " cascade);"
        "insert into a values (1, 'x'), (2, 'y'); insert into b values (1, 'x'), (2, 'y')"
    )
    track(db, "a", "b")
    assert_undone(db, "update a set code = 'z' where id = 1")
    assert_undone(
        db,
        "delete from b",
        "update a set code = code || '2'",
        "insert into b values (1, 'y2'), (2, 'x2')",
    )
