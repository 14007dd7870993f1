"""Installing, upgrading and removing the schema.

Each of the three is one READ COMMITTED transaction under an advisory lock: a second installer
waits, then sees what the first one did. What the role may not do (roles, event triggers) the SQL
leaves out with a NOTICE; those notices are part of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.rows import tuple_row

import pyagentundo
from pyagentundo._locks import with_retries
from pyagentundo._sql import MIN_SERVER, PREAMBLE, SqlFiles, Step
from pyagentundo.errors import InstallError, NotInstalled, VersionMismatch

Connection = psycopg.Connection[Any]
Note = Callable[[str], None]

#: The oldest schema version whose functions this package can call.
NEEDS_SCHEMA = 1


@dataclass(frozen=True)
class Installed:
    """What a database says about its installation.

    Attributes:
        version: the release whose functions are installed, as ``agentundo.version()`` tells it;
            empty when ``uninstall --keep-history`` left only the tables.
        schema_version: the number of the newest migration in it.
        min_client: the oldest pyagentundo that may work with it.

    """

    version: str
    schema_version: int
    min_client: str


@dataclass(frozen=True)
class Report:
    """What an installer run did.

    Attributes:
        action: ``installed``, ``upgraded``, ``re-applied``, ``unchanged`` or ``removed``.
        before: what was there before, None when nothing was.
        after: what is there now, None after an uninstall.
        notices: what the server said, first of all what it left out and why.
        steps: what was run, or with ``dry_run`` would have been.

    """

    action: str
    before: Installed | None
    after: Installed | None
    notices: list[str]
    steps: list[Step]


#: Whether the tables and the functions are there.
PRESENT = (
    "select pg_catalog.to_regclass('agentundo._home') is not null,"
    " pg_catalog.to_regprocedure('agentundo.version()') is not null"
)
#: What is there; the version is empty when only the tables are.
FOUND = "select agentundo.version(), schema_version, min_client from agentundo._home"
FOUND_TABLES = "select '', schema_version, min_client from agentundo._home"


def installed(conn: Connection) -> Installed | None:
    """Return what is installed in the database, None when nothing is."""
    has_tables, has_functions = _one(conn, PRESENT)
    if not has_tables:
        return None
    return Installed(*_one(conn, FOUND if has_functions else FOUND_TABLES))


def require(conn: Connection) -> Installed:
    """Return what is installed, if this package can work with it.

    Raises:
        NotInstalled: there is nothing.
        VersionMismatch: this package is older than the database's ``min_client``, or the database
            older than this package needs.

    """
    return accept(installed(conn), dbname=conn.info.dbname)


def accept(found: Installed | None, *, dbname: str) -> Installed:
    """Return what was found, if this package can work with it; raises what `require` does."""
    if found is None or not found.version:
        raise _not_installed(dbname)
    if _parse(pyagentundo.__version__) < _parse(found.min_client):
        raise VersionMismatch(
            f"This is pyagentundo {pyagentundo.__version__}; the database needs"
            f" {found.min_client} or later.",
            hint="Run: pip install --upgrade pyagentundo",
        )
    if found.schema_version < NEEDS_SCHEMA:
        raise VersionMismatch(
            f"The database has schema version {found.schema_version}; this pyagentundo needs"
            f" {NEEDS_SCHEMA} or later.",
            hint="Run: agentundo upgrade",
        )
    return found


def install(
    conn: Connection,
    *,
    files: SqlFiles | None = None,
    dry_run: bool = False,
    note: Note = lambda _: None,
) -> Report:
    """Install, or bring an older installation up to date; an equal or newer one is left alone.

    Args:
        conn: an idle connection; committed on return. The role needs CREATE on the database.
        files: the SQL, by default this package's.
        dry_run: change nothing, only report the steps.
        note: is told about waiting for locks.

    Raises:
        InstallError: the server is too old or read-only, or the role lacks rights. Nothing was
            changed.

    """
    files = files or SqlFiles()

    def choose(found: Installed | None) -> tuple[str, list[Step]]:
        if found is None:
            _require_room(conn)
            return "installed", files.fresh_steps()
        if not found.version:  # what `uninstall --keep-history` left
            return "installed", files.upgrade_steps(found.schema_version)
        if _is_older(found, files):
            return "upgraded", files.upgrade_steps(found.schema_version)
        return "unchanged", []

    return _run(conn, choose, dry_run=dry_run, note=note)


def upgrade(
    conn: Connection,
    *,
    files: SqlFiles | None = None,
    dry_run: bool = False,
    note: Note = lambda _: None,
) -> Report:
    """Run the missing migrations and apply functions, views and grants again.

    An installation of this very version is re-applied too: so a superuser adds what the first
    installer had to leave out. Arguments are those of `install`.

    Raises:
        NotInstalled: there is nothing to upgrade.
        VersionMismatch: the database has a newer version than this package brings.
        InstallError: as for `install`.

    """
    files = files or SqlFiles()

    def choose(found: Installed | None) -> tuple[str, list[Step]]:
        if found is None:
            raise _not_installed(conn.info.dbname)
        if _is_newer(found, files):
            raise VersionMismatch(
                f"The database has agentundo {found.version} (schema {found.schema_version}), newer"
                f" than this package's {pyagentundo.__version__} (schema"
                f" {files.schema_version()}).",
                hint="Run: pip install --upgrade pyagentundo",
            )
        action = "upgraded" if _is_older(found, files) else "re-applied"
        return action, files.upgrade_steps(found.schema_version)

    return _run(conn, choose, dry_run=dry_run, note=note)


def uninstall(
    conn: Connection,
    *,
    keep_history: bool = False,
    files: SqlFiles | None = None,
    dry_run: bool = False,
    note: Note = lambda _: None,
) -> Report:
    """Take away triggers, functions and, unless `keep_history`, all that was recorded.

    The marker roles stay: other databases of the cluster may use them.

    Raises:
        NotInstalled: there is nothing to remove.
        LockTimeout: a tracked table's lock could not be had; nothing was changed.
        InstallError: the role lacks rights.

    """
    files = files or SqlFiles()

    def choose(found: Installed | None) -> tuple[str, list[Step]]:
        if found is None:
            raise _not_installed(conn.info.dbname)
        return "removed", files.uninstall_steps(keep_history=keep_history)

    return _run(conn, choose, dry_run=dry_run, note=note)


def check_server(version: int) -> None:
    """Raise InstallError when ``server_version_num`` is that of an unsupported server."""
    if version < MIN_SERVER:
        # 13.4 is 130004; before 10 the second number was part of the major version.
        shown = (
            f"{version // 10000}.{version % 10000 if version >= 100_000 else version // 100 % 100}"
        )
        raise InstallError(
            f"agentundo needs PostgreSQL {MIN_SERVER // 10000} or later; this server is {shown}.",
            hint="Nothing was changed. Upgrade the server first.",
        )


def _run(
    conn: Connection,
    choose: Callable[[Installed | None], tuple[str, list[Step]]],
    *,
    dry_run: bool,
    note: Note,
) -> Report:
    check_server(conn.info.server_version)

    def attempt() -> Report:
        with _notices(conn) as notices, _transaction(conn):
            if not dry_run:
                _execute(conn, PREAMBLE)
            before = installed(conn)
            action, steps = choose(before)
            if dry_run:
                return Report(action, before, before, notices, steps)
            for step in steps:
                try:
                    _execute(conn, step.text)
                except psycopg.Error as error:
                    error.add_note(f"while running {step.name}")
                    raise
            after = installed(conn)
        return Report(action, before, after, notices, steps)

    try:
        return with_retries(attempt, note=note)
    except (pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction, pg.OutOfMemory) as error:
        raise _explained(conn, error) from error


@contextmanager
def _transaction(conn: Connection) -> Iterator[None]:
    """Open a transaction whose every statement sees what others committed before it."""
    former = conn.isolation_level, conn.read_only
    conn.isolation_level, conn.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    try:
        with conn.transaction():
            yield
    finally:
        if not conn.closed:
            conn.isolation_level, conn.read_only = former


#: Schemas and tables that an earlier installation left are there and are meant to be.
_OF_COURSE = ("42P06", "42P07")


@contextmanager
def _notices(conn: Connection) -> Iterator[list[str]]:
    """Collect the primary messages of the server's notices."""
    collected: list[str] = []

    def handler(diagnostic: pg.Diagnostic) -> None:
        if diagnostic.sqlstate in _OF_COURSE:
            return
        message = diagnostic.message_primary or ""
        hint = diagnostic.message_hint
        collected.append(f"{message} ({hint})" if hint else message)

    conn.add_notice_handler(handler)
    try:
        yield collected
    finally:
        conn.remove_notice_handler(handler)


def _one(conn: Connection, query: str) -> tuple[Any, ...]:
    """Return the single row of a query, whatever rows the connection makes otherwise."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query.encode(), prepare=False).fetchone()
    assert row is not None  # noqa: S101 - _home holds exactly one row, the other query needs none
    return row


def _execute(conn: Connection, text: str) -> None:
    """Run a text of many statements as one simple query, without parameters."""
    conn.execute(text.encode(conn.info.encoding), prepare=False)


def _explained(conn: Connection, error: psycopg.Error) -> InstallError:
    """Say what the role or the server lacks."""
    message = error.diag.message_primary or str(error)
    hints = {
        pg.InsufficientPrivilege: _missing_right(conn),
        pg.ReadOnlySqlTransaction: "This is a standby or read-only server; run it on the primary.",
        pg.OutOfMemory: "Too many tables for one transaction's locks: untrack some first"
        " (agentundo untrack --all), or raise max_locks_per_transaction.",
    }
    hint = error.diag.message_hint or next(
        text for kind, text in hints.items() if isinstance(error, kind)
    )
    return InstallError(f"{message}. Nothing was changed.", hint=hint)


def _require_room(conn: Connection) -> None:
    """Refuse to install over what is left of an installation.

    Raises:
        InstallError: there is something.

    """
    (left,) = _one(
        conn,
        "select exists (select from pg_class where relnamespace = to_regnamespace('agentundo'))",
    )
    if left:
        raise InstallError(
            "Parts of agentundo are in this database, but not its table agentundo._home: the"
            " installation is damaged. Nothing was changed.",
            hint="Restore it from a backup. To begin anew, without anything that was captured, let"
            " its owner run: drop schema agentundo, agentundo_history cascade;",
        )


def _missing_right(conn: Connection) -> str:
    """Say what an installing role lacks, as a statement or as the role to be."""
    present, grant, foreign = _one(
        conn,
        "select to_regnamespace('agentundo') is not null,"
        " format('grant create on database %I to %I;', current_database(), current_user),"
        " (select nspowner::regrole::text from pg_namespace where nspname = 'agentundo_history'"
        "   and nspowner <> current_user::regrole)",
    )
    if foreign and not present:
        return (
            f"A schema agentundo_history is in this database already and belongs to {foreign}:"
            " rename it, or drop it."
        )
    if present:
        return (
            "agentundo is in this database already: run it as the role that installed it, or as a"
            " superuser."
        )
    return (
        "The installing role needs CREATE on the database. Its owner or a superuser can run:"
        f" {grant}"
    )


def _not_installed(dbname: str) -> NotInstalled:
    return NotInstalled(
        f'agentundo is not installed in database "{dbname}".',
        hint="Run: agentundo install",
    )


def _is_older(found: Installed, files: SqlFiles) -> bool:
    return found.schema_version < files.schema_version() or (
        _parse(found.version) < _parse(pyagentundo.__version__)
    )


def _is_newer(found: Installed, files: SqlFiles) -> bool:
    return found.schema_version > files.schema_version() or (
        _parse(found.version) > _parse(pyagentundo.__version__)
    )


def _parse(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers for comparing: ``0.10.2`` is (0, 10, 2)."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
