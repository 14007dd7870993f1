"""How rows are put back: with all checks on, all at once, and in any kind of transaction."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tests.conftest import Connect, Connection
from tests.support.servers import Server
from tests.support.standby import standby
from tests.support.state import assert_same
from tests.support.undo import plan, redo, refused, revert
from tests.support.undoing import (
    assert_keys_hold,
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
    triggers,
    write,
)

pytestmark = pytest.mark.core


def test_rows_go_back_under_the_ordinary_replication_role(db: Connection) -> None:
    """The replica role would switch off foreign keys and deferrable unique checks as well."""
    db.execute(
        "create table seen (role text); create table t (id int primary key, v int);"
        "insert into t values (1, 1);"
        "create function look() returns trigger language plpgsql as $$ begin"
        " insert into seen values (current_setting('session_replication_role')); return new;"
        " end $$;"
        "create trigger look before update on t for each row execute function look();"
        "alter table t enable always trigger look"
    )
    track(db, "t")
    db.execute("grant insert on seen to agentundo_worker")
    db.execute("select agentundo.set_trigger('t', 'look', 'fire')")
    call = write(db, "update t set v = 2")
    db.execute("truncate seen")
    assert revert(db, call).status == "reverted"
    assert db.execute("select * from seen").fetchall() == [("origin",)]
    assert db.execute("show session_replication_role").fetchone() == ("origin",)


def test_a_session_under_the_replica_role_breaks_nothing_by_reverting(db: Connection) -> None:
    """There neither foreign keys nor deferrable keys are checked: the revert looks for itself."""
    db.execute(
        "create table p (id int primary key deferrable, v int, u int unique deferrable);"
        "create table q (id int primary key);"
        " create table c (id int primary key, q int references q);"
        "insert into p values (1, 0, 1), (2, 0, 2); insert into q values (1), (2);"
        "insert into c values (1, 1), (2, 2)"
    )
    track(db, "p", "q", "c")
    inserted = write(db, "insert into q values (3)")
    orphaned = write(db, "delete from c where id = 2")
    renumbered = write(db, "update p set id = 7, u = 7 where id = 1")
    db.execute("insert into c values (3, 3); delete from q where id = 2")
    db.execute("insert into p values (1, 0, 1)")
    db.execute("set session_replication_role = replica")
    for call in (inserted, orphaned, renumbered):
        assert_refused(db, call)
        assert_refused(db, call, on_conflict="force", reverted_by="dana", reason="still not")
    swapped = write(db, "update p set id = 9 - id where id in (2, 7)")
    assert revert(db, swapped).status == "reverted"
    db.execute("set session_replication_role = origin")
    assert_keys_hold(db)
    assert db.execute("select count(*), count(distinct id) from p").fetchone() == (3, 3)


def test_a_revert_can_be_prepared_for_two_phase_commit(db: Connection) -> None:
    """No temporary table, and no NOTIFY when it is switched off."""
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    db.execute("update agentundo._setting set value = 'off' where name = 'notify'")
    track(db, "t")
    before = everything(db)
    call = write(
        db, "update t set v = 3", "update t set v = 4 where id = 1", "delete from t where id = 2"
    )
    after = everything(db)
    for act, state in ((revert, before), (redo, after), (revert, before)):
        db.execute("begin")
        assert act(db, call).status == "reverted"
        db.execute("prepare transaction 'undo'")
        db.execute("commit prepared 'undo'")
        assert_same(state, everything(db))
    db.execute("begin")
    redo(db, call)
    db.execute("prepare transaction 'undo'")
    db.execute("rollback prepared 'undo'")
    assert_same(before, everything(db))


def test_plans_and_histories_are_read_in_a_read_only_transaction(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v int); create table k (v int);"
        "insert into t values (1, 1), (2, 2); insert into k values (1), (1)"
    )
    track(db, "t", "k")
    call = write(db, "update t set v = 3", "update t set v = 4 where id = 1", "delete from k")
    db.execute("update t set v = 9 where id = 2")
    outside = plan(db, call)
    with db.transaction():
        db.execute("set transaction read only")
        assert plan(db, call) == outside
        for mode in ("skip", "cascade", "force"):
            plan(db, call, on_conflict=mode, merge=True)
        for query in READING:
            db.execute(query.format(call).encode())
        assigned = db.execute("select pg_current_xact_id_if_assigned() is not null").fetchone()
        assert assigned == (False,)


READING = (
    "select * from agentundo.plan_summary(array['{}'])",
    "select * from agentundo.diff('{}')",
    "select * from agentundo.undoable()",
    "select * from agentundo.row_history('t', '{{\"id\": 1}}')",
    "select agentundo.row_version('t', '{{\"id\": 1}}')",
    "select * from agentundo.invocations",
    "select * from agentundo.runs",
    "select * from agentundo.changes",
    "select * from agentundo.events",
    "select * from agentundo.effects",
    "select * from agentundo.tracked",
    "select * from agentundo.check()",
)


def test_plans_and_histories_are_read_on_a_hot_standby(own_server: Server) -> None:
    with own_server.database(installed=True) as janitor:
        dsn = own_server.dsn(janitor.dbname)
        with psycopg.connect(dsn, autocommit=True) as primary:
            primary.execute(
                "create table t (id int primary key, v int);insert into t values (1, 1), (2, 2)"
            )
            track(primary, "t")
            call = write(primary, "update t set v = 3", "update t set v = 4 where id = 1")
            primary.execute("update t set v = 9 where id = 2")
            expected = plan(primary, call, on_conflict="skip")
        with (
            standby(own_server, janitor.dbname) as replica,
            psycopg.connect(replica, autocommit=True) as conn,
        ):
            conn.execute("set statement_timeout = '20s'")
            assert plan(conn, call, on_conflict="skip") == expected
            for query in READING:
                conn.execute(query.format(call).encode())
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                revert(conn, call)


def test_a_revert_in_a_read_only_transaction_fails_at_once(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    track(db, "t")
    call = write(db, "update t set v = 3")
    for act in (revert, redo):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), db.transaction():  # noqa: PT012
            db.execute("set transaction read only")
            act(db, call)
        revert(db, call)


def images(conn: Connection) -> int:
    """Count the row images in all of history."""
    total = 0
    for (table,) in conn.execute("select history::text from agentundo._tracked").fetchall():
        row = conn.execute(f"select count(*) from {table}".encode()).fetchone()
        assert row is not None
        total += row[0]
    return total


def test_taking_back_whole_calls_stores_no_image_twice(db: Connection) -> None:
    """What a revert writes is in history already, both ways."""
    db.execute("create table t (id int primary key, v int)")
    db.execute("insert into t select g, g from generate_series(1, 500) g")
    track(db, "t")
    call = write(
        db,
        "update t set v = -v where id <= 200",
        "delete from t where id > 400",
        "insert into t select g, g from generate_series(1001, 1100) g",
    )
    before = images(db)
    for act in (revert, redo, revert):
        assert act(db, call).status == "reverted"
    assert images(db) == before


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_revert_at_a_higher_isolation_level_is_right(db: Connection, level: str) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    track(db, "t")
    before = everything(db)
    call = write(db, "update t set v = v + 10", "insert into t values (3, 3)")
    with db.transaction():
        db.execute(f"set transaction isolation level {level}".encode())
        assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_gives_an_error_and_never_a_wrong_result(
    db: Connection, connect: Connect, level: str
) -> None:
    db.execute(
        "create table p (id int primary key); insert into p values (1);"
        "create table c (id int primary key, p int references p on delete cascade)"
    )
    track(db, "p", "c")
    call = write(db, "insert into p values (2)")
    other = connect()
    with pytest.raises(psycopg.Error) as caught, db.transaction():  # noqa: PT012
        db.execute(f"set transaction isolation level {level}; select 1".encode())
        other.execute("insert into c values (9, 2)")
        revert(db, call)
    assert caught.value.sqlstate in ("40001", "UN001")
    assert db.execute("select * from c").fetchall() == [(9, 2)]
    assert_refused(db, call)


def test_a_later_write_of_the_same_transaction_is_somebody_elses(db: Connection) -> None:
    """Two calls and an untagged statement in one transaction leave one and the same xmin."""
    db.execute(
        "create table t (id int primary key, x int); insert into t select g, 0 from"
        " generate_series(1, 4) g"
    )
    track(db, "t", capture="all")
    with db.transaction():
        db.execute("select agentundo.tag('first')")
        db.execute("update t set x = 1")
        db.execute("select agentundo.tag('second')")
        db.execute("update t set x = 1 where id = 1")
        db.execute("select set_config('agent.invocation', '', true)")
        db.execute("update t set x = 1 where id = 2")
        db.execute("update t set x = 5 where id = 3")
        db.execute("update t set x = 1 where id = 3")
    found = {row.key["id"]: (row.status, row.reason) for row in plan(db, "first") if row.key}
    assert found == {
        1: ("conflict", "row_rewritten"),
        2: ("conflict", "row_rewritten"),
        3: ("conflict", "row_rewritten"),
        4: ("ok", None),
    }
    assert_refused(db, "first")
    assert revert(db, ["first", "second"], on_conflict="skip").rows_updated == 2


def test_what_an_unplanned_cascade_would_touch_stops_the_revert(
    db: Connection, connect: Connect
) -> None:
    """A key that comes after the plan's look, to rows that nobody planned to touch."""
    db.execute("create table p (id int primary key, v int); insert into p values (1, 0)")
    track(db, "p")
    call = write(db, "insert into p values (2, 0)")
    db.execute("create table c (id int primary key, p int references p on delete cascade)")
    db.execute("insert into c values (1, 2), (2, 1)")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


# Showing values ---------------------------------------------------------------------------------

AWKWARD = {
    "json": ['"\\u0000"', "1e400000", '{"a": "\\ud800"}', '[1e-400000, {"k\\u0000": 1}]'],
    "numeric": ["NaN", "Infinity", "1e131000"],
    "double precision": ["NaN", "-Infinity"],
    "text": ["\\", '"', "\u2028", "x" * 100_000],
    "jsonb": ['{"a": 1e1000}', '"' + "y" * 5000 + '"'],
    "bytea": ["\\x" + "00" * 10_000],
    "timestamptz": ["infinity", "4713-01-01 00:00:00+00 BC"],
    "text[]": ['{"' + "z" * 10_000 + '"}'],
}


@pytest.mark.parametrize("type_", AWKWARD)
def test_values_that_json_cannot_show_are_planned_shown_and_put_back(
    db: Connection, type_: str
) -> None:
    db.execute(f"create table t (id int primary key, v {type_})".encode())
    for number, value in enumerate(AWKWARD[type_]):
        db.execute(f"insert into t values (%s, %s::text::{type_})".encode(), [number, value])
    track(db, "t")
    assert_undone(
        db,
        "update t set v = (select v from t o where o.id <> t.id order by id limit 1)"
        if len(AWKWARD[type_]) > 1
        else "update t set v = null",
    )
    assert_undone(db, "delete from t")
    call = write(db, "update t set v = null", "insert into t select id + 10, v from t")
    assert len(plan(db, call)) == len(AWKWARD[type_]) * 2
    db.execute("select * from agentundo.diff(%s)", [call])
    db.execute("select * from agentundo.row_history('t', '{\"id\": 0}')")
    db.execute("select * from agentundo.plan_summary(array[%s])", [call])
    db.execute("update t set id = id + 100 where id < 10")
    assert_refused(db, call)  # an error shows keys, and must be able to


def test_two_long_values_that_differ_do_not_look_alike(db: Connection) -> None:
    db.execute("create table t (id int primary key, v text)")
    db.execute("insert into t values (1, repeat('x', 5000) || 'a')")
    track(db, "t")
    call = write(db, "update t set v = repeat('x', 5000) || 'b'")
    (row,) = plan(db, call)
    assert row.before is not None
    assert row.after is not None
    assert row.before["v"] != row.after["v"]
    assert len(row.before["v"]) < 2000


def test_huge_values_are_planned_and_put_back(db: Connection) -> None:
    """More than jsonb holds in one value: 256 MB as hex."""
    db.execute("create table t (id int primary key, v bytea)")
    db.execute("insert into t values (1, convert_to(repeat('x', 140000000), 'UTF8'))")
    track(db, "t")
    call = write(db, "update t set v = ''")
    (row,) = plan(db, call)
    assert row.status == "ok"
    assert revert(db, call).status == "reverted"
    assert db.execute("select length(v) from t").fetchone() == (140_000_000,)


def test_an_array_with_a_needless_null_map_goes_back(db: Connection) -> None:
    """Stored forms of equal arrays differ after NULLs were overwritten in place."""
    db.execute(
        "create table t (id int primary key, v int[]); insert into t values (1, '{1,NULL,3}');"
        "update t set v[2] = 2"
    )
    track(db, "t")
    assert_undone(db, "update t set v = '{9}'")
    assert_undone(db, "delete from t")
    before = everything(db)
    call = write(db, "update t set v = '{1,2,3}'")  # the same to look at, stored in another way
    assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))


# With whose rights ------------------------------------------------------------------------------


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


def test_restored_rows_pass_through_no_foreign_search_path(db: Connection) -> None:
    """An operator or function of the same name in the session's search path is never called."""
    db.execute(
        "create schema evil; create function evil.wrong(int, int) returns boolean language"
        " plpgsql as"
        " $$ begin raise exception 'evil'; end $$;"
        "create operator evil.= (leftarg = int, rightarg = int, function = evil.wrong);"
        "create function evil.count(int) returns int language plpgsql as"
        " $$ begin raise exception 'evil'; end $$;"
        "create table t (id int primary key, v int, unique (v));"
        "create table c (id int primary key, t int references t on delete cascade);"
        "insert into t values (1, 1), (2, 2); insert into c values (1, 1)"
    )
    track(db, "t", "c")
    before = everything(db)
    call = write(db, "delete from t where id = 1", "update t set v = 1 where id = 2")
    with db.cursor(row_factory=dict_row) as cursor:
        cursor.execute("set search_path = evil, public, pg_catalog")
        cursor.execute("select status from agentundo.revert(%s::text)", [call])
        assert cursor.fetchone() == {"status": "reverted"}
        cursor.execute("reset search_path")
    assert_same(before, everything(db))
