"""Whose rights count: other people's code finds nothing of ours, owners keep what is theirs."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same
from tests.support.undo import plan, redo, refused, revert
from tests.support.undoing import everything, track, triggers, write

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


# What a table owner might try ---------------------------------------------------------------------


@pytest.fixture
def mallory(db: Connection, make_role: Any) -> str:
    """Return a role that owns a schema and notes in `hers.proof` as whom its code has run."""
    role: str = make_role()
    db.execute(
        sql.SQL(
            "create schema hers authorization {role}; grant usage on schema hers to public;"
            "set role {role}; create table hers.proof (who text);"
            "grant insert on hers.proof to public;"
            "create function hers.note() returns void language sql volatile as"
            " 'insert into hers.proof values (current_user)';"
            "create function hers.one(int) returns int immutable language plpgsql as $$ begin"
            " if current_user like 'agentundo%' then perform hers.note(); end if; return 1; end $$;"
            "reset role"
        ).format(role=sql.Identifier(role))
    )
    return role


def _proof(db: Connection) -> set[str]:
    return {who for (who,) in db.execute("select who from hers.proof")}


def test_planning_a_statement_runs_constants_of_indexes_as_the_worker_only(
    db: Connection, connect: Connect, mallory: str
) -> None:
    """The planner calls immutable functions in index expressions, whether or not a row is read."""
    hand = connect(user=mallory)
    hand.execute(
        "create table hers.t (id int primary key, x int); insert into hers.t values (1, 1), (2, 2);"
        "create table hers.par (id int primary key, x int); create table hers.chi ()"
        " inherits (hers.par); insert into hers.par values (1, 1); insert into hers.chi values"
        " (2, 2); create index on hers.t ((x + hers.one(1)));"
        "create index on hers.par ((x + hers.one(1)));"
        "create index on hers.chi (id, (hers.one(1)));"
        "create statistics hers.more on (x + hers.one(1)), id from hers.t"
    )
    track(db, "hers.t", "hers.par")
    key = '{"id": 1}'
    steps = [
        ("mallory", "truncate hers.t"),
        ("mallory", "insert into hers.t values (1, 1), (2, 2)"),
        ("mallory", "update hers.par set x = 5; delete from hers.chi"),
        ("mallory", "update hers.t set x = x + 1"),
        ("boss", "select agentundo.plan('call')"),
        ("boss", "select agentundo.plan('call', 'cascade', true)"),
        ("boss", "select agentundo.plan_summary(array['call'])"),
        ("boss", "select agentundo.diff('call')"),
        ("boss", f"select agentundo.row_history('hers.t', '{key}')"),
        ("boss", f"select agentundo.row_version('hers.t', '{key}')"),
        ("boss", "select agentundo.sync(); select agentundo.check()"),
        ("boss", "update hers.t set x = 77 where id = 1"),
        ("boss", "select agentundo.plan('call', 'abort', true)"),
        ("boss", "select agentundo.revert('call', 'skip', true)"),
        ("boss", "select agentundo.redo('call')"),
        ("boss", "select agentundo.undoable(); select * from agentundo.tracked"),
        ("boss", f"select agentundo.erase('hers.t', '{key}', 'asked for')"),
        ("boss", "select agentundo.purge(interval '0')"),
    ]
    for who, statement in steps:
        conn = connect(user=mallory) if who == "mallory" else connect()
        if who == "mallory":
            conn.execute("set agent.invocation = 'call'")
        conn.execute(statement.encode())
        conn.close()
    assert _proof(db) == {"agentundo_worker"}


@pytest.mark.parametrize(
    "deed",
    [
        "alter function agentundo.{function} security invoker",
        "grant execute on function agentundo.{function} to public",
        "alter function agentundo.{function} set search_path = hers",
        "alter function agentundo.{function} strict",
    ],
)
@pytest.mark.parametrize("function", ["_look", "_act"])
def test_a_worker_that_was_altered_works_no_more(
    db: Connection, connect: Connect, mallory: str, function: str, deed: str
) -> None:
    """They belong to the role as which other people's code runs: so they look at themselves."""
    hand = connect(user=mallory)
    hand.execute(
        sql.SQL(
            "create function hers.fiddle(int) returns boolean language plpgsql as $$ begin"
            " perform hers.one(1); if current_user = 'agentundo_worker' then execute {deed};"
            " end if; return true; end $$;"
            "create table hers.t (id int primary key, x int check (hers.fiddle(x)));"
            "insert into hers.t values (1, 1)"
        ).format(deed=deed.format(function=function))
    )
    track(db, "hers.t")
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute("update hers.t set x = 2")
    for act in (plan, revert, plan, revert):
        try:
            act(connect(), "call")
        except psycopg.DatabaseError as error:
            assert error.sqlstate == "UN012"  # noqa: PT017
            assert "somebody has altered the function" in str(error)  # noqa: PT017
    assert _proof(db) <= {"agentundo_worker"}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connect(user=mallory).execute("select agentundo._act('select array[1::bigint]')")


def test_the_functions_of_triggers_are_only_lent(
    db: Connection, connect: Connect, mallory: str
) -> None:
    """On a table of another shape they would call casts of the owner's with our rights."""
    hand = connect(user=mallory)
    hand.execute("create table hers.t (id int primary key, x int)")
    track(db, "hers.t")
    functions = db.execute(
        "select oid::regprocedure::text from pg_proc where pronamespace = 'agentundo'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [mallory],
    ).fetchall()
    assert functions == []
    name = db.execute("select to_regproc('agentundo._capture_1')::text").fetchone()
    assert name == ("agentundo._capture_1",)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        hand.execute(
            "create table hers.other (id text, x int); create trigger z after insert on hers.other"
            " for each statement execute function agentundo._capture_1()"
        )
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'; insert into hers.t values (1, 1)")
    assert revert(db, "call").counts == (1, 0, 0, 0, 0)


def test_checks_of_fields_inside_arrays_of_domains_never_run_at_capture(
    db: Connection, connect: Connect, mallory: str
) -> None:
    hand = connect(user=mallory)
    hand.execute(
        "create domain hers.small as int check (hers.one(value) = 1);"
        "create type hers.pair as (a hers.small); create domain hers.pairs as hers.pair;"
        "create table hers.t (id int primary key, v hers.pairs[]);"
        "insert into hers.t values (1, array[row(1)::hers.pairs, null]), (2, null)"
    )
    track(db, "hers.t")
    before = everything(db)
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute("update hers.t set v = array[row(2)::hers.pairs]")
    assert _proof(db) == set()
    assert revert(db, "call").counts == (0, 0, 2, 0, 0)
    assert {**everything(db), "hers.proof": before["hers.proof"]} == before
    assert _proof(db) <= {"agentundo_worker"}


@pytest.mark.parametrize("side", ["agent", "revert"])
def test_null_in_an_array_stays_null_whatever_the_session_says(db: Connection, side: str) -> None:
    db.execute(
        "create domain tag as text; create type mood as enum ('sad', 'NULL');"
        "create table t (id int primary key, v tag[], m mood[]);"
        "insert into t values (1, array['a', null, 'NULL']::tag[], array['NULL', null]::mood[])"
    )
    track(db, "t")
    before = everything(db)
    if side == "agent":
        db.execute("set array_nulls = off")
    call = write(db, "update t set v = null, m = null")
    db.execute("set array_nulls = off" if side == "revert" else "reset array_nulls")
    assert revert(db, call).counts == (0, 0, 1, 0, 0)
    assert_same(before, everything(db))


def test_a_policy_runs_with_the_rights_of_its_owner_alone(
    db: Connection, connect: Connect, mallory: str, make_role: Any
) -> None:
    hand, app = connect(user=mallory), connect(user=make_role(member_of="agentundo_app"))
    hand.execute(
        "create function hers.may(text, text, text) returns boolean security definer"
        " language plpgsql as"
        " $$ begin perform hers.one(1); perform hers.note(); return true; end $$"
    )
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 1)")
    track(db, "t")
    db.execute("select agentundo.set_policy('may_revert', 'hers.may(text, text, text)')")
    first, second = (
        write(db, "update t set v = 2 where id = 1"),
        write(db, "delete from t where id = 2"),
    )
    assert revert(app, first, reverted_by="dana").status == "reverted"
    assert _proof(db) == {mallory}
    before = everything(db)
    hand.execute("alter function hers.may(text, text, text) security invoker")
    with refused("UN003") as caught:
        revert(app, second, reverted_by="dana")
    assert "would run with the rights of agentundo_worker" in caught.refusal.message
    with refused("22023") as caught:
        db.execute("select agentundo.set_policy('may_revert', 'hers.may(text, text, text)')")
    assert "would run with the rights of agentundo_worker" in caught.refusal.message
    assert caught.refusal.hint.startswith('Run "alter function hers.may(text,text,text) security')
    assert _proof(db) == {mallory}
    assert_same(before, everything(db))


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
    assert _proof(db) == set()


def test_analyze_of_history_calls_no_function_of_a_users_type(
    db: Connection, connect: Connect, mallory: str
) -> None:
    """It runs with the rights of the owner of history, and autovacuum does it unasked."""
    hand = connect(user=mallory)
    hand.execute(
        "create function hers.apart(a int, b int) returns float8 language plpgsql immutable as"
        " $$ begin return a - b + hers.one(1); end $$;"
        "create type hers.span as range (subtype = int4, subtype_diff = hers.apart);"
        "create table hers.t (id int primary key, x hers.span, xs hers.span[]);"
        "insert into hers.t select i, hers.span(i, i + 5), array[hers.span(i, i + 2)]"
        " from generate_series(1, 50) i"
    )
    track(db, "hers.t")
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute("update hers.t set x = hers.span(1, lower(x) + 9), xs = null")
    history = db.execute("select history::text from agentundo._tracked").fetchone()
    assert history is not None
    db.execute(f"analyze {history[0]}".encode())
    assert _proof(db) == set()
    assert revert(db, "call").counts == (0, 0, 50, 0, 0)


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


def _call(conn: Connection, statement: str) -> None:
    """Write as `agent` for dana in the scope `s`."""
    with conn.transaction():
        conn.execute("select agentundo.tag('agent', scope => 's', on_behalf_of => 'dana')")
        conn.execute(statement.encode())


def test_what_row_level_security_hides_is_not_shown_where_nothing_is_to_be_done(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """A row that the call made and somebody deleted: neither its values nor its key."""
    role = make_role(member_of="agentundo_app")
    db.execute(
        "create table t (id int primary key, tenant name, secret text);"
        "create policy own on t using (tenant = current_user);"
        f"grant select on t to {role}".encode()
    )
    track(db, "t", capture="all")
    _call(db, f"insert into t values (1, 'other', 'secret'), (2, '{role}', 'mine')")
    db.execute("delete from t where id = 1; alter table t enable row level security")
    app = connect(user=role)
    shown = [
        (row.status, row.reason, row.key, row.before, row.after, row.current)
        for row in plan(app, "agent", scope="s")
    ]
    assert sorted(shown, key=str) == [
        ("conflict", "not_visible", {}, None, None, None),
        ("done", None, {}, None, None, None),
    ]
    assert "secret" not in str(plan(app, "agent", scope="s"))


@pytest.mark.parametrize("complaint", ["cast", "function"])
def test_what_a_constraint_says_of_a_value_is_told_to_those_who_may_read_it(
    db: Connection, connect: Connect, make_role: MakeRole, complaint: str
) -> None:
    role = make_role(member_of="agentundo_app")
    db.execute(
        "create function fine(code text) returns boolean immutable language plpgsql as $$ begin"
        " if code !~ '^[0-9]+$' then raise exception 'no number: %', code; end if;"
        " return true; end $$;"
        "create table t (id int primary key, code text, v int);"
        "insert into t values (1, 'sesame', 1)"
    )
    db.execute(f"grant select (id, v) on t to {role}".encode())
    track(db, "t")
    _call(db, "update t set code = '12', v = 2")
    check = {"cast": "code::int > 0", "function": "fine(code)"}[complaint]
    db.execute(f"alter table t add constraint number check ({check}) not valid".encode())
    app = connect(user=role)
    code = {"cast": "22P02", "function": "P0001"}[complaint]
    (row,) = plan(app, "agent", scope="s")
    assert (row.reason, (row.detail or {})["constraint"]) == ("constraint", f"SQLSTATE {code}")
    with refused("UN001") as caught:
        revert(app, "agent", scope="s", reverted_by="dana")
    assert "sesame" not in f"{caught.refusal}"
    assert caught.conflicts[0]["constraint"] == f"SQLSTATE {code}"
    (row,) = plan(db, "agent")
    assert "sesame" in (row.detail or {})["constraint"]
