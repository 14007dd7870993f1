"""One row that several invocations wrote, and every order in which they are undone and redone.

The model is a replay: a row is what the last invocation that stands has left of it, or what it was
before the first. An undo that is refused must change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.undo import redo, refused, revert, rows, scalar, status
from tests.support.undoing import track, write

pytestmark = pytest.mark.core

#: Who wrote what, in order, into a row that was as the first item says; None is absence.
HISTORIES: dict[str, tuple[int | None, list[tuple[str, int | None]]]] = {
    "made, deleted": (None, [("f", 0), ("x", None)]),
    "made, changed, deleted": (None, [("f", 0), ("g", 1), ("x", None)]),
    "made and changed by one, deleted": (None, [("f", 0), ("f", 1), ("x", None)]),
    "changed in turn, deleted": (None, [("f", 0), ("g", 1), ("f", 2), ("x", None)]),
    "made twice": (None, [("f", 0), ("x", None), ("h", 5), ("y", None)]),
    "made twice alike": (None, [("f", 0), ("x", None), ("h", 0), ("y", None)]),
    "deleted, made alike": (3, [("x", None), ("f", 3)]),
    "deleted, made alike, deleted": (3, [("x", None), ("f", 3), ("y", None)]),
    "changed, deleted, made, changed": (3, [("g", 4), ("x", None), ("f", 0), ("z", 8)]),
}


@dataclass
class Play:
    """One history in rows of its own."""

    db: Connection
    number: int
    base: int | None
    writes: list[tuple[str, int | None]]

    def tag(self, who: str) -> str:
        """Return the invocation's id."""
        return f"{who} {self.number}"

    @property
    def row(self) -> int | None:
        """The row that it is about, as it is."""
        found = self.db.execute("select v from r where id = %s", [self.number]).fetchone()
        return found[0] if found else None

    def write(self, partly: str | None) -> None:
        """Write; the invocation `partly` also writes a row that a person then changes."""
        other = -self.number
        self.db.execute("insert into r values (%s, 0)", [other])
        now = self.base
        if now is not None:
            self.db.execute("insert into r values (%s, %s)", [self.number, now])
        for who, new in self.writes:
            if now is None:
                statement = f"insert into r values ({self.number}, {new})"
            elif new is None:
                statement = f"delete from r where id = {self.number}"
            else:
                statement = f"update r set v = {new} where id = {self.number}"
            more = [f"update r set v = v + 1 where id = {other}"] if who == partly else []
            write(self.db, statement, *more, tag=self.tag(who))
            now = new
        if partly:
            self.db.execute("update r set v = 77 where id = %s", [other])

    def replayed(self, undone: set[str]) -> int | None:
        """Return what the row is when these are undone."""
        return next((new for who, new in reversed(self.writes) if who not in undone), self.base)

    def undo(self, order: tuple[str, ...], partly: str | None) -> Iterator[tuple[str, int | None]]:
        """Take each back, or a second time do it again; yield what was done, and what should be."""
        undone: set[str] = set()
        for who in order:
            act = redo if who in undone else revert
            told = f"{act.__name__} {who}"
            before = self.row
            try:
                done = act(self.db, self.tag(who), on_conflict="skip" if who == partly else "abort")
            except psycopg.Error as refused:
                if refused.sqlstate != "UN001":
                    raise
                yield f"{told} refused", before
                continue
            if done.rows_skipped > (1 if who == partly and act is revert else 0):
                yield f"{told} skipped", before
                return
            undone ^= {who}
            yield told, self.replayed(undone)


@pytest.mark.parametrize(
    ("history", "how"),
    [
        *itertools.product(HISTORIES, ["whole", "partly"]),
        ("made twice alike", "retyped"),
        ("changed, deleted, made, changed", "retyped"),
    ],
)
def test_every_order_of_undo_and_redo(db: Connection, history: str, how: str) -> None:
    """Also `partly`, beside a row that stays, and after the key has changed its type."""
    db.execute("create table r (id int primary key, v int)")
    track(db, "r")
    base, writes = HISTORIES[history]
    people = sorted({who for who, _ in writes})
    orders = [
        order
        for order in itertools.product(people, repeat=4 if len(people) < 4 else 3)
        if all(one != next_one for one, next_one in itertools.pairwise(order))
    ]
    plays = [Play(db, number, base, writes) for number in range(1, len(orders) + 1)]
    for play, order in zip(plays, orders, strict=True):
        play.write(order[0] if how == "partly" else None)
    if how == "retyped":
        db.execute("alter table r alter id type bigint")
    for play, order in zip(plays, orders, strict=True):
        partly = order[0] if how == "partly" else None
        told = []
        for step, wanted in play.undo(order, partly):
            told.append(step)
            assert play.row == wanted, f"{history}: after {', '.join(told)}"
        if partly:
            assert scalar(db, f"select v from r where id = {-play.number}") == 77
    assert plays


@pytest.mark.parametrize("between", ["tagged", "captured"])
@pytest.mark.parametrize("more", ["update r set v = 5 where id = 2", "select 1"])
def test_a_row_that_somebody_made_and_deleted_since_does_not_come_back(
    db: Connection, between: str, more: str
) -> None:
    """The later one who deleted it has meant it, too; force brings it back all the same."""
    db.execute("create table r (id int primary key, v int); insert into r values (1, 0), (2, 0)")
    track(db, "r", capture="agent" if between == "tagged" else "all")
    call = write(db, "delete from r where id = 1", more)
    for statement in ("insert into r values (1, 8)", "delete from r where id = 1"):
        if between == "tagged":
            write(db, statement)
        else:
            db.execute(statement.encode())
    with pytest.raises(psycopg.Error, match="row_deleted") as refused:
        revert(db, call)
    assert refused.value.sqlstate == "UN001"
    revert(db, call, on_conflict="force", reverted_by="dana", reason="wanted")
    assert db.execute("select * from r order by id").fetchall() == [(1, 0), (2, 0)]
    assert redo(db, call).status == "reverted"
    assert scalar(db, "select count(*) from r where id = 1") == 0


def test_a_cascade_takes_along_who_made_and_deleted_the_row_since(db: Connection) -> None:
    db.execute("create table r (id int primary key, v int); insert into r values (1, 0)")
    track(db, "r")
    call = write(db, "delete from r where id = 1")
    write(db, "insert into r values (1, 8)", tag="made")
    write(db, "delete from r where id = 1", tag="deleted")
    done = revert(db, call, on_conflict="cascade")
    assert set(done.invocations) == {call, "made", "deleted"}
    assert db.execute("select * from r").fetchall() == [(1, 0)]


def test_a_redo_that_was_taken_back_in_part_leaves_a_call_that_is_undone_in_part(
    db: Connection,
) -> None:
    """What skip has left of it stands, and can be undone when nothing is in its way any more."""
    db.execute("create table t (id int primary key, v int)")
    track(db, "t", capture="all")
    write(db, "insert into t values (1, 1), (2, 2)", tag="call")
    undone = revert(db, "call").revert_id
    assert redo(db, "call").status == "reverted"
    write(db, "update t set v = 9 where id = 1", tag="other")
    assert redo(db, str(undone), on_conflict="skip").status == "partially_reverted"
    assert rows(db, "table t") == [(1, 9)]
    assert status(db, "call") == "partially_reverted"
    with refused("UN001"):
        revert(db, "call")
    assert revert(db, "other").status == "reverted"
    assert revert(db, "call").counts == (1, 0, 0, 0, 0)
    assert rows(db, "table t") == []
    assert status(db, "call") == "reverted"
    assert redo(db, "call").status == "reverted"  # of the last undo, which was about one row
    assert rows(db, "table t") == [(1, 1)]
    assert status(db, "call") == "partially_reverted"
    redo(db, "call")
    assert rows(db, "select * from t order by id") == [(1, 1), (2, 2)]
    assert status(db, "call") == "committed"
