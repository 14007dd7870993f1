"""The database stays where it is, and its tables are written anew: all rows get other places.

Their versions may be others, so they are compared by value. Nobody has to do anything about it.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.there_and_back import run

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "rewrite",
    [
        "vacuum full",
        "vacuum full app.deals; vacuum full app.notes; vacuum full app.visits;"
        " vacuum full app.lines",
        "cluster app.deals using deals_pkey; cluster app.notes using notes_pkey;"
        " cluster app.visits_1 using visits_1_pkey; cluster app.visits_2 using visits_2_pkey;"
        " vacuum full app.lines",
        "alter table app.notes set unlogged; alter table app.deals set unlogged;"
        " alter table app.deals set logged; alter table app.notes set logged;"
        " alter table app.visits_1 set unlogged; alter table app.visits_1 set logged;"
        " alter table app.visits_2 set unlogged; alter table app.visits_2 set logged;"
        " alter table app.lines set unlogged; alter table app.lines set logged",
        "alter table app.deals alter id type bigint; alter table app.notes alter deal type bigint;"
        " alter table app.visits alter deal type bigint; vacuum full app.lines",
        "alter table app.deals add made float default random();"
        " alter table app.notes add made float default random();"
        " alter table app.visits add made float default random();"
        " alter table app.lines add made float default random();"
        " alter table app.deals drop made; alter table app.notes drop made;"
        " alter table app.visits drop made; alter table app.lines drop made",
    ],
    ids=["whole database", "vacuum full", "cluster", "unlogged", "retyped", "column come and gone"],
)
def test_what_was_written_before_the_tables_were_rewritten_goes_back(
    db: Connection, rewrite: str
) -> None:
    story = moving.begin(db)
    run(db, *rewrite.split("; "))
    moving.assert_arrived(db, story, "value")
    assert moving.errors(db) == []
    moving.assert_goes_on(db)
    moving.assert_goes_back(db, story)
