"""Rows for people: aligned columns where they fit, else one block of lines for each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from pyagentundo.cli import _json
from pyagentundo.cli._screen import Screen, columns_of, pad, printable, wrapped

_GAP = 2


def print_table(
    screen: Screen,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    empty: str = "nothing",
) -> None:
    """Print rows in aligned columns; a line that says so when there are none.

    A terminal gets only the columns that hold anything, and where it is too narrow for them each
    row becomes a block of lines. Elsewhere all columns are there and nothing is broken.
    """
    if not rows:
        screen.line(empty)
        return
    if screen.width is not None:
        columns = [name for name in columns if any(cell(row[name]) for row in rows)]
    cells = [[cell(row[name]) for name in columns] for row in rows]
    headings = [name.replace("_", " ") for name in columns]
    widths = [max(map(columns_of, column)) for column in zip(headings, *cells, strict=True)]
    if screen.width is not None and sum(widths) + _GAP * (len(widths) - 1) > screen.width:
        for position, row in enumerate(rows):
            if position:
                screen.line()
            print_fields(screen, {name: row[name] for name in columns})
        return
    right = [_all_numbers(row[name] for row in rows) for name in columns]
    for line in [headings, ["-" * width for width in widths], *cells]:
        aligned = (
            pad(one, width, right=number)
            for one, width, number in zip(line, widths, right, strict=True)
        )
        screen.raw((" " * _GAP).join(aligned).rstrip())


def print_fields(screen: Screen, fields: Mapping[str, Any], *, indent: int = 0) -> None:
    """Print one object, a name and a value per line; what is empty is left out."""
    shown = {name.replace("_", " "): cell(value) for name, value in fields.items()}
    shown = {name: value for name, value in shown.items() if value}
    width = max(map(columns_of, shown), default=0)
    for name, value in shown.items():
        head = " " * indent + pad(name, width) + " " * _GAP
        room = None if screen.width is None else screen.width - len(head)
        for part in wrapped(value, room):
            screen.raw(head + part)
            head = " " * len(head)


def cell(value: Any) -> str:
    """Return a value on one line, safe for a terminal; empty for what is not there."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return moment(value)
        case int() | Decimal():
            return _json.number(value)
        case dict() if value and not any(isinstance(part, dict | list) for part in value.values()):
            return key_text(value)
        case list() if all(isinstance(part, str) for part in value):
            return printable(", ".join(value))
        case dict() | list():
            return printable(_json.dumps(value, indent=None)) if value else ""
        case _:
            return printable(str(value))


def key_text(key: Mapping[str, Any] | None) -> str:
    """Return the columns of a key, or of any flat object: ``id=D-881, part=2``."""
    if not key:
        return ""
    return ", ".join(f"{printable(name)}={value_text(part)}" for name, part in key.items())


def value_text(value: Any) -> str:
    """Return one value of a row; text that could be taken for something else is quoted."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return _json.number(value)
        case str() if value in ("", "NULL") or value != value.strip():
            return printable(_json.dumps(value))
        case str():
            return printable(value)
        case _:
            return printable(_json.dumps(value, indent=None))


def moment(at: datetime) -> str:
    """Return a time in the zone of this machine, to the second."""
    return at.astimezone().isoformat(sep=" ", timespec="seconds")[:19]


def count(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 row``, ``2,000 rows``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(octets: int) -> str:
    """Return a size as people say it: ``16 kB``."""
    amount = float(octets)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | Decimal) and not isinstance(value, bool) for value in values)
