"""Short ways to write under a tag, to plan, to revert, and to hold a revert to its plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import class_row, scalar_row

from tests.support.state import assert_same, snapshot

Connection = psycopg.Connection[Any]
Json = dict[str, Any]

#: For connections of tests in which a mistake of ours could wait for ever.
IMPATIENT = "-c statement_timeout=20s"
#: How a person asks for force.
FORCE = {"on_conflict": "force", "reverted_by": "dana", "reason": "wrong deal"}


@dataclass(frozen=True)
class PlanRow:
    """A row of ``agentundo.plan``."""

    step: int | None
    invocation: str
    relation: str
    key: Json | None
    action: str
    status: str
    reason: str | None
    columns: list[str] | None
    before: Json | None
    after: Json | None
    current: Json | None
    detail: Json | None

    @property
    def acts(self) -> bool:
        """Whether the revert would write this row."""
        return self.status in ("ok", "merge") and self.action != "none"


@dataclass(frozen=True)
class Result:
    """What a revert answers."""

    status: str
    revert_id: str | None
    invocations: list[str]
    rows_deleted: int
    rows_inserted: int
    rows_updated: int
    rows_skipped: int
    conflicts: int

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Rows deleted, inserted, updated and skipped, and conflicts."""
        written = (self.rows_deleted, self.rows_inserted, self.rows_updated)
        return (*written, self.rows_skipped, self.conflicts)


@dataclass(frozen=True)
class Refusal:
    """An error of ours, taken apart."""

    code: str
    message: str
    hint: str
    detail: Json

    @property
    def conflicts(self) -> list[Json]:
        """The rows that DETAIL names."""
        return list(self.detail["conflicts"])

    @property
    def reasons(self) -> list[str]:
        """Why, one for each row that DETAIL names, sorted."""
        return sorted(conflict["reason"] for conflict in self.conflicts)


class Caught:
    """Filled when the block of `refused` has failed as it should."""

    refusal: Refusal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.refusal, name)


@contextmanager
def refused(code: str) -> Iterator[Caught]:
    """Fail unless the block raises an error with this SQLSTATE, a message and a hint."""
    caught = Caught()
    with pytest.raises(psycopg.Error) as raised:
        yield caught
    diag = raised.value.diag
    assert diag.sqlstate == code, f"{diag.sqlstate} instead of {code}: {raised.value}"
    assert diag.message_primary
    assert diag.message_hint, "an error of ours says what to do next"
    detail = json.loads(diag.message_detail) if diag.message_detail else {}
    caught.refusal = Refusal(code, diag.message_primary, diag.message_hint, detail)


def tag(conn: Connection, invocation: str, **companions: Any) -> None:
    """Tag the open transaction."""
    names = ["id", *companions]
    arguments = sql.SQL(", ").join(sql.SQL("{} => %s").format(sql.Identifier(n)) for n in names)
    query = sql.SQL("select agentundo.tag({})").format(arguments)
    conn.execute(query, [invocation, *companions.values()])


def write(conn: Connection, invocation: str, statement: str, **companions: Any) -> None:
    """Run a statement or several in a transaction of their own under a tag."""
    with conn.transaction():
        tag(conn, invocation, **companions)
        conn.execute(statement.encode())


def scalar(conn: Connection, query: str, *parameters: Any) -> Any:
    """Return the first column of the first row."""
    with conn.cursor(row_factory=scalar_row) as cursor:
        return cursor.execute(query.encode(), parameters or None).fetchone()


def rows(conn: Connection, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return all rows."""
    return conn.execute(query.encode(), parameters or None).fetchall()


def status(conn: Connection, invocation: str) -> Any:
    """Return what the view says of an invocation."""
    return scalar(conn, "select status from agentundo.invocations where id = %s", invocation)


def _call(function: str, target: Any, arguments: Json) -> sql.Composed:
    # Without the cast an array would go to the function for a single invocation.
    first = sql.SQL("%s::text") if isinstance(target, str) else sql.SQL("%s::text[]")
    named = [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in arguments]
    given = sql.SQL(", ").join([first, *named])
    return sql.SQL("select * from {}({})").format(sql.Identifier("agentundo", function), given)


def plan(conn: Connection, what: str | Sequence[str], **arguments: Any) -> list[PlanRow]:
    """Return ``agentundo.plan`` of an invocation or several."""
    with conn.cursor(row_factory=class_row(PlanRow)) as cursor:
        target = what if isinstance(what, str) else list(what)
        query = _call("plan", target, arguments)
        return cursor.execute(query, [target, *arguments.values()]).fetchall()


def plan_run(conn: Connection, run: str, **arguments: Any) -> list[PlanRow]:
    """Return ``agentundo.plan_run``."""
    with conn.cursor(row_factory=class_row(PlanRow)) as cursor:
        query = _call("plan_run", run, arguments)
        return cursor.execute(query, [run, *arguments.values()]).fetchall()


def _result(conn: Connection, function: str, target: Any, arguments: Json) -> Result:
    with conn.cursor(row_factory=class_row(Result)) as cursor:
        query = _call(function, target, arguments)
        row = cursor.execute(query, [target, *arguments.values()]).fetchone()
    assert row is not None
    return row


def revert(conn: Connection, what: str | Sequence[str], **arguments: Any) -> Result:
    """Call ``agentundo.revert`` for an invocation or several."""
    return _result(conn, "revert", what if isinstance(what, str) else list(what), arguments)


def revert_run(conn: Connection, run: str, **arguments: Any) -> Result:
    """Call ``agentundo.revert_run``."""
    return _result(conn, "revert_run", run, arguments)


def redo(conn: Connection, invocation: str, **arguments: Any) -> Result:
    """Call ``agentundo.redo``."""
    return _result(conn, "redo", invocation, arguments)


_READERS_OWN = ("reverted_by", "reason")
_Key = tuple[str, str]


def revert_as_planned(
    conn: Connection, tables: Sequence[str], what: str | Sequence[str], **arguments: Any
) -> Result | Refusal:
    """Plan, then revert, and fail unless the revert does what the plan said, no more, no less.

    The plan is read in a READ ONLY transaction. Afterwards every row of the tables that has another
    value or another xmin must be in the plan as `ok` or `merge`, with the values it now has. If the
    plan shows conflicts, the revert must refuse with UN001 over as many rows and change nothing.

    Args:
        conn: any; an open transaction goes on.
        tables: all tables concerned, with a primary key, named ``schema.table``.
        what: an invocation or several.
        arguments: of `revert`; those that `plan` has not are left out there.

    Returns:
        What the revert answered, or its refusal with UN001.

    """
    asked = {name: value for name, value in arguments.items() if name not in _READERS_OWN}
    before, contents = snapshot(conn, *tables), {t: _keyed(conn, t) for t in tables}
    with conn.transaction():
        conn.execute("set transaction read only")
        planned = plan(conn, what, **asked)
    assert_same(before, snapshot(conn, *tables))
    conflicts = [row for row in planned if row.status == "conflict"]
    if conflicts:
        with refused("UN001") as caught, conn.transaction():
            revert(conn, what, **arguments)
        assert caught.detail["total"] == len(conflicts)
        told = Counter((c["relation"], _text(c.get("key")), c["reason"]) for c in caught.conflicts)
        shown = Counter((r.relation, _text(r.key), str(r.reason)) for r in conflicts[:20])
        assert told <= shown or len(conflicts) > 20
        assert_same(before, snapshot(conn, *tables))
        return caught.refusal
    result = revert(conn, what, **arguments)
    _compare(planned, contents, {table: _keyed(conn, table) for table in tables})
    acting = Counter(row.action for row in planned if row.acts)
    skipped = sum(row.status == "skip" for row in planned)
    assert (
        result.rows_deleted,
        result.rows_inserted,
        result.rows_updated,
        result.rows_skipped,
    ) == (
        acting["delete"],
        acting["insert"],
        acting["update"],
        skipped,
    )
    return result


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _keyed(conn: Connection, table: str) -> dict[str, tuple[str, Json]]:
    """Return key → (xmin, row) for a table."""
    columns = [
        name
        for (name,) in rows(
            conn,
            "select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid"
            " and a.attnum = any (i.indkey) where i.indisprimary and i.indrelid = %s::regclass",
            table,
        )
    ]
    assert columns, f"{table} has no primary key"
    found = rows(conn, f"select xmin::text, to_jsonb(t) from {table} t")
    return {_text({c: row[c] for c in columns}): (xmin, row) for xmin, row in found}


def _compare(
    planned: list[PlanRow],
    before: dict[str, dict[str, tuple[str, Json]]],
    after: dict[str, dict[str, tuple[str, Json]]],
) -> None:
    touched = {
        (table, key)
        for table in before
        for key in before[table].keys() | after[table].keys()
        if before[table].get(key) != after[table].get(key)
    }
    expected: set[_Key] = set()
    for row in planned:
        if not row.acts:
            continue
        key = _text(row.key)
        expected.add((row.relation, key))
        now = after[row.relation].get(key)
        if row.action == "delete":
            assert now is None, f"planned to delete {row.relation} {key}, it is still there"
            continue
        assert now is not None, f"planned to {row.action} {row.relation} {key}, it is not there"
        if row.action == "update" and row.current and row.key:
            former = _text({name: row.current[name] for name in row.key})
            expected.add((row.relation, former))  # the same unless the row got its old key back
        if row.status == "ok":
            assert now[1] == row.before
        else:
            _compare_merge(row, now[1])
    assert touched == expected, "rows touched differ from rows planned"


def _compare_merge(row: PlanRow, now: Json) -> None:
    """Hold a merged row to its plan: the named columns went back, the others stayed."""
    assert row.current is not None
    assert row.before is not None
    assert row.columns
    delta: Json = (row.detail or {}).get("delta") or {}
    for column, value in now.items():
        if column in delta:
            assert value == row.current[column] - json.loads(delta[column])
        else:
            assert value == (row.before if column in row.columns else row.current)[column]
