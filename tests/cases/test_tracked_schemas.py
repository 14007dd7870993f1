"""Schemas that are tracked as a whole, and what owners make and change in them later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Connect, Connection
from tests.support.state import snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    assert_undoable,
    run,
    value,
    write,
)
from tests.support.undo import rows

pytestmark = pytest.mark.core

MakeRole = Callable[..., str]


@pytest.fixture
def crm(db: Connection) -> Connection:
    """Make a schema with tables of every kind."""
    run(
        db,
        'create schema "My CRM"',
        'set search_path = "My CRM"',
        "create table b (id int primary key)",
        "create table a (id int primary key, b int references b)",
        "create table m (id int) partition by list (id)",
        "create table m_1 partition of m for values in (1)",
        "create view v as select * from a",
        "create unlogged table u (id int)",
        "create table parent (id int)",
        "create table child () inherits (parent)",
        "reset search_path",
    )
    return db


def test_track_schema(crm: Connection) -> None:
    tracked = {
        one.split(".")[1]
        for (one,) in rows(crm, "select t::text from agentundo.track_schema('\"My CRM\"') t")
    }
    assert tracked == {"a", "b", "m", "u", "parent", "child"}
    assert (
        value(
            crm,
            "select count(*) from agentundo.tracked where health = 'ok'"
            " or health like '%%key%%' or health like '%%unlogged%%'",
        )
        == 6
    )
    names = [f'"My CRM".{name}' for name in sorted(tracked)]
    assert_undoable(crm, names, *(f"insert into {name} values (1)" for name in names))


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_tables_created_later_are_tracked_too(crm: Connection, capture: str) -> None:
    run(
        crm,
        f"select agentundo.track_schema('\"My CRM\"', '{capture}')",
        'set search_path = "My CRM"',
        "create table later (id int primary key)",
        "create table copied as select 1 as id",
        "select 2 as id into filled",
        "create table heir () inherits (later)",
        "create table tree (id int) partition by list (id)",
        "create table tree_1 partition of tree for values in (1)",
        "create temp table mine (id int)",
        "create view seen as select * from later",
        "create table public.elsewhere (id int)",
        "create table public.moved (id int primary key); alter table public.moved"
        ' set schema "My CRM"',
        "reset search_path",
    )
    new = rows(
        crm,
        "select split_part(relation, '.', 2), capture from agentundo.tracked"
        " where split_part(relation, '.', 2) = any"
        " ('{later,copied,filled,heir,tree,tree_1,mine,seen,elsewhere,moved}') order by 1",
    )
    assert new == [
        (name, capture) for name in ("copied", "filled", "heir", "later", "moved", "tree")
    ]
    names = [f'"My CRM".{name}' for name, _ in new]
    assert_undoable(crm, names, *(f"insert into {name} values (1)" for name in names))


def test_tables_created_later_without_event_triggers_are_errors(crm: Connection) -> None:
    run(
        crm,
        "select agentundo.track_schema('\"My CRM\"')",
        "drop event trigger agentundo_ddl",
        "drop event trigger agentundo_drop",
        'create table "My CRM".later (id int primary key)',
    )
    found = rows(crm, "select object, hint from agentundo.check() where severity = 'error'")
    assert [one for one, _ in found] == ['"My CRM".later']
    run(crm, found[0][1].split('"', 1)[1].rsplit('"', 1)[0])
    assert rows(crm, "select object from agentundo.check() where severity = 'error'") == []
    # or all of them at once, in the mode of their schema; what was untracked stays so
    run(
        crm,
        "select agentundo.untrack('\"My CRM\".later')",
        'create table "My CRM".last (id int primary key)',
        "create table elsewhere (id int primary key)",
    )
    synced = {one for (one,) in rows(crm, "select agentundo.sync()::text")}
    assert '"My CRM".last' in synced
    assert not synced & {"elsewhere", '"My CRM".later'}
    assert rows(crm, "select object from agentundo.check() where severity = 'error'") == []


def test_table_that_cannot_be_tracked_is_no_error_of_its_ddl(
    crm: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """DDL of a user never fails because of us; that the table is not tracked is said."""
    run(crm, "select agentundo.track_schema('\"My CRM\"')")
    other = make_role()
    run(crm, f'grant all on schema "My CRM" to {other}')
    conn = connect(user=other)
    notices: list[str] = []
    conn.add_notice_handler(lambda diag: notices.append(diag.message_primary or ""))
    run(conn, 'create table "My CRM".foreigners (id int primary key)')
    tracked = value(crm, "select count(*) from agentundo.tracked where relation like '%foreigners'")
    if not tracked:
        assert any("not tracked" in notice for notice in notices)
        assert rows(crm, "select object from agentundo.check() where severity = 'error'") == [
            ('"My CRM".foreigners',)
        ]


def test_ddl_of_an_ordinary_owner_is_followed(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """The event triggers work with our rights, whoever alters the table."""
    owner = make_role()
    run(db, f"grant create on schema public to {owner}")
    conn = connect(user=owner)
    run(conn, "create table mine (id int primary key, v int)", "insert into mine values (1, 1)")
    run(db, "select agentundo.track('mine')")
    run(
        conn,
        "alter table mine add w int",
        "alter table mine drop v",
        "alter table mine rename to ours",
    )
    before = snapshot(db, "ours")
    write(conn, "update ours set w = 5", "delete from ours")
    assert_goes_back(db, before)
