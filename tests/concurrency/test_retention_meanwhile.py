"""History is purged, held and erased while agents, people and reverts are at work.

What is destroyed cannot come back: so it is only what nobody held and nobody has written since.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.deals import TABLES
from tests.support.sessions import Session, outcome
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, refused, revert, rows, scalar, status, tag, write
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: Whoever should wait for nobody does not wait for long.
IMPATIENT = "-c statement_timeout=4s"
#: Everything that was written before it is called.
PURGE = "select * from agentundo.purge('0')"
CHANGES = "select invocation, relation, operation from agentundo.changes order by change"
#: Images of no change, and changes of which no image is there.
TORN = """
select 'image', h._change from agentundo_history.deals_1 h
where not exists (select from agentundo._change c where c.change = h._change)
union all
select 'image', h._change from agentundo_history.notes_2 h
where not exists (select from agentundo._change c where c.change = h._change)
union all
select 'change', c.change from agentundo._change c
where not exists (select from agentundo_history.deals_1 h where h._change = c.change)
  and not exists (select from agentundo_history.notes_2 h where h._change = c.change)
"""


def events(db: Connection) -> list[str]:
    return [kind for (kind,) in rows(db, "select kind from agentundo.events order by event")]


def waits_for(db: Connection, one: Session, other: Session) -> bool:
    return other.pid in scalar(db, "select pg_blocking_pids(%s)", one.pid)


# Purge ------------------------------------------------------------------------------------------


def test_what_is_held_before_a_purge_comes_to_it_stays(db: Connection, session: NewSession) -> None:
    """It becomes old enough while the purge waits, and is held in a moment that a look misses."""
    before = snapshot(db, *TABLES)
    write(db, "old", "update deals set stage = 'Won' where id = 1")
    late, busy, purger, holder = session(), session(), session(), session()
    late.run("begin")
    tag(late.conn, "late")
    late.run("update deals set stage = 'Lost' where id = 2")
    busy.run("begin", "select agentundo.hold('old', null)")

    purging = purger.later(rows, purger.conn, PURGE)
    purger.wait_until_blocked(purging, by=busy)
    late.run("commit")
    holder.run("begin", "select agentundo.hold('late', 'court')")
    busy.run("commit")
    wait_until(lambda: purging.done() or waits_for(db, purger, holder), what="the purge to go on")
    holder.run("commit")

    assert outcome(purging) == [(1, 1, 2)]
    kept = "select id, held, purged_at is not null from agentundo._invocation order by id"
    assert rows(db, kept) == [("late", "court", False), ("old", None, True)]
    assert rows(db, CHANGES) == [("late", "public.deals", "update")]
    assert rows(db, TORN) == []
    assert events(db) == ["invocation_held", "history_purged"]

    db.execute("update deals set stage = 'New' where id = 1")
    result = revert(db, "late")
    assert (result.status, result.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


def test_what_is_written_again_under_an_id_that_is_being_purged_stays(
    db: Connection, session: NewSession
) -> None:
    """Nobody waits for a purge to write: what comes is not old, and can go back."""
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "job", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 5")
    eraser, purger, agent = session(), session(), session()
    eraser.run("begin", """select agentundo.erase('deals', '{"id": 5}', 'request 1')""")

    purging = purger.later(rows, purger.conn, PURGE)
    purger.wait_until_blocked(purging, by=eraser)
    before = snapshot(db, *TABLES)
    write(agent.conn, "job", "update notes set body = 'just now'; delete from notes where id = 3")
    eraser.run("commit")

    # The person's change, whose images were erased meanwhile, and the agent's older one; the call
    # itself can be undone.
    assert outcome(purging) == [(0, 2, 2)]
    assert rows(db, CHANGES) == [
        ("job", "public.notes", "update"),
        ("job", "public.notes", "delete"),
    ]
    assert rows(db, TORN) == []
    assert status(db, "job") == "committed"
    assert [(p.relation, p.key, p.action, p.status) for p in plan(db, "job")] == [
        ("public.notes", {"id": 3}, "insert", "ok"),
        ("public.notes", {"id": 1}, "update", "ok"),
        ("public.notes", {"id": 2}, "update", "ok"),
    ]
    result = revert(db, "job")
    assert (result.status, result.counts) == ("reverted", (0, 1, 2, 0, 0))
    assert_same(before, snapshot(db, *TABLES))


def test_a_person_who_commits_while_a_purge_runs_keeps_change_and_images(
    db: Connection, session: NewSession
) -> None:
    """Written before, committed late: a purge takes all of it, or leaves all of it."""
    db.execute("select agentundo.track('deals', 'all'), agentundo.track('notes', 'all')")
    db.execute("update notes set body = 'mia' where id = 1")
    write(db, "job", "update notes set body = 'agent' where id = 2")
    person, eraser, purger = session(), session(), session()
    person.run("begin", "update deals set owner = 'mia' where id = 4")
    eraser.run("begin", """select agentundo.erase('notes', '{"id": 1}', 'request 1')""")

    purging = purger.later(rows, purger.conn, PURGE)
    purger.wait_until_blocked(purging, by=eraser)
    person.run("commit")
    eraser.run("commit")

    assert outcome(purging) == [(1, 2, 2)]
    assert rows(db, TORN) == []
    assert rows(db, CHANGES) == [(None, "public.deals", "update")]
    images = """
        select x.before ->> 'owner', x.after ->> 'owner'
        from agentundo.row_history('deals', '{"id": 4}') x"""
    assert rows(db, images) == [("eve", "mia")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("again", [False, True], ids=["whole", "written again meanwhile"])
def test_a_revert_older_than_a_purge_does_not_build_on_images_that_are_gone(
    db: Connection, session: NewSession, level: str, again: bool
) -> None:
    """They are still there in its snapshot; what it would write refers to them."""
    db.execute("select agentundo.record_invocation('job', tool => 'x')")
    db.execute("select agentundo.track('deals', 'all')")
    write(db, "job", "update deals set stage = 'Won' where id = 1")
    db.execute("update deals set owner = 'mia' where id = 5")
    eraser, purger, reverter = session(), session(), session()
    reverter.run(f"begin isolation level {level}", "select from notes")
    eraser.run("begin", """select agentundo.erase('deals', '{"id": 5}', 'request 1')""")
    purging = purger.later(rows, purger.conn, PURGE)
    purger.wait_until_blocked(purging, by=eraser)
    if again:
        write(db, "job", "delete from notes where id = 3")
    eraser.run("commit")
    outcome(purging)

    edited = snapshot(db, *TABLES)
    with pytest.raises(psycopg.errors.SerializationFailure):
        revert(reverter.conn, "job")
    reverter.run("rollback")
    assert_same(edited, snapshot(db, *TABLES))
    assert rows(db, TORN) == []
    assert rows(db, "select * from agentundo.check() where severity = 'error'") == []


# Erase ------------------------------------------------------------------------------------------

ERASE = """select * from agentundo.erase('notes', '{"id": 3}', 'request 1')"""


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("known", ["recorded", "recorded with its input", "tagged"])
def test_a_revert_older_than_an_erasure_does_not_bring_the_row_back(
    db: Connection, session: NewSession, level: str, known: str
) -> None:
    """What it would put back is still there in its snapshot."""
    if known != "tagged":
        given = """, input => '{"id": 3}'""" if known.endswith("input") else ""
        db.execute(f"select agentundo.record_invocation('agent', tool => 'x'{given})".encode())
    write(db, "agent", "delete from notes where id = 3")
    erased = snapshot(db, *TABLES)
    reverter = session()
    reverter.run(f"begin isolation level {level}", "select from deals")
    assert rows(db, ERASE) == [(1, int(known.endswith("input")))]

    with pytest.raises(psycopg.errors.SerializationFailure):
        revert(reverter.conn, "agent")
    reverter.run("rollback")
    assert_same(erased, snapshot(db, *TABLES))
    assert [(row.status, row.reason) for row in plan(db, "agent")] == [("conflict", "erased")]
    with refused("UN001") as caught:
        revert(reverter.conn, "agent")
    assert caught.reasons == ["erased"]
    assert_same(erased, snapshot(db, *TABLES))
    assert [kind for kind in events(db) if kind.startswith("invocation_r")] == []
    assert rows(db, "select count(*) from agentundo_history.notes_2") == [(0,)]


def test_an_agent_between_two_calls_and_an_erasure_do_not_deadlock(
    db: Connection, session: NewSession
) -> None:
    """The erasure waits for whoever writes to the history, and for the calls that touched the row.

    An agent has the one, and needs the other.
    """
    for call in ("first", "second"):
        db.execute("select agentundo.record_invocation(%s, tool => 'x')", [call])
    write(db, "first", "update notes set body = 'first' where id = 3")
    idle, agent, eraser = session(), session(), session()
    idle.run("begin")
    tag(idle.conn, "idle")
    idle.run("update notes set body = 'idle' where id = 1")
    agent.run("begin")
    tag(agent.conn, "first")
    agent.run("select agentundo.commit_invocation('first')")
    tag(agent.conn, "second")

    erasing = eraser.later(rows, eraser.conn, ERASE)
    eraser.wait_until_blocked(erasing)
    writing = agent.run_later("update notes set body = 'second' where id = 2", "commit")
    wait_until(lambda: writing.done() or waits_for(db, agent, eraser), what="the agent to go on")
    idle.run("commit")

    outcome(writing)
    assert outcome(erasing) == [(2, 0)]
    assert rows(db, "select id, body from notes order by id") == [
        (1, "idle"),
        (2, "second"),
        (3, "first"),
    ]
    for call in ("idle", "second"):
        assert revert(db, call).status == "reverted"
    assert rows(db, "select id, body from notes order by id") == [
        (1, "note"),
        (2, "note"),
        (3, "first"),
    ]
    assert [(row.status, row.reason) for row in plan(db, "first")] == [("conflict", "erased")]
    assert status(db, "first") == "committed"


def test_a_purge_and_an_erasure_do_not_deadlock(db: Connection, session: NewSession) -> None:
    """The erasure waits for an idle writer; the purge, which has no need to, is first."""
    write(db, "old", "update notes set body = 'old' where id = 3")
    left = snapshot(db, *TABLES)
    idle, eraser, purger = session(), session(), session(options=IMPATIENT)
    idle.run("begin")
    tag(idle.conn, "idle")
    idle.run("update notes set body = 'idle' where id = 1")
    erasing = eraser.later(rows, eraser.conn, ERASE)
    eraser.wait_until_blocked(erasing)
    assert rows(purger.conn, PURGE) == [(1, 1, 2)]
    idle.run("commit")
    assert outcome(erasing) == [(0, 0)]
    assert rows(db, CHANGES) == [("idle", "public.notes", "update")]
    assert rows(db, TORN) == []
    assert events(db) == ["history_purged", "row_erased"]
    assert revert(db, "idle").status == "reverted"
    assert_same(left, snapshot(db, *TABLES))


@pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "untagged"])
def test_nobody_queues_behind_an_erasure_that_waits(
    db: Connection, session: NewSession, tagged: bool
) -> None:
    """Not until an idle writer thinks better of it: others write to other rows meanwhile."""
    db.execute("select agentundo.track('notes', 'all')")
    write(db, "old", "update notes set body = 'old' where id = 3")
    idle, eraser, other = session(), session(), session(options=IMPATIENT)
    idle.run("begin")
    tag(idle.conn, "idle")
    idle.run("update notes set body = 'idle' where id = 1")
    erasing = eraser.later(rows, eraser.conn, ERASE)
    eraser.wait_until_blocked(erasing)
    if tagged:
        write(other.conn, "other", "update notes set body = 'other' where id = 2")
    else:
        other.run("update notes set body = 'other' where id = 2")
    assert not erasing.done()
    idle.run("rollback")
    assert outcome(erasing) == [(2, 0)]
    assert rows(db, "select id, body from notes order by id") == [
        (1, "note"),
        (2, "other"),
        (3, "old"),
    ]
    assert rows(db, CHANGES) == [
        ("old", "public.notes", "update"),
        ("other" if tagged else None, "public.notes", "update"),
    ]


def test_an_erasure_that_waits_in_vain_gives_up_and_leaves_nothing(
    db: Connection, session: NewSession
) -> None:
    write(db, "old", "update notes set body = 'old' where id = 3")
    writer, eraser = session(), session(options=f"{IMPATIENT} -c lock_timeout=50ms")
    writer.run("begin")
    tag(writer.conn, "idle")
    writer.run("update notes set body = 'idle' where id = 1")
    with refused("55P03") as caught:
        rows(eraser.conn, ERASE)
    assert (
        caught.message
        == "agentundo: somebody writes to public.notes, or undoes it, for longer than 00:00:00.05"
    )
    assert "pg_blocking_pids" in caught.hint
    assert scalar(eraser.conn, "show lock_timeout") == "50ms"
    writer.run("rollback")
    assert rows(db, "select count(*) from agentundo_history.notes_2") == [(2,)]
    assert events(db) == []

    # One who holds the call, and writes to nothing.
    writer.run("begin", "select agentundo.hold('old', null)")
    with refused("55P03") as caught:
        rows(eraser.conn, ERASE)
    assert "somebody writes to public.notes, or undoes it, for longer than" in caught.message
    writer.run("rollback")
    assert rows(eraser.conn, ERASE) == [(2, 0)]
    assert scalar(eraser.conn, "show lock_timeout") == "50ms"
    assert rows(db, "select count(*) from agentundo_history.notes_2") == [(0,)]
    assert events(db) == ["row_erased"]


def test_a_call_that_touches_the_row_while_its_erasure_waits_is_erased_too(
    db: Connection, session: NewSession
) -> None:
    """The erasure has locked the calls of before; the one that commits meanwhile comes along."""
    write(db, "old", "update notes set body = 'old' where id = 3")
    agent, eraser = session(), session()
    agent.run("begin")
    tag(agent.conn, "new")
    agent.run("update notes set body = 'new' where id = 3")
    left = snapshot(agent.conn, *TABLES)
    erasing = eraser.later(rows, eraser.conn, ERASE)
    eraser.wait_until_blocked(erasing, by=agent)
    agent.run("commit")
    assert outcome(erasing) == [(4, 0)]
    assert rows(db, "select count(*) from agentundo_history.notes_2") == [(0,)]
    for call in ("old", "new"):
        assert [(row.status, row.reason) for row in plan(db, call)] == [("conflict", "erased")]
    assert_same(left, snapshot(db, *TABLES))
