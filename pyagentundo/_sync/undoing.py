# Made by .ci/make_sync.py of pyagentundo/_aio/undoing.py: change that one, not this.
"""Plans and reverts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal

from pyagentundo import _statements, _targets, results
from pyagentundo._arguments import optional, required
from pyagentundo._sync.base import Base
from pyagentundo._sync.cursors import pages
from pyagentundo._sync.units import Connection, fetch
from pyagentundo._targets import Target
from pyagentundo.errors import UndoExpired
from pyagentundo.results import Plan, PlanCount, PlanRow, RevertResult
from pyagentundo.selection import Selection

Mode = Literal["abort", "skip", "cascade", "force"]


class Undoing(Base):
    """Plans and reverts.

    What is to be undone is an id, several ids, an `Invocation` or several, or a `Selection`; it is
    always one unit, whose members never conflict with each other. A `Selection` needs a filter, and
    a role that may read the log: agentundo_operator or agentundo_auditor. It leaves out what was
    purged; only where that is all of it, and where ids were named, it is an error.

    Every method takes ``conn``: the call then belongs to the transaction that is open there.
    Without it each call is a READ COMMITTED transaction of its own, committed on return and tried
    again after a serialization failure or deadlock.
    """

    def plan(
        self,
        what: Target,
        *,
        on_conflict: Mode = "abort",
        merge: bool = False,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> Plan:
        """Return what `revert` with the same arguments would do, row by row. Changes nothing.

        All rows are held in memory; `iter_plan` does not, and `plan_summary` only counts.

        Args:
            what: the invocations.
            on_conflict: what to do with rows that were changed since.
            merge: put only the call's own columns back where others changed other ones.
            scope: only within this tenant, campaign or project.
            conn: see the class.

        Raises:
            InvocationNotFound: there is no such invocation in the scope.
            UndoExpired: its history was purged.
            NotPermitted: the role may not plan.

        """
        options = optional(on_conflict=on_conflict, merge=merge, scope=scope)

        def read(lent: Connection) -> Plan:
            ids = _ids(lent, what)
            rows = _call(lent, "plan", ids, options)
            return Plan(tuple(rows), *_beside(lent, ids, rows, scope))

        return self._run(conn, read)

    def plan_run(
        self,
        run: str,
        *,
        from_step: int = 1,
        on_conflict: Mode = "abort",
        merge: bool = False,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> Plan:
        """Return what `revert_run` with the same arguments would do. Changes nothing.

        Args:
            run: the run.
            from_step: only from this step on, counted from 1.
            on_conflict: as for `plan`.
            merge: as for `plan`.
            scope: as for `plan`.
            conn: see the class.

        Raises:
            InvocationNotFound: there is no such run in the scope.
            UndoExpired: the history of one of its invocations was purged.
            NotPermitted: the role may not plan.

        """
        options = required(run=run, from_step=from_step)
        options |= optional(on_conflict=on_conflict, merge=merge, scope=scope)

        def read(lent: Connection) -> Plan:
            rows = _call(lent, "plan_run", run, options)
            members = fetch(lent, _statements.MEMBERS, options)
            ids = [one for (one,) in members]
            return Plan(tuple(rows), *_beside(lent, ids, rows, scope))

        return self._run(conn, read)

    def iter_plan(
        self,
        what: Target,
        *,
        on_conflict: Mode = "abort",
        merge: bool = False,
        scope: str | None = None,
        page_rows: int = 1000,
        conn: Connection | None = None,
    ) -> Iterator[PlanRow]:
        """Yield the rows of `plan`, fetched in pages: for plans that do not fit into memory.

        A transaction stays open until the iterator is exhausted or closed.

        Args:
            what: the invocations.
            on_conflict: as for `plan`.
            merge: as for `plan`.
            scope: as for `plan`.
            page_rows: how many rows to fetch at a time.
            conn: see the class.

        Raises:
            InvocationNotFound: there is no such invocation in the scope.
            UndoExpired: its history was purged.
            NotPermitted: the role may not plan.

        """
        options = optional(on_conflict=on_conflict, merge=merge, scope=scope)
        with self._lend(conn) as lent:
            ids = self._run(lent, functools.partial(_ids, what=what))
            query = _statements.call("plan", options)
            parameters = {**options, "what": ids}
            for row in pages(lent, query, parameters, PlanRow, page_rows):
                yield row

    def plan_summary(
        self,
        what: Target,
        *,
        on_conflict: Mode = "abort",
        merge: bool = False,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> list[PlanCount]:
        """Return the rows of `plan`, counted per table, action and status. Changes nothing.

        Arguments and errors are those of `plan`.
        """
        options = optional(on_conflict=on_conflict, merge=merge, scope=scope)

        def read(lent: Connection) -> list[PlanCount]:
            query = _statements.call("plan_summary", options)
            found = fetch(lent, query, {**options, "what": _ids(lent, what)})
            return [results.count_of(row) for row in found]

        return self._run(conn, read)

    def revert(
        self,
        what: Target,
        *,
        on_conflict: Mode = "abort",
        merge: bool = False,
        reason: str | None = None,
        reverted_by: str | None = None,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> RevertResult:
        """Put back every row that these invocations wrote, and leave later work of others alone.

        All or nothing, unless `on_conflict` says otherwise. Twice is once: the second call answers
        ``already_reverted``. The revert is an invocation too; `redo` takes it back.

        Args:
            what: the invocations.
            on_conflict: what to do with rows that were changed since: ``abort`` refuses all of it,
                ``skip`` leaves those rows, ``cascade`` takes later agents' calls back first,
                ``force`` overwrites (needs `reverted_by` and `reason`).
            merge: put only the call's own columns back where others changed other ones.
            reason: why, for the record.
            reverted_by: the person whose decision it is; members of agentundo_app must say.
            scope: only within this tenant, campaign or project.
            conn: see the class.

        Raises:
            UndoConflict: rows stand in the way, see its ``conflicts``. Nothing was changed.
            InvocationNotFound: there is no such invocation in the scope.
            NotPermitted: the role or the person may not.
            UndoExpired: the history was purged.
            LockTimeout: somebody holds a row or table for too long. Nothing was changed.
            CommitUnknown: the connection was lost while it committed; calling again is safe.

        """
        options = optional(
            on_conflict=on_conflict,
            merge=merge,
            reason=reason,
            reverted_by=reverted_by,
            scope=scope,
        )

        def write(lent: Connection) -> RevertResult:
            return _revert(lent, "revert", _ids(lent, what), options)

        return self._run(conn, write, writes=_targets.name(what))

    def revert_run(
        self,
        run: str,
        *,
        from_step: int = 1,
        on_conflict: Mode = "abort",
        merge: bool = False,
        reason: str | None = None,
        reverted_by: str | None = None,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> RevertResult:
        """Put back what a run wrote from a step on, as one unit.

        Args:
            run: the run.
            from_step: only from this step on, counted from 1.
            on_conflict: as for `revert`.
            merge: as for `revert`.
            reason: as for `revert`.
            reverted_by: as for `revert`.
            scope: as for `revert`.
            conn: see the class.

        Raises:
            UndoConflict: and all the others of `revert`.

        """
        options = required(run=run, from_step=from_step) | optional(
            on_conflict=on_conflict,
            merge=merge,
            reason=reason,
            reverted_by=reverted_by,
            scope=scope,
        )

        def write(lent: Connection) -> RevertResult:
            return _revert(lent, "revert_run", run, options)

        return self._run(conn, write, writes=run)

    def redo(
        self,
        invocation: str,
        *,
        on_conflict: Mode = "abort",
        merge: bool = False,
        reason: str | None = None,
        reverted_by: str | None = None,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> RevertResult:
        """Take the newest standing revert of an invocation back: what it wrote is there again.

        Args:
            invocation: its id, or that of the revert; a text, unlike for `revert`.
            on_conflict: as for `revert`.
            merge: as for `revert`.
            reason: as for `revert`.
            reverted_by: as for `revert`.
            scope: as for `revert`.
            conn: see the class.

        Raises:
            UndoConflict: and all the others of `revert`.

        """
        options = optional(
            on_conflict=on_conflict,
            merge=merge,
            reason=reason,
            reverted_by=reverted_by,
            scope=scope,
        )

        required(invocation=invocation)

        def write(lent: Connection) -> RevertResult:
            return _revert(lent, "redo", invocation, options)

        return self._run(conn, write, writes=invocation)


def _ids(conn: Connection, what: Target) -> list[str]:
    """Return the ids meant; those that were named as they are, the server knows them or not."""
    if not isinstance(what, Selection):
        return _targets.ids(what)
    _targets.require_filter(what)
    found = fetch(conn, _statements.ids(what), what.given())
    chosen = _targets.require_some([one for one, _ in found])
    expired = _expired(conn, [one for one, is_empty in found if is_empty])
    # Where nothing is left the server says when it was purged.
    return [one for one in chosen if one not in expired] or chosen


def _expired(conn: Connection, ids: list[str]) -> set[str]:
    """Return which of these were purged: the server refuses them, alone and together."""
    found: set[str] = set()
    left = [ids] if ids else []
    while left:
        some = left.pop()
        try:
            with conn.transaction():
                fetch(conn, _statements.KNOWN, {"ids": some})
        except UndoExpired:
            if len(some) == 1:
                found.update(some)
            else:
                middle = len(some) // 2
                left += [some[:middle], some[middle:]]
    return found


def _call(conn: Connection, function: str, what: Any, options: dict[str, Any]) -> list[Any]:
    row = PlanRow if function.startswith("plan") else RevertResult
    query = _statements.call(function, options)
    return fetch(conn, query, {**options, "what": what}, rows=results.row_of(row))


def _beside(
    conn: Connection, ids: list[str], rows: list[PlanRow], scope: str | None
) -> tuple[tuple[results.Effect, ...] | None, tuple[str, ...] | None]:
    """Return what left the database, and tables not tracked; None where the role may not know.

    No revert of rows takes either back. Calls that cascade takes along are known by their rows.
    """
    ((may_read_effects, may_read_log),) = fetch(conn, _statements.MAY_ASK)
    parameters = {"ids": sorted({*ids, *(row.invocation for row in rows)}), "scope": scope}
    effects = uncovered = None
    if may_read_effects:
        row = results.row_of(results.Effect)
        effects = tuple(fetch(conn, _statements.EFFECTS, parameters, rows=row))
    if may_read_log:
        uncovered = tuple(u for (u,) in fetch(conn, _statements.UNCOVERED, parameters))
    return effects, uncovered


def _revert(conn: Connection, function: str, what: Any, options: dict[str, Any]) -> RevertResult:
    answer: RevertResult
    (answer,) = _call(conn, function, what, options)
    return answer
