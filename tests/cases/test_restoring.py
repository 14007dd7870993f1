"""How rows are put back: with all checks on, all at once, and in any kind of transaction."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.conftest import Connect, Connection, MakeRole
from tests.support.servers import Server
from tests.support.standby import standby
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert
from tests.support.undoing import (
    assert_keys_hold,
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
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


def test_each_owner_has_a_search_path_of_his_own(db: Connection, make_role: MakeRole) -> None:
    """Constraints of tables of several owners find what each of them names."""
    schemas = ("p1", "p2")
    for schema in schemas:
        owner = make_role()
        db.execute(
            f"create schema {schema} authorization {owner};"
            f"alter role {owner} set search_path = {schema};"
            f"create table {schema}.lim as select '{schema}' as whose;"
            f"create function {schema}.ok(text) returns boolean language plpgsql as"
            " $$ begin return $1 = whose from lim; end $$;"
            f"grant usage on schema {schema} to agentundo_worker;"
            f"grant select on {schema}.lim to agentundo_worker;"
            f"create table {schema}.t (id int primary key, whose text);"
            f"insert into {schema}.t values (1, '{schema}'), (2, '{schema}');"
            f"alter table {schema}.t owner to {owner};"
            f"set search_path = {schema};"
            f"alter table t add check ({schema}.ok(whose)); reset search_path".encode()
        )
        track(db, f"{schema}.t")
    before = everything(db)
    with db.transaction():
        db.execute("select agentundo.tag('both')")
        for schema in schemas:
            db.execute(f"set local search_path = {schema}".encode())
            db.execute("delete from t where id = 1")
            db.execute("update t set id = 7 where id = 2")
    assert {row.status for row in plan(db, "both")} == {"ok"}
    assert revert(db, "both").status == "reverted"
    assert_same(before, everything(db))


def test_deferred_triggers_that_are_to_fire_find_what_their_owner_names(
    db: Connection, make_role: MakeRole
) -> None:
    owner = make_role()
    db.execute(
        f"create schema s authorization {owner}; alter role {owner} set search_path = s;"
        "create table s.log (what text); create table s.t (id int primary key, v int);"
        "create function s.note() returns trigger language plpgsql as"
        " $$ begin insert into log values (tg_op); return null; end $$;"
        "create constraint trigger note after update on s.t deferrable initially deferred"
        " for each row execute function s.note(); insert into s.t values (1, 1);"
        "grant usage on schema s to agentundo_worker; grant insert on s.log to agentundo_worker;"
        f"alter table s.t owner to {owner}".encode()
    )
    track(db, "s.t")
    db.execute("select agentundo.set_trigger('s.t', 'note', 'fire')")
    with db.transaction():
        db.execute("select agentundo.tag('call'); set local search_path = s")
        db.execute("update t set v = 2")
    assert {row.status for row in plan(db, "call")} == {"ok"}
    assert revert(db, "call").status == "reverted"
    assert db.execute("table s.t").fetchall() == [(1, 1)]
    assert db.execute("table s.log").fetchall() == [("UPDATE",), ("UPDATE",)]
