"""Who stands in the way: whoever wrote what is there now, whatever undos have passed over it."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.rows import dict_row

from tests.conftest import Connect, Connection, MakeRole
from tests.support.undo import (
    FORCE,
    Json,
    PlanRow,
    plan,
    redo,
    refused,
    revert,
    rows,
    scalar,
    write,
)
from tests.support.undoing import track

pytestmark = pytest.mark.core

NOBODY_CAPTURED = "not captured"
UNKNOWN = "unknown"


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Three deals, of which every write is captured."""
    db.execute("create table deals (id int primary key, stage text, amount int)")
    db.execute("insert into deals select n, 'New', 1 from generate_series(1, 3) n")
    track(db, "deals", capture="all")
    return db


def writer(db: Connection, conflict: PlanRow, *invocations: str, **more: Any) -> Json:
    """Ask who wrote what stands in the way of a row of a plan."""
    ids = list(invocations) or [conflict.invocation]
    given = {
        "relation": conflict.relation,
        "key": None if conflict.key is None else str(conflict.key).replace("'", '"'),
        "columns": conflict.columns,
        "ids": ids,
        "scope": None,
    } | more
    with db.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "select * from agentundo.row_writer(%(relation)s::regclass, %(key)s::jsonb,"
            " %(columns)s::text[], %(ids)s::text[], %(scope)s)",
            given,
        ).fetchone()
    assert row is not None
    return row


def in_the_way(db: Connection, *invocations: str, **arguments: Any) -> list[str]:
    """Return who stands in the way of a plan, row by row."""
    found = []
    for row in plan(db, list(invocations), **arguments):
        if row.status == "conflict":
            by = writer(db, row, *invocations)
            name = by["invocation"] or by["role"]
            found.append({None: UNKNOWN, False: NOBODY_CAPTURED, True: name}[by["captured"]])
    return found


@pytest.fixture
def eve(deals: Connection, connect: Connect, make_role: MakeRole) -> Connection:
    """Connect as somebody who writes without a tag."""
    name = make_role()
    deals.execute(f"grant select, insert, update, delete on deals to {name}".encode())
    return connect(user=name)


def name(conn: Connection) -> str:
    return str(scalar(conn, "select session_user"))


def test_undo_and_redo_beside_a_person_leave_her_name(deals: Connection, eve: Connection) -> None:
    """The redo writes the whole row again; the column is still hers."""
    write(deals, "b1", "update deals set stage = 'Won' where id = 1")
    eve.execute("update deals set amount = 42 where id = 1")
    assert in_the_way(deals, "b1") == [name(eve)]
    assert revert(deals, "b1", merge=True, reverted_by="dana").status == "reverted"
    assert redo(deals, "b1", reverted_by="olaf").status == "reverted"
    assert plan(deals, "b1")[0].columns == ["amount"]
    assert in_the_way(deals, "b1") == [name(eve)]


def test_what_a_revert_put_back_is_whose_it_was(deals: Connection, eve: Connection) -> None:
    write(deals, "k1", "update deals set stage = 'Won' where id = 1")
    eve.execute("update deals set stage = 'hers' where id = 1")
    write(deals, "k2", "update deals set stage = 'Lost' where id = 1")
    assert in_the_way(deals, "k1") == ["k2"]
    first = revert(deals, "k2", reverted_by="dana")
    assert in_the_way(deals, "k1") == [name(eve)]
    again = redo(deals, "k2", reverted_by="olaf")
    assert in_the_way(deals, "k1") == ["k2"]
    assert again.revert_id != first.revert_id
    revert(deals, "k2", reverted_by="dana")
    assert in_the_way(deals, "k1") == [name(eve)]


def test_undone_in_one_row_only(deals: Connection, eve: Connection) -> None:
    """A revert that leaves some rows covers nothing; in those it put back it counts yet."""
    write(deals, "k1", "update deals set stage = 'Won'")
    eve.execute("update deals set stage = 'hers'")
    write(deals, "k2", "update deals set stage = 'Lost' where id in (1, 2)")
    eve.execute("update deals set stage = 'hers again' where id = 2")
    assert revert(deals, "k2", on_conflict="skip").status == "partially_reverted"
    assert in_the_way(deals, "k1") == [name(eve)] * 3
    redo(deals, "k2")
    assert sorted(in_the_way(deals, "k1")) == sorted(["k2", name(eve), name(eve)])


def test_the_newest_of_those_who_wrote_the_columns_named(deals: Connection) -> None:
    write(deals, "first", "update deals set stage = 'Won' where id = 1")
    write(deals, "second", "update deals set stage = 'Lost' where id = 1")
    write(deals, "third", "update deals set amount = 7 where id = 1")
    assert in_the_way(deals, "first") == ["third"]
    assert in_the_way(deals, "first", merge=True) == ["second"]
    assert in_the_way(deals, "first", "third") == ["second"]


def test_a_write_that_was_not_captured(deals: Connection) -> None:
    """History has a gap there, before the undo as after it."""
    track(deals, "deals", capture="agent")
    write(deals, "k1", "update deals set stage = 'Won' where id = 1")
    deals.execute("update deals set stage = 'by hand' where id = 1")
    write(deals, "k2", "update deals set amount = 7 where id = 1")
    assert in_the_way(deals, "k1") == ["k2"]
    assert in_the_way(deals, "k1", merge=True) == [NOBODY_CAPTURED]
    revert(deals, "k2")
    assert in_the_way(deals, "k1") == [NOBODY_CAPTURED]


def test_the_same_values_again(deals: Connection, eve: Connection) -> None:
    write(deals, "k1", "update deals set stage = 'Won' where id in (1, 2)")
    eve.execute("update deals set stage = 'Won' where id = 1")
    assert [row.reason for row in plan(deals, "k1") if row.reason] == ["row_rewritten"]
    assert in_the_way(deals, "k1") == [name(eve)]
    track(deals, "deals", capture="agent")
    deals.execute("update deals set stage = 'Won' where id = 2")
    assert in_the_way(deals, "k1") == [name(eve), NOBODY_CAPTURED]


def test_rows_deleted_and_made_since(deals: Connection, eve: Connection) -> None:
    write(
        deals, "k1", "update deals set stage = 'Won' where id = 1; delete from deals where id = 2"
    )
    write(deals, "k2", "update deals set amount = 2 where id = 1; delete from deals where id = 1")
    eve.execute("insert into deals values (2, 'hers', 2)")
    write(deals, "k3", "update deals set amount = 3 where id = 2")
    assert sorted(in_the_way(deals, "k1")) == sorted(["k2", name(eve)])
    revert(deals, ["k2", "k3"])
    redo(deals, "k2")
    assert sorted(in_the_way(deals, "k1")) == sorted(["k2", name(eve)])


def test_what_force_made_of_a_row_is_of_whoever_forced(deals: Connection) -> None:
    """No write of anybody's stands there any more."""
    write(deals, "k1", "update deals set stage = 'Won' where id = 1")
    write(deals, "k2", "update deals set amount = 7 where id = 1")
    forced = revert(deals, "k1", **FORCE)
    assert in_the_way(deals, "k2") == [forced.revert_id]


def test_a_trigger_that_writes_the_row_again(deals: Connection, eve: Connection) -> None:
    """Its change comes before that of the statement that fired it."""
    deals.execute(
        "create function again() returns trigger language plpgsql as $$ begin"
        " update deals set amount = amount + 1 where id = new.id; return null; end $$;"
        "create trigger again after update of stage on deals for each row execute function again()"
    )
    write(deals, "k1", "update deals set stage = 'Won' where id = 1")
    eve.execute("update deals set stage = 'hers' where id = 1")
    assert in_the_way(deals, "k1") == [name(eve)]
    write(deals, "k2", "update deals set stage = 'Lost' where id = 1")
    revert(deals, "k2")
    assert in_the_way(deals, "k1") == [name(eve)]


def test_a_row_that_moved_is_looked_for_nowhere_else(deals: Connection, eve: Connection) -> None:
    write(deals, "k1", "update deals set id = 9 where id = 1")
    eve.execute("update deals set amount = 2 where id = 9")
    assert in_the_way(deals, "k1") == [UNKNOWN]


def test_an_unknown_column_and_no_invocation(deals: Connection) -> None:
    """Without any the question is who wrote the row last."""
    write(deals, "k1", "update deals set stage = 'Won' where id = 1")
    one = PlanRow(1, "k1", "deals", {"id": 1}, "", "", None, ["nope"], None, None, None, None)
    assert writer(deals, one, ids=None)["invocation"] == "k1"
    assert writer(deals, one)["captured"] is False


def test_an_application_is_not_told_who_writes_in_another_scope(
    deals: Connection, eve: Connection, connect: Connect, make_role: MakeRole
) -> None:
    """Neither by a plan's conflict nor by history; who wrote without a tag is nobody's scope."""
    role = make_role(member_of="agentundo_app")
    deals.execute(f"grant select on deals to {role}".encode())
    app = connect(user=role)
    write(deals, "m1", "update deals set stage = 'Won'", scope="m", actor="ours", run="mine")
    write(
        deals,
        "secret-1",
        "update deals set stage = 'theirs' where id = 1",
        scope="other",
        actor="other-bot",
        run="secret-run",
    )
    write(deals, "m2", "update deals set stage = 'Lost' where id = 2", scope="m", actor="ours")
    eve.execute("update deals set stage = 'hers' where id = 3")
    theirs, ours, hers = sorted(plan(app, "m1", scope="m"), key=lambda row: str(row.key))
    hidden = writer(app, theirs, scope="m")
    assert hidden["captured"] is True
    assert hidden["at"]
    assert [hidden[one] for one in ("invocation", "run", "actor", "role")] == [None] * 4
    assert writer(app, ours, scope="m")["invocation"] == "m2"
    assert writer(app, hers, scope="m")["role"] == name(eve)
    assert writer(deals, theirs)["actor"] == "other-bot"
    with refused("UN002"):  # not even whether there is such a call
        writer(app, theirs, "secret-1", scope="m")
    told = (
        "select invocation, run, actor, role is null from agentundo.row_history('deals',"
        " '{\"id\": 1}', scope => %s)"
    )
    mine, secret = ("m1", "mine", "ours", False), ("secret-1", "secret-run", "other-bot", False)
    unknown = (None, None, None, True)
    assert rows(app, told, "m") == [mine, unknown]
    assert [row[0] for row in rows(app, told, "other")] == [None, "secret-1"]
    assert rows(app, told, None) == [unknown, unknown]
    assert rows(deals, told, "m") == [mine, secret]
    undone = revert(deals, "secret-1")
    assert rows(app, told, "m") == [mine, unknown, unknown]
    assert undone.status == "reverted"


def test_a_key_that_one_may_not_read_cannot_be_guessed(
    deals: Connection, connect: Connect, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_app")
    deals.execute(f"grant select (stage) on deals to {role}".encode())
    write(deals, "k1", "update deals set stage = 'Won' where id = 1", scope="m")
    app = connect(user=role)
    for key in ('{"id": 1}', '{"id": 2}'):
        for question in (
            "agentundo.row_history('deals', %s, 'm')",
            "agentundo.row_version('deals', %s)",
            "agentundo.row_writer('deals', %s, '{stage}', '{k1}', 'm')",
        ):
            with refused("UN003") as caught:
                app.execute(f"select * from {question}".encode(), [key])
            assert (
                caught.refusal.message == f"agentundo: {role} may not read the key of public.deals"
            )
            assert caught.refusal.hint == f"Grant SELECT on its column id to {role}."
    deals.execute(f"grant select (id) on deals to {role}".encode())
    told = "select columns, after from agentundo.row_history('deals', '{\"id\": 1}', 'm')"
    assert rows(app, told) == [(["stage"], {"id": 1, "stage": "Won"})]
