"""Plans, reverts, redos: what they answer, who commits, and what is tried again."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pyagentundo import (
    AgentUndo,
    InvocationNotFound,
    Plan,
    Selection,
    UndoConflict,
    UsageError,
)
from tests.api.conftest import TABLE, MakeUndo
from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.undo import rows, scalar
from tests.support.waiting import wait_until


def change(undo: AgentUndo, statement: str, **told: Any) -> str:
    with undo.invocation(**told) as inv:
        inv.connection.execute(statement.encode())
    return inv.id


def test_what_a_block_gave_names_the_call(undo: AgentUndo, db: Connection) -> None:
    with undo.invocation() as first:
        first.connection.execute("update deals set stage = 'Won' where id = 1")
    with undo.invocation() as second:
        second.connection.execute("update deals set stage = 'Won' where id = 2")
    assert [row.invocation for row in undo.plan(first)] == [first.id]
    done = undo.revert([first, second.id])
    assert sorted(done.invocations) == sorted([first.id, second.id])


def test_plan_names_the_table_in_the_way(undo: AgentUndo, db: Connection) -> None:
    call = change(undo, "insert into deals (id, stage) values (9, 'New')")
    db.execute("create table notes (deal int references deals); insert into notes values (9)")
    (conflict,) = undo.plan(call).conflicts
    assert (conflict.reason, conflict.constraint, conflict.in_the_way) == (
        "has_dependents", "notes_deal_fkey", "public.notes",
    )  # fmt: skip
    with pytest.raises(UndoConflict) as raised:
        undo.revert(call)
    assert raised.value.conflicts == [conflict]


def test_plan_with_everything_in_it(undo: AgentUndo, db: Connection) -> None:
    call = change(undo, "update deals set amount = amount + 0.01", run="r")
    undo.record_effect(call, "mail", kind="none")
    db.execute("update deals set stage = 'Lost' where id = 1")
    db.execute("update deals set amount = 5 where id = 2")

    plan = undo.plan(call)
    assert not plan.feasible
    assert [c.key for c in plan.conflicts] == [{"id": 1}, {"id": 2}]
    assert {c.reason for c in plan.conflicts} == {"row_changed"}
    assert [effect.name for effect in plan.effects or ()] == ["mail"]
    assert len(plan) == len(list(plan)) == 3

    merged = undo.plan(call, merge=True)
    first = next(row for row in merged if row.key == {"id": 1})
    assert (first.status, first.columns) == ("merge", ("amount",))
    assert first.before == {"id": 1, "stage": "Open", "amount": Decimal("1000.00")}
    assert first.current == {"id": 1, "stage": "Lost", "amount": Decimal("1000.01")}
    assert [c.key for c in merged.conflicts] == [{"id": 2}]

    skipping = undo.plan(call, merge=True, on_conflict="skip")
    assert skipping.feasible
    assert [c.key for c in skipping.skipped] == [{"id": 2}]
    counts = {
        (c.status, c.rows, len(c.conflicts))
        for c in undo.plan_summary(call, merge=True, on_conflict="skip")
    }
    assert counts == {("merge", 1, 0), ("ok", 1, 0), ("skip", 1, 1)}
    assert list(undo.iter_plan(call, merge=True, on_conflict="skip")) == list(skipping.rows)

    result = undo.revert(call, merge=True, on_conflict="skip", reverted_by="dana", reason="why")
    assert (result.status, result.rows_updated, result.rows_skipped, result.conflicts) == (
        "partially_reverted",
        2,
        1,
        1,
    )
    assert rows(db, "select id, stage, amount from deals order by id") == [
        (1, "Lost", Decimal("1000.00")),
        (2, "Open", Decimal("5.00")),
        (3, "Open", Decimal("3000.00")),
    ]
    found = undo.get(call)
    assert (found.status, found.reverted_by, found.revert_reason, found.revert_id) == (
        "partially_reverted",
        "dana",
        "why",
        result.revert_id,
    )


def test_plan_names_tables_that_are_not_tracked(undo: AgentUndo, db: Connection) -> None:
    assert undo.plan(change(undo, "update deals set stage = 'Won'")).uncovered == ()
    call = change(undo, "update deals set amount = 1; insert into scratch values (1)", run="r")
    assert undo.plan(call).uncovered == ("public.scratch",)
    assert undo.plan_run("r").uncovered == ("public.scratch",)
    only_tagged = "tagged"
    with undo.tag(None, only_tagged):
        undo.connection().execute("insert into scratch values (1); update deals set amount = 2")
    assert undo.plan(only_tagged).uncovered == (), "only of recorded calls it is known"


def test_an_app_is_told_the_effects_of_its_scope(
    undo: AgentUndo, db: Connection, connect: Connect, make_role: MakeRole, make_undo: MakeUndo
) -> None:
    """A mail that stays sent is what whoever presses the button has to know."""
    told = {"run": "r", "scope": "acme"}
    first = change(undo, "update deals set amount = 1 where id = 1", **told)
    second = change(undo, "update deals set amount = 2 where id = 1", **told)
    other = change(undo, "update deals set amount = 2 where id = 2", run="r", scope="other")
    reverted = change(undo, "update deals set amount = 3 where id = 3", run="gone", scope="acme",
                      on_behalf_of="dana")  # fmt: skip
    for call in (first, second, other, reverted):
        undo.record_effect(call, "mail", summary=call)
    app = make_undo(connect(user=make_role(member_of="agentundo_app")))

    def mails(plan: Plan) -> list[str | None]:
        assert plan.uncovered is None, "the log is not for an app"
        assert plan.effects is not None
        return [effect.summary for effect in plan.effects]

    assert mails(app.plan(second, scope="acme")) == [second]
    assert mails(app.plan([second, first], scope="acme")) == [first, second]
    assert mails(app.plan(first, scope="acme", on_conflict="cascade")) == [first, second]
    assert mails(app.plan_run("r", scope="acme")) == [first, second]
    assert mails(app.plan_run("r", scope="acme", from_step=2)) == [second]
    assert mails(app.plan_run("r", scope="other")) == [other]
    assert app.revert_run("gone", scope="acme", reverted_by="dana").status == "reverted"
    assert mails(app.plan_run("gone", scope="acme")) == [reverted]
    for plan in (undo.plan_run("r"), undo.plan([first, second, other])):
        assert [effect.summary for effect in plan.effects or ()] == [first, second, other]
        assert plan.uncovered == ()
    with pytest.raises(InvocationNotFound):
        app.plan(other, scope="acme")


def test_who_may_plan_and_no_more_is_told_rows_only(
    undo: AgentUndo, db: Connection, connect: Connect, make_role: MakeRole, make_undo: MakeUndo
) -> None:
    call = change(undo, "update deals set amount = 1")
    role = make_role(member_of="agentundo_app")
    function = "function agentundo.effects_of(text[], text)"
    db.execute(f"revoke execute on {function} from agentundo_app".encode())
    plan = make_undo(connect(user=role)).plan(call)
    assert (len(plan), plan.effects, plan.uncovered) == (3, None, None)


def test_a_run_whose_calls_have_no_steps(undo: AgentUndo) -> None:
    for call in ("first", "second"):
        with undo.tag(None, call, run="r"):
            undo.connection().execute("update deals set amount = amount + 1")
        undo.record_effect(call, "mail", summary=call)
    for step, found in ((1, ["first", "second"]), (2, ["second"])):
        plan = undo.plan_run("r", from_step=step)
        assert {row.invocation for row in plan} == {"second"}
        assert [effect.summary for effect in plan.effects or ()] == found


def test_hints_are_in_the_words_of_python(undo: AgentUndo, db: Connection) -> None:
    wrong: Any = "D-881"
    for method in (undo.row_history, undo.row_version):
        with pytest.raises(UsageError, match="this is not a key of") as told:
            method("deals", wrong)
        assert told.value.hint == "Give a dict with the key columns: id."
    call = change(undo, "update deals set amount = 1 where id = 1")
    db.execute("update deals set amount = 2 where id = 1")
    with pytest.raises(UndoConflict) as raised:
        undo.revert(call)
    assert raised.value.message.startswith("1 row would overwrite later work")
    assert raised.value.hint
    assert "revert with merge=True (" in raised.value.hint
    assert "on_conflict='skip'" in raised.value.hint
    assert "See plan()." in raised.value.hint
    assert "=>" not in raised.value.hint


def test_too_many_rows_at_once(undo: AgentUndo, db: Connection) -> None:
    call = change(undo, "update deals set amount = 1")
    db.execute("update agentundo._setting set value = '2 rows' where name = 'largest_undo'")
    with pytest.raises(
        UsageError, match=r"^this undo is of 3 rows, more than are planned"
    ) as raised:
        undo.revert(call)
    assert "Take its invocations back one by one" in str(raised.value.hint)


def test_revert_and_redo(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    call = change(undo, "delete from deals where id < 3")
    after = snapshot(db, TABLE)
    first = undo.revert(call)
    assert (first.status, first.rows_inserted) == ("reverted", 2)
    assert undo.revert(call).status == "already_reverted"
    assert_same(before, snapshot(db, TABLE))
    assert undo.redo(call, reverted_by="dana").rows_deleted == 2
    assert_same(after, snapshot(db, TABLE))
    assert undo.redo(call).status == "nothing_to_revert"


def test_force(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    call = change(undo, "update deals set stage = 'Won'")
    db.execute("update deals set stage = 'Lost' where id = 1")
    undo.revert(call, on_conflict="force", reverted_by="dana", reason="all of it")
    assert_same(before, snapshot(db, TABLE))


def test_cascade(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    first = change(undo, "update deals set stage = 'a' where id = 1")
    second = change(undo, "update deals set stage = 'b' where id = 1")
    result = undo.revert(first, on_conflict="cascade")
    assert set(result.invocations) == {first, second}
    assert_same(before, snapshot(db, TABLE))


def test_runs(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    change(undo, "update deals set stage = 'a' where id = 1", run="r")
    middle = snapshot(db, TABLE)
    last = change(undo, "update deals set stage = 'b' where id = 1", run="r")
    undo.record_effect(last, "mail")
    late = undo.plan_run("r", from_step=2)
    assert [row.step for row in late] == [2]
    assert [effect.name for effect in late.effects or ()] == ["mail"]
    assert undo.revert_run("r", from_step=2).invocations == (last,)
    assert_same(middle, snapshot(db, TABLE))
    assert undo.revert_run("r").rows_updated == 1
    assert_same(before, snapshot(db, TABLE))


def test_several_and_selections_are_one_unit(undo: AgentUndo, db: Connection) -> None:
    before = snapshot(db, TABLE)
    ids = [change(undo, f"update deals set stage = '{n}'", actor="bot", scope="crm") for n in "abc"]
    other = change(undo, "insert into deals values (4, 'New')", actor="other")
    chosen = Selection(actor="bot", scope="crm")
    assert len(undo.plan(chosen)) == 3
    assert len(undo.plan(ids)) == 3
    assert len(undo.plan(undo.log(actor="bot"))) == 3
    assert list(undo.iter_plan(chosen, page_rows=2)) == list(undo.plan(chosen).rows)
    assert undo.plan_summary(chosen)[0].rows == 3
    assert set(undo.revert(chosen).invocations) == set(ids)
    assert undo.revert(Selection(actor="bot")).status == "already_reverted"
    assert undo.revert(undo.get(other)).rows_deleted == 1
    assert_same(before, snapshot(db, TABLE))


def test_scope_of_another_is_unknown(undo: AgentUndo, db: Connection) -> None:
    call = change(undo, "update deals set stage = 'a'", scope="a")
    with pytest.raises(InvocationNotFound) as raised:
        undo.plan(call, scope="b")
    assert raised.value.sqlstate == "UN002"
    assert undo.revert(call, scope="a").status == "reverted"


# Who commits ------------------------------------------------------------------------------------


def test_joins_the_callers_transaction(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    call = change(undo, "update deals set stage = 'Won' where id = 1")
    conn.execute("update deals set amount = 1 where id = 3")
    assert undo.revert(call, conn=conn).status == "reverted"
    assert scalar(db, "select stage from deals where id = 1") == "Won"
    conn.rollback()
    assert undo.get(call).status == "committed"

    conn.execute("update deals set amount = 1 where id = 3")
    db.execute("update deals set stage = 'Lost' where id = 1")
    with pytest.raises(UndoConflict):
        undo.revert(call, conn=conn)
    conn.commit()  # a refusal does not spoil it
    assert scalar(db, "select amount from deals where id = 3") == Decimal(1)


def test_opens_a_transaction_on_an_idle_connection(
    db: Connection, conn: Connection, make_undo: MakeUndo, undo: AgentUndo
) -> None:
    call = change(undo, "update deals set stage = 'Won' where id = 1")
    bare = make_undo(conn)
    assert bare.plan(call).feasible
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    bare.revert(call)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert scalar(db, "select stage from deals where id = 1") == "Open"


def test_own_transactions_are_read_committed(
    undo: AgentUndo, db: Connection, dsn: str, make_undo: MakeUndo
) -> None:
    """At REPEATABLE READ a revert that had to wait would fail with 40001."""
    call = change(undo, "update deals set stage = 'Won' where id = 1")
    strict = f"{dsn} options='-c default_transaction_isolation=serializable'"
    with ConnectionPool(strict, min_size=1, max_size=1) as pool:
        for source in (strict, pool):
            other = make_undo(source)
            with psycopg.connect(dsn) as blocker:
                blocker.execute("update deals set amount = amount + 1 where id = 1")
                answers: list[Any] = []
                thread = threading.Thread(
                    target=lambda other=other, answers=answers: answers.append(
                        other.revert(call, merge=True)
                    )
                )
                thread.start()
                wait_until(
                    lambda: (
                        scalar(
                            db,
                            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                            " and datname = current_database()",
                        )
                        > 0
                    ),
                    what="the revert to wait",
                )
                blocker.commit()
            thread.join()
            assert answers[0].status == "reverted"
            undo.redo(call)


def test_tried_again_after_a_deadlock(undo: AgentUndo, db: Connection) -> None:
    tries = []

    def work(conn: Connection) -> int:
        tries.append(1)
        if len(tries) < 3:
            conn.execute(
                "do $$ begin raise exception using errcode = '40P01', message = 'deadlock'; end $$"
            )
        return scalar(conn, "select 7")  # type: ignore[no-any-return]

    assert undo._run(None, work) == 7
    assert len(tries) == 3

    def always(conn: Connection) -> None:
        tries.append(1)
        raise psycopg.errors.SerializationFailure("once more")

    tries.clear()
    with pytest.raises(psycopg.errors.SerializationFailure):
        undo._run(None, always)
    assert len(tries) == 5
    tries.clear()
    with db.transaction(), pytest.raises(psycopg.errors.SerializationFailure):
        undo._run(db, always)
    assert len(tries) == 1, "the transaction is the caller's"


# Large plans ------------------------------------------------------------------------------------


def test_large_plan_by_pages(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    call = change(undo, "insert into deals select n, 'New', n from generate_series(10, 2509) n")
    seen = 0
    for row in undo.iter_plan(call, page_rows=1000):
        assert row.action == "delete"
        seen += 1
        if seen == 1500:
            assert undo.record(tool="meanwhile").created
    assert seen == 2500
    for wanted in (1, 1000, 2500, 5000):
        assert sum(1 for _ in undo.iter_plan(call, page_rows=wanted)) == 2500


def test_large_plan_in_the_callers_transaction(
    undo: AgentUndo, db: Connection, conn: Connection
) -> None:
    call = change(undo, "insert into deals select n, 'New', n from generate_series(10, 109) n")
    conn.execute("select 1")
    one, other = (undo.iter_plan(call, page_rows=10, conn=conn) for _ in range(2))
    for row in one:
        assert next(other) == row
        with conn.transaction():
            conn.execute("insert into scratch values (1)")
    conn.commit()
    assert scalar(db, "select count(*) from scratch") == 100
    conn.execute("select 1")
    with pytest.raises(InvocationNotFound):
        next(undo.iter_plan("nobody", conn=conn))
    conn.execute("insert into scratch values (1)")
    conn.commit()


def test_iteration_that_is_broken_off(undo: AgentUndo, db: Connection, conn: Connection) -> None:
    call = change(undo, "insert into deals select n, 'New', n from generate_series(10, 109) n")
    for _ in range(20):  # more than there are connections
        pages = undo.iter_plan(call, page_rows=10)
        next(pages)
        pages.close()  # type: ignore[attr-defined]
        for _ in undo.invocations(page_rows=1):
            break
    conn.execute("select 1")
    pages = undo.iter_plan(call, page_rows=10, conn=conn)
    next(pages)
    pages.close()  # type: ignore[attr-defined]
    pages = undo.iter_plan(call, page_rows=10, conn=conn)
    next(pages)
    conn.rollback()
    conn.execute("insert into scratch values (1)")
    pages.close()  # type: ignore[attr-defined]
    conn.commit()
    assert scalar(db, "select count(*) from scratch") == 1
    assert undo.revert(call).rows_deleted == 100
