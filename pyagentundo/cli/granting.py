"""``grant``."""

from __future__ import annotations

import click
from psycopg import errors as pg
from psycopg import sql

from pyagentundo.cli import _complete, _diagnosis, _queries
from pyagentundo.cli._connection import connected, writing
from pyagentundo.cli._failures import REFUSED, complain, notice
from pyagentundo.cli._json import print_json
from pyagentundo.cli._options import dsn_option, json_option
from pyagentundo.cli._screen import printable
from pyagentundo.errors import AgentUndoError

_KINDS = ["app", "agent", "operator", "approver", "auditor"]


@click.command()
@click.argument("role", shell_complete=_complete.roles)
@click.option(
    "--as", "kind", type=click.Choice(_KINDS), required=True, help="What the role is to be."
)
@click.option("--apply", is_flag=True, help="Grant it, instead of printing the SQL.")
@dsn_option
@json_option
def grant(role: str, kind: str, apply: bool, as_json: bool) -> None:
    """Make a role an app, agent, operator, approver or auditor.

    Prints the SQL that does it; with --apply runs it. Holds in all databases of the server. What an
    app, an operator or an auditor sees of rows, it sees only of tables that it may SELECT: grant
    that too.

    \b
      app       tags and records, plans and reverts for its users within a scope
      agent     tags and records; is captured even without a tag, never reverts
      operator  plans, reverts and redoes anywhere, tracks its own tables, purges
      approver  nothing yet: approvals are to come
      auditor   reads everything, changes nothing

    \b
    Examples:
      agentundo grant crm_bot --as agent
      agentundo grant dana --as operator --apply
    """
    marker = f"agentundo_{kind}"
    statement = sql.SQL("grant {} to {};").format(sql.Identifier(marker), sql.Identifier(role))
    with connected() as conn:
        known = conn.execute(
            "select to_regrole(quote_ident(%s)) is not null as marker, r.oid is not null as role"
            " from (values (%s)) v (name) left join pg_roles r on r.rolname = v.name",
            [marker, role],
        ).fetchall()[0]
        if not known["role"]:
            raise AgentUndoError(
                f"There is no role {role!r}.", hint='"\\du" in psql lists the roles.'
            )
        if not known["marker"]:
            raise AgentUndoError(
                f"There is no role {marker}: whoever installed agentundo could not create it.",
                hint='Run "agentundo upgrade" as a superuser or a role with CREATEROLE.',
            )
        already = _diagnosis.is_member(conn, role, marker)
        if apply and not already:
            try:
                with writing(conn):
                    conn.execute(statement)
            except pg.InsufficientPrivilege as error:
                complain(
                    error.diag.message_primary or str(error),
                    [],
                    f"To grant {marker} one has to be a superuser or have it WITH ADMIN OPTION.",
                )
                click.get_current_context().exit(REFUSED)
        text = statement.as_string(conn)
        remarks = _diagnosis.remarks_on(conn, role, to_be=kind)
        if (apply or already) and _queries.readable(conn, "tracked"):
            remarks += _diagnosis.unread_by(conn, role)
    if as_json:
        answer = {"role": role, "as": kind, "sql": text, "already": already, "applied": apply}
        print_json(answer)
    elif already:
        click.echo(f"already: {printable(role)} is a member of {marker}")
    else:
        click.echo(f"granted: {text}" if apply else text)
    for remark in remarks:
        notice(f"{remark['problem']}. {remark['hint']}")


COMMANDS = [grant]
