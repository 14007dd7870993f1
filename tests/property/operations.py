"""Random histories as lists of operations: made in advance, so that some can be left out."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.property.schemas import Column, Schema, Table, alter
from tests.property.values import BIGINT, INT, TEXT, Type

What = Literal[
    "begin", "run", "savepoint", "rollback to", "release", "tag", "commit", "rollback",
    "ddl", "revert", "redo",
]  # fmt: skip


@dataclass
class Operation:
    """One step of one session.

    Attributes:
        session: whose; agents' have even numbers.
        what: kind of step.
        sql: of `run` and `ddl`.
        tag: of `begin` and `tag`: the invocation.
        keys_moved: does the statement give rows other keys?
        changes: what a `ddl` makes of the schema: ("add", table, column) and so on.
        undo: arguments of `revert` and `redo`.

    """

    session: int
    what: What
    sql: str = ""
    tag: str | None = None
    keys_moved: bool = False
    changes: tuple[Any, ...] = ()
    undo: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as a line of a script."""
        told = {
            "begin": f"begin {self.sql}; agent.invocation = {self.tag!r}",
            "tag": f"agent.invocation = {self.tag!r}",
            "run": self.sql,
            "ddl": self.sql,
            "revert": f"revert {self.undo}",
            "redo": f"redo {self.undo}",
        }
        return f"[{self.session}] {told.get(self.what, self.what)}"


SESSIONS = 4  # 0 and 2 are agents, 1 and 3 are people


def random_operations(chance: random.Random, schema: Schema) -> list[Operation]:
    """Make up what happens: writes of several sessions at once, then undos, writes, undos."""
    maker = _Maker(chance, schema)
    maker.fill()
    for _ in range(chance.randint(4, 22)):
        maker.step()
    maker.finish()
    for _ in range(chance.randint(1, 5)):
        maker.undo()
        for _ in range(chance.choice((0, 0, 2, 5))):
            maker.step()
        maker.finish()
    return maker.made


class _Maker:
    def __init__(self, chance: random.Random, schema: Schema) -> None:
        self.chance = chance
        self.schema = copy.deepcopy(schema)  # as DDL makes it, by and by
        self.made: list[Operation] = []
        self.tags: list[str] = []
        self.open: set[int] = set()
        self.ddl_left = chance.choice((0, 0, 0, 1, 2))

    def fill(self) -> None:
        for table in self.schema.tables:
            for _ in range(self.chance.randint(2, 5)):
                self._person(_insert(self.chance, table))

    def _person(self, sql: str) -> None:
        self.made += [Operation(1, "begin"), Operation(1, "run", sql), Operation(1, "commit")]

    def finish(self) -> None:
        for session in sorted(self.open):
            self.made.append(Operation(session, "commit"))
        self.open.clear()

    def step(self) -> None:
        chance = self.chance
        session = chance.choice((0, 0, 0, 1, 2, 3))
        if session not in self.open:
            if self.ddl_left and not self.open and chance.random() < 0.2:
                self.ddl_left -= 1
                self.made.append(_ddl(chance, self.schema))
                alter(self.schema, self.made[-1].changes)
                return
            level = "isolation level repeatable read" if chance.random() < 0.08 else ""
            self.open.add(session)
            self.made.append(Operation(session, "begin", level, self._tag(session)))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            self._within(session)
        if chance.random() < 0.7:
            ending: What = "commit" if chance.random() < 0.9 else "rollback"
            self.made.append(Operation(session, ending))
            self.open.discard(session)

    def _tag(self, session: int) -> str | None:
        if session % 2:
            return None
        if not self.tags or self.chance.random() < 0.8:
            self.tags.append(f"call-{len(self.tags)}")
            return self.tags[-1]
        return self.chance.choice(self.tags)

    def _within(self, session: int) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.82:
            sql, moved = _statement(chance, self.schema)
            self.made.append(Operation(session, "run", sql, keys_moved=moved))
        elif what < 0.96:
            kind: What = chance.choice(("savepoint", "savepoint", "rollback to", "release"))
            self.made.append(Operation(session, kind))
        elif session % 2 == 0:
            self.made.append(Operation(session, "tag", tag=self._tag(session)))

    def undo(self) -> None:
        chance = self.chance
        if not self.tags:
            return
        mode = chance.choices(("abort", "skip", "cascade", "force"), weights=(40, 36, 12, 6))[0]
        merge = chance.random() < 0.35
        arguments: dict[str, Any] = {"on_conflict": mode, "merge": merge}
        if mode == "force":
            arguments |= {"reverted_by": "dana", "reason": "a test"}
        if chance.random() < 0.3:
            arguments["what"] = [chance.choice(self.tags)]
            if mode == "cascade":  # to undo and to redo at once is more than the model can say
                arguments["on_conflict"] = "abort"
            self.made.append(Operation(1, "redo", undo=arguments))
        else:
            some = chance.sample(self.tags, min(len(self.tags), chance.choice((1, 1, 1, 2, 3))))
            arguments["what"] = some
            self.made.append(Operation(1, "revert", undo=arguments))


def _name(table: Table, column: Column) -> str:
    """Return what stands for a column in a statement: by then it may be called otherwise."""
    return f"@{table.name}.{column.uid}@"


def _value(chance: random.Random, column: Column) -> str:
    return "null" if chance.random() < 0.12 else chance.choice(column.type.literals)


def _key_value(chance: random.Random, kind: Type) -> str:
    return f"'{chance.choice('xy')}'" if kind is TEXT else str(chance.randint(1, 5))


def _random_value(chance: random.Random, table: Table, column: Column) -> str:
    if column.uid in table.key:
        return _key_value(chance, column.type)
    if column.uid.startswith("ref_"):
        return _key_value(chance, column.type) if chance.random() < 0.5 else "null"
    return _value(chance, column)


def _insert(chance: random.Random, table: Table) -> str:
    columns = [c for c in table.columns if c.written]
    if not columns:
        return f"insert into {table.name} default values"
    names = ", ".join(_name(table, c) for c in columns)
    rows = [
        "(" + ", ".join(_random_value(chance, table, c) for c in columns) + ")"
        for _ in range(chance.choice((1, 1, 1, 2, 3)))
    ]
    rest = ""
    if table.key and not table.deferrable and chance.random() < 0.35:
        other = chance.choice(columns)
        rest = f" on conflict ({table.names(table.key)}) do " + (
            "nothing"
            if other.uid in table.key
            else f"update set {_name(table, other)} = excluded.{_name(table, other)}"
        )
        rows = rows[:1]
    return f"insert into {table.name} ({names}) values {', '.join(rows)}{rest}"


def _where(chance: random.Random, table: Table) -> str:
    style = chance.random()
    if style < 0.45:
        return f"id = {chance.randint(1, 5)}"
    return f"id {chance.choice(('<', '>'))}= {chance.randint(1, 5)}" if style < 0.85 else "true"


def _assignments(chance: random.Random, table: Table) -> str:
    columns = [c for c in table.columns if c.written and c.uid not in table.key]
    if not columns:
        return "id = id"
    made = []
    for column in chance.sample(columns, min(len(columns), chance.choice((1, 1, 2)))):
        name = _name(table, column)
        if column.delta or (column.type.counts and chance.random() < 0.3):
            made.append(f"{name} = {name} + {chance.choice((1, 2, 5))}")
        elif chance.random() < 0.08:
            made.append(f"{name} = {name}")
        else:
            made.append(f"{name} = {_random_value(chance, table, column)}")
    return ", ".join(made)


def _statement(chance: random.Random, schema: Schema) -> tuple[str, bool]:
    """Return a statement, and whether it gives rows other keys."""
    table = chance.choice(schema.tables)
    style = chance.random()
    writable = all(table.column(uid).written for uid in table.key)
    if style < 0.25:
        return _insert(chance, table), False
    if style < 0.62 or (style < 0.72 and not (writable and table.key)):
        return (
            f"update {table.name} set {_assignments(chance, table)} where {_where(chance, table)}",
            False,
        )
    if style < 0.72:
        change = chance.choice(("id + 1", "6 - id", "id + 10", "id - 1"))
        if table.kind == "partitioned" and chance.random() < 0.5:
            return f"update {table.name} set part = 4 - part where {_where(chance, table)}", True
        return f"update {table.name} set id = {change} where {_where(chance, table)}", True
    if style < 0.9:
        return f"delete from {table.name} where {_where(chance, table)}", False
    if style < 0.96:
        other = chance.choice(schema.tables)
        first = (
            f"update {table.name} set {_assignments(chance, table)} where {_where(chance, table)}"
        )
        second = f"delete from {other.name} where {_where(chance, other)}"
        return f"with a as ({first} returning 1) {second}", False
    return f"truncate {table.name}", False


def _ddl(chance: random.Random, schema: Schema) -> Operation:
    """Return DDL on a column or a table."""
    table = chance.choice([t for t in schema.tables if t.kind != "child"])
    columns = [c for c in table.columns if c.uid[0] == "c" and c.uid[1:].isdigit() and not c.delta]
    style = chance.choice(("add", "add", "widen", "retype", "rename", "drop", "rewrite"))
    fresh = f"late{chance.randrange(10**6)}"
    alter = f"alter table {table.name} "
    if style == "add" and table.kind != "parent":
        default = chance.choice(("", " default 7", " default (random() * 9)::int"))
        added = Column(fresh, fresh, INT)
        return _alter(f"{alter}add column {fresh} int{default}", "add", table, added)
    if columns and table.kind != "parent":
        column = chance.choice(columns)
        name = _name(table, column)
        wider = {"int": BIGINT, "varchar(12)": TEXT}.get(column.type.name)
        if style == "widen" and wider:
            sql = f"{alter}alter column {name} type {wider.name}"
            return _alter(sql, "widen", table, column.uid, wider)
        if style == "retype" and column.type.name in ("int", "bool", "date"):
            sql = f"{alter}alter column {name} type text using {name}::text"
            return _alter(sql, "retype", table, column.uid, TEXT)
        if style == "rename":
            return _alter(
                f"{alter}rename column {name} to {fresh}", "rename", table, column.uid, fresh
            )
        if style == "drop":
            return _alter(f"{alter}drop column {name}", "drop", table, column.uid)
    return _alter(f"vacuum full {table.name}", "rewrite", table)


def _alter(sql: str, what: str, table: Table, *details: Any) -> Operation:
    return Operation(1, "ddl", sql, changes=(what, table.name, *details))
