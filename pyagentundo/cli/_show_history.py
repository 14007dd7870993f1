"""The captured versions of one row, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli import _show_diff
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import moment


def show_history(screen: Screen, rows: Sequence[DictRow]) -> None:
    """Print what ``agentundo.row_history`` returns."""
    for position, row in enumerate(rows):
        if position:
            screen.line()
        screen.line(_headline(row), bold=True, fg=_show_diff.COLOUR[row["operation"]])
        _show_diff.show_columns(screen, row["operation"], _columns(row))


def _headline(row: DictRow) -> str:
    who = row["actor"] or row["role"]
    under = f" under {row['invocation']}" if row["invocation"] else ", untagged"
    return printable(f"{moment(row['at'])} {row['operation']} by {who}{under}")


def _columns(row: DictRow) -> list[tuple[str, Any, Any]]:
    before, after = row["before"] or {}, row["after"] or {}
    return [(name, before.get(name), after.get(name)) for name in row["columns"]]
