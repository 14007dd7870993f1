"""What other promises stand on: numbers, types and identities of our own tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Connection
from tests.support.there_and_back import (
    run,
    value,
)
from tests.support.undo import rows

pytestmark = pytest.mark.core

MakeRole = Callable[..., str]


def test_our_own_foundations(db: Connection) -> None:
    """What other promises stand on: see the reasons in each line."""
    run(
        db,
        "create table t (id int primary key, v int)",
        "create table parent (id int)",
        "create table child () inherits (parent)",
        "select agentundo.track('t', 'all'), agentundo.track('parent')",
    )
    # Only row locks order the changes of one key: a cached range would not follow them.
    assert (
        value(
            db,
            "select seqcache from pg_sequence where seqrelid ="
            " 'agentundo._change_number'::regclass",
        )
        == 1
    )
    # An exception block is a subtransaction: history would get another version than its rows.
    sources = rows(
        db,
        "select proname, prosrc from pg_proc where pronamespace ="
        " 'agentundo'::regnamespace and (proname like '\\_capture%%' or proname in"
        " ('_counted', '_step', '_setting', '_shape_ok', '_is_agent',"
        " '_implicit_invocation', '_implicit_run', '_check_id', '_refuse_id'))",
    )
    assert len(sources) > 8
    for name, source in sources:
        code = "\n".join(line.split("--")[0] for line in source.splitlines()).lower()
        assert "exception when" not in code.replace("\n", " "), name
        assert "dblink" not in code, name
    # Number columns only: an OID would be another table's after a restore, and pg_upgrade refuses
    # clusters with columns of all its aliases but these.
    assert (
        rows(
            db,
            "select c.relname::text, attname::text from pg_attribute a"
            " join pg_class c on c.oid = attrelid"
            " where relnamespace = 'agentundo'::regnamespace and relkind = 'r' and attnum > 0"
            " and not attisdropped and attname <> 'filenode' and (atttypid = 'oid'::regtype or"
            " atttypid::regtype::text ~ '^reg' and atttypid <> all"
            " ('{regclass,regtype,regrole}'::regtype[]))",
        )
        == []
    )
    # No type modifier, default or NOT NULL of the user's columns.
    for (history,) in rows(db, "select history from agentundo.tracked"):
        assert (
            rows(
                db,
                "select attname from pg_attribute where attrelid = %s::regclass and attnum > 2 and"
                " (atttypmod <> -1 or attnotnull or atthasdef)",
                history,
            )
            == []
        )
    # Every table can be published and purged.
    assert (
        rows(
            db,
            "select relname from pg_class c where relnamespace::regnamespace::text in"
            " ('agentundo', 'agentundo_history') and relkind = 'r' and relreplident <> 'f' and not"
            " exists (select from pg_index where indrelid = c.oid and indisprimary)",
        )
        == []
    )
