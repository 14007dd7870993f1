"""People, agents and undos on the same few rows, all at once and each when it likes.

With `--collisions N` each race goes on until undos have met others, or each other, N times.
"""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.races.actors import Undoer, Writer, make_tables
from tests.races.conftest import NewRace
from tests.races.oracle import Judge

pytestmark = pytest.mark.core

LEVELS = ("read committed", "repeatable read", "serializable")


@pytest.mark.parametrize("noisy", [False, True], ids=["without triggers", "with a trigger"])
@pytest.mark.parametrize("levels", [LEVELS[:1], LEVELS], ids=["read committed", "all levels"])
def test_nothing_is_lost_doubled_or_deadlocked(
    db: Connection,
    race: NewRace,
    seed: str,
    collisions: int | None,
    noisy: bool,
    levels: tuple[str, ...],
) -> None:
    make_tables(db, noisy=noisy)
    judge, crowd = Judge(db), race(levels=levels)
    many = 4 if collisions else 2
    people = [Writer(f"person-{n}", seed, agent=False) for n in range(many)]
    agents = [Writer(f"agent-{n}", seed, agent=True) for n in range(many)]
    undoers = [Undoer(f"undoer-{n}", seed) for n in range(many)]
    crowd.run([*people, *agents, *undoers], steps=6, collisions=collisions)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    judge.accept(crowd)


def test_what_people_write_uncaptured_is_not_lost_either(
    db: Connection, race: NewRace, seed: str, collisions: int | None
) -> None:
    """Only agents are captured: whether a person has been there an undo sees by the row."""
    make_tables(db, capture="agent")
    judge, crowd = Judge(db, gaps="people"), race()
    people = [Writer(f"person-{n}", seed, agent=False) for n in (1, 2)]
    agents = [Writer(f"agent-{n}", seed, agent=True) for n in (1, 2)]
    undoers = [Undoer(f"undoer-{n}", seed) for n in (1, 2)]
    crowd.run([*people, *agents, *undoers], steps=6, collisions=collisions)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    judge.accept(crowd)
