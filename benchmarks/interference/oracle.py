"""What an undo destroyed and what it brought back, judged from the history alone.

The oracle plays a history in Python, cell by cell, and then looks at the tables that a policy has
left. It knows nothing of the product: no image, no version, no plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.interference.model import (
    AGENT,
    COUNTER,
    PERSON,
    SETUP,
    TABLES,
    History,
    Mark,
    Place,
    Row,
    State,
    Value,
    Values,
    World,
)

#: A row by its number in the history's world, and a column; None stands for the row as a whole.
Cell = tuple[int, str | None]


@dataclass(frozen=True)
class Damage:
    """Something of somebody else's that an undo lost or changed.

    Attributes:
        what: happened to it.
        place: where it is.
        column: None for the row as a whole.
        unseen: whether neither the rows nor what agents wrote tells that a person has been there.

    """

    what: str
    place: Place
    column: str | None = None
    unseen: bool = False

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.what}: {self.place[0]} {self.place[1]} {self.column or ''}".rstrip()


class Oracle:
    """What a history comes to, and what may become of it.

    Args:
        history: what to judge.

    Attributes:
        former: the rows before the invocation.
        left: the rows as the invocation left them.
        current: the rows when the undo is asked for.
        agents: the others but people.
        wanted: what the invocation did in the end, with the values before it.
        eligible: what of that can go back.
        beside: what of the eligible is in a row of which something else cannot.

    """

    def __init__(self, history: History) -> None:
        self._world = world = World()
        for insert in history.before:
            world.apply(SETUP, insert)
        self.former = world.state()
        self._before = {id(row): dict(row.values) for row in world.living()}
        parts = [part for transaction in history.invocation for part in transaction]
        for write in (write for part in parts if part.writer == AGENT for write in part.writes):
            world.apply(AGENT, write)
        self.left = world.state()
        self._after = {id(row): dict(row.values) for row in world.living()}
        later = [part for part in parts if part.writer != AGENT]
        later += [part for transaction in history.later for part in transaction]
        for part in later:
            for write in part.writes:
                world.apply(part.writer, write)
        self.current = world.state()
        self.agents = {part.writer for part in later} - {PERSON}
        self.wanted = self._wanted()
        self._bound = self._passed_on()
        self.eligible = self._eligible()
        contested = {number for number, column in self.wanted.keys() - self.eligible}
        self.beside = {cell for cell in self.eligible if cell[0] in contested}

    # What can go back --------------------------------------------------------------------------

    def _wanted(self) -> dict[Cell, Value]:
        wanted: dict[Cell, Value] = {}
        for number, row in enumerate(self._world.rows):
            before, after = self._before.get(id(row)), self._after.get(id(row))
            if (before is None) != (after is None):
                wanted[number, None] = None
            elif before and after:
                for column, value in before.items():
                    if after[column] != value:
                        wanted[number, column] = value
        return wanted

    def _eligible(self) -> set[Cell]:
        """Return what of it nobody has written since, as far as the rows that stay allow it."""
        cells = {cell for cell in self.wanted if self._untouched(*cell)}
        while True:
            blocked = self._blocked(cells)
            if not blocked:
                return cells
            cells -= blocked

    def _passed_on(self) -> set[int]:
        """Return the rows that took keys from each other in the invocation, if others wrote any."""
        rows = self._world.rows
        had = {
            (r.table, self._before[id(r)]["id"]): n
            for n, r in enumerate(rows)
            if id(r) in self._before
        }
        groups = {n: {n} for n in range(len(rows))}
        for number, row in enumerate(rows):
            after = self._after.get(id(row))
            former = had.get((row.table, after["id"])) if after else None
            if former is not None and former != number:
                joined = groups[number] | groups[former]
                groups |= dict.fromkeys(joined, joined)
        return {
            n
            for n, group in groups.items()
            if len(group) > 1
            and any(_others(rows[m], name) for m in group for name in rows[m].marks)
        }

    def _untouched(self, number: int, column: str | None) -> bool:
        row = self._world.rows[number]
        before = self._before.get(id(row))
        if number in self._bound:
            return False
        if column is None and before is None:  # the agent made it
            return row.alive and not any(_others(row, name) for name in row.marks)
        if column is None:  # the agent deleted it
            assert before
            return row.remover == AGENT and not self._stays(row, before["id"])
        if not row.alive or _others(row, "id"):
            return False
        if column == "id":
            assert before
            return not self._stays(row, before["id"])
        return column == COUNTER or not _others(row, column)

    def _stays(
        self, row: Row, key: Value, ours: Collection[str] = (AGENT,)
    ) -> list[tuple[str, str | None]]:
        """Return who put other rows at a key and who took them away, if others had a hand in it."""
        stays: list[tuple[str, str | None]] = []
        for other in self._world.rows:
            if other is row or other.table != row.table:
                continue
            moves = [(mark.writer, mark.value) for mark in other.marks["id"]]
            moves = [next(group) for _, group in itertools.groupby(moves, key=lambda move: move[1])]
            ends = [*(writer for writer, _ in moves[1:]), other.remover]
            stays += [
                (writer, end) for (writer, at), end in zip(moves, ends, strict=True) if at == key
            ]
        return [stay for stay in stays if not {*stay} <= {None, SETUP, *ours}]

    def _blocked(self, cells: Collection[Cell]) -> set[Cell]:
        """Return those that would break a constraint with rows that stay."""
        rows = self._world.rows
        aim: dict[int, Values] = {n: dict(row.values) for n, row in enumerate(rows) if row.alive}
        for number, column in cells:
            before = self._before.get(id(rows[number]))
            if column is not None:
                aim[number][column] = self._undone(number, column)
            elif before is None:
                del aim[number]
            else:
                aim[number] = dict(before)
        return {cell for cell in cells if self._breaks(cell, aim)}

    def _breaks(self, cell: Cell, aim: Mapping[int, Values]) -> bool:
        """Whether rows would not fit together, and a cell or row is to blame."""
        number, column = cell
        row, values = self._world.rows[number], aim.get(number)
        tables = [(self._world.rows[n].table, v) for n, v in aim.items() if n != number]
        same = [v for table, v in tables if table == row.table]
        if values is not None:
            for unique in ("id", "code"):
                value = values.get(unique)
                if (
                    column in (None, unique)
                    and value is not None
                    and value in [v[unique] for v in same]
                ):
                    return True
            parent = values.get("deal")
            if column in (None, "deal") and parent is not None:
                return not any(table == "deals" and v["id"] == parent for table, v in tables)
        leaves = row.table == "deals" and row.alive and (values is None or column == "id")
        if not leaves or any(v["id"] == row.key for v in same):
            return False
        return any(table != "deals" and v["deal"] == row.key for table, v in tables)

    def _undone(self, number: int, column: str) -> Value:
        """Return the value that a cell has without the invocation."""
        row = self._world.rows[number]
        if column == COUNTER:
            total = row.values[COUNTER]
            assert isinstance(total, int)
            return total - sum(mark.by for mark in row.marks[COUNTER] if mark.writer == AGENT)
        return self._before[id(row)][column]

    # What an undo has done ---------------------------------------------------------------------

    def recovered(self, found: State, taken: Collection[str] = ()) -> set[Cell]:
        """Return what of the eligible is as it was before the invocation.

        Args:
            found: the rows that the undo left.
            taken: other agents whose work the undo was asked to take along.

        """
        places = self._places(found, {AGENT, *taken})
        rows = self._world.rows
        done = set()
        for number, column in self.eligible:
            now = places.get(number)
            if column is None:
                before = self._before.get(id(rows[number]))
                good = now is None if before is None else now is not None and found[now] == before
            elif column == COUNTER and now is not None:
                own = sum(m.by for m in rows[number].marks[column] if m.writer == AGENT)
                allowed = self._allowed(rows[number], column, taken)
                good = found[now][column] in {value - own for value in allowed}
            else:
                good = now is not None and found[now][column] == self._undone(number, column)
            if good:
                done.add((number, column))
        return done

    def damage(self, found: State, taken: Collection[str] = ()) -> list[Damage]:
        """Return what an undo lost or changed that it had no right to.

        Args:
            found: the rows that the undo left.
            taken: other agents whose work the undo was asked to take along.

        """
        ours = {AGENT, *taken}
        places = self._places(found, ours)
        damages = []
        for number, row in enumerate(self._world.rows):
            place = places.get(number)
            if place is None:
                if row.alive and not _all_by(row, ours):
                    seen = (mark for column in row.marks for mark in _seen(row, column, ours))
                    unseen = row.maker in ours and all(mark.writer in ours for mark in seen)
                    damages.append(Damage("row lost", row.place, unseen=unseen))
                continue
            if not row.alive and row.remover not in ours:
                damages.append(Damage("row came back", place))
                continue
            if place != row.place or not row.alive:
                stays = self._stays(row, place[1], ours)
                if stays:
                    what = "row came back where another was made and deleted"
                    damages.append(Damage(what, place, unseen={*stays} == {(PERSON, PERSON)}))
            for column in TABLES[row.table]:
                value = found[place][column]
                if value not in self._allowed(row, column, ours):
                    unseen = value in _popped(_seen(row, column, ours), ours)
                    damages.append(Damage("value changed", place, column, unseen))
        known = set(places.values())
        damages += [Damage("row of nobody's", place) for place in found if place not in known]
        return damages

    def _places(self, found: State, ours: Collection[str]) -> dict[int, Place]:
        """Return where each row stands now: a row is known by the keys that it may have.

        Rows that have to stay are looked for first, and before others those that fit what stands
        there.
        """
        places: dict[int, Place] = {}
        taken: set[Place] = set()
        rows = self._world.rows

        def look(number: int, keys: Collection[Value], *, fits: bool = False) -> None:
            row = rows[number]
            for key in keys:
                assert isinstance(key, int)
                place = row.table, key
                if number in places or place not in found or place in taken:
                    continue
                if not fits or all(
                    found[place][column] in self._allowed(row, column, ours) for column in row.marks
                ):
                    places[number] = place
                    taken.add(place)

        staying = [n for n, row in enumerate(rows) if row.alive and not _all_by(row, ours)]
        undone = [n for n, row in enumerate(rows) if row.alive and _all_by(row, ours)]
        gone = [n for n, row in enumerate(rows) if not row.alive]
        gone.sort(key=lambda number: rows[number].removed, reverse=True)
        for some in (staying, [*undone, *gone]):
            for fits in (True, False):
                for number in some:
                    look(number, _popped(rows[number].marks["id"], ours), fits=fits)
        return places

    def _allowed(self, row: Row, column: str, ours: Collection[str]) -> set[Any]:
        """Return what a cell may hold: as it is, or without the last writes of ours.

        A counter may be without all that one of ours added to it, whoever else added since.
        """
        if column != COUNTER:
            return set(_popped(row.marks[column], ours))
        added = {
            who: [mark.by for mark in row.marks[COUNTER] if mark.writer == who] for who in ours
        }
        values: set[int] = set()
        for count in range(len(added) + 1):
            for some in itertools.combinations(added.values(), count):
                total = row.values[COUNTER]
                assert isinstance(total, int)
                values.add(total - sum(map(sum, some)))
        return values


def _popped(marks: Sequence[Mark], ours: Collection[str]) -> list[Value]:
    """Return the values of a cell as it is, and without the last writes of ours."""
    values = [marks[-1].value]
    for former, mark in zip(marks[-2::-1], marks[:0:-1], strict=True):
        if mark.writer not in ours:
            break
        values.append(former.value)
    return values


def _seen(row: Row, column: str, ours: Collection[str]) -> list[Mark]:
    """Return the writes of a cell, less those that leave no trace where people are not captured.

    That is what people wrote between two writes of ours to the row, if it ended where it had begun.
    """
    marks = row.marks[column]
    written = (mark for cell in row.marks.values() for mark in cell if mark.writer in ours)
    last = max((mark.at for mark in written), default=0)
    if row.remover in ours:
        last = max(last, row.removed)
    seen: list[Mark] = []
    for writer, group in itertools.groupby(marks, key=lambda mark: mark.writer):
        run = list(group)
        if not seen or writer != PERSON or run[-1].value != seen[-1].value or run[-1].at > last:
            seen += run
    return seen


def _others(row: Row, column: str) -> bool:
    """Whether somebody else has written a cell since."""
    return any(mark.writer not in (AGENT, SETUP) for mark in row.marks[column])


def _all_by(row: Row, writers: Collection[str]) -> bool:
    """Whether a row and all that was ever written to it is the work of these."""
    return row.maker in writers and all(
        mark.writer in writers for marks in row.marks.values() for mark in marks
    )
