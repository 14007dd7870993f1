"""A row and its image are written in one transaction, by whatever statement: versions agree.

So the plan need not compare values, and a later write of the same values is seen.
"""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, revert, rows, write
from tests.support.undoing import everything, track

pytestmark = pytest.mark.core

_SCHEMA = """
create table p (id int primary key, v int);
create table c (id int primary key, p int references p on update cascade on delete set null
  deferrable initially deferred, v int);
create table m (id int, part int, v int, primary key (id, part)) partition by list (part);
create table m_1 partition of m for values in (1);
create table m_2 (v int, part int not null, id int not null);
alter table m attach partition m_2 for values in (2);
create table leafs (id int primary key, m int);
insert into p select i, i from generate_series(1, 3) i;
insert into c values (1, 1, 0), (2, 2, 0);
insert into m values (1, 1, 0), (2, 1, 0), (1, 2, 0);
create function swallow(i int) returns int language plpgsql as $$ begin
  update p set v = v + 10 where id = i; return 1; exception when others then return 0; end $$;
create function again() returns trigger language plpgsql as $$ begin begin
  update m set v = v + 100 where id = new.id and part = new.part;
  exception when division_by_zero then null; end; return null; end $$;
create trigger again after update on m for each row when (pg_trigger_depth() = 0)
  execute function again();
create function late() returns trigger language plpgsql as $$ begin
  update p set v = v + 1000 where id = new.p; return null; end $$;
create constraint trigger late after insert on c deferrable initially deferred
  for each row execute function late()
"""
#: What the agent does, and for rows that stand after it, the same values written by somebody.
WRITES = {
    "statement": "update p set v = 9",
    "released savepoint": "savepoint a; update p set v = 9; release a",
    "savepoint rolled back": "savepoint a; update p set v = 8; rollback to a; update p set v = 9",
    "nested savepoints": "savepoint a; savepoint b; update p set v = 9; release b; release a",
    "exception block": "do $$ begin update p set v = 9; exception when others then null; end $$",
    "function that swallows errors": "update p set v = swallow(1) + 20 where id = 3",
    "trigger with an exception block": "update m set v = 9",
    "deferred trigger": "insert into c values (5, 3, 0)",
    "upsert": "insert into p values (1, 9), (7, 7) on conflict (id) do update set v = excluded.v",
    "cascade of a key": "update p set id = 30 where id = 1",
    "cascade of a deletion": "delete from p where id = 2",
    "move between partitions": "update m set part = 3 - part where id = 2",
    "two tables in one statement": "with x as (update c set v = 1 returning p) update p set v = 9",
    "column added at once": "alter table p add late int default 7",
}
_TABLES = ("p", "c", "m")


@pytest.fixture
def tables(db: Connection) -> Connection:
    db.execute(_SCHEMA.encode())
    track(db, *_TABLES)
    return db


@pytest.mark.parametrize("how", WRITES)
def test_the_plan_goes_by_versions(tables: Connection, how: str) -> None:
    before = everything(tables)
    if how.startswith("column"):
        write(tables, "agent", "update p set v = 9")
        tables.execute(WRITES[how].encode())
        before = everything(tables)
    else:
        write(tables, "agent", WRITES[how])
    tables.execute("set vacuum_freeze_min_age = 0; set vacuum_freeze_table_age = 0")
    for table in _TABLES:
        tables.execute(f"vacuum (freeze) {table}".encode())
    planned = plan(tables, "agent")
    assert {row.status for row in planned} <= {"ok", "done"}
    assert {(row.detail or {}).get("basis") for row in planned if row.acts} <= {"version", None}
    assert "version" in {(row.detail or {}).get("basis") for row in planned}
    # Whoever writes the same values again has written, too.
    with tables.transaction(force_rollback=True):
        for table in _TABLES:
            tables.execute(f"alter table {table} disable trigger user".encode())
            tables.execute(f"update {table} set v = v".encode())
        reasons = {row.reason for row in plan(tables, "agent") if row.current is not None}
        assert reasons <= {"row_rewritten", None}
        assert "row_rewritten" in reasons or how == "cascade of a deletion"
    assert revert(tables, "agent").status == "reverted"
    if how.startswith("column"):
        assert rows(tables, "select id, v, late from p order by id") == [
            (1, 1, 7), (2, 2, 7), (3, 3, 7),
        ]  # fmt: skip
    else:
        assert_same(before, everything(tables))
