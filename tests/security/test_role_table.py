"""The tables of docs/security.md, cell by cell: each role tries what each row says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.security.deeds import FUNCTIONS, THINGS, VIEWS, in_sql, shown
from tests.security.world import KINDS, World, world
from tests.support.pages import DOCS
from tests.support.servers import Server
from tests.support.undo import rows

pytestmark = pytest.mark.core

TEXT = (DOCS / "security.md").read_text(encoding="utf-8")


def table_of(heading: str) -> dict[str, list[str]]:
    """Return the cells below a heading by the first of each row, the head's under ``""``."""
    below = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in below.splitlines()
        if line.startswith("| ")
    ]
    return {"": cells[0][1:]} | {first: others for first, *others in cells[1:]}


def _in_sql(statements: tuple[str, ...]) -> Callable[[World, str], str]:
    return lambda realm, kind: in_sql(realm, kind, statements)


DEEDS: dict[str, dict[str, Callable[[World, str], str]]] = {
    "Functions": {f"`{name}`": _in_sql(tried) for name, tried in FUNCTIONS.items()},
    "Views": {f"`{name}`": _in_sql(tried) for name, tried in VIEWS.items()},
    "Everything else": THINGS,
}
TABLES = {heading: table_of(heading) for heading in DEEDS}


@pytest.fixture(scope="module")
def realm(server: Server) -> Iterator[World]:
    """Make one database for all rows: what a deed does is rolled back, or harmless."""
    with world(server) as made:
        yield made


def test_every_row_is_tried() -> None:
    for heading, cells in TABLES.items():
        assert cells.pop("") == list(KINDS)
        assert list(cells) == list(DEEDS[heading])


def test_every_public_function_and_view_has_a_row(realm: World) -> None:
    functions = rows(
        realm.boss,
        "select distinct proname::text from pg_proc"
        " where pronamespace = 'agentundo'::regnamespace and proname !~ '^_'",
    )
    assert {name for (name,) in functions} == set(FUNCTIONS)
    views = rows(
        realm.boss,
        "select relname::text from pg_class where relnamespace = 'agentundo'::regnamespace"
        " and relkind = 'v' and relname !~ '^_'",
    )
    assert {name for (name,) in views} == set(VIEWS)


def test_a_superuser_is_shown_what_others_are_not(realm: World) -> None:
    """Else the rows about what is hidden would prove nothing."""
    for table in ("private", "rows"):
        assert "sesame" in shown(realm.boss, table)


@pytest.mark.parametrize(
    ("heading", "row"), [(heading, row) for heading, deeds in DEEDS.items() for row in deeds]
)
def test_cells_are_true(realm: World, heading: str, row: str) -> None:
    said = dict(zip(KINDS, TABLES[heading][row], strict=True))
    found = {kind: DEEDS[heading][row](realm, kind) for kind in KINDS}
    assert said == found
