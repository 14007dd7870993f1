"""What each mode does when somebody has written the agent's row since.

The tests of one obstacle stand together: abort, skip, merge, cascade, force. The later writer is
tagged (`later`) where it matters to cascade, a person without a tag otherwise.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.deals import TABLES, deal
from tests.support.modes import HELPLESS, assert_done, assert_refused, undo
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, status, write

pytestmark = pytest.mark.core


# Somebody changed other columns of the row ------------------------------------------------------


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
