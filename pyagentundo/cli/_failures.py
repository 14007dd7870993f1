"""Errors as people and programs read them: a message, rows, what to do next, an exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
import psycopg
from psycopg import errors as pg

from pyagentundo import errors
from pyagentundo.cli import _hints, _streams
from pyagentundo.cli._reasons import OF_TABLE, REASONS, TABLE_GONE
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._tables import count, key_text, moment

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
#: What the server says of a name under which there is no table.
_NO_TABLE = (pg.UndefinedTable, pg.InvalidSchemaName, pg.InvalidName)
_FIRST_ROW = re.compile("(?<=would overwrite later work or break a constraint): .*", re.DOTALL)


class ErrorGroup(click.Group):
    """A group that turns our exceptions and the server's into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which people meet them."""
        return list(self.commands)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run as a program does, whatever its standard streams are like."""
        with _streams.mended():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; leave with an exit code if it fails in a way that we know."""
        ctx.ensure_object(dict)  # what the commands' contexts share
        try:
            with errors.translated():
                return super().invoke(ctx)
        except errors.AgentUndoError as error:
            lines = conflict_lines(error.detail.get("conflicts", []), error.total)
            hint = _hints.spoken(error.hint, ctx.invoked_subcommand)
            if isinstance(error, errors.NotPermitted):
                hint = (
                    _hints.not_for_agents(ctx.invoked_subcommand, ctx.obj.get("standing")) or hint
                )
            if isinstance(error, errors.VersionMismatch):
                hint = _hints.there(hint, ctx.obj.get("dsn"))
            run = ctx.obj.get("run")
            if isinstance(error, errors.InvocationNotFound) and run is not None:
                hint = _hints.is_run(run, ctx.invoked_subcommand)
            # The message also names the first row, for those who see nothing else.
            message = _FIRST_ROW.sub("", error.message) if lines else error.message
            complain(_hints.in_words(message), [*lines, *_done_before()], hint)
            code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ERROR)
            if isinstance(error.__cause__, pg.InsufficientPrivilege):
                code = REFUSED
        except psycopg.Error as error:
            hint = _hints.spoken(error.diag.message_hint, ctx.invoked_subcommand)
            if hint is None and isinstance(error, pg.InsufficientPrivilege):
                hint = _hints.missing_right(ctx.invoked_subcommand, ctx.obj.get("standing"))
            if isinstance(error, _NO_TABLE):
                hint = hint or _hints.NO_TABLE
            if isinstance(error, pg.DataError) and ctx.invoked_subcommand in ("history", "erase"):
                hint = hint or _hints.NO_KEY
            notes = [*getattr(error, "__notes__", []), *_done_before()]
            message = error.diag.message_primary or str(error).strip()
            complain(_hints.in_words(message), notes, hint)
            code = REFUSED if isinstance(error, pg.InsufficientPrivilege) else ERROR
        except KeyboardInterrupt:
            for line in _done_before():
                notice(line)
            raise
        return ctx.exit(code)


def _done_before() -> list[str]:
    """Return what to say with a failure that came after something was committed."""
    return ["What was done before that is committed."] if _streams.has_committed() else []


def complain(message: str, lines: list[str], hint: str | None) -> None:
    """Say on stderr what went wrong, about which rows, and what to do next."""
    screen = Screen.of(err=True)
    screen.line(f"error: {printable(message.removeprefix('agentundo: '))}", fg="red")
    for line in lines:
        screen.line(f"  {printable(line)}", hang=2)
    if hint:
        screen.line(f"  hint: {printable(hint)}", hang=2)


def notice(text: str) -> None:
    """Say something on stderr that is not data."""
    Screen.of(err=True).line(f"note: {printable(text.removeprefix('agentundo: '))}")


def notice_of(diagnostic: pg.Diagnostic) -> None:
    """Pass on what the server says beside its answers."""
    hint = _hints.spoken(diagnostic.message_hint)
    notice(" ".join(filter(None, [diagnostic.message_primary, f"({hint})" if hint else ""])))


def conflict_lines(conflicts: list[dict[str, Any]], total: int) -> list[str]:
    """Return a line about each row that stands in the way, and one about those not listed."""
    lines = [describe_conflict(conflict) for conflict in conflicts]
    if total > len(lines) > 0:
        lines.append(f"… and {count(total - len(lines), 'more row', 'more rows')}")
    return lines


def describe_conflict(conflict: Mapping[str, Any]) -> str:
    """Return one line about a row that stands in the way, and who put it there if that is known."""
    where = str(conflict.get("relation") or "a table")
    shown = key_text(conflict.get("key"))
    columns = ", ".join(conflict.get("columns") or [])
    reason = str(conflict.get("reason"))
    line = f"{where} ({shown}): {reason}" if shown else f"{where}: {reason}"
    if columns:
        line += f" [{columns}]"
    if conflict.get("constraint"):
        line += f" [{conflict['constraint']}]"
    if conflict.get("table_gone"):
        line += f" - {TABLE_GONE}"
    elif reason in REASONS:
        said = OF_TABLE.get(reason) if conflict.get("in_the_way") else None
        line += f" - {said.format(conflict['in_the_way']) if said else REASONS[reason]}"
    if "by" in conflict:
        line += f" by {who(conflict['by'])}"
    return line.removesuffix(",")


def who(writer: Mapping[str, Any] | None) -> str:
    """Return who wrote a row, and when, as far as history knows."""
    if writer is None:
        return "somebody, not captured"
    name = writer["actor"] or writer["role"] or "somebody of another scope"
    who = f"{name} at {moment(writer['at'])}"
    return f"{who} ({writer['invocation']})" if writer["invocation"] else who
