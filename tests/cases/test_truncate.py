"""TRUNCATE destroys rows without naming them: each is copied once, or it is refused."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import (
    assert_undoable,
    changes,
    images,
    run,
    tag,
    value,
    write,
)
from tests.support.undo import refused, rows

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a parent, a child and a table with identity and generated columns."""
    run(
        db,
        "create table parent (id int primary key, v text)",
        "create table child (id int primary key, parent int references parent)",
        "create table counted (id int generated always as identity primary key, v int,"
        " w int generated always as (v + 1) stored)",
        "insert into parent values (1, 'a'), (2, null)",
        "insert into child values (1, 1), (2, 2), (3, null)",
        "insert into counted (v) values (1), (2), (3)",
        "select agentundo.track(r) from unnest('{parent,child,counted}'::regclass[]) r",
    )
    return db


TABLES = ["parent", "child", "counted"]


@pytest.mark.parametrize(
    ("statement", "captured"),
    [
        ("truncate child", [("public.child", 3)]),
        ("truncate parent, child", [("public.child", 3), ("public.parent", 2)]),
        ("truncate parent cascade", [("public.child", 3), ("public.parent", 2)]),
        ("truncate counted restart identity", [("public.counted", 3)]),
        ("truncate counted continue identity", [("public.counted", 3)]),
        ("truncate only counted, child", [("public.child", 3), ("public.counted", 3)]),
    ],
)
def test_forms(t: Connection, statement: str, captured: list[tuple[str, int]]) -> None:
    assert_undoable(t, TABLES, statement)
    assert sorted((name, count) for name, _, count in changes(t)) == captured
    assert {operation for _, operation, _ in changes(t)} == {"truncate"}


def test_together_with_other_writes(t: Connection) -> None:
    assert_undoable(
        t,
        TABLES,
        "update counted set v = 10 where id = 1",
        "truncate counted, child",
        "insert into counted (v) values (100)",
        "insert into child values (1, 2), (9, 1)",
        "truncate child",
        "insert into child values (2, 2)",
    )


def test_empty_table_leaves_no_trace(t: Connection) -> None:
    run(t, "truncate child")
    write(t, "truncate child", "truncate child")
    assert changes(t) == []
    assert images(t, "child") == {}


def test_untagged_is_captured_only_in_mode_all(t: Connection) -> None:
    run(t, "truncate child")
    assert images(t, "child") == {}
    run(
        t,
        "insert into child values (1, 1)",
        "select agentundo.track('child', 'all')",
        "truncate child",
    )
    assert changes(t, None) == [("public.child", "truncate", 1)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_refused_above_read_committed(t: Connection, connect: Connect, level: str) -> None:
    """Its snapshot may lack rows that others have committed and TRUNCATE destroys all the same."""
    before = snapshot(t, *TABLES)
    with refused("UN007") as caught, t.transaction():
        run(t, f"set transaction isolation level {level}")
        tag(t)
        run(t, "truncate child")
    assert "READ COMMITTED" in caught.hint
    assert_same(before, snapshot(t, *TABLES))
    with t.transaction():
        run(t, f"set transaction isolation level {level}", "truncate child")
    assert value(t, "select count(*) from child") == 0


def test_rows_of_others_that_were_committed_meanwhile(t: Connection, connect: Connect) -> None:
    """In READ COMMITTED the copy sees what others have committed since the transaction began."""
    with t.transaction():
        tag(t)
        run(t, "select * from child")
        run(connect(), "insert into child values (4, 1)")
        run(t, "truncate child")
    assert changes(t) == [("public.child", "truncate", 4)]


def test_mode_all_above_read_committed_goes_through(t: Connection) -> None:
    """An untagged statement is never refused; that its rows were not kept is said."""
    run(t, "select agentundo.track('child', 'all')")
    notices: list[str] = []
    t.add_notice_handler(lambda diag: notices.append(diag.message_primary or ""))
    with t.transaction():
        run(t, "set transaction isolation level repeatable read", "truncate child")
    assert value(t, "select count(*) from child") == 0
    assert any("not captured" in notice for notice in notices)


def test_forced_row_level_security_hides_nothing_from_the_copy(t: Connection) -> None:
    run(
        t,
        "alter table child enable row level security",
        "alter table child force row level security",
        "create policy one on child using (id = 1)",
    )
    assert_undoable(t, TABLES, "truncate child")
    assert changes(t) == [("public.child", "truncate", 3)]
    assert_undoable(t, TABLES, "update child set parent = null", invocation="u")
    assert_undoable(t, TABLES, "delete from child", invocation="d")


def test_history_is_not_for_truncating(t: Connection) -> None:
    write(t, "delete from child")
    history = value(t, "select history from agentundo.tracked where relation = 'public.child'")
    owner = value(t, "select relowner::regrole::text from pg_class where oid = 'child'::regclass")
    assert (
        rows(
            t,
            "select grantee::text from information_schema.role_table_grants"
            " where table_schema || '.' || table_name = %s and privilege_type = 'TRUNCATE'"
            " and grantee not in ('agentundo_owner', 'agentundo_worker', %s)",
            history,
            owner,
        )
        == []
    )


def test_failed_truncate_leaves_nothing(t: Connection) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        write(t, "truncate parent")
    assert changes(t) == []
    assert images(t, "parent") == {}
