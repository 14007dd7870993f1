"""What can be tracked, what cannot and why, and what track, untrack and sync leave behind."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    assert_undoable,
    changes,
    images,
    run,
    try_to_write,
    value,
    write,
)
from tests.support.undo import plan, redo, refused, revert, rows

pytestmark = pytest.mark.core

MakeRole = Callable[..., str]

_OBJECTS = (
    "create table plain (id int primary key, v int)",
    "create view a_view as select * from plain",
    "create materialized view a_matview as select * from plain",
    "create foreign data wrapper nowhere",
    "create server nowhere foreign data wrapper nowhere",
    "create foreign table a_foreign (id int) server nowhere",
    "create temp table a_temp (id int primary key)",
    "create sequence a_sequence",
    "create type a_type as (x int)",
    "create table tree (id int) partition by list (id)",
    "create table leaf partition of tree for values in (1)",
    "create table ruled (id int primary key)",
    "create rule quiet as on insert to ruled do instead nothing",
    "create table ruled_also (id int primary key)",
    "create rule twice as on delete to ruled_also do also select 1",
)


@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        ("a_view", "view"),
        ("a_matview", "materialized view"),
        ("a_foreign", "foreign table"),
        ("a_temp", "temporary"),
        ("a_sequence", "sequence"),
        ("plain_pkey", "index"),
        ("a_type", "composite type"),
        ("pg_catalog.pg_class", "catalog"),
        ("information_schema.sql_features", "catalog"),
        ("agentundo._change", "our own"),
        ("agentundo.invocations", "view"),
        ("leaf", "track its root public.tree"),
        ("ruled", "rules"),
        ("ruled_also", "rules"),
    ],
)
def test_untrackable_relations(db: Connection, relation: str, reason: str) -> None:
    run(db, *_OBJECTS)
    with refused("UN004") as caught:
        db.execute("select agentundo.track(%s)", [relation])
    assert reason in caught.message
    assert caught.detail["relation"].endswith(relation.rpartition(".")[2])
    assert caught.detail["reason"]
    assert rows(db, "select * from agentundo.tracked") == []
    assert rows(db, "select * from agentundo._tracked") == []


def test_history_and_toast_are_ours(db: Connection) -> None:
    run(db, "create table t (id int primary key, v text)", "select agentundo.track('t')")
    history = value(db, "select history from agentundo.tracked")
    toast = value(db, "select reltoastrelid::regclass::text from pg_class where relname = 't'")
    for relation in (history, toast):
        with refused("UN004"):
            db.execute("select agentundo.track(%s)", [relation])


def test_null_and_unknown(db: Connection) -> None:
    with refused("UN004"):
        run(db, "select agentundo.track(null)")
    for name in ("nothing", '"no such schema".t', "a.b.c.d", ""):
        with pytest.raises(psycopg.Error) as caught:
            db.execute("select agentundo.track(%s)", [name])
        assert caught.value.sqlstate in ("42P01", "3F000", "42601", "0A000", "42602")
    for function in ("untrack", "sync"):
        run(db, "create table if not exists t (id int)")
        with refused("UN004"):
            run(db, f"select agentundo.{function}('t')")


@pytest.mark.parametrize("capture", ["everything", "", "AGENT"])
def test_capture_mode_that_does_not_exist(db: Connection, capture: str) -> None:
    run(db, "create table t (id int primary key)")
    with refused("22023"):
        db.execute("select agentundo.track('t', %s)", [capture])
    with refused("22023"):
        db.execute("select agentundo.track_schema('public', %s)", [capture])
    assert rows(db, "select * from agentundo.tracked") == []
    assert rows(db, "select * from agentundo._schema_rule") == []


@pytest.mark.parametrize("blind", ["agentundo_owner", "agentundo_worker"])
def test_row_level_security_needs_roles_that_see_all(own_server: Server, blind: str) -> None:
    """Without BYPASSRLS our copy of a table would lack what a policy hides."""
    with (
        own_server.database(installed=True) as database,
        psycopg.connect(own_server.dsn(database.dbname), autocommit=True) as db,
    ):
        run(
            db,
            f"alter role {blind} nobypassrls",
            "create table secret (id int primary key)",
            "alter table secret enable row level security",
        )
        with refused("UN004") as caught:
            run(db, "select agentundo.track('secret')")
        assert "row-level security" in caught.message
        assert blind in caught.message
        run(
            db,
            f"alter role {blind} bypassrls",
            "select agentundo.track('secret')",
            "create policy none on secret using (false)",
        )
        assert_undoable(db, ["secret"], "insert into secret values (1)")


def test_rule_added_later_is_found(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key)",
        "select agentundo.track('t')",
        "create rule quiet as on insert to t do instead nothing",
    )
    assert any(
        "rules" in row[0]
        for row in rows(
            db,
            "select problem from agentundo.check()"
            " where severity = 'error' and object = 'public.t'",
        )
    )


def test_unlogged_table_warns(db: Connection) -> None:
    notices: list[str] = []
    db.add_notice_handler(lambda diag: notices.append(diag.message_primary or ""))
    run(
        db,
        "create unlogged table t (id int primary key)",
        "select agentundo.track('t')",
        "insert into t values (1)",
    )
    assert any("unlogged" in notice for notice in notices)
    assert_undoable(db, ["t"], "delete from t")


def test_who_may_track(db: Connection, connect: Connect, make_role: MakeRole) -> None:
    """Restoring takes its owner's rights, so its owner has to ask for it."""
    owner = make_role(member_of="agentundo_operator")
    other = make_role(member_of="agentundo_operator")
    run(
        db,
        f"create schema work authorization {owner}",
        f"create table work.t (id int primary key); alter table work.t owner to {owner}",
        f"grant all on schema work to {other}",
        f"grant all on work.t to {other}",
    )
    with refused("UN003"):
        run(connect(user=other), "select agentundo.track('work.t')")
    with refused("UN003"):
        run(connect(user=other), "select agentundo.track_schema('work')")
    assert rows(db, "select * from agentundo.tracked") == []
    run(connect(user=owner), "select agentundo.track('work.t')")
    with refused("UN003"):
        run(connect(user=other), "select agentundo.untrack('work.t')")
    assert value(db, "select count(*) from agentundo.tracked") == 1
    assert_undoable(db, ["work.t"], "insert into work.t values (1)")
    run(connect(user=owner), "select agentundo.untrack('work.t')")


def test_owner_without_superuser_is_undone(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    owner = make_role(member_of="agentundo_operator")
    run(db, f"grant create on schema public to {owner}")
    conn = connect(user=owner)
    run(
        conn,
        "create table mine (id int primary key, v int)",
        "insert into mine values (1, 1), (2, 2)",
        "create function no() returns trigger language plpgsql as"
        " $$ begin raise 'no deletes'; end $$",
        "create trigger no before delete on mine for each row execute function no()",
        "select agentundo.track('mine')",
    )
    assert_undoable(
        conn, ["mine"], "insert into mine values (3, 3)", "update mine set v = 0", redone=False
    )


def test_tracking_twice_changes_nothing(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1)",
        "select agentundo.track('t')",
    )
    before = snapshot(db, "t")
    write(db, "update t set v = 2")
    state = rows(db, "select relation, capture, history, key, since, health from agentundo.tracked")
    triggers = rows(db, "select oid, tgname, tgenabled from pg_trigger order by oid")
    run(db, "select agentundo.track('t')", "select agentundo.sync()", "select agentundo.sync('t')")
    assert state == rows(
        db, "select relation, capture, history, key, since, health from agentundo.tracked"
    )
    assert triggers == rows(db, "select oid, tgname, tgenabled from pg_trigger order by oid")
    assert_goes_back(db, before)


MODES = "select split_part(relation, '.', 2), capture from agentundo.tracked order by 1"


def test_tracking_again_keeps_the_mode(db: Connection) -> None:
    """A mode that nobody types must not end the capture of what people write."""
    run(
        db,
        "create table every (id int primary key)",
        "create table other (id int primary key)",
        "select agentundo.track('every', 'all'), agentundo.track('other')",
        "select agentundo.track('every'), agentundo.track('other', capture => null)",
    )
    assert rows(db, MODES) == [("every", "all"), ("other", "agent")]
    run(db, "select agentundo.untrack('every')", "select agentundo.track('every')")
    assert rows(db, MODES) == [("every", "all"), ("other", "agent")]
    run(db, "select agentundo.track('every', 'agent'), agentundo.track('other', 'all')")
    assert rows(db, MODES) == [("every", "agent"), ("other", "all")]


def test_tracking_a_parent_again_keeps_the_modes_of_its_heirs(db: Connection) -> None:
    """A new one gets that of its parent, as it does where an event trigger sees it."""
    run(
        db,
        "create table parent (id int primary key)",
        "create table child () inherits (parent)",
        "select agentundo.track('parent', 'all')",
        "select agentundo.track('child', 'agent')",
        "set agentundo.internal = 'on'",
        "create table late () inherits (parent)",
        "reset agentundo.internal",
        "select agentundo.track('parent')",
    )
    assert rows(db, MODES) == [("child", "agent"), ("late", "all"), ("parent", "all")]


def test_tracking_a_schema_again_keeps_all_modes(db: Connection) -> None:
    """Its own, which new tables get, as well as those of its tables."""
    rule = "select capture from agentundo._schema_rule"
    run(
        db,
        "create table one (id int primary key)",
        "create table two (id int primary key)",
        "select agentundo.track('one', 'all')",
        "select agentundo.track_schema('public')",
    )
    assert (rows(db, MODES), value(db, rule)) == ([("one", "all"), ("two", "agent")], "agent")
    run(
        db,
        "select agentundo.track_schema('public', 'all')",
        "select agentundo.track('two', 'agent')",
    )
    run(db, "set agentundo.internal = 'on'", "create table three (id int primary key)")
    run(db, "reset agentundo.internal", "select agentundo.track_schema('public', null)")
    assert value(db, rule) == "all"
    assert rows(db, MODES) == [("one", "all"), ("three", "all"), ("two", "agent")]


def test_tracking_changes_no_row(db: Connection) -> None:
    run(db, "create table t (id int primary key)", "insert into t values (1)")
    before = rows(db, "select ctid, xmin, * from t")
    run(db, "select agentundo.track('t', 'all')", "select agentundo.sync()")
    assert rows(db, "select ctid, xmin, * from t") == before
    run(db, "select agentundo.untrack('t', false)")
    assert rows(db, "select ctid, xmin, * from t") == before


def _triggers(conn: Connection, table: str) -> list[tuple[str, ...]]:
    return rows(
        conn,
        "select tgname::text from pg_trigger where tgrelid = %s::regclass and not tgisinternal",
        table,
    )


def _grants(conn: Connection, table: str) -> list[tuple[str, ...]]:
    return rows(
        conn,
        "select privilege_type::text from pg_class, aclexplode(relacl) where oid = %s::regclass"
        " and grantee = to_regrole('agentundo_worker')",
        table,
    )


def test_untrack_keeps_history(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t')",
    )
    before = snapshot(db, "t")
    write(db, "update t set v = v + 1")
    run(db, "select agentundo.untrack('t')")
    assert _triggers(db, "t") == []
    assert rows(db, "select * from agentundo.tracked") == []
    history = value(db, "select history::text from agentundo._tracked")
    assert value(db, f"select count(*) from {history}") == 4
    write(db, "insert into t values (9, 9)", invocation="later")
    assert changes(db, "later") == []
    run(db, "delete from t where id = 9")
    # taken back either as it is, or after it is tracked again, in the same history
    run(db, "select agentundo.track('t')")
    assert value(db, "select history from agentundo.tracked") == history
    assert_goes_back(db, before)


def test_untracked_table_can_still_be_reverted(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t')",
    )
    before = snapshot(db, "t")
    write(db, "update t set v = v + 1", "delete from t where id = 2")
    run(db, "select agentundo.untrack('t')")
    assert revert(db, "inv").counts == (0, 1, 1, 0, 0)
    assert_same(before, snapshot(db, "t"))


def test_an_untracked_table_that_was_dropped_keeps_its_name(db: Connection) -> None:
    """Its number may be given to another table: nothing of ours refers to it any more."""
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1)",
        "select agentundo.track('t')",
    )
    write(db, "update t set v = 2")
    run(db, "select agentundo.untrack('t')", "drop table t")
    (row,) = plan(db, "inv")
    assert (row.relation, row.status, row.reason) == ("public.t", "conflict", "schema_changed")
    with refused("UN001") as caught:
        revert(db, "inv")
    assert [one["relation"] for one in caught.conflicts] == ["public.t"]
    assert value(db, "select relation is null from agentundo._tracked") is True


@pytest.mark.parametrize("why", ["default", "trigger"])
def test_what_has_to_be_captured_while_it_goes_back_needs_its_triggers(
    db: Connection, why: str
) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "create function nothing() returns trigger language plpgsql as"
        " $$ begin return null; end $$",
        "create trigger fires after update or delete on t for each row execute function nothing()",
        "select agentundo.track('t')",
    )
    write(db, "delete from t where id = 2", "update t set v = 9")
    if why == "default":
        run(db, "alter table t add z int default 5")
    else:
        run(db, "select agentundo.set_trigger('t', 'fires', 'fire')")
    run(db, "select agentundo.untrack('t')")
    before = snapshot(db, "t")
    with refused("UN004") as caught:
        revert(db, "inv")
    assert caught.refusal.message == "agentundo: public.t is not tracked any more"
    assert "Call agentundo.track('public.t') first" in caught.refusal.hint
    assert_same(before, snapshot(db, "t"))
    run(db, "select agentundo.track('t')")
    assert revert(db, "inv").counts == (0, 1, 1, 0, 0)
    assert redo(db, "inv").counts == (1, 0, 1, 0, 0)
    assert_same(before, snapshot(db, "t"))


def test_untrack_without_history(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "create table u (id int primary key)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t'), agentundo.track('u')",
    )
    write(db, "update t set v = v + 1", invocation="gone")
    write(db, "update t set v = v + 1", "insert into u values (1)")
    history = value(db, "select history from agentundo.tracked where relation = 'public.t'")
    before = snapshot(db, "t")
    run(db, "select agentundo.untrack('t', keep_history => false)")
    assert _triggers(db, "t") + _grants(db, "t") == []
    assert value(db, "select to_regclass(%s)::text", history) is None
    assert_same(before, snapshot(db, "t"))
    with refused("UN002"):
        revert(db, "gone")
    # what the invocation did elsewhere goes back as before
    assert revert(db, "inv").counts == (1, 0, 0, 0, 0)
    run(db, "select agentundo.track('t')")
    assert_undoable(db, ["t"], "delete from t", invocation="new")


def test_untrack_takes_the_whole_tree(db: Connection) -> None:
    run(
        db,
        "create table m (id int primary key) partition by range (id)",
        "create table m_1 partition of m for values from (0) to (10) partition by range (id)",
        "create table m_1_1 partition of m_1 for values from (0) to (10)",
        "select agentundo.track('m')",
    )
    for keep in ("true", "false"):
        run(db, f"select agentundo.untrack('m', {keep})")
        for name in ("m", "m_1", "m_1_1"):
            assert _triggers(db, name) == []
            assert keep == "true" or _grants(db, name) == []
        assert (
            rows(
                db,
                "select proname from pg_proc where pronamespace = 'agentundo'::regnamespace"
                " and proname like '\\_capture\\_%%' and proname <> '_capture_truncate'",
            )
            == []
        )
        run(db, "insert into m values (1)", "delete from m", "select agentundo.track('m')")


def test_untracked_of_a_dropped_table(db: Connection) -> None:
    """A table that was dropped is no longer tracked; its history waits for purge."""
    run(
        db,
        "create table t (id int primary key)",
        "select agentundo.track('t')",
        "drop table t",
    )
    assert rows(db, "select * from agentundo.tracked") == []
    assert rows(db, "select agentundo.sync()") == []
    assert rows(db, "select object from agentundo.check() where severity = 'error'") == []


def test_owner_changed(db: Connection, make_role: MakeRole) -> None:
    """The next owner has to be asked again, and check() says so; no write is lost until then."""
    one, two = make_role(), make_role()
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1)",
        f"alter table t owner to {one}",
        "select agentundo.track('t')",
        f"alter table t owner to {two}",
    )
    before = snapshot(db, "t")
    error = try_to_write(db, "update t set v = 2", "delete from t")
    if error:
        assert error.sqlstate in ("UN008", "UN003"), error
    run(db, "select agentundo.track('t')")
    assert rows(db, "select object, problem from agentundo.check() where severity = 'error'") == []
    if error:
        write(db, "update t set v = 2", "delete from t")
    assert_goes_back(db, before)


@pytest.mark.parametrize(
    "damage",
    [
        "alter table t disable trigger agentundo_update",
        "alter table t enable trigger agentundo_insert",
        "alter table t enable replica trigger agentundo_delete",
        "alter table t disable trigger all; alter table t enable trigger all",
        "drop trigger agentundo_truncate on t",
    ],
)
def test_check_finds_damaged_triggers_and_sync_repairs(db: Connection, damage: str) -> None:
    """A restore with --disable-triggers does this to every table."""
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1)",
        "select agentundo.track('t')",
    )
    # as it happens where there are no event triggers
    run(
        db,
        "alter event trigger agentundo_ddl disable",
        "alter event trigger agentundo_drop disable",
    )
    run(db, *damage.split("; "))
    found = rows(db, "select object, problem from agentundo.check() where severity = 'error'")
    assert found
    assert {one for one, _ in found} == {"public.t"}
    run(db, "select agentundo.sync('t')")
    assert rows(db, "select problem from agentundo.check() where severity = 'error'") == []
    states = rows(
        db,
        "select tgname::text, tgenabled::text from pg_trigger where tgrelid = 't'::regclass"
        " and not tgisinternal order by 1",
    )
    assert states == [
        (f"agentundo_{one}", "A") for one in ("delete", "insert", "truncate", "update")
    ]
    assert_undoable(db, ["t"], "update t set v = 2", "truncate t", "insert into t values (2)")


def test_images_are_kept_of_both_sides(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t')",
    )
    write(db, "update t set v = 3", "insert into t values (3)", "delete from t where id = 1")
    assert images(db, "t") == {"O": 3, "N": 3}
    assert len(plan(db, "inv")) == 3
