"""Servers, databases and connections for the tests.

By default one embedded server; ``--pg 14,15,16,17,18`` runs every test on each of these versions,
``--dsn`` on a server of your own, which needs a superuser and gets databases made and dropped.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import FrameType
from typing import Any, NoReturn, Protocol

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import matrix
from tests.support.servers import Server, start

_numbers = itertools.count(1)

Connection = psycopg.Connection[Any]
#: Creates a role with these attributes, a member of `member_of` if given; returns its name.
MakeRole = Callable[..., str]


class Connect(Protocol):
    """Makes one more connection to the test's database; closed after the test."""

    def __call__(self, *, user: str | None = None, **options: Any) -> Connection: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyagentundo")
    group.addoption("--pg", metavar="MAJORS", help="versions to test on, such as 14,15,16,17,18")
    group.addoption("--dsn", help="a server of one's own to test on, as superuser")
    group.addoption(
        "--few", type=int, metavar="N", help="of each test at most N sets of parameters a server"
    )
    group.addoption(
        "--share", action="store_true", help="each test on one of the servers, not on all"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """End orderly, servers included, when somebody ends us: else they would go on without us."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        session.shouldstop = "ended by a signal"  # where a test takes the exception for its own
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" not in metafunc.fixturenames:
        return
    majors = metafunc.config.getoption("--pg")
    wanted = [int(major) for major in majors.split(",")] if majors else [None]
    ids = [f"pg{major}" if major else "pg" for major in wanted]
    metafunc.parametrize("server", wanted, ids=ids, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out the tests for ``--few`` and ``--share``."""
    few, share = config.getoption("--few"), config.getoption("--share")
    groups: dict[tuple[str, object], list[pytest.Item]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        server = callspec.params.get("server") if callspec else None
        groups.setdefault((item.nodeid.partition("[")[0], server), []).append(item)
    majors = [int(major) for major in (config.getoption("--pg") or "").split(",") if major]
    kept: set[int] = set()
    for (name, server), group in groups.items():
        if share and server in majors and _turn(name, majors) != server:
            continue
        chosen = set(range(len(group)))
        cheap = "server" not in getattr(group[0], "fixturenames", ())
        if few and not cheap and not group[0].get_closest_marker("whole"):
            # From the whole range of its parameters.
            chosen = {i * len(group) // few for i in range(few)}
        kept |= {id(group[i]) for i in chosen}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def _turn(name: str, majors: list[int]) -> int:
    """Return the version whose turn it is to run a test; the same one every time."""
    return majors[zlib.crc32(name.encode()) % len(majors)]


@pytest.fixture(scope="session")
def _servers(request: pytest.FixtureRequest) -> Iterator[Callable[[int | None], Server]]:
    """Start each server once per process, whatever order the tests come in."""
    running: dict[int | None, Server] = {}
    own = request.config.getoption("--dsn")

    def get(major: int | None) -> Server:
        if major not in running:
            bindir = matrix.binaries(major) if major else None
            running[major] = Server(own) if own else start(bindir)
        return running[major]

    yield get
    for server in running.values():
        server.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, _servers: Callable[[int | None], Server]) -> Server:
    """Return the server of this test run, or of the test's version."""
    return _servers(request.param)


@pytest.fixture(scope="session")
def pg_major(server: Server) -> int:
    """Return the server's major version."""
    return server.major


@pytest.fixture
def own_server(server: Server) -> Iterator[Server]:
    """Start a server that only this test has, of the same version: for what spans databases."""
    if server.bindir is None:
        pytest.skip("needs a server of its own, not one given by --dsn")
    fresh = start(server.bindir)
    yield fresh
    fresh.close()


@pytest.fixture
def make_role(server: Server) -> Iterator[MakeRole]:
    """Return what creates a role, dropped after the test's database: roles span databases."""
    made: list[str] = []

    def make(attributes: str = "", *, member_of: str | None = None) -> str:
        name = f"t_role_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(f"create role {name} login {attributes}".encode())
            made.append(name)
            if member_of:
                conn.execute(f"grant {member_of} to {name}".encode())
        return name

    yield make
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for name in made:
            conn.execute(f"drop role {name}".encode())


@pytest.fixture
def dsn(server: Server, make_role: MakeRole) -> Iterator[str]:
    """Make a database with agentundo installed; return its superuser's DSN."""
    with server.database(installed=True) as janitor:
        yield server.dsn(janitor.dbname)


@pytest.fixture
def bare_dsn(server: Server, make_role: MakeRole) -> Iterator[str]:
    """Make an empty database; return its superuser's DSN."""
    with server.database(installed=False) as janitor:
        yield server.dsn(janitor.dbname)


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Return what makes connections to the test's database, in autocommit mode by default."""
    with ExitStack() as opened:

        def make(*, user: str | None = None, **options: Any) -> Connection:
            options.setdefault("autocommit", True)
            chosen = make_conninfo(dsn, user=user) if user else dsn
            return opened.enter_context(closing(psycopg.connect(chosen, **options)))

        yield make


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect as superuser to a database with agentundo installed, in autocommit mode."""
    return connect()
