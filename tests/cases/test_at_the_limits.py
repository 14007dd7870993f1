"""Rows that fill a page, types that go, other storage, and what history is made of."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, refused, revert, rows, scalar
from tests.support.undoing import assert_undone, everything, track, write

pytestmark = pytest.mark.core


def test_a_row_that_fills_its_page_is_refused_to_agents_alone(db: Connection) -> None:
    """Its image is 16 bytes longer and fits no page: nothing is written that could not go back."""
    listed = ", ".join(f"c{i} name not null default 'x'" for i in range(127))  # 64 bytes each
    db.execute(f"create table t (id bigint primary key, {listed})".encode())
    db.execute("insert into t values (1)")
    track(db, "t")
    before = everything(db)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="row is too big"):
        write(db, "update t set c0 = 'y'")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="row is too big"):
        write(db, "delete from t")
    assert_same(before, everything(db))
    assert rows(db, "select * from agentundo.changes") == []
    db.execute("update t set c0 = 'y'; delete from t; insert into t values (2)")
    assert scalar(db, "select id from t") == 2


def test_other_ways_to_store_a_table_are_refused(db: Connection) -> None:
    """Heap rows have versions; whoever made another access method need not have any."""
    db.execute("create access method other type table handler heap_tableam_handler")
    db.execute("create table t (id int primary key) using other")
    with refused("UN004") as caught:
        track(db, "t")
    assert "access method is other" in caught.message


def test_what_history_and_triggers_are_made_of(db: Connection) -> None:
    """Found by number through a btree; row triggers only where tables inherit."""
    db.execute(
        "create table t (id int primary key); create table p (id int) partition by list (id);"
        "create table p_1 partition of p for values in (1);"
        "create table parent (id int); create table heir () inherits (parent)"
    )
    track(db, "t", "p", "parent")
    indexes = rows(
        db,
        "select distinct amname::text, pg_get_indexdef(i.indexrelid, 1, true)"
        " from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam"
        " where i.indrelid in (select history::regclass from agentundo.tracked)",
    )
    assert indexes == [("btree", "_change")]
    by_row = rows(
        db,
        "select tgrelid::regclass::text, tgname::text from pg_trigger"
        " where tgname like 'agentundo%%' and tgtype & 1 = 1 and tgenabled <> 'D' order by 1",
    )
    assert by_row == [
        ("heir", "agentundo_row"), ("p", "agentundo_unknown"), ("parent", "agentundo_row"),
    ]  # fmt: skip


def test_a_type_that_takes_its_column_along_takes_nothing_of_history(db: Connection) -> None:
    """DROP TYPE … CASCADE drops the user's column; the rest goes back as ever."""
    db.execute(
        "create type mood as enum ('sad', 'glad'); create type pair as (a int, b text);"
        "create domain small as int;"
        "create table t (id int primary key, m mood, ms mood[], p pair, s small, v int);"
        "insert into t values (1, 'sad', '{sad}', '(1,x)', 1, 1), (2, 'glad', '{}', null, 2, 2)"
    )
    track(db, "t")
    call = write(
        db, "update t set m = 'glad', p = '(2,y)', s = 9, v = 9", "delete from t where id = 2"
    )
    images = "select count(*) from agentundo_history.t_1"
    kept = scalar(db, images)
    for name in ("type mood", "type pair", "domain small"):
        db.execute(f"drop {name} cascade".encode())
    db.execute("select agentundo.sync()")
    assert scalar(db, images) == kept
    assert {row.status for row in plan(db, call)} == {"ok"}
    assert revert(db, call).status == "reverted"
    assert rows(db, "select * from t order by id") == [(1, 1), (2, 2)]
    assert_undone(db, "update t set v = 7", "delete from t where id = 1")


def test_attributes_of_a_type_can_be_altered_once_no_table_has_it(db: Connection) -> None:
    """What history keeps of the type does not count as a use of it."""
    db.execute(
        "create type pair as (a int, b text); create table t (id int primary key, p pair, v int);"
        "insert into t values (1, '(1,x)', 1)"
    )
    track(db, "t")
    call = write(db, "update t set p = '(2,y)', v = 2")
    db.execute("alter table t drop column p; alter type pair alter attribute a type bigint")
    assert revert(db, call).status == "reverted"
    assert rows(db, "select * from t") == [(1, 1)]


def test_a_key_declared_on_one_partition_cascades_there(db: Connection) -> None:
    """Into a leaf with its columns in another order; the rows of the others stay."""
    db.execute(
        "create table p (id int primary key);"
        "create table c (id int, part int, p int, v text) partition by list (part);"
        "create table c_1 (v text, gone int, p int, part int not null, id int not null);"
        "alter table c_1 drop column gone; alter table c attach partition c_1 for values in (1);"
        "create table c_2 partition of c for values in (2);"
        "alter table c_1 add primary key (id);"
        "alter table c_1 add foreign key (p) references p on delete cascade on update cascade;"
        "insert into p values (1), (2); insert into c values (1, 1, 1, 'a'), (2, 2, 1, 'b'),"
        " (3, 1, 2, 'c')"
    )
    track(db, "p", "c")
    assert_undone(db, "delete from p where id = 1")
    assert_undone(db, "update p set id = 9 where id = 1", "update c set v = 'x'")
