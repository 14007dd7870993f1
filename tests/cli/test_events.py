"""``events``: the record of what happened, read once or followed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyagentundo._sql import SqlFiles
from pyagentundo.cli.events import KINDS
from tests.cli.conftest import Run, writes
from tests.conftest import Connect, Connection
from tests.support.pooler import pooler
from tests.support.terminal import COMMAND, ROOT, heed_interrupts, on_terminal

pytestmark = pytest.mark.core


class Follower:
    """A running ``agentundo events --follow --json``."""

    def __init__(self, dsn: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "events", "--follow", "--json", "--dsn", dsn, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            preexec_fn=heed_interrupts,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._read = b""

    def wait_for(self, number: int, seconds: float = 20) -> list[Any]:
        """Return the events so far, once there are this many."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process.stdout is not None
            self._read += self._process.stdout.read() or b""
            if self._read.count(b"\n") >= number:
                break
            time.sleep(0.02)
        return [json.loads(line) for line in self._read.splitlines()]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def follow(dsn: str) -> Iterator[Any]:
    """Return what starts followers; they end with the test."""
    running: list[Follower] = []

    def start(*options: str, to: str = dsn) -> Follower:
        running.append(Follower(to, *options))
        return running[-1]

    yield start
    for follower in running:
        follower.close()


def events_of(result: Any) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_events_for_people_and_programs(deals: Connection, cli: Run) -> None:
    assert cli("events").stdout == "no events\n"
    assert cli("events", "--json").stdout == ""
    cli("revert", "call-1", "--by", "dana", "--reason", "wrong deal")
    cli("redo", "call-1")
    cli("hold", "call-2", "--reason", "incident")
    said = cli("events").stdout
    who = deals.info.user
    assert f" invocation_reverted by dana as {who}: call-1 crm of sales-bot\n" in said
    assert "    reason=wrong deal, status=reverted, " in said
    assert "role=" not in said
    assert f" invocation_held by {who}: call-2 crm of sales-bot\n    reason=incident\n" in said
    kinds = ["invocation_reverted", "invocation_redone", "invocation_held"]
    found = events_of(cli("events", "--json"))
    assert [event["kind"] for event in found] == kinds
    assert found[0]["payload"]["by"] == "dana"
    first = found[0]["event"]
    for options, expected in (
        (["--after", str(first)], kinds[1:]),
        (["--after", "0", "--limit", "2"], kinds[:2]),
        (["--limit", "1"], kinds[2:]),
        (["--limit", "0"], []),
        (["--kind", "invocation_redone"], kinds[1:2]),
        (["--kind", "invocation_redone", "--after", "0"], kinds[1:2]),
        (["--since", "1h"], kinds),
        (["--since", "today", "--after", str(first)], kinds[1:]),
        (["--scope", "none"], []),
        (["--scope", "none", "--after", "0"], []),
    ):
        got = [event["kind"] for event in events_of(cli("events", "--json", *options))]
        assert got == expected, options


def test_who_did_it_is_told_from_whose_call_it_was(deals: Connection, cli: Run) -> None:
    who = deals.info.user
    assert cli("events", "--kind", "row_erased").stdout == "no events\n"
    writes(deals, "call-3", "update public.deals set amount = 1", scope="acme")
    cli("hold", "call-3", "--reason", "incident")
    said = cli("events", "--scope", "acme").stdout
    assert f" by {who}: call-3 crm of sales-bot in scope acme\n" in said
    cli("erase", "public.deals", "D-882", "--reason", "request 7", "--yes")
    said = cli("events", "--kind", "row_erased").stdout
    assert f" row_erased by {who}\n    " in said


def test_kinds_that_there_are_none_of(deals: Connection, cli: Run) -> None:
    assert (
        "'banana' is not one of 'invocation_reverted', "
        in cli("events", "--kind", "banana", code=2).stderr
    )
    emits = re.compile(r"agentundo\._emit\((?:case when .*? end|'\w+')")
    kinds = {
        kind
        for path in SqlFiles().files()
        for emit in emits.findall(path.read_text())
        for kind in re.findall(r"'(\w+)'", emit)
    }
    assert kinds == set(KINDS)


def test_more_than_a_page(db: Connection, cli: Run) -> None:
    db.execute("select agentundo._emit('test', null) from generate_series(1, 2500)")
    numbers = [event["event"] for event in events_of(cli("events", "--json", "--after", "0"))]
    assert len(numbers) == 2500
    assert numbers == sorted(set(numbers))


def test_following_wakes_up_at_once(deals: Connection, cli: Run, follow: Any) -> None:
    cli("revert", "call-1")
    follower = follow("--every", "600")
    assert [event["kind"] for event in follower.wait_for(1)] == ["invocation_reverted"]
    cli("redo", "call-1")
    kinds = [event["kind"] for event in follower.wait_for(2)]
    assert kinds == ["invocation_reverted", "invocation_redone"]


def test_following_without_notifications_looks_again(
    deals: Connection, cli: Run, dsn: str, follow: Any
) -> None:
    deals.execute(f"alter database {deals.info.dbname} set agentundo.notify = 'off'")
    follower = follow("--every", "0.2", "--after", "0")
    with pooler(dsn) as pooled:
        cli("revert", "call-1", "--dsn", pooled)
        assert len(follower.wait_for(1)) == 1


def test_nothing_is_lost_that_commits_late(
    deals: Connection, cli: Run, connect: Connect, follow: Any
) -> None:
    follower = follow("--every", "0.2", "--after", "0")
    slow = connect(autocommit=False)
    slow.execute("select agentundo.revert('call-1')")  # has a number, and is not to be seen yet
    cli("revert", "call-2")  # of another table: undos of one table wait for each other
    cli("hold", "call-2", "--reason", "incident")
    time.sleep(1.5)
    assert follower.wait_for(1, seconds=0.5) == []
    slow.commit()
    seen = [event["invocation"] for event in follower.wait_for(3)]
    assert seen == ["call-1", "call-2", "call-2"]


def test_what_is_rolled_back_holds_nothing_up(
    deals: Connection, cli: Run, connect: Connect, follow: Any
) -> None:
    follower = follow("--every", "0.2", "--after", "0")
    slow = connect(autocommit=False)
    slow.execute("select agentundo.revert('call-1')")
    cli("hold", "call-2", "--reason", "incident")
    slow.rollback()
    assert [event["kind"] for event in follower.wait_for(1)] == ["invocation_held"]


def test_ctrl_c_ends_it_quietly(deals: Connection, dsn: str, cli: Run) -> None:
    cli("revert", "call-1")
    session = on_terminal(
        "events", "--follow", "--dsn", dsn, interrupt_after="invocation_reverted", columns=60
    )
    assert session.code == 0
    assert "Traceback" not in session.text
    assert "Aborted" not in session.text
