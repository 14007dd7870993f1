"""Foreign keys over periods: the parents' periods together have to cover that of the child."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import FORCE, plan, revert, rows
from tests.support.undoing import assert_refused, assert_undone, everything, track, write

pytestmark = pytest.mark.core


@pytest.fixture
def staff(db: Connection, pg_major: int) -> Connection:
    """Make people, and tasks that they can have while they are there."""
    if pg_major < 18:
        pytest.skip("PERIOD keys came with PostgreSQL 18")
    db.execute(
        "create extension btree_gist;"
        "create table staff (id int, valid int4range, name text,"
        " primary key (id, valid without overlaps));"
        "create table tasks (id int primary key, who int, valid int4range,"
        " foreign key (who, period valid) references staff (id, period valid));"
        "insert into staff values (1, '[1,9)', 'ann'), (2, '[1,5)', 'bob'), (2, '[5,9)', 'bob');"
        "insert into tasks values (1, 1, '[2,7)'), (2, 2, '[2,7)')"
    )
    track(db, "staff", "tasks", capture="all")
    return db


def foretold(db: Connection, what: str, **arguments: Any) -> dict[str, set[int]]:
    """Return the ids in a plan by what it says of them."""
    found: dict[str, set[int]] = {}
    for row in plan(db, what, **arguments):
        found.setdefault(row.status, set()).add((row.after or row.before or {})["id"])
    return found


@pytest.mark.parametrize("merge", [False, True])
def test_skip_leaves_a_parent_of_others_and_takes_the_rest(staff: Connection, merge: bool) -> None:
    write(staff, "insert into staff values (3, '[1,9)', 'mia'), (4, '[1,9)', 'eve')", tag="call")
    staff.execute("insert into tasks values (3, 3, '[2,7)')")
    assert foretold(staff, "call") == {"conflict": {3}, "ok": {4}}
    assert assert_refused(staff, "call").detail["total"] == 1
    assert foretold(staff, "call", on_conflict="skip", merge=merge) == {"skip": {3}, "ok": {4}}
    done = revert(staff, "call", on_conflict="skip", merge=merge)
    assert (done.status, done.counts) == ("partially_reverted", (1, 0, 0, 1, 1))
    assert rows(staff, "select id from staff order by 1") == [(1,), (2,), (2,), (3,)]
    assert len(rows(staff, "table tasks")) == 3


def test_skip_leaves_a_child_whose_parent_is_gone_and_brings_the_rest(staff: Connection) -> None:
    write(staff, "delete from tasks", tag="call")
    staff.execute("delete from staff where id = 1")
    assert foretold(staff, "call") == {"conflict": {1}, "ok": {2}}
    assert assert_refused(staff, "call").detail["total"] == 1
    assert foretold(staff, "call", on_conflict="skip") == {"skip": {1}, "ok": {2}}
    done = revert(staff, "call", on_conflict="skip")
    assert (done.status, done.counts) == ("partially_reverted", (0, 1, 0, 1, 1))
    assert rows(staff, "select id from tasks") == [(2,)]


def test_a_child_comes_back_only_if_all_of_its_period_is_covered(staff: Connection) -> None:
    write(staff, "delete from tasks", tag="call")
    staff.execute("delete from staff where id = 2 and valid = '[5,9)'")
    assert foretold(staff, "call", on_conflict="skip") == {"skip": {2}, "ok": {1}}
    assert revert(staff, "call", on_conflict="skip").counts == (0, 1, 0, 1, 1)
    assert rows(staff, "select id from tasks") == [(1,)]


def test_a_parent_of_whose_period_nobody_has_need_goes(staff: Connection) -> None:
    """Somebody refers to the person, but not to that time of hers."""
    write(staff, "insert into staff values (1, '[9,20)', 'ann'), (2, '[9,20)', 'bob')", tag="call")
    staff.execute("insert into tasks values (3, 2, '[5,12)')")
    assert foretold(staff, "call", on_conflict="skip") == {"skip": {2}, "ok": {1}}
    assert revert(staff, "call", on_conflict="skip").counts == (1, 0, 0, 1, 1)
    assert rows(staff, "select id, valid::text from staff order by 1, 2") == [
        (1, "[1,9)"),
        (2, "[1,5)"),
        (2, "[5,9)"),
        (2, "[9,20)"),
    ]


@pytest.mark.parametrize("mode", [{}, {"merge": True}, FORCE], ids=["abort", "merge", "force"])
def test_what_a_period_key_refuses_the_plan_has_foretold(
    staff: Connection, mode: dict[str, Any]
) -> None:
    write(staff, "insert into staff values (3, '[1,9)', 'mia'), (4, '[1,9)', 'eve')", tag="call")
    staff.execute("insert into tasks values (3, 3, '[2,7)')")
    asked = {n: v for n, v in mode.items() if n not in ("reverted_by", "reason")}
    assert foretold(staff, "call", **asked) == {"conflict": {3}, "ok": {4}}
    refusal = assert_refused(staff, "call", **mode)
    (shown,) = (row for row in plan(staff, "call", **asked) if row.status == "conflict")
    assert refusal.detail["total"] == 1
    assert refusal.conflicts[0]["relation"] == "public.staff"
    assert refusal.reasons == [shown.reason]


def test_parents_that_take_over_for_each_other_go_back_together(staff: Connection) -> None:
    before = everything(staff)
    assert_undone(
        staff,
        "update tasks set valid = '[1,2)' where who = 2",
        "delete from staff where id = 2 and valid = '[5,9)'",
        "update staff set valid = '[1,9)' where id = 2",
        "update tasks set valid = '[3,8)' where who = 2",
    )
    assert_same(before, everything(staff))
