"""``revert`` and ``redo``: what they say, ask, refuse and answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time

import pytest
from psycopg.conninfo import make_conninfo

from tests.cli.conftest import TABLES, Run, loaded, writes
from tests.conftest import Connect, Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.terminal import COMMAND, ROOT, as_program, on_terminal

pytestmark = pytest.mark.core


def test_it_says_what_was_done_and_how_to_take_it_back(deals: Connection, cli: Run) -> None:
    said = cli("revert", "--run", "run-42").stdout
    assert re.fullmatch(
        r"reverted: 2 calls, 1 row put back, 1 row removed\n"
        r"revert id: [0-9a-f-]{36}\n"
        r"take it back: agentundo redo call-1\n",
        said,
    )
    before = snapshot(deals, *TABLES)
    said = cli("redo", "call-1").stdout
    told = re.fullmatch(
        r"redone: 2 calls, 1 row put back, 1 row brought back\n"
        r"revert id: ([0-9a-f-]{36})\n"
        r"take it back: agentundo revert (\S+)\n",
        said,
    )
    assert told
    assert told[1] == told[2]
    # What it says takes all of it back, not only the call that was named.
    assert cli("revert", told[2]).stdout.startswith("reverted: ")
    assert_same(before, snapshot(deals, *TABLES))


def test_an_app_may_run_what_it_says(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    deals.execute("select agentundo.set_scope_owner('my team', 'dana')")
    writes(deals, "call-3", "update public.deals set amount = 0", run="run-43", scope="my team")
    as_role = ("--dsn", make_conninfo(dsn, user=make_role(member_of="agentundo_app")))
    command = ["revert", "call-3", "--scope", "my team", "--by", "dana"]
    states = []
    for _ in range(3):  # the revert, its redo, the revert of that
        said = cli(*command, *as_role).stdout.splitlines()
        command = shlex.split(said[-1].removeprefix("take it back: agentundo "))
        assert command[2:] == ["--scope", "my team", "--by", "dana"]
        states.append(snapshot(deals, *TABLES))
    assert_same(states[0], states[2])
    assert states[0] != states[1]


def test_again_is_no_error(deals: Connection, cli: Run) -> None:
    cli("revert", "call-1")
    said = cli("revert", "call-1").stdout
    assert said.startswith("already reverted: nothing was left to take back\nrevert id: ")
    cli("redo", "call-1")
    assert cli("redo", "call-1").stdout == "nothing to redo: no revert of it stands\n"
    assert loaded(cli("redo", "call-1", "--json"))["status"] == "nothing_to_redo"


def test_what_wrote_nothing_and_what_is_going_on(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.record_invocation('call-3')")
    said = cli("revert", "call-3", code=1).stdout
    assert said == "not committed: call-3 is still going on and has written nothing yet\n"
    deals.execute("select agentundo.commit_invocation('call-3')")
    said = cli("revert", "call-3").stdout
    assert said == "nothing to revert: no write of it was captured\n"


@pytest.mark.parametrize("command", ["revert", "plan", "redo", "show", "diff"])
def test_unknown_ids_are_1(deals: Connection, cli: Run, command: str) -> None:
    result = cli(command, "nobody", code=1)
    assert result.stderr.startswith("error: there is no call 'nobody'\n") or (
        result.stderr.startswith("error: There is no call 'nobody'.\n")
    )
    assert '"agentundo log" lists what there is' in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["revert", "plan", "log", "redo", "show", "diff"])
def test_the_id_of_a_run_is_none_of_a_call(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, command: str
) -> None:
    writes(deals, "call-3", "update public.deals set amount = 1", run="r 1", scope="acme")
    result = cli(command, "r 1", code=1)
    assert "here is no call 'r 1'" in result.stderr
    way = "give it as --run 'r 1'."
    if command in ("redo", "show", "diff"):
        way = "agentundo log --run 'r 1' lists its calls."
    assert f"\n  hint: r 1 is a run, not a call: {way}\n" in result.stderr
    assert "is a run" not in cli(command, "call-33", code=1).stderr
    if command in ("revert", "plan"):
        assert "hint: run-42 is a run" in cli(command, "call-1", "run-42", code=1).stderr
    if command in ("plan", "diff"):
        # An app is told of its own scope only.
        role = ("--dsn", make_conninfo(dsn, user=make_role(member_of="agentundo_app")))
        assert "r 1 is a run" in cli(command, "r 1", "--scope", "acme", *role, code=1).stderr
        assert "is a run" not in cli(command, "r 1", "--scope", "other", *role, code=1).stderr


def test_an_unknown_run_and_filters_that_match_nothing(deals: Connection, cli: Run) -> None:
    for options in (["--run", "none"], ["--tool", "none"], ["--since", "2h", "--actor", "x"]):
        result = cli("revert", *options, code=1)
        assert result.stderr == (
            "error: No call matches.\n"
            '  hint: "agentundo log" lists what there is. Check what was typed, and --scope.\n'
        )


# Conflicts ----------------------------------------------------------------------------------------


def test_conflict_is_3_and_says_who_and_the_ways_out(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    before = snapshot(deals, *TABLES)
    result = cli("revert", "--run", "run-42", code=3)
    assert result.stdout == ""
    assert result.stderr.startswith(
        "error: 1 row would overwrite later work or break a constraint\n  public.deals (id=D-881): "
    )
    assert (
        f"  public.deals (id=D-881): row_changed [stage] - changed since by {deals.info.user} at "
    ) in result.stderr
    assert "  hint: Add --on-conflict skip (leaves" in result.stderr
    assert "--on-conflict force (overwrites" in result.stderr
    assert "--on-conflict skip (leaves these rows)" in result.stderr
    assert "=>" not in result.stderr
    assert "agentundo.plan" not in result.stderr
    assert_same(before, snapshot(deals, *TABLES))


def test_conflict_as_json(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    before = snapshot(deals, *TABLES)
    answer = loaded(cli("revert", "call-1", "--json", code=3))
    assert (answer["status"], answer["total"]) == ("conflict", 1)
    assert answer["message"].startswith("1 row would overwrite later work")
    assert answer["hint"].startswith("Add --on-conflict skip")
    assert answer["conflicts"] == [
        {
            "key": {"id": "D-881"},
            "reason": "row_changed",
            "columns": ["stage"],
            "relation": "public.deals",
            "invocation": "call-1",
            "by": None,
        }
    ]
    assert_same(before, snapshot(deals, *TABLES))


def test_keys_in_conflicts_keep_their_digits(deals: Connection, cli: Run) -> None:
    deals.execute(
        "create table public.prices (p numeric primary key, v text);"
        "insert into public.prices values (1.50, 'a'); select agentundo.track('public.prices')"
    )
    writes(deals, "call-3", "update public.prices set v = 'b'")
    deals.execute("update public.prices set v = 'c'")
    result = cli("revert", "call-3", "--json", code=3)
    assert '"p": 1.50\n' in result.stdout
    assert "public.prices (p=1.50): row_changed" in result.stderr


def test_partial_is_3_and_says_which_rows(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    options = ("--run", "run-42", "--on-conflict", "skip")
    cli("plan", *options, "--json", code=3)
    said = cli("revert", *options, code=3).stdout
    assert said.startswith(
        "partially reverted: 2 calls, 1 row removed, 1 row left as it is\nrevert id: "
    )
    assert "\nLeft as it is, 1 row:\n- public.deals (id=D-881): row_changed [stage]" in said
    assert deals.execute("select count(*) from public.meetings").fetchone() == (0,)
    # Again nothing goes back: no revert is made, and there is none to take back.
    assert cli("revert", *options, code=3).stdout.startswith(
        "not reverted: call-1, no row changed, 1 row left as it is\n\nLeft as it is, 1 row:\n"
    )
    again = loaded(cli("revert", *options, "--json", code=3))
    assert (again["status"], again["rows_skipped"]) == ("partially_reverted", 1)
    assert again["revert_id"] is None
    (left,) = again["left"]
    assert (left["relation"], left["key"], left["reason"]) == (
        "public.deals", {"id": "D-881"}, "row_changed",
    )  # fmt: skip


def test_a_revert_that_does_nothing_names_no_other_ones(deals: Connection, cli: Run) -> None:
    deals.execute(
        "alter table public.meetings add foreign key (deal) references public.deals;"
        "select agentundo.sync()"
    )
    writes(deals, "call-3", "insert into public.deals values ('D-9', 'New', 1)", run="k")
    writes(deals, "call-4", "update public.deals set amount = 5 where id = 'D-882'", run="k")
    deals.execute("insert into public.meetings values (9, 'D-9', 'Lunch')")
    cli("revert", "call-4")
    for options in (("--run", "k"), ("--last",), ("call-3",)):
        said = cli("revert", *options, "--on-conflict", "skip", code=3).stdout
        assert said.startswith("not reverted: call-3, no row changed, 1 row left as it is\n\nLeft")
        assert "revert id" not in said
        assert "redo" not in said
    answer = loaded(cli("revert", "--run", "k", "--on-conflict", "skip", "--json", code=3))
    assert (answer["revert_id"], answer["effects"], answer["uncovered"]) == (None, [], [])


def test_what_left_the_database_is_told_with_what_was_done(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.record_effect('call-1', 'mail', 'none', 'the offer')")
    for command in ("plan", "revert"):
        (effect,) = loaded(cli(command, "call-1", "--json"))["effects"]
        assert (effect["name"], effect["kind"], effect["summary"]) == ("mail", "none", "the offer")
    assert loaded(cli("redo", "call-1", "--json"))["effects"] == []


def test_force_wants_a_person_and_a_reason(deals: Connection, dsn: str, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    for command in ("revert", "redo"):
        for given in ([], ["--by", "dana"], ["--reason", "wrong"], ["--by", "", "--reason", "x"]):
            result = cli(command, "call-1", "--on-conflict", "force", *given, code=5)
            assert result.stderr == (
                "error: --on-conflict force needs to be told who decided it, and why.\n  hint: Add"
                " --by PERSON and --reason TEXT: force overwrites what others wrote later.\n"
            )
    # Before anybody reads a plan and is asked. To look at one needs no decision.
    session = on_terminal("revert", "call-1", "--on-conflict", "force", "--dsn", dsn)
    assert session.text.startswith("error: --on-conflict force needs")
    assert "[y/N]" not in session.text
    cli("revert", "call-1", "--on-conflict", "force", "--dry-run")
    cli("revert", "call-1", "--on-conflict", "force", "--reverted-by", "dana", "--reason", "wrong")
    row = deals.execute("select stage from public.deals where id = 'D-881'").fetchone()
    assert row == ("Qualified",)


def test_even_force_leaves_constraints_whole(deals: Connection, cli: Run) -> None:
    writes(deals, "call-4", "insert into public.deals values ('D-9', 'New', 1)", run="c")
    deals.execute(
        "alter table public.meetings add foreign key (deal) references public.deals;"
        "insert into public.meetings values (9, 'D-9', 'Lunch')"
    )
    force = ("--on-conflict", "force", "--by", "dana", "--reason", "wrong deal")
    said = cli("revert", "call-4", *force, code=3).stderr
    named = "has_dependents [meetings_deal_fkey] - rows of public.meetings refer to it\n"
    assert f"  public.deals (id=D-9): {named}" in said
    (row,) = loaded(cli("revert", "call-4", "--json", code=3))["conflicts"]
    assert (row["constraint"], row["in_the_way"]) == ("meetings_deal_fkey", "public.meetings")
    assert "  hint: Even force does not break constraints. Revert or change" in said


def test_merge_and_cascade_by_their_options(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set amount = 11 where id = 'D-881'")
    cli("revert", "call-1", "--merge")
    row = deals.execute("select stage, amount::text from public.deals where id = 'D-881'")
    assert row.fetchone() == ("Qualified", "11.00")
    writes(deals, "call-3", "update public.deals set amount = 0 where id = 'D-882'", run="b")
    writes(deals, "call-4", "update public.deals set amount = 1 where id = 'D-882'", run="c")
    answer = loaded(cli("revert", "call-3", "--on-conflict", "cascade", "--json"))
    assert sorted(answer["invocations"]) == ["call-3", "call-4"]


def test_redo_conflicts_and_partial_redos(deals: Connection, cli: Run) -> None:
    cli("revert", "--run", "run-42")
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    assert loaded(cli("redo", "call-1", "--json", code=3))["status"] == "conflict"
    said = cli("redo", "call-1", "--on-conflict", "skip", code=3).stdout
    assert said.startswith("partially redone: 2 calls, 1 row brought back, 1 row left as it is\n")
    assert "- public.deals (id=D-881): row_changed [stage]" in said


def test_redo_shows_its_plan(deals: Connection, cli: Run) -> None:
    cli("revert", "--run", "run-42")
    said = cli("redo", "call-1", "--dry-run").stdout
    assert re.fullmatch(
        r"Redo 2 calls by sales-bot for Dana:\n\n"
        r"1\. crm \(call-2, step 2 of run-42, \S+ \S+\)\n"
        r"2\. crm \(call-1, step 1 of run-42, \S+ \S+\)\n\n"
        r"All of them together:\n"
        r"   bring back public\.meetings id=1 \(deal=D-881, title=Kickoff\)\n"
        r"   public\.deals id=D-881: stage Qualified → Won\n\n"
        r"2 rows in 2 tables, .+\.\n",
        said,
    )
    (row, _) = loaded(cli("redo", "call-1", "--dry-run", "--rows", "--json"))["rows"]
    assert row["action"] in {"insert", "update"}
    cli("redo", "call-1")
    said = cli("redo", "call-1", "--dry-run").stdout
    assert said == "nothing to redo: no revert of it stands\n"
    nothing: dict[str, list[str]] = {"effects": [], "uncovered": []}
    assert loaded(cli("redo", "call-1", "--dry-run", "--json")) == {"counts": [], **nothing}
    by_row = loaded(cli("redo", "call-1", "--dry-run", "--rows", "--json"))
    assert by_row == {"rows": [], **nothing}


def test_dry_run_by_row(deals: Connection, cli: Run) -> None:
    said = cli("revert", "call-1", "--dry-run", "--rows").stdout
    assert "\n   public.deals id=D-881: stage Won → Qualified\n" in said
    (row,) = loaded(cli("revert", "call-1", "--dry-run", "--rows", "--json"))["rows"]
    assert (row["action"], row["status"]) == ("update", "ok")


# Questions ----------------------------------------------------------------------------------------


def test_on_a_terminal_it_shows_the_plan_and_asks(deals: Connection, dsn: str) -> None:
    before = snapshot(deals, *TABLES)
    refused = on_terminal("revert", "call-1", "--dsn", dsn, answer="n")
    assert refused.code == 1
    assert "Undo 1 call by sales-bot for Dana:" in refused.text
    assert "1 row in 1 table, " in refused.text
    assert "Revert call-1? [y/N]: n" in refused.text
    assert "Nothing was changed." in refused.text
    assert_same(before, snapshot(deals, *TABLES))

    done = on_terminal("revert", "call-1", "--dsn", dsn, "--rows", answer="y")
    assert done.code == 0
    assert "reverted: call-1, 1 row put back" in done.text
    reverted = snapshot(deals, *TABLES)

    refused = on_terminal("redo", "call-1", "--dsn", dsn, answer="n")
    assert refused.code == 1
    assert "Redo 1 call by sales-bot for Dana:" in refused.text
    assert "Redo call-1? [y/N]: n" in refused.text
    assert_same(reverted, snapshot(deals, *TABLES))
    done = on_terminal("redo", "call-1", "--dsn", dsn, answer="y")
    assert "redone: call-1, 1 row put back" in done.text
    assert_same(before, snapshot(deals, *TABLES))


def test_before_force_it_is_said_whose_work_goes(deals: Connection, dsn: str) -> None:
    writes(deals, "call-3", "update public.deals set stage = 'Mine' where id = 'D-881'", run="b")
    force = ("--on-conflict", "force", "--by", "dana", "--reason", "wrong")
    asked = on_terminal("revert", "call-1", *force, "--dsn", dsn, answer="n", columns=100)
    assert "overwrites what was written since by sales-bot at " in asked.text
    assert "overwrites later work in 1 row.\n" in asked.text
    assert "Revert call-1? [y/N]: n" in asked.text


def test_it_does_not_ask_what_would_be_refused(deals: Connection, dsn: str) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    before = snapshot(deals, *TABLES)
    for options in ([], ["--json"]):
        session = on_terminal("revert", "--run", "run-42", *options, "--dsn", dsn, answer="y")
        assert session.code == 3
        assert "[y/N]" not in session.text
        assert "error: 1 row would be overwritten or break a constraint." in session.text
        assert "hint: Add --on-conflict skip" in session.text
        assert ('"status": "conflict"' in session.text) == bool(options)
    assert_same(before, snapshot(deals, *TABLES))


def test_it_does_not_ask_when_there_is_nothing_to_do(deals: Connection, dsn: str, cli: Run) -> None:
    cli("revert", "call-1")
    session = on_terminal("revert", "call-1", "--dsn", dsn)
    assert (session.code, "[y/N]" in session.text) == (0, False)
    assert "already reverted" in session.text


def test_redo_by_a_role_that_may_not_read_the_views(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    deals.execute("select agentundo.set_scope_owner('acme', 'dana')")
    writes(deals, "call-3", "update public.deals set amount = 0", run="run-43", scope="acme")
    after = snapshot(deals, *TABLES)
    as_role = make_conninfo(dsn, user=make_role(member_of="agentundo_app"))
    to = ("--scope", "acme", "--by", "dana", "--dsn", as_role)
    cli("revert", "call-3", *to)
    said = cli("redo", "call-3", *to, "--dry-run", code=5).stderr
    assert said == (
        "error: Only operators and auditors are shown the plan of a redo.\n"
        "  hint: Without --dry-run it is made, and revert takes it back.\n"
    )
    session = on_terminal("redo", "call-3", *to, answer="y")
    assert session.code == 0
    assert "only an operator or auditor is shown the plan of a redo" in session.text
    assert "Redo call-3? [y/N]: y" in session.text
    assert_same(after, snapshot(deals, *TABLES))
    session = on_terminal("redo", "call-1", "--dsn", dsn)
    assert (session.code, "[y/N]" in session.text) == (0, False)
    assert "nothing to redo: no revert of it stands" in session.text


def test_yes_says_yes_beforehand(deals: Connection, dsn: str) -> None:
    session = on_terminal("revert", "call-1", "-y", "--dsn", dsn)
    assert (session.code, "[y/N]" in session.text) == (0, False)


def test_without_a_terminal_nothing_is_asked(deals: Connection, dsn: str) -> None:
    result = as_program("revert", "call-1", "--dsn", dsn)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("reverted: call-1, 1 row put back\n")


# Progress -----------------------------------------------------------------------------------------


def test_progress_names_who_is_waited_for(
    deals: Connection, dsn: str, connect: Connect, cli: Run
) -> None:
    eve = connect(autocommit=False, application_name="eve's editor")
    eve.execute("select from public.deals where id = 'D-881' for update")

    def let_go(shown: str) -> bool:
        if "eve's editor" not in shown:
            return False
        eve.rollback()
        return True

    session = on_terminal("revert", "call-1", "-y", "--dsn", dsn, columns=120, meanwhile=let_go)
    assert session.code == 0
    pid = eve.info.backend_pid
    waiting = rf"reverting: \d+ s, waiting for {deals.info.user} \(pid {pid}, eve's editor\)"
    assert re.search(waiting, session.text)

    # Without a terminal: a note, told while it waits.
    eve.execute("select from public.deals where id = 'D-881' for update")
    redo = subprocess.Popen(
        [*COMMAND, "redo", "call-1", "--dsn", dsn],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert redo.stderr is not None
    note = redo.stderr.readline()
    eve.rollback()
    stdout, rest = redo.communicate(timeout=60)
    assert note == f"note: waiting for {deals.info.user} (pid {pid}, eve's editor)\n"
    assert (redo.returncode, rest) == (0, "")
    assert stdout.startswith("redone: call-1, 1 row ")


# Bad moments --------------------------------------------------------------------------------------


def test_interrupted_it_changes_nothing_and_leaves_nobody_waiting(
    deals: Connection, dsn: str, connect: Connect
) -> None:
    before = snapshot(deals, *TABLES)
    eve = connect(autocommit=False)
    eve.execute("select from public.deals where id = 'D-881' for update")
    session = on_terminal(
        "revert", "call-1", "-y", "--dsn", dsn, interrupt_after="waiting for", columns=120
    )
    assert session.code == 1
    assert session.text.rstrip().endswith("Aborted!")
    still_there = (
        "select count(*) from pg_stat_activity where application_name = 'agentundo'"
        " and datname = current_database()"
    )
    _until(deals, still_there, 0)
    eve.rollback()
    assert_same(before, snapshot(deals, *TABLES))


def test_it_ends_with_its_command(deals: Connection, dsn: str, connect: Connect) -> None:
    before = snapshot(deals, *TABLES)
    eve = connect(autocommit=False)
    eve.execute("select from public.deals where id = 'D-881' for update")
    command = subprocess.Popen([*COMMAND, "revert", "call-1", "--dsn", dsn], cwd=ROOT)
    going_on = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and application_name = 'agentundo' and query like '%agentundo.\"revert\"%'"
    )
    _until(deals, going_on, 1)
    command.kill()
    command.wait()
    _until(deals, going_on, 0)
    eve.rollback()
    assert_same(before, snapshot(deals, *TABLES))


def _until(conn: Connection, query: str, number: int) -> None:
    """Wait until a query counts so many."""
    deadline = time.monotonic() + 20
    while conn.execute(query.encode()).fetchone() != (number,):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_lost_connection_says_where_to_look(
    deals: Connection, connect: Connect, cli: Run
) -> None:
    before = snapshot(deals, *TABLES)
    eve = connect(autocommit=False)
    eve.execute("select from public.deals where id = 'D-881' for update")
    end_it = (
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name ="
        " 'agentundo' and datname = current_database() and query like '%agentundo.\"revert\"%'"
    )

    def end() -> None:
        with connect() as conn:
            deadline = time.monotonic() + 20
            while not conn.execute(end_it.encode()).fetchall() and time.monotonic() < deadline:
                time.sleep(0.05)

    ending = threading.Thread(target=end)
    ending.start()
    result = cli("revert", "call-1", code=1)
    ending.join()
    assert result.stderr.startswith("error: terminating connection due to administrator command")
    assert "  The connection was lost. Whether it was done, agentundo log tells.\n" in result.stderr
    eve.rollback()
    assert_same(before, snapshot(deals, *TABLES))


def test_a_lock_that_is_never_let_go_of(
    deals: Connection, connect: Connect, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=500ms")
    before = snapshot(deals, *TABLES)
    eve = connect(autocommit=False)
    eve.execute("select from public.deals where id = 'D-881' for update")
    result = cli("revert", "call-1", code=1)
    assert "error: somebody holds rows or tables of this undo for longer than" in result.stderr
    assert "then run the command again. PGOPTIONS='-c lock_timeout=5min' makes it" in result.stderr
    eve.rollback()
    assert_same(before, snapshot(deals, *TABLES))


def test_what_agents_may_not_and_what_was_purged(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.purge('0 s')")
    for command in (["plan", "call-1"], ["revert", "call-1"], ["diff", "call-1"]):
        result = cli(*command, code=1)
        assert "can no longer be undone: its history was purged on" in result.stderr
