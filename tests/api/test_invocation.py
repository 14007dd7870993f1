"""An invocation: recorded first, tagged, committed with its data or failed without."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pyagentundo import AgentUndo, UsageError
from tests.api.conftest import TABLE, MakeUndo
from tests.conftest import Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.undo import rows, scalar, status

pytestmark = pytest.mark.core

WIN = "update deals set stage = 'Won', amount = amount + 0.10 where id = 1"


def test_readme_example(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    before = snapshot(db, TABLE)
    with undo.invocation(
        conn,
        tool="update_deal",
        run="run-42",
        actor="sales-bot",
        on_behalf_of="dana",
        scope="crm",
        tier="high",
        model="m-1",
        input={"id": 1, "amount": Decimal("1000.10")},
        meta={"trace": "t-1"},
    ) as inv:
        assert status(db, inv.id) == "pending", "recorded and committed before the data"
        conn.execute(WIN)
        inv.result = {"ok": True, "amount": Decimal("1000.10")}
    assert inv.status == "committed"
    found = undo.get(inv.id)
    assert (found.run, found.step, found.tool, found.tier) == ("run-42", 1, "update_deal", "high")
    assert (found.actor, found.on_behalf_of, found.scope) == ("sales-bot", "dana", "crm")
    assert (found.model, found.meta, found.status) == ("m-1", {"trace": "t-1"}, "committed")
    assert found.input == {"id": 1, "amount": Decimal("1000.10")}
    assert found.result == {"ok": True, "amount": Decimal("1000.10")}
    assert isinstance(found.result["amount"], Decimal)
    assert (found.rows, found.relations, found.uncovered) == (1, (TABLE,), ())
    assert (found.undoable, found.role) == (True, conn.info.user)

    plan = undo.plan(inv.id)
    assert plan.feasible
    assert [(row.action, row.before) for row in plan] == [
        ("update", {"id": 1, "stage": "Open", "amount": Decimal("1000.00")})
    ]
    result = undo.revert(inv.id, reverted_by="dana", reason="wrong deal")
    assert (result.status, result.rows_updated, result.invocations) == ("reverted", 1, (inv.id,))
    assert_same(before, snapshot(db, TABLE))


def test_exception_rolls_back_and_marks_failed(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    with pytest.raises(ZeroDivisionError), undo.invocation(conn, tool="t") as inv:
        conn.execute(WIN)
        _ = 1 / 0
    found = undo.get(inv.id)
    assert (found.status, found.error) == ("failed", "ZeroDivisionError: division by zero")
    assert (found.rows, found.committed_at) == (0, None)
    assert_same(before, snapshot(db, TABLE))
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_error_without_words_and_with_bad_ones(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with pytest.raises(KeyboardInterrupt), undo.invocation(conn) as first:
        raise KeyboardInterrupt
    with pytest.raises(ValueError), undo.invocation(conn) as second:  # noqa: PT011
        raise ValueError("a\0b\ud800" + "c" * 20_000)
    assert undo.get(first.id).error == "KeyboardInterrupt"
    error = undo.get(second.id).error
    assert error is not None
    assert error.startswith("ValueError: a\N{REPLACEMENT CHARACTER}b?ccc")
    assert len(error) == 10_000


def test_fail_rolls_back_without_an_exception(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    with undo.invocation(conn) as inv:
        conn.execute(WIN)
        inv.fail("the customer said no")
    assert (undo.get(inv.id).status, undo.get(inv.id).error) == ("failed", "the customer said no")
    assert_same(before, snapshot(db, TABLE))


def test_psycopgs_rollback_ends_the_block(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    with undo.invocation(conn) as inv:
        conn.execute(WIN)
        raise psycopg.Rollback
    assert undo.get(inv.id).status == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_failed_call_may_be_made_again(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with pytest.raises(ZeroDivisionError), undo.invocation(conn, id="call-1", tool="t"):
        _ = 1 / 0
    with undo.invocation(conn, id="call-1", tool="t") as inv:
        assert inv.created
        conn.execute(WIN)
    assert (undo.get("call-1").status, undo.get("call-1").rows) == ("committed", 1)


def test_uncovered_tables_are_noted(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with undo.invocation(conn) as inv:
        conn.execute("insert into scratch values (1)")
        conn.execute(WIN)
    assert undo.get(inv.id).uncovered == ("public.scratch",)


def test_autocommit_connection(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    with undo.invocation(db) as inv:
        db.execute(WIN)
    assert undo.get(inv.id).status == "committed"
    with pytest.raises(ZeroDivisionError), undo.invocation(db):
        db.execute(WIN)
        _ = 1 / 0
    undo.revert(inv.id)
    assert_same(before, snapshot(db, TABLE))


def test_without_a_connection_of_the_callers(undo: AgentUndo, db: Connection) -> None:
    with undo.invocation() as inv:
        assert undo.connection() is inv.connection
        undo.connection().execute(WIN)
        with undo.invocation() as inner:
            assert inner.connection is inv.connection, "nested: a savepoint of the same transaction"
    assert (undo.get(inv.id).rows, undo.get(inner.id).status) == (1, "committed")
    with pytest.raises(UsageError, match="No invocation is open here"):
        undo.connection()


def test_whatever_rows_and_placeholders_the_connection_has(undo: AgentUndo, dsn: str) -> None:
    with psycopg.connect(
        dsn, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.RawCursor
    ) as conn:
        with undo.invocation(conn) as inv:
            conn.execute("update deals set stage = $1", ["Won"])
        assert sorted(row.key["id"] for row in undo.plan(inv.id, conn=conn)) == [1, 2, 3]  # type: ignore[index]


@pytest.mark.parametrize("role", ["agentundo_app", "agentundo_agent", "agentundo_operator"])
def test_as_each_role_that_may(
    db: Connection, dsn: str, make_role: MakeRole, make_undo: MakeUndo, undo: AgentUndo, role: str
) -> None:
    user = make_role(member_of=role)
    db.execute(f"grant select, update, delete on deals to {user}".encode())
    theirs = make_undo(f"{dsn} user={user}")
    with theirs.invocation(id="call-1", tool="t") as inv:
        inv.connection.execute(WIN)
    with theirs.invocation(id="call-1", tool="t") as again:
        assert not again.created
    with pytest.raises(ZeroDivisionError), theirs.invocation(id="call-2"):
        _ = 1 / 0
    with theirs.tag(None, "call-3"):
        theirs.connection().execute(WIN)
    assert {(i.id, i.role, i.status) for i in undo.log()} == {
        ("call-1", user, "committed"),
        ("call-2", user, "failed"),
        ("call-3", user, "committed"),
    }


# Inside the caller's transaction ----------------------------------------------------------------


def test_mark_lives_and_dies_with_the_callers_commit(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    conn.execute("select 1")
    with undo.invocation(conn) as lost:
        conn.execute(WIN)
    assert lost.status == "pending"
    assert status(db, lost.id) == "pending"
    conn.rollback()
    assert status(db, lost.id) == "pending"
    assert_same(before, snapshot(db, TABLE))

    conn.execute("select 1")
    with undo.invocation(conn) as kept:
        conn.execute(WIN)
    conn.commit()
    assert status(db, kept.id) == "committed"


def test_failed_block_leaves_the_callers_transaction_usable(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    conn.execute("update deals set amount = 7 where id = 3")
    with pytest.raises(psycopg.errors.UndefinedTable), undo.invocation(conn) as inv:
        conn.execute(WIN)
        conn.execute("select from nowhere")
    assert status(db, inv.id) == "failed"
    conn.commit()
    assert rows(db, "select id, stage, amount from deals order by id") == [
        (1, "Open", Decimal("1000.00")),
        (2, "Open", Decimal("2000.00")),
        (3, "Open", Decimal("7.00")),
    ]


def test_record_newer_than_the_callers_snapshot(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.execute("select count(*) from deals")
    with (
        pytest.raises(UsageError, match="does not see the record") as raised,
        undo.invocation(conn, id="late"),
    ):
        pytest.fail("the block has run")
    assert "record='inline'" in str(raised.value.hint)
    assert status(db, "late") == "failed"
    conn.rollback()
    with undo.invocation(conn, id="late"):  # now the transaction begins with it
        conn.execute(WIN)
    assert status(db, "late") == "committed"


# record='inline' --------------------------------------------------------------------------------


def test_inline_leaves_nothing_when_a_test_rolls_back(
    db: Connection, conn: Connection, make_undo: MakeUndo
) -> None:
    undo = make_undo(conn, record="inline")
    before = snapshot(db, TABLE, "agentundo._invocation", "agentundo._change")
    conn.execute("select 1")
    with undo.invocation(tool="t") as inv:
        conn.execute(WIN)
    with pytest.raises(ZeroDivisionError), undo.invocation() as failed:
        conn.execute("delete from deals")
        _ = 1 / 0
    assert (status(conn, inv.id), status(conn, failed.id)) == ("committed", "failed")
    with undo.invocation() as said_no:
        conn.execute("delete from deals")
        said_no.fail("no")
    assert status(conn, said_no.id) == "failed"
    assert undo.revert(inv.id).status == "reverted"
    number = undo.record_effect(inv.id, "mail")
    assert scalar(conn, "select id from agentundo.effects") == number
    conn.rollback()
    assert_same(before, snapshot(db, TABLE, "agentundo._invocation", "agentundo._change"))
    assert scalar(db, "select count(*) from agentundo.effects") == 0


def test_inline_in_a_transaction_of_its_own(
    db: Connection, conn: Connection, make_undo: MakeUndo
) -> None:
    undo = make_undo(conn, record="inline")
    with undo.invocation() as inv:
        conn.execute(WIN)
    assert status(db, inv.id) == "committed"
    with pytest.raises(ZeroDivisionError), undo.invocation() as failed:
        conn.execute(WIN)
        _ = 1 / 0
    assert status(db, failed.id) is None, "the record went with the data"


def test_bare_connection_needs_to_know_where_records_go(
    db: Connection, conn: Connection, dsn: str, make_undo: MakeUndo
) -> None:
    undo = make_undo(conn)
    with pytest.raises(UsageError, match="does not know where to write records") as raised:
        undo.invocation().__enter__()
    assert "dsn=..." in str(raised.value.hint)
    with pytest.raises(UsageError, match="does not know where to write records"):
        undo.record()
    assert undo.undoable() == []
    conn.rollback()
    with make_undo(conn, dsn=dsn).invocation() as inv:
        conn.execute(WIN)
    assert status(db, inv.id) == "committed"
    assert undo.revert(inv.id).status == "reverted"


# By hand, for other drivers ---------------------------------------------------------------------


def test_recorded_by_hand(undo: AgentUndo, db: Connection) -> None:
    call: dict[str, Any] = {"id": "hand", "tool": "t", "input": {"n": 1}}
    recorded = undo.record(**call, role="somebody")
    assert (recorded.id, recorded.created, recorded.status) == ("hand", True, "pending")
    undo.fail("hand", "broke")
    assert (undo.get("hand").status, undo.get("hand").error) == ("failed", "broke")
    assert undo.get("hand").role == "somebody"
    undo.record(**call)
    with db.transaction():
        db.execute("select agentundo.tag('hand')")
        db.execute(WIN)
        db.execute("select agentundo.commit_invocation('hand', '{\"ok\": 1}')")
    again = undo.record(**call)
    assert (again.created, again.status, again.result) == (False, "committed", {"ok": 1})
    undo.fail("hand", "too late", conn=db)
    assert undo.get("hand").status == "committed"


def test_effects_stay_known_when_the_data_is_rolled_back(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with pytest.raises(ZeroDivisionError), undo.invocation(conn) as inv:
        undo.record_effect(
            inv.id, "mail", kind="compensate", summary="offer sent", remedy="send an apology"
        )
        _ = 1 / 0
    with undo.invocation(conn) as other:
        conn.execute(WIN)
        undo.record_effect(other.id, "booking", kind="none", conn=conn)
    assert [(e.name, e.kind, e.remedy) for e in undo.plan([other.id]).effects or ()] == [
        ("booking", "none", None)
    ]
    assert rows(db, "select invocation, name, summary from agentundo.effects order by id") == [
        (inv.id, "mail", "offer sent"),
        (other.id, "booking", None),
    ]
