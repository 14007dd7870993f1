"""What the functions are given and cannot use: a clear error, the right code, nothing half done."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    FORCE,
    IMPATIENT,
    plan,
    redo,
    refused,
    revert,
    rows,
    scalar,
    tag,
    write,
)

pytestmark = pytest.mark.core

TABLES = ("public.t",)


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with one tracked table and one call that changed it."""
    conn = connect(options=IMPATIENT)
    conn.execute("create table t (id int primary key, v text); insert into t values (1, 'A')")
    conn.execute("select agentundo.track('t')")
    write(conn, "call", "update t set v = 'B'")
    return conn


@pytest.mark.parametrize(
    "name",
    [
        "'; drop table t; --",
        'say "hi"',
        "100% %s %I {} {a,b}",
        "back\\slash \\n \\u0000",
        "two\nlines\tand\ra tab",
        "Grüße, 東京, 🤖",
        " ",
        " padded ",
        "null",
        "NULL",
        '{"a": 1}',
        "\x01\x1b[31m",
        "x" * 255,
        "é" * 127,
    ],
    ids=repr,
)
def test_any_text_is_an_id(db: Connection, name: str) -> None:
    """And a run, a scope, a person, a tool, a reason."""
    before = snapshot(db, *TABLES)
    write(
        db,
        name,
        "update t set v = 'C'; insert into t values (2, 'D')",
        run=name,
        tool=name,
        actor=name,
        on_behalf_of=name,
        scope=name,
    )
    after = snapshot(db, *TABLES)
    found = rows(
        db,
        "select id, run, tool, actor, on_behalf_of, scope from agentundo.invocations where id = %s",
        name,
    )
    assert found == [(name,) * 6]
    assert {row.invocation for row in plan(db, name, scope=name)} == {name}
    assert revert(db, [name], reason=name, reverted_by=name).invocations == [name]
    assert_same(before, snapshot(db, *TABLES))
    assert redo(db, name).status == "reverted"
    assert_same(after, snapshot(db, *TABLES))
    result = scalar(db, "select status from agentundo.revert_run(%s)", name)
    assert result == "reverted"
    assert_same(before, snapshot(db, *TABLES))
    payload = "select payload ->> 'reason' from agentundo.events where payload ->> 'reason' = %s"
    assert scalar(db, payload, name) == name


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128])
def test_id_too_long_refuses_the_write(db: Connection, name: str) -> None:
    """However it was set: better no write than one that nobody can take back."""
    before = snapshot(db, *TABLES)
    with refused("22023"):
        tag(db, name)
    with refused("22023"), db.transaction():
        db.execute("select set_config('agent.invocation', %s, true)", [name])
        db.execute("update t set v = 'C'")
    with refused("22023"):
        db.execute("select agentundo.record_invocation(%s)", [name])
    assert_same(before, snapshot(db, *TABLES))
    assert scalar(db, "select count(*) from agentundo.invocations") == 1


@pytest.mark.parametrize("step", ["0", "-1", "1.5", "one", "99999999999", "1; drop table t"])
def test_bad_step_refuses_the_write(db: Connection, step: str) -> None:
    before = snapshot(db, *TABLES)
    with refused("22023"), db.transaction():
        db.execute("set local agent.invocation = 'x'")
        db.execute("select set_config('agent.step', %s, true)", [step])
        db.execute("update t set v = 'C'")
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("relation", ["nowhere", "a_view", "agentundo._change", "pg_class", "temp"])
@pytest.mark.parametrize("function", ["track", "untrack", "row_version", "erase"])
def test_relation_that_cannot_be_or_is_not_tracked(
    db: Connection, function: str, relation: str
) -> None:
    db.execute("create view a_view as select 1 as id; create temp table temp (id int primary key)")
    more = {"row_version": ", '{\"id\": 1}'", "erase": ", '{\"id\": 1}', 'why'"}.get(function, "")
    query = f"select agentundo.{function}('{relation}'{more})"
    if relation == "nowhere":
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.execute(query.encode())
    else:
        with refused("UN004"):
            db.execute(query.encode())
    assert rows(db, "select relation from agentundo.tracked") == [("public.t",)]


@pytest.mark.parametrize("capture", ["everything", "", "ALL"])
def test_capture_mode_that_does_not_exist(db: Connection, capture: str) -> None:
    db.execute("create table u (id int primary key)")
    with refused("22023"):
        db.execute("select agentundo.track('u', %s)", [capture])
    assert rows(db, "select relation from agentundo.tracked") == [("public.t",)]


def test_table_dropped_since(db: Connection) -> None:
    """What is gone cannot come back; the other tables of the call can, if that is asked for."""
    db.execute("create table u (id int primary key, v text); insert into u values (1, 'A')")
    db.execute("select agentundo.track('u')")
    write(db, "both", "update t set v = 'C'; update u set v = 'C'")
    db.execute("drop table u")
    before = snapshot(db, *TABLES)
    planned = {(row.relation, row.status, row.reason) for row in plan(db, "both")}
    assert planned == {("public.t", "ok", None), ("public.u", "conflict", "schema_changed")}
    with refused("UN001") as caught:
        revert(db, "both")
    assert caught.reasons == ["schema_changed"]
    with refused("UN001"):
        revert(db, "both", **FORCE)
    assert_same(before, snapshot(db, *TABLES))
    assert revert(db, "both", on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert rows(db, "select v from t") == [("B",)]


def test_other_table_under_the_name_of_a_dropped_one(db: Connection) -> None:
    db.execute("drop table t; create table t (id int primary key, v text)")
    db.execute("insert into t values (1, 'B')")
    before = snapshot(db, *TABLES)
    with refused("UN001") as caught:
        revert(db, "call")
    assert caught.reasons == ["schema_changed"]
    assert_same(before, snapshot(db, *TABLES))


CALLS = {
    "plan": "select * from agentundo.plan('call')",
    "plan_summary": "select * from agentundo.plan_summary(array['call'])",
    "revert": "select * from agentundo.revert('call', reverted_by => 'dana')",
    "revert_run": "select * from agentundo.revert_run('job', reverted_by => 'dana')",
    "redo": "select * from agentundo.redo('call', reverted_by => 'dana')",
    "diff": "select * from agentundo.diff('call')",
    "row_history": "select * from agentundo.row_history('public.t', '{\"id\": 1}')",
    "purge": "select agentundo.purge(interval '0')",
    "erase": "select agentundo.erase('public.t', '{\"id\": 1}', 'why')",
    "hold": "select agentundo.hold('call', 'why')",
    "track": "select agentundo.track('public.t')",
    "untrack": "select agentundo.untrack('public.t')",
    "set_merge": "select agentundo.set_merge('public.t', 'id', 'delta')",
    "set_scope_owner": "select agentundo.set_scope_owner('s', 'me')",
    "history": "select * from agentundo_history.t_1",
    "changes": "delete from agentundo._change",
}
#: What a role of each kind may do of these.
MAY = {
    None: set(),
    "agentundo_agent": set(),
    "agentundo_auditor": {"plan", "plan_summary", "diff", "row_history"},
    "agentundo_approver": set(),
}


@pytest.mark.parametrize("marker", MAY, ids=str)
def test_role_without_rights(
    db: Connection, connect: Connect, make_role: Any, marker: str | None
) -> None:
    """Also with all rights on the table itself."""
    role = make_role(member_of=marker)
    db.execute(f"grant all on t to {role}".encode())
    before = snapshot(db, *TABLES)
    ours = rows(db, "select change, invocation from agentundo._change")
    other = connect(user=role, options=IMPATIENT)
    for name, call in CALLS.items():
        if name in MAY[marker]:
            other.execute(call.encode())
            continue
        with pytest.raises(psycopg.Error) as raised:
            other.execute(call.encode())
        assert raised.value.sqlstate in ("UN003", "42501"), f"{name}: {raised.value}"
    assert_same(before, snapshot(db, *TABLES))
    assert rows(db, "select change, invocation from agentundo._change") == ours


def test_revert_in_a_read_only_transaction(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    db.execute("set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        revert(db, "call")
    db.execute("reset default_transaction_read_only")
    assert_same(before, snapshot(db, *TABLES))
