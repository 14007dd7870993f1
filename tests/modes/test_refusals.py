"""What a refusal tells: rows, reasons and the way out, never a value."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.modes import undo
from tests.support.undo import Refusal, refused, revert, rows, write

pytestmark = pytest.mark.core


def test_conflict_names_rows_and_the_way_out_but_no_values(db: Connection) -> None:
    """DETAIL goes to the server log, so it holds keys, reasons and columns only."""
    db.execute("update deals set stage = 'secret0', owner = 'secret0'")
    write(db, "agent", "update deals set stage = 'secret1', owner = 'secret2'")
    db.execute("update deals set stage = 'secret3' where id = 4")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.conflicts == [
        {
            "relation": "public.deals",
            "key": {"id": 4},
            "reason": "row_changed",
            "columns": ["stage"],
            "invocation": "agent",
        }
    ]
    assert "public.deals" in caught.message
    assert "4" in caught.message
    for way_out in ("merge", "skip", "cascade", "force", "plan"):
        assert way_out in caught.hint
    assert "secret" not in f"{caught.message} {caught.hint} {caught.detail}"


def test_constraint_conflict_does_not_tell_values_either(db: Connection) -> None:
    db.execute("update deals set code = 'secret0', stage = 'secret1' where id = 2")
    write(db, "agent", "update deals set code = 'secret2' where id = 2")
    db.execute("insert into deals values (8, 'secret1', 'secret2', 4711, 'secret0')")
    with refused("UN001") as caught:
        revert(db, "agent")
    text = f"{caught.message} {caught.hint} {caught.detail}"
    assert "secret" not in text
    assert "4711" not in text


def test_conflict_tells_the_first_20_rows_and_the_total(db: Connection) -> None:
    db.execute(
        "insert into deals select n, 'New', 'eve', n, 'd' || n from generate_series(101, 150) n"
    )
    write(db, "agent", "update deals set stage = 'Won' where id > 100")
    db.execute("update deals set stage = 'Lost' where id between 101 and 130")
    outcome = undo(db, "abort")
    assert isinstance(outcome, Refusal)
    assert len(outcome.conflicts) == 20
    assert outcome.detail["total"] == 30
    summary = rows(
        db,
        "select relation, action, status, rows, jsonb_array_length(conflicts)"
        " from agentundo.plan_summary(array['agent'])",
    )
    assert summary == [
        ("public.deals", "update", "conflict", 30, 20),
        ("public.deals", "update", "ok", 20, None),
    ]
