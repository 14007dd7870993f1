"""Several sessions at once, in an order that the test decides.

A test never sleeps for a guessed time: it starts a statement that will have to wait in a thread of
its own, and goes on once the server says that the one session is blocked by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any, ParamSpec, TypeVar

import psycopg
from psycopg.rows import scalar_row

from tests.support.undo import Connection
from tests.support.waiting import wait_until

P = ParamSpec("P")
T = TypeVar("T")

#: Nothing may hang, but the machine may be slow.
PATIENT = "-c statement_timeout=30s -c idle_in_transaction_session_timeout=60s"


class Session:
    """A connection with a thread of its own.

    Args:
        conn: in autocommit mode; nobody else uses it while something runs `later`.
        observer: another connection, to look at this one while it waits.

    """

    def __init__(self, conn: Connection, observer: Connection) -> None:
        self.conn = conn
        self.pid = conn.info.backend_pid
        self._observer = observer
        self._thread = ThreadPoolExecutor(max_workers=1)

    def run(self, *statements: str) -> None:
        """Execute statements one after the other, here and now."""
        for statement in statements:
            self.conn.execute(statement.encode())

    def later(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a function that uses this connection, in this session's thread."""
        return self._thread.submit(function, *args, **kwargs)

    def run_later(self, *statements: str) -> Future[None]:
        """Start statements in this session's thread."""
        return self.later(self.run, *statements)

    def wait_until_blocked(self, running: Future[Any], *, by: Session | None = None) -> None:
        """Return once this session waits for a lock of another one, of `by` if given.

        Raises:
            Exception: what `running` raised instead of waiting.

        """

        def blocked() -> bool:
            if running.done():
                raise AssertionError(f"ended instead of waiting: {running.result()!r}")
            return by.pid in self._blockers() if by else self._blockers() != []

        wait_until(blocked, what="one session to wait for another")

    def _blockers(self) -> list[int]:
        with self._observer.cursor(row_factory=scalar_row) as cursor:
            found = cursor.execute("select pg_blocking_pids(%s)", [self.pid]).fetchone()
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        """Stop what still runs, close the connection, end the thread."""
        if self._blockers():
            self._observer.execute("select pg_terminate_backend(%s)", [self.pid])
        self.end()

    def end(self) -> None:
        """Close the connection and end the thread, which has nothing to do any more."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.conn.close()


def outcome(running: Future[T]) -> T:
    """Return what a session's function returned, or raise what it raised."""
    return running.result(timeout=60)


def failure(running: Future[Any]) -> psycopg.Error:
    """Return the error with which a session's function ended."""
    error = running.exception(timeout=60)
    assert isinstance(error, psycopg.Error), f"{error!r} instead of an error of the database"
    return error


def all_at_once(sessions: Sequence[Session], *functions: Callable[[Connection], T]) -> list[T]:
    """Let each session call its function with its connection, all from the same moment on.

    Raises:
        Exception: the first that any of them raised, when all have ended.

    """
    assert len(sessions) == len(functions)
    barrier = Barrier(len(sessions), timeout=30)

    def call(conn: Connection, function: Callable[[Connection], T]) -> T:
        barrier.wait()
        return function(conn)

    running = [
        session.later(call, session.conn, function)
        for session, function in zip(sessions, functions, strict=True)
    ]
    for one in running:
        one.exception(timeout=60)
    return [one.result() for one in running]
