"""``log``, ``show``, ``diff`` and ``history``: what agents did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import psycopg
from click.core import ParameterSource

from pyagentundo._json import dumps
from pyagentundo.cli import _complete, _queries, _show_diff, _show_history, _show_log
from pyagentundo.cli._connection import Connection, connected
from pyagentundo.cli._failures import notice
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import dsn_option, json_option, scope_option
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._selection import Chosen, selection_options
from pyagentundo.cli._tables import key_text
from pyagentundo.errors import NotPermitted, UsageError

#: What is told of a call that nothing exempts from purge.
NOT_HELD = {"held": None, "held_by": None, "held_at": None}

_colour_option = click.option(
    "--color",
    "colour",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours: on a terminal, unless NO_COLOR is set.",
)


@click.command()
@selection_options(last=False)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most."
)
@click.option("--held", is_flag=True, help="Only those that hold exempts from purge.")
@dsn_option
@json_option
def log(selection: Chosen, limit: int, held: bool, as_json: bool) -> None:
    """List calls, newest first.

    Who made them, for whom, with what tool, when, how many rows, what became of them, what holds
    them, and, of recorded ones, which tables they wrote that are not tracked. An app is told of one
    scope, and whether they can still be undone.

    On a terminal each call is a few lines, in a pipe or file a line of a wide table. That there are
    more than were listed is said.

    \b
    Examples:
      agentundo log
      agentundo log --actor sales-bot --since 2h
      agentundo log --since yesterday --until today --json
    """
    condition, values = selection.where()
    with connected() as conn:
        whole = _queries.readable(conn, "invocations")
        if not whole:
            _refuse_an_app(selection, held=held)
        if held:
            condition += " and i.id = any (%(held)s)"
            values = {**values, "held": list(_queries.holds(conn))}
        rows = _queries.invocations(conn, condition, values, limit + 1)
        if not (whole or selection.scope):
            notice("only what belongs to no scope; --scope names one")
        if selection.ids:
            _tell_unknown(conn, selection)
        holds = _queries.holds(conn, [row["id"] for row in rows])
        purged = _queries.purged(conn, [x["id"] for x in rows if not (x["rows"] or x["undoable"])])
    rows = [
        {**row, **(holds.get(row["id"]) or NOT_HELD), "purged": row["id"] in purged} for row in rows
    ]
    screen = Screen.of()
    more = len(rows) > limit
    if more and (as_json or screen.width is None) and _is_default("limit"):
        notice(f"only the newest {limit} are listed; for older ones give --limit or --until")
    if as_json:
        print_json(rows[:limit])
    else:
        chosen = held or bool(selection.ids or selection.filters.given())
        _show_log.show_log(screen, rows[:limit], more=more, chosen=chosen)


def _tell_unknown(conn: Connection, selection: Chosen) -> None:
    """Say which of the ids that were named are none.

    Raises:
        InvocationNotFound: all of them.

    """
    known = {row["id"] for row in _queries.invocations(conn, *selection.where())}
    unknown = [one for one in selection.ids if one not in known]
    if not known:
        raise _queries.unknown(unknown[0])
    for one in unknown:
        notice(f"there is no call {one!r}")


def _is_default(option: str) -> bool:
    """Tell whether nobody has typed an option: then its value is news."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.DEFAULT


def _refuse_an_app(selection: Chosen, *, held: bool) -> None:
    """Refuse what an app is not told.

    Raises:
        NotPermitted: it chooses by role, or asks what is held.

    """
    if held:
        raise NotPermitted(
            "Only operators and auditors are told what is held.", hint="Leave --held out."
        )
    if selection.filters.role:
        raise NotPermitted(
            "Only operators and auditors may choose by role.", hint="Choose by --actor."
        )


@click.command()
@click.argument("invocation", metavar="ID", shell_complete=_complete.invocations)
@dsn_option
@json_option
def show(invocation: str, as_json: bool) -> None:
    """Show one call.

    Who made it, when, what it was asked, what holds it, and which tables it changed. A change is
    covered by the revert that has taken it back. Of a purged call only the record is left.

    \b
    Example:
      agentundo show 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
    """
    with connected() as conn:
        about = _queries.invocation(conn, invocation)
        about |= _queries.holds(conn, [invocation]).get(invocation, NOT_HELD)
        changes = _queries.changes(conn, invocation)
        about["purged"] = not changes and bool(_queries.purged(conn, [invocation]))
        effects = _queries.effects(conn, [invocation])
    if as_json:
        print_json({**about, "changes": changes, "effects": effects})
    else:
        _show_log.show_invocation(Screen.of(), about, changes, effects)


@click.command()
@click.argument("invocation", metavar="ID", shell_complete=_complete.invocations)
@scope_option
@_colour_option
@dsn_option
@json_option
def diff(invocation: str, scope: str | None, colour: str, as_json: bool) -> None:
    """Show what a call changed, column by column.

    Generated columns are left out.

    \b
    Examples:
      agentundo diff 0194f3c2-7a1e-7c52-9d3b-2f6a8c1e5b70
      agentundo diff call-1 --color always | less -R
    """
    screen = Screen.of(colour=colour)
    arguments = {"invocation": invocation, "scope": scope}
    with connected() as conn:
        rows = _queries.call(conn, "diff", arguments)
    if as_json:
        print_json(rows)
    elif rows:
        _show_diff.show_diff(screen, rows)
    else:
        screen.line("no captured changes")


@click.command()
@click.argument("table", shell_complete=_complete.tracked)
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@scope_option
@_colour_option
@dsn_option
@json_option
def history(
    table: str, key: tuple[str, ...], scope: str | None, colour: str, as_json: bool
) -> None:
    """Show every captured version of one row, oldest first.

    KEY is the value of the key column; COLUMN=VALUE for each of several; or a JSON object. Where
    the table is not tracked with --capture all, people's writes are not captured: where one must
    have been it is said. An app is told when another scope wrote, not who.

    \b
    Examples:
      agentundo history public.deals D-881
      agentundo history public.lines deal=D-881 position=2
      agentundo history public.lines '{"deal": "D-881", "position": 2}'
    """
    screen = Screen.of(colour=colour)
    with connected() as conn:
        wanted = key_of(conn, table, key)
        with explaining_key(key, wanted):
            rows = _queries.row_history(conn, table, wanted, scope)
        version = _queries.row_version(conn, table, wanted) if rows else None
        keyed = bool(_queries.key_columns(conn, table))
        whole = _queries.is_captured_whole(conn, table)
    if as_json:
        print_json(rows)
    elif rows:
        _show_history.show_history(screen, rows, version=version, keyed=keyed, whole=whole)
    else:
        screen.line(f"no captured versions of {printable(table)} {key_text(wanted)}")
    if not rows:
        tell_mistaken(key, wanted)


def key_of(conn: Connection, table: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Read the key of a row as it was typed.

    Raises:
        UsageError: it is neither a value, nor columns with values, nor a JSON object.

    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            # Text on purpose: the server reads each value by the type of its column.
            found = json.loads(words[0], parse_float=str)
            dumps(found, what="it")
        except RecursionError:
            raise click.UsageError("The key is no JSON object: nested too deeply.") from None
        except ValueError as error:
            raise click.UsageError(f"The key is no JSON object: {error}.") from None
        except UsageError as error:
            raise click.UsageError(f"The key is no JSON object: {error.message}") from None
        assert isinstance(found, dict)  # noqa: S101 - it begins with a brace
        return found
    columns = _queries.key_columns(conn, table)
    named = [word.partition("=") for word in words]
    if all(sign and (name in columns or not columns) for name, sign, _ in named):
        return {name: value for name, _, value in named}
    if len(words) == 1 and len(columns) == 1:
        return {columns[0]: words[0]}
    wanted = " ".join(f"{name}=VALUE" for name in columns) or "a JSON object of all its columns"
    raise click.UsageError(f"This is not a key of {table}. Give {wanted}.")


def tell_mistaken(words: tuple[str, ...], key: dict[str, Any]) -> None:
    """Say that what looks like a column with its value was taken for a value.

    Args:
        words: the key of a row as it was typed.
        key: as `key_of` read it.

    """
    name, sign, _ = words[0].partition("=")
    if len(words) == 1 and sign and name.isidentifier() and words[0] in key.values():
        notice(f"no key column {name}; the key is ({', '.join(key)})")


@contextmanager
def explaining_key(words: tuple[str, ...], key: dict[str, Any]) -> Iterator[None]:
    """Say the same when the server could not read the value."""
    try:
        yield
    except psycopg.DataError:
        tell_mistaken(words, key)
        raise


COMMANDS = [log, show, diff, history]
