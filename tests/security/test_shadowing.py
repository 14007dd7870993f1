"""What somebody puts first in the search_path, or in pg_temp, never runs in our statements.

Not in a definer's function, where it would run as our owner, and not in those that run as whoever
calls them, be it a superuser who has somebody else's schema in the path.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.security.deeds import FUNCTIONS, VIEWS
from tests.security.shadows import listen, make_shadows, make_temporary_shadows
from tests.security.world import KINDS, OURS, World, world
from tests.support.servers import Server
from tests.support.undo import Connection, rows

pytestmark = pytest.mark.core

_FIRST = "set search_path = pg_temp, evil, pg_catalog, public"
_MORE = """
create table crm.parts (id int primary key, v text) partition by range (id);
create table crm.parts_1 partition of crm.parts for values from (0) to (100);
create table crm.parent (id int primary key, v text);
create table crm.child (w jsonb, primary key (id)) inherits (crm.parent);
create table crm.bag (v json, n numeric[]);
create table crm.watched (id int primary key, v text);
insert into crm.parts values (1, 'a'); insert into crm.parent values (1, 'a');
insert into crm.child values (2, 'b', '{}'); insert into crm.bag values ('{}', '{1}');
grant select, insert, update, delete, truncate on all tables in schema crm to public;
select agentundo.track(t) from unnest('{crm.parts,crm.parent,crm.bag}'::regclass[]) t;
select agentundo.track('crm.watched', 'all')
"""
_EQUALS = "operator(pg_catalog.=)"
WRITES = [
    "insert into crm.parts values (50, 'x')",
    f"update crm.parts set v = 'x' where id {_EQUALS} 1",
    "delete from crm.parts_1",
    "truncate crm.parts",
    f"update crm.parent set v = 'x' where id {_EQUALS} 2",
    "delete from crm.parent",
    "insert into crm.child values (9, 'x', '[]')",
    "truncate crm.child",
    "update crm.bag set n = null",
    "delete from crm.bag",
    "insert into crm.watched values (7, 'x')",
    "update crm.watched set v = null",
    "truncate crm.watched",
    f"update crm.deals set stage = 'x' where id {_EQUALS} 9",
]
DDL = [
    "alter table crm.deals add column late pg_catalog.int8",
    "alter table crm.deals drop column n",
    "alter table crm.deals alter column n type pg_catalog.int8",
    "alter table crm.deals rename to other",
    "create table crm.parts_2 partition of crm.parts for values from (100) to (200)",
    "alter table crm.parts detach partition crm.parts_1",
    "drop table crm.bag",
    "alter table crm.child no inherit crm.parent",
    "create table crm.fresh (id pg_catalog.int4 primary key)",
]


@pytest.fixture(scope="module")
def realm(server: Server) -> Iterator[World]:
    """Furnish a world with look-alikes and some more kinds of tables."""
    with world(server) as made:
        make_shadows(made.boss)
        made.boss.execute(_MORE.encode())
        for table in ("parts", "parts_1", "parent", "child", "bag", "watched"):
            made.boss.execute(f"alter table crm.{table} owner to {made.roles['owner']}".encode())
        made.boss.execute(b"select agentundo.track_schema('crm')")
        yield made


def _try_all(conn: Connection, kind: str) -> int:
    """Call every public function and view, write every table, alter some; return what went well."""
    statements = [*DDL, *(one for tried in VIEWS.values() for one in tried)]
    for scope in ("", ", scope => 'acme'"):
        words = {
            **OURS.words, "scope": scope, "schema": f"of_{kind}",
            "table": f"of_{kind}.mine", "tracked": f"of_{kind}.tracked",
        }  # fmt: skip
        for tried in FUNCTIONS.values():
            statements += [one.format(**words).replace(" = ", f" {_EQUALS} ") for one in tried]
    tag = "set local agent.invocation = 'shadowed'; set local agent.step = '1'"
    went_well = 0
    for before, several in (("", statements), ("", WRITES), (tag, WRITES)):
        for statement in several:
            try:
                with conn.transaction(force_rollback=True):
                    conn.execute(before.encode())
                    conn.execute(statement.encode())
                went_well += 1
            except psycopg.Error as error:
                assert error.sqlstate in ("42501", "UN003", "UN002", "UN010"), statement  # noqa: PT017
    return went_well


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_callers_runs_in_our_statements(realm: World, kind: str) -> None:
    conn = realm.fresh(kind)
    make_temporary_shadows(conn)
    heard = listen(conn)
    conn.execute(_FIRST.encode())
    assert _try_all(conn, kind) >= 2 * len(WRITES)
    assert heard == []


def test_nothing_of_somebody_elses_runs_for_a_superuser(realm: World) -> None:
    with psycopg.connect(realm.dsn, autocommit=True) as conn:
        heard = listen(conn)
        conn.execute("set search_path = evil, pg_catalog, public")
        assert _try_all(conn, "operator") >= 100
        assert heard == []


def test_the_look_alikes_run_where_somebody_means_them(realm: World) -> None:
    """Else the tests above would prove nothing."""
    conn = realm.fresh("writer")
    make_temporary_shadows(conn)
    heard = listen(conn)
    conn.execute(_FIRST.encode())
    for statement in (
        "select 1 = 1",
        "select current_setting('role')",
        "select 'pg_class'::regclass = 1::pg_catalog.oid",
        "select count(*) from crm.deals",
        "select '1'::text",
        "select * from pg_class",
        "select * from _change",
    ):
        before = len(heard)
        conn.execute(statement.encode())
        assert len(heard) > before, statement


def test_every_definers_function_fixes_its_search_path(realm: World) -> None:
    """With pg_temp at its end; but for those made for one table, where every name is qualified."""
    loose = rows(
        realm.boss,
        "select proname::text from pg_proc where prosecdef and proname !~ '^_capture_\\d+$'"
        " and pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)"
        " and not coalesce(proconfig @> '{\"search_path=pg_catalog, pg_temp\"}', false)",
    )
    assert loose == []


def test_public_has_no_right_on_anything_of_ours(realm: World) -> None:
    found = rows(
        realm.boss,
        "with ours as (select 'agentundo'::regnamespace as n union select 'agentundo_history')"
        " select nspname, a.privilege_type from pg_namespace, ours,"
        "  aclexplode(coalesce(nspacl, acldefault('n', nspowner))) a"
        "  where pg_namespace.oid = n and a.grantee = 0"
        " union all select relname, a.privilege_type from pg_class, ours,"
        "  aclexplode(coalesce(relacl, acldefault('r', relowner))) a"
        "  where relnamespace = n and a.grantee = 0"
        " union all select proname, a.privilege_type from pg_proc, ours,"
        "  aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        "  where pronamespace = n and a.grantee = 0",
    )
    # All that it can do is to refuse tagged writes; whoever makes a partition makes its copy.
    assert found == [("_unknown_partition", "EXECUTE")]
