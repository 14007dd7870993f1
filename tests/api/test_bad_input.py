"""What cannot work is told in clear words, before anything is written."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import re
import traceback
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pyagentundo import (
    AgentUndo,
    AgentUndoError,
    AsyncAgentUndo,
    DsnError,
    InvocationNotFound,
    LockTimeout,
    NotInstalled,
    NotPermitted,
    NotTrackable,
    PoolTimeout,
    RecordUnavailable,
    Selection,
    UndoConflict,
    UndoExpired,
    UsageError,
    VersionMismatch,
    errors,
    installer,
)
from tests.api.conftest import TABLE, MakeUndo
from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar

WIN = "update deals set stage = 'Won' where id = 1"
Way = Callable[[AgentUndo, Connection], Any]
#: Every way to hand a connection to us.
WAYS: dict[str, Way] = {
    "invocation": lambda undo, conn: undo.invocation(conn).__enter__(),
    "tag": lambda undo, conn: undo.tag(conn).__enter__(),
    "plan": lambda undo, conn: undo.plan("x", conn=conn),
    "iter_plan": lambda undo, conn: list(undo.iter_plan("x", conn=conn)),
    "revert": lambda undo, conn: undo.revert("x", conn=conn),
    "log": lambda undo, conn: undo.log(conn=conn),
    "record_effect": lambda undo, conn: undo.record_effect("x", "mail", conn=conn),
    "fail": lambda undo, conn: undo.fail("x", "why", conn=conn),
}


def hinted(error: AgentUndoError) -> str:
    assert error.hint, "an error of ours says what to do next"
    return error.hint


# Connections ------------------------------------------------------------------------------------


def test_closed_connection(undo: AgentUndo, conn: Connection) -> None:
    conn.close()
    for way in WAYS.values():
        with pytest.raises(UsageError, match="The connection is closed") as raised:
            way(undo, conn)
        assert "Open a new one" in hinted(raised.value)
    assert undo.log() == [], "and nothing was recorded"


def test_failed_transaction(undo: AgentUndo, conn: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        conn.execute("select from nowhere")
    for way in WAYS.values():
        with pytest.raises(UsageError, match="in a failed transaction") as raised:
            way(undo, conn)
        assert "conn.rollback()" in hinted(raised.value)
    assert undo.log() == []


def test_busy_connection(undo: AgentUndo, conn: Connection) -> None:
    with conn.cursor().copy("copy deals to stdout") as copy:
        with pytest.raises(UsageError, match="busy with another command") as raised:
            undo.invocation(conn).__enter__()
        assert "Finish it first" in hinted(raised.value)
        assert len(list(copy.rows())) == 3


@pytest.mark.parametrize("given", [object(), "host=/tmp", 5])
def test_something_else_than_a_connection(undo: AgentUndo, given: Any) -> None:
    with pytest.raises(UsageError, match=r"is no psycopg\.Connection") as raised:
        undo.invocation(given).__enter__()
    assert ".connection.driver_connection" in hinted(raised.value)


def test_sources_that_are_none(conn: Connection) -> None:
    with pytest.raises(UsageError, match=r"builtins\.int is no psycopg\.Connection and no pool"):
        AgentUndo(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"psycopg.Connection is no psycopg.AsyncConnection"):
        AsyncAgentUndo(conn)  # type: ignore[arg-type]

    class Session:
        """What has a connection() too, but not of this kind."""

        def connection(self) -> Any:
            return contextlib.nullcontext(self)

    with pytest.raises(UsageError, match=r"Session is no psycopg\.Connection and no pool"):
        AgentUndo(Session()).undoable()
    pool = ConnectionPool("", open=False)
    with pytest.raises(UsageError, match=r"ConnectionPool is no psycopg\.AsyncConnection"):
        asyncio.run(AsyncAgentUndo(pool).undoable())
    with pytest.raises(UsageError, match="record is 'off', neither 'own' nor 'inline'") as raised:
        AgentUndo("", record="off")  # type: ignore[arg-type]
    assert hinted(raised.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mysql://localhost/x", "is no PostgreSQL address"),
        ("host=127.0.0.1 port=1 dbname=none", "Cannot connect to"),
        ("nonsense", "cannot be read"),
    ],
)
def test_address_that_leads_nowhere(make_undo: MakeUndo, source: str, message: str) -> None:
    undo = make_undo(source)
    with pytest.raises(DsnError, match=message) as raised:
        undo.undoable()
    assert hinted(raised.value)
    with pytest.raises(RecordUnavailable, match=message):
        undo.record()


def test_callers_pool_of_size_one(undo: AgentUndo, db: Connection, dsn: str) -> None:
    with ConnectionPool(dsn, min_size=1, max_size=1, timeout=3) as pool, AgentUndo(pool) as pooled:
        for _ in range(2):
            with pooled.invocation(tool="t") as inv:
                inv.connection.execute(WIN)
        with pool.connection() as conn, pooled.invocation(conn) as inv:
            conn.execute(WIN)
            number = pooled.record_effect(inv.id, "mail")
        assert number == 1
        assert pooled.plan(inv.id).feasible
        assert pooled.revert(inv.id).status == "reverted"
        with pool.connection() as conn:
            assert conn.isolation_level is None, "the pool's connection is as it was"


def test_all_of_our_own_connections_in_use(undo: AgentUndo, make_undo: MakeUndo) -> None:
    small = make_undo(pool_size=1, timeout=0.2)
    with small.invocation() as inv:  # holds the one for data
        with pytest.raises(PoolTimeout, match=r"All 1 connections .* in use for 0.2 s") as raised:
            small.undoable()
        assert "pool_size" in hinted(raised.value)
        assert small.record(id="other").created, "records have connections of their own"
    assert inv.status == "committed"


# Databases --------------------------------------------------------------------------------------


def test_database_without_agentundo(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as conn, AgentUndo(bare_dsn) as undo:
        for way in WAYS.values():
            with pytest.raises(NotInstalled, match="is not installed in database") as raised:
                way(undo, conn)
            assert hinted(raised.value) == "Run: agentundo install"
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with pytest.raises(NotInstalled):
            undo.record()


def test_history_without_functions(undo: AgentUndo, db: Connection, dsn: str) -> None:
    installer.uninstall(db, keep_history=True)
    with pytest.raises(NotInstalled):
        undo.undoable()


def test_uninstalled_in_the_meantime(undo: AgentUndo, db: Connection) -> None:
    undo.undoable()
    installer.uninstall(db)
    with pytest.raises(NotInstalled):
        undo.undoable()
    with pytest.raises(NotInstalled):
        undo.record()


def test_schema_that_wants_a_newer_client(undo: AgentUndo, db: Connection) -> None:
    db.execute("update agentundo._home set min_client = '99.0'")
    with pytest.raises(VersionMismatch, match=r"the database needs 99.0 or later") as raised:
        undo.invocation(db).__enter__()
    assert hinted(raised.value) == "Run: pip install --upgrade pyagentundo"


def test_schema_that_is_too_old(undo: AgentUndo, db: Connection) -> None:
    db.execute("update agentundo._home set schema_version = 0")
    with pytest.raises(VersionMismatch, match="The database has schema version 0") as raised:
        undo.plan("x")
    assert hinted(raised.value) == "Run: agentundo upgrade"


def test_schema_that_lacks_a_function(undo: AgentUndo, db: Connection) -> None:
    db.execute("drop function agentundo.check()")
    with pytest.raises(VersionMismatch, match="lacks what this package needs") as raised:
        undo.check()
    assert hinted(raised.value) == "Run: agentundo upgrade"


def test_newer_schema_with_more_columns(undo: AgentUndo, db: Connection) -> None:
    db.execute("alter type agentundo.finding add attribute novelty text")
    db.execute("drop function agentundo.check()")
    db.execute(
        "create function agentundo.check() returns setof agentundo.finding language sql as"
        " $$ select 'info', 'x', 'p', 'h', 'new' $$"
    )
    assert [finding.problem for finding in undo.check()] == ["p"]


def test_read_only_server(db: Connection, conn: Connection, make_undo: MakeUndo, dsn: str) -> None:
    standby = make_undo(f"{dsn} options='-c default_transaction_read_only=on'")
    with pytest.raises(RecordUnavailable, match="read-only transaction") as raised:
        standby.invocation(conn).__enter__()
    assert isinstance(raised.value.__cause__, psycopg.errors.ReadOnlySqlTransaction)
    assert standby.undoable() == []


def test_records_in_another_database(
    db: Connection, conn: Connection, bare_dsn: str, make_undo: MakeUndo
) -> None:
    before = snapshot(db, TABLE)
    with psycopg.connect(bare_dsn, autocommit=True) as other:
        installer.install(other)
    undo = make_undo(conn, dsn=bare_dsn)
    with (
        pytest.raises(InvocationNotFound, match="no record of invocation") as raised,
        undo.invocation(),
    ):
        conn.execute(WIN)
    assert "do records go there too?" in raised.value.__notes__[-1]
    assert_same(before, snapshot(db, TABLE))


# Roles ------------------------------------------------------------------------------------------


def test_role_without_rights(
    db: Connection, connect: Connect, make_role: MakeRole, make_undo: MakeUndo
) -> None:
    conn = connect(user=make_role())
    user = conn.info.user
    with pytest.raises(NotPermitted, match=f"{user} may not do this") as raised:
        make_undo(conn).undoable()
    assert "agentundo_operator" in hinted(raised.value)
    assert isinstance(raised.value.__cause__, psycopg.errors.InsufficientPrivilege)


@pytest.mark.parametrize(
    ("kind", "ask", "needs"),
    [
        ("app", "get", "A member of agentundo_app asks undoable(), plan() and diff() with its"),
        ("app", "check", "A member of agentundo_app asks undoable(), plan() and diff() with its"),
        ("agent", "plan", "an agent's role may not, whatever else it is: use another one."),
        ("agent", "revert", "an agent's role may not, whatever else it is: use another one."),
        ("agent, agentundo_app", "undoable", "an agent may not, whatever else it is. Use another"),
        ("auditor", "revert", "Members of agentundo_operator may, and of agentundo_app within"),
        ("auditor", "record_effect", "Grant agentundo_app (tag, record, plan, revert within a"),
    ],
)
def test_a_role_is_not_told_to_become_what_it_is(
    db: Connection, connect: Connect, make_role: MakeRole, make_undo: MakeUndo,
    kind: str, ask: str, needs: str,
) -> None:  # fmt: skip
    undo = make_undo(connect(user=make_role(member_of=f"agentundo_{kind}")))
    without = {"check": [], "undoable": [], "record_effect": ["call", "mail"]}
    arguments: list[str] = without.get(ask, ["call"])
    with pytest.raises(NotPermitted) as raised:
        getattr(undo, ask)(*arguments)
    assert needs in hinted(raised.value)
    assert "Grant agentundo_" not in hinted(raised.value) or "record" in ask


def test_application_may_not_read_everybodys_log(
    undo: AgentUndo, db: Connection, connect: Connect, make_role: MakeRole, make_undo: MakeUndo
) -> None:
    conn = connect(user=make_role(member_of="agentundo_app"))
    with undo.invocation(id="call-1", on_behalf_of="dana") as inv:
        inv.connection.execute(WIN)
    app = make_undo(conn)
    with pytest.raises(NotPermitted, match="invocations"):
        app.log()
    assert app.plan("call-1").uncovered is None, "not known is not the same as none"
    with pytest.raises(NotPermitted, match="must say who reverts"):
        app.revert("call-1")
    assert app.revert("call-1", reverted_by="dana").status == "reverted"


# Arguments --------------------------------------------------------------------------------------

CASES: list[tuple[str, Callable[[AgentUndo], Any], str]] = [
    ("empty id", lambda u: u.record(id=""), "the invocation id is empty"),
    ("long id", lambda u: u.record(id="ä" * 128), "256 bytes, more than the 255"),
    ("id of another type", lambda u: u.record(id=5), "id is of type int, not a text"),  # type: ignore[arg-type]
    ("NUL", lambda u: u.record(tool="a\0b"), "tool contains the character NUL"),
    ("surrogate", lambda u: u.record(actor="\ud800"), "half of a surrogate pair"),
    ("step", lambda u: u.record(run="r", step=0), "step is 0, not a whole number from 1"),
    ("large step", lambda u: u.record(step=2**40), "step is 1099511627776, not a whole"),
    ("bool step", lambda u: u.record(step=True), "step is True, not a whole number"),
    ("tier", lambda u: u.record(tier="huge"), "there is no tier 'huge'"),  # type: ignore[arg-type]
    (
        "input",
        lambda u: u.record(input={"x": object()}),
        "input holds something of type object, which",
    ),
    ("key", lambda u: u.record(input={1: 2}), "input has the key 1, which is no text"),
    ("meta", lambda u: u.record(meta=["a\0"]), "meta contains the character NUL"),
    ("nothing", lambda u: u.plan([]), "No invocation was named"),
    ("all", lambda u: u.plan(Selection()), "The Selection has no filter, so it would mean every"),
    ("all rows", lambda u: list(u.iter_plan(Selection())), "The Selection has no filter"),
    ("all counted", lambda u: u.plan_summary(Selection(run=None)), "The Selection has no filter"),
    ("all undone", lambda u: u.revert(Selection(actor=None)), "The Selection has no filter"),
    ("a number", lambda u: u.plan(5), "Something of type int names no invocation"),  # type: ignore[arg-type]
    ("mode", lambda u: u.plan("x", on_conflict="no"), "there is no mode 'no' for conflicts"),  # type: ignore[arg-type]
    ("from_step", lambda u: u.revert_run("r", from_step=0), "from_step is 0, not a whole number"),
    ("steps of none", lambda u: u.log(from_step=2), "from_step was given without run"),
    ("limit", lambda u: u.log(limit=0), "limit is 0, not a whole number from 1"),
    ("page", lambda u: list(u.iter_plan("x", page_rows=0)), "page_rows is 0, not a whole"),
    ("time", lambda u: u.log(since=datetime(2026, 1, 1)), "not a time with a time zone"),
    ("kind", lambda u: u.record_effect("x", "mail", kind="no"), "no kind of effect 'no'"),  # type: ignore[arg-type]
    ("name", lambda u: u.record_effect("x", ""), "the name of the effect is empty"),
    ("key of a row", lambda u: u.row_history("deals", {"n": 1}), "this is not a key of"),
    ("value of a key", lambda u: u.row_history("deals", {"id": "x"}), 'no key of deals: .* "x"'),
    ("large key", lambda u: u.row_version("deals", {"id": 2**40}), "no key of deals: .*range"),
    ("naive time", lambda u: u.record_effect("x", "m", undo_by=datetime(2026, 1, 1)), "time zone"),
    ("huge number", lambda u: u.record(input=Decimal("1E+200000")), "more digits than PostgreSQL"),
    ("tiny number", lambda u: u.record(input=[Decimal("1E-20000")]), "more digits than PostgreSQL"),
    ("a text", lambda u: u.log("run-1"), "Something of type str is no Selection"),  # type: ignore[arg-type]
    ("two ways", lambda u: u.log(Selection(), run="r"), "A Selection was given, and run beside it"),
    ("runs", lambda u: u.runs("run-1"), "Something of type str is no Selection"),  # type: ignore[arg-type]
    ("calls", lambda u: list(u.invocations(Selection(), tool="t")), "given, and tool beside it"),
]
#: For each method what it needs, and all the texts, numbers and truths that it takes.
OPTIONS = "on_conflict scope merge"
RECORDED = f"{OPTIONS} reason reverted_by"
SIGNATURES: list[tuple[str, dict[str, Any], str]] = [
    ("plan", {"what": "x"}, OPTIONS),
    ("plan_run", {"run": "x"}, f"{OPTIONS} run from_step"),
    ("plan_summary", {"what": "x"}, OPTIONS),
    ("revert", {"what": "x"}, RECORDED),
    ("revert_run", {"run": "x"}, f"{RECORDED} run from_step"),
    ("redo", {"invocation": "x"}, f"{RECORDED} invocation"),
    ("get", {}, "id"),
    ("undoable", {}, "scope run limit"),
    ("diff", {"invocation": "x"}, "invocation scope"),
    ("row_history", {"relation": "deals", "key": {"id": 1}}, "relation scope"),
    ("row_version", {"key": {"id": 1}}, "relation"),
    ("events", {}, "after kind scope run invocation limit"),
    ("record_effect", {"invocation": "x", "name": "m"}, "invocation name kind summary undo_by"
     " side_effect cost remedy handler"),
    ("record", {}, "id run step tool tier actor scope on_behalf_of model role again"),
    ("fail", {"error": "why"}, "id"),
]  # fmt: skip


def test_arguments(undo: AgentUndo) -> None:
    for name, call, message in CASES:
        with pytest.raises(UsageError, match=message) as raised:
            call(undo)
        assert hinted(raised.value), name
    assert undo.log() == []


def test_tracebacks_and_so_logs_say_what_to_do(undo: AgentUndo) -> None:
    unknown: str | list[str]
    for unknown in ("nobody", []):
        with pytest.raises(AgentUndoError) as raised:
            undo.plan(unknown)
        error = raised.value
        assert error.hint
        assert "select agentundo." not in error.hint
        assert str(error) == error.message
        assert f"\nhint: {error.hint}\n" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(("method", "needed", "names"), SIGNATURES, ids=lambda one: str(one)[:12])
def test_arguments_of_another_type(
    undo: AgentUndo, method: str, needed: dict[str, Any], names: str
) -> None:
    """Psycopg would send them, and the server look for another function."""
    for name in names.split():
        for value in (b"x", uuid4(), "a\0b", 2**70, 1.5, object()):
            with pytest.raises(UsageError, match=rf"\b{name}\b") as raised:
                getattr(undo, method)(**{**needed, name: value})
            assert hinted(raised.value)
    assert undo.log() == []


def test_numbers_that_only_just_fit(undo: AgentUndo) -> None:
    most = 10**131_072 - 1
    given = {"most": most, "least": Decimal("1E-16383"), "long": -(10**5000), "zero": 0, "of": True}
    undo.record(id="x", input=given)
    assert undo.get("x").input == given
    with pytest.raises(UsageError, match="result holds a number"), undo.invocation() as inv:
        inv.result = most + 1


@pytest.mark.parametrize("name", ["my_agentundo_t", "crm.nope", "a.b.c.d", "a..b", "x y", ""])
def test_tables_that_there_are_not(undo: AgentUndo, name: str) -> None:
    for ask in (undo.row_history, undo.row_version):
        with pytest.raises(NotTrackable, match=f"There is no table '{re.escape(name)}'") as raised:
            ask(name, {"id": 1})
        assert hinted(raised.value)


@pytest.mark.parametrize(
    ("missing", "ours"),
    [
        ("my_agentundo_log", None),
        ("agentundo_nowhere.t", None),
        ("agentundo.nothing", VersionMismatch),
        ("agentundo.nothing()", VersionMismatch),
    ],
)
def test_what_is_missing_is_ours_only_if_it_is_called_so(
    db: Connection, missing: str, ours: type | None
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        db.execute(f"select from {missing}".encode())
    told = errors.explain(raised.value)
    assert told is None if ours is None else isinstance(told, ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_size": 0}, "pool_size is 0, not a whole number from 1"),
        ({"pool_size": -1}, "pool_size is -1"),
        ({"timeout": -1}, "timeout is -1, no number of seconds"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"source": ""}, "The DSN is empty"),
        ({"dsn": " "}, "The DSN is empty"),
        ({"source": "host=a\0b"}, "dsn contains the character NUL"),
        ({"source": "host=\udcff"}, "dsn contains half of a surrogate pair"),
        ({"dsn": b"host=a"}, "dsn is of type bytes"),
    ],
)
def test_options_of_the_api_itself(options: dict[str, Any], message: str) -> None:
    for api in (AgentUndo, AsyncAgentUndo):
        with pytest.raises(UsageError, match=message) as raised:
            api(**options)
        assert hinted(raised.value)


def test_an_address_is_not_called_an_option_of_the_command_line(
    make_undo: MakeUndo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("postgres", "host=127.0.0.1 port=1"):
        with pytest.raises(DsnError, match=r"the DSN cannot be read|Cannot connect") as raised:
            make_undo(source).undoable()
        assert "--dsn" not in f"{raised.value} {hinted(raised.value)}"
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", "host=\udcff")
    with pytest.raises(DsnError, match="AGENTUNDO_DATABASE_URL cannot be read: it holds bytes"):
        AgentUndo().undoable()


def test_a_pool_that_leaves_all_to_libpq_is_not_sent_elsewhere(
    db: Connection, dsn: str, bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records belong to the database of its data, whatever the environment names."""
    address: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", bare_dsn)
    with (
        ConnectionPool("", kwargs=address, min_size=1, max_size=2, timeout=5) as pool,
        AgentUndo(pool) as pooled,
    ):
        with pooled.invocation(id="x") as inv:
            inv.connection.execute(WIN)
        assert pooled.get("x").status == "committed"


def test_errors_can_be_copied_and_sent_elsewhere() -> None:
    """As workers of a multiprocessing pool do: an error that cannot be read there breaks it."""
    made = [
        kind("m", hint="h", detail={"total": 2, "conflicts": [{"reason": "row_changed"}]})
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, AgentUndoError)
        and kind is not errors.CommitUnknown
    ]  # fmt: skip
    assert len(made) > 20
    lost = errors.CommitUnknown("m", invocation="x", hint="h")
    lost.add_note("n")
    for error in (*made, lost):
        for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == ("m", ("m",), vars(error))
            assert (again.hint, again.total, again.conflicts) == (
                "h", error.total, error.conflicts,
            )  # fmt: skip


def test_input_that_contains_itself(undo: AgentUndo) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="input contains itself"):
        undo.record(input=loop)


def test_result_that_is_no_json_rolls_back(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    before = snapshot(db, TABLE)
    with (
        pytest.raises(UsageError, match="result holds something of type object"),
        undo.invocation(conn) as inv,
    ):
        conn.execute(WIN)
        inv.result = {"deal": object()}
    assert undo.get(inv.id).status == "failed"
    assert_same(before, snapshot(db, TABLE))


def test_what_is_not_there(undo: AgentUndo, db: Connection) -> None:
    for call in (undo.get, undo.plan, undo.revert, undo.redo, undo.diff, undo.plan_summary):
        with pytest.raises(InvocationNotFound, match="nobody"):
            call("nobody")
    with pytest.raises(InvocationNotFound, match=r"There is no invocation 'nobody'\."):
        undo.get("nobody")
    with pytest.raises(InvocationNotFound, match="no run 'nobody'"):
        undo.revert_run("nobody")
    with pytest.raises(InvocationNotFound, match="No invocation matches") as raised:
        undo.plan(Selection(actor="nobody"))
    assert hinted(raised.value)
    with pytest.raises(InvocationNotFound, match="no record of invocation"):
        undo.fail("nobody", "why")
    with pytest.raises(NotTrackable, match="scratch is not tracked"):
        undo.row_history("scratch", {"n": 1})
    with pytest.raises(NotTrackable, match="There is no table 'nowhere'"):
        undo.row_version("nowhere", {"n": 1})


def test_purged(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with undo.invocation(conn) as inv:
        conn.execute(WIN)
    db.execute("select agentundo.purge('0 s')")
    with pytest.raises(UndoExpired, match="can no longer be undone"):
        undo.revert(inv.id)


def test_selections_leave_out_what_was_purged(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    for number in range(5):
        with undo.invocation(conn, id=f"old-{number}", actor="bot"):
            conn.execute(WIN)
    db.execute("select agentundo.purge('0 s')")
    chosen = Selection(actor="bot")
    for call in (undo.plan, undo.revert, undo.plan_summary):
        with pytest.raises(UndoExpired, match="'old-0' can no longer be undone"):
            call(chosen)
    before = snapshot(db, TABLE)
    undo.record(id="empty", actor="bot")
    with undo.invocation(conn, id="new", actor="bot"):
        conn.execute("update deals set stage = 'Lost' where id = 3")
    assert [row.invocation for row in undo.plan(chosen)] == ["new"]
    assert [row.invocation for row in undo.iter_plan(chosen)] == ["new"]
    assert [one.rows for one in undo.plan_summary(chosen)] == [1]
    with pytest.raises(UndoExpired):
        undo.plan(undo.log(chosen))
    # In a transaction of the caller's, which goes on.
    with conn.transaction():
        assert undo.revert(chosen, conn=conn).invocations == ("new",)
    assert_same(before, snapshot(db, TABLE))


def test_conflict_carries_its_rows(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with undo.invocation(conn) as inv:
        conn.execute("update deals set stage = 'Won'")
    db.execute("update deals set stage = 'Lost' where id = 2")
    before = snapshot(db, TABLE)
    with pytest.raises(UndoConflict) as raised:
        undo.revert(inv.id)
    error = raised.value
    assert error.sqlstate == "UN001"
    assert error.total == 1
    (conflict,) = error.conflicts
    assert (conflict.relation, conflict.key, conflict.reason) == (TABLE, {"id": 2}, "row_changed")
    assert (conflict.columns, conflict["invocation"]) == (("stage",), inv.id)
    assert "constraint" not in conflict
    with pytest.raises(KeyError):
        conflict["constraint"]
    assert isinstance(error.__cause__, psycopg.Error)
    assert error.__cause__.sqlstate == "UN001"
    assert undo.plan(inv.id).conflicts == (conflict,)
    assert_same(before, snapshot(db, TABLE))


def test_lock_that_is_held_for_too_long(
    undo: AgentUndo, db: Connection, conn: Connection, dsn: str, make_undo: MakeUndo
) -> None:
    with undo.invocation(conn) as inv:
        conn.execute(WIN)
    conn.execute("select from deals where id = 1 for update")
    hasty = make_undo(f"{dsn} options='-c lock_timeout=300ms'")
    with pytest.raises(LockTimeout, match="somebody holds rows or tables of this undo") as raised:
        hasty.revert(inv.id)
    assert hinted(raised.value)
    assert scalar(db, "select stage from deals where id = 1") == "Won"


def test_revert_where_it_cannot_run(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    with undo.invocation(conn) as inv:
        conn.execute(WIN)
    db.execute(
        "create function nop() returns trigger language plpgsql as $$ begin return new; end $$;"
        " create trigger nop before update on deals for each row execute function nop()"
    )
    with conn.cursor(name="open") as cursor:
        cursor.execute("select * from deals")
        cursor.fetchone()
        with pytest.raises(UsageError, match="revert cannot run here") as raised:
            undo.revert(inv.id, conn=conn)
    assert hinted(raised.value)
    conn.execute("update deals set amount = 1 where id = 3")
    conn.commit()
    assert scalar(db, "select amount from deals where id = 3") == Decimal(1)
