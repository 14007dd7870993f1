"""Progress of a long statement: how long it has been going on, and for whom it waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import psycopg

from pyagentundo.cli._connection import Connection, connect
from pyagentundo.cli._failures import notice
from pyagentundo.cli._options import chosen_dsn
from pyagentundo.cli._screen import Screen, cut, pad, printable
from pyagentundo.cli._times import duration
from pyagentundo.errors import AgentUndoError

#: Nothing is said before this, in seconds: most undos are over by then.
_QUIET = 1.0
_EVERY = 0.5

_BLOCKERS = """\
select string_agg(format('%%s (pid %%s%%s)', b.usename, b.pid,
    case when b.application_name <> '' then ', ' || b.application_name else '' end), ', ') as who
from pg_stat_activity b where b.pid = any (pg_blocking_pids(%s))
"""


@contextmanager
def progress(conn: Connection, what: str, expected: float | None) -> Iterator[None]:
    """Tell on stderr how a statement of the block is getting on.

    A terminal gets one line that is written anew, anything else a note when somebody holds a lock
    that is waited for.

    Args:
        conn: on which the statement runs.
        what: what is going on, such as ``reverting``.
        expected: how long it should take, in seconds; None when nobody knows.

    """
    over = threading.Event()
    arguments = (over, conn.info.backend_pid, chosen_dsn(), what, expected)
    teller = threading.Thread(target=_tell, args=arguments)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(
    over: threading.Event, pid: int, dsn: str | None, what: str, expected: float | None
) -> None:
    began = time.monotonic()
    if over.wait(_QUIET):
        return
    screen = Screen.of(err=True)
    terminal = sys.stderr.isatty()
    told: set[str] = set()
    with _looking(dsn) as look:
        while not over.wait(_EVERY):
            waits_for = look(pid)
            if screen.width is None or not terminal:
                if waits_for and waits_for not in told:
                    told.add(waits_for)
                    notice(f"waiting for {waits_for}")
                continue
            line = f"{what}: {time.monotonic() - began:.0f} s"
            line += f" of {duration(expected)}" if expected else ""
            line += f", waiting for {printable(waits_for)}" if waits_for else ""
            # Written over with spaces: not every terminal knows how to clear a line.
            room = screen.width - 1
            click.echo(f"\r{pad(cut(line, room), room)}", err=True, nl=False)
            told.add(line)
    if screen.width is not None and terminal and told:
        click.echo(f"\r{' ' * (screen.width - 1)}\r", err=True, nl=False)


class _Look:
    """Finds out on a connection of its own for whom a backend waits."""

    def __init__(self, conn: Connection | None) -> None:
        self._conn = conn

    def __call__(self, pid: int) -> str | None:
        """Return who holds what the backend waits for; None when nobody does, or it is unknown."""
        if self._conn is None:
            return None
        try:
            row = self._conn.execute(_BLOCKERS.encode(), [pid]).fetchone()
        except psycopg.Error:
            return None
        return row["who"] if row else None


@contextmanager
def _looking(dsn: str | None) -> Iterator[_Look]:
    try:
        conn = connect(dsn)
    except (AgentUndoError, psycopg.Error):
        # One connection is all we get: then only the time is told.
        yield _Look(None)
        return
    with conn:
        yield _Look(conn)
