"""Which invocations a command is about: ids, a run, or everything that filters match.

``log``, ``plan`` and ``revert`` share these options. What they select is one unit: undone
together, its members never conflict with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import click

from pyagentundo.cli import _complete, _times
from pyagentundo.cli._connection import Connection
from pyagentundo.errors import InvocationNotFound


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The options as given; what was not given is None or empty."""

    ids: tuple[str, ...] = ()
    run: str | None = None
    from_step: int | None = None
    role: str | None = None
    actor: str | None = None
    tool: str | None = None
    scope: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    last: bool = False
    last_invocation: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.from_step is not None and self.run is None:
            raise click.UsageError("--from-step needs --run.")
        ways = (bool(self.ids), self.has_filters(), self.last, self.last_invocation)
        if self.since and self.until and self.since >= self.until:
            raise click.UsageError("--since is not before --until: nothing lies between them.")
        if sum(ways) > 1:
            raise click.UsageError(
                "Give ids, or filters such as --run, or --last, or --last-invocation: one of them."
            )

    def has_filters(self) -> bool:
        """Tell whether invocations are chosen by what they are, not by id."""
        filters = (self.run, self.role, self.actor, self.tool, self.since, self.until)
        return any(value is not None for value in filters)

    def require_some(self) -> None:
        """Refuse to mean everything."""
        if not (self.ids or self.has_filters() or self.last or self.last_invocation):
            raise click.UsageError("Name invocations, or choose them with --run, --last, … .")

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return a condition on ``agentundo.invocations`` and its parameters."""
        conditions = {
            "ids": "id = any(%(ids)s)",
            "run": "run = %(run)s",
            "from_step": "step >= %(from_step)s",
            "role": "role::text = %(role)s",
            "actor": "actor = %(actor)s",
            "tool": "tool = %(tool)s",
            "scope": "scope = %(scope)s",
            "since": "created_at >= %(since)s",
            "until": "created_at < %(until)s",
        }
        given = {name: getattr(self, name) for name in conditions}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if "ids" in given:
            given["ids"] = list(self.ids)
        return " and ".join(conditions[name] for name in given) or "true", given

    def resolve(self, conn: Connection) -> list[str]:
        """Return the ids to undo together.

        Ids that were named are returned as they are: the server says which it does not know.

        Raises:
            InvocationNotFound: nothing matches.

        """
        if self.ids:
            return list(self.ids)
        if self.last or self.last_invocation:
            return self._newest(conn)
        if self == Selection(run=self.run, from_step=self.from_step, scope=self.scope):
            # A role that may undo but not read everybody's invocations can ask this function.
            query = (
                "select id from agentundo.undoable(%(scope)s, %(run)s, 2147483647)"
                " where kind = 'invocation' and coalesce(step >= %(from_step)s, true)"
            )
            values: dict[str, Any] = vars(self)
        else:
            condition, values = self.where()
            query = f"select id from agentundo.invocations where {condition} and {_IS_NO_REVERT}"
        rows = conn.execute(query.encode(), values).fetchall()
        if not rows:
            raise InvocationNotFound(
                "No invocation matches.",
                hint="agentundo log with the same options shows what does.",
            )
        return [row["id"] for row in rows]

    def _newest(self, conn: Connection) -> list[str]:
        """Return the newest run of the scope, or its newest invocation, that can be undone."""
        newest = conn.execute(
            "select kind, id from agentundo.undoable(%s, null, %s) with ordinality where undoable"
            " and (kind = 'invocation' or not %s) order by ordinality limit 1",
            [self.scope, _LOOK_BACK, self.last_invocation],
        ).fetchone()
        if newest is None:
            raise InvocationNotFound("There is nothing left that could be undone.")
        if newest["kind"] == "run":
            return Selection(run=newest["id"], scope=self.scope).resolve(conn)
        return [newest["id"]]


#: How many of the newest invocations --last looks through for one that is not undone yet.
_LOOK_BACK = 1000

_FIELDS = [field.name for field in fields(Selection)]

# Undoing a filter's reverts together with what they reverted would undo nothing.
_IS_NO_REVERT = (
    "not exists (select from agentundo.invocations as other where other.revert_id = invocations.id)"
)


def selection_options(*, last: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the ids argument and the filters; the command receives one ``selection``.

    Args:
        last: offer ``--last`` and ``--last-invocation`` too.

    """
    options = [
        click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=_complete.invocations),
        click.option("--run", help="All invocations of this run.", shell_complete=_complete.runs),
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
            click.option("--last", is_flag=True, help="The newest run that can be undone."),
            click.option(
                "--last-invocation", is_flag=True, help="The newest call that can be undone."
            ),
        ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_selection(*args: Any, **given: Any) -> Any:
            mine = {name: given.pop(name) for name in _FIELDS if name in given}
            return command(*args, selection=Selection(**mine), **given)

        for option in reversed(options):
            with_selection = option(with_selection)
        return with_selection

    return decorate
