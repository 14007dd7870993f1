"""What is printed: safe for a terminal, exact, aligned, and quiet when nobody reads it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from datetime import UTC, datetime
from decimal import Decimal

import click
import pytest
from click.testing import CliRunner

from pyagentundo._json import loads
from pyagentundo.cli import _json, main
from pyagentundo.cli._screen import Screen, columns_of, cut, pad, printable, wrapped
from pyagentundo.cli._tables import cell, count, print_fields, print_table, size, value_text
from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection
from tests.support.terminal import COMMAND, ROOT, as_program, on_terminal

PIPE = Screen(err=False, width=None, colour=False, arrow="→")
NARROW = Screen(err=False, width=24, colour=False, arrow="→")


# Help ---------------------------------------------------------------------------------------------


def every_command() -> list[tuple[str, click.Command]]:
    return sorted(main.commands.items())


@pytest.mark.parametrize(("name", "command"), every_command(), ids=lambda value: str(value)[:12])
def test_help_ends_with_an_example(name: str, command: click.Command) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    last = result.stdout.rstrip().split("\n\n")[-1].splitlines()
    assert last[0].strip() in ("Example:", "Examples:")
    assert len(last) > 1
    assert all(line.lstrip().startswith(("agentundo ", "pip ")) for line in last[1:])
    assert command.help
    assert inspect.cleandoc(command.help).partition("\n")[0].endswith(".")


def test_help_of_all_says_whole_what_each_command_does() -> None:
    session = on_terminal("--help", columns=80)
    said = session.text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(said) == len(main.commands)
    assert [line for line in said if not line.endswith(".") or line.endswith("...")] == []


def test_help_of_all_tells_the_exit_codes() -> None:
    said = CliRunner().invoke(main, ["--help"]).stdout
    for code in range(6):
        assert f"\n    {code}  " in said
    assert said.rstrip().endswith("agentundo revert --last")
    assert "3 if rows stand in the way" in CliRunner().invoke(main, ["revert", "-h"]).stdout


@pytest.mark.parametrize("columns", [40, 80])
def test_examples_of_help_are_commands_that_there_are(columns: int) -> None:
    for name, command in every_command():
        assert command.epilog is not None
        for line in command.epilog.splitlines():
            words = line.split()
            if words[:1] == ["agentundo"]:
                assert words[1] in main.commands, name


# Hostile text -------------------------------------------------------------------------------------


def test_hostile_names_do_not_reach_the_terminal(deals: Connection, cli: Run, dsn: str) -> None:
    hostile = "x\x1b[2J\r\nid\u202e"
    writes(
        deals,
        hostile,
        f"update public.deals set stage = E'{hostile}' where id = 'D-881'",
        run="r\x1b[1m",
        tool="t\x9b\u2066",
        person="p\x07",
    )
    deals.execute(
        "select agentundo.record_effect(%s, %s, 'none', %s)", [hostile, "e\x1b", "s\x1b]0;x"]
    )
    bad = {"\x1b", "\r", "\u202e", "\x9b", "\u2066", "\x07"}
    for command in (
        ["log"], ["show", hostile], ["plan", hostile], ["diff", hostile], ["revert", "none\x1b[2J"],
        ["history", "public.deals", "D-881"], ["hold", hostile, "--reason", hostile], ["events"],
        ["revert", hostile], ["redo", hostile, "--dry-run"], ["redo", hostile],
        ["history", "public.deals", "\x1b"], ["track", "no\x1bsuch"],
        ["grant", "\x1b", "--as", "app"],
    ):  # fmt: skip
        output = CliRunner().invoke(main, command).output
        assert not set(output) & bad, command
    for command in (["log"], ["diff", hostile], ["plan", hostile]):
        session = on_terminal(*command, "--dsn", dsn, NO_COLOR="1", columns=40)
        assert not set(session.raw.replace("\r\n", "\n")) & bad
    assert loaded(cli("log", hostile, "--json"))[0]["id"] == hostile
    assert loaded(cli("revert", hostile, "--json"))["status"] == "reverted"


def test_printable_leaves_ordinary_text_alone() -> None:
    assert printable("Grüße, 東京 👍") == "Grüße, 東京 👍"
    assert printable("a\x1b\n\x9b") == r"a\x1b\n\x9b"
    assert printable("\ud800\ufeff") == r"\ud800\ufeff"


# Streams ------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_it_silently(deals: Connection, dsn: str) -> None:
    deals.execute("select agentundo._emit('test', null) from generate_series(1, 5000)")
    for arguments in (["events", "--after", "0"], ["events", "--json", "--after", "0"], ["log"]):
        read, write = os.pipe()
        process = subprocess.Popen(
            [*COMMAND, *arguments, "--dsn", dsn],
            cwd=ROOT, stdout=write, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(write)
        if arguments != ["log"]:
            os.read(read, 1)
        os.close(read)
        _, complaint = process.communicate(timeout=60)
        assert complaint == b""


def test_a_terminal_that_knows_no_arrows(deals: Connection, dsn: str) -> None:
    said = as_program("diff", "call-1", "--dsn", dsn, PYTHONIOENCODING="latin-1")
    assert said.returncode == 0
    assert "    stage  Qualified -> Won\n" in said.stdout
    writes(deals, "call-3", "update public.deals set stage = '東京'")
    said = as_program("diff", "call-3", "--dsn", dsn, PYTHONIOENCODING="latin-1")
    assert "Won -> \\u6771\\u4eac\n" in said.stdout


def test_completion_of_commands_ids_tables_and_roles(
    deals: Connection, dsn: str, cli: Run, make_role: object
) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = as_program("completion", shell)
        assert script.returncode == 0
        assert "_AGENTUNDO_COMPLETE" in script.stdout

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        said = as_program(
            AGENTUNDO_DATABASE_URL=dsn,
            _AGENTUNDO_COMPLETE="bash_complete",
            COMP_WORDS=line,
            COMP_CWORD=str(len(words) - 1),
        )
        return [one.partition(",")[2] for one in said.stdout.split()]

    assert offered("agentundo unin") == ["uninstall"]
    assert offered("agentundo show call-") == ["call-2", "call-1"]
    assert offered("agentundo revert --run ru") == ["run-42"]
    assert offered("agentundo untrack public.d") == ["public.deals"]
    assert offered("agentundo track public.") == ["public.deals", "public.meetings"]
    assert deals.info.user in offered("agentundo grant ")
    assert offered("agentundo log --dsn postgresql://127.0.0.1:1/x x") == []
    assert offered("agentundo show --dsn postgresql://127.0.0.1:1/x c") == []


def test_what_is_offered_is_one_plain_word(deals: Connection, dsn: str) -> None:
    """Shells put it on the command line as it is, and agents choose their ids and tools."""
    writes(deals, "Call_3,a/b", "update public.deals set amount = 1", tool="a\nplain\nb")
    for hostile in ("z;touch${IFS}x", "*", "z\nz", "z x", "z'", "--yes", "=ls", "z\u202ex", "z\\x"):
        writes(deals, hostile, "update public.deals set amount = 1", run=hostile)
    deals.execute('create table "Quoted" (id int primary key)')
    for shell in ("bash", "zsh", "fish"):
        for line, expected in (
            ("show ", {"Call_3,a/b", "call-2", "call-1"}),
            ("revert --run ", {"run-42"}),
            ("track public.", {"public.deals", "public.meetings"}),
        ):
            said = as_program(
                AGENTUNDO_DATABASE_URL=dsn,
                _AGENTUNDO_COMPLETE=f"{shell}_complete",
                COMP_WORDS=f"agentundo {line}",
                COMP_CWORD=line.split(" ")[-1] if shell == "fish" else str(line.count(" ") + 1),
            )
            lines = said.stdout.splitlines()
            assert len(lines) == len(expected) * (3 if shell == "zsh" else 1), said.stdout
            assert all(word in said.stdout for word in expected)


# JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1000.00", "0.1", "-0.50", "12345678901234567890123.000", "0.00000000000000000010", "7",
        "1" * 5000, "[]", "{}", '"x"', "null", "true", '"\\u0000"', '{"ä": [1.50, {"b": null}]}',
    ],
)  # fmt: skip
def test_json_keeps_every_digit(text: str) -> None:
    written = _json.dumps(loads(text), indent=None)
    assert written == text


def test_json_of_everything_that_queries_return() -> None:
    at = datetime(2026, 11, 30, 14, 5, tzinfo=UTC)
    data = {"at": at, "n": Decimal("1E+3"), "list": (1, False, None), "text": "é\n", "o": {}}
    assert _json.dumps(data, indent=None) == (
        '{"at": "2026-11-30T14:05:00+00:00", "n": 1000, "list": [1, false, null],'
        ' "text": "é\\n", "o": {}}'
    )
    assert json.loads(_json.dumps(data))["list"] == [1, False, None]
    assert _json.dumps([[1], {"a": 2}]) == '[\n  [\n    1\n  ],\n  {\n    "a": 2\n  }\n]'


def test_json_shows_no_controls_either() -> None:
    hostile = "\x1b\x7f\x9b\u202e\u2028 é 東"
    written = _json.dumps({hostile: hostile})
    assert json.loads(written) == {hostile: hostile}
    assert written.count(r"\u001b\u007f\u009b\u202e\u2028 é 東") == 2


# Text ---------------------------------------------------------------------------------------------


def test_widths_of_text() -> None:
    assert [columns_of(text) for text in ("abc", "é", "e\u0301", "東京")] == [3, 1, 1, 4]
    assert cut("abcdef", 4) == "abc…"
    assert cut("東京都", 4) == "東…"
    assert cut("abc", 3) == "abc"
    assert pad("東", 4) + "|" == "東  |"
    assert pad("7", 3, right=True) == "  7"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("one two three four five six", ["one two three four", "five six"]),
        ("    one two three four five", ["    one two three", "    four five"]),
        ("x" * 21 + " y", ["x" * 20, "x y"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("key=" + "y" * 30 + " z", ["key=" + "y" * 16, "y" * 14 + " z"]),
        ("東" * 12, ["東" * 10, "東" * 2]),
    ],
)
def test_wrapping(text: str, lines: list[str]) -> None:
    assert wrapped(text, 20) == lines


def test_tables_are_aligned_where_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "rows": 1}, {"name": "long", "rows": 100}]
    print_table(PIPE, rows, ["name", "rows"])
    assert capsys.readouterr().out == "name  rows\n----  ----\na        1\nlong   100\n"
    print_table(NARROW, rows, ["name", "rows"])
    assert capsys.readouterr().out == "name  rows\n----  ----\na        1\nlong   100\n"
    wide = [{"some name": "x" * 30, "empty": None, "n": 5}]
    print_table(NARROW, wide, ["some name", "empty", "n"])
    assert capsys.readouterr().out == (
        f"some name  {'x' * 13}\n           {'x' * 13}\n           xxxx\nn          5\n"
    )
    print_table(PIPE, [], ["name"], empty="nothing here")
    assert capsys.readouterr().out.endswith("nothing here\n")


def test_fields_leave_out_what_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 11, 30, 14, 5, 10, tzinfo=UTC)
    fields = {"a_b": None, "c": [], "d": {}, "e": False, "f": ["x", "y"], "g": {"k": "v"}, "h": at}
    print_fields(PIPE, {**fields, "i": [{"j": Decimal("1.0")}]})
    assert capsys.readouterr().out == (
        'e  no\nf  x, y\ng  k=v\nh  2026-11-30 14:05:10\ni  [{"j": 1.0}]\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"), ("NULL", '"NULL"'), ("", '""'), (" x", '" x"'), ("x", "x"),
        (True, "true"), (Decimal("1.50"), "1.50"),
        ({"a": [Decimal("1.0"), None]}, '{"a": [1.0, null]}'),
    ],
)  # fmt: skip
def test_values_of_rows(value: object, text: str) -> None:
    assert value_text(value) == text


def test_small_words() -> None:
    assert [count(1, "row"), count(2000, "row")] == ["1 row", "2,000 rows"]
    assert [size(0), size(2048), size(5 << 20), size(3 << 40)] == [
        "0 bytes", "2 kB", "5 MB", "3.0 TB",
    ]  # fmt: skip
    assert cell(True) == "yes"
