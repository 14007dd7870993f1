"""What happens in the demo, in the order in which it happens."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pyagentundo import AgentUndo
from pyagentundo.demo import _digests
from pyagentundo.demo._agents import close_the_globex_deal
from pyagentundo.demo._stage import Stage
from pyagentundo.embedded import EmbeddedServer

_DATABASE = "crm"
#: The application, a person, and an agent that has the database itself.
_ROLES = ("crm_app", "eve", "tidy_bot")
#: What Eve writes while nobody looks, and what was there before: the proof leaves it out.
_EVES = (
    "update crm.deals set stage = 'Negotiation' where id = 'D-881'",
    "update crm.contacts set phones = '{+49 30 5559}' where id = 301",
)
_BEFORE_EVE = {
    "crm.deals": "stage = 'Proposal', updated_at = '2026-10-28 16:20+00' where id = 'D-881'",
    "crm.contacts": "phones = '{+49 30 5550}' where id = 301",
}
#: The accident: a pattern that nearly no number matches, and the cleaning up after it.
_TIDYING = (
    r"update crm.leads set clean = (regexp_match(phone, '^\+1-\d{3}-\d{4}$'))[1]",
    "delete from crm.leads where clean is null",
)
_ASKED = ("--by", "dana", "--reason")


def play(stage: Stage, server: EmbeddedServer) -> None:
    """Play all scenes on a server that has just been started.

    Raises:
        AgentUndoError: something did not go as it has to.

    """
    began = time.monotonic()
    with closing(psycopg.connect(server.dsn(), autocommit=True)) as conn:
        conn.execute(f"create database {_DATABASE}".encode())
    os.environ["AGENTUNDO_DATABASE_URL"] = address(server)
    with closing(psycopg.connect(server.dsn(_DATABASE), autocommit=True)) as conn:
        _set_up(stage, server, conn)
        _wrong_deal(stage, server, conn)
        _accident(stage, server, conn)
    stage.say(f"That took {time.monotonic() - began:.0f} seconds.")


def end(stage: Stage, directory: Path | None, url: str) -> None:
    """Say what is left.

    Args:
        stage: where.
        directory: that of the server if it was kept.
        url: of the demo's database.

    """
    if directory is None:
        stage.say("The server is stopped and its data deleted. To look around in it:")
        stage.typed("agentundo", "demo", "--keep")
        return
    stage.say("The server is still up. To look around, with psql or any other program:")
    stage.typed("export", f"AGENTUNDO_DATABASE_URL={shlex.quote(url)}")
    stage.typed("agentundo", "history", "crm.deals", "D-881")
    stage.say("To stop it and delete its data:")
    stage.typed("agentundo", "demo", "--stop", shlex.quote(str(directory)))


def address(server: EmbeddedServer) -> str:
    """Return the URL of the demo's database, as every driver reads it."""
    parts = {name: str(part) for name, part in conninfo_to_dict(server.dsn(_DATABASE)).items()}
    user = ":".join(quote(parts[name], safe="") for name in ("user", "password") if name in parts)
    where = urlencode({"host": parts["host"], "port": parts["port"]}, safe="/")
    return f"postgresql://{user}@/{_DATABASE}?{where}"


def _connect(server: EmbeddedServer, role: str) -> closing[psycopg.Connection[Any]]:
    return closing(psycopg.connect(server.dsn(_DATABASE, user=role), autocommit=True))


def _set_up(stage: Stage, server: EmbeddedServer, conn: psycopg.Connection[Any]) -> None:
    version = conn.info.parameter_status("server_version")
    stage.scene("A CRM, and undo for it")
    stage.say(
        f"A server of its own, PostgreSQL {version}, and on it a small CRM: companies, contacts,"
        " deals, meetings, activities by month, leads. Triggers keep updated_at, and a company's"
        " total of the deals it has won."
    )
    conn.execute(resources.files("pyagentundo.demo").joinpath("schema.sql").read_bytes())
    for role in _ROLES:
        conn.execute(
            f"create role {role} login; grant usage on schema crm to {role}; grant select, insert,"
            f" update, delete on all tables in schema crm to {role}".encode()
        )
    stage.run("install")
    stage.run("track", "--schema", "crm", "--capture", "all")
    stage.say(
        "The note is about the total. The companies are tracked too, so what the trigger writes"
        " goes back like everything else. Now the application is allowed to record what its"
        " agents do:"
    )
    stage.run("grant", "crm_app", "--as", "app", "--apply")


def _wrong_deal(stage: Stage, server: EmbeddedServer, conn: psycopg.Connection[Any]) -> None:
    before = _digests.take(conn)
    stage.scene("The wrong deal")
    stage.say(
        "Dana tells her agent that D-818 is signed. It takes D-881, books a kickoff, and writes to"
        " the customer, who has signed nothing. In the app, in Python:"
    )
    with (
        closing(AgentUndo(server.dsn(_DATABASE, user="crm_app"))) as undo,
        _connect(server, "crm_app") as app,
    ):
        stage.python(close_the_globex_deal, undo, app)
    stage.run("log")
    stage.run("plan", "--run", "run-42")
    stage.say(
        "Note the company: its total was written by a trigger, and it goes back with the deal."
    )

    stage.scene("Meanwhile, Eve")
    stage.say(
        "Before Dana has read this, Eve moves the deal on and notes the buyer's new number. She"
        " knows nothing of agents, undo or tags."
    )
    with _connect(server, "eve") as eve:
        for statement in _EVES:
            stage.sql(eve, statement)
    with_eve = _digests.take(conn)

    stage.scene("Undo, but nobody's later work")
    stage.run("revert", "--run", "run-42", "--yes", code=3)
    stage.require(_digests.take(conn) == with_eve, "The refusal has changed a table.")
    stage.say(
        "Refused as a whole: Eve's edits would be lost. Nothing was changed. Where she wrote other"
        " columns than the agent did, --merge puts back only the agent's; where she wrote the"
        " same, --on-conflict skip leaves hers. What would that do?"
    )
    way = ("--run", "run-42", "--merge", "--on-conflict", "skip")
    stage.run("plan", *way, code=3)
    stage.say("As it should be. The exit code 3 says that rows are left out.")
    stage.run("revert", *way, *_ASKED, "wrong deal", "--yes", code=3)
    stage.run("history", "crm.contacts", "301")
    stage.say("Every row of every table, as a digest, before the agent came and now:")
    now = _digests.take(conn)
    with _digests.without(conn, _BEFORE_EVE):
        but_for = _digests.take(conn)
    whole = _digests.show(stage.screen, before, now, but_for)
    stage.require(whole, "A table is not as it was.")
    changed = {table for table, digest in now.items() if digest != before[table]}
    stage.require(changed == set(_BEFORE_EVE), "Not all of Eve's edits are there.")

    stage.scene("An undo can be undone")
    stage.say("What if the agent had been right? A redo takes the revert back, as a whole.")
    stage.run("redo", "call-1", "--yes")
    stage.require(_digests.take(conn) == with_eve, "The redo is not what was there before.")
    stage.say("To the last byte the tables are as before the revert. It was not right, so again:")
    stage.run("revert", *way, *_ASKED, "wrong deal after all", "--yes", code=3)
    stage.require(_digests.take(conn) == now, "The second revert is not like the first.")


def _accident(stage: Stage, server: EmbeddedServer, conn: psycopg.Connection[Any]) -> None:
    before = _digests.take(conn)
    stage.scene("24,472 of 24,475")
    stage.say(
        "Another agent has the database itself and never sets a tag. Its role is enough: all that"
        " a member of agentundo_agent writes is captured."
    )
    stage.run("grant", "tidy_bot", "--as", "agent", "--apply")
    stage.say("It is to clean phone numbers, and then throws away what it could not read:")
    with _connect(server, "tidy_bot") as bot:
        for statement in _TIDYING:
            stage.sql(bot, statement)
    after = _digests.take(conn)
    stage.require(after["crm.leads"].rows == 3, "The accident did not happen.")
    stage.say(
        "Three leads are left. With the others went what refers to them: consents, ON DELETE"
        " CASCADE."
    )
    stage.run("log", "--role", "tidy_bot")
    stage.run("plan", "--last")
    stage.run("revert", "--last", *_ASKED, "24,472 leads gone", "--yes")
    stage.say("And the digests, before the accident and now:")
    stage.require(
        _digests.show(stage.screen, before, _digests.take(conn)), "A table is not as it was."
    )
