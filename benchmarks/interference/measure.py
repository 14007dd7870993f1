"""Plays every history once for each capture mode, and lets every policy undo it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg

from benchmarks.common import Connection
from benchmarks.interference.model import AGENT, History, Place
from benchmarks.interference.oracle import Cell, Damage, Oracle
from benchmarks.interference.play import play, prepare, read
from benchmarks.interference.policies import POLICIES, Policy, Situation
from tests.support.servers import Server


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a history.

    Attributes:
        policy: its name.
        history: its number.
        kind: of interference.
        damages: what of somebody else's work it lost or changed.
        eligible: how much could go back, cells beside a contested one left out.
        missed: what of that did not.
        beside: how many cells beside a contested one could go back.
        missed_beside: what of these did not.
        whole: whether all that the invocation did could go back.
        by_value: of the damaged rows those that the plan marks ``basis = value``.
        error: what it failed with, if that was no refusal.

    """

    policy: str
    history: int
    kind: str
    damages: Sequence[Damage]
    eligible: int
    missed: Sequence[Cell]
    beside: int
    missed_beside: Sequence[Cell]
    whole: bool
    by_value: Sequence[Place] = ()
    error: str | None = None

    @property
    def unseen(self) -> bool:
        """Whether all damage is such as the policy's capture mode cannot see coming."""
        blind = self.policy.startswith("`agent`")
        return blind and bool(self.damages) and all(damage.unseen for damage in self.damages)


def measure(
    server: Server, histories: Sequence[History], policies: Sequence[Policy] = POLICIES
) -> list[Outcome]:
    """Play histories on a server, each capture mode in a database of its own, side by side.

    Policies that need no history run beside the mode `agent`, whose own are the quicker ones.

    Raises:
        AssertionError: the database disagrees with the oracle about what the writes come to.

    """
    plans = [
        ("agent", [policy for policy in policies if policy.capture in (None, "agent")]),
        ("all", [policy for policy in policies if policy.capture == "all"]),
    ]
    with ThreadPoolExecutor(len(plans)) as pool, ExitStack() as databases:
        running = []
        for capture, chosen in plans:
            janitor = databases.enter_context(server.database(installed=True))
            dsn = server.dsn(janitor.dbname)
            running.append(pool.submit(_one_database, dsn, capture, chosen, histories))
        return [outcome for future in running for outcome in future.result()]


def _one_database(
    dsn: str, capture: str, policies: Sequence[Policy], histories: Sequence[History]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with closing(psycopg.connect(dsn, autocommit=True)) as conn:
        prepare(conn, capture)
        for history in histories:
            oracle = Oracle(history)
            versions = play(conn, history)
            assert read(conn, history)[0] == oracle.current, f"history {history.number}"
            situation = Situation(history, oracle.former, oracle.left, versions)
            outcomes += (_judge(conn, oracle, situation, policy) for policy in policies)
    return outcomes


def _judge(conn: Connection, oracle: Oracle, situation: Situation, policy: Policy) -> Outcome:
    history = situation.history
    error = None
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                policy.undo(conn, situation)
        except psycopg.Error as caught:
            error = f"{caught.sqlstate}: {caught}".partition("\n")[0]
        found, _ = read(conn, history)
    taken = oracle.agents if policy.takes_along else ()
    damages = oracle.damage(found, taken)
    missed = oracle.eligible - oracle.recovered(found, taken)
    by_value: list[Place] = []
    if damages and policy.arguments.get("merge"):
        by_value = _by_value(conn, history, policy)
    return Outcome(
        policy.name,
        history.number,
        history.kind,
        damages,
        len(oracle.eligible - oracle.beside),
        sorted(missed - oracle.beside, key=str),
        len(oracle.beside),
        sorted(missed & oracle.beside, key=str),
        oracle.eligible == set(oracle.wanted),
        by_value,
        error,
    )


def _by_value(conn: Connection, history: History, policy: Policy) -> list[Place]:
    """Return the rows of which the plan says that it tells by their values who wrote them.

    A row that the agent moved is named by the key that it had; where it stands now counts, too.
    """
    named = "".join(f", {name} => %({name})s" for name in policy.arguments)
    query = f"""
        select relation::text, (row ->> 'id')::int
        from agentundo.plan(%(id)s{named}) cross join lateral (values (key), (current)) r (row)
        where detail ->> 'basis' = 'value' and row is not null
    """
    found = conn.execute(
        query.encode(), {"id": history.invocation_id(AGENT), **policy.arguments}
    ).fetchall()
    return [(relation.rpartition(".")[2], key) for relation, key in found]
