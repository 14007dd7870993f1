"""Choosing invocations by what they are: run, role, actor, tool, scope, time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pyagentundo._arguments import optional
from pyagentundo.errors import UsageError

_CONDITIONS = {
    "run": "i.run = %(run)s",
    # A call without a step has the place that its time gives it, as in revert_run().
    "from_step": "coalesce(i.step, (select count(*) from agentundo.invocations earlier where"
    " earlier.run = i.run and earlier.created_at <= i.created_at)) >= %(from_step)s",
    "role": "i.role = %(role)s",
    "actor": "i.actor = %(actor)s",
    "on_behalf_of": "i.on_behalf_of = %(on_behalf_of)s",
    "tool": "i.tool = %(tool)s",
    "scope": "i.scope = %(scope)s",
    "status": "i.status = %(status)s",
    "since": "i.created_at >= %(since)s",
    "until": "i.created_at < %(until)s",
}
#: Reverts are invocations as well. Undone together with what they took back, nothing would change.
NO_REVERTS = (
    "not exists (select from agentundo.invocations other where other.revert_id = i.id)"
    " and i.tool is distinct from 'agentundo.revert' and i.tool is distinct from 'agentundo.redo'"
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """All invocations that match everything given; undone, they are one unit.

    Args:
        run: of this run.
        from_step: of the run, from this step on.
        role: made by this database role.
        actor: by this agent.
        on_behalf_of: for this person.
        tool: with this tool.
        scope: in this tenant, campaign or project.
        status: that are, for example, ``committed``.
        since: recorded, or writing first, at this time or later.
        until: before this time.

    Raises:
        UsageError: a time has no zone, a text is none, or `from_step` comes without `run`.

    """

    run: str | None = None
    from_step: int | None = None
    role: str | None = None
    actor: str | None = None
    on_behalf_of: str | None = None
    tool: str | None = None
    scope: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        optional(**self.given())
        if self.from_step is not None and self.run is None:
            raise UsageError("from_step was given without run.", hint="Steps count within a run.")

    def given(self) -> dict[str, Any]:
        """Return what was given, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def where(self) -> str:
        """Return a condition on ``agentundo.invocations i``; `given` has its parameters."""
        return " and ".join(_CONDITIONS[name] for name in self.given()) or "true"


def selected(selection: Selection | None, given: dict[str, Any]) -> Selection:
    """Return what a method was asked for: a selection, or the arguments of one.

    Raises:
        UsageError: it was given both, or something else.
        TypeError: an argument is none of a selection's.

    """
    if selection is None:
        return Selection(**given)
    if not isinstance(selection, Selection):
        raise UsageError(
            f"Something of type {type(selection).__qualname__} is no Selection.",
            hint="Give a Selection, or its arguments by name, such as run=...; get() takes an id.",
        )
    if given:
        raise UsageError(
            f"A Selection was given, and {', '.join(given)} beside it.",
            hint="Say all in one: Selection(run=..., actor=...), or the arguments alone.",
        )
    return selection
