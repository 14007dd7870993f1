"""Code of a table's owner runs while rows go back: it finds no rights but those of the worker."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import Connect, Connection
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert
from tests.support.undoing import everything, track

pytestmark = pytest.mark.core


def make_owned_table(conn: Connection, owner: str) -> None:
    """Let an ordinary role own a schema, a table and functions that tell who runs them."""
    conn.execute(
        f"create schema hers authorization {owner}; set role {owner};"
        "create function hers.probe(text) returns boolean immutable language plpgsql as $$"
        " begin raise warning 'probe: % superuser=%', current_user,"
        " (select rolsuper from pg_catalog.pg_roles where rolname = current_user);"
        " return true; end $$;"
        "create function hers.probe_text(text) returns text immutable language plpgsql as $$"
        " begin perform hers.probe($1); return $1; end $$;"
        "create domain hers.checked as text check (hers.probe(value));"
        "create table hers.t (id int primary key, v text check (hers.probe(v)), d hers.checked,"
        " g text generated always as (hers.probe_text(v)) stored, w text default"
        " hers.probe_text(''));"
        "create unique index on hers.t (hers.probe_text(v || id)) where hers.probe(d);"
        "create function hers.on_write() returns trigger language plpgsql as $$"
        " begin perform hers.probe('trigger'); return new; end $$;"
        "create trigger w before insert or update on hers.t for each row"
        " execute function hers.on_write();"
        "insert into hers.t (id, v, d) values (1, 'a', 'a'), (2, 'b', 'b'); reset role".encode()
    )


def probes(conn: Connection, notices: list[str]) -> None:
    conn.add_notice_handler(lambda note: notices.append(str(note.message_primary)))


@pytest.mark.parametrize("rule", ["silence", "fire"])
def test_restoring_never_runs_an_owners_function_as_superuser(
    db: Connection, connect: Connect, make_role: Any, rule: str
) -> None:
    """A superuser reverts, yet the table owner's code finds no superuser's rights."""
    owner = make_role()
    make_owned_table(db, owner)
    track(db, "hers.t")
    db.execute("select agentundo.set_trigger('hers.t', 'w', %s)", [rule])
    call = "call"
    writer = connect(user=owner)
    with writer.transaction():
        writer.execute("set local agent.invocation = 'call'")
        writer.execute(
            "update hers.t set v = 'x', d = 'y' where id = 1; delete from hers.t where id = 2;"
        )
        writer.execute("insert into hers.t (id, v, d) values (3, 'c', 'c')")
    heard: list[str] = []
    probes(db, heard)
    plan(db, call)
    assert revert(db, call).status == "reverted"
    assert redo(db, call).status == "reverted"
    asked = [message for message in heard if message.startswith("probe:")]
    assert asked, "the owner's functions were not called: the test shows nothing"
    assert {message.split()[-1] for message in asked} == {"superuser=f"}


def test_other_peoples_code_never_runs_as_the_owner_of_our_functions(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    """Everything that runs code of a table owner's: it must find nothing of ours to change."""
    owner, operator = make_role(), make_role("superuser")
    db.execute(f"create schema hers authorization {owner}; grant create on schema hers to public")
    hand = connect(user=owner)
    hand.execute(
        "set search_path = hers;"
        "create function hers.harmless(anyelement) returns boolean immutable language plpgsql as $$"
        " begin if current_user = 'agentundo_owner' then raise 'ran as %', current_user; end if;"
        " return true; end $$;"
        "create function hers.same(anyelement) returns anyelement immutable language sql as"
        " 'select case when hers.harmless($1) then $1 end';"
        "create domain hers.code as text check (harmless(value));"
        "create domain hers.count as int check (harmless(value));"
        "create type hers.mood as enum ('sad', 'glad');"
        "create type hers.pair as (a int, b text);"
        "create function hers.mood_text(mood) returns text language sql immutable as"
        " 'select enum_out(hers.same($1))::text';"
        "create function hers.text_mood(text) returns mood language plpgsql immutable as"
        " $$ begin return enum_first(hers.same(null::hers.mood)); end $$;"
        "create function hers.pair_text(pair) returns text language sql immutable as"
        " 'select hers.same($1.b)';"
        "create function hers.counts(hers.count[]) returns int[] language plpgsql immutable as"
        " $$ begin if hers.harmless(1) then return string_to_array(array_to_string($1, ','), ',');"
        " end if; end $$;"
        "create cast (mood as text) with function mood_text(mood) as assignment;"
        "create cast (text as mood) with function text_mood(text) as assignment;"
        "create cast (pair as text) with function pair_text(pair) as implicit;"
        "create cast (hers.count[] as int[]) with function counts(hers.count[]) as implicit;"
        "create table hers.t (id code, feeling mood, n int check (harmless(n)),"
        " c hers.count, cs hers.count[], p pair, ps pair[], ms mood[],"
        " twice code generated always as ((n * 2)::text) stored, primary key (id, feeling));"
        "create index on hers.t (same(n));"
        "create unique index on hers.t (same(c)) where harmless(c)"
    )
    track(db, "hers.t")
    rows = (
        "insert into hers.t values ('{0}', 'sad', 1, {1}, '{{1,2}}', '(1,b)', '{{\"(1,b)\"}}',"
        " '{{sad,glad}}')"
    )
    for key, count in (("a", 1), ("b", 2), ("c", 3)):
        hand.execute(rows.format(key, count).encode())
    before = everything(db)
    hand.execute("set agent.invocation = 'call'")
    hand.execute("update hers.t set feeling = 'glad', n = 2 where id = 'a'")
    hand.execute("update hers.t set p = '(2,c)', cs = '{3}', ms = '{}' where id = 'b'")
    hand.execute("delete from hers.t where id = 'c'")
    hand.execute(rows.format("d", 4).encode())
    hand.execute("reset agent.invocation")
    hand.execute("alter table hers.t add column late code default hers.same('x'::text)")
    after = everything(db)
    boss = connect(user=operator)
    for mode in ("abort", "skip"):
        rows_planned = plan(boss, "call", on_conflict=mode)
        assert {row.status for row in rows_planned} == {"ok"}, rows_planned
        boss.execute("select * from agentundo.diff('call')").fetchall()
        key = '{"id": "a", "feeling": "glad"}'
        boss.execute("select * from agentundo.row_history('hers.t', %s)", [key]).fetchall()
        assert boss.execute("select agentundo.row_version('hers.t', %s)", [key]).fetchone() != (
            None,
        )
        assert revert(boss, "call", on_conflict=mode).status == "reverted"
        assert redo(boss, "call").status == "reverted"
    assert_same(after, everything(db))
    assert revert(db, "call").status == "reverted"
    hand.execute("alter table hers.t drop column late")
    assert_same(before, everything(db))
    erased = db.execute(
        "select (agentundo.erase('hers.t', %s, 'asked for')).images",
        ['{"id": "a", "feeling": "glad"}'],
    ).fetchone()
    assert erased is not None
    assert erased[0] > 0


def _ours(conn: Connection) -> dict[str, list[str]]:
    """Return every row of our own tables, and our functions with their owners and grants."""
    tables = conn.execute(
        "select oid::regclass::text from pg_class where relkind = 'r'"
        " and relnamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)"
    ).fetchall()
    kept = {
        table: sorted(str(row) for row in conn.execute(f"select t.* from {table} t".encode()))
        for (table,) in tables
    }
    functions = conn.execute(
        "select oid::regprocedure::text, proowner, prosrc, prosecdef, proacl::text from pg_proc"
        " where pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)"
    )
    return {**kept, "functions": sorted(str(row) for row in functions)}


@pytest.mark.parametrize(
    "deed",
    [
        "create or replace function agentundo.version() returns text language sql as 'select 1'",
        "alter function agentundo._operator() security invoker",
        "insert into agentundo._scope_owner values ('acme', 'mallory')",
        "delete from agentundo._change",
        "update agentundo._invocation set scope = 'acme'",
        "insert into agentundo_history.deals_1 (_change, _image) values (1, 'O')",
        "drop table agentundo_history.deals_1",
        "create table agentundo.mine ()",
        "select agentundo_history._deputy_of_mine('grant', 'hers.deals', null, null)",
        "set local role agentundo_owner",
    ],
)
def test_a_constraint_cannot_reach_for_what_is_ours(
    db: Connection, connect: Connect, make_role: Any, deed: str
) -> None:
    owner, operator = make_role(), make_role("superuser")
    db.execute(f"create schema hers authorization {owner}".encode())
    hand = connect(user=owner)
    hand.execute("create table hers.deals (id int primary key, stage text)")
    hand.execute("insert into hers.deals values (1, 'new'), (2, 'won')")
    track(db, "hers.deals")
    deputy, history = db.execute(
        "select proname, (select history::text from agentundo._tracked) from pg_proc"
        " where pronamespace = 'agentundo_history'::regnamespace"
    ).fetchone() or ("", "")
    deed = deed.replace("_deputy_of_mine", deputy).replace("agentundo_history.deals_1", history)
    hand.execute(
        sql.SQL(
            "create function hers.check_in(text) returns boolean language plpgsql as $$ begin"
            " if current_user <> {owner} then execute {deed}; end if; return true; end $$;"
            "alter table hers.deals add check (hers.check_in(stage))"
        ).format(owner=owner, deed=deed)
    )
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute("update hers.deals set stage = 'lost'")
    ours, changed = _ours(db), everything(db)
    with pytest.raises(psycopg.DatabaseError) as refused:
        revert(connect(user=operator), "call")
    assert refused.value.sqlstate == "UN001"
    assert re.search("permission denied|must be owner|cannot set parameter", str(refused.value))
    assert_same(changed, everything(db))
    assert _ours(db) == ours


def test_a_check_function_runs_with_our_rights_and_its_owners_path(
    db: Connection, connect: Connect, make_role: Any
) -> None:
    """It never runs as its owner, let alone as a superuser: what it needs has to be granted."""
    owner, operator = make_role(), make_role(member_of="agentundo_operator")
    db.execute(
        f"create schema hers authorization {owner}; set role {owner}; set search_path = hers;"
        "create table stages (name text primary key); insert into stages values ('new'), ('won');"
        "create function known(text) returns boolean stable language sql as"
        " 'select exists (select from stages where name = $1)';"
        "create table deals (id int primary key, stage text check (known(stage)));"
        "insert into deals values (1, 'new'), (2, 'won'); reset search_path; reset role".encode()
    )
    track(db, "hers.deals")
    before = everything(db)
    writer = connect(user=owner)
    with writer.transaction():
        writer.execute("set local search_path = hers; set local agent.invocation = 'call'")
        writer.execute(
            "update deals set stage = 'won' where id = 1; delete from deals where id = 2"
        )
    changed = everything(db)
    hand = connect(user=operator)
    # A search_path of the caller's does not count: it could bring in the caller's functions.
    hand.execute("set search_path = hers")
    with pytest.raises(psycopg.DatabaseError) as refused:
        revert(hand, "call")
    assert refused.value.sqlstate == "UN001"
    assert "grant that role what the function needs" in (refused.value.diag.message_hint or "")
    assert_same(changed, everything(db))
    db.execute(f"alter role {owner} set search_path = hers".encode())
    db.execute("grant select on hers.stages to agentundo_worker")
    assert revert(hand, "call").status == "reverted"
    assert_same(before, everything(db))
