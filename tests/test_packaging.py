"""Wherever the package is installed from, it finds the SQL files."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import hatchling
import pytest

from pyagentundo._sql import SqlFiles

ROOT = Path(__file__).parent.parent
_WHERE = (
    "from pyagentundo._sql import SqlFiles; files = SqlFiles();"
    "print(files.root); print([path.name for path in files.files()]);"
    "print((files.root / 'uninstall.sql').is_file(), files.schema_version())"
)


def build(source: Path, kind: str, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(into.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def sql_of(python: str | Path, cwd: Path, **environment: str) -> list[str]:
    """Return where a Python finds the SQL files, and which."""
    return subprocess.run(
        [python, "-c", _WHERE],
        cwd=cwd,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


def expected() -> list[str]:
    files = SqlFiles(ROOT / "sql")
    names = [path.name for path in files.files()]
    return [str(names), f"True {files.schema_version()}"]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


def unpacked_wheel(source: Path, tmp_path: Path) -> Path:
    wheel = build(source, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def test_wheel(tmp_path: Path) -> None:
    site = unpacked_wheel(ROOT, tmp_path)
    found = sql_of(sys.executable, tmp_path, PYTHONPATH=str(site))
    assert found == [str(site / "pyagentundo" / "sql"), *expected()]
    assert (site / "pyagentundo" / "py.typed").is_file()
    assert (site / "pyagentundo" / "demo" / "schema.sql").is_file()
    metadata = next(site.glob("*.dist-info"))
    assert "agentundo = pyagentundo.cli:main" in (metadata / "entry_points.txt").read_text()
    assert (metadata / "licenses" / "LICENSE").is_file()


def test_sdist_and_the_wheel_made_of_it(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.glob("pyagentundo-*"))
    found = sql_of(sys.executable, tmp_path, PYTHONPATH=str(source))
    assert found == [str(source / "sql"), *expected()]
    assert (source / "pyagentundo" / "demo" / "schema.sql").is_file()
    site = unpacked_wheel(source, tmp_path)
    found = sql_of(sys.executable, tmp_path, PYTHONPATH=str(site))
    assert found == [str(site / "pyagentundo" / "sql"), *expected()]


def test_editable_install_reads_the_checkout(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    # The new environment borrows this one's packages to build with, and psycopg to import; not
    # pyagentundo, which may be installed here and would be found first.
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for package in Path(hatchling.__file__).parent.parent.iterdir():
        if not package.name.lower().startswith(("pyagentundo", "_pyagentundo", "__")):
            (borrowed / package.name).symlink_to(package)
    packages = str(borrowed)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--editable", str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": packages}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (tmp_path / "elsewhere").mkdir()
    found = sql_of(python, tmp_path / "elsewhere", PYTHONPATH=packages)
    assert found == [str(ROOT / "sql"), *expected()]


def test_missing_sql_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyagentundo._sql.__file__", str(tmp_path / "pyagentundo" / "_sql.py"))
    with pytest.raises(FileNotFoundError, match="SQL files of pyagentundo are missing"):
        SqlFiles()
