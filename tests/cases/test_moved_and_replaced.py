"""Rows that the agent moved, and rows that others have put in their places since."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import revert, rows
from tests.support.undoing import assert_refused, everything, reasons, track, write

pytestmark = pytest.mark.core

_MOVES = [
    "update deals set id = 10 where id = 1",
    "update deals set owner = 'bob' where id = 10",
    "update deals set id = 6 where id = 4",
]


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Make deals of two people; visits is a counter."""
    db.execute(
        "create table deals (id int primary key, stage text, owner text, visits int);"
        " insert into deals values (1, 'New', 'eve', 3), (4, 'Offered', 'ann', 9)"
    )
    track(db, "deals")
    db.execute("select agentundo.set_merge('deals', 'visits', 'delta')")
    return db


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_row_that_moved_and_was_written_does_not_come_back_once_it_is_deleted(
    deals: Connection, capture: str
) -> None:
    track(deals, "deals", capture=capture)
    write(deals, *_MOVES, tag="agent")
    deals.execute("delete from deals where id = 10")
    assert_refused(deals, "agent")
    assert reasons(deals, "agent") == {"row_deleted": 1}
    revert(deals, "agent", on_conflict="skip")
    assert rows(deals, "select id from deals order by 1") == [(4,)]


@pytest.mark.parametrize("merge", [False, True])
def test_a_row_does_not_come_back_where_an_agent_made_one_that_somebody_deleted_unseen(
    deals: Connection, merge: bool
) -> None:
    write(deals, "delete from deals where id = 1", tag="agent")
    write(deals, "insert into deals values (1, 'Won', 'mia', 0)", tag="other")
    deals.execute("delete from deals where id = 1")
    now = everything(deals)
    assert_refused(deals, "agent", merge=merge)
    assert_same(now, everything(deals))


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize(
    "writes",
    [
        (
            "update deals set visits = visits + 5 where id = 1",
            "update deals set id = 6 where id = 1",
        ),
        (
            "update deals set id = 6 where id = 1",
            "update deals set visits = visits + 5 where id = 6",
        ),
        ("update deals set id = 6, visits = visits + 5 where id = 1",),
    ],
    ids=["counted, then moved", "moved, then counted", "at once"],
)
def test_a_counter_of_a_row_that_moved_goes_back_by_what_the_agent_added(
    deals: Connection, writes: tuple[str, ...], capture: str
) -> None:
    track(deals, "deals", capture=capture)
    deals.execute("delete from deals where id = 4")
    write(deals, *writes, tag="agent")
    deals.execute("update deals set visits = visits + 1 where id = 6")
    assert revert(deals, "agent", merge=True).status == "reverted"
    assert rows(deals, "select id, visits from deals") == [(1, 4)]


def test_two_rows_moved_one_by_one_are_told_by_their_statements(deals: Connection) -> None:
    track(deals, "deals", capture="all")
    write(
        deals,
        "update deals set visits = visits + 5 where id = 1",
        "update deals set id = 6 where id = 4",
        "update deals set id = 7 where id = 1",
        tag="agent",
    )
    deals.execute("update deals set owner = 'mia' where id = 7")
    assert revert(deals, "agent", merge=True).status == "reverted"
    assert rows(deals, "select id, owner, visits from deals order by 1") == [
        (1, "mia", 3),
        (4, "ann", 9),
    ]


@pytest.mark.parametrize(
    ("later", "left"),
    [
        (
            ["delete from deals where id = 1", "insert into deals values (1, 'Won', 'mia', 7)"],
            [(1, 7), (4, 9)],
        ),
        (
            ["update deals set id = 6 where id = 1", "update deals set id = 1 where id = 4"],
            [(1, 9), (6, 8)],
        ),
    ],
    ids=["made again", "moved there"],
)
def test_nothing_is_subtracted_from_another_row_that_has_the_key_since(
    deals: Connection, later: list[str], left: list[tuple[int, int]]
) -> None:
    track(deals, "deals", capture="all")
    write(deals, "update deals set visits = visits + 5 where id = 1", tag="agent")
    for statement in later:
        deals.execute(statement.encode())
    assert_refused(deals, "agent", merge=True)
    assert revert(deals, "agent", on_conflict="skip", merge=True).rows_skipped == 1
    assert rows(deals, "select id, visits from deals order by 1") == left


@pytest.mark.parametrize(
    "statements",
    [
        [
            "update deals set id = 2, visits = 15 where id = 1",
            "insert into deals values (1, 'New', 'new', 7)",
            "delete from deals where id = 1",
        ],
        [
            "insert into deals values (2, 'New', 'tmp', 7)",
            "delete from deals where id = 2",
            "update deals set id = 2, visits = 15 where id = 1",
        ],
    ],
    ids=["another at the old key", "another at the new key"],
)
def test_a_row_that_moved_stands_once_whoever_else_had_its_keys_in_between(
    deals: Connection, statements: list[str]
) -> None:
    for statement in statements:
        write(deals, statement, tag="agent")
    deals.execute("update deals set stage = 'Lost' where id = 2")
    before = everything(deals)
    assert revert(deals, "agent", on_conflict="skip").status == "partially_reverted"
    assert_same(before, everything(deals))


@pytest.mark.parametrize("mode", ["cascade", "skip"])
def test_a_row_that_two_agents_moved_and_somebody_wrote_in_between_stands_once(
    deals: Connection, mode: str
) -> None:
    """Its place at the first key is no row that is gone; it has moved on."""
    track(deals, "deals", capture="all")
    write(deals, "update deals set id = 7 where id = 1", tag="first")
    deals.execute("update deals set owner = 'mia' where id = 7")
    write(deals, "update deals set id = 8 where id = 7", tag="second")
    write(deals, "update deals set visits = visits + 5 where id = 8", tag="third")
    now = everything(deals)
    if mode == "cascade":
        assert_refused(deals, "first", on_conflict="cascade", merge=True)
    else:
        revert(deals, ["first", "second"], on_conflict="skip", merge=True)
    assert rows(deals, "select * from deals order by 1") == [
        (4, "Offered", "ann", 9),
        (8, "New", "mia", 8),
    ]
    if mode == "cascade":
        assert_same(now, everything(deals))


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize(
    "others", ["delete from deals where id = 1", "update deals set id = 9 where id = 1"]
)
def test_a_row_that_the_agent_wrote_as_it_was_holds_no_merge_up_once_it_is_gone(
    deals: Connection, others: str, capture: str
) -> None:
    track(deals, "deals", capture=capture)
    write(
        deals,
        "update deals set owner = owner where id = 1",
        "update deals set stage = 'Won' where id = 4",
        tag="agent",
    )
    deals.execute(others.encode())
    assert reasons(deals, "agent") == {"row_deleted": 1}
    revert(deals, "agent", merge=True)
    left = [] if "delete" in others else [(9, "New", "eve", 3)]
    assert rows(deals, "select * from deals order by 1") == [(4, "Offered", "ann", 9), *left]


@pytest.mark.parametrize(
    "others", ["delete from deals where id = 5", "update deals set id = 9 where id = 5"]
)
@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_row_does_not_come_back_to_a_key_at_which_the_agent_made_another(
    deals: Connection, capture: str, others: str
) -> None:
    """It stood at its new key, and somebody has taken it from there."""
    track(deals, "deals", capture=capture)
    write(
        deals,
        "update deals set id = 5 where id = 4",
        "insert into deals values (4, 'New', 'bot', 0)",
        tag="agent",
    )
    deals.execute(others.encode())
    now = everything(deals)
    for mode in ("abort", "cascade"):
        assert_refused(deals, "agent", on_conflict=mode)
    assert_refused(deals, "agent", merge=True)
    assert_same(now, everything(deals))
    revert(deals, "agent", on_conflict="skip")
    assert rows(deals, "select owner from deals where owner = 'ann'") == (
        [] if "delete" in others else [("ann",)]
    )


def test_a_note_stays_with_the_row_whatever_keys_were_passed_on(deals: Connection) -> None:
    """The agent shifts all keys and deletes a row; somebody notes something at another."""
    track(deals, "deals", capture="all")
    deals.execute("insert into deals values (5, 'Won', 'mia', 1)")
    write(
        deals,
        "update deals set id = id - 1 where id >= 4",
        "delete from deals where id = 4",
        tag="agent",
    )
    deals.execute("update deals set stage = 'Lost' where id = 3")
    now = everything(deals)
    assert_refused(deals, "agent", merge=True)
    assert_same(now, everything(deals))
    revert(deals, "agent", on_conflict="skip", merge=True)
    assert rows(deals, "select * from deals order by id") == [
        (1, "New", "eve", 3),
        (3, "Lost", "ann", 9),
    ]
