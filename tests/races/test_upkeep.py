"""Tables and tracking are changed while people, agents and undos are at work."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.races.actors import Undoer, Writer, make_tables
from tests.races.conftest import NewRace
from tests.races.migrations import Keeper, Leaver, Migrator
from tests.races.oracle import DEALS, Judge
from tests.races.scheduler import Actor

CHANGERS: dict[str, type[Actor]] = {"ddl": Migrator, "keep": Keeper}


@pytest.mark.parametrize("kind", CHANGERS)
def test_what_is_written_meanwhile_is_captured_once_and_goes_back(
    db: Connection, race: NewRace, seed: str, times: int, kind: str
) -> None:
    make_tables(db)
    judge, crowd = Judge(db, [DEALS]), race()
    writers = [
        Writer("person-1", seed, agent=False, fields=("deals",)),
        Writer("agent-1", seed, agent=True, fields=("deals",)),
        Writer("agent-2", seed, agent=True, fields=("deals",)),
    ]
    undoers = [Undoer(f"undoer-{n}", seed, plans=False) for n in (1, 2)]
    crowd.run([*writers, *undoers, CHANGERS[kind](kind, seed)], steps=6 * times)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    # Whoever alters a table waits for a lock no longer than a moment.
    judge.accept(crowd, allowed=[("ddl", "55P03"), ("keep", "55P03")])


def test_what_is_written_while_nothing_is_tracked_is_no_riddle(
    db: Connection, race: NewRace, seed: str, times: int
) -> None:
    """It is not captured, so it cannot go back, and no undo takes it for its own."""
    make_tables(db)
    judge, crowd = Judge(db, [DEALS], gaps="everybody"), race()
    writers = [Writer(f"agent-{n}", seed, agent=True, fields=("deals",)) for n in (1, 2)]
    writers.append(Writer("person-1", seed, agent=False, fields=("deals",)))
    undoers = [Undoer(f"undoer-{n}", seed, plans=False) for n in (1, 2)]
    crowd.run([*writers, *undoers, Leaver("leaver", seed)], steps=6 * times)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    db.execute("select agentundo.track('deals', 'all')")
    # Of what was written while nothing was tracked nobody knows.
    judge.accept(crowd, allowed=[("keep", "55P03"), ("undo", "UN002")])
