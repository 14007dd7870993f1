"""What is told of a tool call, checked and ready for the server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyagentundo import _json
from pyagentundo._arguments import required

#: The settings that make a tag, in the order of `Call.tags`, and what belongs to them.
SETTINGS = (
    "agent.invocation",
    "agent.run",
    "agent.step",
    "agent.tool",
    "agent.actor",
    "agent.on_behalf_of",
    "agent.scope",
    "agentundo.baseline",
)
#: What may be anything that JSON can hold.
_WRITTEN = ("input", "meta")


def new_id() -> str:
    """Return a UUID of version 7: ids made later sort later, to the 1/4096 of a millisecond."""
    now = time.time_ns()
    milliseconds, rest = divmod(now, 1_000_000)
    fraction = rest * 4096 // 1_000_000
    number = (milliseconds & (1 << 48) - 1) << 80 | 7 << 76 | fraction << 64
    return str(UUID(int=number | 2 << 62 | secrets.randbits(62)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call; JSON is text already, ids are never missing."""

    id: str
    run: str | None = None
    step: int | None = None
    tool: str | None = None
    tier: str | None = None
    input: str | None = None
    actor: str | None = None
    scope: str | None = None
    on_behalf_of: str | None = None
    model: str | None = None
    meta: str | None = None
    again: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Call:
        """Check what was given, and make an id where none was.

        Raises:
            UsageError: something cannot be stored.

        """
        known = {name: value for name, value in given.items() if value is not None}
        written = {name: _json.dumps(known.pop(name, None), what=name) for name in _WRITTEN}
        known.setdefault("id", new_id())
        return cls(**required(**known) | written)

    def parameters(self) -> dict[str, Any]:
        """Return everything by name, for a statement."""
        return {name: getattr(self, name) for name in self.__slots__}
