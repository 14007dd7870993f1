"""Text that tries to be more than text, everywhere we take any."""

from __future__ import annotations

import json

import pytest
from psycopg import sql

from tests.conftest import Connection
from tests.support.state import assert_same, snapshot
from tests.support.there_and_back import changes, run, value
from tests.support.undo import plan, refused, revert, rows, tag

pytestmark = pytest.mark.core

HOSTILE = [
    "'; drop table t; --",
    '"; drop table t; --',
    "$$; drop table t; $$ $capture$ $body$ $sql$ $create$",
    "%s %I %L %1$s %",
    "\\'; drop table t; \\",
    "new\nline\r\ttab\x01\x7f",
    "{} [] {'} {\"} ,",
    "\N{RIGHT-TO-LEFT OVERRIDE}\N{PILE OF POO}\N{COMBINING DIAERESIS}é",
    "' || pg_sleep(60) || '",
    "NULL",
]


@pytest.fixture
def t(db: Connection) -> Connection:
    """Make and track a table."""
    run(
        db,
        "create table t (id int primary key, v text)",
        "insert into t values (1, 'a'), (2, 'b')",
        "select agentundo.track('t')",
    )
    return db


@pytest.mark.parametrize("text", HOSTILE)
def test_tag_and_its_companions(t: Connection, text: str) -> None:
    before = snapshot(t, "t")
    t.execute("select set_config('application_name', %s, false)", [text])
    with t.transaction():
        tag(t, text, run=text, tool=text, actor=text, on_behalf_of=text, scope=text)
        t.execute("update t set v = %s", [text])
    assert rows(
        t, "select id, run, tool, actor, on_behalf_of, scope from agentundo.invocations"
    ) == [(text,) * 6]
    assert rows(t, "select id from agentundo.undoable(%s)", text)
    assert rows(t, "select run from agentundo.runs") == [(text,)]
    assert {row.status for row in plan(t, text, scope=text)} == {"ok"}
    assert {(row.after or {})["v"] for row in plan(t, text)} == {text}
    assert len(rows(t, "select * from agentundo.diff(%s)", text)) == 2
    result = revert(t, text, reason=text, reverted_by=text, scope=text)
    assert result.status == "reverted"
    assert result.invocations == [text]
    assert_same(before, snapshot(t, "t"))
    assert rows(
        t, "select reverted_by, revert_reason from agentundo.invocations where id = %s", text
    ) == [(text, text)]


@pytest.mark.parametrize("text", HOSTILE)
def test_recorded_invocations(t: Connection, text: str) -> None:
    given = {
        "id": text,
        "run": text,
        "tool": text,
        "actor": text,
        "scope": text,
        "on_behalf_of": text,
        "model": text,
    }
    # jsonb has no place for some control characters' escapes, but for all that Python escapes here
    document = json.dumps({text: [text, {"a": text}]})
    named = ", ".join(f"{name} => %({name})s" for name in given)
    query = (
        f"select * from agentundo.record_invocation({named}, input => %(json)s, meta => %(json)s)"
    )
    answer = t.execute(query.encode(), {**given, "json": document}).fetchone()
    assert answer is not None
    assert answer[:3] == (text, "pending", True)
    t.execute("select agentundo.commit_invocation(%s, %s)", [text, document])
    t.execute(
        "select agentundo.record_effect(%s, %s, 'none', summary => %s, remedy => %s)", [text] * 4
    )
    t.execute("select agentundo.hold(%s, %s)", [text, text])
    columns = ", ".join(given)
    assert rows(t, f"select {columns} from agentundo.invocations") == [(text,) * len(given)]
    ((stored, meta, result),) = rows(t, "select input, meta, result from agentundo.invocations")
    assert stored == meta == result == json.loads(document)
    assert rows(t, "select invocation, name, summary, remedy from agentundo.effects") == [
        (text,) * 4
    ]
    t.execute("select agentundo.fail_invocation(%s, %s)", [text, text])
    t.execute("select agentundo.set_scope_owner(%s, %s)", [text, text])


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_unknown_is_only_unknown(t: Connection, text: str) -> None:
    before = snapshot(t, "t")
    with refused("UN002"):
        revert(t, text)
    with refused("UN002"):
        plan(t, text)
    with refused("22023"):
        revert(t, "x", on_conflict=text)
    with refused("22023"):
        t.execute("select agentundo.track('t', %s)", [text])
    with refused("22023"):
        t.execute("select agentundo.set_merge('t', %s, 'delta')", [text[:60]])
    assert rows(t, "select * from agentundo.undoable(%s, %s)", text, text) == []
    assert_same(before, snapshot(t, "t"))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_of_columns_triggers_and_constraints(db: Connection, text: str) -> None:
    """A trigger is switched off by name, a constraint is named in a refusal."""
    name = text.encode()[:50].decode(errors="ignore")
    quoted = sql.Identifier(name)
    parts = {"n": quoted, "t": sql.Identifier(name + " t"), "c": sql.Identifier(name + " c")}
    db.execute(
        sql.SQL(
            "create table {n} ({n} int primary key, {c} int not null);"
            "create function {n}() returns trigger language plpgsql as"
            " $f$ begin raise 'must not fire'; end $f$;"
            "insert into {n} values (1, 1), (2, 2)"
        ).format(**parts)
    )
    table = quoted.as_string(db)
    db.execute("select agentundo.track(%s)", [table])
    db.execute("select agentundo.set_merge(%s, %s, 'delta')", [table, name + " c"])
    before = snapshot(db, table)
    with db.transaction():
        tag(db, "inv")
        db.execute(sql.SQL("update {n} set {c} = 7; delete from {n} where {n} = 2").format(**parts))
    db.execute(
        sql.SQL(
            "create trigger {t} before insert or update or delete on {n} for each row"
            " execute function {n}()"
        ).format(**parts)
    )
    assert revert(db, "inv").counts == (0, 1, 1, 0, 0)
    assert_same(before, snapshot(db, table))
    states = rows(
        db,
        "select tgname::text, tgenabled::text from pg_trigger where not tgisinternal"
        " and tgrelid = %s::regclass and tgname !~ '^agentundo'",
        table,
    )
    assert states == [(name + " t", "O")]
    assert len(changes(db)) == 2
    # and in a refusal
    db.execute(sql.SQL("drop trigger {t} on {n}").format(**parts))
    with db.transaction():
        tag(db, "b")
        db.execute(sql.SQL("update {n} set {c} = -1").format(**parts))
        db.execute(sql.SQL("update {n} set {c} = 5").format(**parts))
    with db.transaction():
        tag(db, "a")
        db.execute(sql.SQL("update {n} set {c} = 4").format(**parts))
    db.execute(sql.SQL("alter table {n} add constraint {t} check ({c} = 4)").format(**parts))
    with refused("UN001") as caught:
        revert(db, "a")
    assert set(caught.reasons) == {"constraint"}
    assert name in caught.message + json.dumps(caught.detail, ensure_ascii=False) + caught.hint
    assert value(db, "select count(*) from agentundo.check() where severity = 'error'") == 0


def test_text_that_is_no_text(t: Connection) -> None:
    """NULL and the empty string as ids are refused, as values they mean nothing was said."""
    for bad in (None, ""):
        with refused("22023"):
            t.execute("select agentundo.revert(%s::text)", [bad])
        with refused("22023"):
            t.execute("select agentundo.plan(%s::text)", [bad])
    for empty in ("null::text[]", "'{}'::text[]"):
        with refused("22023"):
            run(t, f"select agentundo.revert({empty})")
    with refused("22023"):
        run(t, "select agentundo.revert(array[null]::text[])")
