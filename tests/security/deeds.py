"""What roles try, by the rows of the tables in docs/security.md: SQL, filled in and executed.

A deed in SQL names a call as `{call}` (or `{undone}`, `{pending}`, `{run}`, `{key}`, `{person}`)
and takes `{scope}` as its last argument, or names a table as `{table}` (not tracked), `{tracked}`
or `{schema}`. A query that finds nothing counts as not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg

from tests.security.world import OURS, THEIRS, Call, World
from tests.support.undo import Connection, rows, scalar, write

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "version": ("select agentundo.version()",),
    "tag": ("select agentundo.tag('mine')",),
    "record_invocation": ("select agentundo.record_invocation('mine')",),
    "commit_invocation": ("select agentundo.commit_invocation('{pending}')",),
    "fail_invocation": ("select agentundo.fail_invocation('{pending}')",),
    "record_effect": ("select agentundo.record_effect('{call}', 'mail')",),
    "undoable": (
        "select from agentundo.undoable(\"limit\" => 99{scope}) where id = '{call}'",
        "select from agentundo.undoable(run => '{run}'{scope}) where id = '{run}'",
    ),
    "plan": (
        "select agentundo.plan('{call}'{scope})",
        "select agentundo.plan(array['{call}']{scope})",
    ),
    "plan_run": ("select agentundo.plan_run('{run}'{scope})",),
    "plan_summary": ("select agentundo.plan_summary(array['{call}']{scope})",),
    "effects_of": ("select agentundo.effects_of(array['{call}']{scope})",),
    "diff": ("select agentundo.diff('{call}'{scope})",),
    "row_history": (
        "select from agentundo.row_history('crm.deals', '{key}'{scope})"
        " where invocation = '{call}' and run = '{run}' and actor = 'bot' and role is not null",
    ),
    "row_writer": (
        "select from agentundo.row_writer('crm.deals', '{key}', '{{n}}'{scope})"
        " where invocation = '{call}' and run = '{run}' and actor = 'bot' and role is not null",
    ),
    "row_version": ("select agentundo.row_version('crm.deals', '{key}')",),
    "revert": (
        "select agentundo.revert('{call}', reverted_by => '{person}'{scope})",
        "select agentundo.revert(array['{call}'], reverted_by => '{person}'{scope})",
    ),
    "revert_run": ("select agentundo.revert_run('{run}', reverted_by => '{person}'{scope})",),
    "redo": ("select agentundo.redo('{undone}', reverted_by => '{person}'{scope})",),
    "track": ("select agentundo.track('{table}')",),
    "track_schema": ("select agentundo.track_schema('{schema}')",),
    "untrack": (
        "select agentundo.untrack('{tracked}')",
        "select agentundo.untrack('{tracked}', false)",
    ),
    "sync": ("select agentundo.sync()", "select agentundo.sync('{tracked}')"),
    "check": ("select pg_catalog.count(*) from agentundo.check()",),
    "hold": ("select agentundo.hold('{call}', 'wanted')",),
    "purge": ("select agentundo.purge('0 s')",),
    "erase": ("select agentundo.erase('crm.deals', '{key}', 'asked for')",),
    "set_merge": ("select agentundo.set_merge('crm.deals', 'n', 'delta')",),
    "set_trigger": ("select agentundo.set_trigger('crm.deals', 'touch', 'fire')",),
    "set_scope_owner": ("select agentundo.set_scope_owner('{name}', 'mia')",),
    "set_policy": (
        "select agentundo.set_policy('may_revert', 'crm.may("
        "pg_catalog.text, pg_catalog.text, pg_catalog.text)')",
        "select agentundo.set_policy('may_revert', null)",
    ),
}  # fmt: skip

VIEWS = {
    view: (f"select from agentundo.{view}",)
    for view in ("changes", "effects", "events", "invocations", "runs", "tracked")
}


def attempt(
    world: World, kind: str, statements: tuple[str, ...] | list[str], extra: str = ""
) -> str:
    """Try statements, each in a transaction that is rolled back; return how they all ended.

    Returns:
        `done`, `refused` (for want of a right), `unknown` (no such call, or nothing shown), or
        whatever else happened, in words.

    """
    found = {_attempt(world.connect(kind), statement, extra) for statement in statements}
    return found.pop() if len(found) == 1 else " / ".join(sorted(found))


def _attempt(conn: Connection, statement: str, extra: str) -> str:
    try:
        with conn.transaction(force_rollback=True):
            cursor = conn.execute(statement.encode())
            nothing = cursor.description is not None and cursor.fetchone() is None
    except psycopg.Error as error:
        code = error.sqlstate
        if code in ("42501", "UN003", extra):
            return "refused"
        return "unknown" if code == "UN002" else f"{code} {error.diag.message_primary}: {statement}"
    return "unknown" if nothing else "done"


def in_sql(world: World, kind: str, statements: tuple[str, ...], extra: str = "") -> str:
    """Try a deed in SQL on what is its own and on what is not; return what the cell has to say."""

    def by(call: Call, scope: str | None = None, tables: str = "crm") -> str:
        own = tables != "crm"
        words = {
            **call.words,
            "scope": f", scope => '{scope}'" if scope else "",
            "schema": tables,
            "table": f"{tables}.mine" if own else "crm.spare",
            "tracked": f"{tables}.tracked" if own else "crm.deals",
        }
        return attempt(world, kind, [one.format(**words) for one in statements], extra)

    text = " ".join(statements)
    if "{scope}" in text:
        free, own = (by(OURS), by(THEIRS)), (by(OURS, "acme"), by(THEIRS, "acme"))
        known = {
            (("done", "done"), ("done", "unknown")): "yes",
            (("done", "done"), ("done", "done")): "yes",
            (("unknown", "unknown"), ("done", "unknown")): "own scope",
            (("refused", "refused"), ("refused", "refused")): "no",
        }
        return known.get((free, own), f"{free} {own}")
    if any(f"{{{word}}}" in text for word in ("schema", "table", "tracked")):
        both = (by(OURS, tables=f"of_{kind}"), by(OURS))
        tables = {("done", "done"): "yes", ("done", "refused"): "own tables"}
        return {**tables, ("refused", "refused"): "no"}.get(both, str(both))
    found = {by(OURS), by(THEIRS)}
    return {"done": "yes", "refused": "no"}.get(" / ".join(sorted(found)), str(found))


def _sql(*statements: str) -> Callable[[World, str], str]:
    return lambda world, kind: in_sql(world, kind, statements)


def _record_anothers(world: World, kind: str) -> str:
    statement = "select agentundo.record_invocation('globex call', scope => 'acme')"
    return in_sql(world, kind, (statement,), extra="UN010")


def _written(world: World, kind: str, *settings: str) -> list[tuple[str, ...]]:
    """Write for good; return what was captured of it."""
    last = "select coalesce(max(change), 0) from agentundo.changes"
    before = scalar(world.boss, last)
    conn = world.connect(kind)
    with conn.transaction():
        for setting in settings:
            conn.execute(setting.encode())
        conn.execute("update crm.deals set n = n + 1 where id = 9")
    return rows(
        world.boss,
        "select c.invocation, c.actor, c.on_behalf_of, c.scope from agentundo._change c"
        " where c.change > %s",
        before,
    )


def _tag_as_another(world: World, kind: str) -> str:
    used = f"used by {kind}"
    write(world.boss, used, "update crm.deals set n = n + 1 where id = 9", actor="first")
    settings = [
        f"set local agent.{name} = '{value}'"
        for name, value in (
            ("invocation", used), ("actor", "eve"), ("on_behalf_of", "gina"), ("scope", "globex"),
        )
    ]  # fmt: skip
    return "yes" if _written(world, kind, *settings) == [(used, "eve", "gina", "globex")] else "no"


def _write_unseen(world: World, kind: str) -> str:
    return "no" if _written(world, kind) else "yes"


def _reading(call: Call, table: str, scope: str) -> Iterator[str]:
    """Ask everything that shows something of a table for what a call has done there."""
    words, key = call.words, call.words["key"]
    one, several = f"'{words['name']} {table}'", f"array['{words['name']} {table}']"
    yield f"select * from agentundo.plan({one}{scope})"
    yield f"select * from agentundo.plan({one}, 'force', true{scope})"
    yield f"select * from agentundo.plan_summary({several}{scope})"
    yield f"select * from agentundo.plan_run('{words['name']} {table} run'{scope})"
    yield f"select * from agentundo.diff({one}{scope})"
    yield f"select * from agentundo.revert({one}, reverted_by => '{call.person}'{scope})"
    yield f"select * from agentundo.row_history('crm.{table}', '{key}'{scope})"
    yield f"select * from agentundo.row_writer('crm.{table}', '{key}'{scope})"
    yield f"select agentundo.row_version('crm.{table}', '{key}')"
    yield f'select * from agentundo.undoable("limit" => 99{scope})'
    yield "select * from agentundo.check()"
    for view in VIEWS:
        yield f"select * from agentundo.{view}"


def shown(conn: Connection, table: str) -> str:
    """Return all that a role is told about a table, errors with their details included."""
    told = []
    asked = [
        *_reading(OURS, table, ""),
        *_reading(OURS, table, ", scope => 'acme'"),
        *_reading(THEIRS, table, ", scope => 'globex'"),
    ]
    for statement in asked:
        try:
            with conn.transaction(force_rollback=True):
                told.append(str(conn.execute(statement.encode()).fetchall()))
        except psycopg.Error as error:
            diag = error.diag
            told += [str(error), str(diag.message_detail), str(diag.message_hint)]
    return "\n".join(told)


def _see(table: str) -> Callable[[World, str], str]:
    return lambda world, kind: "yes" if "sesame" in shown(world.connect(kind), table) else "no"


def _relations(world: World, kinds: str) -> list[str]:
    """Name what is private: in our schemas and not for everybody with a role of ours."""
    query = (
        "select c.oid::regclass::text from pg_class c where relkind = any (%s)"
        " and (relnamespace = 'agentundo_history'::regnamespace"
        " or relnamespace = 'agentundo'::regnamespace and relname like '\\_%%')"
    )
    return [name for (name,) in rows(world.boss, query, list(kinds))]


def _verdict(world: World, kind: str, statements: list[str]) -> str:
    found = attempt(world, kind, statements)
    return {"done": "yes", "refused": "no"}.get(found, found)


def _read_private(world: World, kind: str) -> str:
    # Clients compare versions with what stands in `_home`.
    names = [name for name in _relations(world, "rvmS") if name != "agentundo._home"]
    return _verdict(world, kind, [f"select * from {name} limit 1" for name in names])


def _write_private(world: World, kind: str) -> str:
    forms = ("insert into {} default values", "delete from {}", "truncate {}", "lock table {}")
    statements = [form.format(name) for name in _relations(world, "r") for form in forms]
    statements += [f"select setval('{name}', 1)" for name in _relations(world, "S")]
    statements += ["update agentundo._setting set value = 'off' where name = 'notify'"]
    return _verdict(world, kind, statements)


_ALTERING = [
    "create table agentundo.mine (x int)",
    "create table agentundo_history.mine (x int)",
    "create function agentundo.mine() returns int language sql as 'select 1'",
    "create or replace function agentundo.version() returns text language sql as 'select 1::text'",
    "alter function agentundo.version() rename to other",
    "alter function agentundo._act security invoker",
    "drop function agentundo._capture_1()",
    "grant execute on function agentundo._look to public",
    "drop view agentundo.changes",
    "alter table agentundo._change add x int",
    "create trigger t before insert on agentundo._change execute function crm.touch()",
    "create rule r as on insert to agentundo._change do instead nothing",
    "alter table agentundo._setting disable trigger check_value",
    "create index on agentundo._change (rows)",
    "comment on schema agentundo is 'mine'",
    "alter schema agentundo_history rename to other",
    "drop schema agentundo cascade",
    "drop event trigger agentundo_ddl",
    "alter event trigger agentundo_drop disable",
    "alter type agentundo.finding add attribute x int",
]

THINGS: dict[str, Callable[[World, str], str]] = {
    "write a tracked table": _sql(
        "update crm.deals set n = 2 where id = 9",
        "insert into crm.deals values (20)",
        "delete from crm.deals where id = 9",
    ),
    "write it under any id, actor, person and scope (`SET LOCAL agent.…`)": _tag_as_another,
    "write it without being captured, where `capture` is `agent`": _write_unseen,
    "record a call under an id that another scope has used": _record_anothers,
    "revert for a person who has nothing to do with the call": _sql(
        "select agentundo.revert('acme call', reverted_by => 'mallory', scope => 'acme')"
    ),
    "revert in the name of the agent that wrote": _sql(
        "select agentundo.revert('acme call', reverted_by => 'bot', scope => 'acme')"
    ),
    "revert with `force`": _sql(
        "select agentundo.revert('{call}', 'force', false, 'r', '{person}'{scope})"
    ),
    "be shown values of columns that it may not SELECT": _see("private"),
    "be shown rows that row-level security hides from it": _see("rows"),
    "read history tables or private tables": _read_private,
    "write history tables or private tables, settings included": _write_private,
    "create, alter or drop anything in our schemas": lambda world, kind: _verdict(
        world, kind, _ALTERING
    ),
    "become `agentundo_owner` or `agentundo_worker`": _sql(
        "set local role agentundo_owner",
        "set local role agentundo_worker",
        "set session authorization agentundo_owner",
        "grant agentundo_owner to current_user",
        "grant agentundo_worker to current_user",
    ),
    "set `session_replication_role`": _sql("set local session_replication_role = replica"),
    "disable or drop our triggers, drop the table": _sql(
        "alter table crm.deals disable trigger agentundo_update",
        "alter table crm.deals disable trigger all",
        "drop trigger agentundo_delete on crm.deals",
        "drop table crm.deals",
    ),
    "put triggers or constraints on a tracked table": _sql(
        "create trigger mine before insert on crm.deals for each row execute function crm.touch()",
        "alter table crm.deals add check (n >= 0)",
        "create index on crm.deals (n)",
    ),
}  # fmt: skip


def _hear(world: World, kind: str) -> str:
    conn = world.fresh(kind)
    conn.execute("listen agentundo")
    world.boss.execute("select agentundo.hold('acme call', 'x'), agentundo.hold('acme call', null)")
    heard = [note.payload for note in conn.notifies(timeout=20, stop_after=1)]
    return "yes" if "acme call" in "".join(heard) else "no"


def _keep_waiting(world: World, kind: str) -> str:
    conn = world.connect(kind)
    with conn.transaction(force_rollback=True):
        conn.execute("lock table crm.deals in access exclusive mode")
        with world.boss.transaction(force_rollback=True):
            world.boss.execute("set local lock_timeout = '1ms'")
            try:
                world.boss.execute("select agentundo.revert('acme call')")
            except psycopg.errors.LockNotAvailable:
                return "yes"
    return "no"


THINGS["hear that something was undone, with its id (`LISTEN agentundo`)"] = _hear
THINGS["keep an undo waiting with locks on a tracked table"] = _keep_waiting
