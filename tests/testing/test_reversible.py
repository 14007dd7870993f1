"""What `assert_reversible` runs, takes back and lets pass."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pyagentundo import AgentUndo
from pyagentundo.testing import assert_reversible, install
from pyagentundo.testing._running import tagged
from tests.conftest import Connect, Connection
from tests.support.state import assert_same, everything
from tests.support.undo import IMPATIENT, rows, scalar
from tests.testing.conftest import TABLES, WIN

pytestmark = pytest.mark.core

AsyncConnection = psycopg.AsyncConnection[Any]


def test_statements_are_taken_back(db: Connection) -> None:
    before = everything(db)
    done = assert_reversible(
        db, [WIN, "insert into deals values (3, 'New', 1)", "delete from deals where id = 2"]
    )
    assert_same(before, everything(db))
    assert sorted(row.action for row in done.plan) == ["delete", "insert", "update"]
    assert (done.revert.rows_deleted, done.revert.rows_inserted, done.revert.rows_updated) == (
        (1, 1, 1)
    )
    assert rows(db, "select id, status from agentundo.invocations where tool is null") == [
        (done.invocations[0], "reverted")
    ]


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_function_gets_the_tagged_connection(
    db: Connection, connect: Connect, autocommit: bool
) -> None:
    before = everything(db)

    def win(conn: Connection) -> str:
        conn.execute(WIN.encode())
        return "won"

    mine = connect(autocommit=autocommit, row_factory=dict_row, options=IMPATIENT)
    assert assert_reversible(mine, win).returned == "won"
    assert mine.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert_same(before, everything(db))
    assert scalar(db, "select count(*) from agentundo.changes where covered_by is not null") == 1


def test_redo_is_tried_too(db: Connection) -> None:
    before = everything(db)
    assert_reversible(db, WIN, redo=True)
    assert_same(before, everything(db))
    assert rows(db, "select kind from agentundo.events order by event") == [
        ("invocation_reverted",),
        ("invocation_redone",),
        ("invocation_reverted",),
    ]


def test_in_an_open_transaction_nothing_is_committed(db: Connection, connect: Connect) -> None:
    conn = connect(autocommit=False, options=IMPATIENT)
    conn.execute("insert into deals values (3, 'New', 3)")
    inside = everything(conn)
    assert_reversible(conn, "update deals set stage = 'Won'", redo=True)
    assert_same(inside, everything(conn))
    assert scalar(conn, "select current_setting('agent.invocation', true)") == ""
    assert rows(db, "select id from agentundo.invocations") == []
    conn.rollback()
    assert rows(db, "select count(*) from deals") == [(2,)]


def test_an_action_may_connect_by_itself(db: Connection, dsn: str) -> None:
    before = everything(db)

    def agent(tagged: str) -> None:
        with psycopg.connect(tagged) as conn:
            conn.execute(WIN.encode())
        code = (
            "import psycopg, sys\n"
            "with psycopg.connect(sys.argv[1]) as conn: conn.execute(sys.argv[2])"
        )
        again = "update deals set amount = amount + 1"
        subprocess.run([sys.executable, "-c", code, tagged, again], check=True)

    done = assert_reversible(dsn, agent, via="dsn")
    assert_same(before, everything(db))
    assert len(done.invocations) == 1
    assert done.revert.rows_updated == 2


def test_calls_that_the_action_makes_itself_are_taken_back_too(db: Connection, dsn: str) -> None:
    before = everything(db)

    def agent(tagged: str) -> None:
        with AgentUndo(tagged) as undo:
            for stage in ("Won", "Lost"):
                with undo.invocation(id=stage) as inv:
                    inv.connection.execute("update deals set stage = %s", [stage])

    assert assert_reversible(db, agent, via="dsn", redo=True).invocations == ("Won", "Lost")
    assert_same(before, everything(db))


def test_sequences_are_told_apart(db: Connection) -> None:
    db.execute("select agentundo.track('audit')")
    done = assert_reversible(db, "insert into audit (note) values ('seen')")
    assert done.sequences == ("public.audit_n_seq: was unused, is 1",)


def test_what_an_action_raises_is_passed_on_and_rolled_back(db: Connection) -> None:
    before = everything(db)

    def fail(conn: Connection) -> None:
        conn.execute(WIN.encode())
        raise LookupError("no such deal")

    with pytest.raises(LookupError, match="no such deal"):
        assert_reversible(db, fail)
    assert_same(before, everything(db))


def test_a_table_can_be_left_out(db: Connection) -> None:
    assert_reversible(db, [WIN, "insert into audit values (1, 'won')"], ignore="audit")


def test_an_effect_can_be_let_pass(db: Connection) -> None:
    def offer(conn: Connection) -> None:
        conn.execute(WIN.encode())
        conn.execute(
            "select agentundo.record_effect(current_setting('agent.invocation'), 'mail', 'none')"
        )

    done = assert_reversible(db, offer, allow_effects=True)
    assert [effect.name for effect in done.plan.effects or ()] == ["mail"]


def test_tasks_have_the_same(db: Connection, dsn: str) -> None:
    before = everything(db)

    async def win(conn: AsyncConnection) -> str:
        await conn.execute(WIN.encode())
        return "won"

    async def connecting(tagged: str) -> None:
        async with await psycopg.AsyncConnection.connect(tagged) as conn:
            await win(conn)

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, options=IMPATIENT) as conn:
            assert (await assert_reversible(conn, win, redo=True)).returned == "won"
            await assert_reversible(conn, [WIN])
            await assert_reversible(conn, lambda given: given.execute(WIN.encode()))
            await assert_reversible(conn, connecting, via="dsn")
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        await assert_reversible(dsn, win)

    asyncio.run(main())
    assert_same(before, everything(db))
    assert scalar(db, "select count(*) from agentundo.events where kind like '%reverted'") == 6


def test_track_installs_what_is_missing(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as conn:
        conn.execute(f'create schema "Sales"; set search_path = "Sales"; {TABLES}'.encode())
        conn.commit()
        assert_reversible(conn, [WIN, "insert into audit values (1, 'won')"], track=["Sales"])
        assert rows(conn, "select relation, capture from agentundo.tracked order by 1") == [
            ('"Sales".audit', "agent"),
            ('"Sales".deals', "agent"),
        ]


def test_install_for_migrations_that_track_themselves(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as conn:
        install(conn)
        install(bare_dsn)
        conn.execute(f"{TABLES}; select agentundo.track('deals')".encode())
        assert_reversible(conn, WIN)


def test_the_tagged_url_leads_to_the_same_place(bare_dsn: str) -> None:
    """Whatever stands in the address: a password with signs, a name with spaces, other options."""
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute('create database "a b/c?d%"')
        try:
            _check_url(bare_dsn)
        finally:
            conn.execute('drop database "a b/c?d%"')


def _check_url(dsn: str) -> None:
    options = "-c statement_timeout=7s -c work_mem=1MB"
    with psycopg.connect(dsn, dbname="a b/c?d%", options=options, password="p:@/%") as conn:
        url = tagged(conn, "call-1")
        assert psycopg.conninfo.conninfo_to_dict(url)["password"] == "p:@/%"
    with psycopg.connect(url) as conn:
        assert rows(
            conn,
            "select current_database()::text, current_setting('agent.invocation'),"
            " current_setting('statement_timeout'), current_setting('work_mem')",
        ) == [("a b/c?d%", "call-1", "7s", "1MB")]
