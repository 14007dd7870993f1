"""``track``, ``untrack`` and ``sync``."""

from __future__ import annotations

import psycopg
import pytest

from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connect, Connection, MakeRole
from tests.support.terminal import as_program, on_terminal

pytestmark = pytest.mark.core


def test_track_says_what_it_did(deals: Connection, cli: Run) -> None:
    deals.execute("create table public.notes (id int primary key)")
    said = cli("track", "public.notes").stdout.splitlines()
    assert said[2] == "public.notes  captured from now on: writes of agents"
    said = cli("track", "deals", "--capture", "all").stdout.splitlines()
    assert said[2] == "public.deals  captured from now on: every write (was: writes of agents)"
    said = cli("track", "deals", "--capture", "all").stdout.splitlines()
    assert said[2] == "public.deals  captured as before: every write"
    said = cli("track", "deals", "--capture", "agent", "--dry-run").stdout.splitlines()
    assert said[2] == "public.deals  captured from now on: writes of agents (was: every write)"
    assert modes(deals)["public.deals"] == "all"
    said = cli("track", "deals", "--capture", "agent").stdout.splitlines()
    assert said[2] == "public.deals  captured from now on: writes of agents (was: every write)"


def modes(conn: Connection) -> dict[str, str]:
    return dict(conn.execute("select relation, capture from agentundo.tracked").fetchall())


def test_track_again_keeps_the_mode(deals: Connection, cli: Run) -> None:
    """The mode is a default that nobody typed; whoever tracks the whole schema means no table."""
    cli("track", "public.deals", "--capture", "all")
    said = cli("track", "public.deals").stdout.splitlines()
    assert said[2] == "public.deals  captured as before: every write"
    whole = cli("track", "--schema", "public").stdout
    assert "public.deals     captured as before: every write\n" in whole
    assert "public.meetings  captured as before: writes of agents\n" in whole
    assert modes(deals) == {"public.deals": "all", "public.meetings": "agent"}


def test_track_warns_of_rows_that_go_along_uncaptured(db: Connection, cli: Run) -> None:
    db.execute(
        "create table public.deals (id int primary key); create table public.orders"
        " (id int primary key, deal int references public.deals on delete cascade)"
    )
    said = cli("track", "public.deals").stderr
    assert "public.orders: it is not tracked, but rows of it are deleted or changed" in said
    assert 'Run "agentundo track public.orders".' in said
    assert cli("track", "public.orders").stderr == ""
    assert "public.orders" not in cli("track", "public.deals").stderr


def test_track_a_schema(db: Connection, cli: Run) -> None:
    db.execute(
        'create schema "My CRM"; create table "My CRM"."Deals" (id int primary key);'
        'create table "My CRM".parts (id int) partition by range (id);'
        'create table "My CRM".part partition of "My CRM".parts default;'
        'create unlogged table "My CRM".quick (id int primary key);'
        'create view "My CRM".v as select 1 as one'
    )
    tracked = loaded(cli("track", "--schema", "My CRM", "--capture", "all", "--json"))
    assert {'"My CRM"."Deals"', '"My CRM".parts'} <= {row["relation"] for row in tracked}
    modes = db.execute("select distinct capture from agentundo.tracked").fetchall()
    assert modes == [("all",)]
    db.execute('create table "My CRM".later (id int primary key)')
    names = {row["relation"] for row in loaded(cli("status", "--json"))["tracked"]}
    assert '"My CRM".later' in names
    assert len(loaded(cli("untrack", "--all", "--json"))) == 4


def test_track_what_cannot_be(db: Connection, cli: Run) -> None:
    db.execute("create view public.v as select 1 as one; create table t (id int)")
    result = cli("track", "public.v", code=5)
    assert "cannot track public.v" in result.stderr
    assert '  hint: "agentundo status" lists what is tracked.' in result.stderr
    result = cli("track", "public.nothing", code=1)
    assert result.stderr.startswith(
        'error: relation "public.nothing" does not exist\n  hint: Write'
    )
    for name in ("public.Ca p", "nowhere.t", "public.Capital"):
        result = cli("track", name, code=1)
        assert result.stderr.endswith(
            "Names with capitals or spaces are quoted as in SQL, and in a shell once more:"
            " 'sales.\"My Deals\"'.\n"
        )
    db.execute('create table public."Ca p" (id int primary key)')
    cli("track", 'public."Ca p"')
    for options in ([], ["--dry-run"]):
        result = cli("track", "--schema", '"My CRM"', *options, code=1)
        assert result.stderr == (
            "error: There is no schema '\"My CRM\"'.\n  hint: Write it as it is, without the quotes"
            ' of SQL; "\\dn" in psql lists schemas.\n'
        )


def test_track_as_an_operator_who_is_no_owner(
    db: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    db.execute("create table public.t (id int primary key)")
    role = make_role(member_of="agentundo_operator")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    result = cli("track", "public.t", *as_role, code=5)
    assert "can have table public.t tracked" in result.stderr
    assert f"Run it as {db.info.user}, or as a superuser." in result.stderr


def test_untrack_keeps_history(deals: Connection, cli: Run) -> None:
    said = cli("untrack", "deals").stdout.splitlines()
    assert said[2] == "public.deals  no longer captured; what was captured can still be undone"
    cli("revert", "call-1")
    row = deals.execute("select stage from public.deals where id = 'D-881'").fetchone()
    assert row == ("Qualified",)
    deals.execute("create table public.other (id int)")
    result = cli("untrack", "other", code=5)
    assert result.stderr == (
        'error: public.other is not tracked\n  hint: "agentundo status" lists what is.\n'
    )


def test_untrack_drops_history_only_when_told(deals: Connection, dsn: str, cli: Run) -> None:
    result = as_program("untrack", "public.deals", "--drop-history", "--dsn", dsn)
    assert result.returncode == 2
    assert "Drop the history of public.deals for good?" in result.stderr
    assert "--yes says yes beforehand" in result.stderr
    session = on_terminal("untrack", "public.deals", "--drop-history", "--dsn", dsn, answer="n")
    assert session.code == 1
    assert len(loaded(cli("status", "--json"))["tracked"]) == 2
    said = cli("untrack", "public.deals", "--drop-history", "--yes").stdout
    assert "no longer captured; its history is gone, nothing of it can be undone" in said
    assert loaded(cli("untrack", "--all", "--drop-history", "--yes", "--json")) == [
        {"relation": "public.meetings"}
    ]
    assert cli("untrack", "--all", "--drop-history").stdout == "no table\n"


def test_sync_reports_what_it_did(deals: Connection, cli: Run) -> None:
    deals.execute("alter table public.deals add column note text")
    said = cli("sync").stdout
    assert "public.deals     in step with its table\n" in said
    assert "public.meetings" in said
    assert "public.meetings" not in cli("sync", "public.deals").stdout
    writes(deals, "call-3", "update public.deals set note = 'x'")
    cli("revert", "call-3")
    assert deals.execute("select count(*) from public.deals where note = 'x'").fetchone() == (0,)
    deals.execute("create table public.other (id int)")
    said = cli("sync", "public.other", code=5).stderr
    assert 'hint: Run "agentundo track" for it first.' in said


def test_a_lock_that_cannot_be_had(
    deals: Connection, connect: Connect, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyagentundo.cli.tracking.PAUSE", 0.01)
    monkeypatch.setattr("pyagentundo.cli.tracking.ATTEMPTS", 2)
    eve = connect(autocommit=False)
    eve.execute("lock table public.meetings in access exclusive mode")
    result = cli("untrack", "public.meetings", code=1)
    assert "trying again (2 of 2)" in result.stderr
    assert "error: Gave up after 2 attempts: " in result.stderr
    assert "Something holds a lock for long" in result.stderr
    eve.rollback()
    assert len(loaded(cli("status", "--json"))["tracked"]) == 2
