"""What docs/operations.md says of locks, dumps and publications."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support import pages
from tests.support.servers import Server
from tests.support.undo import PlanRow, plan, revert, rows, write

LOCKS = """\
select distinct l.mode from pg_locks l
where l.relation = 'deals'::regclass and l.granted and l.mode <> 'AccessShareLock'
"""


def held(db: Connection, statement: str) -> set[str]:
    """Return the modes in which a transaction holds the table after a statement."""
    with db.transaction(force_rollback=True):
        db.execute(statement.encode())
        return {mode for (mode,) in rows(db, LOCKS)}


@pytest.fixture
def written(db: Connection) -> Connection:
    """Let an agent write a deal."""
    db.execute("select agentundo.track('deals')")
    write(db, "call-1", "update deals set stage = 'Won' where id = 'D-881'")
    return db


# Locks --------------------------------------------------------------------------------------------


def test_locks_of_tracking(db: Connection) -> None:
    assert held(db, "select agentundo.track('deals')") == {"ShareRowExclusiveLock"}
    db.execute("select agentundo.track('deals')")
    assert "AccessExclusiveLock" in held(db, "select agentundo.untrack('deals')")


def test_locks_of_reading(written: Connection) -> None:
    for reading in (
        "select agentundo.plan('call-1')",
        "select agentundo.diff('call-1')",
        "select * from agentundo.invocations",
    ):
        assert held(written, reading) == set()


def test_locks_of_a_revert(written: Connection) -> None:
    modes = held(written, "select agentundo.revert('call-1')")
    assert modes <= {"RowShareLock", "RowExclusiveLock"}
    written.execute(
        "create function touch() returns trigger language plpgsql as 'begin return new; end';"
        " create trigger touch before update on deals for each row execute function touch()"
    )
    assert "ShareRowExclusiveLock" in held(written, "select agentundo.revert('call-1')")


def test_track_waits_three_seconds_at_most(db: Connection, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.execute("update deals set owner = 'eve'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        db.execute("select agentundo.track('deals')")
    other.rollback()


# Dumps --------------------------------------------------------------------------------------------


@pytest.fixture
def app(db: Connection) -> Connection:
    """Make a schema of its own with a tracked table that an agent has written."""
    db.execute(
        "create schema app; create table app.deals (id int primary key, stage text);"
        " insert into app.deals values (1, 'Open'), (2, 'Open');"
        " select agentundo.track('app.deals')"
    )
    write(db, "call-1", "update app.deals set stage = 'Won'")
    return db


def restored(server: Server, source: str, target: str, *schemas: str, errors: int = 0) -> None:
    """Dump schemas and restore them with psql, which goes on after errors."""
    if server.bindir is None:
        pytest.skip("needs the server's own pg_dump")
    named = [f"--schema={schema}" for schema in schemas]
    dumped = subprocess.run(
        [server.bindir / "pg_dump", *named, f"--dbname={source}"], check=True, capture_output=True
    )
    loaded = subprocess.run(
        [server.bindir / "psql", "-X", "-q", "-d", target], input=dumped.stdout,
        capture_output=True, check=False,
    )  # fmt: skip
    messages = loaded.stderr.decode()
    assert messages.count("ERROR") == errors, messages
    if errors:
        assert 'schema "agentundo" does not exist' in messages


def test_one_schema_without_agentundo(
    app: Connection, dsn: str, server: Server, bare_dsn: str
) -> None:
    restored(server, dsn, bare_dsn, "app", errors=8)
    with psycopg.connect(bare_dsn) as copy:
        assert rows(copy, "select * from app.deals order by id") == [(1, "Won"), (2, "Won")]
        assert rows(copy, "select tgname from pg_trigger") == []


def test_one_schema_with_the_history(
    app: Connection, dsn: str, server: Server, bare_dsn: str
) -> None:
    restored(server, dsn, bare_dsn, "app", "agentundo", "agentundo_history")
    with psycopg.connect(bare_dsn, autocommit=True) as copy:
        copy.execute("select agentundo.sync()")
        assert revert(copy, "call-1").status == "reverted"
        assert rows(copy, "select * from app.deals order by id") == [(1, "Open"), (2, "Open")]
        missing = "select object from agentundo.check() where severity = 'info' order by 1"
        assert rows(copy, missing) == [("agentundo_ddl",), ("agentundo_drop",)]


def by_id(found: list[PlanRow]) -> dict[int, PlanRow]:
    return {(row.key or {})["id"]: row for row in found}


def test_what_a_restored_copy_knows(
    app: Connection, dsn: str, server: Server, bare_dsn: str
) -> None:
    """What the table on the page says of cascade, names, versions and rewritten rows."""
    app.execute("select agentundo.track('app.deals', 'all')")
    write(app, "call-2", "update app.deals set stage = 'Lost' where id = 1")
    app.execute("update app.deals set stage = stage where id = 2")
    before = by_id(plan(app, "call-1"))
    assert (before[1].reason, before[2].reason) == ("row_changed", "row_rewritten")
    assert by_id(plan(app, "call-1", on_conflict="cascade"))[1].status == "ok"

    restored(server, dsn, bare_dsn, "app", "agentundo", "agentundo_history")
    with psycopg.connect(bare_dsn, autocommit=True) as copy:
        copy.execute("select agentundo.sync()")
        after = by_id(plan(copy, "call-1"))
        assert (after[1].reason, after[2].reason) == ("row_changed", "row_rewritten")
        assert by_id(plan(copy, "call-1", on_conflict="cascade"))[1].status == "ok"
        writer = "select invocation from agentundo.row_writer('app.deals', %s, %s, %s)"
        assert rows(copy, writer, '{"id": 1}', ["stage"], ["call-1"]) == [("call-2",)]
        history = (
            "select invocation, version from agentundo.row_history('app.deals', '{\"id\": 1}')"
        )
        assert rows(copy, history) == [("call-1", None), ("call-2", None)]
        done = revert(copy, ["call-1", "call-2"], on_conflict="skip")
        assert (done.status, done.rows_skipped) == ("partially_reverted", 1)
        assert rows(copy, "select * from app.deals order by id") == [(1, "Open"), (2, "Won")]


def test_one_schema_without_our_triggers(
    app: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    if server.bindir is None:
        pytest.skip("needs the server's own pg_dump")
    blocks = pages.blocks("operations.md", "text")
    (script,) = (one.text for one in blocks if "pg_restore -L" in one.text)
    script = script.replace("app.dump source", f"app.dump '{dsn}'")
    script = script.replace("-d target", f"-d '{bare_dsn}'")
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{server.bindir}:{os.environ['PATH']}"},
    )
    with psycopg.connect(bare_dsn) as copy:
        assert rows(copy, "select * from app.deals order by id") == [(1, "Won"), (2, "Won")]
        assert rows(copy, "select tgname from pg_trigger") == []


# Replication --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*wal_level")
def test_purge_under_a_publication_of_all_tables(written: Connection) -> None:
    written.execute("create publication everything for all tables")
    assert revert(written, "call-1").status == "reverted"
    written.execute("select agentundo.purge('0 s')")
    assert rows(written, "select * from agentundo.changes") == []


# Arrays -------------------------------------------------------------------------------------------


def test_array_without_a_cast_is_taken_for_an_id(written: Connection) -> None:
    write(written, "call-2", "update deals set stage = 'Lost' where id = 'D-882'")
    both = ["call-1", "call-2"]
    with pytest.raises(psycopg.Error) as refused:
        written.execute("select agentundo.revert(%s)", [both])
    assert refused.value.sqlstate == "UN002"
    assert "{call-1,call-2}" in str(refused.value)
    done = written.execute("select (agentundo.revert(%s::text[])).status", [both]).fetchone()
    assert done == ("reverted",)
