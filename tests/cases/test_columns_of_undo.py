"""Invocations that each write columns of their own in one row, undone and redone with `merge`.

The model goes column by column: a column is what the last one who stands has left in it, in the
order of writing, or what it was at first. People always stand. An undo that is refused must change
nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.undo import redo, revert, rows
from tests.support.undoing import track, write

pytestmark = pytest.mark.core

COLUMNS = ("a", "b", "c", "d", "e")
PERSON = "person"


@dataclass
class Play:
    """A random history of one row, from a seed, and what it should come to."""

    db: Connection
    number: int
    written: list[tuple[str, str, int]] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    refusals: int = 0
    undos: int = 0

    def tag(self, who: str) -> str:
        """Return the invocation's id."""
        return f"{who} {self.number}"

    @property
    def row(self) -> tuple[int, ...]:
        """The row as it is."""
        (found,) = rows(self.db, "select a, b, c, d, e from r where id = %s", self.number)
        return found

    @property
    def replayed(self) -> tuple[int, ...]:
        """The row as the model has it."""
        now = dict.fromkeys(COLUMNS, 0)
        for who, column, value in self.written:
            if who not in self.undone:
                now[column] = value
        return tuple(now.values())

    def play(self, events: int) -> None:
        """Let things happen; compare after each."""
        chance = random.Random(self.number)
        callers = ["x", "y", "z"][: chance.choice([2, 3])]
        columns = chance.sample(COLUMNS, len(COLUMNS))
        own = {who: [columns.pop()] for who in callers}
        own["x"] += [columns.pop()] if chance.random() < 0.5 else []
        own["y"] += [columns.pop()] if chance.random() < 0.5 else []
        self.db.execute("insert into r values (%s, 0, 0, 0, 0, 0)", [self.number])
        for who in callers:
            if chance.random() < 0.3:
                self.write(PERSON, chance.sample(COLUMNS, 1), chance)
            self.write(who, own[who], chance)
        for _ in range(events):
            who = chance.choice(callers)
            happens = chance.random()
            if happens < 0.15:
                self.write(PERSON, chance.sample(COLUMNS, chance.choice([1, 2])), chance)
            elif happens < 0.3 and who not in self.undone:
                self.write(who, own[who], chance)
            else:
                self.undo(who)
            assert self.row == self.replayed, f"{self.number}: {'; '.join(self.told)}"

    def write(self, who: str, columns: list[str], chance: random.Random) -> None:
        """Set some of these columns."""
        chosen = chance.sample(columns, chance.randint(1, len(columns)))
        values = {column: len(self.written) + n for n, column in enumerate(chosen, 1)}
        setting = ", ".join(f"{column} = {value}" for column, value in values.items())
        statement = f"update r set {setting} where id = {self.number}"
        if who == PERSON:
            self.db.execute(statement.encode())
        else:
            write(self.db, statement, tag=self.tag(who))
        self.written += [(who, column, value) for column, value in values.items()]
        self.told.append(f"{who}: {setting}")

    def undo(self, who: str) -> None:
        """Take back what one did or, if that is taken back, do it again."""
        act = redo if who in self.undone else revert
        self.told.append(f"{act.__name__} {who}")
        self.undos += 1
        try:
            done = act(self.db, self.tag(who), merge=True)
        except psycopg.Error as refused:
            if refused.sqlstate != "UN001":
                raise
            self.told[-1] += " refused"
            self.refusals += 1
            return
        assert done.status == "reverted", f"{self.told}: {done}"
        self.undone ^= {who}


@pytest.mark.parametrize("begin", range(1, 61, 15))
def test_every_column_is_what_the_last_who_stands_left(db: Connection, begin: int) -> None:
    db.execute("create table r (id int primary key, a int, b int, c int, d int, e int)")
    track(db, "r", capture="all")
    plays = [Play(db, number) for number in range(begin, begin + 15)]
    for play in plays:
        play.play(events=9)
    refusals, undos = sum(p.refusals for p in plays), sum(p.undos for p in plays)
    assert refusals < undos / 2, f"{refusals} of {undos} refused"
