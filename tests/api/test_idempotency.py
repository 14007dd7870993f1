"""The same call twice: the second time nothing is written, and the first answer is there."""

from __future__ import annotations

import threading

import pytest

from pyagentundo import AgentUndo, InvocationClosed, InvocationPending
from tests.api.conftest import TABLE, MakeUndo
from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import status

RAISE = "update deals set amount = amount + 1"


def test_block_sees_that_it_was_made_before(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    answers = []
    for _ in range(3):
        with undo.invocation(conn, id="call-1", tool="t", input={"n": 1}) as inv:
            if inv.created:
                conn.execute(RAISE)
                inv.result = {"ok": True}
            answers.append((inv.created, inv.status, inv.result))
    assert answers == [
        (True, "pending", {"ok": True}),
        (False, "committed", {"ok": True}),
        (False, "committed", {"ok": True}),
    ]
    assert undo.get("call-1").rows == 3


@pytest.mark.parametrize("joined", [False, True], ids=["own transaction", "caller's"])
@pytest.mark.parametrize("inline", [False, True], ids=["own record", "inline"])
def test_block_that_does_not_look_cannot_write(
    db: Connection, conn: Connection, make_undo: MakeUndo, joined: bool, inline: bool
) -> None:
    undo = make_undo(record="inline" if inline else "own")
    with undo.invocation(conn, id="call-1"):
        conn.execute(RAISE)
    before = snapshot(db, TABLE)
    if joined:
        conn.execute("insert into scratch values (1)")
    with pytest.raises(InvocationClosed) as raised, undo.invocation(conn, id="call-1"):
        conn.execute(RAISE)
    assert raised.value.message == (
        "Invocation 'call-1' was made before and is committed: it must not write again."
    )
    assert "Look at created first" in str(raised.value.hint)
    assert raised.value.__cause__ is not None
    assert (raised.value.__cause__.sqlstate) == "25006"  # type: ignore[attr-defined]
    assert undo.get("call-1").status == "committed"
    if joined:
        # Nothing of it stays in the caller's transaction.
        conn.execute("insert into scratch values (2)")
        conn.commit()
    assert_same(before, snapshot(db, TABLE))
    assert db.execute("select count(*) from scratch").fetchall() == [(2 if joined else 0,)]


def test_own_exception_of_a_repeated_block_passes(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with undo.invocation(conn, id="call-1"):
        conn.execute(RAISE)
    with pytest.raises(ZeroDivisionError), undo.invocation(conn, id="call-1"):
        _ = 1 / 0
    assert undo.get("call-1").status == "committed"


def test_other_tool_or_input_is_another_call(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with undo.invocation(conn, id="call-1", tool="t", input={"n": 1}):
        conn.execute(RAISE)
    for tool, number in (("u", 1), ("t", 2)):
        with pytest.raises(InvocationClosed, match="recorded with another") as raised:
            undo.invocation(conn, id="call-1", tool=tool, input={"n": number}).__enter__()
        assert raised.value.detail == {"invocation": "call-1"}
        assert raised.value.__cause__ is not None
    assert undo.get("call-1").status == "committed", "and it was not marked as failed"


def test_reverted_call_is_made_again_only_on_demand(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with undo.invocation(conn, id="call-1"):
        conn.execute(RAISE)
    undo.revert("call-1")
    with pytest.raises(InvocationClosed, match="has been reverted"):
        undo.invocation(conn, id="call-1").__enter__()
    assert undo.get("call-1").status == "reverted"
    with undo.invocation(conn, id="call-1", again=True) as inv:
        assert inv.created
        conn.execute(RAISE)
    assert undo.get("call-1").status == "partially_reverted"
    assert undo.get("call-1").undoable


def test_call_that_is_being_made_or_died(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    undo.record(id="call-1")
    with pytest.raises(InvocationPending, match="is pending") as raised:
        undo.invocation(conn, id="call-1").__enter__()
    assert "call fail() with this id" in str(raised.value.hint)
    with pytest.raises(InvocationPending):
        undo.record(id="call-1")
    assert status(db, "call-1") == "pending", "it is somebody else's to close"
    undo.fail("call-1", "the worker died")
    with undo.invocation(conn, id="call-1"):
        conn.execute(RAISE)
    assert status(db, "call-1") == "committed"


def test_many_at_once_write_once(undo: AgentUndo, db: Connection) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        try:
            with undo.invocation(id="call-1", tool="t") as inv:
                if inv.created:
                    inv.connection.execute(RAISE)
                outcomes.append("made" if inv.created else "found")
        except InvocationPending:
            outcomes.append("pending")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("made") == 1
    assert len(outcomes) == 8
    assert undo.get("call-1").rows == 3
