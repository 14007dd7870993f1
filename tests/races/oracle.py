"""What must hold after a race, judged from the rows of history and from what the actors remember.

None of our functions is asked. History is read as rows, in the order of its changes, and every row
of every table is played through it: from what it was at the start to what it is now. Each write has
a token that no other has, so it is plain whose state a change replaced.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from tests.races.scheduler import Deed, Race
from tests.support.undo import Connection, rows
from tests.support.undoing import assert_keys_hold, triggers

#: A row as text, column by column; None: there is none.
State = tuple[str | None, ...] | None


@dataclass(frozen=True)
class Part:
    """Some columns of a table, the token first, that are followed by themselves."""

    table: str
    columns: tuple[str, ...]


DEALS = Part("deals", ("token", "stage", "amount", "touches"))
AGENTS = Part("ledger", ("a_token", "a"))
PEOPLE = Part("ledger", ("p_token", "p"))
FOLDERS = Part("folders", ("token",))
PAPERS = Part("papers", ("token", "folder"))
PARTS = (DEALS, AGENTS, PEOPLE, FOLDERS, PAPERS)


@dataclass(frozen=True)
class Change:
    """What one captured statement did to one row, in the columns of a part."""

    number: int
    invocation: str | None
    operation: str
    void: bool
    key: int
    before: State
    after: State


@dataclass(frozen=True)
class Undo:
    """A revert as it was written down."""

    invocations: tuple[str, ...]
    redo: bool
    mode: str
    partial: bool


@dataclass
class Chain:
    """A row on its way through history: its state, and who has made it so, newest last."""

    state: State
    standing: list[tuple[str, State]] = field(default_factory=list)
    taken: dict[str, tuple[list[tuple[str, State]], State, State]] = field(default_factory=dict)
    #: Since an undo without any row of its own: from there on only whose token went is looked at.
    vague: bool = False


class Judge:
    """Holds a database to what must be true of it after a race.

    Args:
        conn: of a superuser, before the race.
        parts: what is followed.
        gaps: who may have written what was not captured: nobody, people, or everybody.

    """

    def __init__(
        self, conn: Connection, parts: Sequence[Part] = PARTS, *, gaps: str = "nobody"
    ) -> None:
        self.conn = conn
        self.parts = parts
        self.gaps = gaps
        self.start = {part: self._now(part) for part in parts}
        self.armed = triggers(conn)
        self.complaints: list[str] = []
        self.vague = 0
        self._late: set[str | None] = set()

    def accept(self, race: Race, *, allowed: Iterable[tuple[str, str]] = ()) -> None:
        """Fail unless everything holds.

        Args:
            race: that has ended.
            allowed: kinds of actors with SQLSTATEs that are no fault of ours.

        """
        self._accept_states(race, set(allowed))
        self._accept_history(race)
        reverts = self._reverts()
        # What came and went since their snapshot they do not see (docs/limits.md).
        self._late = {
            deed.result.revert_id
            for deed in race.deeds
            if deed.result and deed.level != "read committed"
        }
        self._accept_answers(race, reverts)
        for part in self.parts:
            self._replay(part, reverts, race)
        left = rows(self.conn, "select xid, tracked from agentundo._restoring")
        if left:
            self.complaints.append(f"counters of reverts were left: {left}")
        if triggers(self.conn) != self.armed:
            changed = set(triggers(self.conn)) ^ set(self.armed)
            self.complaints.append(f"triggers are not as they were: {sorted(changed)}")
        errors = rows(self.conn, "select * from agentundo.check() where severity = 'error'")
        if errors:
            self.complaints.append(f"check() reports {errors}")
        assert not self.complaints, "\n".join(said[:800] for said in self.complaints[:10])
        assert_keys_hold(self.conn)

    # What was seen --------------------------------------------------------------------------

    def _accept_states(self, race: Race, allowed: set[tuple[str, str]]) -> None:
        for deed in race.deeds:
            state = deed.sqlstate
            if state is None or (deed.kind, state) in allowed:
                continue
            if state == "40001" and deed.level != "read committed":
                continue
            if deed.kind == "write" and state in ("23503", "23505"):  # of their own making
                continue
            if deed.kind == "undo" and state == "UN001":
                continue
            self.complaints.append(
                f"{deed.actor} ({deed.level}, {deed.kind} {deed.mode} {deed.tag or deed.aim})"
                f" saw {state}: {deed.message}"
            )

    # What was captured ----------------------------------------------------------------------

    def _accept_history(self, race: Race) -> None:
        """Every committed write is there once; of what was rolled back there is nothing."""
        tables = {part.table: part for part in reversed(self.parts)}
        told = Counter[tuple[str, str | None, str, int, str | None]]()
        maybe: list[Deed] = []
        for deed in race.deeds:
            if deed.outcome == "committed":
                told.update(_facts(deed, self.gaps))
            elif deed.outcome == "unknown":
                maybe.append(deed)
        undone = {name for (name,) in rows(self.conn, "select id from agentundo._revert")}
        found = Counter[tuple[str, str | None, str, int, str | None]]()
        for table in tables:
            for part in (part for part in self.parts if part.table == table):
                for change in self._changes(part):
                    if change.invocation in undone or change.before == change.after:
                        continue
                    state = change.after or change.before
                    token = state[0] if state else None
                    found[table, change.invocation, change.operation, change.key, token] += 1
        for deed in maybe:
            facts = Counter(_facts(deed, self.gaps))
            if facts and not facts - (found - told):
                told.update(facts)
        lost, made = told - found, found - told
        if self.gaps == "everybody":
            lost = Counter()
        if lost:
            self.complaints.append(f"{lost.total()} writes are not in history: {sorted(lost)[:5]}")
        if made:
            self.complaints.append(f"history has {made.total()} of none: {list(made)[:5]}")

    def _accept_answers(self, race: Race, reverts: dict[str, Undo]) -> None:
        """Of a revert that was committed there is a record, of one that failed nothing."""
        told = {
            deed.result.revert_id
            for deed in race.deeds
            if deed.result and deed.outcome in ("committed", "unknown") and deed.result.revert_id
        }
        if unknown := reverts.keys() - told:
            asked = [d for d in race.deeds if d.result and d.result.revert_id in unknown]
            self.complaints.append(f"reverts of which nobody was told: {unknown} {asked[:2]}")
        counted: dict[str, Counter[str]] = defaultdict(Counter)
        for name, operation, number in rows(
            self.conn,
            "select invocation, operation, sum(c.rows)::int from agentundo._change c"
            " where not void and invocation in (select id from agentundo._revert) group by 1, 2",
        ):
            counted[name][operation] += number
        answered: dict[str, Counter[str]] = defaultdict(Counter)
        for deed in race.deeds:
            result = deed.result
            if deed.outcome not in ("committed", "unknown") or not result or not result.revert_id:
                continue
            # One that had nothing left to do names the one that had done it, and no rows.
            kinds = zip("DIU", result.counts, strict=False)
            answered[result.revert_id] += Counter(dict(kinds))
            if deed.outcome == "committed" and result.revert_id not in reverts:
                self.complaints.append(f"a committed revert is not recorded: {deed}")
        for name in reverts:
            if counted[name] != answered[name]:
                self.complaints.append(f"{name} told of {answered[name]} and did {counted[name]}")

    # What became of the rows ----------------------------------------------------------------

    def _replay(self, part: Part, reverts: dict[str, Undo], race: Race) -> None:
        chains = {key: Chain(state) for key, state in self.start[part].items()}
        for change in self._changes(part):
            chain = chains.setdefault(change.key, Chain(None))
            if change.void:
                chain.vague = True
                continue
            if change.before == change.after:
                continue
            if change.before != chain.state and not self._may_be_missing(change.before, chain):
                self.complaints.append(
                    f"{part.table} {change.key}: change {change.number} of {change.invocation}"
                    f" begins with {change.before}, but there was {chain.state}"
                )
            undo = reverts.get(change.invocation or "")
            if undo:
                self._undo(part, chain, change, undo, reverts)
            else:
                owner = change.invocation or _writer(change.after)
                chain.standing.append((owner, change.before))
            chain.state = change.after
        now = self._now(part)
        for key in chains.keys() | now.keys():
            chain = chains.setdefault(key, Chain(None))
            state = now.get(key)
            if state != chain.state and not self._may_be_missing(state, chain):
                self.complaints.append(
                    f"{part.table} {key} is {state}, history ends with {chain.state}"
                )
        self.vague += sum(chain.vague for chain in chains.values())
        self._accept_rest(part, chains, reverts)

    def _may_be_missing(self, state: State, chain: Chain) -> bool:
        """Tell whether somebody who is not captured may have left this state."""
        if self.gaps == "nobody":
            return False
        gone = state is None
        if gone or self.gaps == "everybody" or "person" in _writer(state):
            chain.standing.append((_writer(state), chain.state))
            chain.vague = chain.vague or gone
            return True
        return False

    def _undo(
        self, part: Part, chain: Chain, change: Change, undo: Undo, reverts: dict[str, Undo]
    ) -> None:
        """Only what the revert was asked for goes, and the row is what it was before that."""
        where = f"{part.table} {change.key}: {undo.mode} of {undo.invocations}"
        mine, again = _members(undo.invocations, reverts)
        assert change.invocation is not None
        if change.before is None and change.invocation in self._late:
            chain.vague = True
        if not again and change.before and not _wrote(mine, change.before):
            self.complaints.append(f"{where} has overwritten {change.before}")
        if again:
            found = [chain.taken[name] for name in again if name in chain.taken]
            for entries, before, after in found:
                if (change.before, change.after) != (after, before):
                    self.complaints.append(f"{where} again: {change} instead of {before}")
                chain.standing += entries
            if not found:
                self.complaints.append(f"{where} did again what it had not undone: {change}")
            return
        if chain.vague:
            chain.taken[change.invocation] = ([], change.before, change.after)
            return
        entries = []
        while chain.standing and chain.standing[-1][0] in mine:
            entries.insert(0, chain.standing.pop())
        if not entries:
            self.complaints.append(
                f"{where} took back what is not its own: {change}, {chain.standing[-5:]}"
            )
        elif entries[0][1] != change.after:
            self.complaints.append(f"{where} made {change.after} instead of {entries[0][1]}")
        chain.taken[change.invocation] = (entries, change.before, change.after)

    def _accept_rest(self, part: Part, chains: dict[int, Chain], reverts: dict[str, Undo]) -> None:
        """Nothing stands of what was reverted wholly and done by one transaction."""
        last: dict[str, bool] = {}
        for undo in reverts.values():
            mine, again = _members(undo.invocations, reverts)
            for name in mine:
                last[name] = not again and not undo.partial
        for key, chain in chains.items():
            for owner, _ in chain.standing:
                if last.get(owner) and "shared" not in owner and not chain.vague:
                    self.complaints.append(
                        f"{part.table} {key}: {owner} still stands: {chain.standing[-5:]}"
                    )

    # Reading --------------------------------------------------------------------------------

    def _now(self, part: Part) -> dict[int, State]:
        columns = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(c)) for c in part.columns
        )
        query = sql.SQL("select id, {} from {}").format(columns, sql.Identifier(part.table))
        return {key: tuple(state) for key, *state in self.conn.execute(query).fetchall()}

    def _changes(self, part: Part) -> list[Change]:
        """Read what was captured, in the order of changes."""
        ((tracked, history),) = rows(
            self.conn,
            "select id, history::text from agentundo._tracked where relation = %s::regclass",
            part.table,
        )
        values = [self._stored(part.table, tracked, name) for name in ("id", *part.columns)]
        query = sql.SQL(
            "select c.change, c.invocation, c.operation, c.void,"
            " (h._image = 'O') <> c.inverted, {}"
            " from agentundo._change c join {} h on h._change = coalesce(c.source, c.change)"
            " where c.tracked = {} order by c.change"
        ).format(sql.SQL(", ").join(values), sql.SQL(history), sql.Literal(tracked))
        images: dict[tuple[Any, ...], dict[bool, list[State]]] = {}
        for number, name, operation, void, former, key, *state in self.conn.execute(query):
            sides = images.setdefault((number, name, operation, void, int(key)), {})
            sides.setdefault(former, []).append(tuple(state))
        changes = []
        for (number, name, operation, void, key), sides in images.items():
            if any(len(states) > 1 for states in sides.values()):
                self.complaints.append(f"{part.table} {key} is twice in change {number}: {sides}")
            before, after = (sides.get(former, [None])[0] for former in (True, False))
            changes.append(Change(number, name, operation, void, key, before, after))
        return changes

    def _stored(self, table: str, tracked: int, name: str) -> sql.Composable:
        """Return where history has a column, which may have been of several types."""
        found = rows(
            self.conn,
            "select history_column::text from agentundo._column c join pg_attribute a"
            " on a.attrelid = %s::regclass and a.attnum = c.attnum and a.attname = %s"
            " where c.tracked = %s order by since_change desc",
            table,
            name,
            tracked,
        )
        places = [sql.SQL("h.{}::text").format(sql.Identifier(column)) for (column,) in found]
        return sql.SQL("coalesce({})").format(sql.SQL(", ").join(places))

    def _reverts(self) -> dict[str, Undo]:
        found = rows(
            self.conn,
            "select id, invocations, redo, on_conflict, partial from agentundo._revert"
            " order by number",
        )
        return {name: Undo(tuple(taken), *rest) for name, taken, *rest in found}


def _facts(deed: Deed, gaps: str) -> list[tuple[str, str | None, str, int, str | None]]:
    if deed.tag is None and gaps == "people":  # not captured, where only agents are
        return []
    return [(w.table, deed.tag, w.operation, w.key, w.token) for w in deed.writes]


def _writer(state: State) -> str:
    """Return who has written a row: the part of its token before the number."""
    return (state[0] or "").partition("#")[0] if state else "somebody"


def _members(names: Iterable[str], reverts: dict[str, Undo]) -> tuple[set[str], set[str]]:
    """Return the tags that a revert is about, and the reverts that it takes back."""
    mine: set[str] = set()
    again: set[str] = set()
    for name in names:
        if name in reverts:
            members, redone = _members(reverts[name].invocations, reverts)
            mine |= members
            if not redone:
                again.add(name)
        else:
            mine.add(name)
    return mine, again


def _wrote(mine: set[str], state: State) -> bool:
    """Tell whether one of these tags is of whoever has left this state."""
    agents = {name.split(":")[1] for name in mine}
    return _writer(state) in agents or ("shared" in agents and "agent" in _writer(state))
