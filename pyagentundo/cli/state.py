"""``status`` and ``doctor``: what is installed, what is tracked, and whether all is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from psycopg.rows import DictRow

from pyagentundo import installer
from pyagentundo.cli import _complete, _diagnosis, _queries
from pyagentundo.cli._connection import connected
from pyagentundo.cli._failures import ERROR
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import dsn_option, json_option
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._standing import Standing
from pyagentundo.cli._tables import count, print_fields, print_table, size

#: What the view says of a table with which nothing is wrong.
_WELL = "ok"
_COLOUR = {"error": "red", "warning": "yellow"}


@click.command()
@dsn_option
@json_option
def status(as_json: bool) -> None:
    """Show what is installed and which tables are tracked.

    Rows and size are those of a table's history; the number of rows is the server's estimate. Of
    what is wrong with a table the worst is shown; doctor tells all.

    \b
    Example:
      agentundo status
    """
    with connected() as conn:
        found = installer.require(conn)
        tracked = _queries.tracked(conn)
        about = {
            "database": conn.info.dbname,
            "version": found.version,
            "schema_version": found.schema_version,
            "min_client": found.min_client,
        }
    if as_json:
        print_json({**about, "tracked": tracked})
        return
    screen = Screen.of()
    print_fields(screen, about)
    screen.line()
    columns = ["relation", "capture", "since", "rows", "size", "health"]
    shown = [
        {
            **table,
            "size": size(table["bytes"] or 0),
            "health": table["health"] if table["health"] == _WELL else "see below",
        }
        for table in tracked
    ]
    print_table(screen, shown, columns, empty=nothing_tracked())
    unwell = [table for table in tracked if table["health"] != _WELL]
    if unwell:
        screen.line()
    for table in unwell:
        screen.line(printable(f"{table['relation']}: {table['health']}"), fg="red")
    if unwell:
        screen.line("That is the worst of each table. All of it, and what to do: agentundo doctor")


def nothing_tracked() -> str:
    """Return what to say where no table is tracked."""
    return "0 tables tracked: nothing is captured yet. Next: agentundo track TABLE"


@click.command()
@click.option(
    "--role",
    shell_complete=_complete.roles,
    help="Also: which of the tables that this role can write can be taken back.",
)
@dsn_option
@json_option
def doctor(role: str | None, as_json: bool) -> None:
    """Look for what would stop an undo.

    Looks at the connection, the versions, the tracked tables, at whether a pool hands session
    settings on to others, and with --role at what a role could write beyond recall (rights by way
    of views and functions are not counted). The exit code is 1 if there is an error among it.

    \b
    Examples:
      agentundo doctor
      agentundo doctor --role crm_bot
    """
    with connected() as conn:
        about = _diagnosis.describe_connection(conn, installer.require(conn))
        found = [*_diagnosis.of_database(conn), *_diagnosis.pool_leaks()]
        for reader in dict.fromkeys([Standing.of(conn).role, role]):
            found += _diagnosis.unread_by(conn, reader) if reader else []
        tables = _diagnosis.writable_tables(conn, role, found) if role else []
        if role:
            found += [*_diagnosis.of_tables(tables, role), *_diagnosis.remarks_on(conn, role)]
        tracked = len(_queries.tracked(conn))
    if as_json:
        print_json(found)
    else:
        screen = Screen.of()
        print_fields(screen, {**about, "tracked": count(tracked, "table")})
        screen.line()
        _findings(screen, found)
        if role:
            screen.line()
            screen.line(_summary(role, tables), bold=True)
    if any(row["severity"] == "error" for row in found):
        click.get_current_context().exit(ERROR)


def _findings(screen: Screen, found: Sequence[dict[str, Any]]) -> None:
    """List findings, the worst first; those of no consequence last."""
    if all(row["severity"] == "info" for row in found):
        screen.line("no problem found", fg="green")
    # Where the same is wrong with several, it is said once.
    objects: dict[tuple[str, str, str | None], list[str]] = {}
    for row in found:
        same = row["severity"], row["problem"], row["hint"]
        objects.setdefault(same, []).append(str(row["object"]))
    for severity in ("error", "warning", "info"):
        for (one, problem, hint), named in objects.items():
            if one == severity:
                line = printable(f"{severity}: {', '.join(dict.fromkeys(named))}: {problem}")
                screen.line(line, fg=_COLOUR.get(severity))
                if hint:
                    screen.line(f"    {printable(hint)}", hang=0)


def _summary(role: str, tables: Sequence[DictRow]) -> str:
    if not tables:
        return f"{printable(role)} can write no table of yours."
    rest = [table["relation"] for table in tables if not table["reversible"]]
    if len(tables) == 1:
        only = f"the only table {printable(role)} can write: {printable(tables[0]['relation'])}"
        return f"not reversible: {only}" if rest else f"reversible: {only}"
    good = len(tables) - len(rest)
    text = f"reversible: {good} of the {len(tables)} tables {printable(role)} can write"
    return f"{text}; not: {printable(', '.join(rest))}" if rest else text


COMMANDS = [status, doctor]
