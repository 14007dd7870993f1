"""What is in force where the code runs: the invocation that is open, and what calls have in common.

Kept in context variables: each thread and each task sees its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyagentundo import _json
from pyagentundo.errors import UsageError

C = TypeVar("C")


@dataclass(slots=True)
class ActiveInvocation(Generic[C]):
    """The invocation of the block that is being run.

    Attributes:
        id: its id, to plan and revert with later.
        connection: the tagged connection.
        created: False when this very call was made before: then `result` is what it answered, and
            the block must not write again. The database refuses it.
        status: ``pending``, or that of the call made before; ``committed`` after a block that was a
            transaction of its own.
        result: set it to what is to be recorded as the answer.
        error: why the block is to be rolled back, see `fail`.

    """

    id: str
    connection: C
    created: bool = True
    status: str = "pending"
    result: Any = None
    error: str | None = field(default=None, init=False)
    #: Calls that ended well within the block: they go where its transaction goes.
    inside: list[str] = field(default_factory=list, init=False, repr=False)

    def fail(self, error: str | BaseException) -> None:
        """Let the block end without an exception, yet rolled back and marked as failed.

        Args:
            error: why; stored with the record.

        """
        self.error = describe(error)


def describe(error: str | BaseException) -> str:
    """Return an error as a text that can be stored."""
    if isinstance(error, BaseException):
        told = str(error)
        name = type(error).__name__
        error = f"{name}: {told}" if told else name
    return _json.storable(str(error)) or "(no reason given)"


#: What is open: who opened it, where it runs, and what it is; the innermost last.
_open: ContextVar[tuple[tuple[object, object, ActiveInvocation[Any]], ...]] = ContextVar(
    "_open", default=()
)
#: What calls have in common, by owner; the innermost last.
_common: ContextVar[tuple[tuple[object, dict[str, Any]], ...]] = ContextVar("_common", default=())


@contextmanager
def entered(owner: object, active: ActiveInvocation[Any]) -> Iterator[None]:
    """Make an invocation the current one."""
    # Set again, not reset: frameworks run the two halves of a block in different contexts.
    former = _open.get()
    _open.set((*former, (owner, _here(), active)))
    try:
        yield
    finally:
        _open.set(former)


def current(owner: object) -> Any:
    """Return the innermost invocation that is open here.

    Raises:
        UsageError: there is none.

    """
    for who, _, active in reversed(_open.get()):
        if who is owner:
            return active
    raise UsageError(
        "No invocation is open here.",
        hint="Call it inside a tool or an invocation block; a new thread has to be handed the"
        " connection.",
    )


def outer(owner: object, connection: object) -> Any:
    """Return the innermost block that is open here on a connection, None if there is none."""
    for who, _, active in reversed(_open.get()):
        if who is owner and active.connection is connection:
            return active
    return None


def shared(owner: object) -> Any:
    """Return the connection of the innermost invocation that this very thread or task opened.

    None where there is none. Tasks that a block starts inherit its context, but two of them on one
    connection would mix up their savepoints: each gets a connection of its own.
    """
    for who, where, active in reversed(_open.get()):
        if who is owner:
            return active.connection if where == _here() else None
    return None


def _here() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task and id(task)


@contextmanager
def sharing(owner: object, values: Mapping[str, Any]) -> Iterator[None]:
    """Let the calls made within the block have these in common, on top of what is in force."""
    former = _common.get()
    given = {name: value for name, value in values.items() if value is not None}
    _common.set((*former, (owner, given)))
    try:
        yield
    finally:
        _common.set(former)


def complete(owner: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given for a call, completed by what is in force.

    An id in force is for one call only and is used up by it.
    """
    known: dict[str, Any] = {}
    for who, values in _common.get():
        if who is owner:
            known |= values
    known |= {name: value for name, value in given.items() if value is not None}
    if given.get("id") is None and "id" in known:
        for who, values in _common.get():
            if who is owner:
                values.pop("id", None)
    return known
