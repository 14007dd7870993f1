"""What a refusal says of the way out is true; a changed column is named."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.undo import plan, refused, revert, write
from tests.support.undoing import track

pytestmark = pytest.mark.core


def test_a_conflict_over_a_changed_column_names_it(db: Connection) -> None:
    db.execute("create table p (id int primary key, v int, w int); insert into p values (1, 1, 1)")
    track(db, "p")
    write(db, "agent", "update p set v = 5, w = 5")
    db.execute("alter table p alter v type text using 'v' || v")
    (row,) = plan(db, "agent")
    assert (row.reason, row.columns) == ("schema_changed", ["v"])
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.conflicts[0]["columns"] == ["v"]


def test_no_way_is_offered_that_is_none(db: Connection) -> None:
    """Neither merge nor force puts a value back that somebody else has, or breaks a key."""
    db.execute(
        "create table p (id int primary key, code text unique); insert into p values (1, 'a')"
    )
    track(db, "p")
    write(db, "agent", "update p set code = 'x'")
    db.execute("insert into p values (2, 'a')")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["unique_taken"]
    assert "skip" in caught.hint
    assert "merge" not in caught.hint
    assert "force" not in caught.hint
