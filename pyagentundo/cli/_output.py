"""Printing: tables for people, JSON for programs.

Names and ids come from agents and may hold anything, so control characters never reach the
terminal as such.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WIDEST = 60


def printable(text: str) -> str:
    """Return the text with control characters written as escapes, newlines too."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_json(data: Any) -> None:
    """Print one JSON document; times are ISO 8601."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=_encode))


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    empty: str = "nothing",
    err: bool = False,
) -> None:
    """Print rows in aligned columns; a line that says so when there are none.

    On a terminal long values are cut, elsewhere they are whole.
    """
    if not rows:
        click.echo(empty, err=err)
        return
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    if sys.stdout.isatty():
        widest = max(_WIDEST, shutil.get_terminal_size().columns // 2)
        cells = [[_cut(cell, widest) for cell in line] for line in cells]
    headings = [name.replace("_", " ") for name in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    right = [_all_numbers(row[name] for row in rows) for name in columns]
    for line in [headings, ["-" * width for width in widths], *cells]:
        aligned = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(aligned).rstrip(), err=err)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one object, a name and a value per line; what is empty is left out."""
    shown = {name: value for name, value in fields.items() if value not in (None, [], {})}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}")


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case dict() if value and all(not isinstance(part, dict | list) for part in value.values()):
            return printable(", ".join(f"{name}={part}" for name, part in value.items()))
        case list() if all(isinstance(part, str) for part in value):
            return printable(", ".join(value))
        case dict() | list():
            return printable(json.dumps(value, ensure_ascii=False, default=_encode))
        case _:
            return printable(str(value))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _encode(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
