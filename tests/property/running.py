"""Makes histories from seeds, plays them, and makes a failing one small."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import psycopg

from tests.property.history import History
from tests.property.judge import Judge, Lie, Verdicts
from tests.property.operations import SESSIONS, Operation, random_operations
from tests.property.schemas import Schema, random_schema
from tests.support.undo import Connection
from tests.support.undoing import assert_keys_hold, triggers

#: One session at a time acts: whoever would have to wait for another gives up at once.
_OPTIONS = (
    "-c lock_timeout=10ms -c statement_timeout=60s -c client_min_messages=error"
    " -c synchronous_commit=off"
)
_ADMIN = "-c statement_timeout=60s -c client_min_messages=error -c synchronous_commit=off"


@dataclass
class Failure:
    """A history that showed a lie."""

    seed: int
    kind: str
    told: str
    script: list[str]

    def __str__(self) -> str:
        """Return it as one can read it, and play it by hand."""
        lines = "\n".join(f"    {line}" for line in self.script)
        return f"seed {self.seed}: {self.kind}\n  {self.told}\n{lines}"


class Stage:
    """Connections to one database, for one history after the other."""

    def __init__(self, admin: Connection, sessions: Sequence[Connection]) -> None:
        self.admin = admin
        self.sessions = sessions
        self._number = 0

    def play(self, seed: int, *, small: bool = True) -> Verdicts | Failure:
        """Play the history of a seed; a failing one is made small first if asked for."""
        chance = random.Random(seed)
        schema = random_schema(chance)
        operations = random_operations(chance, schema)
        found = self._attempt(seed, schema, operations)
        if isinstance(found, Failure) and small:
            found = self._shrink(found, schema, operations)
        return found

    def _attempt(
        self, seed: int, schema: Schema, operations: Sequence[Operation]
    ) -> Verdicts | Failure:
        self._number += 1
        name = f"history_{self._number}"
        with self._made(name, schema):
            history = History(self.admin, self.sessions, schema, name)
            judge = Judge(history)
            armed = triggers(self.admin)
            try:
                for operation in operations:
                    if operation.what in ("revert", "redo"):
                        judge.play(operation)
                    else:
                        history.play(operation)
                history.finish()
                assert_keys_hold(self.admin)
                if not any(o.what == "ddl" for o in operations) and triggers(self.admin) != armed:
                    raise Lie("minimal", "triggers are not as they were")
            except (Lie, AssertionError, psycopg.Error) as error:
                kind = error.kind if isinstance(error, Lie) else type(error).__name__
                made = [f"{line};" for line in self._setup(schema)]
                return Failure(seed, kind, str(error), [*made, *history.script])
            finally:
                history.abandon()
        return judge.verdicts

    def _setup(self, schema: Schema) -> list[str]:
        made = schema.statements()
        made += [f"select agentundo.track('{t.name}', '{t.capture}')" for t in schema.tables]
        made += [
            f"select agentundo.set_merge('{table.name}', '{column.name}', 'delta')"
            for table in schema.tables
            for column in table.columns
            if column.delta
        ]
        return made

    @contextmanager
    def _made(self, name: str, schema: Schema) -> Iterator[None]:
        self.admin.execute(f"create schema {name}".encode())
        for conn in (self.admin, *self.sessions):
            conn.execute(f"set search_path = {name}, public".encode())
        try:
            for statement in self._setup(schema):
                self.admin.execute(statement.encode())
            yield
        finally:
            for table in schema.tables:
                self.admin.execute(f"select agentundo.untrack('{table.name}', false)".encode())
            self.admin.execute(f"drop schema {name} cascade".encode())

    def _shrink(self, failure: Failure, schema: Schema, operations: list[Operation]) -> Failure:
        """Leave out operations as long as the history shows a lie of the same kind."""
        size = max(1, len(operations) // 2)
        while True:
            place = 0
            while place < len(operations):
                fewer = operations[:place] + operations[place + size :]
                found = self._attempt(failure.seed, schema, fewer)
                if isinstance(found, Failure) and found.kind == failure.kind:
                    failure, operations = found, fewer
                else:
                    place += size
            if size == 1:
                return failure
            size //= 2


@contextmanager
def stage(dsn: str) -> Iterator[Stage]:
    """Connect to a database with agentundo, as its superuser."""
    with ExitStack() as opened:

        def connect(options: str) -> Connection:
            conn = psycopg.connect(dsn, autocommit=True, options=options)
            return opened.enter_context(closing(conn))

        admin = connect(_ADMIN)
        yield Stage(admin, [connect(_OPTIONS) for _ in range(SESSIONS)])
