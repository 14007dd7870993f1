"""``install``, ``upgrade``, ``uninstall``, ``sql``; databases without agentundo or with another."""

from __future__ import annotations

import re
import shlex
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from pyagentundo import DsnError, __version__
from pyagentundo import dsn as dsns
from pyagentundo.cli import main
from tests.cli.conftest import Run
from tests.conftest import Connection, MakeRole
from tests.support.terminal import as_program, on_terminal

pytestmark = pytest.mark.core

NEXT = "0 tables tracked: nothing is captured yet. Next: agentundo track TABLE\n"


def test_install_upgrade_uninstall(bare_dsn: str, cli: Run) -> None:
    to = ("--dsn", bare_dsn)
    assert "create table agentundo._home" in cli("install", "--dry-run", *to).stdout
    installed = f"agentundo {__version__} (schema version 1)\n"
    assert cli("install", *to).stdout == f"installed: {installed}{NEXT}"
    assert cli("install", *to).stdout == f"unchanged: {installed}{NEXT}"
    assert cli("install", "--dry-run", *to).stdout == "-- nothing to do\n"
    assert cli("upgrade", *to).stdout == f"re-applied: {installed}"
    assert cli("uninstall", "--yes", *to).stdout == f"removed: {installed}"


def test_uninstall_again_is_no_error(bare_dsn: str, cli: Run) -> None:
    to = ("--dsn", bare_dsn)
    name = psycopg.conninfo.conninfo_to_dict(bare_dsn)["dbname"]
    for options in (["--yes"], [], ["--keep-history"]):
        done = cli("uninstall", *options, *to)
        assert done.stdout == f'nothing to uninstall: agentundo is not in database "{name}"\n'
        assert done.stderr == ""
    assert cli("uninstall", "--dry-run", *to).stdout == "-- nothing to do\n"
    cli("install", *to)
    cli("uninstall", "--keep-history", "--yes", *to)
    assert cli("uninstall", "--yes", *to).stdout.startswith("removed: agentundo")
    assert cli("uninstall", "--yes", *to).stdout.startswith("nothing to uninstall: ")


def test_install_over_kept_history(deals: Connection, cli: Run) -> None:
    installed = f"agentundo {__version__} (schema version 1)"
    said = cli("uninstall", "--keep-history", "--yes").stdout
    assert said == f"removed: {installed}; what was captured is still here\n"
    assert "agentundo is not installed" in cli("log", code=4).stderr
    again = cli("install")
    command = "agentundo track public.deals public.meetings"
    assert again.stdout == (
        f"installed: {installed}\n0 tables tracked. The history of 2 tables was kept: to undo what"
        f" is in it, and to capture again: {command}\n"
    )
    assert again.stderr == ""
    cli(*command.split()[1:])
    assert cli("install").stdout.endswith("2 tables tracked. Next: agentundo doctor\n")
    cli("revert", "call-1")
    row = deals.execute("select stage from public.deals where id = 'D-881'").fetchone()
    assert row == ("Qualified",)


def test_uninstall_asks_on_a_terminal(db: Connection, dsn: str) -> None:
    refused = on_terminal("uninstall", "--dsn", dsn, answer="n")
    assert refused.code == 1
    question = f'Remove agentundo from database "{db.info.dbname}"'
    assert question in refused.text
    assert "all that was captured is lost and can no longer be undone" in " ".join(
        refused.text.split()
    )
    assert "Nothing was changed." in refused.text
    assert db.execute("select agentundo.version()").fetchone() == (__version__,)
    kept = on_terminal("uninstall", "--keep-history", "--dsn", dsn, answer="y")
    assert kept.code == 0
    assert "(what was captured stays, nothing more is)" in " ".join(kept.text.split())
    assert db.execute("select count(*) from agentundo._tracked").fetchone() == (0,)


def test_uninstall_without_a_terminal_wants_yes(db: Connection, dsn: str) -> None:
    for options in ([], ["--keep-history"]):
        result = as_program("uninstall", *options, "--dsn", dsn)
        assert result.returncode == 2
        assert "There is no terminal to ask on; --yes says yes beforehand." in result.stderr
        assert db.execute("select agentundo.version()").fetchone() == (__version__,)
    assert as_program("uninstall", "--yes", "--dsn", dsn).returncode == 0


def test_sql_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", "postgresql://nowhere.invalid/x")
    result = CliRunner().invoke(main, ["sql"])
    assert result.stdout.startswith(f"-- pyagentundo {__version__}")
    assert result.stdout.endswith("commit;\n")


def test_a_damaged_installation_is_not_installed_over(deals: Connection, cli: Run) -> None:
    deals.execute("drop table agentundo._home cascade")
    for dry_run in ([], ["--dry-run"]):
        said = cli("install", *dry_run, code=1).stderr
        assert said.startswith("error: Parts of agentundo are in this database, but not its table")
    assert "hint: Run: agentundo install" in cli("upgrade", code=4).stderr
    deals.execute(" ".join(re.findall(r"drop schema [^;]*", said)[0].split()).encode())
    assert cli("install").stdout.startswith("installed: ")


def test_a_history_of_somebody_else(bare_dsn: str, make_role: MakeRole) -> None:
    role = make_role()
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(f"create schema agentundo_history authorization {role}".encode())
    said = as_program("install", "--dsn", bare_dsn)
    assert said.returncode == 5
    assert (
        f"hint: A schema agentundo_history is in this database already and belongs to {role}:"
        " rename it, or drop it.\n" in said.stderr
    )


def test_removing_what_was_kept(deals: Connection, cli: Run) -> None:
    cli("uninstall", "--keep-history", "--yes")
    assert cli("uninstall", "--yes").stdout == "removed: agentundo (schema version 1)\n"


def test_missing_rights_say_what_to_grant(
    bare_dsn: str, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    role = make_role()
    result = cli("install", "--dsn", psycopg.conninfo.make_conninfo(bare_dsn, user=role), code=5)
    name = psycopg.conninfo.conninfo_to_dict(bare_dsn)["dbname"]
    assert result.stderr == (
        f"error: permission denied for database {name}. Nothing was changed.\n"
        "  hint: The installing role needs CREATE on the database. Its owner or a superuser can"
        f" run: grant create on database {name} to {role};\n"
    )
    result = cli("upgrade", "--dsn", psycopg.conninfo.make_conninfo(dsn, user=role), code=5)
    assert (
        "  hint: agentundo is in this database already: run it as the role that installed it, or as"
        " a superuser.\n"
    ) in result.stderr


def test_an_app_may_look_whether_all_is_up_to_date(dsn: str, cli: Run, make_role: MakeRole) -> None:
    role = make_role(member_of="agentundo_app")
    result = cli("install", "--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    assert result.stdout == f"unchanged: agentundo {__version__} (schema version 1)\n"


def test_what_the_role_may_not_create_is_said(bare_dsn: str, cli: Run, make_role: MakeRole) -> None:
    role = make_role()
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(f"grant create on database {conn.info.dbname} to {role}".encode())
    result = cli("install", "--dsn", psycopg.conninfo.make_conninfo(bare_dsn, user=role))
    assert f"note: {role} may not create event triggers" in result.stderr
    assert 'run "agentundo sync" after every migration' in result.stderr
    assert (
        "; before that tagged writes to a changed table are refused, and with --capture all"
        " everybody's."
    ) in result.stderr
    assert 'changed tables are followed only by "agentundo sync" (' in result.stderr
    assert "sync()" not in result.stderr


# Versions -----------------------------------------------------------------------------------------


def test_not_installed_is_4(bare_dsn: str, cli: Run) -> None:
    name = psycopg.conninfo.conninfo_to_dict(bare_dsn)["dbname"]
    for command in (
        ["log"], ["status"], ["upgrade"], ["revert", "x"],
        ["plan", "x"], ["redo", "x"], ["track", "t"], ["untrack", "t"], ["sync"], ["doctor"],
        ["exec", "true"], ["show", "x"], ["diff", "x"], ["history", "t", "1"], ["events"],
        ["events", "--follow"], ["purge", "--yes"], ["erase", "t", "1", "--reason", "r", "--yes"],
        ["hold", "x", "--release"], ["grant", "x", "--as", "app"],
    ):  # fmt: skip
        result = (
            cli(*command, "--dsn", bare_dsn, code=4)
            if command != ["exec", "true"]
            else cli("exec", "--dsn", bare_dsn, "true", code=4)
        )
        assert result.stdout == ""
        assert result.stderr == (
            f'error: agentundo is not installed in database "{name}".\n'
            f"  hint: Run: agentundo install --dsn {shlex.quote(bare_dsn)}\n"
        )


def test_what_to_run_names_the_database_and_no_password(
    db: Connection, bare_dsn: str, dsn: str, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(bare_dsn)
    parts.pop("password", None)
    plain = psycopg.conninfo.make_conninfo("", **parts)
    secret = psycopg.conninfo.make_conninfo(plain, password="s3cret")
    result = cli("log", "--dsn", secret, code=4)
    assert "s3cret" not in result.output
    assert f"hint: Run: agentundo install --dsn {shlex.quote(plain)}\n" in result.stderr
    db.execute("update agentundo._home set schema_version = 0")
    result = cli("log", "--dsn", dsn, code=4)
    assert f"hint: Run: agentundo upgrade --dsn {shlex.quote(dsn)}\n" in result.stderr
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", bare_dsn)
    assert cli("log", code=4).stderr.endswith("hint: Run: agentundo install\n")


def test_an_older_client_is_4(db: Connection, cli: Run) -> None:
    db.execute("update agentundo._home set min_client = '99'")
    for command in ("log", "revert", "plan"):
        result = cli(command, "--run", "r", code=4)
        assert (
            f"This is pyagentundo {__version__}; the database needs 99 or later." in result.stderr
        )
        assert "Run: pip install --upgrade pyagentundo" in result.stderr


def test_an_older_schema_is_4(db: Connection, cli: Run) -> None:
    db.execute("update agentundo._home set schema_version = 0")
    result = cli("log", code=4)
    assert "The database has schema version 0; this pyagentundo needs 1 or later." in result.stderr
    assert "hint: Run: agentundo upgrade" in result.stderr


def test_a_newer_schema_works_but_is_not_upgraded(deals: Connection, cli: Run) -> None:
    deals.execute("update agentundo._home set schema_version = 7")
    cli("log")
    assert cli("install").stdout.startswith("unchanged: ")
    result = cli("upgrade", code=4)
    assert "newer than this package's" in result.stderr
    assert "hint: Run: pip install --upgrade pyagentundo" in result.stderr


# Where the database is ----------------------------------------------------------------------------


def test_broken_dsn_is_1(cli: Run) -> None:
    result = cli("--dsn", "postgresql://u:s3cret@127.0.0.1:1/x", "log", code=1)
    assert 'database "x" on 127.0.0.1:1' in result.stderr
    assert "s3cret" not in result.output


def test_where_no_database_is_named_it_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("nobody answers")

    monkeypatch.setattr(psycopg, "connect", nobody)
    for name in (*dsns.ENVIRONMENT, *dsns.ADDRESS):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, ["status"])
    assert (result.exit_code, result.stderr) == (
        1,
        "error: Cannot connect to the default database on local socket:5432: nobody answers\n"
        "  hint: No database was named: set AGENTUNDO_DATABASE_URL, or give --dsn.\n",
    )
    with pytest.raises(DsnError) as raised:
        dsns.connect()
    assert raised.value.hint == (
        "No database was named: set AGENTUNDO_DATABASE_URL, or give the DSN."
    )
    monkeypatch.setenv("PGDATABASE", "crm")
    hint = "hint: The address came from libpq's environment.\n"
    assert CliRunner().invoke(main, ["status"]).stderr.endswith(hint)


def test_dsn_counts_before_and_after_the_command(dsn: str, bare_dsn: str, cli: Run) -> None:
    cli("--dsn", bare_dsn, "log", code=4)
    cli("log", "--dsn", bare_dsn, code=4)
    cli("--dsn", bare_dsn, "log", "--dsn", dsn)


def test_without_libpq_it_says_what_to_install() -> None:
    result = as_program("log", PSYCOPG_IMPL="c")
    assert result.returncode == 1
    assert result.stderr.startswith("error: PostgreSQL's client library libpq is missing (")
    assert 'hint: Run: pip install "psycopg[binary]"' in result.stderr
    assert "Traceback" not in result.stderr
