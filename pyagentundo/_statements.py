"""The SQL that the Python API runs; all of it calls functions and reads views of the schema.

Names are qualified: the caller's search_path holds here. Parameters carry casts, so that a value's
Python type does not choose another function than the one meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyagentundo import results
from pyagentundo._calls import SETTINGS
from pyagentundo.selection import NO_REVERTS, Selection

#: How long a statement about a record waits for another transaction, as lock_timeout.
RECORD_WAIT = "5s"

_ARGUMENTS = (
    "run => %(run)s::text, step => %(step)s::int, tool => %(tool)s::text, tier => %(tier)s::text,"
    " input => %(input)s::jsonb, actor => %(actor)s::text, scope => %(scope)s::text,"
    " on_behalf_of => %(on_behalf_of)s::text, model => %(model)s::text, meta => %(meta)s::jsonb,"
    " role => coalesce(nullif(%(role)s, '')::name, session_user), again => %(again)s::boolean"
)

# A function takes what the subquery returns, so that this is evaluated first: the wait is limited
# before anything can wait. `offset 0` keeps the planner from merging the two.
_LIMITED = (
    "(select pg_catalog.set_config('lock_timeout',"
    " coalesce(%(wait)s, pg_catalog.current_setting('lock_timeout')), true) as wait offset 0) l"
)
_ID = "case when l.wait is not null then %(id)s::text end"

RECORD = (
    "select r.id, r.status, r.created, r.result, pg_catalog.pg_current_xact_id()::text"
    f" from {_LIMITED} cross join lateral agentundo.record_invocation(id => {_ID}, {_ARGUMENTS}) r"
)

FAIL = f"select agentundo.fail_invocation({_ID}, %(error)s::text) from {_LIMITED}"

EFFECT = (
    "select agentundo.record_effect(invocation => %(invocation)s::text, name => %(name)s::text,"
    " kind => %(kind)s::text, summary => %(summary)s::text, undo_by => %(undo_by)s::timestamptz,"
    " side_effect => %(side_effect)s::text, cost => %(cost)s::text, remedy => %(remedy)s::text,"
    " handler => %(handler)s::text)"
)

_FORMER = ", ".join(
    f"pg_catalog.current_setting('{name}', true) as s{n}" for n, name in enumerate(SETTINGS)
)

#: Sets the tag; tells the former one, and whether the transaction sees the record.
TAG = (
    f"select {', '.join(f'f.s{n}' for n in range(len(SETTINGS)))},"
    " coalesce(pg_catalog.pg_visible_in_snapshot(%(xid)s::pg_catalog.xid8,"
    " pg_catalog.pg_current_snapshot()), true),"
    " agentundo.tag(%(id)s::text, run => %(run)s::text, step => %(step)s::int,"
    " tool => %(tool)s::text, actor => %(actor)s::text, on_behalf_of => %(on_behalf_of)s::text,"
    " scope => %(scope)s::text)"
    f" from (select {_FORMER} offset 0) f"
)

UNTAG = (
    "select pg_catalog.set_config(x.name, coalesce(x.value, ''), true)"
    " from unnest(%(names)s::text[], %(values)s::text[]) x (name, value)"
)

#: No row: the tag is another one by now.
COMMIT = (
    "select agentundo.commit_invocation(t.id, %(result)s::jsonb)"
    " from (select pg_catalog.current_setting('agent.invocation', true) as id offset 0) t"
    " where t.id = %(id)s::text"
)

STILL_TAGGED = "select pg_catalog.current_setting('agent.invocation', true) = %(id)s::text"

READ_ONLY = "set local transaction_read_only = on"

#: What a caller may give to each function, beside the first argument.
_OPTIONS = {
    "plan": ("on_conflict", "merge", "scope"),
    "plan_run": ("from_step", "on_conflict", "merge", "scope"),
    "plan_summary": ("on_conflict", "merge", "scope"),
    "revert": ("on_conflict", "merge", "reason", "reverted_by", "scope"),
    "revert_run": ("from_step", "on_conflict", "merge", "reason", "reverted_by", "scope"),
    "redo": ("on_conflict", "merge", "reason", "reverted_by", "scope"),
}
_FIRST = {
    "plan": "invocations => %(what)s::text[]",
    "plan_run": "run => %(what)s::text",
    "plan_summary": "invocations => %(what)s::text[]",
    "revert": "invocations => %(what)s::text[]",
    "revert_run": "run => %(what)s::text",
    "redo": "invocation => %(what)s::text",
}
_CASTS = {"merge": "boolean", "from_step": "int"}


def call(function: str, options: Mapping[str, Any]) -> str:
    """Return a query of one of the undo functions; what is None keeps the function's default."""
    row = {
        "plan": results.PlanRow,
        "plan_run": results.PlanRow,
        "plan_summary": results.PlanCount,
    }.get(function, results.RevertResult)
    given = [name for name in _OPTIONS[function] if options.get(name) is not None]
    arguments = [_FIRST[function], *(f"{n} => %({n})s::{_CASTS.get(n, 'text')}" for n in given)]
    return f"select {results.columns_of(row)} from agentundo.{function}({', '.join(arguments)})"


#: Which invocations a plan or revert of a run has. A call without a step has the place of its time.
MEMBERS = (
    "select m.id from"
    " (select u.id, coalesce(u.step, row_number() over (order by u.last_at)) as step"
    " from agentundo.undoable(%(scope)s::text, %(run)s::text, 2147483647) u"
    " where u.kind = 'invocation' and not u.tools && '{agentundo.revert,agentundo.redo}') m"
    " where m.step >= %(from_step)s"
)
EFFECTS = (
    f"select {results.columns_of(results.Effect)}"
    " from agentundo.effects_of(%(ids)s::text[], %(scope)s::text)"
)
UNCOVERED = (
    "select distinct u from agentundo.invocations i cross join unnest(i.uncovered) u"
    " where i.id = any (%(ids)s::text[]) order by 1"
)
#: Fails if one of them was purged; no view tells which.
KNOWN = "select count(*) from agentundo.effects_of(%(ids)s::text[])"
#: Whether the role may run EFFECTS and UNCOVERED. Apps may not read the views.
MAY_ASK = (
    "select pg_catalog.has_function_privilege('agentundo.effects_of(text[], text)', 'execute'),"
    " pg_catalog.has_table_privilege('agentundo.invocations', 'select')"
)

INVOCATION = (
    f"select {results.columns_of(results.Invocation)} from agentundo.invocations"
    " where id = %(id)s::text"
)

UNDOABLE = (
    f"select {results.columns_of(results.Undoable)}"
    ' from agentundo.undoable(%(scope)s::text, %(run)s::text, "limit" => %(limit)s::int)'
)

DIFF = (
    f"select {results.columns_of(results.DiffRow)}"
    " from agentundo.diff(%(invocation)s::text, scope => %(scope)s::text)"
)

#: Null where there is no such table: it is not tracked then.
_RELATION = "pg_catalog.to_regclass(%(relation)s::text)"

ROW_HISTORY = (
    f"select {results.columns_of(results.HistoryRow)}"
    f" from agentundo.row_history({_RELATION}, %(key)s::jsonb, %(scope)s::text)"
)

ROW_VERSION = f"select agentundo.row_version({_RELATION}, %(key)s::jsonb)"

CHECK = f"select {results.columns_of(results.Finding)} from agentundo.check()"


def log(selection: Selection, *, limited: bool) -> str:
    """Return a query for invocations, newest first."""
    limit = " limit %(limit)s" if limited else ""
    return (
        f"select {results.columns_of(results.Invocation)} from agentundo.invocations i"
        f" where {selection.where()}"
        f" order by i.created_at desc nulls last, i.step desc, i.id desc{limit}"
    )


def ids(selection: Selection) -> str:
    """Return a query for the ids that a selection means when it is to be undone.

    And whether nothing that they wrote is there: some of those may have been purged.
    """
    return (
        "select i.id, i.first_write_at is null from agentundo.invocations i"
        f" where {selection.where()} and {NO_REVERTS} order by i.created_at, i.id"
    )


def runs(selection: Selection) -> str:
    """Return a query for the runs that have an invocation of the selection, newest first."""
    return (
        f"select {results.columns_of(results.Run)} from agentundo.runs r where r.run in"
        f" (select i.run from agentundo.invocations i where {selection.where()})"
        " order by r.last_at desc nulls last, r.run desc limit %(limit)s"
    )


def events(filters: Mapping[str, Any]) -> str:
    """Return a query for events after a number, oldest first."""
    given = "".join(f" and {name} = %({name})s" for name in filters)
    return (
        f"select {results.columns_of(results.Event)} from agentundo.events"
        f" where event > %(after)s{given} order by event limit %(limit)s"
    )
