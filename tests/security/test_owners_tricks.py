"""What a table's owner might try: functions in indexes, types, policies, altered workers."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import Connect, Connection
from tests.security.conftest import proof
from tests.support.state import assert_same
from tests.support.undo import plan, refused, revert
from tests.support.undoing import everything, track, write

pytestmark = pytest.mark.core


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
    assert proof(db) == {"agentundo_worker"}


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
    assert proof(db) <= {"agentundo_worker"}
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
        " and has_function_privilege(%s, oid, 'execute')"
        # It refuses tagged writes, and does nothing else: whoever makes a partition makes its copy.
        " and proname <> '_unknown_partition'",
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
    assert proof(db) == set()
    assert revert(db, "call").counts == (0, 0, 2, 0, 0)
    assert {**everything(db), "hers.proof": before["hers.proof"]} == before
    assert proof(db) <= {"agentundo_worker"}


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
    assert proof(db) == {mallory}
    before = everything(db)
    hand.execute("alter function hers.may(text, text, text) security invoker")
    with refused("UN003") as caught:
        revert(app, second, reverted_by="dana")
    assert "would run with the rights of agentundo_worker" in caught.refusal.message
    with refused("22023") as caught:
        db.execute("select agentundo.set_policy('may_revert', 'hers.may(text, text, text)')")
    assert "would run with the rights of agentundo_worker" in caught.refusal.message
    assert caught.refusal.hint.startswith('Run "alter function hers.may(text,text,text) security')
    assert proof(db) == {mallory}
    assert_same(before, everything(db))


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
    assert proof(db) == set()
    assert revert(db, "call").counts == (0, 0, 50, 0, 0)
