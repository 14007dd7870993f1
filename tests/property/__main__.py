"""Many histories by hand: ``python -m tests.property --histories 20000 --seed 1``."""

from __future__ import annotations

import argparse
import time

from tests.property.judge import Verdicts
from tests.property.running import Failure, stage
from tests.support import matrix
from tests.support.servers import start


def main() -> int:
    """Play histories; print each that fails, made small, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.property", description=main.__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first; each has the next one")
    parser.add_argument("--pg", type=int, metavar="MAJOR", help="version of PostgreSQL")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument("--whole", action="store_true", help="do not make failing ones small")
    asked = parser.parse_args()
    server = start(matrix.binaries(asked.pg) if asked.pg else None)
    total, failures, played = Verdicts(), 0, 0
    begun = time.monotonic()

    def tell() -> None:
        spent = time.monotonic() - begun
        print(
            f"{played} histories from seed {asked.seed}, {failures} failed, {spent:.0f} s: {total}",
            flush=True,
        )

    try:
        while played < asked.histories and failures < asked.failures:
            # A fresh database now and then: what dropped schemas leave behind makes it slow.
            with server.database(installed=True) as made, stage(server.dsn(made.dbname)) as on:
                for _ in range(min(100, asked.histories - played)):
                    found = on.play(asked.seed + played, small=not asked.whole)
                    played += 1
                    if isinstance(found, Failure):
                        failures += 1
                        print(found, flush=True)
                        if failures == asked.failures:
                            break
                    else:
                        total.add(found)
            if played % 1000 == 0 and played < asked.histories:
                tell()
    finally:
        server.close()
    tell()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
