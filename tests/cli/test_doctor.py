"""``status`` and ``doctor``: what is tracked, and what would stop an undo."""

from __future__ import annotations

import re
import shlex
import sys
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyagentundo import __version__
from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.pooler import pooler

pytestmark = pytest.mark.core


def test_status_counts_images_before_the_first_analyze(deals: Connection, cli: Run) -> None:
    writes(deals, "call-3", "update public.deals set amount = 1", run="run-43")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        deals.execute("select pg_sleep(1.1)")  # statistics travel when a session is idle
        deals.execute("select 1")
        rows = {t["relation"]: t["rows"] for t in loaded(cli("status", "--json"))["tracked"]}
        if rows == {"public.deals": 6, "public.meetings": 1}:
            break
    assert rows == {"public.deals": 6, "public.meetings": 1}
    said = cli("status").stdout
    assert f"version         {__version__}\n" in said
    assert " kB" in said
    deals.execute("truncate public.meetings")
    deals.execute("vacuum analyze")
    assert "public.meetings  agent" in cli("status").stdout


def test_status_says_below_what_is_wrong(deals: Connection, cli: Run) -> None:
    disable_capture(deals)
    said = cli("status").stdout
    assert re.search(r"\npublic\.deals .*  see below\n", said)
    assert said.endswith("worst of each table. All of it, and what to do: agentundo doctor\n")
    assert re.search(r"\npublic\.meetings .*  ok\n", said)
    assert "\n\npublic.deals: trigger agentundo_update is disabled" in said


def test_the_same_finding_is_said_once(bare_dsn: str, cli: Run, make_role: MakeRole) -> None:
    """Who is no superuser installs without event triggers, of which there would be two."""
    owner = make_role()
    as_owner = ("--dsn", psycopg.conninfo.make_conninfo(bare_dsn, user=owner))
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(f"alter database {conn.info.dbname} owner to {owner}".encode())
        cli("install", *as_owner)
        said = cli("doctor", *as_owner).stdout
        assert said.count("there is no such event trigger") == 1
        assert "info: agentundo_ddl, agentundo_drop: there is no such event trigger" in said
        assert 'new tables are followed only by "agentundo sync"\n' in said
        assert len(loaded(cli("doctor", "--json", *as_owner))) > 1
        cli("uninstall", "--yes", *as_owner)
        conn.execute(f"alter database {conn.info.dbname} owner to {conn.info.user}".encode())


@pytest.mark.parametrize("kind", ["operator", "auditor"])
def test_doctor_says_whose_select_is_missing(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, kind: str
) -> None:
    role = make_role(member_of=f"agentundo_{kind}")
    deals.execute(f"grant select on public.meetings to {role}".encode())
    blind = (
        f"info: {role}: {role} may not read public.deals: plans, diffs and histories leave its"
        f" rows' keys and values out\n    grant select on public.deals to {role};\n"
    )
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    assert blind in cli("doctor", *as_role).stdout
    assert blind in cli("doctor", "--role", role).stdout
    assert "may not read" not in cli("doctor").stdout
    deals.execute(f"grant select on public.deals to {role}".encode())
    assert "may not read" not in cli("doctor", *as_role).stdout


def test_row_level_security_keeps_from_undo(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    """Whatever the policies let a role see: history does not carry them."""
    role = make_role(member_of="agentundo_app")
    deals.execute(
        "alter table public.deals enable row level security;"
        "create policy everything on public.deals using (true);"
        f"grant select, update on public.deals to {role}".encode()
    )
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    said = cli("plan", "call-1", *as_role, code=3).stdout
    assert "- public.deals: not_visible - row-level security of the table applies to you" in said
    assert (
        f"warning: {role}: row-level security of public.deals applies to {role}: it can undo"
        " nothing there, and sees no history\n"
        "    Undo as a role with BYPASSRLS, or as the owner where it is not forced.\n"
    ) in cli("doctor", "--role", role).stdout
    assert "row-level" not in cli("doctor").stdout
    deals.execute(f"alter role {role} bypassrls".encode())
    assert "row-level" not in cli("doctor", "--role", role).stdout
    assert (
        "   public.deals id=D-881: stage Won → Qualified\n"
        in cli("plan", "call-1", *as_role).stdout
    )


@pytest.mark.parametrize("kind", ["operator", "auditor"])
def test_a_table_in_a_schema_that_the_role_may_not_use(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, kind: str
) -> None:
    """It is named, and keeps nobody from being told the rest."""
    deals.execute(
        "create schema hidden; create table hidden.t (id int primary key);"
        "create table public.odd (code text not null unique, n int);"
        "alter table public.odd replica identity using index odd_code_key"
    )
    for table in ("hidden.t", "public.odd"):
        deals.execute("select agentundo.track(%s::regclass)", [table])
    writes(deals, "call-3", "insert into hidden.t values (1)")
    role = make_role(member_of=f"agentundo_{kind}")
    deals.execute(f"grant select on public.deals, public.meetings, public.odd to {role}".encode())
    to = ("--dsn", make_conninfo(dsn, user=role))
    assert f"{role} may not read hidden.t" in cli("doctor", *to).stdout
    assert f"{role} may not read hidden.t" in cli("plan", "call-3", *to).stdout
    assert (
        cli("history", "public.odd", "A", *to).stdout
        == "no captured versions of public.odd code=A\n"
    )


def test_names_of_roles_are_quoted_in_what_is_to_be_run(
    deals: Connection, cli: Run, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_auditor")
    odd = f'{role} it\'s "odd"'
    quoted = f'"{odd.replace(chr(34), chr(34) * 2)}"'
    deals.execute(f"alter role {role} rename to {quoted}".encode())
    try:
        said = cli("doctor", "--role", odd).stdout
        assert f"grant select on public.deals, public.meetings to {quoted};" in said
        assert f"agentundo grant {shlex.quote(odd)} --as agent" in said
    finally:
        deals.execute(f"alter role {quoted} rename to {role}".encode())


def test_status_of_nothing(db: Connection, cli: Run) -> None:
    assert (
        "0 tables tracked: nothing is captured yet. Next: agentundo track" in cli("status").stdout
    )


def test_doctor_tells_where_it_is_and_that_all_is_well(deals: Connection, cli: Run) -> None:
    said = cli("doctor").stdout
    assert f"database   {deals.info.dbname} on {deals.info.host}" in said
    assert f"as {deals.info.user}\n" in said
    assert f"{__version__} (schema version 1) in the database, {__version__} here\n" in said
    assert "server     PostgreSQL " in said
    assert "tracked    2 tables\n" in said
    assert "no problem found" in said
    assert not [row for row in loaded(cli("doctor", "--json")) if row["severity"] != "info"]


def test_doctor_speaks_the_command_lines_words(deals: Connection, cli: Run) -> None:
    disable_capture(deals)
    result = cli("doctor", code=1)
    assert "error: public.deals: trigger agentundo_update is disabled" in result.stdout
    assert 'Run "agentundo sync public.deals".' in result.stdout
    assert "no problem found" not in result.stdout
    (found,) = [r for r in loaded(cli("doctor", "--json", code=1)) if r["severity"] == "error"]
    assert found["hint"] == 'Run "agentundo sync public.deals".'


def disable_capture(deals: Connection) -> None:
    """Do what the event trigger would mend at once."""
    deals.execute(
        "alter event trigger agentundo_ddl disable;"
        "alter table public.deals disable trigger agentundo_update"
    )


# A pool -------------------------------------------------------------------------------------------


def test_a_pool_that_hands_settings_on_is_found(dsn: str, cli: Run) -> None:
    with pooler(dsn) as pooled:
        found = loaded(cli("doctor", "--json", "--dsn", pooled))
        (leak,) = [row for row in found if row["object"] == "pool"]
        assert leak["severity"] == "warning"
        assert "a session-level setting reaches other clients" in leak["problem"]
        assert "Tag with agentundo.tag() or SET LOCAL in each transaction" in leak["hint"]
        with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as conn:
            left = conn.execute("select current_setting('agentundo.pool_test', true)").fetchone()
        assert left in {(None,), ("",)}
    assert not [row for row in loaded(cli("doctor", "--json")) if row["object"] == "pool"]


def test_exec_behind_a_pool_says_that_it_captured_nothing(
    deals: Connection, dsn: str, cli: Run
) -> None:
    program = (
        "import psycopg, os\n"
        "conn = psycopg.connect(os.environ['POOLED'], options='', autocommit=True)\n"
        "conn.execute(\"update public.deals set stage = 'Lost'\")"
    )
    with pooler(dsn) as pooled:
        result = cli("exec", "--", "env", f"POOLED={pooled}", sys.executable, "-c", program)
    assert "Nothing was captured under" in result.stderr
    assert "a pooler is in between" in result.stderr


# A role -------------------------------------------------------------------------------------------


def test_which_tables_of_a_role_are_reversible(
    deals: Connection, cli: Run, make_role: MakeRole
) -> None:
    bot = make_role(member_of="agentundo_agent")
    deals.execute(
        f"create table public.audit (x int); create table public.mine (x int);"
        f"create table public.read_only (x int); create table public.columns (x int, y int);"
        f"create table public.parts (x int primary key) partition by list (x);"
        f"create table public.part partition of public.parts for values in (1);"
        f"create table public.away (x int); create schema hidden; create table hidden.t (x int);"
        f"select agentundo.track('public.parts'), agentundo.track('public.mine');"
        f"grant insert, update on public.deals, public.audit, public.part to {bot};"
        f"grant select on public.read_only to {bot}; grant update (y) on public.columns to {bot};"
        f"grant delete on hidden.t to {bot}; grant create on schema public to {bot};"
        f"alter table public.mine owner to {bot}"
    )
    result = cli("doctor", "--role", bot, code=1)
    assert (
        f"reversible: 2 of the 5 tables {bot} can write; not: public.audit, public.columns,"
        " public.mine\n"
    ) in result.stdout
    problems = {
        row["object"]: (row["problem"], row["hint"])
        for row in loaded(cli("doctor", "--role", bot, "--json", code=1))
        if row["severity"] == "error" and bot in row["problem"]
    }
    untracked = f"{bot} can write it, and that cannot be undone: it is not tracked"
    owned = (
        f"{bot} can write it, and that cannot be undone: it acts for the owner, who can switch"
        " capture off, alter and drop the table"
    )
    assert problems == {
        "public.audit": (untracked, "agentundo track public.audit"),
        "public.columns": (untracked, "agentundo track public.columns"),
        "public.mine": (
            owned,
            f"alter table public.mine owner to another role; then grant {bot} what it needs",
        ),
    }
    cli("track", "public.audit", "public.columns")
    deals.execute(f"alter table public.mine owner to {deals.info.user}")
    deals.execute(f"revoke all on public.mine from {bot}")
    said = cli("doctor", "--role", bot).stdout
    assert f"reversible: 4 of the 4 tables {bot} can write\n" in said


def test_a_role_that_is_no_agent(deals: Connection, cli: Run, make_role: MakeRole) -> None:
    plain = make_role()
    said = cli("doctor", "--role", plain).stdout
    assert f"info: {plain}: {plain} is no agent: only what it writes under a tag" in said
    assert f'"agentundo grant {plain} --as agent --apply"' in said
    assert f"{plain} can write no table of yours.\n" in said


def test_an_unhealthy_table_is_not_reversible(
    deals: Connection, cli: Run, make_role: MakeRole
) -> None:
    bot = make_role(member_of="agentundo_agent")
    deals.execute(f"grant insert on public.deals to {bot}")
    disable_capture(deals)
    found = [
        row
        for row in loaded(cli("doctor", "--role", bot, "--json", code=1))
        if bot in row["problem"]
    ]
    assert len(found) == 1
    assert "cannot be undone: trigger agentundo_update is disabled" in found[0]["problem"]
    assert found[0]["hint"] == 'Run "agentundo sync public.deals".'


def test_a_table_that_drags_untracked_rows_along_is_not_reversible(
    db: Connection, cli: Run, make_role: MakeRole
) -> None:
    bot = make_role(member_of="agentundo_agent")
    db.execute(
        "create table public.deals (id int primary key); create table public.orders"
        " (id int primary key, deal int references public.deals on delete cascade);"
        f"grant delete on public.deals to {bot}; select agentundo.track('public.deals')"
    )
    said = cli("doctor", "--role", bot, code=1).stdout
    assert f"\nnot reversible: the only table {bot} can write: public.deals\n" in said
    cli("track", "public.orders")
    said = cli("doctor", "--role", bot).stdout
    assert f"\nreversible: the only table {bot} can write: public.deals\n" in said


def test_superusers_and_foreign_tables(deals: Connection, cli: Run, make_role: MakeRole) -> None:
    root = make_role("superuser")
    said = cli("doctor", "--role", root, code=1).stdout
    assert "a superuser can switch capture off" in said
    assert "agentundo grant" not in said
    assert "is no agent" not in said
    assert f"reversible: 0 of the 2 tables {root} can write" in said
    bot = make_role("replication", member_of="agentundo_agent")
    deals.execute(
        "create foreign data wrapper nowhere; create server s foreign data wrapper nowhere;"
        "create foreign table public.remote (x int) server s;"
        f"grant insert on public.remote to {bot}"
    )
    said = cli("doctor", "--role", bot, code=1).stdout
    assert "a foreign table lies elsewhere" in said
    assert f"{bot} has REPLICATION: it can read everything" in said
    deals.execute("drop foreign data wrapper nowhere cascade")


def test_doctor_of_an_unknown_role(deals: Connection, cli: Run) -> None:
    assert "There is no role 'nobody'." in cli("doctor", "--role", "nobody", code=1).stderr
