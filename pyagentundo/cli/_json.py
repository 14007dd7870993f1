"""JSON on stdout that keeps every digit.

What the server shows as jsonb has numbers of any size and scale; Python's floats would turn 1000.00
into 1000.0 and forget what lies beyond sixteen digits. They are read as `Decimal`
(`pyagentundo._json`) and written as they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import click

from pyagentundo.cli._screen import CONTROL


def dumps(data: Any, *, indent: int | None = 2) -> str:
    """Write JSON; numbers keep their digits, times are ISO 8601.

    Args:
        data: what queries return: dicts, lists, text, numbers, times.
        indent: spaces for each level; None writes everything on one line.

    """
    return "".join(_pieces(data, indent, 0))


def print_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    click.echo(dumps(data))


def print_json_rows(name: str, items: Iterable[Any], beside: Mapping[str, Any]) -> None:
    """Print an object with an array whose items come one by one and need not fit into memory.

    Args:
        name: of the array.
        items: what it holds.
        beside: what else the object holds.

    """
    click.echo(f"{{\n  {_quoted(name)}: [", nl=False)
    none = True
    for item in items:
        text = "".join(f"\n    {line}" for line in dumps(item).split("\n"))
        click.echo(text if none else f",{text}", nl=False)
        none = False
    rest = dumps(beside).removeprefix("{")
    click.echo(("" if none else "\n  ") + f"],{rest}")


def print_json_line(data: Any) -> None:
    """Print one JSON document on a line of its own, and let it out at once."""
    click.echo(dumps(data, indent=None))


def number(value: int | Decimal) -> str:
    """Return a number as the database shows it: never with an exponent."""
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _pieces(data: Any, indent: int | None, level: int) -> Iterable[str]:
    match data:
        case None:
            yield "null"
        case bool():
            yield "true" if data else "false"
        case int() | Decimal():
            yield number(data)
        case datetime() | date() | time():
            yield json.dumps(data.isoformat())
        case str():
            yield _quoted(data)
        case Mapping():
            named = [(f"{_quoted(str(key))}: ", data[key]) for key in data]
            yield from _container("{", named, "}", indent, level)
        case list() | tuple():
            yield from _container("[", [("", item) for item in data], "]", indent, level)
        case _:
            yield _quoted(str(data))


def _quoted(text: str) -> str:
    """Return a JSON string that is safe to show: what `printable` escapes is escaped here too."""
    return CONTROL.sub(
        lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False)
    )


def _container(
    opening: str, items: list[tuple[str, Any]], closing: str, indent: int | None, level: int
) -> Iterable[str]:
    if not items:
        yield opening + closing
        return
    before = "" if indent is None else "\n" + " " * (indent * (level + 1))
    between = ", " if indent is None else ","
    yield opening
    for position, (name, item) in enumerate(items):
        yield (between if position else "") + before + name
        yield from _pieces(item, indent, level + 1)
    yield ("" if indent is None else "\n" + " " * (indent * level)) + closing
