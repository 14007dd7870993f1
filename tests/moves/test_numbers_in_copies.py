"""Numbers that a copy has to count on from, and rules that go with their columns into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import FORMS, move
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import plan, refused, revert, rows, scalar, write

pytestmark = pytest.mark.core


def replicated(db: Connection) -> None:
    """Make it what a logical replica is: a copy whose sequences are where they began."""
    run(db, "update agentundo._stamp set own_table = 1")
    run(db, "select setval('agentundo._change_number', 1, false)")


def test_numbers_that_outlive_their_changes_are_counted_on_from(db: Connection) -> None:
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t')",
    )
    for number in range(3):
        write(db, f"call {number}", f"update t set v = 5 + {number} where id = 1")
    run(db, "alter table t alter v type text", "select agentundo.purge('0 s')")
    replicated(db)
    assert "agentundo._change_number" in [
        o for (o,) in rows(db, "select object from agentundo.check()")
    ]
    run(db, "select agentundo.sync()")
    before = snapshot(db, "t")
    write(db, "new", "update t set v = 'hello' where id = 2")
    assert revert(db, "new").status == "reverted"
    assert_same(before, snapshot(db, "t"))


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_table_is_truncated_in_a_copy_that_nobody_has_synced(
    db: Connection, capture: str
) -> None:
    run(db, "create table t (id int primary key)", f"select agentundo.track('t', '{capture}')")
    for number in range(3):
        write(db, f"call {number}", f"insert into t values ({number})")
    replicated(db)
    run(db, "truncate t", "insert into t values (7)")
    before = snapshot(db, "t")
    last = scalar(db, "select max(change) from agentundo.changes")
    write(db, "new", "truncate t")
    assert rows(db, "select operation from agentundo.changes where change > %s", last) == [
        ("truncate",)
    ]
    run(db, "select agentundo.sync()")
    assert revert(db, "new").status == "reverted"
    assert_same(before, snapshot(db, "t"))


def test_a_delta_rule_stays_with_its_column(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    """Columns have other numbers in the copy if one was dropped before."""
    run(
        db,
        "create table t (id int primary key, junk int, visits int, balance int)",
        "insert into t values (1, 0, 10, 10)",
        "select agentundo.track('t', 'all')",
        "select agentundo.set_merge('t', 'visits', 'delta')",
    )
    write(db, "call", "update t set balance = 15")
    write(db, "visit", "update t set visits = visits + 5")
    run(db, "update t set balance = 20, visits = visits + 100", "alter table t drop column junk")
    move(server, FORMS["custom"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        run(there, "select agentundo.sync()")
        with refused("UN001") as caught:
            revert(there, "call", merge=True)
        assert caught.conflicts[0]["columns"] == ["balance"]
        assert revert(there, "visit", merge=True).status == "reverted"
        assert rows(there, "select visits, balance from t") == [(110, 20)]


def test_labels_stay_with_their_column(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    run(
        db,
        "create type one as enum ('a', 'b')",
        "create type two as enum ('b', 'a')",
        "create table t (id int primary key, junk int, x one, y two)",
        "insert into t values (1, 0, 'a', 'a')",
        "select agentundo.track('t')",
    )
    write(db, "call", "update t set x = 'b', y = 'b'")
    run(db, "alter type one rename value 'a' to 'aa'", "alter table t drop column junk")
    move(server, FORMS["custom"], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        run(there, "select agentundo.sync()")
        assert revert(there, "call").status == "reverted"
        assert rows(there, "select x::text, y::text from t") == [("aa", "a")]


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "not synced"])
def test_an_equal_row_of_another_agent_is_not_taken_for_ones_own_in_a_copy(
    db: Connection, synced: bool
) -> None:
    """Without a key, and without versions that mean anything."""
    run(db, "create table k (a int, b text)", "select agentundo.track('k')")
    write(db, "one", "insert into k values (1, 'x')")
    run(db, "delete from k")
    write(db, "other", "insert into k values (1, 'x')")
    replicated(db)
    if synced:
        run(db, "select agentundo.sync()")
    before = snapshot(db, "k")
    assert [(row.status, row.reason) for row in plan(db, "one")] == [("conflict", "row_rewritten")]
    with refused("UN001"):
        revert(db, "one")
    assert_same(before, snapshot(db, "k"))
