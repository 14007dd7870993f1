"""plpgsql_check over every PL/pgSQL function of ours: no error, no warning.

Needs a server that has the extension, which the embedded ones have not: Debian's
``postgresql-15-plpgsql-check``, or AGENTUNDO_PLPGSQL_CHECK_BIN as the server's bin directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pyagentundo import installer
from tests.support import servers

pytestmark = pytest.mark.plpgsql_check

BINDIR = Path(os.environ.get("AGENTUNDO_PLPGSQL_CHECK_BIN", "/usr/lib/postgresql/15/bin"))

# A trigger function is checked against a table that it is on, with the transition tables of all the
# triggers that call it: which of them it reads depends on tg_op.
#
# Not asked for: security warnings, which take every regclass in a format() for an injection, and
# what "return query execute" makes of OUT variables.
_FINDINGS = """\
select p.oid::regprocedure::text as function, found.lineno, found.level, found.sqlstate,
       found.message, found.detail, found.hint, found.query
from pg_proc p
join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
cross join lateral (
  select max(t.tgrelid) as relation, max(t.tgoldtable) as old, max(t.tgnewtable) as new
  from pg_trigger t where t.tgfoid = p.oid
) as trigger
cross join lateral plpgsql_check_function_tb(
  p.oid, coalesce(trigger.relation, 0), oldtable => trigger.old, newtable => trigger.new,
  performance_warnings => false, extra_warnings => true, security_warnings => false
) as found
where p.pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)
  and (p.prorettype <> 'trigger'::regtype or trigger.relation is not null)
  and found.message !~ '^OUT variable .* is maybe unmodified$'
order by 1, 2
"""

_UNCHECKED = """\
select p.oid::regprocedure::text from pg_proc p
where p.pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)
  and p.prorettype = 'trigger'::regtype
  and not exists (select from pg_trigger where tgfoid = p.oid)
"""

_TABLES = """\
create table public.plain (id int primary key, name text, total numeric default 0);
create table public.keyless (v jsonb);
create table public.parted (id int, day date, primary key (id, day)) partition by range (day);
create table public.parted_1 partition of public.parted default;
create table public.parent (id int primary key, v text);
create table public.child (more text, primary key (id)) inherits (public.parent);
"""


@pytest.fixture
def checked() -> Iterator[psycopg.Connection[dict[str, Any]]]:
    extension = BINDIR / "../../../../share/postgresql" / BINDIR.parent.name / "extension"
    if not (BINDIR / "postgres").exists():
        pytest.skip(f"no server in {BINDIR}")
    if not (extension / "plpgsql_check.control").resolve().exists():
        pytest.skip("the extension plpgsql_check is not installed")
    server = servers.start(BINDIR)
    try:
        with psycopg.connect(server.dsn(), autocommit=True, row_factory=dict_row) as conn:
            conn.execute("create extension plpgsql_check")
            installer.install(conn)
            yield conn
    finally:
        server.close()


def test_functions_are_clean(checked: psycopg.Connection[dict[str, Any]]) -> None:
    checked.execute(_TABLES.encode())
    for table in ("plain", "keyless", "parted", "parent"):
        checked.execute("select agentundo.track(%s::regclass, 'all')", [f"public.{table}"])
    assert checked.execute(_UNCHECKED.encode()).fetchall() == []
    found = checked.execute(_FINDINGS.encode()).fetchall()
    assert not found, "\n".join(
        f"{row['function']}:{row['lineno']}: {row['level']} {row['message']}"
        f" {row['detail'] or ''} {row['hint'] or ''} {row['query'] or ''}".rstrip()
        for row in found
    )
