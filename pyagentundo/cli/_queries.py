"""What the commands ask the database. Nothing here prints."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import DictRow

from pyagentundo import errors
from pyagentundo.cli import _json
from pyagentundo.cli._connection import Connection, writing
from pyagentundo.cli._reasons import WRITTEN
from pyagentundo.errors import InvocationNotFound

#: For how many seconds rows in the way are looked up in history to say who wrote them: each reads
#: all of its table's history. No longer is anything else looked up that is only good to know.
_PATIENCE = 3.0
#: How many of the newest invocations a role that may not read the views can be told about; of a run
#: all.
_NEWEST, _ALL = 1000, 2**31 - 1
#: In an age, a number that has neither a unit nor a place in ``12:30:00``.
_BARE_NUMBER = re.compile(r"(?<![\w:.])[+-]?[\d.]+(?![\w:.]|\s*[a-z])", re.IGNORECASE)
#: What stands for the setting retention.
_RETENTION = "the setting retention"


# Tables by the name that views and functions show. A cast to regclass would want USAGE on schemas.
_NAMED = "(pg_class c join pg_namespace n on n.oid = c.relnamespace)"
_NAME = "format('%%I.%%I', n.nspname, c.relname)"


def call(conn: Connection, function: str, arguments: dict[str, Any]) -> list[DictRow]:
    """Call a function by names; what is None keeps the function's own default."""
    query, given = _called(function, arguments)
    return conn.execute(query, given).fetchall()


@contextmanager
def streamed(
    conn: Connection, function: str, arguments: dict[str, Any]
) -> Iterator[Iterator[DictRow]]:
    """Call a function that returns more rows than memory should hold."""
    query, given = _called(function, arguments)
    with conn.transaction(), conn.cursor("agentundo_page") as cursor:
        cursor.itersize = 1000
        cursor.execute(query, given)
        yield iter(cursor)


def _called(function: str, arguments: dict[str, Any]) -> tuple[sql.Composed, dict[str, Any]]:
    given = {name: value for name, value in arguments.items() if value is not None}
    named = (
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in given
    )
    query = sql.SQL("select * from agentundo.{}({})").format(
        sql.Identifier(function), sql.SQL(", ").join(named)
    )
    return query, given


def readable(conn: Connection, view: str) -> bool:
    """Tell whether the role may read one of our views; members of agentundo_app may not."""
    rows = conn.execute(
        "select has_table_privilege(%s, 'select') as readable", [f"agentundo.{view}"]
    ).fetchall()
    return bool(rows[0]["readable"])


def may_call(conn: Connection, function: str) -> bool:
    """Tell whether the role may call one of our functions, given as ``name(types)``."""
    rows = conn.execute(
        "select has_function_privilege(%s, 'execute') as may", [f"agentundo.{function}"]
    ).fetchall()
    return bool(rows[0]["may"])


# Invocations --------------------------------------------------------------------------------------


# What `undoable` tells, under the names of the view.
_TOLD = """\
(select id, run, step, scope, actor, on_behalf_of, null::text as role, tools[1] as tool,
   coalesce(why_not, 'undoable') as status, rows, null::text[] as relations,
   null::text[] as uncovered, last_at as created_at, last_at as last_write_at, undoable
 from agentundo.undoable(%(scope)s, %(run)s, %(most)s) where kind = 'invocation')"""
_ORDER = "order by i.created_at desc nulls last, i.step desc nulls last, i.id desc"


def invocations(
    conn: Connection, condition: str, values: dict[str, Any], limit: int | None = None
) -> list[DictRow]:
    """Return invocations, the newest first.

    An app is told less: what ``undoable`` knows of the newest ones of the scope that it names, or
    of a run; ``status`` says whether something can be undone, or why not.

    Args:
        conn: as any role but an agent's.
        condition: on invocations that are called ``i``.
        values: its parameters.
        limit: at most so many.

    """
    source = "agentundo.invocations" if readable(conn, "invocations") else _TOLD
    query = f"select * from {source} i where {condition} {_ORDER} limit %(limit)s"
    given = {"scope": None, "run": None, **values, "limit": limit}
    return conn.execute(query.encode(), {**given, "most": _most(values)}).fetchall()


def of_run(
    conn: Connection, run: str, scope: str | None, from_step: int | None = None
) -> tuple[list[str], set[str]]:
    """Return the ids of a run within a scope, from a step on, and which of these were purged.

    Any role but an agent's may ask.
    """
    # A call without a step has the place that its time gives it, as in revert_run().
    place = "coalesce(i.step, row_number() over (order by i.created_at))"
    query = (
        f"select id, rows, status from (select i.*, {place} as place from {_TOLD} i) i"
        " where coalesce(place >= %(from_step)s, true)"
    )
    values = {"run": run, "scope": scope, "from_step": from_step}
    rows = conn.execute(query.encode(), {**values, "most": _most(values)}).fetchall()
    gone = {row["id"] for row in rows if row["status"] == "expired" and not row["rows"]}
    return [row["id"] for row in rows], gone


def _most(values: dict[str, Any]) -> int:
    return _ALL if values.get("run") else _NEWEST


def invocation(conn: Connection, id: str) -> DictRow:  # noqa: A002 - as the column is called
    """Return one invocation.

    Raises:
        InvocationNotFound: there is none.

    """
    found = conn.execute("select * from agentundo.invocations where id = %s", [id]).fetchall()
    if not found:
        raise unknown(id)
    return found[0]


def unknown(id: str) -> InvocationNotFound:  # noqa: A002
    """Return what to raise where there is no such invocation."""
    return InvocationNotFound(
        f"There is no call {id!r}.", hint='"agentundo log" lists what there is.'
    )


def holds(conn: Connection, ids: Sequence[str] | None = None) -> dict[str, DictRow]:
    """Return what exempts invocations from purge: ``held`` (the reason), ``held_by``, ``held_at``.

    The last event of each tells it. A role that may not read events is told nothing.

    Args:
        conn: any role.
        ids: which; None: all that are held.

    """
    if not readable(conn, "events"):
        return {}
    rows = conn.execute(
        "select * from (select distinct on (invocation) invocation, kind,"
        "   payload ->> 'reason' as held, payload ->> 'role' as held_by, at as held_at"
        " from agentundo.events where kind in ('invocation_held', 'hold_released')"
        " and (%(ids)s::text[] is null or invocation = any (%(ids)s))"
        " order by invocation, event desc) last where kind = 'invocation_held'",
        {"ids": None if ids is None else list(ids)},
    ).fetchall()
    return {
        row["invocation"]: {name: row[name] for name in ("held", "held_by", "held_at")}
        for row in rows
    }


def purged(conn: Connection, ids: Sequence[str]) -> set[str]:
    """Return of which of these invocations the history was purged.

    No view tells. The server refuses them, alone and together with others.

    Args:
        conn: a role that may read the views; without an open transaction.
        ids: those that have no changes any more.

    """
    found: set[str] = set()
    left = [list(ids)] if ids else []
    while left:
        some = left.pop()
        try:
            with errors.translated():
                conn.execute("select count(*) from agentundo.effects_of(%s::text[])", [some])
        except errors.UndoExpired:
            if len(some) == 1:
                found.update(some)
            else:
                middle = len(some) // 2
                left += [some[:middle], some[middle:]]
        except (psycopg.Error, errors.AgentUndoError):
            continue
    return found


def changes(conn: Connection, id: str) -> list[DictRow]:  # noqa: A002
    """Return what an invocation did, statement by statement."""
    return conn.execute(
        "select * from agentundo.changes where invocation = %s order by change", [id]
    ).fetchall()


def newest_change(conn: Connection) -> int:
    """Return the number of the newest change, 0 when there is none."""
    rows = conn.execute("select coalesce(max(change), 0) as last from agentundo.changes").fetchall()
    return int(rows[0]["last"])


def written_since(conn: Connection, change: int, but_for: str) -> list[DictRow]:
    """Return under which other ids this role has written after a change, the first one first.

    The id is None for writes without a tag, which only tables with ``capture = 'all'`` keep.
    """
    return conn.execute(
        "select invocation as id, sum(rows)::bigint as rows from agentundo.changes"
        " where change > %s and role = current_user and invocation is distinct from %s"
        " group by invocation order by min(change)",
        [change, but_for],
    ).fetchall()


def undoable_since(
    conn: Connection, at: datetime, but_for: str, scope: str | None
) -> list[DictRow]:
    """Return other invocations of a scope that wrote since then, the newest first."""
    return conn.execute(
        "select id, rows from agentundo.undoable(%s, null, %s)"
        " where kind = 'invocation' and last_at >= %s and id <> %s and rows > 0",
        [scope, _NEWEST, at, but_for],
    ).fetchall()


def effects(conn: Connection, ids: Sequence[str], scope: str | None = None) -> list[DictRow]:
    """Return what left the database under these; nothing to a role that may not know.

    An app is told what belongs to the scope. The view also knows what was purged.
    """
    if readable(conn, "effects"):
        query = "select * from agentundo.effects where invocation = any (%s) order by id"
        return conn.execute(query, [list(ids)]).fetchall()
    if may_call(conn, "effects_of(text[], text)"):
        return call(conn, "effects_of", {"invocations": list(ids), "scope": scope})
    return []


def uncovered(conn: Connection, ids: Sequence[str]) -> list[str]:
    """Return the untracked tables that recorded calls wrote; none to a role that may not know."""
    if not readable(conn, "invocations"):
        return []
    query = (
        "select distinct unnest(uncovered) as relation from agentundo.invocations"
        " where id = any (%s) order by 1"
    )
    return [row["relation"] for row in conn.execute(query, [list(ids)])]


def unread(conn: Connection, relations: Sequence[str]) -> list[str]:
    """Return a line about each table that the role may not SELECT, or not all of.

    The database shows keys and values only to who may, and leaves them out without a word.
    """
    rows = conn.execute(
        "select current_user as role, u.name, has_any_column_privilege(c.oid, 'select') as partly"
        f" from unnest(%s::text[]) u (name) join {_NAMED} on {_NAME} = u.name"
        " where not has_table_privilege(c.oid, 'select') and not pg_has_role(current_user,"
        "   (select nspowner from pg_namespace where nspname = 'agentundo'), 'usage')"
        " order by u.name",
        [list(relations)],
    )
    return [
        f"{row['role']} may not read all columns of {row['name']}: those are left out."
        if row["partly"]
        else f"{row['role']} may not read {row['name']}: keys, values and names are left out."
        for row in rows
    ]


def live_columns(conn: Connection, relations: Sequence[str]) -> dict[str, set[str]]:
    """Return the columns that tables have now; a table that is gone is missing."""
    rows = conn.execute(
        "select u.name, array_agg(a.attname::text) as columns from unnest(%s::text[]) u (name)"
        f" join {_NAMED} on {_NAME} = u.name"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
        " and not a.attisdropped group by u.name",
        [list(relations)],
    )
    return {row["name"]: set(row["columns"]) for row in rows}


def subtracted(
    conn: Connection, relation: str, current: Mapping[str, Any], delta: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what columns hold once a call's own differences are subtracted from them.

    The server computes it, in the types of the columns. What it cannot is left out.

    Args:
        conn: any role.
        relation: the table, by the name that plans show.
        current: the row as it is.
        delta: of a plan's row: the differences by column.

    """
    values = {"relation": relation, "columns": list(delta)}
    types = conn.execute(
        "select a.attname::text as name, format_type(a.atttypid, a.atttypmod) as type"
        f" from {_NAMED} join pg_attribute a on a.attrelid = c.oid"
        f" where {_NAME} = %(relation)s and a.attname = any (%(columns)s::name[])",
        values,
    ).fetchall()
    found = {}
    for row in types:
        name = row["name"]
        query = "select to_jsonb(%s::{0} - %s::{0}) as value".format(row["type"].replace("%", "%%"))
        given = [str(current.get(name)), str(delta[name])]
        with contextlib.suppress(psycopg.Error), conn.transaction():
            found[name] = conn.execute(query.encode(), given).fetchall()[0]["value"]
    return found


def told_of(conn: Connection, ids: Sequence[str], scope: str | None) -> list[DictRow]:
    """Return who did what for whom under these ids, the newest first.

    Ids that the role may not be told about are missing.
    """
    query = (
        "select id, run, step, tool, actor, on_behalf_of, role::text, rows, undoable,"
        " coalesce(last_write_at, created_at) as at"
        f" from {'agentundo.invocations' if readable(conn, 'invocations') else _TOLD} i"
        " where id = any (%(ids)s) order by at desc, step desc nulls last, id desc"
    )
    values = {"ids": list(ids), "scope": scope, "run": None, "most": _NEWEST}
    return conn.execute(query.encode(), values).fetchall()


def reverts_of(conn: Connection, ids: Sequence[str], scope: str | None) -> list[DictRow]:
    """Return which reverts have taken these back, the newest first: ``id``, ``at``, ``by``.

    A role that may not read the views is told that there is one, and no more.
    """
    if readable(conn, "invocations"):
        query = (
            "select distinct revert_id as id, reverted_at as at, reverted_by as by"
            " from agentundo.invocations where id = any (%(ids)s) and revert_id is not null"
            " order by at desc"
        )
    else:
        query = (
            "select distinct null::text as id, null::timestamptz as at, null::text as by"
            f" from {_TOLD} i where id = any (%(ids)s) and status = 'already_reverted'"
        )
    values = {"ids": list(ids), "scope": scope, "run": None, "most": _NEWEST}
    return conn.execute(query.encode(), values).fetchall()


def standing_revert(conn: Connection, id: str) -> tuple[str | None, list[str]]:  # noqa: A002
    """Return the newest revert of an invocation that stands, and all that it took back.

    Raises:
        InvocationNotFound: there is no such invocation.

    """
    revert_id = invocation(conn, id)["revert_id"]
    rows = conn.execute(
        "select id from agentundo.invocations where revert_id = %s order by created_at desc",
        [revert_id],
    )
    return revert_id, [row["id"] for row in rows]


def undo(conn: Connection, function: str, arguments: dict[str, Any]) -> DictRow:
    """Call ``revert`` or ``redo``; ends when we end.

    A cancel can get lost while the server waits for locks in short turns. So the server looks
    whether we are still there: it would go on for an answer that nobody reads.
    """
    with writing(conn):
        with contextlib.suppress(psycopg.Error), conn.transaction():  # not on every platform
            conn.execute("set local client_connection_check_interval = '500ms'")
        return call(conn, function, arguments)[0]


# Who wrote what stands in the way -----------------------------------------------------------------


def add_writers(
    conn: Connection, conflicts: Sequence[dict[str, Any]], how: Mapping[str, Any]
) -> int:
    """Put under ``by`` who wrote the rows that stand in the way.

    It holds role, actor, invocation and at; None when the write was not captured.
    History knows it of tagged writes, and of all writes where a table is tracked with
    ``capture = 'all'``. To an application who writes in another scope has no name: role, actor
    and invocation are None. What cannot be found out by this role is left out, and after a few
    seconds the rest.

    Args:
        conn: any role but an agent's.
        conflicts: the rows, as a plan or an error tells them.
        how: the options of the undo: ``invocations`` and ``scope``.

    Returns:
        How many rows were not looked up, because it took too long.

    """
    wanted = [
        conflict
        for conflict in conflicts
        if conflict.get("reason") in WRITTEN and conflict.get("key") and conflict.get("relation")
    ]
    # Of a row that several of them wrote, in turns with others, only all of them tell who is not.
    calls = {
        *how.get("invocations", ()),
        *(row["invocation"] for row in conflicts if row.get("invocation")),
    }
    until = time.monotonic() + _PATIENCE
    done = 0
    try:
        for conflict in wanted:
            left = until - time.monotonic()
            if left <= 0:
                break
            with _a_few_seconds(conn, left):
                _add_writer(conn, conflict, calls, how.get("scope"))
            done += 1
    except (psycopg.Error, errors.AgentUndoError):
        pass
    return len(wanted) - done


def mark_gone(conn: Connection, conflicts: Sequence[dict[str, Any]]) -> None:
    """Put ``table_gone`` to the rows that cannot go back because their table is no more."""
    unfit = [row for row in conflicts if row.get("reason") == "schema_changed"]
    there = live_columns(conn, sorted({str(row.get("relation")) for row in unfit}))
    for row in unfit:
        if row.get("relation") and row["relation"] not in there:
            row["table_gone"] = True


def overwritten(
    conn: Connection, how: Mapping[str, Any], most: int
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many rows an undo by force would overwrite, and the first ones as conflicts are.

    Args:
        conn: any role that may plan.
        how: the arguments of ``plan``.
        most: so many of them.

    """
    query, given = _called("plan", dict(how))
    query = sql.SQL(
        "select p.relation, p.key, p.detail ->> 'forced' as reason, p.columns, p.invocation,"
        " count(*) over () as total from ({}) p where p.status = 'ok' and p.detail ? 'forced'"
        " limit %(most)s"
    ).format(query)
    rows = conn.execute(query, {**given, "most": most}).fetchall()
    return (rows[0]["total"] if rows else 0), [
        {name: value for name, value in row.items() if name != "total"} for row in rows
    ]


def _add_writer(
    conn: Connection, conflict: dict[str, Any], calls: Collection[str], scope: str | None
) -> None:
    values = {
        "relation": conflict["relation"],
        "key": _json.dumps(conflict["key"], indent=None),
        "columns": conflict.get("columns"),
        "invocations": sorted(calls) or None,
        "scope": scope,
    }
    try:
        with conn.transaction():
            writer = conn.execute(
                "select * from agentundo.row_writer(%(relation)s::regclass, %(key)s,"
                " %(columns)s::text[], %(invocations)s::text[], %(scope)s)",
                values,
            ).fetchone()
    except pg.QueryCanceled:
        raise
    except psycopg.Error:
        return  # a table that is gone, a key of another shape, no right to look
    if writer is None or writer["captured"] is None:
        return
    named = {name: writer[name] for name in ("role", "actor", "invocation", "at")}
    conflict["by"] = named if writer["captured"] else None


def in_the_way(conn: Connection, how: Mapping[str, Any], **instead: Any) -> int | None:
    """Return how many rows would stand in the way with other options; None where it is unknown.

    Args:
        conn: any role that may plan.
        how: the options that were given.
        instead: those that are to be other ones.

    """
    names = ("invocations", "on_conflict", "merge", "scope")
    arguments = {name: how[name] for name in names if name in how} | instead
    query, given = _called("plan_summary", arguments)
    query += sql.SQL(" where status = 'conflict'")
    try:
        with _a_few_seconds(conn):
            return sum(int(row["rows"]) for row in conn.execute(query, given))
    except (psycopg.Error, errors.AgentUndoError):
        return None


@contextmanager
def _a_few_seconds(conn: Connection, seconds: float = _PATIENCE) -> Iterator[None]:
    """Let a statement run for as long as somebody would wait for what is only good to know."""
    with conn.transaction():
        conn.execute(f"set local statement_timeout = {max(int(seconds * 1000), 1)}".encode())
        yield


# Tables -------------------------------------------------------------------------------------------


def tracked(conn: Connection) -> list[DictRow]:
    """Return the tracked tables.

    Where the view does not know yet how many images a history holds, because nobody has analyzed
    it, the server's running count stands in.
    """
    return conn.execute(
        "select t.relation, t.capture, t.history, t.key, t.since,"
        " coalesce(t.rows, pg_stat_get_live_tuples(c.oid)) as rows, t.bytes, t.health"
        " from agentundo.tracked t left join (pg_class c"
        "   join pg_namespace n on n.oid = relnamespace and nspname = 'agentundo_history')"
        " on t.history in (format('%I.%I', n.nspname, c.relname), quote_ident(c.relname))"
        " order by t.relation"
    ).fetchall()


def kept(conn: Connection) -> list[str]:
    """Return the tables that are tracked no longer and have a history, as far as the role may know.

    No view tells of them.
    """
    if not readable(conn, "_tracked"):
        return []
    rows = conn.execute(
        "select format('%I.%I', n.nspname, c.relname) as name from agentundo._tracked t"
        " join pg_class c on c.oid = t.relation join pg_namespace n on n.oid = c.relnamespace"
        " where not t.active order by 1"
    )
    return [row["name"] for row in rows]


def capture_modes(conn: Connection) -> dict[str, str]:
    """Return of each tracked table what is captured; nothing to a role that may not know."""
    if not readable(conn, "tracked"):
        return {}
    rows = conn.execute("select relation, capture from agentundo.tracked").fetchall()
    return {row["relation"]: row["capture"] for row in rows}


def findings(conn: Connection) -> list[DictRow]:
    """Return what check() finds."""
    return conn.execute("select * from agentundo.check()").fetchall()


# Rows ---------------------------------------------------------------------------------------------


def key_columns(conn: Connection, table: str) -> list[str]:
    """Return the key columns of a table as undo knows them; none where the whole row is its key.

    Raises:
        psycopg.Error: there is no such table.

    """
    relation = conn.execute("select %s::regclass::oid as oid", [table]).fetchall()[0]["oid"]
    rows = conn.execute(
        "select array(select a.attname::text"
        "   from unnest(i.indkey) with ordinality k (attnum, place)"
        "   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum"
        "   where k.place <= i.indnkeyatts order by k.place) as columns"
        " from pg_index i where i.indisprimary"
        " and i.indrelid = coalesce(pg_partition_root(%(oid)s::oid::regclass), %(oid)s::oid)",
        {"oid": relation},
    ).fetchall()
    if rows or not readable(conn, "tracked"):
        return list(rows[0]["columns"]) if rows else []
    rows = conn.execute(
        f"select key from agentundo.tracked join {_NAMED} on {_NAME} = relation where c.oid = %s",
        [relation],
    ).fetchall()
    return list(rows[0]["key"]) if rows else []


def row_history(
    conn: Connection, table: str, key: dict[str, Any], scope: str | None = None
) -> list[DictRow]:
    """Return every captured version of a row, the oldest first."""
    return conn.execute(
        "select * from agentundo.row_history(%s::regclass, %s::jsonb, %s)",
        [table, _json.dumps(key, indent=None), scope],
    ).fetchall()


def is_captured_whole(conn: Connection, table: str) -> bool:
    """Tell whether everybody's writes to a table are captured, as far as the role may know."""
    if not readable(conn, "tracked"):
        return False
    rows = conn.execute(
        f"select from agentundo.tracked join {_NAMED} on {_NAME} = relation"
        " where capture = 'all' and c.oid = coalesce(pg_partition_root(%(table)s::regclass),"
        "   %(table)s::regclass)",
        {"table": table},
    )
    return bool(rows.fetchall())


def row_version(conn: Connection, table: str, key: dict[str, Any]) -> str | None:
    """Return which version of a row there is now; None where there is no such row."""
    rows = conn.execute(
        "select agentundo.row_version(%s::regclass, %s::jsonb) as version",
        [table, _json.dumps(key, indent=None)],
    ).fetchall()
    version: str | None = rows[0]["version"]
    return version


# Keeping ------------------------------------------------------------------------------------------


def interval(conn: Connection, age: str | None) -> str:
    """Return an age as it was typed, once the server can read it; None is the setting retention.

    Raises:
        BadParameter: it is none.

    """
    if age is None:
        # Nobody but the owner reads our settings. The function knows its default, and this is it.
        return _RETENTION
    wrong = None
    if _BARE_NUMBER.search(age):
        wrong = f"{age!r} has a number without a unit, which would be seconds. Give one"
    try:
        rows = conn.execute("select %s::interval < '0' as negative", [age]).fetchall()
        if rows[0]["negative"]:
            wrong = f"{age!r} is no age"
    except pg.DataError:
        wrong = f"{age!r} is no age"
    if wrong:
        raise click.BadParameter(
            f"{wrong} such as '30 days', '12 hours' or '1 month'.",
            param_hint="--older-than",
        )
    return age


def purge(conn: Connection, age: str, *, dry_run: bool) -> DictRow:
    """Delete history older than an age for good; returns how much."""
    older_than = None if age == _RETENTION else age
    with writing(conn, dry_run=dry_run):
        return conn.execute("select * from agentundo.purge(%s::interval)", [older_than]).fetchall()[
            0
        ]


def erase(
    conn: Connection, table: str, key: dict[str, Any], reason: str, *, dry_run: bool
) -> DictRow:
    """Delete every image of a row for good; returns how many."""
    with writing(conn, dry_run=dry_run):
        return conn.execute(
            "select * from agentundo.erase(%s::regclass, %s::jsonb, %s)",
            [table, _json.dumps(key, indent=None), reason],
        ).fetchall()[0]


def hold(conn: Connection, id: str, reason: str | None, *, dry_run: bool) -> int:  # noqa: A002
    """Exempt an invocation from purge; None releases it. Returns how many changes that concerns."""
    with writing(conn, dry_run=dry_run):
        rows = conn.execute("select agentundo.hold(%s, %s) as changes", [id, reason]).fetchall()
        return int(rows[0]["changes"])
