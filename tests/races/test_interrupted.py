"""Reverts, redos and writes that are cancelled or lose their session at random moments.

When that is, is left to chance, so that each run tries moments that no other has: before the
statement, while it plans, locks, silences triggers, writes, arms them again, or when all is done.
Whenever it is, all of it has happened or nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.races.books import Books, assert_sound, assert_untouched, read
from tests.races.scheduler import WAITING
from tests.support.sessions import Session
from tests.support.state import assert_same
from tests.support.undo import redo, revert, rows, scalar, tag
from tests.support.undoing import triggers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: Triggers in every state, one of which would change each row that goes back.
MANY = """
create table folders (id int primary key, name text);
create table papers (id int primary key, folder int references folders, body text);
insert into folders select n, 'folder ' || n from generate_series(1, 10) n;
insert into papers select n, 1 + n % 10, 'paper ' || n from generate_series(1, 60) n;
create function touch() returns trigger language plpgsql as
$$ begin new.body := new.body || '!'; return new; end $$;
create trigger t_origin before insert on papers for each row execute function touch();
create trigger t_always before insert on papers for each row execute function touch();
create trigger t_off before insert on papers for each row execute function touch();
alter table papers enable always trigger t_always, disable trigger t_off;
select agentundo.track('folders'), agentundo.track('papers');
"""
WORK = """
update papers set body = 'by the agent';
delete from papers where folder <= 5;
delete from folders where id <= 5;
insert into folders select n, 'new' from generate_series(101, 150) n on conflict do nothing;
"""


@pytest.fixture
def db(db: Connection) -> Connection:
    """Add papers in folders."""
    db.execute(MANY.encode())
    return db


def write(conn: Connection, invocation: str) -> None:
    with conn.transaction():
        tag(conn, invocation)
        conn.execute(WORK)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_all_of_it_has_happened_or_nothing(
    db: Connection, connect: Connect, seed: str, request: pytest.FixtureRequest, how: str
) -> None:
    random, ended = Random(f"{seed}/{how}"), Counter[str]()
    armed, original = read(db).armed, read(db).tables
    writing = _seconds(write, db, "agent")
    written = read(db).tables
    undoing = max(_seconds(act, connect(), "agent") for act in (revert, redo))  # from the start
    state = "written"
    repeats = 200 if request.config.getoption("--collisions") else 8
    for number in range(repeats):
        before = read(db)
        act: Callable[..., Any] = revert if state == "written" else redo
        goal = original if state == "written" else written
        if _interrupted(db, connect, how, random.random() * 1.3 * undoing, act, "agent"):
            ended[f"{act.__name__} interrupted"] += 1
        if _happened(db, before):
            ended[f"{act.__name__} done"] += 1
            assert_same(goal, read(db).tables)
            state = "original" if state == "written" else "written"
        assert triggers(db) == armed
        if number % 4 == 0:
            _interrupted_write(
                db, connect, how, random.random() * writing, f"other-{number}", ended
            )
    print(how, dict(ended))
    assert ended["revert interrupted"] + ended["redo interrupted"] > 0, "nothing was interrupted"
    if state == "written":
        assert revert(db, "agent").status == "reverted"
    assert_same(original, read(db).tables)
    assert_sound(db, armed)


def _seconds(act: Callable[..., Any], conn: Connection, invocation: str) -> float:
    began = time.monotonic()
    act(conn, invocation)
    return time.monotonic() - began


def _interrupted_write(
    db: Connection, connect: Connect, how: str, delay: float, name: str, ended: Counter[str]
) -> None:
    """Interrupt a write that is always taken back if it got through."""
    before = read(db)
    if _interrupted(db, connect, how, delay, write, name):
        ended["write interrupted"] += 1
    if _happened(db, before):
        assert revert(db, name).status == "reverted"
        assert_same(before.tables, read(db).tables)


def _interrupted(
    db: Connection,
    connect: Connect,
    how: str,
    delay: float,
    act: Callable[..., Any],
    invocation: str,
) -> bool:
    """Start something in a session of its own and interrupt it; return whether it said so."""
    session = Session(connect(options=WAITING), db)
    running = session.later(act, session.conn, invocation)
    time.sleep(delay)
    db.execute(f"select {how}(%s)".encode(), [session.pid])
    error = running.exception(timeout=60)
    if error:
        assert isinstance(error, psycopg.Error)
        assert error.sqlstate in ("57014", "57P01", None), error
    session.conn.close()
    gone = "select not exists (select from pg_stat_activity where pid = %s)"
    wait_until(lambda: scalar(db, gone, session.pid) is True, what="the session to end")
    session.close()
    return error is not None


def _happened(db: Connection, before: Books) -> bool:
    """Return whether anything has; if not, nothing at all is different."""
    latest = "select max(change) from agentundo._change"
    known = [int(row[1].strip("'")) for row in before.ours["agentundo._change"].rows]
    if scalar(db, latest) == max(known):
        assert_untouched(before, db)
        return False
    return True


def test_books_see_what_is_left_behind(db: Connection) -> None:
    """What the tests above rest on: they would see a counter, a change or a trigger."""
    write(db, "agent")
    before = read(db)
    for left in (
        "insert into agentundo._restoring values (pg_current_xact_id(), 1, 'I', 1)",
        "alter table papers disable trigger t_origin",
        "update agentundo._turn set turn = turn + 1",
        "delete from agentundo_history.papers_2 where ctid = '(0,1)'",
        "update papers set body = body || '!' where id = 36",
    ):
        with db.transaction(force_rollback=True):
            db.execute(left.encode())
            if "_turn" in left and not rows(db, "select from agentundo._turn"):
                db.execute("insert into agentundo._turn values (1)")
            with pytest.raises(AssertionError):
                assert_untouched(before, db)
    assert_untouched(before, db)
