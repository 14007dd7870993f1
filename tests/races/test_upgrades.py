"""agentundo is upgraded while people, agents and undos are at work."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.races.actors import Undoer, Writer, make_tables
from tests.races.conftest import NewRace
from tests.races.migrations import Upgrader
from tests.races.oracle import DEALS, Judge
from tests.races.scheduler import Actor

CHANGERS: dict[str, type[Actor]] = {"upgrade": Upgrader}


@pytest.mark.parametrize("kind", CHANGERS)
def test_what_is_written_meanwhile_is_captured_once_and_goes_back(
    db: Connection, race: NewRace, seed: str, kind: str
) -> None:
    make_tables(db)
    judge, crowd = Judge(db, [DEALS]), race()
    writers = [
        Writer("person-1", seed, agent=False, fields=("deals",)),
        Writer("agent-1", seed, agent=True, fields=("deals",)),
        Writer("agent-2", seed, agent=True, fields=("deals",)),
    ]
    undoers = [Undoer(f"undoer-{n}", seed, plans=False) for n in (1, 2)]
    crowd.run([*writers, *undoers, CHANGERS[kind](kind, seed)], steps=6)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    # Whoever alters a table waits for a lock no longer than a moment.
    judge.accept(crowd, allowed=[("ddl", "55P03"), ("keep", "55P03")])
