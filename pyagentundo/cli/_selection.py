"""Which calls a command is about: ids, a run, or everything that filters match.

``log``, ``plan`` and ``revert`` share these options. What they select is one unit: undone
together, its members never conflict with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import click
from psycopg.rows import DictRow

from pyagentundo.cli import _complete, _queries, _times
from pyagentundo.cli._connection import Connection
from pyagentundo.cli._failures import notice
from pyagentundo.cli._screen import printable
from pyagentundo.errors import InvocationNotFound, NotPermitted
from pyagentundo.selection import NO_REVERTS, Selection


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The options as given; what was not given is None or empty."""

    ids: tuple[str, ...] = ()
    filters: Selection = field(default_factory=Selection)
    last: bool = False
    last_invocation: bool = False

    @classmethod
    def of(cls, options: dict[str, Any]) -> Chosen:
        """Read the options of a command, and take them out of the others.

        Raises:
            UsageError: they contradict each other.

        """
        mine = {name: options.pop(name) for name in _FILTERS if name in options}
        own = {f.name: options.pop(f.name) for f in fields(cls) if f.name in options}
        own["ids"] = tuple(dict.fromkeys(own["ids"]))  # a call that is named twice is one
        if mine["from_step"] is not None and mine["run"] is None:
            raise click.UsageError("--from-step needs --run.")
        if mine["since"] and mine["until"] and mine["since"] >= mine["until"]:
            raise click.UsageError("--since is not before --until: nothing lies between them.")
        chosen = cls(filters=Selection(**mine), **own)
        if sum((bool(chosen.ids), chosen.last, chosen.last_invocation)) > 1:
            raise click.UsageError("Give ids, or --last, or --last-invocation: one of them.")
        if (chosen.ids and chosen.has_filters()) or (chosen.is_newest and mine["run"]):
            raise click.UsageError(
                "An id needs no filters, and a run is not the newest one: give one of them."
            )
        return chosen

    @property
    def is_newest(self) -> bool:
        """Whether it is about the newest run, or the newest call."""
        return self.last or self.last_invocation

    @property
    def scope(self) -> str | None:
        """The scope that was named. It goes with everything, and alone chooses nothing."""
        return self.filters.scope

    def has_filters(self) -> bool:
        """Tell whether calls are chosen by what they are, not by id."""
        return bool(self.filters.given().keys() - {"scope"})

    def require_some(self) -> None:
        """Refuse to mean everything."""
        if not (self.ids or self.has_filters() or self.is_newest):
            raise click.UsageError("Name calls, or choose them with --run, --last, … .")

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return a condition on invocations that are called ``i``, and its parameters."""
        condition, given = self.filters.where(), self.filters.given()
        if self.ids:
            return f"i.id = any (%(ids)s) and {condition}", {**given, "ids": list(self.ids)}
        return condition, given

    def resolve(self, conn: Connection, *, aloud: bool = False) -> list[str]:
        """Return the ids to undo together.

        Ids that were named are returned as they are: the server says which it does not know. What
        options choose and was purged is left out, and that is said; where there is nothing else,
        the server refuses it.

        Args:
            conn: any role but an agent's.
            aloud: say which run is the newest, because no plan will be shown that tells it.

        Raises:
            InvocationNotFound: nothing matches.
            NotPermitted: the role may not be told what was asked for.

        """
        if self.ids:
            return list(self.ids)
        if self.is_newest and not self.has_filters():
            return self._newest(conn, aloud=aloud)
        run = self.filters.run
        if run and self.filters.given().keys() <= {"run", "from_step", "scope"}:
            found, gone = _queries.of_run(conn, run, self.scope, self.filters.from_step)
        elif _queries.readable(conn, "invocations"):
            condition, values = self.where()
            rows = _queries.invocations(conn, f"{condition} and {NO_REVERTS}", values)
            if self.is_newest:
                rows = self._newest_of(rows, aloud=aloud)
            found = [row["id"] for row in rows]
            empty = [row["id"] for row in rows if not (row["rows"] or row["undoable"])]
            gone = _queries.purged(conn, empty)
        else:
            # It is told of the newest only, and would miss the older ones without knowing it.
            raise NotPermitted(
                "Only operators and auditors may choose by role, actor, tool or time.",
                hint="Give ids, --run or --last, and --scope where there is one.",
            )
        if not found:
            raise InvocationNotFound(
                "No call matches.",
                hint='"agentundo log" lists what there is. Check what was typed, and --scope.',
            )
        return _without(found, gone)

    def _newest(self, conn: Connection, *, aloud: bool) -> list[str]:
        """Return the newest run of the scope, or its newest call, that can be undone."""
        newest = conn.execute(
            "select kind, id from agentundo.undoable(%s, null, %s) with ordinality where undoable"
            " and (kind = 'invocation' or not %s) order by ordinality limit 1",
            [self.scope, _LOOK_BACK, self.last_invocation],
        ).fetchone()
        if newest is None:
            raise InvocationNotFound(
                "There is nothing left that could be undone.",
                hint="agentundo log lists what was done and what became of it.",
            )
        if newest["kind"] == "run":
            if aloud:
                notice(f"the newest run is {printable(newest['id'])}")
            return _without(*_queries.of_run(conn, newest["id"], self.scope))
        return [newest["id"]]

    def _newest_of(self, rows: list[DictRow], *, aloud: bool) -> list[DictRow]:
        """Return the newest of these calls that can be undone, with those of them of its run.

        What the filters do not match stays, of the same run too: it may be somebody else's.
        """
        can = [row for row in rows if row["undoable"]]
        if not can:
            return []
        newest = max(can, key=lambda row: (row["last_write_at"], row["id"]))
        if self.last_invocation or not newest["run"]:
            return [newest]
        if aloud:
            notice(f"the newest run is {printable(newest['run'])}, of it what the options match")
        return [row for row in rows if row["run"] == newest["run"]]


def _without(ids: list[str], gone: set[str]) -> list[str]:
    """Return the ids of which something may go back, and say how many are left out."""
    left = [one for one in ids if one not in gone]
    if gone and left:
        which = "call that matches was" if len(gone) == 1 else "calls that match were"
        notice(f"{len(gone):,} {which} purged and cannot be undone any more: left out")
    return left or ids


#: How many of the newest invocations --last looks through for one that is not undone yet.
_LOOK_BACK = 1000

_FILTERS = [field.name for field in fields(Selection)]


def selection_options(*, last: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the ids argument and the filters; the command receives one ``selection``.

    Args:
        last: offer ``--last`` and ``--last-invocation`` too.

    """
    options = [
        click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=_complete.invocations),
        click.option("--run", help="All calls of this run.", shell_complete=_complete.runs),
        click.option("--from-step", type=click.IntRange(min=1), help="Of the run, from this step."),
        click.option("--role", help="Those that this database role made."),
        click.option("--actor", help="Those of this agent."),
        click.option("--tool", help="Those of this tool."),
        click.option("--scope", help="Only within this tenant, campaign or project."),
        click.option(
            "--since",
            callback=_times.option,
            metavar="TIME",
            help="Made at or after it: 2h, yesterday, 2026-11-30 14:05.",
        ),
        click.option("--until", callback=_times.option, metavar="TIME", help="Made before it."),
    ]
    if last:
        options += [
            click.option(
                "--last",
                is_flag=True,
                help="The newest run that can be undone, with filters of what they match. Once it"
                " is undone, the run before.",
            ),
            click.option(
                "--last-invocation", is_flag=True, help="The newest call that can be undone."
            ),
        ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_selection(*args: Any, **given: Any) -> Any:
            return command(*args, selection=Chosen.of(given), **given)

        for option in reversed(options):
            with_selection = option(with_selection)
        return with_selection

    return decorate
