# Made by .ci/make_sync.py of pyagentundo/_aio/base.py: change that one, not this.
"""Where connections come from, and who commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

import psycopg

from pyagentundo import _states, errors, installer
from pyagentundo._arguments import optional, required
from pyagentundo._concurrency import sleep
from pyagentundo._sync.pool import Pool
from pyagentundo._sync.units import CommitLost, Connection, Unit, fetch

T = TypeVar("T")


class ConnectionPool(Protocol):
    """What we need of a pool: psycopg_pool's have it."""

    def connection(self) -> Any:
        """Return a context manager that lends a connection."""


class Base:
    """What all parts of the API share.

    Args:
        source: where the database is: a DSN or URL, a connection, or a pool of psycopg_pool.
            By default AGENTUNDO_DATABASE_URL, DATABASE_URL, or libpq's own variables.
        dsn: for records, when `source` is a connection; a pool's own is known.
        record: ``own`` commits records on connections of our own, before the data; ``inline``
            writes them in the data's transaction, for test suites that roll back.
        pool_size: how many connections of our own for records, and as many for everything else.
        timeout: seconds to wait for one of them.

    Raises:
        UsageError: the source is none of these, a DSN is empty, or a limit is none.

    """

    def __init__(
        self,
        source: str | Connection | ConnectionPool | None = None,
        *,
        dsn: str | None = None,
        record: Literal["own", "inline"] = "own",
        pool_size: int = 4,
        timeout: float = 30,
    ) -> None:
        if record not in ("own", "inline"):
            raise errors.UsageError(
                f"record is {record!r}, neither 'own' nor 'inline'.", hint="Leave it out: 'own'."
            )
        required(pool_size=pool_size, timeout=timeout)
        _check_dsn(source if isinstance(source, str) else None)
        _check_dsn(dsn)
        self._inline = record == "inline"
        self._bare: Connection | None = None
        self._pool: ConnectionPool | None = None
        address: Any = dsn
        options: Any = None
        if source is None or isinstance(source, str):
            address = dsn if source is None else source
        elif isinstance(source, psycopg.Connection):
            self._bare = source
        elif isinstance(source, psycopg.BaseConnection) or not hasattr(source, "connection"):
            raise _states.unfit(source, psycopg.Connection)
        else:
            self._pool = source
            if dsn is None:
                address = getattr(source, "conninfo", None)
                options = getattr(source, "kwargs", None)
        self._addressed = self._bare is None or dsn is not None
        limits: dict[str, Any] = {"size": pool_size, "timeout": timeout}
        self._records = Pool(address, options, what="records", **limits)
        self._calls = Pool(address, options, what="plans and reverts", **limits)
        self._verified: set[str] = set()

    def close(self) -> None:
        """Close the connections of our own; a source that was given stays open."""
        self._records.close()
        self._calls.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _lend(self, conn: Connection | None) -> Iterator[Connection]:
        """Give the caller's connection, else one of the source's."""
        if conn is not None and not isinstance(conn, psycopg.Connection):
            raise _states.unfit(conn, psycopg.Connection)
        chosen = conn or self._bare
        if chosen is not None:
            _states.require_usable(chosen)
            self._verify(chosen)
            yield chosen
        elif self._pool is not None:
            manager = self._pool.connection()
            if not hasattr(manager, "__enter__"):
                raise _states.unfit(self._pool, psycopg.Connection)
            with manager as lent:
                if not isinstance(lent, psycopg.Connection):
                    raise _states.unfit(self._pool, psycopg.Connection)
                _states.require_usable(lent)
                self._verify(lent)
                yield lent
        else:
            with self._calls.connection() as lent:
                self._verify(lent)
                yield lent

    def _verify(self, conn: Connection, kind: str = "data") -> None:
        """Make sure, once, that the database has a schema that we can work with."""
        if kind in self._verified:
            return
        found = None
        # In a block: a query alone would leave a transaction open that nobody knows of.
        with conn.transaction():
            (has_tables, has_functions), *_ = fetch(conn, installer.PRESENT)
            if has_tables:
                query = installer.FOUND if has_functions else installer.FOUND_TABLES
                row, *_ = fetch(conn, query)
                found = installer.Installed(*row)
        installer.accept(found, dbname=conn.info.dbname)
        self._verified.add(kind)

    def _run(
        self,
        conn: Connection | None,
        work: Callable[[Connection], T],
        *,
        writes: str | None = None,
    ) -> T:
        """Run a whole call, in a transaction of its own or in a savepoint of the caller's.

        Args:
            conn: the caller's connection, if there is one.
            work: what to do; again after a serialization failure in a transaction of our own.
            writes: the id concerned, when it matters whether it was committed.

        """
        for pause in _states.pauses():
            with self._lend(conn) as lent:
                unit = Unit(lent)
                former = lent.isolation_level
                if lent is not conn and lent is not self._bare and not unit.joined:
                    lent.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
                try:
                    return self._attempt(unit, work, writes)
                except _states.RETRIED:
                    if unit.joined or pause is None:
                        raise
                finally:
                    if lent.isolation_level != former and not lent.closed:
                        lent.set_isolation_level(former)
            sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(self, unit: Unit, work: Callable[[Connection], T], writes: str | None) -> T:
        unit.begin()
        try:
            answer = work(unit.conn)
            unit.commit()
        except CommitLost as lost:
            if writes is None:
                return answer
            raise errors.CommitUnknown(
                f"The connection was lost while it committed, and {writes!r} may or may not have"
                " been taken back.",
                invocation=writes,
                hint="Call it again: what has been done is not done twice.",
            ) from lost.__cause__
        except BaseException as error:
            unit.rollback(error)
            raise
        return answer


def _check_dsn(dsn: str | None) -> None:
    optional(dsn=dsn)
    if dsn is not None and not dsn.strip():
        # Often a variable that is not set: the environment's database would be another one.
        raise errors.UsageError(
            "The DSN is empty.",
            hint="Name a database, or leave it out to use AGENTUNDO_DATABASE_URL, DATABASE_URL or"
            " libpq's variables.",
        )
