"""The demo's server: alone in its environment, and gone when the demo is over, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from pyagentundo._binaries import find_binaries, major_version
from pyagentundo._signals import ENDINGS, handling
from pyagentundo._sql import MIN_SERVER
from pyagentundo.embedded import EmbeddedServer, stop_kept
from pyagentundo.errors import AgentUndoError

#: Variables that say which database to use, or how to talk to one.
_ADDRESSES = ("AGENTUNDO_DATABASE_URL", "DATABASE_URL")
_OLDEST = MIN_SERVER // 10_000

stop = stop_kept


@contextmanager
def serving() -> Iterator[EmbeddedServer]:
    """Run a server for the length of a block, which may decide to keep it.

    Inside it no variable of the environment leads to another database, or changes how ours is used.

    Raises:
        AgentUndoError: there is no PostgreSQL that would do, or it does not start.

    """
    with _own_environment(), _ended_orderly():
        bindir = find_binaries()
        major = major_version(bindir)
        if major is None or major < _OLDEST:
            found = f"is PostgreSQL {major}" if major else "does not run"
            raise AgentUndoError(
                f"What is in {bindir} {found}; the demo needs PostgreSQL {_OLDEST} or later.",
                hint='Run: pip install "pyagentundo[demo]"',
            )
        server = EmbeddedServer(bindir=bindir)
        try:
            server.start()
            yield server
        finally:
            with _undisturbed():
                server.stop()


@contextmanager
def _own_environment() -> Iterator[None]:
    ours = [name for name in os.environ if name.startswith("PG") or name in _ADDRESSES]
    former = {name: os.environ.pop(name) for name in ours}
    try:
        yield
    finally:
        for name in _ADDRESSES:
            os.environ.pop(name, None)
        os.environ.update(former)


@contextmanager
def _ended_orderly() -> Iterator[None]:
    """Let signals that would end the process at once end the block first."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    with handling(leave, *ENDINGS):
        yield


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold off Ctrl-C, which impatient people press again, and what else would end the process."""
    with handling(signal.SIG_IGN, "SIGINT", *ENDINGS):
        yield
