"""Plays a history on a real database; the model's journal of it is made from table states alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from tests.property.operations import SESSIONS, Operation
from tests.property.schemas import Schema, alter
from tests.property.states import (
    BagWrite,
    RowId,
    SeenTwice,
    State,
    Write,
    bag_changes,
    changes,
    read,
)
from tests.support.undo import Connection

_PLACEHOLDER = re.compile(r"@(\w+)\.(\w+)@")


@dataclass
class Journal:
    """All that was written and committed, in order, and what was done to the columns."""

    writes: list[Write] = field(default_factory=list)
    bags: list[BagWrite] = field(default_factory=list)
    #: (number of the last statement before, table, column): older values cannot be put back.
    retyped: list[tuple[int, str, str]] = field(default_factory=list)
    #: (number of the last statement before, table, column)
    added: list[tuple[int, str, str]] = field(default_factory=list)
    #: Tables whose columns are not those of the beginning.
    altered: set[str] = field(default_factory=set)
    #: Tables of which every row has a new version since.
    rewritten: set[str] = field(default_factory=set)

    def of(self, row: RowId) -> list[Write]:
        """Return what was written to a row, in order."""
        return sorted((w for w in self.writes if w.row == row), key=lambda w: w.number)


@dataclass
class _Session:
    conn: Connection
    transaction: int | None = None
    tag: str | None = None
    writes: list[Write] = field(default_factory=list)
    bags: list[BagWrite] = field(default_factory=list)
    savepoints: list[tuple[str, str | None, int, int]] = field(default_factory=list)


class History:
    """Sessions at work on a schema.

    Args:
        admin: a connection for undos and DDL.
        connections: one for each session.
        schema: as it was made.
        name: of the history; its invocations get it in front.

    """

    def __init__(
        self, admin: Connection, connections: Sequence[Connection], schema: Schema, name: str
    ) -> None:
        self.name = name
        self.admin = admin
        self.schema = copy.deepcopy(schema)
        self.journal = Journal()
        self.number = 0
        self.script: list[str] = []
        self._transactions = 0
        self._sessions = [_Session(conn) for conn in connections[:SESSIONS]]

    def play(self, operation: Operation) -> None:
        """Do one step of a session; what makes no sense where it stands is left out."""
        session = self._sessions[operation.session]
        done = True
        line = self._named(str(operation)) or str(operation)
        if operation.what == "ddl":
            done = self._ddl(operation)
        elif operation.what == "begin":
            done = self._begin(session, operation)
        elif session.transaction is None:
            return
        elif operation.what == "run":
            done = self._run(session, operation)
        elif operation.what == "tag":
            session.tag = self.full(operation.tag)
            self._set_tag(session)
        elif operation.what in ("commit", "rollback"):
            done = self._end(session, commit=operation.what == "commit")
        else:
            self._savepoint(session, operation.what)
        self.script.append(f"{line}{'' if done else '  -- failed'}")

    def state(self) -> State:
        """Read all tables."""
        return read(self.admin, self.schema)

    def finish(self, *, but: _Session | None = None) -> None:
        """Commit what is open."""
        for session in self._sessions:
            if session is not but and session.transaction is not None:
                self._end(session, commit=True)

    def abandon(self) -> None:
        """Roll back what is open."""
        for session in self._sessions:
            if session.transaction is not None:
                session.conn.execute("rollback")

    def _begin(self, session: _Session, operation: Operation) -> bool:
        if session.transaction is not None:
            return True
        self._transactions += 1
        session.transaction = self._transactions
        session.tag = self.full(operation.tag)
        session.conn.execute(f"begin {operation.sql}".encode())
        self._set_tag(session)
        return True

    def _run(self, session: _Session, operation: Operation) -> bool:
        sql = self._named(operation.sql)
        if sql is None:
            return False
        if sql.startswith("truncate"):  # nobody can read a table while that is not committed
            self.finish(but=session)
        before = read(session.conn, self.schema)
        real = self.state() if sql.startswith("truncate") else None
        self.number += 1
        try:
            session.conn.execute(sql.encode())
        except psycopg.Error:
            if session.savepoints:
                self._savepoint(session, "rollback to")
            else:
                self._end(session, commit=False)
            return False
        try:
            after = read(session.conn, self.schema)
        except SeenTwice:
            self._end(session, commit=False)
            return False
        assert session.transaction is not None
        session.writes += [
            Write(
                self.number, session.transaction, session.tag, row, old, new, operation.keys_moved
            )
            for row, old, new in changes(before, after)
            # TRUNCATE takes what is there, whatever an older snapshot still shows.
            if real is None or row in real.rows or any(w.row == row for w in session.writes)
        ]
        session.bags += [
            BagWrite(self.number, session.tag, table, *found)
            for table, found in bag_changes(before, after).items()
        ]
        if sql.startswith("truncate"):
            self._end(session, commit=True)
        return True

    def _named(self, sql: str) -> str | None:
        """Put in what columns are called now; None if one is gone."""
        for table, uid in _PLACEHOLDER.findall(sql):
            found = [c for c in self.schema.table(table).columns if c.uid == uid]
            if not found:
                return None
            sql = sql.replace(f"@{table}.{uid}@", found[0].name)
        return sql

    def _savepoint(self, session: _Session, what: str) -> None:
        if what == "savepoint":
            name = f"s{len(session.savepoints)}"
            session.conn.execute(f"savepoint {name}".encode())
            session.savepoints.append((name, session.tag, len(session.writes), len(session.bags)))
        elif session.savepoints and what == "release":
            name, *_ = session.savepoints.pop()
            session.conn.execute(f"release {name}".encode())
        elif session.savepoints:
            name, session.tag, writes, bags = session.savepoints[-1]
            session.conn.execute(f"rollback to {name}".encode())
            del session.writes[writes:], session.bags[bags:]
            self._set_tag(session)

    def _end(self, session: _Session, *, commit: bool) -> bool:
        try:
            session.conn.execute(b"commit" if commit else b"rollback")
        except psycopg.Error:
            session.conn.execute(b"rollback")
            commit = False
            failed = True
        else:
            failed = False
        if commit:
            self.journal.writes += session.writes
            self.journal.bags += session.bags
        session.writes, session.bags, session.savepoints = [], [], []
        session.transaction = None
        return not failed

    def _ddl(self, operation: Operation) -> bool:
        self.finish()
        sql = self._named(operation.sql)
        if sql is None:
            return False
        try:
            self.admin.execute(sql.encode())
        except psycopg.Error:
            return False
        what, table, *details = operation.changes
        if what == "retype":
            self.journal.retyped.append((self.number, table, details[0]))
        elif what == "add":
            self.journal.added.append((self.number, table, details[0].uid))
        if what == "rewrite":
            self.journal.rewritten.add(table)
        elif what != "rename":
            self.journal.altered.add(table)
        alter(self.schema, operation.changes)
        return True

    def full(self, tag: str | None) -> str | None:
        """Return the id of an invocation, which no other history in this database has."""
        return tag and f"{self.name}.{tag}"

    def _set_tag(self, session: _Session) -> None:
        session.conn.execute("select set_config('agent.invocation', %s, true)", [session.tag or ""])
