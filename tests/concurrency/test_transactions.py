"""A revert in somebody's transaction: joined, taken back, prepared, interrupted, refused."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connect, Connection
from tests.support.deals import TABLES, TOUCH
from tests.support.sessions import PATIENT, failure
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, redo, refused, revert, rows, scalar, status, tag, write
from tests.support.undoing import triggers

pytestmark = pytest.mark.core

#: One trigger in each state that it can have, besides ours.
TRIGGERS = f"""{TOUCH}
create trigger t_origin before update on deals for each row execute function touch();
create trigger t_always before update on deals for each row execute function touch();
create trigger t_replica before update on deals for each row execute function touch();
create trigger t_disabled before update on deals for each row execute function touch();
alter table deals enable always trigger t_always, enable replica trigger t_replica,
  disable trigger t_disabled;
"""
BOOKKEEPING = """
select (select array_agg(i.* order by i.id)::text from agentundo._invocation i),
  (select array_agg(r.* order by r.id)::text from agentundo._revert r),
  (select array_agg(r.* order by r.change)::text from agentundo._reverted r),
  (select array_agg(c.* order by c.change)::text from agentundo._change c),
  (select array_agg(e.* order by e.event)::text from agentundo._event e),
  (select count(*) from agentundo._restoring),
  (select array_agg(h.* order by h.ctid)::text from agentundo_history.deals_1 h)
"""


def everything(db: Connection) -> tuple[Any, ...]:
    """Read users' tables, the states of triggers and all that we have written down."""
    return snapshot(db, *TABLES), triggers(db), rows(db, BOOKKEEPING)


def assert_nothing_happened(db: Connection, before: tuple[Any, ...]) -> None:
    assert_same(before[0], snapshot(db, *TABLES))
    assert triggers(db) == before[1]
    assert rows(db, BOOKKEEPING) == before[2]


def test_joins_the_callers_transaction(db: Connection, session: NewSession) -> None:
    """Not to be seen from outside before the commit, and gone with a rollback."""
    db.execute(TRIGGERS)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before, caller = everything(db), session()
    caller.run("begin", "insert into deals values (9, 'New', 'caller', 0)")
    assert revert(caller.conn, "agent").status == "reverted"
    assert scalar(caller.conn, "select count(*) from deals where stage = 'New'") == 6
    assert (
        scalar(caller.conn, "select status from agentundo.invocations where id = 'agent'")
        == "reverted"
    )
    assert revert(caller.conn, "agent").status == "already_reverted"
    assert_nothing_happened(db, before)
    caller.run("rollback")
    assert_nothing_happened(db, before)
    assert revert(db, "agent").status == "reverted"


def test_savepoint_takes_the_revert_back(db: Connection) -> None:
    db.execute(TRIGGERS)
    original = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before = everything(db)
    with db.transaction():
        with db.transaction(force_rollback=True):
            assert revert(db, "agent").status == "reverted"
        assert_nothing_happened(db, before)
        with db.transaction():
            assert revert(db, "agent").counts == (0, 1, 5, 0, 0)
    assert_same(original, snapshot(db, *TABLES))
    assert triggers(db) == before[1]
    assert status(db, "agent") == "reverted"


def test_callers_own_write_before_and_after_in_the_transaction(db: Connection) -> None:
    """What the caller wrote itself under no tag stands in the way like anybody's work."""
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    with db.transaction():
        db.execute("update deals set owner = 'caller' where id = 1")
        with refused("UN001") as caught, db.transaction():
            revert(db, "agent")
        assert caught.reasons == ["row_changed"]
        assert revert(db, "agent", on_conflict="skip").counts == (0, 0, 1, 1, 1)
        db.execute("update deals set owner = 'after' where id = 2")
    assert rows(db, "select id, stage, owner from deals where id <= 2 order by id") == [
        (1, "Won", "caller"),
        (2, "New", "after"),
    ]


def test_tag_in_force_survives_a_revert(db: Connection) -> None:
    """Whoever writes on after it, writes under the tag that was set before it."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    with db.transaction():
        tag(db, "outer", run="run", actor="bot")
        db.execute("update deals set owner = 'bot' where id = 2")
        revert(db, "agent")
        db.execute("update deals set owner = 'bot' where id = 3")
    query = "select invocation, run, rows from agentundo.changes where invocation = 'outer'"
    assert rows(db, query) == [("outer", "run", 1)] * 2
    assert scalar(db, "select count(*) from agentundo.changes where invocation = 'agent'") == 1


def test_two_reverts_and_a_redo_in_one_transaction(db: Connection) -> None:
    original = snapshot(db, *TABLES)
    write(db, "a", "update deals set stage = 'a' where id <= 2")
    after_a = snapshot(db, *TABLES)
    write(db, "b", "update deals set stage = 'b' where id >= 2")
    with db.transaction():
        assert revert(db, "b").status == "reverted"
        assert_same(after_a, snapshot(db, *TABLES))
        assert revert(db, "a").status == "reverted"
        assert_same(original, snapshot(db, *TABLES))
        assert redo(db, "a").status == "reverted"
    assert_same(after_a, snapshot(db, *TABLES))
    assert [status(db, i) for i in "ab"] == ["committed", "reverted"]
    assert len(rows(db, "select * from agentundo.events")) == 3


# Two-phase commit -------------------------------------------------------------------------------


@pytest.mark.parametrize("noisy", [True, False], ids=["with triggers", "without"])
def test_revert_can_be_prepared(db: Connection, session: NewSession, noisy: bool) -> None:
    """Neither a temporary table nor, with agentundo.notify off, a NOTIFY is in the way."""
    if noisy:
        db.execute(TRIGGERS)
    original = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before, caller = everything(db), session()
    name = scalar(db, "select current_database()")

    caller.run("begin", "set local agentundo.notify = off")
    assert revert(caller.conn, "agent").status == "reverted"
    caller.run(f"prepare transaction '{name}'", f"rollback prepared '{name}'")
    assert_nothing_happened(db, before)

    caller.run("begin", "set local agentundo.notify = off")
    done = revert(caller.conn, "agent")
    caller.run(f"prepare transaction '{name}'")
    assert_nothing_happened(db, before)
    second = session()
    running = second.later(revert, second.conn, "agent")
    second.wait_until_blocked(running)
    db.execute(f"commit prepared '{name}'".encode())
    assert running.result(timeout=60).status == "already_reverted"
    assert_same(original, snapshot(db, *TABLES))
    assert triggers(db) == before[1]
    told = "select kind, payload ->> 'revert_id' from agentundo.events"
    assert rows(db, told) == [("invocation_reverted", done.revert_id)]

    caller.run("begin", "set local agentundo.notify = off")
    assert redo(caller.conn, "agent").status == "reverted"
    caller.run(f"prepare transaction '{name}'", f"commit prepared '{name}'")
    assert_same(before[0], snapshot(db, *TABLES))


def test_write_of_a_prepared_transaction_goes_back(db: Connection, session: NewSession) -> None:
    """Its rows and their history are committed together, by whoever commits it."""
    original, agent = snapshot(db, *TABLES), session()
    name = scalar(db, "select current_database()")
    agent.run("begin")
    tag(agent.conn, "agent")
    agent.run("update deals set stage = 'Won' where id = 1", "savepoint s")
    agent.run("delete from notes where id = 1", f"prepare transaction '{name}'")
    with refused("UN002"):
        revert(db, "agent")
    agent.run(f"commit prepared '{name}'")
    assert revert(db, "agent").counts == (0, 1, 1, 0, 0)
    assert_same(original, snapshot(db, *TABLES))


# Wake-ups ---------------------------------------------------------------------------------------


def test_one_wake_up_and_one_event_per_revert(db: Connection, connect: Connect) -> None:
    with closing(connect(options=PATIENT)) as listener:
        listener.execute("listen agentundo")
        write(
            db,
            "agent",
            "update deals set stage = 'Won'; delete from notes",
            run="run",
            step=3,
            tool="close_deals",
            scope="acme",
        )
        write(db, "other", "update deals set owner = 'bot' where id = 1")
        with refused("UN001"):
            revert(db, "agent")
        first = revert(db, ["agent", "other"])
        assert revert(db, "agent").status == "already_reverted"
        # The last one proves that no other comes before it.
        db.execute("notify agentundo, 'end'")
        heard = []
        for note in listener.notifies(timeout=30):
            heard.append(note.payload)
            if note.payload == "end":
                break
    assert len(heard) == 2, heard
    event = "select event, kind, source, invocation, run, step, tool, scope, payload"
    ((number, *facts, payload),) = rows(db, f"{event} from agentundo.events")
    assert json.loads(heard[0])["event"] == number
    assert facts == ["invocation_reverted", "system", "agent", "run", 3, "close_deals", "acme"]
    assert payload["revert_id"] == first.revert_id
    assert payload["invocations"] == ["agent", "other"]


# Interrupted ------------------------------------------------------------------------------------


def test_cancelled_revert_leaves_nothing(db: Connection, session: NewSession) -> None:
    """Held up when triggers are off already and half of the rows are back."""
    db.execute(TRIGGERS)
    db.execute(
        "create function slow() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(42); return null; end $$;"
        "create trigger slow after insert on notes for each row execute function slow();"
        "select agentundo.set_trigger('notes', 'slow', 'fire')"
    )
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before, holder, reverter = everything(db), session(), session()
    holder.run("begin", "select pg_advisory_xact_lock(42)")
    running = reverter.later(revert, reverter.conn, "agent")
    reverter.wait_until_blocked(running, by=holder)
    assert scalar(db, "select pg_cancel_backend(%s)", reverter.pid)
    assert failure(running).sqlstate == "57014"
    holder.run("rollback")
    assert_nothing_happened(db, before)
    result: Result = revert(reverter.conn, "agent")
    assert (result.status, result.counts) == ("reverted", (0, 1, 5, 0, 0))
    assert triggers(db) == before[1]


def test_error_in_the_middle_of_a_revert_leaves_nothing(db: Connection) -> None:
    """A trigger that was asked to fire refuses, when everything else has been done."""
    db.execute(TRIGGERS)
    db.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'not with me' using errcode = 'P0042'; end $$;"
        "create constraint trigger refuse after insert on notes deferrable initially deferred"
        " for each row execute function refuse();"
        "select agentundo.set_trigger('notes', 'refuse', 'fire')"
    )
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before = everything(db)
    with pytest.raises(psycopg.Error, match="not with me") as raised:
        revert(db, "agent")
    assert raised.value.sqlstate == "P0042"
    assert_nothing_happened(db, before)
    db.execute("select agentundo.set_trigger('notes', 'refuse', 'silence')")
    assert revert(db, "agent").counts == (0, 1, 5, 0, 0)
    armed = {name: state for _, name, state in triggers(db)}
    assert armed["refuse"] == "O"
    assert {t: armed[t] for t in armed if t.startswith("t_")} == {
        "t_origin": "O",
        "t_always": "A",
        "t_replica": "R",
        "t_disabled": "D",
    }


def test_connection_that_dies_in_the_middle_leaves_nothing(
    db: Connection, session: NewSession
) -> None:
    db.execute(TRIGGERS)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 1")
    before, reverter = everything(db), session()
    reverter.run("begin")
    revert(reverter.conn, "agent")
    db.execute("select pg_terminate_backend(%s)", [reverter.pid])
    result = revert(db, "agent")  # waits until the other one is gone
    assert (result.status, result.counts) == ("reverted", (0, 1, 5, 0, 0))
    assert triggers(db) == before[1]
    assert len(rows(db, "select * from agentundo.events")) == 1


# Called where it cannot work --------------------------------------------------------------------


def test_open_cursor_on_a_table_whose_trigger_must_be_silenced(db: Connection) -> None:
    db.execute(TRIGGERS)
    write(db, "agent", "update deals set stage = 'Won'")
    before = everything(db)
    with refused("55006"), db.transaction():
        db.execute("declare c cursor for select * from deals")
        db.execute("fetch 1 from c")
        revert(db, "agent")
    assert_nothing_happened(db, before)
    assert revert(db, "agent").status == "reverted"


def test_open_cursor_on_a_table_without_triggers_is_no_obstacle(db: Connection) -> None:
    original = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'")
    with db.transaction():
        db.execute("declare c cursor for select stage from deals order by id")
        assert rows(db, "fetch 1 from c") == [("Won",)]
        assert revert(db, "agent").status == "reverted"
        assert rows(db, "fetch 1 from c") == [("Won",)], "a cursor sees what it saw"
    assert_same(original, snapshot(db, *TABLES))


def test_called_from_a_query_on_the_table(db: Connection) -> None:
    db.execute(TRIGGERS)
    write(db, "agent", "update deals set stage = 'Won'")
    before = everything(db)
    with refused("55006"):
        db.execute("select agentundo.revert('agent') from deals")
    assert_nothing_happened(db, before)


def test_callers_deferred_check_on_a_table_whose_trigger_must_be_silenced(db: Connection) -> None:
    """Its check is pending: the table cannot be altered before it has been made."""
    db.execute(TRIGGERS)
    db.execute("create table lines (id int primary key, deal int)")
    db.execute(
        "alter table lines add foreign key (deal) references deals deferrable initially deferred"
    )
    db.execute("select agentundo.track('lines')")
    write(db, "agent", "update deals set stage = 'Won'; insert into deals values (6)")
    before = everything(db)
    with refused("55006"), db.transaction():
        db.execute("delete from deals where id = 5")
        revert(db, "agent", on_conflict="skip")
    assert_nothing_happened(db, before)
    with db.transaction():
        db.execute("delete from deals where id = 5")
        db.execute("set constraints all immediate")
        result = revert(db, "agent", on_conflict="skip")
    assert result.status == "partially_reverted"
    assert result.counts == (1, 0, 4, 1, 1)


def test_own_writes_to_tables_with_deferred_constraints_and_triggers(db: Connection) -> None:
    """Our own rows queue deferred checks too; they are made before the triggers are armed."""
    db.execute(TRIGGERS)
    db.execute(
        "create table lines (id int primary key, deal int references deals"
        " deferrable initially deferred, pos int unique deferrable initially deferred);"
        "create function minus() returns trigger language plpgsql as"
        " $$ begin new.pos := -new.pos; return new; end $$"
    )
    db.execute("insert into lines select n, n, n from generate_series(1, 3) n")
    db.execute(
        "create trigger t_lines before insert on lines for each row execute function minus()"
    )
    db.execute("select agentundo.track('lines')")
    tables = (*TABLES, "public.lines")
    before, armed = snapshot(db, *tables), triggers(db)
    write(
        db, "agent", "update lines set pos = 4 - pos; update deals set id = id + 100 where id > 3"
    )
    write(db, "more", "delete from lines where id = 2; update deals set stage = 'Won'")
    with db.transaction():
        result = revert(db, ["agent", "more"])
        assert result.status == "reverted"
        assert_same(before, snapshot(db, *tables))
        # For the caller they are deferred as before.
        db.execute("update lines set deal = 999 where id = 1")
        db.execute("update lines set deal = 1 where id = 1")
    assert_same(before, snapshot(db, *tables))
    assert triggers(db) == armed


def test_integrity_is_never_left_to_the_callers_commit(db: Connection) -> None:
    """A deferred key of a table that is not tracked, and a row that came to depend on ours."""
    db.execute(
        "create table lines (id int primary key,"
        " deal int references deals deferrable initially deferred)"
    )
    write(db, "agent", "insert into deals values (6, 'New', 'bot', 0)")
    db.execute("insert into lines values (1, 6)")
    before = snapshot(db, *TABLES, "public.lines")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["has_dependents"]
    assert_same(before, snapshot(db, *TABLES, "public.lines"))
