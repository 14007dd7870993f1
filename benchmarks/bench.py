"""The table that `benchmarks.core` measures on, what is written to it, and its paired rounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Connection, write
from benchmarks.report import Result

_TABLE = """
create table {table} (
  id int primary key, owner int not null, hits bigint not null, amount numeric(12, 2) not null,
  rate numeric, name text not null, email text, note text, created timestamptz not null,
  changed timestamptz not null, active boolean not null, extra jsonb)
"""
_ROWS = """
select g as id, g % 1000 as owner, g * 17::bigint as hits, (g % 100000) / 100.0 as amount,
  1 / g::numeric as rate, 'Customer ' || g as name, 'c' || g || '@example.com' as email,
  repeat('note ', g % 8) as note, timestamptz '2024-01-01' + g * interval '1 minute' as created,
  timestamptz '2025-01-01' + g * interval '1 second' as changed, g % 3 > 0 as active,
  jsonb_build_object('tier', g % 5, 'labels', jsonb_build_array('a', g % 7)) as extra
from generate_series({first}, {last}) g
"""
_OTHERS = (
    *("owner", "hits", "amount", "rate", "name", "email", "note", "created", "changed", "active"),
    "extra",
)

#: What is written to the first `n` rows, or adds `n`.
WRITES = {
    "update": "update {table} set hits = hits + 1, amount = amount + 1, note = 'agent',"
    " changed = changed + interval '1 second' where id <= {n}",
    "delete": "delete from {table} where id <= {n}",
    "insert": "insert into {table} select * from new_{n}",
}
#: What restores these rows by hand, from the copy of them.
RESTORES = {
    "update": f"update {{table}} t set {', '.join(f'{name} = s.{name}' for name in _OTHERS)}"
    " from old_{n} s where s.id = t.id",
    "delete": "insert into {table} select * from old_{n}",
    "insert": "delete from {table} t using new_{n} s where s.id = t.id",
}
#: One side's turn: does its work, returns the numbers of one or more columns.
Side = Callable[[], dict[str, float]]


@dataclass
class Bench:
    """A new database with agentundo, and what the parts do there."""

    conn: Connection
    dsn: str
    bindir: Path | None
    options: argparse.Namespace
    calls: int = 0

    @property
    def rows(self) -> int:
        """How many rows a table has."""
        return 3 * int(self.options.rows)

    def tag(self) -> str:
        """Return the id of a new invocation."""
        self.calls += 1
        return f"call-{self.calls}"

    def build(self, *tables: str, tracked: Sequence[str]) -> None:
        """Make equal tables, and copies of the rows that are deleted or inserted in them."""
        for table in tables:
            self.conn.execute(_TABLE.format(table=table).encode())
            content = _ROWS.format(first=1, last=self.rows)
            self.conn.execute(f"insert into {table} {content}".encode())
        for n in self.sizes():
            content = _ROWS.format(first=self.rows + 1, last=self.rows + n)
            self.conn.execute(f"create table new_{n} as {content}".encode())
        self.keep(tables[0])
        for table in tracked:
            self.conn.execute("select agentundo.track(%s::regclass)", [table])
        names = self.conn.execute(
            "select oid::regclass::text from pg_class where relkind = 'r' and"
            " relnamespace::regnamespace::text in ('public', 'agentundo', 'agentundo_history')"
        )
        for (name,) in names.fetchall():
            self.conn.execute(f"alter table {name} set (autovacuum_enabled = off)".encode())
        self.settle()

    def sizes(self) -> list[int]:
        """Return how many rows are undone at a time."""
        return sorted({1, int(self.options.rows)})

    def keep(self, table: str) -> None:
        """Copy the rows that will be written."""
        for n in self.sizes():
            copy = f"create table old_{n} as select * from {table} where id <= {n}"
            write(self.conn, f"drop table if exists old_{n}", copy)

    def settle(self) -> None:
        """Bring the database into the state that every round starts from."""
        self.conn.execute("select agentundo.purge('0 s')")
        # In this order: what vacuum touches needs no full-page image again in the timing.
        self.conn.execute("checkpoint")
        self.conn.execute("vacuum (analyze)")

    def measure(self, part: str, case: str, unit: str, *sides: Side) -> Result:
        """Give each side its turn in each round."""
        rounds: dict[str, list[float]] = {}
        for number in range(self.options.rounds + 1):
            turn = number % len(sides)
            for side in (*sides[turn:], *sides[:turn]):
                for column, value in side().items():
                    numbers = rounds.setdefault(column, [])
                    if number:
                        numbers.append(value)
            self.settle()
        return Result(part, case, unit, rounds)
