"""The server crashes in the middle of a revert, of a write, and before a revert is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from tests.races.books import assert_sound, assert_untouched, read
from tests.races.scheduler import WAITING
from tests.support.crashes import Crashing
from tests.support.servers import Server, start
from tests.support.sessions import Session
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert, rows, scalar, tag

pytestmark = pytest.mark.core

ROWS = 2_000
#: A trigger in each state; the one that is to fire holds up a revert at its very last row.
TABLES = f"""
create table deals (id int primary key, stage text);
insert into deals select n, 'New' from generate_series(1, {ROWS}) n;
create table notes (id int primary key, deal int references deals, body text);
insert into notes select n, n, 'note' from generate_series(1, 3) n;
create function touch() returns trigger language plpgsql as
$$ begin new.stage := new.stage || '!'; return new; end $$;
create trigger t_origin before update on deals for each row execute function touch();
create trigger t_replica before update on deals for each row execute function touch();
create trigger t_off before update on deals for each row execute function touch();
alter table deals enable replica trigger t_replica, disable trigger t_off;
create function wait() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock(42); return null; end $$;
create trigger wait after insert on notes for each statement execute function wait();
select agentundo.track('deals'), agentundo.track('notes');
select agentundo.set_trigger('notes', 'wait', 'fire');
"""
WORK = "update deals set stage = 'Won'; delete from notes where id = 1;"


class Machine:
    """A server with a database, to which one connects anew after each crash."""

    def __init__(self, server: Server, dsn: str) -> None:
        self.crashing = Crashing(server)
        self.dsn = dsn

    def connect(self) -> Connection:
        return psycopg.connect(self.dsn, autocommit=True, options=WAITING)

    def crash_in(self, act: Callable[[Connection], Any]) -> None:
        """Start something that comes to wait for the advisory lock; then the power goes."""
        with ExitStack() as opened:
            holder, busy, observer = (
                opened.enter_context(closing(self.connect())) for _ in range(3)
            )
            holder.execute("begin; select pg_advisory_xact_lock(42)")
            session = Session(busy, observer)
            running = session.later(act, session.conn)
            session.wait_until_blocked(running)
            self.crashing.crash()
            with pytest.raises(psycopg.OperationalError):
                running.result(timeout=60)
            session.end()
        self.crashing.restart()


@pytest.fixture
def machine(server: Server) -> Iterator[Machine]:
    if server.bindir is None:
        pytest.skip("needs a server that may crash, not one given by --dsn")
    fresh = start(server.bindir, synchronous_commit="on")
    try:
        janitor = fresh.database(installed=True)
        janitor.init()
        yield Machine(fresh, fresh.dsn(janitor.dbname))
    finally:
        fresh.close()


def written(conn: Connection) -> None:
    with conn.transaction():
        tag(conn, "agent")
        conn.execute(WORK)


def put_back(conn: Connection) -> None:
    revert(conn, "agent")


def done_again(conn: Connection) -> None:
    redo(conn, "agent")


def write_and_wait(conn: Connection) -> None:
    with conn.transaction():
        tag(conn, "second")
        conn.execute("update deals set stage = 'Lost' where id <= 500")
        conn.execute("insert into notes values (9, 9, 'second')")


def revert_and_wait(conn: Connection) -> None:
    """What a person does who reads the plan, reverts, and has not yet committed."""
    with conn.transaction():
        assert {row.status for row in plan(conn, "agent")} == {"ok"}
        revert(conn, "agent")
        conn.execute("select pg_advisory_xact_lock(42)")


def test_after_a_crash_all_is_as_before_and_works(machine: Machine) -> None:
    """In the middle of a revert, of a write, and between a revert and its commit."""
    with closing(machine.connect()) as db:
        db.execute(TABLES.encode())
        original, armed = read(db).tables, read(db).armed
        written(db)
        before = read(db)
    for act in (put_back, write_and_wait, revert_and_wait):
        machine.crash_in(act)
        with closing(machine.connect()) as db:
            assert_untouched(before, db)
            assert_sound(db, armed)

    with closing(machine.connect()) as db:
        assert rows(db, "select status from agentundo.invocations") == [("committed",)]
        assert revert(db, "agent").counts == (0, 1, ROWS, 0, 0)
        assert_same(original, read(db).tables)
        assert_sound(db, armed)
        back = read(db)
    machine.crashing.crash()  # what was answered is durable
    machine.crashing.restart()
    with closing(machine.connect()) as db:
        assert_untouched(back, db)
        assert redo(db, "agent").status == "reverted"
        assert_same(before.tables, read(db).tables)
        assert_sound(db, armed)


def test_a_prepared_revert_and_a_prepared_write_outlive_a_crash(machine: Machine) -> None:
    with closing(machine.connect()) as db:
        db.execute(TABLES.encode())
        original, armed = read(db).tables, read(db).armed
        written(db)
        before = read(db)
        db.execute("begin; set local agentundo.notify = off")
        assert revert(db, "agent").status == "reverted"
        db.execute("prepare transaction 'undo'")
    machine.crashing.crash()
    machine.crashing.restart()
    with closing(machine.connect()) as db:
        assert_untouched(before, db)
        db.execute("rollback prepared 'undo'")
        assert_untouched(before, db)
        db.execute("begin; set local agentundo.notify = off")
        assert revert(db, "agent").status == "reverted"
        db.execute("prepare transaction 'undo'")
        db.execute("begin; select agentundo.tag('other')")
        db.execute("update notes set body = 'other' where id = 2")
        db.execute("prepare transaction 'write'")
    machine.crashing.crash()
    machine.crashing.restart()
    with closing(machine.connect()) as db:
        db.execute("commit prepared 'undo'")
        assert_same(original, read(db).tables)
        db.execute("commit prepared 'write'")
        assert scalar(db, "select body from notes where id = 2") == "other"
        assert revert(db, "other").counts == (0, 0, 1, 0, 0)
        assert_same(original, read(db).tables)
        assert_sound(db, armed)
