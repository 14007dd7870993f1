"""Tables as wide as PostgreSQL allows."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import refused, revert, rows
from tests.support.undoing import everything, track, write

pytestmark = pytest.mark.core


def test_a_table_for_whose_history_there_is_no_room_is_refused(db: Connection) -> None:
    listed = ", ".join(f"c{i} int2" for i in range(1599))
    db.execute(f"create table t (id int primary key, {listed})".encode())
    with refused("UN004") as caught:
        track(db, "t")
    assert "it has more than 1598 columns; history needs room for two" in caught.message


def test_a_column_for_which_history_has_no_room_is_added_all_the_same(db: Connection) -> None:
    """A table may have 1,600; history has two columns of its own."""
    listed = ", ".join(f"c{i} int2" for i in range(1597))
    db.execute(f"create table t (id int primary key, {listed})".encode())
    track(db, "t")
    db.execute("alter table t add one_more int2")
    db.execute("insert into t (id, one_more) values (2, 2)")
    before = everything(db)
    with refused("UN008"):
        write(db, "update t set one_more = 3")
    assert_same(before, everything(db))
    found = rows(db, "select distinct object from agentundo.check() where severity = 'error'")
    assert found == [("public.t",)]
    # As soon as there is room again, it is followed.
    db.execute("alter table t drop column one_more")
    assert rows(db, "select object from agentundo.check() where severity = 'error'") == []
    before = everything(db)
    call = write(db, "update t set c1596 = 1")
    assert revert(db, call).counts == (0, 0, 1, 0, 0)
    assert_same(before, everything(db))
