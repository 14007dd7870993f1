"""The main job on real input: undo an agent's run of 800,000 rows while others go on writing.

``python -m benchmarks.main_job --pg 14,15,16,17,18`` makes, on a fresh server of each version,
pgbench's tables at scale 10, has an agent update 500,000 accounts, delete 200,000 and insert
100,000 in one run of three invocations while pgbench writes other accounts, tellers and branches,
and takes the run back with the command line. Then every row that pgbench left alone must be what
it was, and every row that pgbench wrote must be what pgbench made of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.common import timed, write
from pyagentundo import installer
from tests.support import matrix
from tests.support.servers import Server, start

#: What pgbench does meanwhile: TPC-B, on the last three tenths of the accounts.
_SCRIPT = """
\\set aid random(:first, :last)
\\set bid random(1, :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
begin;
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
update pgbench_tellers set tbalance = tbalance + :delta where tid = :tid;
update pgbench_branches set bbalance = bbalance + :delta where bid = :bid;
insert into pgbench_history (tid, bid, aid, delta, mtime)
  values (:tid, :bid, :aid, :delta, current_timestamp);
end;
"""

Timings = dict[str, float]


def statements(table: str, scale: int) -> dict[str, str]:
    """Return the agent's three writes on accounts, by name."""
    rows = 100_000 * scale
    return {
        "update": f"update {table} set abalance = abalance + 1, filler = 'agent'"
        f" where aid <= {rows // 2}",
        "delete": f"delete from {table} where aid between {rows // 2 + 1} and {rows * 7 // 10}",
        "insert": f"insert into {table} select g, 1, 0, 'agent'"
        f" from generate_series({rows + 1}, {rows + rows // 10}) g",
    }


def agentundo(dsn: str, *arguments: str) -> Any:
    """Run the command line on a database; return what it prints as JSON."""
    command = [sys.executable, "-m", "pyagentundo", *arguments, "--dsn", dsn, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def prepare(server: Server, dsn: str, scale: int) -> None:
    """Make pgbench's tables, a plain copy of accounts, and track the tables."""
    assert server.bindir
    pgbench(server, dsn, "-i", "-q", "-s", str(scale)).wait()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table plain (like pgbench_accounts including all)")
        conn.execute("insert into plain select * from pgbench_accounts")
        conn.execute("create table former as select * from pgbench_accounts")
        installer.install(conn)
        conn.execute("select agentundo.track_schema('public')")
        conn.execute("select agentundo.untrack('plain'), agentundo.untrack('former')")
        conn.execute("vacuum analyze")


def pgbench(server: Server, dsn: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start pgbench on a database."""
    assert server.bindir
    where = conninfo_to_dict(dsn)
    target = ["-h", where["host"], "-p", str(where["port"]), "-U", where["user"], where["dbname"]]
    return subprocess.Popen(
        [server.bindir / "pgbench", *arguments, *map(str, target)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(server: Server, dsn: str, scale: int) -> Timings:
    """Do the job once; raise AssertionError if one row is not as it must be."""
    prepare(server, dsn, scale)
    rows = 100_000 * scale
    timings: Timings = {}
    with psycopg.connect(dsn, autocommit=True) as conn, tempfile.TemporaryDirectory() as folder:
        for name, statement in statements("plain", scale).items():
            timings[f"plain {name}"] = write(conn, statement)
        script = Path(folder, "others.sql")
        script.write_text(_SCRIPT)
        variables = [f"first={rows * 7 // 10 + 1}", f"last={rows}", f"scale={scale}"]
        definitions = [part for variable in variables for part in ("-D", variable)]
        others = pgbench(
            server, dsn, "-n", "-f", str(script), "-c", "2", "-R", "100", "-T", "3600", *definitions
        )
        try:
            for number, (name, statement) in enumerate(
                statements("pgbench_accounts", scale).items(), 1
            ):
                timings[f"agent {name}"] = write(
                    conn, statement, tag=f"call-{number}", run="job", step=number
                )
            summary: list[Any] = []
            timings["plan"] = timed(lambda: summary.append(agentundo(dsn, "plan", "--run", "job")))
            timings["revert"] = timed(
                lambda: summary.append(agentundo(dsn, "revert", "--run", "job", "--yes"))
            )
        finally:
            others.terminate()
            others.wait()
        verify(conn, rows)
    return timings


def verify(conn: psycopg.Connection[Any], rows: int) -> None:
    """Compare every account with what it was, plus what pgbench's own history says it became."""
    wrong = conn.execute(
        """
        with expected as (
          select f.aid, f.bid, f.abalance + coalesce(h.delta, 0) as abalance, f.filler
          from former f
          left join (select aid, sum(delta)::int as delta from pgbench_history group by aid) h
            using (aid)),
        difference as (
          (select * from expected except all select * from pgbench_accounts)
          union all
          (select * from pgbench_accounts except all select * from expected))
        select count(*), (select count(*) from pgbench_accounts),
          (select count(*) from pgbench_history)
        from difference
        """
    ).fetchone()
    assert wrong is not None
    assert wrong[0] == 0, f"{wrong[0]} accounts are not as they must be"
    assert wrong[1] == rows, f"{wrong[1]} accounts instead of {rows}"
    assert wrong[2] > 0, "pgbench wrote nothing meanwhile"
    sums = conn.execute(
        "select (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from"
        " pgbench_branches), (select sum(delta) from pgbench_history)"
    ).fetchone()
    assert sums is not None
    assert len(set(sums)) == 1, f"tellers, branches and history disagree: {sums}"


def main() -> None:
    """Run the job on each version and print a table of seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pg", default="18", help="major versions, such as 14,15,16,17,18")
    parser.add_argument("--scale", type=int, default=10, help="pgbench's scale; default 10")
    options = parser.parse_args()
    names: list[str] = []
    for major in options.pg.split(","):
        server = start(matrix.binaries(int(major)), shared_buffers="512MB", max_wal_size="4GB")
        try:
            with server.database(installed=False) as janitor:
                timings = run(server, server.dsn(janitor.dbname), options.scale)
        finally:
            server.close()
        if not names:
            names = list(timings)
            print("| PostgreSQL | " + " | ".join(names) + " |")
            print("|---" * (len(names) + 1) + "|")
        print(
            f"| {major} | " + " | ".join(f"{timings[name]:.1f}" for name in names) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
