"""Pages are found, links lead somewhere, and what is named exists."""

from __future__ import annotations

import re

import pytest

from pyagentundo.cli import main
from tests.conftest import Connection
from tests.support import pages
from tests.support.undo import rows

LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


def text_of(page: str) -> str:
    return (pages.DOCS / page).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Return what headings are called in links."""
    bare = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.whole
@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(re.sub(r"`[^`]*`", "", text_of(page))):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = ((pages.DOCS / page).parent / path).resolve() if path else pages.DOCS / page
        assert file.is_file(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def test_index_lists_every_page() -> None:
    listed = set(re.findall(r"\(([\w-]+\.md)[)#]", text_of("README.md")))
    assert listed == {path.name for path in pages.DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.whole
@pytest.mark.parametrize("page", pages.PAGES)
def test_commands_and_options_exist(page: str) -> None:
    options = {o for command in [main, *main.commands.values()] for p in command.params
               for o in p.opts} | {"--help", "--version"}  # fmt: skip
    for code in re.findall(r"`(agentundo [a-z][^`]*)`", text_of(page)):
        _, name, *rest = code.split()
        assert name in {*main.commands, "demo"}, f"{page}: {code}"
        for option in rest:
            if option.startswith("--") and option != "--":
                assert option in options, f"{page}: {code}"


@pytest.mark.whole
@pytest.mark.parametrize("page", pages.PAGES)
def test_functions_and_relations_exist(page: str, db: Connection) -> None:
    known = {
        name
        for (name,) in rows(
            db,
            "select proname::text from pg_proc where pronamespace = 'agentundo'::regnamespace"
            " union select relname::text from pg_class"
            " where relnamespace = 'agentundo'::regnamespace",
        )
    }
    named = set(re.findall(r"\bagentundo\.(_?[a-z]\w*)", text_of(page)))
    # A setting, and what a file for completion is called.
    assert named - known - {"notify", "fish"} == set(), page


@pytest.mark.whole
@pytest.mark.parametrize("page", pages.PAGES)
def test_pages_read_well(page: str) -> None:
    text = text_of(page)
    made = "Made by .ci/make_reference.py" in text
    assert text.endswith("\n")
    assert "\t" not in text
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert made or long == []
