"""Autovacuum is at work on a table that has to be locked as a whole.

PostgreSQL ends an autovacuum for whoever has waited for it for deadlock_timeout. Ours wait shorter
and often, and must get past it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.servers import Server, start
from tests.support.state import assert_same, snapshot
from tests.support.undo import plan, revert, rows, scalar, write
from tests.support.undoing import triggers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: Slow enough to be still there when the test is over.
LINGERING = (
    "autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
)
AT_WORK = """
select count(*) from pg_locks l join pg_stat_activity a using (pid)
where l.relation = %s::regclass and l.granted and a.datname = current_database()
  and a.backend_type = 'autovacuum worker' and l.mode = 'ShareUpdateExclusiveLock'
"""


@pytest.fixture(scope="module")
def restless(server: Server) -> Iterator[Server]:
    """Start a server that looks every second for tables to vacuum."""
    if server.bindir is None:
        pytest.skip("needs a server of its own, not one given by --dsn")
    own = start(server.bindir, autovacuum_naptime="1s")
    yield own
    own.close()


@pytest.fixture
def big(restless: Server) -> Iterator[Connection]:
    """Make a tracked table with a trigger, which is not vacuumed yet."""
    with (
        restless.database(installed=True) as janitor,
        closing(psycopg.connect(restless.dsn(janitor.dbname), autocommit=True)) as db,
    ):
        db.execute(
            "create table big (id int primary key, v int, filler text default repeat('x', 200))"
            " with (autovacuum_enabled = off);"
            "insert into big select n, 0 from generate_series(1, 20000) n;"
            "create function touch() returns trigger language plpgsql as"
            " $$ begin return new; end $$;"
            "create trigger touch before update on big for each row execute function touch();"
            "select agentundo.track('big')"
        )
        yield db


def await_autovacuum(db: Connection, table: str) -> None:
    """Return once a table in which rows have died is being vacuumed, slowly."""
    db.execute(f"alter table {table} set (autovacuum_enabled = on, {LINGERING})".encode())
    wait_until(lambda: scalar(db, AT_WORK, table) > 0, what="an autovacuum", seconds=60)


def test_a_revert_that_switches_a_trigger_off_gets_past_it(big: Connection) -> None:
    before, armed = snapshot(big, "public.big"), triggers(big)
    write(big, "agent", "update big set v = 1 where id = 5")
    big.execute("update big set v = v where id > 100")
    await_autovacuum(big, "big")
    big.execute("set lock_timeout = '10s'")
    assert revert(big, "agent").counts == (0, 0, 1, 0, 0)
    assert triggers(big) == armed
    assert_same(before, snapshot(big, "public.big"))


def test_what_is_known_of_a_row_is_erased_past_it(big: Connection) -> None:
    write(big, "agent", "update big set v = 1 where id = 5")
    history = scalar(big, "select history from agentundo.tracked")
    with big.transaction(force_rollback=True):
        write(big, "taken back at once", "update big set v = 3")
    await_autovacuum(big, history)
    big.execute("set lock_timeout = '10s'")
    erased = rows(big, """select * from agentundo.erase('big', '{"id": 5}', 'she asked for it')""")
    assert erased == [(2, 0)]
    assert [(row.status, row.reason) for row in plan(big, "agent")] == [("conflict", "erased")]
