"""No type of PostgreSQL's is forgotten: as a column, as a key, in partitions and in heirs."""

from __future__ import annotations

import psycopg
import pytest

from tests.cases.test_values import FAMILIES, TYPES, WITH_SPACES, assert_types_come_back
from tests.conftest import Connection
from tests.support.undo import rows
from tests.support.undoing import assert_undone, track

pytestmark = pytest.mark.core

#: What `TYPES` has not, because it is rare.
RARE: dict[str, list[str]] = {
    "regproc": ["pg_sleep", "version"],
    "regprocedure": ["pg_sleep(double precision)", "-"],
    "regoper": ["||/", "0"],
    "regoperator": ["=(integer,integer)", "0"],
    "regcollation": ['"C"', '"POSIX"'],
    "regrole": ["pg_monitor", "-"],
    "regnamespace": ["pg_catalog", "public"],
    "regconfig": ["simple", "english"],
    "regdictionary": ["simple", "english_stem"],
    "cid": ["0", "4294967295"],
    "oidvector": ["1 2", ""],
    "aclitem": ["pg_monitor=r/pg_monitor", "=r*/pg_monitor"],
    "refcursor": ["c", ""],
    "txid_snapshot": ["10:20:10,14", "1:1:"],
    "int8range": ["empty", "(,9223372036854775806)"],
    "daterange": ["[2026-01-01,)", "[-infinity,infinity]"],
    "tsrange": ["empty", "(infinity,]"],
    "int8multirange": ["{}", "{[1,3),(,0]}"],
    "nummultirange": ["{[1.0,2.50]}", "{[1.00,2.5]}", "{(,0)}"],
    "tsmultirange": ["{}", "{(,infinity)}"],
    "tstzmultirange": ["{}", "{[2026-01-01,2026-01-02),[2026-02-01,)}"],
    "varchar": ["", " a "],
    "bpchar": ["a", "ab"],
    "bit varying(5)": ["", "10101"],
    "time(3)": ["24:00:00", "01:02:03.456"],
    "timetz(2)": ["24:00:00-15:59", "01:02:03.45+15:59"],
    "interval year": ["5 years", "-1 year"],
    "money[]": ["{-0.01,NULL}", "{}"],
    "jsonb[]": ["{null,NULL}", '{"{\\"a\\": [1.0, null]}"}'],
    "bytea[]": ['{"\\\\x00",NULL}', "{}"],
    "float4[]": ["{-0,NaN}", "{0,NaN}", "{1e-37}"],
    "daterange[]": ['{empty,"[2026-01-01,)"}', "[5:5]={empty}"],
    "box[]": ["{(1,1),(0,0);(2,2),(0,0)}", "{}"],
    "uuid[]": ["{00000000-0000-0000-0000-000000000000}", "{NULL}"],
}
#: Types of the catalog's own, of which nobody can make a value.
_CLOSED = (
    "pg_node_tree pg_ndistinct pg_dependencies pg_mcv_list gtsvector pg_brin_bloom_summary"
    " pg_brin_minmax_multi_summary"
)
_XML = {"xml": ["<a  x='1'/>", "text &amp; more"]}
GROUPS: dict[str, dict[str, list[str]]] = {
    family: {name: TYPES[name] for name in [*names.split(), *WITH_SPACES.get(family, [])]}
    for family, names in FAMILIES.items()
} | {"rare": RARE}


#: Types without an order that would do for a key; and of the interval all literals are equal.
_NO_KEYS = {
    "times": "interval day to second(2)",
    "geometry": "point, line, lseg, box, path, polygon, circle",
    "documents": "json, jsonpath",
    "identifiers": "xid, pg_snapshot",
    "arrays": "json[]",
    "rare": "cid, aclitem, refcursor, txid_snapshot, box[]",
}


def test_every_built_in_type_is_among_them(db: Connection) -> None:
    missing = rows(
        db,
        "select t.oid::regtype::text from pg_type t"
        " where typnamespace = 'pg_catalog'::regnamespace and typtype in ('b', 'r', 'm')"
        " and typcategory <> 'A' and typname <> all (%s::name[])"
        " and t.oid <> all (array(select u::regtype::oid from unnest(%s::text[]) u))",
        _CLOSED.split(),
        [*TYPES, *RARE, "xml"],
    )
    assert missing == []


def test_rare_types_come_back(db: Connection) -> None:
    assert_types_come_back(db, RARE)


def test_scales_beyond_the_digits_come_back(db: Connection, pg_major: int) -> None:
    if pg_major < 15:
        pytest.skip("such scales came with PostgreSQL 15")
    assert_types_come_back(
        db, {"numeric(3,-2)": ["12300", "-100", "NaN"], "numeric(2,5)": ["0.00012", "-0.00001"]}
    )


def _fill(conn: Connection, table: str, type_: str, literals: list[str]) -> str | None:
    """Make a table with this type as its key; return a literal that is no row's key.

    None if the type cannot be a key, having no order, or if all its literals are equal.
    """
    kept = []
    insert = f"insert into {table} values (%s::text::{type_}, %s) on conflict do nothing"
    try:
        conn.execute(f"create table {table} (k {type_} primary key, v int)".encode())
        for number, literal in enumerate(literals):
            if conn.execute(insert.encode(), [literal, number]).rowcount:
                kept.append((number, literal))
    except (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFunction):
        return None
    number, free = kept[-1]
    conn.execute(f"delete from {table} where v = {number}".encode())
    return free if number else None


@pytest.mark.parametrize("group", GROUPS)
def test_every_type_that_can_be_a_key_is_one(db: Connection, group: str) -> None:
    """Rows are found by it, change it, go and come back under it."""
    free: dict[str, tuple[str, str]] = {}
    for number, (type_, literals) in enumerate(GROUPS[group].items()):
        literal = _fill(db, f"t{number}", type_, literals)
        if literal is not None:
            free[f"t{number}"] = (type_, literal)
    keyless = {type_ for type_ in GROUPS[group] if type_ not in {one for one, _ in free.values()}}
    assert keyless == set(_NO_KEYS.get(group, "").split(", ")) - {""}
    if not free:
        return
    track(db, *free)
    assert_undone(db, *(f"update {table} set v = v + 1" for table in free), again=False)
    moves = [
        f"update {table} set k = $v${literal}$v$::text::{type_} where v = 0"
        for table, (type_, literal) in free.items()
    ]
    assert_undone(db, *moves, again=False)
    makes = [
        f"insert into {table} values ($v${literal}$v$::text::{type_}, 99)"
        for table, (type_, literal) in free.items()
    ]
    assert_undone(db, *(f"delete from {table}" for table in free), *makes, again=False)


@pytest.mark.parametrize("group", [*GROUPS, "xml"])
def test_every_type_in_partitions_and_in_an_heir(db: Connection, group: str) -> None:
    types = GROUPS.get(group, _XML)
    if group == "xml":
        try:
            db.execute("select '<a/>'::xml")
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server was built without libxml")
    names = [f"v{number}" for number in range(len(types))]
    defined = [f"{name} {type_}" for name, type_ in zip(names, types, strict=True)]
    columns, backwards = ", ".join(defined), ", ".join(reversed(defined))
    listed = ", ".join(names)
    backwards = ", ".join(
        f"{name} {type_}" for name, type_ in [*zip(names, types, strict=True)][::-1]
    )
    db.execute(
        f"create table p (id int, part int, {columns}, primary key (id, part))"
        " partition by list (part); create table p_1 partition of p for values in (1);"
        f"create table p_2 ({backwards}, part int not null, id int not null);"
        "alter table p attach partition p_2 for values in (2);"
        "create table parent (id int primary key, note text);"
        f"create table heir ({columns}, primary key (id)) inherits (parent)".encode()
    )  # fmt: skip
    holes = ", ".join(f"%s::text::{type_}" for type_ in types)
    for number in range(max(map(len, types.values()))):
        chosen = [literals[number % len(literals)] for literals in types.values()]
        for table, rest in (("p", f"{number}, {number % 2 + 1}"), ("heir", f"{number}, 'n'")):
            db.execute(f"insert into {table} values ({rest}, {holes})".encode(), chosen)
    db.execute("insert into p (id, part) values (50, 2); insert into heir (id) values (50)")
    track(db, "p", "parent")
    other = "case t.id when 0 then 50 else 0 end"
    turned = f"({listed}) = (select {listed} from %s o where o.id = {other})"
    assert_undone(db, *(f"update {one} t set {turned % one}" for one in ("p", "heir")), again=False)
    moves = ("update p set part = 3 - part", "update parent set id = id + 100")
    assert_undone(db, *moves, again=False)
    assert_undone(
        db,
        f"insert into p (id, part, {listed}) select id + 200, part, {listed} from p",
        f"insert into heir (id, {listed}) select id + 200, {listed} from heir",
        "delete from p_2 where id < 200",
        "delete from parent where id < 200",
        again=False,
    )
