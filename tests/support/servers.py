"""The servers of a test run and the databases on them.

A server is started once per pytest process and major version. Installing takes longer than a test,
so each server has a template database with agentundo in it, and a test gets a copy.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pytest_postgresql.janitor import DatabaseJanitor

from pyagentundo import installer
from pyagentundo.embedded import EmbeddedServer

#: For every server that tests start; one's own server needs them too.
SETTINGS = {
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "max_locks_per_transaction": "256",
}

#: Where files are in memory, if anywhere.
MEMORY = Path("/dev/shm")

_numbers = itertools.count(1)


class _Janitor(DatabaseJanitor):
    """Makes and drops a database, copying its template file by file.

    Since version 15 PostgreSQL writes a copy to the log block by block, which spares large servers
    two checkpoints. Without fsync those cost next to nothing, and the log half of each copy.
    """

    def __init__(self, *, by_file: bool, **options: Any) -> None:
        super().__init__(**options)
        self._by_file = by_file

    def _build_create_database_sql(self) -> sql.Composed:
        query = super()._build_create_database_sql()
        return query + sql.SQL(" strategy = file_copy") if self._by_file else query


class Server:
    """A PostgreSQL server that tests may fill with databases.

    Args:
        dsn: how a superuser connects to it.
        embedded: what runs it, when it is ours.

    """

    def __init__(self, dsn: str, embedded: EmbeddedServer | None = None) -> None:
        self.embedded = embedded
        self._dsn = dsn
        self._template: DatabaseJanitor | None = None
        with psycopg.connect(dsn) as conn:
            self._user = conn.info.user
            self._host = conn.info.host
            self._port = conn.info.port
            self._password = conn.info.password or None
            self.major = conn.info.server_version // 10000

    @property
    def bindir(self) -> Path | None:
        """Where its ``pg_dump``, ``psql`` and ``pgbench`` are; None for one's own server."""
        return self.embedded.bindir if self.embedded else None

    def dsn(self, dbname: str = "postgres", **parameters: Any) -> str:
        """Return a DSN for a database; parameters such as ``user`` replace the superuser's."""
        return make_conninfo(self._dsn, dbname=dbname, **parameters)

    def database(self, *, installed: bool) -> DatabaseJanitor:
        """Return what makes and drops a database of a new name, empty or with agentundo."""
        template = self._installed_template() if installed else None
        return self._janitor("t", template_dbname=template)

    def close(self) -> None:
        """Drop the template, or the server with everything on it."""
        if self.embedded:
            self.embedded.stop()
        elif self._template:
            self._template.drop()

    def _installed_template(self) -> str:
        if self._template is None:
            self._template = self._janitor("template", as_template=True)
            self._template.init()
            with psycopg.connect(self.dsn(self._template.dbname), autocommit=True) as conn:
                installer.install(conn)
        return self._template.dbname

    def _janitor(self, kind: str, **options: Any) -> DatabaseJanitor:
        return _Janitor(
            by_file=self.major >= 15,
            user=self._user,
            host=self._host,
            port=self._port,
            password=self._password,
            dbname=f"agentundo_{kind}_{os.getpid()}_{next(_numbers)}",
            **options,
        )


def start(bindir: Path | None = None, **settings: str) -> Server:
    """Start a server with these programs, or with those that the launcher finds."""
    with _in_memory() as yes:
        kept_small = {"max_wal_size": "128MB", "min_wal_size": "32MB"} if yes else {}
        server = EmbeddedServer(bindir=bindir, settings={**SETTINGS, **kept_small, **settings})
        server.start()
    return Server(server.dsn(), server)


@contextmanager
def _in_memory() -> Iterator[bool]:
    """Let a server's directory be made in memory, where there is plenty and nobody says where.

    A database is four hundred files, and each test makes one: on a disk, that is a third of the
    time of them all.
    """
    if "TMPDIR" in os.environ or not _has_room(MEMORY):
        yield False
        return
    before, tempfile.tempdir = tempfile.tempdir, str(MEMORY)
    try:
        yield True
    finally:
        tempfile.tempdir = before


def _has_room(directory: Path) -> bool:
    """Say whether several servers have room there and, as root, their programs may run there."""
    if not os.access(directory, os.W_OK):
        return False
    found = os.statvfs(directory)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= 8 * 2**30
