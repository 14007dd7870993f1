"""An ordinary owner goes on changing their tables after somebody else has them tracked.

Neither a superuser nor a member of any role of ours: what they could do before, they can do now.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same
from tests.support.undo import revert, rows
from tests.support.undoing import everything

pytestmark = pytest.mark.core

_MAKE = """
create table hers.t (id int primary key, v int, w text);
create table hers.c (id int primary key, t int references hers.t on delete cascade);
create table hers.p (id int primary key, v int) partition by range (id);
create table hers.p_1 partition of hers.p for values from (0) to (10);
create table hers.p_2 (id int primary key, v int);
alter table hers.p attach partition hers.p_2 for values from (10) to (20);
create table hers.parent (id int primary key, v int);
create type hers.mood as enum ('sad', 'glad');
create table hers.e (id int primary key, m hers.mood);
insert into hers.t values (1, 1, 'a'), (2, 2, 'b'); insert into hers.c values (1, 1);
insert into hers.p values (1, 1), (11, 1); insert into hers.parent values (1, 1);
insert into hers.e values (1, 'sad')
"""
#: What she does, and a write that has to be captured then.
DDL = {
    "alter table hers.t add x int default 5": "update hers.t set x = 6",
    "alter table hers.t drop column w": "delete from hers.t",
    "alter table hers.t rename w to z": "update hers.t set z = 'x'",
    "alter table hers.t alter v type bigint": "update hers.t set v = 5000000000",
    "alter table hers.t rename to u": "update hers.u set v = 9",
    "alter schema hers rename to hers_now": "update hers_now.t set v = 9",
    "alter table hers.t set schema more": "update more.t set v = 9",
    "alter table hers.c drop constraint c_t_fkey": "delete from hers.t",
    "alter table hers.t drop constraint t_pkey cascade": "update hers.t set v = 9",
    "alter table hers.t add check (v > 0), add unique (w)": "update hers.t set v = 9",
    "create index concurrently on hers.t (v)": "update hers.t set v = 9",
    "create unique index on hers.t (v)": "update hers.t set v = 9 where id = 1",
    "alter table hers.p detach partition hers.p_2": "update hers.p set v = 9",
    "alter table hers.p detach partition hers.p_2 concurrently": "update hers.p set v = 9",
    "drop table hers.p_1": "update hers.p set v = 9",
    "create table hers.heir (x int) inherits (hers.parent)": "insert into hers.heir values (7)",
    "create table hers.copied (like hers.t including all)": "update hers.t set v = 9",
    "drop table hers.c": "delete from hers.t",
    "alter table hers.t disable trigger user; alter table hers.t enable trigger user": (
        "update hers.t set v = 9"
    ),
    "truncate hers.t cascade": "insert into hers.t values (5)",
    "cluster hers.t using t_pkey": "update hers.t set v = 9",
    "alter type hers.mood rename value 'sad' to 'blue'": "update hers.e set m = 'glad'",
    "alter type hers.mood add value 'odd'": "delete from hers.e",
    "alter table hers.e alter m type text": "update hers.e set m = 'any'",
    "alter table hers.t enable row level security": "update hers.t set v = 9",
}


@pytest.mark.parametrize("ddl", DDL)
def test_ddl_of_an_ordinary_owner_goes_through_and_is_followed(
    db: Connection, connect: Connect, make_role: MakeRole, ddl: str
) -> None:
    owner = make_role()
    db.execute(
        f"create schema hers authorization {owner}; create schema more authorization {owner};"
        f"do $$ begin execute format('grant create on database %I to {owner}', current_database());"
        " end $$".encode()
    )
    hand = connect(user=owner)
    hand.execute(_MAKE.encode())
    tables = "{hers.t,hers.c,hers.p,hers.parent,hers.e}"
    db.execute("select agentundo.track(t) from unnest(%s::regclass[]) t", [tables])
    for statement in ddl.split("; "):
        hand.execute(statement.encode())
    assert rows(db, "select object, problem from agentundo.check() where severity = 'error'") == []
    before = everything(db)
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute(DDL[ddl].encode())
    assert everything(db) != before
    assert revert(db, "call").status == "reverted"
    assert_same(before, everything(db))
