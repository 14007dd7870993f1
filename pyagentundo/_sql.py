"""The SQL files: where they are, in what order they load, and the one script made of them.

A wheel has them inside the package, an editable install and a checkout beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: The table definitions: run on a fresh install only; later changes to them are migrations.
TABLES = "02_tables.sql"

#: ``pg_advisory_xact_lock(LOCK_KEY)``: one installer at a time in a database ("agntundo" as bytes).
LOCK_KEY = int.from_bytes(b"agntundo", "big")

#: PostgreSQL's oldest supported major version, as ``server_version_num``.
MIN_SERVER = 140_000

#: Settings of an installing transaction. Waiting for the other installer is not limited, waiting
#: for tables is: a queued ALTER would stop every writer behind it.
PREAMBLE = f"""\
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = notice;
set local standard_conforming_strings = on;
set local statement_timeout = 0;
set local lock_timeout = 0;
select pg_catalog.pg_advisory_xact_lock({LOCK_KEY});
set local lock_timeout = '3s';
"""

_HEAD = """\
-- pyagentundo {version}: undo for what AI agents write to a PostgreSQL database (14 or later).
-- Run it in one database, once:  psql -X -v ON_ERROR_STOP=1 -d DATABASE -f agentundo.sql
-- It is one transaction: everything below is there afterwards, or nothing.
-- Locks:   an advisory lock against a second installer; no table of yours is locked or changed
--          before you call agentundo.track(); lock_timeout is 3 s.
-- Creates: schemas agentundo and agentundo_history, event triggers, NOLOGIN roles agentundo_* (two
--          with BYPASSRLS); what you may not create is left out, and a NOTICE says so.
-- Grants:  none on your tables now; track() lets agentundo_worker read and write a table and makes
--          a SECURITY DEFINER function in its owner's name. The rest belongs to agentundo_owner.
-- Undo:    agentundo uninstall, or sql/uninstall.sql. Roles stay: other databases may use them.
"""

# Only for the printed script: the installer makes these checks itself, with better messages.
_GUARD = f"""\
do $agentundo$
begin
  if current_setting('server_version_num')::int < {MIN_SERVER} then
    raise exception 'agentundo needs PostgreSQL 14 or later, this is %',
      current_setting('server_version');
  end if;
  if to_regclass('agentundo._home') is not null then
    raise exception 'agentundo is installed in this database already'
      using hint = 'agentundo upgrade brings it up to date.';
  end if;
end
$agentundo$;
"""


@dataclass(frozen=True)
class Step:
    """One text to run, and the name under which a person looks for it."""

    name: str
    text: str


class SqlFiles:
    """A folder of SQL files.

    Args:
        root: the folder; by default the one that belongs to this package.

    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or _find_root()

    def files(self) -> list[Path]:
        """Return the numbered files in the order of loading."""
        return sorted(self.root.glob("[0-9][0-9]_*.sql"))

    def migrations(self) -> list[tuple[int, Path]]:
        """Return the migrations with their numbers, ascending."""
        found = ((re.match(r"\d+", path.name), path) for path in self.root.glob("migrations/*.sql"))
        return sorted((int(match[0]), path) for match, path in found if match)

    def schema_version(self) -> int:
        """Return the schema version that these files lead to; 1 is the one without migrations."""
        return max((number for number, _ in self.migrations()), default=1)

    def fresh_steps(self) -> list[Step]:
        """Return what a fresh install runs."""
        return [_step(path) for path in self.files()]

    def upgrade_steps(self, stored: int) -> list[Step]:
        """Return what brings a database of schema version `stored` up to date.

        Functions, views and grants are re-applied in any case; in the place of the table
        definitions stand the migrations that the database has not seen.
        """
        return list(self._upgrade_steps(stored))

    def _upgrade_steps(self, stored: int) -> Iterator[Step]:
        for path in self.files():
            if path.name != TABLES:
                yield _step(path)
                continue
            for number, migration in self.migrations():
                if number > stored:
                    yield _step(migration)
                    yield Step(
                        f"schema version {number}",
                        f"update agentundo._home set schema_version = {number};\n",
                    )

    def uninstall_steps(self, *, keep_history: bool) -> list[Step]:
        """Return what takes everything away again, but for the history if it shall stay."""
        keep = "on" if keep_history else "off"
        return [
            Step("what to keep", f"set local agentundo.keep_history = '{keep}';\n"),
            _step(self.root / "uninstall.sql"),
        ]

    def script(self, version: str) -> str:
        """Return the whole fresh install as one text for psql."""
        return _HEAD.format(version=version) + "\n" + as_script(self.fresh_steps(), guard=_GUARD)


def as_script(steps: list[Step], *, guard: str = "") -> str:
    """Return the steps as a text for psql that does what the installer does: one transaction."""
    parts = ["begin isolation level read committed read write;\n", PREAMBLE, guard]
    parts += [f"\n-- ==== {step.name} ====\n\n{step.text.rstrip()}\n" for step in steps]
    parts.append("\ncommit;\n")
    return "".join(parts)


def _step(path: Path) -> Step:
    return Step(path.name, path.read_text(encoding="utf-8"))


def _find_root() -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package / "sql", package.parent / "sql"):
        if (folder / TABLES).is_file():
            return folder
    raise FileNotFoundError(f"the SQL files of pyagentundo are missing beside {package}")
