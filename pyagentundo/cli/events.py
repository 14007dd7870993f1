"""``events``."""

from __future__ import annotations

import contextlib
from datetime import datetime

import click
from psycopg.rows import DictRow

from pyagentundo.cli import _feed, _times
from pyagentundo.cli._connection import connected
from pyagentundo.cli._json import print_json_line
from pyagentundo.cli._options import dsn_option, json_option, scope_option
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import key_text, moment

#: What the schema keeps events of.
KINDS = (
    "invocation_reverted",
    "invocation_redone",
    "invocation_held",
    "hold_released",
    "history_purged",
    "row_erased",
)


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with those that happen from now on.")
@click.option("--after", type=click.IntRange(min=0), metavar="EVENT", help="Those after this one.")
@click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")
@scope_option
@click.option("--since", callback=_times.option, metavar="TIME", help="Happened at or after it.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help="The newest ones. [default: 20, without --after]",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look where no notification arrives.",
)
@dsn_option
@json_option
def events(
    follow: bool,
    after: int | None,
    kind: str | None,
    scope: str | None,
    since: datetime | None,
    limit: int | None,
    every: float,
    as_json: bool,
) -> None:
    """Show what happened: reverts, redos, holds, purges, erasures.

    After "by" stands who did it: the person that was named, and the database role. After the colon
    stands the call that it was done to, with its tool, agent and scope.

    With --json each is one line. They come in the order of their numbers: with --after and the
    last number that it has seen, a log collector misses none and sees none twice. So one that was
    numbered by a transaction still open holds up those after it.

    \b
    Examples:
      agentundo events
      agentundo events --follow --json --after 1042
    """
    wanted = _feed.Wanted(after=after, kind=kind, scope=scope, since=since, limit=limit)
    screen = Screen.of()
    none = True
    with connected() as conn, contextlib.suppress(KeyboardInterrupt):
        for row in _feed.follow(conn, wanted, every=every) if follow else _feed.now(conn, wanted):
            none = False
            if as_json:
                print_json_line(row)
            else:
                _line(screen, row)
        if none and not as_json:
            screen.line("no events")


def _line(screen: Screen, row: DictRow) -> None:
    """Print who did what, then to which call: its agent is another than who did it."""
    payload = {name: part for name, part in row["payload"].items() if part is not None}
    person, role = payload.pop("by", None), payload.pop("role", None)
    who = f"{person} as {role}" if person and role else person or role
    line = f"{row['event']} {moment(row['at'])} {row['kind']}"
    line += f" by {who}" if who else ""
    about = (
        row["invocation"],
        row["tool"],
        f"of {row['actor']}" if row["actor"] else None,
        f"in scope {row['scope']}" if row["scope"] else None,
    )
    if row["invocation"]:
        line += f": {' '.join(filter(None, about))}"
    screen.line(printable(line), hang=4)
    if payload:
        screen.line(f"    {key_text(payload)}", hang=0)


COMMANDS = [events]
