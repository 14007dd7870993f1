"""The table of modes in docs/concepts.md, cell by cell."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection
from tests.support.modes import MODES
from tests.support.pages import DOCS
from tests.support.state import snapshot
from tests.support.undo import Refusal, revert_as_planned, write

TABLES = ("public.deals", "public.notes")
HEADING = "## When somebody has been there since"
TEXT = (DOCS / "concepts.md").read_text(encoding="utf-8").partition(HEADING)[2]
LINES = [line for line in TEXT.partition("*Refused*")[0].splitlines() if line.startswith("| ")]
COLUMNS = [cell.strip() for cell in LINES[0].split("|")[2:-1]]
CELLS = {
    cells[0].strip(): [cell.strip() for cell in cells[1:]]
    for cells in (line.split("|")[1:-1] for line in LINES[1:])
}

UPDATED = "update deals set stage = 'Won' where id = 1"
MADE = "insert into deals values (9, 'Won', 'bot', 'c9')"
#: What the agent writes, and what somebody does since; the row's reason is in the page's words.
PLAYS = {
    "`row_changed`, in other columns only": (UPDATED, "update deals set owner = 'mia'"),
    "`row_changed`, in the same column": (UPDATED, "update deals set stage = 'Lost'"),
    "`row_rewritten`": (UPDATED, "update deals set stage = stage"),
    "the agent inserted it, `row_changed`": (MADE, "update deals set owner = 'mia' where id = 9"),
    "`row_deleted`": (UPDATED, "delete from deals where id = 1"),
    "`row_exists`": (
        "delete from deals where id = 1",
        "insert into deals values (1, 'New', 'mia', 'other')",
    ),
    "`unique_taken`": (
        "update deals set code = 'free' where id = 1",
        "insert into deals values (8, 'New', 'mia', 'c1')",
    ),
    "`has_dependents`": (MADE, "insert into notes values (7, 9)"),
    "`missing_parent`": ("delete from notes where id = 1", "delete from deals where id = 2"),
    "`erased`": (UPDATED, "select agentundo.erase('deals', '{\"id\": 1}', 'asked to')"),
}


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Make two deals, and a note on the second."""
    db = connect()
    db.execute(
        "create table deals (id int primary key, stage text, owner text, code text unique);"
        " insert into deals values (1, 'Open', 'eve', 'c1'), (2, 'Open', 'eve', 'c2');"
        " create table notes (id int primary key, deal int references deals);"
        " insert into notes values (1, 2)"
    )
    for table in TABLES:
        db.execute("select agentundo.track(%s, 'all')", [table])
    return db


def test_table_is_read() -> None:
    assert list(CELLS) == list(PLAYS)
    assert COLUMNS == ["abort", "skip", "merge", "force"]


@pytest.mark.parametrize("mode", COLUMNS)
@pytest.mark.parametrize("row", PLAYS)
def test_cell_is_true(db: Connection, row: str, mode: str) -> None:
    expected = CELLS[row][COLUMNS.index(mode)]
    agents, somebodys = PLAYS[row]
    before = snapshot(db, *TABLES)
    write(db, "agent", agents)
    db.execute(somebodys.encode())
    theirs = snapshot(db, *TABLES)
    outcome = revert_as_planned(db, TABLES, "agent", **MODES[mode])
    now = snapshot(db, *TABLES)
    if expected == "refused":
        assert isinstance(outcome, Refusal)
        assert f"`{outcome.reasons[0]}`" in row
        assert now == theirs
    elif expected == "left":
        assert not isinstance(outcome, Refusal)
        assert outcome.status == "partially_reverted"
        assert outcome.conflicts == 1
        assert now == theirs
    elif expected == "merged":
        assert not isinstance(outcome, Refusal)
        assert db.execute("select stage, owner from deals where id = 1").fetchall() == [
            ("Open", "mia")
        ]
    else:
        assert expected == "overwritten"
        assert not isinstance(outcome, Refusal)
        assert outcome.status == "reverted"
        ours = "select * from deals where id in (1, 9)"
        restored = db.execute(ours.encode()).fetchall()
        assert restored == [(1, "Open", "eve", "c1")]
        assert before != theirs
