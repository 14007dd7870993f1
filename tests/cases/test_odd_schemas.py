"""Types, operators and columns whose names have to be quoted, or are like those of our queries."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import FORCE, plan, redo, revert, rows
from tests.support.undoing import (
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core

SCHEMAS = ['"My Types"', '"quo""te"']

#: What a domain is made over, in a schema S: what it needs, its base type, two of its values.
DOMAINS = {
    "composite": ("create type S.comp as (a int, b text)", "S.comp", "(1,x)", '(,"a,b")'),
    "composite with odd names": (
        'create type S."Co mp" as ("a b" int, "C" text)',
        'S."Co mp"',
        "(1,x)",
        "(2,)",
    ),
    "range": ("create type S.span as range (subtype = int)", "S.span", "[1,5)", "empty"),
    "multirange": (
        "create type S.span as range (subtype = int, multirange_type_name = S.spans)",
        "S.spans",
        "{[1,5),[7,9)}",
        "{}",
    ),
    "composites": (
        "create type S.comp as (a int, b text)",
        "S.comp[]",
        '{"(1,x)",NULL}',
        "{}",
    ),
    "enums": ("create type S.mood as enum ('so', 'Or so')", "S.mood[]", "{so}", '{"Or so",so}'),
    "ranges": ("create type S.span as range (subtype = int)", "S.span[]", '{"[1,5)"}', "{}"),
    "domain": (
        "create type S.comp as (a int, b text); create domain S.inner as S.comp",
        "S.inner",
        "(1,x)",
        "(2,y)",
    ),
}


@pytest.mark.parametrize("over", DOMAINS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_domain_over_a_type_of_a_schema_that_needs_quoting(
    db: Connection, schema: str, over: str
) -> None:
    makes, base, one, other = (text.replace("S.", f"{schema}.") for text in DOMAINS[over])
    db.execute(f"create schema {schema}; {makes}; create domain {schema}.dom as {base}".encode())
    db.execute(
        f"create table t (id int primary key, d {schema}.dom, v int);"
        f"insert into t values (1, '{one}', 1), (2, '{other}', 2), (3, null, 3)".encode()
    )
    track(db, "t", capture="all")
    db.execute("update t set v = v + 1")  # whoever it is, the write goes through
    assert_undone(
        db,
        f"update t set d = '{other}' where id = 1",
        "update t set d = null, v = 9 where id = 2",
        f"update t set d = '{one}' where id = 3",
        "delete from t where id = 2",
        f"insert into t values (4, '{one}', 4)",
    )
    assert_undone(db, "truncate t")
    call = write(db, f"update t set d = '{other}'")
    db.execute("update t set v = 7 where id = 1")
    assert revert(db, call, merge=True).status == "reverted"
    assert rows(db, "select id, d::text, v from t order by id") == [
        (1, one, 7),
        (2, other, 3),
        (3, None, 4),
    ]


def test_a_domain_elsewhere_over_a_type_of_a_schema_that_needs_quoting(db: Connection) -> None:
    db.execute(
        'create schema "My Types"; create type "My Types".comp as (a int, b text);'
        'create domain d as "My Types".comp; create domain ds as "My Types".comp[];'
        "create table t (id int primary key, d d, ds ds);"
        "insert into t values (1, row(1, 'x'), array[row(2, 'y')::\"My Types\".comp])"
    )
    track(db, "t", capture="all")
    assert_undone(db, "update t set d = null, ds = null", "insert into t values (2, '(2,y)', '{}')")


def test_a_domain_of_a_schema_that_needs_quoting_is_the_key(db: Connection) -> None:
    db.execute(
        'create schema "My Types"; create type "My Types".comp as (a int, b text);'
        'create domain "My Types".dom as "My Types".comp;'
        'create table t (k "My Types".dom primary key, v int);'
        "insert into t values ('(1,x)', 1), ('(2,y)', 2)"
    )
    track(db, "t", capture="all")
    assert_undone(db, "update t set k = '(3,z)' where v = 1", "delete from t where v = 2")
    call = write(db, "update t set v = v + 1")
    db.execute("update t set v = 7 where v = 3")
    assert reasons(db, call) == {"row_changed": 1}
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert rows(db, "select k::text, v from t order by 1") == [("(1,x)", 1), ("(2,y)", 7)]


# Operators ---------------------------------------------------------------------------------------

EXTENSIONS = ['"my-ext"', '"Ext.s"']


@pytest.mark.parametrize("schema", EXTENSIONS)
@pytest.mark.parametrize(
    "constraint",
    ["unique (mail)", "exclude using btree (mail with operator(S.=))", "unique (n, mail)"],
)
def test_a_unique_value_whose_operator_lives_in_a_schema_that_needs_quoting(
    db: Connection, constraint: str, schema: str
) -> None:
    constraint = constraint.replace("S.", f"{schema}.")
    db.execute(
        f"create schema {schema}; create extension citext schema {schema};"
        f"create table u (id int primary key, mail {schema}.citext, n int, {constraint});"
        "insert into u values (1, 'a@x', 1), (2, 'b@x', 1)".encode()
    )
    track(db, "u", capture="all")
    assert_undone(db, "update u set mail = 'C@x' where id = 1", "delete from u where id = 2")
    assert_undone(
        db,
        "update u set mail = 'tmp' where id = 1",
        "update u set mail = 'A@x' where id = 2",
        "update u set mail = 'B@x' where id = 1",
    )
    call = write(db, "update u set mail = 'c@x' where id = 1; update u set mail = 'd@x' where id=2")
    db.execute("insert into u values (3, 'A@X', 1)")
    assert reasons(db, call) == {"unique_taken": 1}
    for arguments in ({}, FORCE):
        assert assert_refused(db, call, **arguments).reasons == ["unique_taken"]
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert rows(db, "select id, mail::text from u order by id") == [
        (1, "c@x"),
        (2, "b@x"),
        (3, "A@X"),
    ]


@pytest.mark.parametrize("schema", EXTENSIONS)
def test_a_foreign_key_whose_operator_lives_in_a_schema_that_needs_quoting(
    db: Connection, schema: str
) -> None:
    db.execute(
        f"create schema {schema}; create extension citext schema {schema};"
        f"create table p (mail {schema}.citext primary key, n int);"
        f"create table c (id int primary key, mail {schema}.citext references p);"
        "insert into p values ('k', 1), ('l', 2); insert into c values (1, 'K'), (2, 'L')".encode()
    )
    track(db, "p", "c", capture="all")
    assert_undone(db, "insert into c values (3, 'k')")
    assert_undone(db, "update c set mail = 'L' where id = 1", "update p set mail = 'K' where n = 1")
    assert_undone(db, "delete from c", "delete from p")
    made = write(db, "insert into p values ('y', 2), ('z', 2)")
    db.execute("insert into c values (3, 'Z')")
    assert reasons(db, made) == {"has_dependents": 1}
    assert assert_refused(db, made).reasons == ["has_dependents"]
    assert revert(db, made, on_conflict="skip").counts == (1, 0, 0, 1, 1)
    gone = write(db, "delete from c where id < 3")
    db.execute("delete from p where mail = 'k'")
    assert reasons(db, gone) == {"missing_parent": 1}
    assert assert_refused(db, gone).reasons == ["missing_parent"]
    assert revert(db, gone, on_conflict="skip").counts == (0, 1, 0, 1, 1)
    assert rows(db, "select id, mail::text from c order by id") == [(2, "L"), (3, "Z")]
    assert rows(db, "select mail::text from p order by 1") == [("l",), ("z",)]


def test_an_operator_class_of_ones_own_in_a_schema_that_needs_quoting(db: Connection) -> None:
    """By which two numbers are the same whatever their sign."""
    db.execute(
        'create schema "my-ops"; grant usage on schema "my-ops" to public;'
        'create function "my-ops".same(int, int) returns boolean language sql immutable strict as'
        " 'select abs($1) = abs($2)';"
        'create function "my-ops".hash(int) returns int language sql immutable strict as'
        " 'select hashint4(abs($1))';"
        'create operator "my-ops".=== (leftarg = int, rightarg = int, function = "my-ops".same,'
        ' commutator = operator("my-ops".===), hashes);'
        'create operator class "my-ops"."Size" for type int using hash as'
        ' operator 1 "my-ops".===, function 1 "my-ops".hash(int);'
        "create table t (id int primary key, v int,"
        ' exclude using hash (v "my-ops"."Size" with operator("my-ops".===)));'
        "insert into t values (1, 5), (2, 7)"
    )
    track(db, "t", capture="all")
    assert_undone(db, "update t set v = -8 where id = 1", "delete from t where id = 2")
    call = write(db, "update t set v = v + 10")
    db.execute("insert into t values (3, -5)")
    assert reasons(db, call) == {"unique_taken": 1}
    assert assert_refused(db, call).reasons == ["unique_taken"]
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert rows(db, "select * from t order by id") == [(1, 15), (2, 7), (3, -5)]


# Columns -----------------------------------------------------------------------------------------

#: Of our queries over the user's tables.
OURS = ["place", "cur", "part", "status", "detail", "e1", "v1", "ctid", "table", "xmin"]


@pytest.mark.parametrize("name", [one for one in OURS if one not in ("ctid", "xmin")])
def test_a_key_column_named_like_one_of_our_queries(db: Connection, name: str) -> None:
    db.execute(
        f'create table t ("{name}" int primary key, v int unique);'
        f'create table c (id int primary key, "{name}" int references t);'
        "insert into t values (1, 1), (2, 2), (3, 3); insert into c values (1, 1), (2, 2)".encode()
    )
    track(db, "t", "c", capture="all")
    assert_undone(
        db,
        "update t set v = v + 10",
        f'update t set "{name}" = 4 where "{name}" = 3',
        f'update c set "{name}" = 4 where id = 1',
        f'delete from t where "{name}" = 1',
        "insert into t values (5, 5)",
        "insert into c values (3, 5)",
    )
    call = write(db, "update t set v = v + 10; insert into t values (6, 6)")
    db.execute("update t set v = 9 where v = 11; insert into c values (4, 6)")
    assert reasons(db, call) == {"row_changed": 1, "has_dependents": 1}
    assert_refused(db, call)
    assert revert(db, call, on_conflict="skip").counts == (0, 0, 2, 2, 2)
    assert rows(db, "select * from t order by 1") == [(1, 9), (2, 2), (3, 3), (6, 6)]


def test_a_column_with_a_name_of_ours_is_refused(db: Connection) -> None:
    db.execute('create table t (id int primary key, "agentundo.place" int)')
    with pytest.raises(psycopg.Error, match="it has a column named") as refused:
        db.execute("select agentundo.track('t')")
    assert refused.value.sqlstate == "UN004"


def test_all_columns_are_named_like_those_of_our_queries(db: Connection) -> None:
    names = [f'"{one}"' for one in OURS if one not in ("ctid", "xmin")]  # every table has these
    columns = ", ".join(f"{name} int not null unique" for name in names)
    db.execute(f"create table t (primary key ({names[0]}, {names[1]}), {columns})".encode())
    for i in (1, 2):
        db.execute(f"insert into t values ({', '.join([str(i)] * len(names))})".encode())
    track(db, "t", capture="all")
    sets = ", ".join(f"{name} = {name} + 5" for name in names)
    assert_undone(db, f"update t set {sets} where {names[0]} = 1")
    assert_undone(db, f"delete from t where {names[0]} = 2", f"update t set {sets}")
    before = everything(db)
    call = write(db, f"update t set {sets}")
    after = everything(db)
    assert {row.status for row in plan(db, call, merge=True)} == {"ok"}
    assert revert(db, call, merge=True).status == "reverted"
    assert_same(before, everything(db))
    assert redo(db, call, merge=True).status == "reverted"
    assert_same(after, everything(db))
