"""Tags: what counts as set, how scopes nest, what is refused, whose tag a write gets."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import (
    assert_goes_back,
    changes,
    images,
    make_t,
    run,
    tag,
    value,
    write,
)
from tests.support.undo import refused, revert, rows
from tests.support.undo import tag as tag_with

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a table."""
    make_t(db, 2)
    return db


def _invocations(conn: Connection) -> list[str | None]:
    return [
        one for (one,) in rows(conn, "select invocation from agentundo.changes order by change")
    ]


def _bump(conn: Connection) -> None:
    run(conn, "update t set v = v + 1 where id = 1")


def test_every_companion_is_recorded(t: Connection) -> None:
    with t.transaction():
        tag_with(
            t,
            "inv",
            run="r",
            step=3,
            tool="update_deal",
            actor="bot",
            on_behalf_of="dana",
            scope="acme",
        )
        _bump(t)
    row = rows(
        t,
        "select id, run, step, tool, actor, on_behalf_of, scope, role::text, recorded, status,"
        " rows, relations from agentundo.invocations",
    )
    me = value(t, "select current_user::text")
    assert row == [
        (
            "inv",
            "r",
            3,
            "update_deal",
            "bot",
            "dana",
            "acme",
            me,
            False,
            "committed",
            1,
            ["public.t"],
        )
    ]


def test_plain_settings_do_the_same(t: Connection) -> None:
    with t.transaction():
        run(
            t,
            "set local agent.invocation = 'inv'",
            "set local agent.run = 'r'",
            "set local agent.step = '3'",
            "set local agent.tool = 'update_deal'",
            "set local agent.actor = 'bot'",
            "set local agent.on_behalf_of = 'dana'",
            "set local agent.scope = 'acme'",
        )
        _bump(t)
    assert rows(
        t,
        "select id, run, step, tool, actor, on_behalf_of, scope from agentundo.invocations",
    ) == [("inv", "r", 3, "update_deal", "bot", "dana", "acme")]


def test_the_first_statement_decides(t: Connection) -> None:
    for actor in ("first", "second"):
        with t.transaction():
            tag_with(t, "inv", actor=actor, run=f"run of {actor}")
            _bump(t)
    assert rows(t, "select actor, run from agentundo.invocations") == [("first", "run of first")]


def test_tag_leaves_no_companion_of_an_earlier_one(t: Connection) -> None:
    run(t, "set agent.actor = 'of the session'")
    with t.transaction():
        tag_with(t, "a", run="r", actor="x", step=9)
        tag_with(t, "inv")
        _bump(t)
    assert rows(t, "select id, run, actor, step from agentundo.invocations") == [
        ("inv", None, None, None)
    ]


def test_tag_ends_with_its_transaction(t: Connection) -> None:
    tag_with(t, "lost in autocommit")
    _bump(t)
    with t.transaction():
        tag_with(t, "inv")
    _bump(t)
    with t.transaction(force_rollback=True):
        tag_with(t, "inv")
        _bump(t)
    _bump(t)
    assert _invocations(t) == []
    assert images(t, "t") == {}


@pytest.mark.parametrize("tagged", ["tag", "set local"])
def test_scopes_nest(t: Connection, tagged: str) -> None:
    """After ROLLBACK TO the outer tag is back; after RELEASE it has to be set again."""

    def enter(invocation: str) -> None:
        if tagged == "tag":
            tag_with(t, invocation)
        else:
            run(t, f"set local agent.invocation = '{invocation}'")

    with t.transaction():
        enter("outer")
        _bump(t)
        run(t, "savepoint a")
        enter("inner")
        _bump(t)
        run(t, "savepoint b")
        enter("innermost")
        _bump(t)
        run(t, "rollback to b")
        _bump(t)
        run(t, "release a")
        _bump(t)
        run(t, "savepoint c")
        enter("gone")
        run(t, "rollback to c")
        _bump(t)
        enter("outer")
        _bump(t)
    assert _invocations(t) == ["outer", "inner", "inner", "inner", "inner", "outer"]


def test_each_scope_goes_back_alone(t: Connection) -> None:
    with t.transaction():
        tag_with(t, "outer")
        run(t, "update t set v = 10 where id = 1")
        with t.transaction():
            tag_with(t, "inner")
            run(t, "update t set v = 20 where id = 2")
    assert revert(t, "outer").counts == (0, 0, 1, 0, 0)
    assert rows(t, "select * from t order by id") == [(1, 1), (2, 20)]
    assert revert(t, "inner").counts == (0, 0, 1, 0, 0)
    assert rows(t, "select * from t order by id") == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "unset",
    [
        "set agent.invocation = ''",
        "reset agent.invocation",
        "set agent.invocation to default",
        "reset all",
        "discard all",
    ],
)
def test_unset_again(t: Connection, unset: str) -> None:
    run(t, "set agent.invocation = 'inv'")
    _bump(t)
    run(t, unset)
    _bump(t)
    run(t, "delete from t where id = 2", "insert into t values (3)", "truncate t")
    assert _invocations(t) == ["inv"]


def test_a_tag_of_the_session_spans_transactions(t: Connection) -> None:
    before = snapshot(t, "t")
    run(t, "set agent.invocation = 'inv'")
    _bump(t)
    _bump(t)
    run(t, "delete from t where id = 2", "reset agent.invocation")
    assert _invocations(t) == ["inv"] * 3
    assert_goes_back(t, before)


@pytest.mark.parametrize("companion", ["run", "actor", "tool", "scope", "on_behalf_of"])
def test_companions_without_an_invocation_capture_nothing(t: Connection, companion: str) -> None:
    with t.transaction():
        run(t, f"set local agent.{companion} = 'x'", "set local agent.step = 'not a number'")
        _bump(t)
    assert _invocations(t) == []


@pytest.mark.parametrize(
    "step", ["0", "-1", "1.5", "one", "99999999999999999999", "1e3", "0x10", "NaN", "²"]
)
@pytest.mark.parametrize(
    "statement",
    ["update t set v = 0", "insert into t values (3)", "delete from t", "truncate t"],
)
def test_bad_step_refuses_the_write(t: Connection, step: str, statement: str) -> None:
    before = snapshot(t, "t")
    with refused("22023") as caught, t.transaction():
        tag(t)
        t.execute("select set_config('agent.step', %s, true)", [step])
        run(t, statement)
    assert "agent.step" in caught.message
    assert_same(before, snapshot(t, "t"))
    assert changes(t) == []


def test_step_with_blanks_is_a_number(t: Connection) -> None:
    with t.transaction():
        tag(t)
        run(t, "set local agent.step = ' 12 '")
        _bump(t)
    assert value(t, "select step from agentundo.invocations") == 12


@pytest.mark.parametrize("invocation", ["x" * 256, "ü" * 128, "\N{PILE OF POO}" * 64])
@pytest.mark.parametrize(
    "statement",
    ["update t set v = 0", "insert into t values (3)", "delete from t", "truncate t"],
)
def test_id_over_255_bytes_refuses_the_write(
    t: Connection, invocation: str, statement: str
) -> None:
    before = snapshot(t, "t")
    with refused("22023") as caught, t.transaction():
        tag(t, invocation)
        run(t, statement)
    assert "255" in caught.message
    with refused("22023"), t.transaction():
        tag_with(t, invocation)
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize(
    "invocation",
    [
        "x" * 255,
        "ü" * 127,
        'it\'s "quoted"',
        "'; drop table t; --",
        "$$ $capture$ %s %I {0}",
        "line\nbreak\ttab",
        " ",
        "back\\slash",
        "\N{RIGHT-TO-LEFT OVERRIDE}abc",
        "NULL",
    ],
)
def test_id_of_any_characters(t: Connection, invocation: str) -> None:
    before = snapshot(t, "t")
    write(t, "update t set v = 0", "delete from t where id = 2", invocation=invocation)
    assert set(_invocations(t)) == {invocation}
    assert_goes_back(t, before, invocation)


@pytest.mark.parametrize("invocation", ["", None])
def test_tag_without_an_id(t: Connection, invocation: str | None) -> None:
    with refused("22023"):
        t.execute("select agentundo.tag(%s::text)", [invocation])


@pytest.mark.parametrize("step", [0, -1, 1_000_000_000])
def test_tag_with_a_bad_step(t: Connection, step: int) -> None:
    with refused("22023"):
        t.execute("select agentundo.tag('inv', step => %s)", [step])


def test_two_sessions_do_not_share_a_tag(t: Connection, connect: Connect) -> None:
    other = connect()
    run(t, "set agent.invocation = 'inv'")
    _bump(t)
    _bump(other)
    assert _invocations(t) == ["inv"]


def test_deferred_writes_belong_to_the_tag_in_force_at_commit(t: Connection) -> None:
    """So a scope that ends before the commit ends with SET CONSTRAINTS ALL IMMEDIATE."""
    run(
        t,
        "create table log (id int primary key, at text)",
        "create function late() returns trigger language plpgsql as $$ begin"
        " insert into log values (new.v, 'late'); return null; end $$",
        "create constraint trigger late after update on t deferrable initially deferred"
        " for each row execute function late()",
        "select agentundo.track('log')",
    )
    before = snapshot(t, "t", "log")
    with t.transaction():
        tag_with(t, "outer")
        with t.transaction():
            tag_with(t, "inner")
            run(
                t,
                "update t set v = 50 where id = 1",
                "set constraints all immediate",
                "set constraints all deferred",
            )
            tag_with(t, "outer")
        run(t, "update t set v = 60 where id = 2")
    assert rows(
        t, "select invocation, relation, operation from agentundo.changes order by change"
    ) == [
        ("inner", "public.t", "update"),
        ("inner", "public.log", "insert"),
        ("outer", "public.t", "update"),
        ("outer", "public.log", "insert"),
    ]
    revert(t, "inner")
    revert(t, "outer")
    assert_same(before, snapshot(t, "t", "log"))


def test_write_that_commits_after_the_revert_stays_undoable(
    t: Connection, connect: Connect
) -> None:
    """A revert takes what it saw; what becomes visible later under the id is not covered."""
    before = snapshot(t, "t")
    agent = connect(autocommit=False)
    write(t, "update t set v = 10 where id = 1")
    tag(agent)
    run(agent, "update t set v = 20 where id = 2")
    first = revert(t, "inv")
    assert first.counts == (0, 0, 1, 0, 0)
    agent.commit()
    assert rows(t, "select * from t order by id") == [(1, 1), (2, 20)]
    assert value(t, "select undoable from agentundo.invocations where id = 'inv'") is True
    second = revert(t, "inv")
    assert second.status == "reverted"
    assert second.revert_id != first.revert_id
    assert_same(before, snapshot(t, "t"))
    assert revert(t, "inv").status == "already_reverted"


# Two invocations in one transaction ----------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ("update t set v = 10 where id = 1", "row_rewritten"),
        ("update t set v = 11 where id = 1", "row_changed"),
        ("update t set v = 11 where id = 1; update t set v = 10 where id = 1", "row_rewritten"),
        ("delete from t where id = 1", "row_deleted"),
        ("delete from t where id = 1; insert into t values (1, 10)", "row_rewritten"),
    ],
)
@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize("by", ["another", "nobody"])
def test_later_write_in_the_same_transaction_is_seen(
    t: Connection, later: str, reason: str, capture: str, by: str
) -> None:
    """They share one row version, so only the order of captured changes tells them apart."""
    if by == "nobody" and capture == "agent" and reason == "row_rewritten":
        pytest.skip("not captured and equal in value: a limit that is documented")
    run(t, f"select agentundo.track('t', '{capture}')")
    with t.transaction():
        tag(t)
        run(t, "update t set v = 10 where id = 1")
        tag(t, "other" if by == "another" else "")
        run(t, *later.split("; "))
    before = snapshot(t, "t")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert caught.reasons == [reason]
    assert_same(before, snapshot(t, "t"))
    if by == "another":
        assert revert(t, "other").status == "reverted"
        assert rows(t, "select * from t order by id") == [(1, 10), (2, 2)]
        assert revert(t, "inv").status == "reverted"
        assert rows(t, "select * from t order by id") == [(1, 1), (2, 2)]


def test_earlier_untagged_write_in_the_same_transaction_stays(t: Connection) -> None:
    with t.transaction():
        run(t, "update t set v = 5 where id = 1", "insert into t values (3, 3)")
        tag(t)
        run(t, "update t set v = 10", "delete from t where id = 3")
        run(t, "set local agent.invocation = ''", "insert into t values (4, 4)")
    assert revert(t, "inv").status == "reverted"
    assert rows(t, "select * from t order by id") == [(1, 5), (2, 2), (3, 3), (4, 4)]


def test_error_of_capture_fails_only_the_tagged_statement(t: Connection, connect: Connect) -> None:
    other = connect()
    history = value(t, "select history from agentundo.tracked")
    run(t, f"alter table {history} rename column c2 to spoilt")
    before = snapshot(t, "t")
    with pytest.raises(psycopg.Error):
        write(t, "update t set v = 0")
    assert_same(before, snapshot(t, "t"))
    with t.transaction():
        run(t, "insert into t values (7, 7)")
        with pytest.raises(psycopg.Error):
            write(t, "update t set v = 0")
        run(t, "insert into t values (8, 8)")
    _bump(other)
    assert rows(t, "select * from t order by id") == [(1, 2), (2, 2), (7, 7), (8, 8)]


def test_history_removed_by_hand(t: Connection) -> None:
    """The tagged write says what to do, check() finds it, and everybody else goes on."""
    history = value(t, "select history from agentundo.tracked")
    run(t, f"drop table {history}")
    before = snapshot(t, "t")
    with pytest.raises(psycopg.Error) as caught:
        write(t, "update t set v = 0")
    said = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
    assert "agentundo" in said
    assert "public.t" in said
    assert_same(before, snapshot(t, "t"))
    _bump(t)
    problems = rows(t, "select severity, object, problem, hint from agentundo.check()")
    found = [row for row in problems if row[:2] == ("error", "public.t")]
    assert found
    assert "history" in found[0][2]
    run(t, "select agentundo.untrack('t', false)", "select agentundo.track('t')")
    before = snapshot(t, "t")
    write(t, "update t set v = 0")
    assert_goes_back(t, before)
