"""The throw-away server: found, started, private, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import psycopg
import pytest

from pyagentundo._binaries import find_binaries, major_version
from pyagentundo.embedded import EmbeddedServer
from pyagentundo.errors import AgentUndoError


def test_server_lives_as_long_as_its_block() -> None:
    server = EmbeddedServer(settings={"max_connections": "17"})
    with server:
        directory = Path(server.host).parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with psycopg.connect(server.dsn()) as conn:
            row = conn.execute(
                "select current_setting('max_connections'), current_setting('listen_addresses'),"
                " current_setting('server_encoding')"
            )
            assert row.fetchone() == ("17", "", "UTF8")
    assert not directory.exists()
    with pytest.raises(AgentUndoError, match="The embedded server is not running"):
        server.dsn()


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_temporary_directory_is_used_where_the_server_can_reach_it(
    monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as directory:
        Path(directory).chmod(mode)
        monkeypatch.setattr("tempfile.tempdir", directory)
        with EmbeddedServer() as server:
            used = server.directory.parent
            psycopg.connect(server.dsn()).close()
        reachable = mode == 0o755 or os.geteuid() != 0
        assert used == Path(directory if reachable else "/tmp")
        assert list(Path(directory).iterdir()) == []


def test_tcp_asks_for_the_password() -> None:
    with EmbeddedServer(tcp=True) as server:
        assert server.host == "127.0.0.1"
        psycopg.connect(server.dsn()).close()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn(), password="wrong")


def test_failing_start_shows_the_log_and_leaves_nothing() -> None:
    server = EmbeddedServer(settings={"shared_buffers": "nonsense"})
    with pytest.raises(AgentUndoError, match="nonsense"):
        server.start()
    assert server._base is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
def test_root_can_use_programs_that_others_cannot_reach(tmp_path: Path) -> None:
    hidden = tmp_path / "home"
    hidden.mkdir(mode=0o700)
    package = find_binaries().parent.parent
    shutil.copytree(package, hidden / package.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, hidden / libraries.name)
    bindir = hidden / find_binaries().relative_to(package.parent)
    with EmbeddedServer(bindir=bindir) as server:
        with psycopg.connect(server.dsn()) as conn:
            conn.execute("select 1")
        assert hidden not in server.bindir.parents


def test_named_programs_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_binaries()
    major = major_version(found)
    assert major is not None
    assert find_binaries(major) == found
    monkeypatch.setenv("AGENTUNDO_PG_BIN", str(found))
    assert find_binaries() == found
    with pytest.raises(AgentUndoError, match="no server programs of PostgreSQL 9"):
        find_binaries(9)
    monkeypatch.setenv("AGENTUNDO_PG_BIN", str(tmp_path))
    with pytest.raises(AgentUndoError, match="AGENTUNDO_PG_BIN"):
        find_binaries()


def test_no_programs_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTUNDO_PG_BIN", raising=False)
    monkeypatch.setattr("pyagentundo._binaries._candidates", lambda: iter(()))
    with pytest.raises(AgentUndoError, match="No server programs") as caught:
        find_binaries()
    assert "pyagentundo[demo]" in (caught.value.hint or "")
