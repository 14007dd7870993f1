"""Rows that pass keys on to each other, each with a name that nobody changes: one sees who is who.

Whatever the agent did to the keys and others did since, an undo brings no row back that somebody
has deleted, doubles none, loses none, and leaves what others have noted at the row of their note.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.undo import revert, rows
from tests.support.undoing import track

pytestmark = pytest.mark.core

MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "merge": {"merge": True},
    "skip": {"on_conflict": "skip"},
    "skip and merge": {"on_conflict": "skip", "merge": True},
    "cascade": {"on_conflict": "cascade"},
}


@dataclass
class _Story:
    """What people have done, by the names of the rows."""

    chance: random.Random
    tag: str
    made: int = 0
    deleted: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)

    def call(self, conn: Connection) -> None:
        """Have the agent write in one transaction."""
        with suppress(psycopg.errors.UniqueViolation), conn.transaction():
            conn.execute("select agentundo.tag(%s)", [self.tag])
            for _ in range(self.chance.randrange(1, 4)):
                conn.execute(self._statement("agent").encode())

    def _statement(self, who: str) -> str:
        one, other = self.chance.sample(range(1, 7), 2)
        self.made += 1
        return self.chance.choice(
            [
                f"update t set id = id + 1 where id >= {one}",
                f"update t set id = id - 1 where id >= {one}",
                f"update t set id = {one} where id = {other}",
                f"update t set id = {one + other} - id where id in ({one}, {other})",
                f"delete from t where id = {one}",
                f"insert into t values ({one}, '{who} {self.made}', '')",
            ]
        )

    def person(self, conn: Connection) -> None:
        """Have somebody write a row."""
        key = self.chance.randrange(1, 8)
        found = [name for (name,) in rows(conn, f"select name from t where id = {key}")]
        match self.chance.randrange(4):
            case 0:
                conn.execute(f"update t set note = note || '{key}' where id = {key}".encode())
                for name in found:
                    self.notes[name] = self.notes.get(name, "") + str(key)
            case 1:
                conn.execute(f"delete from t where id = {key}".encode())
                self.deleted |= set(found)
            case 2:
                free = self.chance.randrange(10, 20)
                with suppress(psycopg.errors.UniqueViolation):
                    conn.execute(f"update t set id = {free} where id = {key}".encode())
            case _:
                self.made += 1
                with suppress(psycopg.errors.UniqueViolation):
                    query = f"insert into t values ({key}, 'person {self.made}', '')"
                    conn.execute(query.encode())


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize("seed", range(8))
def test_each_row_stays_itself(db: Connection, seed: int, capture: str) -> None:
    undone = 0
    for number in range(12):
        story = _Story(random.Random(1000 * seed + number), f"call {number}")
        db.execute(
            "drop table if exists t; create table t (id int primary key deferrable, name text,"
            " note text); insert into t select g, 'row ' || g, '' from generate_series(1, 5) g"
        )
        track(db, "t", capture=capture)
        story.call(db)
        if story.chance.random() < 1 / 3:
            story.person(db)
            story.call(db)
        for _ in range(story.chance.randrange(3)):
            story.person(db)
        stood = {name for (name,) in rows(db, "select name from t")}
        mine = {name for name in stood if name.startswith("agent")}
        for mode, arguments in MODES.items():
            about = f"seed {seed}, history {number}, {mode}"
            with suppress(psycopg.errors.DatabaseError), db.transaction(force_rollback=True):
                revert(db, story.tag, **arguments)
                now = rows(db, "select * from t order by id")
                names = [name for _, name, _ in now]
                assert len(set(names)) == len(names), f"{about}: doubled: {now}"
                assert not story.deleted & set(names), f"{about}: back: {now}"
                assert stood - mine <= set(names), f"{about}: lost: {now}"
                notes = {name: note for _, name, note in now if note}
                standing = {n: t for n, t in story.notes.items() if n in names}
                assert notes == standing, f"{about}: notes: {now}"
                undone += 1
    assert undone >= 5, "hardly anything was undone"
