"""What tracking costs the writer, and what an undo costs next to restoring by hand.

``python -m benchmarks.core --pg 18 --json core.json`` or ``--dsn DSN`` measures on one server,
each part in a new database that is dropped afterwards, on a table of 12 columns and three times
--rows rows with one primary key:

single   microseconds that one UPDATE by key takes in a PL/pgSQL loop, COMMIT left out
clients  transactions a second of pgbench (prepared, one UPDATE by key in BEGIN and COMMIT), with 1
         and 8 clients, synchronous_commit on and off, tagged by agentundo.tag() or by set_config()
         alone, which is SET LOCAL with a parameter; ``one_more_call`` is untracked and calls
         set_config() too: what the extra round trip costs
bulk     milliseconds of one statement on --rows rows, COMMIT included; ``floor`` is untracked and
         copies the rows into a table without an index, before and after, in the same transaction
revert   milliseconds of revert() and of plan_summary(), COMMIT included, against one statement
         that restores the same rows from a saved copy on an untracked table; with each --history
         of earlier images in the table's history, from updates by other invocations

Sides are paired: in each round each side goes once, its turn shifting by one from round to round,
after one round that is not counted. Each side has a table of its own, with the same statements on
it. After its turn the table is put back by a statement (in ``revert`` by what is measured); after a
round all but the history asked for is purged, and the database vacuumed and analyzed after a
checkpoint, all outside of the timing; autovacuum leaves the tables alone. One session does all,
so caches are warm; one-row undos are repeated within a round, and their median counts. The ratio
is the median of the rounds' ratios to the first column, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.bench import RESTORES, WRITES, Bench
from benchmarks.common import write
from benchmarks.report import Result, environment, save, show
from pyagentundo import installer
from tests.support import matrix
from tests.support.servers import Server, start

#: For a server of our own: durable, as a real one, and with room between checkpoints.
_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
}
_LOOP = """
create function loop_{table}(n int) returns double precision language plpgsql as $$
declare
  began timestamptz := clock_timestamp();
begin
  for i in 1 .. n loop
    update {table} set hits = hits + 1, changed = changed + interval '1 second'
    where id = 1 + i * 7919 % {rows};
  end loop;
  return extract(epoch from clock_timestamp() - began) * 1e6 / n;
end $$
"""
_SCRIPT = """
\\set id random(1, :rows)
\\set call random(1, 2000000000)
begin;
{tag}
update {table} set hits = hits + 1, changed = changed + interval '1 second' where id = :id;
commit;
"""
#: One-row undos in a round.
_REPEATS = 20


def single(bench: Bench) -> list[Result]:
    """Update rows by key in a loop inside the server."""
    tables = ("untracked", "untagged", "tagged")
    bench.build(*tables, tracked=tables[1:])

    def turn(table: str) -> dict[str, float]:
        with bench.conn.transaction():
            if table == "tagged":
                bench.conn.execute("select agentundo.tag(%s)", [bench.tag()])
            count = min(bench.options.statements, bench.rows)
            found = bench.conn.execute(f"select loop_{table}({count})".encode()).fetchone()
        assert found
        return {table: found[0]}

    for table in tables:
        bench.conn.execute(_LOOP.format(table=table, rows=bench.rows).encode())
    return [bench.measure("single", "update", "µs", *(partial(turn, table) for table in tables))]


def clients(bench: Bench) -> list[Result]:
    """Update rows by key with pgbench."""
    pgbench = shutil.which("pgbench", path=bench.bindir)
    if not pgbench:
        print("| clients: left out, there is no pgbench (see --bindir)\n")
        return []
    tags = {
        "untracked": "",
        "one_more_call": "select set_config('bench.call', 'call-' || :call, true);",
        "set_config": "select set_config('agent.invocation', 'call-' || :call, true);",
        "tag": "select agentundo.tag('call-' || :call);",
    }
    bench.build(*tags, tracked=["set_config", "tag"])

    def turn(script: Path, count: int, commit: str) -> dict[str, float]:
        what = ["-n", "-M", "prepared", f"--file={script}", f"--define=rows={bench.rows}"]
        load = [f"-c{count}", f"-j{min(count, os.cpu_count() or 1)}", f"-T{bench.options.seconds}"]
        done = subprocess.run(
            [pgbench, *what, *load, bench.dsn],
            env=os.environ | {"PGOPTIONS": f"-c synchronous_commit={commit}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = re.search(r"tps = ([\d.]+)", done.stdout)
        assert found, done.stdout
        return {script.stem: float(found[1])}

    with tempfile.TemporaryDirectory() as folder:
        scripts = [Path(folder, f"{table}.sql") for table in tags]
        for script in scripts:
            script.write_text(_SCRIPT.format(table=script.stem, tag=tags[script.stem]))
        return [
            bench.measure(
                "clients",
                f"{count} clients, synchronous_commit {commit}",
                "tps",
                *(partial(turn, script, count, commit) for script in scripts),
            )
            for count in (1, 8)
            for commit in ("on", "off")
        ]


def bulk(bench: Bench) -> list[Result]:
    """Write many rows in one statement."""
    bench.build("untracked", "untagged", "tagged", "floor", tracked=["untagged", "tagged"])
    bench.conn.execute("create table images (like floor) with (autovacuum_enabled = off)")
    n = bench.options.rows
    former = f"insert into images select * from floor where id <= {n}"
    added = f"insert into images select * from floor where id > {bench.rows}"
    around = {"update": ([former], [former]), "delete": ([former], []), "insert": ([], [added])}

    def turn(operation: str, table: str) -> dict[str, float]:
        statements = [WRITES[operation].format(table=table, n=n)]
        if table == "floor":
            before, after = around[operation]
            statements = [*before, *statements, *after]
        seconds = write(bench.conn, *statements, tag=bench.tag() if table == "tagged" else None)
        write(bench.conn, RESTORES[operation].format(table=table, n=n), "truncate images")
        return {table: seconds * 1000}

    tables = ("untracked", "untagged", "tagged", "floor")
    return [
        bench.measure(
            "bulk",
            f"{operation} {n:,} rows",
            "ms",
            *(partial(turn, operation, table) for table in tables),
        )
        for operation in WRITES
    ]


def revert(bench: Bench) -> list[Result]:
    """Take back one row and many rows, with less and more history."""
    bench.build("by_hand", "tracked", tracked=["tracked"])

    def by_hand(operation: str, n: int) -> dict[str, float]:
        write(bench.conn, WRITES[operation].format(table="by_hand", n=n))
        seconds = write(bench.conn, RESTORES[operation].format(table="by_hand", n=n))
        return {"by hand": seconds * 1000}

    def undo(operation: str, n: int) -> dict[str, float]:
        tag = bench.tag()
        write(bench.conn, WRITES[operation].format(table="tracked", n=n), tag=tag)
        plan = write(bench.conn, f"select * from agentundo.plan_summary(array['{tag}'])")
        seconds = write(bench.conn, f"select agentundo.revert('{tag}'::text)")
        return {"revert": seconds * 1000, "plan_summary": plan * 1000}

    def turn(side: Callable[[str, int], dict[str, float]], what: str, n: int) -> dict[str, float]:
        times = [side(what, n) for _ in range(_REPEATS if n == 1 else 1)]
        return {name: statistics.median(one[name] for one in times) for name in times[0]}

    results = []
    present = 0
    for wanted in sorted(bench.options.history):
        fill(bench, wanted - present)
        present = wanted
        results += [
            bench.measure(
                "revert",
                f"{operation} {n:,} rows, history {wanted:,}",
                "ms",
                *(partial(turn, side, operation, n) for side in (by_hand, undo)),
            )
            for n in bench.sizes()
            for operation in WRITES
        ]
        # What was measured must have been the same work.
        difference = (
            "(table by_hand except table tracked) union all (table tracked except table by_hand)"
        )
        assert not bench.conn.execute(f"{difference} limit 1".encode()).fetchone(), "not equal"
    return results


def fill(bench: Bench, images: int) -> None:
    """Put images into the history, two of each updated row, by invocations that purge() spares."""
    while images > 0:
        n = min((images + 1) // 2, bench.rows)
        tag = bench.tag()
        write(bench.conn, WRITES["update"].format(table="by_hand", n=n))
        write(bench.conn, WRITES["update"].format(table="tracked", n=n), tag=tag)
        bench.conn.execute("select agentundo.hold(%s, 'earlier history')", [tag])
        bench.settle()
        images -= 2 * n
    bench.keep("by_hand")


PARTS: dict[str, Callable[[Bench], list[Result]]] = {
    "single": single,
    "clients": clients,
    "bulk": bulk,
    "revert": revert,
}


def main() -> None:
    """Measure, print a table for each part, and write everything down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--dsn", help="a server on this machine to measure on, as superuser")
    where.add_argument("--pg", type=int, default=18, help="else one of this version is started")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a bulk write")
    parser.add_argument("--history", default="0,600000", help="earlier images, such as 0,10000000")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--statements", type=int, default=2000, help="a round of `single`")
    parser.add_argument("--seconds", type=int, default=2, help="of each pgbench run")
    parser.add_argument("--select", default=",".join(PARTS), help="parts; default: %(default)s")
    parser.add_argument("--bindir", type=Path, help="where pgbench is, if not on PATH")
    parser.add_argument("--json", type=Path, help="a file for the numbers of every round")
    options = parser.parse_args()
    options.history = [int(count) for count in options.history.split(",")]
    parts = options.select.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}")

    server = Server(options.dsn) if options.dsn else start(matrix.binaries(options.pg), **_SETTINGS)
    with closing(server):
        report = environment(server)
        report["options"] = {name: vars(options)[name] for name in vars(options) if name != "dsn"}
        results: list[Result] = []
        for part in parts:
            with server.database(installed=False) as janitor:
                dsn = server.dsn(janitor.dbname)
                with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
                    installer.install(conn)
                    bench = Bench(conn, dsn, options.bindir or server.bindir, options)
                    measured = PARTS[part](bench)
            show(measured)
            results += measured
            if options.json:
                save(options.json, {"method": __doc__, **report}, results)


if __name__ == "__main__":
    main()
