"""What is told of upkeep and of undos: events, settings, effects, holds, erasures, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.rows import dict_row

from tests.conftest import Connect, Connection, MakeRole
from tests.support.undo import Json, plan, redo, refused, revert, rows, scalar, write
from tests.support.undoing import track

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """A table with three rows."""
    db.execute("create table t (id int primary key, v int); insert into t values (1,1),(2,1),(3,1)")
    track(db, "t")
    return db


def told(db: Connection) -> list[tuple[str, str | None, Json]]:
    return rows(db, "select kind, invocation, payload from agentundo.events order by event")


# Events -------------------------------------------------------------------------------------------


def test_every_event_has_who_did_it(t: Connection, connect: Connect, make_role: MakeRole) -> None:
    """The role by which somebody logged in; the person where one was named."""
    role = make_role(member_of="agentundo_operator")
    hand = connect(user=role)
    write(t, "call", "update t set v = 2")
    revert(hand, "call", reverted_by="dana", reason="wrong")
    redo(hand, "call")
    hand.execute("select agentundo.hold('call', 'incident'), agentundo.hold('call', null)")
    t.execute(f"grant select on t to {role}".encode())
    hand.execute("select agentundo.erase('t', '{\"id\": 1}', 'request 7')")
    hand.execute("select agentundo.purge('0 s')")
    events = told(t)
    assert [kind for kind, _, _ in events] == [
        "invocation_reverted",
        "invocation_redone",
        "invocation_held",
        "hold_released",
        "row_erased",
        "history_purged",
    ]
    assert {payload["role"] for _, _, payload in events} == {role}
    assert [payload.get("by") for _, _, payload in events[:2]] == ["dana", None]


def test_a_redo_is_told_of_as_of_the_calls_that_it_does_again(t: Connection) -> None:
    write(t, "one", "update t set v = 2 where id = 1", run="r", tool="edit")
    write(t, "two", "update t set v = 2 where id = 2")
    first = revert(t, ["one", "two"])
    again = redo(t, "one", reverted_by="olaf")
    back = revert(t, str(again.revert_id))
    ((_, _, reverted), (kind, invocation, redone), (_, _, third)) = told(t)
    assert (kind, invocation) == ("invocation_redone", "one")
    assert redone["invocations"] == reverted["invocations"] == ["one", "two"]
    assert (redone["reverts"], reverted["reverts"]) == ([first.revert_id], None)
    assert (third["invocations"], third["reverts"]) == (["one", "two"], [again.revert_id])
    assert (redone["by"], redone["revert_id"]) == ("olaf", again.revert_id)
    assert back.invocations == [again.revert_id]
    assert rows(t, "select run, tool from agentundo.events where kind = 'invocation_redone'") == [
        ("r", "edit")
    ]


def test_releasing_what_is_not_held_is_no_event(t: Connection) -> None:
    write(t, "call", "update t set v = 2")
    for _ in range(2):
        assert scalar(t, "select agentundo.hold('call', null)") == 0
    assert scalar(t, "select agentundo.hold('call', 'incident')") == 1
    assert scalar(t, "select agentundo.hold('call', '')") == 1
    assert scalar(t, "select agentundo.hold('call', '')") == 0
    assert [kind for kind, _, _ in told(t)] == ["invocation_held", "hold_released"]


# Settings -----------------------------------------------------------------------------------------

#: Setting, value, what is wrong with it.
WRONG = [
    ("retention", "abc", "it is an interval such as '30 days'"),
    ("retention", "", "it is an interval such as '30 days'"),
    ("retention", "-1 day", "it must not be negative"),
    ("retention", "9999999 years", "it is an interval such as '30 days'"),
    ("detection_time", "soon", "it is an interval such as '30 days'"),
    ("cancel_window", "-5 s", "it must not be negative"),
    ("radius", "0", "it is a whole number from 1 to 999999999"),
    ("radius", "many", "it is a whole number from 1 to 999999999"),
    ("largest_undo", "all rows", "it is a number of rows such as '5000000 rows'"),
    ("notify", "yes", "it is on or off"),
]


@pytest.mark.parametrize(("setting", "value", "problem"), WRONG)
def test_a_setting_cannot_be_just_anything(
    t: Connection, setting: str, value: str, problem: str
) -> None:
    """Refused when it is written; where it got in all the same, nothing else stops at it."""
    change = "update agentundo._setting set value = %s where name = %s"
    with refused("22023") as caught:
        t.execute(change, [value, setting])
    assert caught.message == f"agentundo: the setting {setting} cannot be '{value}': {problem}"
    t.execute("alter table agentundo._setting disable trigger check_value")
    t.execute(change, [value, setting])
    write(t, "call", "update t set v = 2 where id = 1")
    assert scalar(t, "select undoable from agentundo.invocations") is True
    assert revert(t, "call").status == "reverted"
    found = rows(t, "select severity, object, problem from agentundo.check()")
    assert ("error", "agentundo", f"the setting {setting} is '{value}': {problem}") in found
    if setting == "retention":
        with refused("22023") as caught:
            t.execute("select agentundo.purge()")
        assert caught.message == "agentundo: the setting retention is not an age"
    assert scalar(t, "select invocations from agentundo.purge('0 s')") == 2


def test_settings_that_there_are(t: Connection) -> None:
    for setting, value in (
        ("retention", "1 year 2 mons"),
        ("detection_time", "0"),
        ("radius", "500"),
        ("notify", "off"),
        ("largest_undo", "10000000"),
        ("cancel_window", "PT15M"),
    ):
        t.execute("update agentundo._setting set value = %s where name = %s", [value, setting])
    assert rows(t, "select * from agentundo.check() where problem ~ 'setting'") == []
    with refused("22023") as caught:
        t.execute("insert into agentundo._setting values ('retension', '30 days')")
    assert caught.message == "agentundo: there is no setting 'retension'"
    t.execute("delete from agentundo._setting where name = 'retention'")
    assert rows(t, "select problem from agentundo.check() where problem ~ 'setting'") == [
        ("the setting retention is gone: it is missing",)
    ]
    write(t, "call", "update t set v = 2")
    assert rows(t, "select undo_by from agentundo.invocations") == [(None,)]


@pytest.mark.parametrize(
    ("age", "words"),
    [("-1 day", "-1 day"), ("-90 s", "-1 minute -30 seconds"), ("-1 year", "-1 year")],
)
def test_an_age_is_told_in_words(t: Connection, age: str, words: str) -> None:
    with refused("22023") as caught:
        t.execute("select agentundo.purge(%s)", [age])
    assert caught.message == f"agentundo: {words} is not an age"


# Effects ------------------------------------------------------------------------------------------


def test_an_application_is_told_the_effects_of_its_scope(
    t: Connection, connect: Connect, make_role: MakeRole
) -> None:
    app = connect(user=make_role(member_of="agentundo_app"))
    write(t, "ours", "update t set v = 2 where id = 1", scope="m")
    write(t, "theirs", "update t set v = 2 where id = 2", scope="other")
    for call in ("ours", "theirs", "ours"):
        t.execute("select agentundo.record_effect(%s, 'mail', 'none', 'sent')", [call])
    ask = "select * from agentundo.effects_of(%s::text[], %s)"
    with app.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(ask, [["ours"], "m"]).fetchall()
    assert [(one["invocation"], one["name"], one["summary"]) for one in found] == [
        ("ours", "mail", "sent")
    ] * 2
    for ids, scope in ((["ours", "theirs"], "m"), (["ours"], None), (["nobody"], "m")):
        with refused("UN002"):
            app.execute(ask, [ids, scope])
    with refused("22023"):
        app.execute(ask, [[], "m"])
    assert len(t.execute(ask, [["ours", "theirs"], None]).fetchall()) == 3
    columns = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
    in_view = {name for (name,) in rows(t, columns, "agentundo.effects")}
    assert in_view == {name for (name,) in rows(t, columns, "agentundo.effect_row")}


# Erasures -----------------------------------------------------------------------------------------


def test_a_row_whose_key_was_erased_has_one(t: Connection) -> None:
    write(t, "call", "update t set v = 2 where id = 1")
    t.execute("select agentundo.erase('t', '{\"id\": 1}', 'request 7')")
    assert [(row.key, row.reason) for row in plan(t, "call")] == [(None, "erased")]
    with refused("UN001") as caught:
        revert(t, "call")
    assert "public.t (a row whose key was erased, too): erased" in caught.message


@pytest.mark.parametrize("undone", [False, True])
def test_history_that_was_erased_whole_is_no_broken_dump(t: Connection, undone: bool) -> None:
    write(t, "call", "update t set v = 2 where id = 1")
    if undone:  # which has no images of its own
        revert(t, "call")
    t.execute("select agentundo.erase('t', '{\"id\": 1}', 'request 7')")
    assert rows(t, "select * from agentundo_history.t_1") == []
    assert rows(t, "select * from agentundo.check()") == []
    write(t, "call", "update t set v = 2 where id = 2")
    t.execute("delete from agentundo_history.t_1")
    [found] = rows(t, "select severity, problem from agentundo.check()")
    told = "its history is empty, though changes of it are known: none of them can be undone"
    assert found == ("error", told)


def test_a_row_whose_key_is_not_shown_has_one(
    t: Connection, connect: Connect, make_role: MakeRole
) -> None:
    hand = connect(user=make_role(member_of="agentundo_operator"))
    write(t, "call", "update t set v = 2 where id = 1")
    t.execute("update t set v = 3 where id = 1")
    with refused("UN001") as caught:
        revert(hand, "call")
    assert "t (a row whose key is not shown): row_changed" in caught.message


# Refusals -----------------------------------------------------------------------------------------


def test_a_refusal_looks_at_what_the_role_is(
    t: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """Who is an app and an agent must not be told to be an app."""

    def hints(role: str, *statements: str) -> list[str]:
        conn, found = connect(user=role), []
        for statement in statements:
            with refused("UN003") as caught:
                conn.execute(statement.encode())
            found.append(caught.hint)
        return found

    write(t, "call", "update t set v = 2 where id = 1")
    plans, reverts = "select agentundo.undoable()", "select agentundo.revert('call')"
    both: Any = make_role(member_of="agentundo_app")
    t.execute(f"grant agentundo_agent to {both}".encode())
    agent = f"{both} is a member of agentundo_agent, and an agent may not, whatever else it is."
    for hint in hints(both, plans, reverts):
        assert hint.startswith(agent)
        assert hint.endswith(f'run "revoke agentundo_agent from {both}".')
    app = make_role(member_of="agentundo_app")
    t.execute(f"grant execute on function agentundo.hold to {app}".encode())
    (hint,) = hints(app, "select agentundo.hold('call', 'x')")
    assert hint.startswith(f"{app} is a member of agentundo_app, which is not enough. This is for")
    nobody = make_role()
    t.execute(
        f"grant usage on schema agentundo to {nobody};"
        f" grant execute on function agentundo.undoable to {nobody}".encode()
    )
    (hint,) = hints(nobody, plans)
    assert hint.startswith("Grant agentundo_app, agentundo_operator or agentundo_auditor to")


# Tables that are not tracked ----------------------------------------------------------------------


def test_what_a_savepoint_rolled_back_is_not_uncovered(t: Connection) -> None:
    """Whatever wrote it, to whatever kind of table; what was written besides is."""
    t.execute(
        "create table parted (id int) partition by list (id);"
        "create table part_1 partition of parted for values in (1);"
        "create table part_2 partition of parted for values in (2);"
        "create table master (id int primary key);"
        "create table child (m int references master on delete cascade);"
        "insert into master values (1), (2); insert into child values (1), (2);"
        "create table gone (id int); create table kept (id int); create table freed (id int)"
    )
    t.execute("select agentundo.record_invocation('call')")
    with t.transaction():
        t.execute("select agentundo.tag('call')")
        t.execute("update t set v = 2")
        t.execute("savepoint a; insert into gone values (1); insert into parted values (1)")
        t.execute("rollback to savepoint a")
        t.execute("savepoint b; insert into freed values (1); release savepoint b")
        t.execute("insert into kept values (1); insert into parted values (2)")
        t.execute(
            "do $$ begin insert into gone values (1); raise; exception when others then end $$"
        )
        t.execute("delete from master where id = 1")
        t.execute("select agentundo.commit_invocation('call')")
    (uncovered,) = rows(t, "select uncovered from agentundo.invocations where id = 'call'")[0]
    assert uncovered == [f"public.{one}" for one in ("child", "freed", "kept", "master", "part_2")]


def test_what_an_earlier_transaction_wrote_is_not_uncovered(t: Connection) -> None:
    """The session's statistics hold its writes of the last second, until they are reported."""
    t.execute("create table scratch (id int)")
    counted = (
        "select exists (select from pg_stat_xact_user_tables"
        " where relname = 'scratch' and n_tup_ins > 0)"
    )
    for n in range(20):
        earlier, later = f"earlier {n}", f"later {n}"
        for call, table in ((earlier, "insert into scratch values (1)"), (later, "")):
            t.execute("select agentundo.record_invocation(%s)", [call])
            with t.transaction():
                t.execute("select agentundo.tag(%s)", [call])
                t.execute("update t set v = v + 1")
                t.execute(table.encode())
                (still,) = rows(t, counted)[0]
                t.execute("select agentundo.commit_invocation(%s)", [call])
        query = "select uncovered from agentundo.invocations where id = any (%s) order by id"
        assert rows(t, query, [earlier, later]) == [(["public.scratch"],), ([],)]
        if still:
            return
    pytest.fail("the statistics of an earlier transaction never were there")


def test_a_nested_tag_is_uncovered_of_both(t: Connection) -> None:
    """Not as it should be, see the limits: a table written under a nested tag only."""
    t.execute("create table scratch (id int)")
    t.execute("select agentundo.record_invocation('outer'), agentundo.record_invocation('inner')")
    companions = ("agent.invocation", "agentundo.baseline")
    with t.transaction():
        t.execute("select agentundo.tag('outer')")
        t.execute("update t set v = 2")
        before = [rows(t, "select current_setting(%s)", name)[0][0] for name in companions]
        t.execute("select agentundo.tag('inner')")
        t.execute("insert into scratch values (1)")
        t.execute("select agentundo.commit_invocation('inner')")
        for name, value in zip(companions, before, strict=True):
            t.execute("select set_config(%s, %s, true)", [name, value])
        t.execute("select agentundo.commit_invocation('outer')")
    query = "select distinct uncovered from agentundo.invocations where id in ('outer', 'inner')"
    assert rows(t, query) == [(["public.scratch"],)]
