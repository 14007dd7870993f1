"""Foreign keys: what goes back together, what stands in the way, and never a silent cascade.

`assert_undone` also drops each foreign key, adds it again NOT VALID and validates it.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.collation import make_blind_collation
from tests.support.foreign_keys import ACTIONS, PAIRS
from tests.support.state import assert_same, snapshot
from tests.support.undo import revert, rows
from tests.support.undoing import (
    assert_keys_hold,
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core


def family(conn: Connection, *, on_delete: str = "no action", on_update: str = "no action") -> None:
    """Make parents 0 (the default), 1 and 2; child 10 of 1, children 20 and 21 of 2."""
    conn.execute(
        "create table p (id int primary key, v text);"
        "create table c (id int primary key, p int default 0 references p"
        f" on delete {on_delete} on update {on_update}, v text);"
        "insert into p values (0, 'none'), (1, 'one'), (2, 'two');"
        "insert into c values (10, 1, 'a'), (20, 2, 'b'), (21, 2, 'c')".encode()
    )
    track(conn, "p", "c")


@pytest.mark.parametrize("action", ACTIONS)
def test_a_deleted_parent_comes_back_with_its_children(db: Connection, action: str) -> None:
    family(db, on_delete=action)
    acts = action in ("cascade", "set null", "set default")
    statements = ["delete from p where id = 2"]
    if not acts:
        statements.insert(0, "delete from c where p = 2")
    result = assert_undone(db, *statements)
    restored = result.rows_inserted + result.rows_updated
    assert restored == 3, "the parent and both children"
    # One statement for both tables: what the key does is done to what is left of the children.
    if action != "restrict":
        assert_undone(
            db,
            "with gone as (delete from c where id = 20) delete from p where id = 1"
            if acts
            else "with gone as (delete from c where p = 2) delete from p where id = 2",
        )


@pytest.mark.parametrize("action", ACTIONS)
def test_a_parent_with_another_key_goes_back_with_its_children(db: Connection, action: str) -> None:
    family(db, on_update=action)
    if action in ("cascade", "set null", "set default"):
        assert_undone(db, "update p set id = 5 where id = 2")
        assert_undone(db, "update p set id = id + 10 where id > 0", "update c set v = 'x'")
    elif action == "no action":
        assert_undone(
            db, "with moved as (update c set p = 5 where p = 2) update p set id = 5 where id = 2"
        )
    assert_undone(
        db,
        "insert into p values (7, 'seven')",
        "update c set p = 7 where p = 2",
        "delete from p where id = 2",
    )


@pytest.mark.parametrize(("on_delete", "on_update"), PAIRS)
def test_a_row_that_somebody_refers_to_since_is_not_taken_away(
    db: Connection, on_delete: str, on_update: str
) -> None:
    """Whatever the key would do to the person's row on DELETE or UPDATE, it gets no chance."""
    family(db, on_delete=on_delete, on_update=on_update)
    inserted = write(db, "insert into p values (5, 'five')")
    moved = write(db, "update p set id = 6, v = 'six' where id = 0")
    db.execute("insert into c values (50, 5, 'hers'), (60, 6, 'hers')")
    for call, key in ((inserted, {"id": 5}), (moved, {"id": 0})):
        assert reasons(db, call) == {"has_dependents": 1}
        conflict = assert_refused(db, call).conflicts[0]
        assert (conflict["relation"], conflict["reason"]) == ("public.p", "has_dependents")
        assert conflict["key"] in (key, {"id": 6})
        assert conflict["constraint"] == "c_p_fkey"
        assert_refused(db, call, on_conflict="force", reverted_by="dana", reason="must still hold")
        state = everything(db)
        skipped = revert(db, call, on_conflict="skip")
        assert (skipped.status, skipped.rows_skipped) == ("partially_reverted", 1)
        assert_same(state, everything(db))
        assert_keys_hold(db)


def test_an_untracked_table_that_refers_to_a_row_protects_it_too(db: Connection) -> None:
    db.execute(
        "create table p (id int primary key); create table c (p int references p on delete cascade)"
    )
    track(db, "p")
    call = write(db, "insert into p values (1)")
    db.execute("insert into c values (1)")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_an_untracked_parent_is_no_obstacle_unless_it_is_gone(db: Connection) -> None:
    db.execute(
        "create table p (id int primary key);"
        " create table c (id int primary key, p int references p);"
        "insert into p values (1), (2); insert into c values (1, 1), (2, 2)"
    )
    track(db, "c")
    assert_undone(db, "delete from c where id = 1", "update c set p = 1 where id = 2")
    call = write(db, "delete from c where id = 2")
    db.execute("delete from p where id = 2")
    assert_refused(db, call)


def test_a_child_whose_parent_was_deleted_since_does_not_come_back_alone(db: Connection) -> None:
    family(db)
    call = write(db, "delete from c where p = 2", "update c set p = 0, v = 'x' where id = 10")
    db.execute("delete from p where id = 2")
    assert reasons(db, call) == {"missing_parent": 2}
    conflict = assert_refused(db, call).conflicts[0]
    assert (conflict["reason"], conflict["constraint"]) == ("missing_parent", "c_p_fkey")
    result = revert(db, call, on_conflict="skip")
    assert (result.status, result.rows_updated, result.rows_skipped) == ("partially_reverted", 1, 2)
    assert db.execute("select * from c").fetchall() == [(10, 1, "a")]
    assert_keys_hold(db)


def test_skipping_a_parent_skips_the_children_that_need_it(db: Connection) -> None:
    family(db)
    call = write(db, "delete from c where p = 2", "delete from p where id = 2", "delete from c")
    db.execute("insert into p values (9, 'hers')")
    db.execute("create unique index on p (v)")
    db.execute("update p set v = 'two' where id = 9")
    assert reasons(db, call)["unique_taken"] == 1
    result = revert(db, call, on_conflict="skip")
    assert (result.status, result.rows_inserted, result.rows_skipped) == (
        "partially_reverted",
        1,
        3,
    )
    assert db.execute("select id, p from c").fetchall() == [(10, 1)]
    assert_keys_hold(db)


def test_a_parent_deleted_created_again_and_deleted_again_comes_back(db: Connection) -> None:
    family(db, on_delete="cascade")
    assert_undone(
        db,
        "delete from p where id = 2",
        "insert into p values (2, 'second')",
        "insert into c values (20, 2, 'other'), (22, 2, 'new')",
        "delete from p where id = 2",
    )
    before = everything(db)
    first = write(db, "delete from p where id = 2")
    second = write(db, "insert into p values (2, 'again')", "insert into c values (21, 2, 'x')")
    third = write(db, "delete from p where id = 2")
    assert revert(db, [first, second, third]).status == "reverted"
    assert_same(before, everything(db))
    assert_keys_hold(db)


def test_calls_can_be_taken_back_one_by_one_from_the_last(db: Connection) -> None:
    family(db, on_delete="cascade", on_update="cascade")
    states, calls = [], []
    for statement in (
        "update p set id = 5 where id = 2",
        "delete from p where id = 5",
        "insert into p values (5, 'new')",
        "insert into c values (20, 5, 'new')",
        "update p set id = 2 where id = 5",
    ):
        states.append(everything(db))
        calls.append(write(db, statement))
    for state, call in zip(reversed(states), reversed(calls), strict=True):
        assert revert(db, call).status == "reverted"
        assert_same(state, everything(db))
        assert_keys_hold(db)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_tree_that_refers_to_itself_comes_back(db: Connection, action: str) -> None:
    db.execute(
        "create table t (id int primary key, up int default 1 references t"
        f" on delete {action} on update {action}, v text);"
        "insert into t values (1, null, 'root'), (2, 1, 'a'), (3, 2, 'b'), (4, 3, 'c'), (5, 1,"
        " 'd'),"
        " (6, 6, 'itself')".encode()
    )
    track(db, "t")
    assert_undone(
        db,
        "delete from t where id in (2, 3, 4)"
        if action != "cascade"
        else "delete from t where id = 2",
    )
    assert_undone(db, "delete from t where id = 6")
    assert_undone(db, "insert into t values (7, 8, 'x'), (8, 9, 'y'), (9, 9, 'z'), (10, 4, 'w')")
    assert_undone(db, "update t set up = 5 where id = 3", "update t set v = upper(v)")
    if action in ("cascade", "set null", "set default"):
        assert_undone(db, "update t set id = 30 where id = 3")
    if action in ("cascade", "no action"):
        assert_undone(db, "delete from t")


def test_somebody_elses_leaf_keeps_its_branch(db: Connection) -> None:
    db.execute("create table t (id int primary key, up int references t on delete cascade)")
    db.execute("insert into t values (1, null)")
    track(db, "t")
    call = write(db, "insert into t values (2, 1), (3, 2), (4, 1)")
    db.execute("insert into t values (5, 3)")
    assert reasons(db, call)["has_dependents"] >= 1
    assert_refused(db, call)
    result = revert(db, call, on_conflict="skip")
    assert (result.status, result.rows_deleted, result.rows_skipped) == ("partially_reverted", 1, 2)
    assert db.execute("select id from t order by id").fetchall() == [(1,), (2,), (3,), (5,)]
    assert_keys_hold(db)


@pytest.mark.parametrize("timing", ["", "deferrable initially deferred"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_cycle_of_tables_comes_back(db: Connection, action: str, timing: str) -> None:
    db.execute(
        "create table a (id int primary key, b int, v int);"
        f"create table b (id int primary key, a int references a on delete {action} {timing}, v"
        f" int);"
        f"alter table a add foreign key (b) references b on delete {action} {timing};"
        "insert into a values (1, null, 0), (2, null, 0);"
        " insert into b values (1, 1, 0), (2, 2, 0);"
        "update a set b = 3 - id".encode()
    )
    track(db, "a", "b")
    if action == "restrict":
        assert_undone(db, "update a set b = null", "delete from b", "delete from a")
    elif action == "no action":
        assert_undone(db, "with gone as (delete from b) delete from a")
    else:
        assert_undone(db, "delete from a where id = 1")
        assert_undone(db, "delete from b", "delete from a")
    assert_undone(db, "update a set v = 1, b = id", "update b set v = 1, a = 3 - id")
    insert = "with x as (insert into a values (8, 9, 0)) insert into b values (9, 8, 0)"
    assert_undone(db, insert)


@pytest.mark.parametrize("match", ["simple", "full"])
def test_composite_keys_go_back(db: Connection, match: str) -> None:
    db.execute(
        "create table p (a int, b text, v int, primary key (a, b));"
        "create table c (n int primary key, b text, a int,"
        f" foreign key (a, b) references p match {match} on delete cascade on update cascade);"
        "insert into p values (1, 'x', 0), (1, 'y', 0), (2, 'x', 0);"
        "insert into c values (1, 'x', 1), (2, 'y', 1), (3, null, null)".encode()
    )
    track(db, "p", "c")
    assert_undone(db, "delete from p where a = 1")
    assert_undone(db, "update p set a = 5 where a = 1", "update p set b = 'z' where b = 'x'")
    assert_undone(db, "update c set a = null, b = null")
    if match == "simple":
        # Half a reference refers to nothing: no parent is missed, nothing is held.
        db.execute("insert into c values (4, 'nowhere', null)")
        call = write(db, "delete from c where n = 4", "insert into p values (7, 'nowhere', 0)")
        assert revert(db, call).status == "reverted"
    inserted = write(db, "insert into p values (8, 'q', 0)")
    db.execute("insert into c values (8, 'q', 8)")
    assert reasons(db, inserted) == {"has_dependents": 1}
    assert_refused(db, inserted)


def test_a_key_that_is_part_of_the_childs_own_key_goes_back(db: Connection) -> None:
    db.execute(
        "create table orders (id int primary key, v int);"
        "create table lines (order_id int references orders on delete cascade on update cascade,"
        " n int, v int, primary key (order_id, n));"
        "create table parts (order_id int, n int, part text, primary key (order_id, n, part),"
        " foreign key (order_id, n) references lines on delete cascade on update cascade);"
        "insert into orders values (1, 0), (2, 0);"
        " insert into lines values (1, 1, 0), (1, 2, 0), (2, 1, 0);"
        "insert into parts values (1, 1, 'a'), (1, 1, 'b'), (2, 1, 'a')"
    )
    track(db, "orders", "lines", "parts")
    assert_undone(db, "delete from orders where id = 1")
    assert_undone(db, "update orders set id = 9 where id = 1")
    assert_undone(
        db, "update orders set id = 9, v = 1 where id = 1", "delete from lines where n = 2"
    )
    assert_undone(db, "update lines set n = n + 5", "update orders set id = id + 5")


@pytest.mark.parametrize("timing", ["initially deferred", "initially immediate"])
def test_deferrable_keys_hold_when_the_revert_returns(db: Connection, timing: str) -> None:
    """Nothing is left to fail at COMMIT, and the keys stay deferred for what comes after."""
    db.execute(
        "create table p (id int primary key, v int);"
        f"create table c (id int primary key, p int references p deferrable {timing});"
        "insert into p values (1, 0), (2, 0); insert into c values (1, 1), (2, 2)".encode()
    )
    track(db, "p", "c")
    deferred = "set constraints all deferred"
    assert_undone(db, deferred, "delete from p where id = 1", "delete from c where id = 1")
    assert_undone(db, deferred, "insert into c values (5, 5)", "insert into p values (5, 0)")
    assert_undone(db, deferred, "update p set id = id + 10", "update c set p = p + 10")

    call = write(db, "insert into p values (7, 0)")
    db.execute("insert into c values (7, 7)")
    assert_refused(db, call)
    db.execute("delete from c where id = 7")
    with db.transaction():
        assert revert(db, call).status == "reverted"
        if timing == "initially deferred":
            db.execute("insert into c values (8, 8)")
            db.execute("delete from c where id = 8")


@pytest.mark.parametrize("types", [("bigint", "int"), ("text", "varchar(9)"), ("numeric", "int")])
def test_keys_between_different_types_are_compared_as_the_key_does(
    db: Connection, types: tuple[str, str]
) -> None:
    parent, child = types
    db.execute(
        f"create table p (id {parent} primary key); create table c (p {child} references p"
        " on delete cascade); insert into p values ('1'), ('2');"
        " insert into c values ('1')".encode()
    )
    db.execute("alter table c add column id int generated always as identity primary key")
    track(db, "p", "c")
    assert_undone(db, "delete from p where id = '1'")
    call = write(db, "insert into p values ('3')")
    db.execute("insert into c values ('3')")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_keys_of_an_extensions_type_are_compared_as_the_key_does(db: Connection) -> None:
    db.execute(
        "create schema exts; create extension citext schema exts;"
        " create extension ltree schema exts;"
        "create table p (name exts.citext, path exts.ltree, v int, primary key (name, path));"
        "create table c (id int primary key, name exts.citext, path exts.ltree,"
        " foreign key (name, path) references p on delete cascade on update cascade);"
        "insert into p values ('Abc', 'a.b', 0), ('x', 'a', 0);"
        "insert into c values (1, 'aBC', 'a.b'), (2, 'X', 'a')"
    )
    track(db, "p", "c")
    assert_undone(db, "delete from p")
    assert_undone(db, "update p set v = 1, path = 'z'")
    call = write(db, "insert into p values ('new', 'n', 0)")
    db.execute("insert into c values (3, 'NEW', 'n')")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)
    missing = write(db, "delete from c where id = 2")
    db.execute("delete from p where name = 'x'")
    assert reasons(db, missing) == {"missing_parent": 1}


@pytest.mark.parametrize("action", ["no action", "cascade"])
def test_keys_between_partitioned_tables_hold(db: Connection, action: str) -> None:
    """Rows move between partitions, which PostgreSQL 14 takes for a DELETE of the parent."""
    db.execute(
        "create table p (id int, region text, v int, primary key (id, region)) partition by list"
        " (region);"
        "create table p_a partition of p for values in ('a');"
        "create table p_b partition of p for values in ('b', 'c');"
        "create table c (id int, region text, n int, primary key (n, id)) partition by hash (id);"
        "create table c_0 partition of c for values with (modulus 2, remainder 0);"
        "create table c_1 partition of c for values with (modulus 2, remainder 1);"
        "alter table c add foreign key (id, region) references p"
        f" on delete {action} on update {action};".encode()
    )
    db.execute(
        "insert into p values (1, 'a', 0), (2, 'b', 0);"
        " insert into c values (1, 'a', 1), (2, 'b', 2)"
    )
    track(db, "p", "c")
    if action == "cascade":
        assert_undone(db, "update p set region = 'b' where id = 1")
        assert_undone(
            db, "update p set region = 'c', id = 7 where id = 2", "delete from p where id = 1"
        )
        assert_undone(db, "delete from p")
        assert_undone(db, "delete from p_a")
    else:
        assert_undone(db, "with x as (delete from c) delete from p")
    assert_undone(db, "insert into p values (5, 'a', 0)", "insert into c values (5, 'a', 5)")
    call = write(db, "insert into p values (8, 'c', 0)", "update p set v = 1")
    db.execute("insert into c values (8, 'c', 8)")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_a_parent_moved_between_partitions_keeps_somebody_elses_children(db: Connection) -> None:
    """Moving it back would be a DELETE to the key: the person's child would be gone."""
    db.execute(
        "create table p (id int, region text, v int, primary key (id, region)) partition by list"
        " (region);"
        "create table p_a partition of p for values in ('a');"
        "create table p_b partition of p for values in ('b');"
        "create table c (n int primary key, id int, region text,"
        " foreign key (id, region) references p on delete cascade on update cascade);"
        "insert into p values (1, 'a', 0)"
    )
    track(db, "p", "c")
    call = write(db, "update p set region = 'b'")
    db.execute("insert into c values (1, 1, 'b')")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_a_key_that_is_not_enforced_stands_in_nobodys_way(db: Connection, pg_major: int) -> None:
    if pg_major < 18:
        pytest.skip("NOT ENFORCED came with PostgreSQL 18")
    db.execute(
        "create table p (id int primary key);"
        "create table c (id int primary key, p int references p not enforced)"
    )
    track(db, "p", "c")
    parent = write(db, "insert into p values (1)")
    db.execute("insert into c values (1, 1)")
    assert revert(db, parent).status == "reverted"
    child = write(db, "delete from c")
    assert revert(db, child).status == "reverted"
    assert db.execute("select * from c").fetchall() == [(1, 1)]


def test_keys_over_periods_hold(db: Connection, pg_major: int) -> None:
    """A period is contained in the parent's, not equal to it."""
    if pg_major < 18:
        pytest.skip("PERIOD keys came with PostgreSQL 18")
    db.execute(
        "create extension btree_gist;"
        "create table p (id int, during daterange, v int, primary key (id, during without"
        " overlaps));"
        "create table c (id int primary key, p int, during daterange,"
        " foreign key (p, period during) references p (id, period during));"
        "insert into p values (1, '[2026-01-01,2026-07-01)', 0), (1, '[2026-07-01,2027-01-01)', 0);"
        "insert into c values (1, 1, '[2026-05-01,2026-09-01)')"
    )
    track(db, "p", "c")
    assert_undone(db, "update p set v = 1", "delete from c")
    assert_undone(db, "delete from c", "delete from p")
    assert_undone(
        db,
        "insert into p values (2, '[2026-01-01,)', 0)",
        "insert into c values (2, 2, '[2026-02-01,2026-03-01)')",
    )
    # a child that two parents cover together, one of which is cut in two
    db.execute("alter table c alter constraint c_p_during_fkey deferrable initially deferred")
    assert_undone(
        db,
        "update p set during = '[2026-01-01,2026-05-15)' where during @> date '2026-01-01'",
        "insert into p values (1, '[2026-05-15,2026-07-01)', 0)",
    )
    held = write(db, "insert into p values (3, '[2026-01-01,2027-01-01)', 0)")
    db.execute("insert into c values (3, 3, '[2026-02-01,2026-03-01)')")
    assert reasons(db, held) == {"has_dependents": 1}
    assert_refused(db, held)
    missing = write(db, "delete from c where id = 3", "update c set id = 11 where id = 1")
    db.execute("delete from p where id = 3")
    assert reasons(db, missing) == {"missing_parent": 1}
    assert_refused(db, missing)
    assert revert(db, missing, on_conflict="skip").counts[:4] == (0, 0, 1, 1)
    assert rows(db, "select id from c") == [(1,)]


def test_parents_over_periods_go_where_others_cover_their_children(
    db: Connection, pg_major: int
) -> None:
    if pg_major < 18:
        pytest.skip("PERIOD keys came with PostgreSQL 18")
    db.execute(
        "create extension btree_gist;"
        "create table p (id int, during datemultirange, primary key (id, during without overlaps));"
        "create table c (id int primary key, p int, during datemultirange,"
        " foreign key (p, period during) references p (id, period during)"
        " deferrable initially deferred);"
    )
    track(db, "p", "c")
    narrow = write(db, "insert into p values (1, '{[2026-01-01,2026-02-01)}')")
    widened = write(
        db, "update p set during = '{[2026-01-01,2026-02-01), [2026-05-01,2026-06-01)}'"
    )
    db.execute("insert into c values (1, 1, '{[2026-01-05,2026-01-07)}')")
    before = snapshot(db, "public.c")
    assert reasons(db, [narrow, widened]) == {"has_dependents": 1}
    assert revert(db, widened).status == "reverted"
    assert rows(db, "select during::text from p") == [("{[2026-01-01,2026-02-01)}",)]
    assert_refused(db, narrow)
    db.execute(
        "update p set during = '{[2026-01-01,2026-01-06)}';"
        "insert into p values (1, '{[2026-01-06,2026-03-01)}')"
    )
    other = write(db, "insert into p values (1, '{[2026-07-01,2026-08-01)}')")
    assert revert(db, other).status == "reverted"
    assert_same(before, snapshot(db, "public.c"))


def test_a_key_counts_its_columns_collation(db: Connection) -> None:
    """A reference compares under the collation of the referenced column."""
    make_blind_collation(db, "nocase")
    db.execute(
        "create table p (k text collate nocase primary key);"
        "create table c (id int primary key, k text collate nocase references p on delete cascade)"
    )
    track(db, "p", "c")
    call = write(db, "insert into p values ('Abc')")
    db.execute("insert into c values (1, 'aBC')")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_set_null_of_one_column_of_a_composite_key_goes_back(db: Connection, pg_major: int) -> None:
    if pg_major < 15:
        pytest.skip("ON DELETE SET NULL (columns) came with PostgreSQL 15")
    db.execute(
        "create table p (tenant int, id int, primary key (tenant, id));"
        "create table c (n int primary key, tenant int not null, p int,"
        " foreign key (tenant, p) references p on delete set null (p));"
        "insert into p values (1, 1), (1, 2); insert into c values (1, 1, 1), (2, 1, 2)"
    )
    track(db, "p", "c")
    assert_undone(db, "delete from p where id = 1")
