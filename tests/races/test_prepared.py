"""Writes and undos that are prepared, and committed or rolled back later by somebody else."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.conftest import Connection
from tests.races.actors import Undoer, Writer, make_tables
from tests.races.conftest import NewRace
from tests.races.oracle import DEALS, Judge
from tests.races.scheduler import Actor, Deed

pytestmark = pytest.mark.core

#: Servers of the tests have ten places for prepared transactions.
_places = threading.BoundedSemaphore(8)


def end_in_two_steps(actor: Actor, deed: Deed, *, commit: bool) -> None:
    """Prepare the transaction, let others come, and end it on a connection of its own."""
    name = f"{actor.conn.info.dbname}:{actor.name}:{actor.number}"
    with _places, actor.race.connect() as other:
        actor.conn.execute(f"prepare transaction '{name}'".encode())
        actor.pause(0.02)
        deed.outcome = "unknown"
        ending = "commit" if commit else "rollback"
        other.execute(f"{ending} prepared '{name}'".encode())
        deed.outcome = "committed" if commit else "rolled back"


class PreparingWriter(Writer):
    def end(self, deed: Deed, *, commit: bool = True) -> None:
        end_in_two_steps(self, deed, commit=commit)


class PreparingUndoer(Undoer):
    def begin(self, deed: Deed) -> None:
        super().begin(deed)
        self.conn.execute("set local agentundo.notify = off")  # a NOTIFY cannot be prepared

    def end(self, deed: Deed, *, commit: bool = True) -> None:
        end_in_two_steps(self, deed, commit=commit)


@pytest.mark.parametrize("noisy", [False, True], ids=["without triggers", "with a trigger"])
def test_what_was_prepared_counts_once_it_is_committed(
    db: Connection, race: NewRace, seed: str, times: int, noisy: bool
) -> None:
    make_tables(db, noisy=noisy)
    judge, crowd = Judge(db, [DEALS]), race()
    options: dict[str, Any] = {"fields": ("deals",)}
    writers = [
        Writer("person-1", seed, agent=False, **options),
        PreparingWriter("person-2", seed, agent=False, **options),
        PreparingWriter("agent-1", seed, agent=True, **options),
    ]
    undoers = [Undoer("undoer-1", seed), PreparingUndoer("undoer-2", seed)]
    crowd.run([*writers, *undoers], steps=5 * times)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    judge.accept(crowd)
