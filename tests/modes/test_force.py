"""Force is for people, who say who they are and why."""

from __future__ import annotations

import pytest

from tests.conftest import Connect, Connection, MakeRole
from tests.support.deals import TABLES
from tests.support.state import assert_same, snapshot
from tests.support.undo import FORCE, IMPATIENT, refused, revert, rows

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"reverted_by": "dana"},
        {"reason": "wrong"},
        {"reverted_by": "", "reason": "wrong"},
        {"reverted_by": "dana", "reason": ""},
    ],
)
def test_force_needs_a_person_and_a_reason(same_column: Connection, given: dict[str, str]) -> None:
    before = snapshot(same_column, *TABLES)
    with refused("UN003"):
        revert(same_column, "agent", on_conflict="force", **given)
    assert_same(before, snapshot(same_column, *TABLES))


def test_force_keeps_who_and_why(same_column: Connection) -> None:
    revert(same_column, "agent", **FORCE)
    assert rows(
        same_column,
        "select status, reverted_by, revert_reason from agentundo.invocations where id = 'agent'",
    ) == [("reverted", "dana", "wrong deal")]


@pytest.mark.parametrize("trusted", ["agentundo_app", "agentundo_operator"])
def test_force_is_not_for_agents(
    same_column: Connection, connect: Connect, make_role: MakeRole, trusted: str
) -> None:
    """Not even for one that may revert: nobody asks an agent whose work may be overwritten."""
    role = make_role(member_of="agentundo_agent")
    same_column.execute(f"grant {trusted} to {role}".encode())
    before = snapshot(same_column, *TABLES)
    with refused("UN003"):
        revert(connect(user=role, options=IMPATIENT), "agent", **FORCE)
    assert_same(before, snapshot(same_column, *TABLES))


def test_force_is_not_for_tagged_sessions(same_column: Connection) -> None:
    before = snapshot(same_column, *TABLES)
    same_column.execute("set agent.invocation = 'agent-2'")
    with refused("UN003"):
        revert(same_column, "agent", **FORCE)
    assert_same(before, snapshot(same_column, *TABLES))
    same_column.execute("reset agent.invocation")
    assert revert(same_column, "agent", **FORCE).status == "reverted"
