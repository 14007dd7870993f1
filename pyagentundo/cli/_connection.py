"""Connections of commands: checked, in autocommit mode, exact numbers, notices on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads

from pyagentundo import dsn as dsns
from pyagentundo import errors, installer
from pyagentundo._json import loads
from pyagentundo.cli import _streams
from pyagentundo.cli._failures import notice_of
from pyagentundo.cli._options import chosen_dsn
from pyagentundo.cli._standing import Standing

#: A missing right, and ours.
_REFUSALS = ("42501", errors.NotPermitted.sqlstate)

Connection = psycopg.Connection[DictRow]


def connect(dsn: str | None, **options: Any) -> Connection:
    """Open a connection.

    Args:
        dsn: what `chosen_dsn` says.
        options: passed on to `psycopg.connect`.

    Raises:
        DsnError: the string cannot be read or nobody answers there.

    """
    # No statement is run often enough to be prepared, and a pooler might not know it again.
    conn = dsns.connect(dsn, given="--dsn", row_factory=dict_row, prepare_threshold=None, **options)
    set_json_loads(loads, conn)
    return conn


@contextmanager
def writing(conn: Connection, *, dry_run: bool = False) -> Iterator[None]:
    """Run a block as a transaction, after which a command has done what it was asked to.

    Args:
        conn: without an open transaction.
        dry_run: roll it back.

    """
    with conn.transaction(force_rollback=dry_run):
        yield
    if not dry_run:
        _streams.committed()


@contextmanager
def connected(*, check: bool = True) -> Iterator[Connection]:
    """Connect to the chosen database for the length of a block.

    Args:
        check: refuse a database without agentundo, or with one we cannot work with.

    """
    with connect(chosen_dsn()) as conn:
        try:
            if check:
                installer.require(conn)
                conn.add_notice_handler(notice_of)
            yield conn
        except (psycopg.Error, errors.AgentUndoError) as error:
            # What to advise hangs on what is there; afterwards nobody can ask.
            shared = click.get_current_context().ensure_object(dict)
            with contextlib.suppress(psycopg.Error):
                if error.sqlstate in _REFUSALS:
                    shared["standing"] = Standing.of(conn)
                elif error.sqlstate == errors.InvocationNotFound.sqlstate:
                    shared["run"] = _run_meant(conn, str(error))
            raise


def _run_meant(conn: Connection, message: str) -> str | None:
    """Return the id that was not found if a run has it, of which the role may be told."""
    given = click.get_current_context().params
    for one in [*(given.get("ids") or []), given.get("invocation")]:
        if one is not None and f"'{one}'" in message:
            rows = conn.execute(
                "select from agentundo.undoable(%s, %s, 1)", [given.get("scope"), one]
            ).fetchall()
            return one if rows else None
    return None
