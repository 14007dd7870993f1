"""Every conflict names a row, what is in its way, and a way out: one of each reason."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.undo import IMPATIENT, plan, refused, revert, write
from tests.support.undoing import everything, track

pytestmark = pytest.mark.core

SET = "update p set v = 5, code = 'x' where id = 1"
#: Reason → what the agent writes, what happens then, and what the conflict names beside its row.
OBSTACLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "row_changed": (SET, "update p set v = 9, w = 9 where id = 1", {"columns": ["v", "w"]}),
    "row_rewritten": (SET, "update p set v = v where id = 1", {}),
    "row_deleted": (SET, "delete from p where id = 1", {}),
    "row_exists": ("delete from p where id = 3", "insert into p values (3, 7, 7, 'n')", {}),
    "unique_taken": (
        SET,
        "insert into p values (8, 8, 8, 'c1')",
        {"constraint": "p_code_key"},
    ),
    "has_dependents": (
        "insert into p values (9, 9, 9, 'c9')",
        "insert into c values (7, 9)",
        {"constraint": "c_p_fkey"},
    ),
    "missing_parent": (
        "delete from c where id = 1",
        "delete from p where id = 2",
        {"constraint": "c_p_fkey"},
    ),
    "constraint": (SET, "alter table p add constraint high check (v > 1)", {"constraint": "high"}),
    "schema_changed": (
        "update p set v = 5 where id = 1",
        "alter table p alter v type text using 'v' || v",
        {},
    ),
    "erased": (SET, "select agentundo.erase('p', '{\"id\": 1}', 'asked to')", {}),
    "not_visible": (SET, "alter table p enable row level security", {}),
}


@pytest.fixture
def p(db: Connection) -> Connection:
    db.execute(
        "create table p (id int primary key, v int, w int, code text unique);"
        "create table c (id int primary key, p int references p);"
        "insert into p select i, i, i, 'c' || i from generate_series(1, 3) i;"
        "insert into c values (1, 2)"
    )
    track(db, "p", "c")
    return db


@pytest.mark.parametrize("reason", OBSTACLES)
def test_a_conflict_names_row_cause_and_way_out(
    p: Connection, connect: Connect, make_role: MakeRole, reason: str
) -> None:
    written, then, named = OBSTACLES[reason]
    write(p, "agent", written)
    p.execute(then.encode())
    hand = p
    if reason == "not_visible":
        role = make_role(member_of="agentundo_operator")
        p.execute(f"grant select on p, c to {role}".encode())
        hand = connect(user=role, options=IMPATIENT)
    before = everything(p)
    with refused("UN001") as caught:
        revert(hand, "agent")
    assert caught.reasons == [reason]
    assert caught.detail["total"] == 1
    (conflict,) = caught.conflicts
    table = "c" if reason == "missing_parent" else "p"
    assert conflict["relation"] == f"public.{table}"
    key = {"row_exists": 3, "has_dependents": 9}.get(reason, 1)
    if reason not in ("erased", "not_visible"):
        assert conflict["key"] == {"id": key}
    assert {name: conflict.get(name) for name in named} == named
    assert f"public.{table}" in caught.message
    assert reason in caught.message
    assert "on_conflict => 'skip'" in caught.hint
    # The way out is one: it is done, and it says what it left.
    (row,) = (row for row in plan(hand, "agent", on_conflict="skip") if row.reason)
    assert (row.status, row.reason) == ("skip", reason)
    assert revert(hand, "agent", on_conflict="skip").rows_skipped == 1
    assert everything(p) == before


def test_a_person_between_two_calls_of_a_set_is_named_by_his_column(db: Connection) -> None:
    """Of a row in turns the columns of others stand in the way, not the set's own."""
    db.execute(
        "create table t (id int primary key, a text, b int); insert into t values (1, 'i', 0)"
    )
    track(db, "t", capture="all")
    write(db, "first", "update t set a = 'x'")
    db.execute("update t set b = 2")
    write(db, "second", "update t set a = 'y'")
    for arguments in ({"on_conflict": "cascade"}, {}):
        what = "first" if arguments else ["first", "second"]
        (conflict,) = plan(db, what, **arguments)
        assert (conflict.status, conflict.columns) == ("conflict", ["b"])
