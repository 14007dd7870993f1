"""What can go wrong, as Python exceptions.

The SQL functions raise SQLSTATEs of the class ``UN``; each has a class here of the same meaning.
MESSAGE says what happened, HINT what to do next, and DETAIL is JSON about the first rows concerned:
relations, keys, reasons and column names, never other values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, ClassVar

import psycopg


class AgentUndoError(Exception):
    """The base of everything that this package raises on purpose.

    Attributes:
        message: what happened, one sentence.
        hint: what to do next, or None.
        detail: the server's DETAIL as parsed JSON, ``{}`` when there is none.

    """

    sqlstate: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, hint: str | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail or {}

    @property
    def conflicts(self) -> list[dict[str, Any]]:
        """The first 20 rows that stand in the way: relation, key, reason, columns."""
        found = self.detail.get("conflicts", [])
        return found if isinstance(found, list) else []

    @property
    def total(self) -> int:
        """The number of rows that stand in the way, all of them."""
        return int(self.detail.get("total", len(self.conflicts)))


class DsnError(AgentUndoError):
    """The connection string cannot be read or leads nowhere. Never shows a password."""


class InstallError(AgentUndoError):
    """The database or the role is not fit for installing; nothing was changed."""


class LockTimeout(AgentUndoError):
    """Somebody held a table's lock in every one of our attempts; nothing was changed."""


class UndoConflict(AgentUndoError):
    """Rows cannot go back without destroying or breaking something later; nothing was changed."""

    sqlstate = "UN001"


class InvocationNotFound(AgentUndoError):
    """No such invocation or run, or none within this scope."""

    sqlstate = "UN002"


class NotPermitted(AgentUndoError):
    """The calling role may not do this."""

    sqlstate = "UN003"


class NotTrackable(AgentUndoError):
    """The relation cannot be captured: a view, a foreign or temporary table, a catalog."""

    sqlstate = "UN004"


class BlastRadiusExceeded(AgentUndoError):
    """The statement touched more rows than the limit allows; its transaction has to roll back."""

    sqlstate = "UN005"


class ApprovalRequired(AgentUndoError):
    """A person has to approve this first."""

    sqlstate = "UN006"


class GuardedStatement(AgentUndoError):
    """A protected role tried something that cannot be taken back."""

    sqlstate = "UN007"


class SchemaDrift(AgentUndoError):
    """A tracked table has another shape than its history; ``agentundo sync`` mends it."""

    sqlstate = "UN008"


class VersionMismatch(AgentUndoError):
    """The installed schema and this package cannot work together."""

    sqlstate = "UN009"


class NotInstalled(VersionMismatch):
    """The database has no agentundo at all."""


class InvocationClosed(AgentUndoError):
    """The invocation's id is taken, finished or reverted and takes no more writes."""

    sqlstate = "UN010"


class UndoExpired(AgentUndoError):
    """The history of the invocation has been purged."""

    sqlstate = "UN011"


class RecordTampered(AgentUndoError):
    """The record does not verify: somebody changed what it says happened."""

    sqlstate = "UN012"


_BY_SQLSTATE: dict[str, type[AgentUndoError]] = {
    cls.sqlstate: cls
    for cls in (
        UndoConflict,
        InvocationNotFound,
        NotPermitted,
        NotTrackable,
        BlastRadiusExceeded,
        ApprovalRequired,
        GuardedStatement,
        SchemaDrift,
        VersionMismatch,
        InvocationClosed,
        UndoExpired,
        RecordTampered,
    )
    if cls.sqlstate is not None
}


def from_psycopg(error: psycopg.Error) -> AgentUndoError | None:
    """Return the exception for an error of ours that came from the server, None for any other."""
    cls = _BY_SQLSTATE.get(error.diag.sqlstate or "")
    if cls is None:
        return None
    return cls(
        error.diag.message_primary or str(error),
        hint=error.diag.message_hint,
        detail=_parse_detail(error.diag.message_detail),
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise our errors instead of psycopg's, which stays as ``__cause__``; let others pass."""
    try:
        yield
    except psycopg.Error as error:
        ours = from_psycopg(error)
        if ours is None:
            raise
        raise ours from error


def _parse_detail(text: str | None) -> dict[str, Any]:
    """Read DETAIL; what is not a JSON object is kept as ``{"text": …}`` and not lost."""
    if not text:
        return {}
    try:
        # Keys of rows may be numbers, and those keep their digits.
        parsed = json.loads(text, parse_float=Decimal)
    except ValueError:
        return {"text": text}
    return parsed if isinstance(parsed, dict) else {"text": text}
