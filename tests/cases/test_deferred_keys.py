"""Keys that are checked at commit only: for a while, two rows of a table may have the same one."""

from __future__ import annotations

import itertools

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import (
    FORCE,
    Refusal,
    plan,
    redo,
    refused,
    revert,
    revert_as_planned,
    rows,
    tag,
)
from tests.support.undoing import (
    assert_refused,
    assert_restored_or_refused,
    everything,
    reasons,
    track,
    write,
)

pytestmark = pytest.mark.core


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make a table whose key is checked at commit."""
    db.execute("create table t (id int primary key deferrable initially deferred, v text)")
    track(db, "t", capture="all")
    return db


def assert_as_planned(db: Connection, what: str | list[str]) -> None:
    """Undo what may be refused, and what then must be as it was planned: refused, or done."""
    outcome = revert_as_planned(db, ["public.t"], what)
    if not isinstance(outcome, Refusal):
        assert (outcome.status, outcome.counts[3:]) == ("reverted", (0, 0))


# A row beside another, which both go, and a third ------------------------------------------------


@pytest.mark.parametrize(
    "values", [*itertools.permutations("abc"), *itertools.product("ab", repeat=3)]
)
@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_row_that_stood_beside_one_of_the_same_key_is_not_lost(
    t: Connection, capture: str, values: tuple[str, str, str]
) -> None:
    """The row that was there comes back, or the call is refused; whatever sorts first."""
    original, second, third = values
    track(t, "t", capture=capture)
    t.execute("insert into t values (1, %s), (2, 'other')", [original])
    before = everything(t)
    write(
        t,
        f"insert into t values (1, '{second}')",
        "delete from t where id = 1",
        f"insert into t values (1, '{third}')",
        tag="call",
    )
    after = everything(t)
    if assert_restored_or_refused(t, "call", before):
        assert redo(t, "call").status == "reverted"
        assert_same(after, everything(t))
        assert revert(t, "call").status == "reverted"
        assert_same(before, everything(t))


@pytest.mark.parametrize("values", [*itertools.permutations("abc")])
def test_the_plan_says_of_such_a_row_what_its_revert_does(
    t: Connection, values: tuple[str, str, str]
) -> None:
    original, second, third = values
    t.execute("insert into t values (1, %s)", [original])
    write(
        t,
        f"insert into t values (1, '{second}')",
        "delete from t where id = 1",
        f"insert into t values (1, '{third}')",
        tag="call",
    )
    assert_as_planned(t, "call")
    assert rows(t, "table t") in ([(1, original)], [(1, third)])
    told = [row for row in plan(t, "call") if row.status == "ok"]
    assert [row.before for row in told] in ([], [{"id": 1, "v": original}])


@pytest.mark.parametrize("values", [*itertools.permutations("abc")])
@pytest.mark.parametrize("mode", ["skip", "force"])
def test_no_other_mode_loses_it_either(
    t: Connection, mode: str, values: tuple[str, str, str]
) -> None:
    original, second, third = values
    t.execute("insert into t values (1, %s)", [original])
    before = everything(t)
    write(
        t,
        f"insert into t values (1, '{second}')",
        "delete from t where id = 1",
        f"insert into t values (1, '{third}')",
        tag="call",
    )
    outcome = revert_as_planned(
        t, ["public.t"], "call", **(FORCE if mode == "force" else {"on_conflict": "skip"})
    )
    assert rows(t, "table t") in ([(1, original)], [(1, third)])
    if not isinstance(outcome, Refusal) and outcome.status == "reverted":
        assert_same(before, everything(t))


@pytest.mark.parametrize("values", [*itertools.permutations("abc")])
def test_nothing_is_left_of_rows_of_one_key_that_came_and_went(
    t: Connection, values: tuple[str, str, str]
) -> None:
    """Two of them at once, and nobody's row stood there before."""
    first, second, third = values
    before = everything(t)
    write(
        t,
        f"insert into t values (1, '{first}')",
        f"insert into t values (1, '{second}')",
        "delete from t where id = 1",
        f"insert into t values (1, '{third}')",
        tag="call",
    )
    assert_restored_or_refused(t, "call", before)


# Two rows of one key that another call deletes ---------------------------------------------------


@pytest.fixture
def twins(t: Connection) -> Connection:
    """Let a call give a row the key of another, and a second one delete both, at once."""
    t.execute("insert into t values (1, 'one'), (2, 'two'), (3, 'three')")
    with t.transaction():
        tag(t, "moves")
        t.execute("update t set id = 2 where id = 1")
        tag(t, "deletes")
        t.execute("delete from t where id = 2")
    return t


def test_two_rows_of_one_key_do_not_come_back_by_half(twins: Connection) -> None:
    """Both cannot stand, and one of them alone is not what the call has deleted."""
    assert rows(twins, "table t") == [(3, "three")]
    assert reasons(twins, "deletes").total() >= 1
    assert_refused(twins, "deletes")
    assert rows(twins, "table t") == [(3, "three")]


@pytest.mark.parametrize("arguments", [{"on_conflict": "skip"}, {"merge": True}, FORCE])
def test_nor_do_they_in_any_other_mode_as_if_that_were_all(
    twins: Connection, arguments: dict[str, object]
) -> None:
    outcome = revert_as_planned(twins, ["public.t"], "deletes", **arguments)
    assert isinstance(outcome, Refusal) or outcome.status == "partially_reverted"


def test_both_calls_together_bring_both_rows_back(twins: Connection) -> None:
    outcome = revert_as_planned(twins, ["public.t"], ["moves", "deletes"])
    assert not isinstance(outcome, Refusal)
    assert outcome.status == "reverted"
    assert rows(twins, "select * from t order by id") == [(1, "one"), (2, "two"), (3, "three")]
    assert revert(twins, "moves").status == "already_reverted"
    assert revert(twins, "deletes").status == "already_reverted"


def test_the_call_that_moved_alone_is_refused_and_brings_nothing_back(twins: Connection) -> None:
    now = everything(twins)
    with refused("UN001"):
        revert(twins, "moves")
    assert_same(now, everything(twins))


# The same in one call ----------------------------------------------------------------------------

_ONE_CALL = {
    "moved there and both deleted": [
        "update t set id = 2 where id = 1",
        "delete from t where id = 2",
    ],
    "written, deleted, made": [
        "update t set id = 2 where id = 1",
        "update t set v = v || '!' where id = 2",
        "delete from t where id = 2",
        "insert into t values (2, 'a new')",
    ],
    "deleted, made": [
        "update t set id = 2 where id = 1",
        "delete from t where id = 2",
        "insert into t values (2, 'new')",
    ],
    "made there and both deleted": [
        "insert into t values (2, 'made')",
        "delete from t where id = 2",
    ],
    "one of them deleted": [
        "update t set id = 2 where id = 1",
        "delete from t where v = '{second}'",
    ],
    "the other deleted": [
        "update t set id = 2 where id = 1",
        "delete from t where v = '{first}'",
    ],
    "both written, one moved away": [
        "update t set id = 2 where id = 1",
        "update t set v = v || '!' where id = 2",
        "update t set id = 4 where v = '{second}!'",
    ],
    "changed places": ["update t set id = 3 - id where id < 3"],
    "changed places one by one": [
        "update t set id = 2 where id = 1",
        "update t set id = 1 where v = '{second}'",
    ],
}


@pytest.mark.parametrize("name", _ONE_CALL)
@pytest.mark.parametrize("values", [("one", "two"), ("two", "one")], ids=["sorted", "unsorted"])
def test_one_call_over_two_rows_of_one_key_goes_back_or_is_refused(
    t: Connection, values: tuple[str, str], name: str
) -> None:
    first, second = values
    statements = [one.format(first=first, second=second) for one in _ONE_CALL[name]]
    t.execute("insert into t values (1, %s), (2, %s), (3, 'three')", [first, second])
    before = everything(t)
    write(t, *statements, tag="call")
    after = everything(t)
    assert_as_planned(t, "call")
    if rows(t, "select count(*) from agentundo.invocations where status = 'reverted'") == [(1,)]:
        assert_same(before, everything(t))
    else:
        assert_same(after, everything(t))
