# Made by .ci/make_sync.py of pyagentundo/_aio/reading.py: change that one, not this.
"""What agents did: log, runs, diffs, histories, events, health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyagentundo import _statements, _targets, errors, results
from pyagentundo._arguments import optional, required
from pyagentundo._sync.base import Base
from pyagentundo._sync.cursors import pages
from pyagentundo._sync.units import Connection, fetch
from pyagentundo.results import (
    DiffRow,
    Event,
    Finding,
    HistoryRow,
    Invocation,
    Run,
    Undoable,
)
from pyagentundo.selection import Selection, selected


class Reading(Base):
    """What agents did.

    Log, runs and events need a role that may read everybody's: agentundo_operator or
    agentundo_auditor. The application (agentundo_app) asks `undoable`, `diff` and `row_history`.
    """

    def get(self, id: str, *, conn: Connection | None = None) -> Invocation:  # noqa: A002
        """Return one invocation.

        Raises:
            InvocationNotFound: there is none with this id.
            NotPermitted: the role may not read the log.

        """
        found: list[Invocation] = self._all(
            conn, _statements.INVOCATION, required(id=id), Invocation
        )
        if not found:
            raise errors.InvocationNotFound(
                f"There is no invocation {id!r}.", hint="log() lists what there is."
            )
        return found[0]

    def log(
        self,
        selection: Selection | None = None,
        *,
        limit: int = 20,
        conn: Connection | None = None,
        **chosen: Any,
    ) -> list[Invocation]:
        """Return invocations, newest first.

        Args:
            selection: which; all by default.
            limit: how many at most.
            conn: read in the transaction that is open here.
            chosen: the arguments of a `Selection`, instead of one: ``run``, ``from_step``,
                ``role``, ``actor``, ``on_behalf_of``, ``tool``, ``scope``, ``status``, ``since``,
                ``until``.

        Raises:
            UsageError: what was chosen cannot be meant.
            NotPermitted: the role may not read the log.

        """
        wanted = selected(selection, chosen)
        parameters = wanted.given() | required(limit=limit)
        query = _statements.log(wanted, limited=True)
        return self._all(conn, query, parameters, Invocation)

    def invocations(
        self,
        selection: Selection | None = None,
        *,
        page_rows: int = 1000,
        conn: Connection | None = None,
        **chosen: Any,
    ) -> Iterator[Invocation]:
        """Yield all invocations of a selection, newest first, fetched in pages.

        A transaction stays open until the iterator is exhausted or closed. Arguments and errors are
        those of `log`.

        Args:
            selection: which; all by default.
            page_rows: how many to fetch at a time.
            conn: read in the transaction that is open here.
            chosen: the arguments of a `Selection`, instead of one.

        """
        wanted = selected(selection, chosen)
        query = _statements.log(wanted, limited=False)
        with self._lend(conn) as lent:
            for row in pages(lent, query, wanted.given(), Invocation, page_rows):
                yield row

    def runs(
        self,
        selection: Selection | None = None,
        *,
        limit: int = 20,
        conn: Connection | None = None,
        **chosen: Any,
    ) -> list[Run]:
        """Return the runs that have an invocation of a selection, newest first.

        Arguments and errors are those of `log`.
        """
        wanted = selected(selection, chosen)
        parameters = wanted.given() | required(limit=limit)
        return self._all(conn, _statements.runs(wanted), parameters, Run)

    def undoable(
        self,
        *,
        scope: str | None = None,
        run: str | None = None,
        limit: int = 20,
        conn: Connection | None = None,
    ) -> list[Undoable]:
        """Return what an undo button offers: the newest runs, each before its invocations.

        Args:
            scope: of this tenant, campaign or project.
            run: of this run only.
            limit: how many invocations at most.
            conn: read in the transaction that is open here.

        Raises:
            NotPermitted: the role may not read what was captured.

        """
        parameters = optional(scope=scope, run=run) | required(limit=limit)
        return self._all(conn, _statements.UNDOABLE, parameters, Undoable)

    def diff(
        self, invocation: str, *, scope: str | None = None, conn: Connection | None = None
    ) -> list[DiffRow]:
        """Return what an invocation changed, column by column.

        Of updated rows only the columns that changed, of others all that the role may SELECT.

        Args:
            invocation: its id.
            scope: only within this tenant, campaign or project.
            conn: read in the transaction that is open here.

        Raises:
            InvocationNotFound: there is no such invocation in the scope.
            NotPermitted: the role may not read a table that it wrote.
            UndoExpired: its history was purged.

        """
        parameters = required(invocation=invocation) | optional(scope=scope)
        return self._all(conn, _statements.DIFF, parameters, DiffRow)

    def row_history(
        self,
        relation: str,
        key: Mapping[str, Any],
        *,
        scope: str | None = None,
        conn: Connection | None = None,
    ) -> list[HistoryRow]:
        """Return every captured version of a row, oldest first.

        Args:
            relation: the table, as SQL writes it: ``crm.deals``.
            key: its key columns with their values.
            scope: in which an application is told who wrote; other scopes have no names.
            conn: read in the transaction that is open here.

        Raises:
            NotTrackable: there is no such table, or it is not tracked.
            UsageError: this is not its key, or a value is none of its column's type.
            NotPermitted: the role may not read the table.

        """
        parameters = _targets.row(relation, key) | optional(scope=scope)
        with _targets.explained(relation):
            return self._all(conn, _statements.ROW_HISTORY, parameters, HistoryRow)

    def row_version(
        self, relation: str, key: Mapping[str, Any], *, conn: Connection | None = None
    ) -> str | None:
        """Return a text that changes whenever a transaction writes the row; None without a row.

        To be compared, nothing else. Arguments and errors are those of `row_history`.
        """
        parameters = _targets.row(relation, key)

        def read(lent: Connection) -> str | None:
            (version,), *_ = fetch(lent, _statements.ROW_VERSION, parameters)
            return None if version is None else str(version)

        with _targets.explained(relation):
            return self._run(conn, read)

    def events(
        self,
        *,
        after: int = 0,
        kind: str | None = None,
        scope: str | None = None,
        run: str | None = None,
        invocation: str | None = None,
        limit: int = 1000,
        conn: Connection | None = None,
    ) -> list[Event]:
        """Return what happened to invocations, oldest first.

        To follow it, ask again with the last number. Numbers are given before commit: of two
        transactions at once the lower may become visible after the higher, so go back a little.

        Args:
            after: only events with a higher number.
            kind: only of this kind, such as ``invocation_reverted``.
            scope: only of this tenant, campaign or project.
            run: only of this run.
            invocation: only of this invocation.
            limit: how many at most.
            conn: read in the transaction that is open here.

        Raises:
            NotPermitted: the role may not read events.

        """
        given = optional(kind=kind, scope=scope, run=run, invocation=invocation)
        filters = {name: value for name, value in given.items() if value is not None}
        parameters = filters | required(after=after, limit=limit)
        return self._all(conn, _statements.events(filters), parameters, Event)

    def check(self, *, conn: Connection | None = None) -> list[Finding]:
        """Return everything that would make a promise untrue: missing triggers, rights, history.

        Raises:
            NotPermitted: the role may not; operators and auditors may.

        """
        return self._all(conn, _statements.CHECK, {}, Finding)

    def _all(
        self, conn: Connection | None, query: str, parameters: dict[str, Any], cls: Any
    ) -> list[Any]:
        def read(lent: Connection) -> list[Any]:
            return fetch(lent, query, parameters, rows=results.row_of(cls))

        return self._run(conn, read)
