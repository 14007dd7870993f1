"""What a plan, a revert or a history is about, as its caller may name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg

from pyagentundo import _json
from pyagentundo._ambient import ActiveInvocation
from pyagentundo._arguments import required
from pyagentundo.errors import InvocationNotFound, NotTrackable, UsageError
from pyagentundo.results import Invocation
from pyagentundo.selection import Selection

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
        one.id if isinstance(one, Invocation | ActiveInvocation) else _json.check_text(one, "id")
        for one in what
    ]
    if not found:
        raise UsageError("No invocation was named.", hint="undoable() lists what can be undone.")
    return found


def require_filter(what: Selection) -> None:
    """Refuse a selection without any filter: everybody's calls are read like that, not undone.

    Raises:
        UsageError: nothing was chosen, perhaps because a variable is None.

    """
    if not what.given():
        raise UsageError(
            "The Selection has no filter, so it would mean every call of the database.",
            hint="Give one that is not None: run=..., actor=..., since=...; or the ids.",
        )


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


def row(relation: Any, key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that name a row.

    Raises:
        UsageError: they cannot be meant.

    """
    return {**required(relation=relation), "key": _json.dumps(key, what="key")}


@contextmanager
def explained(relation: str) -> Iterator[None]:
    """Say of a table that there is none of this name, or of a key that it is none.

    The server reads them: only it knows what they may be.

    Raises:
        NotTrackable: there is no such table.
        UsageError: a value is none of its column's type.

    """
    try:
        yield
    except NotTrackable as error:
        if error.detail.get("relation") is not None:
            raise
        raise _missing(relation) from error.__cause__
    except (pg.InvalidName, pg.SyntaxError, pg.FeatureNotSupported) as error:
        if error.diag.statement_position is not None:
            raise  # of our statement, and not of the name in it
        raise _missing(relation) from error
    except psycopg.DataError as error:
        raise UsageError(
            f"This is no key of {relation}: {error.diag.message_primary or error}.",
            hint="Give each key column a value of its type.",
        ) from error


def _missing(relation: str) -> NotTrackable:
    return NotTrackable(
        f"There is no table {relation!r}.",
        hint="Name it as SQL writes it, with its schema: crm.deals.",
    )
