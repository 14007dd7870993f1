"""``log``, ``show`` and ``diff``: what agents did."""

from __future__ import annotations

import click

from pyagentundo.cli._common import connected, dsn_option, json_option
from pyagentundo.cli._output import print_fields, print_json, print_table
from pyagentundo.cli._selection import Selection, selection_options
from pyagentundo.errors import InvocationNotFound

_LOG = ["created_at", "id", "run", "step", "actor", "tool", "status", "rows", "undoable"]
_CHANGES = ["change", "relation", "operation", "rows", "role", "at", "covered_by"]
_DIFF = ["relation", "key", "action", "column_name", "before", "after"]


@click.command()
@selection_options(last=False)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most."
)
@dsn_option
@json_option
def log(selection: Selection, limit: int, as_json: bool) -> None:
    """List invocations, newest first.

    \b
    Examples:
      agentundo log
      agentundo log --actor sales-bot --since 2h
    """
    condition, values = selection.where()
    with connected() as conn:
        rows = conn.execute(
            f"select * from agentundo.invocations where {condition}"
            " order by created_at desc nulls last, step desc, id desc limit %(limit)s".encode(),
            {**values, "limit": limit},
        ).fetchall()
    if as_json:
        print_json(rows)
        return
    print_table(rows, _LOG, empty="no invocations")
    for row in rows:
        if row["uncovered"]:
            written = ", ".join(row["uncovered"])
            click.echo(f"{row['id']} also wrote tables that are not tracked: {written}", err=True)


@click.command()
@click.argument("invocation")
@dsn_option
@json_option
def show(invocation: str, as_json: bool) -> None:
    """Show one invocation.

    Who made it, when, what it was asked, and which tables it changed.

    \b
    Example:
      agentundo show 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
    """
    with connected() as conn:
        about = conn.execute(
            "select * from agentundo.invocations where id = %s", [invocation]
        ).fetchone()
        if about is None:
            raise InvocationNotFound(f"There is no invocation {invocation!r}.")
        changes = conn.execute(
            "select * from agentundo.changes where invocation = %s order by change", [invocation]
        ).fetchall()
        effects = conn.execute(
            "select * from agentundo.effects where invocation = %s", [invocation]
        ).fetchall()
    if as_json:
        print_json({**about, "changes": changes, "effects": effects})
        return
    print_fields(about)
    click.echo()
    print_table(changes, _CHANGES, empty="no captured changes")
    if effects:
        click.echo()
        print_table(effects, list(effects[0]))


@click.command()
@click.argument("invocation")
@dsn_option
@json_option
def diff(invocation: str, as_json: bool) -> None:
    """Show what an invocation changed, column by column.

    \b
    Example:
      agentundo diff 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
    """
    with connected() as conn:
        rows = conn.execute("select * from agentundo.diff(%s)", [invocation]).fetchall()
    if as_json:
        print_json(rows)
    else:
        print_table(rows, _DIFF, empty="no captured changes")


COMMANDS = [log, show, diff]
