"""The proof: a digest over every row of every table, taken before and afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from pyagentundo.cli._screen import Screen
from pyagentundo.cli._tables import print_table

# Partitions count with the table that they are a part of.
_TABLES = """\
select relname from pg_class where relnamespace = 'crm'::regnamespace and relkind in ('r', 'p')
  and not relispartition order by relname
"""
# All columns of all rows, and where each is stored; the order of the rows does not count.
_DIGEST = """\
select count(*), encode(sha256(convert_to(coalesce(string_agg(line, e'\\n' order by line), ''),
  'UTF8')), 'hex')
from (select concat(t.tableoid::regclass, t) collate "C" as line from {} as t) as lines
"""
#: So many hexadecimal digits are shown; all of them are compared.
_SHOWN = 12


@dataclass(frozen=True)
class Digest:
    """A table in a nutshell: how many rows, and a SHA-256 over all of their columns."""

    rows: int
    sha256: str


Digests = Mapping[str, Digest]


def take(conn: psycopg.Connection[Any]) -> Digests:
    """Return the digest of every table of the CRM, by its name."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute("set timezone to 'UTC'")
        names = [name for (name,) in cursor.execute(_TABLES).fetchall()]
        found = {}
        for name in names:
            query = sql.SQL(_DIGEST).format(sql.Identifier("crm", name))
            ((rows, sha256),) = cursor.execute(query).fetchall()
            found[f"crm.{name}"] = Digest(rows, sha256)
        return found


@contextmanager
def without(conn: psycopg.Connection[Any], cells: Mapping[str, str]) -> Iterator[None]:
    """Put single values back for the length of a block, in a transaction that is rolled back.

    Args:
        conn: of a superuser, in autocommit mode: no trigger of the CRM fires.
        cells: for each table the rest of an UPDATE: ``stage = 'Lead' where id = 'D-881'``.

    """
    with conn.transaction(force_rollback=True):
        conn.execute("set local session_replication_role to replica")
        for table, change in cells.items():
            conn.execute(f"update {table} set {change}".encode())
        yield


def show(screen: Screen, before: Digests, now: Digests, but_for: Digests | None = None) -> bool:
    """Print what was and what is, table by table.

    Args:
        screen: where.
        before: the state that there should be again.
        now: the state that there is.
        but_for: what it would be without what people have written since.

    Returns:
        Whether every table is as it was, but for that.

    """
    rows = []
    for table in sorted({*before, *now}):
        was, has = before.get(table), now.get(table)
        if was == has:
            verdict = "the same"
        elif was is not None and but_for is not None and but_for.get(table) == was:
            verdict = "the same but for Eve's edit"
        else:
            verdict = "CHANGED"
        rows.append(
            {
                "table": table,
                "rows": has.rows if has else 0,
                "before": was.sha256[:_SHOWN] if was else "",
                "now": has.sha256[:_SHOWN] if has else "",
                "": verdict,
            }
        )
    screen.raw("")
    print_table(screen, rows, ["table", "rows", "before", "now", ""])
    return not any(row[""] == "CHANGED" for row in rows)
