"""The Python in docs/ runs, and shows what it says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

import pyagentundo
from pyagentundo import errors
from tests.conftest import Connection, MakeRole
from tests.support import pages
from tests.support.pages import Section

_PAGES = ("python.md", "errors.md", "recipes.md", "operations.md")
_SECTIONS = [one for page in _PAGES for one in pages.sections(page) if one.title and one.blocks]


@pytest.fixture
def namespace(
    db: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, make_role: MakeRole
) -> Iterator[dict[str, Any]]:
    """Prepare what the pages take for granted, and close what they leave open."""
    (table,) = pages.blocks("python.md", "sql")
    db.execute(table.text.encode())
    db.execute("select agentundo.track('crm.deals', 'all')")
    app = make_role(member_of="agentundo_app")
    db.execute(
        f"grant usage on schema crm to {app}; grant select, update on crm.deals to {app}".encode()
    )
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", dsn)
    monkeypatch.setenv("CRM_APP_DATABASE_URL", f"{dsn} user={app}")
    names: dict[str, Any] = {}
    yield names
    for name in ("conn", "undo"):
        if hasattr(names.get(name), "close"):
            closing = names[name].close()
            if asyncio.iscoroutine(closing):
                asyncio.run(closing)


@pytest.mark.parametrize("section", _SECTIONS, ids=lambda one: f"{one.page} {one.title}")
def test_section_runs(section: Section, namespace: dict[str, Any]) -> None:
    with asyncio.Runner() as runner:
        pages.run(section, namespace, runner)


def test_every_error_is_explained() -> None:
    text = (pages.DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| (UN\d+)? ?\| `(\w+)` \| .+ \| (\d+) \|$", text, re.MULTILINE)
    explained = {name: (code or None, int(status)) for code, name, status in rows}
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.AgentUndoError)
    }
    del classes["AgentUndoError"]
    own = {name: cls.__dict__.get("sqlstate") for name, cls in classes.items()}
    assert explained == {name: (own[name], cls.http_status) for name, cls in classes.items()}
    assert set(classes) <= set(pyagentundo.__all__)


def test_every_method_is_in_the_reference() -> None:
    text = (pages.DOCS / "python.md").read_text() + (pages.DOCS / "recipes.md").read_text()
    methods = {name for name in dir(pyagentundo.AgentUndo) if not name.startswith("_")}
    missing = {name for name in methods if not re.search(rf"\b{name}\b[(`]|`{name}\b", text)}
    assert missing == set()
