"""What a connection's state allows, which errors are worth another try, and how long to wait."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import pq

from pyagentundo.errors import (
    CommitUnknown,
    InvocationClosed,
    InvocationPending,
    RecordUnavailable,
    UsageError,
)

#: Tries in all of a transaction of our own that met a serialization failure or a deadlock.
ATTEMPTS = 5
#: Errors after which the same transaction may well succeed.
RETRIED = (pg.SerializationFailure, pg.DeadlockDetected)

_IDLE = pq.TransactionStatus.IDLE
_OPEN = pq.TransactionStatus.INTRANS


def pauses(attempts: int = ATTEMPTS) -> Iterator[float | None]:
    """Yield for each attempt how many seconds to wait after its failure; None after the last."""
    for number in range(attempts - 1):
        # By chance, so that two that met do not meet again.
        yield 0.05 * 2**number * (0.5 + random.random())  # noqa: S311
    yield None


def require_usable(conn: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a transaction is open on a connection.

    Raises:
        UsageError: it is closed, busy, or in a transaction that has failed.

    """
    if conn.closed:
        raise UsageError(
            "The connection is closed.",
            hint="Open a new one; a pool hands out connections that work.",
        )
    status = conn.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise UsageError(
            "The connection is in a failed transaction.",
            hint="Roll it back first: conn.rollback(), or leave the conn.transaction() block.",
        )
    if status not in (_IDLE, _OPEN):
        raise UsageError(
            "The connection is busy with another command.",
            hint="Finish it first (a COPY, a stream), or use another connection.",
        )
    return status == _OPEN


def is_open(conn: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a transaction is open that has not failed."""
    return conn.info.transaction_status == _OPEN


def has_failed(conn: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the open transaction can only be rolled back."""
    return conn.info.transaction_status == pq.TransactionStatus.INERROR


def was_refused(error: BaseException | None) -> bool:
    """Return whether somebody wrote where only reading is possible, as told by any library."""
    while error is not None:
        if isinstance(error, pg.ReadOnlySqlTransaction):
            return True
        error = error.__cause__
    return False


def is_lost(conn: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the server cannot be heard any more on a connection."""
    return bool(conn.closed) or conn.pgconn.status != pq.ConnStatus.OK


def unfit(found: object, wanted: type[psycopg.BaseConnection[Any]]) -> UsageError:
    """Return what to raise for something that is no connection of ours and no pool."""
    kind = f"{type(found).__module__}.{type(found).__qualname__}"
    return UsageError(
        f"Something of type {kind} is no psycopg.{wanted.__name__} and no pool of them.",
        hint="AgentUndo works with psycopg.Connection, AsyncAgentUndo with psycopg.AsyncConnection."
        " Of SQLAlchemy's connections take .connection.driver_connection, of Django's cursors"
        " .connection.",
    )


def not_recorded(error: BaseException) -> RecordUnavailable:
    """Return what to raise when a call cannot be recorded."""
    told = getattr(error, "message", None) or " ".join(str(error).split())
    return RecordUnavailable(
        f"The call cannot be recorded, so it is not made: {told}",
        hint=getattr(error, "hint", None)
        or "Records are written through connections of our own, made from the DSN.",
    )


def without_address() -> UsageError:
    """Return what to raise when records have no way to the database."""
    return UsageError(
        "An AgentUndo made from a connection does not know where to write records.",
        hint="Give it dsn=..., or record='inline' to write them in the data's own transaction.",
    )


def pending(id: str, *, why: str = "is pending") -> InvocationPending:  # noqa: A002
    """Return what to raise when the same call is being made elsewhere."""
    return InvocationPending(
        f"Invocation {id!r} {why}: it is being made elsewhere, or whoever made it died.",
        hint="Wait for it; if nobody is at it any more, call fail() with this id, then again.",
        detail={"invocation": id},
    )


def repeated(id: str, status: str) -> InvocationClosed:  # noqa: A002
    """Return what to raise when a block writes although its call was made before."""
    return InvocationClosed(
        f"Invocation {id!r} was made before and is {status}: it must not write again.",
        hint="Look at created first: if it is False, use result and leave the block.",
        detail={"invocation": id, "status": status},
    )


def commit_unknown(id: str) -> CommitUnknown:  # noqa: A002
    """Return what to raise when nobody knows whether a call was committed."""
    return CommitUnknown(
        f"The connection was lost while invocation {id!r} committed, and its record cannot be read:"
        " it may or may not have been made.",
        invocation=id,
        hint="Look at its status later. The same call under the same id is not made twice.",
    )


def elsewhere(conn: psycopg.BaseConnection[Any]) -> str:
    """Return a note for when a record is not where the data is."""
    where = f'database "{conn.info.dbname}" on {conn.info.host or "a local socket"}'
    return f"the data goes to {where}; do records go there too?"
