"""Later work of others is seen, named and left alone, whoever did it and whenever it came."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.deals import TABLES
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    FORCE,
    Refusal,
    plan,
    redo,
    refused,
    revert,
    revert_as_planned,
    rows,
    scalar,
    status,
    tag,
    write,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Make deals and notes to them, both tracked."""
    db.execute("create table deals (id int primary key, stage text, owner text, code text unique)")
    db.execute("create table notes (id int primary key, deal int references deals, body text)")
    db.execute("insert into deals select n, 'New', 'eve', 'c' || n from generate_series(1, 6) n")
    db.execute("insert into notes values (1, 1, 'first'), (2, 2, 'second')")
    db.execute("select agentundo.track('deals'), agentundo.track('notes')")
    return db


def blocked(db: Connection, other: Connection) -> bool:
    """Return whether a connection waits for a lock."""
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return bool(scalar(db, query, other.info.backend_pid))


class Asking(threading.Thread):
    """A revert that runs beside the test and may have to wait."""

    def __init__(self, conn: Connection, what: str | list[str], **arguments: Any) -> None:
        super().__init__(daemon=True)
        self.conn, self.what, self.arguments = conn, what, arguments
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = revert(self.conn, self.what, **self.arguments)
        except psycopg.Error as error:
            self.outcome = error

    def wait(self) -> Any:
        """Return the result or the error."""
        self.join(30)
        assert not self.is_alive(), "the revert does not come back"
        return self.outcome


# Later work -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"on_conflict": "cascade"}, {"on_conflict": "skip"}])
@pytest.mark.parametrize(
    "later",
    [
        "update deals set stage = 'Negotiation' where id = 1",
        "update deals set owner = 'mia' where id = 1",
        "update deals set stage = stage where id = 1",
        "delete from notes where deal = 1; delete from deals where id = 1",
        "update deals set id = 100 where id = 3",
        "update deals set stage = 'x' where id = 7",
        "insert into deals values (2, 'Mine', 'mia', 'c2')",
        "insert into deals values (8, 'Mine', 'mia', 'c2')",
        "insert into notes values (9, 7, 'about the new one')",
    ],
)
def test_later_work_is_never_overwritten_without_force(
    deals: Connection, later: str, arguments: dict[str, Any]
) -> None:
    """Whatever a revert does to the other rows, what a person has written stays as it is."""
    write(
        deals,
        "agent",
        "update deals set stage = 'Won' where id in (1, 3); delete from notes where id = 2;"
        " delete from deals where id = 2; insert into deals values (7, 'New', 'bot', 'c7')",
    )
    before = {table: set(state.rows) for table, state in snapshot(deals, *TABLES).items()}
    deals.execute(later.encode())
    after = {table: set(state.rows) for table, state in snapshot(deals, *TABLES).items()}
    mine = {table: after[table] - before[table] for table in TABLES}
    gone = {table: before[table] - after[table] for table in TABLES}
    outcome = revert_as_planned(deals, TABLES, "agent", **arguments)
    now = {table: set(state.rows) for table, state in snapshot(deals, *TABLES).items()}
    for table in TABLES:
        assert mine[table] <= now[table], "a person's row is not as he left it"
        assert not gone[table] & now[table], "a row that a person removed is back"
    if isinstance(outcome, Refusal):
        assert now == after
    else:
        assert (outcome.status, outcome.conflicts) == ("partially_reverted", 1)


def test_changes_of_other_rows_are_no_conflict(deals: Connection) -> None:
    write(deals, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    deals.execute("update deals set stage = 'Lost' where id > 2; delete from deals where id = 6")
    deals.execute("insert into deals values (9, 'New', 'mia', 'c9')")
    outcome = revert_as_planned(deals, TABLES, "agent")
    assert outcome.status == "reverted"  # type: ignore[union-attr]
    assert rows(deals, "select id, stage from deals order by id") == [
        (1, "New"),
        (2, "New"),
        (3, "Lost"),
        (4, "Lost"),
        (5, "Lost"),
        (9, "New"),
    ]


@pytest.mark.parametrize("together", [True, False], ids=["one transaction", "several"])
def test_unit_is_no_conflict_with_itself(deals: Connection, together: bool) -> None:
    before = snapshot(deals, *TABLES)
    statements = [
        "update deals set stage = 'a'",
        "update deals set stage = 'b' where id < 4",
        "update deals set stage = 'b', owner = 'bot' where id < 3",
        "update deals set stage = 'b' where id < 2",
        "delete from deals where id = 3",
        "insert into deals values (3, 'z', 'bot', 'c3')",
        "update deals set code = 'd' || id",
    ]
    for statement in ["; ".join(statements)] if together else statements:
        write(deals, "agent", statement)
    assert revert_as_planned(deals, TABLES, "agent").status == "reverted"  # type: ignore[union-attr]
    assert_same(before, snapshot(deals, *TABLES))


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_value_changed_and_changed_back_is_later_work(deals: Connection, capture: str) -> None:
    """The row looks as the agent left it, but somebody has decided that it should."""
    deals.execute("select agentundo.track('deals', %s)", [capture])
    write(deals, "agent", "update deals set stage = 'Won' where id = 1")
    deals.execute("update deals set stage = 'Lost' where id = 1")
    deals.execute("update deals set stage = 'Won' where id = 1")
    for arguments in ({}, {"merge": True}, {"on_conflict": "cascade"}):
        with refused("UN001") as caught:
            revert(deals, "agent", **arguments)
        assert caught.reasons == ["row_rewritten"]


def test_row_put_back_by_hand_is_later_work(deals: Connection) -> None:
    write(deals, "agent", "update deals set stage = 'Won' where id = 1")
    deals.execute("update deals set stage = 'New' where id = 1")
    for arguments in ({}, {"merge": True}):
        with refused("UN001") as caught:
            revert(deals, "agent", **arguments)
        assert caught.reasons == ["row_changed"]


def test_deleted_by_the_agent_and_made_anew_by_a_person(deals: Connection) -> None:
    write(deals, "agent", "delete from deals where id = 3")
    deals.execute("insert into deals values (3, 'New', 'mia', 'c3')")
    after = snapshot(deals, *TABLES)
    with refused("UN001") as caught:
        revert(deals, "agent")
    assert caught.reasons == ["row_exists"]
    assert_same(after, snapshot(deals, *TABLES))


@pytest.mark.parametrize("action", ["no action", "restrict", "cascade", "set null", "set default"])
def test_inserted_by_the_agent_and_referred_to_by_a_person(db: Connection, action: str) -> None:
    """No foreign key's action may reach the person's row, tracked or not."""
    db.execute("create table p (id int primary key); insert into p values (0)")
    reference = f"p int default 0 references p on delete {action}"
    db.execute(f"create table c (id int primary key, {reference})".encode())
    db.execute("select agentundo.track('p')")
    write(db, "agent", "insert into p values (1), (2)")
    db.execute("insert into c values (1, 1)")
    before = snapshot(db, "public.p", "public.c")
    for arguments in ({}, {"merge": True}, {"on_conflict": "cascade"}, FORCE):
        with refused("UN001") as caught:
            revert(db, "agent", **arguments)
        assert caught.reasons == ["has_dependents"]
        assert_same(before, snapshot(db, "public.p", "public.c"))
    assert revert(db, "agent", on_conflict="skip").rows_deleted == 1
    assert rows(db, "select id from p order by id") == [(0,), (1,)]
    assert rows(db, "select * from c") == [(1, 1)]


def test_every_conflict_names_a_row_a_cause_and_a_way_out(deals: Connection) -> None:
    write(
        deals,
        "agent",
        "update deals set stage = 'Won', code = 'd' || id where id in (1, 3, 4, 5);"
        " delete from notes where id = 2; delete from deals where id = 2;"
        " insert into deals values (7, 'New', 'bot', 'c7')",
    )
    deals.execute("update deals set owner = 'mia' where id = 1")
    deals.execute("update deals set stage = stage where id = 3")
    deals.execute("delete from deals where id = 4")
    deals.execute("insert into deals values (2, 'x', 'mia', 'm2'), (8, 'x', 'mia', 'c5')")
    deals.execute("insert into notes values (9, 7, 'mine')")
    with refused("UN001") as caught:
        revert(deals, "agent")
    found = {(c["relation"], c["key"]["id"]): c for c in caught.conflicts}
    assert {where: c["reason"] for where, c in found.items()} == {
        ("public.deals", 1): "row_changed",
        ("public.deals", 2): "row_exists",
        ("public.deals", 3): "row_rewritten",
        ("public.deals", 4): "row_deleted",
        ("public.deals", 5): "unique_taken",
        ("public.deals", 7): "has_dependents",
    }
    assert found["public.deals", 1]["columns"] == ["owner"]
    assert "deals_code_key" in found["public.deals", 5]["constraint"]
    assert found["public.deals", 7]["constraint"] == "notes_deal_fkey"
    assert caught.detail["total"] == 6
    assert "skip" in caught.hint


def test_partial_work_says_so_and_which_rows(deals: Connection) -> None:
    write(deals, "agent", "update deals set stage = 'Won'")
    deals.execute("update deals set owner = 'mia' where id in (2, 5)")
    planned = {
        (r.key or {})["id"]: (r.status, r.reason) for r in plan(deals, "agent", on_conflict="skip")
    }
    assert planned == {
        n: ("skip", "row_changed") if n in (2, 5) else ("ok", None) for n in range(1, 7)
    }
    result = revert(deals, "agent", on_conflict="skip")
    assert (result.status, result.counts) == ("partially_reverted", (0, 0, 4, 2, 2))
    assert status(deals, "agent") == "partially_reverted"
    assert scalar(deals, "select undoable from agentundo.invocations where id = 'agent'")
    left = {(r.key or {})["id"] for r in plan(deals, "agent") if r.status == "conflict"}
    assert left == {2, 5}


# Writers that come in between -----------------------------------------------------------------


def test_writer_between_plan_and_revert_is_seen(deals: Connection, connect: Connect) -> None:
    write(deals, "agent", "update deals set stage = 'Won' where id = 1")
    assert [row.status for row in plan(deals, "agent")] == ["ok"]
    connect().execute("update deals set owner = 'mia' where id = 1")
    with refused("UN001") as caught:
        revert(deals, "agent")
    assert caught.reasons == ["row_changed"]


@pytest.mark.parametrize("action", ["update", "delete"])
def test_writer_who_has_not_committed_yet_is_waited_for(
    deals: Connection, connect: Connect, action: str
) -> None:
    write(deals, "agent", "update deals set stage = 'Won' where id in (5, 6)")
    person = connect()
    with person.transaction():
        person.execute(
            b"delete from deals where id = 5"
            if action == "delete"
            else b"update deals set owner = 'mia' where id = 5"
        )
        asking = Asking(connect(), "agent")
        wait_until(lambda: blocked(deals, asking.conn), what="the revert to wait")
        after = snapshot(person, *TABLES)
    error = asking.wait()
    assert isinstance(error, psycopg.Error)
    assert error.diag.sqlstate == "UN001"
    assert ("row_deleted" if action == "delete" else "row_changed") in str(
        error.diag.message_detail
    )
    assert_same(after, snapshot(deals, *TABLES))


def test_writer_who_rolls_back_leaves_no_conflict(deals: Connection, connect: Connect) -> None:
    before = snapshot(deals, *TABLES)
    write(deals, "agent", "update deals set stage = 'Won' where id in (5, 6)")
    person = connect()
    with person.transaction(force_rollback=True):
        person.execute("update deals set owner = 'mia' where id = 5")
        asking = Asking(connect(), "agent")
        wait_until(lambda: blocked(deals, asking.conn), what="the revert to wait")
    assert asking.wait().counts == (0, 0, 2, 0, 0)
    assert_same(before, snapshot(deals, *TABLES))


@pytest.mark.parametrize("second", ["agent", ["agent"], ["agent", "other"]], ids=str)
def test_second_click_waits_and_finds_it_done(
    deals: Connection, connect: Connect, second: Any
) -> None:
    before = snapshot(deals, *TABLES)
    write(deals, "agent", "update deals set stage = 'Won'")
    write(deals, "other", "insert into notes values (9, 6, 'bot')")
    first = connect()
    with first.transaction():
        done = revert(first, "agent")
        asking = Asking(connect(), second)
        wait_until(lambda: blocked(deals, asking.conn), what="the second revert to wait")
    result = asking.wait()
    if "other" in second:
        assert (result.status, result.invocations) == ("reverted", ["other"])
    else:
        assert (result.status, result.revert_id) == ("already_reverted", done.revert_id)
        assert revert(deals, "other").status == "reverted"
    assert_same(before, snapshot(deals, *TABLES))


def test_second_click_goes_on_when_the_first_rolls_back(
    deals: Connection, connect: Connect
) -> None:
    before = snapshot(deals, *TABLES)
    write(deals, "agent", "update deals set stage = 'Won'")
    first = connect()
    with first.transaction(force_rollback=True):
        revert(first, "agent")
        asking = Asking(connect(), "agent")
        wait_until(lambda: blocked(deals, asking.conn), what="the second revert to wait")
    assert asking.wait().status == "reverted"
    assert_same(before, snapshot(deals, *TABLES))


# Interrupted in the middle --------------------------------------------------------------------


@pytest.fixture
def obstructed(deals: Connection) -> Connection:
    """Every revert stops in its middle: a trigger that fires takes an advisory lock, or raises."""
    deals.execute(
        "create function stop() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_xact_lock(4711);"
        " if current_setting('test.fail', true) = 'on' then"
        " raise 'no' using errcode = 'ZZ001'; end if;"
        " return new; end $$"
    )
    deals.execute(
        "create trigger stop before update on deals"
        " for each row when (old.id = 4) execute function stop()"
    )
    write(
        deals,
        "agent",
        "update deals set stage = 'Won'; delete from notes where id = 2;"
        " insert into notes values (9, 5, 'bot')",
    )
    deals.execute("select agentundo.set_trigger('deals', 'stop', 'fire')")
    return deals


def everything(db: Connection) -> Any:
    """Return what a failed revert must leave as it was."""
    tables = ["_change", "_revert", "_reverted", "_restoring", "_invocation", "_event"]
    ours = [scalar(db, f"select count(*) from agentundo.{name}") for name in tables]
    triggers = rows(db, "select tgname, tgenabled::text from pg_trigger order by tgrelid, tgname")
    return snapshot(db, *TABLES), ours, triggers


def test_error_in_the_middle_leaves_nothing(obstructed: Connection) -> None:
    """Not even in a transaction that catches the error and goes on."""
    before = everything(obstructed)
    obstructed.execute("set test.fail = 'on'")
    with pytest.raises(psycopg.Error, match="no"):
        revert(obstructed, "agent")
    assert everything(obstructed) == before
    obstructed.execute("reset test.fail")
    assert revert(obstructed, "agent").status == "reverted"


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_cancel_or_crash_in_the_middle_leaves_nothing(
    obstructed: Connection, connect: Connect, how: str
) -> None:
    before = everything(obstructed)
    obstructed.execute("select pg_advisory_lock(4711)")
    asking = Asking(connect(), "agent")
    wait_until(lambda: blocked(obstructed, asking.conn), what="the revert to be in its middle")
    obstructed.execute(f"select {how}(%s)".encode(), [asking.conn.info.backend_pid])
    error = asking.wait()
    assert isinstance(error, psycopg.Error)
    assert error.sqlstate in ("57014", "57P01", None)
    gone = "select count(*) from pg_stat_activity where pid = %s"
    if how == "pg_terminate_backend":
        pid = asking.conn.info.backend_pid
        wait_until(lambda: scalar(obstructed, gone, pid) == 0, what="the session to end")
    assert everything(obstructed) == before
    obstructed.execute("select pg_advisory_unlock(4711)")
    assert revert(obstructed, "agent").status == "reverted"


# What was rolled back -------------------------------------------------------------------------


def test_history_is_what_was_committed(deals: Connection) -> None:
    with deals.transaction(force_rollback=True):
        tag(deals, "rolled back")
        deals.execute("update deals set stage = 'Won'")
    with deals.transaction():
        tag(deals, "half")
        deals.execute("update deals set stage = 'Won' where id = 1")
        with deals.transaction(force_rollback=True):
            deals.execute("update deals set stage = 'Lost' where id in (1, 2)")
            deals.execute("delete from notes")
        deals.execute("update deals set stage = 'Won' where id = 3")
    assert rows(
        deals, "select invocation, operation, rows from agentundo.changes order by change"
    ) == [("half", "update", 1), ("half", "update", 1)]
    assert [(r.key, r.status) for r in plan(deals, "half")] == [
        ({"id": 3}, "ok"),
        ({"id": 1}, "ok"),
    ]
    assert revert(deals, "half").counts == (0, 0, 2, 0, 0)


# There and back, with cascades ----------------------------------------------------------------


def test_delete_that_cascaded_goes_there_and_back_three_times(db: Connection) -> None:
    """What a foreign key did goes back with it, and never stands in its own way."""
    db.execute("create table p (id int primary key, v text)")
    db.execute(
        "create table c (id int primary key, p int references p on delete cascade, v text);"
        "create table n (id int primary key, c int references c on delete set null)"
    )
    db.execute("insert into p values (1, 'a'), (2, 'b')")
    db.execute("insert into c values (1, 1, 'x'), (2, 1, 'y'), (3, 2, 'z')")
    db.execute("insert into n values (1, 1), (2, 3)")
    db.execute("select agentundo.track(t) from unnest('{p,c,n}'::regclass[]) t")
    tables = ("public.p", "public.c", "public.n")
    before = snapshot(db, *tables)
    write(db, "agent", "delete from p where id = 1")
    after = snapshot(db, *tables)
    for _ in range(3):
        back = revert(db, "agent")
        assert back.counts == (0, 3, 1, 0, 0)
        assert_same(before, snapshot(db, *tables))
        again = redo(db, "agent")
        assert again.counts == (3, 0, 1, 0, 0)
        assert_same(after, snapshot(db, *tables))


# Real accidents -------------------------------------------------------------------------------


def test_all_rows_deleted_and_test_data_under_some_of_the_old_keys(deals: Connection) -> None:
    """An agent "tested": it emptied the tables and filled them with what it made up."""
    before = snapshot(deals, *TABLES)
    for statement in (
        "delete from notes",
        "delete from deals",
        "insert into deals select n, 'Test', 'test', 't' || n from generate_series(4, 9) n",
        "insert into notes select n, 4, 'test' from generate_series(2, 5) n",
        "update deals set code = 'c' || id where id = 5",
        "delete from notes where id = 3",
    ):
        write(deals, "agent", statement, run="testing")
    outcome = revert_as_planned(deals, TABLES, "agent")
    assert outcome.status == "reverted"  # type: ignore[union-attr]
    assert_same(before, snapshot(deals, *TABLES))


def test_test_data_that_somebody_used_since(deals: Connection) -> None:
    """The rest comes back with skip; the row that a person works with stays his."""
    write(deals, "agent", "delete from notes; delete from deals")
    write(
        deals,
        "agent",
        "insert into deals select n, 'Test', 't', 'c' || n from generate_series(4, 9) n",
    )
    deals.execute("update deals set owner = 'mia' where id = 4")
    deals.execute("insert into notes values (9, 8, 'mine')")
    outcome = revert_as_planned(deals, TABLES, "agent")
    assert isinstance(outcome, Refusal)
    assert outcome.reasons == ["has_dependents", "row_changed"]
    result = revert_as_planned(deals, TABLES, "agent", on_conflict="skip")
    assert (result.status, result.counts) == (  # type: ignore[union-attr]
        "partially_reverted",
        (2, 5, 2, 2, 2),
    )
    assert rows(deals, "select id, owner from deals order by id") == [
        (1, "eve"),
        (2, "eve"),
        (3, "eve"),
        (4, "mia"),
        (5, "eve"),
        (6, "eve"),
        (8, "t"),
    ]


def test_write_under_the_id_of_a_revert_is_no_part_of_it(deals: Connection) -> None:
    """Else whoever knows that id could write unseen, or have what he wrote taken for ours."""
    write(deals, "agent", "update deals set stage = 'Won' where id = 1")
    write(deals, "other", "update deals set stage = 'Won' where id = 2")
    revert_id = revert(deals, "other").revert_id
    assert revert_id is not None
    write(deals, revert_id, "update deals set stage = stage where id = 1")
    assert [row.reason for row in plan(deals, "agent")] == ["row_rewritten"]
    before = snapshot(deals, "deals")
    with refused("UN001"):
        revert(deals, "agent")
    assert_same(before, snapshot(deals, "deals"))


# Rows that got another key, of which others have taken some away since --------------------------


_LINK = "a int, b int, primary key (a, b)"
_VALUED = "a int, b int, v int, primary key (a, b)"
_MOVES = {
    "a link table": (_LINK, "b = 5"),
    "and another column": (_VALUED, "b = 5, v = v + 10"),
    "alike": (_VALUED, "b = 5"),
}


@pytest.fixture(params=_MOVES)
def moved(request: pytest.FixtureRequest, db: Connection) -> Connection:
    """An agent gives three rows that nobody can tell apart another key."""
    columns, setting = _MOVES[request.param]
    db.execute(f"create table m ({columns})".encode())
    more = ", 1" if "v" in columns.split() else ""
    for a in (1, 2, 4):
        db.execute(f"insert into m values ({a}, 3{more})".encode())
    db.execute("select agentundo.track('m')")
    write(db, "agent", f"update m set {setting} where b = 3")
    return db


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ("delete from m where a = 1", []),
        ("update m set b = 7 where a = 1", [(1, 7)]),
    ],
    ids=["deleted", "moved on"],
)
def test_a_moved_row_that_is_gone_does_not_come_back(
    moved: Connection, capture: str, gone: str, left: list[tuple[int, int]]
) -> None:
    moved.execute("select agentundo.track('m', %s)", [capture])
    moved.execute(gone.encode())
    outcome = revert_as_planned(moved, ["public.m"], "agent")
    assert isinstance(outcome, Refusal)
    assert outcome.reasons == ["row_deleted"]
    assert outcome.conflicts[0]["key"] == {"a": 1, "b": 5}
    before = snapshot(moved, "m")
    done = revert_as_planned(moved, ["public.m"], "agent", on_conflict="skip")
    assert (done.status, done.counts) == (  # type: ignore[union-attr]
        "partially_reverted",
        (0, 0, 0, 6, 1),
    )
    assert_same(before, snapshot(moved, "m"))
    if capture == "all" and left:  # where it stands is known: force would make two of it
        with refused("UN001"):
            revert(moved, "agent", **FORCE)
        assert_same(before, snapshot(moved, "m"))
        return
    # Which row it was nobody knows, so force brings back all that there were.
    assert revert(moved, "agent", **FORCE).counts == (2, 3, 0, 0, 0)
    assert rows(moved, "select a, b from m order by a, b") == sorted(
        [(1, 3), (2, 3), (4, 3), *left]
    )
    assert redo(moved, "agent").status == "reverted"
    assert_same(before, snapshot(moved, "m"))


def test_a_moved_row_that_another_agent_deleted_comes_back_with_his_undo(
    moved: Connection,
) -> None:
    before = snapshot(moved, "m")
    write(moved, "other", "delete from m where a = 1")
    with refused("UN001") as caught:
        revert(moved, "agent")
    assert caught.reasons == ["row_deleted"]
    assert revert(moved, "other").counts == (0, 1, 0, 0, 0)
    assert_same(before, snapshot(moved, "m"))
    assert revert(moved, "agent").status == "reverted"
    assert rows(moved, "select a, b from m order by a") == [(1, 3), (2, 3), (4, 3)]


def test_cascade_past_a_moved_row_that_another_agent_deleted(moved: Connection) -> None:
    write(moved, "other", "delete from m where a = 1")
    done = revert(moved, "agent", on_conflict="cascade")
    assert (done.status, done.invocations) == ("reverted", ["agent", "other"])
    assert rows(moved, "select a, b from m order by a") == [(1, 3), (2, 3), (4, 3)]
