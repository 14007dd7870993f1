"""Subscribers that have agentundo of their own, before and after sync()."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.moves.test_logical_copies import (  # noqa: F401
    here,
    publish_everything,
    publisher,
    subscribed,
    there,
)
from tests.support import moving
from tests.support.servers import Server
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import run
from tests.support.undo import rows, scalar, write
from tests.support.waiting import wait_until


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_a_subscriber_that_takes_over_goes_on_where_the_publisher_was(
    here: Connection,  # noqa: F811
    there: Connection,  # noqa: F811
    publisher: Server,  # noqa: F811
    capture: str,
) -> None:
    """Sequences are not replicated: `sync` sets them behind what is there."""
    story = publish_everything(here, there, publisher, capture=capture)
    with subscribed(here, there, publisher):
        pass
    # a write without a tag never fails because of us
    run(there, "update app.notes set body = 'mine' where id = 10")
    run(there, "update app.notes set body = 'one' where id = 10")
    problems = [problem for _, problem in moving.errors(there)]
    assert any("sequence" in problem or "number" in problem for problem in problems), problems
    there.execute("select agentundo.sync()")
    assert moving.errors(there) == []
    last = scalar(here, "select max(change) from agentundo.changes")
    write(there, "new", "update app.notes set body = 'new' where id = 10")
    newest = "select change from agentundo.changes where invocation = 'new'"
    assert scalar(there, newest) > last
    run(there, "update app.notes set body = 'one' where id = 10")
    assert scalar(there, "select trusted_after from agentundo._stamp") >= last
    moving.assert_goes_on(there, "newer")
    moving.assert_goes_back(there, story)
    run(there, "create table app.more (id int primary key)", "select agentundo.track('app.more')")


def test_the_first_copy_of_the_rows_is_no_write_of_anybody(
    here: Connection,  # noqa: F811
    there: Connection,  # noqa: F811
    publisher: Server,  # noqa: F811
) -> None:
    """Our tables are copied before the others, so that the triggers there are at work already."""
    story = publish_everything(here, there, publisher, capture="all")
    ours = "relnamespace::regnamespace::text ~ '^agentundo'"
    names = "select c.oid::regclass::text from pg_class c where relkind in ('r', 'p') and "
    run(here, "drop publication copied", "create publication copied")
    for (table,) in rows(here, names + ours):
        run(here, f"alter publication copied add table {table}")
    with subscribed(here, there, publisher):
        for table in moving.TABLES:
            run(here, f"alter publication copied add table {table}")
        run(there, "alter subscription copied refresh publication")
        pending = "select count(*) from pg_subscription_rel where srsubstate not in ('r', 's')"
        wait_until(lambda: scalar(there, pending) == 0, what="the tables to be copied")
        assert_same(story.left, snapshot(there, *moving.TABLES))
        count = "select count(*) from agentundo.changes"
        assert scalar(there, count) == scalar(here, count)


def test_history_whose_purge_would_stop_a_subscriber_is_reported(db: Connection) -> None:
    """PostgreSQL cannot find a row there by columns of which it knows no equality."""
    run(db, "create table plain (id int primary key, v varchar(9), w int[])")
    run(db, "create table odd (id int primary key, v json)")
    run(db, "select agentundo.track('plain'), agentundo.track('odd')")
    run(db, "create publication everything for all tables")
    found = rows(db, "select object, problem from agentundo.check() where severity = 'warning'")
    assert found == [
        (
            "public.odd",
            "its history is published by everything, and subscribers cannot find its rows:"
            " column v has no equality",
        )
    ]
