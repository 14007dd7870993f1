"""Has somebody written the row since? By its version where that means something, else by value."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import assert_goes_back, assert_undoable, run, value, write
from tests.support.undo import plan, refused, revert, rows

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a table."""
    run(
        db,
        "create table t (id int primary key, v int, w int)",
        "insert into t values (1, 1, 1), (2, 2, 2), (3, 3, 3)",
        "select agentundo.track('t')",
    )
    return db


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ("update t set v = v where id = 1", "row_rewritten"),
        ("update t set v = 10, w = 1 where id = 1", "row_rewritten"),
        ("update t set w = 9 where id = 1; update t set w = 1 where id = 1", "row_rewritten"),
        ("delete from t where id = 1; insert into t values (1, 10, 1)", "row_rewritten"),
        ("update t set w = 9 where id = 1", "row_changed"),
        ("update t set v = 9 where id = 1", "row_changed"),
        ("delete from t where id = 1", "row_deleted"),
        ("update t set id = 100 where id = 1", "row_deleted"),
    ],
)
@pytest.mark.parametrize("capture", ["agent", "all"])
def test_every_later_write_is_seen(t: Connection, later: str, reason: str, capture: str) -> None:
    """Also one that wrote the same values: somebody meant it."""
    run(t, f"select agentundo.track('t', '{capture}')")
    write(t, "update t set v = v + 9 where id < 3")
    run(t, *later.split("; "))
    before = snapshot(t, "t")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert caught.reasons == [reason]
    assert_same(before, snapshot(t, "t"))
    assert revert(t, "inv", on_conflict="skip").counts == (0, 0, 1, 1, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "select * from t for update",
        "select * from t for key share",
        "update t set v = 0 where id = 3",
        "insert into t values (4, 4, 4)",
        "vacuum (freeze) t",
        "analyze t",
        "create index on t (v)",
        "alter table t alter v set statistics 10",
        "alter table t add column late int default 5",
    ],
)
def test_what_is_not_a_later_write(t: Connection, statement: str) -> None:
    write(t, "update t set v = v + 9 where id < 3")
    run(t, statement)
    assert revert(t, "inv").counts == (0, 0, 2, 0, 0)
    assert rows(t, "select id, v, w from t where id < 3 order by id") == [(1, 1, 1), (2, 2, 2)]


def test_failed_later_write_is_none(t: Connection) -> None:
    """Rolled back, it has left its lock on the row but no version of it."""
    before = snapshot(t, "t")
    write(t, "update t set v = v + 9")
    with t.transaction(force_rollback=True):
        run(t, "update t set v = 0", "delete from t where id = 1")
    assert_goes_back(t, before)


@pytest.mark.parametrize(
    "rewrite", ["vacuum full t", "cluster t using t_pkey", "alter table t set unlogged"]
)
def test_rewritten_storage_is_compared_by_value(t: Connection, rewrite: str) -> None:
    write(t, "update t set v = v + 9")
    run(t, "update t set w = 0 where id = 2", rewrite)
    assert {row.key["id"]: row.status for row in plan(t, "inv") if row.key} == {
        1: "ok",
        2: "conflict",
        3: "ok",
    }
    details = {(row.detail or {}).get("basis") for row in plan(t, "inv")}
    assert details <= {"value", None}
    assert revert(t, "inv", on_conflict="skip").counts == (0, 0, 2, 1, 1)


@pytest.mark.parametrize(
    "later",
    [
        "update t set v = v where id = 1",
        "update t set w = 9 where id = 1; update t set w = 1 where id = 1",
        "delete from t where id = 1; insert into t values (1, 10, 1)",
    ],
)
@pytest.mark.parametrize("more", [[], ["update t set w = 0 where id = 3"]], ids=["one", "two"])
def test_captured_writes_of_the_same_values_are_seen_in_rewritten_storage(
    t: Connection, later: str, more: list[str]
) -> None:
    """Their versions are lost, but not that they were made."""
    run(t, "select agentundo.track('t', 'all')")
    write(t, "update t set v = v + 9 where id < 3", *more)
    run(t, *later.split("; "), "vacuum full t")
    before = snapshot(t, "t")
    with refused("UN001") as caught:
        revert(t, "inv")
    assert caught.reasons == ["row_rewritten"]
    assert_same(before, snapshot(t, "t"))
    assert revert(t, "inv", on_conflict="skip").counts == (0, 0, 1 + len(more), 1, 1)


# Copies of the database ------------------------------------------------------------------------


def _restore(server: Server, source: str, target: str, folder: Path, *options: str) -> None:
    if server.bindir is None:
        pytest.skip("needs the server's own pg_dump")
    archive = folder / "dump"
    commands = [
        ["pg_dump", "-Fc", "-f", str(archive), "-d", source],
        ["pg_restore", "--exit-on-error", *options, "-d", target, str(archive)],
    ]
    for program, *arguments in commands:
        done = subprocess.run(
            [server.bindir / program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def copy(
    t: Connection, server: Server, tmp_path: Path, dsn: str
) -> Iterator[Callable[..., Connection]]:
    """Return what restores a dump of the test's database and connects to the copy."""
    with server.database(installed=False) as database:
        target = server.dsn(database.dbname)

        def make(*options: str) -> Connection:
            _restore(server, dsn, target, tmp_path, *options)
            return opened

        with closing(
            psycopg.connect(target, autocommit=True, options="-c statement_timeout=20s")
        ) as opened:
            # shifts the numbers of all that is restored, so that stale ones show
            run(opened, "create table other (x int)", "drop table other")
            yield make


@pytest.mark.parametrize("single", [True, False])
def test_restored_from_a_dump(t: Connection, copy: Callable[..., Connection], single: bool) -> None:
    """In one transaction table and history get one version: each row would look untouched."""
    before = snapshot(t, "t")
    write(t, "update t set v = v + 9", "insert into t values (4, 4, 4)")
    run(t, "update t set v = 99 where id = 2", "delete from t where id = 3")
    there = copy(*(["--single-transaction"] if single else []))
    assert_same(snapshot(t, "t"), snapshot(there, "t"))
    found = {row.key["id"]: (row.status, row.reason) for row in plan(there, "inv") if row.key}
    assert found == {
        1: ("ok", None),
        2: ("conflict", "row_changed"),
        3: ("conflict", "row_deleted"),
        4: ("ok", None),
    }
    assert revert(there, "inv", on_conflict="skip").counts == (1, 0, 1, 2, 2)
    # new work there is captured, under the table's new number
    assert_undoable(
        there,
        ["t"],
        "update t set v = 0",
        "delete from t where id = 1",
        "truncate t",
        "insert into t values (8)",
        invocation="new",
    )
    # the original goes on by itself
    with refused("UN001"):
        revert(t, "inv")
    run(t, "update t set v = 11, w = 2 where id = 2", "insert into t values (3, 12, 3)")
    assert revert(t, "inv", on_conflict="force", reverted_by="d", reason="r").counts[3:] == (0, 0)
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize("synced", [False, True])
def test_writers_of_before_a_dump_are_found(
    t: Connection, copy: Callable[..., Connection], synced: bool
) -> None:
    """Cascade takes them along, and they are named, by what they wrote."""
    before = snapshot(t, "t")
    write(t, "update t set v = v + 9 where id < 3", invocation="first")
    write(t, "update t set w = 7 where id = 1", invocation="second")
    write(t, "update t set w = 7 where id = 3", invocation="unrelated")
    there = copy("--single-transaction")
    if synced:
        run(there, "select agentundo.sync()")
    asked = "select captured, invocation from agentundo.row_writer('t', '{\"id\": 1}', '{w}', %s)"
    assert rows(there, asked, ["first"]) == [(True, "second")]
    assert {row.invocation for row in plan(there, "first", on_conflict="cascade")} == {
        "first",
        "second",
    }
    assert revert(there, "first", on_conflict="cascade").invocations == ["first", "second"]
    run(there, "update t set w = 3 where id = 3")
    assert_same(before, snapshot(there, "t"))


def test_versions_count_again_after_sync(t: Connection, copy: Callable[..., Connection]) -> None:
    write(t, "update t set v = v + 9 where id = 1", invocation="old")
    there = copy("--single-transaction")
    assert (
        value(there, "select count(*) from agentundo.check() where problem ~ 'logical copy'") == 1
    )
    run(there, "select agentundo.sync()")
    assert value(there, "select count(*) from agentundo.check() where severity = 'error'") == 0
    write(there, "update t set v = v + 9 where id = 2")
    run(there, "update t set v = v where id = 2")
    with refused("UN001") as caught:
        revert(there, "inv")
    assert caught.reasons == ["row_rewritten"]
    assert revert(there, "old").counts == (0, 0, 1, 0, 0)
    run(there, "alter table t add z int", "alter table t rename v to vv")
    assert_undoable(
        there, ["t"], "update t set vv = 0, z = 1", "delete from t where id = 3", invocation="more"
    )


def test_dropped_column_before_the_dump(t: Connection, copy: Callable[..., Connection]) -> None:
    """A restore renumbers columns: they are found by their names until sync()."""
    run(
        t,
        "alter table t drop column v",
        "alter table t add column x text",
        "select agentundo.sync()",
    )
    before = snapshot(t, "t")
    write(t, "update t set x = 'x', w = w + 1", "delete from t where id = 1")
    there = copy()
    assert revert(there, "inv").counts == (0, 1, 2, 0, 0)
    assert_same(before, snapshot(there, "t"))
    run(there, "select agentundo.sync()")
    assert_undoable(
        there, ["t"], "update t set x = 'y'", "delete from t where id = 2", invocation="new"
    )


def test_everything_of_ours_survives_a_dump(t: Connection, copy: Callable[..., Connection]) -> None:
    query = "select relation, capture, history, key from agentundo.tracked"
    states = (
        "select tgname::text, tgenabled::text from pg_trigger where not tgisinternal order by 1"
    )
    write(t, "update t set v = 0")
    there = copy()
    assert rows(there, query) == rows(t, query)
    assert rows(there, states) == rows(t, states)
    columns = "select id, run, status, rows, undoable from agentundo.invocations"
    assert rows(there, columns) == rows(t, columns)
