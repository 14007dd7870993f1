"""Options and fixtures of the races."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Connect, Connection
from tests.races.scheduler import WAITING, Race

NewRace = Callable[..., Race]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyagentundo")
    group.addoption(
        "--collisions", type=int, metavar="N", help="let races go on until N collisions with undos"
    )
    group.addoption("--seed", default="1", help="of the races")


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to an empty database with agentundo."""
    return connect(options=WAITING)


@pytest.fixture
def race(connect: Connect) -> NewRace:
    """Return what makes a race on the test's database."""

    def make(**options: object) -> Race:
        return Race(lambda: connect(options=WAITING), **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """Return the seed of this run."""
    return str(request.config.getoption("--seed"))


@pytest.fixture
def collisions(request: pytest.FixtureRequest) -> int | None:
    """Return how many collisions are wanted; None: as many as come."""
    wanted = request.config.getoption("--collisions")
    return int(wanted) if wanted else None


@pytest.fixture
def times(collisions: int | None) -> int:
    """Return by how much longer races last in the long form."""
    return 10 if collisions else 1
