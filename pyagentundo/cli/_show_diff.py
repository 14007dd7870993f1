"""A diff in lines: rows, and under each its columns before and after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli._screen import Screen, columns_of, pad, printable, wrapped
from pyagentundo.cli._tables import key_text, value_text

_SIGN = {"insert": "+", "delete": "-", "update": "~"}
COLOUR = {"insert": "green", "delete": "red", "update": "yellow"}
_BEFORE: dict[str, Any] = {"fg": "red"}
_AFTER: dict[str, Any] = {"fg": "green"}


def show_diff(screen: Screen, rows: Iterable[DictRow]) -> None:
    """Print what ``agentundo.diff`` returns, row by row."""
    for position, (head, columns) in enumerate(_by_row(rows)):
        if position:
            screen.line()
        relation, key, action = head
        line = f"{_SIGN[action]} {relation} {key}".rstrip()
        screen.line(f"{line} ({action})", bold=True, fg=COLOUR[action])
        values = [(row["column_name"], row["before"], row["after"]) for row in columns]
        show_columns(screen, action, values)


def show_columns(screen: Screen, action: str, columns: list[tuple[str, Any, Any]]) -> None:
    """Print columns before and after, each on one line where there is room for it.

    Args:
        screen: where.
        action: ``insert``, ``delete`` or ``update``: which of the two there is.
        columns: names with the values before and after.

    """
    names = [printable(name) for name, _, _ in columns]
    width = max(map(columns_of, names), default=0)
    if screen.width is not None:
        width = min(width, screen.width // 3)
    for name, (_, before, after) in zip(names, columns, strict=True):
        sides = _sides(action, before, after)
        plain = f" {screen.arrow} ".join(text for _, text, _ in sides)
        if screen.fits(f"    {pad(name, width)}  {plain}") and columns_of(name) <= width:
            shown = [screen.paint(text, **style) for _, text, style in sides]
            screen.raw(f"    {pad(name, width)}  {f' {screen.arrow} '.join(shown)}")
            continue
        screen.line(f"    {name}", hang=2)
        for sign, text, style in sides:
            room = None if screen.width is None else screen.width - 8
            for part in wrapped(text, room):
                screen.raw(screen.paint(f"      {sign} {part}", **style))
                sign = " "


def _by_row(rows: Iterable[DictRow]) -> Iterator[tuple[tuple[str, str, str], list[DictRow]]]:
    """Yield each row's name with its columns.

    A row written by two statements comes twice in a row; a column that comes again begins it anew.
    """
    for head, group in groupby(
        rows, lambda row: (row["relation"], key_text(row["key"]), row["action"])
    ):
        columns: dict[str, DictRow] = {}
        for row in group:
            if row["column_name"] in columns:
                yield head, list(columns.values())
                columns = {}
            columns[row["column_name"]] = row
        yield head, list(columns.values())


def _sides(action: str, before: Any, after: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what there is to show: before, after, or both; each with a sign and colours."""
    old = ("-", value_text(before), _BEFORE)
    new = ("+", value_text(after), _AFTER)
    return {"insert": [new], "delete": [old]}.get(action, [old, new])
