"""``purge``, ``erase`` and ``hold``: how long history is kept."""

from __future__ import annotations

import click

from pyagentundo.cli import _complete, _queries
from pyagentundo.cli._connection import connected
from pyagentundo.cli._failures import notice
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import dry_run_option, dsn_option, json_option, yes_option
from pyagentundo.cli._questions import confirm_for_good
from pyagentundo.cli._screen import printable
from pyagentundo.cli._tables import count, key_text
from pyagentundo.cli.reading import explaining_key, key_of, tell_mistaken

_rolls_back = dry_run_option("Do it, show it, and roll back.")


@click.command()
@click.option(
    "--older-than",
    metavar="INTERVAL",
    help='An age such as "90 days". [default: the setting retention]',
)
@dsn_option
@json_option
@_rolls_back
@yes_option
def purge(older_than: str | None, as_json: bool, dry_run: bool, yes: bool) -> None:
    """Delete old history for good.

    What a call did longer ago than that can no longer be undone: its changes and row images go,
    its record stays, and log and show say so. What is held stays. Nothing is purged by itself: run
    this from a scheduler, with --yes.

    \b
    Examples:
      agentundo purge --yes
      agentundo purge --older-than "90 days" --dry-run
    """
    with connected() as conn:
        age = _queries.interval(conn, older_than)
        if not dry_run:
            confirm_for_good(f"Delete history older than {age} for good?", yes=yes)
        gone = _queries.purge(conn, age, dry_run=dry_run)
    if as_json:
        print_json(gone)
    else:
        what = [
            count(gone["invocations"], "call"),
            count(gone["changes"], "change"),
            count(gone["images"], "row image"),
        ]
        _say(dry_run, f"purged: {', '.join(what)} older than {age}")


@click.command()
@click.argument("table", shell_complete=_complete.tracked)
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@click.option("--reason", required=True, help="Why; it is kept.")
@dsn_option
@json_option
@_rolls_back
@yes_option
def erase(
    table: str, key: tuple[str, ...], reason: str, as_json: bool, dry_run: bool, yes: bool
) -> None:
    """Delete every captured version of one row for good.

    Also input, result and error of the calls that touched it. Their undo no longer takes this row
    back. The row in your table stays: delete that yourself. KEY is written as for history.

    \b
    Example:
      agentundo erase public.people 4711 --reason "request 2026-114"
    """
    with connected() as conn:
        wanted = key_of(conn, table, key)
        if not dry_run:
            shown = f"{printable(table)} {key_text(wanted)}"
            confirm_for_good(f"Erase the history of {shown} for good?", yes=yes)
        with explaining_key(key, wanted):
            gone = _queries.erase(conn, table, wanted, reason, dry_run=dry_run)
    if as_json:
        print_json(gone)
    else:
        what = f"{count(gone['images'], 'row image')}, {count(gone['inputs'], 'input')}"
        _say(dry_run, f"erased: {what}")
        if not gone["images"]:
            notice("nothing was captured under this key; a row that was re-keyed has several")
            tell_mistaken(key, wanted)


@click.command()
@click.argument("invocation", metavar="ID", shell_complete=_complete.invocations)
@click.option("--reason", help="Why it must stay; it is kept.")
@click.option("--release", is_flag=True, help="Let it go again.")
@dsn_option
@json_option
@_rolls_back
def hold(invocation: str, reason: str | None, release: bool, as_json: bool, dry_run: bool) -> None:
    """Exempt a call from purge, or release it.

    What is held, why and by whom, log and show tell; log --held lists it.

    \b
    Examples:
      agentundo hold 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70 --reason "incident 17"
      agentundo hold 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70 --release
    """
    if release == bool(reason):
        raise click.UsageError("Give a --reason, or --release.")
    with connected() as conn:
        changes = _queries.hold(conn, invocation, reason, dry_run=dry_run)
    if as_json:
        print_json({"invocation": invocation, "held": reason, "changes": changes})
    else:
        done = "released" if release else "held"
        _say(dry_run, f"{done}: {printable(invocation)}, {count(changes, 'change')}")


def _say(dry_run: bool, text: str) -> None:
    click.echo(text)
    if dry_run:
        notice("dry run: rolled back")


COMMANDS = [purge, erase, hold]
