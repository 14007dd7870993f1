# Made by .ci/make_sync.py of pyagentundo/_aio/recording.py: change that one, not this.
"""Making calls: tags, invocations, tools."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Literal, TypeVar, overload

import psycopg

from pyagentundo import _ambient, _json, _statements, _states, errors
from pyagentundo._ambient import ActiveInvocation
from pyagentundo._arguments import optional, required
from pyagentundo._calls import Call
from pyagentundo._concurrency import SYNC, finish, sleep
from pyagentundo._sync.base import Base
from pyagentundo._sync.records import InlineRecord, OwnRecord
from pyagentundo._sync.units import CommitLost, Connection, Unit, fetch
from pyagentundo._tools import Tool, error_in, require_whole
from pyagentundo.results import Recorded

R = TypeVar("R")


class Recording(Base):
    """Tags, invocations and tools."""

    @contextmanager
    def tag(
        self,
        conn: Connection | None,
        id: str | None = None,  # noqa: A002
        *,
        run: str | None = None,
        step: int | None = None,
        tool: str | None = None,
        actor: str | None = None,
        on_behalf_of: str | None = None,
        scope: str | None = None,
    ) -> Iterator[str]:
        """Tag what a block writes, without a record.

        The block is a transaction of its own, or a savepoint in the one that is open: it is
        committed or released at the end, rolled back by an exception. Scopes nest; after each the
        outer tag is in force again.

        Args:
            conn: the connection that writes; None for one of the source's, see `connection`.
            id: the invocation's id, 1 to 255 bytes; a new UUID when it is left out.
            run: the chain of calls that it belongs to.
            step: its place there, from 1.
            tool: the tool's name.
            actor: the agent.
            on_behalf_of: the person for whom it acts.
            scope: the tenant, campaign or project.

        Yields:
            The id.

        Raises:
            UsageError: the connection cannot be used now, a value cannot be stored, or the block
                ended the transaction itself.
            CommitUnknown: the connection was lost while it committed.

        """
        given = {
            "id": id,
            "run": run,
            "step": step,
            "tool": tool,
            "actor": actor,
            "on_behalf_of": on_behalf_of,
            "scope": scope,
        }
        call = Call.of(_ambient.complete(self, given))
        with self._lend(conn or _ambient.shared(self)) as lent:
            unit = Unit(lent)
            active = ActiveInvocation(call.id, lent)
            unit.begin()
            try:
                unit.tag(call)
                with _ambient.entered(self, active):
                    yield call.id
                unit.require_tag()
                unit.commit()
            except CommitLost as lost:
                raise _states.commit_unknown(call.id) from lost.__cause__
            except BaseException as error:
                if not finish(self._abandon, unit, None, active, error):
                    raise
            else:
                self._leave(unit, active.inside)

    @contextmanager
    def invocation(
        self,
        conn: Connection | None = None,
        *,
        id: str | None = None,  # noqa: A002
        tool: str | None = None,
        run: str | None = None,
        step: int | None = None,
        tier: Literal["critical", "high", "medium", "low"] | None = None,
        input: Any = None,  # noqa: A002
        actor: str | None = None,
        scope: str | None = None,
        on_behalf_of: str | None = None,
        model: str | None = None,
        meta: Any = None,
        again: bool = False,
    ) -> Iterator[ActiveInvocation[Connection]]:
        """Record a tool call, and tag what its block writes.

        First the call is recorded as ``pending`` and committed, on a connection of our own; then
        the block runs, in a transaction of its own or in a savepoint of the one that is open. At
        its end the call is marked as ``committed`` in that same transaction, with what the block
        left in ``result``. An exception rolls back and marks the call as ``failed``. Inside the
        caller's transaction the mark stands or falls with the caller's commit.

        The same id with the same tool and input is the same call. If it was committed before, the
        block sees ``created == False`` and the first ``result``, and whatever it writes is refused
        (`InvocationClosed`).

        Args:
            conn: the connection that writes; None for the one of the invocation that is open here,
                else one of the source's, see `connection`.
            id: 1 to 255 bytes; a new UUID of version 7 when it is left out.
            tool: the tool's name.
            run: the chain of calls that it belongs to.
            step: its place there, from 1; given automatically.
            tier: how bad a mistake would be.
            input: what the tool was asked, anything that JSON can hold; Decimal stays exact.
            actor: the agent.
            scope: the tenant, campaign or project.
            on_behalf_of: the person for whom it acts.
            model: the language model.
            meta: whatever else is to be recorded.
            again: make a call once more that was reverted.

        Yields:
            The invocation that is open: its ``id``, and ``result`` to set.

        Raises:
            RecordUnavailable: it cannot be recorded. The block has not run.
            InvocationPending: the same call is being made elsewhere. The block has not run.
            InvocationClosed: the id belongs to another call, was reverted, or a block wrote though
                its call was made before. Nothing was written.
            NotInstalled: the database has no agentundo.
            VersionMismatch: it has one that this package cannot work with.
            UsageError: the connection cannot be used now, a value cannot be stored, the block hid
                an error or ended the transaction itself. Everything was rolled back.
            CommitUnknown: the connection was lost while it committed, and so was the way to find
                out.

        """
        given = {
            "id": id,
            "tool": tool,
            "run": run,
            "step": step,
            "tier": tier,
            "input": input,
            "actor": actor,
            "scope": scope,
            "on_behalf_of": on_behalf_of,
            "model": model,
            "meta": meta,
            "again": again or None,
        }
        call = Call.of(_ambient.complete(self, given))
        if not self._inline and not self._addressed:
            raise _states.without_address()
        with self._lend(conn or _ambient.shared(self)) as lent:
            unit = Unit(lent)
            record = self._record_for(unit)
            active = ActiveInvocation(call.id, lent)
            try:
                if record.early:
                    unit.begin()
                recorded = record.begin(call)
                if not recorded.created and recorded.status != "committed":
                    raise _states.pending(call.id)
                active.created, active.result = recorded.created, recorded.result
                active.status = recorded.status
                if not record.early:
                    unit.begin()
                self._prepare(unit, call, recorded)
                with _ambient.entered(self, active):
                    yield active
                if active.created and active.error is None:
                    self._commit(unit, record, call, active)
                    self._leave(unit, [*active.inside, call.id])
                else:
                    finish(self._abandon, unit, record, active, None)
            except BaseException as error:
                if finish(self._abandon, unit, record, active, error):
                    return
                if not active.created and _states.was_refused(error):
                    raise _states.repeated(call.id, active.status) from error
                raise

    def _leave(self, unit: Unit, ids: list[str]) -> None:
        """Hand calls that ended well over to the block around them, if it can take them back."""
        around = _ambient.outer(self, unit.conn) if unit.joined else None
        if around is not None:
            around.inside += ids

    def _abandon(
        self,
        unit: Unit,
        record: OwnRecord | InlineRecord | None,
        active: ActiveInvocation[Connection],
        error: BaseException | None,
    ) -> bool:
        """Roll a block back, and mark it as failed with all calls that had ended well within it.

        Returns:
            Whether the error was psycopg's `Rollback`, and meant this block.

        """
        swallowed = unit.rollback(error)
        if record and record.stands:
            record.stands = False
            _fail(record, active.id, error or active.error or "", error)
        if not self._inline and self._addressed:
            for id in active.inside:  # noqa: A001
                why = f"rolled back with {active.id!r}"
                _fail(OwnRecord(self, ""), id, why, error)
        return swallowed

    def _record_for(self, unit: Unit) -> OwnRecord | InlineRecord:
        if self._inline:
            return InlineRecord(self, unit.conn, joined=unit.joined)
        return OwnRecord(self, unit.conn.info.user)

    def _prepare(self, unit: Unit, call: Call, recorded: Recorded) -> None:
        if recorded.created:
            # Its own record every transaction sees.
            unit.tag(call, xid=None if self._inline else recorded.xid)
        else:
            unit.refuse_writes()

    def _commit(
        self,
        unit: Unit,
        record: OwnRecord | InlineRecord,
        call: Call,
        active: ActiveInvocation[Connection],
    ) -> None:
        """Mark the call as committed and end its transaction."""
        unit.require_whole()
        result = _json.dumps(active.result, what="result")
        try:
            self._mark(unit, call.id, result)
        except errors.InvocationNotFound as error:
            error.add_note(f"agentundo: {_states.elsewhere(unit.conn)}")
            raise
        try:
            unit.commit()
        except CommitLost as lost:
            cause = lost.__cause__ or lost
            found = record.committed(call)
            if found is None:
                record.stands = False  # nobody knows: it is not ours to say that it failed
                raise _states.commit_unknown(call.id) from cause
            if not found:
                raise cause from None
        if not unit.joined:
            active.status = "committed"  # else that is for the caller's commit to say

    def _mark(self, unit: Unit, call_id: str, result: str | None) -> None:
        parameters = {"id": call_id, "result": result}
        if not fetch(unit.conn, _statements.COMMIT, parameters):
            raise unit.torn()

    @overload
    def tool(self, name: Callable[..., R], /) -> Callable[..., R]: ...

    @overload
    def tool(
        self,
        name: str | None = None,
        *,
        tier: Literal["critical", "high", "medium", "low"] | None = None,
        scope: str | None = None,
        input: Callable[..., Any] | None = None,
        result: Callable[[Any], Any] | None = None,
        on_error: Literal["rollback", "keep"] = "rollback",
        retries: int = 0,
    ) -> Callable[[Callable[..., R]], Callable[..., R]]: ...

    def tool(
        self,
        name: Any = None,
        *,
        tier: Literal["critical", "high", "medium", "low"] | None = None,
        scope: str | None = None,
        input: Callable[..., Any] | None = None,  # noqa: A002
        result: Callable[[Any], Any] | None = None,
        on_error: Literal["rollback", "keep"] = "rollback",
        retries: int = 0,
    ) -> Any:
        """Make every call of a function an invocation: ``@tool``, or ``@tool("name", …)``.

        The function takes the tagged connection as its parameter ``conn``, which its callers (and
        the schemas that frameworks make of it) do not see, or from `connection`. Run, actor and the
        like come from `context`. A call that was made before under the same id is not made again:
        its caller gets what was recorded as its result.

        Methods may be tools too; their object is no part of the input. A generator would do its
        work after the call, untagged, and is refused.

        An entry or attribute ``error`` in what it returns, or ``isError``, rolls back and marks the
        call as failed; the caller gets what it returned all the same.

        Args:
            name: the tool's name, by default the function's.
            tier: how bad a mistake would be.
            scope: the tenant, campaign or project, when it is always the same.
            input: makes what is recorded as input out of the arguments, which it gets as the
                function does; by default they themselves, without ``self`` or ``cls``.
            result: makes what is recorded as result out of what it returned.
            on_error: ``keep`` commits also what returned an error.
            retries: how often the function is called again after a serialization failure or
                deadlock, if the transaction is ours. Only for functions that do nothing else.

        Raises:
            UsageError: the function is of the other kind: a coroutine function in the API for
                threads, a plain one in that for tasks. Or it is a generator function, or the name
                is no text.

        """
        bare, name = (name, None) if inspect.isroutine(name) else (None, name)
        if name is not None and not isinstance(name, str):
            raise errors.UsageError(
                f"The tool's name is {name!r}, no text.",
                hint='Write @undo.tool, or @undo.tool("name").',
            )
        if on_error not in ("rollback", "keep"):
            raise errors.UsageError(
                f"on_error is {on_error!r}, neither 'rollback' nor 'keep'.",
                hint="Leave it out: 'rollback'.",
            )

        def decorate(
            function: Callable[..., R],
        ) -> Callable[..., R]:
            if isinstance(function, classmethod | staticmethod):
                # Decorated already; what is inside is the function.
                return type(function)(decorate(function.__func__))
            tool = Tool(function, is_async=SYNC, describe=input)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> R:
                args, kwargs, conn = tool.split(args, kwargs)
                told = {
                    "tool": name or function.__name__,
                    "tier": tier,
                    "scope": scope,
                    "input": tool.input(args, kwargs),
                }
                told = _ambient.complete(self, told)
                for pause in _states.pauses(retries + 1):
                    answer = None  # where the function raises psycopg's Rollback
                    try:
                        with self.invocation(conn, **told) as active:
                            told["id"] = active.id
                            if not active.created:
                                return active.result  # type: ignore[no-any-return]
                            args_, kwargs_ = tool.bind(args, kwargs, active.connection)
                            answer = function(*args_, **kwargs_)
                            require_whole(answer)
                            active.result = result(answer) if result else answer
                            error = error_in(answer)
                            if error is not None and on_error == "rollback":
                                active.fail(error)
                        return answer
                    except _states.RETRIED:
                        if pause is None or not self._owns(conn):
                            raise
                    sleep(pause)
                raise AssertionError("unreachable: the last attempt returns or raises")

            tool.dress(call)
            return call

        return decorate if bare is None else decorate(bare)

    def _owns(self, conn: Connection | None) -> bool:
        """Tell whether a transaction on a connection would be ours alone."""
        chosen = conn or _ambient.shared(self) or self._bare
        return chosen is None or (not chosen.closed and not _states.require_usable(chosen))

    def connection(self) -> Connection:
        """Return the tagged connection of the innermost block or tool that is open here.

        Raises:
            UsageError: there is none.

        """
        conn: Connection = self.current().connection
        return conn

    def current(self) -> ActiveInvocation[Connection]:
        """Return the innermost invocation that is open here.

        Raises:
            UsageError: there is none.

        """
        found: ActiveInvocation[Connection] = _ambient.current(self)
        return found

    def context(
        self,
        *,
        id: str | None = None,  # noqa: A002
        run: str | None = None,
        actor: str | None = None,
        on_behalf_of: str | None = None,
        scope: str | None = None,
        model: str | None = None,
        meta: Any = None,
    ) -> AbstractContextManager[None]:
        """Say once what all calls within a block have in common; each may say otherwise.

        A plain ``with`` block, in threads too. Nothing is written.

        Args:
            id: of the next call only: the id that the model or the protocol gave it.
            run: the chain of calls.
            actor: the agent.
            on_behalf_of: the person for whom it acts.
            scope: the tenant, campaign or project.
            model: the language model.
            meta: whatever else is to be recorded.

        """
        values = {
            "id": id,
            "run": run,
            "actor": actor,
            "on_behalf_of": on_behalf_of,
            "scope": scope,
            "model": model,
            "meta": meta,
        }
        return _ambient.sharing(self, values)

    def record(
        self,
        *,
        id: str | None = None,  # noqa: A002
        tool: str | None = None,
        run: str | None = None,
        step: int | None = None,
        tier: Literal["critical", "high", "medium", "low"] | None = None,
        input: Any = None,  # noqa: A002
        actor: str | None = None,
        scope: str | None = None,
        on_behalf_of: str | None = None,
        model: str | None = None,
        meta: Any = None,
        role: str | None = None,
        again: bool = False,
    ) -> Recorded:
        """Record a call as pending, for data that another driver writes.

        Committed on return. Afterwards call ``agentundo.tag`` and, last of all,
        ``agentundo.commit_invocation`` in the data's transaction, or `fail`. Arguments are those of
        `invocation`.

        Args:
            role: the database role that will write; by default the one that records.

        Returns:
            How the call stands. With ``created == False`` do not write.

        Raises:
            RecordUnavailable: it cannot be recorded.
            InvocationPending: the same call is being made elsewhere.
            InvocationClosed: the id belongs to another call, or was reverted.

        """
        given = {
            "id": id,
            "tool": tool,
            "run": run,
            "step": step,
            "tier": tier,
            "input": input,
            "actor": actor,
            "scope": scope,
            "on_behalf_of": on_behalf_of,
            "model": model,
            "meta": meta,
            "again": again or None,
        }
        call = Call.of(_ambient.complete(self, given))
        if not self._addressed:
            raise _states.without_address()
        recorded = OwnRecord(self, optional(role=role)["role"] or "").begin(call)
        if not recorded.created and recorded.status != "committed":
            raise _states.pending(call.id)
        return recorded

    def fail(
        self,
        id: str,  # noqa: A002
        error: str | BaseException,
        *,
        conn: Connection | None = None,
    ) -> None:
        """Mark a pending call as failed; one that has ended stays as it is. Takes nothing back.

        Args:
            id: the invocation.
            error: why.
            conn: where, by default a connection of our own, committed on return.

        Raises:
            InvocationNotFound: there is no record of it.

        """
        required(id=id)
        if conn is not None or not self._addressed:
            with self._lend(conn) as lent:
                InlineRecord(self, lent, joined=True).fail(id, error)
        else:
            OwnRecord(self, "").fail(id, error)

    def record_effect(
        self,
        invocation: str,
        name: str,
        *,
        kind: Literal["compensate", "none", "unknown"] = "unknown",
        summary: str | None = None,
        undo_by: datetime | None = None,
        side_effect: str | None = None,
        cost: str | None = None,
        remedy: str | None = None,
        handler: str | None = None,
        conn: Connection | None = None,
    ) -> int:
        """Record what left the database under an invocation: a mail, a payment, a booking.

        By default on a connection of our own and committed on return: it stays known when the data
        is rolled back, since what has left does not come back.

        Args:
            invocation: its id.
            name: what it is, 1 to 255 bytes.
            kind: ``compensate`` if something can make up for it, ``none`` if nothing can.
            summary: one sentence for people.
            undo_by: until when something can make up for it, with a time zone.
            side_effect: what that would do besides.
            cost: what it would cost.
            remedy: how to.
            handler: what does it.
            conn: write it in the transaction of this connection instead.

        Returns:
            The effect's number.

        Raises:
            UsageError: a value cannot be stored, or the kind does not exist.

        """
        parameters = required(invocation=invocation, name=name, kind=kind) | optional(
            summary=summary,
            undo_by=undo_by,
            side_effect=side_effect,
            cost=cost,
            remedy=remedy,
            handler=handler,
        )

        def write(lent: Connection) -> int:
            (number,), *_ = fetch(lent, _statements.EFFECT, parameters)
            return int(number)

        if conn is None and self._addressed and not self._inline:
            with self._records.connection() as own:
                self._verify(own, "records")
                return write(own)
        return self._run(conn, write, writes=invocation)


def _fail(
    record: OwnRecord | InlineRecord,
    id: str,  # noqa: A002
    why: str | BaseException,
    error: BaseException | None,
) -> None:
    """Mark a call as failed; where that is not possible, say so with the error under way."""
    try:
        record.fail(id, why)
    except (errors.AgentUndoError, psycopg.Error) as failure:
        if error is None:
            raise
        error.add_note(
            f"agentundo: invocation {id!r} stays pending, it could not be marked as failed:"
            f" {failure}"
        )
