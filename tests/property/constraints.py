"""Which constraints a state of the tables would violate, by a reading of the rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.property.schemas import ForeignKey, Schema, Table
from tests.property.states import Cells, RowId

NULL = "()"
#: Ranges of the generated values that overlap others than themselves.
_OVERLAPS = {frozenset(("[1,3)", "[2,5)"))}

Rows = Mapping[RowId, Cells]


def violations(schema: Schema, rows: Rows, keyless: Mapping[str, Iterable[Cells]]) -> list[str]:
    """Return what is violated, in words; empty if the state may stand.

    Args:
        schema: the tables as they are now.
        rows: all rows of tables with a key.
        keyless: all rows of those without.

    """
    by_table: dict[str, list[Cells]] = {
        t.name: list(keyless.get(t.name, ())) for t in schema.tables
    }
    for (name, _), cells in rows.items():
        by_table[name].append(cells)
    found = []
    for table in schema.tables:
        own = by_table[table.name]
        for unique in table.uniques:
            taken = Counter(_values(cells, unique.columns) for cells in own)
            found += [
                f"{table.name}: {v} twice" for v, n in taken.items() if n > 1 and NULL not in v
            ]
        found += _excluded(table, own)
        if table.checked:
            found += [
                f"{table.name}: check of {cells[table.checked]}"
                for cells in own
                if cells.get(table.checked, NULL) != NULL and int(cells[table.checked][1:-1]) < -5
            ]
        for key in table.foreign_keys:
            found += _orphans(table, key, own, by_table[key.target])
    return found


def _values(cells: Cells, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cells.get(uid, NULL) for uid in columns)


def _excluded(table: Table, own: list[Cells]) -> list[str]:
    if not table.exclusion:
        return []
    ranges = [
        cells[table.exclusion].strip('()"') for cells in own if cells[table.exclusion] != NULL
    ]
    ranges = [text if text.endswith(")") else text + ")" for text in ranges]
    return [
        f"{table.name}: {one} overlaps {other}"
        for place, one in enumerate(ranges)
        for other in ranges[:place]
        if one == other or frozenset((one, other)) in _OVERLAPS
    ]


def _orphans(table: Table, key: ForeignKey, own: list[Cells], targets: list[Cells]) -> list[str]:
    there = {_values(cells, key.target_columns) for cells in targets}
    return [
        f"{table.name}: no {key.target} {value}"
        for value in (_values(cells, key.columns) for cells in own)
        if NULL not in value and value not in there
    ]
