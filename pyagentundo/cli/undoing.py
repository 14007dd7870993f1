"""``plan``, ``revert`` and ``redo``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import psycopg
from psycopg.rows import DictRow

from pyagentundo.cli import _complete, _hints, _json, _plans, _queries, _show_plan
from pyagentundo.cli._connection import Connection, connected
from pyagentundo.cli._failures import CONFLICT, ERROR, OK, complain, notice
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import (
    conflict_options,
    dry_run_option,
    dsn_option,
    json_option,
    record_options,
    rows_option,
    scope_option,
    yes_option,
)
from pyagentundo.cli._plans import Plan
from pyagentundo.cli._progress import progress
from pyagentundo.cli._questions import can_ask, confirm
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._selection import Chosen, selection_options
from pyagentundo.cli._standing import Standing
from pyagentundo.cli._tables import count
from pyagentundo.errors import NotPermitted, UndoConflict, translated

_shows_plan = dry_run_option("Show the plan, change nothing.")
#: What a redo answers: the server's words are those of a revert.
_REDONE = {
    "reverted": "redone",
    "partially_reverted": "partially_redone",
    "already_reverted": "nothing_to_redo",
    "nothing_to_revert": "nothing_to_redo",
}
_CODES = {"partially_reverted": CONFLICT, "partially_redone": CONFLICT, "not_committed": ERROR}


@click.command()
@selection_options(last=True)
@conflict_options
@rows_option
@dsn_option
@json_option
def plan(selection: Chosen, by_row: bool, as_json: bool, **how: Any) -> None:
    """Show what a revert would do.

    Made for exactly these options, it changes nothing. The exit code is that of the revert: 3
    if rows stand in its way or would be left out.

    \b
    Examples:
      agentundo plan 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
      agentundo plan --run run-42 --from-step 3 --rows
    """
    selection.require_some()
    with connected() as conn:
        how |= {"invocations": selection.resolve(conn), "scope": selection.scope}
        _show(conn, how, by_row=by_row, as_json=as_json)


@click.command()
@selection_options(last=True)
@conflict_options
@record_options
@rows_option
@dsn_option
@json_option
@_shows_plan
@yes_option
def revert(
    selection: Chosen,
    by_row: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **how: Any,
) -> None:
    """Take calls or a run back.

    All of it, or in case of a conflict nothing, unless --on-conflict says otherwise. A revert
    is a call itself and can be taken back with redo. On a terminal it shows its plan and asks;
    without one it goes ahead.

    --last takes the newest run that can still be undone, whoever made it: given twice it takes two
    runs back. With --actor, --role, --tool, --since … it takes of the newest run that they match
    the calls that they match, and no other.

    The exit code is 3 if rows stand in the way (nothing was changed then) or were left out.

    \b
    Examples:
      agentundo revert 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70 --reason "wrong deal"
      agentundo revert --run run-42 --on-conflict skip --yes
      agentundo revert --last
      agentundo revert --last --actor sales-bot --since 2h
    """
    selection.require_some()
    _require_decision(how, dry_run=dry_run)
    with connected() as conn:
        ids = selection.resolve(conn, aloud=not (dry_run or can_ask(yes=yes)))
        how |= {"invocations": ids, "scope": selection.scope}
        planned = {name: how[name] for name in ("invocations", "scope", "on_conflict", "merge")}
        if dry_run:
            _show(conn, planned, by_row=by_row, as_json=as_json)
        made = None
        if can_ask(yes=yes):
            made = _plans.make(conn, planned)
            _ask(conn, made, planned, "Revert", ids, by_row=by_row, as_json=as_json)
        with (
            _refusals(conn, planned, as_json=as_json),
            progress(conn, "reverting", made.seconds if made else None),
        ):
            result = _queries.undo(conn, "revert", how)
        _finish(conn, result, how, as_json=as_json)


@click.command()
@click.argument("invocation", metavar="ID", shell_complete=_complete.invocations)
@conflict_options
@record_options
@scope_option
@rows_option
@dsn_option
@json_option
@_shows_plan
@yes_option
def redo(
    invocation: str,
    by_row: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **how: Any,
) -> None:
    """Take the newest revert of a call back.

    What the agent did is there again, with everything that was reverted together with it. On a
    terminal it shows its plan and asks; without one it goes ahead.

    \b
    Example:
      agentundo redo 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
    """
    _require_decision(how, dry_run=dry_run)
    with connected() as conn:
        planned = {name: how[name] for name in ("scope", "on_conflict", "merge")}
        planned["invocations"] = [invocation]
        made = None
        redone = [invocation]
        told = _queries.readable(conn, "invocations")
        if dry_run and not told:
            raise NotPermitted(
                "Only operators and auditors are shown the plan of a redo.",
                hint="Without --dry-run it is made, and revert takes it back.",
            )
        if told:
            revert_id, together = _queries.standing_revert(conn, invocation)
            if dry_run and revert_id is None:
                _nothing_to_redo(by_row=by_row, as_json=as_json)
            if revert_id is not None:
                redone, planned["invocations"] = together, [revert_id]
                if dry_run:
                    _show(conn, planned, redone=redone, by_row=by_row, as_json=as_json)
                if can_ask(yes=yes):
                    made = _plans.make(conn, planned, redone=redone)
                    _ask(conn, made, planned, "Redo", redone, by_row=by_row, as_json=as_json)
        elif can_ask(yes=yes):
            # The plan is that of the revert's id, which only the views tell.
            notice("only an operator or auditor is shown the plan of a redo")
            confirm(f"Redo {printable(invocation)}?", yes=yes)
        with (
            _refusals(conn, planned, as_json=as_json),
            progress(conn, "redoing", made.seconds if made else None),
        ):
            result = _queries.undo(conn, "redo", {"invocation": invocation, **how})
        _finish(conn, result, how | planned, as_json=as_json, redone=redone)


def _require_decision(how: dict[str, Any], *, dry_run: bool) -> None:
    """Refuse what the server would refuse, before anybody reads a plan and says yes to it.

    Raises:
        NotPermitted: nobody says who decided to overwrite later work, or why.

    """
    if how["on_conflict"] == "force" and not dry_run and not (how["reverted_by"] and how["reason"]):
        raise NotPermitted(
            "--on-conflict force needs to be told who decided it, and why.",
            hint="Add --by PERSON and --reason TEXT: force overwrites what others wrote later.",
        )


def _nothing_to_redo(*, by_row: bool, as_json: bool) -> None:
    """Answer a dry run as the redo would: it is no error."""
    if as_json:
        beside: dict[str, Any] = {"effects": [], "uncovered": []}
        print_json({"rows" if by_row else "counts": [], **beside})
    else:
        Screen.of().line("nothing to redo: no revert of it stands")
    click.get_current_context().exit(OK)


def _show(
    conn: Connection,
    how: dict[str, Any],
    *,
    as_json: bool,
    by_row: bool,
    redone: list[str] | None = None,
) -> None:
    """Show a plan and exit with the code that its revert would have."""
    beside: dict[str, Any]
    if as_json and by_row:
        statuses: set[str] = set()
        beside = _plans.beside(conn, how, redone=redone)
        lost = _plans.overwritten(conn, how, by_row=True)
        if lost is not None:
            beside |= lost.told()
        with _queries.streamed(conn, "plan", how) as rows:
            named = rows if lost is None else lost.named(rows)
            _json.print_json_rows("rows", _noting(named, statuses), beside)
        whole = statuses.isdisjoint(_plans.LEFT)
    else:
        made = _plans.make(conn, how, redone=redone, by_row=by_row)
        whole = made.is_whole
        if as_json:
            beside = {"effects": made.effects, "uncovered": made.uncovered}
            if made.overwritten is not None:
                beside |= made.overwritten.told()
            print_json({"counts": made.counts, **beside})
            for line in made.unread:
                notice(line)
        else:
            _print_plan(conn, Screen.of(), made, how, by_row=by_row)
            if made.is_refused:
                Screen.of().line(_ways_out(conn, how, made.conflicts, made.total("conflict")))
    click.get_current_context().exit(OK if whole else CONFLICT)


def _noting(rows: Iterable[DictRow], statuses: set[str]) -> Iterator[DictRow]:
    """Pass rows on, and remember which statuses there were among them."""
    for row in rows:
        statuses.add(row["status"])
        yield row


def _print_plan(
    conn: Connection, screen: Screen, made: Plan, how: dict[str, Any], *, by_row: bool
) -> None:
    if by_row:
        with _queries.streamed(conn, "plan", how) as rows:
            _show_plan.show_plan(screen, made, _plans.with_outcome(conn, rows, made.overwritten))
    else:
        _show_plan.show_plan(screen, made)


def _ask(
    conn: Connection,
    made: Plan,
    how: dict[str, Any],
    verb: str,
    ids: list[str],
    *,
    by_row: bool,
    as_json: bool,
) -> None:
    """Show the plan and ask; where the server would refuse it there is nothing to ask."""
    _print_plan(conn, Screen.of(err=True), made, how, by_row=by_row)
    if made.is_refused:
        total = made.total("conflict")
        in_the_way = [one for one in made.conflicts if one["status"] == "conflict"]
        message = _hints.never(in_the_way, total)
        message = message or f"{count(total, 'row')} would be overwritten or break a constraint"
        hint = _ways_out(conn, how, in_the_way, total)
        if as_json:
            _print_refusal(message, in_the_way, total, hint)
        complain(f"{message}. Nothing was changed.", [], hint)
        click.get_current_context().exit(CONFLICT)
    if made.total(*_plans.ACTS):
        these = printable(ids[0]) if len(ids) == 1 else count(len(ids), "call")
        confirm(f"{verb} {these}?", yes=False)


@contextmanager
def _refusals(conn: Connection, how: dict[str, Any], *, as_json: bool) -> Iterator[None]:
    """Say who wrote what stands in the way, and what would help; programs get it as JSON."""
    try:
        with translated():
            yield
    except UndoConflict as error:
        rows = error.detail.get("conflicts", [])
        _queries.mark_gone(conn, rows)
        error.message = _hints.never(rows, error.total) or error.message
        unasked = _queries.add_writers(conn, rows, how)
        error.hint = _ways_out(conn, how, rows, error.total)
        if unasked:
            error.hint += f" {_hints.unasked(unasked)}"
        if error.total > len(rows):
            error.hint += f" {_hints.LOOK}"
        if as_json:
            _print_refusal(error.message, rows, error.total, error.hint)
        for line in _queries.unread(conn, sorted({str(row.get("relation")) for row in rows})):
            notice(line)
        raise
    except psycopg.OperationalError as error:
        if conn.closed:
            error.add_note("The connection was lost. Whether it was done, agentundo log tells.")
        raise


def _ways_out(
    conn: Connection, how: dict[str, Any], conflicts: list[dict[str, Any]], total: int
) -> str:
    """Return what would get an undo past these rows; the server knows what would."""
    cascade = _hints.cascade_may_help(how, conflicts) and not _queries.in_the_way(
        conn, how, on_conflict="cascade"
    )
    merge = _hints.Helps.NOT
    if _hints.merge_may_help(how, conflicts):
        left = _queries.in_the_way(conn, how, merge=True)
        if not left:
            merge = _hints.Helps.ALL
        elif left < total:
            merge = _hints.Helps.SOME
    return _hints.ways_out(how, conflicts, merge=merge, cascade=cascade)


def _print_refusal(
    message: str, conflicts: list[dict[str, Any]], total: int, hint: str | None
) -> None:
    print_json(
        {
            "status": "conflict",
            "message": message.removeprefix("agentundo: "),
            "hint": hint,
            "total": total,
            "conflicts": conflicts,
        }
    )


def _finish(
    conn: Connection,
    result: DictRow,
    how: dict[str, Any],
    *,
    as_json: bool,
    redone: Sequence[str] = (),
) -> None:
    """Print what a revert or redo did and exit with its code.

    Args:
        conn: where it was done.
        result: the server's answer.
        how: with what options.
        as_json: for programs.
        redone: for a redo, the calls that are done again, as far as the role is told.

    """
    status = str(result["status"])
    if redone:
        status = _REDONE.get(status, status)
    code = _CODES.get(status, OK)
    left = None
    if code == CONFLICT:
        # The answer has numbers only. What is left over is what a plan finds now.
        again = {name: how[name] for name in ("scope", "merge")}
        again |= {"invocations": result["invocations"], "on_conflict": "abort"}
        left = _plans.make(conn, again, by_row=True)
    ids = result["invocations"] or how["invocations"]
    uncovered = [] if redone else _queries.uncovered(conn, ids)
    if left is not None and not _show_plan.written(result):
        # Nothing was done, so nothing can be taken back. The server names the revert that stands.
        result = {**result, "revert_id": None}
    if as_json:
        beside: dict[str, Any] = {
            "effects": [] if redone else _queries.effects(conn, ids, how.get("scope")),
            "uncovered": uncovered,
        }
        if left is not None:
            beside["left"] = left.conflicts
        print_json(
            {
                **result,
                "invocations": list(redone) or result["invocations"],
                "status": status,
                **beside,
            }
        )
    else:
        about = {**result, "invocations": ids}
        further = _further(conn, how)
        _show_plan.show_outcome(Screen.of(), status, about, left, redone, uncovered, further)
    click.get_current_context().exit(code)


def _further(conn: Connection, how: dict[str, Any]) -> str:
    """Return the options without which an app could not take back what it has just done."""
    if not Standing.of(conn).is_bound:
        return ""
    needed = (("--scope", how.get("scope")), ("--by", how.get("reverted_by")))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in needed if value)


COMMANDS = [plan, revert, redo]
