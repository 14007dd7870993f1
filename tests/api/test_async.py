"""What is different for tasks: cancellation, concurrency within a block, both kinds of iteration.

Everything else is the same code as for threads, see test_twin.py.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

import anyio
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from pyagentundo import AsyncAgentUndo, InvocationClosed, UndoConflict, UsageError
from tests.api.conftest import TABLE
from tests.conftest import Connection
from tests.support.proxy import Proxy
from tests.support.state import assert_same, snapshot
from tests.support.undo import IMPATIENT, rows, scalar, status

pytestmark = pytest.mark.usefixtures("db")

WIN = "update deals set stage = 'Won' where id = 1"
Work = Callable[[AsyncAgentUndo, psycopg.AsyncConnection[Any]], Coroutine[Any, Any, Any]]


def run(dsn: str, work: Work, **options: Any) -> Any:
    """Run a function with an `AsyncAgentUndo` and a connection of the application's."""

    async def main() -> Any:
        async with (
            AsyncAgentUndo(dsn, timeout=5, **options) as undo,
            await psycopg.AsyncConnection.connect(dsn, options=IMPATIENT) as conn,
        ):
            return await work(undo, conn)

    return asyncio.run(main())


def test_there_and_back(dsn: str, db: Connection) -> None:
    before = snapshot(db, TABLE)

    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        async with undo.invocation(conn, tool="t", input={"n": Decimal("0.10")}) as inv:
            await conn.execute(WIN)
            inv.result = {"ok": True}
        assert (await undo.get(inv.id)).input == {"n": Decimal("0.10")}
        async with undo.invocation(conn, id=inv.id, tool="t", input={"n": Decimal("0.10")}) as two:
            assert (two.created, two.result) == (False, {"ok": True})
        with pytest.raises(ZeroDivisionError):
            async with undo.invocation(conn) as bad:
                await conn.execute(WIN)
                _ = 1 / 0
        assert (await undo.get(bad.id)).status == "failed"
        async with undo.tag(conn, "tagged"):
            await undo.connection().execute("update deals set stage = 'x' where id = 2")
        with pytest.raises(UndoConflict):
            async with undo.tag(conn, "later"):
                await conn.execute("update deals set stage = 'y' where id = 2")
            await undo.revert("tagged")
        plan = await undo.plan(["tagged", "later"])
        assert [row async for row in undo.iter_plan(["tagged", "later"])] == list(plan.rows)
        assert [i.id async for i in undo.invocations(page_rows=1)] == [
            i.id for i in await undo.log()
        ]
        assert (await undo.revert(["tagged", "later"])).status == "reverted"
        assert (await undo.redo(inv.id)).status == "nothing_to_revert"
        await undo.record_effect(inv.id, "mail")
        assert (await undo.plan(inv.id)).effects
        assert await undo.row_version("deals", {"id": 1})
        assert (await undo.revert(inv.id)).status == "reverted"

    run(dsn, work)
    assert_same(before, snapshot(db, TABLE))


def test_tools(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, _: psycopg.AsyncConnection[Any]) -> None:
        @undo.tool
        async def win(deal: int, *, conn: psycopg.AsyncConnection[Any]) -> int:
            await conn.execute("update deals set stage = 'Won' where id = %s", [deal])
            return deal

        assert await win(1) == 1
        (call,) = await undo.log()
        assert (call.tool, call.input, call.rows) == ("win", {"deal": 1}, 1)
        await undo.revert(call.id)

        @undo.tool("move", tier="low")
        async def move(
            deal: int, stage: str, *, conn: psycopg.AsyncConnection[Any]
        ) -> dict[str, Any]:
            assert conn is undo.connection()
            await conn.execute("update deals set stage = %s where id = %s", [stage, deal])
            return {"error": "no such stage"} if stage == "bad" else {"deal": deal}

        assert inspect.iscoroutinefunction(move)
        assert list(inspect.signature(move).parameters) == ["deal", "stage"]
        with undo.context(run="r", actor="bot"):
            answers = await asyncio.gather(*(move(n, "Won") for n in (1, 2, 3)), move(1, "bad"))
        assert answers == [{"deal": 1}, {"deal": 2}, {"deal": 3}, {"error": "no such stage"}]
        assert {(i.tool, i.run, i.status) for i in await undo.log(tool="move")} == {
            ("move", "r", "committed"),
            ("move", "r", "failed"),
        }
        with undo.context(id="call-1"):
            assert await move(1, "a") == {"deal": 1}
        with undo.context(id="call-1"):
            assert await move(1, "a") == {"deal": 1}
        assert (await undo.get("call-1")).rows == 1

    run(dsn, work)
    assert scalar(db, "select stage from deals where id = 1") == "a"


def test_tasks_within_a_block_get_connections_of_their_own(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        @undo.tool()
        async def move(deal: int, *, conn: psycopg.AsyncConnection[Any]) -> int:
            await conn.execute("update deals set stage = 'x' where id = %s", [deal])
            await asyncio.sleep(0.05)
            return conn.info.backend_pid

        async with undo.invocation(conn, tool="outer"):
            pids = await asyncio.gather(*(move(n) for n in (1, 2, 3)))
            assert len({*pids, conn.info.backend_pid}) == 4
            assert await move(1) == conn.info.backend_pid, "not a task: the block's own"

    run(dsn, work)
    assert rows(db, "select distinct status from agentundo.invocations") == [("committed",)]


async def _cancel(undo: AsyncAgentUndo, how: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.create_task(how())
    while not await undo.log():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("within", ["python", "query"])
@pytest.mark.parametrize("joined", [False, True], ids=["own transaction", "caller's"])
def test_cancelled_in_the_block(dsn: str, db: Connection, within: str, joined: bool) -> None:
    before = snapshot(db, TABLE)

    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        async def call() -> None:
            async with undo.invocation(conn):
                await conn.execute(WIN)
                await (asyncio.sleep(60) if within == "python" else conn.execute(_SLEEP))

        if joined:
            await conn.execute("select 1")
        await _cancel(undo, call)
        (found,) = await undo.log()
        assert (found.status, found.error) == ("failed", "CancelledError")
        await conn.execute("insert into scratch values (1)")  # still of use
        await conn.commit()

    run(dsn, work)
    assert_same(before, snapshot(db, TABLE))
    assert scalar(db, "select count(*) from scratch") == 1


_SLEEP = "select pg_sleep(15)"


def test_cancelled_again_and_again(dsn: str, db: Connection) -> None:
    """As the scopes of anyio do, so those of Starlette and FastAPI."""
    before = snapshot(db, TABLE)

    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        with anyio.move_on_after(0.3) as scope:
            async with undo.invocation(conn, id="call-1"):
                await conn.execute(WIN)
                await asyncio.sleep(60)
        assert scope.cancelled_caught
        assert (await undo.get("call-1")).status == "failed"
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    run(dsn, work)
    assert_same(before, snapshot(db, TABLE))


def test_cancelled_while_it_commits(dsn: str, db: Connection) -> None:
    """It is finished and its record is right; then the cancellation takes its course."""
    db.execute(
        "create function linger() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.5); return null; end $$;"
        " create constraint trigger linger after update on deals deferrable initially deferred"
        " for each row execute function linger()"
    )

    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        async def call() -> None:
            async with undo.invocation(conn, id="call-1"):
                await conn.execute(WIN)

        await _cancel(undo, call)

    run(dsn, work)
    assert status(db, "call-1") == "committed"
    assert scalar(db, "select stage from deals where id = 1") == "Won"


def test_cancelled_while_it_is_recorded(dsn: str, db: Connection) -> None:
    db.execute(
        "create function linger() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.5); return new; end $$;"
        " create trigger linger before insert on agentundo._invocation"
        " for each row execute function linger()"
    )

    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        async def call() -> None:
            async with undo.invocation(conn, id="call-1"):
                pytest.fail("the block has run")

        await undo.undoable()
        task = asyncio.create_task(call())
        await asyncio.sleep(0.25)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(dsn, work)
    assert status(db, "call-1") == "failed", "nothing of it stays pending"


def test_cancelled_revert(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        async with undo.tag(None, "call-1"):
            await undo.connection().execute(WIN)
        await conn.execute("select from deals where id = 1 for update")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(undo.revert("call-1"), 0.5)
        await conn.rollback()
        assert (await undo.revert("call-1")).status == "reverted"

    run(dsn, work)
    assert scalar(db, "select stage from deals where id = 1") == "Open"


def test_server_goes_away(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        with pytest.raises(psycopg.OperationalError):
            async with undo.invocation(conn, id="call-1"):
                await conn.execute(WIN)
                db.execute("select pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])
                await conn.execute("select 1")
        assert (await undo.get("call-1")).status == "failed"

    run(dsn, work)


def test_answer_of_commit_lost(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, _: psycopg.AsyncConnection[Any]) -> None:
        async with (
            await psycopg.AsyncConnection.connect(proxy.dsn) as conn,
            undo.invocation(conn, id="call-1"),
        ):
            await conn.execute(WIN)
            proxy.loses_commit = True

    with Proxy(dsn) as proxy:
        run(dsn, work)
    assert status(db, "call-1") == "committed"


def test_callers_pool_of_size_one(dsn: str, db: Connection) -> None:
    async def work(*_: Any) -> None:
        async def kwargs() -> dict[str, Any]:
            return {"row_factory": psycopg.rows.dict_row}

        async with (
            AsyncConnectionPool(dsn, kwargs=kwargs, min_size=1, max_size=1, open=False) as pool,
            AsyncAgentUndo(pool) as undo,
        ):
            async with undo.invocation() as inv:
                await inv.connection.execute(WIN)
            assert (await undo.revert(inv.id)).status == "reverted"

    run(dsn, work)


def test_own_connections_in_use(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, _: psycopg.AsyncConnection[Any]) -> None:
        small = AsyncAgentUndo(dsn, pool_size=1, timeout=0.2)
        async with small.invocation():
            with pytest.raises(Exception, match="All 1 connections"):
                await small.undoable()
        await asyncio.gather(*(small.record() for _ in range(10)))
        await small.close()

    run(dsn, work)


def test_bad_input(dsn: str, db: Connection) -> None:
    async def work(undo: AsyncAgentUndo, conn: psycopg.AsyncConnection[Any]) -> None:
        with pytest.raises(UsageError, match=r"is no psycopg\.AsyncConnection"):
            await undo.plan("x", conn=db)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="No invocation is open here"):
            undo.connection()
        async with undo.invocation(conn, id="call-1"):
            pass
        with pytest.raises(InvocationClosed, match="must not write again"):
            async with undo.invocation(conn, id="call-1"):
                await conn.execute(WIN)
        await conn.close()
        with pytest.raises(UsageError, match="The connection is closed"):
            await undo.log(conn=conn)

    run(dsn, work)
