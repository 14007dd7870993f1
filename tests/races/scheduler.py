"""Real sessions that work on the same few rows, each by a seeded script, and what came of it.

Every actor has a thread, a connection and a random generator of its own. What it does is decided by
the seed; in which order the server lets them through is not, so a run with the same seed does the
same things and need not meet the same collisions.

Actors keep to an order of rows that they agree upon among themselves (see `actors`), so that they
never deadlock with each other. Every deadlock that anybody sees is then one of ours.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import psycopg

from tests.support.undo import Connection, Result

Outcome = Literal["committed", "rolled back", "failed", "unknown"]
#: Nobody waits for ever, but a revert may wait for a crowd.
WAITING = "-c statement_timeout=90s -c lock_timeout=60s -c idle_in_transaction_session_timeout=90s"


@dataclass(frozen=True)
class Write:
    """A row that a statement has written: `token` is that of the new row, or of the deleted one."""

    table: str
    operation: str
    key: int
    token: str


@dataclass
class Deed:
    """One transaction of an actor: what it set out to do and how it ended."""

    actor: str
    kind: str
    level: str = "read committed"
    tag: str | None = None
    aim: tuple[str, ...] = ()
    mode: str = ""
    writes: list[Write] = field(default_factory=list)
    outcome: Outcome = "failed"
    sqlstate: str | None = None
    message: str = ""
    result: Result | None = None


class Actor:
    """Somebody who does one thing after the other on a connection of his own."""

    kind = "actor"
    #: Whether it acts a number of times; the others go on until all of these have.
    leads = False

    def __init__(self, name: str, seed: object) -> None:
        self.name = name
        self.random = Random(f"{seed}/{name}")
        self.number = 0
        self.race: Race
        self.conn: Connection

    def act(self, deed: Deed) -> None:
        """Do one transaction, and say in the deed how it ended."""
        raise NotImplementedError

    def pause(self, longest: float = 0.004) -> None:
        """Wait for a moment, or not, so that others get in between."""
        if self.random.random() < 0.5:
            time.sleep(self.random.random() * longest)

    def begin(self, deed: Deed) -> None:
        """Begin a transaction on one of the isolation levels of the race."""
        deed.level = self.random.choice(self.race.levels)
        self.conn.execute(f"begin isolation level {deed.level}".encode())

    def end(self, deed: Deed, *, commit: bool = True) -> None:
        """Commit or roll back. Until the answer comes nobody knows which it was."""
        if commit:
            deed.outcome = "unknown"
            self.conn.execute("commit")
            deed.outcome = "committed"
        else:
            self.conn.execute("rollback")
            deed.outcome = "rolled back"

    def step(self) -> Deed:
        """Act once; an error ends the transaction and is written down."""
        self.number += 1
        deed = Deed(self.name, self.kind)
        try:
            self.act(deed)
        except psycopg.Error as error:
            lost = self.conn.closed or self.conn.broken
            if not error.sqlstate and not lost:
                raise  # never got to the server
            if deed.outcome != "unknown" or (error.sqlstate and not lost):
                deed.outcome = "failed"
            deed.sqlstate = error.sqlstate or "connection lost"
            deed.message = (
                f"{error.diag.message_primary or error} {error.diag.message_detail or ''}"
            )
            if lost:
                self.conn = self.race.connect()
            else:
                self.conn.execute("rollback")
        return deed


class Race:
    """Some actors on one database.

    Args:
        dsn: where; of a superuser.
        levels: the isolation levels that actors choose from.
        connect: makes a connection in autocommit mode.

    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        levels: Sequence[str] = ("read committed",),
    ) -> None:
        self.connect = connect
        self.levels = tuple(levels)
        self.deeds: list[Deed] = []
        self.done = threading.Event()
        #: Tags that have been committed, oldest first, and those that a revert has taken back.
        self.written: list[str] = []
        self.taken: list[str] = []
        self.broken: list[BaseException] = []
        #: How often one kind of actor waited for another.
        self.collisions = Counter[tuple[str, str]]()
        self._pairs: set[tuple[str, int, str, int]] = set()
        self._actors: dict[int, Actor] = {}
        self.seconds = 0.0

    def run(self, actors: Sequence[Actor], *, steps: int, collisions: int | None = None) -> None:
        """Let all of them act at once.

        Args:
            actors: each with a name of its own.
            steps: how often each acts that leads; the others act until then.
            collisions: go on, whatever `steps` says, until there were so many.

        Raises:
            BaseException: what an actor raised that was no error of the database.

        """
        began = time.monotonic()
        for actor in actors:
            actor.race, actor.conn = self, self.connect()
        observer = threading.Thread(target=self._watch, args=(collisions,))
        threads = {
            actor: threading.Thread(
                target=self._live, args=(actor, None if collisions or not actor.leads else steps)
            )
            for actor in actors
        }
        observer.start()
        for thread in threads.values():
            thread.start()
        for actor, thread in threads.items():
            if actor.leads:
                thread.join()
        self.done.set()
        for thread in threads.values():
            thread.join()
        observer.join()
        for actor in actors:
            actor.conn.close()
        self.seconds += time.monotonic() - began
        if self.broken:
            raise self.broken[0]

    def _live(self, actor: Actor, steps: int | None) -> None:
        try:
            while not self.done.is_set() and (steps is None or actor.number < steps):
                self._actors[actor.conn.info.backend_pid] = actor
                self.deeds.append(actor.step())
        except BaseException as error:
            self.broken.append(error)
            self.done.set()

    def _watch(self, wanted: int | None) -> None:
        """Count collisions, by looking every other millisecond who waits for whom.

        A collision is a pair of transactions of two actors one of which was seen to wait for a row,
        a table or the end of the other; it counts once, however long and often it waited. What
        comes and goes between two looks is not counted.
        """
        try:
            with self.connect() as conn:
                while not self.done.is_set():
                    for waiting, blocking in conn.execute(_WAITING).fetchall():
                        one, two = self._actors.get(waiting), self._actors.get(blocking)
                        if one and two:
                            self._note(one, two)
                    if wanted is not None and self.met("undo") >= wanted:
                        self.done.set()
                    time.sleep(0.002)
        except BaseException as error:
            self.broken.append(error)
            self.done.set()

    def _note(self, one: Actor, two: Actor) -> None:
        pair = (one.name, one.number, two.name, two.number)
        if pair not in self._pairs:
            self._pairs.add(pair)
            self.collisions[one.kind, two.kind] += 1

    def met(self, kind: str) -> int:
        """Return how many collisions there were in which an actor of this kind took part."""
        return sum(number for kinds, number in self.collisions.items() if kind in kinds)

    def states(self) -> Counter[tuple[str, str, str]]:
        """Count the SQLSTATEs that were seen, by kind of actor and isolation level."""
        return Counter((d.kind, d.level, d.sqlstate) for d in self.deeds if d.sqlstate)

    def figures(self) -> dict[str, Any]:
        """Return what a report of the run says."""
        return {
            "seconds": round(self.seconds, 1),
            "transactions": len(self.deeds),
            "collisions": _named(self.collisions),
            "undos": _named(
                Counter(
                    (d.mode, d.result.status if d.result else d.sqlstate, d.outcome)
                    for d in self.deeds
                    if d.kind == "undo"
                )
            ),
            "states": _named(self.states()),
        }


def _named(counts: Counter[Any]) -> dict[str, int]:
    return {" ".join(map(str, key)): number for key, number in sorted(counts.items(), key=str)}


_WAITING = """
select l.pid, b.pid
from pg_locks l cross join lateral unnest(pg_blocking_pids(l.pid)) b (pid)
where not l.granted and l.locktype in ('transactionid', 'tuple', 'relation', 'virtualxid')
"""
