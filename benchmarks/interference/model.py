"""The rows of a history and who wrote them, in Python alone: nothing here reads a database.

Four tables: deals, and three that refer to them, each with another ON DELETE action. A row keeps
its identity when its key changes. Of every cell all writes are kept, with who made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Value = int | str | None
Values = dict[str, Value]
#: A table and the value of its primary key, which is always the column ``id``.
Place = tuple[str, int]
State = dict[Place, Values]

#: Parents first.
TABLES: dict[str, tuple[str, ...]] = {
    "deals": ("id", "stage", "owner", "amount", "visits", "code"),
    "notes": ("id", "deal", "body"),
    "tasks": ("id", "deal", "title"),
    "mails": ("id", "deal", "topic"),
}
#: What a DELETE of a deal does to the rows that refer to it.
ON_DELETE = {"notes": "no action", "tasks": "cascade", "mails": "set null"}
#: Written only by adding to it: the column with the merge rule ``delta``.
COUNTER = "visits"
SCHEMA = """
create table deals (id int primary key, stage text, owner text, amount int,
  visits int not null default 0, code text unique);
create table notes (id int primary key, deal int references deals, body text);
create table tasks (id int primary key, deal int references deals on delete cascade, title text);
create table mails (id int primary key, deal int references deals on delete set null, topic text);
create index on notes (deal);
create index on tasks (deal);
create index on mails (deal);
"""

SETUP = "setup"
AGENT = "agent"
PERSON = "person"


@dataclass(frozen=True)
class Insert:
    """A row with these values is made."""

    table: str
    values: Values


@dataclass(frozen=True)
class Update:
    """One row's columns are set to these values, in one statement; ``id`` among them moves it."""

    table: str
    key: int
    values: Values


@dataclass(frozen=True)
class Add:
    """A deal's counter goes up by so much."""

    key: int
    by: int


@dataclass(frozen=True)
class Delete:
    """A row is deleted, with what ON DELETE does to others."""

    table: str
    key: int


Write = Insert | Update | Add | Delete


@dataclass(frozen=True)
class Part:
    """What one writer does in a transaction: `AGENT`, `PERSON`, or the name of another agent."""

    writer: str
    writes: tuple[Write, ...]


#: What is committed together. Two parts: agents that share a transaction.
Transaction = tuple[Part, ...]


@dataclass(frozen=True)
class Mark:
    """A write of one cell: the how manieth write of the history, and how much was added."""

    writer: str
    value: Value
    at: int
    by: int = 0


@dataclass(eq=False)
class Row:
    """One row through its life, gone ones included."""

    table: str
    values: Values
    maker: str
    marks: dict[str, list[Mark]]
    remover: str | None = None
    #: The how manieth write removed it.
    removed: int = 0

    @property
    def key(self) -> int:
        """Where it stands, or stood last."""
        key = self.values["id"]
        assert isinstance(key, int)
        return key

    @property
    def place(self) -> Place:
        """Its table and key."""
        return self.table, self.key

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self.remover is None


class Invalid(Exception):
    """A write that the database would refuse, or that would find no row."""


@dataclass
class World:
    """All rows of a history, as its writes have left them so far."""

    rows: list[Row] = field(default_factory=list)
    clock: int = 0

    def living(self, table: str | None = None) -> Iterator[Row]:
        """Yield the rows that are there."""
        return (row for row in self.rows if row.alive and table in (None, row.table))

    def find(self, table: str, key: Value) -> Row | None:
        """Return the row that stands at a key."""
        return next((row for row in self.living(table) if row.key == key), None)

    def state(self) -> State:
        """Return what a reader sees."""
        return {row.place: dict(row.values) for row in self.living()}

    def apply(self, writer: str, write: Write) -> None:
        """Do a write.

        A statement writes the cells that it changes. One that changes nothing in a row counts as a
        write of all its cells: it was meant, and no image tells which of them.

        Raises:
            Invalid: the database would refuse it, or no such row is there.

        """
        self.clock += 1
        match write:
            case Insert(table, values):
                self._insert(writer, table, {c: values.get(c) for c in TABLES[table]})
            case Update(table, key, values):
                self._update(writer, self._get(table, key), values)
            case Add(key, by):
                row = self._get("deals", key)
                value = row.values[COUNTER]
                assert isinstance(value, int)
                row.values[COUNTER] = value + by
                row.marks[COUNTER].append(Mark(writer, value + by, self.clock, by))
            case Delete(table, key):
                self._delete(writer, self._get(table, key))

    def _get(self, table: str, key: int) -> Row:
        row = self.find(table, key)
        if row is None:
            raise Invalid(f"no row at {table} {key}")
        return row

    def _insert(self, writer: str, table: str, values: Values) -> None:
        if table == "deals" and values[COUNTER] is None:
            values[COUNTER] = 0
        self._check(table, values, None)
        for row in self.rows:
            if writer == AGENT == row.remover and row.place == (table, values["id"]):
                # It had only replaced it: that is an update, as far as a key tells.
                row.remover = None
                for column, value in values.items():
                    self._replace(row, column, value)
                return
        marks = {column: [Mark(writer, value, self.clock)] for column, value in values.items()}
        self.rows.append(Row(table, values, writer, marks))

    def _update(self, writer: str, row: Row, values: Values) -> None:
        assert COUNTER not in values or row.table != "deals"
        changed = {c: value for c, value in values.items() if row.values[c] != value}
        if "id" in changed and self.referring(row):
            raise Invalid("rows refer to its key")
        self._check(row.table, {**row.values, **changed}, row)
        row.values.update(changed)
        for column in changed or row.values:
            row.marks[column].append(Mark(writer, row.values[column], self.clock))

    def _replace(self, row: Row, column: str, value: Value) -> None:
        former = row.values[column]
        if former != value:
            row.values[column] = value
            by = value - former if isinstance(value, int) and isinstance(former, int) else 0
            row.marks[column].append(Mark(AGENT, value, self.clock, by))

    def _delete(self, writer: str, row: Row) -> None:
        children = self.referring(row)
        if any(ON_DELETE[child.table] == "no action" for child in children):
            raise Invalid("rows refer to it")
        row.remover, row.removed = writer, self.clock
        for child in children:
            if ON_DELETE[child.table] == "cascade":
                child.remover, child.removed = writer, self.clock
            else:
                child.values["deal"] = None
                child.marks["deal"].append(Mark(writer, None, self.clock))

    def referring(self, row: Row) -> list[Row]:
        """Return the rows that refer to a deal."""
        if row.table != "deals":
            return []
        return [r for r in self.living() if r.table != "deals" and r.values["deal"] == row.key]

    def _check(self, table: str, values: Values, row: Row | None) -> None:
        others = [other for other in self.living(table) if other is not row]
        if any(other.key == values["id"] for other in others):
            raise Invalid("the key is taken")
        if table == "deals":
            code = values["code"]
            if code is not None and any(other.values["code"] == code for other in others):
                raise Invalid("the unique value is taken")
        elif values["deal"] is not None and not self.find("deals", values["deal"]):
            raise Invalid("no such deal")


@dataclass(frozen=True)
class History:
    """Rows that are there, what the agent's invocation wrote, and what others wrote after it."""

    number: int
    kind: str
    before: tuple[Insert, ...]
    invocation: tuple[Transaction, ...]
    later: tuple[Transaction, ...]

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last key that its rows may have; no other history's."""
        return self.number * 1000, self.number * 1000 + 999

    def invocation_id(self, writer: str) -> str:
        """Return the id under which an agent of this history writes."""
        return f"{self.number} {writer}"
