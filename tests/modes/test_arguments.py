"""What a revert is given: several invocations, ids and modes that are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.deals import TABLES
from tests.support.modes import undo
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, plan, refused, revert, write

pytestmark = pytest.mark.core


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
