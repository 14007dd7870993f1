"""``track``, ``untrack`` and ``sync``."""

from __future__ import annotations

from typing import Any

import click
from psycopg.rows import DictRow

from pyagentundo import errors
from pyagentundo._locks import ATTEMPTS, with_retries
from pyagentundo.cli import _complete, _diagnosis, _queries
from pyagentundo.cli._connection import Connection, connected, writing
from pyagentundo.cli._failures import notice
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import dry_run_option, dsn_option, json_option, yes_option
from pyagentundo.cli._questions import confirm_for_good
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import print_table

# Partitions come with their root and inheritance children with their parent, but naming a child
# too does no harm.
_TABLES_OF_SCHEMA = """\
select format('%%I.%%I', nspname, relname) as relation
from pg_catalog.pg_class
join pg_catalog.pg_namespace n on n.oid = relnamespace
where nspname = %s
  and relkind in ('r', 'p') and not relispartition and relpersistence <> 't'
order by relname
"""

# The names of what a function returned, always with their schema.
_NAMES = """\
select format('%%I.%%I', nspname, relname) as relation
from {} as found
join pg_catalog.pg_class c on c.oid = found
join pg_catalog.pg_namespace n on n.oid = relnamespace
"""

_UNTRACK = """\
select format('%%I.%%I', nspname, relname) as relation
from agentundo.untrack(%s::regclass, %s)
cross join pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = relnamespace
where c.oid = %s::regclass
"""

#: Seconds before a lock is tried for again, doubled each time.
PAUSE = 0.5

_writes_nothing = dry_run_option("Do it, show it, and roll back.")


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", shell_complete=_complete.tables)
@click.option("--schema", help="All tables of a schema, also those created later.")
@click.option(
    "--capture",
    type=click.Choice(["agent", "all"]),
    help="What is captured: writes of agents, or every write."
    " [default: what it is; agent for a table that is new]",
)
@dsn_option
@json_option
@_writes_nothing
def track(
    tables: tuple[str, ...], schema: str | None, capture: str | None, as_json: bool, dry_run: bool
) -> None:
    """Capture what agents write to tables from now on.

    A table that is tracked already stays as it is, but for what --capture says. Each table is a
    transaction of its own: it gets triggers, for which writers wait a moment, and an empty history
    table. A lock that cannot be had within 3 s is tried again.

    \b
    Examples:
      agentundo track public.deals public.meetings
      agentundo track --schema crm --capture all
    """
    if bool(tables) == bool(schema):
        raise click.UsageError("Name tables or a --schema.")
    # The database's own default keeps the mode of what is tracked already.
    mode = [] if capture is None else [capture]
    argument = "" if capture is None else ", %s"
    rows: list[DictRow] = []
    with connected() as conn:
        before = _queries.capture_modes(conn)
        if schema:
            _require_schema(conn, schema)
            found = conn.execute(_TABLES_OF_SCHEMA, [schema]).fetchall()
            tables = tuple(row["relation"] for row in found)
        query = _NAMES.format(f"agentundo.track(%s::regclass{argument})")
        for table in tables:
            try:
                rows += _each(conn, query, [table, *mode], dry_run)
            except errors.NotTrackable as error:
                if not schema:
                    raise
                notice(f"left out {table}: {error.message}")
        if schema and not dry_run:
            # Takes no locks any more; from now on the schema's new tables are tracked as well.
            query = f"select agentundo.track_schema(quote_ident(%s)::regnamespace{argument})"
            _each(conn, query, [schema, *mode], dry_run)
        after = _queries.capture_modes(conn)
        if not dry_run:
            _warn(conn, [row["relation"] for row in rows])
    for row in rows:
        was = before.get(row["relation"])
        now = (capture or was) if dry_run else after.get(row["relation"])
        row["effect"] = _effect(was, now or "agent")
    _show(rows, as_json=as_json, dry_run=dry_run)


def _require_schema(conn: Connection, schema: str) -> None:
    """Refuse a schema that is not there: without this it would be one without tables.

    Raises:
        AgentUndoError: there is none.

    """
    if not conn.execute("select from pg_namespace where nspname = %s", [schema]).fetchall():
        raise errors.AgentUndoError(
            f"There is no schema {schema!r}.",
            hint='Write it as it is, without the quotes of SQL; "\\dn" in psql lists schemas.',
        )


def _effect(was: str | None, now: str) -> str:
    """Say what is captured of a table, and what was, where that is something else."""
    words = {"agent": "writes of agents", "all": "every write"}
    if was == now:
        return f"captured as before: {words[now]}"
    former = f" (was: {words[was]})" if was else ""
    return f"captured from now on: {words[now]}{former}"


def _warn(conn: Connection, tables: list[str]) -> None:
    """Tell what keeps these tables from being undone wholly: rows that cascade elsewhere."""
    if not _queries.may_call(conn, "check()"):
        return
    for problem in _diagnosis.of_database(conn):
        concerns = problem["object"] in tables or any(
            table in problem["problem"] for table in tables
        )
        if concerns and problem["severity"] != "info":
            notice("{object}: {problem}. {hint}".format(**problem))


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", shell_complete=_complete.tracked)
@click.option("--all", "every", is_flag=True, help="All tracked tables.")
@click.option("--drop-history", is_flag=True, help="Drop what was captured too.")
@dsn_option
@json_option
@_writes_nothing
@yes_option
def untrack(
    tables: tuple[str, ...],
    every: bool,
    drop_history: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Stop capturing writes to tables.

    What was captured stays and can be undone, unless --drop-history.

    \b
    Example:
      agentundo untrack public.meetings
    """
    if bool(tables) == every:
        raise click.UsageError("Name tables or --all.")
    rows: list[DictRow] = []
    with connected() as conn:
        if every:
            found = conn.execute("select relation::text from agentundo.tracked").fetchall()
            tables = tuple(row["relation"] for row in found)
        if drop_history and not dry_run and tables:
            named = printable(", ".join(tables))
            confirm_for_good(f"Drop the history of {named} for good?", yes=yes)
        for table in tables:
            rows += _each(conn, _UNTRACK, [table, not drop_history, table], dry_run)
    effect = (
        "no longer captured; its history is gone, nothing of it can be undone"
        if drop_history
        else "no longer captured; what was captured can still be undone"
    )
    _show(_all(rows, effect), as_json=as_json, dry_run=dry_run)


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", shell_complete=_complete.tracked)
@dsn_option
@json_option
@_writes_nothing
def sync(tables: tuple[str, ...], as_json: bool, dry_run: bool) -> None:
    """Adapt capture to altered tables and new partitions.

    Without event triggers (which only a superuser can install) run it after migrations. Prints all
    tables that are in step now, those that needed nothing too.

    \b
    Example:
      agentundo sync
    """
    rows: list[DictRow] = []
    with connected() as conn:
        query = _NAMES.format("agentundo.sync(%s::regclass)")
        for table in tables or (None,):
            rows += _each(conn, query, [table], dry_run)
    _show(_all(rows, "in step with its table"), as_json=as_json, dry_run=dry_run)


def _each(conn: Connection, query: str, arguments: list[Any], dry_run: bool) -> list[DictRow]:
    """Run one call in a transaction of its own."""

    def attempt() -> list[DictRow]:
        with errors.translated(), writing(conn, dry_run=dry_run):
            conn.execute("set local lock_timeout = '3s'")
            return conn.execute(query.encode(), arguments).fetchall()

    return with_retries(attempt, note=notice, attempts=ATTEMPTS, pause=PAUSE)


def _all(rows: list[DictRow], effect: str) -> list[DictRow]:
    return [{**row, "effect": effect} for row in rows]


def _show(rows: list[DictRow], *, as_json: bool, dry_run: bool) -> None:
    if dry_run:
        notice("dry run: rolled back")
    if as_json:
        print_json([{"relation": row["relation"]} for row in rows])
    else:
        print_table(Screen.of(), rows, ["relation", "effect"], empty="no table")


COMMANDS = [track, untrack, sync]
