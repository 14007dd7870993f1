"""The user's triggers: silent while rows go back, counted once, and armed as before."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same
from tests.support.undo import refused, revert
from tests.support.undoing import (
    assert_refused,
    assert_restored_or_refused,
    assert_undone,
    everything,
    track,
    triggers,
    write,
)

pytestmark = pytest.mark.core


def trigger(conn: Connection, name: str, when: str, body: str, *, level: str = "row") -> None:
    """Put a trigger of the user's on a table; ``when`` is such as ``before update on t``."""
    result = "case when tg_op = 'DELETE' then old else new end" if level == "row" else "null"
    conn.execute(
        f"create function {name}() returns trigger language plpgsql as"
        f" $$ begin {body} return {result}; end $$;"
        f"create trigger {name} {when} for each {level} execute function {name}()".encode()
    )


@pytest.fixture
def deals(db: Connection) -> Connection:
    """Make a table whose BEFORE trigger stamps every change with a number that only grows."""
    db.execute(
        "create sequence clock; create table t (id int primary key, v text, updated_at bigint);"
        "insert into t values (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)"
    )
    trigger(db, "touch", "before insert or update on t", "new.updated_at := nextval('clock');")
    track(db, "t")
    return db


def test_the_old_timestamp_comes_back(deals: Connection) -> None:
    assert_undone(deals, "update t set v = 'x'")
    assert_undone(deals, "delete from t where id = 1", "update t set v = 'y'")
    assert_undone(deals, "insert into t values (4, 'd', null)")


def test_an_untouched_row_with_a_timestamp_is_no_conflict(deals: Connection) -> None:
    call = write(deals, "update t set v = 'x' where id = 1")
    deals.execute("update t set v = 'hers' where id = 2")
    assert revert(deals, call).status == "reverted"
    rows = deals.execute("select id, v, updated_at from t order by id").fetchall()
    assert rows == [(1, "a", 0), (2, "hers", 2), (3, "c", 0)]


def total_by_trigger(conn: Connection) -> None:
    conn.execute(
        "create table accounts (id int primary key, total int not null default 0);"
        "create table lines (id int primary key, account int references accounts, amount int);"
        "insert into accounts values (1, 0), (2, 0)"
    )
    trigger(
        conn, "add_up", "after insert or update or delete on lines",
        "if tg_op <> 'INSERT' then update accounts set total = total - old.amount"
        " where id = old.account; end if;"
        " if tg_op <> 'DELETE' then update accounts set total = total + new.amount"
        " where id = new.account; return new; end if; return old;",
    )  # fmt: skip
    conn.execute("insert into lines values (1, 1, 10), (2, 1, 5), (3, 2, 7)")


def test_a_total_kept_by_a_trigger_is_right_once(db: Connection) -> None:
    total_by_trigger(db)
    track(db, "accounts", "lines")
    assert_undone(db, "update lines set amount = amount * 2")
    assert_undone(db, "delete from lines where account = 1")
    assert_undone(db, "insert into lines values (4, 2, 100)", "update lines set account = 2")
    assert_undone(db, "delete from lines", "delete from accounts")
    totals = db.execute("select id, total from accounts order by id").fetchall()
    assert totals == [(1, 15), (2, 7)]


def test_a_total_that_somebody_added_to_is_merged_as_a_difference(db: Connection) -> None:
    total_by_trigger(db)
    track(db, "accounts", "lines")
    db.execute("select agentundo.set_merge('accounts', 'total', 'delta')")
    call = write(db, "insert into lines values (4, 1, 100)")
    db.execute("insert into lines values (5, 1, 1000)")
    assert_refused(db, call)
    assert revert(db, call, merge=True).status == "reverted"
    assert db.execute("select total from accounts where id = 1").fetchone() == (1015,)
    assert db.execute("select sum(amount) from lines where account = 1").fetchone() == (1015,)


def test_a_trigger_that_shall_fire_does(db: Connection) -> None:
    """The total's table is not tracked: only the trigger can put it right."""
    total_by_trigger(db)
    track(db, "lines")
    # Restoring is never done as superuser: on a superuser's tables what fires needs rights.
    db.execute("grant select, update on accounts to agentundo_worker")
    db.execute("select agentundo.set_trigger('lines', 'add_up', 'fire')")
    before, armed = everything(db), triggers(db)
    for statement in (
        "update lines set amount = amount * 2",
        "delete from lines where account = 1",
        "insert into lines values (4, 2, 100)",
    ):
        call = write(db, statement)
        assert revert(db, call).status == "reverted"
        assert_same(before, everything(db))
        assert triggers(db) == armed
    db.execute("select agentundo.set_trigger('lines', 'add_up', 'silence')")
    call = write(db, "update lines set amount = 0 where id = 1")
    assert revert(db, call).status == "reverted"
    assert db.execute("select total from accounts where id = 1").fetchone() == (5,)


def test_one_trigger_fires_and_another_stays_silent(db: Connection) -> None:
    db.execute(
        "create table log (what text); create table t (id int primary key, v int);"
        "insert into t values (1, 1)"
    )
    trigger(db, "loud", "after update on t", "insert into log values ('loud');")
    trigger(db, "quiet", "after update on t", "insert into log values ('quiet');")
    track(db, "t")
    db.execute("grant insert on log to agentundo_worker")
    db.execute("select agentundo.set_trigger('t', 'loud', 'fire')")
    armed = triggers(db)
    call = write(db, "update t set v = 2")
    db.execute("truncate log")
    assert revert(db, call).status == "reverted"
    assert db.execute("select * from log").fetchall() == [("loud",)]
    assert db.execute("select * from t").fetchall() == [(1, 1)]
    assert triggers(db) == armed


def test_a_row_that_a_trigger_updates_again_goes_back(db: Connection) -> None:
    """The inner UPDATE is captured before the outer one: the order of numbers misleads."""
    db.execute(
        "create table t (id int primary key, v text, n int); insert into t values (1, 'a', 0)"
    )
    trigger(
        db, "again", "after insert or update on t",
        "if pg_trigger_depth() < 3 then update t set n = n + 1, v = v || '+' where id = new.id;"
        " end if;",
    )  # fmt: skip
    track(db, "t")
    assert_undone(db, "update t set v = 'x'")
    assert_undone(db, "insert into t values (2, 'b', 0)")
    assert_undone(
        db, "insert into t values (2, 'b', 0)", "update t set v = 'y'", "delete from t where id = 1"
    )
    assert_undone(db, "update t set v = 'x'", "update t set v = 'y'", "update t set v = 'x'")


def test_a_row_that_a_trigger_updates_in_a_savepoint_goes_back(db: Connection) -> None:
    """The exception block gives the inner write a transaction number of its own."""
    db.execute(
        "create table t (id int primary key, v text, n int); insert into t values (1, 'a', 0)"
    )
    trigger(
        db, "again", "after update on t",
        "if pg_trigger_depth() = 1 then begin update t set n = n + 1 where id = new.id;"
        " exception when division_by_zero then null; end; end if;",
    )  # fmt: skip
    track(db, "t")
    assert_undone(db, "update t set v = 'x'")
    call = write(db, "update t set v = 'x'")
    db.execute("alter table t disable trigger again")
    db.execute("update t set v = v")
    assert_refused(db, call)


def test_other_rows_that_a_before_trigger_updates_go_back(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, current boolean, n int default 0);"
        "insert into t values (1, true, 0), (2, false, 0), (3, false, 0)"
    )
    trigger(
        db, "only_one", "before insert or update on t",
        "if new.current and pg_trigger_depth() = 1 then"
        " update t set current = false, n = n + 1 where current and id <> new.id; end if;",
    )  # fmt: skip
    track(db, "t")
    assert_undone(db, "update t set current = true where id = 2")
    assert_undone(db, "insert into t values (4, true)")
    assert_undone(
        db,
        "update t set current = true where id = 2",
        "update t set current = true where id = 3",
        "update t set current = true where id = 1",
    )


def test_a_before_trigger_that_replaces_or_drops_rows_is_told_by_what_was_stored(
    db: Connection,
) -> None:
    db.execute(
        "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')"
    )
    trigger(
        db, "edit", "before insert or update on t",
        "if new.v = 'drop' then return null; end if; new.v := upper(new.v);",
    )  # fmt: skip
    track(db, "t")
    assert_undone(db, "update t set v = case id when 1 then 'drop' else 'x' end")
    assert_undone(db, "insert into t values (3, 'c'), (4, 'drop')")


@pytest.mark.parametrize("level", ["row", "statement"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_trigger_that_forbids_deletes_does_not_stop_the_undo(
    db: Connection, moment: str, level: str
) -> None:
    db.execute("create table t (id int primary key, v text); insert into t values (1, 'a')")
    trigger(db, "forbid", f"{moment} delete on t", "raise exception 'rows stay';", level=level)
    track(db, "t")
    assert_undone(db, "insert into t values (2, 'b')", again=False)
    with pytest.raises(psycopg.errors.RaiseException, match="rows stay"):
        db.execute("delete from t")


def test_each_trigger_gets_exactly_the_state_that_it_had(db: Connection) -> None:
    db.execute(
        "create table log (what text); create table t (id int primary key, v int);"
        "insert into t values (1, 1), (2, 2)"
    )
    states = {
        "origin": "enable trigger origin",
        "always": "enable always trigger always",
        "replica": "enable replica trigger replica",
        "disabled": "disable trigger disabled",
    }
    for name, alter in states.items():
        trigger(
            db, name, "after insert or update or delete on t",
            f"insert into log values ('{name}');",
        )  # fmt: skip
        db.execute(f"alter table t {alter}".encode())
    track(db, "t")
    armed = triggers(db)
    enabled = {name: state for _, name, state in armed if name in states}
    assert enabled == {"origin": "O", "always": "A", "replica": "R", "disabled": "D"}

    call = write(
        db,
        "update t set v = 5 where id = 1",
        "delete from t where id = 2",
        "insert into t values (3, 3)",
    )
    db.execute("truncate log")
    assert revert(db, call).status == "reverted"
    assert db.execute("select * from log").fetchall() == []
    assert triggers(db) == armed
    assert db.execute("select * from t order by id").fetchall() == [(1, 1), (2, 2)]
    db.execute("update t set v = 1 where id = 1")
    assert sorted(db.execute("select * from log").fetchall()) == [("always",), ("origin",)]


def test_a_trigger_for_other_events_is_left_alone_and_needs_no_lock(
    db: Connection, connect: Connect
) -> None:
    """A reverted UPDATE does not care about a trigger on DELETE: nobody has to wait for it."""
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    trigger(db, "forbid", "before delete on t", "raise exception 'rows stay';")
    track(db, "t")
    call = write(db, "update t set v = 5 where id = 1")
    writer = connect()
    with writer.transaction():
        writer.execute("update t set v = 6 where id = 2")
        db.execute("set lock_timeout = '3s'")
        assert revert(db, call).status == "reverted"
    assert db.execute("select * from t order by id").fetchall() == [(1, 1), (2, 6)]


def test_the_revert_gives_way_to_a_writer_and_leaves_the_triggers_armed(
    deals: Connection, connect: Connect
) -> None:
    call = write(deals, "update t set v = 'x' where id = 1")
    writer = connect()
    armed, state = triggers(deals), everything(deals)
    deals.execute("set lock_timeout = '1s'")
    with writer.transaction():
        writer.execute("select from t where id = 3 for update")
        writer.execute("lock table t in row exclusive mode")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            revert(deals, call)
        assert triggers(deals) == armed
        assert_same(state, everything(deals))
    assert revert(deals, call).status == "reverted"
    assert triggers(deals) == armed


def test_after_an_error_in_the_middle_the_triggers_are_armed(deals: Connection) -> None:
    """The trigger is off already when a later constraint refuses the rows."""
    call = write(deals, "update t set v = 'x' where id = 1", "delete from t where id = 2")
    deals.execute(
        "create function picky(text) returns boolean immutable language plpgsql as"
        " $$ begin if $1 = 'b' and current_setting('agentundo.restoring', true) = 'on' then"
        " raise exception 'in the middle'; end if; return true; end $$;"
        "alter table t add check (picky(v)) not valid"
    )
    armed, state = triggers(deals), everything(deals)
    with pytest.raises(psycopg.Error, match="in the middle"):
        revert(deals, call)
    assert triggers(deals) == armed
    assert_same(state, everything(deals))
    # And within a transaction of the caller's that goes on.
    with deals.transaction():
        with pytest.raises(psycopg.Error), deals.transaction():
            revert(deals, call)
        assert triggers(deals) == armed
    deals.execute("update t set v = 'z' where id = 3")
    assert deals.execute("select updated_at > 0 from t where id = 3").fetchone() == (True,)


def test_a_revert_that_is_rolled_back_leaves_the_triggers_armed(deals: Connection) -> None:
    call = write(deals, "update t set v = 'x'")
    armed, state = triggers(deals), everything(deals)
    with deals.transaction(force_rollback=True):
        assert revert(deals, call).status == "reverted"
    assert triggers(deals) == armed
    assert_same(state, everything(deals))
    assert revert(deals, call).status == "reverted"


def test_capture_stays_on_while_the_users_triggers_are_off(deals: Connection) -> None:
    """A later untagged and a later tagged write are treated as ever."""
    call = write(deals, "update t set v = 'x'")
    revert(deals, call)
    assert_undone(deals, "update t set v = 'y'")


def test_silencing_under_a_deferred_key_works(db: Connection) -> None:
    """Our own rows leave deferred checks pending, which would keep the trigger from being armed."""
    db.execute(
        "create table p (id int primary key, v int);"
        "create table t (id int primary key, p int references p deferrable initially deferred,"
        " v int); insert into p values (1, 0), (2, 0); insert into t values (1, 1, 0), (2, 2, 0)"
    )
    trigger(db, "noise", "before insert or update or delete on t", "perform 1;")
    trigger(db, "noise_too", "before insert or update or delete on p", "perform 1;")
    track(db, "p", "t")
    assert_undone(db, "delete from t", "delete from p where id = 1")
    assert_undone(db, "update t set p = 3 - p, v = 1")
    assert_undone(db, "insert into p values (5, 0)", "insert into t values (5, 5, 0)")


def test_a_constraint_trigger_is_silent_too(db: Connection) -> None:
    db.execute(
        "create table t (id int primary key, v int); insert into t values (1, 1);"
        "create function grow() returns trigger language plpgsql as $$ begin"
        " if new.v < old.v then raise exception 'v only grows'; end if; return null; end $$;"
        "create constraint trigger grow after update on t deferrable initially deferred"
        " for each row execute function grow()"
    )
    track(db, "t")
    call = write(db, "update t set v = 2")
    armed = triggers(db)
    assert revert(db, call).status == "reverted"
    assert db.execute("select v from t").fetchone() == (1,)
    assert triggers(db) == armed


def test_events_pending_in_the_callers_transaction_give_a_clear_error(db: Connection) -> None:
    db.execute(
        "create table p (id int primary key);"
        "create table t (id int primary key, p int references p deferrable initially deferred);"
        "insert into p values (1); insert into t values (1, 1)"
    )
    trigger(db, "noise", "before update on t", "perform 1;")
    track(db, "t")
    call = write(db, "update t set id = 2")
    armed, state = triggers(db), everything(db)
    with pytest.raises(psycopg.Error) as caught, db.transaction():  # noqa: PT012
        db.execute("insert into t values (7, 7)")
        revert(db, call)
    assert_clear(caught.value)
    assert triggers(db) == armed
    assert_same(state, everything(db))
    assert revert(db, call).status == "reverted"


@pytest.mark.parametrize("silence", [True, False])
def test_a_call_from_inside_a_query_on_the_table_is_right_or_a_clear_error(
    db: Connection, silence: bool
) -> None:
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    if silence:
        trigger(db, "noise", "before update on t", "perform 1;")
    track(db, "t")
    before = everything(db)
    call = write(db, "update t set v = 9")
    armed, state = triggers(db), everything(db)
    query = "select (agentundo.revert(%s)).status from t where id = 1"
    if silence:
        with pytest.raises(psycopg.Error) as caught:
            db.execute(query, [call])
        assert_clear(caught.value)
        assert_same(state, everything(db))
    else:
        assert db.execute(query, [call]).fetchone() == ("reverted",)
        assert_same(before, everything(db))
    assert triggers(db) == armed


def test_an_open_cursor_on_the_table_gives_a_clear_error(deals: Connection) -> None:
    call = write(deals, "update t set v = 'x'")
    armed = triggers(deals)
    with pytest.raises(psycopg.Error) as caught, deals.transaction():  # noqa: PT012
        deals.execute("declare c cursor for select * from t; fetch c")
        revert(deals, call)
    assert_clear(caught.value)
    assert triggers(deals) == armed
    assert revert(deals, call).status == "reverted"


def assert_clear(error: Any) -> None:
    """Fail unless an error is ours, with a hint, and not PostgreSQL's about our ALTER TABLE."""
    assert "agentundo" in str(error.diag.message_primary)
    assert "transaction of its own" in str(error.diag.message_hint)


def test_an_event_trigger_of_the_users_that_forbids_ddl_stops_the_revert_whole(
    deals: Connection,
) -> None:
    call = write(deals, "update t set v = 'x'")
    deals.execute(
        "create function no_ddl() returns event_trigger language plpgsql as"
        " $$ begin raise exception 'no DDL on weekdays'; end $$;"
        "create event trigger no_ddl on ddl_command_end when tag in ('ALTER TABLE')"
        " execute function no_ddl()"
    )
    armed, state = triggers(deals), everything(deals)
    with pytest.raises(psycopg.Error, match="no DDL on weekdays"):
        revert(deals, call)
    assert triggers(deals) == armed
    assert_same(state, everything(deals))
    deals.execute("drop event trigger no_ddl")
    assert revert(deals, call).status == "reverted"


def test_our_own_event_trigger_ignores_the_switching(deals: Connection) -> None:
    """Following the table after each switch would take locks and time for nothing."""
    call = write(deals, "update t set v = 'x'")
    known = "select xmin::text, * from agentundo._member order by id"
    before = deals.execute(known).fetchall()
    assert revert(deals, call).status == "reverted"
    assert deals.execute(known).fetchall() == before


def test_triggers_of_partitions_are_silent_and_armed_again(db: Connection) -> None:
    db.execute(
        "create table log (what text);"
        "create table t (id int primary key, v int) partition by range (id);"
        "create table t_1 partition of t for values from (0) to (10);"
        "create table t_2 partition of t for values from (10) to (20);"
        "insert into t values (1, 1), (11, 1)"
    )
    trigger(db, "rows", "after insert or update or delete on t", "insert into log values ('row');")
    trigger(db, "leaf", "before update on t_2", "new.v := 77;")
    trigger(
        db, "stmt", "after update on t", "insert into log values ('statement');", level="statement"
    )
    db.execute("alter table t_1 enable always trigger rows")
    track(db, "t")
    armed = triggers(db)
    before = everything(db)
    call = write(
        db, "update t set v = 5", "update t set id = 12 where id = 1", "insert into t values (2, 2)"
    )
    db.execute("truncate log")
    assert revert(db, call).status == "reverted"
    rows = db.execute("select * from log").fetchall()
    assert rows == []
    assert triggers(db) == armed
    assert_same(before, everything(db))


def test_a_trigger_that_writes_under_the_revert_stays_out_of_the_way(db: Connection) -> None:
    """What a firing trigger sets off in another table is seen and counted like a cascade."""
    db.execute(
        "create table t (id int primary key, v int); create table u (id int primary key, n int);"
        "insert into t values (1, 1); insert into u values (1, 0)"
    )
    trigger(db, "copy", "after update on t", "update u set n = n + 1;")
    track(db, "t", "u")
    db.execute("select agentundo.set_trigger('t', 'copy', 'fire')")
    before = everything(db)
    call = write(db, "update t set v = 2")
    assert db.execute("select n from u").fetchone() == (1,)
    former = {**everything(db), "t": before["t"]}
    # Both the restored row and the trigger want u, so refusing is right, too.
    if assert_restored_or_refused(db, call, former):
        assert db.execute("select v from t").fetchone() == (1,)


def test_a_trigger_that_fires_and_keeps_rows_away_is_a_conflict(db: Connection) -> None:
    """Trying again would change nothing."""
    db.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    track(db, "t")
    call = write(db, "update t set v = 2")
    trigger(db, "no", "before update on t", "return null;")
    db.execute("select agentundo.set_trigger('t', 'no', 'fire')")
    before = everything(db)
    with refused("UN001") as caught:
        revert(db, call)
    assert "a trigger that is to fire may keep them from it" in caught.message
    assert_same(before, everything(db))
