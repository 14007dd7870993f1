"""Cascade: whom it takes along, where it stops, what it may."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.deals import TABLES
from tests.support.modes import assert_done, assert_refused, undo
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    IMPATIENT,
    Result,
    plan,
    redo,
    refused,
    revert,
    rows,
    status,
    tag,
    write,
)

pytestmark = pytest.mark.core


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


def test_an_undo_and_its_redo_change_nothing_of_whom_cascade_takes(db: Connection) -> None:
    """The redo wrote the row last, but what stands in the way is what the other agent wrote."""
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "later", "update deals set amount = 5 where id = 1")
    assert revert(db, "agent", merge=True, reverted_by="dana").status == "reverted"
    assert redo(db, "agent", reverted_by="olaf").status == "reverted"
    listed = {row.invocation for row in plan(db, "agent", on_conflict="cascade")}
    assert listed == {"later"}
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert result.invocations == ["agent", "later"]
    assert_same(before, snapshot(db, *TABLES))


def test_cascade_leaves_whom_was_taken_back_in_this_row(db: Connection) -> None:
    """A revert that skipped another row covers nothing, yet this row is done with."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "other", "update deals set amount = 5 where id = 1")
    write(db, "later", "update deals set stage = 'Lost' where id in (1, 2)")
    db.execute("update deals set stage = 'Open' where id = 2")
    assert revert(db, "later", on_conflict="skip").status == "partially_reverted"
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert result.invocations == ["agent", "other"]


def test_a_person_behind_a_redo_still_stops_cascade(db: Connection) -> None:
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set amount = 5 where id = 1")
    assert revert(db, "agent", merge=True).status == "reverted"
    assert redo(db, "agent").status == "reverted"
    assert_refused(undo(db, "cascade"), "row_changed", "amount")


# Who stands in the way, and who only wrote to the same table ------------------------------------


def test_cascade_for_a_parent_takes_along_only_who_took_it_away(db: Connection) -> None:
    write(db, "agent", "delete from notes where id = 1")
    write(db, "another deal", "update deals set amount = 77 where id = 2")
    write(db, "took it away", "delete from deals where id = 1")
    write(db, "a third deal", "update deals set amount = 88 where id = 3")
    listed = {row.invocation for row in plan(db, "agent", on_conflict="cascade")}
    assert listed == {"agent", "took it away"}
    result = assert_done(undo(db, "cascade"), "reverted", 0, 2, 0, 0, 0)
    assert result.invocations == ["agent", "took it away"]
    assert rows(db, "select id, amount from deals order by id") == [
        (1, 100),
        (2, 77),
        (3, 88),
        (4, 400),
        (5, 500),
    ]
    assert rows(db, "table notes") == [(1, 1, "first")]
    assert status(db, "another deal") == status(db, "a third deal") == "committed"


@pytest.mark.parametrize(
    "also",
    ["delete from deals where id = 3", "update deals set id = 33 where id = 3"],
    ids=["deleted", "moved"],
)
def test_cascade_for_a_parent_leaves_who_took_away_another(db: Connection, also: str) -> None:
    write(db, "agent", "delete from notes where id = 1")
    write(db, "other", also)
    write(db, "moved", "update deals set id = 11 where id = 1")
    result = undo(db, "cascade")
    assert isinstance(result, Result)
    assert (result.status, result.invocations) == ("reverted", ["agent", "moved"])
    assert status(db, "other") == "committed"
    assert rows(db, "select id from deals where id in (1, 3, 11, 33)") != [(1,), (3,)]
    assert rows(db, "table notes") == [(1, 1, "first")]


def test_cascade_takes_of_one_transaction_only_who_wrote_the_row(db: Connection) -> None:
    write(db, "agent", "update deals set amount = 10 where id = 1")
    with db.transaction():
        tag(db, "same row")
        db.execute("update deals set amount = 20 where id = 1")
        tag(db, "another row")
        db.execute("update deals set amount = 99 where id = 2")
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert result.invocations == ["agent", "same row"]
    assert rows(db, "select id, amount from deals where id <= 2 order by id") == [
        (1, 100),
        (2, 99),
    ]


@pytest.mark.parametrize("undone", ["update deals set stage = 'Lost' where id = 1", None])
def test_cascade_takes_along_whose_row_an_undo_brought_back(
    db: Connection, undone: str | None
) -> None:
    """The undo wrote the row last, but what stands in the way is the other agent's value."""
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    write(db, "writer", "update deals set stage = 'Open' where id = 1")
    write(db, "undone", undone or "delete from notes; delete from deals where id = 1")
    assert revert(db, "undone").status == "reverted"
    planned = {row.invocation: row.status for row in plan(db, "agent", on_conflict="cascade")}
    assert planned["writer"] == "ok"
    assert "conflict" not in planned.values()
    result = assert_done(undo(db, "cascade"), "reverted", 0, 0, 1, 0, 0)
    assert result.invocations == ["agent", "writer"]
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "writer") == "reverted"


# Whom one may take along ------------------------------------------------------------------------


@pytest.fixture
def app(db: Connection, connect: Connect, make_role: MakeRole) -> Connection:
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


def test_cascade_leaves_who_wrote_before_the_first_turn(db: Connection) -> None:
    """A call in turns with another takes that one along, not whoever made the row before both."""
    write(
        db, "import", "insert into deals values (7, 'New', 'bot', 7, 'c7'), (8, 'x', 'y', 8, 'c8')"
    )
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won' where id = 7")
    write(db, "second", "update deals set owner = 'joe' where id = 7")
    write(db, "agent", "update deals set stage = 'Lost' where id = 7")
    result = undo(db, "cascade")
    assert isinstance(result, Result)
    assert sorted(result.invocations) == ["agent", "second"]
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "import") == "committed"
