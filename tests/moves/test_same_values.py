"""Later writes of the same values are still seen in a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import FORMS, move
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import refused, revert, write


@pytest.mark.parametrize("form", ["custom", "custom, one transaction"])
@pytest.mark.parametrize("synced", [True, False], ids=["synced", "not synced"])
def test_captured_writes_of_the_same_values_are_seen_after_a_restore(
    db: Connection,
    dsn: str,
    server: Server,
    bare_dsn: str,
    tmp_path: Path,
    form: str,
    synced: bool,
) -> None:
    """In one transaction all rows get one version: that must not make them look untouched."""
    run(
        db,
        "create table t (id int primary key, v int)",
        "insert into t values (1, 1), (2, 2)",
        "select agentundo.track('t', 'all')",
    )
    write(db, "call", "update t set v = v + 9")
    run(db, "update t set v = v where id = 1")
    before = snapshot(db, "t")
    move(server, FORMS[form], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        if synced:
            there.execute("select agentundo.sync()")
        with refused("UN001") as caught:
            revert(there, "call")
        assert caught.reasons == ["row_rewritten"]
        assert_same(before, snapshot(there, "t"))
