"""Identity and generated columns: never written by the revert, and right afterwards."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.undo import revert
from tests.support.undoing import assert_refused, assert_undone, reasons, track, write

pytestmark = pytest.mark.core


@pytest.mark.parametrize("kind", ["always", "by default"])
def test_rows_with_an_identity_key_come_back_under_their_numbers(db: Connection, kind: str) -> None:
    db.execute(
        f"create table t (id int generated {kind} as identity primary key, v text);"
        "insert into t (v) values ('a'), ('b'), ('c')".encode()
    )
    track(db, "t")
    assert_undone(db, "update t set v = upper(v)")
    assert_undone(db, "delete from t where id = 2")
    assert_undone(db, "delete from t", "insert into t (v) values ('d'), ('e')")
    assert_undone(db, "insert into t (id, v) overriding system value values (100, 'z')")
    assert_undone(db, "update t set id = default where id = 1")
    if kind == "by default":
        assert_undone(db, "update t set id = id + 50")


def test_the_sequence_is_not_rewound(db: Connection) -> None:
    """A number given out to the agent is never given out again: somebody may have seen it."""
    db.execute("create table t (id int generated always as identity primary key, v text)")
    track(db, "t")
    call = write(db, "insert into t (v) values ('a'), ('b')")
    assert revert(db, call).status == "reverted"
    assert db.execute("insert into t (v) values ('c') returning id").fetchone() == (3,)


def test_an_identity_column_beside_the_key_goes_back(db: Connection) -> None:
    """GENERATED ALWAYS cannot be set by an UPDATE other than to DEFAULT."""
    db.execute(
        "create table t (id int primary key, n int generated always as identity, v text);"
        "insert into t (id, v) values (1, 'a'), (2, 'b'), (3, 'c')"
    )
    track(db, "t")
    assert_undone(db, "update t set v = upper(v)")
    assert_undone(db, "update t set n = default where id = 2")
    assert_undone(
        db, "update t set n = default, v = 'x' where id < 3", "delete from t where id = 3"
    )
    assert_undone(db, "update t set id = id + 10, n = default")


def test_an_identity_column_that_cannot_go_back_in_place_spares_the_children(
    db: Connection,
) -> None:
    """The row may not be deleted and inserted instead where a key would cascade on that."""
    db.execute(
        "create table t (id int primary key, n int generated always as identity, v text);"
        "create table c (id int primary key, t int references t on delete cascade);"
        "insert into t (id, v) values (1, 'a'); insert into c values (1, 1)"
    )
    track(db, "t", "c")
    assert_undone(db, "update t set v = 'x'")
    call = write(db, "update t set n = default, v = 'y'")
    plan_says = reasons(db, call)
    if plan_says:
        assert plan_says == {"constraint": 1}
        assert_refused(db, call)
        assert db.execute("select id, n, v from t").fetchall() == [(1, 2, "y")]
    else:
        assert revert(db, call).status == "reverted"
        assert db.execute("select id, n, v from t").fetchall() == [(1, 1, "a")]
    assert db.execute("select id, t from c").fetchall() == [(1, 1)]


def test_stored_generated_columns_are_right_again(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, a int, b int generated always as (a * 2) stored,"
        " c text generated always as (a::text || '!') stored, d text);"
        "insert into t (id, a, d) values (1, 10, 'x'), (2, null, 'y')"
    )
    track(db, "t")
    assert_undone(db, "update t set a = a + 1")
    assert_undone(db, "update t set d = 'z'")
    assert_undone(db, "delete from t")
    assert_undone(db, "insert into t (id, a) values (3, 3)", "update t set a = 4 where id = 3")


@pytest.mark.parametrize("beside", ["", "id int, "])
def test_a_stored_generated_column_can_be_part_of_a_key(db: Connection, beside: str) -> None:
    names = "id, k" if beside else "k"
    db.execute(
        f"create table t ({beside} name text not null, k text generated always as (lower(name))"
        f" stored,"
        f" v int, primary key ({names}));"
        f"insert into t ({'id, ' if beside else ''}name, v) select {'g, ' if beside else ''}"
        " 'Name' || g, g from generate_series(1, 3) g".encode()
    )
    track(db, "t")
    assert_undone(db, "update t set v = v + 1")
    assert_undone(db, "update t set name = upper(name)")
    assert_undone(db, "update t set name = 'other' where v = 1", "delete from t where v = 2")
    assert_undone(db, "delete from t")


def test_a_unique_generated_value_taken_since_is_a_conflict(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, name text,"
        " slug text generated always as (lower(name)) stored unique);"
        "insert into t (id, name) values (1, 'Ann'), (2, 'Bob')"
    )
    track(db, "t")
    assert_undone(
        db,
        "update t set name = case id when 1 then 'x' else 'ANN' end where id = 1",
        "update t set name = 'ANN' where id = 2",
    )
    call = write(db, "update t set name = 'Cid' where id = 1")
    db.execute("insert into t (id, name) values (3, 'ANN')")
    assert reasons(db, call) == {"unique_taken": 1}
    assert_refused(db, call)


def test_a_foreign_key_over_a_generated_column_holds(db: Connection) -> None:
    db.execute(
        "create table p (name text, k text generated always as (lower(name)) stored primary key);"
        "create table c (id int primary key, name text, k text generated always as (lower(name))"
        " stored references p on delete cascade);"
        "insert into p (name) values ('A'), ('B');"
        " insert into c (id, name) values (1, 'a'), (2, 'B')"
    )
    track(db, "p", "c")
    assert_undone(db, "delete from c", "delete from p")
    assert_undone(db, "delete from p where name = 'A'")
    call = write(db, "insert into p (name) values ('New')")
    db.execute("insert into c (id, name) values (9, 'NEW')")
    assert reasons(db, call) == {"has_dependents": 1}
    assert_refused(db, call)


def test_virtual_generated_columns_do_no_harm(db: Connection, pg_major: int) -> None:
    if pg_major < 18:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    db.execute(
        "create table t (id int primary key, a int, b int generated always as (a * 2) virtual, c"
        " text,"
        " check (b < 1000));"
        "insert into t (id, a, c) values (1, 10, 'x'), (2, null, 'y'), (3, 400, 'z')"
    )
    track(db, "t")
    assert_undone(db, "update t set a = a + 1")
    assert_undone(db, "delete from t", "insert into t (id, a) values (1, 5)")
    call = write(db, "update t set a = 1 where id = 3")
    db.execute("alter table t add constraint tight check (b < 500)")
    assert reasons(db, call) == {"constraint": 1}
    assert_refused(db, call)


def test_a_serial_column_comes_back(db: Connection) -> None:
    db.execute(
        "create table t (id serial primary key, v text); insert into t (v) values ('a'), ('b')"
    )
    track(db, "t")
    assert_undone(db, "delete from t where id = 1", "insert into t (v) values ('c')")
    assert_undone(db, "update t set id = nextval('t_id_seq')")


@pytest.mark.parametrize("rule", [
    "create rule r as on insert to t do also insert into log values (1)",
    "create rule r as on update to t do instead nothing",
    "create rule r as on delete to t do instead nothing",
])  # fmt: skip
def test_a_table_with_rules_is_refused_or_its_revert_is(db: Connection, rule: str) -> None:
    """No statement of ours can put rows back through a rule: say so instead of losing them."""
    db.execute(
        "create table log (n int); create table t (id int primary key, v int);"
        "insert into t values (1, 1), (2, 2)"
    )
    track(db, "t")
    call = write(db, "update t set v = 3 where id = 1", "delete from t where id = 2")
    db.execute(rule.encode())
    assert assert_refused(db, call).hint
    db.execute("drop rule r on t")
    assert revert(db, call).status == "reverted"
    assert db.execute("select * from t order by id").fetchall() == [(1, 1), (2, 2)]
    db.execute("create table u (id int primary key)")
    db.execute(rule.replace(" t ", " u ").encode())
    with pytest.raises(Exception, match="rules") as caught:
        track(db, "u")
    assert getattr(caught.value, "sqlstate", None) == "UN004"
