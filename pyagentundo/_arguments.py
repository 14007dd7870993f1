"""What methods are given, checked in one place: psycopg would send anything, of whatever type.

A value of another type would choose another function in the database, or none, and the answer would
speak of that. So each argument has a kind, which its name tells; nearly all are texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyagentundo._json import check_text
from pyagentundo.errors import UsageError


def check_number(value: Any, what: str, *, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return a whole number that fits an ``integer`` of the server.

    Raises:
        UsageError: it is none, is less than `least`, or too large.

    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(
            f"{what} is {value!r}, not a whole number from {least} to {most}.",
            hint=f"Give {what} as an int, or leave it out.",
        )
    return value


def _check_place(value: Any, what: str) -> int:
    """Return the number of an event, or 0: a ``bigint``."""
    return check_number(value, what, least=0, most=2**63 - 1)


def _check_truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(
            f"{what} is {value!r}, neither True nor False.", hint=f"Give {what} as a bool."
        )
    return value


def _check_time(value: Any, what: str) -> datetime:
    """Return a point in time: without a zone the server would take it for one in its own."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(
            f"{what} is {value!r}, not a time with a time zone.",
            hint="Give for example datetime.now(UTC) - timedelta(hours=2).",
        )
    return value


def _check_seconds(value: Any, what: str) -> float:
    """Return a length of time for which threads can wait; NaN is none."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not 0 <= value <= threading.TIMEOUT_MAX:
        raise UsageError(
            f"{what} is {value!r}, no number of seconds from 0 on.",
            hint=f"Give {what} as a number, or leave it out.",
        )
    return float(value)


#: The kinds of arguments that are no texts.
_KINDS: dict[str, Callable[[Any, str], Any]] = {
    "after": _check_place,
    "again": _check_truth,
    "from_step": check_number,
    "limit": check_number,
    "merge": _check_truth,
    "page_rows": check_number,
    "pool_size": check_number,
    "since": _check_time,
    "step": check_number,
    "timeout": _check_seconds,
    "undo_by": _check_time,
    "until": _check_time,
}


def required(**given: Any) -> dict[str, Any]:
    """Return arguments by name, each checked as what its name says; None is refused too.

    Raises:
        UsageError: one is of another kind, or cannot be stored.

    """
    for name, value in given.items():
        check: Callable[[Any, str], Any] = _KINDS.get(name, check_text)
        check(value, name)
    return given


def optional(**given: Any) -> dict[str, Any]:
    """Return arguments as `required` does, but let those pass that are None.

    Raises:
        UsageError: one is of another kind, or cannot be stored.

    """
    required(**{name: value for name, value in given.items() if value is not None})
    return given
