"""Tables without a key whose storage is rewritten."""

from __future__ import annotations

from tests.conftest import Connection
from tests.support.there_and_back import run, write
from tests.support.undo import plan


def test_rewritten_rows_without_a_key_say_how_they_were_compared(db: Connection) -> None:
    run(db, "create table k (v int)", "select agentundo.track('k')")
    write(db, "insert into k values (7)")
    run(db, "vacuum full k")
    (row,) = plan(db, "inv")
    assert (row.status, (row.detail or {})["basis"]) == ("ok", "value")


def test_captured_writes_of_the_same_values_are_seen_in_rewritten_rows_without_a_key(
    db: Connection,
) -> None:
    run(db, "create table k (v int)", "select agentundo.track('k', 'all')")
    write(db, "insert into k values (7)")
    run(db, "update k set v = 7", "vacuum full k")
    (row,) = plan(db, "inv")
    assert (row.status, row.reason) == ("conflict", "row_rewritten")
