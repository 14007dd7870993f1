"""Roles that are members of agentundo_agent are captured whatever they set, or do not set."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import assert_goes_back, changes, images, run, value
from tests.support.undo import refused, revert, revert_run, rows

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a table that everybody may write."""
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2), (3, 3)",
        "grant select, insert, update, delete, truncate on t to public",
        "select agentundo.track('t')",
    )
    return db


@pytest.fixture
def agent(make_role: MakeRole) -> str:
    """Make an agent's role."""
    return make_role(member_of="agentundo_agent")


def _seen(conn: Connection) -> list[tuple[str, str, str]]:
    return rows(conn, "select invocation, run, role::text from agentundo.changes order by change")


def test_transaction_is_an_invocation_and_session_a_run(
    t: Connection, connect: Connect, agent: str
) -> None:
    before = snapshot(t, "t")
    one, two = connect(user=agent), connect(user=agent)
    with one.transaction():
        run(one, "update t set v = 10 where id = 1", "delete from t where id = 2")
        with one.transaction():
            run(one, "insert into t values (4, 4)")
    run(one, "update t set v = 30 where id = 3")
    run(two, "insert into t values (5, 5)")
    seen = _seen(t)
    invocations = [invocation for invocation, _, _ in seen]
    runs = [run for _, run, _ in seen]
    assert all(invocations)
    assert all(runs)
    assert invocations[0] == invocations[1] == invocations[2]
    assert len(set(invocations)) == 3
    assert runs[0] == runs[1] == runs[2] == runs[3] != runs[4]
    assert {role for _, _, role in seen} == {agent}
    assert rows(
        t, "select id, run, role::text from agentundo.invocations order by first_write_at"
    ) == [(i, r, agent) for i, r in dict.fromkeys(zip(invocations, runs, strict=True))]
    after = snapshot(t, "t")
    # one transaction, then a whole session, then the other one
    assert revert(t, invocations[0]).counts == (1, 1, 1, 0, 0)
    assert revert_run(t, runs[0]).status == "reverted"
    assert rows(t, "select * from t order by id") == [(1, 1), (2, 2), (3, 3), (5, 5)]
    assert revert_run(t, runs[4]).status == "reverted"
    assert_same(before, snapshot(t, "t"))
    assert after != before


@pytest.mark.parametrize(
    "statement",
    [
        "insert into t values (9, 9)",
        "update t set v = v + 1",
        "delete from t",
        "truncate t",
        "with a as (delete from t where id = 1) update t set v = 5 where id = 2",
    ],
)
@pytest.mark.parametrize("capture", ["agent", "all"])
def test_every_statement_of_an_agent(
    t: Connection, connect: Connect, agent: str, statement: str, capture: str
) -> None:
    run(t, f"select agentundo.track('t', '{capture}')")
    before = snapshot(t, "t")
    run(connect(user=agent), statement)
    (invocation,) = {invocation for invocation, _, _ in _seen(t)}
    assert_goes_back(t, before, invocation)


def test_a_tag_of_the_agent_counts(t: Connection, connect: Connect, agent: str) -> None:
    before = snapshot(t, "t")
    conn = connect(user=agent)
    with conn.transaction():
        conn.execute("select agentundo.tag('inv', run => 'r', actor => 'bot')")
        run(conn, "update t set v = 0")
    assert _seen(t) == [("inv", "r", agent)]
    with conn.transaction():
        run(conn, "set local agent.invocation = 'plain'", "delete from t where id = 1")
    assert changes(t, "plain") == [("public.t", "delete", 1)]
    revert(t, "plain")
    assert_goes_back(t, before)


def test_companions_of_an_agent_without_a_tag(t: Connection, connect: Connect, agent: str) -> None:
    conn = connect(user=agent)
    run(conn, "set agent.actor = 'bot'", "set agent.scope = 'acme'", "delete from t where id = 1")
    assert rows(t, "select actor, scope, role::text from agentundo.invocations") == [
        ("bot", "acme", agent)
    ]


@pytest.mark.parametrize("empty", ["set agent.invocation = ''", "reset all", "discard all"])
def test_an_agent_cannot_unset_itself(
    t: Connection, connect: Connect, agent: str, empty: str
) -> None:
    conn = connect(user=agent)
    run(conn, "set agent.invocation = 'inv'", empty, "delete from t where id = 1")
    ((invocation, run_id, _),) = _seen(t)
    assert invocation not in ("inv", "")
    assert run_id


def test_member_of_a_member(t: Connection, connect: Connect, make_role: MakeRole) -> None:
    group = make_role(member_of="agentundo_agent")
    member = make_role(member_of=group)
    run(connect(user=member), "delete from t where id = 1")
    assert len(_seen(t)) == 1


def test_noinherit_makes_no_difference(
    t: Connection, connect: Connect, make_role: MakeRole
) -> None:
    member = make_role("noinherit", member_of="agentundo_agent")
    run(connect(user=member), "delete from t where id = 1")
    assert len(_seen(t)) == 1


def test_others_are_not_captured(t: Connection, connect: Connect, make_role: MakeRole) -> None:
    app = make_role(member_of="agentundo_app")
    nobody = make_role()
    for name in (app, nobody):
        conn = connect(user=name)
        run(
            conn, "update t set v = v + 1", "insert into t values (9)", "delete from t where id = 9"
        )
    assert _seen(t) == []


def test_superusers_are_never_agents(t: Connection, connect: Connect, make_role: MakeRole) -> None:
    """To pg_has_role() a superuser is a member of everything."""
    other = make_role("superuser")
    run(t, "update t set v = v + 1", "truncate t", "insert into t values (1, 1)")
    run(connect(user=other), "update t set v = v + 1", "truncate t", "insert into t values (2)")
    assert _seen(t) == []


def test_set_role_to_an_agent(
    t: Connection, connect: Connect, make_role: MakeRole, agent: str
) -> None:
    """Behind a pool the session belongs to somebody else; the role in force counts."""
    before = snapshot(t, "t")
    pool = make_role()
    run(t, f"grant {agent} to {pool}")
    conn = connect(user=pool)
    # A member of the agent's role is an agent itself, before it sets anything.
    run(t, "set role " + agent, "update t set v = v + 1", "reset role", "update t set v = v")
    run(conn, f"set role {agent}", "delete from t where id = 1", "reset role")
    seen = _seen(t)
    assert len(seen) == 2
    revert(t, seen[1][0])
    assert revert(t, seen[0][0], on_conflict="force", reverted_by="dana", reason="test").status
    assert_same(before, snapshot(t, "t"))


def test_set_role_away_from_an_agent(t: Connection, connect: Connect, make_role: MakeRole) -> None:
    """The session is still the agent's."""
    plain = make_role()
    agent = make_role(member_of="agentundo_agent")
    run(t, f"grant {plain} to {agent}")
    conn = connect(user=agent)
    run(conn, f"set role {plain}", "delete from t where id = 1")
    assert len(_seen(t)) == 1


def test_set_local_role(t: Connection, agent: str) -> None:
    with t.transaction():
        run(t, f"set local role {agent}", "delete from t where id = 1")
    run(t, "delete from t where id = 2")
    assert len(_seen(t)) == 1


def test_definer_function_called_by_an_agent(t: Connection, connect: Connect, agent: str) -> None:
    """A function that runs as somebody else does not hide who called it."""
    run(
        t,
        "create function wipe() returns void language sql security definer"
        " begin atomic delete from t; end",
        f"grant execute on function wipe() to {agent}",
    )
    before = snapshot(t, "t")
    run(connect(user=agent), "select wipe()")
    ((invocation, _, role),) = _seen(t)
    assert role == agent
    assert_goes_back(t, before, invocation)


def test_agent_may_not_read_or_write_what_is_ours(
    t: Connection, connect: Connect, agent: str
) -> None:
    conn = connect(user=agent)
    run(conn, "delete from t where id = 1")
    ((invocation, _, _),) = _seen(t)
    history = value(t, "select history from agentundo.tracked")
    for statement in (
        f"truncate {history}",
        f"delete from {history}",
        f"select * from {history}",
        "delete from agentundo._change",
        "truncate agentundo._change",
        "insert into agentundo._restoring values (pg_current_xact_id(), 1, 'D', 1, 0)",
        "insert into agentundo._change (tracked, relation, rows, depth, operation)"
        " values (1, 't', 1, 1, 'D')",
        f"select agentundo.revert('{invocation}')",
        f"select agentundo.plan('{invocation}')",
        "select agentundo.untrack('t')",
        "select agentundo.purge('0 s')",
        "alter table t disable trigger agentundo_delete",
        "drop trigger agentundo_delete on t",
        "alter table t disable trigger all",
        "set session_replication_role = replica",
    ):
        with pytest.raises(Exception, match=r"denied|owner|may not"):
            run(conn, statement)
    assert images(t, "t") == {"O": 1}


def test_an_agent_reads_nothing_whatever_else_it_is(
    t: Connection, connect: Connect, agent: str
) -> None:
    run(t, f"grant agentundo_app to {agent}", f"grant select on t to {agent}")
    conn = connect(user=agent)
    run(conn, "delete from t where id = 1")
    ((invocation, _, _),) = _seen(t)
    for question in (
        f"agentundo.plan('{invocation}')",
        f"agentundo.plan(array['{invocation}'])",
        f"agentundo.plan_summary(array['{invocation}'])",
        f"agentundo.diff('{invocation}')",
        "agentundo.undoable()",
        f"agentundo.effects_of(array['{invocation}'])",
        "agentundo.row_history('t', '{\"id\": 1}')",
        "agentundo.row_version('t', '{\"id\": 2}')",
        "agentundo.row_writer('t', '{\"id\": 1}')",
    ):
        with refused("UN003") as caught:
            run(conn, f"select * from {question}")
        assert caught.refusal.message == f"agentundo: {agent} may not read what was captured"
    with refused("UN003"):
        revert(conn, invocation)


def test_restoring_setting_alone_hides_nothing(t: Connection, connect: Connect, agent: str) -> None:
    """The hint under which a revert counts instead of storing cannot be used by anybody else."""
    before = snapshot(t, "t")
    conn = connect(user=agent)
    with conn.transaction():
        run(
            conn,
            "set local agentundo.restoring = 'on'",
            "set local agentundo.internal = 'on'",
            "update t set v = 0",
            "delete from t where id = 2",
            "insert into t values (7)",
        )
    ((invocation,),) = set(rows(t, "select invocation from agentundo.changes"))
    assert_goes_back(t, before, invocation)


def _ran_as_others(conn: Connection, agent: str) -> list[tuple[str, str]]:
    return rows(conn, "select distinct who, what from evil.trace where who <> %s", agent)


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_search_path_is_no_way_in(
    t: Connection, connect: Connect, make_role: MakeRole, agent: str, capture: str
) -> None:
    """Functions and operators in front of pg_catalog would run as our owner, or hide the write."""
    run(
        t,
        f"select agentundo.track('t', '{capture}')",
        f"create schema evil authorization {agent}",
        f"grant create on schema evil to {agent}",
    )
    conn = connect(user=agent)
    run(
        conn,
        "create table evil.trace (who text, what text)",
        "grant all on evil.trace to public",
        "grant usage on schema evil to public",
    )
    functions = {
        "nextval(regclass)": "bigint",
        "nextval(text)": "bigint",
        "count(bigint)": "bigint",
        "current_setting(text)": "text",
        "current_setting(text, boolean)": "text",
        "octet_length(text)": "int",
        "left(text, int)": "text",
        "to_regrole(text)": "regrole",
        "pg_has_role(name, oid, text)": "boolean",
        "pg_trigger_depth()": "int",
        "pg_relation_filenode(regclass)": "oid",
        "pg_current_xact_id()": "xid8",
        "clock_timestamp()": "timestamptz",
        "coalesce_(text)": "text",
    }
    for signature, kind in functions.items():
        run(
            conn,
            f"create function evil.{signature} returns {kind} language plpgsql as"
            f" $$ begin insert into evil.trace values (current_user, '{signature}');"
            f" return null; end $$",
        )
    kinds_of_operands = (
        "text, text",
        "int, int",
        "bigint, bigint",
        '"char", "char"',
        "name, name",
        "boolean, boolean",
        "oid, oid",
    )
    for number, kinds in enumerate(kinds_of_operands):
        run(
            conn,
            f"create function evil.op_{number}({kinds}) returns boolean language plpgsql as"
            f" $$ begin insert into evil.trace values (current_user, 'operator {kinds}');"
            f" return false; end $$",
        )
        left, right = kinds.split(", ")
        for operator in ("=", "<>", ">", "<"):
            run(
                conn,
                f"create operator evil.{operator} (leftarg = {left}, rightarg = {right},"
                f" function = evil.op_{number})",
            )
    before = snapshot(t, "t")
    with conn.transaction():
        run(
            conn,
            "set local search_path = evil, pg_catalog, public",
            "insert into public.t values (9, 9)",
            "update public.t set v = 0",
            "delete from public.t where id operator(pg_catalog.=) 1",
        )
    seen = _seen(t)
    assert [role for _, _, role in seen] == [agent] * 3
    # The statements themselves may have met the agent's own operators, as the agent.
    assert _ran_as_others(t, agent) == []
    assert_goes_back(t, before, seen[0][0])
    with conn.transaction():
        run(conn, "set local search_path = evil, pg_catalog, public", "truncate public.t")
    assert _ran_as_others(t, agent) == []
    assert_goes_back(t, before, _seen(t)[-1][0])


def test_agent_may_not_shadow_through_pg_temp(t: Connection, connect: Connect, agent: str) -> None:
    before = snapshot(t, "t")
    conn = connect(user=agent)
    run(
        conn,
        "create temp table _change (x int)",
        "create temp table t (id int, v int)",
        "create temp table pg_class (oid oid)",
        "create function pg_temp.pg_has_role(name, oid, text) returns boolean language sql"
        " as 'select false'",
        "set search_path = pg_temp, public, pg_catalog",
        "update public.t set v = 0",
    )
    ((invocation, _, _),) = _seen(t)
    assert_goes_back(t, before, invocation)


def test_app_without_usage_and_without_search_path(
    t: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """A writer needs no right of ours, and no search_path, also with a tag."""
    before = snapshot(t, "t")
    app = make_role()
    conn = connect(user=app)
    run(conn, "set search_path = ''")
    with pytest.raises(Exception, match="permission denied for schema agentundo"):
        run(conn, "select agentundo.version()")
    with conn.transaction():
        run(
            conn,
            "set local agent.invocation = 'inv'",
            "update public.t set v = 0",
            "insert into public.t values (9)",
            "delete from public.t where id = 1",
        )
    assert changes(t) == [
        ("public.t", "update", 3),
        ("public.t", "insert", 1),
        ("public.t", "delete", 1),
    ]
    with conn.transaction():
        run(conn, "set local agent.invocation = 'inv'", "truncate public.t")
    assert_goes_back(t, before)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_agent_cannot_truncate_past_its_snapshot(
    t: Connection, connect: Connect, agent: str, level: str
) -> None:
    conn = connect(user=agent)
    run(conn, f"set default_transaction_isolation = '{level}'")
    with refused("UN007"):
        run(conn, "truncate t")
    assert rows(t, "select count(*) from t") == [(3,)]


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize(
    "statement",
    [
        "update t set v = 0 where set_config('agent.invocation', '', true) is not null",
        "update t set v = 0 returning set_config('agent.invocation', '', false)",
        "delete from t where set_config('agent.invocation', '', false) is not null",
        "with x as materialized (select set_config('agent.invocation', '', true)) insert into t"
        " select 9, 9 from x",
    ],
)
def test_a_statement_that_takes_off_its_tag_is_captured(
    t: Connection, connect: Connect, agent: str, statement: str, capture: str
) -> None:
    """Tags are read at the end of a statement: by then it may have changed them."""
    run(t, f"select agentundo.track('t', '{capture}')")
    before = snapshot(t, "t")
    conn = connect(user=agent)
    with conn.transaction():
        run(conn, "set local agent.invocation = 'inv'", statement)
    ((invocation, _, role),) = _seen(t)
    assert role == agent
    assert invocation not in ("inv", "")
    assert_goes_back(t, before, invocation)


def test_a_role_is_given_its_name_by_a_superuser(
    t: Connection, connect: Connect, agent: str, make_role: MakeRole, pg_major: int
) -> None:
    """By ALTER ROLE … SET; from PostgreSQL 15 on also by whom GRANT SET ON PARAMETER lets."""
    hand = connect(user=agent)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(hand, f"alter role {agent} set agent.actor = 'somebody else'")
    if pg_major >= 15:
        keeper = make_role("createrole")
        run(t, f"grant set on parameter agent.actor to {keeper}")
        run(t, f"grant {agent} to {keeper}" + (" with admin option" if pg_major >= 16 else ""))
        run(connect(user=keeper), f"alter role {agent} set agent.actor = 'bot'")
    else:
        run(t, f"alter role {agent} set agent.actor = 'bot'")
    run(connect(user=agent), "delete from t where id = 1")
    assert rows(t, "select actor from agentundo.invocations") == [("bot",)]
    if pg_major >= 15:
        run(t, f"revoke set on parameter agent.actor from {keeper}")
