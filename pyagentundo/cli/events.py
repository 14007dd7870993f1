"""``events``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime

import click
from psycopg.rows import DictRow

from pyagentundo.cli import _feed, _times
from pyagentundo.cli._connection import connected
from pyagentundo.cli._json import print_json_line
from pyagentundo.cli._options import dsn_option, json_option, scope_option
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import key_text, moment


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with those that happen from now on.")
@click.option("--after", type=click.IntRange(min=0), metavar="EVENT", help="Those after this one.")
@click.option("--kind", help="Only of this kind, such as invocation_reverted.")
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
    with connected() as conn, contextlib.suppress(KeyboardInterrupt):
        for row in _feed.follow(conn, wanted, every=every) if follow else _feed.now(conn, wanted):
            if as_json:
                print_json_line(row)
            else:
                _line(screen, row)


def _line(screen: Screen, row: DictRow) -> None:
    parts: Iterator[str | None] = iter(
        (
            str(row["event"]),
            moment(row["at"]),
            row["kind"],
            row["invocation"],
            row["tool"],
            f"by {row['actor']}" if row["actor"] else None,
            f"in {row['scope']}" if row["scope"] else None,
        )
    )
    screen.line(printable(" ".join(filter(None, parts))), hang=4)
    payload = {name: part for name, part in row["payload"].items() if part is not None}
    if payload:
        screen.line(f"    {key_text(payload)}", hang=0)


COMMANDS = [events]
