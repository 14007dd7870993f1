"""Ordinary owners go on changing their partitioned tables after these are tracked."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same
from tests.support.undo import revert, rows
from tests.support.undoing import everything, track

pytestmark = pytest.mark.core


@pytest.mark.parametrize("way", ["created", "attached", "subtree"])
@pytest.mark.parametrize("by", ["owner", "member of the owner"])
def test_an_ordinary_owner_adds_partitions_to_a_tracked_table(
    db: Connection, connect: Connect, make_role: MakeRole, way: str, by: str
) -> None:
    """Our row trigger is cloned to the new partition: that must take no right which owners lack."""
    owner = make_role()
    hand = connect(user=owner if by == "owner" else make_role(member_of=owner))
    db.execute(f"create schema hers authorization {owner}; set role {owner}".encode())
    db.execute("create table hers.t (id int primary key, v int) partition by range (id)")
    db.execute("create table hers.t_1 partition of hers.t for values from (0) to (10)")
    db.execute("reset role")
    track(db, "hers.t")
    hand.execute(f"set role {owner}".encode())
    if way == "attached":
        hand.execute("create table hers.t_2 (id int primary key, v int)")
        hand.execute("alter table hers.t attach partition hers.t_2 for values from (10) to (20)")
    elif way == "created":
        hand.execute("create table hers.t_2 partition of hers.t for values from (10) to (20)")
    else:
        hand.execute(
            "create table hers.t_2 partition of hers.t for values from (10) to (20)"
            " partition by range (id);"
            " create table hers.t_2_1 partition of hers.t_2 for values from (10) to (20)"
        )
    hand.execute("insert into hers.t values (1, 1), (11, 1)")
    before = everything(db)
    with hand.transaction():
        hand.execute("set local agent.invocation = 'call'")
        hand.execute("update hers.t set v = 2; delete from hers.t_2 where id = 11")
    assert revert(db, "call").status == "reverted"
    assert_same(before, everything(db))
    assert rows(db, "select health from agentundo.tracked") == [("ok",)]
