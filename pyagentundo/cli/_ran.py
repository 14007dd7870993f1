"""What a program that ``exec`` has run left behind, and how it can be taken back."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pyagentundo.cli import _queries
from pyagentundo.cli._connection import Connection, connect
from pyagentundo.cli._options import chosen_dsn
from pyagentundo.cli._screen import Screen, printable
from pyagentundo.cli._standing import Standing
from pyagentundo.cli._tables import count

#: How many other ids are listed.
_MOST = 5


@dataclass(frozen=True)
class Mark:
    """Where history stood before the program began.

    Attributes:
        at: the server's time.
        change: the newest change; None for a role that may not read them.

    """

    at: datetime
    change: int | None

    @classmethod
    def of(cls, conn: Connection) -> Mark:
        """Look where history stands now."""
        now = conn.execute("select clock_timestamp() as at").fetchall()[0]["at"]
        newest = _queries.newest_change(conn) if _queries.readable(conn, "changes") else None
        return cls(now, newest)


@dataclass(frozen=True)
class Ran:
    """A program that has ended.

    Attributes:
        ended: in words, with what code.
        invocation: under which id it was to write.
        on_behalf_of: the person named for it.
        scope: the tenant, campaign or project named for it.
        before: where history stood.

    """

    ended: str
    invocation: str
    on_behalf_of: str | None
    scope: str | None
    before: Mark


def report(ran: Ran) -> None:
    """Say on stderr what was captured, and how to take it back.

    The program has run and perhaps written. Nothing that goes wrong here is a failure of its own:
    whoever took it for one would run it again. So this raises nothing.
    """
    try:
        lines = list(_lines(ran))
    except (Exception, KeyboardInterrupt) as error:
        why = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        lines = [*_untold(ran, f"what of it was captured could not be looked up: {why}")]
    screen = Screen.of(err=True)
    with contextlib.suppress(KeyboardInterrupt):
        for line in lines:
            screen.line(printable(line), hang=2)


def _untold(ran: Ran, why: str) -> Iterator[str]:
    yield f"{ran.ended}. What it wrote is tagged {ran.invocation}; {why}"
    yield f"ask an operator to take it back: agentundo revert {ran.invocation}"


def _lines(ran: Ran) -> Iterator[str]:
    with connect(chosen_dsn()) as conn:
        me = Standing.of(conn)
        if me.is_agent:
            yield from _untold(ran, f"{me.role} is an agent's role and may not look")
            return
        found = _queries.told_of(conn, [ran.invocation], ran.scope)
        changes = []
        if ran.before.change is not None:
            changes = _queries.changes(conn, ran.invocation)
            others = _queries.written_since(conn, ran.before.change, ran.invocation)
        else:
            others = _queries.undoable_since(conn, ran.before.at, ran.invocation, ran.scope)
    if found:
        rows = count(found[0]["rows"], "row")
        yield f"{ran.ended}. Captured under {ran.invocation}: {rows}"
        for one in changes:
            yield f"  {one['operation']} {one['relation']}: {count(one['rows'], 'row')}"
        yield from _way_back(ran, me)
    else:
        yield f"{ran.ended}. Nothing was captured under {ran.invocation}."
    if others:
        # Nothing ties them to the program but role and time.
        whose = "in this scope" if ran.before.change is None else f"by {me.role}"
        yield f"Written meanwhile {whose}, under other ids:"
        for one in others[:_MOST]:
            yield f"  {one['id'] or 'no tag'}: {count(one['rows'], 'row')}"
        if len(others) > _MOST:
            yield f"  … and {count(len(others) - _MOST, 'more id')}"
        if not found:
            yield "A program that tags itself is captured under its own ids: agentundo revert ID"
    elif not found:
        yield (
            "  It wrote to no tracked table, or changed only tables themselves (CREATE, ALTER,"
            " DROP), which is not captured; or its driver does not read PGOPTIONS, or a pooler is"
            " in between."
        )


def _way_back(ran: Ran, me: Standing) -> Iterator[str]:
    """Yield a command that this very role may run, or else who may."""
    command = f"agentundo revert {ran.invocation}"
    if me.is_operator:
        yield f"take it back: {command}"
    elif not me.is_app or not (ran.on_behalf_of or ran.scope):
        yield f"ask an operator to take it back: {command}"
    else:
        command += f" --scope {shlex.quote(ran.scope)}" if ran.scope else ""
        if ran.on_behalf_of:
            yield f"take it back: {command} --by {shlex.quote(ran.on_behalf_of)}"
        else:
            yield f"an owner of the scope takes it back: {command} --by PERSON"
