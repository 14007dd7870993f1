"""Tags: scopes nest, and after each the outer one is in force again, however it was left."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from pyagentundo import AgentUndo, UsageError
from tests.api.conftest import TABLE
from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import rows

SETTINGS = ("invocation", "run", "step", "tool", "actor", "on_behalf_of", "scope")


def tags(conn: Connection) -> dict[str, str]:
    found = rows(
        conn,
        "select n, current_setting('agent.' || n, true) from unnest(%s::text[]) n",
        list(SETTINGS),
    )
    return {name: value for name, value in found if value}


def written(db: Connection) -> list[tuple[object, ...]]:
    return rows(db, "select invocation, rows from agentundo.changes order by change")


def set_stage(conn: Connection, number: int, stage: str) -> None:
    conn.execute("update deals set stage = %s where id = %s", [stage, number])


def test_tags_all_of_it_for_one_transaction(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with undo.tag(
        conn,
        "t-1",
        run="r",
        step=7,
        tool="sql",
        actor="bot",
        on_behalf_of="dana",
        scope="crm",
    ) as name:
        assert undo.current().id == name == "t-1"
        set_stage(undo.connection(), 1, "Won")
        assert tags(conn) == {
            "invocation": "t-1",
            "run": "r",
            "step": "7",
            "tool": "sql",
            "actor": "bot",
            "on_behalf_of": "dana",
            "scope": "crm",
        }
    assert tags(conn) == {}
    conn.rollback()
    found = undo.get("t-1")
    assert (found.status, found.recorded, found.step, found.rows) == ("committed", False, 7, 1)


def test_makes_an_id(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with undo.tag(conn) as first:
        set_stage(conn, 1, "Won")
    with undo.tag(None) as second:
        set_stage(undo.connection(), 2, "Won")
    assert first < second, "ids made later sort later"
    assert first[14] == "7"
    assert written(db) == [(first, 1), (second, 1)]


def test_exception_rolls_back(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    before = snapshot(db, TABLE)
    with pytest.raises(ZeroDivisionError), undo.tag(conn, "t-1"):
        set_stage(conn, 1, "Won")
        _ = 1 / 0
    assert_same(before, snapshot(db, TABLE))
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("leave", ["well", "exception", "failed statement", "Rollback"])
@pytest.mark.parametrize("kind", ["tag", "invocation"])
def test_outer_tag_is_in_force_again(
    undo: AgentUndo, db: Connection, conn: Connection, leave: str, kind: str
) -> None:
    with undo.tag(conn, "outer", run="r", scope="crm"):
        set_stage(conn, 1, "a")
        block = undo.tag(conn, "inner") if kind == "tag" else undo.invocation(conn, id="inner")
        try:
            with block:
                assert tags(conn)["invocation"] == "inner"
                assert "run" not in tags(conn), "companions do not cling"
                set_stage(conn, 2, "b")
                if leave == "exception":
                    _ = 1 / 0
                elif leave == "failed statement":
                    conn.execute("select from nowhere")
                elif leave == "Rollback":
                    raise psycopg.Rollback
        except (ZeroDivisionError, psycopg.errors.UndefinedTable):
            assert leave != "well"
        assert tags(conn) == {"invocation": "outer", "run": "r", "scope": "crm"}
        set_stage(conn, 3, "c")
    inner = [("inner", 1)] if leave == "well" else []
    assert written(db) == [("outer", 1), *inner, ("outer", 1)]


def test_rollback_to_the_outer_scope(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    before = snapshot(db, TABLE)
    with (
        conn.transaction() as whole,
        undo.tag(conn, "outer"),
        undo.invocation(conn, id="inner"),
    ):
        set_stage(conn, 1, "a")
        raise psycopg.Rollback(whole)
    assert_same(before, snapshot(db, TABLE))
    assert undo.get("inner").status == "failed"


def test_tag_set_by_hand_before(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    conn.execute("set agent.invocation = 'session'")
    conn.execute("select agentundo.tag('by hand', run => 'r')")
    with undo.tag(conn, "inner"):
        set_stage(conn, 1, "a")
    assert tags(conn) == {"invocation": "by hand", "run": "r"}
    set_stage(conn, 2, "b")
    conn.commit()
    assert tags(conn) == {"invocation": "session"}
    assert written(db) == [("inner", 1), ("by hand", 1)]


def test_deep_nesting_with_a_rollback_in_the_middle(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with undo.invocation(conn, id="a"):
        set_stage(conn, 1, "a")
        with pytest.raises(ZeroDivisionError), undo.invocation(conn, id="b"):
            set_stage(conn, 1, "b")
            with undo.invocation(conn, id="c"):
                set_stage(conn, 1, "c")
            assert tags(conn)["invocation"] == "b"
            _ = 1 / 0
        assert tags(conn)["invocation"] == "a"
        with undo.invocation(conn, id="d"):
            set_stage(conn, 2, "d")
    assert {i.id: i.status for i in undo.log()} == {
        "a": "committed",
        "b": "failed",
        "c": "failed",  # its commit was part of b, and went with it
        "d": "committed",
    }
    assert undo.get("c").error == "rolled back with 'b'"
    assert written(db) == [("a", 1), ("d", 1)]


def test_calls_within_a_tag_that_is_rolled_back(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with pytest.raises(ZeroDivisionError), undo.tag(conn, "a"):
        with undo.tag(conn, "b"), undo.invocation(conn, id="c"):
            set_stage(conn, 1, "c")
        _ = 1 / 0
    with undo.invocation(conn, id="d") as outer:
        with undo.invocation(conn, id="e"):
            set_stage(conn, 1, "e")
        outer.fail("no")
    assert {i.id: (i.status, i.error) for i in undo.log()} == {
        "c": ("failed", "rolled back with 'a'"),
        "d": ("failed", "no"),
        "e": ("failed", "rolled back with 'd'"),
    }


@pytest.mark.parametrize("kind", ["tag", "invocation"])
@pytest.mark.parametrize("statement", ["commit", "rollback", "select agentundo.tag('other')"])
def test_block_that_ends_the_transaction_itself(
    undo: AgentUndo, db: Connection, conn: Connection, kind: str, statement: str
) -> None:
    block = undo.tag(conn, "t-1") if kind == "tag" else undo.invocation(conn, id="t-1")
    with pytest.raises(UsageError, match="tag of 't-1' was gone at the end") as raised, block:
        conn.execute(statement.encode())
    assert "by hand inside the block" in str(raised.value.hint)
    if kind == "invocation":
        assert undo.get("t-1").status == "failed"


@pytest.mark.parametrize("kind", ["tag", "invocation"])
def test_block_that_hides_an_error(
    undo: AgentUndo, db: Connection, conn: Connection, kind: str
) -> None:
    before = snapshot(db, TABLE)
    block = undo.tag(conn, "t-1") if kind == "tag" else undo.invocation(conn, id="t-1")
    with pytest.raises(UsageError, match="its error was not passed on") as raised, block:
        set_stage(conn, 1, "Won")
        with suppress(psycopg.errors.UndefinedTable):
            conn.execute("select from nowhere")
    assert "conn.transaction()" in str(raised.value.hint)
    assert_same(before, snapshot(db, TABLE))
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
