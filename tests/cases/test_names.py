"""Names that clash with keywords, quoting, length limits or names of our own."""

from __future__ import annotations

import pytest
from psycopg import sql

from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import assert_goes_back, assert_undoable, changes, run, tag
from tests.support.undo import plan, rows

pytestmark = pytest.mark.core

_63 = "a" * 60


@pytest.mark.parametrize(
    ("schema", "table"),
    [
        ("My Schema", 'sill\'y ""name'),
        ("public", "2024 order-items"),
        ("select", "table"),
        ("public", "User"),
        ("%s", "100%I"),
        ("a.b", "c.d"),
        ("público", "Zoë✓"),
        ("public", "$capture$"),
        ("back\\slash", "new\nline"),
    ],
)
def test_schema_and_table(db: Connection, schema: str, table: str) -> None:
    name = sql.Identifier(schema, table)
    text = name.as_string(db)
    db.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    db.execute(sql.SQL("create table {} (id int primary key, v text)").format(name))
    db.execute(sql.SQL("insert into {} values (1, 'x'), (2, 'y')").format(name))
    db.execute("select agentundo.track(%s)", [text])
    before = snapshot(db, text)
    with db.transaction():
        tag(db)
        db.execute(sql.SQL("update {} set v = 'z'").format(name))
        db.execute(sql.SQL("delete from {} where id = 1").format(name))
        db.execute(sql.SQL("insert into {} values (3)").format(name))
    (said,) = {row.relation for row in plan(db, "inv")}
    assert rows(db, "select %s::regclass = %s::regclass", said, text) == [(True,)]
    assert [row[:1] for row in rows(db, "select distinct relation from agentundo.changes")] == [
        (said,)
    ]
    assert rows(db, "select relation, health from agentundo.tracked") == [(said, "ok")]
    assert_goes_back(db, before)


def test_two_long_names_that_share_sixty_bytes(db: Connection) -> None:
    tables = [f"{_63}one", f"{_63}two"]
    for table in tables:
        run(
            db,
            f"create table {table} (id int primary key, v text)",
            f"insert into {table} values (1, '{table[-3:]}')",
            f"select agentundo.track('{table}')",
        )
    histories = rows(db, "select distinct history from agentundo.tracked")
    assert len(histories) == 2
    before = snapshot(db, *tables)
    with db.transaction():
        tag(db)
        for table in tables:
            run(db, f"update {table} set v = 'changed'")
    assert changes(db) == [(f"public.{table}", "update", 1) for table in tables]
    assert_goes_back(db, before)


#: Names of our own helpers, variables and aliases, past and present, and of PL/pgSQL itself.
# fmt: off
_TAKEN = [
    "old", "new", "o", "n", "s", "k", "x", "c", "d", "r", "t", "h", "seq", "key", "index", "row",
    "rows", "change", "invocation", "status", "action", "reason", "unit", "history", "_change",
    "_image", "c1", "c2", "tg_op", "tg_relid", "tag", "run", "step", "before", "after", "current",
    "part", "cur", "tid", "xid", "operation", "relation", "tracked", "version", "value", "values",
    "user", "order", "select", "Old", "NEW", "id_", "agentundo_row", "agentundo_tag",
    "agentundo_old", "agentundo_new", "agentundo_op", "agentundo_change", "agentundo_run",
    "agentundo_counted", "agentundo_ord", "agentundo_action", "agentundo_part", "agentundo_cur",
    "work", "k1", "says", "olds", "news", "image", "chain", "first_change", "last_change",
    "ordinality", 'quo"te', "per%cent", "per%scent", "ctid2", "null", "false", "case", "found",
    "with space", "dollar$capture$", "new\nline",
]
# fmt: on


@pytest.mark.parametrize("keyed", [True, False])
def test_columns_named_like_ours(db: Connection, keyed: bool) -> None:
    names = [sql.Identifier(name).as_string(db) for name in _TAKEN]
    columns = [f"{name} {('text', 'int')[i % 2]}" for i, name in enumerate(names)]
    key = ", primary key (n, k, old, change, k1)" if keyed else ""
    run(db, f"create table clash ({', '.join(columns)}{key})")
    for i in (1, 2):
        run(db, f"insert into clash select {', '.join([str(i)] * len(columns))}")
    run(db, "select agentundo.track('clash')")
    before = snapshot(db, "clash")
    sets = ", ".join(f"{name} = '3'" for name in names)
    assert_undoable(
        db,
        ["clash"],
        f"update clash set {sets} where n::text = '1'",
        "update clash set status = '7'",
        "delete from clash where \"old\"::text = '2'",
        f"insert into clash select {', '.join(['4'] * len(columns))}",
    )
    assert_same(before, snapshot(db, "clash"))


def test_single_columns_named_like_ours(db: Connection) -> None:
    """One column as the whole key: nothing else can stand in for it."""
    names = ["n", "o", "old", "new", "k", "k1", "change", "d", "r", "h", "t", "tid", "cur"]
    for name in names:
        run(
            db,
            f'create table "{name}" ("{name}" int primary key)',
            f'insert into "{name}" values (1), (2)',
            f"select agentundo.track('\"{name}\"')",
        )
    tables = [f'"{name}"' for name in names]
    before = snapshot(db, *tables)
    with db.transaction():
        tag(db)
        for name in names:
            run(
                db,
                f'update "{name}" set "{name}" = 3 where "{name}" = 1',
                f'delete from "{name}" where "{name}" = 2',
                f'insert into "{name}" values (4)',
            )
    assert_goes_back(db, before)


def test_types_with_odd_names(db: Connection) -> None:
    run(
        db,
        'create schema "T y"',
        "create type \"T y\".\"En um\" as enum ('A b', 'it''s', '\"')",
        'create domain "T y"."D om" as "T y"."En um"',
        'create type "T y"."Comp" as ("a b" int, "c" text)',
        'create table odd (id int primary key, e "T y"."En um", d "T y"."D om",'
        ' c "T y"."Comp", es "T y"."En um"[], cs "T y"."Comp"[])',
        "insert into odd values (1, 'A b', 'it''s', '(1,x)', '{\"A b\",it''s}',"
        ' array[row(1, \'y\')::"T y"."Comp"])',
        "insert into odd values (2)",
        "select agentundo.track('odd')",
    )
    before = snapshot(db, "odd")
    with db.transaction():
        tag(db)
        run(
            db,
            "update odd set e = '\"', d = null, c = null, es = '{}', cs = null where id = 1",
            "update odd set e = 'A b', cs = '{}' where id = 2",
        )
    assert_goes_back(db, before)
