#!/usr/bin/env python3
"""Make pyagentundo/_sync, the API for threads, of pyagentundo/_aio, the one for tasks.

    python .ci/make_sync.py          write the files
    python .ci/make_sync.py --check  say which are not current; exit code 1 if there are any

Works on tokens, so comments and layout stay: `async` and `await` go, names change by the table
below, in texts and comments too. What cannot be said that way stands once for each in
pyagentundo/_concurrency.py.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "pyagentundo"
SOURCE, TARGET = PACKAGE / "_aio", PACKAGE / "_sync"

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "_aio": "_sync",
    "ASYNC": "SYNC",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncIterator": "Iterator",
    "Awaitable": "",
    "Coroutine": "",
    "async_finish": "finish",
    "async_resolve": "resolve",
    "async_sleep": "sleep",
    "asynccontextmanager": "contextmanager",
}
#: Every other name that begins with Async loses that.
_PREFIX = re.compile(r"^Async(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
#: Types of what is awaited: in the twin it is simply returned.
_TYPES = [
    (re.compile(r"\bAwaitable\[(\w+)\]"), r"\1"),
    (re.compile(r"\bCoroutine\[Any, Any, (\w+)\]"), r"\1"),
]
_TEXTS = [
    ("event loop", "process"),
    ("the tasks of one process", "the threads of a process"),
    ("in an ``async with`` block", "in a ``with`` block"),
    ("in tasks too", "in threads too"),
    ("async with", "with"),
    ("async for", "for"),
    ("await ", ""),
]
_HEAD = """\
# Made by .ci/make_sync.py of pyagentundo/_aio/{name}: change that one, not this.
"""
_PACKAGE = '''\
"""The API for threads, made of `pyagentundo._aio` by ``.ci/make_sync.py``: edit there."""
'''


def convert(text: str, name: str) -> str:
    """Return the twin of a module, not yet laid out."""
    for pattern, replacement in _TYPES:
        text = pattern.sub(replacement, text)
    out: list[str] = []
    end = (1, 0)
    lines = text.splitlines(keepends=True)
    dropped = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        gap = _between(lines, end, token.start)
        end = token.end
        if dropped:
            gap = gap.lstrip(" ")
        dropped = token.type == tokenize.NAME and token.string in ("async", "await")
        if dropped:
            out.append(gap)
            continue
        out += [gap, _converted(token)]
    made = "".join(out)
    # Imports that only the types of tasks needed.
    made = re.sub(r"^(from [\w.]+ import .*)$", _tidy_import, made, flags=re.MULTILINE)
    return _HEAD.format(name=name) + made


def _converted(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return _name(token.string)
    if token.type in (tokenize.STRING, tokenize.COMMENT):
        text = token.string
        for old, new in _TEXTS:
            text = text.replace(old, new)
        return _WORD.sub(lambda match: _name(match[0]), text)
    return token.string


def _name(name: str) -> str:
    return NAMES[name] if name in NAMES else _PREFIX.sub("", name)


def _tidy_import(match: re.Match[str]) -> str:
    head, _, names = match[1].partition(" import ")
    kept = [name for name in names.split(", ") if name]
    return f"{head} import {', '.join(kept)}" if kept else ""


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (row, column), (last, until) = start, end
    if row == last:
        return lines[row - 1][column:until] if row <= len(lines) else ""
    parts = [lines[row - 1][column:], *lines[row : last - 1]]
    if last <= len(lines):
        parts.append(lines[last - 1][:until])
    return "".join(parts)


def twins() -> dict[Path, str]:
    """Return every file of the twin package with its text."""
    made = {TARGET / "__init__.py": _PACKAGE}
    for source in sorted(SOURCE.glob("*.py")):
        if source.name != "__init__.py":
            made[TARGET / source.name] = convert(source.read_text(encoding="utf-8"), source.name)
    return made


def same(one: str, other: str) -> bool:
    """Tell whether two texts are the same module, whatever their layout and order of imports."""
    return _essence(one) == _essence(other)


def _essence(text: str) -> tuple[list[str], str, list[str]]:
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        node.names.sort(key=lambda alias: alias.name)
    rest = ast.Module([node for node in tree.body if node not in imports], [])
    return sorted(map(ast.dump, imports)), ast.dump(rest), _comments(text)


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    made = twins()
    if arguments == ["--check"]:
        stale = [
            path
            for path, text in made.items()
            if not path.is_file() or not same(path.read_text(encoding="utf-8"), text)
        ]
        stale += sorted(set(TARGET.glob("*.py")) - made.keys())
        for path in stale:
            print(f"{path.relative_to(PACKAGE.parent)} is not current: run .ci/make_sync.py")
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for path in set(TARGET.glob("*.py")) - made.keys():
        path.unlink()
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        print("ruff is not here: the files are not laid out, run `ruff format pyagentundo/_sync`")
        return 0
    subprocess.run([ruff, "check", "--quiet", "--fix", "--select", "I", TARGET], check=True)
    subprocess.run([ruff, "format", "--quiet", TARGET], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
