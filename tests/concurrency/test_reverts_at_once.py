"""Several people press undo at the same time."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES, TOUCH
from tests.support.sessions import all_at_once, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import Result, redo, revert, rows, scalar, status, write
from tests.support.undoing import triggers

pytestmark = pytest.mark.core

NOISY = TOUCH + "create trigger touch before update on deals for each row execute function touch();"


def undo(invocation: str, conn: Connection) -> Result:
    return revert(conn, invocation)


def undo_all(invocations: list[str], conn: Connection) -> Result:
    return revert(conn, invocations)


def cascade(invocation: str, conn: Connection) -> Result:
    return revert(conn, invocation, on_conflict="cascade")


def redo_it(invocation: str, conn: Connection) -> Result:
    return redo(conn, invocation)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "only tagged"])
@pytest.mark.parametrize("noisy", [True, False], ids=["with a trigger", "without"])
def test_ten_reverts_at_once_are_one(
    db: Connection, session: NewSession, recorded: bool, noisy: bool
) -> None:
    if noisy:
        db.execute(NOISY)
    before, armed = snapshot(db, *TABLES), triggers(db)
    if recorded:
        db.execute("select agentundo.record_invocation('agent', tool => 'close_deals')")
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 2")

    results = all_at_once([session() for _ in range(10)], *[partial(undo, "agent")] * 10)

    assert Counter(r.status for r in results) == {"reverted": 1, "already_reverted": 9}
    (first,) = (r for r in results if r.status == "reverted")
    assert first.counts == (0, 1, 5, 0, 0)
    assert {r.revert_id for r in results} == {first.revert_id}
    assert all(r.counts == (0, 0, 0, 0, 0) for r in results if r is not first)
    assert_same(before, snapshot(db, *TABLES))
    assert triggers(db) == armed
    told = rows(db, "select kind, invocation, payload ->> 'revert_id' from agentundo.events")
    assert told == [("invocation_reverted", "agent", first.revert_id)]


def test_ten_redos_at_once_are_one(db: Connection, session: NewSession) -> None:
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 2")
    after = snapshot(db, *TABLES)
    revert(db, "agent")

    results = all_at_once([session() for _ in range(10)], *[partial(redo_it, "agent")] * 10)

    assert Counter(r.status for r in results) == {"reverted": 1, "nothing_to_revert": 9}
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "agent") == "committed"


def test_second_revert_waits_for_the_first_and_finds_the_work_done(
    db: Connection, session: NewSession
) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'")
    first, second = session(), session()
    first.run("begin")
    done = revert(first.conn, "agent")
    waiting = second.later(revert, second.conn, "agent")
    second.wait_until_blocked(waiting, by=first)
    first.run("commit")
    result = outcome(waiting)
    assert (result.status, result.revert_id) == ("already_reverted", done.revert_id)
    assert_same(before, snapshot(db, *TABLES))


def test_second_revert_does_it_when_the_first_rolls_back(
    db: Connection, session: NewSession
) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'")
    first, second = session(), session()
    first.run("begin")
    abandoned = revert(first.conn, "agent")
    waiting = second.later(revert, second.conn, "agent")
    second.wait_until_blocked(waiting, by=first)
    first.run("rollback")
    result = outcome(waiting)
    assert result.status == "reverted"
    assert result.revert_id != abandoned.revert_id
    assert_same(before, snapshot(db, *TABLES))
    assert rows(db, "select payload ->> 'revert_id' from agentundo.events") == [(result.revert_id,)]


@pytest.mark.parametrize("kind", ["recorded", "only tagged", "with a trigger"])
def test_overlapping_sets_at_once_all_go_back(
    db: Connection, session: NewSession, kind: str
) -> None:
    """Each invocation writes both tables, half of them in the other order."""
    db.execute("insert into notes select n, 1, 'note' from generate_series(10, 50) n")
    db.execute("insert into deals select n, 'New', 'eve', 0 from generate_series(10, 50) n")
    if kind == "with a trigger":
        db.execute(NOISY)
    sessions = [session() for _ in range(4)]
    for number in range(5):
        before = snapshot(db, *TABLES)
        ids = [f"{number}-{letter}" for letter in "abcd"]
        for place, invocation in enumerate(ids):
            if kind == "recorded":
                db.execute("select agentundo.record_invocation(%s)", [invocation])
            statements = [
                f"update deals set stage = '{number}' where id % 4 = {place}",
                f"delete from notes where id % 4 = {place} and id % 5 = {number}",
            ]
            write(db, invocation, ";".join(statements[:: 1 if place % 2 else -1]))
        a, b, c, d = ids
        sets = [[a, b, c], [c, b, d], [d, a], [d, c, b, a]]

        results = all_at_once(sessions, *(partial(undo_all, s) for s in sets))

        assert_same(before, snapshot(db, *TABLES))
        assert {r.status for r in results} <= {"reverted", "already_reverted"}
        taken = [i for r in results if r.status == "reverted" for i in r.invocations]
        assert sorted(taken) == ids, "each goes back once"
        assert [status(db, i) for i in ids] == ["reverted"] * 4


def test_cascades_towards_each_other_do_not_deadlock(db: Connection, session: NewSession) -> None:
    """Each of two invocations has overwritten a row of the other, so each undo needs both.

    Both reverts have begun, each with its own invocation, when a lock on the table holds them up.
    """
    before = snapshot(db, *TABLES)
    write(db, "a", "update deals set stage = 'a1' where id = 1")
    write(db, "b", "update deals set stage = 'b' where id in (1, 2)")
    write(db, "a", "update deals set stage = 'a2' where id = 2")
    holder, left, right = session(), session(), session()
    holder.run("begin", "lock table deals in access exclusive mode")
    running = [
        left.later(revert, left.conn, "a", on_conflict="cascade"),
        right.later(revert, right.conn, "b", on_conflict="cascade"),
    ]
    left.wait_until_blocked(running[0])
    right.wait_until_blocked(running[1])
    holder.run("commit")
    results = [outcome(one) for one in running]
    assert sorted(r.status for r in results) == ["already_reverted", "reverted"]
    assert_same(before, snapshot(db, *TABLES))
    assert [status(db, i) for i in "ab"] == ["reverted", "reverted"]


def test_cascades_and_plain_reverts_at_once(db: Connection, session: NewSession) -> None:
    sessions = [session() for _ in range(4)]
    for number in range(3):
        before = snapshot(db, *TABLES)
        a, b, c = (f"{number}-{letter}" for letter in "abc")
        write(db, a, "update deals set stage = 'a1' where id = 1")
        write(db, b, "update deals set stage = 'b' where id in (1, 2)")
        write(db, a, "update deals set stage = 'a2' where id = 2")
        write(db, c, "update deals set owner = 'c' where id in (1, 2, 3)")
        all_at_once(
            sessions,
            partial(cascade, a),
            partial(cascade, b),
            partial(cascade, c),
            partial(undo_all, [c, b, a]),
        )
        assert_same(before, snapshot(db, *TABLES))
        assert [status(db, i) for i in (a, b, c)] == ["reverted"] * 3


def test_redos_of_two_members_of_one_revert_do_not_deadlock(
    db: Connection, session: NewSession
) -> None:
    """Both have begun, each with its own invocation, when both need the revert they share."""
    write(db, "x", "update deals set stage = 'Won' where id = 1")
    write(db, "y", "update deals set stage = 'Won' where id = 2")
    after = snapshot(db, *TABLES)
    shared = revert(db, ["x", "y"]).revert_id
    holder, left, right = session(), session(), session()
    holder.run("begin", f"select from agentundo._invocation where id = '{shared}' for update")
    running = [
        left.later(redo, left.conn, "x"),
        right.later(redo, right.conn, "y"),
    ]
    left.wait_until_blocked(running[0])
    right.wait_until_blocked(running[1])
    holder.run("commit")
    results = [outcome(one) for one in running]
    assert sorted(r.status for r in results) == ["nothing_to_revert", "reverted"]
    assert_same(after, snapshot(db, *TABLES))


def test_revert_and_redo_in_turns_end_in_one_of_the_two_states(
    db: Connection, session: NewSession
) -> None:
    before = snapshot(db, *TABLES)
    write(db, "agent", "update deals set stage = 'Won'; delete from notes where id = 2")
    after = snapshot(db, *TABLES)
    functions = [partial(undo, "agent"), partial(redo_it, "agent")] * 4
    all_at_once([session() for _ in functions], *functions)
    state = {"reverted": before, "committed": after}[status(db, "agent")]
    assert_same(state, snapshot(db, *TABLES))
    standing = scalar(db, "select count(*) from agentundo.changes where covered_by is null")
    assert standing > 0
