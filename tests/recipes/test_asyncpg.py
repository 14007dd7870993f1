"""The recipe for asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyagentundo import AgentUndo
from tests.conftest import Connection
from tests.recipes.conftest import TABLE, Recipe
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar, status

Work = Callable[[Any, Any], Coroutine[Any, Any, Any]]


def run(dsn: str, names: dict[str, Any], work: Work) -> None:
    async def main() -> None:
        parts = conninfo_to_dict(dsn)
        conn = await asyncpg.connect(
            host=parts.get("host"),
            port=parts.get("port"),
            user=parts.get("user"),
            password=parts.get("password"),
            database=parts["dbname"],
        )
        try:
            await work(conn, names["agent_call"])
        finally:
            await conn.close()
            await names["undo"].close()

    asyncio.run(main())


def test_call_and_its_failure(dsn: str, recipe: Recipe, undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)

    async def work(conn: Any, agent_call: Any) -> None:
        async with agent_call(conn, id="call-1", run="r", actor="bot", input={"n": 1}) as call:
            await conn.execute("update deals set stage = $1 where id = $2", "Won", 1)
            call.result = {"ok": True}
        async with agent_call(conn, id="call-1", run="r", actor="bot", input={"n": 1}) as again:
            assert (again.created, again.result) == (False, {"ok": True})
        with pytest.raises(asyncpg.UniqueViolationError):
            async with agent_call(conn, id="call-2"):
                await conn.execute("update deals set stage = 'x'")
                await conn.execute("insert into deals values (1, 'New')")

    run(dsn, recipe("asyncpg"), work)
    found = undo.get("call-1")
    assert (found.status, found.run, found.actor, found.rows) == ("committed", "r", "bot", 1)
    assert found.result == {"ok": True}
    assert undo.get("call-2").status == "failed"
    assert "UniqueViolationError" in str(undo.get("call-2").error)
    assert undo.revert("call-1").rows_updated == 1
    assert_same(before, snapshot(db, TABLE))


def test_inside_the_callers_transaction(dsn: str, recipe: Recipe, db: Connection) -> None:
    async def work(conn: Any, agent_call: Any) -> None:
        async with conn.transaction():
            async with agent_call(conn, id="call-1"):
                await conn.execute("update deals set stage = 'Won' where id = 1")
            assert status(db, "call-1") == "pending"

    run(dsn, recipe("asyncpg"), work)
    assert status(db, "call-1") == "committed"
    assert scalar(db, "select stage from deals where id = 1") == "Won"
