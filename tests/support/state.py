"""The whole state of tables, for comparing before with after bit for bit.

Every column is read through its type's output function under fixed settings, so ``1.0`` and
``1.00``, ``-0`` and ``0``, json with other white space and arrays with other bounds all differ.
A cast to text would not do: it trims ``char(n)``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

_SETTINGS = {
    "extra_float_digits": "3",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "xmloption": "content",
    "row_security": "off",
    "search_path": "pg_catalog",
}
_SHOWN = 10


@dataclass(frozen=True)
class TableState:
    """A table's rows, sorted; each is the relation that stores it and its columns as text.

    Values are as `quote_literal` writes them, so that NULL and ``'NULL'`` differ.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Snapshot = dict[str, TableState]


def snapshot(conn: psycopg.Connection[Any], *tables: str) -> Snapshot:
    """Read tables whole, partitions and inheritance children included.

    Args:
        conn: any connection that may read them; an open transaction is left as it was.
        tables: names as ``regclass`` reads them.

    """
    state: Snapshot = {}
    with conn.cursor(row_factory=tuple_row) as cursor:
        # Names are looked up under the caller's search_path, before it is fixed.
        names = {table: _describe(cursor, table) for table in tables}
        with conn.transaction(force_rollback=True):
            for name, value in _SETTINGS.items():
                cursor.execute("select set_config(%s, %s, true)", [name, value])
            for table, (relation, columns) in names.items():
                state[table] = _read(cursor, relation, columns)
    return state


def assert_same(before: Snapshot, after: Snapshot) -> None:
    """Fail with the rows that are missing or new, if the two differ in anything."""
    complaints = []
    for table in before.keys() | after.keys():
        former, latter = before.get(table), after.get(table)
        if former is None or latter is None:
            complaints.append(f"{table}: only in one of the two snapshots")
        elif former != latter:
            complaints.append(f"{table}:\n{_difference(former, latter)}")
    assert not complaints, "state differs\n" + "\n".join(sorted(complaints))


def _describe(
    cursor: psycopg.Cursor[tuple[Any, ...]], table: str
) -> tuple[sql.Composable, list[str]]:
    row = cursor.execute(
        "select nspname, relname, array(select attname::text from pg_attribute"
        " where attrelid = c.oid and attnum > 0 and not attisdropped order by attnum)"
        " from pg_class c join pg_namespace n on n.oid = relnamespace where c.oid = %s::regclass",
        [table],
    ).fetchone()
    assert row is not None
    return sql.Identifier(row[0], row[1]), row[2]


def _read(
    cursor: psycopg.Cursor[tuple[Any, ...]], relation: sql.Composable, columns: list[str]
) -> TableState:
    values: list[sql.Composable] = [sql.SQL("tableoid::regclass::text")]
    values += [sql.SQL("format('%L', t.{})").format(sql.Identifier(name)) for name in columns]
    query = sql.SQL("select {} from {} as t").format(sql.SQL(", ").join(values), relation)
    return TableState(("stored in", *columns), tuple(sorted(cursor.execute(query).fetchall())))


def _difference(former: TableState, latter: TableState) -> str:
    if former.columns != latter.columns:
        return f"  columns were {former.columns}\n  and are {latter.columns}"
    old, new = Counter(former.rows), Counter(latter.rows)
    lines = []
    for sign, rows in (("-", old - new), ("+", new - old)):
        listed = sorted(rows.elements())
        lines += [f"  {sign} {_row(former.columns, row)}" for row in listed[:_SHOWN]]
        if len(listed) > _SHOWN:
            lines.append(f"  {sign} … and {len(listed) - _SHOWN} more")
    return "\n".join(lines)


def _row(columns: tuple[str, ...], row: tuple[str, ...]) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(columns, row, strict=True))
