"""The interference benchmark, thinned: every kind of interference, the modes that promise most.

All modes, and a thousand histories: ``python -m benchmarks.interference``.
"""

from __future__ import annotations

from itertools import groupby

import pytest

from benchmarks.interference.kinds import generate
from benchmarks.interference.measure import Outcome, measure
from benchmarks.interference.policies import POLICIES
from benchmarks.interference.tables import by_kind, by_policy, shortcomings
from tests.support.pages import DOCS
from tests.support.servers import Server

pytestmark = pytest.mark.core

#: As many as it takes to have every kind once; a third of them is random writes.
_HISTORIES = 52
_OURS = ("`agent`: skip", "`all`: skip + merge")
_OTHERS = tuple(policy.name for policy in POLICIES if policy.capture is None)
_Outcomes = dict[str, list[Outcome]]


@pytest.fixture(scope="module")
def outcomes(server: Server) -> _Outcomes:
    """Let some policies undo each history."""
    chosen = [policy for policy in POLICIES if policy.name in (*_OURS, *_OTHERS)]
    found = measure(server, generate(_HISTORIES, seed=4), chosen)
    found.sort(key=lambda outcome: outcome.policy)
    return {name: list(group) for name, group in groupby(found, key=lambda one: one.policy)}


@pytest.mark.parametrize("policy", _OURS)
def test_nothing_of_others_is_lost_or_changed(outcomes: _Outcomes, policy: str) -> None:
    assert {
        one.history: list(map(str, one.damages)) for one in outcomes[policy] if one.damages
    } == {}


def test_all_that_can_go_back_goes_back(outcomes: _Outcomes) -> None:
    merged = outcomes["`all`: skip + merge"]
    assert sum(one.eligible for one in merged) > _HISTORIES
    assert {one.history: one.missed for one in merged if one.missed} == {}


@pytest.mark.parametrize("policy", _OTHERS)
def test_the_histories_are_such_that_other_ways_destroy(outcomes: _Outcomes, policy: str) -> None:
    assert any(one.damages for one in outcomes[policy])


def test_the_verdict_names_what_a_policy_destroyed_and_missed(outcomes: _Outcomes) -> None:
    assert shortcomings([one for name in _OURS for one in outcomes[name]]) == []
    blind = [
        Outcome(**{**vars(one), "policy": "`all`: skip + merge"})
        for one in outcomes["compare row versions"]
    ]
    assert [line.partition(" histories")[0].rpartition(":")[0] for line in shortcomings(blind)] == [
        "`all`: skip + merge: damage",
        "`all`: skip + merge: recoveries missed",
    ]


def test_the_tables_show_every_policy_and_kind(outcomes: _Outcomes) -> None:
    together = [one for found in outcomes.values() for one in found]
    assert len(by_policy(together).splitlines()) == 2 + len(outcomes)
    assert len(by_kind(together).splitlines()) == 2 + len({one.kind for one in together})


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_the_page_shows_what_became_of_a_policy(policy: str) -> None:
    assert f"\n| {policy} |" in (DOCS / "interference.md").read_text(encoding="utf-8")
