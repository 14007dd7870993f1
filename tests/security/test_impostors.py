"""Names that somebody has put in the way: forged deputies, operators, temporary tables."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import Connect, Connection
from tests.security.conftest import proof
from tests.support.undo import refused, revert
from tests.support.undoing import track

pytestmark = pytest.mark.core


def test_a_forged_deputy_is_neither_used_nor_kept(
    db: Connection, connect: Connect, mallory: str, make_role: Any
) -> None:
    """An operator who could create it in advance would keep the right to call the real one."""
    operator = make_role(member_of="agentundo_operator")
    hand = connect(user=operator)
    hand.execute("select agentundo._admit(%s, true)", [operator])
    name = db.execute("select '_deputy_' || left(agentundo._digest(%s), 12)", [mallory]).fetchone()
    assert name is not None
    signature = f"agentundo_history.{name[0]}(text, regclass, text, text)"
    hand.execute(
        f"create function {signature} returns void language sql as 'select';"
        f"grant execute on function {signature} to agentundo_operator".encode()
    )
    connect(user=mallory).execute("create table hers.t (id int primary key)")
    track(db, "hers.t")
    guests = db.execute(
        "select a.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) a"
        " where p.oid = %s::regprocedure and a.grantee <> p.proowner",
        [signature],
    ).fetchall()
    assert guests == [("agentundo_owner",)]
    found = db.execute("select object, problem from agentundo.check() where severity = 'error'")
    assert [problem for _, problem in found if operator in problem] != []


def test_operators_in_the_search_path_of_a_superuser_are_not_called(
    db: Connection, mallory: str
) -> None:
    db.execute(
        sql.SQL(
            "create table public.parent (id int primary key);"
            "create table public.child () inherits (public.parent);"
            "set role {role}; create function hers.same(oid, regclass) returns boolean"
            " language plpgsql as $$ begin perform hers.note(); return $1 = $2::oid; end $$;"
            "create operator hers.= (leftarg = oid, rightarg = regclass, function = hers.same);"
            "create function hers.same(oid, regnamespace) returns boolean language plpgsql as"
            " $$ begin perform hers.note(); return $1 = $2::oid; end $$;"
            "create operator hers.= (leftarg = oid, rightarg = regnamespace, function = hers.same);"
            "reset role; set search_path = hers, public, pg_catalog"
        ).format(role=sql.Identifier(mallory))
    )
    db.execute("select agentundo.track('public.parent'), agentundo.track_schema('public')")
    db.execute("select agentundo.untrack('public.child'), agentundo.sync()")
    db.execute("reset search_path")
    assert proof(db) == set()


def test_a_deputy_is_called_by_its_very_types(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    """Another function of its name and text beside it must not lend its good looks to a third."""
    operator = make_role(member_of="agentundo_operator")
    db.execute(
        sql.SQL(
            "create schema hers authorization {role}; create table public.proof (who text);"
            "grant insert on public.proof to public"
        ).format(role=sql.Identifier(operator))
    )
    hand = connect(user=operator)
    hand.execute("create table hers.t (id int primary key)")
    track(hand, "hers.t")
    hand.execute("select agentundo._admit(%s, true)", [operator])
    name, source = db.execute(
        "select proname, prosrc from pg_proc where pronamespace = 'agentundo_history'::regnamespace"
    ).fetchone() or ("", "")
    for signature, body, options in (
        ("task text, relation oid, argument text, state text", source, "security definer"),
        (
            "task text, relation regclass, argument text, state text",
            "begin insert into public.proof values (current_user); end",
            "security invoker",
        ),
    ):
        hand.execute(
            sql.SQL(
                "create or replace function agentundo_history.{name}({signature}) returns void"
                " language plpgsql {options} set search_path = pg_catalog, pg_temp"
                " set quote_all_identifiers = off as {body}"
            ).format(
                name=sql.Identifier(name),
                signature=sql.SQL(signature),
                options=sql.SQL(options),
                body=body,
            )
        )
    hand.execute("alter table hers.t disable trigger agentundo_insert")
    with pytest.raises(psycopg.DatabaseError) as refused:
        db.execute("select agentundo.sync()")
    assert refused.value.sqlstate == "UN003"
    assert db.execute("select * from public.proof").fetchall() == []


def test_whoever_plans_cannot_put_a_temporary_table_in_an_owners_way(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    """What a constraint's function names without a schema is never the caller's."""
    owner, app = make_role(), make_role(member_of="agentundo_app")
    db.execute(
        f"create schema s authorization {owner}; alter role {owner} set search_path = s;"
        f"grant usage on schema s to agentundo_worker, {app}; set role {owner};"
        "create table s.lim as select 9 as most; grant select on s.lim to agentundo_worker;"
        "create function s.ok(int) returns boolean language plpgsql as"
        " $$ begin return $1 <= most from lim; end $$;"
        "create table s.t (id int primary key, v int, check (s.ok(v))); reset role".encode()
    )
    track(db, "s.t")
    with db.transaction():
        db.execute(
            "select agentundo.tag('call', on_behalf_of => 'dana'); set local search_path = s"
        )
        db.execute("insert into t values (1, 1); update t set v = 2")
    with db.transaction():
        db.execute(
            "select agentundo.tag('more', on_behalf_of => 'dana'); set local search_path = s"
        )
        db.execute("update t set v = 3")
    hand = connect(user=app)
    hand.execute(
        "create temp table loot (who text); grant insert on loot to public;"
        "create function pg_temp.evil() returns int language plpgsql as"
        " $$ begin insert into pg_temp.loot select current_user; return 100; end $$;"
        "create temp view lim as select pg_temp.evil() as most; grant select on lim to public;"
        "grant execute on function pg_temp.evil() to public"
    )
    for call in ("more", "call"):
        hand.execute("select * from agentundo.plan(%s::text)", [call])
        revert(hand, call, reverted_by="dana")
    assert hand.execute("select who from loot").fetchall() == []
    assert db.execute("table s.t").fetchall() == []


def test_an_agent_records_its_own_calls_under_its_own_role(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    bot = make_role(member_of="agentundo_agent")
    hand = connect(user=bot)
    with refused("UN003") as caught:
        hand.execute("select agentundo.record_invocation('x', role => 'postgres')")
    assert "an agent records its own calls, not those of postgres" in caught.message
    assert caught.hint == "Leave role out."
    hand.execute("select agentundo.record_invocation('y')")
    found = db.execute("select id, role from agentundo.invocations").fetchall()
    assert found == [("y", bot)]


@pytest.mark.parametrize("other", ["pg_catalog.pg_authid", "hers.t"])
def test_a_deputy_acts_for_nothing_but_its_owners_tables(
    db: Connection, connect: Connect, mallory: str, other: str
) -> None:
    """A superuser's least of all: whoever gets at our own role must not get at the catalog."""
    connect(user=mallory).execute("create table hers.t (id int primary key)")
    db.execute("create table mine (id int primary key)")
    track(db, "mine")
    found = db.execute("select agentundo._deputy('mine'::regclass)::text").fetchone()
    assert found is not None
    call = f"select {found[0]}('grant select', '{other}'::regclass, null, null)"
    with refused("UN003") as caught, db.transaction():
        db.execute("set local role agentundo_owner")
        db.execute(call.encode())
    assert " acts for no such table: " in caught.message
