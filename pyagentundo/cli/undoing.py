"""``plan``, ``revert`` and ``redo``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from psycopg import sql
from psycopg.rows import DictRow

from pyagentundo.cli._common import (
    CONFLICT,
    ERROR,
    OK,
    Connection,
    asks,
    confirm,
    connected,
    describe_conflict,
    dry_run_option,
    dsn_option,
    json_option,
    yes_option,
)
from pyagentundo.cli._output import print_fields, print_json, print_table, printable
from pyagentundo.cli._selection import Selection, selection_options
from pyagentundo.errors import InvocationNotFound

_SUMMARY = ["relation", "action", "status", "rows"]
_ROWS = ["step", "invocation", "relation", "key", "action", "status", "reason", "columns"]
#: A plan's rows that would not go back.
_LEFT = {"conflict", "skip"}


def _conflict_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --on-conflict and --merge."""
    command = click.option(
        "--merge",
        is_flag=True,
        help="Where others changed other columns of a row, put only the agent's columns back.",
    )(command)
    return click.option(
        "--on-conflict",
        type=click.Choice(["abort", "skip", "cascade", "force"]),
        default="abort",
        show_default=True,
        help="Rows changed since: refuse all, leave them, take later agents back first, overwrite.",
    )(command)


def _record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what is written down about a revert."""
    command = click.option("--by", "reverted_by", help="The person who decided it.")(command)
    return click.option("--reason", help="Why; --on-conflict force needs both.")(command)


@click.command()
@selection_options(last=True)
@_conflict_options
@click.option("--rows", "by_row", is_flag=True, help="Row by row instead of counts.")
@dsn_option
@json_option
def plan(selection: Selection, by_row: bool, as_json: bool, **how: Any) -> None:
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
        _plan(conn, how, by_row=by_row, as_json=as_json)


@click.command()
@selection_options(last=True)
@_conflict_options
@_record_options
@dsn_option
@json_option
@dry_run_option("Show the plan, change nothing.")
@yes_option
def revert(
    selection: Selection,
    reason: str | None,
    reverted_by: str | None,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **how: Any,
) -> None:
    """Take invocations or a run back.

    All of it, or in case of a conflict nothing, unless --on-conflict says otherwise. A revert
    is an invocation itself and can be taken back with redo.

    \b
    Examples:
      agentundo revert 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70 --reason "wrong deal"
      agentundo revert --run run-42 --on-conflict skip --yes
      agentundo revert --last
    """
    selection.require_some()
    with connected() as conn:
        ids = selection.resolve(conn)
        how |= {"invocations": ids, "scope": selection.scope}
        if dry_run:
            _plan(conn, how, as_json=as_json)
        if asks(yes=yes):
            _print_summary(_call(conn, "plan_summary", how), err=True)
            _print_effects(conn, ids, err=True)
            confirm(f"Revert {ids[0] if len(ids) == 1 else f'{len(ids)} invocations'}?", yes=yes)
        how |= {"reason": reason, "reverted_by": reverted_by}
        result = _call(conn, "revert", how)[0]
    _finish(result, as_json=as_json)


@click.command()
@click.argument("invocation")
@_conflict_options
@_record_options
@click.option("--scope", help="Only within this tenant, campaign or project.")
@dsn_option
@json_option
@dry_run_option("Show the plan, change nothing.")
@yes_option
def redo(
    invocation: str,
    reason: str | None,
    reverted_by: str | None,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    **how: Any,
) -> None:
    """Take the newest revert of an invocation back.

    What the agent did is there again.

    \b
    Example:
      agentundo redo 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
    """
    with connected() as conn:
        if dry_run:
            revert_id = _revert_of(conn, invocation)
            _plan(conn, {**how, "invocations": [revert_id]}, as_json=as_json)
        confirm(f"Do {invocation} again?", yes=yes)
        how |= {"invocation": invocation, "reason": reason, "reverted_by": reverted_by}
        result = _call(conn, "redo", how)[0]
    _finish(result, as_json=as_json)


def _call(conn: Connection, function: str, arguments: dict[str, Any]) -> list[DictRow]:
    """Call a function by names; what is None keeps the function's own default."""
    given = {name: value for name, value in arguments.items() if value is not None}
    query = sql.SQL("select * from agentundo.{}({})").format(
        sql.Identifier(function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name))
            for name in given
        ),
    )
    return conn.execute(query, given).fetchall()


def _revert_of(conn: Connection, invocation: str) -> str:
    row = conn.execute(
        "select revert_id from agentundo.invocations where id = %s", [invocation]
    ).fetchone()
    if row is None:
        raise InvocationNotFound(f"There is no invocation {invocation!r}.")
    if row["revert_id"] is None:
        raise InvocationNotFound(f"No revert of {invocation!r} stands.")
    return str(row["revert_id"])


def _plan(
    conn: Connection, arguments: dict[str, Any], *, as_json: bool, by_row: bool = False
) -> None:
    """Show a plan and exit with the code that its revert would have."""
    rows = _call(conn, "plan" if by_row else "plan_summary", arguments)
    if as_json:
        print_json(rows)
    else:
        if by_row:
            print_table(rows, _ROWS, empty="nothing to revert")
        else:
            _print_summary(rows)
        _print_effects(conn, arguments["invocations"])
    left = any(row["status"] in _LEFT for row in rows)
    click.get_current_context().exit(CONFLICT if left else OK)


def _print_summary(rows: list[DictRow], *, err: bool = False) -> None:
    print_table(rows, _SUMMARY, empty="nothing to revert", err=err)
    for row in rows:
        conflicts = row["conflicts"] or []
        for conflict in conflicts:
            line = describe_conflict({"relation": row["relation"], **conflict})
            click.echo(f"  {printable(line)}", err=err)
        if conflicts and row["rows"] > len(conflicts):
            click.echo(f"  … and {row['rows'] - len(conflicts)} more rows", err=err)


def _print_effects(conn: Connection, invocations: list[str], *, err: bool = False) -> None:
    """Tell what left the database, which no revert of rows takes back."""
    readable = "select has_table_privilege('agentundo.effects', 'select') as readable"
    if not conn.execute(readable).fetchall()[0]["readable"]:
        return
    effects = conn.execute(
        "select * from agentundo.effects where invocation = any (%s) order by id", [invocations]
    ).fetchall()
    if effects:
        click.echo("Not taken back by a revert of rows:", err=err)
    for effect in effects:
        line = f"{effect['name']} ({effect['kind']})"
        told = (effect["summary"], effect["remedy"] and f"remedy: {effect['remedy']}")
        line = ": ".join([line, "; ".join(text for text in told if text)]).removesuffix(": ")
        click.echo(f"  {printable(line)}", err=err)


def _finish(result: DictRow, *, as_json: bool) -> None:
    """Print what a revert or redo did and exit with its code."""
    if as_json:
        print_json(result)
    else:
        print_fields(result)
    codes = {"partially_reverted": CONFLICT, "not_committed": ERROR}
    click.get_current_context().exit(codes.get(result["status"], OK))


COMMANDS = [plan, revert, redo]
