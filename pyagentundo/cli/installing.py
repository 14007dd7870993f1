"""``install``, ``upgrade``, ``uninstall`` and ``sql``."""

from __future__ import annotations

import shlex

import click

from pyagentundo import __version__, installer
from pyagentundo._sql import SqlFiles, as_script
from pyagentundo.cli import _hints, _queries, _streams
from pyagentundo.cli._connection import Connection, connected
from pyagentundo.cli._failures import notice
from pyagentundo.cli._options import dry_run_option, dsn_option, yes_option
from pyagentundo.cli._questions import confirm_for_good
from pyagentundo.cli._screen import printable
from pyagentundo.cli._tables import count
from pyagentundo.cli.state import nothing_tracked

_prints_sql = dry_run_option("Print the SQL that would run, change nothing.")


@click.command()
@dsn_option
@_prints_sql
def install(dry_run: bool) -> None:
    """Install agentundo in the database.

    One transaction; run again it changes nothing. Needs CREATE on the database, no superuser: what
    the role may not do is left out and said. An older installation is upgraded.

    \b
    Example:
      agentundo install --dsn postgresql://localhost/crm
    """
    with connected(check=False) as conn:
        report = installer.install(conn, dry_run=dry_run, note=notice)
        _report(report, dry_run)
        if not dry_run:
            _say_what_next(conn, kept=_queries.kept(conn) if report.action == "installed" else [])


@click.command()
@dsn_option
@_prints_sql
def upgrade(dry_run: bool) -> None:
    """Bring an installation up to date.

    Runs the migrations that the database has not seen and applies functions, views and grants
    again; what was captured stays. Run as superuser it adds what an earlier installer left out.

    \b
    Example:
      pip install --upgrade pyagentundo && agentundo upgrade
    """
    with connected(check=False) as conn:
        report = installer.upgrade(conn, dry_run=dry_run, note=notice)
        _report(report, dry_run)


@click.command()
@dsn_option
@_prints_sql
@yes_option
@click.option("--keep-history", is_flag=True, help="Leave what was captured, for a later install.")
def uninstall(dry_run: bool, yes: bool, keep_history: bool) -> None:
    """Remove agentundo from the database.

    Your tables lose our triggers, nothing else of them changes. Everything captured is gone and
    nothing can be undone any more; with --keep-history what was captured stays in the schemas
    agentundo and agentundo_history: after another install, and with the tables tracked again, it
    can be undone. The roles agentundo_* stay in any case, other databases may use them.

    On a terminal it asks; without one it needs --yes. Where it is not installed nothing is done.

    \b
    Examples:
      agentundo uninstall --keep-history
      agentundo uninstall --yes
    """
    with connected(check=False) as conn:
        if installer.installed(conn) is None:
            if dry_run:
                click.echo("-- nothing to do")
            else:
                name = printable(conn.info.dbname)
                click.echo(f'nothing to uninstall: agentundo is not in database "{name}"')
            return
        if not dry_run:
            lost = (
                "what was captured stays, nothing more is"
                if keep_history
                else "all that was captured is lost and can no longer be undone"
            )
            confirm_for_good(
                f'Remove agentundo from database "{conn.info.dbname}" ({lost})?', yes=yes
            )
        report = installer.uninstall(conn, keep_history=keep_history, dry_run=dry_run, note=notice)
        _report(report, dry_run)


@click.command()
def sql() -> None:
    """Print the whole installation as one SQL script.

    For psql, for a migration tool, or for reading: its head says what it locks, what it grants and
    how to undo it.

    \b
    Example:
      agentundo sql | psql -X -v ON_ERROR_STOP=1 -d crm
    """
    click.echo(SqlFiles().script(__version__), nl=False)


def _report(report: installer.Report, dry_run: bool) -> None:
    """Say what an installer run did; its steps are what a dry run prints."""
    if dry_run:
        click.echo(as_script(report.steps) if report.steps else "-- nothing to do\n", nl=False)
        return
    _streams.committed()
    for text in report.notices:
        notice(_hints.spoken(text) or text)
    release = report.before if report.action == "removed" else report.after
    details = ""
    if release:
        # Without a version: what an earlier uninstall --keep-history has left.
        version = f" {release.version}" if release.version else ""
        details = f"{version} (schema version {release.schema_version})"
    kept = (
        "; what was captured is still here" if report.action == "removed" and report.after else ""
    )
    click.echo(f"{report.action}: agentundo{details}{kept}")


def _say_what_next(conn: Connection, *, kept: list[str]) -> None:
    """End with how much is tracked, and the next command to type.

    Args:
        conn: where it was installed.
        kept: tables whose history an uninstall has left.

    """
    if not _queries.readable(conn, "tracked"):
        return  # an app looks whether all is up to date
    rows = conn.execute("select count(*) as tables from agentundo.tracked").fetchall()
    tables = rows[0]["tables"]
    if kept:
        again = printable(shlex.join(kept))
        click.echo(
            f"0 tables tracked. The history of {count(len(kept), 'table')} was kept: to undo what"
            f" is in it, and to capture again: agentundo track {again}"
        )
    elif tables:
        click.echo(f"{count(tables, 'table')} tracked. Next: agentundo doctor")
    else:
        click.echo(nothing_tracked())


COMMANDS = [install, upgrade, uninstall, sql]
