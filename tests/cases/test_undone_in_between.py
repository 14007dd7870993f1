"""Several undos that have to do with the same row: what one took back must not confuse another."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert
from tests.support.undoing import (
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core


@pytest.fixture
def n(db: Connection) -> Connection:
    """Make and track a table with rows of somebody else's."""
    db.execute("create table n (id int primary key, v int); insert into n values (1, 0), (2, 0)")
    track(db, "n")
    return db


@pytest.mark.parametrize(
    "nothing",
    [
        ("delete from n where id = 1", "insert into n values (1, 0)"),
        ("update n set v = 1 where id = 1", "update n set v = 0 where id = 1"),
    ],
)
@pytest.mark.parametrize("more", ["update n set v = 5 where id = 2", "select 1"])
def test_undoing_what_came_to_nothing_does_not_hide_a_row(
    n: Connection, nothing: tuple[str, str], more: str
) -> None:
    write(n, *nothing, tag="nothing")
    before = everything(n)
    write(n, "delete from n where id = 1", more, tag="call")
    assert revert(n, "nothing").status == "reverted"
    assert {row.status for row in plan(n, "call")} == {"ok"}
    assert revert(n, "call").status == "reverted"
    assert_same(before, everything(n))


@pytest.mark.parametrize("more", ["update n set v = 5 where id = 2", "select 1"])
def test_a_row_that_a_person_made_anew_comes_back(db: Connection, more: str) -> None:
    db.execute("create table n (id int primary key, v int); insert into n values (2, 0)")
    db.execute("select agentundo.track('n', 'all')")
    write(db, "insert into n values (1, 0)", tag="first")
    db.execute("delete from n where id = 1")
    db.execute("insert into n values (1, 0)")
    before = everything(db)
    write(db, "delete from n where id = 1", more, tag="call")
    revert(db, "first")
    assert revert(db, "call").status == "reverted"
    assert_same(before, everything(db))


@pytest.mark.parametrize("more", ["update n set v = 5 where id = 2", "select 1"])
def test_a_row_whose_making_was_undone_does_not_come_back(n: Connection, more: str) -> None:
    before = everything(n)
    write(n, "insert into n values (3, 0)", tag="first")
    write(n, "delete from n where id = 3", more, tag="call")
    assert revert(n, "first").status == "reverted"
    assert "done" in {row.status for row in plan(n, "call")}
    assert revert(n, "call").status == "reverted"
    assert_same(before, everything(n))


@pytest.mark.parametrize(
    "action", ["on delete set null", "on delete set default", "on update cascade"]
)
def test_two_keys_that_act_on_one_row_in_one_statement(db: Connection, action: str) -> None:
    """One change has this row twice then."""
    db.execute(
        "create table u (id int primary key, name text);"
        f"create table m (id int primary key, made int default 2 references u {action},"
        f" changed int default 2 references u {action}, t text);"
        "insert into u values (1, 'a'), (2, 'b');"
        "insert into m values (10, 1, 1, 'one'), (11, 1, 2, 'two'), (12, 2, 2, 'three')".encode()
    )
    track(db, "u", "m")
    statement = "delete from u where id = 1"
    if "update" in action:
        statement = "update u set id = 7 where id = 1"
    assert_undone(db, statement)
    call = write(db, statement)
    assert {row.status for row in plan(db, call)} == {"ok"}


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
@pytest.mark.parametrize("first", ["made", "gone"])
def test_undos_side_by_side_about_a_row_that_is_absent(
    n: Connection, connect: Connect, isolation: str, first: str
) -> None:
    """Either order leaves no row; both at once must not bring it back."""
    before = everything(n)
    write(n, "insert into n values (3, 0)", tag="made")
    write(n, "delete from n where id = 3", "update n set v = 5 where id = 2", tag="gone")
    one, two = connect(), connect()
    for conn in (one, two):
        conn.execute("set lock_timeout = '1s'")
        conn.execute(f"begin isolation level {isolation}".encode())
        conn.execute("select count(*) from n")
    other = "gone" if first == "made" else "made"
    assert revert(one, first).status == "reverted"
    with pytest.raises(psycopg.Error) as refused:
        revert(two, other)
    assert refused.value.sqlstate == "55P03"
    two.execute("rollback")
    two.execute(f"begin isolation level {isolation}; select count(*) from n".encode())
    one.execute("commit")
    if isolation == "repeatable read":
        with pytest.raises(psycopg.errors.SerializationFailure):
            revert(two, other)
        two.execute("rollback; begin")
    assert revert(two, other).status == "reverted"
    two.execute("commit")
    assert_same(before, everything(n))


def test_rows_that_keep_a_unique_value_make_no_room(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, u text unique, note text);"
        "insert into t values (1, 'a', 'n1'), (2, 'c', 'n2')"
    )
    track(db, "t")
    call = write(
        db, "update t set u = 'b' where id = 1", "update t set note = 'agent' where id = 2"
    )
    db.execute("update t set u = 'a' where id = 2")
    found = {(row.key or {}).get("id"): row.reason for row in plan(db, call, merge=True)}
    assert found == {1: "unique_taken", 2: None}
    assert_refused(db, call, merge=True)
    assert revert(db, call, merge=True, on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert db.execute("select * from t order by id").fetchall() == [
        (1, "b", "n1"),
        (2, "a", "n2"),
    ]


def test_values_go_round_in_one_table_while_another_is_held(db: Connection) -> None:
    db.execute(
        "create table j (id int primary key, u text unique);"
        "insert into j values (1, 'a'), (2, 'b');"
        "create table p (id int primary key, v text); insert into p values (1, 'x');"
        "create table c (id int primary key, p int references p on delete cascade);"
        "insert into c values (1, 1)"
    )
    track(db, "j", "p")
    assert_undone(
        db,
        "update j set u = 'tmp' where id = 1",
        "update j set u = 'a' where id = 2",
        "update j set u = 'b' where id = 1",
        "update p set v = 'y'",
    )


def test_a_check_that_raises_for_the_former_value_is_a_conflict_of_that_row(
    db: Connection,
) -> None:
    db.execute(
        "create table t (id int primary key, t text);"
        "insert into t select g, case when g = 3 then 'abc' else g::text end"
        " from generate_series(1, 7) g"
    )
    track(db, "t")
    call = write(db, "update t set t = '5'")
    db.execute("alter table t add constraint numeric_only check (t::int > 0)")
    assert [(row.key, row.reason) for row in plan(db, call) if row.status != "ok"] == [
        ({"id": 3}, "constraint")
    ]
    assert_refused(db, call)
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 6, 1, 1)
    assert db.execute("select id, t from t order by id").fetchall() == [
        (g, "5" if g == 3 else str(g)) for g in range(1, 8)
    ]


def test_undoable_offers_nothing_of_other_scopes(db: Connection) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 1)")
    track(db, "t")
    for tag, scope, key in (("s1", "A", 1), ("s2", "B", 2), ("s4", "A", 1), ("s4", "B", 2)):
        with db.transaction():
            db.execute("select agentundo.tag(%s, run => 'r', scope => %s)", [tag, scope])
            db.execute("update t set v = v + 1 where id = %s", [key])
    query = "select kind, id, rows, undoable from agentundo.undoable('A', 'r') order by 1, 2"
    assert db.execute(query).fetchall() == [("invocation", "s1", 1, True), ("run", "r", 1, True)]
    revert(db, "s4")
    assert revert(db, "s1", scope="A").status == "reverted"
    assert db.execute(query).fetchall() == [("invocation", "s1", 1, False), ("run", "r", 1, False)]
    assert redo(db, "s1", scope="A").status == "reverted"


def test_redo_brings_back_no_row_that_somebody_unseen_had_deleted(n: Connection) -> None:
    write(n, "insert into n values (3, 3), (4, 4)", tag="call")
    n.execute("delete from n where id = 3")
    before = everything(n)
    assert revert(n, "call").counts == (1, 0, 0, 0, 0)
    assert redo(n, "call").counts == (0, 1, 0, 0, 0)
    assert_same(before, everything(n))


def test_a_redo_does_not_take_back_what_it_is_to_do_again(n: Connection) -> None:
    """The same id has written again since; with cascade the redo would undo itself."""
    write(n, "update n set v = 3", tag="call")
    revert(n, "call")
    write(n, "update n set v = 7", tag="call")
    before = everything(n)
    with pytest.raises(psycopg.Error) as refused:
        redo(n, "call", on_conflict="cascade")
    assert refused.value.sqlstate == "UN001"
    assert_same(before, everything(n))


def test_diff_and_history_do_not_tell_of_rows_that_a_revert_found_gone(n: Connection) -> None:
    write(n, "insert into n values (3, 3)", tag="made")
    write(n, "delete from n where id = 3", tag="gone")
    done = revert(n, "made")
    assert done.counts == (0, 0, 0, 0, 0)
    assert n.execute("select * from agentundo.diff(%s)", [done.revert_id]).fetchall() == []
    told = n.execute(
        "select invocation, operation from agentundo.row_history('n', '{\"id\": 3}')"
    ).fetchall()
    assert told == [("made", "insert"), ("gone", "delete")]
    assert n.execute("select invocation from agentundo.changes order by change").fetchall() == [
        ("made",),
        ("gone",),
    ]
    found = n.execute(
        "select rows from agentundo.invocations where id = %s", [done.revert_id]
    ).fetchone()
    assert found == (0,)


def test_a_deletion_that_was_done_again_holds(n: Connection) -> None:
    """Another had deleted the row while it was undone; his undo must not bring it back."""
    write(n, "delete from n where id = 1", tag="first")
    revert(n, "first")
    write(n, "delete from n where id = 1", tag="second")
    before = everything(n)
    assert redo(n, "first").status == "reverted"
    assert revert(n, "second").counts == (0, 0, 0, 0, 0)
    assert_same(before, everything(n))
    assert redo(n, "second").counts == (0, 0, 0, 0, 0)
    assert_refused(n, "first")  # the second deletion stands, and came later
    assert revert(n, "second").counts == (0, 0, 0, 0, 0)
    assert revert(n, "first").counts == (0, 1, 0, 0, 0)
    assert n.execute("select * from n order by id").fetchall() == [(1, 0), (2, 0)]


def test_a_row_that_was_made_and_moved_to_another_key_goes_in_any_order(n: Connection) -> None:
    before = everything(n)
    write(n, "insert into n values (5, 5)", tag="made")
    write(n, "update n set id = 6 where id = 5", tag="moved")
    revert(n, "made")
    assert revert(n, "moved").counts == (1, 0, 0, 0, 0)
    assert_same(before, everything(n))


def test_a_moved_row_stays_deleted_when_both_are_done_again(n: Connection) -> None:
    write(n, "update n set id = 7 where id = 1", tag="moved")
    write(n, "delete from n where id = 7", tag="deleted")
    before = everything(n)
    for undo in (revert, redo):
        for call in ("deleted", "moved"):
            assert undo(n, call).status == "reverted"
    assert_same(before, everything(n))


def test_a_row_that_somebody_else_made_is_not_ours_for_having_touched_it(n: Connection) -> None:
    """The call moved nothing in it, but wrote it last, with the values of one that it had made."""
    write(n, "insert into n values (3, 0)", tag="call")
    write(n, "update n set id = 4 where id = 3", "insert into n values (3, 0)", tag="other")
    write(n, "update n set v = v where id = 3", tag="call")
    assert_refused(n, "call")
    before = everything(n)
    assert revert(n, "call", on_conflict="skip").counts == (0, 0, 0, 1, 1)
    assert_same(before, everything(n))


def test_a_cascade_takes_back_what_was_done_again(n: Connection) -> None:
    """The row was last written by a redo: what that did again is in the way, not the redo."""
    before = everything(n)
    write(n, "update n set v = 1 where id = 1", tag="first")
    write(n, "update n set v = 2 where id = 1", tag="second")
    revert(n, "second")
    redo(n, "second")
    done = revert(n, "first", on_conflict="cascade")
    assert set(done.invocations) == {"first", "second"}
    assert_same(before, everything(n))


def test_a_row_that_somebody_deleted_before_everybody_was_captured_stays_deleted(
    db: Connection,
) -> None:
    """A call has written it since the set deleted it: so it was there, and was deleted again."""
    db.execute("create table t (id int primary key, a text); insert into t values (5, 'a')")
    track(db, "t", capture="agent")
    call = write(db, "delete from t")
    db.execute("insert into t values (5, 'mia')")
    write(db, "update t set a = 'bot'")
    db.execute("delete from t")
    assert reasons(db, call) == {"row_deleted": 1}
    db.execute("select agentundo.track('t', 'all')")
    assert reasons(db, call) == {"row_deleted": 1}
    assert_refused(db, call)


@pytest.mark.parametrize("capture", ["agent", "all"])
@pytest.mark.parametrize("adds", [False, True])
def test_an_undo_by_merge_is_the_same_after_its_redo(
    db: Connection, capture: str, adds: bool
) -> None:
    db.execute(
        "create table contacts (id int primary key, stage text, phones text, total int);"
        "insert into contacts values (1, 'prospect', '0', 100)"
    )
    track(db, "contacts", capture=capture)
    db.execute("select agentundo.set_merge('contacts', 'total', 'delta')")
    call = write(db, "update contacts set stage = 'customer', total = total + 10")
    db.execute("update contacts set phones = '9'")
    if adds:
        db.execute("update contacts set total = total + 1")
    for _ in range(3):
        assert revert(db, call, merge=True).counts == (0, 0, 1, 0, 0)
        left = (1, "prospect", "9", 101 if adds else 100)
        assert db.execute("table contacts").fetchall() == [left]
        assert redo(db, call, merge=adds).counts == (0, 0, 1, 0, 0)
        done = (1, "customer", "9", 111 if adds else 110)
        assert db.execute("table contacts").fetchall() == [done]
