"""Tables that are gone, and no event trigger told."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.there_and_back import make_t, run, write
from tests.support.undo import FORCE, refused, revert


@pytest.mark.parametrize("mode", [{}, FORCE, {"on_conflict": "cascade"}])
def test_table_that_is_gone_is_called_by_its_name(db: Connection, mode: dict[str, str]) -> None:
    """Where no event trigger has told us of it, its number is still noted."""
    run(db, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    make_t(db, 2)
    write(db, "update t set v = 0")
    run(db, "drop table t")
    with refused("UN001") as caught:
        revert(db, "inv", **mode)
    assert {conflict["relation"] for conflict in caught.conflicts} == {"public.t"}
