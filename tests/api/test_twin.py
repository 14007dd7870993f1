"""The API for threads is the one that .ci/make_sync.py makes of the one for tasks."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pyagentundo import AgentUndo, AsyncAgentUndo

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "make_sync.py"


@pytest.fixture
def converter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_sync", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_is_current() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_says_what_is_not(
    converter: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    package = tmp_path / "pyagentundo"
    (package / "_aio").mkdir(parents=True)
    (package / "_aio" / "one.py").write_text("async def f() -> None:\n    await g()\n")
    for name, value in {
        "PACKAGE": package,
        "SOURCE": package / "_aio",
        "TARGET": package / "_sync",
    }.items():
        monkeypatch.setattr(converter, name, value)
    assert converter.main(["--check"]) == 1
    assert "_sync/one.py is not current" in capsys.readouterr().out
    assert converter.main([]) == 0
    assert converter.main(["--check"]) == 0
    (package / "_sync" / "gone.py").write_text("")
    assert converter.main(["--check"]) == 1
    assert converter.main([]) == 0
    assert converter.main(["--check"]) == 0


def test_converts(converter: ModuleType) -> None:
    source = (
        "from collections.abc import AsyncIterator, Awaitable, Callable\n"
        "from pyagentundo._aio.pool import AsyncPool  # of AsyncPool\n"
        "async def f(x: Awaitable[T]) -> AsyncIterator[int]:\n"
        '    """Use `AsyncPool`: ``await f()`` in an ``async with`` block."""\n'
        "    async with AsyncPool() as pool:\n"
        "        return await (await pool.f(1)).g(\n"
        "            2,  # a comment\n"
        "        )\n"
    )
    assert converter.convert(source, "x.py").splitlines()[1:] == [
        "from collections.abc import Iterator, Callable",
        "from pyagentundo._sync.pool import Pool  # of Pool",
        "def f(x: T) -> Iterator[int]:",
        '    """Use `Pool`: ``f()`` in a ``with`` block."""',
        "    with Pool() as pool:",
        "        return (pool.f(1)).g(",
        "            2,  # a comment",
        "        )",
    ]


def test_has_the_same_methods() -> None:
    def public(cls: type) -> dict[str, list[str]]:
        members = inspect.getmembers(cls, inspect.isfunction)
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in members
            if not name.startswith("_")
        }

    assert public(AgentUndo) == public(AsyncAgentUndo)
    assert {"invocation", "tag", "tool", "connection", "plan", "revert", "redo", "log"} <= set(
        public(AgentUndo)
    )
    for name in public(AgentUndo):
        assert inspect.getdoc(getattr(AgentUndo, name)), f"{name} says what it does"
        for word in ("async", "await"):
            assert word not in (inspect.getdoc(getattr(AgentUndo, name)) or "")
