"""What holds when a migration runs over tracked tables that an agent has written before.

The same migration runs in a twin: a database without agentundo, in which only what is to stay was
ever written. Once the agent's calls have gone back, both must hold the same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyagentundo.testing._state import TableState
from tests.support.moving import errors
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import assert_undoable, run
from tests.support.undo import Connection, plan, redo, refused, revert, write

#: Key of a deal → why it cannot go back; None: it goes back.
Outcome = dict[int, str | None]

#: What an agent does in two calls, and a person after that; written for tables of both tools.
FIRST = (
    "update deals set stage = 'Won', owner = 'bot' where id = 1",
    "delete from notes where deal_id = 3",
    "delete from deals where id = 3",
    "insert into deals (id, stage, owner, amount, closed, slug)"
    " values (6, 'Open', 'bot', 600, '2026-06-06 06:00', 's6')",
)
SECOND = "update deals set amount = amount + 100 where id in (2, 5)"
PERSON = "update deals set owner = 'eve' where id = 2"
STAYS = (f"{SECOND[: SECOND.index('where')]} where id = 2", PERSON)
FILL = (
    "insert into deals (id, stage, owner, amount, closed, slug) values"
    " (1, 'Open', 'dana', 100, '2026-01-01 01:00', 's1'), (2, 'Open', 'dana', 200, null, 's2'),"
    " (3, 'Lost', null, 300, '2026-07-03 03:00', 's3'), (4, 'Won', 'dana', 400, null, 's4'),"
    " (5, 'Open', 'dana', 500, '2026-01-05 05:00', 's5')",
    "insert into notes (id, deal_id, body) values (10, 1, 'one'), (30, 3, 'three')",
)


@dataclass(frozen=True)
class Migrated:
    """What a migration leaves.

    Attributes:
        deals: the name that the table of deals has.
        others: the names of all others that hold rows.
        first: what becomes of the rows of deals that the call `first` wrote, if not all go back.
        writes: what an agent writes afterwards.

    """

    deals: str = "deals"
    others: Sequence[str] = ("notes",)
    first: Outcome = field(default_factory=dict)
    second: Outcome = field(default_factory=dict)
    writes: Sequence[str] = (
        "update deals set owner = 'later', stage = 'Lost' where id in (1, 4)",
        "update notes set body = 'later'",
        "delete from deals where id = 5",
    )


def assert_survives(
    db: Connection,
    twin: Connection,
    migrate: Callable[[Connection], None],
    expected: Migrated,
    *,
    followed: bool,
) -> None:
    """Let an agent write before and after a migration, and take both back.

    Args:
        db: to a database with agentundo, whose tables are filled and tracked.
        twin: to another with the same tables and rows, without agentundo.
        migrate: runs the migration in the database of a connection.
        expected: what it leaves.
        followed: whether event triggers follow it; else `sync` is called.

    """
    tables = (expected.deals, *expected.others)
    run(twin, *STAYS)
    for number, statements in (("first", FIRST), ("second", (SECOND,))):
        write(db, number, ";".join(statements))
    run(db, PERSON)
    migrate(twin)
    migrate(db)
    if not followed:
        db.execute("select agentundo.sync()")
    assert errors(db) == []

    left = snapshot(db, *tables)
    first = {1: None, 3: None, 6: None} | expected.first
    second = {2: "row_changed", 5: None} | expected.second
    assert _outcome(db, "first", expected.deals) == first
    assert _outcome(db, "second", expected.deals) == second
    for call, outcome in (("first", first), ("second", second)):
        if any(outcome.values()):
            with refused("UN001"):
                revert(db, call)
    assert_same(left, snapshot(db, *tables))

    assert_undoable(db, tables, *expected.writes, invocation="later")
    assert_same(left, snapshot(db, *tables))
    done = {call: revert(db, call, on_conflict="skip") for call in ("first", "second")}
    stuck = {key for outcome in (first, second) for key, reason in outcome.items() if reason}
    keys = {expected.deals: stuck, "notes": {30} if 3 in stuck else set()}
    wanted = {
        table: _partly(left[table], state, keys.get(table, set()))
        for table, state in snapshot(twin, *tables).items()
    }
    assert_same(wanted, snapshot(db, *tables))
    for call, result in done.items():
        if result.rows_deleted + result.rows_inserted + result.rows_updated:
            assert redo(db, call).status == "reverted"
    assert_same(left, snapshot(db, *tables))


def _partly(left: TableState, undone: TableState, stuck: set[int]) -> TableState:
    """Return the rows of `undone`, but those with the keys that are stuck as they were left."""
    assert left.columns == undone.columns
    if not stuck:
        return undone
    place = undone.columns.index("id")
    names = {f"'{key}'" for key in stuck}
    back = [row for row in undone.rows if row[place] not in names]
    kept = [row for row in left.rows if row[place] in names]
    return TableState(left.columns, tuple(sorted(back + kept)))


def _outcome(db: Connection, call: str, deals: str) -> Outcome:
    """Return why each deal of a plan cannot go back."""
    planned = plan(db, call)
    name = deals if "." in deals else f"public.{deals}"
    return {(row.key or {}).get("id", 0): row.reason for row in planned if row.relation == name}
