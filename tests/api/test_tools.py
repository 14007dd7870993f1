"""Functions as tools: every call of one is an invocation."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

import psycopg
import pytest

from pyagentundo import AgentUndo, AsyncAgentUndo, UsageError
from tests.api.conftest import TABLE
from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar

SET = "update deals set stage = %s where id = %s"


@pytest.fixture
def move(undo: AgentUndo) -> Callable[..., Any]:
    @undo.tool("move_deal", tier="high")
    def move(deal: int, stage: str = "Won", *, conn: Connection, note: str = "") -> dict[str, Any]:
        """Move a deal."""
        assert conn is undo.connection()
        conn.execute(SET, [stage, deal])
        return {"deal": deal, "error": "no such stage" if stage == "bad" else None}

    return move


def test_call_is_recorded_with_its_arguments(
    undo: AgentUndo, db: Connection, move: Callable[..., Any]
) -> None:
    with undo.context(
        run="r", actor="bot", on_behalf_of="dana", scope="crm", model="m", meta={"a": 1}
    ):
        assert move(1) == {"deal": 1, "error": None}
        with undo.context(on_behalf_of="eve"):
            move(2, stage="Lost", note="x")
    move(3)
    third, second, first = undo.log()
    assert (first.tool, first.tier, first.status, first.rows) == (
        "move_deal",
        "high",
        "committed",
        1,
    )
    assert first.input == {"deal": 1, "stage": "Won", "note": ""}
    assert second.input == {"deal": 2, "stage": "Lost", "note": "x"}
    assert first.result == {"deal": 1, "error": None}
    assert (first.run, first.step, first.actor, first.scope) == ("r", 1, "bot", "crm")
    assert (second.run, second.step, second.actor, second.model) == ("r", 2, "bot", "m")
    assert (first.on_behalf_of, second.on_behalf_of, first.meta) == ("dana", "eve", {"a": 1})
    assert (third.run, third.actor, third.scope) == (None, None, None)


def test_looks_like_a_function_without_a_connection(move: Callable[..., Any]) -> None:
    assert list(inspect.signature(move).parameters) == ["deal", "stage", "note"]
    assert set(get_type_hints(move)) == {"deal", "stage", "note", "return"}
    assert (move.__name__, move.__doc__) == ("move", "Move a deal.")
    with pytest.raises(TypeError, match="missing a required argument: 'deal'"):
        move()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        move(1, colour="red")


def test_error_in_the_result_rolls_back(
    undo: AgentUndo, db: Connection, move: Callable[..., Any]
) -> None:
    before = snapshot(db, TABLE)
    assert move(1, "bad") == {"deal": 1, "error": "no such stage"}, (
        "the caller gets it all the same"
    )
    (call,) = undo.log()
    assert (call.status, call.error, call.result) == ("failed", "no such stage", None)
    assert_same(before, snapshot(db, TABLE))


@dataclass
class Answer:
    isError: bool = False  # noqa: N815 - as MCP spells it
    error: bool = False


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(isError=True), "the tool answered with isError"),
        (Answer(error=True), "the tool answered with an error"),
        ({"error": ["a", 1]}, "['a', 1]"),
        (Answer(), None),
        ({"error": ""}, None),
        (None, None),
        (["error"], None),
        ("error", None),
    ],
)
def test_what_counts_as_an_error(
    undo: AgentUndo, db: Connection, answer: Any, error: str | None
) -> None:
    @undo.tool()
    def act() -> Any:
        undo.connection().execute(SET, ["x", 1])
        return answer

    assert act() is answer
    (call,) = undo.log()
    assert (call.tool, call.error) == ("act", error)
    assert scalar(db, "select stage from deals where id = 1") == ("Open" if error else "x")


def test_errors_may_be_kept(undo: AgentUndo, db: Connection) -> None:
    @undo.tool(on_error="keep")
    def act(conn: Connection) -> dict[str, str]:
        conn.execute(SET, ["half", 1])
        return {"error": "the other half is missing"}

    act()
    (call,) = undo.log()
    assert (call.status, call.result) == ("committed", {"error": "the other half is missing"})
    assert scalar(db, "select stage from deals where id = 1") == "half"


def test_exception_passes(undo: AgentUndo, db: Connection) -> None:
    @undo.tool()
    def act(conn: Connection) -> None:
        conn.execute(SET, ["x", 1])
        raise LookupError("gone")

    before = snapshot(db, TABLE)
    with pytest.raises(LookupError):
        act()
    assert undo.log()[0].error == "LookupError: gone"
    assert_same(before, snapshot(db, TABLE))


def test_same_id_is_not_made_twice(
    undo: AgentUndo, db: Connection, move: Callable[..., Any]
) -> None:
    for _ in range(2):
        with undo.context(id="call-1"):
            assert move(1) == {"deal": 1, "error": None}
            move(2)  # the id was for one call
    assert sorted((c.rows, c.id == "call-1") for c in undo.log()) == [
        (1, False),
        (1, False),
        (1, True),
    ]


def test_what_is_recorded_may_be_chosen(undo: AgentUndo, db: Connection) -> None:
    @undo.tool(
        input=lambda deal, service: {"deal": deal}, result=lambda answer: {"type": str(answer)}
    )
    def act(deal: int, service: object) -> type:
        return int

    assert act(1, object()) is int
    (call,) = undo.log()
    assert (call.input, call.result) == ({"deal": 1}, {"type": "<class 'int'>"})


def test_arguments_that_are_no_json(undo: AgentUndo, db: Connection) -> None:
    @undo.tool()
    def act(service: object) -> None:
        pytest.fail("was called")

    with pytest.raises(UsageError, match="input holds something of type object"):
        act(object())


def test_with_the_callers_connection(
    undo: AgentUndo, db: Connection, conn: Connection, move: Callable[..., Any]
) -> None:
    conn.execute("select 1")
    move(1, conn=conn)
    assert undo.log()[0].status == "pending"
    conn.rollback()
    assert scalar(db, "select stage from deals where id = 1") == "Open"


def test_tool_within_a_tool_joins_it(undo: AgentUndo, db: Connection) -> None:
    @undo.tool()
    def inner(conn: Connection) -> int:
        conn.execute(SET, ["inner", 1])
        return conn.info.backend_pid

    @undo.tool()
    def outer(conn: Connection) -> None:
        conn.execute(SET, ["outer", 1])
        assert inner() == conn.info.backend_pid
        raise LookupError

    with pytest.raises(LookupError):
        outer()
    assert {call.tool: call.status for call in undo.log()} == {"inner": "failed", "outer": "failed"}
    assert scalar(db, "select stage from deals where id = 1") == "Open"


def test_called_again_after_a_serialization_failure(undo: AgentUndo, db: Connection) -> None:
    tries = []

    @undo.tool(retries=2)
    def count(conn: Connection) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise psycopg.errors.SerializationFailure("once more")
        conn.execute(SET, ["x", 1])
        return len(tries)

    assert count() == 3
    (call,) = undo.log()
    assert (call.status, call.result, call.error) == ("committed", 3, None)

    tries.clear()
    db.execute("begin")
    with pytest.raises(psycopg.errors.SerializationFailure):
        count(conn=db)  # the transaction is the caller's
    assert len(tries) == 1
    db.execute("rollback")


def test_given_up_after_so_many_tries(undo: AgentUndo, db: Connection) -> None:
    tries = []

    @undo.tool(retries=1)
    def count() -> None:
        tries.append(1)
        raise psycopg.errors.DeadlockDetected("once more")

    with pytest.raises(psycopg.errors.DeadlockDetected):
        count()
    assert len(tries) == 2
    assert undo.log()[0].status == "failed"


def test_functions_that_cannot_be_wrapped(undo: AgentUndo) -> None:
    async def task() -> None: ...

    def plain() -> None: ...

    def by_position(conn: Connection, /) -> None: ...

    with pytest.raises(UsageError, match="is a coroutine function") as raised:
        undo.tool()(task)
    assert raised.value.hint == "Wrap it with the tool() of AsyncAgentUndo."
    with pytest.raises(UsageError, match="is a plain function") as raised:
        AsyncAgentUndo().tool()(plain)  # type: ignore[arg-type]
    assert raised.value.hint == "Wrap it with the tool() of AgentUndo."
    with pytest.raises(UsageError, match="takes conn by position only") as raised:
        undo.tool()(by_position)
    assert raised.value.hint
    with pytest.raises(UsageError, match="on_error is 'no', neither 'rollback' nor 'keep'"):
        undo.tool(on_error="no")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="name is 7, no text") as raised:
        undo.tool(7)  # type: ignore[call-overload]
    assert raised.value.hint == 'Write @undo.tool, or @undo.tool("name").'
    with pytest.raises(UsageError, match="is a coroutine function"):
        undo.tool(task)


def test_what_would_do_its_work_after_the_call_is_refused(undo: AgentUndo, db: Connection) -> None:
    """Its connection is back where it came from by then, and carries no tag."""

    def lazily(conn: Connection) -> Iterator[int]:
        conn.execute(SET, ["x", 1])
        yield 1

    async def lazily_too(conn: Any) -> AsyncIterator[int]:
        await conn.execute(SET, ["x", 1])
        yield 1

    for undo_ in (undo, AsyncAgentUndo()):
        for function in (lazily, lazily_too):
            with pytest.raises(UsageError, match="is a generator function") as raised:
                undo_.tool("t", result=lambda _: None)(function)  # type: ignore[arg-type]
            assert raised.value.hint == "Return a list, or whatever else is whole."

    @undo.tool(result=lambda _: None)
    def hidden(kind: str, conn: Connection) -> Any:
        conn.execute(SET, ["x", 2])
        return lazily(conn) if kind == "plain" else lazily_too(conn)

    before = snapshot(db, TABLE)
    for kind, told in (("plain", "returned a generator"), ("async", "an asynchronous generator")):
        with pytest.raises(UsageError, match=told):
            hidden(kind)
        assert undo.log()[0].status == "failed"
    assert_same(before, snapshot(db, TABLE))


@dataclass
class Desk:
    """Has tools as methods, and a secret; as a dataclass it could be written as JSON."""

    secret: str = "s3cret"
    moved: int = 0


@pytest.mark.parametrize("inside", [True, False], ids=["tool inside", "tool outside"])
def test_methods(undo: AgentUndo, db: Connection, inside: bool) -> None:
    tool: Any = undo.tool

    def both(outer: Any, function: Any) -> Any:
        return outer(tool(function)) if inside else tool(outer(function))

    class Office(Desk):
        def move(self, deal: int, *, conn: Connection) -> dict[str, int]:
            self.moved += 1
            conn.execute(SET, ["Won", deal])
            return {"deal": deal}

        def of_class(cls: Any, deal: int, *, conn: Connection) -> Any:  # noqa: N805
            conn.execute(SET, ["Lost", deal])
            return cls.__name__

        def static(deal: Any, cls: str, *, conn: Connection) -> str:  # noqa: N805
            conn.execute(SET, [cls, deal])
            return cls

        move = tool(move)
        of_class = both(classmethod, of_class)
        static = both(staticmethod, static)

    kind: Any = Office  # its signatures are not those that stand there
    office = kind()
    for _ in range(2):  # what changes in the object does not make it another call
        with undo.context(id="call-1"):
            assert office.move(1) == {"deal": 1}
    assert office.moved == 1
    assert list(inspect.signature(office.move).parameters) == ["deal"]
    assert (office.of_class(2), kind.of_class(deal=2)) == ("Office", "Office")
    assert (office.static(3, "gold"), kind.static(3, cls="gold")) == ("gold", "gold")
    assert tool(office.move)(2) == {"deal": 2}, "a bound method, decorated twice"
    calls = undo.log()
    assert [call.tool for call in calls[2:]] == ["static"] * 2 + ["of_class"] * 2 + ["move"]
    assert [call.input for call in calls[2:]] == [{"deal": 3, "cls": "gold"}] * 2 + [
        {"deal": 2}
    ] * 2 + [{"deal": 1}]
    assert scalar(db, "select string_agg(stage, ',' order by id) from deals") == "Won,Won,gold"


def test_what_is_no_method_keeps_all_arguments(undo: AgentUndo, db: Connection) -> None:
    @undo.tool
    def rate(cls: str) -> None: ...

    rate("gold")
    assert undo.log()[0].input == {"cls": "gold"}


def test_rollback_of_psycopg(undo: AgentUndo, db: Connection) -> None:
    @undo.tool
    def act(conn: Connection) -> str:
        conn.execute(SET, ["x", 1])
        raise psycopg.Rollback

    before = snapshot(db, TABLE)
    assert act() is None
    assert undo.log()[0].status == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_without_parentheses(undo: AgentUndo, db: Connection) -> None:
    @undo.tool
    def win(deal: int, *, conn: Connection) -> dict[str, int]:
        """Win a deal."""
        conn.execute(SET, ["Won", deal])
        return {"deal": deal}

    assert win(1) == {"deal": 1}
    assert (win.__name__, win.__doc__) == ("win", "Win a deal.")
    (call,) = undo.log()
    assert (call.tool, call.input, call.rows) == ("win", {"deal": 1}, 1)


def test_threads_share_one(undo: AgentUndo, db: Connection, move: Callable[..., Any]) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                with undo.context(run=f"run-{number}"):
                    move(number % 3 + 1)
            with pytest.raises(UsageError):
                undo.connection()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {(run.run, run.invocations, run.rows, run.status) for run in undo.runs()} == {
        (f"run-{n}", 10, 10, "committed") for n in range(6)
    }
    sessions = scalar(
        db, "select count(*) from pg_stat_activity where application_name = 'agentundo'"
    )
    assert sessions <= 8
