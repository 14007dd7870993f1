"""What the database says when it refuses, word for word, where no other test looks at the words.

tests/test_messages.py tells which messages are looked at nowhere.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.sessions import PATIENT, Session, failure
from tests.support.undo import IMPATIENT, refused, revert, scalar, tag, write

pytestmark = pytest.mark.core


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with a tracked table in which an agent has written a row."""
    conn = connect(options=IMPATIENT)
    conn.execute(
        "create table t (id int primary key, v int, note text);"
        "insert into t values (1, 1, 'one'), (2, 2, 'two');"
        "select agentundo.track('t')"
    )
    write(conn, "call", "update t set v = 10 where id = 1", on_behalf_of="dana", actor="bot")
    return conn


def said(conn: Connection, statement: str, code: str) -> str:
    """Return the message of a refusal that has a hint; what was done before it is undone."""
    with refused(code) as caught, conn.transaction(force_rollback=True):
        conn.execute(statement.encode())
    message: str = caught.message
    return message.removeprefix("agentundo: ")


#: Arguments that cannot be meant: all of them 22023.
NO_SUCH_ARGUMENT = {
    "track('t', 'sometimes')": "there is no capture mode 'sometimes'",
    "set_policy('may_revoke', null)": "there is no policy 'may_revoke'",
    "set_policy('may_revert', 'now()')": "now() cannot be the policy may_revert",
    "set_policy('may_revert', 'judge(text, text, text)')": (
        "public.judge(text,text,text) cannot be the policy may_revert:"
        " it would run with the rights of agentundo_worker"
    ),
    "set_scope_owner('', 'dana')": "the scope or the person is empty",
    "set_scope_owner('acme', '')": "the scope or the person is empty",
    "set_merge('t', 'gone', 'delta')": "public.t has no captured column 'gone'",
    "set_merge('t', 'v', 'sum')": "there is no merge rule 'sum'",
    "set_merge('t', 'note', 'delta')": (
        "column note of public.t is of type text, which has no differences to subtract"
    ),
    "set_trigger('t', 'stamp', 'hold')": "there is no trigger rule 'hold'",
    "set_trigger('t', 'stamp', 'fire')": "public.t has no trigger 'stamp' of yours",
    "revert('{}'::text[])": "no invocation was named",
    "plan_run('run', 0)": "from_step is 0, not a number from 1",
    "plan_run('run', null)": "from_step is NULL, not a number from 1",
    """erase('t', '{"id": 1}', '')""": "an erasure needs a reason",
    "record_invocation('b', run => 'run', step => 1)": "run 'run' has a step 1 already",
}


def test_arguments_that_cannot_be_meant(db: Connection) -> None:
    db.execute(
        "create function judge(text, text, text) returns boolean language sql as 'select true';"
        "select agentundo.record_invocation('a', run => 'run', step => 1)"
    )
    for call, message in NO_SUCH_ARGUMENT.items():
        assert said(db, f"select agentundo.{call}".replace("'judge'", "'judge(text,text,text)'"),
                    "22023") == message, call  # fmt: skip


#: Relations that cannot be tracked, by how they are made, and why.
UNFIT = {
    "v": ("create view v as select 1 as n", "it is a view; track the tables below it"),
    "mv": (
        "create materialized view mv as select 1 as n",
        "it is a materialized view; track the tables below it",
    ),
    "ft": (
        "create foreign data wrapper w; create server s foreign data wrapper w;"
        " create foreign table ft (n int) server s",
        "it is a foreign table; its rows live in another server",
    ),
    "s": ("create sequence s", "it is a sequence"),
    "t_pkey": ("", "it is an index"),
    "m_pkey": (
        "create table m (k int primary key) partition by list (k);"
        " create table m1 partition of m for values in (1)",
        "it is an index",
    ),
    "m1": ("", "it is a partition; track its root public.m"),
    "ct": ("create type ct as (n int)", "it is a composite type"),
    "tmp": ("create temp table tmp (n int)", "it is a temporary table; it ends with its session"),
    "pg_class": ("", "it is a system catalog"),
    "agentundo._change": ("", "it is one of our own tables"),
    "empty": ("create table empty ()", "it has no columns of its own to restore"),
    "ruled": (
        "create table ruled (n int); create rule r as on delete to ruled do instead nothing",
        "it has rules on INSERT, UPDATE or DELETE, under which rows cannot be put back",
    ),
    "odd": (
        "create access method odd_heap type table handler heap_tableam_handler;"
        " create table odd (n int) using odd_heap",
        "its access method is odd_heap, which has no row versions of the kind of heap",
    ),
    "4294967295": ("", "it does not exist"),
}


def test_relations_that_cannot_be_tracked(db: Connection) -> None:
    for name, (made, reason) in UNFIT.items():
        db.execute(made.encode())
        told = said(db, f"select agentundo.track('{name}')", "UN004")
        assert told.startswith("cannot track "), name
        assert told.endswith(f"{name}: {reason}"), name
    toast = scalar(db, "select reltoastrelid::regclass::text from pg_class where relname = 't'")
    told = said(db, f"select agentundo.track('{toast}')", "UN004")
    assert told == f"cannot track {toast}: it is a TOAST table"


def test_a_step_that_is_no_number(db: Connection) -> None:
    tagged = "select set_config('agent.invocation', 'a', true), set_config('agent.step', %s, true);"
    for step in ("soon", "0", "1.5", "1000000000"):
        statement = tagged.replace("%s", f"'{step}'") + "update t set v = 0"
        told = said(db, statement, "22023")
        assert told == f"agent.step is '{step}', not a whole number from 1 to 999999999"


def test_history_under_row_level_security(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    app = make_role(member_of="agentundo_app")
    db.execute(f"alter table t enable row level security; grant select on t to {app}".encode())
    query = """select agentundo.row_history('t', '{"id": 1}')"""
    told = said(connect(user=app), query, "UN003")
    assert told == f"row-level security of public.t binds {app}, and history does not carry it"


def test_what_is_not_there(db: Connection) -> None:
    write(db, "first", "update t set v = 20 where id = 2", run="run", step=1)
    assert said(db, "select agentundo.plan_run('other')", "UN002") == "there is no run 'other'"
    assert (
        said(db, "select agentundo.plan_run('run', 2)", "UN002")
        == "there is no run 'run' from step 2"
    )


def test_the_id_of_a_revert_is_taken(db: Connection) -> None:
    revert_id = revert(db, "call").revert_id
    message = said(db, f"select agentundo.record_invocation('{revert_id}')", "UN010")
    assert message == f"'{revert_id}' is the id of a revert"


def test_what_does_not_run_with_an_old_snapshot(db: Connection) -> None:
    begin = "set transaction isolation level repeatable read;"
    assert (
        said(db, f"{begin} select agentundo.purge()", "25001")
        == "purge does not run under REPEATABLE READ"
    )
    tagged = "select set_config('agent.invocation', 'call', true); truncate t"
    assert (
        said(db, f"{begin} {tagged}", "UN007")
        == "a tagged TRUNCATE of public.t is refused under REPEATABLE READ"
    )


def test_a_partition_that_nobody_has_seen(db: Connection) -> None:
    """Without our event triggers, as where the installer was no superuser."""
    db.execute(
        "create table m (k int primary key) partition by list (k);"
        "create table m1 partition of m for values in (1);"
        "select agentundo.track('m');"
        "drop event trigger agentundo_ddl; drop event trigger agentundo_drop;"
        "create table m2 partition of m for values in (2)"
    )
    tagged = "select set_config('agent.invocation', 'call', true);"
    assert (
        said(db, f"{tagged} insert into m values (2)", "UN008")
        == "partition public.m2 is not tracked yet; the write is refused"
    )
    assert (
        said(db, f"{tagged} truncate m", "UN008")
        == "partition public.m2 is not tracked yet; the tagged TRUNCATE is refused"
    )


def test_an_operator_does_not_decide_for_others_tables(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    owner, operator = make_role(), make_role(member_of="agentundo_operator")
    db.execute(
        f"create table theirs (id int primary key); alter table theirs owner to {owner};"
        f"create schema home authorization {owner}".encode()
    )
    conn = connect(user=operator, options=IMPATIENT)
    for call, message in {
        "track('theirs')": f"only its owner {owner} can have table public.theirs tracked",
        "_track('theirs', null)": "only its owner can have table public.theirs tracked",
        "untrack('t')": "only its owner can untrack public.t",
        "track_schema('home')": f"{operator} may not decide for schema home",
        f"_admit('{owner}', true)": f"{operator} does not act for {owner}",
        f"_drop_impostor('{owner}', 'x')": f"{operator} does not act for {owner}",
    }.items():
        assert said(conn, f"select agentundo.{call}", "UN003") == message, call


def test_a_schema_that_its_owner_would_have_to_open(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    owner, landlord = make_role(member_of="agentundo_operator"), make_role()
    db.execute(
        f"create schema let authorization {landlord};"
        f"create table let.room (id int primary key); alter table let.room owner to {owner};"
        f"grant usage on schema let to {owner}".encode()
    )
    message = said(
        connect(user=owner, options=IMPATIENT), "select agentundo.track('let.room')", "UN004"
    )
    assert message == "cannot track let.room: agentundo_worker may not look into schema let"


def test_who_may_not_revert(db: Connection, connect: Connect, make_role: MakeRole) -> None:
    agent, app = make_role(member_of="agentundo_agent"), make_role(member_of="agentundo_app")
    db.execute(f"grant agentundo_app to {agent}".encode())
    db.execute(
        f"grant select on t to {app};"
        f"grant execute on function agentundo.set_merge(regclass, name, text) to {app}".encode()
    )
    assert (
        said(connect(user=agent), "select agentundo.revert('call')", "UN003")
        == f"{agent} may not revert"
    )
    conn = connect(user=app)
    assert (
        said(conn, "select agentundo.revert('call', reverted_by => 'eve')", "UN003")
        == "'eve' may not revert invocation 'call'"
    )
    assert (
        said(conn, "select agentundo.set_merge('t', 'v', 'delta')", "UN003")
        == f"{app} may not decide for public.t"
    )
    assert (
        said(db, "select agentundo.revert('call', 'force', reason => 'so')", "UN003")
        == "force needs a person and a reason"
    )


def test_a_policy_that_cannot_be_asked(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    app = make_role(member_of="agentundo_app")
    db.execute(
        "create function judge(text, text, text) returns boolean language sql security definer"
        " return true; revoke execute on function judge from public"
    )
    register = "select agentundo.set_policy('may_revert', 'judge(text, text, text)')"
    assert (
        said(db, register, "UN003") == "agentundo_worker may not call public.judge(text,text,text)"
    )
    db.execute(f"grant execute on function judge to agentundo_worker; {register};".encode())
    db.execute("alter function judge security invoker")
    assert (
        said(connect(user=app), "select agentundo.revert('call', reverted_by => 'eve')", "UN003")
        == "the policy public.judge(text,text,text) would run with the rights of agentundo_worker"
    )


def test_rows_that_a_firing_trigger_keeps_away(db: Connection) -> None:
    """With an old snapshot only the caller can begin anew; else it is a conflict."""
    db.execute(
        "create function keep() returns trigger language plpgsql as 'begin return null; end';"
        "create trigger keep before update on t for each row execute function keep();"
        "select agentundo.set_trigger('t', 'keep', 'fire')"
    )
    db.execute("begin isolation level repeatable read")
    with pytest.raises(psycopg.errors.SerializationFailure) as raised:
        revert(db, "call")
    assert (
        raised.value.diag.message_primary == "agentundo: a row changed while it was being put back"
    )
    assert raised.value.diag.message_hint == "Call revert again."


def test_a_function_that_fails_while_rows_go_back(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """Only who may read all of the rows concerned is told what it said: it may quote them."""
    db.execute(
        "create function fail() returns trigger language plpgsql as"
        " $$ begin raise exception 'row % is mine', old.id; end $$;"
        "create trigger fail before update on t for each row execute function fail();"
        "select agentundo.set_trigger('t', 'fail', 'fire')"
    )
    told = said(db, "select agentundo.revert('call')", "UN001")
    assert told == "the rows cannot be put back: row 1 is mine"
    stranger = connect(user=make_role(member_of="agentundo_operator"), options=IMPATIENT)
    told = said(stranger, "select agentundo.revert('call')", "UN001")
    assert (
        told == "the rows cannot be put back: a function of these tables failed with SQLSTATE P0001"
    )


def test_more_rows_than_were_planned(db: Connection) -> None:
    """A foreign key that acts beyond its plan. No plan is to overlook one: by hand, therefore."""
    message = said(
        db,
        "select set_config('agent.invocation', 'revert', true),"
        " agentundo._expect(jsonb_build_object(id, jsonb_build_object('D', 1)))"
        " from agentundo._tracked; delete from t; select agentundo._compare(null, 'revert')",
        "UN001",
    )
    assert message == (
        "putting the rows back would reach further than planned: 2 rows of public.t instead of 1"
    )


def test_an_invocation_that_goes_on_writing(db: Connection, connect: Connect) -> None:
    """A write that commits while its revert waits is waited for once more, if there is time."""
    agent = Session(connect(options=PATIENT), db)
    reverter = Session(connect(options=PATIENT), db)
    try:
        agent.run("begin")
        tag(agent.conn, "call")
        agent.run("update t set v = 11 where id = 1")
        # Longer single waits than the patience for all of them together.
        reverter.run("set deadlock_timeout = '60s'", "set lock_timeout = '1ms'")
        running = reverter.later(revert, reverter.conn, "call")
        reverter.wait_until_blocked(running, by=agent)
        agent.run("commit")
        error = failure(running)
        assert error.sqlstate == "55P03"
        assert error.diag.message_primary == "agentundo: these invocations go on writing"
        assert "Let them end first" in str(error.diag.message_hint)
    finally:
        agent.close()
        reverter.close()
