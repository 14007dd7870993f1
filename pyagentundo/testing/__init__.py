"""For test suites: that an undo puts back all that an action of an agent has written.

A plugin of pytest; a suite names it in its topmost ``conftest.py``::

    pytest_plugins = ["pyagentundo.testing"]

and gets the fixtures `agentundo_db` (the database, to be overridden) and `assert_reversible`. The
functions here do the same without fixtures. Needs pytest and psycopg, nothing else.

PYTEST_DONT_REWRITE: there are no assertions in here, and importing this before pytest does is fine.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol, overload

import psycopg
import pytest

from pyagentundo import dsn as dsns
from pyagentundo import installer
from pyagentundo.errors import UsageError
from pyagentundo.testing import _running
from pyagentundo.testing._messages import NotReversible
from pyagentundo.testing._running import Action, Database, Options, Reversal, Via

__all__ = ["AssertReversible", "NotReversible", "Reversal", "assert_reversible", "install"]


def install(db: Database) -> None:
    """Install agentundo in a database of tests, unless it is there.

    For migrations that call ``agentundo.track`` themselves. Uses a connection of its own, committed
    at once.

    Args:
        db: the database: a connection of psycopg, of either kind, or a DSN or URL.

    Raises:
        InstallError: the role lacks rights.
        DsnError: nobody answers.
        UsageError: `db` is something else.

    """
    if isinstance(db, psycopg.BaseConnection):
        address = _running.address(db)
    elif isinstance(db, str):
        address = db
    else:
        raise _running.unfit(db)
    with dsns.connect(address) as conn:
        installer.install(conn)


@overload
def assert_reversible(
    db: psycopg.AsyncConnection[Any],
    action: Action,
    *,
    via: Via = ...,
    redo: bool = ...,
    track: str | Iterable[str] = ...,
    ignore: str | Iterable[str] = ...,
    allow_effects: bool = ...,
) -> Awaitable[Reversal]: ...
@overload
def assert_reversible(
    db: str,
    action: Callable[[Any], Awaitable[Any]],
    *,
    via: Via = ...,
    redo: bool = ...,
    track: str | Iterable[str] = ...,
    ignore: str | Iterable[str] = ...,
    allow_effects: bool = ...,
) -> Awaitable[Reversal]: ...
@overload
def assert_reversible(
    db: str | psycopg.Connection[Any],
    action: Action,
    *,
    via: Via = ...,
    redo: bool = ...,
    track: str | Iterable[str] = ...,
    ignore: str | Iterable[str] = ...,
    allow_effects: bool = ...,
) -> Reversal: ...
def assert_reversible(
    db: Database,
    action: Action,
    *,
    via: Via = "connection",
    redo: bool = False,
    track: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    allow_effects: bool = False,
) -> Reversal | Awaitable[Reversal]:
    """Run an action under a tag, take back all that it wrote, and fail unless all is as it was.

    Compared are, bit for bit, the rows of all tables of the database, tracked or not, large
    objects, and how tables, columns, constraints, indexes, policies and triggers are defined and
    whether they are switched on. Sequences are not: no undo rewinds them. Nobody else may write
    meanwhile.

    Calls that the action makes itself, with `AgentUndo` or `agentundo.tag`, are taken back too: all
    that was captured is undone as one unit.

    Args:
        db: the database. On a connection in an open transaction all is done in savepoints, and
            nothing is committed; else the action's transaction is committed, and so is the undo.
            The role has to be allowed to undo, and to read every table.
        action: SQL, one statement or several; or a function, which is given the tagged connection,
            with a transaction open that it must not end; or with ``via="dsn"`` the URL of the
            database, whose sessions are tagged, to connect by itself.
        via: ``connection`` or ``dsn``, see there.
        redo: also redo, which must give what the action had left, and undo again.
        track: names of schemas to track first; installs agentundo where it is not.
        ignore: tables whose rows need not go back, as SQL names them.
        allow_effects: let pass that something left the database for which nothing makes up.

    Returns:
        What was done; to be awaited if the action is async or the connection is for tasks.

    Raises:
        NotReversible: something is not as it was; the message says what. An AssertionError.
        UsageError: the action wrote nothing, took something back, or ended its transaction; or the
            connection cannot be used.
        NotInstalled: the database has no agentundo, and nothing is to be tracked.
        AgentUndoError: the role may not undo, or what else an undo raises.

    What the action raises is passed on, its transaction rolled back.

    """
    __tracebackhide__ = True
    if via not in ("connection", "dsn"):
        raise UsageError(
            f"via is {via!r}, neither 'connection' nor 'dsn'.", hint="Leave it out: 'connection'."
        )
    names = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    options = Options(via, redo, _schemas(track), names, allow_effects)
    if isinstance(db, psycopg.AsyncConnection) or _is_async(action):
        return _running.run_async(db, action, options)
    return _running.run(db, action, options)


class AssertReversible(Protocol):
    """What the fixture `assert_reversible` is: the function of this name, of `agentundo_db`."""

    @overload
    def __call__(
        self,
        action: Callable[[Any], Awaitable[Any]],
        *,
        via: Via = ...,
        redo: bool = ...,
        track: str | Iterable[str] = ...,
        ignore: str | Iterable[str] = ...,
        allow_effects: bool = ...,
    ) -> Awaitable[Reversal]: ...
    @overload
    def __call__(
        self,
        action: Action,
        *,
        via: Via = ...,
        redo: bool = ...,
        track: str | Iterable[str] = ...,
        ignore: str | Iterable[str] = ...,
        allow_effects: bool = ...,
    ) -> Any: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what can be set for a whole suite."""
    parser.addini(
        "agentundo_track",
        "schemas that assert_reversible tracks first, installing agentundo where it is missing",
        type="args",
        default=[],
    )


@pytest.fixture
def agentundo_db(request: pytest.FixtureRequest) -> Any:
    """Return the database of the test: here the fixture ``postgresql`` of pytest-postgresql.

    Override it in ``conftest.py`` for another one. It may be a connection of psycopg, of either
    kind, or a DSN. No environment variable is looked at: it might name what is no test's.
    """
    try:
        return request.getfixturevalue("postgresql")
    except pytest.FixtureLookupError:
        raise UsageError(
            "There is no database to test on: nothing overrides the fixture agentundo_db, and there"
            " is no fixture postgresql.",
            hint="In conftest.py write a fixture agentundo_db that returns a connection or a DSN.",
        ) from None


@pytest.fixture(name="assert_reversible")
def _assert_reversible(
    request: pytest.FixtureRequest, agentundo_db: Any
) -> Iterator[AssertReversible]:
    """Return `assert_reversible` for the database of the test, and tell what moved beside it."""
    pending: list[Any] = []
    tell = request.node.add_report_section

    def report(done: Reversal) -> Reversal:
        if done.sequences:
            tell("call", "sequences, which are not rewound", "\n".join(done.sequences))
        return done

    async def finish(running: Awaitable[Reversal]) -> Reversal:
        __tracebackhide__ = True
        return report(await running)

    def check(action: Action, **options: Any) -> Any:
        __tracebackhide__ = True
        if not options.get("track"):
            options["track"] = request.config.getini("agentundo_track")
        done: Any = assert_reversible(agentundo_db, action, **options)
        if isinstance(done, Reversal):
            return report(done)
        pending.append((finish(done), done))
        return pending[-1][0]

    yield check
    forgotten = [both for both in pending if inspect.getcoroutinestate(both[0]) == "CORO_CREATED"]
    for both in forgotten:
        for one in both:
            one.close()
    if forgotten:
        pytest.fail("assert_reversible(...) was not awaited, so nothing was tested", pytrace=False)


def _is_async(action: Any) -> bool:
    return inspect.iscoroutinefunction(action) or (
        not inspect.isfunction(action)
        and inspect.iscoroutinefunction(getattr(action, "__call__", None))  # noqa: B004
    )


def _schemas(track: str | Iterable[str]) -> tuple[str, ...]:
    return (track,) if isinstance(track, str) else tuple(track)
