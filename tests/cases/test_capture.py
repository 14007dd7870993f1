"""What a statement did is in history, whatever kind of statement it was, and can be taken back."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection
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
from tests.support.undo import plan, redo, refused, revert, rows

pytestmark = pytest.mark.core


@pytest.fixture
def items(db: Connection) -> Connection:
    """Make and track a table of three rows."""
    run(
        db,
        "create table items (id int primary key, name text, n int)",
        "insert into items values (1, 'one', 10), (2, 'two', 20), (3, null, null)",
        "select agentundo.track('items')",
    )
    return db


@pytest.mark.parametrize(
    "statement",
    [
        "insert into items values (4, 'four', 40)",
        "update items set n = n + 1",
        "update items set name = name where id < 3 returning *; delete from items where id = 3",
        "delete from items",
        "insert into items select g, 'bulk', g from generate_series(10, 400) g",
    ],
)
def test_one_statement(items: Connection, statement: str) -> None:
    assert_undoable(items, ["items"], *statement.split("; "))


@pytest.mark.parametrize(
    "statements",
    [
        # insert, update, update, delete of one row: it was not there, and is not
        (
            "insert into items values (4, 'x', 1)",
            "update items set n = 2 where id = 4",
            "update items set n = 3 where id = 4",
            "delete from items where id = 4",
            "update items set n = 0 where id = 1",
        ),
        # deleted and inserted again under the same key
        ("delete from items where id = 1", "insert into items values (1, 'again', 11)"),
        (
            "delete from items where id = 1",
            "insert into items values (1, 'one', 10)",
            "update items set n = 5 where id = 2",
        ),
        # inserted and deleted
        (
            "insert into items values (4)",
            "delete from items where id = 4",
            "delete from items where id = 2",
        ),
        # updated twice, the second time in part
        ("update items set n = 100", "update items set n = 200 where id > 1"),
        # there and back again
        (
            "update items set n = 11 where id = 1",
            "update items set n = 10 where id = 1",
            "insert into items values (5)",
        ),
        # deleted, inserted, deleted
        (
            "delete from items where id = 2",
            "insert into items values (2)",
            "delete from items where id = 2",
        ),
        # key goes away and comes back to another row
        ("update items set id = 9 where id = 1", "update items set id = 1 where id = 2"),
    ],
)
@pytest.mark.parametrize("transactions", ["one", "many"])
def test_several_changes_of_a_row(
    items: Connection, statements: tuple[str, ...], transactions: str
) -> None:
    before = snapshot(items, "items")
    if transactions == "one":
        write(items, *statements)
    else:
        for statement in statements:
            write(items, statement)
    assert_goes_back(items, before)


def test_changes_that_cancel_out_leave_nothing_to_do(items: Connection) -> None:
    before = snapshot(items, "items")
    write(items, "insert into items values (4)", "delete from items where id = 4")
    result = revert(items, "inv")
    assert result.status == "reverted"
    assert result.counts == (0, 0, 0, 0, 0)
    assert_same(before, snapshot(items, "items"))


def test_statement_that_touches_no_row_leaves_no_trace(items: Connection) -> None:
    write(
        items,
        "update items set n = 1 where false",
        "delete from items where id = 99",
        "insert into items select 1 where false",
    )
    assert changes(items) == []
    assert images(items, "items") == {}
    with refused("UN002"):
        revert(items, "inv")


def test_long_open_transaction_of_another_changes_nothing(
    items: Connection, connect: Connect
) -> None:
    before = snapshot(items, "items")
    old = connect(autocommit=False)
    run(old, "set transaction isolation level repeatable read", "select count(*) from items")
    idle_writer = connect(autocommit=False)
    run(idle_writer, "create table unrelated (x int)", "insert into unrelated values (1)")
    write(items, "update items set n = n + 1", "delete from items where id = 2")
    write(items, "update items set n = n + 1")
    assert changes(items) == [
        ("public.items", "update", 3),
        ("public.items", "delete", 1),
        ("public.items", "update", 2),
    ]
    assert rows(old, "select count(*) from items") == [(3,)]
    assert_goes_back(items, before)
    old.rollback()
    idle_writer.commit()
    assert_same(before, snapshot(items, "items"))


def test_history_is_what_was_committed(items: Connection) -> None:
    before = snapshot(items, "items")
    with items.transaction(force_rollback=True):
        tag(items)
        run(items, "update items set n = 0")
    assert changes(items) == []
    assert images(items, "items") == {}
    with items.transaction():
        tag(items)
        with items.transaction(force_rollback=True):
            run(items, "update items set n = 0")
        with items.transaction():
            run(items, "update items set n = 1 where id = 1")
    assert changes(items) == [("public.items", "update", 1)]
    assert images(items, "items") == {"O": 1, "N": 1}
    assert_goes_back(items, before)


def test_columns_without_an_equality_operator(db: Connection) -> None:
    try:
        xml = value(db, "select '<a/>'::xml") and "xml"
    except psycopg.errors.FeatureNotSupported:
        xml = "text"  # this server was built without it
    run(
        db,
        f"create table shapes (id int primary key, j json, x {xml}, p point, poly polygon, b box)",
        """insert into shapes values
             (1, '{"a" :  1, "a": 2}', '<a/>', '(1,2)', '((0,0),(1,1),(2,0))', '(1,1),(0,0)'),
             (2, null, null, null, null, null)""",
        "select agentundo.track('shapes')",
    )
    assert_undoable(
        db, ["shapes"], "update shapes set j = '1', x = '<b/>', p = '(0,0)' where id = 1"
    )
    assert_undoable(
        db, ["shapes"], "update shapes set j = '[]', poly = '((0,0))' where id = 2", invocation="b"
    )
    assert_undoable(db, ["shapes"], "delete from shapes", invocation="c")
    assert_undoable(
        db, ["shapes"], """insert into shapes values (3, '{"x":null}')""", invocation="d"
    )


def test_no_key_and_no_equality_operator(db: Connection) -> None:
    run(
        db,
        "create table loose (j json, p point)",
        """insert into loose values ('{"a":1}', '(1,1)'), ('{"a":1}', '(1,1)'),
             ('{"a": 1}', '(1,1)'), (null, null), (null, null)""",
        "select agentundo.track('loose')",
    )
    one = "ctid in (select ctid from loose where j::text = '{\"a\":1}' limit 1)"
    assert_undoable(db, ["loose"], f"delete from loose where {one}")
    assert_undoable(db, ["loose"], f"update loose set p = '(2,2)' where {one}", invocation="b")
    assert_undoable(db, ["loose"], "delete from loose where j is null", invocation="c")
    assert_undoable(db, ["loose"], "insert into loose select * from loose", invocation="d")


def test_stored_generated_columns(db: Connection) -> None:
    run(
        db,
        "create table g (a int, double int generated always as (a * 2) stored, id int primary key,"
        " name text, upper text generated always as (upper(name)) stored)",
        "insert into g (id, a, name) values (1, 10, 'x'), (2, null, null)",
        "select agentundo.track('g')",
    )
    assert_undoable(db, ["g"], "update g set a = a + 1, name = 'y'")
    assert_undoable(db, ["g"], "delete from g", invocation="b")
    assert_undoable(db, ["g"], "insert into g (id, a) values (3, 3)", invocation="c")


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_virtual_generated_columns(db: Connection, pg_major: int, capture: str) -> None:
    if pg_major < 18:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    run(
        db,
        "create table g (a int, double int generated always as (a * 2), id int primary key,"
        " name text, upper text generated always as (upper(name)))",
        "insert into g (id, a, name) values (1, 10, 'x'), (2, null, null)",
        f"select agentundo.track('g', '{capture}')",
        "update g set name = 'untagged' where id = 2",
    )
    assert_undoable(db, ["g"], "update g set a = a + 1, name = 'y'")
    assert_undoable(db, ["g"], "delete from g", invocation="b")
    assert_undoable(db, ["g"], "insert into g (id, a) values (3, 3)", invocation="c")


@pytest.mark.parametrize("columns", [60, 1000])
def test_many_columns(db: Connection, columns: int) -> None:
    listed = ", ".join(f"column_{i} int" for i in range(1, columns))
    run(
        db,
        f"create table wide (id int primary key, {listed})",
        f"insert into wide values (1, {', '.join(str(i) for i in range(1, columns))})",
        "insert into wide values (2)",
        "select agentundo.track('wide')",
    )
    last = f"column_{columns - 1}"
    assert_undoable(db, ["wide"], f"update wide set {last} = -1, column_1 = null")
    assert_undoable(db, ["wide"], "delete from wide", invocation="b")

    # Somebody writes another column, somebody the same: compared column by column.
    write(db, f"update wide set {last} = -2, column_1 = -2", invocation="c")
    write(
        db,
        "update wide set column_2 = -3",
        "update wide set column_1 = -3 where id = 2",
        invocation="d",
    )
    states = [(r.key["id"], r.status, r.columns) for r in plan(db, "c", merge=True) if r.key]
    assert sorted(states) == [(1, "merge", ["column_1", last]), (2, "conflict", ["column_1"])]
    with refused("UN001"):
        revert(db, "c")
    done = revert(db, "c", on_conflict="skip", merge=True)
    assert (done.status, done.rows_updated, done.conflicts) == ("partially_reverted", 1, 1)
    seen = f"select id, column_1, column_2, {last} from wide order by id"
    assert rows(db, seen) == [(1, 1, -3, columns - 1), (2, -3, -3, -2)]
    assert revert(db, "d", merge=True).status == "reverted"
    assert rows(db, seen) == [(1, 1, 2, columns - 1), (2, -2, None, -2)]


def test_large_value_that_was_not_touched(db: Connection) -> None:
    run(
        db,
        "create table files (id int primary key, name text, body text, raw bytea)",
        "alter table files alter body set storage external",
        # digests do not compress: the values go to TOAST
        "insert into files select 1, 'a', string_agg(md5(i::text), ''),"
        " string_agg(decode(md5(i::text), 'hex'), '') from generate_series(1, 32768) i",
        "select agentundo.track('files')",
    )
    assert value(db, "select length(body) from files") == 1048576
    assert_undoable(db, ["files"], "update files set name = 'b'")
    assert_undoable(db, ["files"], "update files set body = 'short'", invocation="b")
    assert_undoable(db, ["files"], "delete from files", invocation="c")


@pytest.mark.parametrize(
    "update",
    [
        "update places set id = 3 - id where id < 3",
        "update places set id = id + 1",
        "update places set id = case id when 1 then 2 when 2 then 3 else 1 end",
        "update places set id = 4 - id, name = name || '!'",
        "update places set id = id + 100",
    ],
)
@pytest.mark.parametrize(
    "key", ["primary key deferrable", "primary key deferrable initially deferred"]
)
def test_update_that_permutes_keys(db: Connection, update: str, key: str) -> None:
    run(
        db,
        f"create table places (id int {key}, name text, n int)",
        "insert into places values (1, 'one', 1), (2, 'two', 1), (3, 'three', 1)",
        "select agentundo.track('places')",
    )
    assert_undoable(db, ["places"], update)


def test_update_that_moves_keys_of_like_rows(db: Connection) -> None:
    """Only the key tells these rows apart, so nothing says which one became which."""
    run(
        db,
        "create table places (id int primary key deferrable, name text)",
        "insert into places values (1, 'same'), (2, 'same'), (3, 'same')",
        "select agentundo.track('places')",
    )
    assert_undoable(db, ["places"], "update places set id = id + 1")
    assert_undoable(db, ["places"], "update places set id = id + 10", invocation="b")


def test_composite_key_changes_in_part(db: Connection) -> None:
    run(
        db,
        "create table places (a int, b text, v int, primary key (b, a))",
        "insert into places values (1, 'x', 1), (2, 'x', 2), (1, 'y', 3)",
        "select agentundo.track('places')",
    )
    assert_undoable(db, ["places"], "update places set a = a + 10 where b = 'x'")
    assert_undoable(
        db, ["places"], "update places set a = 5, v = v + 1 where b = 'y'", invocation="b"
    )


def test_history_of_the_same_key_by_two_sessions(items: Connection, connect: Connect) -> None:
    """One invocation may write from several sessions at once."""
    before = snapshot(items, "items")
    one, two = connect(autocommit=False), connect(autocommit=False)
    for conn in (one, two):
        tag(conn)
    run(one, "update items set n = 1 where id = 1")
    run(two, "update items set n = 2 where id = 2")
    run(one, "insert into items values (10)")
    run(two, "insert into items values (11)")
    two.commit()
    one.commit()
    assert_goes_back(items, before)


def test_redo_after_revert_after_redo(items: Connection) -> None:
    before = snapshot(items, "items")
    write(items, "update items set n = n + 1", "delete from items where id = 3")
    after = snapshot(items, "items")
    for _ in range(3):
        assert revert(items, "inv").status == "reverted"
        assert_same(before, snapshot(items, "items"))
        assert redo(items, "inv").status == "reverted"
        assert_same(after, snapshot(items, "items"))
