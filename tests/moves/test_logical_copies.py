"""Logical replication into another database, and publications here.

What the apply worker writes has versions and numbers of its own, as after a restore. It fires no
statement trigger: a tracked table that is fed by it is not captured, and `check` warns of that.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import sql

from pyagentundo import installer
from tests.conftest import Connection
from tests.support import moving
from tests.support.moving import COPIED, RENUMBERED
from tests.support.servers import Server, start
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import plan, refused, revert, rows, scalar, write
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def publisher(server: Server) -> Iterator[Server]:
    """Start a server of the same version whose log says enough to be replicated."""
    if server.bindir is None:
        pytest.skip("needs a server of its own, not one given by --dsn")
    fresh = start(server.bindir, wal_level="logical")
    yield fresh
    fresh.close()


@pytest.fixture
def here(publisher: Server) -> Iterator[Connection]:
    """Connect to a database to publish."""
    with (
        publisher.database(installed=True) as database,
        moving.opened(publisher.dsn(database.dbname)) as conn,
    ):
        yield conn


@pytest.fixture
def there(publisher: Server) -> Iterator[Connection]:
    """Connect to an empty database beside it."""
    with (
        publisher.database(installed=False) as database,
        moving.opened(publisher.dsn(database.dbname)) as conn,
    ):
        yield conn


@contextmanager
def subscribed(here: Connection, there: Connection, server: Server) -> Iterator[None]:
    """Subscribe to the publication `copied`, and wait until all tables have been copied."""
    # In one cluster the slot must be there before the transaction that subscribes.
    here.execute("select pg_create_logical_replication_slot('copied', 'pgoutput')")
    source = sql.Literal(server.dsn(here.info.dbname))
    query = "create subscription copied connection {} publication copied with (create_slot = false)"
    there.execute(sql.SQL(query).format(source))
    try:
        pending = "select count(*) from pg_subscription_rel where srsubstate not in ('r', 's')"
        wait_until(lambda: scalar(there, pending) == 0, what="the tables to be copied")
        yield
    finally:
        run(there, "alter subscription copied disable")
        run(there, "alter subscription copied set (slot_name = none)", "drop subscription copied")
        left = "select count(*) from pg_replication_slots where active and slot_name = 'copied'"
        wait_until(lambda: scalar(here, left) == 0, what="the slot to be left")
        here.execute("select pg_drop_replication_slot('copied')")


def publish_everything(
    here: Connection, there: Connection, server: Server, *, capture: str = "agent"
) -> moving.Story:
    """Let an agent and a person write; publish all of it, and make the same schema there."""
    story = moving.begin(here, capture=capture)
    # Else its rows could be neither updated nor deleted under the publication.
    run(here, "alter table app.lines replica identity full")
    run(here, "create publication copied for all tables")
    assert server.bindir is not None
    source, target = (server.dsn(one.info.dbname) for one in (here, there))
    commands = [
        [str(server.bindir / "pg_dump"), "--schema-only", "--no-publications", "-d", source],
        [str(server.bindir / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", target],
    ]
    schema = b""
    for command in commands:
        schema = subprocess.run(command, input=schema, capture_output=True, check=True).stdout
    return story


def test_history_is_replicated_with_the_rows(
    here: Connection, there: Connection, publisher: Server
) -> None:
    story = publish_everything(here, there, publisher)
    with subscribed(here, there, publisher):
        moving.assert_arrived(there, story, "value")
        assert moving.errors(there) == [COPIED, RENUMBERED]
        fed = "it is fed by logical replication, whose changes are not captured"
        warned = "select object from agentundo.check() where problem = %s order by 1"
        assert [name for (name,) in rows(there, warned, fed)] == [
            "app.deals", "app.lines", "app.notes", "app.visits_1", "app.visits_2",
        ]  # fmt: skip

        # What is written, undone and erased in the one place is so in the other.
        moving.assert_goes_on(here)
        assert revert(here, "first").status == "reverted"
        write(here, "third", "update app.notes set body = 'third'")
        here.execute("select agentundo.erase('app.notes', '{\"id\": 31}', 'asked for')")
        standing = (
            "select id, status, rows, (select count(*) from agentundo._erased)"
            " from agentundo.invocations order by id"
        )
        expected = rows(here, standing)
        wait_until(lambda: rows(there, standing) == expected, what="the other place to follow")
        assert_same(snapshot(here, *moving.TABLES), snapshot(there, *moving.TABLES))
        assert {(row.key or {}).get("id"): row.reason for row in plan(there, "third")} == {
            10: None,
            30: None,
            None: "erased",
        }


def test_what_a_subscription_writes_is_seen_as_somebody_elses(
    here: Connection, there: Connection, publisher: Server
) -> None:
    """The subscriber has an agentundo of its own, and only a table is published."""
    table = "create table deals (id int primary key, owner text)"
    installer.install(there)
    run(here, table, "insert into deals values (1, 'dana'), (2, 'dana'), (3, 'dana')")
    run(here, "create publication copied for table deals")
    run(there, table, "select agentundo.track('deals')")
    with subscribed(here, there, publisher):
        assert scalar(there, "select count(*) from agentundo.changes") == 0
        write(there, "call", "update deals set owner = 'bot'")
        run(here, "update deals set owner = 'eve' where id = 1", "delete from deals where id = 2")
        gone = "select count(*) from deals where id = 2"
        wait_until(lambda: scalar(there, gone) == 0, what="the changes to be applied")
        before = snapshot(there, "deals")
        with refused("UN001") as caught:
            revert(there, "call")
        assert caught.reasons == ["row_changed", "row_deleted"]
        assert_same(before, snapshot(there, "deals"))
        assert revert(there, "call", on_conflict="skip").status == "partially_reverted"
        assert rows(there, "select * from deals order by id") == [(1, "eve"), (3, "dana")]
        untagged = "select count(*) from agentundo.changes where invocation is null"
        assert scalar(there, untagged) == 0
