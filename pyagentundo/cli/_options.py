"""Options that several commands have."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Text(click.types.StringParamType):
    """What is typed, as text: the bytes of an argument need not be any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text; in a locale that knows ASCII only, that which UTF-8 makes of the bytes.

        Raises:
            BadParameter: it is none in UTF-8 either.

        """
        found = super().convert(value, param, ctx)
        try:
            return os.fsencode(found).decode() if _BYTES.search(found) else found
        except UnicodeError:
            self.fail("it holds bytes that are no UTF-8.", param, ctx)


#: How Python shows bytes of an argument that its encoding does not know.
_BYTES = re.compile("[\ud800-\udfff]")


def prepared(command: click.Command) -> click.Command:
    """Make a command as all of ours are: what it is given is text, its help ends with examples."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = Text()
    return _with_example_last(command)


def dsn_option(command: Decorated) -> Decorated:
    """Add --dsn, which counts before or after the command's name."""

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        if not value.strip():
            # Often a variable that is not set: the environment's database would be another one.
            raise click.BadParameter(
                "it is empty. Name a database, or leave the option out to use"
                " AGENTUNDO_DATABASE_URL, DATABASE_URL or libpq's variables.",
                ctx,
                param,
            )
        ctx.ensure_object(dict)["dsn"] = value

    return click.option(
        "--dsn",
        metavar="DSN",
        expose_value=False,
        callback=remember,
        help="The database: a postgresql:// URL or a libpq string.",
    )(command)


def chosen_dsn() -> str | None:
    """Return what --dsn said, None when it was not given."""
    dsn = click.get_current_context().ensure_object(dict).get("dsn")
    return dsn if isinstance(dsn, str) else None


def _with_example_last(command: click.Command) -> click.Command:
    """Let a command's --help end with its example: after the options, where people look last."""
    text, mark, example = inspect.cleandoc(command.help or "").rpartition("\b\nExample")
    command.help, command.epilog = text.rstrip(), mark + example
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
scope_option = click.option("--scope", help="Only within this tenant, campaign or project.")


def dry_run_option(what: str) -> Callable[[Decorated], Decorated]:
    """Add --dry-run with a help text of its own."""
    return click.option("--dry-run", is_flag=True, help=what)


def conflict_options(command: Decorated) -> Decorated:
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


def record_options(command: Decorated) -> Decorated:
    """Add what is written down about a revert."""
    command = click.option(
        "--by", "--reverted-by", "reverted_by", help="The person who decided it."
    )(command)
    return click.option("--reason", help="Why; --on-conflict force needs both.")(command)


rows_option = click.option("--rows", "by_row", is_flag=True, help="Every row, however many.")
