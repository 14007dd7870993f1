"""What is typed need not be text, nor what it seems to be."""

from __future__ import annotations

import sys

import pytest

from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection
from tests.support.terminal import as_program

NO_TEXT = "\udcff"  # the byte FF
#: A locale that knows ASCII only, as some schedulers have it.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    "command",
    [
        "show X", "diff X", "plan X", "revert X", "redo X", "log X", "log --run X", "log --since X",
        "plan --tool X", "revert a --reason X", "hold X --reason r", "hold a --reason X",
        "history X a", "history t X", "events --scope X", "grant X --as agent",
        "doctor --role X", "track X", "track --schema X", "untrack X", "sync X",
        "purge --older-than X", "erase X a --reason r", "erase t a --reason X", "--dsn X log",
        "log --dsn X", "exec --actor X true",
    ],
)  # fmt: skip
def test_bytes_that_are_no_text(command: str) -> None:
    said = as_program(*command.replace("X", NO_TEXT).split(" "))
    assert said.returncode == 2
    assert "it holds bytes that are no UTF-8.\n" in said.stderr
    assert "Traceback" not in said.stderr


def test_bytes_elsewhere() -> None:
    said = as_program("log", AGENTUNDO_DATABASE_URL=f"host={NO_TEXT}")
    assert said.returncode == 1
    assert "error: AGENTUNDO_DATABASE_URL cannot be read: it holds bytes" in said.stderr
    for command in (["demo", "--stop", f"/tmp/{NO_TEXT}"], [NO_TEXT], ["log", "-n", NO_TEXT]):
        said = as_program(*command)
        assert said.returncode in (1, 2)
        assert "Traceback" not in said.stderr


def test_a_program_gets_its_arguments_as_they_are(deals: Connection, dsn: str) -> None:
    said = as_program(
        "exec", "--dsn", dsn, "--", "sh", "-c", 'printf %s "$1" | od -An -tx1', "sh", NO_TEXT
    )
    assert (said.returncode, said.stdout.split()) == (0, ["ff"])
    said = as_program("exec", "--dsn", dsn, "--", f"/tmp/{NO_TEXT}")
    assert said.returncode == 127
    assert "is no program that can be run here" in said.stderr


def test_a_locale_of_ascii(deals: Connection, dsn: str) -> None:
    writes(deals, "grüße", "update public.deals set stage = 'Won'")
    said = as_program("show", "grüße", "--json", "--dsn", dsn, **ASCII)
    assert said.returncode == 0
    wrote = (
        "import psycopg\n"
        "with psycopg.connect('') as conn: conn.execute('update deals set amount = 1')"
    )
    named = ("--actor", "Jürgen", "--tool", "wäsche")
    said = as_program("exec", "--dsn", dsn, *named, "--", sys.executable, "-c", wrote, **ASCII)
    assert said.returncode == 0, said.stderr
    query = "select actor from agentundo.invocations where tool = 'wäsche'"
    assert deals.execute(query).fetchall() == [("Jürgen",)]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (r'{"id": "\ud800"}', "half of a surrogate pair"),
        (r'{"\udfff": 1}', "half of a surrogate pair"),
        (r'{"id": "\u0000"}', "contains the character NUL"),
        ('{"id":' + "[" * 100_000, "nested too deeply"),
        ('{"id":' + "[" * 700 + "]" * 700 + "}", "nested too deeply"),
        ('{"id": ' + "1" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_keys_that_are_none(deals: Connection, cli: Run, key: str, why: str) -> None:
    for command in (["history"], ["erase", "--reason", "r", "--yes"]):
        said = cli(*command, "public.deals", key, code=2)
        assert "The key is no JSON object: " in said.stderr
        assert why in said.stderr


@pytest.mark.parametrize(
    "age", ["90", " 90 ", "90.5", "+90", "1 day 90", "1-2", "1 2:03:04", ".5", "3 days 4"]
)
def test_an_age_without_a_unit(deals: Connection, cli: Run, age: str) -> None:
    """To the server it is one in seconds: nobody means to keep 90 seconds of history."""
    said = cli("purge", "--older-than", age, "--yes", code=2).stderr
    assert "has a number without a unit, which would be seconds. Give one such as '30 day" in said
    assert len(loaded(cli("log", "--json"))) == 2


@pytest.mark.parametrize(
    "age",
    [
        "90 days", "90days", "1.5 hours", "1 mon 2 days", "12:30", "1 day 12:30:15.5",
        "P1Y2M3DT4H", "1 year 2 mons", "-0 days", "@ 90 days",
    ],
)  # fmt: skip
def test_an_age_with_units(deals: Connection, cli: Run, age: str) -> None:
    cli("purge", "--older-than", age, "--dry-run")
