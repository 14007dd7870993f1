"""Wherever the package is installed from, it finds the SQL files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import hatchling
import pytest

import pyagentundo
from pyagentundo._sql import SqlFiles
from tests.support.archives import unpack

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def files_below(root: Path, *folders: str) -> dict[str, bytes]:
    """Return what stands in these folders, by path from `root`, without what Python makes."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


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
        unpack(archive, tmp_path)
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


def test_wheel_holds_the_package_and_the_sql_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    about = {name for name in held if name.split("/")[0].endswith(".dist-info")}
    package = files_below(ROOT, "pyagentundo")
    package |= {f"pyagentundo/{name}": text for name, text in files_below(ROOT, "sql").items()}
    assert {name: text for name, text in held.items() if name not in about} == package
    assert {name.split("/", 1)[1] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip
    # Any Python, any machine: the server of the extra is a package of its own.
    assert wheel.name.endswith("-py3-none-any.whl")


def test_sdist_holds_the_repository(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive if member.isfile()}
        held = {name: archive.extractfile(member) for name, member in members.items()}
        texts = {name: file.read() for name, file in held.items() if file}
    folders = ("pyagentundo", "sql", "tests", "benchmarks", "docs", ".ci", ".github")
    expected = files_below(ROOT, *folders)
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"):
        expected[name] = (ROOT / name).read_bytes()
    assert {name for name in texts if name not in (".gitignore", "PKG-INFO")} == set(expected)
    assert {name: texts[name] for name in expected} == expected
    # Else `.ci/run` cannot be started from it.
    assert members[".ci/run"].mode & 0o111


def test_metadata_is_what_the_package_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert (metadata["Name"], metadata["Version"]) == ("pyagentundo", pyagentundo.__version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"demo", "test", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    # Without an extra: only what the package imports always, so no server and no framework.
    plain = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0] for line in plain} == {"psycopg", "sqlglot", "click"}


def test_version_of_the_command_is_the_packages(tmp_path: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)

    def printed(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "pyagentundo", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert printed("--version").split()[-1] == pyagentundo.__version__
    assert printed("sql") == SqlFiles(ROOT / "sql").script(pyagentundo.__version__)


def test_missing_sql_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyagentundo._sql.__file__", str(tmp_path / "pyagentundo" / "_sql.py"))
    with pytest.raises(FileNotFoundError, match="SQL files of pyagentundo are missing"):
        SqlFiles()
