"""A database with a login role of each kind, and calls of two scopes that they try to get at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

import psycopg

from tests.support.servers import Server
from tests.support.undo import IMPATIENT, Connection, write

#: The columns of the tables in docs/security.md, and the role each is a member of.
KINDS = {
    "writer": None,
    "owner": None,
    "app": "agentundo_app",
    "agent": "agentundo_agent",
    "operator": "agentundo_operator",
    "approver": "agentundo_approver",
    "auditor": "agentundo_auditor",
}


@dataclass(frozen=True)
class Call:
    """What stands for `{…}` in a deed: one scope's calls."""

    scope: str
    person: str
    key: int

    @property
    def words(self) -> dict[str, str]:
        """Return the words to fill in; the ids begin with the scope."""
        ids = {word: f"{self.scope} {word}" for word in ("call", "undone", "pending", "run")}
        return {**ids, "name": self.scope, "person": self.person, "key": f'{{"id": {self.key}}}'}


OURS = Call("acme", "dana", 1)
THEIRS = Call("globex", "gina", 2)

_TABLES = """
create schema crm;
grant usage on schema crm to public;
create table crm.deals (id int primary key, stage text, n int);
create table crm.private (id int primary key, v int, word text);
create table crm.rows (id int primary key, v int, word text);
create table crm.spare (id int primary key, v int);
insert into crm.deals select i, 'New', 0 from generate_series(1, 9) i;
insert into crm.private values (1, 1, 'sesame'), (2, 2, 'sesame');
insert into crm.rows values (1, 1, 'sesame'), (2, 2, 'open');
insert into crm.spare values (1, 1);
create function crm.touch() returns trigger language plpgsql as 'begin return new; end';
create trigger touch before update on crm.deals for each row execute function crm.touch();
create function crm.may(text, text, text) returns boolean security definer language sql
  as 'select false';
grant select, insert, update, delete on crm.deals, crm.rows, crm.spare to public;
grant select (id, v), insert, update, delete on crm.private to public;
"""


@dataclass
class World:
    """The roles by kind, and connections as each."""

    dsn: str
    boss: Connection
    roles: dict[str, str]
    opened: ExitStack
    _connections: dict[str, Connection] = field(default_factory=dict)

    def connect(self, kind: str) -> Connection:
        """Return the connection of a kind's role, in autocommit mode."""
        if kind not in self._connections:
            self._connections[kind] = self.fresh(kind)
        return self._connections[kind]

    def fresh(self, kind: str) -> Connection:
        """Return one more connection of a kind's role."""
        dsn = psycopg.conninfo.make_conninfo(self.dsn, user=self.roles[kind])
        conn = psycopg.connect(dsn, autocommit=True, options=IMPATIENT)
        return self.opened.enter_context(closing(conn))


@contextmanager
def world(server: Server) -> Iterator[World]:
    """Make the database and its roles, and drop them again."""
    roles = {kind: f"t_{kind}_{os.getpid()}" for kind in KINDS}
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for role in roles.values():
            conn.execute(f"create role {role} login".encode())
        try:
            with server.database(installed=True) as database, ExitStack() as opened:
                dsn = server.dsn(database.dbname)
                boss = opened.enter_context(closing(psycopg.connect(dsn, autocommit=True)))
                made = World(dsn, boss, roles, opened)
                _furnish(made)
                yield made
        finally:
            for role in roles.values():
                conn.execute(f"drop role {role}".encode())


def _furnish(made: World) -> None:
    boss, roles = made.boss, made.roles
    boss.execute(_TABLES.encode())
    boss.execute(f"alter schema crm owner to {roles['owner']}".encode())
    for kind, marker in KINDS.items():
        role = roles[kind]
        if marker:
            boss.execute(f"grant {marker} to {role}".encode())
        boss.execute(
            f"create schema of_{kind} authorization {role};"
            f"create table of_{kind}.mine (id int primary key);"
            f"alter table of_{kind}.mine owner to {role};"
            f"create table of_{kind}.tracked (id int primary key);"
            f"alter table of_{kind}.tracked owner to {role};"
            f"select agentundo.track('of_{kind}.tracked')".encode()
        )
    for table in ("deals", "private", "rows", "spare"):
        boss.execute(f"alter table crm.{table} owner to {roles['owner']}".encode())
    for table in ("deals", "private", "rows"):
        boss.execute(f"select agentundo.track('crm.{table}')".encode())
    boss.execute(b"grant execute on function crm.may(text, text, text) to agentundo_worker")
    for call in (OURS, THEIRS):
        _write(boss, call)
    boss.execute(b"alter table crm.rows enable row level security")
    boss.execute(b"create policy seen on crm.rows using (id = 2)")


def _write(boss: Connection, call: Call) -> None:
    words = call.words
    tag = {"run": words["run"], "actor": "bot", "on_behalf_of": call.person, "scope": call.scope}
    deals = f"update crm.deals set stage = 'Won', n = 1 where id = {call.key}"
    write(boss, words["call"], deals, **tag)
    others = {**tag, "run": f"{call.scope} other run"}
    write(boss, words["undone"], f"update crm.deals set n = 1 where id = {call.key + 2}", **others)
    boss.execute("select agentundo.revert(%s::text)", [words["undone"]])
    boss.execute(
        "select agentundo.record_invocation(%s, scope => %s, actor => 'bot', on_behalf_of => %s)",
        [words["pending"], call.scope, call.person],
    )
    boss.execute("select agentundo.record_effect(%s, 'mail')", [words["call"]])
    for table in ("private", "rows"):
        update = f"update crm.{table} set word = word || '!', v = v + 1 where id = {call.key}"
        write(boss, f"{call.scope} {table}", update, **{**tag, "run": f"{call.scope} {table} run"})
        if call is OURS:
            boss.execute(f"update crm.{table} set word = 'sesame ' || v where id = 1".encode())
