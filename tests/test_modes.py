"""What each mode does with each kind of obstacle, and that a plan says so beforehand.

The tests of one obstacle stand together: abort, skip, merge, cascade, force. The later writer is
tagged (`later`) where it matters to cascade, a person without a tag otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    IMPATIENT,
    Refusal,
    Result,
    plan,
    redo,
    refused,
    revert,
    revert_as_planned,
    rows,
    scalar,
    status,
    write,
)

pytestmark = pytest.mark.core

TABLES = ("public.deals", "public.notes")
FORCE = {"on_conflict": "force", "reverted_by": "dana", "reason": "wrong deal"}

# What each mode is called in this file, and the arguments that ask for it.
MODES: dict[str, dict[str, Any]] = {
    "abort": {},
    "skip": {"on_conflict": "skip"},
    "merge": {"merge": True},
    "skip and merge": {"on_conflict": "skip", "merge": True},
    "cascade": {"on_conflict": "cascade"},
    "cascade and merge": {"on_conflict": "cascade", "merge": True},
    "force": FORCE,
    "force and merge": {**FORCE, "merge": True},
}
#: Modes in which an obstacle put up by somebody without a tag stays one.
HELPLESS = ("abort", "merge", "cascade", "cascade and merge")


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with deals and the notes that refer to them, both tracked."""
    conn = connect(options=IMPATIENT)
    conn.execute(
        "create table deals"
        " (id int primary key, stage text, owner text, amount int, code text unique)"
    )
    conn.execute("create table notes (id int primary key, deal int references deals, body text)")
    conn.execute(
        "insert into deals select n, 'New', 'eve', 100 * n, 'c' || n from generate_series(1, 5) n"
    )
    conn.execute("insert into notes values (1, 1, 'first')")
    conn.execute("select agentundo.track('deals'), agentundo.track('notes')")
    return conn


def undo(db: Connection, mode: str, what: str | list[str] = "agent") -> Result | Refusal:
    """Take back in a mode, as planned."""
    return revert_as_planned(db, TABLES, what, **MODES[mode])


def deal(db: Connection, number: int) -> tuple[Any, ...] | None:
    """Return stage, owner and amount of a deal."""
    found = rows(db, "select stage, owner, amount from deals where id = %s", number)
    return found[0] if found else None


def assert_refused(outcome: Result | Refusal, reason: str, *columns: str) -> Refusal:
    """Fail unless one row stood in the way, for this reason and over these columns."""
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reasons == [reason]
    assert outcome.detail["total"] == 1
    if columns:
        assert sorted(outcome.conflicts[0]["columns"]) == sorted(columns)
    return outcome


def assert_done(outcome: Result | Refusal, state: str, *counts: int) -> Result:
    """Fail unless it did this: rows deleted, inserted, updated, skipped, conflicts."""
    assert isinstance(outcome, Result), outcome
    assert outcome.status == state
    assert outcome.counts == counts
    return outcome


# Somebody changed other columns of the row ------------------------------------------------------


@pytest.fixture
def other_column(db: Connection) -> Connection:
    """An agent changes the stages of two deals, then a person the owner of the first."""
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    db.execute("update deals set owner = 'mia' where id = 1")
    return db


@pytest.mark.parametrize("mode", ["abort", "cascade"])
def test_other_column_of_an_untagged_writer_is_a_conflict(
    other_column: Connection, mode: str
) -> None:
    assert_refused(undo(other_column, mode), "row_changed", "owner")
    assert deal(other_column, 2) == ("Won", "eve", 200)


def test_other_column_skip_leaves_the_row(other_column: Connection) -> None:
    assert_done(undo(other_column, "skip"), "partially_reverted", 0, 0, 1, 1, 1)
    assert deal(other_column, 1) == ("Won", "mia", 100)
    assert deal(other_column, 2) == ("New", "eve", 200)


@pytest.mark.parametrize(
    "mode", ["merge", "skip and merge", "cascade and merge", "force and merge"]
)
def test_other_column_merge_puts_back_the_agents_columns(
    other_column: Connection, mode: str
) -> None:
    planned = {row.key["id"]: row for row in plan(other_column, "agent", merge=True) if row.key}
    assert (planned[1].status, planned[1].columns) == ("merge", ["stage"])
    assert planned[2].status == "ok"
    assert_done(undo(other_column, mode), "reverted", 0, 0, 2, 0, 0)
    assert deal(other_column, 1) == ("New", "mia", 100)


def test_other_column_cascade_takes_the_later_tagged_writer_along(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    write(db, "later", "update deals set owner = 'mia' where id = 1")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 2, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "later") == "reverted"


def test_other_column_cascade_with_merge_leaves_the_later_writer_alone(db: Connection) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    write(db, "later", "update deals set owner = 'mia' where id = 1")
    result = assert_done(undo(db, "cascade and merge"), "reverted", 0, 0, 2, 0, 0)
    assert result.invocations == ["agent"]
    assert deal(db, 1) == ("New", "mia", 100)
    assert status(db, "later") == "committed"


def test_other_column_force_puts_back_the_whole_row(other_column: Connection) -> None:
    assert_done(undo(other_column, "force"), "reverted", 0, 0, 2, 0, 0)
    assert deal(other_column, 1) == ("New", "eve", 100)


# Somebody changed the same column ---------------------------------------------------------------


@pytest.fixture
def same_column(db: Connection) -> Connection:
    """An agent changes stage and amount of two deals, then a person the stage of the first."""
    write(db, "agent", "update deals set stage = 'Won', amount = 0 where id in (1, 2)")
    db.execute("update deals set stage = 'Negotiation' where id = 1")
    return db


@pytest.mark.parametrize("mode", HELPLESS)
def test_same_column_is_a_conflict(same_column: Connection, mode: str) -> None:
    """Merge takes a row wholly or not at all: `amount` alone would make a row nobody wrote."""
    assert_refused(undo(same_column, mode), "row_changed", "stage")
    assert deal(same_column, 1) == ("Negotiation", "eve", 0)


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_same_column_skip_leaves_the_row(same_column: Connection, mode: str) -> None:
    assert_done(undo(same_column, mode), "partially_reverted", 0, 0, 1, 1, 1)
    assert deal(same_column, 1) == ("Negotiation", "eve", 0)
    assert deal(same_column, 2) == ("New", "eve", 200)


@pytest.mark.parametrize("mode", ["cascade", "cascade and merge"])
def test_same_column_cascade_takes_the_later_tagged_writer_along(db: Connection, mode: str) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "later", "update deals set stage = 'Lost' where id in (1, 3)")
    result = assert_done(undo(db, mode), "reverted", 0, 0, 2, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("mode", ["force", "force and merge"])
def test_same_column_force_puts_back_the_whole_row(same_column: Connection, mode: str) -> None:
    assert_done(undo(same_column, mode), "reverted", 0, 0, 2, 0, 0)
    assert deal(same_column, 1) == ("New", "eve", 100)


# Somebody wrote the row again, with the same values ---------------------------------------------


@pytest.fixture
def rewritten(db: Connection) -> Connection:
    """An agent changes the stage of two deals, then a person sets the first to the same."""
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    db.execute("update deals set stage = 'Won' where id = 1")
    return db


@pytest.mark.parametrize("mode", HELPLESS)
def test_rewritten_is_a_conflict(rewritten: Connection, mode: str) -> None:
    assert_refused(undo(rewritten, mode), "row_rewritten")


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_rewritten_skip_leaves_the_row(rewritten: Connection, mode: str) -> None:
    assert_done(undo(rewritten, mode), "partially_reverted", 0, 0, 1, 1, 1)
    assert deal(rewritten, 1) == ("Won", "eve", 100)
    assert deal(rewritten, 2) == ("New", "eve", 200)


def test_rewritten_cascade_takes_the_later_tagged_writer_along(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "later", "update deals set stage = 'Won' where id = 1")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("mode", ["force", "force and merge"])
def test_rewritten_force_puts_back_the_row(rewritten: Connection, mode: str) -> None:
    assert_done(undo(rewritten, mode), "reverted", 0, 0, 2, 0, 0)
    assert deal(rewritten, 1) == ("New", "eve", 100)


# The agent inserted it, somebody changed it -----------------------------------------------------


@pytest.fixture
def inserted(db: Connection) -> Connection:
    """An agent inserts two deals, then a person changes the first of them."""
    write(
        db,
        "agent",
        "insert into deals values (6, 'New', 'bot', 6, 'c6'), (7, 'New', 'bot', 7, 'c7')",
    )
    db.execute("update deals set owner = 'mia' where id = 6")
    return db


@pytest.mark.parametrize("mode", HELPLESS)
def test_inserted_and_changed_since_is_a_conflict(inserted: Connection, mode: str) -> None:
    """Merge never deletes what somebody else has changed."""
    assert_refused(undo(inserted, mode), "row_changed", "owner")
    assert deal(inserted, 7) == ("New", "bot", 7)


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_inserted_and_changed_since_skip_leaves_the_row(inserted: Connection, mode: str) -> None:
    assert_done(undo(inserted, mode), "partially_reverted", 1, 0, 0, 1, 1)
    assert deal(inserted, 6) == ("New", "mia", 6)
    assert deal(inserted, 7) is None


def test_inserted_and_changed_since_cascade_if_the_writer_is_tagged(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "insert into deals values (6, 'New', 'bot', 6, 'c6')")
    write(db, "later", "update deals set owner = 'mia' where id = 6")
    result = assert_done(undo(db, "cascade"), "reverted", 1, 0, 0, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("mode", ["force", "force and merge"])
def test_inserted_and_changed_since_force_deletes(inserted: Connection, mode: str) -> None:
    assert_done(undo(inserted, mode), "reverted", 2, 0, 0, 0, 0)
    assert deal(inserted, 6) is None


def test_inserted_and_changed_since_force_does_not_delete_what_others_refer_to(
    inserted: Connection,
) -> None:
    inserted.execute("insert into notes values (2, 6, 'mine')")
    assert_refused(undo(inserted, "force"), "has_dependents")
    assert deal(inserted, 6) == ("New", "mia", 6)


# Somebody deleted the row -----------------------------------------------------------------------


@pytest.fixture
def deleted(db: Connection) -> Connection:
    """An agent changes two deals, then a person deletes the first."""
    write(db, "agent", "update deals set stage = 'Won' where id in (2, 3)")
    db.execute("delete from deals where id = 2")
    return db


@pytest.mark.parametrize("mode", HELPLESS)
def test_row_deleted_is_a_conflict(deleted: Connection, mode: str) -> None:
    assert_refused(undo(deleted, mode), "row_deleted")


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_row_deleted_skip_leaves_it_gone(deleted: Connection, mode: str) -> None:
    assert_done(undo(deleted, mode), "partially_reverted", 0, 0, 1, 1, 1)
    assert deal(deleted, 2) is None
    assert deal(deleted, 3) == ("New", "eve", 300)


def test_row_deleted_cascade_if_the_deleter_is_tagged(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 2")
    write(db, "later", "delete from deals where id = 2")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 1, 0, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("mode", ["force", "force and merge"])
def test_row_deleted_force_inserts_it_again(deleted: Connection, mode: str) -> None:
    assert_done(undo(deleted, mode), "reverted", 0, 1, 1, 0, 0)
    assert deal(deleted, 2) == ("New", "eve", 200)


def test_inserted_row_that_somebody_deleted_needs_nothing_more(db: Connection) -> None:
    """What the agent inserted is gone, as the revert wants it: no conflict, nothing to do."""
    write(
        db,
        "agent",
        "insert into deals values (6, 'New', 'bot', 6, 'c6'), (7, 'New', 'bot', 7, 'c7')",
    )
    db.execute("delete from deals where id = 6")
    assert {(r.key or {})["id"]: r.status for r in plan(db, "agent")} == {6: "done", 7: "ok"}
    assert_done(undo(db, "abort"), "reverted", 1, 0, 0, 0, 0)


# The agent deleted the row, and there is one under its key again --------------------------------


@pytest.fixture
def exists(db: Connection) -> Connection:
    """An agent deletes two deals, then a person makes one of them anew."""
    write(db, "agent", "delete from deals where id in (2, 3)")
    db.execute("insert into deals values (2, 'Won', 'mia', 5, 'm2')")
    return db


@pytest.mark.parametrize("mode", HELPLESS)
def test_row_exists_is_a_conflict(exists: Connection, mode: str) -> None:
    assert_refused(undo(exists, mode), "row_exists")
    assert deal(exists, 3) is None


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_row_exists_skip_leaves_it(exists: Connection, mode: str) -> None:
    assert_done(undo(exists, mode), "partially_reverted", 0, 1, 0, 1, 1)
    assert deal(exists, 2) == ("Won", "mia", 5)
    assert deal(exists, 3) == ("New", "eve", 300)


def test_row_exists_with_the_very_same_values_is_still_somebody_elses(db: Connection) -> None:
    write(db, "agent", "delete from deals where id = 2")
    db.execute("insert into deals values (2, 'New', 'eve', 200, 'c2')")
    assert_refused(undo(db, "abort"), "row_exists")


def test_row_exists_cascade_if_the_writer_is_tagged(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "delete from deals where id = 2")
    write(db, "later", "insert into deals values (2, 'Won', 'bot', 5, 'm2')")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("mode", ["force", "force and merge"])
def test_row_exists_force_overwrites(exists: Connection, mode: str) -> None:
    assert_done(undo(exists, mode), "reverted", 0, 1, 1, 0, 0)
    assert deal(exists, 2) == ("New", "eve", 200)


# Somebody took the unique value -----------------------------------------------------------------

STUBBORN = (*HELPLESS, "force", "force and merge")


@pytest.fixture
def taken(db: Connection) -> Connection:
    """An agent changes the codes of two deals, then a person gives one of the old ones away."""
    write(db, "agent", "update deals set code = 'x' || id where id in (2, 3)")
    db.execute("insert into deals values (8, 'New', 'mia', 8, 'c2')")
    return db


@pytest.mark.parametrize("mode", STUBBORN)
def test_unique_taken_is_a_conflict_even_for_force(taken: Connection, mode: str) -> None:
    outcome = assert_refused(undo(taken, mode), "unique_taken")
    assert outcome.conflicts[0]["key"] == {"id": 2}
    assert "deals_code_key" in str(outcome.detail)


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_unique_taken_skip_leaves_the_row(taken: Connection, mode: str) -> None:
    assert_done(undo(taken, mode), "partially_reverted", 0, 0, 1, 1, 1)
    assert rows(taken, "select code from deals where id in (2, 3) order by id") == [
        ("x2",),
        ("c3",),
    ]


def test_unique_taken_cascade_if_the_writer_is_tagged(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set code = 'x2' where id = 2")
    write(db, "later", "insert into deals values (8, 'New', 'bot', 8, 'c2')")
    result = assert_done(undo(db, "cascade"), "reverted", 1, 0, 1, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


# Somebody refers to what would go ---------------------------------------------------------------


@pytest.fixture
def dependents(db: Connection) -> Connection:
    """An agent inserts two deals, then a person writes a note to the first."""
    write(
        db,
        "agent",
        "insert into deals values (6, 'New', 'bot', 6, 'c6'), (7, 'New', 'bot', 7, 'c7')",
    )
    db.execute("insert into notes values (2, 6, 'mine')")
    return db


@pytest.mark.parametrize("mode", STUBBORN)
def test_has_dependents_is_a_conflict_even_for_force(dependents: Connection, mode: str) -> None:
    outcome = assert_refused(undo(dependents, mode), "has_dependents")
    assert outcome.conflicts[0]["key"] == {"id": 6}
    assert "notes_deal_fkey" in str(outcome.detail)


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_has_dependents_skip_leaves_the_row(dependents: Connection, mode: str) -> None:
    assert_done(undo(dependents, mode), "partially_reverted", 1, 0, 0, 1, 1)
    assert deal(dependents, 6) == ("New", "bot", 6)
    assert deal(dependents, 7) is None


def test_has_dependents_cascade_if_the_writer_is_tagged(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "insert into deals values (6, 'New', 'bot', 6, 'c6')")
    write(db, "later", "insert into notes values (2, 6, 'bot')")
    result = assert_done(undo(db, "cascade"), "reverted", 2, 0, 0, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


def test_has_dependents_skip_takes_in_what_depends_on_it(db: Connection) -> None:
    """One conflict, two rows skipped: the deal must stay because its changed note stays."""
    write(db, "agent", "insert into deals values (6, 'New', 'bot', 6, 'c6')")
    write(db, "agent", "insert into notes values (2, 6, 'bot')")
    db.execute("update notes set body = 'mine' where id = 2")
    assert_done(undo(db, "skip"), "partially_reverted", 0, 0, 0, 2, 1)
    assert rows(db, "select deal, body from notes where id = 2") == [(6, "mine")]
    assert deal(db, 6) == ("New", "bot", 6)


# Somebody took away what a restored row refers to -----------------------------------------------


@pytest.fixture
def orphan(db: Connection) -> Connection:
    """An agent deletes notes of two deals, then a person deletes the first deal."""
    db.execute("insert into notes values (2, 2, 'second'), (3, 3, 'third')")
    write(db, "agent", "delete from notes where id in (2, 3)")
    db.execute("delete from deals where id = 2")
    return db


@pytest.mark.parametrize("mode", STUBBORN)
def test_missing_parent_is_a_conflict_even_for_force(orphan: Connection, mode: str) -> None:
    outcome = assert_refused(undo(orphan, mode), "missing_parent")
    assert outcome.conflicts[0]["key"] == {"id": 2}
    assert "notes_deal_fkey" in str(outcome.detail)


@pytest.mark.parametrize("mode", ["skip", "skip and merge"])
def test_missing_parent_skip_leaves_the_row_out(orphan: Connection, mode: str) -> None:
    assert_done(undo(orphan, mode), "partially_reverted", 0, 1, 0, 1, 1)
    assert rows(orphan, "select id from notes order by id") == [(1,), (3,)]


def test_missing_parent_cascade_brings_the_parent_back_too(db: Connection) -> None:
    db.execute("insert into notes values (2, 2, 'second')")
    before = snapshot(db, *TABLES)
    write(db, "agent", "delete from notes where id = 2")
    write(db, "later", "delete from deals where id = 2")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 2, 0, 0, 0)
    assert sorted(result.invocations) == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


def test_missing_parent_skip_takes_in_what_depends_on_it(db: Connection) -> None:
    """One conflict, two rows skipped: the note cannot come back without its deal."""
    db.execute("insert into notes values (2, 2, 'second')")
    write(db, "agent", "delete from notes where id = 2; delete from deals where id = 2")
    db.execute("insert into deals values (8, 'New', 'mia', 8, 'c2')")  # takes the deal's code
    assert_done(undo(db, "skip"), "partially_reverted", 0, 0, 0, 2, 1)
    assert deal(db, 2) is None
    assert rows(db, "select id from notes") == [(1,)]


# What no mode can overcome ----------------------------------------------------------------------


def test_constraint_added_since(db: Connection) -> None:
    """The row that would break the rule stays in every mode; skip puts back the others."""
    write(db, "agent", "update deals set amount = 1000 + id")
    db.execute("alter table deals add check (amount >= 200)")
    for mode in STUBBORN:
        assert_refused(undo(db, mode), "constraint")
    assert_done(undo(db, "skip"), "partially_reverted", 0, 0, 4, 1, 1)
    assert rows(db, "select id, amount from deals order by id")[:2] == [(1, 1001), (2, 200)]


def test_column_retyped_since(db: Connection) -> None:
    """Former values that the column can no longer take are a conflict, in every mode."""
    write(db, "agent", "update deals set owner = '7' where id = 2")
    db.execute("update deals set owner = '0' where id <> 2")
    db.execute("alter table deals alter owner type int using owner::int")
    for mode in STUBBORN:
        assert_refused(undo(db, mode), "schema_changed")
    outcome = undo(db, "skip")
    assert_done(outcome, "partially_reverted", 0, 0, 0, 1, 1)
    assert scalar(db, "select owner from deals where id = 2") == 7


def test_erased_row(db: Connection) -> None:
    """The images of the erased row are gone: it stays in every mode; skip puts back the other."""
    write(db, "agent", "update deals set stage = 'Won' where id in (2, 3)")
    db.execute("""select agentundo.erase('deals', '{"id": 2}', 'request 1')""")
    for mode in STUBBORN:
        outcome = undo(db, mode)
        assert isinstance(outcome, Refusal)
        assert outcome.reasons == ["erased"]
    assert_done(undo(db, "skip"), "partially_reverted", 0, 0, 1, 1, 1)
    assert deal(db, 2) == ("Won", "eve", 200)
    assert deal(db, 3) == ("New", "eve", 300)


@pytest.mark.parametrize("mode", [*STUBBORN, "skip"])
def test_row_that_the_reverter_may_not_see(
    db: Connection, connect: Connect, make_role: Any, mode: str
) -> None:
    """Nobody decides about rows that row-level security hides from him."""
    role = make_role(member_of="agentundo_operator")
    db.execute(f"grant select on deals, notes to {role}".encode())
    write(db, "agent", "update deals set stage = 'Won' where id = 2")
    db.execute("alter table deals enable row level security")
    before = snapshot(db, *TABLES)
    operator = connect(user=role, options=IMPATIENT)
    assert {row.reason for row in plan(operator, "agent")} == {"not_visible"}
    if mode == "skip":
        assert revert(operator, "agent", **MODES[mode]).counts == (0, 0, 0, 1, 1)
    else:
        with refused("UN001") as caught:
            revert(operator, "agent", **MODES[mode])
        assert caught.reasons == ["not_visible"]
    assert_same(before, snapshot(db, *TABLES))


# The error --------------------------------------------------------------------------------------


def test_conflict_names_rows_and_the_way_out_but_no_values(db: Connection) -> None:
    """DETAIL goes to the server log, so it holds keys, reasons and columns only."""
    db.execute("update deals set stage = 'secret0', owner = 'secret0'")
    write(db, "agent", "update deals set stage = 'secret1', owner = 'secret2'")
    db.execute("update deals set stage = 'secret3' where id = 4")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.conflicts == [
        {
            "relation": "public.deals",
            "key": {"id": 4},
            "reason": "row_changed",
            "columns": ["stage"],
            "invocation": "agent",
        }
    ]
    assert "public.deals" in caught.message
    assert "4" in caught.message
    for way_out in ("merge", "skip", "cascade", "force", "plan"):
        assert way_out in caught.hint
    assert "secret" not in f"{caught.message} {caught.hint} {caught.detail}"


def test_constraint_conflict_does_not_tell_values_either(db: Connection) -> None:
    db.execute("update deals set code = 'secret0', stage = 'secret1' where id = 2")
    write(db, "agent", "update deals set code = 'secret2' where id = 2")
    db.execute("insert into deals values (8, 'secret1', 'secret2', 4711, 'secret0')")
    with refused("UN001") as caught:
        revert(db, "agent")
    text = f"{caught.message} {caught.hint} {caught.detail}"
    assert "secret" not in text
    assert "4711" not in text


def test_conflict_tells_the_first_20_rows_and_the_total(db: Connection) -> None:
    db.execute(
        "insert into deals select n, 'New', 'eve', n, 'd' || n from generate_series(101, 150) n"
    )
    write(db, "agent", "update deals set stage = 'Won' where id > 100")
    db.execute("update deals set stage = 'Lost' where id between 101 and 130")
    outcome = undo(db, "abort")
    assert isinstance(outcome, Refusal)
    assert len(outcome.conflicts) == 20
    assert outcome.detail["total"] == 30
    summary = rows(
        db,
        "select relation, action, status, rows, jsonb_array_length(conflicts)"
        " from agentundo.plan_summary(array['agent'])",
    )
    assert summary == [
        ("public.deals", "update", "conflict", 30, 20),
        ("public.deals", "update", "ok", 20, None),
    ]


# force ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"reverted_by": "dana"},
        {"reason": "wrong"},
        {"reverted_by": "", "reason": "wrong"},
        {"reverted_by": "dana", "reason": ""},
    ],
)
def test_force_needs_a_person_and_a_reason(same_column: Connection, given: dict[str, str]) -> None:
    before = snapshot(same_column, *TABLES)
    with refused("UN003"):
        revert(same_column, "agent", on_conflict="force", **given)
    assert_same(before, snapshot(same_column, *TABLES))


def test_force_keeps_who_and_why(same_column: Connection) -> None:
    revert(same_column, "agent", **FORCE)
    assert rows(
        same_column,
        "select status, reverted_by, revert_reason from agentundo.invocations where id = 'agent'",
    ) == [("reverted", "dana", "wrong deal")]


@pytest.mark.parametrize("trusted", ["agentundo_app", "agentundo_operator"])
def test_force_is_not_for_agents(
    same_column: Connection, connect: Connect, make_role: Any, trusted: str
) -> None:
    """Not even for one that may revert: nobody asks an agent whose work may be overwritten."""
    role = make_role(member_of="agentundo_agent")
    same_column.execute(f"grant {trusted} to {role}".encode())
    before = snapshot(same_column, *TABLES)
    with refused("UN003"):
        revert(connect(user=role, options=IMPATIENT), "agent", **FORCE)
    assert_same(before, snapshot(same_column, *TABLES))


def test_force_is_not_for_tagged_sessions(same_column: Connection) -> None:
    before = snapshot(same_column, *TABLES)
    same_column.execute("set agent.invocation = 'agent-2'")
    with refused("UN003"):
        revert(same_column, "agent", **FORCE)
    assert_same(before, snapshot(same_column, *TABLES))
    same_column.execute("reset agent.invocation")
    assert revert(same_column, "agent", **FORCE).status == "reverted"


# cascade ----------------------------------------------------------------------------------------


def test_cascade_is_transitive_and_lists_whom_it_takes_along(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "second", "update deals set stage = 'Lost' where id in (1, 2)")
    write(
        db,
        "third",
        "insert into deals values (6, 'New', 'bot', 6, 'c6');"
        "update deals set stage = 'Won' where id = 2",
    )
    write(db, "fourth", "insert into notes values (2, 6, 'bot')")
    write(db, "unrelated", "update deals set stage = 'Won' where id = 5")
    listed = {row.invocation for row in plan(db, "agent", on_conflict="cascade")}
    assert listed >= {"second", "third", "fourth"}
    result = undo(db, "cascade")
    assert isinstance(result, Result)
    assert sorted(result.invocations) == ["agent", "fourth", "second", "third"]
    assert status(db, "unrelated") == "committed"
    db.execute("update deals set stage = 'New' where id = 5")
    assert_same(before, snapshot(db, *TABLES))


def test_cascade_stops_at_the_first_untagged_writer(db: Connection) -> None:
    """The tagged ones are not taken back either when somebody else stands behind them."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "later", "update deals set stage = 'Lost' where id in (1, 2)")
    db.execute("update deals set stage = 'Open' where id = 2")
    outcome = assert_refused(undo(db, "cascade"), "row_changed", "stage")
    assert outcome.conflicts[0]["key"] == {"id": 2}
    assert status(db, "agent") == status(db, "later") == "committed"


def test_cascade_past_what_was_reverted_already(db: Connection) -> None:
    """A later writer who has been taken back holds nothing up and is not taken back again."""
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "later", "update deals set stage = 'Lost' where id = 1")
    assert revert(db, "later").status == "reverted"
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert result.invocations == ["agent"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.fixture
def app(db: Connection, connect: Connect, make_role: Any) -> Connection:
    """Connect as an application, which reverts for named people within one scope."""
    role = make_role(member_of="agentundo_app")
    db.execute(f"grant select on deals, notes to {role}".encode())
    return connect(user=role, options=f"{IMPATIENT} -c agent.scope=acme")


@pytest.mark.parametrize(
    ("owner", "scope", "code"),
    [("dana", "acme", None), ("omar", "acme", "UN003"), ("dana", "other", "UN001")],
)
def test_cascade_needs_permission_for_each(
    db: Connection, app: Connection, owner: str, scope: str, code: str | None
) -> None:
    """Who may take back a call of his own agent's may not take along another person's.

    What belongs to another scope is not even named: it stays a conflict.
    """
    write(
        db,
        "agent",
        "update deals set stage = 'Won' where id = 1",
        on_behalf_of="dana",
        scope="acme",
    )
    write(
        db, "later", "update deals set stage = 'Lost' where id = 1", on_behalf_of=owner, scope=scope
    )
    before = snapshot(db, *TABLES)
    if code is None:
        result = revert(app, "agent", on_conflict="cascade", reverted_by="dana")
        assert sorted(result.invocations) == ["agent", "later"]
    else:
        with refused(code):
            revert(app, "agent", on_conflict="cascade", reverted_by="dana")
        assert_same(before, snapshot(db, *TABLES))


# delta columns ----------------------------------------------------------------------------------


@pytest.fixture
def balances(db: Connection) -> Connection:
    """Amounts are balances: what somebody else adds is kept."""
    db.execute("select agentundo.set_merge('deals', 'amount', 'delta')")
    return db


@pytest.mark.parametrize(
    "mode", ["merge", "skip and merge", "cascade and merge", "force and merge"]
)
def test_delta_subtracts_what_the_agent_added(balances: Connection, mode: str) -> None:
    write(balances, "agent", "update deals set amount = amount + 7 where id in (1, 2)")
    balances.execute("update deals set amount = amount + 1000 where id = 1")
    assert_done(undo(balances, mode), "reverted", 0, 0, 2, 0, 0)
    assert (deal(balances, 1), deal(balances, 2)) == (("New", "eve", 1100), ("New", "eve", 200))


@pytest.mark.parametrize("mode", ["abort", "cascade"])
def test_delta_is_a_merge_and_not_the_default(balances: Connection, mode: str) -> None:
    write(balances, "agent", "update deals set amount = amount + 7 where id = 1")
    balances.execute("update deals set amount = amount + 1000 where id = 1")
    assert_refused(undo(balances, mode), "row_changed", "amount")


def test_delta_beside_another_column(balances: Connection) -> None:
    """The agent's stage goes back beside the balance, if nobody else has changed it."""
    write(
        balances, "agent", "update deals set amount = amount + 7, stage = 'Won' where id in (1, 2)"
    )
    balances.execute("update deals set amount = amount + 1000, owner = 'mia' where id = 1")
    balances.execute("update deals set amount = amount + 1000, stage = 'Lost' where id = 2")
    assert_refused(undo(balances, "merge"), "row_changed", "stage")
    assert_done(undo(balances, "skip and merge"), "partially_reverted", 0, 0, 1, 1, 1)
    assert (deal(balances, 1), deal(balances, 2)) == (("New", "mia", 1100), ("Lost", "eve", 1207))


def test_delta_of_several_calls_and_writers_in_between(balances: Connection) -> None:
    """Each call's own difference is known, wherever other people's stand between them."""
    write(balances, "agent", "update deals set amount = amount + 7 where id = 1")
    balances.execute("update deals set amount = amount + 1000 where id = 1")
    write(balances, "agent", "update deals set amount = amount - 2 where id = 1")
    balances.execute("update deals set amount = amount + 10000 where id = 1")
    assert_done(undo(balances, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert deal(balances, 1) == ("New", "eve", 11100)


def test_delta_there_and_back_and_there_again(balances: Connection) -> None:
    """A redo adds the agent's difference to what others have made of the balance since."""
    write(balances, "agent", "update deals set amount = amount + 7 where id = 1")
    for others in (1, 2, 3):
        balances.execute("update deals set amount = amount + 1000 where id = 1")
        assert_done(undo(balances, "merge"), "reverted", 0, 0, 1, 0, 0)
        assert deal(balances, 1) == ("New", "eve", 100 + 2000 * others - 1000)
        balances.execute("update deals set amount = amount + 1000 where id = 1")
        assert redo(balances, "agent", merge=True).status == "reverted"
        assert deal(balances, 1) == ("New", "eve", 107 + 2000 * others)


def test_delta_never_deletes_an_inserted_row(balances: Connection) -> None:
    write(balances, "agent", "insert into deals values (6, 'New', 'bot', 6, 'c6')")
    balances.execute("update deals set amount = amount + 1000 where id = 6")
    assert_refused(undo(balances, "merge"), "row_changed", "amount")


def test_delta_with_null(balances: Connection) -> None:
    """From or to NULL there is no difference that could be subtracted: a conflict stays one."""
    balances.execute("update deals set amount = null where id = 1")
    write(balances, "agent", "update deals set amount = 5 where id = 1")
    balances.execute("update deals set amount = amount + 1000 where id = 1")
    assert_refused(undo(balances, "merge"), "row_changed", "amount")
    assert deal(balances, 1) == ("New", "eve", 1005)


def test_delta_when_somebody_set_null(balances: Connection) -> None:
    write(balances, "agent", "update deals set amount = amount + 7 where id = 1")
    balances.execute("update deals set amount = null where id = 1")
    assert_refused(undo(balances, "merge"), "row_changed", "amount")


# merge: what somebody else did since, by value and by the captured chain ------------------------


def there_and_back(db: Connection, capture: str) -> None:
    """An agent sets a stage; a person changes it, sets it back, and changes the owner."""
    db.execute("select agentundo.track('deals', %s)", [capture])
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set stage = 'Lost' where id = 1")
    db.execute("update deals set stage = 'Won', owner = 'mia' where id = 1")


def test_merge_with_full_provenance_respects_a_value_set_back(db: Connection) -> None:
    there_and_back(db, "all")
    assert_refused(undo(db, "merge"), "row_changed", "stage")
    assert deal(db, 1) == ("Won", "mia", 100)


def test_merge_by_value_cannot_see_a_value_set_back(db: Connection) -> None:
    there_and_back(db, "agent")
    (row,) = plan(db, "agent", merge=True)
    assert (row.status, row.columns, (row.detail or {})["basis"]) == ("merge", ["stage"], "value")
    assert_done(undo(db, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert deal(db, 1) == ("New", "mia", 100)


def test_merge_with_full_provenance_lets_other_columns_go_back(db: Connection) -> None:
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 1")
    db.execute("update deals set amount = 7 where id = 1")
    (row,) = plan(db, "agent", merge=True)
    assert (row.status, row.columns) == ("merge", ["stage"])
    assert_done(undo(db, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert deal(db, 1) == ("New", "mia", 7)


def test_merge_can_be_redone(db: Connection) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 1")
    assert_done(undo(db, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert redo(db, "agent").status == "reverted"
    assert deal(db, 1) == ("Won", "mia", 100)


# several at once --------------------------------------------------------------------------------


def test_invocations_undone_together_do_not_conflict(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(
        db,
        "one",
        "update deals set stage = 'a' where id <= 3; insert into notes values (9, 5, 'x')",
    )
    write(db, "two", "update deals set stage = 'b' where id >= 2; delete from notes where id = 9")
    write(db, "three", "update deals set id = id + 10 where id > 4; update deals set stage = 'c'")
    result = undo(db, "abort", ["three", "one", "two"])
    assert isinstance(result, Result)
    assert result.status == "reverted"
    assert sorted(result.invocations) == ["one", "three", "two"]
    assert_same(before, snapshot(db, *TABLES))


# arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode", ["merge", "ABORT", "", "abort ", None, "all'; drop table deals; --"]
)
def test_mode_that_does_not_exist(same_column: Connection, mode: str | None) -> None:
    before = snapshot(same_column, *TABLES)
    with refused("22023") as caught:
        revert(same_column, "agent", on_conflict=mode)
    assert "abort" in caught.hint
    with refused("22023"):
        plan(same_column, "agent", on_conflict=mode)
    assert_same(before, snapshot(same_column, *TABLES))


@pytest.mark.parametrize("what", ["", None, [], [None], ["agent", None], ["agent", ""], "x" * 256])
def test_ids_that_are_none(same_column: Connection, what: Any) -> None:
    before = snapshot(same_column, *TABLES)
    kind = "text[]" if isinstance(what, list) else "text"
    for function in ("plan", "revert"):
        with refused("22023"):
            same_column.execute(f"select * from agentundo.{function}(%s::{kind})".encode(), [what])
    assert_same(before, snapshot(same_column, *TABLES))


def test_null_merge_means_no(other_column: Connection) -> None:
    with refused("UN001"):
        revert(other_column, "agent", merge=None)


def test_id_named_twice_counts_once(other_column: Connection) -> None:
    result = revert(other_column, ["agent", "agent"], merge=True)
    assert (result.status, result.invocations, result.rows_updated) == ("reverted", ["agent"], 2)
