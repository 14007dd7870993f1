"""A table that inherits goes: its parent is followed like any other change."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.undo import rows
from tests.support.undoing import assert_undone, track

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "ddl",
    ["drop table heir", "alter table heir no inherit parent", "drop schema s cascade"],
)
def test_a_parent_whose_heir_goes_is_followed(db: Connection, ddl: str) -> None:
    db.execute(
        "create schema s; create table parent (id int primary key, v int);"
        "create table heir (x int) inherits (parent); create table s.other () inherits (parent);"
        "insert into parent values (1, 1); insert into heir values (2, 2, 2)"
    )
    track(db, "parent")
    db.execute(ddl.encode())
    assert rows(db, "select object from agentundo.check() where severity = 'error'") == []
    assert_undone(db, "update parent set v = 7")
