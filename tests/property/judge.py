"""The judge: plays an undo and holds what the tables say afterwards against the model.

**Sound**: nothing that anybody else has written later and that still stands has changed, unless
`force` was asked. **Complete**: every row that nobody else has touched since is back, bit for bit,
unless a constraint with rows that stay forbids it. **Minimal**: nothing but rows of the set has
been written at all. The model knows who wrote what from table states before and after each
statement (history.py); of the product's answers it uses only whether it refused.

What the documentation names as a limit is not judged, but counted (`Verdicts.exempt`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.property.constraints import violations
from tests.property.history import History
from tests.property.model import equal, made_over, replay
from tests.property.operations import Operation
from tests.property.states import BagWrite, Cells, RowId, State, Write
from tests.support.undo import Result, plan, redo, revert


class Lie(AssertionError):
    """The product did, or refused, what it must not."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind


@dataclass
class Verdicts:
    """Figures of one history or many."""

    undos: int = 0
    refused: int = 0
    rows_restored: int = 0
    rows_left: int = 0
    exempt: Counter[str] = field(default_factory=Counter)

    def add(self, other: Verdicts) -> None:
        """Add another history's."""
        self.undos += other.undos
        self.refused += other.refused
        self.rows_restored += other.rows_restored
        self.rows_left += other.rows_left
        self.exempt += other.exempt


@dataclass
class _Undo:
    """An undo that was done: what it flipped, and in which rows it wrote."""

    id: str
    members: set[str]
    number: int
    flipped: list[Write]
    bags: list[BagWrite]
    written: set[RowId]
    again: bool
    merged: bool
    stands: bool = True


@dataclass
class _Row:
    """One row of a set that is to be undone or redone."""

    id: RowId
    mine: list[Write]
    others_between: list[Write]
    others_after: list[Write]
    now: Cells | None
    target: Cells | None
    blind: set[str]
    over: bool

    @property
    def done(self) -> bool:
        """Is there nothing to do?"""
        return equal(self.now, self.target, self.blind)


class Judge:
    """Judges all undos of one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.verdicts = Verdicts()
        self._undos: list[_Undo] = []
        self._unclear: set[RowId] = set()
        self._unclear_bags: set[str] = set()

    def play(self, operation: Operation) -> None:
        """Undo or redo as asked; raise `Lie` if anything is not as it must be."""
        history = self.history
        history.finish()
        arguments = dict(operation.undo)
        what = arguments.pop("what")
        again = operation.what == "redo"
        chosen = self._choose(what, again=again)
        if not chosen:
            return
        members, target = chosen
        before = history.state()
        planned = [] if again else plan(history.admin, sorted(members), **_of_plan(arguments))
        history.number += 1
        history.script.append(str(operation))
        result: Result | None = None
        try:
            with history.admin.transaction():
                if again:
                    result = redo(history.admin, *members, **arguments)
                else:
                    result = revert(history.admin, sorted(members), **arguments)
        except psycopg.Error as error:
            history.script[-1] += f"  -- {error.sqlstate} {error.diag.message_primary}"
            if error.sqlstate != "UN001":
                raise Lie("error", f"{error.sqlstate} {error}") from error
        else:
            history.script[-1] += f"  -- {result}"
        after = history.state()
        self.verdicts.undos += 1
        if not again:
            _compare_plan(planned, result)
        drawn_in = members
        if result and not again and arguments["on_conflict"] == "cascade":
            drawn_in = members | self._originals(result.invocations)
        flips = self._flips(drawn_in, target)
        rows = self._rows(flips, before, target)
        if result is None:
            self.verdicts.refused += 1
            if (before.rows, before.bags) != (after.rows, after.bags):
                raise Lie("minimal", "refused, and yet something has changed")
            self._justify_refusal(rows, before, arguments, target, drawn_in)
            return
        changed = {
            row
            for row in before.rows.keys() | after.rows.keys()
            if before.rows.get(row) != after.rows.get(row)
        }
        self._judge_changes(changed, rows, after, arguments, target, drawn_in)
        self._judge_what_is_left(changed, rows, after, arguments, target)
        bags = self._judge_bags(drawn_in, target, before, after, arguments)
        self._remember(changed, after, rows, bags, arguments, target, result, drawn_in)

    # What the undo is about -----------------------------------------------------------------------

    def _choose(self, what: list[str], *, again: bool) -> tuple[set[str], _Undo | None] | None:
        """Return what to undo, or which undo: the newest, where nothing of these is left."""
        names = [full for name in what if (full := self.history.full(name))]
        if again:
            undos = [u for u in self._undos if u.stands]
            undos = [u for u in undos if u.members & set(names)] or undos
            members = sorted(undos[-1].members) if undos else []
            return (
                ({next((m for m in members if m in names), members[0])}, undos[-1])
                if undos
                else None
            )
        journal = self.history.journal
        writes: list[Write | BagWrite] = [*journal.writes, *journal.bags]
        writes.sort(key=lambda write: write.number)
        standing = [w.invocation for w in writes if w.invocation and w.stands]
        chosen = {name for name in names if name in standing} or set(standing[-1:])
        return (chosen, None) if chosen else None

    def _originals(self, invocations: list[str]) -> set[str]:
        known = {u.id: u for u in self._undos}
        return set().union(*(known[i].members if i in known else {i} for i in invocations))

    def _flips(self, members: set[str], target: _Undo | None) -> list[Write]:
        if target:
            return [w for w in target.flipped if w.stands == target.again]
        return [w for w in self.history.journal.writes if w.stands and w.invocation in members]

    def _rows(self, flips: list[Write], before: State, target: _Undo | None) -> list[_Row]:
        mine = {id(write) for write in flips}
        rows = []
        for row in sorted({write.row for write in flips}, key=str):
            table = self.history.schema.table(row[0])
            writes = self.history.journal.of(row)
            own = [w for w in writes if id(w) in mine]
            others = [w for w in writes if w.stands and id(w) not in mine]
            first = target.number if target else own[0].number
            last = target.number if target else own[-1].number
            standing = [w for w in writes if w.stands != (id(w) in mine)]
            blind = {c.uid for c in table.columns if c.generated}
            blind |= {
                uid
                for number, name, uid in self.history.journal.retyped
                if name == row[0] and writes[0].number <= number
            }
            rows.append(
                _Row(
                    row,
                    own,
                    [w for w in others if first < w.number < last],
                    [w for w in others if w.number > last],
                    before.cells(row),
                    replay(table, writes, standing),
                    blind,
                    made_over(writes, standing),
                )
            )
        return rows

    def _written(self, members: set[str]) -> set[RowId]:
        """Return what calls wrote, undone or not: of an unclear row the model may be wrong."""
        return {w.row for w in self.history.journal.writes if w.invocation in members}

    # Verdicts -------------------------------------------------------------------------------------

    def _judge_changes(
        self,
        changed: set[RowId],
        rows: list[_Row],
        after: State,
        arguments: dict[str, Any],
        target: _Undo | None,
        members: set[str],
    ) -> None:
        touched = {row.id: row for row in rows}
        forced = arguments["on_conflict"] == "force"
        up = target is not None and not target.again
        for found in sorted(changed, key=str):
            if found not in touched and found in self._unclear & self._written(members):
                self.verdicts.exempt["unclear row"] += 1
                continue
            if found not in touched:
                raise Lie("minimal", f"{found} is none of the set's, and was written")
            row = touched[found]
            if found in self._unclear:
                self.verdicts.exempt["unclear row"] += 1
                continue
            strangers = row.others_between + row.others_after
            if forced and strangers:
                self.verdicts.exempt["forced"] += 1
                continue
            if row.others_between and not row.others_after:
                self.verdicts.exempt["last turn alone"] += 1
                continue
            if self._altered_between(row):
                self.verdicts.exempt["a column was added between two of its writes"] += 1
                self._unclear.add(found)
                continue
            if arguments["merge"] and (carried := self._carried(row, rows)):
                if forced:
                    self.verdicts.exempt["forced"] += 1
                    self._unclear.add(found)
                    continue
                self._judge_carried(row, carried, after, up=up)
                self._unclear.add(found)
                continue
            if strangers and (vacated := self._vacated(row, strangers, up=up)):
                self.verdicts.exempt[vacated] += 1
                self._unclear.add(found)
                continue
            if strangers and not arguments["merge"]:
                limit = self._not_captured(row, strangers)
                if limit:
                    self.verdicts.exempt[limit] += 1
                    continue
                raise Lie("sound", f"{found}: written since by {_names(strangers)}, and changed")
            if not equal(after.cells(found), row.target, row.blind):
                if self._found_otherwise(row) and equal(
                    after.cells(found), row.mine[0].before, row.blind
                ):
                    self.verdicts.exempt["changed without a tag, its maker undone"] += 1
                    self._unclear.add(found)
                    continue
                if arguments["merge"] and self._by_value(row):
                    self.verdicts.exempt["merge by value"] += 1
                    self._unclear.add(found)
                    continue
                raise Lie(
                    "sound" if strangers else "complete",
                    f"{found} is {after.cells(found)} and has to be {row.target}",
                )
            self.verdicts.rows_restored += 1

    def _carried(self, row: _Row, rows: list[_Row]) -> list[_Row]:
        """Return what was moved, from or to this key and on, if others wrote any of it since."""
        moved = [row] if _moved(row) else []
        for one in moved:  # it grows
            moves = {w.number for w in one.mine if w.keys_moved}
            on = [r for r in rows if any(w.number in moves for w in r.mine)]
            moved += [r for r in on if r not in moved]
        return moved if any(r.others_after for r in moved) else []

    def _judge_carried(self, row: _Row, moved: list[_Row], after: State, *, up: bool) -> None:
        """Merge takes a moved row back to its key, with what others have written to it since."""
        if len(moved) != 2 or any(len(r.mine) > 1 for r in moved):
            self.verdicts.exempt["rows that moved, some of them written since"] += 1
            return
        left, taken = sorted(moved, key=lambda r: (r.mine[0].before is None) == up)
        wanted = None
        if row is taken:
            if taken.target is None or left.now is None:
                raise Lie("sound", f"{row.id}: deleted at its other key since, and yet it is back")
            theirs = set().union(*(w.columns for w in left.others_after))
            wanted = {
                u: left.now.get(u, cell) if u in theirs else cell
                for u, cell in taken.target.items()
            }
        if not equal(after.cells(row.id), wanted, row.blind):
            raise Lie("sound", f"{row.id} is {after.cells(row.id)} and has to be {wanted}")
        self.verdicts.rows_restored += 1

    def _judge_what_is_left(
        self,
        changed: set[RowId],
        rows: list[_Row],
        after: State,
        arguments: dict[str, Any],
        target: _Undo | None,
    ) -> None:
        left = [r for r in rows if r.id not in changed and not r.done and r.id not in self._unclear]
        self.verdicts.rows_left += len(left)
        excused = self._excused(rows, arguments, target)
        open_ = [row for row in left if row.id not in excused]
        # Rows of a table that calls gave other keys hang together, whatever of them still stands.
        tables = {name for name, _ in excused}
        bound = [row.id for row in open_ if row.id[0] in tables and self._was_moved(row)]
        self.verdicts.exempt["beside rows that moved"] += len(bound)
        open_ = [row for row in open_ if row.id not in bound]
        for kept, because in (
            (self._passed_on, "a unique value passed on where rows are held"),
            (self._exchanged, "may have changed places"),
        ):
            found = [row.id for row in open_ if kept(row, rows)]
            if found:
                self.verdicts.exempt[because] += len(found)
            open_ = [row for row in open_ if row.id not in found]
        if not open_:
            return
        if arguments["on_conflict"] not in ("skip", "force"):
            raise Lie("complete", f"{[r.id for r in open_]} left alone, without a word")
        for some in (open_, *([row] for row in open_)):
            whole = self._with_units(some, left)
            if not self._violated(after, whole):
                raise Lie("complete", f"{[r.id for r in some]} could have gone back")

    def _justify_refusal(
        self,
        rows: list[_Row],
        state: State,
        arguments: dict[str, Any],
        target: _Undo | None,
        members: set[str],
    ) -> None:
        if self._excused(rows, arguments, target):
            return
        if self._unclear & (self._written(members) | {row.id for row in rows}):
            return
        if self._bag_flips(members, target):  # they can dispute it, too
            return
        if any(
            name in self._unclear_bags or name in self.history.journal.altered
            for name in state.bags
        ):
            return
        if not self._violated(state, rows):
            raise Lie(
                "complete", "refused, though nobody has touched it and no constraint forbids it"
            )

    def _excused(
        self, rows: list[_Row], arguments: dict[str, Any], target: _Undo | None
    ) -> set[RowId]:
        """Return the rows that others have touched since, and those that go along with them."""
        excused = {
            row.id
            for row in rows
            if row.id in self._unclear or self._disputed(row, arguments, target)
        }
        while True:
            units = {r.id[0] for r in rows if r.id in excused and _moved(r)}
            more = {r.id for r in rows if r.id[0] in units and _moved(r)} - excused
            if not more:
                return excused
            excused |= more

    def _disputed(self, row: _Row, arguments: dict[str, Any], target: _Undo | None) -> bool:
        journal, table = self.history.journal, row.id[0]
        numbers = [w.number for w in row.mine]
        if any(n == table and min(numbers) <= number for number, n, _ in journal.retyped):
            return True
        if self._altered_between(row) or row.over or self._merged_and_altered(row):
            return True
        if target and any(row.id in u.written for u in self._undos if u.number > target.number):
            return True
        if not arguments["merge"] and self._subtracted(row):
            return True
        strangers = row.others_between + row.others_after
        if not strangers:
            return False
        if not arguments["merge"] or target or row.others_between:
            return True
        return not self._mergeable(row)

    def _passed_on(self, row: _Row, rows: list[_Row]) -> bool:
        """Does another row of the set have its unique value, and a key keep both in their place?"""
        table, tables = self.history.schema.table(row.id[0]), self.history.schema.tables
        held = any(key.target == table.name for t in tables for key in t.foreign_keys)
        unique = {uid for one in table.uniques for uid in one.columns}
        return held and any(
            row.target is not None and other.now is not None and row.target[u] == other.now[u]
            for other in rows
            if other.id != row.id and other.id[0] == row.id[0]
            for u in unique
        )

    def _exchanged(self, row: _Row, rows: list[_Row]) -> bool:
        """Does another row of the set say now what this one said, and the other way round?"""
        key = set(self.history.schema.table(row.id[0]).key)

        def says(cells: Cells | None) -> Cells | None:
            return cells and {uid: cell for uid, cell in cells.items() if uid not in key}

        def ends(one: _Row) -> tuple[Cells | None, Cells | None]:
            return says(one.mine[0].before), says(one.mine[-1].after)

        before, after = ends(row)
        return any(
            ends(other) == (after, before)
            for other in rows
            if other.id != row.id and other.id[0] == row.id[0]
        )

    def _was_moved(self, row: _Row) -> bool:
        return any(w.keys_moved and w.invocation for w in self.history.journal.of(row.id))

    def _subtracted(self, row: _Row) -> bool:
        """Has a merge taken from a column that adds up? Then only merge knows what to take."""
        adds_up = any(c.delta for c in self.history.schema.table(row.id[0]).columns)
        return adds_up and any(u.merged and row.id in u.written for u in self._undos)

    def _mergeable(self, row: _Row) -> bool:
        """Could the set's columns go back beside those of others, by what was written alone?"""
        table = self.history.schema.table(row.id[0])
        if any(w.before is None or w.after is None for w in (*row.mine, *row.others_after)):
            return False
        if any(not w.columns for w in row.others_after) or any(w.keys_moved for w in row.mine):
            return False
        if any(name == table.name for _, name, _ in self.history.journal.added):
            return False
        if table.capture == "agent":
            return False
        ours = set().union(*(w.columns for w in row.mine))
        theirs = set().union(*(w.columns for w in row.others_after))
        return not ours & theirs - {c.uid for c in table.columns if c.generated}

    def _altered_between(self, row: _Row) -> bool:
        """Do images of before and of after an ALTER tell of it?"""
        first, last = row.mine[0].number, row.mine[-1].number
        return any(n == row.id[0] and first <= at < last for at, n, _ in self.history.journal.added)

    def _merged_and_altered(self, row: _Row) -> bool:
        """Was it undone by merge, and do some of its images know fewer columns than others?"""
        first = self.history.journal.of(row.id)[0].number
        return any(u.merged and row.id in u.written for u in self._undos) and any(
            name == row.id[0] and first <= at for at, name, _ in self.history.journal.added
        )

    def _by_value(self, row: _Row) -> bool:
        return self.history.schema.table(row.id[0]).capture == "agent"

    def _found_otherwise(self, row: _Row) -> bool:
        """Has somebody who was not captured written the row before the set, and stands?

        Then the set found another row than the one that its maker, who is undone, had left; where
        nothing is left to tell whose it is, it goes back to what was found.
        """
        earlier = [
            w for w in self.history.journal.of(row.id) if w.number < row.mine[0].number and w.stands
        ]
        return self._by_value(row) and any(not w.invocation and w.columns for w in earlier)

    def _not_captured(self, row: _Row, strangers: list[Write]) -> str | None:
        """Name the limit by which writes without a tag are not seen with capture = 'agent'."""
        journal = self.history.journal
        table = self.history.schema.table(row.id[0])
        if table.capture == "all" or any(w.invocation for w in strangers):
            return None
        if all(any(w.transaction == m.transaction for m in row.mine) for w in strangers):
            return "untagged in the same transaction"
        if row.now is None and row.mine[-1].after is None:
            return "made and deleted again without a tag"
        known = {c.uid for c in table.columns}
        if not any(w.columns & known for w in strangers) and table.name in journal.rewritten:
            return "written without a tag in columns that are gone, and versions lost"
        last = max(w.number for w in strangers)
        if not any(w.columns for w in strangers) and (
            any(w.number > last for w in self.history.journal.of(row.id))
            or any(name == row.id[0] for name in self.history.journal.rewritten)
        ):
            return "written as it was without a tag, and again or moved by others"
        return None

    def _vacated(self, row: _Row, strangers: list[Write], *, up: bool) -> str | None:
        """Has somebody else made another row at this key, and given that another key again?"""
        left = row.mine[0].before if up else row.mine[-1].after
        gone = row.now is None and left is None
        return "a key that others vacated" if gone and strangers[-1].keys_moved else None

    def _with_units(self, some: list[_Row], left: list[_Row]) -> list[_Row]:
        units = {r.id[0] for r in some if _moved(r)}
        return [r for r in left if r in some or (r.id[0] in units and _moved(r))]

    def _violated(
        self, state: State, rows: list[_Row], equal_rows: dict[str, list[Any]] | None = None
    ) -> list[str]:
        """Name what the state would violate with these rows as they were, and these more."""
        cells = {row: found.cells for row, found in state.rows.items()}
        for row in rows:
            if row.target is None:
                cells.pop(row.id, None)
            else:
                cells[row.id] = row.target
        more = equal_rows or {}
        keyless = {
            name: [dict(row) for row in (*bag.values(), *more.get(name, ()))]
            for name, bag in state.bags.items()
        }
        return violations(self.history.schema, cells, keyless)

    # Tables without a key -------------------------------------------------------------------------

    def _bag_flips(self, members: set[str], target: _Undo | None) -> list[BagWrite]:
        if target:
            return [b for b in target.bags if b.stands == target.again]
        return [b for b in self.history.journal.bags if b.stands and b.invocation in members]

    def _judge_bags(
        self,
        members: set[str],
        target: _Undo | None,
        before: State,
        after: State,
        arguments: dict[str, Any],
    ) -> list[BagWrite]:
        """Count equal rows; return what has gone back, of tables in which all of it has."""
        whole = []
        journal = self.history.journal
        up = target is not None and not target.again
        flips = self._bag_flips(members, target)
        for name in after.bags:
            own = [b for b in journal.bags if b.table == name and b in flips]
            up = target is not None and not target.again
            own = [b for b in own if b.stands != up]
            more: Counter[Any] = Counter()
            for bag in own:
                more.update(bag.more) if up else more.subtract(bag.more)
            done = Counter(after.bags[name].values())
            done.subtract(before.bags[name].values())
            if name in self._unclear_bags or name in journal.altered:
                continue
            others = set().union(
                *(
                    b.written
                    for b in journal.bags
                    if b.table == name
                    and b.stands
                    and b not in own
                    and own
                    and b.number > own[0].number
                )
            )
            # An update is two decisions that hang together.
            ours = set().union(*(b.written for b in own))
            free = not others & ours and not self.history.schema.table(name).foreign_keys
            for row in done.keys() | more.keys():
                low, high = sorted((0, more[row]))
                if not low <= done[row] <= high:
                    raise Lie(
                        "minimal", f"{name}: {done[row]:+} of {row}, the set's own: {more[row]:+}"
                    )
                if free and done[row] != more[row] and not target:
                    back = [row] if more[row] > 0 else []
                    if back and self._violated(after, [], {name: back}):
                        continue
                    raise Lie(
                        "complete", f"{name}: {done[row]:+} of {row} instead of {more[row]:+}"
                    )
            if all(done[row] == more[row] for row in more):
                whole += own
            else:
                self._unclear_bags.add(name)
        return whole

    # After it -------------------------------------------------------------------------------------

    def _remember(
        self,
        changed: set[RowId],
        after: State,
        rows: list[_Row],
        bags: list[BagWrite],
        arguments: dict[str, Any],
        target: _Undo | None,
        result: Result,
        members: set[str],
    ) -> None:
        flipped: list[Write] = []
        up = target is not None and not target.again
        for row in rows:
            strangers = row.others_between + row.others_after
            merged = arguments["merge"] and arguments["on_conflict"] != "force"
            last = row.others_between and not equal(after.cells(row.id), row.target, row.blind)
            if (row.id in changed and (last or (strangers and not merged))) or (
                # It is as it has to be, but not for this undo: whether that counts is a matter of
                # how its turns hang together.
                (row.done and (row.others_between or (strangers and arguments["merge"])))
                or (row.others_between and _moved(row) and row.id not in changed)
            ):
                self._unclear.add(row.id)
            aim = row.mine[-1].after if up else row.mine[0].before
            gone = row.now is None and aim is None
            # Where a redo leaves something, what it did not have to write may stand either way.
            idle = row.done and not (target and result.status == "partially_reverted")
            if row.done and not idle:
                self._unclear.add(row.id)
            if row.id in changed or (idle and (not strangers or gone)):
                flipped += row.mine
        # What came to nothing at one key is not undone while the row is not back at the other.
        kept = {w.number for row in rows for w in row.mine if w.keys_moved and w not in flipped}
        self._unclear |= {w.row for w in flipped if w.row not in changed and w.number in kept}
        flipped = [w for w in flipped if w.row in changed or w.number not in kept]
        if not target:  # of a call that was undone already nothing is undone again
            members = members & self._originals(result.invocations) or members
            flipped = [w for w in flipped if w.invocation in members]
        for write in flipped:
            write.stands = up
        for bag in bags:
            bag.stands = up
        if target:
            target.stands = False
            for undo in self._undos:  # one whose redo is taken back stands again
                undo.stands = undo.stands or (target.again and undo.id in target.members)
        known = [u for u in self._undos if u.id == result.revert_id]
        if known:  # what was left to do came to nothing: no second undo stands for it
            known[0].flipped += flipped
            known[0].bags += bags
        elif result.status in ("reverted", "partially_reverted"):
            assert result.revert_id
            members = members if not target else {target.id}
            self._undos.append(
                _Undo(
                    result.revert_id,
                    members,
                    self.history.number,
                    flipped,
                    bags,
                    changed,
                    up,
                    arguments.get("merge", False),
                )
            )


def _moved(row: _Row) -> bool:
    """Has the set given a row this key, or taken it from it? Those of one table hang together."""
    return any(w.keys_moved for w in row.mine)


def _of_plan(arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in arguments.items() if n not in ("reverted_by", "reason")}


def _compare_plan(planned: list[Any], result: Result | None) -> None:
    """A plan foretells: refused if it shows conflicts, else as many rows as it says."""
    conflicts = [row for row in planned if row.status == "conflict"]
    if (result is None) != bool(conflicts):
        raise Lie("plan", f"{len(conflicts)} conflicts foretold, and the answer was {result}")
    if result is not None:
        acting = Counter(row.action for row in planned if row.status in ("ok", "merge"))
        told = (acting["delete"], acting["insert"], acting["update"])
        if told != (result.rows_deleted, result.rows_inserted, result.rows_updated):
            raise Lie("plan", f"{dict(acting)} foretold, and the answer was {result}")


def _names(writes: list[Write]) -> list[str]:
    return [w.invocation or "somebody" for w in writes]
