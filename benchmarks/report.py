"""Numbers of paired rounds: ratios, tables, a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support.servers import Server

#: What of a server's configuration numbers depend on.
_SETTINGS = (
    *("fsync", "full_page_writes", "synchronous_commit", "wal_level", "wal_compression"),
    *("shared_buffers", "max_wal_size", "checkpoint_timeout", "work_mem", "maintenance_work_mem"),
    *("max_parallel_workers_per_gather", "jit", "autovacuum", "data_checksums"),
)


@dataclass(frozen=True)
class Result:
    """One line of a table.

    Attributes:
        part: which table.
        case: what was done.
        unit: of the numbers.
        rounds: by column the number of each round; the first column is what others compare to.

    """

    part: str
    case: str
    unit: str
    rounds: Mapping[str, Sequence[float]]

    def summary(self, column: str) -> dict[str, float]:
        """Return a column's median, and the median and ends of its ratios to the first one."""
        base = next(iter(self.rounds.values()))
        ratios = [one / other for one, other in zip(self.rounds[column], base, strict=True)]
        return {
            "median": statistics.median(self.rounds[column]),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }

    def cells(self) -> list[str]:
        """Return what is printed: the case, then each column."""
        texts = [
            "{median:,.2f}, {ratio:.2f}x ({least:.2f}..{greatest:.2f})".format(**self.summary(name))
            for name in self.rounds
        ]
        return [self.case, texts[0].partition(", ")[0], *texts[1:]]


def show(results: Sequence[Result]) -> None:
    """Print the results of a part as a table."""
    if not results:
        return
    head = [f"{results[0].part}: {results[0].unit}", *results[0].rounds]
    lines = [head, *(result.cells() for result in results)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        print("|", " | ".join(map(str.ljust, line, widths)), "|")
    print(flush=True)


def environment(server: Server) -> dict[str, Any]:
    """Return what the numbers depend on; print it."""
    with psycopg.connect(server.dsn()) as conn:
        settings = conn.execute(
            "select name, current_setting(name) from pg_settings where name = any (%s) order by 1",
            [list(_SETTINGS)],
        ).fetchall()
        version = conn.execute("select version()").fetchone()
    assert version
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "server": version[0],
        "settings": dict(settings),
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory / 2**30, 1),
            "load_before": os.getloadavg(),
        },
    }
    print(version[0])
    for topic in ("settings", "machine"):
        print(f"{topic}:", ", ".join(f"{name} {value}" for name, value in found[topic].items()))
    print(flush=True)
    return found


def save(path: Path, about: Mapping[str, Any], results: Sequence[Result]) -> None:
    """Write all numbers as JSON, after what there is to say about them."""
    lines = [
        {
            "part": result.part,
            "case": result.case,
            "unit": result.unit,
            "columns": {
                name: {**result.summary(name), "rounds": numbers}
                for name, numbers in result.rounds.items()
            },
        }
        for result in results
    ]
    path.write_text(json.dumps({**about, "results": lines}, indent=1, default=str) + "\n")
