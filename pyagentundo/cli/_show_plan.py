"""A plan and its outcome in words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from psycopg.rows import DictRow

from pyagentundo.cli import _hints
from pyagentundo.cli._failures import conflict_lines, who
from pyagentundo.cli._plans import ACTS, LEFT, Plan
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import count, key_text, moment, value_text
from pyagentundo.cli._times import duration

#: How many calls are named when there are many.
_NAMED = 20
#: Where there is no terminal: from here on each column of a row stands on a line of its own.
_LONG = 100
#: The columns of a revert's answer, and what they say was done.
_DONE = {"rows_updated": "put back", "rows_deleted": "removed", "rows_inserted": "brought back"}
#: What is said of a row that was not taken back.
_LEFT = "Left as it is"
#: What is said of a row that force overwrites, by what stood in its way.
_OVERWRITES = "overwrites what was written since"
_FORCED = {"row_deleted": "overwrites that it was deleted since"}
_MERGED = ", but for columns that others have changed"
_TO_DO = {"insert": "bring back", "delete": "remove", "update": "put back"}


def show_plan(screen: Screen, plan: Plan, rows: Iterable[DictRow] | None = None) -> None:
    """Say what an undo would do: who did what, what happens to it, what cannot be undone.

    Args:
        screen: where.
        plan: what it is about.
        rows: all of its rows, to be shown one by one.

    """
    if not plan.counts:
        screen.line("Nothing to undo." if not plan.redo else "Nothing to do again.")
        for one in plan.reverts:
            screen.line(_reverted(one))
        _effects(screen, plan)
        return
    screen.line(_headline(plan), bold=True)
    screen.line()
    _calls(screen, plan)
    _counts(screen, plan)
    if rows is not None:
        screen.line()
        _rows(screen, rows, plan)
    _overwritten(screen, plan)
    _effects(screen, plan)
    _conflicts(screen, plan)
    if plan.unread:
        screen.line()
    for line in plan.unread:
        screen.line(printable(line), fg="yellow")
    screen.line()
    screen.line(_outlook(plan))


def show_outcome(
    screen: Screen,
    status: str,
    result: DictRow,
    left: Plan | None,
    redone: Sequence[str],
    uncovered: Sequence[str],
    further: str = "",
) -> None:
    """Say what an undo has done.

    Args:
        screen: where.
        status: as it is called here: a redo has words of its own.
        result: the server's answer, with the calls that it is about.
        left: a plan of what was not taken back, if anything.
        redone: the calls that were to be done again; none for a revert.
        uncovered: tables that were written and not taken back, because they are not tracked.
        further: options that the role has to give when it takes this back.

    """
    ids = redone or result["invocations"]
    what = printable(ids[0]) if len(ids) == 1 else count(len(ids), "call")
    done = written(result)
    match status:
        case "reverted" | "redone":
            screen.line(f"{status}: {what}, {done or 'no row changed'}", fg="green")
        case "partially_reverted" | "partially_redone":
            number = result["rows_skipped"]
            skipped = f"{count(number, 'row')} left as {'it is' if number == 1 else 'they are'}"
            said = status.replace("_", " ") if done else f"not {status.removeprefix('partially_')}"
            line = f"{said}: {what}, {done or 'no row changed'}, {skipped}"
            screen.line(line, fg="yellow")
        case "not_committed":
            screen.line(f"not committed: {what} is still going on and has written nothing yet")
        case "already_reverted":
            screen.line("already reverted: nothing was left to take back")
        case "nothing_to_redo":
            screen.line("nothing to redo: no revert of it stands")
        case _:
            screen.line("nothing to revert: no write of it was captured")
    if result["revert_id"]:
        screen.line(f"revert id: {result['revert_id']}")
    way_back = None
    if status in ("reverted", "partially_reverted") and result["revert_id"]:
        way_back = f"redo {shlex.quote(printable(ids[0]))}"
    elif status in ("redone", "partially_redone") and result["revert_id"]:
        # Of the calls' own ids it would be a revert of some of them; by its id it is all of it.
        way_back = f"revert {shlex.quote(result['revert_id'])}"
    if way_back:
        screen.line(f"take it back: agentundo {way_back}{further}")
    for one in uncovered:
        screen.line(f"not tracked, stays as it is: {printable(one)}", fg="yellow")
    if left is not None:
        _conflicts(screen, left, conflicts=_LEFT)


def written(result: DictRow) -> str:
    """Return what an undo has written, in words; nothing if it has written nothing."""
    return ", ".join(
        f"{count(result[column], 'row')} {done}" for column, done in _DONE.items() if result[column]
    )


def _rows(screen: Screen, rows: Iterable[DictRow], plan: Plan) -> None:
    """Say what happens to each row, one after the other."""
    for row in rows:
        for line in _row_lines(screen, row, plan.live.get(row["relation"])):
            screen.line(f"   {line}")


def _reverted(revert: DictRow) -> str:
    """Return what has taken back what is not there to be undone, as far as the role is told."""
    if revert["id"] is None:
        return "already reverted"
    by = f" by {revert['by']}" if revert["by"] else ""
    return printable(f"already reverted{by} at {moment(revert['at'])}, revert id: {revert['id']}")


def _overwritten(screen: Screen, plan: Plan) -> None:
    """Name whose work force destroys, where the rows themselves are too many to be listed."""
    lost = plan.overwritten
    if lost is None or not lost.total:
        return
    if plan.rows is None and not plan.by_row:
        screen.line()
        heading = f"Overwrites later work, {count(lost.total, 'row')}:"
        screen.line(heading, bold=True, fg="red")
        for line in conflict_lines(list(lost.rows), lost.total):
            screen.line(f"- {line}", hang=2)
    if lost.unasked:
        screen.line(_hints.unasked(lost.unasked, which="to be overwritten"))


def _conflicts(screen: Screen, plan: Plan, *, conflicts: str = "In the way") -> None:
    """Name the rows that stand in the way, and those that would be left out."""
    for status, heading in (("conflict", conflicts), ("skip", _LEFT)):
        total = plan.total(status)
        if total:
            screen.line()
            screen.line(f"{heading}, {count(total, 'row')}:", bold=True, fg="red")
            found = [one for one in plan.conflicts if one["status"] == status]
            found.sort(key=_order(found))
            for line in conflict_lines(found, total):
                screen.line(f"- {line}", hang=2)
    if plan.unasked:
        screen.line(_hints.unasked(plan.unasked))


def _headline(plan: Plan) -> str:
    total = len(plan.calls) + plan.more
    who = sorted({row["actor"] or row["role"] or "somebody" for row in plan.calls})
    who = [] if who == ["somebody"] else who
    whom = sorted({row["on_behalf_of"] for row in plan.calls if row["on_behalf_of"]})
    text = f"{'Redo' if plan.redo else 'Undo'} {count(total, 'call')}"
    if who:
        text += f" by {_listed(who)}"
    if whom:
        text += f" for {_listed(whom)}"
    return printable(f"{text}:")


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _calls(screen: Screen, plan: Plan) -> None:
    """List the calls, the newest first, each with its rows where there are few."""
    by_call: dict[str, list[DictRow]] = {}
    for row in plan.rows or []:
        by_call.setdefault(row["invocation"], []).append(row)
    for of_call in by_call.values():
        of_call.sort(key=_order(of_call))
    for number, call in enumerate(plan.calls[:_NAMED], start=1):
        screen.line(f"{number}. {_call(call)}", hang=3)
        _rows(screen, by_call.pop(call["id"], []), plan)
    left = len(plan.calls) - _NAMED + plan.more if len(plan.calls) > _NAMED else plan.more
    if left:
        screen.line(f"… and {count(left, 'more call', 'more calls')}")
    # The rows of a redo stand under the revert that it takes back, not under the calls.
    if plan.redo and by_call and len(plan.calls) > 1:
        screen.line()
        screen.line("All of them together:")
    for rows in by_call.values():
        _rows(screen, rows, plan)


def _order(rows: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Any]:
    """Return what sorts rows by their keys, so that two plans are alike; tables stay in order."""
    place: dict[str, int] = {}
    for row in rows:
        place.setdefault(row["relation"], len(place))

    def by_key(row: Mapping[str, Any]) -> Any:
        parts = (row["key"] or {}).values()
        numbers = [isinstance(part, int | Decimal) for part in parts]
        return place[row["relation"]], [
            (not number, part if number else 0, value_text(part))
            for number, part in zip(numbers, parts, strict=True)
        ]

    return by_key


def _call(call: DictRow) -> str:
    place = f"step {call['step']} of {call['run']}" if call["run"] else None
    if call["run"] and not call["step"]:
        place = f"of {call['run']}"
    about = ", ".join(filter(None, [call["id"], place, moment(call["at"])]))
    return printable(f"{call['tool'] or 'a write'} ({about})")


def _counts(screen: Screen, plan: Plan) -> None:
    """Say in numbers what is too much to be listed."""
    if plan.rows is not None:
        return
    screen.line()
    for one in plan.counts:
        if one["status"] in ACTS and one["action"] in _TO_DO:
            line = f"{one['relation']}: {_TO_DO[one['action']]} {count(one['rows'], 'row')}"
            screen.line(line + (_MERGED if one["status"] == "merge" else ""))


def _row_lines(screen: Screen, row: DictRow, live: set[str] | None) -> Iterator[str]:
    """Yield what happens to one row, several lines where columns are many; then whose work goes.

    Args:
        screen: where.
        row: of a plan.
        live: the columns that its table has now: a value of another one cannot come back. None
            where nobody knows.

    """
    key = key_text(row["key"])
    where = f"{row['relation']} {key}" if key else f"a row of {row['relation']}"
    if row["status"] == "conflict":
        yield f"{where}: in the way, {row['reason']}"
    elif row["status"] == "skip":
        yield f"{where}: left as it is, {row['reason'] or 'it goes with another row'}"
    elif row["status"] == "done" or row["action"] == "none":
        yield f"{where}: is as it was already"
    elif row["action"] == "update":
        columns = list(_columns(screen, row, live))
        line = f"{where}: {', '.join(columns) or 'put it back'}"
        if len(columns) > 1 and len(line) > (screen.width or _LONG) - len("   "):
            yield f"{where}:"
            yield from (f"  {column}" for column in columns)
        else:
            yield line
    else:
        values = row["before"] if row["action"] == "insert" else row["after"]
        gone = [name for name in values or {} if live is not None and name not in live]
        kept = {name: value for name, value in (values or {}).items() if name not in gone}
        lost = "".join(f", {_gone(name)}" for name in gone if row["action"] == "insert")
        yield f"{_TO_DO[row['action']]} {where}{_others(kept, row['key'])}{lost}"
    forced = (row["detail"] or {}).get("forced")
    if forced and row["status"] in ACTS:
        by = f" by {who(row['by'])}" if "by" in row else ""
        yield f"  {_FORCED.get(forced, _OVERWRITES)}{by}"


def _gone(name: str) -> str:
    return f"not {printable(name)}, whose column is gone"


def _columns(screen: Screen, row: DictRow, live: set[str] | None) -> Iterator[str]:
    """Yield ``column now → then`` for the columns that go back, and those that are no more."""
    now = row["current"] or row["after"] or {}
    then = row["before"] or {}
    only = set(row["columns"] or []) if row["status"] == "merge" else None
    for name, value in then.items():
        old, new = value_text(now.get(name)), value_text(value)
        if live is not None and name not in live:
            if value != (row["after"] or {}).get(name):
                yield _gone(name)
        elif old != new and (only is None or name in only):
            yield f"{printable(name)} {old} {screen.arrow} {new}"


def _others(values: dict[str, Any] | None, key: dict[str, Any] | None) -> str:
    """Return a row's other columns, so that a person knows which row it is."""
    rest = {
        name: value
        for name, value in (values or {}).items()
        if value is not None and name not in (key or {})
    }
    return f" ({key_text(rest)})" if rest else ""


def _effects(screen: Screen, plan: Plan) -> None:
    """Tell what left the database, or was never captured; a remedy is named, never performed."""
    elsewhere = [one for one in plan.effects if one["kind"] == "compensate"]
    never = [one for one in plan.effects if one["kind"] != "compensate"]
    lost = [f"{printable(one)}: not tracked, stays as it is" for one in plan.uncovered]
    for heading, lines in (
        ("Cannot be undone:", [_effect(one) for one in never] + lost),
        ("To be undone elsewhere, this does not do it:", [_effect(one) for one in elsewhere]),
    ):
        if lines:
            screen.line()
            screen.line(heading, bold=True, fg="yellow")
        for line in lines:
            screen.line(f"- {line}", hang=2)


def _effect(effect: DictRow) -> str:
    parts = [
        effect["summary"],
        "nobody said whether it can be" if effect["kind"] == "unknown" else None,
        effect["side_effect"],
        effect["cost"] and f"costs {effect['cost']}",
        effect["undo_by"] and f"until {moment(effect['undo_by'])}",
        effect["remedy"] and f"remedy: {effect['remedy']}",
    ]
    return printable(": ".join(filter(None, [effect["name"], "; ".join(filter(None, parts))])))


def _outlook(plan: Plan) -> str:
    rows = count(plan.total(*ACTS), "row")
    tables = count(len(plan.tables), "table")
    if plan.is_refused:
        return "Nothing would be changed, because of the rows in the way."
    if not plan.total(*ACTS):
        return "No row would be changed." if plan.total(*LEFT) else "All rows are as they were."
    lost = plan.overwritten.total if plan.overwritten else 0
    over = f"; overwrites later work in {count(lost, 'row')}" if lost else ""
    return f"{rows} in {tables}, {duration(plan.seconds)}{over}."
