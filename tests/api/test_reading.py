"""The log, runs, diffs, histories, events and health, as typed values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from psycopg.rows import dict_row

from pyagentundo import (
    AgentUndo,
    DiffRow,
    Effect,
    Event,
    HistoryRow,
    Invocation,
    PlanCount,
    PlanRow,
    RevertResult,
    Run,
    Selection,
    Undoable,
    results,
)
from tests.conftest import Connection
from tests.support.undo import scalar

pytestmark = pytest.mark.core


@pytest.fixture
def calls(undo: AgentUndo, db: Connection) -> dict[str, Invocation]:
    """Make some calls that differ in everything."""
    told: dict[str, dict[str, Any]] = {
        "a": {"run": "r1", "actor": "bot", "tool": "t1", "scope": "crm", "on_behalf_of": "dana"},
        "b": {"run": "r1", "actor": "bot", "tool": "t2", "scope": "crm"},
        "c": {"run": "r2", "actor": "tob", "tool": "t1"},
        "d": {},
    }
    for number, (name, values) in enumerate(told.items(), 1):
        with undo.invocation(id=name, **values) as inv:
            inv.connection.execute("update deals set stage = %s where id = 1", [f"s{number}"])
    with pytest.raises(ZeroDivisionError), undo.invocation(id="e", run="r2"):
        _ = 1 / 0
    return {one.id: one for one in undo.log()}


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({}, "edcba"),
        ({"run": "r1"}, "ba"),
        ({"run": "r1", "from_step": 2}, "b"),
        ({"actor": "bot", "tool": "t2"}, "b"),
        ({"tool": "t1"}, "ca"),
        ({"scope": "crm"}, "ba"),
        ({"on_behalf_of": "dana"}, "a"),
        ({"status": "failed"}, "e"),
        ({"role": "nobody"}, ""),
        ({"since": timedelta(hours=-1)}, "edcba"),
        ({"since": timedelta(hours=1)}, ""),
        ({"until": timedelta(hours=1)}, "edcba"),
        ({"until": timedelta(hours=-1)}, ""),
    ],
)
def test_selection(
    undo: AgentUndo, calls: dict[str, Invocation], chosen: dict[str, Any], ids: str
) -> None:
    chosen = {n: datetime.now(UTC) + v if n in ("since", "until") else v for n, v in chosen.items()}
    assert "".join(one.id for one in undo.log(**chosen)) == ids
    assert "".join(one.id for one in undo.log(Selection(**chosen))) == ids
    assert "".join(one.id for one in undo.invocations(page_rows=2, **chosen)) == ids
    assert [one.id for one in undo.log(limit=1, **chosen)] == list(ids[:1])
    runs = {one.run for one in undo.log(**chosen) if one.run}
    assert {run.run for run in undo.runs(**chosen)} == runs


def test_runs_and_what_can_be_undone(undo: AgentUndo, calls: dict[str, Invocation]) -> None:
    newest, oldest = undo.runs()
    assert (newest.run, newest.invocations, newest.rows, newest.actor) == ("r2", 2, 1, "tob")
    assert (oldest.run, oldest.status, oldest.undoable) == ("r1", "committed", True)
    undo.revert("d")
    (of_run, *_), everything = undo.undoable(run="r1"), undo.undoable(limit=100)
    assert (of_run.kind, of_run.id, of_run.tools, of_run.undoable) == (
        "run",
        "r1",
        ("t1", "t2"),
        True,
    )
    assert {one.id: one.why_not for one in everything if one.kind == "invocation"} == {
        "a": None,
        "b": None,
        "c": None,
        "d": "already_reverted",
        "e": "nothing_to_revert",
    }
    assert [one.id for one in undo.undoable(scope="crm") if one.kind == "run"] == ["r1"]


def test_diff_and_history(undo: AgentUndo, db: Connection) -> None:
    with undo.invocation(id="a", run="r") as inv:
        inv.connection.execute("update deals set amount = amount / 3 where id = 1")
    assert undo.diff("a") == [
        DiffRow(
            step=1,
            invocation="a",
            relation="public.deals",
            key={"id": 1},
            action="update",
            column_name="amount",
            before=Decimal("1000.00"),
            after=Decimal("333.33"),
        )
    ]
    db.execute("update deals set stage = 'Lost' where id = 1")
    first, second = undo.row_history("deals", {"id": 1})
    assert (first.invocation, first.columns, first.operation) == ("a", ("amount",), "update")
    assert first.after == {"id": 1, "stage": "Open", "amount": Decimal("333.33")}
    assert (second.invocation, second.columns) == (None, ("stage",))
    assert undo.row_version("deals", {"id": 1}) == second.version != first.version
    assert undo.row_version("deals", {"id": 77}) is None


def test_events(undo: AgentUndo, calls: dict[str, Invocation]) -> None:
    undo.revert("d", reverted_by="dana", reason="wrong")
    undo.redo("d")
    first, second = undo.events()
    assert (first.kind, first.invocation, first.source) == ("invocation_reverted", "d", "system")
    assert (first.payload["by"], first.payload["reason"]) == ("dana", "wrong")
    assert undo.events(after=first.event) == [second]
    assert undo.events(kind="invocation_redone") == [second]
    assert undo.events(invocation="d", limit=1) == [first]
    assert undo.events(run="r1") == undo.events(scope="crm") == []


def test_check(undo: AgentUndo, db: Connection) -> None:
    assert [finding for finding in undo.check() if finding.severity != "info"] == []
    db.execute("create table notes (deal int references deals on delete cascade)")
    (finding,) = [finding for finding in undo.check() if finding.severity != "info"]
    assert (finding.severity, finding.object) == ("warning", "public.notes")
    assert "deleted or changed together with rows of public.deals" in finding.problem
    assert finding.hint == "Run \"select agentundo.track('public.notes')\"."


def test_reads_in_the_callers_transaction(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    with conn.transaction():
        conn.execute("select agentundo.tag('inside')")
        conn.execute("update deals set stage = 'x' where id = 1")
        assert undo.get("inside", conn=conn).rows == 1
        assert len(undo.diff("inside", conn=conn)) == 1
        assert undo.log() == []


@pytest.mark.parametrize(
    ("cls", "source"),
    [
        (Invocation, "agentundo.invocations"),
        (Run, "agentundo.runs"),
        (Effect, "agentundo.effects"),
        (Event, "agentundo.events"),
        (PlanRow, "agentundo.plan_row"),
        (PlanCount, "agentundo.plan_count"),
        (RevertResult, "agentundo.revert_result"),
        (Undoable, "agentundo.undoable_row"),
        (DiffRow, "agentundo.diff_row"),
        (HistoryRow, "agentundo.history_row"),
        (results.Finding, "agentundo.finding"),
    ],
)
def test_types_are_those_of_the_schema(db: Connection, cls: Any, source: str) -> None:
    columns = scalar(
        db,
        "select array_agg(attname::text order by attnum) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped",
        source,
    )
    assert [one.name for one in fields(cls)] == columns


def test_results_are_frozen(undo: AgentUndo, calls: dict[str, Invocation]) -> None:
    with pytest.raises(FrozenInstanceError):
        calls["a"].status = "pending"  # type: ignore[misc]
    assert undo.get("a") == calls["a"]
    with pytest.raises(FrozenInstanceError):
        undo.plan("d").rows = ()  # type: ignore[misc]


def test_rows_of_the_callers_kind_do_not_matter(
    undo: AgentUndo, calls: dict[str, Invocation], conn: Connection
) -> None:
    conn.row_factory = dict_row
    assert undo.get("a", conn=conn) == calls["a"]
