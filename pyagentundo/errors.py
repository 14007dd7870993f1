"""What can go wrong, as Python exceptions.

The SQL functions raise SQLSTATEs of the class ``UN``; each has a class here of the same meaning.
MESSAGE says what happened, HINT what to do next, and DETAIL is JSON about the first rows concerned:
relations, keys, reasons and column names, never other values.
"""

from __future__ import annotations

import copyreg
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, ClassVar

import psycopg

from pyagentundo import _hints
from pyagentundo.results import Conflict


class AgentUndoError(Exception):
    """The base of everything that this package raises on purpose.

    Attributes:
        message: what happened, one sentence.
        hint: what to do next, or None. Tracebacks show it below the message.
        detail: the server's DETAIL as parsed JSON, ``{}`` when there is none.
        sqlstate: the SQLSTATE that this class stands for, None where there is none.
        http_status: what a web application best answers with.

    """

    sqlstate: ClassVar[str | None] = None
    http_status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, hint: str | None = None, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail or {}
        if hint:
            # Not in str(): that is the message alone. Tracebacks, and so logs, show it.
            self.add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class: each may want other arguments. Workers hand errors over so.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def conflicts(self) -> list[Conflict]:
        """The first 20 rows that stand in the way: relation, key, reason, columns."""
        found = self.detail.get("conflicts", [])
        return [Conflict.of(row) for row in found] if isinstance(found, list) else []

    @property
    def total(self) -> int:
        """The number of rows that stand in the way, all of them."""
        return int(self.detail.get("total", len(self.conflicts)))


class DsnError(AgentUndoError):
    """The connection string cannot be read or leads nowhere. Never shows a password."""

    http_status = 503


class InstallError(AgentUndoError):
    """The database or the role is not fit for installing; nothing was changed."""


class LockTimeout(AgentUndoError):
    """Somebody held a table's lock in every one of our attempts; nothing was changed."""

    http_status = 503


class UndoConflict(AgentUndoError):
    """Rows cannot go back without destroying or breaking something later; nothing was changed."""

    sqlstate = "UN001"
    http_status = 409


class InvocationNotFound(AgentUndoError):
    """No such invocation or run, or none within this scope."""

    sqlstate = "UN002"
    http_status = 404


class NotPermitted(AgentUndoError):
    """The calling role may not do this."""

    sqlstate = "UN003"
    http_status = 403


class NotTrackable(AgentUndoError):
    """The relation cannot be captured: a view, a foreign or temporary table, a catalog."""

    sqlstate = "UN004"
    http_status = 422


class BlastRadiusExceeded(AgentUndoError):
    """The statement touched more rows than the limit allows; its transaction has to roll back."""

    sqlstate = "UN005"
    http_status = 403


class ApprovalRequired(AgentUndoError):
    """A person has to approve this first."""

    sqlstate = "UN006"
    http_status = 403


class GuardedStatement(AgentUndoError):
    """A protected role tried something that cannot be taken back."""

    sqlstate = "UN007"
    http_status = 403


class SchemaDrift(AgentUndoError):
    """A tracked table has another shape than its history; ``agentundo sync`` mends it."""

    sqlstate = "UN008"
    http_status = 503


class VersionMismatch(AgentUndoError):
    """The installed schema and this package cannot work together."""

    sqlstate = "UN009"
    http_status = 503


class NotInstalled(VersionMismatch):
    """The database has no agentundo at all."""


class InvocationClosed(AgentUndoError):
    """The invocation's id is taken, finished or reverted and takes no more writes."""

    sqlstate = "UN010"
    http_status = 409


class InvocationPending(InvocationClosed):
    """The same call is still being made elsewhere, or whoever made it died before it ended.

    Nothing was written. If nobody is at it any more, `AgentUndo.fail` closes it and frees the id.
    """


class UsageError(AgentUndoError):
    """An argument, or the state of a connection, makes the call impossible; nothing was changed."""

    http_status = 400


class RecordUnavailable(AgentUndoError):
    """The call could not be recorded, so nothing was written: no record, no write."""

    http_status = 503


class PoolTimeout(AgentUndoError):
    """All connections of an `AgentUndo` were in use for too long; nothing was changed."""

    http_status = 503


class CommitUnknown(AgentUndoError):
    """The connection was lost while it committed, and nobody can say whether it did.

    Attributes:
        invocation: the id to look up later, or the first of several.

    """

    http_status = 503

    def __init__(self, message: str, *, invocation: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.invocation = invocation


class UndoExpired(AgentUndoError):
    """The history of the invocation has been purged."""

    sqlstate = "UN011"
    http_status = 410


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


def from_psycopg(error: psycopg.Error, *, pythonic: bool = False) -> AgentUndoError | None:
    """Return the exception for an error of ours that came from the server, None for any other.

    Args:
        error: what psycopg raised.
        pythonic: put the hint, which names functions in SQL, into the words of Python.

    """
    cls = _BY_SQLSTATE.get(error.diag.sqlstate or "")
    if cls is None:
        return None
    hint = error.diag.message_hint
    return cls(
        (error.diag.message_primary or str(error)).removeprefix(_PREFIX),
        hint=_hints.spoken(hint) if pythonic else hint,
        detail=_parse_detail(error.diag.message_detail),
    )


def explain(error: psycopg.Error, *, user: str = "this role") -> AgentUndoError | None:
    """Return the exception for an error of a statement in which everything is ours.

    More than `from_psycopg`: there a missing function or right is ours too. Hints are in the words
    of Python.

    Args:
        error: what psycopg raised.
        user: who was refused, for the message.

    """
    message = error.diag.message_primary or str(error)
    if (error.sqlstate or "").startswith("UN"):
        return from_psycopg(error, pythonic=True)
    cls = _OURS_ELSEWHERE.get(error.sqlstate or "")
    if cls and message.startswith(_PREFIX):
        return cls(message.removeprefix(_PREFIX), hint=_hints.spoken(error.diag.message_hint))
    if error.sqlstate in _MISSING and _OURS.search(message):
        if error.sqlstate == "3F000":
            return NotInstalled(
                "agentundo is not installed in this database.", hint="Run: agentundo install"
            )
        return VersionMismatch(
            f"The agentundo in this database lacks what this package needs: {message}.",
            hint="Run: agentundo upgrade",
        )
    if error.sqlstate == "42501":
        return NotPermitted(
            f"{user} may not do this: {message}.", hint=_hints.missing_right(message)
        )
    return None


#: How our functions begin what they say, so that it can be told in a server's log.
_PREFIX = "agentundo: "
#: SQLSTATEs of the standard that our functions raise too, told by how their message begins.
_OURS_ELSEWHERE: dict[str, type[AgentUndoError]] = {
    "22023": UsageError,
    "25001": UsageError,
    "54000": UsageError,
    "55000": UsageError,
    "55006": UsageError,
    "55P03": LockTimeout,
}
#: Schema, function, relation and column that do not exist.
_MISSING = ("3F000", "42883", "42P01", "42703")
#: In their messages, that it is ours; the name of a user's table may have the word in it.
_OURS = re.compile(r"\bagentundo\b")


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


@contextmanager
def explained(user: str = "this role") -> Iterator[None]:
    """Raise our errors instead of psycopg's around a statement that is wholly ours."""
    try:
        yield
    except psycopg.Error as error:
        ours = explain(error, user=user)
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
    except (ValueError, RecursionError):
        return {"text": text}
    return parsed if isinstance(parsed, dict) else {"text": text}
