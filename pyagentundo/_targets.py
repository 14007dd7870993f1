"""What a plan or a revert is about, as its caller may name it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyagentundo._ambient import ActiveInvocation
from pyagentundo._json import check_text
from pyagentundo.errors import InvocationNotFound, UsageError
from pyagentundo.results import Invocation
from pyagentundo.selection import Selection, check_number

_Call = str | Invocation | ActiveInvocation[Any]
Target = _Call | Selection | Iterable[_Call]


def ids(what: Any) -> list[str]:
    """Return the ids that were named.

    Raises:
        UsageError: there is none among them, or something else.

    """
    if isinstance(what, str | Invocation | ActiveInvocation):
        what = [what]
    if not isinstance(what, Iterable):
        raise UsageError(
            f"Something of type {type(what).__qualname__} names no invocation.",
            hint="Give an id, several ids, or a Selection(run=..., actor=...).",
        )
    found = [
        one.id if isinstance(one, Invocation | ActiveInvocation) else check_text(one, "id")
        for one in what
    ]
    if not found:
        raise UsageError("No invocation was named.", hint="undoable() lists what can be undone.")
    return found


def require_some(found: list[str]) -> list[str]:
    """Return what a selection found.

    Raises:
        InvocationNotFound: nothing.

    """
    if not found:
        raise InvocationNotFound(
            "No invocation matches the selection.", hint="log() with the same one shows what does."
        )
    return found


def name(what: Any) -> str:
    """Return one id for messages."""
    return repr(what) if isinstance(what, Selection) else ids(what)[0]


def step(number: Any) -> int:
    """Return a step to begin from.

    Raises:
        UsageError: it is no whole number from 1.

    """
    return check_number("from_step", number)
