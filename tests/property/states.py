"""What the tables say, read as they are, and what one statement has changed in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.property.schemas import Schema, Table
from tests.support.undo import Connection

Cells = dict[str, str]
#: A row of a table without a key: equal ones cannot be told apart.
Equal = tuple[tuple[str, str], ...]
#: The table's name and the key's values as text.
RowId = tuple[str, tuple[str | None, ...]]


@dataclass(frozen=True)
class Row:
    """A row as stored: where, by which transaction, and each column by uid as text."""

    place: str
    version: str
    cells: Cells

    @property
    def stored(self) -> tuple[str, str]:
        """Differs as soon as anybody has written the row, be it as it was."""
        return self.place, self.version


@dataclass
class State:
    """All tables: rows by key, and by place and version in tables without one."""

    rows: dict[RowId, Row]
    bags: dict[str, dict[str, Equal]]

    def cells(self, row: RowId) -> Cells | None:
        """Return a row's cells; None if there is none."""
        return self.rows[row].cells if row in self.rows else None


class SeenTwice(Exception):
    """Under REPEATABLE READ: one's own row, and that of its key which others have deleted since."""


def read(conn: Connection, schema: Schema) -> State:
    """Read all tables, as the connection's transaction sees them; raise `SeenTwice`."""
    state = State({}, {t.name: {} for t in schema.tables if not t.key})
    query = " union all ".join(_select(table) for table in schema.tables)
    for name, place, version, key, cells in conn.execute(query.encode()).fetchall():
        table = schema.table(name)
        row = dict(zip((c.uid for c in table.columns), cells, strict=True))
        if table.key:
            found = (name, tuple(key))
            if found in state.rows:
                raise SeenTwice(found)
            state.rows[found] = Row(place, version, row)
        else:
            state.bags[name][f"{place} {version}"] = tuple(row.items())
    return state


def _select(table: Table) -> str:
    key = ", ".join(f"{table.column(uid).name}::text" for uid in table.key)
    # Through the output function of the type: a cast to text would trim char(n).
    cells = ", ".join(f"row({column.name})::text" for column in table.columns)
    return (
        f"select '{table.name}', tableoid::regclass::text || ctid::text, xmin::text,"
        f" array[{key}]::text[], array[{cells}]::text[] from {table.source}"
    )


@dataclass
class Write:
    """What one statement did to one row.

    Attributes:
        number: of the statement; later ones are larger.
        transaction: in which it was.
        invocation: its tag; None for people.
        before: the row's cells before, None if there was none.
        after: and after.
        keys_moved: whether the statement gave rows other keys.
        stands: False while an undo has taken it back.

    """

    number: int
    transaction: int
    invocation: str | None
    row: RowId
    before: Cells | None
    after: Cells | None
    keys_moved: bool
    stands: bool = True

    @property
    def columns(self) -> set[str]:
        """The columns in which it made a difference; all of them if it made or removed the row."""
        if self.before is None or self.after is None:
            return set(self.before or self.after or {})
        return {
            uid
            for uid, cell in self.after.items()
            if uid in self.before and cell != self.before[uid]
        }


@dataclass
class BagWrite:
    """What one statement did to the rows of a table without a key.

    Attributes:
        more: how many more of each row there are; negative if fewer.
        written: the rows that it wrote, be it as they were.

    """

    number: int
    invocation: str | None
    table: str
    more: Counter[Equal]
    written: set[Equal]
    stands: bool = True


def changes(before: State, after: State) -> list[tuple[RowId, Cells | None, Cells | None]]:
    """Return every row that was written between two states, with its cells before and after."""
    return [
        (row, before.cells(row), after.cells(row))
        for row in sorted(before.rows.keys() | after.rows.keys(), key=str)
        if row not in before.rows
        or row not in after.rows
        or before.rows[row].stored != after.rows[row].stored
        or before.rows[row].cells != after.rows[row].cells
    ]


def bag_changes(before: State, after: State) -> dict[str, tuple[Counter[Equal], set[Equal]]]:
    """Return, of the tables without a key that were written, what `BagWrite` has of them."""
    found = {}
    for name, bag in after.bags.items():
        former = before.bags[name]
        written = {row for place, row in bag.items() if place not in former}
        written |= {row for place, row in former.items() if place not in bag}
        if written:
            more = Counter(bag.values())
            more.subtract(former.values())
            found[name] = (Counter({row: n for row, n in more.items() if n}), written)
    return found
