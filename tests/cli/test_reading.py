"""``log``, ``show``, ``diff`` and ``history``: in a pipe, on terminals of any width, as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest

from pyagentundo import AgentUndo, UsageError
from pyagentundo.cli._screen import columns_of
from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.terminal import Session, on_terminal

LONG = "a long note that goes on and on for quite some while, so that it has to be wrapped"


def fits(session: Session, columns: int) -> bool:
    """Tell whether no line is wider than the terminal, in characters that stand alone or double."""
    return all(columns_of(line) <= columns for line in session.lines)


def without_times(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)


# log ----------------------------------------------------------------------------------------------


def test_an_agent_cannot_make_the_log_unreadable(deals: Connection, dsn: str, cli: Run) -> None:
    """With JSON that is nested more deeply than Python reads."""
    deep, flat = "[" * 1500 + "]" * 1500, "[" * 199 + '"[[["' + "]" * 199
    for name, result in (("deep", deep), ("flat", flat)):
        deals.execute("select agentundo.record_invocation(%s, meta => %s)", [name, result])
        deals.execute("select agentundo.commit_invocation(%s, %s)", [name, result])
    assert {one["id"] for one in loaded(cli("log", "--json"))} >= {"deep", "flat", "call-1"}
    cli("log")
    cli("show", "deep")
    assert loaded(cli("show", "deep", "--json"))["result"] == deep
    assert json.dumps(loaded(cli("show", "flat", "--json"))["meta"]) == flat
    with AgentUndo(dsn) as undo:
        assert undo.get("deep").result == deep
        assert json.dumps(undo.get("flat").result) == flat
        assert undo.record(id="deep").result == deep
        undo.record(id="again", input=json.loads(flat))
        for depth in (200, 500, 2000):
            wanted: list[Any] = []
            for _ in range(depth):
                wanted = [wanted]
            with pytest.raises(UsageError, match="input contains itself, or is nested too deeply"):
                undo.record(input=wanted)


def test_log_in_a_pipe_is_a_table(deals: Connection, cli: Run) -> None:
    said = without_times(cli("log").stdout).splitlines()
    assert said[0].split() == [
        "when", "id", "run", "step", "actor", "for", "role", "tool", "status", "rows", "tables",
        "held", "not", "tracked",
    ]  # fmt: skip
    role = deals.info.user
    expected = f"TIME call-2 run-42 2 sales-bot Dana {role} crm committed 1 public.meetings"
    assert said[2].split() == expected.split()
    assert len(said) == 4


def test_log_on_a_terminal(deals: Connection, dsn: str) -> None:
    session = on_terminal("log", "--dsn", dsn, columns=100)
    assert without_times(session.text) == (
        "call-2  committed, 1 row\n"
        "    TIME, crm by sales-bot for Dana, run run-42 step 2, public.meetings\n"
        "call-1  committed, 1 row\n"
        "    TIME, crm by sales-bot for Dana, run run-42 step 1, public.deals\n"
    )
    assert on_terminal("log", "--tool", "none", "--dsn", dsn).text == "no call matches\n"
    assert "… older ones: --limit, --until\n" in on_terminal("log", "-n", "1", "--dsn", dsn).text


def test_log_says_that_there_are_older_ones(deals: Connection, cli: Run) -> None:
    for number in range(18):
        writes(deals, f"more-{number}", "update public.deals set amount = amount", run="b")
    assert cli("log").stderr == cli("log", "--json").stderr == ""
    writes(deals, "more-18", "update public.deals set amount = amount", run="b")
    note = "note: only the newest 20 are listed; for older ones give --limit or --until\n"
    assert cli("log").stderr == cli("log", "--json").stderr == note
    assert len(loaded(cli("log", "--json"))) == 20
    # Who says how many is not told.
    assert cli("log", "--limit", "20").stderr == cli("log", "-n", "1", "--json").stderr == ""


def test_log_says_which_ids_are_none(deals: Connection, cli: Run) -> None:
    result = cli("log", "call-1", "nosuch", "nor this", "--json")
    assert [one["id"] for one in loaded(result)] == ["call-1"]
    assert result.stderr == ("note: there is no call 'nosuch'\nnote: there is no call 'nor this'\n")
    assert cli("log", "call-1", "call-2", "-n", "1").stderr == ""
    assert cli("log", "call-1", "--held").stderr == ""
    for options in (["nosuch"], ["nosuch", "nor this", "--json"], ["call-1", "--scope", "acme"]):
        result = cli("log", *options, code=1)
        assert result.stdout == ""
        assert result.stderr == (
            f"error: There is no call '{options[0]}'.\n  hint: \"agentundo log\" lists what there"
            " is.\n"
        )


def test_log_names_tables_that_are_not_tracked(deals: Connection, dsn: str, cli: Run) -> None:
    deals.execute("create table public.audit (x int)")
    with deals.transaction():
        deals.execute("select agentundo.record_invocation('call-3', tool => 'sly')")
        deals.execute("select agentundo.tag('call-3')")
        deals.execute("insert into public.audit values (1)")
        deals.execute("select agentundo.commit_invocation('call-3')")
    assert "not tracked, cannot be undone: public.audit" in on_terminal("log", "--dsn", dsn).text
    said = cli("log", "call-3").stdout.splitlines()[2].split()
    assert said[-1] == "public.audit"
    assert "not tracked, cannot be undone: public.audit" in cli("show", "call-3").stdout
    assert loaded(cli("log", "call-3", "--json"))[0]["uncovered"] == ["public.audit"]


def test_log_tells_what_became_of_it(deals: Connection, dsn: str, cli: Run) -> None:
    cli("revert", "call-1")
    said = on_terminal("log", "call-1", "--dsn", dsn).text
    assert said.startswith("call-1  reverted, 1 row\n")


# show ---------------------------------------------------------------------------------------------


def test_show(deals: Connection, cli: Run) -> None:
    deals.execute(
        "select agentundo.record_invocation('call-3', run => 'run-42', tool => 'pay',"
        ' tier => \'high\', input => \'{"amount": 1000.00, "to": "x"}\')'
    )
    deals.execute("select agentundo.record_effect('call-3', 'mail', 'none', 'told Dana')")
    said = cli("show", "call-3").stdout
    assert "id           call-3\n" in said
    assert "input        to=x, amount=1000.00\n" in said
    assert "status       pending\n" in said
    assert "no captured changes\n" in said
    assert "Beside the rows:\n" in said
    assert "told Dana" in said
    assert '"amount": 1000.00\n' in cli("show", "call-3", "--json").stdout
    about = loaded(cli("show", "call-3", "--json"))
    assert (about["tool"], about["changes"], about["effects"][0]["name"]) == ("pay", [], "mail")
    said = cli("show", "call-1").stdout
    assert re.search(r"\npublic\.deals +update +1 +", said)
    cli("revert", "call-1")
    assert loaded(cli("show", "call-1", "--json"))["revert_id"] in cli("show", "call-1").stdout


# diff ---------------------------------------------------------------------------------------------


def test_diff_in_a_pipe_is_whole_and_plain(deals: Connection, cli: Run) -> None:
    deals.execute("alter table public.deals add note text")
    writes(
        deals,
        "call-3",
        "update public.deals set amount = 1000, stage = null where id = 'D-881'",
        f"update public.deals set note = '{LONG} {LONG}' where id = 'D-882'",
        "delete from public.meetings",
        "insert into public.meetings values (2, '', ' NULL')",
    )
    assert cli("diff", "call-3").stdout == (
        "~ public.deals id=D-881 (update)\n"
        "    stage   Won → NULL\n"
        "    amount  10.00 → 1000.00\n"
        "\n"
        "~ public.deals id=D-882 (update)\n"
        f"    note  NULL → {LONG} {LONG}\n"
        "\n"
        "- public.meetings id=1 (delete)\n"
        "    id     1\n"
        "    deal   D-881\n"
        "    title  Kickoff\n"
        "\n"
        "+ public.meetings id=2 (insert)\n"
        "    id     2\n"
        '    deal   ""\n'
        '    title  " NULL"\n'
    )
    assert cli("diff", "call-3", "--scope", "acme", code=1).stderr.startswith("error: ")
    deals.execute("select agentundo.record_invocation('call-4')")
    assert cli("diff", "call-4").stdout == "no captured changes\n"


@pytest.mark.parametrize("columns", [80, 40])
def test_a_wide_diff_fits(deals: Connection, dsn: str, columns: int) -> None:
    wide = ", ".join(f'"column number {i} with a long name" text' for i in range(60))
    deals.execute(
        f"create table public.wide (id text primary key, {wide}, long_value text, doc jsonb);"
        "select agentundo.track('public.wide')"
    )
    writes(
        deals,
        "call-3",
        f"insert into public.wide (id, long_value, doc) values ('{'k' * 100}', '{LONG} {LONG}',"
        f' \'{{"東京": "{"東" * 60}", "a": [1.50, null]}}\')',
        "update public.wide set long_value = null, \"column number 7 with a long name\" = 'x'",
    )
    session = on_terminal("diff", "call-3", "--dsn", dsn, columns=columns)
    assert session.code == 0
    assert fits(session, columns)
    joined = "".join(session.text.split())
    assert "k" * 100 in joined
    assert "東" * 60 in joined
    assert LONG.replace(" ", "") * 2 in joined
    for command in (["log"], ["show", "call-3"], ["plan", "call-3"], ["status"], ["doctor"]):
        assert fits(on_terminal(*command, "--dsn", dsn, columns=columns), columns), command


def test_the_same_row_twice_in_one_call(deals: Connection, cli: Run) -> None:
    writes(
        deals,
        "call-3",
        "update public.deals set stage = 'A' where id = 'D-881'",
        "update public.deals set stage = 'B' where id = 'D-881'",
    )
    assert cli("diff", "call-3").stdout == (
        "~ public.deals id=D-881 (update)\n    stage  Won → A\n\n"
        "~ public.deals id=D-881 (update)\n    stage  A → B\n"
    )


def test_colours_on_a_terminal_and_when_asked_for(deals: Connection, dsn: str, cli: Run) -> None:
    red, green = "\x1b[31mQualified\x1b[0m", "\x1b[32mWon\x1b[0m"
    assert f"{red} → {green}" in on_terminal("diff", "call-1", "--dsn", dsn).raw
    assert f"{red} → {green}" in cli("diff", "call-1", "--color", "always").stdout
    for session in (
        on_terminal("diff", "call-1", "--dsn", dsn, NO_COLOR="1"),
        on_terminal("diff", "call-1", "--dsn", dsn, TERM="dumb"),
        on_terminal("diff", "call-1", "--color", "never", "--dsn", dsn),
        on_terminal("plan", "call-1", "--dsn", dsn, NO_COLOR="1"),
    ):
        assert session.code == 0
        assert "\x1b" not in session.raw
    assert "\x1b" not in cli("diff", "call-1").stdout


# history ------------------------------------------------------------------------------------------


def test_history_of_a_row(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set amount = 1000 where id = 'D-881'")
    expected = (
        "TIME update by sales-bot under call-1\n"
        "    stage  Qualified → Won\n"
        "\n"
        f"TIME update by {deals.info.user}, untagged\n"
        "    amount  10.00 → 1000.00\n"
    )
    for key in ["D-881", "id=D-881", '{"id": "D-881"}']:
        assert without_times(cli("history", "public.deals", key).stdout) == expected
    (first, second) = loaded(cli("history", "deals", "D-881", "--json"))
    assert (first["invocation"], second["invocation"]) == ("call-1", None)
    assert '"amount": 1000.00' in cli("history", "deals", "D-881", "--json").stdout
    said = cli("history", "public.deals", "D-9").stdout
    assert said == "no captured versions of public.deals id=D-9\n"
    # A text that holds a sign is a key as well: what it was taken for is said.
    said = cli("history", "deals", "code=x").stdout
    assert said == "no captured versions of deals id=code=x\n"
    for options in ([], ["--json"]):
        told = cli("history", "deals", "stage=Won", *options).stderr
        assert told == "note: no key column stage; the key is (id)\n"
        assert cli("history", "deals", "id=stage=Won", *options).stderr == ""
    told = cli("erase", "deals", "stage=Won", "--reason", "r", "--yes").stderr
    assert told.endswith("\nnote: no key column stage; the key is (id)\n")


def test_history_tells_what_it_has_missed(deals: Connection, cli: Run) -> None:
    """Tables are tracked with ``capture = 'agent'``: what people write has no version."""
    captured = "somebody wrote it here, not captured"
    missed = f"{captured}, or the table was altered"
    at_the_end = f"\n{captured}, or the whole table was rewritten\n"

    def said(key: str = "D-881") -> str:
        return without_times(cli("history", "deals", key).stdout)

    deals.execute(
        "create function note() returns trigger language plpgsql as"
        " $$begin update public.deals set amount = 1 where id = new.id; return new; end$$;"
        " create trigger note after update of stage on public.deals for each row"
        "   execute function note()"
    )
    writes(deals, "call-3", "update public.deals set stage = 'A' where id = 'D-881'")
    writes(deals, "call-4", "update public.deals set stage = 'B' where id = 'D-881'")
    assert captured not in said()
    deals.execute("update public.deals set stage = 'Mine' where id = 'D-881'")
    assert said().endswith(at_the_end)
    assert said().count(captured) == 1
    deals.execute("alter table public.deals add note text default 'x', drop amount cascade")
    deals.execute("drop function note cascade; select agentundo.sync()")
    writes(deals, "call-5", "update public.deals set stage = 'C' where id = 'D-881'")
    assert f"\n\n{missed}\n\nTIME update by sales-bot under call-5\n" in said()
    assert said().count(captured) == 1
    writes(deals, "call-6", "delete from public.deals where id = 'D-881'")
    assert said().count(missed) == 1
    deals.execute("insert into public.deals values ('D-881', 'New')")
    assert said().endswith(at_the_end)
    cli("revert", "call-6", "--on-conflict", "skip", code=3)
    writes(deals, "call-7", "update public.deals set stage = 'D' where id = 'D-882'")
    deals.execute("delete from public.deals where id = 'D-882'")
    assert said("D-882").endswith(at_the_end)


def test_history_where_everybody_is_captured(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute(
        "alter table public.deals add column room text default 'A'; select agentundo.sync()"
    )
    deals.execute("update public.deals set room = 'B' where id = 'D-881'")
    said = without_times(cli("history", "deals", "D-881").stdout)
    missing = "purged, or the table was altered, or the row written past capture"
    assert f"\n\nversions are missing here: {missing}\n\nTIME update" in said
    assert "not captured" not in said
    deals.execute("alter table public.deals alter column amount type numeric(14, 3)")
    said = cli("history", "deals", "D-881").stdout
    end = "\nthe whole table was rewritten here, or the row written past capture\n"
    assert said.endswith(end)


def test_an_app_is_told_when_another_scope_wrote(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    writes(deals, "call-3", "update public.deals set amount = 1 where id = 'D-881'", scope="acme")
    deals.execute("update public.deals set amount = 2 where id = 'D-881'")
    app = make_role(member_of="agentundo_app")
    deals.execute(f"grant select on public.deals to {app}".encode())
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=app))
    found = [
        line
        for line in without_times(cli("history", "deals", "D-881", *as_role).stdout).splitlines()
        if line.startswith("TIME")
    ]
    who = deals.info.user
    assert found == [
        "TIME update by sales-bot under call-1",
        "TIME update by somebody of another scope, not shown",
        f"TIME update by {who}, untagged",
    ]
    said = cli("history", "deals", "D-881", "--scope", "acme", *as_role).stdout
    assert " update by sales-bot under call-3\n" in said
    assert said.count(" update by somebody of another scope, not shown\n") == 1


def test_history_keys_of_several_columns_and_kinds(deals: Connection, cli: Run) -> None:
    deals.execute(
        "create table public.lines (deal text, position int, v text, primary key (deal, position));"
        "insert into public.lines values ('D=1', 2, 'x');"
        "create table public.bag (a int, b text); insert into public.bag values (1, 'y');"
        "create table public.uni (a int not null unique, v text); insert into uni values (7, 'u');"
        "select agentundo.track('lines'), agentundo.track('bag'), agentundo.track('uni')"
    )
    writes(deals, "call-3", "update public.lines set v = 'z'", "delete from public.bag",
           "update public.uni set v = 'w'")  # fmt: skip
    assert "v  x → z" in cli("history", "lines", "deal=D=1", "position=2").stdout
    assert "v  x → z" in cli("history", "lines", '{"deal": "D=1", "position": 2}').stdout
    assert "v  u → w" in cli("history", "uni", "7").stdout
    assert "delete by" in cli("history", "bag", '{"a": 1, "b": "y"}').stdout
    said = cli("history", "lines", "D=1", code=2).stderr
    assert "This is not a key of lines. Give deal=VALUE position=VALUE." in said
    said = cli("history", "bag", "1", code=2).stderr
    assert "This is not a key of bag. Give a JSON object of all its columns." in said


def test_history_of_what_is_none(deals: Connection, cli: Run) -> None:
    deals.execute("create table public.plain (id int primary key)")
    said = cli("history", "public.plain", "1", code=5).stderr
    assert said == (
        'error: public.plain is not tracked\n  hint: "agentundo status" lists what is.\n'
    )
    said = cli("history", "public.meetings", "abc", code=1).stderr
    assert said == (
        'error: invalid input syntax for type integer: "abc"\n'
        "  hint: The key columns have other types: give a value that each of them can hold.\n"
    )
    for command in (["history"], ["erase", "--reason", "r", "--yes"]):
        said = cli(*command, "public.meetings", "deal=D-881", code=1).stderr
        assert said.startswith("note: no key column deal; the key is (id)\nerror: invalid input")
    said = cli("history", "public.none", "1", code=1).stderr
    assert said == (
        'error: relation "public.none" does not exist\n  hint: Write it with its schema, such as'
        ' sales.deals; "agentundo status" lists what is tracked. Names with capitals or spaces'
        " are quoted as in SQL, and in a shell once more: 'sales.\"My Deals\"'.\n"
    )
    said = cli("history", "public.deals", '{"x": 1}', code=1).stderr
    assert "this is not a key of public.deals" in said
    assert "  hint: Give COLUMN=VALUE for each of the key columns: id, or the value alone." in said
    assert "The key is no JSON object" in cli("history", "deals", "{id: 1}", code=2).stderr
