"""The recipes for SQLAlchemy, with its ORM, for threads and for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import InternalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pyagentundo import AgentUndo, InvocationClosed
from tests.conftest import Connection
from tests.recipes.conftest import TABLE, Recipe
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar, status


class Base(DeclarativeBase):
    pass


class Deal(Base):
    __tablename__ = "deals"
    id: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    amount: Mapped[Decimal | None]


def url(dsn: str) -> URL:
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    return URL.create(
        "postgresql+psycopg",
        username=parts.get("user"),
        password=parts.get("password"),
        database=parts["dbname"],
        query={name: parts[name] for name in ("host", "port") if name in parts},
    )


@pytest.fixture
def engine(dsn: str, db: Connection) -> Iterator[Engine]:
    engine = create_engine(url(dsn))
    yield engine
    engine.dispose()


def test_orm_through_a_session(
    engine: Engine, recipe: Recipe, undo: AgentUndo, db: Connection
) -> None:
    agent_call = recipe("SQLAlchemy")["agent_call"]
    before = snapshot(db, TABLE)
    with Session(engine) as session:
        mine = session.get(Deal, 2)
        assert mine
        mine.amount = Decimal("2000.50")  # a person's, not flushed yet
        with agent_call(session, tool="win", actor="bot") as inv:
            deal = session.get(Deal, 1)
            assert deal
            deal.stage = "Won"
            session.add(Deal(id=3, stage="New"))
            inv.result = {"id": deal.id}
        assert status(db, inv.id) == "pending"
        session.commit()
    assert status(db, inv.id) == "committed"
    assert {(row.action, row.key["id"]) for row in undo.plan(inv.id) if row.key} == {
        ("update", 1),
        ("delete", 3),
    }
    undo.revert(inv.id)
    assert scalar(db, "select amount from deals where id = 2") == Decimal("2000.50")
    db.execute("update deals set amount = 2000 where id = 2")
    assert_same(before, snapshot(db, TABLE))


def test_exception_takes_the_sessions_objects_back(
    engine: Engine, recipe: Recipe, db: Connection
) -> None:
    agent_call = recipe("SQLAlchemy")["agent_call"]
    before = snapshot(db, TABLE)
    with Session(engine) as session:
        with pytest.raises(ZeroDivisionError), agent_call(session, tool="win") as inv:
            deal = session.get(Deal, 1)
            assert deal
            deal.stage = "Won"
            session.flush()
            _ = 1 / 0
        assert deal is not None
        assert deal.stage == "Open"
        session.commit()
    assert status(db, inv.id) == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_failed_statement_and_repeated_call(engine: Engine, recipe: Recipe, db: Connection) -> None:
    agent_call = recipe("SQLAlchemy")["agent_call"]
    with Session(engine) as session:
        with pytest.raises(Exception, match="deals_pkey"), agent_call(session, id="call-1"):
            session.add(Deal(id=1, stage="New"))
        with agent_call(session, id="call-1") as inv:
            session.add(Deal(id=4, stage="New"))
            inv.result = {"id": 4}
        session.commit()
        with agent_call(session, id="call-1") as again:
            assert (again.created, again.result) == (False, {"id": 4})
        with pytest.raises(InvocationClosed) as raised, agent_call(session, id="call-1"):
            session.add(Deal(id=5, stage="New"))
        assert isinstance(raised.value.__cause__, InternalError)
        session.rollback()
    assert scalar(db, "select count(*) from deals") == 3


def test_commit_in_the_block_is_refused(engine: Engine, recipe: Recipe, db: Connection) -> None:
    agent_call = recipe("SQLAlchemy")["agent_call"]
    before = snapshot(db, TABLE)
    with Session(engine) as session:
        with pytest.raises(Exception, match="commit"), agent_call(session, id="call-1"):
            deal = session.get(Deal, 1)
            assert deal
            deal.stage = "Won"
            session.connection().connection.driver_connection.commit()  # type: ignore[union-attr]
        session.rollback()
    assert status(db, "call-1") == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_tasks(dsn: str, recipe: Recipe, undo: AgentUndo, db: Connection) -> None:
    names = recipe("SQLAlchemy, tasks")
    before = snapshot(db, TABLE)

    async def main() -> Any:
        engine = create_async_engine(url(dsn))
        async with AsyncSession(engine) as session:
            async with names["agent_call"](session, tool="win") as inv:
                deal = await session.get(Deal, 1)
                assert deal
                deal.stage = "Won"
            await session.commit()
            with pytest.raises(ZeroDivisionError):
                async with names["agent_call"](session, id="call-2"):
                    deal = await session.get(Deal, 2)
                    assert deal
                    deal.stage = "Lost"
                    await session.flush()
                    _ = 1 / 0
            await session.commit()
        await engine.dispose()
        await names["undo"].close()
        return inv.id

    call = asyncio.run(main())
    assert (status(db, call), status(db, "call-2")) == ("committed", "failed")
    assert undo.revert(call).rows_updated == 1
    assert_same(before, snapshot(db, TABLE))
