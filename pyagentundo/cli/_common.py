"""What the commands share: options, the connection, questions, and errors as exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import psycopg
from psycopg import errors as pg
from psycopg.rows import DictRow, dict_row

from pyagentundo import dsn as dsns
from pyagentundo import errors, installer
from pyagentundo.cli._output import printable

Connection = psycopg.Connection[DictRow]
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

OK, ERROR, USAGE, CONFLICT, VERSION, REFUSED = range(6)

_EXIT_CODES: list[tuple[type[errors.AgentUndoError], int]] = [
    (errors.UndoConflict, CONFLICT),
    (errors.VersionMismatch, VERSION),
    (errors.NotPermitted, REFUSED),
    (errors.NotTrackable, REFUSED),
    (errors.BlastRadiusExceeded, REFUSED),
    (errors.ApprovalRequired, REFUSED),
    (errors.GuardedStatement, REFUSED),
    (errors.InvocationClosed, REFUSED),
]


class ErrorGroup(click.Group):
    """A group that turns our exceptions and the server's into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which people meet them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; leave with an exit code if it fails in a way that we know."""
        try:
            with errors.translated():
                return super().invoke(ctx)
        except errors.AgentUndoError as error:
            lines = [describe_conflict(conflict) for conflict in error.conflicts]
            if error.total > len(lines):
                lines.append(f"… and {error.total - len(lines)} more rows")
            _complain(error.message, lines, error.hint)
            code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ERROR)
        except psycopg.Error as error:
            hint = error.diag.message_hint
            if hint is None and isinstance(error, pg.InsufficientPrivilege):
                hint = "The role needs agentundo_app, agentundo_operator or agentundo_auditor."
            notes = getattr(error, "__notes__", [])
            _complain(error.diag.message_primary or str(error).strip(), notes, hint)
            code = ERROR
        return ctx.exit(code)


def _complain(message: str, lines: list[str], hint: str | None) -> None:
    click.echo(f"error: {printable(message)}", err=True)
    for line in [*lines, *([f"hint: {hint}"] if hint else [])]:
        click.echo(f"  {printable(line)}", err=True)


def describe_conflict(conflict: Mapping[str, Any]) -> str:
    """Return one line about a row that stands in the way."""
    key = conflict.get("key")
    shown = ", ".join(f"{name}={value}" for name, value in key.items()) if key else ""
    columns = ", ".join(conflict.get("columns") or [])
    line = f"{conflict.get('relation')} ({shown}): {conflict.get('reason')}"
    return f"{line} [{columns}]" if columns else line


def dsn_option(command: Decorated) -> Decorated:
    """Add --dsn, which counts before or after the command's name."""

    def remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.ensure_object(dict)["dsn"] = value

    return click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=remember,
        help="The database: a postgresql:// URL or a libpq string.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def dry_run_option(what: str) -> Callable[[Decorated], Decorated]:
    """Add --dry-run with a help text of its own."""
    return click.option("--dry-run", is_flag=True, help=what)


@contextmanager
def connected(*, check: bool = True) -> Iterator[Connection]:
    """Connect to the chosen database, in autocommit mode, with notices on stderr.

    Args:
        check: refuse a database without agentundo, or with one we cannot work with.

    """
    dsn = click.get_current_context().ensure_object(dict).get("dsn")
    with dsns.connect(dsn, row_factory=dict_row) as conn:
        if check:
            installer.require(conn)
            conn.add_notice_handler(lambda diagnostic: notice(diagnostic.message_primary or ""))
        yield conn


def notice(text: str) -> None:
    """Say something on stderr that is not data."""
    click.echo(f"note: {printable(text)}", err=True)


def asks(*, yes: bool) -> bool:
    """Tell whether there is somebody to ask: on a terminal, and not told to go on."""
    return not yes and _has_terminal()


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask, and leave with exit code 1 on a no. Without a terminal nothing is asked."""
    if asks(yes=yes):
        click.confirm(question, abort=True, err=True)
