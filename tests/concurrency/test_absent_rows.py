"""Rows that are not there cannot be locked: undos and writers of the same absent row."""

from __future__ import annotations

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, redo, refused, revert, rows, scalar, tag, write

pytestmark = pytest.mark.core


@pytest.fixture
def db(db: Connection) -> Connection:
    """Add a tracked table of one row."""
    db.execute("create table r (id int primary key, v int); insert into r values (9, 9)")
    db.execute("select agentundo.track('r')")
    return db


def absent(db: Connection) -> bool:
    return not rows(db, "select from r where id = 1")


@pytest.mark.parametrize("first", ["g", "x"])
def test_the_undo_of_an_update_waits_for_that_of_the_deletion(
    db: Connection, session: NewSession, first: str
) -> None:
    """The one has nothing to do because the row is gone, the other would bring it back."""
    write(db, "f", "insert into r values (1, 0)")
    write(db, "g", "update r set v = 1 where id = 1")
    write(db, "x", "delete from r where id = 1")
    assert revert(db, "f").status == "reverted"
    one, two = session(), session()
    one.run("begin")
    assert revert(one.conn, first).status == "reverted"
    running = two.later(revert, two.conn, "x" if first == "g" else "g")
    two.wait_until_blocked(running, by=one)
    one.run("commit")
    assert running.result().status == "reverted"
    assert absent(db)


def test_a_writer_for_whom_an_undo_has_waited_came_before_it(
    db: Connection, session: NewSession
) -> None:
    """Else his own undo would not know of the other, and bring back what that had taken away."""
    write(db, "f", "insert into r values (1, 0)")
    writer, undoer = session(), session()
    writer.run("begin", "set local agent.invocation = 'x'", "select from r where id = 1 for update")
    running = undoer.later(revert, undoer.conn, "f")
    undoer.wait_until_blocked(running, by=writer)
    writer.run("delete from r where id = 1", "commit")
    assert running.result().counts == (0, 0, 0, 0, 0)
    assert revert(db, "x").counts == (0, 0, 0, 0, 0)
    assert absent(db)
    assert scalar(
        db,
        "select (select number from agentundo._revert where invocations = '{f}')"
        " > (select change from agentundo._change where invocation = 'x')",
    )


def test_a_row_that_is_made_and_deleted_while_an_undo_waits_for_it(
    db: Connection, session: NewSession
) -> None:
    write(db, "x", "insert into r values (1, 0)")
    write(db, "y", "delete from r where id = 1")
    writer, undoer = session(), session()
    writer.run("begin", "set local agent.invocation = 'h'", "insert into r values (1, 8)")
    writer.run("delete from r where id = 1")
    undoer.run("set lock_timeout = '20s'")
    running = undoer.later(revert, undoer.conn, "y")
    undoer.wait_until_blocked(running, by=writer)
    writer.run("commit")
    with refused("UN001") as told:
        running.result()
    assert "row_deleted" in told.refusal.message
    assert {row.reason for row in plan(db, "y")} == {"row_deleted"}
    assert absent(db)


def test_an_undo_that_is_not_committed_stands_in_nobodys_ddl(
    db: Connection, session: NewSession
) -> None:
    write(db, "x", "insert into r values (1, 0)")
    one = session()
    one.run("begin")
    assert revert(one.conn, "x").status == "reverted"
    heard: list[str | None] = []
    db.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    db.execute("set lock_timeout = '1s'; create type mood as enum ('fine'); create schema other")
    assert heard == []
    one.run("commit")
    assert redo(db, "x").status == "reverted"
    assert rows(db, "select * from r order by id") == [(1, 0), (9, 9)]


def test_a_cascade_takes_along_the_writer_for_whom_it_waited(
    db: Connection, session: NewSession
) -> None:
    write(db, "c", "update r set v = 1 where id = 9")
    writer, undoer = session(), session()
    writer.run("begin", "set local agent.invocation = 'h'", "update r set v = 2 where id = 9")
    running = undoer.later(revert, undoer.conn, "c", on_conflict="cascade")
    undoer.wait_until_blocked(running, by=writer)
    writer.run("commit")
    assert set(running.result().invocations) == {"c", "h"}
    assert rows(db, "select * from r") == [(9, 9)]


def test_an_undo_that_found_a_row_gone_says_nothing_of_an_insert_beside_it(
    db: Connection, session: NewSession
) -> None:
    """The insert has an earlier number and was not seen: it is undone like any other."""
    write(db, "f", "insert into r values (1, 0)")
    write(db, "x", "delete from r where id = 1")
    writer = session()
    writer.run("begin", "set local agent.invocation = 'h'", "insert into r values (1, 8)")
    assert revert(db, "f").counts == (0, 0, 0, 0, 0)
    writer.run("commit")
    write(db, "y", "update r set v = 9 where id = 1")
    assert revert(db, ["h", "y"]).counts == (1, 0, 0, 0, 0)
    assert absent(db)


def test_a_cascade_takes_along_who_took_the_parent_before_and_committed_after(
    db: Connection, session: NewSession
) -> None:
    """A deferred key lets him: of two tables the numbers of changes do not tell who was first."""
    db.execute(
        "create table parent (id int primary key);"
        "create table child (id int primary key,"
        " parent int references parent deferrable initially deferred);"
        "select agentundo.track('parent'), agentundo.track('child')"
    )
    db.execute("insert into parent values (1); insert into child values (1, 1)")
    tables = ("public.parent", "public.child")
    before = snapshot(db, *tables)
    other = session()
    other.run("begin")
    tag(other.conn, "other")
    other.run("delete from parent")
    write(db, "agent", "delete from child")
    other.run("commit")

    planned = plan(db, "agent", on_conflict="cascade")
    assert sorted((row.relation, row.invocation, row.action, row.status) for row in planned) == [
        ("public.child", "agent", "insert", "ok"),
        ("public.parent", "other", "insert", "ok"),
    ]
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["missing_parent"]
    result = revert(db, "agent", on_conflict="cascade")
    assert (result.status, result.counts) == ("reverted", (0, 2, 0, 0, 0))
    assert sorted(result.invocations) == ["agent", "other"]
    assert_same(before, snapshot(db, *tables))
