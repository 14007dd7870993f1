"""Shell and SQL on the pages run, section by section, in order."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyagentundo.cli import main
from tests.conftest import Connection
from tests.support import pages
from tests.support.pages import Block
from tests.support.servers import Server
from tests.support.shell import Shell
from tests.support.undo import rows

#: Pages whose blocks are run; README.md has tests of its own, the examples of cli.md name ids.
RUN = ("quickstart.md", "concepts.md", "errors.md", "operations.md", "upgrading.md", "limits.md")
#: Makes the tables that `db` has made already.
TRY = "Something to try it on"
SECTIONS = sorted(
    {(page, one.section) for page in RUN for one in pages.blocks(page, "sh", "sql")}
    - {("quickstart.md", TRY)}
)


def play(shell: Shell, block: Block) -> None:
    """Run a block."""
    if block.language == "sql":
        shell.sql(block.text)
    else:
        shell.run(block.text)


@pytest.mark.parametrize(("page", "section"), SECTIONS, ids=lambda value: value)
def test_section_runs(db: Connection, shell: Shell, page: str, section: str) -> None:
    db.execute("select agentundo.track('deals')")
    for block in pages.blocks(page, "sh", "sql"):
        if block.section == section:
            play(shell, block)


def test_first_hour_of_the_engineer(db: Connection, shell: Shell) -> None:
    for block in pages.blocks("quickstart.md", "sh", "sql"):
        if block.section == "The engineer of an agent":
            play(shell, block)
    assert rows(db, "select id, run, scope, status, reverted_by from agentundo.invocations"
                    " where tool = 'update_deal'") == [
        ("call-1", "run-42", "acme", "reverted", "dana")
    ]  # fmt: skip
    assert rows(db, "select stage from deals where id = 'D-881'") == [("Offered",)]


def test_first_hour_of_the_dba(db: Connection, shell: Shell) -> None:
    written = [
        block for block in pages.blocks("quickstart.md", "sh", "sql") if block.section == "The DBA"
    ]
    for block in written:
        play(shell, block)
        if "doctor --role" in block.text:
            said = shell.run(block.text)
            assert "reversible: 3 of the 3 tables crm_bot can write" in said
        if "set session authorization" in block.text:
            assert rows(db, "select distinct stage from deals") == [("Lost",)]
        if "revert --last" in block.text:
            assert rows(db, "select distinct stage from deals") == [("Offered",)]
    assert rows(db, "select actor, rows from agentundo.invocations where tool = 'psql'") == [
        ("tidy-bot", 2)
    ]


def test_first_hour_of_who_answers_for_it(db: Connection, shell: Shell) -> None:
    for block in pages.blocks("quickstart.md", "sh", "sql"):
        if block.section == "The person who answers for it":
            play(shell, block)
    kinds = rows(db, "select kind from agentundo.events order by event")
    assert kinds == [("invocation_held",), ("row_erased",)]
    assert rows(db, "select id, undoable from agentundo.invocations") == [("call-2", True)]
    erased = "select payload ->> 'images' from agentundo.events where kind = 'row_erased'"
    assert rows(db, erased) == [("2",)]


def test_the_hour_can_be_pasted_from_top_to_bottom(own_server: Server, tmp_path: Path) -> None:
    """On a server that has nothing: no table, no role, nothing installed."""
    with psycopg.connect(own_server.dsn(), autocommit=True) as conn:
        conn.execute("create database crm")
    shell = Shell.of(make_conninfo(own_server.dsn(), dbname="crm"), own_server.bindir, tmp_path)
    for block in pages.blocks("quickstart.md", "sh", "sql"):
        play(shell, block)
    assert '"held": "incident 17"' in shell.run("agentundo log --held --json")


def commands() -> list[tuple[str, str]]:
    """Return every use of the command line in shell blocks, with its page."""
    found = []
    for page in pages.PAGES:
        for block in pages.blocks(page, "sh"):
            for line in block.text.splitlines():
                for part in line.partition("  #")[0].split(" && "):
                    command = part.partition(" | ")[0].partition(" > ")[0].partition(" >> ")[0]
                    if command.startswith("agentundo "):
                        found.append((page, command))
    return found


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: value)
def test_commands_are_spelt_right(page: str, command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    if name == "demo" and name not in main.commands:
        pytest.skip("this checkout has no demo")
    with click.Context(main, info_name="agentundo") as ctx:
        main.commands[name].make_context(name, arguments, parent=ctx)
