"""The server goes away: in the block, before COMMIT, and while it commits."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors as pg

from pyagentundo import AgentUndo, CommitUnknown, RecordUnavailable
from tests.api.conftest import TABLE, MakeUndo
from tests.conftest import Connection
from tests.support.proxy import Proxy
from tests.support.state import assert_same, snapshot
from tests.support.undo import status

WIN = "update deals set stage = 'Won' where id = 1"


@pytest.fixture
def proxy(dsn: str, db: Connection) -> Iterator[Proxy]:
    with Proxy(dsn) as proxy:
        yield proxy


def kill(db: Connection, conn: psycopg.Connection[object]) -> None:
    db.execute("select pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])


def test_exception_after_the_session_was_ended(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    with pytest.raises(psycopg.OperationalError), undo.invocation(conn) as inv:
        conn.execute(WIN)
        kill(db, conn)
        conn.execute("select 1")
    assert status(db, inv.id) == "failed"
    assert "terminating connection" in str(undo.get(inv.id).error)
    assert_same(before, snapshot(db, TABLE))


def test_own_exception_after_the_session_was_ended(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with pytest.raises(ZeroDivisionError), undo.invocation(conn) as inv:
        kill(db, conn)
        _ = 1 / 0
    assert undo.get(inv.id).error == "ZeroDivisionError: division by zero"


def test_session_ended_unnoticed(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    before = snapshot(db, TABLE)
    with pytest.raises(psycopg.OperationalError), undo.invocation(conn) as inv:
        conn.execute(WIN)
        kill(db, conn)
    assert status(db, inv.id) == "failed"
    with pytest.raises(psycopg.OperationalError), undo.tag(None, "t"):
        undo.connection().execute(WIN)
        kill(db, undo.connection())
    assert_same(before, snapshot(db, TABLE))


def test_ended_while_it_commits_is_a_failure(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    db.execute(
        "create function leave() returns trigger language plpgsql as"
        " $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;"
        " create constraint trigger leave after update on deals deferrable initially deferred"
        " for each row execute function leave()"
    )
    before = snapshot(db, TABLE)
    with pytest.raises(psycopg.OperationalError), undo.invocation(conn) as inv:
        conn.execute(WIN)
    assert status(db, inv.id) == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_refused_by_a_deferred_constraint(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    db.execute("create table notes (deal int references deals deferrable initially deferred)")
    with pytest.raises(pg.ForeignKeyViolation), undo.invocation(conn) as inv:
        conn.execute("insert into notes values (99)")
    assert status(db, inv.id) == "failed"
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_answer_of_commit_lost_but_it_was_done(
    undo: AgentUndo, db: Connection, proxy: Proxy
) -> None:
    with psycopg.connect(proxy.dsn) as conn:
        with undo.invocation(conn) as inv:
            conn.execute(WIN)
            proxy.loses_commit = True
        assert inv.status == "committed"
        assert conn.closed
    assert (status(db, inv.id), undo.get(inv.id).rows) == ("committed", 1)


def test_answer_of_commit_lost_of_a_call_made_again(
    undo: AgentUndo, db: Connection, proxy: Proxy
) -> None:
    with undo.invocation(id="call-1") as inv:
        inv.connection.execute(WIN)
    undo.revert("call-1")
    with (
        psycopg.connect(proxy.dsn) as conn,
        pytest.raises(CommitUnknown),
        undo.invocation(conn, id="call-1", again=True),
    ):
        conn.execute(WIN)
        proxy.loses_commit = True
    assert undo.get("call-1").undoable, "as it happened"


def test_answer_of_commit_lost_inline(db: Connection, proxy: Proxy, make_undo: MakeUndo) -> None:
    undo = make_undo(record="inline")
    with psycopg.connect(proxy.dsn) as conn, undo.invocation(conn) as inv:
        conn.execute(WIN)
        proxy.loses_commit = True
    assert status(db, inv.id) == "committed"


def test_nobody_knows_whether_it_was_committed(
    db: Connection, proxy: Proxy, make_undo: MakeUndo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyagentundo._sync.records._LOOKS", (0, 0.01))
    undo = make_undo(proxy.dsn)
    with (
        pytest.raises(CommitUnknown, match="may or may not have been made") as raised,
        undo.invocation() as inv,
    ):
        inv.connection.execute(WIN)
        proxy.loses_commit = proxy.then_closes = True
        undo._records.close()
    assert raised.value.invocation == inv.id
    assert "not made twice" in str(raised.value.hint)
    assert isinstance(raised.value.__cause__, psycopg.OperationalError)
    assert status(db, inv.id) == "committed", "as it happened"


def test_nobody_knows_without_a_record_or_a_second_way(
    db: Connection, proxy: Proxy, make_undo: MakeUndo
) -> None:
    with psycopg.connect(proxy.dsn) as conn:
        undo = make_undo(conn, record="inline")
        with pytest.raises(CommitUnknown), undo.invocation() as inv:
            conn.execute(WIN)
            proxy.loses_commit = True
        assert inv.status == "pending"
    with (
        psycopg.connect(proxy.dsn) as conn,
        pytest.raises(CommitUnknown) as raised,
        make_undo(conn).tag(conn, "tagged"),
    ):
        conn.execute(WIN)
        proxy.loses_commit = True
    assert raised.value.invocation == "tagged"


def test_nobody_knows_whether_it_was_taken_back(
    undo: AgentUndo, db: Connection, proxy: Proxy, make_undo: MakeUndo
) -> None:
    with undo.invocation() as inv:
        inv.connection.execute(WIN)
    shaky = make_undo(proxy.dsn)
    assert shaky.undoable()[0].id == inv.id
    proxy.loses_commit = True
    with pytest.raises(CommitUnknown, match="may or may not have been taken back") as raised:
        shaky.revert(inv.id)
    assert raised.value.invocation == inv.id
    assert "not done twice" in str(raised.value.hint)
    assert shaky.revert(inv.id).status == "already_reverted"
    proxy.loses_commit = True
    assert len(shaky.plan(inv.id)) == 0, "a plan has nothing to commit"


def test_locked_by_a_session_that_may_still_commit(
    undo: AgentUndo, db: Connection, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    monkeypatch.setattr("pyagentundo._statements.RECORD_WAIT", "100ms")
    monkeypatch.setattr("pyagentundo._sync.records._LOOKS", (0,))
    recorded = undo.record(id="slow")
    with psycopg.connect(dsn) as other:
        other.execute("select agentundo.commit_invocation('slow')")
        with pytest.raises(Exception, match="is about to commit"):
            undo.record(id="slow")
    assert recorded.created


def test_no_record_no_write(db: Connection, conn: Connection, make_undo: MakeUndo) -> None:
    before = snapshot(db, TABLE)
    undo = make_undo(conn, dsn="host=127.0.0.1 port=1 dbname=nowhere user=nobody")
    with (
        pytest.raises(RecordUnavailable, match="cannot be recorded") as raised,
        undo.invocation(conn),
    ):
        pytest.fail("the block has run")
    assert "nowhere" in str(raised.value)
    assert_same(before, snapshot(db, TABLE))


def test_record_that_cannot_be_closed_is_said(
    db: Connection, dsn: str, conn: Connection, proxy: Proxy, make_undo: MakeUndo
) -> None:
    undo = make_undo(conn, dsn=proxy.dsn)
    with pytest.raises(ZeroDivisionError) as raised, undo.invocation() as inv:
        proxy.__exit__()
        _ = 1 / 0
    (note,) = raised.value.__notes__
    assert note.startswith(f"agentundo: invocation {inv.id!r} stays pending")
    assert status(db, inv.id) == "pending"


def test_stale_connections_of_our_own_are_replaced(undo: AgentUndo, db: Connection) -> None:
    undo.undoable()
    undo.record(id="first")
    db.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where application_name = 'agentundo' and datname = current_database()"
    )
    undo.record(id="second")
    assert {one.id for one in undo.undoable()} == {"first", "second"}
