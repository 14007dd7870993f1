"""``exec``: a program of any kind, captured under a fresh id."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Run, loaded
from tests.conftest import Connect, Connection, MakeRole
from tests.support.terminal import COMMAND, ROOT, as_program, heed_interrupts, on_terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.core

ID = r"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"


def program(*statements: str) -> list[str]:
    """Return a program that runs statements on the database that libpq's variables name."""
    code = "import psycopg\nwith psycopg.connect('') as conn:\n" + "\n".join(
        f"    conn.execute({statement!r})" for statement in statements
    )
    return [sys.executable, "-c", code]


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


def test_it_captures_and_says_how_to_take_it_back(deals: Connection, dsn: str, cli: Run) -> None:
    result = as_program(
        "exec", "--dsn", dsn, "--run", "my run", "--actor", "a\\b c", "--on-behalf-of", "Dana Q.",
        "--tool", "fixer", "--",
        *program("update deals set stage = 'Lost'", "insert into meetings values (7, 'D-882')"),
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "")
    said = re.fullmatch(
        rf"python\S* ended with 0\. Captured under {ID}: 3 rows\n"
        r"  update public\.deals: 2 rows\n"
        r"  insert public\.meetings: 1 row\n"
        rf"take it back: agentundo revert {ID}\n",
        result.stderr,
    )
    assert said
    (entry,) = loaded(cli("log", said[1], "--json"))
    assert [entry[name] for name in ("run", "actor", "on_behalf_of", "tool", "scope")] == [
        "my run", "a\\b c", "Dana Q.", "fixer", None,
    ]  # fmt: skip
    cli("revert", said[2])
    rows = deals.execute("select stage from public.deals order by id").fetchall()
    assert rows == [("Won",), ("New",)]


def test_ids_are_fresh_and_sort_by_time(deals: Connection, dsn: str) -> None:
    ids = []
    for _ in range(2):
        said = as_program("exec", "--dsn", dsn, *program("update deals set amount = 1"))
        found = re.search(ID, said.stderr)
        assert found
        ids.append(found[1])
        time.sleep(0.002)
    assert ids[0] < ids[1]


def test_its_exit_code_is_the_programs(deals: Connection, dsn: str) -> None:
    said = as_program("exec", "--dsn", dsn, "--", "sh", "-c", "echo out; exit 17")
    assert (said.returncode, said.stdout) == (17, "out\n")
    assert re.match(rf"sh ended with 17\. Nothing was captured under {ID}\.\n", said.stderr)
    said = as_program("exec", "--dsn", dsn, "--", "sh", "-c", "kill -TERM $$")
    assert said.returncode == 128 + signal.SIGTERM
    said = as_program("exec", "--dsn", dsn, "--", "no such program")
    assert said.returncode == 127
    assert said.stderr == "error: 'no such program' is no program that can be run here.\n"
    missing = str(Path(__file__).parent / "nothing")
    assert as_program("exec", "--dsn", dsn, "--", missing).returncode == 127
    for there in (Path(__file__), Path(__file__).parent):
        said = as_program("exec", "--dsn", dsn, "--", str(there))
        assert said.returncode == 126


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_program_is_missing_also_where_path_may_not_be_looked_into(
    deals: Connection, dsn: str, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    said = as_program(
        "exec",
        "--dsn",
        dsn,
        "--",
        "no such program",
        PATH=f"{closed}{os.pathsep}{os.environ['PATH']}",
    )
    assert said.returncode == 127


def test_nothing_captured_says_why_that_may_be(deals: Connection, dsn: str) -> None:
    said = as_program("exec", "--dsn", dsn, "true").stderr
    assert "Nothing was captured under" in said
    assert "its driver does not read PGOPTIONS" in said
    assert "or changed only tables themselves (CREATE, ALTER, DROP), which is not captured" in said


def test_what_stands_in_pgoptions_stays(deals: Connection, dsn: str) -> None:
    show = "import psycopg; c = psycopg.connect(''); print(c.execute('show work_mem').fetchone())"
    said = as_program("exec", "--dsn", dsn, sys.executable, "-c", show, PGOPTIONS="-c work_mem=7MB")
    assert said.stdout == "('7MB',)\n"


def test_a_program_with_an_address_of_its_own_keeps_it(dsn: str) -> None:
    said = as_program("exec", "--dsn", dsn, "env", PGDATABASE="elsewhere")
    assert "PGDATABASE=elsewhere\n" in said.stdout
    assert "PGHOST=" not in said.stdout
    said = as_program("exec", "--dsn", dsn, "env")
    address = psycopg.conninfo.conninfo_to_dict(dsn)
    assert f"PGDATABASE={address['dbname']}\n" in said.stdout
    assert f"PGHOST={address['host']}\n" in said.stdout


def test_all_of_the_dsn_reaches_the_program(deals: Connection, dsn: str) -> None:
    show = (
        "import os, psycopg; c = psycopg.connect('');"
        "print(*(c.execute(f'show {one}').fetchone()[0] for one in"
        " ('work_mem', 'search_path', 'application_name')), os.environ['PGTARGETSESSIONATTRS'])"
    )
    address = psycopg.conninfo.make_conninfo(
        dsn,
        options="-c work_mem=7MB -c search_path=tenant_7",
        target_session_attrs="read-write",
        application_name="job",
    )
    said = as_program("exec", "--dsn", address, sys.executable, "-c", show)
    assert said.stdout == "7MB tenant_7 job read-write\n", said.stderr
    said = as_program(
        "exec", "--dsn", address, sys.executable, "-c", show, PGOPTIONS="-c work_mem=8MB"
    )
    assert said.stdout.startswith("8MB tenant_7 "), said.stderr


def test_dry_run_prints_and_hides_the_password(dsn: str, cli: Run) -> None:
    with_password = psycopg.conninfo.make_conninfo(dsn, password="s3cret")  # trusted anyway
    said = cli(
        "exec", "--dsn", with_password, "--run", "r 1", "--dry-run", "--", "psql", "-c", "select 1"
    ).stdout
    assert re.match(rf"PGOPTIONS='-c agent\.invocation={ID} -c agent\.run=r\\ 1 -c agent", said)
    assert said.endswith(" psql -c 'select 1'\n")
    assert "s3cret" not in said


def test_an_app_role_may_run_it(deals: Connection, dsn: str, make_role: MakeRole) -> None:
    role = make_role(member_of="agentundo_app")
    deals.execute(f"grant select, update on public.deals to {role}")
    as_role = psycopg.conninfo.make_conninfo(dsn, user=role)
    said = as_program("exec", "--dsn", as_role, *program("update deals set amount = 1"))
    assert re.search(rf"Captured under {ID}: 2 rows\n", said.stderr)


def test_interrupted_it_still_tells_what_was_captured(deals: Connection, dsn: str) -> None:
    code = (
        "import psycopg, time\n"
        "conn = psycopg.connect('', autocommit=True)\n"
        "conn.execute('update deals set amount = 1')\n"
        "print('written', flush=True)\n"
        "time.sleep(60)"
    )
    session = on_terminal(
        "exec", "--dsn", dsn, "--", sys.executable, "-c", code, interrupt_after="written"
    )
    assert session.code == 128 + signal.SIGINT
    assert re.search(r"python\S* ended with 130\. Captured under", session.text)
    assert "take it back: agentundo revert " in session.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("heeds", [True, False], ids=["heeds", "dies"])
def test_signals_are_passed_on_and_what_was_written_is_told(
    deals: Connection, dsn: str, number: signal.Signals, heeds: bool
) -> None:
    """Else the program would go on without us, under an id that nobody was told."""
    code = (
        "import psycopg, signal, sys, time\n"
        "def end(number, frame):\n"
        "    conn.execute('update deals set amount = 2')\n"
        "    sys.exit(8)\n"
        f"if {heeds}: signal.signal({int(number)}, end)\n"
        "conn = psycopg.connect('', autocommit=True)\n"
        "conn.execute('update deals set amount = 1')\n"
        "print('written', flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [*COMMAND, "exec", "--dsn", dsn, "--", sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stdout
    assert process.stdout.readline() == "written\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    ended = 8 if heeds else 128 + number
    assert process.returncode == ended
    rows = 4 if heeds else 2
    assert re.search(rf"ended with {ended}\. Captured under {ID}: {rows} rows\n", said), said
    assert "take it back: agentundo revert " in said


def test_an_impatient_signal_while_it_looks_up_what_was_written(
    deals: Connection, dsn: str, connect: Connect
) -> None:
    """Whoever holds up the looking up does not keep the id and the exit code from being told."""
    holds = (
        "import psycopg, sys\n"
        "psycopg.connect('').execute('update deals set amount = 1').connection.commit()\n"
        "print('written', flush=True)\n"
        "sys.stdin.readline()\n"
        "sys.exit(7)"
    )
    process = subprocess.Popen(
        [*COMMAND, "exec", "--dsn", dsn, "--", sys.executable, "-c", holds],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stdout
    assert process.stdout.readline() == "written\n"
    watcher = connect()
    with deals.transaction():
        deals.execute("lock table agentundo._invocation in access exclusive mode")
        process.stdin.write("go on\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock'"
        wait_until(lambda: bool(watcher.execute(waiting).fetchall()), what="its look")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7
    assert re.search(rf"ended with 7\. What it wrote is tagged {ID}; .* not be looked up", said), (
        said
    )


def test_an_agents_role_is_told_the_id_and_gets_its_programs_exit_code(
    deals: Connection, dsn: str, make_role: MakeRole
) -> None:
    """It may not look; what it wrote is captured all the same, and must not be written twice."""
    role = make_role(member_of="agentundo_agent")
    deals.execute(f"grant select, update on deals to {role}".encode())
    as_role = psycopg.conninfo.make_conninfo(dsn, user=role)
    for statement, code in (("update deals set amount = 1", 0), ("select 1 / 0", 1)):
        said = as_program("exec", "--dsn", as_role, *program(statement))
        assert said.returncode == code
        told = re.search(
            rf"ended with {code}\. What it wrote is tagged {ID}; {role} is an agent's role and may"
            r" not look\nask an operator to take it back: agentundo revert (\S+)\n$",
            said.stderr,
        )
        assert told, said.stderr
        assert told[1] == told[2]
    found = deals.execute("select rows from agentundo.invocations where id !~ '^call'").fetchall()
    assert [tuple(row) for row in found] == [(2,)]


def test_whatever_goes_wrong_afterwards_the_exit_code_is_the_programs(
    deals: Connection, dsn: str, make_role: MakeRole
) -> None:
    """Who takes a lost connection for a failure of the program runs it again, and adds twice."""
    role = make_role(member_of="agentundo_app")
    deals.execute(f"grant select, update on deals to {role}".encode())
    shut = (
        "import sys, psycopg\n"
        "psycopg.connect('').execute('update deals set amount = 1').connection.commit()\n"
        "conn = psycopg.connect(sys.argv[1], autocommit=True)\n"
        f"conn.execute('alter role {role} nologin')\n"
        "sys.exit(7)"
    )
    as_role = psycopg.conninfo.make_conninfo(dsn, user=role)
    said = as_program("exec", "--dsn", as_role, "--", sys.executable, "-c", shut, dsn)
    assert said.returncode == 7
    assert re.search(
        rf"ended with 7\. What it wrote is tagged {ID}; what of it was captured could not be looked"
        rf" up: .*{role}.*\nask an operator to take it back: agentundo revert \S+\n$",
        said.stderr,
    ), said.stderr


@pytest.mark.parametrize("options", [[], ["--for", "Dana Q."], ["--scope", "acme"]])
def test_an_app_is_offered_what_an_app_may(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, options: list[str]
) -> None:
    role = make_role(member_of="agentundo_app")
    deals.execute(f"grant select, update on deals to {role}".encode())
    as_role = psycopg.conninfo.make_conninfo(dsn, user=role)
    wrote = program("update deals set amount = 1")
    said = as_program("exec", "--dsn", as_role, *options, "--", *wrote)
    offered = said.stderr.splitlines()[-1]
    if not options:
        assert re.fullmatch(rf"ask an operator to take it back: agentundo revert {ID}", offered)
        return
    command = offered.partition(": agentundo ")[2].replace("PERSON", "olaf")
    if options[0] == "--scope":
        assert offered.startswith("an owner of the scope takes it back: ")
        deals.execute("select agentundo.set_scope_owner('acme', 'olaf')")
    assert "reverted: " in cli(*shlex.split(command), "--dsn", as_role).stdout


def test_a_program_that_tags_itself_is_found_under_its_own_id(
    deals: Connection, dsn: str, make_role: MakeRole
) -> None:
    tags = ("select agentundo.tag('inner one')", "update deals set amount = 1")
    app = make_role(member_of="agentundo_app")
    deals.execute(f"grant select, update on deals to {app}".encode())
    for user, whose in ((None, f"by {deals.info.user}"), (app, "in this scope")):
        address = psycopg.conninfo.make_conninfo(dsn, **({"user": user} if user else {}))
        said = as_program("exec", "--dsn", address, *program(*tags)).stderr
        assert re.fullmatch(
            rf"python\S* ended with 0\. Nothing was captured under {ID}\.\n"
            rf"Written meanwhile {whose}, under other ids:\n"
            r"  inner one: \d rows\n"
            r"A program that tags itself is captured under its own ids: agentundo revert ID\n",
            said,
        ), said
