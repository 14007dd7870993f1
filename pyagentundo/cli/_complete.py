"""What a shell is offered after Tab: ids and tables as the database has them."""

from __future__ import annotations

import contextlib
import re

import click
import psycopg
from click.shell_completion import CompletionItem

from pyagentundo.cli._connection import connect
from pyagentundo.cli._screen import printable
from pyagentundo.errors import AgentUndoError

_MOST = 50
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@%+=:,./-]*")


def invocations(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the newest invocations, each with its tool."""
    return _offered(
        ctx,
        "select id as value, concat_ws(' ', tool, actor, status) as help from agentundo.invocations"
        " where starts_with(id, %(typed)s) order by created_at desc nulls last limit %(most)s",
        typed,
    )


def runs(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the newest runs."""
    return _offered(
        ctx,
        "select run as value, concat_ws(' ', actor, status) as help from agentundo.runs"
        " where starts_with(run, %(typed)s) order by last_at desc nulls last limit %(most)s",
        typed,
    )


def tracked(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the tracked tables."""
    return _offered(
        ctx,
        "select relation as value, capture as help from agentundo.tracked"
        " where starts_with(relation, %(typed)s) order by relation limit %(most)s",
        typed,
    )


def tables(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the tables that could be tracked."""
    return _offered(
        ctx,
        "select format('%%I.%%I', nspname, relname) as value, null as help from pg_class"
        " join pg_namespace n on n.oid = relnamespace where relkind in ('r', 'p')"
        " and not relispartition and relpersistence <> 't' and nspname !~ '^(pg_|agentundo)'"
        " and nspname <> 'information_schema'"
        " and starts_with(format('%%I.%%I', nspname, relname), %(typed)s) order by 1"
        " limit %(most)s",
        typed,
    )


def roles(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the roles of users."""
    return _offered(
        ctx,
        "select rolname as value, null as help from pg_roles"
        " where rolname !~ '^(pg_|agentundo_)' and starts_with(rolname, %(typed)s) order by 1"
        " limit %(most)s",
        typed,
    )


def _offered(ctx: click.Context, query: str, typed: str) -> list[CompletionItem]:
    """Ask the database; where that fails nothing is offered, there is nobody to tell.

    Shells put what is offered on the command line as it is, and agents choose their ids: only what
    a shell reads as one plain word is offered, and no option.
    """
    with contextlib.suppress(AgentUndoError, psycopg.Error):
        dsn = (ctx.find_root().obj or {}).get("dsn") or (ctx.obj or {}).get("dsn")
        with connect(dsn, connect_timeout=2) as conn:
            rows = conn.execute(query.encode(), {"typed": typed, "most": _MOST}).fetchall()
        return [
            CompletionItem(row["value"], help=printable(row["help"] or ""))
            for row in rows
            if _SAFE.fullmatch(row["value"])
        ]
    return []
