"""A partition comes and goes while people, agents and undos work on the table."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.races.actors import Undoer, Writer
from tests.races.conftest import NewRace
from tests.races.migrations import PARTS, Divider
from tests.races.oracle import Judge, Part
from tests.races.scheduler import Deed

ROWS = Part("parts", ("token", "half"))


class Sorter(Writer):
    """Writes one row of either half, as long as that half is there."""

    def write_parts(self, deed: Deed) -> None:
        key, token = self.random.randint(1, 12), self.token()
        kind = self.random.random()
        if kind < 0.7:
            query = "update parts set token = %s where id = %s returning id, token"
            self.write(deed, "parts", "U", query, token, key)
        elif kind < 0.82:
            query = "delete from parts where id = %s returning id, token"
            self.write(deed, "parts", "D", query, key)
        else:
            query = (
                "insert into parts select n, n %% 2, %s from (values (%s::int)) v (n)"
                " on conflict do nothing returning id, token"
            )
            self.write(deed, "parts", "I", query, token, key)


@pytest.mark.core
def test_rows_of_a_partition_that_comes_and_goes_are_captured_once(
    db: Connection, race: NewRace, seed: str, times: int
) -> None:
    db.execute(PARTS.encode())
    db.execute("select agentundo.track('parts', 'all')")
    judge, crowd = Judge(db, [ROWS]), race()
    fields = ("parts",)
    writers = [
        Sorter("person-1", seed, agent=False, fields=fields),
        Sorter("agent-1", seed, agent=True, fields=fields),
        Sorter("agent-2", seed, agent=True, fields=fields),
    ]
    undoers = [Undoer(f"undoer-{n}", seed, plans=False) for n in (1, 2)]
    # An even number of steps, so that in the end all rows are seen.
    crowd.run([*writers, *undoers, Divider("divider", seed)], steps=6 * times)
    print(json.dumps({"seed": seed, **crowd.figures()}, default=str))
    here = "select count(*) from pg_inherits where inhparent = 'parts'::regclass"
    if db.execute(here).fetchall() == [(1,)]:
        db.execute(Divider.STEPS[1].encode())
    # Where its half is away, a row finds no place (23514), and whoever alters the table may wait.
    judge.accept(crowd, allowed=[("write", "23514"), ("ddl", "55P03"), ("undo", "23514")])
