"""Installing, upgrading, removing: all or nothing, twice is once, what cannot work says why."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pyagentundo
from pyagentundo import dsn as dsns
from pyagentundo import errors, installer
from pyagentundo._sql import LOCK_KEY, PREAMBLE, SqlFiles
from pyagentundo.errors import DsnError, InstallError, NotInstalled, VersionMismatch
from tests.support.dump import assert_same_dump, dump
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

#: What `agentundo sql` of each release printed, kept as it was.
FROZEN = sorted(Path(__file__).parent.glob("frozen/*.sql"))
Connection = psycopg.Connection[Any]


@contextmanager
def opened(dsn: str) -> Iterator[Connection]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def value(conn: Connection, query: str, *arguments: Any) -> Any:
    row = conn.execute(query.encode(), arguments).fetchone()
    assert row is not None
    return row[0]


def make_deals(conn: Connection) -> None:
    conn.execute(
        "create table public.deals (id text primary key, stage text, amount numeric);"
        "insert into public.deals values ('D-881', 'Qualified', 10), ('D-882', 'New', 20)"
    )


def agent_writes(conn: Connection, invocation: str) -> None:
    with conn.transaction():
        conn.execute("select agentundo.tag(%s)", [invocation])
        conn.execute("update public.deals set stage = 'Won'")


def install(dsn: str, **options: Any) -> installer.Report:
    with opened(dsn) as conn:
        return installer.install(conn, **options)


# Fresh, again, both at once ---------------------------------------------------------------------


def test_fresh_install(bare_dsn: str) -> None:
    report = install(bare_dsn)
    assert report.action == "installed"
    assert report.before is None
    assert report.after is not None
    assert report.after.version == pyagentundo.__version__
    assert report.after.schema_version == SqlFiles().schema_version()
    assert report.notices == []


def test_installing_twice_changes_nothing(server: Server, bare_dsn: str) -> None:
    install(bare_dsn)
    before = dump(server, bare_dsn, "--format=plain")
    report = install(bare_dsn)
    assert report.action == "unchanged"
    assert report.steps == []
    assert_same_dump(before, dump(server, bare_dsn, "--format=plain"))


def test_upgrade_applies_everything_again_and_keeps_what_was_captured(
    server: Server, bare_dsn: str
) -> None:
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        make_deals(conn)
        former = snapshot(conn, "public.deals")
        conn.execute("select agentundo.track('public.deals')")
        agent_writes(conn, "before-upgrade")
        before = dump(server, bare_dsn)
        assert installer.upgrade(conn).action == "re-applied"
        assert_same_dump(before, dump(server, bare_dsn))
        agent_writes(conn, "after-upgrade")
        conn.execute("select agentundo.revert(array['before-upgrade', 'after-upgrade'])")
        assert_same(former, snapshot(conn, "public.deals"))


def test_upgrade_while_agents_write_loses_no_capture(bare_dsn: str) -> None:
    install(bare_dsn)
    upgraded = threading.Event()

    def write_until_upgraded() -> int:
        count = 0
        with opened(bare_dsn) as conn:
            while not upgraded.is_set() or count < 10:
                count += 1
                agent_writes(conn, f"call-{count}")
        return count

    with opened(bare_dsn) as conn, ThreadPoolExecutor() as pool:
        make_deals(conn)
        conn.execute("select agentundo.track('public.deals')")
        writer = pool.submit(write_until_upgraded)
        try:
            for _ in range(3):
                installer.upgrade(conn)
        finally:
            upgraded.set()
        written = writer.result()
        assert value(conn, "select count(distinct invocation) from agentundo.changes") == written


def test_second_installer_waits_and_finds_it_done(bare_dsn: str) -> None:
    waiting = (
        "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    with opened(bare_dsn) as conn, ThreadPoolExecutor() as pool:
        with conn.transaction():
            conn.execute("select pg_advisory_xact_lock(%s)", [LOCK_KEY])
            runs = [pool.submit(install, bare_dsn) for _ in range(2)]
            wait_until(lambda: bool(value(conn, waiting) == 2), what="two installers")
        assert sorted(run.result().action for run in runs) == ["installed", "unchanged"]


def test_failure_in_the_middle_leaves_nothing(
    server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    broken = tmp_path / "sql"
    shutil.copytree(SqlFiles().root, broken)
    (broken / "99_broken.sql").write_text("select 1/0;")
    before = dump(server, bare_dsn)
    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        install(bare_dsn, files=SqlFiles(broken))
    assert caught.value.__notes__ == ["while running 99_broken.sql"]
    assert_same_dump(before, dump(server, bare_dsn))


def test_odd_session_defaults_do_not_matter(server: Server, bare_dsn: str) -> None:
    with opened(bare_dsn) as conn:
        settings = {
            "default_transaction_isolation": "serializable",
            "default_transaction_read_only": "on",
            "standard_conforming_strings": "off",
            "statement_timeout": "1ms",
            "search_path": "",
            "row_security": "off",
            "check_function_bodies": "on",
        }
        name = conn.info.dbname
        for setting, text in settings.items():
            conn.execute(f"alter database {name} set {setting} = '{text}'".encode())
    assert install(bare_dsn).action == "installed"


# Without the rights of a superuser ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "roles_exist", "owner"),
    [
        ("nocreaterole", False, "dev"),
        ("createrole", False, "agentundo_owner"),
        # Roles span databases; another one's agentundo_owner is not for dev to use.
        ("nocreaterole", True, "dev"),
    ],
)
def test_database_owner_installs_without_being_superuser(
    own_server: Server, attributes: str, roles_exist: bool, owner: str
) -> None:
    with opened(own_server.dsn()) as conn:
        conn.execute(f"create role dev login {attributes}".encode())
        conn.execute("create database crm owner dev")
        if roles_exist:
            installer.install(conn)
    dsn = own_server.dsn("crm", user="dev")
    report = install(dsn)
    assert report.action == "installed"
    left_out = " ".join(report.notices)
    assert ("left out: agentundo_owner" in left_out) is (
        attributes == "nocreaterole" and not roles_exist
    )
    assert "event trigger" in left_out
    assert ("is no member of agentundo_owner" in left_out) is roles_exist
    with opened(dsn) as conn:
        query = "select nspowner::regrole::text from pg_namespace where nspname = 'agentundo'"
        assert value(conn, query) == owner
        make_deals(conn)
        former = snapshot(conn, "public.deals")
        conn.execute("select agentundo.track('public.deals')")
        agent_writes(conn, "call-1")
        conn.execute("select agentundo.revert('call-1')")
        assert_same(former, snapshot(conn, "public.deals"))
        assert installer.uninstall(conn).action == "removed"
        assert_same(former, snapshot(conn, "public.deals"))


def test_superuser_adds_later_what_the_owner_left_out(own_server: Server) -> None:
    with opened(own_server.dsn()) as conn:
        conn.execute("create role dev login")
        conn.execute("create database crm owner dev")
    install(own_server.dsn("crm", user="dev"))
    with opened(own_server.dsn("crm")) as conn:
        assert value(conn, "select count(*) from pg_event_trigger") == 0
        report = installer.upgrade(conn)
        assert report.action == "re-applied"
        assert value(conn, "select count(*) from pg_event_trigger") > 0
        assert value(conn, "select to_regrole('agentundo_app') is not null")


def test_role_without_create_is_told_what_it_needs(bare_dsn: str, make_role: Any) -> None:
    role = make_role()
    with psycopg.connect(bare_dsn, user=role, autocommit=True) as conn:
        with pytest.raises(InstallError, match="Nothing was changed") as caught:
            installer.install(conn)
        assert "grant create on database" in (caught.value.hint or "")
        assert installer.installed(conn) is None


# What cannot work ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "shown"), [(130_023, "13.23"), (90_624, "9.6"), (120_000, "12.0")]
)
def test_old_server_is_refused(number: int, shown: str) -> None:
    with pytest.raises(
        InstallError, match=rf"needs PostgreSQL 14 or later; this server is {shown}"
    ):
        installer.check_server(number)


def test_supported_servers_pass() -> None:
    installer.check_server(140_000)
    installer.check_server(190_000)


def test_read_only_server_is_refused(bare_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a standby answers; a real one would take a second server.
    monkeypatch.setattr("pyagentundo.installer.PREAMBLE", "set transaction read only;")
    with pytest.raises(InstallError, match="read-only"):
        install(bare_dsn)


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("mysql://u:s3cret@host/db", '"mysql" is no PostgreSQL address'),
        ("postgresql://u:s3%zzcret@host/db", "cannot be read"),
        ("postgresql://u:s3cret@host:port/db", "its port is not a number"),
        ("postgresql://u:s3@cret@host/db", "the password is not escaped"),
        ("postgresql://u:s3@my:cret@host/db", "its port is not a number"),
        ("postgresql://u:s3cret@host/db?ssl=on", 'unknown parameter "ssl"'),
        ("postgresql://u:s3/cr?et=1@host/db", "cannot be read"),
        ("host=h password='s3cret", "neither a URL nor"),
        ("host=h password=s3 cret", "neither a URL nor"),
        ("s3cret", "neither a URL nor"),
        ("host=h foo=1", 'it has an unknown parameter "foo"'),
        ("host=h password=s3 cret=1", "neither a URL nor"),
        ("postgresql+psycopg://u:s3cret@127.0.0.1:1/db", 'Cannot connect to database "db"'),
    ],
)
def test_broken_dsn_is_explained_without_its_password(dsn: str, said: str) -> None:
    with pytest.raises(DsnError) as caught:
        dsns.connect(dsn)
    shown = f"{caught.value} {caught.value.hint}"
    assert said in shown
    assert "cret" not in shown


def test_driver_in_the_scheme_is_dropped() -> None:
    normal = dsns.normalise("postgresql+asyncpg://dana@host:6543/crm?sslmode=require")
    assert normal == "user=dana dbname=crm host=host port=6543 sslmode=require"


def test_dsn_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dsns.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert dsns.choose() == ("", "libpq's environment")
    monkeypatch.setenv("DATABASE_URL", "host=b")
    assert dsns.choose() == ("host=b", "DATABASE_URL")
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", "host=a")
    assert dsns.choose() == ("host=a", "AGENTUNDO_DATABASE_URL")
    assert dsns.choose("host=c") == ("host=c", "the DSN")
    assert dsns.choose("") == ("", "the DSN"), "of a pool that leaves all to libpq"


def test_error_classes_match_the_servers_states(bare_dsn: str) -> None:
    with (
        opened(bare_dsn) as conn,
        pytest.raises(errors.UndoConflict) as caught,
        errors.translated(),
    ):
        conn.execute(
            """do $$ begin raise exception using errcode = 'UN001', message = 'in the way',
                hint = 'look', detail = '{"conflicts": [{"relation": "deals"}], "total": 7}';
                end $$"""
        )
    error = caught.value
    assert (str(error), error.hint, error.total) == ("in the way", "look", 7)
    assert error.conflicts == [{"relation": "deals"}]
    assert isinstance(error.__cause__, psycopg.Error)


# Versions -----------------------------------------------------------------------------------------


def test_client_older_than_the_database_allows(bare_dsn: str) -> None:
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        assert installer.require(conn).min_client <= pyagentundo.__version__
        conn.execute("update agentundo._home set min_client = '99.0'")
        with pytest.raises(VersionMismatch, match=r"needs 99.0 or later"):
            installer.require(conn)


def test_database_older_than_the_client_needs(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(bare_dsn)
    monkeypatch.setattr(installer, "NEEDS_SCHEMA", 99)
    with opened(bare_dsn) as conn, pytest.raises(VersionMismatch, match="needs 99 or later"):
        installer.require(conn)


def test_newer_database_is_never_downgraded(server: Server, bare_dsn: str) -> None:
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        conn.execute("update agentundo._home set schema_version = 99")
        before = dump(server, bare_dsn)
        assert installer.install(conn).action == "unchanged"
        with pytest.raises(VersionMismatch, match="newer than this package"):
            installer.upgrade(conn)
        assert installer.require(conn).schema_version == 99
    assert_same_dump(before, dump(server, bare_dsn))


def test_nothing_to_upgrade_or_remove(bare_dsn: str) -> None:
    with opened(bare_dsn) as conn:
        for run in (installer.upgrade, installer.uninstall):
            with pytest.raises(NotInstalled, match="not installed in database"):
                run(conn)


def test_missing_migrations_run_in_order_and_once(bare_dsn: str, tmp_path: Path) -> None:
    newer = tmp_path / "sql"
    shutil.copytree(SqlFiles().root, newer)
    (newer / "migrations").mkdir(exist_ok=True)
    first = SqlFiles().schema_version() + 1
    for number in (first, first + 1):
        (newer / "migrations" / f"{number:04}_note.sql").write_text(
            f"create table if not exists agentundo._note (n int);"
            f"insert into agentundo._note values ({number});"
        )
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        report = installer.install(conn, files=SqlFiles(newer))
        assert report.action == "upgraded"
        assert installer.install(conn, files=SqlFiles(newer)).action == "unchanged"
        ran = conn.execute("select n from agentundo._note").fetchall()
        assert ran == [(first,), (first + 1,)]
        assert value(conn, "select schema_version from agentundo._home") == first + 1
        owners = "select count(distinct relowner) from pg_class where relnamespace = 'agentundo'"
        assert value(conn, owners + "::regnamespace") == 1


def test_upgrade_makes_private_functions_anew(server: Server, bare_dsn: str) -> None:
    """What they return and how their arguments are called may differ from release to release."""
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        expected = dump(server, bare_dsn)
        conn.execute(
            "create function agentundo._left_over() returns int language sql as 'select 1';"
            "drop function agentundo._digest(text);"
            "create function agentundo._digest(other text) returns bytea language sql as"
            " $$ select sha256(other::bytea) $$;"
            "drop function agentundo._key(int);"
            "create function agentundo._key(int) returns setof int language sql as 'select 1'"
        )
        assert installer.upgrade(conn).action == "re-applied"
        assert_same_dump(expected, dump(server, bare_dsn))


def test_upgrade_makes_deputies_anew(bare_dsn: str) -> None:
    """Only the text tells a true one: one of an earlier release acts no more."""
    install(bare_dsn)
    with opened(bare_dsn) as conn:
        make_deals(conn)
        former = snapshot(conn, "public.deals")
        conn.execute("select agentundo.track('public.deals')")
        agent_writes(conn, "call")
        deputy = "from pg_proc where pronamespace = 'agentundo_history'::regnamespace"
        name, body = (value(conn, f"select {what} {deputy}") for what in ("proname", "prosrc"))
        conn.execute(
            f"create or replace function agentundo_history.{name}"
            "(task text, relation regclass, argument text, state text) returns void language"
            f" plpgsql security definer as $deputy${body}-- of old\n$deputy$".encode()
        )
        problems = "select count(*) from agentundo.check() where severity = 'error'"
        assert value(conn, problems) == 1
        installer.upgrade(conn)
        assert value(conn, problems) == 0
        conn.execute("select agentundo.revert('call')")
        assert_same(former, snapshot(conn, "public.deals"))


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.stem)
def test_upgraded_install_equals_a_fresh_one(server: Server, bare_dsn: str, frozen: Path) -> None:
    with server.database(installed=True) as other:
        fresh_dsn = server.dsn(other.dbname)
        with opened(fresh_dsn) as conn:
            make_deals(conn)
            conn.execute("select agentundo.track('public.deals')")
        with opened(bare_dsn) as conn:
            conn.execute(frozen.read_bytes())
            make_deals(conn)
            former = snapshot(conn, "public.deals")
            conn.execute("select agentundo.track('public.deals')")
            agent_writes(conn, "old-call")
            installer.upgrade(conn)
            conn.execute("select agentundo.revert('old-call')")
            assert_same(former, snapshot(conn, "public.deals"))
        assert_same_dump(dump(server, fresh_dsn), dump(server, bare_dsn))


# Scripts ------------------------------------------------------------------------------------------


def psql(server: Server, dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    program = server.bindir / "psql" if server.bindir else "psql"
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False)


def test_printed_script_installs_the_same(server: Server, bare_dsn: str) -> None:
    script = SqlFiles().script(pyagentundo.__version__)
    result = psql(server, bare_dsn, script)
    assert (result.returncode, result.stderr) == (0, "")
    with server.database(installed=True) as other:
        assert_same_dump(dump(server, server.dsn(other.dbname)), dump(server, bare_dsn))
    again = psql(server, bare_dsn, script)
    assert again.returncode != 0
    assert "installed in this database already" in again.stderr
    assert "agentundo upgrade" in again.stderr


def test_head_of_the_script_tells_what_it_does() -> None:
    head = SqlFiles().script("1.2.3").split("\n\n")[0].splitlines()
    assert len(head) == 10
    assert all(line.startswith("-- ") for line in head)
    for word in ("1.2.3", "Locks:", "Creates:", "Grants:", "Undo:"):
        assert any(word in line for line in head)


def test_dry_run_changes_nothing_and_names_every_step(server: Server, bare_dsn: str) -> None:
    before = dump(server, bare_dsn)
    report = install(bare_dsn, dry_run=True)
    assert [step.name for step in report.steps] == [path.name for path in SqlFiles().files()]
    assert_same_dump(before, dump(server, bare_dsn))


# Removal ------------------------------------------------------------------------------------------


def test_after_keeping_history_a_plan_says_what_is_missing(bare_dsn: str) -> None:
    with opened(bare_dsn) as conn:
        make_deals(conn)
        former = snapshot(conn, "public.deals")
        installer.install(conn)
        conn.execute("select agentundo.track('public.deals')")
        agent_writes(conn, "call")
        installer.uninstall(conn, keep_history=True)
        installer.install(conn)
        for action in ("plan", "revert"):
            with pytest.raises(psycopg.DatabaseError) as refused:
                conn.execute(f"select agentundo.{action}('call')".encode())
            assert refused.value.sqlstate == "UN003"
            assert "has lost its rights on public.deals" in str(refused.value)
            assert "agentundo.track('public.deals')" in (refused.value.diag.message_hint or "")
        conn.execute("select agentundo.track('public.deals')")
        conn.execute("select agentundo.revert('call')")
        assert_same(former, snapshot(conn, "public.deals"))


def test_uninstall_leaves_nothing(server: Server, bare_dsn: str) -> None:
    with opened(bare_dsn) as conn:
        make_deals(conn)
        before, former = dump(server, bare_dsn), snapshot(conn, "public.deals")
        installer.install(conn)
        conn.execute("select agentundo.track('public.deals', 'all')")
        agent_writes(conn, "call-1")
        conn.execute("select agentundo.revert('call-1')")
        assert installer.uninstall(conn).after is None
        assert_same_dump(before, dump(server, bare_dsn))
        assert_same(former, snapshot(conn, "public.deals"))
        assert value(conn, "select count(*) from pg_event_trigger") == 0


def test_uninstall_dry_run_changes_nothing(server: Server, bare_dsn: str) -> None:
    install(bare_dsn)
    before = dump(server, bare_dsn)
    with opened(bare_dsn) as conn:
        assert installer.uninstall(conn, dry_run=True).steps
    assert_same_dump(before, dump(server, bare_dsn))


def test_kept_history_is_taken_up_again(bare_dsn: str) -> None:
    with opened(bare_dsn) as conn:
        make_deals(conn)
        installer.install(conn)
        conn.execute("select agentundo.track('public.deals')")
        agent_writes(conn, "call-1")
        assert installer.uninstall(conn, keep_history=True).action == "removed"
        with pytest.raises(NotInstalled):
            installer.require(conn)
        conn.execute("update public.deals set amount = amount + 1 where id = 'D-882'")
        installer.install(conn)
        conn.execute("select agentundo.track('public.deals')")
        conn.execute("update public.deals set amount = amount - 1 where id = 'D-882'")
        conn.execute("select agentundo.revert('call-1', on_conflict => 'skip')")
        stages = "select stage from public.deals order by id"
        assert [row[0] for row in conn.execute(stages.encode())] == ["Qualified", "Won"]


def test_uninstall_gives_way_to_whoever_holds_a_table(
    bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyagentundo._locks.time.sleep", lambda _: None)
    monkeypatch.setattr("pyagentundo.installer.PREAMBLE", PREAMBLE.replace("'3s'", "'20ms'"))
    notes: list[str] = []
    with opened(bare_dsn) as conn, opened(bare_dsn) as reader:
        make_deals(conn)
        installer.install(conn)
        conn.execute("select agentundo.track('public.deals')")
        with reader.transaction():
            reader.execute("select * from public.deals")
            with pytest.raises(errors.LockTimeout, match="Gave up after 5 attempts"):
                installer.uninstall(conn, note=notes.append)
        assert len(notes) == 4
        assert installer.require(conn)
        assert installer.uninstall(conn).action == "removed"
