"""Tables of ordinary roles: who has them tracked, who takes back what was written there."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same
from tests.support.undo import redo, refused, revert
from tests.support.undoing import everything, track, triggers, write

pytestmark = pytest.mark.core


def test_an_operator_reverts_on_tables_of_an_ordinary_role(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    """Neither is a superuser, none is a member of the other, and a trigger has to be silenced."""
    owner, operator = make_role(), make_role(member_of="agentundo_operator")
    db.execute(
        f"create schema hers authorization {owner}; set role {owner};"
        "create table hers.p (id int primary key, v int, at bigint);"
        "create table hers.c (id int primary key, p int references hers.p on delete cascade);"
        "create table hers.parts (id int primary key, v int) partition by range (id);"
        "create table hers.parts_1 partition of hers.parts for values from (0) to (10);"
        "create table hers.bag (v int);"
        "create function hers.touch() returns trigger language plpgsql as"
        " $$ begin new.at := 77; return new; end $$;"
        "create trigger touch before insert or update on hers.p for each row"
        " execute function hers.touch();"
        "alter table hers.p enable always trigger touch;"
        "insert into hers.p values (1, 1), (2, 2); insert into hers.c values (1, 1), (2, 2);"
        "insert into hers.parts values (1, 1), (2, 2); insert into hers.bag values (1), (1);"
        "reset role".encode()
    )
    track(db, "hers.p", "hers.c", "hers.parts", "hers.bag")
    before, armed = everything(db), triggers(db)
    writer = connect(user=owner)
    with writer.transaction():
        writer.execute("set local agent.invocation = 'call'")
        writer.execute("update hers.p set v = 9; delete from hers.p where id = 1")
        writer.execute("update hers.parts set v = 9; delete from hers.parts_1 where id = 2")
        writer.execute("delete from hers.bag; insert into hers.bag values (5)")
    after = everything(db)
    hand = connect(user=operator)
    for act, state in ((revert, before), (redo, after), (revert, before)):
        assert act(hand, "call").status == "reverted"
        assert_same(state, everything(db))
        assert triggers(db) == armed
    owned = db.execute(
        "select count(*) from pg_class c where relnamespace in ('agentundo'::regnamespace,"
        " 'agentundo_history'::regnamespace) and pg_get_userbyid(relowner) <> 'agentundo_owner'"
    ).fetchone()
    assert owned == (0,)


def test_a_table_owner_tracks_their_own_table(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    owner = make_role(member_of="agentundo_operator")
    db.execute(f"create schema hers authorization {owner}".encode())
    hand = connect(user=owner)
    hand.execute(
        "create table hers.t (id int primary key, v int); insert into hers.t values (1, 1)"
    )
    track(hand, "hers.t")
    hand.execute("begin; set local agent.invocation = 'call'; update hers.t set v = 2; commit")
    assert revert(hand, "call").status == "reverted"
    assert hand.execute("select * from hers.t").fetchall() == [(1, 1)]


def test_row_level_security_of_an_ordinary_owner_hides_nothing_from_capture(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    owner, operator = make_role(), make_role("bypassrls", member_of="agentundo_operator")
    db.execute(
        f"create schema hers authorization {owner}; set role {owner};"
        "create table hers.t (id int primary key, v int); insert into hers.t values (1, 1), (2, 2);"
        "alter table hers.t enable row level security; alter table hers.t force row level security;"
        "create policy own on hers.t using (id = 1 or current_setting('hers.every', true) = 'on');"
        "reset role".encode()
    )
    track(db, "hers.t")
    before = everything(db)
    writer = connect(user=owner)
    with writer.transaction():
        writer.execute("set local agent.invocation = 'call'; set local hers.every = 'on'")
        writer.execute("update hers.t set v = 9; delete from hers.t where id = 2")
    assert revert(connect(user=operator), "call").status == "reverted"
    assert_same(before, everything(db))


def test_nobody_without_a_right_to_it_reverts(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    track(db, "t")
    call = write(db, "update t set v = 2")
    state = everything(db)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        revert(connect(user=make_role()), call)
    with pytest.raises(psycopg.Error):
        revert(connect(user=make_role(member_of="agentundo_agent")), call)
    with pytest.raises(psycopg.Error):
        revert(connect(user=make_role(member_of="agentundo_auditor")), call)
    with refused("UN003"):
        revert(connect(user=make_role(member_of="agentundo_app")), call)
    assert_same(state, everything(db))
