"""A whole undo by the command line, and what each command says of it."""

from __future__ import annotations

import psycopg
import pytest

from tests.cli.conftest import TABLES, Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.state import assert_same, snapshot

pytestmark = pytest.mark.core


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
    (planned,) = loaded(cli("plan", "call-1", "--json"))["counts"]
    assert (planned["action"], planned["status"], planned["rows"]) == ("update", "ok", 1)
    (row,) = loaded(cli("plan", "call-1", "--rows", "--json"))["rows"]
    assert (row["key"], row["before"]["stage"]) == ({"id": "D-881"}, "Qualified")
    (change,) = loaded(cli("diff", "call-1", "--json"))
    assert (change["column_name"], change["before"], change["after"]) == (
        "stage", "Qualified", "Won",
    )  # fmt: skip

    result = loaded(cli("revert", "call-1", "--json", "--by", "dana", "--reason", "wrong deal"))
    assert (result["status"], result["rows_updated"]) == ("reverted", 1)
    assert_same(before, snapshot(db, "public.deals"))
    about = loaded(cli("show", "call-1", "--json"))
    assert about["status"] == "reverted"
    assert about["reverted_by"] == "dana"
    assert about["revert_reason"] == "wrong deal"
    assert about["revert_id"] == result["revert_id"]
    assert len(about["changes"]) == 1

    assert loaded(cli("revert", "call-1", "--json"))["status"] == "already_reverted"
    redone = loaded(cli("redo", "call-1", "--json"))
    assert (redone["status"], redone["invocations"]) == ("redone", ["call-1"])
    assert_same(after, snapshot(db, "public.deals"))


def test_dry_runs_change_nothing(deals: Connection, cli: Run) -> None:
    before = snapshot(deals, *TABLES)
    for arguments in (
        ["revert", "call-1", "--dry-run"],
        ["track", "public.deals", "--capture", "all", "--dry-run"],
        ["untrack", "--all", "--dry-run"],
        ["untrack", "--all", "--drop-history", "--dry-run"],
        ["sync", "--dry-run"],
        ["uninstall", "--dry-run"],
        ["uninstall", "--keep-history", "--dry-run"],
        ["upgrade", "--dry-run"],
        ["purge", "--older-than", "0 s", "--dry-run"],
        ["erase", "public.deals", "D-881", "--reason", "asked to", "--dry-run"],
        ["hold", "call-1", "--reason", "incident", "--dry-run"],
        ["exec", "--dry-run", "--", "false"],
    ):
        cli(*arguments)
    assert_same(before, snapshot(deals, *TABLES))
    tracked = deals.execute("select relation, capture from agentundo.tracked order by 1")
    assert tracked.fetchall() == [("public.deals", "agent"), ("public.meetings", "agent")]
    assert deals.execute("select count(*) from agentundo.events").fetchone() == (0,)
    cli("revert", "call-1")
    done = snapshot(deals, *TABLES)
    cli("redo", "call-1", "--dry-run")
    assert_same(done, snapshot(deals, *TABLES))
    assert loaded(cli("revert", "call-1", "--json"))["status"] == "already_reverted"


@pytest.mark.parametrize("role", ["agentundo_operator", "agentundo_app"])
def test_roles_that_may_undo_do_it_without_being_owner(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, role: str
) -> None:
    deals.execute("select agentundo.set_scope_owner('acme', 'dana')")
    before = snapshot(deals, "public.deals")
    writes(deals, "call-3", "update public.deals set amount = 0", run="run-43", scope="acme")
    name = make_role(member_of=role)
    deals.execute(f"grant select on public.deals to {name}".encode())
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=name))
    to = ("--scope", "acme", "--by", "dana", *as_role)
    said = cli("revert", "--last", "--dry-run", *to).stdout
    assert "Undo 1 call by sales-bot for Dana:" in said
    cli("revert", "--last", *to)
    assert_same(before, snapshot(deals, "public.deals"))
    assert cli("redo", "call-3", *to).stdout.startswith("redone: call-3, 2 rows put back\n")
    cli("revert", "--run", "run-43", *to)
    assert_same(before, snapshot(deals, "public.deals"))
