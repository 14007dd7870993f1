"""What a failed test says."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from pyagentundo.errors import NotInstalled
from pyagentundo.results import Conflict, Effect, Plan
from pyagentundo.testing._state import LARGE_OBJECTS, SHOWN, DatabaseState, changed, differences


class NotReversible(AssertionError):
    """The action cannot be taken back so that everything is as it was."""


def not_installed(dbname: str) -> NotInstalled:
    """Return what to raise when the database of the tests has no agentundo."""
    return NotInstalled(
        f'agentundo is not installed in database "{dbname}".',
        hint='Let the tests do it: track=["public"], or agentundo_track = public in pytest.ini;'
        " or call pyagentundo.testing.install(db) in the fixture.",
    )


class Told:
    """Collects what is wrong, and fails with all of it.

    Args:
        tracked: all tables that are tracked.
        written: tables that the action wrote under its tag.

    """

    def __init__(self, tracked: Collection[str], written: Collection[str]) -> None:
        self._tracked = tracked
        self._written = written
        self._parts: list[list[str]] = []
        self._beside: list[list[str]] = []

    def rows(self, before: DatabaseState, after: DatabaseState, when: str) -> None:
        """Compare the rows of all tables."""
        found = differences(before.tables, after.tables)
        untracked, untagged, different, made, objects = [], [], [], [], []
        for name, lines in found.items():
            stored = self._stored(name, before, after)
            if name == LARGE_OBJECTS:
                objects.append((name, lines))
            elif name not in before.tables or name not in after.tables:
                made.append((name, lines))
            elif not stored & set(self._tracked):
                untracked.append((name, lines))
            elif not stored & set(self._written):
                untagged.append((name, lines))
            else:
                different.append((name, lines))
        self._add(
            "Written and not tracked, so no undo reaches it:",
            untracked,
            "Track it with agentundo.track, or leave it out:"
            f" ignore={[name for name, _ in untracked]!r}.",
        )
        self._add(
            "Tracked, and written without the tag:",
            untagged,
            'The action wrote over another connection: hand it the tagged DSN with via="dsn".',
        )
        self._add(f"Not what it was {when}:", different)
        self._add("Made or dropped, which no undo takes back:", made)
        self._add(
            "Large objects, which no undo reaches:",
            objects,
            "They can be neither tracked nor left out: let the action not write any.",
        )

    def definitions(self, before: DatabaseState, after: DatabaseState) -> None:
        """Compare how everything is defined, and which triggers are switched on."""
        lines = changed(before.definitions, after.definitions)
        if lines:
            self._parts.append(
                ["Defined otherwise; no undo takes back DDL:", *(f"  {one}" for one in _few(lines))]
            )

    def plan(self, plan: Plan, *, allow_effects: bool) -> None:
        """Look for rows in the way, and for what left the database."""
        if plan.conflicts:
            lines = _few([_conflict(one) for one in plan.conflicts])
            self._parts.append(
                ["In the way of the undo:", *lines, "  Nothing was taken back because of it."]
            )
        lost = [one for one in plan.effects or () if one.kind == "none"]
        rest = [one for one in plan.effects or () if one.kind != "none"]
        if lost and not allow_effects:
            self._parts.append(
                [
                    "Left the database, and nothing makes up for it:",
                    *(_effect(one) for one in lost),
                    "  If that is meant to be: allow_effects=True.",
                ]
            )
        if rest:
            self._beside.append(["Left the database:", *(_effect(one) for one in rest)])

    def status(self, status: str, what: str) -> None:
        """Look at what an undo or redo answered."""
        if status != "reverted":
            self._parts.append([f"{what[0].upper()}{what[1:]} answered {status}."])

    def sequences(self, before: DatabaseState, after: DatabaseState) -> None:
        """Tell, beside what is wrong, which sequences have moved."""
        lines = changed(before.sequences, after.sequences)
        if lines:
            self._beside.append(["Sequences, which are not rewound:", *(f"  {x}" for x in lines)])

    def fail_if_any(self) -> None:
        """Fail if something is wrong."""
        __tracebackhide__ = True
        if self._parts:
            self.fail()

    def fail(self) -> NoReturn:
        """Fail with all that was told."""
        __tracebackhide__ = True
        parts = ["\n".join(lines) for lines in [*self._parts, *self._beside]]
        raise NotReversible("the action cannot be taken back\n\n" + "\n\n".join(parts))

    def _add(self, title: str, found: list[tuple[str, list[str]]], advice: str = "") -> None:
        if found:
            lines = [f"  {line}" for _, of_table in found for line in of_table]
            self._parts.append([title, *lines, *([f"  {advice}"] if advice else [])])

    def _stored(self, name: str, before: DatabaseState, after: DatabaseState) -> set[str]:
        """Return the tables in which rows of a table lie: its partitions, or itself."""
        found = {name}
        for state in (before, after):
            if name in state.tables and state.tables[name].columns[0] == "stored in":
                found |= {row[0] for row in state.tables[name].rows}
        return found


def _few(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"  … and {more} more"] if more > 0 else [])]


def _conflict(one: Conflict) -> str:
    key = ", ".join(f"{name}={value}" for name, value in (one.key or {}).items())
    columns = f" [{', '.join(one.columns)}]" if one.columns else ""
    constraint = f", by {one.constraint} of {one.in_the_way}" if one.constraint else ""
    return f"  {one.relation} ({key}): {one.reason}{columns}{constraint}"


def _effect(one: Effect) -> str:
    summary = f": {one.summary}" if one.summary else ""
    remedy = f" (remedy: {one.remedy})" if one.remedy else ""
    return f"  {one.name}{summary}{remedy}"
