"""DDL that gives way: short lock waits, then another try.

A statement that queues for a table lock stops every writer that comes after it, so ours waits no
longer than a few seconds, steps out of the queue, and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg import errors as pg

from pyagentundo.errors import LockTimeout

T = TypeVar("T")

#: What PostgreSQL says where two sessions change the same object at once.
_RACE_IN_CATALOG = "tuple concurrently updated"

#: How often a transaction is tried before we give up.
ATTEMPTS = 5


def with_retries(
    work: Callable[[], T],
    *,
    note: Callable[[str], None] = lambda _: None,
    attempts: int = ATTEMPTS,
    pause: float = 0.5,
) -> T:
    """Run a whole transaction, again after a lock timeout, a deadlock or a race in the catalog.

    Args:
        work: does everything and commits, or raises with nothing done.
        note: is told about each failed try.
        attempts: tries in all.
        pause: seconds before the second try, doubled for each further one.

    Raises:
        LockTimeout: a lock could not be had in any of the attempts; nothing was changed.

    """
    for attempt in range(1, attempts + 1):
        try:
            return work()
        except (pg.LockNotAvailable, pg.DeadlockDetected, pg.InternalError_) as error:
            reason = _first_line(error)
            if isinstance(error, pg.InternalError_) and reason != _RACE_IN_CATALOG:
                raise
            if attempt == attempts:
                raise LockTimeout(
                    f"Gave up after {attempts} attempts: {reason}. Nothing was changed.",
                    hint="Something holds a lock for long; pg_stat_activity and pg_locks show who.",
                ) from error
            note(f"{reason}; trying again ({attempt + 1} of {attempts})")
            time.sleep(pause * 2 ** (attempt - 1))
    raise AssertionError("unreachable: attempts is at least 1")


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)
