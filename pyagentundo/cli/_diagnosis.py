"""What stands between a write and its undo, beyond what check() in the database can see.

The connection and the versions, a pool that hands session settings on to strangers, and a role's
rights: which of the tables that it can write can be taken back, and what would change that.
Findings look like those of check(): severity, object, problem, hint.
"""

from __future__ import annotations

import secrets
import shlex
from typing import Any

from psycopg.rows import DictRow

import pyagentundo
from pyagentundo.cli import _hints, _queries
from pyagentundo.cli._connection import Connection, connect
from pyagentundo.cli._options import chosen_dsn
from pyagentundo.errors import AgentUndoError
from pyagentundo.installer import Installed

#: On how many further connections a setting is looked for.
_OTHERS = 5
_MARK = "agentundo.pool_test"

# Tables that a role can write, each once: of a partition tree the root. `owns` is membership in the
# owner as it was granted, which pg_has_role() would give to every superuser.
_WRITABLE = """\
with target as (select oid, rolname, rolsuper from pg_roles where rolname = %(role)s),
written as (
  select distinct coalesce(pg_partition_root(c.oid), c.oid::regclass)::oid as root,
    pg_has_role(t.oid, c.relowner, 'member') as owns,
    c.relkind = 'f' as remote
  from target t cross join pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't'
    and n.nspname !~ '^(pg_|agentundo$|agentundo_history$)' and n.nspname <> 'information_schema'
    and has_schema_privilege(t.oid, n.oid, 'usage')
    and (has_any_column_privilege(t.oid, c.oid, 'insert')
      or has_any_column_privilege(t.oid, c.oid, 'update')
      or has_table_privilege(t.oid, c.oid, 'delete')
      or has_table_privilege(t.oid, c.oid, 'truncate')))
select format('%%I.%%I', n.nspname, c.relname) as relation, bool_or(w.owns) as owns,
  bool_or(w.remote) as remote, r.health
from written w join pg_class c on c.oid = w.root join pg_namespace n on n.oid = c.relnamespace
left join agentundo.tracked r on r.relation = format('%%I.%%I', n.nspname, c.relname)
group by 1, r.health order by 1
"""

_ROLE = (
    "select rolsuper as superuser, rolreplication as replication, quote_ident(rolname) as quoted"
    " from pg_roles where rolname = %s"
)


#: Who is shown plans.
_PLANNERS = ("operator", "auditor", "app")


def finding(severity: str, subject: str, problem: str, hint: str = "") -> dict[str, Any]:
    """Return one line of a diagnosis."""
    return {"severity": severity, "object": subject, "problem": problem, "hint": hint}


# Connection ---------------------------------------------------------------------------------------


def describe_connection(conn: Connection, found: Installed) -> dict[str, str]:
    """Return where we are, as whom, and which versions meet."""
    where = conn.execute(
        "select current_database() as name, current_user as role, pg_is_in_recovery() as standby,"
        " current_setting('server_version') as version"
    ).fetchall()[0]
    host = conn.info.host or "local socket"
    standby = ", a standby: it can be read, not undone on" if where["standby"] else ""
    return {
        "database": f"{where['name']} on {host}:{conn.info.port} as {where['role']}",
        "server": f"PostgreSQL {where['version']}{standby}",
        "agentundo": f"{found.version} (schema version {found.schema_version}) in the database,"
        f" {pyagentundo.__version__} here",
    }


def pool_leaks() -> list[dict[str, Any]]:
    """Look whether what one session sets reaches another.

    A setting of a random value is made on one connection and looked for on others, while the first
    is open and after it was closed. A pool in transaction mode hands it on, and then an agent's
    session-level ``SET agent.invocation`` would label a stranger's writes.
    """
    mark = secrets.token_hex(8)
    seen = False
    with connect(chosen_dsn()) as first:
        first.execute("select set_config(%s, %s, false)", [_MARK, mark])
        seen = _is_elsewhere(mark)
    seen = _is_elsewhere(mark) or seen
    if not seen:
        return []
    return [
        finding(
            "warning",
            "pool",
            "a session-level setting reaches other clients: a pooler in transaction mode is in"
            " between",
            "Tag with agentundo.tag() or SET LOCAL in each transaction, never with SET; exec and"
            " PGOPTIONS do not work here.",
        )
    ]


def _is_elsewhere(mark: str) -> bool:
    """Look for the mark on other connections, and take it away where it is found."""
    seen = False
    for _ in range(_OTHERS):
        with connect(chosen_dsn()) as other, other.transaction():
            row = other.execute("select current_setting(%s, true) as mark", [_MARK]).fetchall()[0]
            if row["mark"] == mark:
                seen = True
                other.execute("select set_config(%s, '', false)", [_MARK])
    return seen


# Roles --------------------------------------------------------------------------------------------


def is_member(conn: Connection, role: str, marker: str) -> bool:
    """Tell whether a role was granted another one, directly or through others."""
    rows = conn.execute(
        "with recursive member as (select oid from pg_roles where rolname = %s union"
        " select a.roleid from pg_auth_members a join member m on a.member = m.oid)"
        " select exists (select from member join pg_roles r using (oid)"
        "   where r.rolname = %s) as yes",
        [role, marker],
    ).fetchall()
    return bool(rows[0]["yes"])


def remarks_on(conn: Connection, role: str, *, to_be: str | None = None) -> list[dict[str, Any]]:
    """Return what makes a role unfit for being an agent, or for not being one.

    Args:
        conn: any connection to the server.
        role: its name; it exists.
        to_be: what it is about to become, as `agentundo grant --as` calls it.

    """
    about = conn.execute(_ROLE, [role]).fetchall()[0]
    agent = to_be == "agent" or is_member(conn, role, "agentundo_agent")
    operator = to_be == "operator" or is_member(conn, role, "agentundo_operator")
    app = to_be == "app" or is_member(conn, role, "agentundo_app")
    found = []
    if agent and about["superuser"]:
        found.append(
            finding(
                "error",
                role,
                f"{role} is a superuser: it can switch capture off and erase history",
                "Let the agent use a role without SUPERUSER.",
            )
        )
    if agent and operator:
        found.append(
            finding(
                "warning",
                role,
                f"{role} is an agent and an operator, and counts as an operator",
                "Give the agent a role of its own.",
            )
        )
    if agent and app and not operator and not about["superuser"]:
        found.append(
            finding(
                "warning",
                role,
                f"{role} is an agent and an app: an agent never reverts, so the app may not either",
                "Give the agent a role of its own.",
            )
        )
    # For a superuser, whatever it is granted, what is said of its tables holds.
    if to_be is None and not (agent or app or operator or about["superuser"]):
        found.append(
            finding(
                "info",
                role,
                f"{role} is no agent: only what it writes under a tag is captured, or to tables"
                " tracked with --capture all",
                f'"agentundo grant {shlex.quote(role)} --as agent --apply" captures its every'
                " write.",
            )
        )
    if agent and about["replication"] and not about["superuser"]:
        found.append(
            finding(
                "warning",
                role,
                f"{role} has REPLICATION: it can read everything that is written",
                f"alter role {about['quoted']} noreplication;",
            )
        )
    return found


# Tracked tables that a role cannot see whole, in plans and elsewhere; none for superusers and for
# who may act for the owner of our schema: they see all.
_UNREAD = """\
select r.relation, quote_ident(t.rolname) as quoted
from agentundo.tracked r join pg_roles t on t.rolname = %(role)s
join (pg_class c join pg_namespace n on n.oid = c.relnamespace)
  on format('%%I.%%I', n.nspname, c.relname) = r.relation
where not has_table_privilege(t.oid, c.oid, 'select')
  and not pg_has_role(t.oid,
    (select nspowner from pg_namespace where nspname = 'agentundo'), 'usage')
order by r.relation
"""


# Tracked tables whose row-level security applies to a role, by PostgreSQL's own rule.
_BOUND = """\
select r.relation
from agentundo.tracked r join pg_roles t on t.rolname = %(role)s
join (pg_class c join pg_namespace n on n.oid = c.relnamespace)
  on format('%%I.%%I', n.nspname, c.relname) = r.relation
where c.relrowsecurity and not t.rolsuper and not t.rolbypassrls
  and (c.relforcerowsecurity or not pg_has_role(t.oid, c.relowner, 'usage'))
order by r.relation
"""


def unread_by(conn: Connection, role: str) -> list[dict[str, Any]]:
    """Return what a role that plans or reads does not see, because it may not SELECT it."""
    if not any(is_member(conn, role, f"agentundo_{kind}") for kind in _PLANNERS):
        return []
    found = []
    bound = conn.execute(_BOUND.encode(), {"role": role}).fetchall()
    if bound:
        listed = ", ".join(row["relation"] for row in bound)
        found.append(
            finding(
                "warning",
                role,
                f"row-level security of {listed} applies to {role}: it can undo nothing there, and"
                " sees no history",
                "Undo as a role with BYPASSRLS, or as the owner where it is not forced.",
            )
        )
    rows = conn.execute(_UNREAD.encode(), {"role": role}).fetchall()
    if not rows:
        return found
    listed = ", ".join(row["relation"] for row in rows)
    whose = "its" if len(rows) == 1 else "their"
    return [
        *found,
        finding(
            "info",
            role,
            f"{role} may not read {listed}: plans, diffs and histories leave {whose} rows' keys and"
            " values out",
            f"grant select on {listed} to {rows[0]['quoted']};",
        ),
    ]


def writable_tables(conn: Connection, role: str, found: list[dict[str, Any]]) -> list[DictRow]:
    """Return the tables that a role can write: reversible or not, and why, and what would help.

    Rights by way of views and of functions that run as their owner are not counted.

    Args:
        conn: as somebody who may read the views.
        role: its name.
        found: what `of_database` returned.

    Raises:
        AgentUndoError: there is no such role.

    """
    if not conn.execute("select from pg_roles where rolname = %s", [role]).fetchall():
        raise AgentUndoError(f"There is no role {role!r}.", hint='"\\du" in psql lists the roles.')
    superuser = conn.execute(_ROLE, [role]).fetchall()[0]["superuser"]
    tables = conn.execute(_WRITABLE.encode(), {"role": role}).fetchall()
    for table in tables:
        table["health"] = _hints.spoken(table["health"])  # as findings are, to be compared
        table["why_not"], table["hint"] = _why_not(table, role, found, superuser=superuser)
        table["reversible"] = table["why_not"] is None
    return tables


def _why_not(
    table: DictRow, role: str, found: list[dict[str, Any]], *, superuser: bool
) -> tuple[str | None, str]:
    name = table["relation"]
    if superuser:
        return "a superuser can switch capture off", "Use a role without SUPERUSER."
    if table["owns"]:
        return (
            "it acts for the owner, who can switch capture off, alter and drop the table",
            f"alter table {name} owner to another role; then grant {role} what it needs",
        )
    if table["remote"]:
        return "a foreign table lies elsewhere", "Track it where it lies."
    if table["health"] is None:
        return "it is not tracked", f"agentundo track {name}"
    for one in found:
        # The view tells the worst of a table, by itself or after the name of a part of it.
        told = one["problem"] if one["object"] == name else f"{one['object']}: {one['problem']}"
        drags = f"together with rows of {name} (" in one["problem"]
        if drags or (one["severity"] == "error" and told == table["health"]):
            return told, one["hint"]
    return None, ""


def of_tables(tables: list[DictRow], role: str) -> list[dict[str, Any]]:
    """Return a finding for each table that a role can write and that cannot be taken back."""
    return [
        finding(
            "error",
            table["relation"],
            f"{role} can write it, and that cannot be undone: {table['why_not']}",
            table["hint"],
        )
        for table in tables
        if not table["reversible"]
    ]


def of_database(conn: Connection) -> list[dict[str, Any]]:
    """Return what check() finds, in the words of the command line."""
    return [
        {**row, "problem": _hints.spoken(row["problem"]), "hint": _hints.spoken(row["hint"])}
        for row in _queries.findings(conn)
    ]
