"""Every kind of statement that writes rows is captured whole, each row once."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    assert_undoable,
    changes,
    images,
    run,
    tag,
    value,
    write,
)
from tests.support.undo import revert, rows

pytestmark = pytest.mark.core


@pytest.fixture
def stock(db: Connection) -> Connection:
    """Make and track two tables, the second one referring to the first."""
    run(
        db,
        "create table stock (id int primary key, name text unique, n int not null default 0)",
        "create table moves (id int primary key, item int references stock on delete cascade,"
        " n int)",
        "insert into stock values (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)",
        "insert into moves values (1, 1, 5), (2, 1, 6), (3, 2, 7)",
        "select agentundo.track('stock')",
        "select agentundo.track('moves')",
    )
    return db


def test_copy_from(stock: Connection) -> None:
    before = snapshot(stock, "stock", "moves")
    with stock.transaction():
        tag(stock)
        with stock.cursor() as cursor, cursor.copy("copy stock (id, name) from stdin") as copy:
            copy.write("7\tseven\n8\teight\n")
    assert changes(stock) == [("public.stock", "insert", 2)]
    assert_goes_back(stock, before)


def test_copy_freeze(db: Connection) -> None:
    """Rows that are frozen from birth are still ours, until somebody else writes them."""
    run(db, "create table early (id int primary key, v int)")
    with db.transaction():
        run(db, "select agentundo.track('early')", "truncate early")
        tag(db)
        with db.cursor() as cursor, cursor.copy("copy early from stdin (freeze)") as copy:
            copy.write("1\t1\n2\t2\n")
    assert revert(db, "inv").counts == (2, 0, 0, 0, 0)
    assert rows(db, "select * from early") == []


MERGE = """
merge into stock s using (values (1, 100), (2, 0), (9, 9)) v (id, n) on s.id = v.id
when matched and v.n = 0 then delete
when matched then update set n = v.n
when not matched then insert values (v.id, 'merged', v.n)
"""


def test_merge(stock: Connection, pg_major: int) -> None:
    if pg_major < 15:
        pytest.skip("MERGE came with PostgreSQL 15")
    assert_undoable(stock, ["stock", "moves"], MERGE)
    assert sorted(changes(stock)) == [
        ("public.moves", "delete", 1),
        ("public.stock", "delete", 1),
        ("public.stock", "insert", 1),
        ("public.stock", "update", 1),
    ]


def test_merge_that_deletes_what_the_source_lacks(stock: Connection, pg_major: int) -> None:
    if pg_major < 17:
        pytest.skip("WHEN NOT MATCHED BY SOURCE came with PostgreSQL 17")
    assert_undoable(
        stock,
        ["stock", "moves"],
        "merge into stock s using (values (1)) v (id) on s.id = v.id"
        " when matched then update set n = 0"
        " when not matched by source then delete returning merge_action(), s.*",
    )


@pytest.mark.parametrize(
    "statement",
    [
        "insert into stock values (1, 'x', 1), (5, 'e', 50) on conflict (id)"
        " do update set n = stock.n + excluded.n, name = excluded.name",
        "insert into stock values (1, 'x', 1), (5, 'e', 50) on conflict do nothing",
        "insert into stock values (6, 'a', 1) on conflict (name) do update set id = excluded.id"
        " where false; insert into stock values (7, 'g')",
        "update stock set n = m.total from (select item, sum(n) total from moves group by 1) m"
        " where m.item = stock.id",
        "delete from moves using stock where stock.id = moves.item and stock.name = 'a'",
        "delete from stock where id = 1",
        "select * from stock for update; update stock set n = 0; select * from stock for share",
        "with gone as (delete from moves returning *), more as (insert into moves"
        " select id + 10, item, n from gone returning *)"
        " update stock set n = stock.n + 1 from more where more.item = stock.id",
        "with a as (update stock set n = 1 where id = 1 returning 1),"
        " b as (update stock set n = 2 where id = 2 returning 1),"
        " c as (delete from stock where id = 3 returning 1)"
        " insert into stock select 4, 'd', (select count(*) from a, b, c)",
        "insert into stock (id) values (4) returning *; delete from stock where name is null",
        "do $$ begin update stock set n = n + 1; delete from moves where id = 1; end $$;"
        " update stock set n = n where id = 3",
    ],
)
def test_statement(stock: Connection, statement: str) -> None:
    before = snapshot(stock, "stock", "moves")
    if "update set id" in statement or "(id) values (4)" in statement:
        statement += "; update stock set n = -1"
    if statement.startswith("do"):
        write(stock, statement)
    else:
        write(stock, *statement.split("; "))
    assert_goes_back(stock, before)


def test_each_row_is_captured_once(stock: Connection) -> None:
    write(
        stock,
        "insert into stock values (1, 'a', 1), (4, 'd', 1) on conflict (id) do update set n = 0",
    )
    assert sorted(changes(stock)) == [
        ("public.stock", "insert", 1),
        ("public.stock", "update", 1),
    ]
    assert images(stock, "stock") == {"O": 1, "N": 2}


def test_updatable_views(stock: Connection) -> None:
    run(
        stock,
        "create view cheap as select id, name as label, n from stock where n < 25"
        " with check option",
        "create view cheaper as select * from cheap where n < 15",
    )
    tables = ["stock", "moves"]
    assert_undoable(stock, tables, "update cheap set label = upper(label), n = n + 1")
    assert_undoable(stock, tables, "delete from cheaper", invocation="b")
    assert_undoable(stock, tables, "insert into cheap values (4, 'd', 1)", invocation="c")


def test_view_with_instead_of_trigger(stock: Connection) -> None:
    run(
        stock,
        "create view names as select name from stock",
        "create function add_name() returns trigger language plpgsql as $$ begin"
        " insert into stock (id, name) values (100, new.name); return new; end $$",
        "create trigger add_name instead of insert on names for each row"
        " execute function add_name()",
    )
    assert_undoable(stock, ["stock"], "insert into names values ('z')")


def test_functions_with_exception_blocks(stock: Connection) -> None:
    """Rows and history are written in the same subtransaction, so the version holds."""
    run(
        stock,
        "create function bump(i int) returns int language plpgsql as $$ begin"
        " update stock set n = n + 1 where id = i; return 1;"
        " exception when others then return 0; end $$",
        "create function fail(i int) returns int language plpgsql as $$ begin"
        " update stock set n = n + 1 where id = i; raise 'no';"
        " exception when others then return 0; end $$",
    )
    tables = ["stock", "moves"]
    assert_undoable(stock, tables, "select bump(1), bump(2), bump(1), fail(3)")
    assert_undoable(
        stock, tables, "update stock set name = name || bump(2) where id = 1", invocation="b"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_trigger_with_an_exception_block_that_writes_again(stock: Connection, fails: bool) -> None:
    run(
        stock,
        "create function again() returns trigger language plpgsql as $$ begin begin"
        f" update stock set n = n + 1000 where id = new.id; if {fails} then raise 'no'; end if;"
        " exception when others then null; end; return null; end $$",
        "create trigger again after update on stock for each row when (pg_trigger_depth() = 0)"
        " execute function again()",
    )
    assert_undoable(stock, ["stock"], "update stock set n = n + 1")


def test_deferred_constraint_trigger_that_writes_at_commit(stock: Connection) -> None:
    run(
        stock,
        "create function late() returns trigger language plpgsql as $$ begin"
        " update stock set n = n + 1000 where id = new.item; return null; end $$",
        "create constraint trigger late after insert on moves deferrable initially deferred"
        " for each row execute function late()",
    )
    before = snapshot(stock, "stock", "moves")
    with stock.transaction():
        tag(stock)
        with stock.transaction():
            run(stock, "insert into moves values (10, 1, 1)")
        assert value(stock, "select n from stock where id = 1") == 10
    assert value(stock, "select n from stock where id = 1") == 1010
    assert_goes_back(stock, before)


def test_prepared_transaction(stock: Connection) -> None:
    before = snapshot(stock, "stock", "moves")
    run(stock, "begin")
    tag(stock)
    run(
        stock,
        "update stock set n = 1 where id = 1",
        "savepoint s",
        "update stock set n = 2 where id = 2",
        "release s",
        "delete from stock where id = 3",
        "prepare transaction 'two phases'",
    )
    assert changes(stock) == []
    run(stock, "commit prepared 'two phases'")
    assert_goes_back(stock, before)


@pytest.mark.parametrize("deferrable", ["", "deferrable initially deferred"])
def test_cascades(db: Connection, deferrable: str) -> None:
    """A tree, two cascades into one table, and a child that is set to NULL two levels down."""
    run(
        db,
        "create table node (id int primary key, up int references node on delete cascade"
        f" {deferrable}, n int)",
        "create table leaf (id int primary key, a int references node on delete cascade"
        f" {deferrable}, b int references node on delete cascade on update cascade {deferrable})",
        f"create table note (id int primary key, leaf int references leaf on delete set null"
        f" {deferrable})",
        "insert into node values (1, null, 1), (2, 1, 2), (3, 2, 3), (4, null, 4)",
        "insert into leaf values (1, 3, 4), (2, 4, 3), (3, 2, 2), (4, 4, 4)",
        "insert into note select g, g from generate_series(1, 4) g",
        "select agentundo.track(t) from unnest('{node,leaf,note}'::regclass[]) t",
    )
    tables = ["node", "leaf", "note"]
    assert_undoable(db, tables, "delete from node where id = 1")
    assert (
        value(
            db,
            "select sum(rows) from agentundo.changes where operation = 'delete'"
            " and invocation = 'inv'",
        )
        == 6
    )
    assert_undoable(db, tables, "delete from node where id = 2", invocation="b")
    assert_undoable(
        db,
        tables,
        "update node set id = 40 where id = 4 and false;delete from node where id = 4",
        invocation="c",
    )


def test_cascade_into_partitions(db: Connection) -> None:
    run(
        db,
        "create table parent (id int primary key)",
        "create table child (id int, p int references parent on delete cascade on update cascade,"
        " primary key (id, p)) partition by range (p)",
        "create table child_low partition of child for values from (0) to (10)",
        "create table child_high partition of child for values from (10) to (100)",
        "insert into parent values (1), (2), (50)",
        "insert into child values (1, 1), (2, 1), (3, 2), (4, 50)",
        "select agentundo.track('parent'), agentundo.track('child')",
    )
    assert_undoable(db, ["parent", "child"], "delete from parent where id <> 2")
    # the cascade moves rows from one partition to the other
    assert_undoable(
        db, ["parent", "child"], "update parent set id = 20 where id = 1", invocation="b"
    )


def test_vacuum_and_cluster_keep_what_was_captured(stock: Connection) -> None:
    before = snapshot(stock, "stock", "moves")
    write(stock, "update stock set n = n + 1", "delete from moves where id = 1")
    run(
        stock,
        "vacuum (freeze) stock",
        "vacuum full stock",
        "cluster stock using stock_pkey",
        "vacuum (freeze) moves",
        "vacuum (full) moves",
    )
    assert_goes_back(stock, before)


@pytest.mark.parametrize(
    "statement",
    [
        "alter table stock set unlogged",
        "alter table stock alter n type bigint",
        "alter table stock add column extra float default random()",
    ],
)
def test_rewritten_table_is_compared_by_value(stock: Connection, statement: str) -> None:
    """After a rewrite all rows have new versions; that alone is not somebody else's write."""
    run(stock, "drop table moves")
    before = snapshot(stock, "stock")
    write(stock, "update stock set n = n + 1 where id < 3")
    run(stock, statement)
    changed = snapshot(stock, "stock")
    write(stock, "update stock set n = 99 where id = 1", invocation="later")
    result = revert(stock, "inv", on_conflict="skip")
    assert (result.rows_updated, result.rows_skipped) == (1, 1)
    revert(stock, "later")
    assert revert(stock, "inv").status == "reverted"
    after = snapshot(stock, "stock")
    if after["stock"].columns == before["stock"].columns:
        assert_same(before, after)
    else:
        assert {row[:4] for row in after["stock"].rows} == set(before["stock"].rows)
        assert {row[4] for row in after["stock"].rows} == {row[4] for row in changed["stock"].rows}
