"""Choosing invocations by what they are: run, role, actor, tool, scope, time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pyagentundo._json import check_text
from pyagentundo.errors import UsageError

_CONDITIONS = {
    "run": "i.run = %(run)s",
    "from_step": "i.step >= %(from_step)s",
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
        for name, value in self.given().items():
            if name in ("since", "until"):
                _check_time(name, value)
            elif name == "from_step":
                check_number(name, value)
            else:
                check_text(value, name)
        if self.from_step is not None and self.run is None:
            raise UsageError("from_step was given without run.", hint="Steps count within a run.")

    def given(self) -> dict[str, Any]:
        """Return what was given, by name."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def where(self) -> str:
        """Return a condition on ``agentundo.invocations i``; `given` has its parameters."""
        return " and ".join(_CONDITIONS[name] for name in self.given()) or "true"


def check_number(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number that fits an ``integer`` of the server.

    Raises:
        UsageError: it is none, is less than `least`, or too large.

    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise UsageError(
            f"{name} is {value!r}, not a whole number from {least} to {2**31 - 1}.",
            hint=f"Give {name} as an int, or leave it out.",
        )
    return value


def _check_time(name: str, value: Any) -> None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(
            f"{name} is {value!r}, not a time with a time zone.",
            hint="Give for example datetime.now(UTC) - timedelta(hours=2).",
        )
