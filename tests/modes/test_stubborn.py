"""Obstacles that not even force overcomes: skip leaves the row, every other mode refuses.

Cascade overcomes some of them if whoever put them up is tagged (`later`).
"""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.deals import TABLES, deal
from tests.support.modes import HELPLESS, MODES, assert_done, assert_refused, undo
from tests.support.state import assert_same, snapshot
from tests.support.undo import IMPATIENT, Refusal, plan, refused, revert, rows, scalar, write

pytestmark = pytest.mark.core

STUBBORN = (*HELPLESS, "force", "force and merge")


# Somebody took the unique value -----------------------------------------------------------------


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
    db: Connection, connect: Connect, make_role: MakeRole, mode: str
) -> None:
    """Nobody decides about rows that row-level security hides from him."""
    role = make_role(member_of="agentundo_operator")
    db.execute(f"grant select on deals, notes to {role}".encode())
    write(db, "agent", "update deals set stage = 'Won' where id = 2")
    db.execute("alter table deals enable row level security")
    before = snapshot(db, *TABLES)
    operator = connect(user=role, options=IMPATIENT)
    (row,) = plan(operator, "agent")
    assert (row.reason, row.key, row.columns, row.detail) == (
        "not_visible",
        {},
        None,
        {"basis": "version"},
    )
    assert (row.before, row.after, row.current) == (None, None, None)
    if mode == "skip":
        assert revert(operator, "agent", **MODES[mode]).counts == (0, 0, 0, 1, 1)
    else:
        with refused("UN001") as caught:
            revert(operator, "agent", **MODES[mode])
        assert caught.reasons == ["not_visible"]
    assert_same(before, snapshot(db, *TABLES))
