"""What came out, as Markdown tables, as JSON, and as a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.interference.measure import Outcome
from benchmarks.interference.policies import POLICIES

#: In the table by kind.
_SHOWN = (
    *("blind inverse", "compare values, column", "compare row versions"),
    *("`agent`: skip", "`agent`: skip + merge", "`all`: skip + merge"),
)
#: Of ours those that may destroy something: `force` is asked to, the others tell by values.
_ASKED_TO = ("`agent`: force", "`all`: force")
_BY_VALUE = ("`agent`: merge", "`agent`: skip + merge", "`agent`: cascade + merge")


class Tally:
    """Outcomes of one policy, added up."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.outcomes = list(outcomes)
        self.damaged = sum(bool(outcome.damages) for outcome in self.outcomes)
        self.unseen = sum(outcome.unseen for outcome in self.outcomes)
        self.eligible = sum(outcome.eligible for outcome in self.outcomes)
        self.made = self.eligible - sum(len(outcome.missed) for outcome in self.outcomes)
        self.beside = sum(outcome.beside for outcome in self.outcomes)
        missed_beside = sum(len(outcome.missed_beside) for outcome in self.outcomes)
        self.made_beside = self.beside - missed_beside

    def share(self) -> str:
        """Return the recoveries made, in per cent of those eligible."""
        return _share(self.made, self.eligible)


def by_policy(outcomes: Sequence[Outcome]) -> str:
    """Return the table of totals."""
    tallies = {policy.name: _of(outcomes, policy.name) for policy in POLICIES}
    first = next(iter(tallies.values()))
    wholes = {
        name: Tally(one for one in tally.outcomes if one.whole) for name, tally in tallies.items()
    }
    head = [
        "policy",
        f"damaged, of {len(first.outcomes):,}",
        "unseen",
        f"recovered, of {first.eligible:,}",
        f"beside, of {first.beside:,}",
        f"whole, of {next(iter(wholes.values())).eligible:,}",
    ]
    lines = [
        [
            name,
            f"{tally.damaged:,}",
            f"{tally.unseen:,}",
            f"{tally.made:,} ({tally.share()})",
            f"{tally.made_beside:,}",
            f"{wholes[name].made:,} ({wholes[name].share()})",
        ]
        for name, tally in tallies.items()
        if tally.outcomes
    ]
    return _table(head, lines)


def by_kind(outcomes: Sequence[Outcome]) -> str:
    """Return a table by kind of interference: histories damaged, and share of recoveries made."""
    lines = []
    kinds = dict.fromkeys(outcome.kind for outcome in outcomes)
    for kind in sorted(kinds, key=["mixed", "anything"].count):
        here = [outcome for outcome in outcomes if outcome.kind == kind]
        tallies = [_of(here, name) for name in _SHOWN]
        first = tallies[0]
        cells = [f"{tally.damaged}, {tally.share()}" for tally in tallies]
        lines.append([kind, str(len(first.outcomes)), str(first.eligible), *cells])
    return _table(["others", "histories", "eligible", *_SHOWN], lines)


def shortcomings(outcomes: Sequence[Outcome]) -> list[str]:
    """Return which aims were missed, and where."""
    missed = []

    def hold(what: str, wrong: Callable[[Outcome], bool], *names: str) -> None:
        for name in names:
            found = [one for one in _of(outcomes, name).outcomes if wrong(one)]
            if found:
                kinds = ", ".join(dict.fromkeys(one.kind for one in found))
                numbers = ", ".join(str(one.history) for one in found[:5])
                missed.append(f"{name}: {what}: {len(found)} histories ({numbers} …): {kinds}")

    ours = [policy.name for policy in POLICIES if policy.capture]
    careful = [name for name in ours if name not in (*_ASKED_TO, *_BY_VALUE)]
    hold("failed", lambda one: one.error is not None, *(policy.name for policy in POLICIES))
    hold("damage", lambda one: bool(one.damages) and not one.unseen, *careful)
    hold(
        "damage that the plan does not mark `basis = value`",
        lambda one: any(
            damage.place not in one.by_value and not damage.unseen for damage in one.damages
        ),
        *_BY_VALUE,
    )
    hold("recoveries missed", lambda one: bool(one.missed), "`all`: skip + merge")
    hold("recoveries missed", lambda one: one.whole and bool(one.missed), "`all`: merge")
    return missed


def save(path: Path, about: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Write all figures as JSON, after what there is to say about them."""
    kinds = list(dict.fromkeys(outcome.kind for outcome in outcomes))
    results = {
        policy.name: {
            "all": _figures(_of(outcomes, policy.name)),
            "kinds": {
                kind: _figures(_of((one for one in outcomes if one.kind == kind), policy.name))
                for kind in kinds
            },
        }
        for policy in POLICIES
    }
    path.write_text(json.dumps({**about, "results": results}, indent=1, default=str) + "\n")


def write_page(path: Path, text: str) -> None:
    """Put the figures into a page, between its two comments, in place of those that stood there."""
    begin, end = "<!-- figures -->", "<!-- end of figures -->"
    page = path.read_text(encoding="utf-8")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    assert after, f"{path} has no place for figures"
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _share(made: int, of: int) -> str:
    """Return a share in per cent: 100 only where all are made, 0 only where none is."""
    if not of:
        return "-"
    if made in (0, of):
        return f"{100 * made // of} %"
    return f"{min(max(100 * made / of, 0.1), 99.9):.1f} %"


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "histories": len(tally.outcomes),
        "unseen": [one.history for one in tally.outcomes if one.unseen],
        "damaged": [one.history for one in tally.outcomes if one.damages],
        "missed": [one.history for one in tally.outcomes if one.missed],
        "eligible": tally.eligible,
        "made": tally.made,
        "beside": tally.beside,
        "made_beside": tally.made_beside,
    }


def _of(outcomes: Iterable[Outcome], policy: str) -> Tally:
    return Tally(outcome for outcome in outcomes if outcome.policy == policy)


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)
    )
