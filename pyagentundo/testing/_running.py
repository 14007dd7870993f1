"""Running an action under a tag, looking at the database before and after, and taking it back.

What is done, and in which order, stands once, as a generator of steps (`reversal`). Two short
drivers do the steps, one for `psycopg.Connection` and one for `psycopg.AsyncConnection`.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
)
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors as pg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from pyagentundo import AgentUndo, AsyncAgentUndo, _states, installer, results
from pyagentundo import dsn as dsns
from pyagentundo.errors import UsageError
from pyagentundo.testing import _messages
from pyagentundo.testing._state import Asking, DatabaseState, Query, Rows, changed, database

T = TypeVar("T")
Via = Literal["connection", "dsn"]
Database = str | psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
#: SQL, or what is called with the tagged connection or DSN.
Action = str | SequenceOf[str] | Callable[..., Any]


@dataclass(frozen=True)
class Options:
    """What `assert_reversible` was asked; see there."""

    via: Via = "connection"
    redo: bool = False
    track: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    allow_effects: bool = False


@dataclass(frozen=True)
class Reversal:
    """What was done and taken back.

    Attributes:
        returned: what the action returned; None for SQL.
        invocations: the ids of the calls that it made.
        plan: what the undo was to do, row by row, and what left the database.
        revert: what the undo did.
        sequences: those that count on from another place now, one line each. No undo rewinds them,
            so they fail no test.

    """

    returned: Any
    invocations: tuple[str, ...]
    plan: results.Plan
    revert: results.RevertResult
    sequences: tuple[str, ...]


@dataclass(frozen=True)
class _Ask:
    """Put questions in one transaction, which is rolled back unless it is to be kept."""

    asking: Asking[Any]
    keep: bool = False


@dataclass(frozen=True)
class _Act:
    """Run the action under a tag."""

    id: str


@dataclass(frozen=True)
class _Use:
    """Call a method of `AgentUndo`."""

    method: str
    what: Any


@dataclass(frozen=True)
class _Install:
    """Install what is missing, over another connection, or refuse."""

    wanted: bool


Step = _Ask | _Act | _Use | _Install
Steps = Generator[Step, Any, T]


def reversal(options: Options) -> Steps[Reversal]:
    """Do it all.

    Raises:
        NotReversible: something is not as it was.
        UsageError: the action leaves nothing to judge.

    """
    __tracebackhide__ = True
    if not (yield _Ask(_installed())):
        yield _Install(bool(options.track))
    if options.track:
        yield _Ask(_track(options.track), keep=True)
    before: DatabaseState = yield _Ask(database(options.ignore))
    mark: _Mark = yield _Ask(_mark())
    returned = yield _Act(f"assert_reversible-{uuid.uuid4()}")
    after: DatabaseState = yield _Ask(database(options.ignore))
    written: _Written = yield _Ask(_written(mark))
    _require_sense(written, changes=before.tables != after.tables, options=options)

    told = _messages.Told(written.tracked, written.relations)
    told.definitions(before, after)
    if not written.ids:
        told.rows(before, after, "after the action")
        told.fail()
    plan: results.Plan = yield _Use("plan", written.ids)
    told.plan(plan, allow_effects=options.allow_effects)
    if plan.conflicts:
        told.fail()
    revert: results.RevertResult = yield _Use("revert", written.ids)
    undone: DatabaseState = yield _Ask(database(options.ignore))
    told.status(revert.status, "the undo")
    told.rows(before, undone, "after the undo")
    told.definitions(after, undone)
    told.sequences(before, undone)
    told.fail_if_any()
    if options.redo:
        redone: results.RevertResult = yield _Use("redo", written.ids[0])
        told.status(redone.status, "the redo")
        there: DatabaseState = yield _Ask(database(options.ignore))
        told.rows(after, there, "after the redo, compared with what the action had left")
        told.definitions(after, there)
        told.fail_if_any()
        again: results.RevertResult = yield _Use("revert", written.ids)
        told.status(again.status, "the second undo")
        back: DatabaseState = yield _Ask(database(options.ignore))
        told.rows(before, back, "after the second undo")
        told.definitions(after, back)
        told.fail_if_any()
    moved = changed(before.sequences, undone.sequences)
    return Reversal(returned, tuple(written.ids), plan, revert, tuple(moved))


@dataclass(frozen=True)
class _Mark:
    change: int
    event: int


@dataclass(frozen=True)
class _Written:
    """What was captured since a mark.

    Attributes:
        ids: the calls, in the order in which they wrote first.
        relations: the tables that they wrote.
        untagged: tables of which writes without a tag were captured.
        reverts: calls that were taken back.
        tracked: all tables that are tracked.

    """

    ids: list[str]
    relations: frozenset[str]
    untagged: list[str]
    reverts: list[str]
    tracked: frozenset[str]


def _installed() -> Asking[bool]:
    ((tables, functions),) = yield Query(sql.SQL(installer.PRESENT))
    return bool(tables and functions)


def _track(schemas: Collection[str]) -> Asking[None]:
    for schema in schemas:
        ((there,),) = yield Query(
            sql.SQL("select pg_catalog.to_regnamespace(pg_catalog.quote_ident(%s)) is not null"),
            [schema],
        )
        if not there:
            raise UsageError(
                f"There is no schema {schema!r} to track.",
                hint="Name it without quotes; the test's database has to have it already.",
            )
        yield Query(
            sql.SQL("select agentundo.track_schema(pg_catalog.quote_ident(%s)::regnamespace)"),
            [schema],
        )


def _mark() -> Asking[_Mark]:
    ((change, event),) = yield Query(
        sql.SQL(
            "select (select coalesce(max(change), 0) from agentundo.changes),"
            " (select coalesce(max(event), 0) from agentundo.events)"
        )
    )
    return _Mark(change, event)


def _written(mark: _Mark) -> Asking[_Written]:
    changes = yield Query(
        sql.SQL(
            "select invocation, relation from agentundo.changes where change > %s order by change"
        ),
        [mark.change],
    )
    reverts = yield Query(
        sql.SQL(
            "select invocation from agentundo.events where event > %s"
            " and kind in ('invocation_reverted', 'invocation_redone') order by event"
        ),
        [mark.event],
    )
    tracked = yield Query(sql.SQL("select relation from agentundo.tracked"))
    return _Written(
        list(dict.fromkeys(call for call, _ in changes if call is not None)),
        frozenset(relation for call, relation in changes if call is not None),
        sorted({relation for call, relation in changes if call is None}),
        [call for (call,) in reverts],
        frozenset(relation for (relation,) in tracked),
    )


def _require_sense(written: _Written, *, changes: bool, options: Options) -> None:
    __tracebackhide__ = True
    if written.reverts:
        raise UsageError(
            f"The action itself took back {', '.join(written.reverts)}: what is left cannot be"
            " judged.",
            hint="Leave the undo to assert_reversible.",
        )
    if not written.ids and not changes and not written.untagged:
        raise UsageError(
            "The action wrote nothing, so there is nothing to undo.",
            hint="Did it commit what it wrote, and did any row match?"
            if options.via == "dsn"
            else 'Did any row match? If it connects by itself, hand it the tagged DSN: via="dsn".',
        )


def run(db: str | psycopg.Connection[Any], action: Action, options: Options) -> Reversal:
    """Do all steps over a connection of psycopg."""
    __tracebackhide__ = True
    with _connected(db) as conn:
        _require_usable(conn, options)
        undo, steps, answer = AgentUndo(conn), reversal(options), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                finished: Reversal = done.value
                return finished
            if isinstance(step, _Ask):
                answer = ask(conn, step.asking, keep=step.keep)
            elif isinstance(step, _Install):
                _install(conn, wanted=step.wanted)
            elif isinstance(step, _Use):
                answer = getattr(undo, step.method)(step.what)
            elif options.via == "dsn":
                answer = _not_awaitable(_call(action, tagged(conn, step.id)))
            else:
                answer = _act(conn, step.id, action)


async def run_async(db: Database, action: Action, options: Options) -> Reversal:
    """Do all steps over a connection for tasks."""
    __tracebackhide__ = True
    if isinstance(db, psycopg.Connection):
        if options.via == "connection":
            raise UsageError(
                "An async action needs a psycopg.AsyncConnection, or a DSN.",
                hint='Let the fixture agentundo_db return one of these, or give via="dsn".',
            )
        _require_usable(db, options)
        db = address(db)
    async with _connected_async(db) as conn:
        _require_usable(conn, options)
        undo, steps, answer = AsyncAgentUndo(conn), reversal(options), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                finished: Reversal = done.value
                return finished
            if isinstance(step, _Ask):
                answer = await _ask_async(conn, step.asking, keep=step.keep)
            elif isinstance(step, _Install):
                _install(conn, wanted=step.wanted)
            elif isinstance(step, _Use):
                answer = await getattr(undo, step.method)(step.what)
            elif options.via == "dsn":
                answer = await _finished(_call(action, tagged(conn, step.id)))
            else:
                answer = await _act_async(conn, step.id, action)


def ask(conn: psycopg.Connection[Any], asking: Asking[T], *, keep: bool = False) -> T:
    """Put questions in a transaction of their own, or in a savepoint of the open one.

    Args:
        conn: any that is not in a failed transaction; its settings are left alone.
        asking: the questions.
        keep: commit what they do; else it is rolled back.

    """
    __tracebackhide__ = True
    rows: Rows | None = None
    with (
        _rights_explained(),
        conn.transaction(force_rollback=not keep),
        conn.cursor(row_factory=tuple_row) as cursor,
    ):
        while True:
            try:
                query = next(asking) if rows is None else asking.send(rows)
            except StopIteration as done:
                answer: T = done.value
                return answer
            rows = cursor.execute(query.text, query.parameters, prepare=False).fetchall()


async def _ask_async(
    conn: psycopg.AsyncConnection[Any], asking: Asking[T], *, keep: bool = False
) -> T:
    __tracebackhide__ = True
    rows: Rows | None = None
    with _rights_explained():
        async with (
            conn.transaction(force_rollback=not keep),
            conn.cursor(row_factory=tuple_row) as cursor,
        ):
            while True:
                try:
                    query = next(asking) if rows is None else asking.send(rows)
                except StopIteration as done:
                    answer: T = done.value
                    return answer
                await cursor.execute(query.text, query.parameters, prepare=False)
                rows = await cursor.fetchall()


@contextmanager
def _rights_explained() -> Iterator[None]:
    __tracebackhide__ = True
    try:
        yield
    except pg.InsufficientPrivilege as error:
        error.add_note(
            "hint: assert_reversible reads every table and the log of calls. Give it a superuser,"
            " or an agentundo_operator with SELECT on all tables; ignore=[...] leaves tables out."
        )
        raise


#: Set for the transaction. In a savepoint it would outlive the action: so the former tag returns.
_FORMER = sql.SQL("select current_setting('agent.invocation', true)")
_TAG = sql.SQL("select pg_catalog.set_config('agent.invocation', %s, true)")


def _act(conn: psycopg.Connection[Any], id: str, action: Action) -> Any:  # noqa: A002
    __tracebackhide__ = True
    try:
        with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            ((former,),) = cursor.execute(_FORMER).fetchall()
            cursor.execute(_TAG, [id])
            if callable(action):
                returned = _not_awaitable(_call(action, conn))
            else:
                returned = None
                for statement in _statements(action):
                    cursor.execute(statement.encode())
            _require_open(conn)
            cursor.execute(_TAG, [former or ""])
    except psycopg.ProgrammingError as error:
        _explain_commit(error)
    return returned


async def _act_async(conn: psycopg.AsyncConnection[Any], id: str, action: Action) -> Any:  # noqa: A002
    __tracebackhide__ = True
    try:
        async with conn.transaction(), conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_FORMER)
            ((former,),) = await cursor.fetchall()
            await cursor.execute(_TAG, [id])
            if callable(action):
                returned = await _finished(_call(action, conn))
            else:
                returned = None
                for statement in _statements(action):
                    await cursor.execute(statement.encode())
            _require_open(conn)
            await cursor.execute(_TAG, [former or ""])
    except psycopg.ProgrammingError as error:
        _explain_commit(error)
    return returned


def _statements(action: Any) -> list[str]:
    __tracebackhide__ = True
    statements = [action] if isinstance(action, str) else action
    if not isinstance(statements, Iterable):
        statements = [statements]
    found = list(statements)
    if not all(isinstance(one, str) for one in found):
        raise UsageError(
            "The action is neither callable nor SQL as str.",
            hint="Give a function of the tagged connection, a statement, or several.",
        )
    return found


def _call(action: Action, argument: Any) -> Any:
    __tracebackhide__ = True
    if not callable(action):
        raise UsageError(
            'With via="dsn" the action has to be a function of a DSN.',
            hint='Leave via out: SQL runs over the connection of "agentundo_db".',
        )
    return action(argument)


async def _finished(returned: Any) -> Any:
    return await returned if isinstance(returned, Awaitable) else returned


def _not_awaitable(returned: Any) -> Any:
    __tracebackhide__ = True
    if isinstance(returned, Awaitable):
        if inspect.iscoroutine(returned):
            returned.close()
        raise UsageError(
            "The action returned something to await, which nobody has awaited.",
            hint="Give the async function itself, not a lambda around it, and await"
            " assert_reversible(...).",
        )
    return returned


def _ended_by_action() -> UsageError:
    return UsageError(
        "The action ended the transaction that was opened for it.",
        hint='Let it neither commit nor roll back, or let it connect by itself with via="dsn".',
    )


def _require_open(conn: psycopg.BaseConnection[Any]) -> None:
    __tracebackhide__ = True
    if conn.info.transaction_status == pq.TransactionStatus.IDLE:
        raise _ended_by_action()


def _explain_commit(error: psycopg.ProgrammingError) -> NoReturn:
    """Say in our words that psycopg refuses a commit in a block; pass other errors on."""
    __tracebackhide__ = True
    if error.sqlstate is None and "forbidden within a Transaction" in str(error):
        raise _ended_by_action() from error
    raise error


@contextmanager
def _connected(db: Any) -> Iterator[psycopg.Connection[Any]]:
    __tracebackhide__ = True
    if isinstance(db, str):
        with dsns.connect(db) as conn:
            yield conn
    elif isinstance(db, psycopg.Connection):
        yield db
    else:
        raise unfit(db)


@asynccontextmanager
async def _connected_async(db: Any) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    __tracebackhide__ = True
    if isinstance(db, str):
        conninfo, options, source = dsns.prepare(db, {})
        try:
            conn = await psycopg.AsyncConnection.connect(conninfo, **options)
        except psycopg.OperationalError as error:
            raise dsns.unreachable(conninfo, source, error) from error
        async with conn:
            yield conn
    elif isinstance(db, psycopg.AsyncConnection):
        yield db
    else:
        raise unfit(db)


def unfit(db: object) -> UsageError:
    """Return what to raise for something that is no database."""
    kind = f"{type(db).__module__}.{type(db).__qualname__}"
    return UsageError(
        f"Something of type {kind} is no psycopg connection and no DSN.",
        hint="Give a psycopg.Connection, a psycopg.AsyncConnection, or a DSN such as"
        " container.get_connection_url().",
    )


def _require_usable(conn: psycopg.BaseConnection[Any], options: Options) -> None:
    __tracebackhide__ = True
    if _states.require_usable(conn) and options.via == "dsn":
        raise UsageError(
            "A transaction is open on the connection of the test: an action with a connection of"
            " its own would not see what was written there, or would wait for it.",
            hint="Commit first: agentundo_db.commit().",
        )


def address(conn: psycopg.BaseConnection[Any]) -> str:
    """Return the DSN of a connection, with its password."""
    return make_conninfo(conn.info.dsn, password=conn.info.password or None)


def _install(conn: psycopg.BaseConnection[Any], *, wanted: bool) -> None:
    __tracebackhide__ = True
    if not wanted:
        raise _messages.not_installed(conn.info.dbname)
    with dsns.connect(address(conn)) as other:
        installer.install(other)


def tagged(conn: psycopg.BaseConnection[Any], id: str) -> str:  # noqa: A002
    """Return a URL of the same database whose sessions are tagged from the start."""
    parts = {k: str(v) for k, v in conninfo_to_dict(address(conn)).items() if v not in (None, "")}
    parts["options"] = f"{parts.get('options', '')} -c agent.invocation={id}".strip()
    host = parts.pop("host", "")
    port, name = parts.pop("port", ""), parts.pop("dbname", "")
    user, password = parts.pop("user", ""), parts.pop("password", "")
    if host.startswith(("/", "@")) or "," in host or "," in port or ":" in host:
        parts["host"], host = host, ""
        if port:
            parts["port"], port = port, ""
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    where = f"{login}@{host}" if login else host
    where += f":{port}" if port else ""
    return f"postgresql://{where}/{quote(name, safe='')}?{urlencode(parts, quote_via=quote)}"
