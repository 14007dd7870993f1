"""Partition trees and inheritance: every level is captured, each row once and with all columns."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    assert_undoable,
    changes,
    images,
    make_t,
    run,
    try_to_write,
    value,
    write,
)
from tests.support.undo import plan, refused, revert, rows

pytestmark = pytest.mark.core


@pytest.fixture(params=["followed", "not followed"])
def followed(request: pytest.FixtureRequest, db: Connection) -> bool:
    """Say whether there are event triggers; take them away in the other half of the tests."""
    if request.param == "not followed":
        run(db, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    return bool(request.param == "followed")


@pytest.fixture
def tree(db: Connection) -> Connection:
    """Make and track a tree of two levels; one leaf has its columns in another order."""
    run(
        db,
        "create table m (id int, region text, v int, note text, primary key (id, region))"
        " partition by list (region)",
        "create table m_eu partition of m for values in ('eu') partition by range (id)",
        "create table m_eu_low partition of m_eu for values from (0) to (100)",
        "create table m_eu_high (gone int, note text, v int, region text not null,"
        " id int not null)",
        "alter table m_eu_high drop gone",
        "alter table m_eu attach partition m_eu_high for values from (100) to (1000)",
        "create table m_us partition of m for values in ('us')",
        "create table m_rest partition of m default",
        "insert into m values (1, 'eu', 1, 'a'), (2, 'eu', 2, 'b'), (100, 'eu', 3, 'c'),"
        " (1, 'us', 4, 'd'), (2, 'us', 5, null), (1, 'jp', 6, 'e')",
        "select agentundo.track('m')",
    )
    return db


@pytest.mark.parametrize("named", ["m", "m_eu", "m_eu_low", "m_eu_high", "m_us", "m_rest"])
def test_write_names_any_level(tree: Connection, named: str) -> None:
    regions = {"m": "us", "m_us": "us", "m_rest": "cn"}
    region, fresh = regions.get(named, "eu"), 500 if named == "m_eu_high" else 50
    statements = (
        f"update {named} set v = v + 10",
        f"delete from {named} where v not in (2, 5)",
        f"insert into {named} (id, region) values ({fresh}, '{region}')",
    )
    for i, statement in enumerate(statements):
        count = value(tree, f"select count(*) from {named}")
        if statement.startswith("delete"):
            count = value(tree, f"select count(*) from {named} where v not in (2, 5)")
        if statement.startswith("insert"):
            count = 1
        assert_undoable(tree, ["m"], statement, invocation=f"inv {i}")
        captured = sum(rows for _, _, rows in changes(tree, f"inv {i}"))
        assert captured == count, f"{captured} of {count} rows captured"
    assert_undoable(tree, ["m"], *statements, invocation="all")


@pytest.mark.parametrize(
    "statement",
    [
        "update m set region = 'us', id = id + 10 where region = 'eu'",
        "update m set region = 'eu', id = 7 where region = 'jp'",
        "update m set id = id + 100 where region = 'eu' and id < 100",
        "update m_eu set id = 300 - id where id < 200",
        "update m set region = case region when 'eu' then 'us' else 'eu' end, v = v + 1,"
        " id = id + v where id = 2",
        "update m set region = 'zz' where region = 'us'",
    ],
)
def test_row_moves_between_partitions(tree: Connection, statement: str) -> None:
    assert_undoable(tree, ["m"], statement)


def test_rows_of_one_invocation_come_through_several_levels(tree: Connection) -> None:
    before = snapshot(tree, "m")
    write(
        tree,
        "update m set v = 0 where id = 1",
        "update m_eu set v = v + 1",
        "update m_eu_low set note = 'x' where id = 1",
        "delete from m_us where id = 1",
        "insert into m values (1, 'us', 9, 'new')",
    )
    write(
        tree, "update m set id = 700 where id = 1 and region = 'eu'", "update m_eu_high set v = -1"
    )
    assert_goes_back(tree, before)


def test_merge_and_upsert_on_partitions(tree: Connection, pg_major: int) -> None:
    upsert = (
        "insert into m values (1, 'eu', 7, 'u'), (77, 'eu', 7, 'i'), (1, 'jp', 7, 'u')"
        " on conflict (id, region) do update set v = excluded.v"
    )
    assert_undoable(tree, ["m"], upsert)
    if pg_major >= 15:
        merge = (
            "merge into m using (values (1, 'eu'), (1, 'us'), (9, 'us')) s (id, region)"
            " on m.id = s.id and m.region = s.region"
            " when matched and s.region = 'eu' then update set region = 'us', id = 1000"
            " when matched then delete when not matched then insert values (s.id, s.region)"
        )
        assert_undoable(tree, ["m"], merge, invocation="merge")


ATTACH = (
    "create table m_cn partition of m for values in ('cn')",
    "create table m_cn (region text not null, v int, id int not null, note text);"
    "alter table m attach partition m_cn for values in ('cn')",
    "create table m_cn partition of m for values in ('cn') partition by range (id);"
    "create table m_cn_1 partition of m_cn for values from (0) to (1000)",
)


@pytest.mark.parametrize("ddl", ATTACH, ids=["created", "attached", "subtree"])
@pytest.mark.parametrize("named", ["m", "m_cn"])
def test_partition_that_came_after_tracking(
    tree: Connection, followed: bool, ddl: str, named: str
) -> None:
    """Captured at once, or the tagged write is refused; nobody else notices anything."""
    run(tree, *ddl.split(";"))
    run(
        tree,
        f"insert into {named} (id, region) values (3, 'cn'), (4, 'cn')",
        f"update {named} set v = 1 where region = 'cn'",
    )
    statements = [
        f"insert into {named} (id, region) values (5, 'cn')",
        f"update {named} set v = 2 where region = 'cn' and id = 3",
        f"delete from {named} where region = 'cn' and id = 4",
    ]
    if followed or named == "m":
        # Directly on a partition that nobody has told us of, no trigger of ours can fire for it.
        statements.append(f"truncate {named}")
    for i, statement in enumerate(statements):
        before = snapshot(tree, "m")
        error = try_to_write(tree, statement, invocation=f"inv {i}")
        if error:
            assert not followed, error
            assert error.sqlstate == "UN008", error
            assert_same(before, snapshot(tree, "m"))
        else:
            assert_goes_back(tree, before, f"inv {i}")
    run(tree, "select agentundo.sync('m')")
    assert rows(tree, "select health from agentundo.tracked") == [("ok",)]
    assert_undoable(
        tree,
        ["m"],
        f"update {named} set v = 3",
        f"insert into {named} (id, region) values (6, 'cn')",
        f"delete from {named} where id = 4",
        invocation="synced",
    )


def test_row_moves_into_a_partition_that_came_later(tree: Connection, followed: bool) -> None:
    run(tree, ATTACH[0])
    before = snapshot(tree, "m")
    error = try_to_write(tree, "update m set region = 'cn' where region = 'us'")
    if error:
        assert not followed, error
        assert error.sqlstate == "UN008", error
        assert_same(before, snapshot(tree, "m"))
    else:
        assert_goes_back(tree, before)


@pytest.mark.parametrize("leaf", ["m_us", "m_eu"])
def test_detached_partition(tree: Connection, followed: bool, leaf: str) -> None:
    """It is another table now: nothing is booked under its former root, or restored there."""
    write(
        tree,
        f"update {leaf} set v = v + 1",
        "insert into m_us values (8, 'us')",
        "update m_rest set v = 0",
    )
    run(tree, f"alter table m detach partition {leaf}")
    tables = ["m", leaf]
    before = snapshot(tree, *tables)
    with refused("UN001"):
        revert(tree, "inv")
    assert {row.reason for row in plan(tree, "inv") if row.status == "conflict"} <= {
        "schema_changed",
        "row_deleted",
    }
    assert_same(before, snapshot(tree, *tables))
    error = try_to_write(
        tree,
        f"update {leaf} set v = 99",
        f"insert into {leaf} values (50, '{leaf[-2:]}')"
        if leaf == "m_us"
        else f"delete from {leaf} where id = 2",
        invocation="later",
    )
    if error:
        assert not followed, error
        assert error.sqlstate == "UN008", error
        assert_same(before, snapshot(tree, *tables))
    else:
        assert changes(tree, "later") == [], "booked under a root that it left"
    run(tree, "select agentundo.sync()")
    assert (
        rows(
            tree,
            "select tgname from pg_trigger where not tgisinternal"
            " and tgname like 'agentundo%%' and tgrelid = %s::regclass",
            leaf,
        )
        == []
    )
    # tracked for itself it is like any other table
    run(tree, f"select agentundo.track('{leaf}')")
    assert_undoable(
        tree,
        tables,
        f"update {leaf} set v = -v",
        f"delete from {leaf} where id = 1",
        invocation="own",
    )
    assert_undoable(tree, tables, "update m set v = v + 5", invocation="rest")


def test_a_tracked_table_that_became_a_partition_of_a_tracked_one(
    tree: Connection, followed: bool
) -> None:
    run(
        tree,
        "create table alone (like m including all)",
        "insert into alone values (1, 'br', 1, 'x'), (2, 'br', 2, 'y')",
        "select agentundo.track('alone')",
    )
    before = snapshot(tree, "alone")
    write(tree, "update alone set v = 9", "delete from alone where id = 2")
    run(
        tree,
        "alter table m attach partition alone for values in ('br')",
        "select agentundo.sync()",
    )
    assert rows(tree, "select relation from agentundo.tracked order by 1") == [("public.m",)]
    write(tree, "update m set note = 'z' where region = 'eu'", invocation="later")
    assert [row.relation for row in plan(tree, "later")] == ["public.m"] * 3
    assert revert(tree, "later").status == "reverted"
    assert {row.status for row in plan(tree, "inv")} == {"ok"}
    assert revert(tree, "inv").counts == (0, 1, 1, 0, 0)
    assert_same(before, snapshot(tree, "alone"))
    assert rows(tree, "select object from agentundo.check() where severity = 'error'") == []

    run(tree, "alter table m detach partition alone", "select agentundo.sync()")
    assert ("public.alone",) in rows(tree, "select relation from agentundo.tracked")
    write(tree, "update alone set v = 7", invocation="alone again")
    assert revert(tree, "alone again").status == "reverted"
    assert_same(before, snapshot(tree, "alone"))
    assert rows(tree, "select object from agentundo.check() where severity = 'error'") == []


def test_detached_and_attached_again(tree: Connection, followed: bool) -> None:
    before = snapshot(tree, "m")
    write(tree, "update m_us set v = v + 1", "delete from m where id = 2")
    run(
        tree,
        "alter table m detach partition m_us",
        "alter table m attach partition m_us for values in ('us')",
        "select agentundo.sync('m')",
    )
    assert rows(tree, "select health from agentundo.tracked") == [("ok",)]
    assert_goes_back(tree, before)
    assert_undoable(tree, ["m"], "update m_us set v = 0", invocation="again")


def test_partitions_without_a_key(db: Connection) -> None:
    """Two partitions may use the same ctid: a row is named by both."""
    run(
        db,
        "create table logs (day int, line text) partition by list (day)",
        "create table logs_1 partition of logs for values in (1)",
        "create table logs_2 partition of logs for values in (2)",
        "insert into logs select day, 'x' from generate_series(1, 2) day, generate_series(1, 3)",
        "insert into logs values (1, null), (2, null)",
        "select agentundo.track('logs')",
    )
    assert_undoable(db, ["logs"], "insert into logs values (1, 'y'), (2, 'z')")
    assert_undoable(db, ["logs"], "update logs set line = 'w' where line is null", invocation="b")
    assert_undoable(db, ["logs"], "delete from logs_1", invocation="c")
    assert_undoable(
        db,
        ["logs"],
        "update logs set day = 3 - day where line = 'x' and day = 1",
        "delete from logs where ctid = '(0,1)'",
        invocation="d",
    )


def test_moving_a_referenced_row_keeps_its_children(db: Connection) -> None:
    """On 14 such an UPDATE is a DELETE for foreign keys, and their CASCADE would run."""
    run(
        db,
        "create table owner (id int, region text, v int, primary key (id, region))"
        " partition by list (region)",
        "create table owner_a partition of owner for values in ('a')",
        "create table owner_b partition of owner for values in ('b')",
        "insert into owner values (1, 'a', 1), (2, 'b', 2)",
        "select agentundo.track('owner')",
        "create table child (id int primary key, owner int, region text, foreign key"
        " (owner, region) references owner on update cascade on delete cascade)",
        "insert into child values (1, 1, 'a'), (2, 2, 'b')",
        "select agentundo.track('child')",
    )
    before = snapshot(db, "owner", "child")
    write(db, "update owner set region = 'b' where id = 1", "update owner set v = 9 where id = 2")
    lost = value(db, "select 2 - count(*) from child")
    assert_goes_back(db, before)
    assert value(db, "select count(*) from child") == 2
    assert lost in (0, 1)


@pytest.mark.parametrize(
    ("truncate", "lost"),
    [
        ("truncate m", 6),
        ("truncate m_eu", 3),
        ("truncate m_eu_low, m_us", 4),
        ("truncate m_rest, m restart identity cascade", 6),
    ],
)
def test_truncate_copies_each_row_once(tree: Connection, truncate: str, lost: int) -> None:
    assert_undoable(tree, ["m"], truncate)
    assert images(tree, "m") == {"O": lost}


# Inheritance --------------------------------------------------------------------------------


@pytest.fixture
def family(db: Connection) -> Connection:
    """Make and track a parent, a child with more columns, and a grandchild of two parents."""
    run(
        db,
        "create table parent (id int primary key, v int)",
        "create table aside (mark text)",
        "create table child (extra text, primary key (id)) inherits (parent)",
        "create table grandchild (more numeric) inherits (child, aside)",
        "insert into parent values (1, 10), (2, 20)",
        "insert into child values (1, 100, 'precious'), (3, 300, null)",
        "insert into grandchild (id, v, extra, mark, more) values (1, 1, 'g', 'm', 1.50)",
        "insert into aside values ('alone')",
        "select agentundo.track('parent')",
    )
    return db


FAMILY = ["parent", "child", "grandchild", "aside"]


@pytest.mark.parametrize(
    "statement",
    [
        "update parent set v = v + 1",
        "delete from parent",
        "delete from parent where id = 1",
        "delete from only parent",
        "update child set extra = 'changed', v = 0",
        "update only child set id = id + 1",
        "insert into child values (9, 9, 'nine')",
        "insert into grandchild (id, more) values (9, 0.10)",
        "delete from child where id = 1",
        "update parent set id = id + 5 where v > 5",
        "truncate parent",
        "truncate only child",
        "truncate grandchild",
        "update parent set v = 1 where id = 1; delete from child; insert into parent values (7, 7)",
    ],
)
def test_inheritance(family: Connection, statement: str) -> None:
    assert_undoable(family, FAMILY, *statement.split("; "))


def test_rows_of_children_are_their_own(family: Connection) -> None:
    """Three rows of the tree have the key 1, one in each table."""
    before = snapshot(family, *FAMILY)
    write(family, "delete from parent where id = 1")
    assert sorted(changes(family)) == [
        ("public.child", "delete", 1),
        ("public.grandchild", "delete", 1),
        ("public.parent", "delete", 1),
    ]
    assert_goes_back(family, before)


def test_second_parent_is_tracked_too(family: Connection) -> None:
    """A write through another parent of a tracked table is captured where the row lies."""
    assert_undoable(
        family, ["parent", "child", "grandchild"], "update aside set mark = 'x' where mark = 'm'"
    )
    before = snapshot(family, "parent", "child", "grandchild")
    write(family, "delete from aside where mark = 'm'", invocation="b")
    assert_goes_back(family, before, "b")


@pytest.mark.parametrize(
    "ddl",
    [
        "create table late (z int) inherits (child)",
        "create table late (id int not null, v int, extra text, z int);"
        "alter table late inherit child",
    ],
)
def test_child_that_came_after_tracking(family: Connection, followed: bool, ddl: str) -> None:
    """A statement on the parent writes its rows too: captured, or refused."""
    run(family, *ddl.split(";"))
    run(family, "insert into late values (20, 20, 'late', 20), (21, 21, 'late', 21)")
    tables = ["parent", "child", "grandchild", "late"]
    for i, statement in enumerate(
        ("delete from parent where id > 15", "update parent set v = 0", "truncate parent")
    ):
        before = snapshot(family, *tables)
        error = try_to_write(family, statement, invocation=f"inv {i}")
        if error:
            assert not followed, error
            assert error.sqlstate == "UN008", error
            assert_same(before, snapshot(family, *tables))
        else:
            assert_goes_back(family, before, f"inv {i}")


def test_plain_table_becomes_a_parent(db: Connection, followed: bool) -> None:
    make_t(db, 1)
    write(db, "update t set v = 2", invocation="warm")
    run(db, "create table heir (w int) inherits (t)", "insert into heir values (5, 5, 5)")
    before = snapshot(db, "t", "heir")
    error = try_to_write(db, "delete from t")
    if error:
        assert not followed, error
        assert error.sqlstate == "UN008", error
        assert_same(before, snapshot(db, "t", "heir"))
        run(db, "select agentundo.track('t')")
        write(db, "delete from t")
    assert_goes_back(db, before)


def test_child_leaves_the_family(family: Connection, followed: bool) -> None:
    before = snapshot(family, *FAMILY)
    write(family, "update parent set v = v + 1")
    run(family, "alter table child no inherit parent", "select agentundo.sync()")
    assert revert(family, "inv").status == "reverted"
    run(family, "alter table child inherit parent", "select agentundo.sync()")
    assert_same(before, snapshot(family, *FAMILY))
    assert_undoable(family, FAMILY, "delete from parent", invocation="b")


@pytest.mark.parametrize("readable", [True, False])
def test_rows_in_a_partition_that_was_detached_are_not_called_undone(
    db: Connection, readable: bool
) -> None:
    """They are in the table no more, and yet nothing has been done about them."""
    run(
        db,
        "create table parts (id int, half int, v text, primary key (id, half))"
        " partition by list (half)",
        "create table parts_0 partition of parts for values in (0)",
        "create table parts_1 partition of parts for values in (1)",
        "select agentundo.track('parts', 'all')",
    )
    write(db, "insert into parts values (1, 1, 'bot'), (2, 0, 'bot')")
    run(db, "alter table parts detach partition parts_1")
    if not readable:
        run(db, "revoke all on parts_1 from agentundo_worker")
    found = {row.reason: (row.key, row.detail) for row in plan(db, "inv")}
    assert found["schema_changed"][0] == {"id": 1, "half": 1}
    hint = "It lies in parts_1, which was detached: attach it again."
    assert (found["schema_changed"][1] or {})["hint"].replace("public.", "") == hint
    with refused("UN001"):
        revert(db, "inv")
    assert revert(db, "inv", on_conflict="skip").counts == (1, 0, 0, 1, 1)
    assert rows(db, "table parts_1") == [(1, 1, "bot")]
    run(db, "alter table parts attach partition parts_1 for values in (1)")
    assert revert(db, "inv").counts == (1, 0, 0, 0, 0)
    assert rows(db, "table parts") == []


def test_a_row_that_was_dropped_with_its_partition_is_gone(db: Connection) -> None:
    run(
        db,
        "create table parts (id int, half int, primary key (id, half)) partition by list (half)",
        "create table parts_1 partition of parts for values in (1)",
        "select agentundo.track('parts', 'all')",
    )
    write(db, "insert into parts values (1, 1)")
    run(db, "alter table parts detach partition parts_1", "drop table parts_1")
    assert revert(db, "inv").counts == (0, 0, 0, 0, 0)
