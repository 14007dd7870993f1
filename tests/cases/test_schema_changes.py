"""Tables change between an agent's write and its revert, and while we track them.

With our event triggers a change is followed at once; without them (they take a superuser) the
next tagged write is right or refused with UN008, and `sync` follows. A capture is never short of
a column, nor shifted by one.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import Snapshot, assert_same, snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    assert_undoable,
    changes,
    run,
    try_to_write,
    value,
    write,
)
from tests.support.undo import FORCE, plan, redo, refused, revert, rows

pytestmark = pytest.mark.core


@pytest.fixture(params=["followed", "not followed"])
def followed(request: pytest.FixtureRequest, db: Connection) -> bool:
    """Say whether there are event triggers; take them away in the other half of the tests."""
    if request.param == "not followed":
        run(db, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    return bool(request.param == "followed")


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a table whose columns differ in type."""
    run(
        db,
        "create table t (id int primary key, a text, b int, c numeric(10, 2))",
        "insert into t values (1, 'one', 10, 1.50), (2, 'two', 20, 2.25), (3, null, null, null)",
        "select agentundo.track('t')",
    )
    return db


def _columns(state: Snapshot, table: str, *names: str) -> list[tuple[str, ...]]:
    places = [state[table].columns.index(name) for name in names]
    return sorted(tuple(row[place] for place in places) for row in state[table].rows)


def _by_id(state: Snapshot, column: str) -> dict[str, str]:
    return {row[0]: row[1] for row in _columns(state, "t", "id", column)}


AGENT = (
    "update t set a = 'x', b = b + 1 where id = 1",
    "delete from t where id = 2",
    "insert into t (id, a, b) values (4, 'four', 40)",
)


@pytest.mark.parametrize(
    ("ddl", "name", "back"),
    [
        ("alter table t rename to other", "other", "alter table other rename to t"),
        (
            "create schema if not exists s; alter table t set schema s",
            "s.t",
            "alter table s.t set schema public",
        ),
        ("alter table t rename column b to amount", "t", "alter table t rename amount to b"),
        ("alter table t rename column id to k", "t", "alter table t rename k to id"),
        (
            "alter table t rename b to z; alter table t rename a to b; alter table t rename z to a",
            "t",
            "alter table t rename a to z; alter table t rename b to a; alter table t rename z to b",
        ),
        (
            "alter table t rename constraint t_pkey to key_of_t",
            "t",
            "alter table t rename constraint key_of_t to t_pkey",
        ),
    ],
)
def test_renamed_between_write_and_revert(
    t: Connection, followed: bool, ddl: str, name: str, back: str
) -> None:
    before = snapshot(t, "t")
    write(t, *AGENT)
    after = snapshot(t, "t")
    run(t, ddl)
    assert revert(t, "inv").counts == (1, 1, 1, 0, 0)
    run(t, back)
    assert_same(before, snapshot(t, "t"))
    run(t, ddl)
    assert redo(t, "inv").status == "reverted"
    run(t, back)
    assert_same(after, snapshot(t, "t"))


def test_schema_renamed_between_write_and_revert(db: Connection, followed: bool) -> None:
    run(
        db,
        "create schema one",
        "create table one.t (id int primary key, v int)",
        "insert into one.t values (1, 1)",
        "select agentundo.track('one.t')",
    )
    before = snapshot(db, "one.t")
    write(db, "update one.t set v = 2")
    run(db, 'alter schema one rename to "Two 2"')
    (row,) = plan(db, "inv")
    assert row.relation == '"Two 2".t'
    assert revert(db, "inv").status == "reverted"
    run(db, 'alter schema "Two 2" rename to one')
    assert_same(before, snapshot(db, "one.t"))


@pytest.mark.parametrize(
    "ddl",
    [
        "alter table t add column d int",
        "alter table t add column d int not null default 7",
        "alter table t add column d float default random()",
        "alter table t add column d int generated always as (id * 2) stored",
    ],
)
def test_column_added_between_write_and_revert(t: Connection, followed: bool, ddl: str) -> None:
    before = snapshot(t, "t")
    write(t, *AGENT)
    run(t, ddl)
    added = _by_id(snapshot(t, "t"), "d")
    assert revert(t, "inv").counts == (1, 1, 1, 0, 0)
    after = snapshot(t, "t")
    names = before["t"].columns
    assert _columns(before, "t", *names) == _columns(after, "t", *names)
    now = _by_id(after, "d")
    assert (now["'1'"], now["'3'"]) == (added["'1'"], added["'3'"])


@pytest.mark.parametrize("column", ["a", "b", "c"])
def test_column_dropped_between_write_and_revert(
    t: Connection, followed: bool, column: str
) -> None:
    before = snapshot(t, "t")
    write(t, *AGENT)
    run(t, f"alter table t drop column {column}")
    assert revert(t, "inv").counts == (1, 1, 1, 0, 0)
    after = snapshot(t, "t")
    names = [name for name in before["t"].columns if name != column]
    assert list(after["t"].columns) == names
    assert _columns(before, "t", *names) == _columns(after, "t", *names)


def test_column_dropped_and_added_again(t: Connection, followed: bool) -> None:
    """The new column only shares its name with the old one; nothing flows into it."""
    before = snapshot(t, "t")
    write(t, *AGENT)
    run(t, "alter table t drop column b", "alter table t add column b text default 'new'")
    assert revert(t, "inv").counts == (1, 1, 1, 0, 0)
    after = snapshot(t, "t")
    names = ["id", "a", "c"]
    assert _columns(before, "t", *names) == _columns(after, "t", *names)
    assert {row[0] for row in _columns(after, "t", "b")} == {"'new'"}


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("b", "bigint"),
        ("b", "numeric"),
        ("a", "varchar(100)"),
        ("a", 'text collate "C"'),
        ("c", "numeric(12, 2)"),
        ("c", "numeric"),
    ],
)
def test_type_widened_between_write_and_revert(
    t: Connection, followed: bool, column: str, kind: str
) -> None:
    before = snapshot(t, "t")
    write(t, *AGENT)
    run(t, f"alter table t alter {column} type {kind}")
    assert revert(t, "inv").counts == (1, 1, 1, 0, 0)
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize("kind", ["numeric(12, 4)", "numeric(10, 1)"])
def test_scale_changed_between_write_and_revert(t: Connection, followed: bool, kind: str) -> None:
    """Values of another scale say the same, so a row that was rewritten so is no conflict."""
    run(t, "update t set c = 2.2 where id = 2")
    run(t, "create table same as table t")
    write(t, "update t set b = 0", "delete from t where id = 2")
    run(t, f"alter table t alter c type {kind}", f"alter table same alter c type {kind}")
    assert revert(t, "inv").counts == (0, 1, 2, 0, 0)
    difference = "select * from t except select * from same"
    assert rows(t, difference) == []
    assert value(t, "select count(*) from t") == 3


@pytest.mark.parametrize(
    "ddl",
    [
        "alter table t alter a type int using length(a)",
        "alter table t alter b type text using 'value ' || b",
        "alter table t alter c type int using round(c)",
    ],
)
def test_type_changed_for_good_is_a_conflict(t: Connection, followed: bool, ddl: str) -> None:
    write(t, *AGENT)
    run(t, ddl)
    before = snapshot(t, "t")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert set(caught.reasons) == {"schema_changed"}
    assert {row.status for row in plan(t, "inv")} == {"conflict"}
    assert_same(before, snapshot(t, "t"))
    # new work is captured in the new shape
    if not followed:
        run(t, "select agentundo.sync('t')")
    assert_undoable(t, ["t"], "update t set id = id + 100", "delete from t", invocation="new")


@pytest.mark.parametrize(
    "statements",
    [
        ("update t set b = 11 where id = 1", "update t set b = 12 where id = 1"),
        ("delete from t where id = 1", "insert into t values (1, 'one', 33, 1.50)"),
    ],
    ids=["written twice", "deleted and made"],
)
def test_rows_written_twice_before_a_change_of_type_are_conflicts(
    t: Connection, followed: bool, statements: tuple[str, str]
) -> None:
    """Images that lack the column now must not be taken for equal."""
    write(t, *statements)
    run(t, "alter table t alter b type smallint", "select agentundo.sync()")
    before = snapshot(t, "t")
    assert {row.reason for row in plan(t, "inv")} == {"schema_changed"}
    with refused("UN001"):
        revert(t, "inv")
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("create table k (v int, w int)", "alter table k alter w type text"),
        (
            "create table k (v int primary key, w int)",
            "alter table k alter v type bigint, alter w type text",
        ),
    ],
    ids=["no key", "key widened"],
)
def test_whole_rows_of_before_a_change_of_type_are_conflicts(
    db: Connection, followed: bool, table: str, change: str
) -> None:
    run(db, table, "insert into k values (4, 4), (5, 5)", "select agentundo.track('k')")
    write(db, "delete from k where v = 4", invocation="gone")
    write(db, "insert into k values (6, 6)", invocation="made")
    run(db, change, "select agentundo.sync()")
    before = snapshot(db, "k")
    for call in ("gone", "made"):
        assert {row.reason for row in plan(db, call)} <= {"schema_changed", "row_changed"}
        with refused("UN001"):
            revert(db, call)
        assert_same(before, snapshot(db, "k"))


@pytest.mark.parametrize(
    "earlier", ["another table", "purged", "rolled back", "rolled back elsewhere", "nothing"]
)
@pytest.mark.parametrize("column", ["b", "id"])
def test_type_widened_before_the_first_write(
    t: Connection, followed: bool, earlier: str, column: str
) -> None:
    """Tracked first, then migrated, then written to, in a database that knows other changes."""
    run(t, "create table o (id int primary key)", "select agentundo.track('o')")
    if earlier == "another table":
        write(t, "insert into o values (1)", invocation="earlier")
    elif earlier == "purged":
        write(t, "update t set a = a || '?' where id = 1", invocation="earlier")
        run(t, "select agentundo.purge('0 seconds')", "update t set a = 'one' where id = 1")
    elif earlier.startswith("rolled back"):
        with t.transaction(force_rollback=True):
            run(t, "select agentundo.tag('earlier')")
            run(t, "insert into o values (1)" if "else" in earlier else "update t set b = 0")
    run(t, f"alter table t alter {column} type bigint", "select agentundo.sync()")
    before = snapshot(t, "t")
    write(t, "delete from t where id = 1", invocation="deleted")
    write(t, "update t set a = 'z' where id = 2", invocation="set")
    (row,) = plan(t, "deleted")
    assert (row.action, row.status, (row.before or {})["b"]) == ("insert", "ok", 10)
    assert revert(t, "deleted").counts == (0, 1, 0, 0, 0)
    (row,) = plan(t, "set")
    assert (row.action, row.status, (row.before or {})["b"]) == ("update", "ok", 20)
    assert revert(t, "set").counts == (0, 0, 1, 0, 0)
    assert_same(before, snapshot(t, "t"))


def test_dropped_and_recreated_under_the_same_name(t: Connection, followed: bool) -> None:
    """The new table is another one, even if it looks the same."""
    write(t, *AGENT)
    run(
        t,
        "drop table t",
        "create table t (id int primary key, a text, b int, c numeric(10, 2))",
        "insert into t values (1, 'x', 11, 1.50), (4, 'four', 40, null)",
    )
    before = snapshot(t, "t")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert set(caught.reasons) == {"schema_changed"}
    assert_same(before, snapshot(t, "t"))
    run(t, "select agentundo.sync()", "select agentundo.track('t')")
    assert_undoable(t, ["t"], "delete from t", invocation="new")
    with refused("UN001"):
        revert(t, "inv")
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize(
    ("ddl", "statement"),
    [
        ("alter table t add column d int", "update t set d = 5, b = 6"),
        ("alter table t add column d int default 3", "update t set d = 5 where id = 1"),
        ("alter table t drop column b", "update t set c = 5, a = 'y'"),
        (
            "alter table t drop column b; alter table t add column d int",
            "update t set d = 5, c = 6",
        ),
        (
            "alter table t drop column b; alter table t add column b int",
            "update t set b = 5, c = 6",
        ),
        ("alter table t rename column a to b2", "update t set b2 = 'y', b = 1"),
        (
            "alter table t rename a to z; alter table t rename b to a",
            "update t set z = 'y', a = 1",
        ),
        ("alter table t alter c type numeric(14, 6)", "update t set c = 1.234567"),
        ("alter table t alter b type bigint", "update t set b = 5000000000"),
        ("alter table t alter b type text using 'n' || b", "update t set b = 'y'"),
        (
            "alter table t drop column c; alter table t add column c timestamp(6)",
            "update t set c = '2026-01-01 00:00:00.123456'",
        ),
        (
            "alter table t drop constraint t_pkey; alter table t add unique (id)",
            "update t set a = 'y'",
        ),
    ],
)
@pytest.mark.parametrize("session", ["same", "other", "transaction"])
def test_capture_after_ddl_is_right_or_refused(
    t: Connection, connect: Connect, followed: bool, ddl: str, statement: str, session: str
) -> None:
    """Also in a session whose plans were made before, and within one transaction."""
    writer = connect() if session == "other" else t
    write(
        writer, "update t set b = 0 where id = 3", "delete from t where id = 2", invocation="warm"
    )
    write(writer, "insert into t values (2, 'two', 20, 2.25)", invocation="warm")
    if session == "transaction":
        with t.transaction(force_rollback=True):
            run(t, *ddl.split("; "))
            before = snapshot(t, "t")
            error = try_to_write(t, statement, "delete from t where id = 1")
            if error:
                assert not followed, error
                _is_drift(error)
                return
            run(t, "set local agent.invocation = ''")
            assert revert(t, "inv").status == "reverted"
            assert_same(before, snapshot(t, "t"))
        return
    run(t, *ddl.split("; "))
    before = snapshot(t, "t")
    error = try_to_write(writer, statement, "delete from t where id = 1")
    if error:
        assert not followed, error
        _is_drift(error)
        assert_same(before, snapshot(t, "t"))
        # nobody else is stopped, and sync() makes it right
        with writer.transaction(force_rollback=True):
            run(writer, statement)
        run(t, "select agentundo.sync('t')")
        write(writer, statement, "delete from t where id = 1")
    assert_goes_back(t, before)


def _is_drift(error: psycopg.Error) -> None:
    """UN008, or what PostgreSQL itself says when the arity guard in the capture meets a change."""
    assert error.sqlstate in ("UN008", "42601", "42703", "42804", "0A000"), error


def test_typed_values_after_a_modifier_grew(t: Connection, followed: bool) -> None:
    """History that keeps the old modifier would round what comes later."""
    run(
        t,
        "alter table t add s timestamp(0), add v varchar(3), add i interval(0), add x bit(3)",
        "select agentundo.sync('t')",
    )
    write(t, "update t set c = 1, s = now(), v = 'abc', i = '1 s', x = '101'", invocation="warm")
    run(
        t,
        "alter table t alter c type numeric(12, 4), alter s type timestamp(6),"
        " alter v type varchar(6), alter i type interval(6), alter x type bit varying(6)",
        "select agentundo.sync('t')",
        "update t set c = 1.2345, s = '2026-01-01 01:02:03.456789', v = 'abcdef',"
        " i = '1.234567 s', x = '101101'",
    )
    assert_undoable(t, ["t"], "update t set c = 0, s = null, v = '', i = null, x = ''")
    assert_undoable(t, ["t"], "delete from t", invocation="b")


def test_history_is_never_rewritten(t: Connection, followed: bool) -> None:
    """Rewritten by one ALTER, table and history would share one version and look untouched."""
    write(t, *AGENT)
    filenode = (
        "select pg_relation_filenode(history::regclass) from agentundo.tracked"
        " where relation = 'public.t'"
    )
    was = value(t, filenode)
    run(
        t,
        "alter table t alter b type bigint",
        "alter table t alter a type varchar(50)",
        "alter table t add column d float default random()",
        "select agentundo.sync()",
    )
    assert value(t, filenode) == was
    # somebody else's write after the rewrite is seen
    run(t, "update t set b = 77 where id = 1")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert caught.reasons == ["row_changed"]


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_untagged_writes_are_never_refused(t: Connection, followed: bool, capture: str) -> None:
    run(t, f"select agentundo.track('t', '{capture}')", "update t set b = 1")
    run(t, "alter table t add column d int", "alter table t drop column a")
    if capture == "agent":
        run(
            t,
            "update t set d = 1, b = 2",
            "insert into t (id, d) values (9, 9)",
            "delete from t where id = 1",
        )
        assert changes(t) == []
    elif followed:
        run(t, "update t set d = 1, b = 2")


def test_types_can_be_changed_and_dropped(t: Connection, followed: bool) -> None:
    """What history keeps must not stand in the way of anybody's DDL."""
    run(
        t,
        "create domain positive as int",
        "create type mood as enum ('sad', 'ok')",
        "create type pair as (x int, y text)",
        "create table u (id int primary key, d positive, m mood, p pair, ms mood[], ps pair[])",
        "insert into u values (1, -1, 'sad', '(1,a)', '{sad}', '{\"(1,a)\"}')",
        "select agentundo.track('u')",
    )
    write(t, "update u set d = 1, m = 'ok', p = null, ms = '{}', ps = null")
    # satisfied by the table, not by what history remembers
    run(t, "alter domain positive add check (value > 0)")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert caught.reasons == ["constraint"]
    run(t, "alter domain positive drop constraint positive_check")
    run(t, "alter type mood add value 'great'", "alter type mood rename value 'sad' to 'blue'")
    assert revert(t, "inv").status == "reverted"
    assert rows(t, "select d, m::text, p::text, ps::text from u") == [
        (-1, "blue", "(1,a)", '{"(1,a)"}')
    ]
    run(
        t,
        "alter table u alter d type int, alter m type text, alter p type text using p::text,"
        " alter ms type text[], alter ps type text using ps::text",
        "select agentundo.sync()",
    )
    for kind in ("mood", "positive", "pair"):
        run(t, f"drop {'domain' if kind == 'positive' else 'type'} {kind}")
    assert_undoable(t, ["u"], "update u set d = 9, m = 'any', p = 'z'", invocation="later")


def test_columns_dropped_before_tracking(db: Connection, followed: bool) -> None:
    run(
        db,
        "create table gaps (x int, id int primary key, y text, v int, z int)",
        "insert into gaps values (1, 1, 'y', 10, 1), (2, 2, 'y', 20, 2)",
        "alter table gaps drop x",
        "alter table gaps drop y",
        "alter table gaps add w text default 'fast'",
        "select agentundo.track('gaps')",
        "insert into gaps values (3, 30, 3)",
    )
    assert_undoable(db, ["gaps"], "update gaps set v = v + 1", "delete from gaps where id = 1")
    run(
        db,
        "alter table gaps drop z",
        "alter table gaps add q int not null default 5",
        "alter table gaps add r date default '2026-01-01'",
        "select agentundo.sync()",
    )
    assert_undoable(
        db,
        ["gaps"],
        "update gaps set q = 6 where id = 1",
        "delete from gaps where id = 2",
        "insert into gaps (id) values (7)",
        invocation="b",
    )


def test_key_changes_between_write_and_revert(t: Connection, followed: bool) -> None:
    before = snapshot(t, "t")
    write(t, *AGENT)
    run(t, "alter table t drop constraint t_pkey", "alter table t alter id drop not null")
    assert revert(t, "inv").status == "reverted"
    assert_same(before, snapshot(t, "t"))


def test_new_generated_expression(db: Connection, followed: bool, pg_major: int) -> None:
    if pg_major < 17:
        pytest.skip("SET EXPRESSION came with PostgreSQL 17")
    run(
        db,
        "create table g (id int primary key, v int, w int generated always as (v * 2) stored)",
        "insert into g (id, v) values (1, 1), (2, 2)",
        "select agentundo.track('g')",
    )
    before = rows(db, "select id, v from g order by id")
    write(db, "update g set v = v + 1 where id = 1", "delete from g where id = 2")
    run(db, "alter table g alter w set expression as (v * 3)")
    assert revert(db, "inv").status == "reverted"
    assert rows(db, "select id, v from g order by id") == before
    assert rows(db, "select w from g order by id") == [(3,), (6,)]


def test_column_becomes_plain(db: Connection, followed: bool) -> None:
    """A generated column that becomes an ordinary one is kept from then on."""
    run(
        db,
        "create table g (id int primary key, v int, w int generated always as (v * 2) stored)",
        "insert into g (id, v) values (1, 1), (2, 2)",
        "select agentundo.track('g')",
    )
    write(db, "update g set v = 5 where id = 1", invocation="warm")
    run(db, "alter table g alter w drop expression")
    before = snapshot(db, "g")
    error = try_to_write(db, "update g set w = 0", "delete from g where id = 2")
    if error:
        assert not followed
        _is_drift(error)
        run(db, "select agentundo.sync('g')")
        write(db, "update g set w = 0", "delete from g where id = 2")
    assert_goes_back(db, before)


def test_alter_within_the_tagged_transaction(t: Connection, followed: bool) -> None:
    """An agent that migrates and fills in one go: what is captured before stays right."""
    before = snapshot(t, "t")
    error = try_to_write(
        t,
        "update t set b = -1 where id = 1",
        "alter table t add column d int",
        "update t set d = b, b = -2",
    )
    if error:
        assert not followed
        _is_drift(error)
        assert_same(before, snapshot(t, "t"))
        return
    left = snapshot(t, "t")
    if any(row.reason == "schema_changed" for row in plan(t, "inv")):
        # Said, not guessed: the first image of this row is older than the column.
        with refused("UN001"):
            revert(t, "inv")
        assert_same(left, snapshot(t, "t"))
        assert revert(t, "inv", on_conflict="skip").counts == (0, 0, 2, 1, 1)
        return
    assert revert(t, "inv").status == "reverted"
    names = before["t"].columns
    after = snapshot(t, "t")
    assert _columns(before, "t", *names) == _columns(after, "t", *names)
    assert {row[0] for row in _columns(after, "t", "d")} == {"NULL"}


# Keys that came later ---------------------------------------------------------------------------


def _twins(db: Connection, key: str) -> None:
    """Make rows that are two of each, but not by `key`."""
    primary = f", primary key ({key})" if key else ""
    run(
        db,
        f"create table k (id int, twin int not null, v int{primary})",
        "insert into k values (1, 7, 1), (2, 7, 2), (3, 8, 3)",
        "select agentundo.track('k')",
    )


@pytest.mark.parametrize("key", ["", "id", "id, twin"], ids=["no key", "another", "longer"])
@pytest.mark.parametrize(
    "statements",
    [
        ["update k set v = v + 10"],
        ["update k set v = v + 10", "update k set v = v + 10"],
        ["delete from k"],
        ["insert into k select id + 10, twin + 10, v from k"],
    ],
    ids=["set", "set twice", "deleted", "made"],
)
def test_rows_that_had_one_key_together_are_conflicts(
    db: Connection, followed: bool, key: str, statements: list[str]
) -> None:
    """What is the key today was none then: nobody can tell which row became which."""
    _twins(db, key)
    write(db, *statements)
    run(
        db,
        "delete from k where v in (1, 11, 21) or id > 10 and v = 1",
        "alter table k drop constraint if exists k_pkey, add primary key (twin)",
        "select agentundo.sync()",
    )
    before = snapshot(db, "k")
    torn = [row for row in plan(db, "inv") if row.reason == "schema_changed"]
    assert torn, "nobody can tell"
    for row in torn:
        hint = "Several rows had this key then: another key held, or none."
        assert (row.key, row.status, (row.detail or {})["hint"]) in [
            ({"twin": 7}, "conflict", hint),
            ({"twin": 17}, "conflict", hint),
        ]
    for arguments in ({}, FORCE, {"on_conflict": "cascade"}):
        with refused("UN001") as caught:
            revert(db, "inv", **arguments)
        assert set(caught.reasons) == {"schema_changed"}
        assert_same(before, snapshot(db, "k"))
    assert revert(db, "inv", on_conflict="skip").status == "partially_reverted"
    others = {
        "update k": [(2, 7, 2 + 10 * len(statements)), (3, 8, 3)],
        "delete f": [(3, 8, 3)],
        "insert i": [(2, 7, 2), (3, 8, 3), (12, 17, 2)],
    }[statements[0][:8]]
    assert rows(db, "select * from k order by id") == others


def test_a_key_that_nobody_was_told_of_is_younger_than_all(db: Connection) -> None:
    _twins(db, "")
    run(db, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    write(db, "update k set v = v + 10")
    run(db, "delete from k where id = 1", "alter table k add primary key (twin)")
    before = snapshot(db, "k")
    assert {row.reason for row in plan(db, "inv")} == {None, "schema_changed"}
    with refused("UN001"):
        revert(db, "inv", **FORCE)
    assert_same(before, snapshot(db, "k"))


def test_a_key_is_as_good_as_one_that_it_contains(db: Connection, followed: bool) -> None:
    _twins(db, "id")
    before = snapshot(db, "k")
    write(db, "update k set v = v + 10", "delete from k where id = 2")
    run(
        db,
        "alter table k drop constraint k_pkey, add primary key (twin, id)",
        "select agentundo.sync()",
    )
    assert {row.status for row in plan(db, "inv")} == {"ok"}
    assert revert(db, "inv").status == "reverted"
    assert_same(before, snapshot(db, "k"))


def test_what_is_written_under_a_key_that_came_later(db: Connection, followed: bool) -> None:
    """Only what is older than the key is doubtful."""
    _twins(db, "")
    write(db, "update k set v = v + 10", invocation="old")
    run(db, "delete from k where id = 1", "alter table k add primary key (twin)")
    run(db, "select agentundo.sync()")
    before = snapshot(db, "k")
    write(db, "update k set v = v + 10", "update k set v = v + 10", invocation="new")
    assert revert(db, "new").status == "reverted"
    assert_same(before, snapshot(db, "k"))


# Values that are other ones -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "using",
    [
        "amount / 100.0",
        "(amount::numeric / 100)",
        "case when amount > 0 then amount end",
        "round(amount)",
        "amount::numeric(10, 2) * 2, alter v type bigint",
    ],
)
def test_a_column_whose_values_were_computed_anew_is_a_conflict(db: Connection, using: str) -> None:
    """What had been 500 cents must not come back as 500 euros."""
    run(
        db,
        "create table prices (id int primary key, amount int, v int)",
        "insert into prices values (1, 500, 0), (2, 700, 0)",
        "select agentundo.track('prices', 'all')",
    )
    write(db, "delete from prices where id = 2", "update prices set v = 1")
    run(db, f"alter table prices alter column amount type numeric using {using}")
    before = snapshot(db, "prices")
    for row in plan(db, "inv"):
        assert row.reason == "schema_changed"
        assert "amount" in (row.columns or ())
    with refused("UN001"):
        revert(db, "inv")
    assert_same(before, snapshot(db, "prices"))
    write(db, "update prices set amount = 3", invocation="later")
    assert revert(db, "later").status == "reverted"
    assert_same(before, snapshot(db, "prices"))


@pytest.mark.parametrize(
    "using",
    [
        "",
        "using amount",
        'using "amount"::bigint',
        "using (amount)::text::bigint",
        "using cast(amount as bigint)",
    ],
)
def test_a_column_that_was_only_cast_has_the_values_it_had(db: Connection, using: str) -> None:
    run(
        db,
        "create table prices (id int primary key, amount int)",
        "insert into prices values (1, 500), (2, 700)",
        "select agentundo.track('prices', 'all')",
    )
    write(db, "delete from prices where id = 2", "update prices set amount = 1")
    run(db, f"alter table prices alter column amount type bigint {using}")
    assert revert(db, "inv").status == "reverted"
    assert rows(db, "select * from prices order by id") == [(1, 500), (2, 700)]


def test_a_key_whose_values_were_computed_anew_finds_no_older_rows(db: Connection) -> None:
    run(
        db,
        "create table v (id int primary key, a text)",
        "insert into v values (1, 'one'), (2, 'two'), (3, 'three')",
        "select agentundo.track('v', 'all')",
    )
    write(db, "update v set a = 'X' where id in (2, 3)")
    run(db, "alter table v alter id type bigint using id - 1")
    assert {row.reason for row in plan(db, "inv")} == {"schema_changed"}
    assert revert(db, "inv", on_conflict="skip").counts[:3] == (0, 0, 0)
    assert rows(db, "select * from v order by id") == [(0, "one"), (1, "X"), (2, "X")]


def test_a_column_that_was_generated_is_a_conflict_of_older_images(db: Connection) -> None:
    """They do not know what it was."""
    run(
        db,
        "create table t (id int primary key, a int, c int generated always as (a * 10) stored)",
        "insert into t (id, a) values (1, 1), (2, 2)",
        "select agentundo.track('t', 'all')",
    )
    write(db, "update t set a = 100 where id = 1", "delete from t where id = 2")
    run(db, "alter table t alter c drop expression")
    assert {(row.reason, tuple(row.columns or ())) for row in plan(db, "inv")} == {
        ("schema_changed", ("c",))
    }
    write(db, "update t set a = 7, c = 3", invocation="later")
    assert revert(db, "later").status == "reverted"
    assert rows(db, "table t") == [(1, 100, 1000)]
