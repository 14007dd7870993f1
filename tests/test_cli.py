"""The command line: exit codes, JSON, help, questions, and a whole undo from end to end."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner, Result

from pyagentundo.cli import main
from pyagentundo.cli._output import print_table, printable
from tests.conftest import Connection, MakeRole
from tests.support.state import assert_same, snapshot

pytestmark = pytest.mark.core

Run = Callable[..., Result]


@pytest.fixture
def cli(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command on a database with agentundo installed, without a terminal."""
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", dsn)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result

    return run


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Return a connection to a database in which an agent has written two calls of one run."""
    db.execute(
        "create table public.deals (id text primary key, stage text, amount numeric(10, 2));"
        "insert into public.deals values ('D-881', 'Qualified', 10), ('D-882', 'New', 20);"
        "create table public.meetings (id int primary key, deal text, title text)"
    )
    for table in ("deals", "meetings"):
        db.execute("select agentundo.track(%s::regclass)", [f"public.{table}"])
    writes(db, "call-1", "update public.deals set stage = 'Won' where id = 'D-881'", step=1)
    writes(db, "call-2", "insert into public.meetings values (1, 'D-881', 'Kickoff')", step=2)
    return db


def writes(
    conn: Connection, invocation: str, statement: str, *, step: int = 1, run: str = "run-42"
) -> None:
    with conn.transaction():
        conn.execute(
            "select agentundo.tag(%s, run => %s, step => %s, tool => 'crm', actor => 'bot')",
            [invocation, run, step],
        )
        conn.execute(statement.encode())


def loaded(result: Result) -> Any:
    return json.loads(result.stdout)


# From end to end ----------------------------------------------------------------------------------


def test_track_write_log_plan_revert_redo(db: Connection, cli: Run) -> None:
    db.execute("create table public.deals (id text primary key, stage text)")
    db.execute("insert into public.deals values ('D-881', 'Qualified')")
    before = snapshot(db, "public.deals")

    tracked = loaded(cli("track", "public.deals", "--json"))
    assert tracked == [{"relation": "public.deals"}]
    writes(db, "call-1", "update public.deals set stage = 'Won'")
    after = snapshot(db, "public.deals")

    (entry,) = loaded(cli("log", "--json"))
    assert (entry["id"], entry["run"], entry["tool"], entry["undoable"]) == (
        "call-1", "run-42", "crm", True,
    )  # fmt: skip
    (planned,) = loaded(cli("plan", "call-1", "--json"))
    assert (planned["action"], planned["status"], planned["rows"]) == ("update", "ok", 1)
    (row,) = loaded(cli("plan", "call-1", "--rows", "--json"))
    assert row["key"] == {"id": "D-881"}
    assert_same(after, snapshot(db, "public.deals"))

    result = loaded(cli("revert", "call-1", "--by", "dana", "--reason", "wrong deal", "--json"))
    assert (result["status"], result["rows_updated"]) == ("reverted", 1)
    assert_same(before, snapshot(db, "public.deals"))
    about = loaded(cli("show", "call-1", "--json"))
    assert (about["reverted_by"], about["revert_reason"]) == ("dana", "wrong deal")
    assert about["revert_id"] == result["revert_id"]
    assert len(about["changes"]) == 1

    assert loaded(cli("revert", "call-1", "--json"))["status"] == "already_reverted"
    cli("redo", "call-1")
    assert_same(after, snapshot(db, "public.deals"))


def test_tables_are_readable(deals: Connection, cli: Run) -> None:
    assert "call-1" in cli("log").stdout
    assert "Qualified" in cli("diff", "call-1").stdout
    assert "deals" in cli("status").stdout
    assert "run-42" in cli("show", "call-1").stdout
    assert "update" in cli("plan", "call-1").stdout
    assert "D-881" in cli("plan", "call-1", "--rows").stdout
    assert "reverted" in cli("revert", "call-1").stdout


def test_plan_tells_what_left_the_database(deals: Connection, cli: Run) -> None:
    deals.execute(
        "select agentundo.record_effect('call-1', 'mail', 'none', 'told Dana that it is won'),"
        " agentundo.record_effect('call-1', 'booking', 'compensate', remedy => 'cancel it'),"
        " agentundo.record_effect('call-2', 'payment')"
    )
    shown = cli("plan", "call-1").stdout
    assert "Not taken back by a revert of rows:" in shown
    assert "  mail (none): told Dana that it is won\n" in shown
    assert "  booking (compensate): remedy: cancel it\n" in shown
    assert "payment" not in shown
    assert "  payment (unknown)\n" in cli("plan", "call-2", "--rows").stdout


def test_dry_runs_change_nothing(deals: Connection, cli: Run) -> None:
    before = snapshot(deals, "public.deals", "public.meetings")
    assert "update" in cli("revert", "call-1", "--dry-run").stdout
    cli("track", "public.deals", "--capture", "all", "--dry-run")
    cli("untrack", "--all", "--dry-run")
    cli("sync", "--dry-run")
    assert "drop" in cli("uninstall", "--dry-run").stdout
    assert_same(before, snapshot(deals, "public.deals", "public.meetings"))
    tracked = deals.execute("select relation, capture from agentundo.tracked order by 1")
    assert tracked.fetchall() == [("public.deals", "agent"), ("public.meetings", "agent")]
    cli("revert", "call-1")
    assert "update" in cli("redo", "call-1", "--dry-run").stdout
    assert loaded(cli("revert", "call-1", "--json"))["status"] == "already_reverted"


# What is selected ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], {"call-1", "call-2"}),
        (["call-1"], {"call-1"}),
        (["--run", "run-42"], {"call-1", "call-2"}),
        (["--run", "run-42", "--from-step", "2"], {"call-2"}),
        (["--run", "other"], set()),
        (["--actor", "bot", "--tool", "crm"], {"call-1", "call-2"}),
        (["--actor", "eve"], set()),
        (["--since", "1h"], {"call-1", "call-2"}),
        (["--until", "1h"], set()),
        (["--since", "2020-01-01", "--until", "2020-01-02 12:00"], set()),
        (["--scope", "acme"], set()),
        (["--limit", "1"], {"call-2"}),
    ],
)
def test_log_filters(deals: Connection, cli: Run, options: list[str], ids: set[str]) -> None:
    assert {entry["id"] for entry in loaded(cli("log", "--json", *options))} == ids


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--run", "run-42"], ("Qualified", 0)),
        (["--run", "run-42", "--from-step", "2"], ("Won", 0)),
        (["--actor", "bot", "--tool", "crm"], ("Qualified", 0)),
        (["call-1", "call-2"], ("Qualified", 0)),
        (["--last"], ("Qualified", 0)),
        (["--last-invocation"], ("Won", 0)),
    ],
)
def test_revert_takes_what_is_selected(
    deals: Connection, cli: Run, options: list[str], left: tuple[str, int]
) -> None:
    cli("revert", *options)
    row = deals.execute(
        "select stage, (select count(*) from public.meetings) from public.deals where id = 'D-881'"
    ).fetchone()
    assert row == left


def test_last_goes_back_run_by_run(deals: Connection, cli: Run) -> None:
    before = snapshot(deals, "public.deals")
    writes(deals, "call-3", "update public.deals set amount = 0", run="run-43")
    cli("revert", "--last")
    assert_same(before, snapshot(deals, "public.deals"))
    cli("revert", "--last")
    left = deals.execute("select stage from public.deals where id = 'D-881'").fetchone()
    assert left == ("Qualified",)
    assert "nothing left" in cli("revert", "--last", code=1).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["revert"],
        ["plan"],
        ["revert", "a", "--last"],
        ["revert", "a", "--run", "r"],
        ["plan", "a", "--from-step", "2"],
        ["plan", "--run", "r", "--from-step", "0"],
        ["log", "--since", "soon"],
        ["revert", "a", "--on-conflict", "sometimes"],
        ["track"],
        ["track", "t", "--schema", "s"],
        ["track", "t", "--capture", "none"],
        ["untrack"],
        ["untrack", "t", "--all"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_2(cli: Run, arguments: list[str]) -> None:
    assert "Error: " in cli(*arguments, code=2).stderr


# Exit codes ---------------------------------------------------------------------------------------


def test_conflict_is_3_and_names_the_row(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    before = snapshot(deals, "public.deals", "public.meetings")
    result = cli("revert", "--run", "run-42", code=3)
    assert "public.deals (id=D-881): row_changed" in result.stderr
    assert "hint:" in result.stderr
    assert_same(before, snapshot(deals, "public.deals", "public.meetings"))
    planned = cli("plan", "--run", "run-42", code=3).stdout
    assert "public.deals (id=D-881): row_changed" in planned


def test_partial_is_3(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    options = ("--run", "run-42", "--on-conflict", "skip", "--json")
    cli("plan", *options, code=3)
    result = loaded(cli("revert", *options, code=3))
    assert (result["status"], result["rows_skipped"]) == ("partially_reverted", 1)
    assert deals.execute("select count(*) from public.meetings").fetchone() == (0,)


@pytest.mark.parametrize(
    "arguments",
    [
        ["revert", "nobody"],
        ["plan", "nobody"],
        ["show", "nobody"],
        ["diff", "nobody"],
        ["revert", "--run", "none"],
        ["track", "public.nothing"],
        ["redo", "nobody"],
    ],
)
def test_unknown_things_are_1(cli: Run, arguments: list[str]) -> None:
    assert cli(*arguments, code=1).stderr.startswith("error: ")


def test_not_installed_is_4(bare_dsn: str, cli: Run) -> None:
    for command in (["log"], ["status"], ["upgrade"], ["uninstall", "--yes"], ["revert", "x"]):
        result = cli(*command, "--dsn", bare_dsn, code=4)
        assert "not installed" in result.stderr
        assert "agentundo install" in result.stderr


def test_client_too_old_is_4(db: Connection, cli: Run) -> None:
    db.execute("update agentundo._home set min_client = '99'")
    assert "pip install --upgrade pyagentundo" in cli("log", code=4).stderr


def test_refused_is_5(db: Connection, cli: Run) -> None:
    db.execute("create view public.v as select 1 as one")
    assert "view" in cli("track", "public.v", code=5).stderr


def test_broken_dsn_is_1(cli: Run) -> None:
    result = cli("--dsn", "postgresql://u:s3cret@127.0.0.1:1/x", "log", code=1)
    assert 'database "x" on 127.0.0.1:1' in result.stderr
    assert "s3cret" not in result.output


def test_dsn_counts_before_and_after_the_command(dsn: str, bare_dsn: str, cli: Run) -> None:
    cli("--dsn", bare_dsn, "log", code=4)
    cli("log", "--dsn", bare_dsn, code=4)
    cli("--dsn", bare_dsn, "log", "--dsn", dsn)


# Installing and tracking --------------------------------------------------------------------------


def test_install_upgrade_uninstall(bare_dsn: str, cli: Run) -> None:
    to = ("--dsn", bare_dsn)
    assert "create table agentundo._home" in cli("install", "--dry-run", *to).stdout
    assert cli("install", *to).stdout.startswith("installed: agentundo 0.1.0")
    assert cli("install", *to).stdout.startswith("unchanged: ")
    assert cli("install", "--dry-run", *to).stdout == "-- nothing to do\n"
    assert cli("upgrade", *to).stdout.startswith("re-applied: ")
    assert cli("uninstall", "--yes", *to).stdout.startswith("removed: ")


def test_sql_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", "postgresql://nowhere.invalid/x")
    result = CliRunner().invoke(main, ["sql"])
    assert result.stdout.startswith("-- pyagentundo 0.1.0")
    assert result.stdout.endswith("commit;\n")


def test_track_warns_of_rows_that_go_along_uncaptured(db: Connection, cli: Run) -> None:
    db.execute(
        "create table public.deals (id int primary key); create table public.orders"
        " (id int primary key, deal int references public.deals on delete cascade)"
    )
    said = cli("track", "public.deals").stderr
    assert "public.orders: it is not tracked, but rows of it are deleted or changed" in said
    assert "agentundo.track('public.orders')" in said
    assert cli("track", "public.orders").stderr == ""
    assert "public.orders" not in cli("track", "public.deals").stderr


def test_track_a_schema(db: Connection, cli: Run) -> None:
    db.execute(
        'create schema "My CRM"; create table "My CRM"."Deals" (id int primary key);'
        'create table "My CRM".parts (id int) partition by range (id);'
        'create table "My CRM".part partition of "My CRM".parts default;'
        'create view "My CRM".v as select 1 as one'
    )
    tracked = loaded(cli("track", "--schema", "My CRM", "--capture", "all", "--json"))
    assert {'"My CRM"."Deals"', '"My CRM".parts'} <= {row["relation"] for row in tracked}
    modes = db.execute("select distinct capture from agentundo.tracked").fetchall()
    assert modes == [("all",)]
    assert len(loaded(cli("untrack", "--all", "--json"))) == 2
    assert "no table is tracked" in cli("status").stdout


def test_sync_reports_what_it_did(deals: Connection, cli: Run) -> None:
    deals.execute("alter table public.deals add column note text")
    cli("sync")
    cli("sync", "public.deals")
    writes(deals, "call-3", "update public.deals set note = 'x'")
    cli("revert", "call-3")
    assert deals.execute("select count(*) from public.deals where note = 'x'").fetchone() == (0,)


def test_doctor(deals: Connection, cli: Run) -> None:
    problems = loaded(cli("doctor", "--json"))
    assert not [row for row in problems if row["severity"] == "error"]


@pytest.mark.parametrize("role", ["agentundo_operator", "agentundo_app"])
def test_roles_that_may_undo_do_it_without_being_owner(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, role: str
) -> None:
    deals.execute("select agentundo.set_scope_owner('acme', 'dana')")
    before = snapshot(deals, "public.deals")
    with deals.transaction():
        deals.execute("select agentundo.tag('call-3', run => 'run-43', scope => 'acme')")
        deals.execute("update public.deals set amount = 0")
    name = make_role(member_of=role)
    deals.execute(f"grant select on public.deals to {name}".encode())
    to = (
        "--scope",
        "acme",
        "--by",
        "dana",
        "--dsn",
        psycopg.conninfo.make_conninfo(dsn, user=name),
    )
    cli("revert", "--last", "--dry-run", *to)
    cli("revert", "--last", *to)
    assert_same(before, snapshot(deals, "public.deals"))
    cli("redo", "call-3", *to)
    cli("revert", "--run", "run-43", *to)
    assert_same(before, snapshot(deals, "public.deals"))


def test_ordinary_role_is_told_what_it_lacks(dsn: str, cli: Run, make_role: MakeRole) -> None:
    as_role = psycopg.conninfo.make_conninfo(dsn, user=make_role())
    assert "agentundo_" in cli("log", "--dsn", as_role, code=1).stderr


# Terminals, help, output --------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyagentundo.cli._common._has_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_questions_on_a_terminal(deals: Connection, dsn: str) -> None:
    before = snapshot(deals, "public.deals")
    arguments = ["--dsn", dsn, "revert", "call-1"]
    refused = CliRunner().invoke(main, arguments, input="n\n")
    assert refused.exit_code == 1
    assert "Revert call-1?" in refused.stderr
    assert "update" in refused.stderr
    assert_same(before, snapshot(deals, "public.deals"))
    assert CliRunner().invoke(main, [*arguments, "--json"], input="y\n").exit_code == 0
    assert CliRunner().invoke(main, ["--dsn", dsn, "redo", "-y", "call-1"]).exit_code == 0
    assert_same(before, snapshot(deals, "public.deals"))


def test_never_waits_without_a_terminal(deals: Connection, dsn: str) -> None:
    program = Path(sys.executable).with_name("agentundo")
    for arguments in (["revert", "call-1"], ["uninstall"]):
        result = subprocess.run(
            [program, *arguments],
            env={**os.environ, "DATABASE_URL": dsn, "AGENTUNDO_DATABASE_URL": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stderr


def every_command() -> list[tuple[str, click.Command]]:
    return sorted(main.commands.items())


@pytest.mark.parametrize(("name", "command"), every_command(), ids=lambda value: str(value)[:12])
def test_help_ends_with_an_example(name: str, command: click.Command) -> None:
    assert command.help is not None
    lines = inspect.cleandoc(command.help).split("\b")[-1].split("\n")
    assert lines[1] in ("Example:", "Examples:")
    assert all(line.lstrip().startswith(("agentundo", "pip")) for line in lines[2:] if line)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_hostile_names_do_not_reach_the_terminal(deals: Connection, cli: Run) -> None:
    hostile = "x\x1b[2J\r\nid\u202e"
    writes(deals, hostile, "update public.deals set amount = 1", run="run-43")
    for command in (["log"], ["show", hostile], ["plan", hostile], ["revert", "none\x1b[2J"]):
        output = CliRunner().invoke(main, command).output
        assert not set(output) & {"\x1b", "\r", "\u202e"}
    assert loaded(cli("log", hostile, "--json"))[0]["id"] == hostile
    assert loaded(cli("revert", hostile, "--json"))["status"] == "reverted"


def test_printable_leaves_ordinary_text_alone() -> None:
    assert printable("Grüße, 東京 👍") == "Grüße, 東京 👍"
    assert printable("a\x1b\n\x9b") == r"a\x1b\n\x9b"


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "rows": 1}, {"name": "long", "rows": 100}]
    print_table(rows, ["name", "rows"])
    assert capsys.readouterr().out == "name  rows\n----  ----\na        1\nlong   100\n"
