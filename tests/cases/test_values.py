"""Values of every type come back bit for bit, whatever the agent did with them."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.collation import make_blind_collation
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert
from tests.support.undoing import (
    assert_refused,
    assert_undone,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core

# Type, then literals of it. The agent replaces each by the next, and the last by NULL.
TYPES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["9007199254740993", "-9223372036854775808"],
    "numeric": [
        "1.0",
        "1.00",
        "NaN",
        "Infinity",
        "-Infinity",
        "9007199254740993.000000001",
        "1e-30",
    ],
    "numeric(10,2)": ["1.10", "99999999.99", "NaN"],
    "real": ["-0", "0", "NaN", "-Infinity", "1.17549435e-38", "0.1"],
    "double precision": ["-0", "0", "NaN", "Infinity", "0.1", "0.30000000000000004"],
    "money": ["12.34", "-92233720368547758.08"],
    "text": ["", "a", " a ", "NULL", "é\u0301\U0001f642", "line\nbreak\ttab\\", "'\"$$"],
    "varchar(5)": ["", "ab  ", "abcde"],
    "char(5)": ["", "ab", "abcde"],
    '"char"': ["a", "z", ""],
    "name": ["x", "a name"],
    "bytea": ["\\x", "\\x00", "\\xdeadbeef00"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": ["infinity", "-infinity", "4713-01-01 BC", "2026-11-29"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timetz": ["12:00:00+02", "10:00:00+00", "12:00:00-15:59"],
    "timestamp": ["infinity", "-infinity", "2026-11-29 01:02:03.456789"],
    "timestamp(0)": ["2026-11-29 01:02:03", "infinity"],
    "timestamptz": ["infinity", "-infinity", "2026-11-29 01:02:03.456789+05:45"],
    "interval": ["1 day", "24 hours", "1 month -3 days 04:05:06.789", "-178000000 years"],
    "interval day to second(2)": ["1 day 00:00:01.23", "24:00:01.23"],
    "bit(3)": ["101", "000"],
    "bit varying": ["", "1", "0101"],
    "inet": ["10.0.0.1", "10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03", "00:00:00:00:00:00"],
    "macaddr8": ["08:00:2b:01:02:03:04:05", "00:00:00:00:00:00:00:00"],
    "point": ["(-0,0)", "(0,0)", "(NaN,1e300)"],
    "line": ["{1,2,3}", "{-1,0,0}"],
    "lseg": ["[(0,0),(1,1)]", "[(1,1),(0,0)]"],
    "box": ["(1,1),(0,0)", "(2,2),(0,0)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1),(2,0))", "((1,1),(2,0),(0,0))"],
    "circle": ["<(0,0),1>", "<(0,0),0>"],
    "tsvector": ["'a':1A,2 'b'", "''' \\\\ x':3"],
    "tsquery": ["'a' & !'b':*A", "'a' <2> 'b'"],
    "json": ['{"a": 1, "a":2,  "b":[ ]}', '{"a":1,"a":2,"b":[]}', "null", '"\\u0000"', "1e400000"],
    "jsonb": ["null", "{}", '{"a": 1.00}', '{"a": 1.0}', '["é"]'],
    "jsonpath": ["$.a[*] ? (@ > 1)", "strict $"],
    "int4range": ["empty", "[1,5)", "(,)", "[1,)"],
    "numrange": ["[1.0,2]", "[1.00,2]", "(1,2)"],
    "tstzrange": ["empty", "[2026-01-01,infinity)", "[2026-01-01,)"],
    "int4multirange": ["{}", "{[1,2),[5,6)}"],
    "datemultirange": ["{}", "{[2026-01-01,2026-02-01),[2026-03-01,)}"],
    "oid": ["0", "4294967295"],
    "regclass": ["pg_class", "pg_type"],
    "regtype": ["integer", "text"],
    "xid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "tid": ["(0,1)", "(4294967295,65535)"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "int2vector": ["1 2 3", ""],
    "integer[]": [
        "{}",
        "{1,NULL,3}",
        "{{1,2},{3,4}}",
        "[0:2]={1,2,3}",
        "[-1:0][5:6]={{1,2},{3,4}}",
    ],
    "text[]": ["{}", '{NULL,"NULL",""}', '{"[","{",",","\\"","\\\\"}', "[0:1]={a,b}"],
    "numeric(4,1)[]": ["{1.0,NaN}", "{{1.0},{2.5}}"],
    "json[]": ['{"{\\"a\\": 1}",null}', '{"{ \\"a\\": 1 }"}'],
    "timestamptz[]": ["{infinity}", "{2026-01-01 00:00:00+00,NULL}"],
    "int4range[]": ['{empty,"[1,2)"}', "{}"],
}


FAMILIES = {
    "numbers": "boolean smallint integer bigint numeric numeric(10,2) real money",
    "text": 'text varchar(5) char(5) "char" name bytea uuid',
    "times": "date time timetz timestamp timestamp(0) timestamptz interval",
    "bits and addresses": "bit(3) inet cidr macaddr macaddr8",
    "geometry": "point line lseg box path polygon circle",
    "documents": "tsvector tsquery json jsonb jsonpath",
    "ranges": "int4range numrange tstzrange int4multirange datemultirange",
    "identifiers": "oid regclass regtype xid xid8 tid pg_lsn pg_snapshot int2vector",
    "arrays": "integer[] text[] numeric(4,1)[] json[] timestamptz[] int4range[]",
}
WITH_SPACES = {
    "numbers": ["double precision"],
    "times": ["interval day to second(2)"],
    "bits and addresses": ["bit varying"],
}


def assert_types_come_back(conn: Connection, types: dict[str, list[str]]) -> None:
    """Undo an update, a delete and an insert of each value, and of NULL in its place."""
    columns = [f"v{number}" for number in range(len(types))]
    definition = ", ".join(f"{c} {t}" for c, t in zip(columns, types, strict=True))
    count = max(map(len, types.values())) + 1
    conn.execute(f"create table t (id int primary key, other int, {definition})".encode())
    holes = ", ".join(f"%s::text::{type_}" for type_ in types)
    for number in range(count):
        chosen = [
            (values * count)[number] if number < count - 1 else None for values in types.values()
        ]
        conn.execute(f"insert into t values ({number}, 0, {holes})".encode(), chosen)
    track(conn, "t")
    listed = ", ".join(columns)
    assigned = f"({listed}) = (select {listed} from t o where o.id = (t.id + 1) % {count})"
    cleared = ", ".join(f"{column} = null" for column in columns)
    assert_undone(conn, f"update t set {assigned}")
    assert_undone(conn, "update t set other = other + 1")
    assert_undone(conn, "delete from t", again=False)
    assert_undone(conn, f"insert into t select id + 100, other, {listed} from t", again=False)
    # Taken away, and others put there: NULL and back, value and back.
    kept = ", ".join(f"{column} = kept.{column}" for column in columns)
    assert_undone(
        conn,
        "create temp table kept on commit drop as select * from t",
        f"update t set {cleared}",
        f"update t set {kept} from kept where kept.id = (t.id + 1) % {count}",
        f"update t set {kept} from kept where kept.id = t.id and t.id > 0",
        again=False,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_every_built_in_type_come_back(db: Connection, family: str) -> None:
    names = [*FAMILIES[family].split(), *WITH_SPACES.get(family, [])]
    assert_types_come_back(db, {name: TYPES[name] for name in names})


def test_no_type_is_left_out() -> None:
    tested = [name for family in FAMILIES.values() for name in family.split()]
    assert sorted(tested + [t for ts in WITH_SPACES.values() for t in ts]) == sorted(TYPES)


def test_xml_comes_back_as_it_was_written(db: Connection) -> None:
    try:
        db.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without libxml")
    assert_types_come_back(db, {"xml": ["<a  x='1'/>", '<a x="1"></a>', "text &amp; more", ""]})


EXTENSIONS = {
    "citext": ["Abc", "abc", ""],
    "hstore": ['"a"=>"1", "b"=>NULL', "", '"a b"=>"\\""'],
    "ltree": ["Top.Science", "", "top.science"],
    "cube": ["(1, 2)", "(1, 2),(3, 4)"],
    "geometry": ["SRID=4326;POINT ZM (1 2 3 4)", "POINT(0.1 -0)", "LINESTRING EMPTY"],
}


@pytest.mark.parametrize("type_", EXTENSIONS)
@pytest.mark.parametrize("schema", ["public", "Exts"])
def test_a_value_of_an_extensions_type_comes_back(db: Connection, type_: str, schema: str) -> None:
    extension = "postgis" if type_ == "geometry" else type_
    available = db.execute(
        "select 1 from pg_available_extensions where name = %s", [extension]
    ).fetchone()
    if available is None:
        pytest.skip(f"this server has no extension {extension}")
    db.execute(f'create schema if not exists "{schema}"'.encode())
    db.execute(f'create extension {extension} schema "{schema}"'.encode())
    assert_types_come_back(db, {f'"{schema}".{type_}': EXTENSIONS[type_]})


def test_an_extensions_type_can_be_the_key(db: Connection) -> None:
    # Its equality lives in a schema that our search_path does not name, and calls Abc and abc one.
    db.execute(
        "create schema exts;"
        "create extension citext schema exts; create extension ltree schema exts;"
        "create table t (name exts.citext, path exts.ltree, v int, primary key (name, path));"
        "insert into t values ('Abc', 'a.b', 1), ('x', 'a', 2)"
    )
    track(db, "t")
    assert_undone(db, "update t set v = v + 1")
    assert_undone(db, "update t set name = upper(name::text)::exts.citext")
    assert_undone(db, "delete from t", "insert into t values ('aBC', 'a.b', 5)")


# Composites and arrays of them -------------------------------------------------------------------


def test_composites_come_back_whole(db: Connection) -> None:
    db.execute(
        "create type inner_type as (a numeric, b json);"
        "create type pair as (x text, i inner_type, many inner_type[])"
    )
    values = [
        "(,,)",
        '("","(1.0,)",{})',
        '(NULL,"(1.00,\\"{ }\\")","{\\"(NaN,null)\\",NULL}")',
    ]
    assert_types_come_back(db, {"pair": values})


def test_arrays_of_composites_come_back(db: Connection) -> None:
    db.execute("create type pair as (x numeric, y text)")
    assert_types_come_back(db, {"pair[]": ["{}", '{"(1.0,a)",NULL}', '[0:0]={"(1.00,)"}']})


def test_a_composite_that_got_an_attribute_since_still_goes_back(db: Connection) -> None:
    db.execute(
        "create type pair as (x numeric, y text);"
        "create table t (id int primary key, v pair);"
        "insert into t values (1, '(1.0,a)'), (2, '(2.0,b)'), (3, null)"
    )
    track(db, "t")
    call = write(db, "update t set v = '(9,z)' where id = 1", "delete from t where id = 2")
    db.execute("alter type pair add attribute z int")
    assert revert(db, call).status == "reverted"
    rows = db.execute("select id, (v).x::text, (v).y, (v).z from t order by id").fetchall()
    assert rows == [(1, "1.0", "a", None), (2, "2.0", "b", None), (3, None, None, None)]


# Enums -------------------------------------------------------------------------------------------


@pytest.fixture
def moods(db: Connection) -> Connection:
    db.execute(
        "create type mood as enum ('bad', 'fair', 'good');"
        "create domain state_of_mind as mood;"
        "create table t (id int primary key, m mood, d state_of_mind, a mood[]);"
        "insert into t values (1, 'bad', 'bad', '{bad,good}'),"
        " (2, 'fair', 'fair', '[0:1]={fair,NULL}'), (3, null, null, null)"
    )
    track(db, "t")
    return db


def test_enums_come_back(moods: Connection) -> None:
    assert_undone(moods, "update t set m = 'good', d = 'good', a = '{good}'")
    assert_undone(moods, "delete from t")
    assert_undone(moods, "insert into t select id + 10, m, d, a from t")


@pytest.mark.parametrize("statement", ["update t set m = 'good' where id = 1", "delete from t"])
def test_an_enum_label_renamed_since_comes_back_under_its_new_name(
    moods: Connection, statement: str
) -> None:
    moods.execute("update t set a = null")
    call = write(moods, statement)
    moods.execute("alter type mood rename value 'bad' to 'awful'")
    assert [row.status for row in plan(moods, call)].count("ok") == len(plan(moods, call))
    assert revert(moods, call).status == "reverted"
    rows = moods.execute("select id, m::text, d::text from t order by id").fetchall()
    assert rows == [(1, "awful", "awful"), (2, "fair", "fair"), (3, None, None)]


def test_the_label_that_the_agent_left_may_have_been_renamed(moods: Connection) -> None:
    before = everything(moods)
    call = write(moods, "update t set m = 'good', d = 'good'")
    inserted = write(moods, "insert into t values (4, 'good', 'good', null)")
    moods.execute("alter type mood rename value 'good' to 'splendid'")
    for invocation in (inserted, call):
        assert revert(moods, invocation).status == "reverted"
    assert moods.execute("select a::text from t where id = 1").fetchone() == ("{bad,splendid}",)
    moods.execute("alter type mood rename value 'splendid' to 'good'")
    assert_same(before, everything(moods))


def test_labels_in_an_array_follow_a_rename(moods: Connection) -> None:
    call = write(moods, "update t set a = '{fair}'")
    moods.execute("alter type mood rename value 'bad' to 'awful'")
    assert revert(moods, call).status == "reverted"
    rows = moods.execute("select id, a::text from t order by id").fetchall()
    assert rows == [(1, "{awful,good}"), (2, "[0:1]={fair,NULL}"), (3, None)]


def test_labels_that_exchanged_their_names_are_not_mixed_up(moods: Connection) -> None:
    """Undoing after bad and good have swapped names restores the label, not the name."""
    before = everything(moods)
    swap = (
        "alter type mood rename value 'bad' to 'x';"
        "alter type mood rename value 'good' to 'bad';"
        "alter type mood rename value 'x' to 'good'"
    )
    call = write(moods, "update t set m = 'fair', d = 'fair' where id = 1")
    moods.execute(swap)
    assert revert(moods, call).status == "reverted"
    moods.execute(swap)
    assert_same(before, everything(moods))


def test_a_write_after_the_rename_goes_back_too(moods: Connection) -> None:
    first = write(moods, "update t set m = 'good' where id = 1")
    moods.execute("alter type mood rename value 'good' to 'splendid'")
    second = write(moods, "update t set m = 'fair' where id = 1")
    state = everything(moods)
    assert revert(moods, second).status == "reverted"
    assert moods.execute("select m::text from t where id = 1").fetchone() == ("splendid",)
    assert redo(moods, second).status == "reverted"
    assert_same(state, everything(moods))
    assert revert(moods, [first, second]).status == "reverted"
    assert moods.execute("select m::text from t where id = 1").fetchone() == ("bad",)


def test_a_label_added_since_tracking_and_renamed_is_followed(moods: Connection) -> None:
    moods.execute("alter type mood add value 'odd' before 'fair'")
    moods.execute("update t set m = 'odd' where id = 1")
    call = write(moods, "update t set m = 'good' where id = 1")
    moods.execute("alter type mood rename value 'odd' to 'peculiar'")
    assert revert(moods, call).status == "reverted"
    assert moods.execute("select m::text from t where id = 1").fetchone() == ("peculiar",)


def test_an_enum_can_be_the_key(db: Connection) -> None:
    db.execute(
        "create type mood as enum ('bad', 'fair', 'good');"
        "create table t (m mood primary key, v int); insert into t values ('bad', 1), ('good', 2)"
    )
    track(db, "t")
    assert_undone(db, "update t set v = v + 1")
    assert_undone(db, "update t set m = 'fair' where m = 'bad'")
    call = write(db, "update t set v = 7", "delete from t where m = 'good'")
    db.execute("alter type mood rename value 'bad' to 'awful'")
    db.execute("alter type mood rename value 'good' to 'splendid'")
    assert revert(db, call).status == "reverted"
    assert db.execute("select m::text, v from t order by m").fetchall() == [
        ("awful", 1),
        ("splendid", 2),
    ]


# Domains -----------------------------------------------------------------------------------------


def test_domains_come_back(db: Connection) -> None:
    db.execute(
        "create domain small as numeric(6,2) check (value < 1000);"
        "create domain tiny as small check (value > -10);"
        'create domain many as tiny[]; create domain line_of_text as varchar(9) collate "C";'
        "create table t (id int primary key, a small, b tiny, c many, d line_of_text);"
        "insert into t values (1, 1.10, 2.00, '[0:1]={1.00,NULL}', 'x  '),"
        " (2, null, null, null, null)"
    )
    track(db, "t")
    assert_undone(db, "update t set a = 5, b = 6, c = '{7}', d = 'y'")
    assert_undone(db, "update t set a = null, b = null, c = null, d = null")
    assert_undone(db, "delete from t")
    assert_undone(db, "insert into t select id + 5, a, b, c, d from t")


def test_a_former_value_that_a_domain_no_longer_allows_is_a_conflict(db: Connection) -> None:
    db.execute(
        "create domain small as int check (value < 1000);"
        "create table t (id int primary key, v small); insert into t values (1, 500), (2, 5)"
    )
    track(db, "t")
    fitting = write(db, "update t set v = 6 where id = 2")
    call = write(db, "update t set v = 7 where id = 1")
    db.execute("alter domain small add constraint smaller check (value < 100)")
    assert reasons(db, call) == {"constraint": 1}
    conflict = assert_refused(db, call).conflicts[0]
    assert (conflict["relation"], conflict["key"]) == ("public.t", {"id": 1})
    assert conflict["reason"] == "constraint"
    assert conflict["constraint"] == "smaller"
    result = revert(db, [call, fitting], on_conflict="skip")
    assert (result.status, result.rows_skipped) == ("partially_reverted", 1)
    assert db.execute("select id, v from t order by id").fetchall() == [(1, 7), (2, 5)]
    for mode in ("cascade", "force"):
        assert_refused(db, call, on_conflict=mode, reverted_by="dana", reason="test")


def test_a_domain_that_became_not_null_is_a_conflict(db: Connection) -> None:
    db.execute(
        "create domain name_of as text; create table t (id int primary key, v name_of);"
        "insert into t values (1, null)"
    )
    track(db, "t")
    call = write(db, "update t set v = 'x'")
    db.execute("alter domain name_of set not null")
    assert reasons(db, call) == {"constraint": 1}
    assert assert_refused(db, call).conflicts[0]["reason"] == "constraint"


def test_a_deleted_row_that_a_tightened_domain_forbids_is_a_conflict(db: Connection) -> None:
    db.execute(
        "create domain small as int check (value < 1000);"
        "create table t (id int primary key, v small); insert into t values (1, 500), (3, 5)"
    )
    track(db, "t")
    call = write(db, "delete from t")
    db.execute("alter domain small add check (value < 100)")
    assert set(reasons(db, call)) == {"constraint"}
    assert assert_refused(db, call).conflicts[0]["reason"] == "constraint"
    assert revert(db, call, on_conflict="skip").status == "partially_reverted"
    assert db.execute("select id, v from t").fetchall() == [(3, 5)]


def test_history_does_not_stand_in_the_way_of_the_users_types(db: Connection) -> None:
    db.execute(
        "create type mood as enum ('bad', 'good'); create domain small as int;"
        "create table t (id int primary key, m mood, s small, ms mood[]);"
        "insert into t values (1, 'bad', 5000, '{bad}')"
    )
    track(db, "t")
    write(db, "update t set m = 'good', s = 1, ms = '{good}'")
    db.execute("alter domain small add check (value < 100)")
    db.execute("alter table t drop column m, drop column s, drop column ms")
    db.execute("drop type mood")
    db.execute("drop domain small")


# Between NULL and values, and everything at once -------------------------------------------------


def test_null_and_values_turn_into_each_other_and_back(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, a text, b jsonb, c int[]);"
        "insert into t values (1, null, null, null), (2, 'x', 'null', '{NULL}'),"
        " (3, '', '{}', '{}')"
    )
    track(db, "t")
    assert_undone(db, "update t set a = 'v', b = '1', c = '{1}'")
    assert_undone(db, "update t set a = null, b = null, c = null")
    assert_undone(db, "update t set a = 'v', b = '1', c = '{1}'", "update t set a = null, b = null")
    assert_undone(
        db, "update t set b = 'null' where b is null", "update t set b = null where id > 1"
    )


def test_keys_of_many_types_find_their_rows(db: Connection) -> None:
    keys = {
        "numeric": ("1.0", "2"),
        "text": ("a", "b"),
        "char(4)": ("a", "b"),
        "varchar(9)": ("a", "b"),
        "bytea": ("\\x00", "\\x01"),
        "uuid": ("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001"),
        "date": ("infinity", "2026-01-01"),
        "timestamptz": ("-infinity", "2026-01-01 00:00:00+00"),
        "interval": ("1 day", "2 days"),
        "double precision": ("NaN", "0.1"),
        "inet": ("10.0.0.1", "10.0.0.1/8"),
        "jsonb": ('{"a": 1}', "null"),
        "int4range": ("empty", "[1,2)"),
        "int[]": ("{1,2}", "[0:1]={1,2}"),
        "boolean": ("true", "false"),
        '"char"': ("a", "b"),
        "name": ("a", "b"),
        "bit(2)": ("00", "01"),
        "tsvector": ("a", "b"),
        "pg_lsn": ("0/0", "0/1"),
    }
    tables = []
    for number, (type_, (first, second)) in enumerate(keys.items()):
        table = f"t{number}"
        tables.append(table)
        db.execute(f"create table {table} (k {type_} primary key, v int)".encode())
        db.execute(
            f"insert into {table} values (%s::text::{type_}, 1), (%s::text::{type_}, 2)".encode(),
            [first, second],
        )
    track(db, *tables)
    assert_undone(db, *(f"update {table} set v = v + 1" for table in tables))
    assert_undone(db, *(f"delete from {table}" for table in tables))


@pytest.mark.parametrize(
    ("type_", "former", "latter"),
    [
        ("numeric", "1.0", "1.00"),
        ("double precision", "0", "-0"),
        ("interval", "1 day", "24 hours"),
        ("numrange", "[1.0,2)", "[1.00,2)"),
        ("numeric[]", "{1.0}", "{1.00}"),
        ("jsonb", "1.0", "1.00"),
    ],
)
def test_a_key_that_is_equal_but_not_identical_goes_back(
    db: Connection, type_: str, former: str, latter: str
) -> None:
    """The agent rewrote the key into another form of the same value."""
    db.execute(f"create table t (k {type_} primary key, v int)".encode())
    db.execute(f"insert into t values (%s::text::{type_}, 1)".encode(), [former])
    track(db, "t")
    assert_undone(db, f"update t set k = '{latter}'")
    assert_undone(db, f"update t set k = '{latter}', v = 2")
    assert_undone(db, "delete from t", f"insert into t values ('{latter}', 1)")


def test_keys_under_a_collation_that_ignores_case_go_back(db: Connection) -> None:
    make_blind_collation(db, "nocase")
    db.execute(
        "create table t (k text collate nocase primary key, v int); insert into t values ('Abc', 1)"
    )
    track(db, "t")
    assert_undone(db, "update t set k = 'aBC'")
    assert_undone(db, "delete from t", "insert into t values ('ABC', 1)")
    assert_undone(db, "update t set v = 2")


def test_two_forms_of_an_equal_key_in_one_call_are_one_row(db: Connection) -> None:
    """An equal key must not be taken for another row's: the row would be there twice, or lost."""
    db.execute(
        "create table t (k numeric primary key, v int); insert into t values (1.0, 1), (2, 2)"
    )
    track(db, "t")
    assert_undone(
        db, "update t set k = 1.00 where k = 1", "update t set k = 1.000, v = 5 where k = 1"
    )
    assert_undone(db, "update t set k = 1.00 where k = 1", "delete from t where k = 1")
