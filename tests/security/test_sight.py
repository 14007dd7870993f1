"""Who may not see a row or a column is shown it nowhere."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.undo import plan, refused, revert
from tests.support.undoing import track

pytestmark = pytest.mark.core


def _call(conn: Connection, statement: str) -> None:
    """Write as `agent` for dana in the scope `s`."""
    with conn.transaction():
        conn.execute("select agentundo.tag('agent', scope => 's', on_behalf_of => 'dana')")
        conn.execute(statement.encode())


def test_what_row_level_security_hides_is_not_shown_where_nothing_is_to_be_done(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """A row that the call made and somebody deleted: neither its values nor its key."""
    role = make_role(member_of="agentundo_app")
    db.execute(
        "create table t (id int primary key, tenant name, secret text);"
        "create policy own on t using (tenant = current_user);"
        f"grant select on t to {role}".encode()
    )
    track(db, "t", capture="all")
    _call(db, f"insert into t values (1, 'other', 'secret'), (2, '{role}', 'mine')")
    db.execute("delete from t where id = 1; alter table t enable row level security")
    app = connect(user=role)
    shown = [
        (row.status, row.reason, row.key, row.before, row.after, row.current)
        for row in plan(app, "agent", scope="s")
    ]
    assert sorted(shown, key=str) == [
        ("conflict", "not_visible", {}, None, None, None),
        ("done", None, {}, None, None, None),
    ]
    assert "secret" not in str(plan(app, "agent", scope="s"))


@pytest.mark.parametrize("complaint", ["cast", "function"])
def test_what_a_constraint_says_of_a_value_is_told_to_those_who_may_read_it(
    db: Connection, connect: Connect, make_role: MakeRole, complaint: str
) -> None:
    role = make_role(member_of="agentundo_app")
    db.execute(
        "create function fine(code text) returns boolean immutable language plpgsql as $$ begin"
        " if code !~ '^[0-9]+$' then raise exception 'no number: %', code; end if;"
        " return true; end $$;"
        "create table t (id int primary key, code text, v int);"
        "insert into t values (1, 'sesame', 1)"
    )
    db.execute(f"grant select (id, v) on t to {role}".encode())
    track(db, "t")
    _call(db, "update t set code = '12', v = 2")
    check = {"cast": "code::int > 0", "function": "fine(code)"}[complaint]
    db.execute(f"alter table t add constraint number check ({check}) not valid".encode())
    app = connect(user=role)
    code = {"cast": "22P02", "function": "P0001"}[complaint]
    (row,) = plan(app, "agent", scope="s")
    assert (row.reason, (row.detail or {})["constraint"]) == ("constraint", f"SQLSTATE {code}")
    with refused("UN001") as caught:
        revert(app, "agent", scope="s", reverted_by="dana")
    assert "sesame" not in f"{caught.refusal}"
    assert caught.conflicts[0]["constraint"] == f"SQLSTATE {code}"
    (row,) = plan(db, "agent")
    assert "sesame" in (row.detail or {})["constraint"]
