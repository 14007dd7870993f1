"""What a row has to be, by the rule of undo: what those who still stand have made of it.

A cell is what the last write that stands and changed it has set it to, and what it was at first if
none has. A row is there if the last write that stands and made or removed it has made it. A column
that adds up is what it was at first and all that those who stand have added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.property.constraints import NULL
from tests.property.schemas import Table
from tests.property.states import Cells, Write


def replay(table: Table, writes: Sequence[Write], standing: Iterable[Write]) -> Cells | None:
    """Return the row that those who stand have left; None for no row.

    Args:
        table: as it is now.
        writes: all of the row, in order.
        standing: those of them that count.

    """
    chosen = {id(write) for write in standing}
    row = dict(writes[0].before) if writes[0].before is not None else None
    made = row is not None
    deltas = {c.uid for c in table.columns if c.delta}
    for write in writes:
        if id(write) not in chosen:
            continue
        if write.after is None:
            row, made = None, True
        elif write.before is None or (row is None and made):
            row, made = dict(write.after), True
        elif row is not None:  # what is changed in a row that nobody has made is nothing
            for uid in write.columns:
                cell = write.after[uid]
                if uid in deltas and NULL not in (cell, write.before[uid], row.get(uid, NULL)):
                    cell = f"({_number(row[uid]) + _number(cell) - _number(write.before[uid])})"
                row[uid] = cell
            # Columns that came later, and what was written before they were known.
            row = {**{uid: cell for uid, cell in write.after.items() if uid not in row}, **row}
    return row


def made_over(writes: Sequence[Write], standing: Iterable[Write]) -> bool:
    """Tell whether somebody who stands has made the row where, by now, another one stands."""
    chosen = {id(write) for write in standing}
    there = writes[0].before is not None
    over = False
    for write in writes:
        if id(write) in chosen:
            over = write.before is None and (there or over)
            there = write.after is not None
    return over


def _number(cell: str) -> int:
    return int(cell[1:-1])


def equal(one: Cells | None, other: Cells | None, blind: set[str]) -> bool:
    """Tell whether two rows are the same in the columns both know, but for those in `blind`."""
    if one is None or other is None:
        return one is other
    return all(one[uid] == other[uid] for uid in one.keys() & other.keys() - blind)
