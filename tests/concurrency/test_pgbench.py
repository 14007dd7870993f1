"""Reverts while pgbench works on the same rows.

pgbench moves money: each transaction adds one amount to an account, to a teller and to a branch and
notes it in the history. Half of the clients are agents with tags, the others are not. Balances are
declared as counters, so a revert subtracts what its invocation added and no more. Whoever adds up
the tables at any moment finds that they agree, and pgbench never sees an error.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Connect, Connection
from tests.support.servers import Server
from tests.support.sessions import PATIENT
from tests.support.undo import redo, revert, rows, scalar
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.core, pytest.mark.slow]

SECONDS = 8
#: Few accounts, so that all meet on them; few ids, so that each has many transactions.
WORK = """
\\set aid random(1, 60)
\\set tid random(1, 10)
\\set delta random(1, 5000)
\\set call random(1, 25)
begin;
{tag}
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
select abalance from pgbench_accounts where aid = :aid;
update pgbench_tellers set tbalance = tbalance + :delta where tid = :tid;
update pgbench_branches set bbalance = bbalance + :delta where bid = 1;
insert into pgbench_history (tid, bid, aid, delta, mtime, filler)
  values (:tid, 1, :aid, :delta, current_timestamp, '{who}');
end;
"""
TAG = "select agentundo.tag('call-' || :call, run => 'agents');"
#: One statement, so one moment.
SUMS = """
select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
  (select sum(bbalance) from pgbench_branches), (select sum(delta) from pgbench_history)
"""
#: The same for each account and each teller.
ASTRAY = """
select (select count(*) from pgbench_accounts full join
    (select aid, sum(delta) from pgbench_history group by aid) h (aid, sum) using (aid)
    where coalesce(abalance, 0) <> coalesce(sum, 0)),
  (select count(*) from pgbench_tellers full join
    (select tid, sum(delta) from pgbench_history group by tid) h (tid, sum) using (tid)
    where coalesce(tbalance, 0) <> coalesce(sum, 0))
"""
MINE = "select count(*) from agentundo.changes where run = 'agents' and covered_by is null"
WRITTEN = """
select distinct invocation from agentundo.changes where run = 'agents' and covered_by is null
order by 1
"""


@pytest.fixture
def bench(server: Server) -> Path:
    if server.bindir is None:
        pytest.skip("needs the pgbench that belongs to the server")
    return server.bindir / "pgbench"


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the block; whatever happens in there, it does not survive it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def done(process: subprocess.Popen[str]) -> int:
    """Return how many transactions pgbench made, having met no error."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not re.search(r"deadlock|ERROR|aborted", output), output
    found = re.search(r"transactions actually processed: (\d+)", output)
    assert found, output
    return int(found[1])


def assert_sums_agree(db: Connection) -> None:
    ((accounts, tellers, branches, history),) = rows(db, SUMS)
    assert accounts == tellers == branches == (history or 0)
    assert rows(db, ASTRAY) == [(0, 0)]


def test_sums_agree_after_each_revert(
    dsn: str, connect: Connect, bench: Path, tmp_path: Path
) -> None:
    subprocess.run([bench, "-i", "-q", "-s", "1", dsn], check=True, capture_output=True)
    db = connect(options=PATIENT)
    for table, column in (("accounts", "a"), ("tellers", "t"), ("branches", "b")):
        db.execute(f"select agentundo.track('pgbench_{table}')".encode())
        merge = f"agentundo.set_merge('pgbench_{table}', '{column}balance', 'delta')"
        db.execute(f"select {merge}".encode())
    db.execute("select agentundo.track('pgbench_history')")
    agent, others = tmp_path / "agent.sql", tmp_path / "others.sql"
    agent.write_text(WORK.format(tag=TAG, who="agent"))
    others.write_text(WORK.format(tag="", who="others"))
    options = [str(bench), "-n", f"-T{SECONDS}", "-c2", "-j1"]

    taken = 0
    with (
        running([*options, "-R50", "-f", str(agent), dsn]) as agents,
        running([*options, "-R50", "-f", str(others), "-b", "tpcb-like", dsn]) as people,
    ):
        wait_until(lambda: scalar(db, MINE) > 100, what="agents to write")
        while agents.poll() is None:
            first, second, *_ = (i for (i,) in rows(db, WRITTEN))
            result = revert(db, first if taken % 2 else [first, second], merge=True)
            assert result.status == "reverted", result
            assert_sums_agree(db)
            taken += 1
            if taken == 2:
                assert redo(db, first, merge=True).status == "reverted"
                assert_sums_agree(db)
        assert done(agents) > 0
        by_others = done(people)
    assert taken >= 3, "hardly a revert met pgbench at work"

    assert_sums_agree(db)
    left = [invocation for (invocation,) in rows(db, WRITTEN)]
    assert left
    assert revert(db, left, merge=True).status == "reverted"
    assert_sums_agree(db)
    assert rows(db, WRITTEN) == []
    assert scalar(db, "select count(*) from pgbench_history where filler = 'agent'") == 0
    assert scalar(db, "select count(*) from pgbench_history") == by_others
