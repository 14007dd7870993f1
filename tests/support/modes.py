"""The modes of a revert by name, and what one did to deals and notes or why it refused."""

from __future__ import annotations

from typing import Any

from tests.support.deals import TABLES
from tests.support.undo import FORCE, Connection, Refusal, Result, revert_as_planned

# What each mode is called in the tests, and the arguments that ask for it.
MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "skip": {"on_conflict": "skip"},
    "merge": {"merge": True},
    "skip and merge": {"on_conflict": "skip", "merge": True},
    "cascade": {"on_conflict": "cascade"},
    "cascade and merge": {"on_conflict": "cascade", "merge": True},
    "force": FORCE,
    "force and merge": {**FORCE, "merge": True},
}
#: Modes in which an obstacle put up by somebody without a tag stays one.
HELPLESS = ("abort", "merge", "cascade", "cascade and merge")


def undo(db: Connection, mode: str, what: str | list[str] = "agent") -> Result | Refusal:
    """Take back in a mode, as planned."""
    return revert_as_planned(db, TABLES, what, **MODES[mode])


def assert_refused(outcome: Result | Refusal, reason: str, *columns: str) -> Refusal:
    """Fail unless one row stood in the way, for this reason and over these columns."""
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reasons == [reason]
    assert outcome.detail["total"] == 1
    if columns:
        assert sorted(outcome.conflicts[0]["columns"]) == sorted(columns)
    return outcome


def assert_done(outcome: Result | Refusal, state: str, *counts: int) -> Result:
    """Fail unless it did this: rows deleted, inserted, updated, skipped, conflicts."""
    assert isinstance(outcome, Result), outcome
    assert outcome.status == state
    assert outcome.counts == counts
    return outcome
