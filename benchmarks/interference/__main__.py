"""Runs the benchmark; what it measures stands in the package's docstring."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import benchmarks.interference as package
from benchmarks.interference.kinds import generate
from benchmarks.interference.measure import measure
from benchmarks.interference.tables import by_kind, by_policy, save, shortcomings, write_page
from tests.support import matrix
from tests.support.servers import start


def main() -> None:
    """Generate, play, undo, print; exit with 1 if an aim was missed."""
    parser = argparse.ArgumentParser(
        description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pg", type=int, metavar="MAJOR", default=18)
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--page", type=Path, help="put the tables into this page")
    options = parser.parse_args()
    if options.page and not options.page.exists():
        parser.error(f"there is no page {options.page}: its figures are replaced, not its text")
    begun = time.monotonic()
    server = start(matrix.binaries(options.pg))
    try:
        outcomes = measure(server, generate(options.histories, options.seed))
    finally:
        server.close()
    seconds = time.monotonic() - begun
    text = (
        f"{options.histories:,} histories, seed {options.seed}, PostgreSQL {options.pg}:\n\n"
        f"{by_policy(outcomes)}\n\nBy what others did:"
        f" histories damaged, and share of the recoveries made.\n\n{by_kind(outcomes)}\n"
    )
    print(f"{text}\n{seconds:.0f} s")
    if options.page:
        write_page(options.page, text)
    if options.json:
        about = {"histories": options.histories, "seed": options.seed, "pg": options.pg}
        save(options.json, {**about, "seconds": round(seconds)}, outcomes)
    missed = shortcomings(outcomes)
    if missed:
        raise SystemExit("\n".join(["aims missed:", *missed]))


if __name__ == "__main__":
    main()
