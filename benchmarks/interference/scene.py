"""A history in the making, and the lots that are drawn for every kind."""

from __future__ import annotations

import random

from benchmarks.interference.model import (
    AGENT,
    PERSON,
    Add,
    Delete,
    History,
    Insert,
    Part,
    Transaction,
    Update,
    Value,
    Write,
)

STAGES = ("New", "Offered", "Won", "Lost", "Parked")
OWNERS = ("ann", "bob", "cem", "dana", "eve")


class Scene:
    """A history in the making.

    Args:
        rng: what draws the lots.
        number: of the history; decides which keys its rows have.

    """

    def __init__(self, rng: random.Random, number: int) -> None:
        self.rng = rng
        self.last_key = number * 1000
        self._agents = 0
        self.before: list[Insert] = []
        self.agent: list[Write] = []
        self.later: list[Transaction] = []

    def key(self) -> int:
        """Return a key that nobody has used."""
        self.last_key += 1
        return self.last_key

    def values(self, key: int) -> dict[str, Value]:
        """Return a deal that could stand at a key."""
        return {
            "id": key,
            "stage": self.rng.choice(STAGES),
            "owner": self.rng.choice(OWNERS),
            "amount": self.rng.randrange(1, 100),
            "visits": self.rng.randrange(10),
            "code": f"c{key}",
        }

    def deal(self) -> int:
        """Have a deal from the start; return its key."""
        key = self.key()
        self.before.append(Insert("deals", self.values(key)))
        return key

    def child(self, table: str, deal: int) -> int:
        """Have a row that refers to a deal from the start; return its key."""
        key = self.key()
        self.before.append(Insert(table, {"id": key, "deal": deal}))
        return key

    def was(self, key: int) -> dict[str, Value]:
        """Return a deal as it was at the start."""
        return next(i.values for i in self.before if i.table == "deals" and i.values["id"] == key)

    def someone(self) -> str:
        """Return somebody else: a person in two of three cases, else another agent."""
        if self.rng.random() < 2 / 3:
            return PERSON
        self._agents += 1
        return f"agent {self._agents + 1}"

    def others(self, *writes: Write) -> None:
        """Let others do these writes in this order: one or several, in one or several turns."""
        lot = self.rng.random()
        cuts = [index for index in range(1, len(writes)) if lot < 0.5 or self.rng.random() < lot]
        who = self.someone()
        for first, last in zip([0, *cuts], [*cuts, len(writes)], strict=True):
            self.later.append((Part(who, writes[first:last]),))
            if self.rng.random() < 1 / 3:
                who = self.someone()

    def bystanders(self) -> None:
        """Have rows that nobody but the agent writes, and rows that the agent does not write."""
        if self.rng.random() < 1 / 2:
            key = self.deal()
            self.agent.append(Update("deals", key, {"stage": "agent's", "amount": 1000}))
        if self.rng.random() < 1 / 4:
            key = self.key()
            self.agent.append(Insert("deals", self.values(key)))
        if self.rng.random() < 1 / 4:
            self.agent.append(Delete("deals", self.deal()))
        if self.rng.random() < 1 / 3:
            self.others(Update("deals", self.deal(), {"stage": "theirs"}), Add(self.deal(), 1))

    def finish(self, number: int, kind: str) -> History:
        """Return the history."""
        transactions = [self.agent]
        if len(self.agent) > 1 and self.rng.random() < 1 / 4:
            cut = self.rng.randrange(1, len(self.agent))
            transactions = [self.agent[:cut], self.agent[cut:]]
        invocation: list[Transaction] = [(Part(AGENT, tuple(writes)),) for writes in transactions]
        later = list(self.later)
        if later and later[0][0].writer != PERSON and self.rng.random() < 1 / 4:
            # Another agent wrote in the very transaction in which ours wrote last.
            invocation[-1] += later.pop(0)
        return History(number, kind, tuple(self.before), tuple(invocation), tuple(later))
