"""What the oracle of the interference benchmark takes for damage, and for a recovery."""

from __future__ import annotations

import pytest

from benchmarks.interference.model import (
    AGENT,
    PERSON,
    Add,
    Delete,
    History,
    Insert,
    Part,
    State,
    Update,
    Values,
    Write,
)
from benchmarks.interference.oracle import Oracle

_OTHER = "agent 2"


def _deal(key: int, **values: int | str | None) -> Values:
    usual: Values = {"stage": "New", "owner": "ann", "amount": 1, "visits": 0, "code": None}
    return {"id": key, **usual, **values}


def _oracle(agent: list[Write], *later: Write, who: str = PERSON) -> Oracle:
    """Judge a history that begins with the deals 1 and 2, and the note 7 of deal 2."""
    before = (
        Insert("deals", _deal(1, code="a")),
        Insert("deals", _deal(2)),
        Insert("notes", {"id": 7, "deal": 2}),
    )
    turns = tuple((Part(who, (write,)),) for write in later)
    return Oracle(History(0, "test", before, ((Part(AGENT, tuple(agent)),),), turns))


def _with(state: State, **rows: Values | None) -> State:
    """Return a state with other rows at these places, written ``deals_1``."""
    changed = dict(state)
    for name, values in rows.items():
        table, _, key = name.partition("_")
        changed.pop((table, int(key)), None)
        if values is not None:
            changed[table, int(key)] = values
    return changed


def _damage(oracle: Oracle, found: State, *taken: str) -> list[str]:
    return [str(damage) for damage in oracle.damage(found, taken)]


_WON = Update("deals", 1, {"stage": "Won"})


@pytest.mark.parametrize("stage", ["Lost", "Won"], ids=["other value", "same value"])
def test_a_cell_that_somebody_wrote_since_must_stay(stage: str) -> None:
    oracle = _oracle([_WON], Update("deals", 1, {"stage": stage}))
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.current) == []
    assert _damage(oracle, oracle.former) == ["value changed: deals 1 stage"]


def test_there_and_back_is_a_write() -> None:
    there, back = (Update("deals", 1, {"stage": stage}) for stage in ("Lost", "Won"))
    oracle = _oracle([_WON], there, back)
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.former) == ["value changed: deals 1 stage"]


def test_there_and_back_in_another_column_leaves_the_cell_free() -> None:
    there, back = (Update("deals", 1, {"owner": owner}) for owner in ("eve", "ann"))
    oracle = _oracle([_WON], there, back)
    assert oracle.eligible == {(0, "stage")}
    assert oracle.beside == set()
    assert _damage(oracle, oracle.former) == []
    assert oracle.recovered(oracle.former) == oracle.eligible
    assert oracle.recovered(oracle.current) == set()


def test_a_saved_row_is_written_where_it_changed() -> None:
    oracle = _oracle([_WON], Update("deals", 1, {"stage": "Won", "owner": "eve"}))
    assert oracle.eligible == {(0, "stage")}
    assert _damage(oracle, oracle.former) == ["value changed: deals 1 owner"]


def test_a_cell_beside_a_contested_one_is_counted_apart() -> None:
    both = Update("deals", 1, {"stage": "Won", "amount": 9})
    oracle = _oracle([both], Update("deals", 1, {"stage": "Lost"}))
    assert oracle.eligible == oracle.beside == {(0, "amount")}


def test_a_deposit_must_stay_and_the_agents_own_goes_back() -> None:
    oracle = _oracle([Add(1, 10)], Add(1, 5))
    right = _with(oracle.current, deals_1=_deal(1, code="a", visits=5))
    assert oracle.eligible == {(0, "visits")}
    assert _damage(oracle, right) == []
    assert oracle.recovered(right) == oracle.eligible
    assert _damage(oracle, oracle.former) == ["value changed: deals 1 visits"]
    assert oracle.recovered(oracle.former) == set()


def test_a_cell_may_not_hold_what_it_never_held() -> None:
    oracle = _oracle([_WON])
    odd = _with(oracle.current, deals_1=_deal(1, code="a", stage="Parked"))
    assert _damage(oracle, odd) == ["value changed: deals 1 stage"]


def test_what_the_agent_did_not_write_must_stay() -> None:
    oracle = _oracle([_WON])
    odd = _with(oracle.former, deals_2=_deal(2, owner="eve"))
    assert _damage(oracle, odd) == ["value changed: deals 2 owner"]


def test_a_row_that_somebody_deleted_must_not_come_back() -> None:
    oracle = _oracle([_WON], Delete("deals", 1))
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.former) == ["row came back: deals 1"]


@pytest.mark.parametrize(("who", "unseen"), [(PERSON, True), (_OTHER, False)])
def test_a_key_that_somebody_used_since_must_stay_free(who: str, unseen: bool) -> None:
    again = Insert("deals", _deal(1)), Delete("deals", 1)
    oracle = _oracle([Delete("deals", 1)], *again, who=who)
    assert oracle.eligible == set()
    (damage,) = oracle.damage(oracle.former)
    assert damage.what == "row came back where another was made and deleted"
    assert damage.unseen is unseen


def test_a_row_that_the_agent_replaced_is_one_that_it_updated() -> None:
    replaced = Delete("deals", 1), Insert("deals", _deal(1, code="a", stage="Won"))
    oracle = _oracle([*replaced], Update("deals", 1, {"owner": "eve"}))
    assert oracle.eligible == {(0, "stage")}
    assert _damage(oracle, oracle.former) == ["value changed: deals 1 owner"]
    deleted = _oracle([*replaced], Delete("deals", 1))
    assert deleted.eligible == set()
    assert _damage(deleted, deleted.former) == ["row came back: deals 1"]


def test_a_key_at_which_somebody_deleted_another_row_must_stay_free() -> None:
    oracle = _oracle(
        [Delete("deals", 1), Insert("deals", _deal(3)), Update("deals", 3, {"id": 1})],
        Delete("deals", 1),
    )
    assert oracle.eligible == set()
    (damage,) = oracle.damage(oracle.former)
    assert damage.what == "row came back where another was made and deleted"
    assert not damage.unseen, "the agent's own row was captured, and is gone"


def test_a_row_made_in_the_place_of_a_deleted_one_must_stay() -> None:
    oracle = _oracle([Delete("deals", 1)], Insert("deals", _deal(1, owner="eve")))
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.former) == [
        "value changed: deals 1 owner",
        "value changed: deals 1 code",
    ]


def test_the_agents_row_must_stay_once_somebody_wrote_to_it() -> None:
    made = Insert("deals", _deal(3))
    oracle = _oracle([made], Update("deals", 3, {"owner": "eve"}))
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.former) == ["row lost: deals 3"]
    assert _oracle([made]).eligible == {(3, None)}


def test_a_child_must_stay_and_holds_its_parent() -> None:
    child = Insert("tasks", {"id": 9, "deal": 3})
    oracle = _oracle([Insert("deals", _deal(3))], child)
    assert oracle.eligible == set()
    assert _damage(oracle, oracle.former) == ["row lost: tasks 9"]


def test_a_reference_that_is_set_to_null_is_damage() -> None:
    child = Insert("mails", {"id": 9, "deal": 3})
    oracle = _oracle([Insert("deals", _deal(3))], child)
    orphaned = _with(oracle.former, mails_9={"id": 9, "deal": None, "topic": None})
    assert _damage(oracle, orphaned) == ["value changed: mails 9 deal"]


def test_a_row_may_not_stand_twice() -> None:
    moved = Update("deals", 1, {"id": 3})
    oracle = _oracle([moved], Update("deals", 3, {"owner": "eve"}))
    twice = _with(oracle.current, deals_1=_deal(1, code=None))
    assert _damage(oracle, twice) == ["row of nobody's: deals 1"]
    assert oracle.eligible == {(0, "id")}


def test_a_unique_value_that_somebody_took_is_out_of_reach() -> None:
    renamed = Update("deals", 1, {"code": "b"})
    oracle = _oracle([renamed], Update("deals", 2, {"code": "a"}))
    assert oracle.wanted.keys() == {(0, "code")}
    assert oracle.eligible == set()


def test_a_child_cannot_come_back_to_a_parent_that_is_gone() -> None:
    assert _oracle([Delete("notes", 7)]).eligible == {(2, None)}
    assert _oracle([Delete("notes", 7)], Delete("deals", 2)).eligible == set()


def test_a_row_that_somebody_gave_another_key_is_another_row() -> None:
    oracle = _oracle([_WON], Update("deals", 1, {"id": 3}))
    assert oracle.eligible == set()
    assert _damage(oracle, _with(oracle.current, deals_1=_deal(1, code="b"))) == [
        "row of nobody's: deals 1"
    ]


def test_rows_that_passed_a_key_on_are_free_only_together() -> None:
    passed = (Delete("deals", 1), Update("deals", 2, {"id": 1}))
    unread = Delete("notes", 7)
    assert _oracle([unread, *passed]).eligible == {(0, None), (1, "id"), (2, None)}
    assert _oracle([unread, *passed], Add(1, 1)).eligible == set()


def test_a_cascade_may_take_along_other_agents_but_no_people() -> None:
    later = Update("deals", 1, {"stage": "Lost"})
    agents, peoples = _oracle([_WON], later, who=_OTHER), _oracle([_WON], later)
    assert _damage(agents, agents.former, _OTHER) == []
    assert _damage(agents, agents.former) == ["value changed: deals 1 stage"]
    assert _damage(peoples, peoples.former, _OTHER) == ["value changed: deals 1 stage"]


def test_a_cascade_brings_back_what_stood_before_another_agent_made_its_own() -> None:
    again = Insert("deals", _deal(1, owner="eve"))
    oracle = _oracle([Delete("deals", 1)], again, who=_OTHER)
    assert _damage(oracle, oracle.former, _OTHER) == []
    assert _damage(oracle, oracle.former) != []


@pytest.mark.parametrize(("stage", "unseen"), [("Won", True), ("Lost", False)])
def test_what_a_person_left_as_it_was_between_two_agents_is_damage_that_nobody_sees(
    stage: str, unseen: bool
) -> None:
    before = (Insert("deals", _deal(1)),)
    later = (
        (Part(PERSON, (Update("deals", 1, {"stage": stage}),)),),
        (Part(_OTHER, (Delete("deals", 1),)),),
    )
    oracle = Oracle(History(0, "test", before, ((Part(AGENT, (_WON,)),),), later))
    (damage,) = oracle.damage(oracle.former, {_OTHER})
    assert (str(damage), damage.unseen) == ("value changed: deals 1 stage", unseen)


def test_a_cascade_may_put_a_row_back_where_another_agent_had_moved_one() -> None:
    moved = Update("deals", 2, {"id": 1})
    oracle = _oracle([Delete("notes", 7), Delete("deals", 1)], moved, who=_OTHER)
    assert _damage(oracle, oracle.former, _OTHER) == []
    assert _damage(oracle, oracle.former) != []
