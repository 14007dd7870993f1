"""The harness itself: a state comparison that misses a difference would let every test pass."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import MakeRole
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("numeric", "1.0", "1.00"),
        ("float8", "0", "-0"),
        ("float8", "0.1", "0.10000000000000002"),
        ("json", '{"a":1}', '{"a": 1}'),
        ("char(4)", "a", "b"),
        ("bpchar", "a", "a  "),
        ("text", "NULL", None),
        ("text", "", None),
        ("int[]", "[0:1]={1,2}", "{1,2}"),
        ("interval", "1 mon", "30 days"),
        ("interval", "24:00:00", "1 day"),
        ("timetz", "12:00+01", "11:00+00"),
        ("timestamptz", "2026-01-01 00:00:00.000001Z", "2026-01-01Z"),
        ("bytea", r"\x00", r"\x0000"),
        ("jsonb", "null", None),
    ],
)
def test_snapshot_sees_the_smallest_difference(
    bare_dsn: str, kind: str, one: str, other: str | None
) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(f"create table t (v {kind})".encode())
        conn.execute("insert into t values (%s)", [one])
        before = snapshot(conn, "t")
        assert_same(before, snapshot(conn, "t"))
        conn.execute("update t set v = %s", [other])
        with pytest.raises(AssertionError, match="state differs"):
            assert_same(before, snapshot(conn, "t"))


def test_snapshot_counts_duplicates_and_sees_the_partition(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        conn.execute(
            "create table t (v int) partition by list (v);"
            "create table a partition of t for values in (1);"
            "insert into t values (1), (1)"
        )
        before = snapshot(conn, "t")
        assert [row[0] for row in before["t"].rows] == ["public.a", "public.a"]
        conn.execute("insert into t values (1)")
        with pytest.raises(AssertionError, match=r"\+ stored in=public.a, v='1'"):
            assert_same(before, snapshot(conn, "t"))


def test_snapshot_leaves_transaction_and_settings_alone(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as conn:
        conn.execute("create table t (v timestamptz); set datestyle = 'SQL, DMY'")
        snapshot(conn, "t")
        row = conn.execute("select current_setting('datestyle'), current_setting('search_path')")
        assert row.fetchone() == ("SQL, DMY", '"$user", public')
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_own_server_is_another_one(own_server: Server, server: Server, make_role: MakeRole) -> None:
    role = make_role("createdb")
    query = "select count(*) from pg_roles where rolname = %s"
    with psycopg.connect(server.dsn()) as conn, psycopg.connect(own_server.dsn()) as other:
        assert conn.execute(query, [role]).fetchone() == (1,)
        assert other.execute(query, [role]).fetchone() == (0,)
