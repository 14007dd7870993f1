"""Which invocations a command is about, and points in time as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pyagentundo.cli import _times
from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar

pytestmark = pytest.mark.core

NOW = datetime(2026, 11, 30, 14, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], {"call-1", "call-2"}),
        (["call-1"], {"call-1"}),
        (["--run", "run-42"], {"call-1", "call-2"}),
        (["--run", "run-42", "--from-step", "2"], {"call-2"}),
        (["--run", "other"], set()),
        (["--actor", "sales-bot", "--tool", "crm"], {"call-1", "call-2"}),
        (["--actor", "eve"], set()),
        (["--since", "1h"], {"call-1", "call-2"}),
        (["--since", "2 hours ago"], {"call-1", "call-2"}),
        (["--since", "yesterday"], {"call-1", "call-2"}),
        (["--until", "1 day"], set()),
        (["--until", "1h"], set()),
        (["--since", "2020-01-01", "--until", "2020-01-02 12:00"], set()),
        (["--scope", "acme"], set()),
        (["--limit", "1"], {"call-2"}),
    ],
)
def test_log_filters(deals: Connection, cli: Run, options: list[str], ids: set[str]) -> None:
    assert {entry["id"] for entry in loaded(cli("log", "--json", *options))} == ids


def test_log_by_role(deals: Connection, cli: Run) -> None:
    assert len(loaded(cli("log", "--json", "--role", deals.info.user))) == 2
    assert loaded(cli("log", "--json", "--role", "nobody")) == []


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--run", "run-42"], ("Qualified", 0)),
        (["--run", "run-42", "--from-step", "2"], ("Won", 0)),
        (["--actor", "sales-bot", "--tool", "crm"], ("Qualified", 0)),
        (["--since", "30 minutes", "--tool", "crm"], ("Qualified", 0)),
        (["call-1", "call-2"], ("Qualified", 0)),
        (["--last"], ("Qualified", 0)),
        (["--last-invocation"], ("Won", 0)),
    ],
)
def test_revert_takes_what_is_selected(
    deals: Connection, cli: Run, options: list[str], left: tuple[str, int]
) -> None:
    cli("revert", *options)
    row = deals.execute(
        "select stage, (select count(*) from public.meetings) from public.deals where id = 'D-881'"
    ).fetchone()
    assert row == left


def test_a_call_that_is_named_twice_is_one(deals: Connection, cli: Run) -> None:
    said = cli("plan", "call-2", "call-1", "call-2").stdout
    assert said.startswith("Undo 2 calls by sales-bot for Dana:\n")
    assert "more call" not in said
    assert cli("revert", "call-1", "call-1").stdout.startswith("reverted: call-1, 1 row put back\n")


def test_last_goes_back_run_by_run(deals: Connection, cli: Run) -> None:
    before = snapshot(deals, "public.deals")
    writes(deals, "call-3", "update public.deals set amount = 0", run="run-43")
    cli("revert", "--last")
    assert_same(before, snapshot(deals, "public.deals"))
    cli("revert", "--last")
    left = deals.execute("select stage from public.deals where id = 'D-881'").fetchone()
    assert left == ("Qualified",)
    assert "There is nothing left that could be undone." in cli("revert", "--last", code=1).stderr


def test_last_can_be_narrowed_and_takes_no_more_than_that(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    """On a shared database the newest run is anybody's."""
    stage = "update public.deals set stage = 'A' where id = 'D-881'"
    writes(deals, "mine-1", stage, run="shared", tool="mine")
    price = "update public.deals set amount = amount + 1 where id = 'D-882'"
    writes(deals, "theirs", price, run="shared", step=2, tool="other")
    writes(deals, "mine-2", "delete from public.meetings", run="shared", step=3, tool="mine")
    writes(deals, "newer", price, run="newer", tool="other")
    role = make_role("superuser")
    with psycopg.connect(f"{dsn} user={role}", autocommit=True) as conn:
        writes(conn, "alone", price, run=None)

    def taken(*options: str) -> list[str]:
        answer = cli("revert", *options, "--json")
        return sorted(loaded(answer)["invocations"])

    narrowed = cli("plan", "--last", "--tool", "mine")
    assert narrowed.stdout.startswith("Undo 2 calls by sales-bot for Dana:")
    assert narrowed.stderr == ""
    assert taken("--last", "--role", role) == ["alone"]
    assert taken("--last-invocation", "--tool", "mine", "--since", "1h") == ["mine-2"]
    # No plan is shown: what is the newest is said.
    done = cli("revert", "--last", "--tool", "mine", "--actor", "sales-bot")
    assert done.stdout.startswith("reverted: mine-1, 1 row put back\n")
    assert done.stderr == "note: the newest run is shared, of it what the options match\n"
    # Again: the run before. The other one's call in the same run has stayed all the while.
    assert "No call matches." in cli("revert", "--last", "--tool", "mine", code=1).stderr
    assert taken("--last", "--tool", "crm") == ["call-1", "call-2"]
    done = cli("revert", "--last")
    assert done.stdout.startswith("reverted: newer, 1 row put back\n")
    assert done.stderr == "note: the newest run is newer\n"
    app = ("--dsn", f"{dsn} user={make_role(member_of='agentundo_app')}")
    said = cli("plan", "--last", "--tool", "crm", *app, code=5).stderr
    assert "Only operators and auditors may choose by role, actor, tool or time." in said


def test_what_was_purged_is_left_out_where_it_was_not_named(deals: Connection, cli: Run) -> None:
    writes(deals, "call-0", "update public.deals set amount = amount", run="b", tool="web")
    deals.execute("select agentundo.purge('0 s')")
    for options in (["--run", "run-42"], ["--actor", "sales-bot"], ["call-1", "call-2"]):
        for command in ("plan", "revert"):
            refused = cli(command, *options, code=1)
            assert "can no longer be undone: its history was purged on" in refused.stderr
            assert "note:" not in refused.stderr
    before = snapshot(deals, "public.deals")
    writes(deals, "call-3", "update public.deals set amount = 0", step=3)
    writes(deals, "call-4", "update public.meetings set title = 'Tea'", run="b", tool="web")
    note = "note: 2 calls that match were purged and cannot be undone any more: left out\n"
    crm = ["--actor", "sales-bot", "--tool", "crm"]
    for options in (crm, ["--run", "run-42"], ["--last", *crm], ["--since", "1h", "--tool", "crm"]):
        planned = cli("plan", *options, "--json")
        assert [one["rows"] for one in loaded(planned)["counts"]] == [2]
        assert planned.stderr == note
    one = "note: 1 call that matches was purged and cannot be undone any more: left out\n"
    assert cli("plan", "--last").stderr == one
    assert cli("plan", "--tool", "web").stderr == one
    assert "was purged on" in cli("plan", "call-1", "call-3", code=1).stderr
    assert loaded(cli("revert", *crm, "--json"))["invocations"] == ["call-3"]
    assert_same(before, snapshot(deals, "public.deals"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revert"], "Name calls, or choose them with --run, --last"),
        (["plan"], "Name calls, or choose them with --run, --last"),
        (["revert", "a", "--last"], "Give ids, or --last, or --last-invocation: one of them."),
        (["plan", "--last", "--last-invocation"], "Give ids, or --last, or --last-invocation"),
        (["revert", "a", "--run", "r"], "An id needs no filters, and a run is not the newest one"),
        (["revert", "--last", "--run", "r"], "An id needs no filters, and a run is not the newest"),
        (["plan", "a", "--from-step", "2"], "--from-step needs --run."),
        (["plan", "--run", "r", "--from-step", "0"], "not in the range x>=1"),
        (["log", "--since", "soon"], "'soon' is not a time such as"),
        (["log", "--since", "1h", "--until", "2h"], "--since is not before --until"),
        (["revert", "a", "--on-conflict", "sometimes"], "'sometimes' is not one of"),
        (["track"], "Name tables or a --schema."),
        (["track", "t", "--schema", "s"], "Name tables or a --schema."),
        (["track", "t", "--capture", "none"], "'none' is not one of"),
        (["untrack"], "Name tables or --all."),
        (["untrack", "t", "--all"], "Name tables or --all."),
        (["grant", "r"], "Missing option '--as'"),
        (["exec"], "Missing argument 'COMMAND...'"),
        (["hold", "a"], "Give a --reason, or --release."),
        (["hold", "a", "--reason", "r", "--release"], "Give a --reason, or --release."),
        (["erase", "t", "1"], "Missing option '--reason'"),
        (["purge", "--older-than", "old", "--yes"], "'old' is no age such as '30 days'"),
        (["--dsn", "", "log"], "Invalid value for '--dsn': it is empty."),
        (["log", "--dsn", " "], "Invalid value for '--dsn': it is empty."),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_wrong_usage_is_2(cli: Run, arguments: list[str], said: str) -> None:
    assert said in cli(*arguments, code=2).stderr


# Points in time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", NOW),
        ("today", datetime(2026, 11, 30, tzinfo=UTC)),
        ("Yesterday", datetime(2026, 11, 29, tzinfo=UTC)),
        ("90s", NOW - timedelta(seconds=90)),
        ("30m", NOW - timedelta(minutes=30)),
        ("2h", NOW - timedelta(hours=2)),
        ("2 hours ago", NOW - timedelta(hours=2)),
        ("1 day", NOW - timedelta(days=1)),
        ("1 day, 2 hours 5 min ago", NOW - timedelta(days=1, hours=2, minutes=5)),
        ("2w", NOW - timedelta(weeks=2)),
        ("2026-11-30", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30 14:05", datetime(2026, 11, 30, 14, 5, tzinfo=UTC)),
        ("2026-11-30T14:05:10+02:00", datetime(2026, 11, 30, 12, 5, 10, tzinfo=UTC)),
        ("2026-11-30T14:05:10Z", NOW),
    ],
)
def test_times(monkeypatch: pytest.MonkeyPatch, text: str, at: datetime) -> None:
    monkeypatch.setattr(_times, "now", lambda: NOW)
    assert _times.parse(text) == at


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2 fortnights", "h", "2", "99999999999999 days", "2026-13-01", "ago", "-1h"],
)
def test_other_times_say_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r'is not a time such as "2026-11-30 14:05", an age such'):
        _times.parse(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "less than a second"),
        (7.4, "about 7 s"),
        (600, "about 10 min"),
        (9000, "about 2.5 h"),
    ],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert _times.duration(seconds) == said


def test_a_call_without_a_step_has_the_place_of_its_time_everywhere(
    deals: Connection, cli: Run
) -> None:
    """An undo from a step on must not take what a plan of the same does not show."""
    for call in ("first", "second", "third"):
        stage = f"update public.deals set stage = '{call}' where id = 'D-882'"
        writes(deals, call, stage, run="stepless", step=None)
    late = ["--run", "stepless", "--from-step", "3"]
    assert [call["id"] for call in loaded(cli("log", *late, "--json"))] == ["third"]
    rows = deals.execute("select distinct invocation from agentundo.plan_run('stepless', 3)")
    assert rows.fetchall() == [("third",)]
    cli("revert", *late)
    assert scalar(deals, "select stage from public.deals where id = 'D-882'") == "second"
    cli("revert", "--run", "stepless", "--from-step", "2")
    assert scalar(deals, "select stage from public.deals where id = 'D-882'") == "first"
