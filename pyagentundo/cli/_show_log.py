"""Calls in words: a list of them, and one of them whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import count, moment, print_fields, print_table

_CHANGES = ["relation", "operation", "rows", "role", "at", "covered_by"]
_EFFECTS = ["name", "kind", "summary", "undo_by", "side_effect", "cost", "remedy"]

_PURGED = "its changes are purged"
_STATUS_COLOUR = {"reverted": "yellow", "partially_reverted": "yellow", "failed": "red"}


def show_log(screen: Screen, rows: Sequence[DictRow], *, more: bool, chosen: bool) -> None:
    """List calls: a table in a pipe and where it fits, else two or three lines for each.

    Args:
        screen: where.
        rows: of the view ``invocations``, each with what holds it.
        more: there are older ones too.
        chosen: only some were asked for.

    """
    empty = "no call matches" if chosen else "no calls"
    if screen.width is None:
        print_table(screen, [_flat(row) for row in rows], list(_flat_names()), empty=empty)
        return
    if not rows:
        screen.line(empty)
    for row in rows:
        _entry(screen, row)
    if more:
        screen.line("… older ones: --limit, --until")


def show_invocation(
    screen: Screen, about: DictRow, changes: Sequence[DictRow], effects: Sequence[DictRow]
) -> None:
    """Show one invocation: who, what, when, which tables, what of it stands."""
    fields: dict[str, Any] = {**about, "for": about["on_behalf_of"]}
    empty = "its changes are purged" if fields.pop("purged") else "no captured changes"
    for name in ("on_behalf_of", "uncovered", "recorded", "committed_at", "created_at"):
        fields.pop(name)
    if about["recorded"]:
        fields |= {"recorded_at": about["created_at"], "committed_at": about["committed_at"]}
    first = ["id", "run", "step", "scope", "actor", "for", "role"]
    print_fields(screen, {name: fields[name] for name in [*first, *fields]})
    _uncovered(screen, about)
    screen.line()
    print_table(screen, changes, _CHANGES, empty=empty)
    if effects:
        screen.line()
        screen.line("Beside the rows:", bold=True)
        print_table(screen, effects, _EFFECTS)


def _entry(screen: Screen, row: DictRow) -> None:
    """Print an invocation: its id and state, then who did what when, then what is not covered."""
    status = row["status"].replace("_", " ")
    state = f"{status}, {_PURGED if row['purged'] else count(row['rows'], 'row')}"
    screen.line(f"{printable(row['id'])}  {state}", fg=_STATUS_COLOUR.get(row["status"]))
    screen.line(f"    {_sentence(row)}", hang=0)
    if row["held"]:
        screen.line(f"    {printable(_hold(row))}", hang=0)
    _uncovered(screen, row)


def _hold(row: Mapping[str, Any]) -> str:
    return f"held by {row['held_by']} since {moment(row['held_at'])}: {row['held']}"


def _sentence(row: DictRow) -> str:
    who = row["actor"] or row["role"]
    doing = [
        row["tool"],
        f"by {who}" if who else None,
        f"for {row['on_behalf_of']}" if row["on_behalf_of"] else None,
    ]
    parts = [
        moment(row["created_at"]) if row["created_at"] else None,
        " ".join(filter(None, doing)),
        _place(row),
        ", ".join(row["relations"] or []),
    ]
    return printable(", ".join(filter(None, parts)))


def _place(row: DictRow) -> str | None:
    if not row["run"]:
        return None
    return f"run {row['run']}" + (f" step {row['step']}" if row["step"] else "")


def _uncovered(screen: Screen, row: DictRow) -> None:
    if row["uncovered"]:
        tables = printable(", ".join(row["uncovered"]))
        screen.line(f"    not tracked, cannot be undone: {tables}", hang=0, fg="red")


def _flat(row: DictRow) -> dict[str, Any]:
    flat = {heading: row[name] for heading, name in _flat_names().items()}
    return {**flat, "status": f"{flat['status']}, {_PURGED}"} if row["purged"] else flat


def _flat_names() -> dict[str, str]:
    return {
        "when": "created_at",
        "id": "id",
        "run": "run",
        "step": "step",
        "actor": "actor",
        "for": "on_behalf_of",
        "role": "role",
        "tool": "tool",
        "status": "status",
        "rows": "rows",
        "tables": "relations",
        "held": "held",
        "not tracked": "uncovered",
    }
