"""Pages of the documentation as programs.

A page's Python blocks run section by section (``## …``), in order, after those at its top. An
expression behind which ``# → value`` stands must evaluate to what is shown. Blocks may ``await`` as
they stand.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: What people read, as paths from docs/.
PAGES = ("../README.md", *sorted(path.name for path in DOCS.glob("*.md")))

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"\s*# → (.+)")


@dataclass
class Section:
    """A part of a page.

    Attributes:
        page: the file's name.
        title: its heading; empty for the top of the page.
        blocks: its Python blocks, each with the number of its first line.

    """

    page: str
    title: str
    blocks: list[tuple[int, str]] = field(default_factory=list)


def sections(page: str) -> list[Section]:
    """Return the sections of a page, the top first."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [Section(page, "")]
    starts = [0]
    for heading in re.finditer(r"^## (.+)$", text, re.MULTILINE):
        found.append(Section(page, heading[1]))
        starts.append(heading.start())
    for block in _FENCE.finditer(text):
        section = next(
            s for s, at in zip(found[::-1], starts[::-1], strict=True) if at < block.start()
        )
        section.blocks.append((text.count("\n", 0, block.start(1)) + 1, block[1]))
    return found


@dataclass(frozen=True)
class Block:
    """A block of code in any language.

    Attributes:
        page: the file, from docs/.
        line: the number of its first line.
        section: the heading that it stands under; empty for the top of the page.
        language: what stands behind its fence.
        text: the code.

    """

    page: str
    line: int
    section: str
    language: str
    text: str


def blocks(page: str, *languages: str) -> list[Block]:
    """Return a page's blocks in some languages, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        if block[1] in languages:
            headings = re.findall(r"^## (.+)$", text[: block.start()], re.MULTILINE)
            line = text.count("\n", 0, block.start(2)) + 1
            title = headings[-1] if headings else ""
            found.append(Block(page, line, title, block[1], block[2]))
    return found


def section(page: str, title: str) -> Section:
    """Return one section."""
    return next(one for one in sections(page) if one.title == title)


def run(section: Section, namespace: dict[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
    """Run a section's blocks after those at the top of its page.

    Args:
        section: what to run.
        namespace: in which; `undo` and `conn` that it makes are for the caller to close.
        runner: for what the blocks await.

    """
    top = sections(section.page)[0]
    namespace |= {"_shows": _shows, "__name__": "page"}
    for line, source in [*top.blocks, *(section.blocks if section.title else [])]:
        _run_block(source, line, section, namespace, runner)
    return namespace


def _run_block(
    source: str, line: int, section: Section, namespace: dict[str, Any], runner: asyncio.Runner
) -> None:
    source = "\n" * (line - 1) + source
    code = compile(
        _Checked(source).visit(ast.parse(source)),
        str(DOCS / section.page),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(types.FunctionType(code, namespace)())
    else:
        exec(code, namespace)


class _Checked(ast.NodeTransformer):
    """Puts ``_shows(expression, "value")`` where ``# → value`` stands behind an expression.

    By its syntax tree, because whoever lays out the pages may spread it over several lines.
    """

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines()

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """Check one expression that is a statement."""
        last = self._lines[(node.end_lineno or node.lineno) - 1].encode()
        shown = _SHOWN.fullmatch(last[node.end_col_offset or 0 :].decode())
        if shown:
            arguments = [node.value, ast.Constant(shown[1])]
            call = ast.Call(ast.Name("_shows", ast.Load()), arguments, [])
            node.value = ast.fix_missing_locations(ast.copy_location(call, node.value))
        return node


def _shows(value: Any, shown: str) -> None:
    assert repr(value) == shown, f"the page shows {shown}, it is {value!r}"
