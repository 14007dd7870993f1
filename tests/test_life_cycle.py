"""Whether there is something to take back hangs on captured changes, never on what was recorded.

One test for each combination of recorded status and changes, then what follows from it: late
changes, remainders, redo, runs and arrays, purge, scopes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connect, Connection
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    IMPATIENT,
    plan,
    plan_run,
    redo,
    refused,
    revert,
    revert_as_planned,
    revert_run,
    rows,
    scalar,
    status,
    tag,
    write,
)

pytestmark = pytest.mark.core

TABLES = ("public.items",)
NOTHING = (0, 0, 0, 0, 0)


@pytest.fixture
def db(connect: Connect) -> Connection:
    """Connect to a database with one tracked table of five rows."""
    conn = connect(options=IMPATIENT)
    conn.execute("create table items (id int primary key, name text, n int)")
    conn.execute("insert into items select n, 'item ' || n, n from generate_series(1, 5) n")
    conn.execute("select agentundo.track('items')")
    return conn


def record(db: Connection, invocation: str, state: str = "pending", **arguments: Any) -> None:
    """Record a call and bring the record into a state."""
    names = "".join(f", {name} => %s" for name in arguments)
    query = f"select agentundo.record_invocation(%s{names})"
    db.execute(query.encode(), [invocation, *arguments.values()])
    if state == "committed":
        db.execute("select agentundo.commit_invocation(%s)", [invocation])
    elif state == "failed":
        db.execute("select agentundo.fail_invocation(%s, 'it broke')", [invocation])


def change(db: Connection, invocation: str, *numbers: int, **companions: Any) -> None:
    """Let an invocation change rows."""
    listed = ", ".join(map(str, numbers))
    write(
        db,
        invocation,
        f"update items set name = '{invocation}', n = n + 100 where id in ({listed})",
        **companions,
    )


# recorded or not, with changes or without ------------------------------------------------------


def test_unknown_id_is_not_found(db: Connection) -> None:
    with refused("UN002") as caught:
        revert(db, "nobody")
    assert "nobody" in caught.message
    with refused("UN002"):
        plan(db, "nobody")
    with refused("UN002"):
        redo(db, "nobody")


def test_tag_that_wrote_nothing_is_not_found(db: Connection) -> None:
    write(db, "idle", "select 1; update items set n = 0 where false")
    with refused("UN002"):
        revert(db, "idle")


def test_unrecorded_with_changes(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    change(db, "call", 1, 2)
    assert status(db, "call") == "committed"
    result = revert(db, "call")
    assert (result.status, result.invocations, result.counts) == (
        "reverted",
        ["call"],
        (0, 0, 2, 0, 0),
    )
    assert status(db, "call") == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def test_pending_without_changes_is_not_committed(db: Connection) -> None:
    record(db, "call")
    result = revert(db, "call")
    assert (result.status, result.revert_id, result.counts) == ("not_committed", None, NOTHING)
    assert status(db, "call") == "pending"
    assert plan(db, "call") == []


@pytest.mark.parametrize("state", ["failed", "committed"])
def test_closed_without_changes_has_nothing_to_revert(db: Connection, state: str) -> None:
    record(db, "call", state)
    result = revert(db, "call")
    assert (result.status, result.revert_id, result.counts) == ("nothing_to_revert", None, NOTHING)
    assert status(db, "call") == state


@pytest.mark.parametrize("state", ["pending", "failed", "committed"])
def test_recorded_with_changes(db: Connection, state: str) -> None:
    """Also a failed one: that its transaction has committed nonetheless is all that counts."""
    before = snapshot(db, *TABLES)
    record(db, "call")
    change(db, "call", 1)
    if state == "committed":
        db.execute("select agentundo.commit_invocation('call')")
    elif state == "failed":
        db.execute("select agentundo.fail_invocation('call', 'it broke')")
    assert revert(db, "call").status == "reverted"
    assert status(db, "call") == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def test_revert_closes_a_pending_invocation(db: Connection) -> None:
    """It is over: a repeated call with this id must not simply write again."""
    record(db, "call", tool="t")
    change(db, "call", 1)
    revert(db, "call")
    with refused("UN010"):
        record(db, "call", tool="t")
    assert scalar(
        db, "select committed_at is not null from agentundo.invocations where id = 'call'"
    )


def test_reverted_without_new_changes(db: Connection) -> None:
    change(db, "call", 1)
    first = revert(db, "call")
    after = snapshot(db, *TABLES)
    again = revert(db, "call")
    assert (again.status, again.revert_id) == ("already_reverted", first.revert_id)
    assert again.counts == NOTHING
    assert_same(after, snapshot(db, *TABLES))
    assert (
        scalar(db, "select count(*) from agentundo.events where kind = 'invocation_reverted'") == 1
    )


def test_already_reverted_says_nothing_of_later_work(db: Connection) -> None:
    """The second click is harmless, also after somebody has gone on with the row."""
    change(db, "call", 1)
    revert(db, "call")
    db.execute("update items set name = 'mine' where id = 1")
    after = snapshot(db, *TABLES)
    for arguments in ({}, {"merge": True}, {"on_conflict": "skip"}, {"on_conflict": "cascade"}):
        assert revert(db, "call", **arguments).status == "already_reverted"
    forced = revert(db, "call", on_conflict="force", reverted_by="dana", reason="once more")
    assert forced.status == "already_reverted"
    assert_same(after, snapshot(db, *TABLES))


# late changes ----------------------------------------------------------------------------------


def test_late_change_under_a_reverted_id(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    change(db, "call", 1)
    first = revert(db, "call")
    change(db, "call", 2)
    assert status(db, "call") == "partially_reverted"
    assert {(row.key or {})["id"] for row in plan(db, "call")} == {2}
    second = revert(db, "call")
    assert (second.status, second.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert second.revert_id not in (None, first.revert_id)
    assert status(db, "call") == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def test_late_change_of_the_same_row_under_a_reverted_id(db: Connection) -> None:
    """Also when the late change writes the row that went back, and does so twice."""
    before = snapshot(db, *TABLES)
    for _ in range(3):
        change(db, "call", 1)
        change(db, "call", 1, 2)
        assert revert(db, "call").status == "reverted"
        assert_same(before, snapshot(db, *TABLES))
    assert revert(db, "call").status == "already_reverted"


def test_change_committed_after_the_revert_stays_for_the_next(
    db: Connection, connect: Connect
) -> None:
    """A revert covers what it saw: an uncommitted write of the same id is left over."""
    before = snapshot(db, *TABLES)
    change(db, "call", 1)
    writer = connect(options=IMPATIENT)
    with writer.transaction():
        tag(writer, "call")
        writer.execute("update items set n = 0 where id = 2")
        assert revert(db, "call").counts == (0, 0, 1, 0, 0)
        assert revert(db, "call").status == "already_reverted"
    assert scalar(db, "select n from items where id = 2") == 0
    assert status(db, "call") == "partially_reverted"
    assert revert(db, "call").counts == (0, 0, 1, 0, 0)
    assert_same(before, snapshot(db, *TABLES))


# skip, then the remainder ----------------------------------------------------------------------


def test_skip_then_the_remainder(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    change(db, "call", 1, 2, 3)
    agents = rows(db, "select name, n from items where id = 2")
    db.execute("update items set n = -1 where id = 2")
    first = revert(db, "call", on_conflict="skip")
    assert (first.status, first.counts) == ("partially_reverted", (0, 0, 2, 1, 1))
    assert status(db, "call") == "partially_reverted"
    assert {(r.key or {})["id"]: r.status for r in plan(db, "call") if r.status != "done"} == {
        2: "conflict"
    }
    with refused("UN001"):
        revert(db, "call")
    # The person agrees, and the revert can take the rest, which is one row.
    db.execute("update items set name = %s, n = %s where id = 2", agents[0])
    second = revert(db, "call", on_conflict="force", reverted_by="dana", reason="agreed")
    assert (second.status, second.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert second.revert_id != first.revert_id
    assert_same(before, snapshot(db, *TABLES))
    assert revert(db, "call").status == "already_reverted"


def test_remainder_leaves_alone_what_others_did_to_rows_taken_back(db: Connection) -> None:
    """Rows that went back first belong to whoever writes them then, not to the remainder."""
    change(db, "call", 1, 2)
    db.execute("update items set n = -1 where id = 2")
    revert(db, "call", on_conflict="skip")
    db.execute("update items set name = 'mine' where id = 1")
    second = revert(db, "call", on_conflict="force", reverted_by="dana", reason="rest")
    assert second.counts == (0, 0, 1, 0, 0)
    assert rows(db, "select id, name, n from items where id < 3 order by id") == [
        (1, "mine", 1),
        (2, "item 2", 2),
    ]


def test_skip_of_everything_is_partial_and_may_be_tried_again(db: Connection) -> None:
    change(db, "call", 1)
    db.execute("update items set n = -1 where id = 1")
    result = revert(db, "call", on_conflict="skip")
    assert (result.status, result.counts) == ("partially_reverted", (0, 0, 0, 1, 1))
    forced = revert(db, "call", on_conflict="force", reverted_by="dana", reason="rest")
    assert (forced.status, forced.counts) == ("reverted", (0, 0, 1, 0, 0))
    assert rows(db, "select name, n from items where id = 1") == [("item 1", 1)]


def test_skip_without_anything_to_skip_is_not_partial(db: Connection) -> None:
    change(db, "call", 1)
    assert revert(db, "call", on_conflict="skip").status == "reverted"
    assert status(db, "call") == "reverted"


# redo ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "update items set name = 'x', n = 0 where id <= 2",
        "insert into items values (6, 'six', 6)",
        "delete from items where id = 3",
        "update items set id = id + 10 where id <= 2",
        "delete from items where id = 1; insert into items values (1, 'new', 1);"
        " update items set n = 9 where id in (1, 2); update items set id = 7 where id = 2",
    ],
    ids=["update", "insert", "delete", "key", "all"],
)
def test_there_and_back_three_times(db: Connection, statement: str) -> None:
    before = snapshot(db, *TABLES)
    write(db, "call", statement)
    after = snapshot(db, *TABLES)
    seen = set()
    for _ in range(3):
        back = revert(db, "call")
        assert (back.status, back.invocations) == ("reverted", ["call"])
        assert status(db, "call") == "reverted"
        assert_same(before, snapshot(db, *TABLES))
        again = redo(db, "call")
        assert (again.status, again.invocations) == ("reverted", [back.revert_id])
        assert status(db, "call") == "committed"
        assert_same(after, snapshot(db, *TABLES))
        seen |= {back.revert_id, again.revert_id}
    assert len(seen) == 6, "each has an id of its own"


def test_redo_equals_the_revert_of_the_revert(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    change(db, "call", 1, 2)
    after = snapshot(db, *TABLES)
    first = revert(db, "call").revert_id
    assert first is not None
    again = revert(db, first)
    assert (again.status, again.invocations) == ("reverted", [first])
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "call") == "committed"
    assert again.revert_id is not None
    third = revert(db, again.revert_id)
    assert third.status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "call") == "reverted"
    assert revert(db, "call").status == "already_reverted"


def test_redo_without_a_standing_revert(db: Connection) -> None:
    change(db, "call", 1)
    after = snapshot(db, *TABLES)
    assert redo(db, "call").status == "nothing_to_revert"
    revert(db, "call")
    redo(db, "call")
    second = redo(db, "call")
    assert (second.status, second.counts) == ("nothing_to_revert", NOTHING)
    assert_same(after, snapshot(db, *TABLES))


def test_redo_respects_later_work(db: Connection) -> None:
    change(db, "call", 1, 2)
    revert(db, "call")
    db.execute("update items set n = -1 where id = 1")
    after = snapshot(db, *TABLES)
    with refused("UN001") as caught:
        redo(db, "call")
    assert caught.reasons == ["row_changed"]
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "call") == "reverted"
    result = redo(db, "call", on_conflict="skip")
    assert (result.status, result.counts) == ("partially_reverted", (0, 0, 1, 1, 1))


def test_redo_takes_the_newest_standing_revert(db: Connection) -> None:
    change(db, "call", 1)
    revert(db, "call")
    change(db, "call", 2)
    late = revert(db, "call")
    again = redo(db, "call")
    assert again.invocations == [late.revert_id]
    assert rows(db, "select id from items where name = 'call'") == [(2,)]
    assert status(db, "call") == "partially_reverted"
    assert redo(db, "call").status == "reverted"
    assert rows(db, "select id from items where name = 'call' order by id") == [(1,), (2,)]
    assert status(db, "call") == "committed"


def test_redo_after_a_partial_revert(db: Connection) -> None:
    change(db, "call", 1, 2)
    db.execute("update items set n = -1 where id = 2")
    after = snapshot(db, *TABLES)
    revert(db, "call", on_conflict="skip")
    assert redo(db, "call").status == "reverted"
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "call") == "committed"
    assert revert(db, "call", on_conflict="skip").counts == (0, 0, 1, 1, 1)


# arrays and runs -------------------------------------------------------------------------------


def test_array_leaves_out_members_without_changes_to_take_back(db: Connection) -> None:
    change(db, "done", 1)
    revert(db, "done")
    record(db, "idle", "committed")
    record(db, "waiting")
    change(db, "open", 2)
    result = revert(db, ["done", "idle", "open", "waiting"])
    assert (result.status, result.invocations) == ("reverted", ["open"])
    assert status(db, "waiting") == "pending"


def test_array_is_already_reverted_only_if_nothing_is_left(db: Connection) -> None:
    for name, number in (("one", 1), ("two", 2)):
        change(db, name, number)
    revert(db, "one")
    assert revert(db, ["one", "two"]).invocations == ["two"]
    last = revert(db, ["one", "two"])
    assert (last.status, last.counts) == ("already_reverted", NOTHING)


def test_what_is_left_of_another_of_the_array_stays_to_be_seen(db: Connection) -> None:
    """One of two was skipped in part: that the other has gone wholly says nothing of it."""
    change(db, "one", 1)
    change(db, "two", 2)
    change(db, "two", 3)
    db.execute("update items set name = 'eve' where id = 3")
    assert revert(db, ["one", "two"], on_conflict="skip").status == "partially_reverted"
    assert revert(db, "one").status == "already_reverted"
    assert (status(db, "one"), status(db, "two")) == ("reverted", "partially_reverted")
    assert revert(db, "two", on_conflict="skip").status == "partially_reverted"
    assert status(db, "two") == "partially_reverted"


def test_array_with_an_unknown_member_does_nothing(db: Connection) -> None:
    change(db, "one", 1)
    after = snapshot(db, *TABLES)
    with refused("UN002") as caught:
        revert(db, ["one", "nobody"])
    assert "nobody" in caught.message
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "one") == "committed"


def test_revert_of_two_is_redone_as_one(db: Connection) -> None:
    change(db, "one", 1, 2)
    change(db, "two", 2, 3)
    after = snapshot(db, *TABLES)
    both = revert(db, ["one", "two"])
    result = redo(db, "one")
    assert (result.status, result.invocations) == ("reverted", [both.revert_id])
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "one") == status(db, "two") == "committed"


def make_run(db: Connection) -> None:
    """Make a run of three calls that all touch the first row."""
    for step in (1, 2, 3):
        change(db, f"call {step}", 1, step + 1, run="job", step=step)


def test_run_goes_back_as_one(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    make_run(db)
    planned = {((r.key or {})["id"], r.action, r.status) for r in plan_run(db, "job")}
    assert planned == {(number, "update", "ok") for number in (1, 2, 3, 4)}
    result = revert_run(db, "job")
    assert (result.status, result.counts) == ("reverted", (0, 0, 4, 0, 0))
    assert sorted(result.invocations) == ["call 1", "call 2", "call 3"]
    assert_same(before, snapshot(db, *TABLES))
    assert revert_run(db, "job").status == "already_reverted"


def test_run_from_a_step_on(db: Connection) -> None:
    change(db, "call 1", 1, run="job", step=1)
    middle = snapshot(db, *TABLES)
    change(db, "call 2", 1, 2, run="job", step=2)
    change(db, "call 3", 1, 3, run="job", step=3)
    result = revert_run(db, "job", from_step=2)
    assert sorted(result.invocations) == ["call 2", "call 3"]
    assert_same(middle, snapshot(db, *TABLES))
    assert status(db, "call 1") == "committed"
    rest = revert_run(db, "job")
    assert rest.invocations == ["call 1"]
    assert rows(db, "select id from items where name <> 'item ' || id") == []


def test_run_from_a_recorded_step_on(db: Connection) -> None:
    """Steps that were given automatically count like those that were set."""
    for name in ("a", "b", "c"):
        record(db, name, run="job")
        change(db, name, 1, run="job")
    steps = rows(db, "select id, step from agentundo.invocations where run = 'job' order by id")
    assert steps == [("a", 1), ("b", 2), ("c", 3)]
    assert sorted(revert_run(db, "job", from_step=2).invocations) == ["b", "c"]
    assert rows(db, "select name from items where id = 1") == [("a",)]


def test_run_leaves_out_what_was_taken_back_alone(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    make_run(db)
    assert revert(db, "call 3").status == "reverted"
    assert sorted(revert_run(db, "job").invocations) == ["call 1", "call 2"]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize(
    ("run", "from_step", "code"),
    [
        ("nothing", 1, "UN002"),
        ("job", 4, "UN002"),
        ("job", 0, "22023"),
        ("job", -1, "22023"),
        ("job", None, "22023"),
        ("", 1, "22023"),
        (None, 1, "22023"),
    ],
)
def test_run_that_is_none(
    db: Connection, run: str | None, from_step: int | None, code: str
) -> None:
    make_run(db)
    after = snapshot(db, *TABLES)
    for function in ("plan_run", "revert_run"):
        with refused(code):
            query = f"select * from agentundo.{function}(%s::text, %s::int)"
            db.execute(query.encode(), [run, from_step])
    assert_same(after, snapshot(db, *TABLES))


def test_newest_run_then_the_older_run_that_touched_the_same_row(db: Connection) -> None:
    """A row that an undo has brought back to what the older run left is that run's again."""
    before = snapshot(db, *TABLES)
    change(db, "old call", 1, 2, run="old", step=1)
    between = snapshot(db, *TABLES)
    change(db, "new call", 1, 3, run="new", step=1)
    with refused("UN001"):
        revert_run(db, "old")
    assert revert_run(db, "new").status == "reverted"
    assert_same(between, snapshot(db, *TABLES))
    assert revert_run(db, "old").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
    # and forward again, in the order in which they were
    assert redo(db, "old call").status == "reverted"
    assert_same(between, snapshot(db, *TABLES))
    assert redo(db, "new call").status == "reverted"


@pytest.mark.parametrize(
    "statement", ["delete from items where id = 1", "update items set id = 9 where id = 1"]
)
def test_newest_then_older_when_the_newest_removed_the_row(db: Connection, statement: str) -> None:
    before = snapshot(db, *TABLES)
    change(db, "old", 1)
    write(db, "new", statement)
    assert revert(db, "new").status == "reverted"
    assert revert_as_planned(db, TABLES, "old").counts == (0, 0, 1, 0, 0)  # type: ignore[union-attr]
    assert_same(before, snapshot(db, *TABLES))


def test_newest_then_older_when_the_older_inserted_the_row(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    write(db, "old", "insert into items values (6, 'six', 6)")
    change(db, "new", 6)
    assert revert(db, "new").status == "reverted"
    assert revert(db, "old").counts == (1, 0, 0, 0, 0)
    assert_same(before, snapshot(db, *TABLES))


# after the history is gone, and in other scopes ------------------------------------------------


def test_purged_is_expired_and_not_unknown(db: Connection) -> None:
    change(db, "call", 1)
    db.execute("select agentundo.purge(interval '0')")
    for action in (plan, revert, redo):
        with refused("UN011") as caught:
            action(db, "call")
        assert "call" in caught.message
    assert rows(db, "select name from items where id = 1") == [("call",)]


def test_purged_member_of_an_array_stops_the_whole(db: Connection) -> None:
    change(db, "old", 1)
    db.execute("select agentundo.purge(interval '0')")
    change(db, "new", 2)
    after = snapshot(db, *TABLES)
    with refused("UN011"):
        revert(db, ["old", "new"])
    assert_same(after, snapshot(db, *TABLES))


def test_held_invocation_survives_the_purge(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    change(db, "call", 1)
    db.execute("select agentundo.hold('call', 'audit'); select agentundo.purge(interval '0')")
    assert revert(db, "call").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


def errors(db: Connection, invocation: str, **arguments: Any) -> list[tuple[str, str]]:
    """Return what each function says of an id that it refuses, with the id itself left out."""
    said = []
    for action in (plan, revert, redo):
        with refused("UN002") as caught:
            action(db, invocation, **arguments)
        said.append((caught.message.replace(invocation, "…"), caught.hint))
    return said


def test_other_scope_is_exactly_like_an_unknown_id(db: Connection) -> None:
    """Whether an id exists elsewhere must not be learnt from what is said about it."""
    change(db, "theirs", 1, scope="theirs")
    record(db, "recorded", scope="theirs")
    change(db, "no scope", 2)
    after = snapshot(db, *TABLES)
    unknown = errors(db, "nobody", scope="ours")
    assert errors(db, "theirs", scope="ours") == unknown
    assert errors(db, "recorded", scope="ours") == unknown
    assert errors(db, "no scope", scope="ours") == unknown
    assert_same(after, snapshot(db, *TABLES))
    assert revert(db, "theirs", scope="theirs").status == "reverted"


def test_one_id_under_two_scopes_is_unknown_to_both(db: Connection) -> None:
    """Whoever writes under somebody else's id must not have his rows taken back by them."""
    change(db, "both", 1, scope="theirs")
    change(db, "both", 2, scope="ours")
    record(db, "recorded", scope="theirs")
    change(db, "recorded", 2, scope="ours")
    for scope in ("theirs", "ours"):
        for id_ in ("both", "recorded"):
            assert errors(db, id_, scope=scope) == errors(db, "nobody", scope=scope)
    assert revert(db, ["both", "recorded"]).status == "reverted"


def test_scope_of_the_session_counts_like_one_given(db: Connection) -> None:
    change(db, "theirs", 1, scope="theirs")
    db.execute("set agent.scope = 'ours'")
    with refused("UN002"):
        revert(db, "theirs")
    db.execute("set agent.scope = 'theirs'")
    assert revert(db, "theirs").status == "reverted"


def test_run_of_another_scope_is_like_an_unknown_run(db: Connection) -> None:
    change(db, "theirs", 1, run="job", step=1, scope="theirs")
    said = []
    for run in ("job", "none"):
        with refused("UN002") as caught:
            revert_run(db, run, scope="ours")
        said.append((caught.message.replace(run, "…"), caught.hint))
    assert said[0] == said[1]


# what a revert leaves behind -------------------------------------------------------------------


def test_views_tell_who_took_back_what(db: Connection) -> None:
    change(db, "call", 1, run="job", step=1, actor="bot", tool="edit")
    result = revert(db, "call", reverted_by="dana", reason="wrong row")
    assert rows(
        db,
        "select status, undoable, revert_id, reverted_by, revert_reason"
        " from agentundo.invocations where id = 'call'",
    ) == [("reverted", False, result.revert_id, "dana", "wrong row")]
    assert rows(db, "select covered_by from agentundo.changes where invocation = 'call'") == [
        (result.revert_id,)
    ]
    assert rows(
        db,
        "select kind, source, run, step, tool, actor, payload ->> 'revert_id'"
        " from agentundo.events where invocation = 'call'",
    ) == [("invocation_reverted", "system", "job", 1, "edit", "bot", result.revert_id)]
    assert rows(db, "select status, undoable from agentundo.runs where run = 'job'") == [
        ("reverted", False)
    ]


def test_rolled_back_revert_leaves_nothing(db: Connection) -> None:
    change(db, "call", 1)
    after = snapshot(db, *TABLES)
    with db.transaction(force_rollback=True):
        assert revert(db, "call").status == "reverted"
    assert_same(after, snapshot(db, *TABLES))
    assert status(db, "call") == "committed"
    assert scalar(db, "select count(*) from agentundo.events") == 0
    assert revert(db, "call").status == "reverted"


def test_rolled_back_write_leaves_nothing(db: Connection) -> None:
    with db.transaction(force_rollback=True):
        tag(db, "call")
        db.execute("update items set n = 0")
    with refused("UN002"):
        revert(db, "call")
