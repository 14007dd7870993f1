"""The captured versions of one row, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli import _show_diff
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import moment

#: Said where history cannot know who it was, nor when.
_MISSED = "somebody wrote it here, not captured"
#: The same of a table of which everybody's writes are captured.
_ALTERED = (
    "versions are missing here: purged, or the table was altered, or the row written past capture"
)


def show_history(
    screen: Screen, rows: Sequence[DictRow], *, version: str | None, keyed: bool, whole: bool
) -> None:
    """Print what ``agentundo.row_history`` returns, and where writes must be missing in it.

    Args:
        screen: where.
        rows: the captured versions, the oldest first.
        version: what ``agentundo.row_version`` says of the row as it is now.
        keyed: the table has a key. Of rows without one nobody knows which is which.
        whole: everybody's writes to the table are captured.

    """
    missed = _ALTERED if whole else f"{_MISSED}, or the table was altered"
    former: list[DictRow] = []
    # Within one call, what a trigger of the table wrote can stand on the wrong side.
    for _, call in groupby(rows, lambda row: row["invocation"]):
        versions = list(call)
        if former and keyed and not _meet(former, versions):
            _say_missed(screen, missed)
        for row in versions:
            if row is not rows[0]:
                screen.line()
            screen.line(_headline(row), bold=True, fg=_show_diff.COLOUR[row["operation"]])
            _show_diff.show_columns(screen, row["operation"], _columns(row))
        former = versions
    if keyed and not _is_as_left(former, version):
        rewritten = "the whole table was rewritten"
        said = f"{rewritten} here, or the row written past capture"
        _say_missed(screen, said if whole else f"{_MISSED}, or {rewritten}")


def _say_missed(screen: Screen, text: str) -> None:
    screen.line()
    screen.line(text, fg="red")


def _meet(former: Sequence[DictRow], later: Sequence[DictRow]) -> bool:
    """Tell whether one call found what another had left."""
    return any(_same(one["after"], other["before"]) for one in former for other in later)


def _same(after: dict[str, Any] | None, before: dict[str, Any] | None) -> bool:
    if after is None or before is None:
        return after is before
    # A column that only one of them has was added or dropped in between.
    return all(after[name] == before[name] for name in after.keys() & before.keys())


def _is_as_left(last: Sequence[DictRow], version: str | None) -> bool:
    """Tell whether a row is as the last call left it, as far as can be known."""
    if version is None:
        return any(row["operation"] == "delete" for row in last)
    # What was captured before a restore has no version.
    return any(row["version"] in (None, version) for row in last)


def _headline(row: DictRow) -> str:
    who = row["actor"] or row["role"]
    line = f"{moment(row['at'])} {row['operation']} by"
    if who is None:
        return f"{line} somebody of another scope, not shown"
    under = f" under {row['invocation']}" if row["invocation"] else ", untagged"
    return printable(f"{line} {who}{under}")


def _columns(row: DictRow) -> list[tuple[str, Any, Any]]:
    before, after = row["before"] or {}, row["after"] or {}
    return [(name, before.get(name), after.get(name)) for name in row["columns"]]
