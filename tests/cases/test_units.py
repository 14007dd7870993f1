"""What a set of changes did to a row, whoever wrote in between, and what goes back together."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import Connection
from tests.support.collation import make_blind_collation
from tests.support.state import assert_same, snapshot
from tests.support.undo import (
    FORCE,
    Refusal,
    Result,
    plan,
    redo,
    refused,
    revert,
    revert_as_planned,
    rows,
    scalar,
    status,
    tag,
    write,
)

pytestmark = pytest.mark.core

TABLES = ("public.t",)
CAPTURES = ("agent", "all")


@pytest.fixture(params=CAPTURES)
def db(db: Connection, request: pytest.FixtureRequest) -> Connection:
    """Connect to a database with one row, tracked in either way."""
    db.execute("create table t (id int primary key, v text)")
    db.execute("insert into t values (1, 'A')")
    db.execute("select agentundo.track('t', %s)", [request.param])
    return db


def play(db: Connection, story: str) -> None:
    """Bring row 1 into one state after the other: capitals are values, `-` is no row.

    Each state is preceded by who makes it: `a` for the agent, `p` for a person.
    """
    for move in story.split():
        who, state = move[0], move[1]
        present = bool(rows(db, "select from t where id = 1"))
        if state == "-":
            statement = "delete from t where id = 1"
        elif present:
            statement = f"update t set v = '{state}' where id = 1"
        else:
            statement = f"insert into t values (1, '{state}')"
        if who == "a":
            write(db, "agent", statement)
        else:
            db.execute(statement.encode())


def value(db: Connection) -> str:
    """Return the value of row 1, `-` if there is none."""
    return str(scalar(db, "select v from t where id = 1") or "-")


# Between transactions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "story", ["aB", "aB aC", "aB aA aC", "a- aB", "aB a- aC aD", "a-", "aB a-"]
)
def test_chain_of_the_agent_alone(db: Connection, story: str) -> None:
    before = snapshot(db, *TABLES)
    play(db, story)
    assert revert_as_planned(db, TABLES, "agent").status == "reverted"  # type: ignore[union-attr]
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize(
    ("story", "left"),
    [
        # The images alone would also fit a chain C, A, B, D: "before" must not be C, which
        # somebody had overwritten long ago.
        ("aB pC aA pB aD", "B"),
        ("aB pC aD", "C"),
        ("aB pC aA", "C"),
        ("aB pC aB", "C"),
        ("aB p- aC", "-"),
        ("a- pC aD", "C"),
        ("a- pC a-", "C"),
        ("aB pC aD aE", "C"),
        # absence is a state like any other
        ("a- pX p- pY a- pX aZ", "X"),
    ],
)
def test_only_the_last_stretch_of_the_agent_can_go_back(
    db: Connection, story: str, left: str
) -> None:
    """Skip and force bring back what the other writer had left, never what was before him."""
    play(db, story)
    last = value(db)
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["row_changed"]
    for arguments in ({"merge": True}, {"on_conflict": "cascade"}):
        assert isinstance(revert_as_planned(db, TABLES, "agent", **arguments), Refusal)
    assert value(db) == last
    with db.transaction(force_rollback=True):
        forced = revert(db, "agent", **FORCE)
        assert value(db) == left
        assert forced.status == "partially_reverted"
    (row,) = plan(db, "agent", on_conflict="skip")
    assert (row.detail or {})["segments"] >= 2, "the rest is reported"
    result = revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert isinstance(result, Result)
    assert (value(db), result.status) == (left, "partially_reverted")


@pytest.mark.parametrize("story", ["aB pC", "aB pC aD pE", "a- pC", "aB p-"])
def test_nothing_goes_back_under_a_person_who_wrote_last(db: Connection, story: str) -> None:
    play(db, story)
    last = value(db)
    with refused("UN001"):
        revert(db, "agent")
    result = revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert isinstance(result, Result)
    assert (value(db), result.status, result.rows_skipped) == (last, "partially_reverted", 1)


def test_same_value_written_in_between(db: Connection) -> None:
    """Somebody confirmed B before the agent went on: seen only where every write is captured."""
    play(db, "aB pB aC")
    if scalar(db, "select capture from agentundo.tracked") == "all":
        with refused("UN001") as caught:
            revert(db, "agent")
        assert caught.reasons == ["row_changed"]
        assert value(db) == "C"
        revert(db, "agent", on_conflict="skip")
        assert value(db) == "B"
    else:
        assert revert(db, "agent").status == "reverted"
        assert value(db) == "A"


def test_insert_then_delete_is_nothing(db: Connection) -> None:
    write(db, "agent", "insert into t values (2, 'x')")
    write(db, "agent", "delete from t where id = 2")
    db.execute("insert into t values (2, 'mine')")
    assert plan(db, "agent") == []
    result = revert(db, "agent")
    assert (result.status, result.counts) == ("reverted", (0, 0, 0, 0, 0))
    assert rows(db, "select * from t order by id") == [(1, "A"), (2, "mine")]


# Within one transaction ------------------------------------------------------------------------


def test_two_invocations_in_one_transaction(db: Connection) -> None:
    """The row's version is the same for both: the later one is found by its changes."""
    before = snapshot(db, *TABLES)
    with db.transaction():
        tag(db, "first")
        db.execute("update t set v = 'B' where id = 1")
        tag(db, "second")
        db.execute("update t set v = 'B' where id = 1")
    after = snapshot(db, *TABLES)
    with refused("UN001") as caught:
        revert(db, "first")
    assert caught.reasons == ["row_rewritten"]
    assert_same(after, snapshot(db, *TABLES))
    assert revert(db, "second").status == "reverted"
    assert revert(db, "first").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))


@pytest.mark.parametrize("last", ["update t set v = 'C'", "delete from t", "update t set id = 7"])
def test_second_invocation_in_one_transaction_changes_the_row(db: Connection, last: str) -> None:
    before = snapshot(db, *TABLES)
    with db.transaction():
        tag(db, "first")
        db.execute("update t set v = 'B' where id = 1")
        tag(db, "second")
        db.execute(last.encode())
    assert isinstance(revert_as_planned(db, TABLES, "first"), Refusal)
    result = revert_as_planned(db, TABLES, "first", on_conflict="cascade")
    assert isinstance(result, Result)
    assert sorted(result.invocations) == ["first", "second"]
    assert_same(before, snapshot(db, *TABLES))


def test_invocation_between_two_stretches_of_another_in_one_transaction(db: Connection) -> None:
    with db.transaction():
        tag(db, "outer")
        db.execute("update t set v = 'B' where id = 1")
        tag(db, "inner")
        db.execute("update t set v = 'C' where id = 1")
        tag(db, "outer")
        db.execute("update t set v = 'D' where id = 1")
    with refused("UN001") as caught:
        revert(db, "outer")
    assert caught.reasons == ["row_changed"]
    result = revert_as_planned(db, TABLES, "outer", on_conflict="skip")
    assert isinstance(result, Result)
    assert (value(db), result.status) == ("C", "partially_reverted")


def test_untagged_write_later_in_the_agents_transaction(db: Connection) -> None:
    with db.transaction():
        tag(db, "agent")
        db.execute("update t set v = 'B' where id = 1")
        db.execute("set local agent.invocation = ''")
        db.execute("update t set v = 'C' where id = 1")
    with refused("UN001") as caught:
        revert(db, "agent")
    assert caught.reasons == ["row_changed"]
    assert value(db) == "C"


def test_untagged_rewrite_in_the_agents_transaction(db: Connection) -> None:
    """Equal values in the same transaction are seen only where every write is captured."""
    with db.transaction():
        tag(db, "agent")
        db.execute("update t set v = 'B' where id = 1")
        db.execute("set local agent.invocation = ''")
        db.execute("update t set v = 'B' where id = 1")
    if scalar(db, "select capture from agentundo.tracked") == "all":
        with refused("UN001") as caught:
            revert(db, "agent")
        assert caught.reasons == ["row_rewritten"]
    else:
        assert revert(db, "agent").status == "reverted"


def test_trigger_that_writes_the_row_again_and_swallows_its_own_errors(db: Connection) -> None:
    """Captured first what was written last: the number of a change is no order here."""
    db.execute(
        "create function again() returns trigger language plpgsql as $$ begin"
        " begin update t set v = new.v || '!' where id = new.id;"
        " exception when others then null; end;"
        " return null; end $$"
    )
    db.execute(
        "create trigger again after update on t for each row"
        " when (pg_trigger_depth() = 0) execute function again()"
    )
    before = snapshot(db, *TABLES)
    with db.transaction():
        tag(db, "agent")
        for state in ("B", "C", "A"):
            db.execute("update t set v = %s where id = 1", [state])
    assert value(db) == "A!"
    assert revert_as_planned(db, TABLES, "agent").status == "reverted"  # type: ignore[union-attr]
    assert_same(before, snapshot(db, *TABLES))


# Rows whose key changed ------------------------------------------------------------------------


def test_rekeyed_row_is_not_doubled_by_skip(db: Connection) -> None:
    write(db, "agent", "update t set id = 40 where id = 1")
    db.execute("update t set v = 'mine' where id = 40")
    assert isinstance(revert_as_planned(db, TABLES, "agent"), Refusal)
    result = revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert isinstance(result, Result)
    assert result.status == "partially_reverted"
    assert rows(db, "select * from t") == [(40, "mine")]
    forced = revert_as_planned(db, TABLES, "agent", **FORCE)
    assert isinstance(forced, Result)
    assert rows(db, "select * from t") == [(1, "A")]


def test_rekeyed_row_is_not_lost_when_its_old_key_is_taken(db: Connection) -> None:
    write(db, "agent", "update t set id = 40 where id = 1")
    db.execute("insert into t values (1, 'mine')")
    assert isinstance(revert_as_planned(db, TABLES, "agent"), Refusal)
    result = revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert isinstance(result, Result)
    assert rows(db, "select * from t order by id") == [(1, "mine"), (40, "A")]


def test_rekeyed_rows_are_skipped_one_by_one(db: Connection) -> None:
    """Which row went where is plain here, so one edited row does not hold up the others."""
    db.execute("insert into t values (2, 'B'), (3, 'C')")
    before = snapshot(db, *TABLES)
    write(db, "agent", "update t set id = id + 10")
    db.execute("update t set v = 'mine' where id = 12")
    result = revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert isinstance(result, Result)
    assert (result.status, result.rows_skipped) == ("partially_reverted", 1)
    assert rows(db, "select * from t order by id") == [(1, "A"), (3, "C"), (12, "mine")]
    revert_as_planned(db, TABLES, "agent", **FORCE)
    assert_same(before, snapshot(db, *TABLES))


def test_rekeyed_twins_are_never_doubled_or_lost(db: Connection) -> None:
    """Rows that only their keys tell apart: at most none of them goes back."""
    db.execute("insert into t values (2, 'A'), (3, 'A')")
    write(db, "agent", "update t set id = id + 10")
    db.execute("update t set v = 'mine' where id = 12")
    assert isinstance(revert_as_planned(db, TABLES, "agent"), Refusal)
    revert_as_planned(db, TABLES, "agent", on_conflict="skip")
    assert scalar(db, "select count(*) from t") == 3
    assert rows(db, "select id from t where v = 'mine'") == [(12,)]


@pytest.mark.parametrize(
    "statements",
    [
        ["update t set id = 3 - id"],
        ["update t set id = id % 3 + 1"],
        ["update t set id = id + 1"],
        ["update t set id = id + 1", "update t set id = 5 - id"],
        ["update t set id = id + 1, v = v || id", "insert into t values (1, 'new')"],
    ],
)
def test_keys_that_change_places(db: Connection, statements: list[str]) -> None:
    db.execute("alter table t drop constraint t_pkey, add primary key (id) deferrable")
    db.execute("select agentundo.sync('t')")
    db.execute("insert into t values (2, 'B')")
    if "%" in statements[0]:
        db.execute("insert into t values (3, 'C')")
    before = snapshot(db, *TABLES)
    for statement in statements:
        write(db, "agent", statement)
    after = snapshot(db, *TABLES)
    assert revert(db, "agent").status == "reverted"
    assert_same(before, snapshot(db, *TABLES))
    assert redo(db, "agent").status == "reverted"
    assert_same(after, snapshot(db, *TABLES))


_ONE_BY_ONE = {
    "shifted": [f"update t set id = {n + 1} where id = {n}" for n in (4, 3, 2, 1)],
    "made room": [
        *(f"update t set id = {n + 1} where id = {n}" for n in (4, 3, 2)),
        "insert into t values (2, 'new')",
    ],
    "the first left": [
        "delete from t where id = 1",
        *(f"update t set id = {n - 1} where id = {n}" for n in (2, 3, 4)),
        "insert into t values (4, 'new')",
    ],
    "swapped": [f"update t set id = {b} where id = {a}" for a, b in ((2, -1), (3, 2), (-1, 3))],
}


@pytest.mark.parametrize("stamped", [False, True], ids=["plain", "stamped"])
@pytest.mark.parametrize("merge", [False, True], ids=["skip", "skip and merge"])
@pytest.mark.parametrize("statements", _ONE_BY_ONE.values(), ids=_ONE_BY_ONE.keys())
def test_rows_that_moved_one_by_one_stay_together(
    db: Connection, statements: list[str], merge: bool, stamped: bool
) -> None:
    """A person then edits one of them: none goes back."""
    db.execute("alter table t add w int default 0, add u int default 0")
    db.execute("insert into t values (2, 'B'), (3, 'C'), (4, 'D'); select agentundo.sync()")
    if stamped:
        db.execute(
            "create function stamp() returns trigger language plpgsql as"
            " $$ begin new.u := new.u + 1; return new; end $$;"
            "create trigger stamp before update on t for each row execute function stamp()"
        )
    write(db, "agent", "; ".join(statements))
    db.execute("update t set w = 5 where id = 3")
    now = rows(db, "select id, v, w from t")
    result = revert(db, "agent", on_conflict="skip", merge=merge)
    assert (result.status, result.rows_updated) == ("partially_reverted", 0)
    assert sorted(rows(db, "select id, v, w from t")) == sorted(now)


_SHIFTS = {
    # what an agent did to the keys, what a person did to one row, which keys stay as they are now
    "shifted, the last edited": ("id = id + 1", "v = 'Z' where id = 5", {2, 3, 4, 5}),
    "shifted, one between edited": ("id = id + 1", "v = 'Z' where id = 3", {2, 3, 4, 5}),
    "shifted, one between deleted": ("id = id + 1", "delete from t where id = 3", {2, 4, 5}),
    "shifted, the last deleted": ("id = id + 1", "delete from t where id = 5", {2, 3, 4}),
    "shifted far": ("id = id + 3", "v = 'Z' where id = 7", {4, 7}),
    "two swapped": ("id = 3 - id where id < 3", "w = 5 where id = 1", {1, 2}),
    "all the way round": ("id = id % 4 + 1", "w = 5 where id = 2", {1, 2, 3, 4}),
}


@pytest.mark.parametrize("merge", [False, True], ids=["skip", "skip and merge"])
@pytest.mark.parametrize(("agent", "person", "stay"), _SHIFTS.values(), ids=_SHIFTS.keys())
def test_rows_that_moved_through_each_other_are_neither_doubled_nor_lost(
    db: Connection, agent: str, person: str, stay: set[int], merge: bool
) -> None:
    """Each is told apart by `v`; whatever goes back, each of them stands once."""
    db.execute("alter table t add w int default 0, alter v set not null")
    db.execute("alter table t drop constraint t_pkey, add primary key (id) deferrable")
    db.execute("insert into t values (2, 'B'), (3, 'C'), (4, 'D'); select agentundo.sync()")
    first = dict(rows(db, "select v, id from t"))
    write(db, "agent", f"update t set {agent}")
    db.execute((person if person.startswith("delete") else f"update t set {person}").encode())
    now = rows(db, "select id, v, w from t")
    result = revert(db, "agent", on_conflict="skip", merge=merge)
    assert result.status == "partially_reverted"
    stood = [row for row in now if row[0] in stay]
    went = [(first[v], v, w) for id_, v, w in now if id_ not in stay]
    assert sorted(rows(db, "select id, v, w from t")) == sorted(stood + went)
    assert {row.status for row in plan(db, str(result.revert_id))} <= {"ok"}
    redo(db, "agent")
    assert sorted(rows(db, "select id, v, w from t")) == sorted(now)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("numeric", "1.0", "1.00"),
        ("float8", "0", "-0"),
        ("interval", "1 day", "24 hours"),
        ("bpchar", "a", "a "),
        ('text collate "blind"', "key", "KEY"),
    ],
)
def test_key_that_is_equal_but_not_identical(
    db: Connection, kind: str, one: str, other: str
) -> None:
    """What references it follows, and comes back as well."""
    if "blind" in kind:
        make_blind_collation(db, "blind")
    db.execute(f"create table p (k {kind} primary key, v text)".encode())
    db.execute(
        f"create table c (id int primary key, k {kind} references p on update cascade)".encode()
    )
    db.execute("insert into p values (%s, 'x')", [one])
    db.execute("insert into c values (1, %s)", [one])
    db.execute("select agentundo.track('p'), agentundo.track('c')")
    tables = ("public.p", "public.c")
    before = snapshot(db, *tables)
    with db.transaction():
        tag(db, "agent")
        db.execute("update p set k = %s", [other])
    after = snapshot(db, *tables)
    assert before["public.p"] != after["public.p"], "the test needs two forms of the key"
    for _ in range(2):
        assert revert(db, "agent").status == "reverted"
        assert_same(before, snapshot(db, *tables))
        assert redo(db, "agent").status == "reverted"
        assert_same(after, snapshot(db, *tables))


# Tables without a key --------------------------------------------------------------------------


@pytest.fixture
def keyless(db: Connection) -> Connection:
    """Make a partitioned table without a key."""
    capture = scalar(db, "select capture from agentundo.tracked")
    db.execute(
        "create table k (part int, v text) partition by list (part);"
        "create table k1 partition of k for values in (1);"
        "create table k2 partition of k for values in (2)"
    )
    db.execute("select agentundo.track('k', %s)", [capture])
    return db


def test_same_place_in_another_partition_is_another_row(keyless: Connection) -> None:
    """Both rows are the first of their partition: only the agent's may go."""
    write(keyless, "agent", "insert into k values (1, 'bot')")
    keyless.execute("insert into k values (2, 'mine')")
    assert rows(keyless, "select distinct ctid::text from k") == [("(0,1)",)]
    assert revert(keyless, "agent").counts == (1, 0, 0, 0, 0)
    assert rows(keyless, "select * from k") == [(2, "mine")]


def test_same_place_in_another_partition_for_updates(keyless: Connection) -> None:
    keyless.execute("insert into k values (1, 'a'), (2, 'a')")
    before = snapshot(keyless, "public.k")
    write(keyless, "agent", "update k set v = 'bot' where part = 1")
    keyless.execute("update k set v = 'mine' where part = 2")
    assert revert(keyless, "agent").status == "reverted"
    assert sorted(rows(keyless, "select * from k")) == [(1, "a"), (2, "mine")]
    keyless.execute("update k set v = 'a' where part = 2")
    assert_same(before, snapshot(keyless, "public.k"))


def test_equal_rows_without_a_key_are_counted(keyless: Connection) -> None:
    keyless.execute("insert into k values (1, 'x'), (1, 'x'), (1, null), (1, null), (2, 'y')")
    before = snapshot(keyless, "public.k")
    write(keyless, "agent", "insert into k values (1, 'x'), (1, null)")
    write(
        keyless, "agent", "delete from k where ctid in (select min(ctid) from k1 where v is null)"
    )
    write(keyless, "agent", "update k set v = 'z' where part = 2")
    write(keyless, "agent", "update k set part = 2 where v = 'x'")
    after = snapshot(keyless, "public.k")
    for _ in range(3):
        assert revert(keyless, "agent").status == "reverted"
        assert_same(before, snapshot(keyless, "public.k"))
        assert redo(keyless, "agent").status == "reverted"
        assert_same(after, snapshot(keyless, "public.k"))


def test_row_without_a_key_that_somebody_changed(keyless: Connection) -> None:
    write(keyless, "agent", "insert into k values (1, 'a'), (1, 'b')")
    keyless.execute("update k set v = 'mine' where v = 'a'")
    with refused("UN001"):
        revert(keyless, "agent")
    result = revert(keyless, "agent", on_conflict="skip")
    assert (result.status, result.rows_deleted, result.rows_skipped) == ("partially_reverted", 1, 1)
    assert rows(keyless, "select v from k") == [("mine",)]


# There and back --------------------------------------------------------------------------------


def test_revert_redo_revert_with_other_peoples_work_around(db: Connection) -> None:
    """An invocation's own reverts and redos are never in its way."""
    db.execute("insert into t values (2, 'A'), (3, 'A')")
    write(db, "agent", "update t set v = 'B' where id in (1, 2)")
    for turn in range(3):
        db.execute("update t set v = %s where id = 3", [str(turn)])
        assert revert(db, "agent").counts == (0, 0, 2, 0, 0)
        assert redo(db, "agent").counts == (0, 0, 2, 0, 0)
    db.execute("update t set v = 'mine' where id = 1")
    with refused("UN001"):
        revert(db, "agent")
    assert revert(db, "agent", on_conflict="skip").counts == (0, 0, 1, 1, 1)
    assert rows(db, "select v from t order by id") == [("mine",), ("A",), ("2",)]


def test_late_write_under_the_id_while_it_was_redone(db: Connection) -> None:
    before = snapshot(db, *TABLES)
    play(db, "aB")
    revert(db, "agent")
    redo(db, "agent")
    play(db, "aC")
    revert(db, "agent")
    assert_same(before, snapshot(db, *TABLES))
    assert status(db, "agent") == "reverted"


# Random histories against a model --------------------------------------------------------------


@dataclass
class Stretch:
    """Writes of one key in a row, all ours or all others'; None is absence."""

    ours: bool
    before: str | None
    after: str | None
    captured: bool
    end_captured: bool

    @property
    def hidden(self) -> bool:
        """Somebody came and went, and nothing tells of it."""
        return not self.ours and not self.captured and self.before == self.after


def _joined(stretches: list[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for one in stretches:
        if joined and joined[-1].ours == one.ours:
            last = joined.pop()
            captured = last.captured or one.captured
            joined.append(Stretch(one.ours, last.before, one.after, captured, one.end_captured))
        else:
            joined.append(one)
    return joined


@dataclass
class Model:
    """What each key was, and who has written it, in order."""

    all_captured: bool
    now: dict[int, str] = field(default_factory=dict)
    writes: dict[int, list[tuple[str, str | None, str | None]]] = field(default_factory=dict)

    def write(self, who: str, key: int, new: str | None) -> None:
        """Note that somebody brought a key into another state."""
        self.writes.setdefault(key, []).append((who, self.now.get(key), new))
        if new is None:
            del self.now[key]
        else:
            self.now[key] = new

    def stretches(self, key: int, ours: set[str]) -> list[Stretch]:
        """Return what can be known of the writes of a key."""
        found = _joined(
            [
                Stretch(who in ours, before, after, captured, captured)
                for who, before, after in self.writes.get(key, [])
                for captured in [self.all_captured or who != "person"]
            ]
        )
        last = found[-1] if found else None
        if last and not last.ours and last.before == last.after and not last.end_captured:
            found.pop()  # the row is as it was left
        return _joined([one for one in found if not one.hidden])

    def expect(self, key: int, ours: set[str], mode: str) -> str | None:
        """Return what a key is after a revert in a mode that did not refuse."""
        found = self.stretches(key, ours)
        last = next((one for one in reversed(found) if one.ours), None)
        if last is None or last.before == last.after:
            return self.now.get(key)
        if not found[-1].ours and mode != "force":
            return self.now.get(key)
        return last.before


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_go_back_as_the_model_says(db: Connection, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(scalar(db, "select capture from agentundo.tracked") == "all", {1: "A"})
    db.execute("insert into t select n, 'A' || n from generate_series(2, 4) n")
    model.now.update({n: f"A{n}" for n in (2, 3, 4)})
    for number in range(40):
        who = chance.choice(["one", "two", "three", "person", "person"])
        if number > 25:
            who = "one" if chance.random() < 0.7 else who
        with db.transaction():
            if who != "person":
                tag(db, who)
            for part in range(chance.choice([1, 1, 2, 3])):
                key, new = chance.randint(1, 8), f"{who} {number} {part}"
                if key not in model.now:
                    db.execute("insert into t values (%s, %s)", [key, new])
                elif chance.random() < 0.3:
                    db.execute("delete from t where id = %s", [key])
                    model.write(who, key, None)
                    continue
                else:
                    db.execute("update t set v = %s where id = %s", [new, key])
                model.write(who, key, new)
    assert dict(rows(db, "select id, v from t")) == model.now
    before = snapshot(db, *TABLES)
    for ours in ({"one"}, {"one", "two"}, {"one", "two", "three"}):
        for mode in ("abort", "skip", "force"):
            arguments: dict[str, Any] = FORCE if mode == "force" else {"on_conflict": mode}
            with db.transaction(force_rollback=True):
                outcome = revert_as_planned(db, TABLES, sorted(ours), **arguments)
                keys = set(model.writes) | set(model.now)
                if isinstance(outcome, Refusal):
                    assert mode == "abort", outcome
                    contested = [key for key in model.writes if len(model.stretches(key, ours)) > 1]
                    assert contested, "refused, but nobody else has written these rows"
                    continue
                wanted = {key: model.expect(key, ours, mode) for key in keys}
                assert dict(rows(db, "select id, v from t")) == {
                    key: v for key, v in wanted.items() if v is not None
                }
                if outcome.status != "already_reverted":
                    assert outcome.revert_id is not None
                    assert revert(db, outcome.revert_id).status == "reverted"
                    assert_same(before, snapshot(db, *TABLES))
