"""Whoever waits for a row that an undo puts back finds it, also where it goes out and comes in.

A row that is put back by an UPDATE stays the same row. Where nobody knows which row became which,
or it comes back into another partition, it is another one: there the writer waits for the table.
"""

from __future__ import annotations

import pytest

from tests.concurrency.conftest import NewSession
from tests.conftest import Connection
from tests.support.sessions import outcome
from tests.support.undo import revert, rows, write

pytestmark = pytest.mark.core

#: Tables, what an agent does to them, what a person does meanwhile, and what he finds afterwards.
CASES: dict[str, tuple[str, str, str, list[tuple[object, ...]]]] = {
    "no key": (
        "create table t (id int, n int, who text); insert into t values (1, 1, '-')",
        "update t set n = 100",
        "update t set who = 'mia' where id = 1",
        [(1, 1, "mia")],
    ),
    "no key, deleted": (
        "create table t (id int, n int, who text); insert into t values (1, 1, '-'), (2, 2, '-')",
        "update t set n = 100",
        "delete from t where id = 1",
        [(2, 2, "-")],
    ),
    "no key, another partition": (
        "create table t (id int, region text, n int) partition by list (region);"
        "create table t_a partition of t for values in ('a');"
        "create table t_b partition of t for values in ('b'); insert into t values (1, 'a', 1)",
        "update t set region = 'b'",
        "update t set n = n + 10 where id = 1",
        [(1, "a", 11)],
    ),
    "another partition": (
        "create table t (id int, region text, n int, primary key (id, region))"
        " partition by list (region);"
        "create table t_a partition of t for values in ('a');"
        "create table t_b partition of t for values in ('b'); insert into t values (1, 'a', 1)",
        "update t set region = 'b'",
        "update t set n = n + 10 where id = 1",
        [(1, "a", 11)],
    ),
    "twins": (
        "create table t (id int primary key, customer int, note text);"
        "insert into t values (1, 5, '-'), (2, 5, '-')",
        "update t set id = id + 10",
        "update t set note = 'mia' where customer = 5",
        [(1, 5, "mia"), (2, 5, "mia")],
    ),
    "keys passed on": (
        "create table t (id int primary key, v text, note text);"
        "insert into t values (1, 'one', '-'), (2, 'two', '-')",
        "update t set id = 3 where id = 2; update t set id = 2 where id = 1",
        "update t set note = 'mia' where v = 'two'",
        [(1, "one", "-"), (2, "two", "mia")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_waits_for_a_row_that_comes_in_again_finds_it(
    db: Connection, session: NewSession, case: str
) -> None:
    made, written, wanted, found = CASES[case]
    db.execute(f"{made}; select agentundo.track('t')".encode())
    write(db, "agent", written)
    reverter, person = session(), session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    writing = person.run_later(wanted)
    person.wait_until_blocked(writing, by=reverter)
    reverter.run("commit")
    outcome(writing)
    assert rows(db, "select * from t order by 1") == found


def test_who_refers_to_a_row_that_comes_in_again_finds_it(
    db: Connection, session: NewSession
) -> None:
    db.execute(
        "create table parents (code text unique, n int); insert into parents values ('x', 1);"
        "create table children (id int, code text references parents (code));"
        "select agentundo.track('parents')"
    )
    write(db, "agent", "update parents set n = 100")
    reverter, person = session(), session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").status == "reverted"
    writing = person.run_later("insert into children values (1, 'x')")
    person.wait_until_blocked(writing, by=reverter)
    reverter.run("commit")
    outcome(writing)
    assert rows(db, "table parents") == [("x", 1)]
    assert rows(db, "table children") == [(1, "x")]


def test_rows_of_a_table_without_a_key_that_were_made_and_removed_keep_nobody_out(
    db: Connection, session: NewSession
) -> None:
    """No row of theirs is another afterwards."""
    db.execute(
        "create table t (id int, n int); insert into t values (1, 1), (2, 2), (3, 3);"
        "select agentundo.track('t')"
    )
    write(db, "agent", "delete from t where id = 1; insert into t values (9, 9)")
    reverter = session()
    reverter.run("begin")
    assert revert(reverter.conn, "agent").counts == (1, 1, 0, 0, 0)
    session().run("update t set n = 30 where id = 3")
    reverter.run("commit")
    assert rows(db, "select * from t order by id") == [(1, 1), (2, 2), (3, 30)]
