"""``purge``, ``erase`` and ``hold``."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.terminal import as_program, on_terminal

pytestmark = pytest.mark.core


def images(db: Connection) -> int:
    """Count the row images in all histories."""
    histories = db.execute("select history from agentundo.tracked").fetchall()
    counts = [db.execute(f"select count(*) from {name}".encode()) for (name,) in histories]
    return sum(row[0] for count in counts for row in count)


def test_purge(deals: Connection, cli: Run) -> None:
    assert cli("purge", "--yes").stdout == (
        "purged: 0 calls, 0 changes, 0 row images older than the setting retention\n"
    )
    dry = cli("purge", "--older-than", "0 seconds", "--dry-run")
    expected = "purged: 2 calls, 2 changes, 3 row images older than 0 seconds\n"
    assert (dry.stdout, dry.stderr) == (expected, "note: dry run: rolled back\n")
    assert images(deals) == 3
    gone = loaded(cli("purge", "--older-than", "0 seconds", "--yes", "--json"))
    assert gone == {"invocations": 2, "changes": 2, "images": 3}
    assert images(deals) == 0
    result = cli("revert", "call-1", code=1)
    assert "can no longer be undone: its history was purged on" in result.stderr
    assert result.stderr.startswith("error: call 'call-1' can no longer be undone: its history")
    assert 'or exempt a call with "agentundo hold".' in result.stderr


def test_what_is_purged_is_told_from_what_wrote_nothing(
    deals: Connection, dsn: str, cli: Run
) -> None:
    deals.execute(
        "select agentundo.record_invocation('call-3'), agentundo.commit_invocation('call-3')"
    )
    cli("purge", "--older-than", "0 seconds", "--yes")
    assert cli("show", "call-1").stdout.endswith("\n\nits changes are purged\n")
    assert cli("show", "call-3").stdout.endswith("\n\nno captured changes\n")
    said = on_terminal("log", "--dsn", dsn).text
    assert "call-1  committed, its changes are purged\n" in said
    assert "call-3  committed, 0 rows\n" in said
    assert re.findall(
        r"(call-\d) .*  (committed\S*(?: its changes are purged)?)  ", cli("log").stdout
    ) == [
        ("call-3", "committed"),
        ("call-2", "committed, its changes are purged"),
        ("call-1", "committed, its changes are purged"),
    ]
    told = {one["id"]: one["purged"] for one in loaded(cli("log", "--json"))}
    assert told == {"call-1": True, "call-2": True, "call-3": False}
    assert loaded(cli("show", "call-1", "--json"))["purged"] is True


def test_purge_of_an_age_below_nothing(deals: Connection, cli: Run) -> None:
    said = cli("purge", "--older-than", "-1 day", "--yes", code=2).stderr
    assert "'-1 day' is no age such as '30 days'" in said


def test_what_is_for_good_is_asked_or_refused(deals: Connection, dsn: str) -> None:
    erase = ["erase", "public.deals", "D-881", "--reason", "request 7"]
    for command, question in (
        (["purge", "--older-than", "0 s"], "Delete history older than 0 s for good?"),
        (["purge"], "Delete history older than the setting retention for good?"),
        (erase, "Erase the history of public.deals id=D-881 for good?"),
    ):
        result = as_program(*command, "--dsn", dsn)
        assert result.returncode == 2
        assert f"{question} There is no terminal to ask on" in result.stderr
        session = on_terminal(*command, "--dsn", dsn, answer="n")
        assert session.code == 1
        assert f"{question} [y/N]: n\nNothing was changed.\n" in session.text
    assert images(deals) == 3
    assert on_terminal(*erase, "--dsn", dsn, answer="y").code == 0
    assert images(deals) == 1


def test_erase(deals: Connection, cli: Run) -> None:
    dry = cli("erase", "public.deals", "D-881", "--reason", "request 7", "--dry-run")
    assert dry.stdout == "erased: 2 row images, 0 inputs\n"
    assert images(deals) == 3
    answer = cli("erase", "public.deals", "id=D-881", "--reason", "request 7", "--yes", "--json")
    assert loaded(answer) == {"images": 2, "inputs": 0}
    assert images(deals) == 1
    said = cli("erase", "public.deals", "D-881", "--reason", "request 7", "--yes")
    assert said.stdout == "erased: 0 row images, 0 inputs\n"
    assert "note: nothing was captured under this key" in said.stderr
    assert "erased" in cli("plan", "call-1", code=3).stdout


def test_hold_and_release(deals: Connection, cli: Run) -> None:
    assert cli("hold", "call-1", "--reason", "incident").stdout == "held: call-1, 1 change\n"
    gone = loaded(cli("purge", "--older-than", "0 s", "--yes", "--json"))
    assert gone["invocations"] == 1
    assert [one["id"] for one in loaded(cli("log", "--held", "--json"))] == ["call-1"]
    answer = loaded(cli("hold", "call-1", "--release", "--json"))
    assert answer == {"invocation": "call-1", "held": None, "changes": 1}
    assert "there is no call 'nobody'" in cli("hold", "nobody", "--release", code=1).stderr
    gone = loaded(cli("purge", "--older-than", "0 s", "--yes", "--json"))
    assert gone["invocations"] == 1
    writes(deals, "call-3", "update public.deals set amount = 1")
    said = cli("hold", "call-3", "--release").stdout
    assert said == "released: call-3, 0 changes\n"


def test_who_holds_what_and_why(deals: Connection, dsn: str, cli: Run, make_role: MakeRole) -> None:
    for call, reason in (("call-1", "incident 16"), ("call-2", "audit"), ("call-1", "incident 17")):
        cli("hold", call, "--reason", reason)
    cli("hold", "call-2", "--release")
    who = deals.info.user
    (entry,) = loaded(cli("log", "--held", "--json"))
    assert (entry["id"], entry["held"], entry["held_by"]) == ("call-1", "incident 17", who)
    assert [one["held"] for one in loaded(cli("log", "--json"))] == [None, "incident 17"]
    auditor = ("--dsn", f"{dsn} user={make_role(member_of='agentundo_auditor')}")
    text = " ".join(on_terminal("log", *auditor, columns=200).text.split())
    assert re.search(rf"public\.deals held by {who} since \S+ \S+: incident 17$", text)
    assert text.count("held by") == 1
    said = cli("show", "call-1", *auditor).stdout
    assert re.search(rf"\nheld +incident 17\nheld by +{who}\nheld at +\d", said)
    assert "held" not in cli("show", "call-2", *auditor).stdout
    app = ("--dsn", f"{dsn} user={make_role(member_of='agentundo_app')}")
    said = cli("log", "--held", *app, code=5).stderr
    assert "Only operators and auditors are told what is held." in said
    assert "call-1" in cli("log", *app).stdout
