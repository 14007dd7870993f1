"""What README.md shows is what happens."""

from __future__ import annotations

import re
from decimal import Decimal

import psycopg
import pytest

from pyagentundo import UndoConflict
from tests.conftest import Connection, MakeRole
from tests.support import pages
from tests.support.shell import Shell
from tests.support.undo import rows

README = "../README.md"
TEXT = (pages.DOCS / README).read_text(encoding="utf-8")
#: What differs from run to run.
_VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
)


def played(transcript: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a transcript, each with the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> "):
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line)
    return found


def steady(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run."""
    text = "\n".join(lines)
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text.rstrip("\n").split("\n")


@pytest.mark.core
def test_transcript_is_true(db: Connection, shell: Shell) -> None:
    # As the page says it in "Set up".
    (track,) = re.findall(r"^agentundo (track .+)$", TEXT, re.MULTILINE)
    shell.run(f"agentundo {track}")
    (transcript,) = pages.blocks(README, "console")
    codes = {}
    for command, shown in played(transcript.text):
        session = shell.type(command)
        assert steady(session.lines) == steady(shown), command
        codes[command.split(" -")[0]] = session.code
    assert codes["agentundo plan call-7"] == 3
    assert codes["agentundo revert call-7"] == 0
    assert rows(db, "select id, stage, owner, amount from deals order by id") == [
        ("D-881", "Offered", "dana", Decimal("15000.00")),
        ("D-882", "Offered", "dana", Decimal("900.00")),
    ]
    assert len(transcript.text.splitlines()) < 50
    assert max(map(len, transcript.text.splitlines())) <= 80


def test_one_command_takes_the_last_run_back(db: Connection, shell: Shell) -> None:
    db.execute("select agentundo.track('deals')")
    (sql,) = pages.blocks(README, "sql")
    assert len(sql.text.splitlines()) == 3
    shell.sql(sql.text)
    assert rows(db, "select stage from deals where id = 'D-881'") == [("Won",)]
    assert rows(db, "select id, run, actor from agentundo.invocations") == [
        ("call-1", "run-42", "sales-bot")
    ]
    command = pages.blocks(README, "sh")[0].text
    assert command == "agentundo revert --last\n"
    shell.run(command)
    assert rows(db, "select stage from deals where id = 'D-881'") == [("Offered",)]


@pytest.mark.parametrize("role", ["superuser", "agentundo_app", "agentundo_operator"])
def test_ten_lines_of_python(db: Connection, dsn: str, make_role: MakeRole, role: str) -> None:
    db.execute("select agentundo.track('deals')")
    if role != "superuser":
        user = make_role(member_of=role)
        db.execute(f"grant select, update on deals to {user}".encode())
        dsn += f" user={user}"
    (block,) = pages.blocks(README, "python")
    assert len([line for line in block.text.splitlines() if line]) == 10
    names: dict[str, object] = {}
    exec(block.text.replace('"postgresql://localhost/crm"', repr(dsn)), names)
    for name in ("undo", "conn"):
        names[name].close()  # type: ignore[attr-defined]
    assert rows(db, "select stage from deals where id = 'D-881'") == [("Offered",)]
    told = rows(
        db,
        "select status, reverted_by, revert_reason from agentundo.invocations"
        " where tool = 'update_deal'",
    )
    assert told == [("reverted", "dana", "wrong deal")]


def test_three_costs_are_those_that_were_measured() -> None:
    costs = TEXT.partition("## What it costs")[2].partition("\n## ")[0]
    numbers = re.findall(r"\b\d+\.\d+", costs)
    assert len(re.findall(r"^\| (?!\|)[^-\n]", costs, re.MULTILINE)) == 3
    measured = (pages.DOCS / "performance.md").read_text(encoding="utf-8")
    assert len(numbers) >= 3
    assert [n for n in numbers if not re.search(rf"\b{re.escape(n)}\b", measured)] == []


def test_first_sentence_and_set_up_commands() -> None:
    first = next(line for line in TEXT.splitlines() if line and not line.startswith("#"))
    assert "never anybody's later edits" in first
    assert "with `--capture all`" in first
    assert first.count(". ") == 0
    for command in (
        'pip install ".[demo]" && agentundo demo',
        'pip install ".[test]" && pytest -n auto --few 2',
    ):
        assert f"```sh\n{command}\n```" in TEXT


def test_what_is_damaged_is_what_was_measured() -> None:
    page = (pages.DOCS / "interference.md").read_text(encoding="utf-8")
    measured = dict(re.findall(r"^\| `(\w+`: [\w+ ]+) \| ([\d,]+) \|", page, re.MULTILINE))
    ways = ("abort", "skip", "merge", "skip + merge")
    assert {measured[f"all`: {way}"] for way in ways} == {"0"}
    agent = [measured[f"agent`: {way}"] for way in ways]
    assert "it was in {} (`abort`), {} (`skip`), {} (`merge`), {} (both)".format(*agent) in TEXT
    assert "1,000 histories, seed 1" in page


def test_what_pools_do_to_tags_is_said_beside_the_sql(db: Connection, dsn: str) -> None:
    db.execute("select agentundo.track('deals')")
    after = TEXT.partition("## From any language")[2].partition("\n## ")[0]
    assert "never tag with a session-level `SET`" in after
    assert "In autocommit\na tag is lost at once" in after
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select agentundo.tag('lost')")
        conn.execute("update deals set stage = 'Won'")
    assert rows(db, "select * from agentundo.changes") == []


def test_without_merge_the_conflict_is_an_error(db: Connection, shell: Shell) -> None:
    db.execute("select agentundo.track('deals', 'all')")
    (transcript,) = pages.blocks(README, "console")
    write, eve, *_ = [command for command, _ in played(transcript.text)]
    shell.run(write)
    shell.run(eve)
    shell.run("agentundo revert call-7", code=3)
    with pytest.raises(psycopg.Error) as refused:
        db.execute("select agentundo.revert('call-7')")
    assert refused.value.sqlstate == UndoConflict.sqlstate
    assert rows(db, "select id, stage, amount from deals order by id") == [
        ("D-881", "Won", Decimal("15000.00")),
        ("D-882", "Won", Decimal("900.00")),
    ]
