"""What the plan says in advance, where only writing would have shown it."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, refused, revert, rows
from tests.support.undoing import assert_refused, everything, reasons, track, write

pytestmark = pytest.mark.core

PLACES = (
    "create table p (id int primary key, place int unique {deferrable});"
    "create table c (id int primary key, p int references p {action});"
    "insert into p select g, g * 10 from generate_series(1, 5) g;"
    "insert into c select g, g from generate_series(1, 5) g"
)


@pytest.mark.parametrize(
    "action", ["on delete cascade", "on delete set null", "on delete restrict"]
)
def test_unique_values_that_move_where_rows_must_stay(db: Connection, action: str) -> None:
    """They could only go round by way of deleting rows, and a key would act on that."""
    db.execute(PLACES.format(action=action, deferrable="").encode())
    track(db, "p", "c")
    swap = write(
        db,
        "update p set place = -1 where id = 1",
        "update p set place = 10 where id = 2",
        "update p set place = 20 where id = 1",
    )
    assert reasons(db, swap) == {"unique_taken": 2}
    assert_refused(db, swap)
    assert_refused(db, swap, on_conflict="force", reverted_by="dana", reason="all of it")
    before = everything(db)
    assert revert(db, swap, on_conflict="skip").counts == (0, 0, 0, 2, 2)
    assert_same(before, everything(db))


@pytest.mark.parametrize(
    ("action", "deferrable"), [("on delete cascade", "deferrable"), ("", ""), ("", "deferrable")]
)
def test_unique_values_that_move_where_nothing_holds_the_rows(
    db: Connection, action: str, deferrable: str
) -> None:
    db.execute(PLACES.format(action=action, deferrable=deferrable).encode())
    track(db, "p", "c")
    before = everything(db)
    swap = write(
        db,
        "update p set place = -1 where id = 1",
        "update p set place = 10 where id = 2",
        "update p set place = 20 where id = 1",
    )
    assert {row.status for row in plan(db, swap)} == {"ok"}
    assert revert(db, swap).status == "reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize(
    ("kind", "former", "narrower"),
    [
        ("numeric(10, 4)", "1.2345", "numeric(10, 2)"),
        ("varchar(20)", "something long", "varchar(6)"),
        ("timestamp(6)", "2026-01-01 10:00:00.123456", "timestamp(2)"),
        ("bit varying(8)", "10101010", "bit varying(4)"),
        ("numeric(4, 1)[]", "{1.5,2.5}", "numeric(4, 0)[]"),
    ],
)
def test_a_column_that_would_keep_less_than_there_was(
    db: Connection, kind: str, former: str, narrower: str
) -> None:
    """PostgreSQL would round or cut without a word."""
    db.execute(f"create table t (id int primary key, v {kind}, w int)".encode())
    db.execute("insert into t values (1, %s, 0), (2, null, 0)", [former])
    track(db, "t")
    call = write(db, "update t set v = null, w = 1")
    db.execute(f"alter table t alter v type {narrower}".encode())
    assert [(row.status, row.reason) for row in plan(db, call) if row.key == {"id": 1}] == [
        ("conflict", "schema_changed")
    ]
    assert_refused(db, call)
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert db.execute("select * from t order by id").fetchall() == [(1, None, 1), (2, None, 0)]


def test_what_was_written_again_under_a_purged_id_can_be_taken_back(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    track(db, "t")
    write(db, "update t set v = 2", tag="call")
    db.execute("select agentundo.purge(interval '0')")
    before = everything(db)
    write(db, "update t set v = 3", tag="call")
    undoable = db.execute("select undoable from agentundo.invocations where id = 'call'").fetchone()
    assert undoable == (True,)
    assert revert(db, "call").counts == (0, 0, 1, 0, 0)
    assert_same(before, everything(db))


def test_a_revert_between_tag_and_commit_leaves_the_count_of_uncovered_tables(
    db: Connection,
) -> None:
    db.execute(
        "create table t (id int primary key, v int); create table untracked (id int);"
        "insert into t values (1, 1)"
    )
    track(db, "t")
    earlier = write(db, "update t set v = 2")
    db.execute("select agentundo.record_invocation('call')")
    with db.transaction():
        db.execute("select agentundo.tag('call')")
        db.execute("insert into untracked values (1)")
        assert revert(db, earlier).status == "reverted"
        db.execute("select agentundo.commit_invocation('call')")
    uncovered = db.execute("select uncovered from agentundo.invocations where id = 'call'")
    assert uncovered.fetchone() == (["public.untracked"],)


def test_an_undo_that_memory_would_not_hold_is_refused_at_once(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 1)")
    track(db, "t")
    before = everything(db)
    first, second = write(db, "update t set v = 2"), write(db, "update t set v = 3")
    db.execute("update agentundo._setting set value = '3 rows' where name = 'largest_undo'")
    with refused("54000") as caught:
        revert(db, [first, second])
    assert caught.message == (
        "agentundo: this undo is of 4 rows, more than are planned at once (3 rows)"
    )
    assert "one by one, the newest first" in caught.hint
    assert revert(db, second).status == "reverted"
    assert revert(db, first).status == "reverted"
    assert_same(before, everything(db))


#: Tables, what an agent writes to rows 1 and 2, and a person to row 1, so that merge cannot.
UNWRITABLE = {
    "a generated column": (
        "create table t (id int primary key, a int, b int,"
        " c int generated always as (a * b) stored);"
        "insert into t values (1, 100000, 10), (2, 5, 5)",
        "update t set a = 1",
        "update t set b = 1000000 where id = 1",
    ),
    "a generated column beside a unique one": (
        "create table t (id int primary key, a int, b int, u int unique,"
        " c int generated always as (a * b) stored);"
        "insert into t values (1, 100000, 10, 1), (2, 5, 5, 2)",
        "update t set a = 1, u = u + 10",
        "update t set b = 1000000 where id = 1",
    ),
    "an index": (
        "create table t (id int primary key, a int, b int); create index on t ((100 / (a - b)));"
        "insert into t values (1, 5, 1), (2, 5, 1)",
        "update t set a = 10",
        "update t set b = 5 where id = 1",
    ),
    "the condition of an index": (
        "create table t (id int primary key, a int, b int);"
        "create index on t (id) where 100 / (a - b) > 3; insert into t values (1, 5, 1), (2, 5, 1)",
        "update t set a = 10",
        "update t set b = 5 where id = 1",
    ),
    "a domain": (
        "create domain price as numeric(6, 2); create table t (id int primary key, a price);"
        "insert into t values (1, 100), (2, 100)",
        "update t set a = a - 90",
        "update t set a = 9990 where id = 1",
    ),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_row_that_cannot_be_written_leaves_the_others_free(db: Connection, case: str) -> None:
    made, agents, persons = UNWRITABLE[case]
    db.execute(f"{made}; select agentundo.track('t', 'all')".encode())
    if case == "a domain":
        db.execute("select agentundo.set_merge('t', 'a', 'delta')")
    before = rows(db, "select * from t where id = 2")
    call = write(db, agents)
    db.execute(persons.encode())
    mine = rows(db, "select * from t where id = 1")
    how = {"on_conflict": "skip", "merge": True}
    assert reasons(db, call, merge=True) == {"constraint": 1}
    assert_refused(db, call, merge=True)
    assert [(row.key and row.key["id"], row.status) for row in plan(db, call, **how)] == [
        (2, "ok"),
        (1, "skip"),
    ]
    assert revert(db, call, **how).counts[2:4] == (1, 1)
    assert rows(db, "select * from t order by id") == mine + before
