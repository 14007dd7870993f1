"""Merge: by delta where amounts are balances, by value or by the captured chain elsewhere."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.deals import deal
from tests.support.modes import assert_done, assert_refused, undo
from tests.support.undo import plan, redo, write

pytestmark = pytest.mark.core


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


@pytest.mark.parametrize("mode", ["merge", "skip and merge", "force and merge"])
def test_others_there_and_back_in_another_column_are_no_hindrance(
    db: Connection, mode: str
) -> None:
    """Everybody's columns are known with capture = 'all': the row says what the agent left."""
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 1")
    db.execute("update deals set owner = 'eve' where id = 1")
    assert_refused(undo(db, "abort"), "row_rewritten")
    assert_done(undo(db, mode), "reverted", 0, 0, 1, 0, 0)
    assert deal(db, 1) == ("New", "eve", 100)


def test_a_row_written_as_it_was_is_all_its_writers(db: Connection) -> None:
    """Which columns were meant cannot be known: perhaps the agent's."""
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    db.execute("update deals set stage = 'Won' where id = 1")
    assert_refused(undo(db, "merge"), "row_rewritten", "stage")
    db.execute("update deals set owner = 'mia' where id = 1")
    assert_refused(undo(db, "merge"), "row_changed", "stage")
    assert_done(undo(db, "skip and merge"), "partially_reverted", 0, 0, 1, 1, 1)
    assert (deal(db, 1), deal(db, 2)) == (("Won", "mia", 100), ("New", "eve", 200))


def test_what_was_written_before_everything_was_captured_is_merged_by_value(
    db: Connection,
) -> None:
    """The plan does not say `captured` of years in which people's writes were not."""
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set stage = 'Lost' where id = 1")
    db.execute("update deals set stage = 'Won' where id = 1")
    db.execute("select agentundo.track('deals', 'all')")
    db.execute("update deals set owner = 'mia' where id = 1")
    assert plan(db, "agent", merge=True)[0].detail == {"basis": "value", "kept": ["owner"]}
    db.execute("update deals set owner = 'eve' where id = 1")
    assert_refused(undo(db, "merge"), "row_rewritten", "owner")


@pytest.mark.parametrize(
    "gap",
    [
        "alter table deals disable trigger agentundo_update",
        "select agentundo.untrack('deals')",
        "select agentundo.track('deals', 'agent')",
    ],
)
def test_merge_knows_when_not_everything_was_captured_for_a_while(db: Connection, gap: str) -> None:
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id in (1, 2)")
    db.execute("set agentundo.internal = 'on'")  # our event trigger would arm it again at once
    db.execute(gap.encode())
    db.execute("update deals set stage = 'Lost' where id = 1")
    db.execute("update deals set stage = 'Won' where id = 1")
    db.execute("reset agentundo.internal")
    db.execute("select agentundo.track('deals', 'all')")
    db.execute("update deals set owner = 'mia' where id in (1, 2)")
    write(db, "again", "update deals set stage = 'Won' where id = 3")
    db.execute("update deals set owner = 'mia' where id = 3")
    assert _bases(db, "agent") == ["value", "value"]
    assert _bases(db, "again") == ["captured"]


def _bases(db: Connection, invocation: str) -> list[str]:
    return [(row.detail or {})["basis"] for row in plan(db, invocation, merge=True)]


def test_merge_does_not_know_what_was_written_to_a_partition_while_it_was_away(
    db: Connection,
) -> None:
    db.execute(
        "create table p (id int primary key, a int, b int) partition by list (id);"
        "create table p1 partition of p for values in (1); insert into p values (1, 1, 1);"
        "select agentundo.track('p', 'all')"
    )
    write(db, "agent", "update p set a = 5")
    db.execute(
        "alter table p detach partition p1; update p1 set a = 99; update p1 set a = 5;"
        "alter table p attach partition p1 for values in (1)"
    )
    write(db, "other", "update p set b = 7")
    assert _bases(db, "agent") == ["value"]


def test_merge_reads_what_others_wrote_before_a_column_was_widened(db: Connection) -> None:
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set amount = 5 where id = 1")
    db.execute("update deals set amount = 99, owner = 'mia' where id = 1")
    db.execute("update deals set amount = 5, owner = 'eve' where id = 1")
    db.execute("alter table deals alter amount type bigint")
    assert_refused(undo(db, "merge"), "row_rewritten", "amount")
    db.execute("update deals set owner = 'tom' where id = 1")
    assert_refused(undo(db, "merge"), "row_changed", "amount")


def test_merge_can_be_redone(db: Connection) -> None:
    write(db, "agent", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 1")
    assert_done(undo(db, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert redo(db, "agent").status == "reverted"
    assert deal(db, 1) == ("Won", "mia", 100)


# what the difference of a delta is summed over --------------------------------------------------


def test_delta_is_not_subtracted_twice(balances: Connection) -> None:
    """What an undo in part has already subtracted is done with; the same call writes on."""
    write(
        balances, "agent", "update deals set amount = amount + 5, stage = 'Won' where id in (1, 2)"
    )
    balances.execute("update deals set stage = 'Lost' where id = 2")
    balances.execute("update deals set amount = amount + 1000 where id in (1, 2)")
    assert_done(undo(balances, "skip and merge"), "partially_reverted", 0, 0, 1, 1, 1)
    assert (deal(balances, 1), deal(balances, 2)) == (("New", "eve", 1100), ("Lost", "eve", 1205))
    write(balances, "agent", "update deals set amount = amount + 7 where id = 1")
    balances.execute("update deals set amount = amount + 10000 where id in (1, 2)")
    told = {
        row.key["id"]: (row.detail or {}).get("delta")
        for row in plan(balances, "agent", on_conflict="skip", merge=True)
        if row.key
    }
    assert told[1] == {"amount": "7"}
    assert_done(undo(balances, "skip and merge"), "partially_reverted", 0, 0, 1, 1, 1)
    assert (deal(balances, 1), deal(balances, 2)) == (
        ("New", "eve", 11100),
        ("Lost", "eve", 11205),
    )


def test_delta_of_one_call_around_anothers(balances: Connection) -> None:
    """Doubling is no sum: of the other's the difference stays that it made then."""
    write(balances, "agent", "update deals set amount = amount + 5 where id = 1")
    write(balances, "other", "update deals set amount = amount * 2 where id = 1")
    write(balances, "agent", "update deals set amount = amount + 1 where id = 1")
    assert_done(undo(balances, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert deal(balances, 1) == ("New", "eve", 205)
    assert redo(balances, "agent", merge=True).status == "reverted"
    assert deal(balances, 1) == ("New", "eve", 211)


@pytest.mark.parametrize("added", [5, 0, -3])
def test_delta_of_a_row_whose_key_the_agent_moved(balances: Connection, added: int) -> None:
    write(balances, "agent", f"update deals set id = 9, amount = amount + {added} where id = 2")
    balances.execute("update deals set amount = amount + 1000 where id = 9")
    assert_done(undo(balances, "merge"), "reverted", 0, 0, 1, 0, 0)
    assert (deal(balances, 9), deal(balances, 2)) == (None, ("New", "eve", 1200))


# a row that others took away and brought back ---------------------------------------------------


@pytest.mark.parametrize(
    "person",
    [
        [
            "delete from deals where id = 2",
            "insert into deals values (2, 'Won', 'mia', 300, 'c2')",
        ],
        [
            "update deals set id = 9, stage = 'Lost' where id = 2",
            "update deals set id = 2, stage = 'Won', amount = 300, owner = 'mia' where id = 9",
        ],
        [
            "update deals set id = 9 where id = 2",
            "insert into deals values (2, 'Won', 'mia', 300, 'new')",
        ],
    ],
    ids=["made anew", "moved there and back", "moved away and made"],
)
def test_merge_with_full_provenance_knows_a_row_that_others_brought(
    db: Connection, person: list[str]
) -> None:
    """All of its columns are theirs, also one that says what the agent had set."""
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "agent", "update deals set stage = 'Won' where id = 2")
    for statement in person:
        db.execute(statement.encode())
    refusal = assert_refused(undo(db, "merge"), "row_changed")
    assert "stage" in refusal.conflicts[0]["columns"]
    assert deal(db, 2) == ("Won", "mia", 300)
    assert_done(undo(db, "skip and merge"), "partially_reverted", 0, 0, 0, 1, 1)
    assert deal(db, 2) == ("Won", "mia", 300)
