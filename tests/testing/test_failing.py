"""What `assert_reversible` says of what cannot be taken back, and of what makes no sense."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import psycopg
import pytest

from pyagentundo import NotInstalled, UsageError
from pyagentundo.testing import NotReversible, assert_reversible, install
from tests.conftest import Connect, Connection, MakeRole
from tests.support.undo import IMPATIENT
from tests.testing.conftest import WIN


def told(db: Any, action: Any, **options: Any) -> str:
    """Return what is said of an action that cannot be taken back."""
    with pytest.raises(NotReversible) as raised:
        assert_reversible(db, action, **options)
    return str(raised.value)


def test_a_table_that_is_not_tracked(db: Connection) -> None:
    assert told(db, [WIN, "insert into audit values (1, 'won')"]) == (
        "the action cannot be taken back\n\n"
        "Written and not tracked, so no undo reaches it:\n"
        "  public.audit\n"
        "    + n='1', note='won'\n"
        "  Track it with agentundo.track, or leave it out: ignore=['public.audit']."
    )


def test_only_a_table_that_is_not_tracked(db: Connection) -> None:
    assert "Written and not tracked" in told(db, "insert into audit values (1, 'won')")


def test_rows_that_differ_are_named_by_key_and_column(db: Connection) -> None:
    """A trigger that fires for the undo makes it wrong."""
    db.execute(
        "create function stamp() returns trigger language plpgsql as $$ begin"
        "  new.amount := new.amount + 1; return new; end $$;"
        "create trigger stamp before update on deals for each row execute function stamp();"
        "select agentundo.set_trigger('deals', 'stamp', 'fire')"
    )
    assert (
        "Not what it was after the undo:\n"
        "  public.deals\n"
        "    (id='1'): amount was '1000.00', is '1001.00'\n"
        "    (id='2'): amount was '2000.00', is '2001.00'"
    ) in told(db, "update deals set stage = 'Won'")


def test_rows_in_the_way_of_the_undo(db: Connection, dsn: str) -> None:
    def agent_then_eve(tagged: str) -> None:
        for address, statement in (
            (tagged, "update deals set stage = 'Won'"),
            (dsn, "update deals set stage = 'Lost' where id = 2"),
        ):
            with psycopg.connect(address) as conn:
                conn.execute(statement.encode())

    message = told(db, agent_then_eve, via="dsn")
    assert "In the way of the undo:\n  public.deals (id=2): row_changed [stage]\n" in message


@pytest.mark.parametrize("capture", ["agent", "all"])
def test_writes_without_the_tag(db: Connection, dsn: str, capture: str) -> None:
    db.execute("select agentundo.track('deals', %s)", [capture])

    def stray(conn: Connection) -> None:
        with psycopg.connect(dsn) as other:
            other.execute(WIN.encode())

    assert (
        "Tracked, and written without the tag:\n"
        "  public.deals\n"
        "    (id='1'): stage was 'Open', is 'Won'\n"
        "  The action wrote over another connection"
    ) in told(db, stray)


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("alter table audit add extra int", "column public.audit.extra: new, integer\n"),
        ("alter table deals disable trigger quiet", "trigger quiet of public.deals: was enabled: "),
        ("alter table deals drop constraint positive", "constraint positive of public.deals: gone"),
        ("drop index by_stage", "index public.by_stage: gone, was CREATE INDEX by_stage"),
        ("create table more (n int)", "table public.more: new"),
        ("create or replace view v as select 1 as one", "view public.v: was  SELECT 2 AS one"),
        (
            "alter table audit enable row level security",
            "table public.audit: was owned by postgres, is owned by postgres, row-level security\n",
        ),
        (
            "create index i on audit (n)",
            "index public.i: new, CREATE INDEX i ON public.audit USING btree (n)\n",
        ),
        (
            "create policy mine on audit for select using (n > 0)",
            "policy mine of public.audit: new, for select, to {public}, using (n > 0)\n",
        ),
        (
            "alter table audit alter note set default 'x', alter note set not null",
            "column public.audit.note: was text, is text, not null, default 'x'::text\n",
        ),
    ],
)
def test_definitions_that_differ(db: Connection, statement: str, line: str) -> None:
    db.execute(
        "create view v as select 2 as one;"
        "alter table deals add constraint positive check (amount > 0);"
        "create index by_stage on deals (stage);"
        "create function nothing() returns trigger language plpgsql as 'begin return new; end';"
        "create trigger quiet before update on deals for each row execute function nothing()"
    )
    line = line.replace("postgres", db.info.user)
    message = f"{told(db, [WIN, statement])}\n"
    assert f"Defined otherwise; no undo takes back DDL:\n  {line}" in message


def test_tables_that_are_made_or_dropped(db: Connection) -> None:
    """Nobody is told to track a table that is gone."""
    message = told(db, [WIN, "create table more (n int)", "drop table audit"])
    assert (
        "\n\nMade or dropped, which no undo takes back:\n"
        "  public.audit\n    was there before\n  public.more\n    was not there before\n"
    ) in message
    assert "agentundo.track" not in message


def test_large_objects(db: Connection) -> None:
    message = told(db, [WIN, "select lo_from_bytea(4711, 'pdf')"])
    assert (
        "\n\nLarge objects, which no undo reaches:\n  large objects\n    + oid=4711, md5="
    ) in message
    assert message.endswith(
        "\n  They can be neither tracked nor left out: let the action not write any."
    )


def test_what_left_the_database(db: Connection) -> None:
    effect = "select agentundo.record_effect(current_setting('agent.invocation'), '{}', '{}', '{}')"
    message = told(
        db,
        [
            WIN,
            effect.format("mail", "none", "the offer"),
            effect.format("booking", "compensate", "a room"),
        ],
    )
    assert "Left the database, and nothing makes up for it:\n  mail: the offer\n" in message
    assert message.endswith("Left the database:\n  booking: a room")


def test_what_a_redo_does_not_bring(db: Connection) -> None:
    """A trigger that fires for the redo, and not for what the agent did."""
    db.execute(
        "create function alter_redone() returns trigger language plpgsql as $$ begin"
        "  if current_setting('agent.tool', true) = 'agentundo.redo' then new.amount := 7; end if;"
        "  return new; end $$;"
        "create trigger t before update on deals for each row execute function alter_redone();"
        "select agentundo.set_trigger('deals', 't', 'fire')"
    )
    message = told(db, WIN, redo=True)
    assert "after the redo, compared with what the action had left:\n  public.deals\n" in message
    assert "(id='1'): amount was '1000.00', is '7.00'" in message


def test_long_tables_and_values_are_shortened(db: Connection) -> None:
    written = "insert into audit select n, repeat('x', 500) || n from generate_series(1, 30) n"
    message = told(db, written)
    assert message.count("    + ") == 11
    assert "    + … and 20 more" in message
    assert max(len(line) for line in message.splitlines()) < 250
    db.execute("alter table audit add primary key (n)")
    changed = told(db, "update audit set note = repeat('x', 500) || -n")
    assert re.search(r"note was …x+1' \(503 characters\), is …x+-1' \(504 characters\)", changed)


@pytest.mark.parametrize(
    ("action", "options", "message"),
    [
        ("select 1", {}, "The action wrote nothing"),
        (lambda _: None, {"via": "dsn"}, "The action wrote nothing"),
        (lambda conn: conn.commit(), {}, "The action ended the transaction"),
        (lambda conn: conn.execute("commit"), {}, "The action ended the transaction"),
        ("", {}, "The action wrote nothing"),
        ([WIN, 1], {}, "neither callable nor SQL"),
        (42, {}, "neither callable nor SQL"),
        (WIN, {"track": "nowhere"}, "There is no schema 'nowhere' to track"),
        (WIN, {"via": "dsn"}, "has to be a function of a DSN"),
        (WIN, {"via": "url"}, "via is 'url', neither 'connection' nor 'dsn'"),
        (WIN, {"ignore": ["gone"]}, "There is no table 'gone'"),
        (lambda _: asyncio.sleep(0), {}, "something to await, which nobody has awaited"),
    ],
)
def test_what_makes_no_sense(
    db: Connection, action: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        assert_reversible(db, action, **options)
    assert raised.value.hint


def test_an_action_that_takes_something_back(db: Connection) -> None:
    def both(conn: Connection) -> None:
        conn.execute(WIN.encode())
        conn.execute("select agentundo.revert(current_setting('agent.invocation'))")

    with pytest.raises(UsageError, match=r"itself took back assert_reversible-.*cannot be judged"):
        assert_reversible(db, both)


def test_connections_that_cannot_be_used(db: Connection, connect: Connect, dsn: str) -> None:
    conn = connect(autocommit=False, options=IMPATIENT)
    conn.execute("select 1")
    with pytest.raises(UsageError, match="A transaction is open on the connection of the test"):
        assert_reversible(conn, lambda _: None, via="dsn")
    with pytest.raises(psycopg.errors.UndefinedTable):
        conn.execute("select * from gone")
    with pytest.raises(UsageError, match="in a failed transaction"):
        assert_reversible(conn, WIN)
    conn.close()
    with pytest.raises(UsageError, match="is closed"):
        assert_reversible(conn, WIN)
    other: Any = object()
    for refuse in (lambda: assert_reversible(other, WIN), lambda: install(other)):
        with pytest.raises(UsageError, match=r"object is no psycopg connection and no DSN"):
            refuse()

    async def win(conn: Any) -> None:
        await conn.execute(WIN)

    mixed: Any = db
    with pytest.raises(UsageError, match=r"An async action needs a psycopg\.AsyncConnection"):
        asyncio.run(assert_reversible(mixed, win))


def test_a_role_that_may_not_read_everything(
    db: Connection, connect: Connect, make_role: MakeRole
) -> None:
    operator = make_role(member_of="agentundo_operator")
    db.execute(f"grant select, update on deals to {operator}".encode())
    conn = connect(user=operator, options=IMPATIENT)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="for table audit") as raised:
        assert_reversible(conn, WIN)
    assert "agentundo_operator with SELECT on all tables" in raised.value.__notes__[0]
    assert_reversible(conn, WIN, ignore="audit")


def test_a_database_without_agentundo(bare_dsn: str) -> None:
    with pytest.raises(NotInstalled, match="is not installed in database") as raised:
        assert_reversible(bare_dsn, "create table t ()")
    assert 'track=["public"]' in str(raised.value.hint)
