"""``install``, ``upgrade``, ``uninstall``, ``sql``, ``status`` and ``doctor``."""

from __future__ import annotations

import click

from pyagentundo import __version__, installer
from pyagentundo._sql import SqlFiles, as_script
from pyagentundo.cli._common import (
    ERROR,
    confirm,
    connected,
    dry_run_option,
    dsn_option,
    json_option,
    notice,
    yes_option,
)
from pyagentundo.cli._output import print_fields, print_json, print_table

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
        _report(installer.install(conn, dry_run=dry_run, note=notice), dry_run)


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
        _report(installer.upgrade(conn, dry_run=dry_run, note=notice), dry_run)


@click.command()
@dsn_option
@_prints_sql
@yes_option
@click.option("--keep-history", is_flag=True, help="Leave the tables with what was captured.")
def uninstall(dry_run: bool, yes: bool, keep_history: bool) -> None:
    """Remove agentundo from the database.

    Your tables lose their triggers and nothing else. Without --keep-history everything captured
    is gone and nothing can be undone any more; with it a later install takes the history up again.
    The roles agentundo_* stay, other databases may use them.

    \b
    Example:
      agentundo uninstall --keep-history
    """
    with connected(check=False) as conn:
        if not dry_run:
            lost = "its history stays" if keep_history else "all captured history is lost"
            confirm(f'Remove agentundo from "{conn.info.dbname}" ({lost})?', yes=yes)
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


@click.command()
@dsn_option
@json_option
def status(as_json: bool) -> None:
    """Show what is installed and which tables are tracked.

    \b
    Example:
      agentundo status
    """
    with connected() as conn:
        found = installer.require(conn)
        tracked = conn.execute("select * from agentundo.tracked order by relation").fetchall()
        about = {
            "database": conn.info.dbname,
            "version": found.version,
            "schema_version": found.schema_version,
            "min_client": found.min_client,
        }
    if as_json:
        print_json({**about, "tracked": tracked})
        return
    print_fields(about)
    click.echo()
    columns = ["relation", "capture", "since", "rows", "bytes", "health"]
    print_table(tracked, columns, empty="no table is tracked; run: agentundo track TABLE")


@click.command()
@dsn_option
@json_option
def doctor(as_json: bool) -> None:
    """Look for what would stop an undo.

    The exit code is 1 if there is an error among it.

    \b
    Example:
      agentundo doctor --json
    """
    with connected() as conn:
        found = conn.execute("select * from agentundo.check()").fetchall()
    if as_json:
        print_json(found)
    else:
        print_table(found, ["severity", "object", "problem", "hint"], empty="no problem found")
    if any(row["severity"] == "error" for row in found):
        click.get_current_context().exit(ERROR)


def _report(report: installer.Report, dry_run: bool) -> None:
    """Say what an installer run did; its steps are what a dry run prints."""
    if dry_run:
        click.echo(as_script(report.steps) if report.steps else "-- nothing to do\n", nl=False)
        return
    for text in report.notices:
        notice(text)
    release = report.after or report.before
    details = f" {release.version} (schema version {release.schema_version})" if release else ""
    click.echo(f"{report.action}: agentundo{details}")


COMMANDS = [install, upgrade, uninstall, sql, status, doctor]
