"""``plan``: what a revert would do, in words and for programs."""

from __future__ import annotations

import re

import psycopg
import pytest

from pyagentundo.cli import _queries
from tests.cli.conftest import TABLES, Run, loaded, writes
from tests.conftest import Connection, MakeRole
from tests.support.state import assert_same, snapshot
from tests.support.terminal import on_terminal

pytestmark = pytest.mark.core


def lines(text: str) -> list[str]:
    """Return the lines with times taken out: those differ."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    return re.sub(r"less than a second|about \d+ s", "DURATION", text).splitlines()


def test_the_voice_of_a_plan(deals: Connection, cli: Run) -> None:
    deals.execute(
        "select agentundo.record_effect('call-2', 'Email to buyer@globex.com', 'none',"
        "   'delivered to external recipients', remedy => 'send a correction email'),"
        " agentundo.record_effect('call-2', 'calendar', 'compensate', 'Kickoff on Nov 4',"
        "   undo_by => '2030-01-02 03:04:05+00', cost => '$2.50',"
        "   side_effect => 'attendees get a cancellation notice'),"
        " agentundo.record_effect('call-1', 'payment')"
    )
    before = snapshot(deals, *TABLES)
    assert lines(cli("plan", "--run", "run-42").stdout) == [
        "Undo 2 calls by sales-bot for Dana:",
        "",
        "1. crm (call-2, step 2 of run-42, TIME)",
        "   remove public.meetings id=1 (deal=D-881, title=Kickoff)",
        "2. crm (call-1, step 1 of run-42, TIME)",
        "   public.deals id=D-881: stage Won → Qualified",
        "",
        "Cannot be undone:",
        "- Email to buyer@globex.com: delivered to external recipients; remedy: send a correction"
        " email",
        "- payment: nobody said whether it can be",
        "",
        "To be undone elsewhere, this does not do it:",
        "- calendar: Kickoff on Nov 4; attendees get a cancellation notice; costs $2.50;"
        " until TIME",
        "",
        "2 rows in 2 tables, DURATION.",
    ]
    assert_same(before, snapshot(deals, *TABLES))


def test_an_app_is_told_what_left_the_database(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    writes(deals, "call-3", "update public.deals set amount = 1", run="run-43", scope="acme")
    writes(deals, "call-4", "update public.deals set amount = 2", run="run-43", scope="acme")
    for call in ("call-1", "call-3", "call-4"):
        deals.execute(
            "select agentundo.record_effect(%s, 'mail', 'none', %s)", [call, f"by {call}"]
        )
    as_role = psycopg.conninfo.make_conninfo(dsn, user=make_role(member_of="agentundo_app"))
    acme = ("--scope", "acme", "--dsn", as_role)
    heading = "\nCannot be undone:\n"
    assert f"{heading}- mail: by call-4\n\n" in cli("plan", "call-4", *acme).stdout
    both = f"{heading}- mail: by call-3\n- mail: by call-4\n\n"
    assert both in cli("plan", "--run", "run-43", *acme).stdout
    assert both in cli("plan", "call-3", "--on-conflict", "cascade", *acme).stdout
    assert both in cli("revert", "--run", "run-43", "--dry-run", *acme).stdout
    assert "- mail: by call-1\n" in cli("plan", "call-1", "--dsn", as_role, code=3).stdout
    assert "mail" not in cli("plan", "call-1", *acme, code=1).output


@pytest.mark.parametrize("also", ["update public.deals set stage = 'Lost'", "select 1"])
def test_tables_that_are_not_tracked_are_named(deals: Connection, cli: Run, also: str) -> None:
    """Of recorded calls; whoever asks for an undo must not believe that all went back."""
    deals.execute("create table public.people (name text)")
    deals.execute("select agentundo.record_invocation('call-3')")
    with deals.transaction():
        deals.execute("select agentundo.tag('call-3')")
        deals.execute("insert into public.people values ('Eve')")
        deals.execute(also.encode())
        deals.execute("select agentundo.commit_invocation('call-3')")
    said = cli("plan", "call-3").stdout
    assert "\nCannot be undone:\n- public.people: not tracked, stays as it is\n" in said


def test_a_revert_names_tables_that_are_not_tracked(deals: Connection, cli: Run) -> None:
    deals.execute("create table public.people (name text)")
    for call, tracked in (("call-3", True), ("call-4", False)):
        deals.execute("select agentundo.record_invocation(%s)", [call])
        with deals.transaction():
            deals.execute("select agentundo.tag(%s)", [call])
            deals.execute("insert into public.people values ('Eve')")
            if tracked:
                deals.execute("update public.deals set stage = 'Lost'")
            deals.execute("select agentundo.commit_invocation(%s)", [call])
    said = cli("plan", "call-4", "--json")
    assert loaded(said) == {"counts": [], "effects": [], "uncovered": ["public.people"]}
    assert said.stderr == ""
    by_row = loaded(cli("plan", "call-4", "--rows", "--json"))
    assert by_row == {"rows": [], "effects": [], "uncovered": ["public.people"]}
    for call, begins in (("call-3", "reverted: call-3, 2 rows"), ("call-4", "nothing to revert: ")):
        said = cli("revert", call)
        assert said.stdout.startswith(begins)
        assert said.stdout.endswith("not tracked, stays as it is: public.people\n")
        assert loaded(cli("revert", call, "--json"))["uncovered"] == ["public.people"]


def test_whose_select_is_missing_is_said(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_operator")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    blind = f"{role} may not read public.deals: keys, values and names are left out.\n"
    said = cli("plan", "call-1", *as_role).stdout
    assert "   a row of public.deals: put it back\n" in said
    assert f"\n\n{blind}\n1 row in 1 table, " in said
    assert cli("plan", "call-1", "--json", *as_role).stderr == f"note: {blind}"
    deals.execute("update public.deals set stage = 'Mine' where id = 'D-881'")
    assert f"note: {blind}" in cli("revert", "call-1", *as_role, code=3).stderr
    deals.execute(f"grant select (id) on public.deals to {role}".encode())
    said = cli("plan", "call-1", *as_role, code=3).stdout
    assert "- public.deals (id=D-881): row_changed" in said
    assert f"{role} may not read all columns of public.deals: those are left out.\n" in said
    deals.execute(f"grant select on public.deals to {role}".encode())
    assert "may not read" not in cli("plan", "call-1", *as_role, code=3).stdout
    assert "may not read" not in cli("plan", "call-1", code=3).stdout


def test_columns_that_are_gone_do_not_come_back(deals: Connection, cli: Run) -> None:
    deals.execute(
        "create table public.notes (id int primary key, a text, b text, c text);"
        "insert into public.notes select n, 'a', 'b', 'c' from generate_series(1, 3) n;"
        "select agentundo.track('public.notes')"
    )
    writes(deals, "call-3", "update public.notes set a = 'x', b = 'y' where id = 1", run="b")
    writes(deals, "call-4", "update public.notes set b = 'y' where id = 3", run="c")
    writes(deals, "call-5", "delete from public.notes where id = 2", run="d")
    deals.execute("alter table public.notes drop column b")
    line = "   public.notes id=1: a x → a, not b, whose column is gone\n"
    assert line in cli("plan", "call-3").stdout
    assert line in cli("plan", "call-3", "--rows").stdout
    line = "   bring back public.notes id=2 (a=a, c=c), not b, whose column is gone\n"
    assert line in cli("plan", "call-5").stdout
    assert "   public.notes id=3: not b, whose column is gone\n" in cli("plan", "call-4").stdout


def test_calls_that_wrote_nothing_are_no_actions(deals: Connection, cli: Run) -> None:
    deals.execute(
        "select agentundo.record_invocation('call-3', run => 'run-42', tool => 'bad');"
        "select agentundo.fail_invocation('call-3', 'no such deal')"
    )
    cli("revert", "call-2")
    said = cli("plan", "--run", "run-42").stdout
    assert said.startswith("Undo 1 call by sales-bot for Dana:\n\n1. crm (call-1, ")
    assert "bad" not in said
    assert "call-2" not in said


def test_nobody_is_named_where_nobody_is_known(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    with deals.transaction():
        deals.execute("select agentundo.tag('call-3')")
        deals.execute("update public.deals set stage = 'Lost'")
    role = make_role(member_of="agentundo_app")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    assert cli("plan", "call-3", *as_role).stdout.startswith("Undo 1 call:\n")
    assert cli("plan", "call-3").stdout.startswith(f"Undo 1 call by {deals.info.user}:\n")


def test_rows_that_come_back_and_numbers_as_the_database_shows_them(
    deals: Connection, cli: Run
) -> None:
    deals.execute(
        "create table public.sums (id numeric primary key, big numeric, small numeric, note text);"
        "insert into public.sums values (1.00, 12345678901234567890.10, 0.000000010, '');"
        "select agentundo.track('public.sums')"
    )
    writes(deals, "call-3", "delete from public.sums", "update public.deals set amount = 1000")
    said = cli("plan", "call-3").stdout
    brought = 'id=1.00 (big=12345678901234567890.10, note="", small=0.000000010)'
    assert f"   bring back public.sums {brought}\n" in said
    assert "   public.deals id=D-881: amount 1000.00 → 10.00\n" in said
    for rows in (
        cli("plan", "call-3", "--rows", "--json").stdout,
        cli("diff", "call-3", "--json").stdout,
    ):
        for exact in ("12345678901234567890.10", "0.000000010", "1000.00", "10.00"):
            assert re.search(rf": {re.escape(exact)}[,\n]", rows), rows
    assert '"id": 1.00\n' in cli("plan", "call-3", "--rows", "--json").stdout


def test_a_large_plan_counts(deals: Connection, cli: Run) -> None:
    writes(
        deals,
        "call-3",
        "insert into public.deals select 'X-' || i, 'New', i from generate_series(1, 3000) i",
        "update public.deals set stage = 'Lost' where id like 'D-%'",
    )
    said = cli("plan", "call-3").stdout
    assert "public.deals: remove 3,000 rows\npublic.deals: put back 2 rows\n" in said
    assert "X-17" not in said
    assert "\n3,002 rows in 1 table, " in said
    every = cli("plan", "call-3", "--rows").stdout
    assert every.count("   remove public.deals id=X-") == 3000
    rows = loaded(cli("plan", "call-3", "--rows", "--json"))["rows"]
    assert len(rows) == 3002


def test_many_actions_are_not_all_named(deals: Connection, cli: Run) -> None:
    for number in range(30):
        writes(
            deals,
            f"loop-{number}",
            "update public.deals set amount = amount + 1",
            run="loop",
            step=number + 1,
            person=f"person {number % 5}",
        )
    said = lines(cli("plan", "--run", "loop").stdout)
    assert said[0] == "Undo 30 calls by sales-bot for person 0, person 1 and 3 others:"
    assert "20. crm (loop-10, step 11 of loop, TIME)" in said
    assert "… and 10 more calls" in said


def test_a_wide_row_stands_in_lines(deals: Connection, cli: Run) -> None:
    deals.execute(
        "create table public.notes (id int primary key, a text, b text);"
        "insert into public.notes values (1, repeat('a', 40), repeat('b', 40));"
        "select agentundo.track('public.notes')"
    )
    writes(deals, "call-3", "update public.notes set a = repeat('x', 40), b = repeat('y', 40)")
    assert lines(cli("plan", "call-3").stdout)[3:6] == [
        "   public.notes id=1:",
        f"     a {'x' * 40} → {'a' * 40}",
        f"     b {'y' * 40} → {'b' * 40}",
    ]


def test_nothing_to_undo(deals: Connection, dsn: str, cli: Run, make_role: MakeRole) -> None:
    revert_id = loaded(cli("revert", "call-1", "--by", "dana", "--json"))["revert_id"]
    again = loaded(cli("revert", "call-2", "--json"))["revert_id"]
    assert lines(cli("plan", "call-1").stdout) == [
        "Nothing to undo.",
        f"already reverted by dana at TIME, revert id: {revert_id}",
    ]
    assert lines(cli("plan", "--run", "run-42").stdout)[1:] == [
        f"already reverted at TIME, revert id: {again}",
        f"already reverted by dana at TIME, revert id: {revert_id}",
    ]
    as_app = (
        "--dsn",
        psycopg.conninfo.make_conninfo(dsn, user=make_role(member_of="agentundo_app")),
    )
    assert cli("plan", "call-1", *as_app).stdout == "Nothing to undo.\nalready reverted\n"
    deals.execute("select agentundo.record_invocation('call-3')")
    assert cli("plan", "call-3").stdout == "Nothing to undo.\n"
    nothing: dict[str, list[str]] = {"effects": [], "uncovered": []}
    assert loaded(cli("plan", "call-1", "--json")) == {"counts": [], **nothing}
    assert loaded(cli("plan", "call-1", "--rows", "--json")) == {"rows": [], **nothing}


def test_rows_that_are_as_they_were(deals: Connection, cli: Run) -> None:
    writes(deals, "call-3", "update public.deals set stage = 'Lost' where id = 'D-882'")
    deals.execute("update public.deals set stage = 'New' where id = 'D-882'")
    said = cli("plan", "call-3", "--on-conflict", "force").stdout
    assert "All rows are as they were.\n" in said or "1 row in 1 table" in said


# What stands in the way ---------------------------------------------------------------------------


def test_a_conflict_names_who_and_when_where_history_knows(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    said = cli("plan", "--run", "run-42", code=3).stdout
    who = deals.info.user
    assert "   public.deals id=D-881: in the way, row_changed\n" in said
    assert re.search(
        r"\nIn the way, 1 row:\n- public\.deals \(id=D-881\): row_changed \[stage\] - changed since"
        rf" by {who} at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\n\nNothing would be changed, because of"
        r" the rows in the way\.\nAdd --on-conflict skip ",
        said,
    )
    (conflicting,) = loaded(cli("plan", "call-1", "--json", code=3))["counts"]
    writer = conflicting["conflicts"][0]["by"]
    assert (writer["role"], writer["actor"], writer["invocation"]) == (who, None, None)


def test_a_conflict_with_a_later_agent_names_its_invocation(deals: Connection, cli: Run) -> None:
    writes(deals, "call-3", "update public.deals set stage = 'Lost' where id = 'D-881'", run="b")
    said = cli("plan", "call-1", code=3).stdout
    assert re.search(r"changed since by sales-bot at \S+ \S+ \(call-3\)\n", said)


def test_a_conflict_with_an_uncaptured_write_says_so(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    said = cli("plan", "call-1", code=3).stdout
    assert "row_changed [stage] - changed since by somebody, not captured\n" in said
    (row,) = loaded(cli("plan", "call-1", "--json", code=3))["counts"]
    assert row["conflicts"][0]["by"] is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "update public.deals set stage = stage",
            "row_rewritten [stage] - written again since, with the values that the call left, by"
            " postgres at ",
        ),
        ("delete from public.deals", "row_deleted - deleted since by postgres at "),
    ],
)
def test_who_rewrote_and_who_deleted(
    deals: Connection, cli: Run, statement: str, said: str
) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute(statement.encode())
    said = said.replace("postgres", deals.info.user)
    assert said in cli("plan", "call-1", code=3).stdout


def test_a_row_under_the_old_key_and_one_that_is_referred_to(deals: Connection, cli: Run) -> None:
    writes(deals, "call-3", "delete from public.deals where id = 'D-882'", run="b")
    deals.execute("insert into public.deals values ('D-882', 'Mine', 1)")
    said = cli("plan", "call-3", code=3).stdout
    assert "(id=D-882): row_exists - a row with this key was made since by somebody, not" in said
    writes(deals, "call-4", "insert into public.deals values ('D-9', 'New', 1)", run="c")
    deals.execute(
        "alter table public.meetings add foreign key (deal) references public.deals;"
        "insert into public.meetings values (9, 'D-9', 'Lunch')"
    )
    said = cli("plan", "call-4", code=3).stdout
    named = "has_dependents [meetings_deal_fkey] - rows of public.meetings refer to it\n"
    assert f"\n- public.deals (id=D-9): {named}" in said
    assert f"\n- public.deals (id=D-9): {named}" in cli("plan", "call-4", "--rows", code=3).stdout
    (count,) = loaded(cli("plan", "call-4", "--json", code=3))["counts"]
    (row,) = count["conflicts"]
    assert (row["constraint"], row["in_the_way"]) == ("meetings_deal_fkey", "public.meetings")


def test_what_a_row_needs_and_who_has_its_unique_value(deals: Connection, cli: Run) -> None:
    deals.execute("alter table public.deals add code text unique")
    deals.execute("alter table public.meetings add foreign key (deal) references public.deals")
    writes(deals, "call-3", "update public.deals set code = 'a' where id = 'D-882'", run="b")
    writes(deals, "call-4", "update public.deals set code = null where id = 'D-882'", run="c")
    writes(deals, "call-5", "update public.deals set code = 'a' where id = 'D-881'", run="d")
    said = cli("plan", "call-4", code=3).stdout
    assert "unique_taken [deals_code_key] - another row has its unique value now\n" in said
    assert ways(said) == {"skip", "cascade"}
    writes(deals, "call-7", "delete from public.meetings", run="f")
    writes(deals, "call-8", "delete from public.deals", run="g")
    said = cli("plan", "call-7", code=3).stdout
    assert "missing_parent [meetings_deal_fkey] - the row of public.deals that it refers to" in said
    assert ways(said) == {"skip", "cascade"}


def test_looking_up_who_wrote_gives_up_after_a_while(
    deals: Connection, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    deals.execute("update public.deals set stage = 'Mine'")
    monkeypatch.setattr(_queries, "_PATIENCE", 0.0)
    unasked = (
        "For lack of time 1 row in the way was not looked up: agentundo history TABLE KEY says who"
        " wrote one."
    )
    said = cli("plan", "call-1", code=3).stdout
    assert f"(id=D-881): row_changed [stage] - changed since\n{unasked}\n" in said
    assert said.count("not looked up") == 1
    assert f" {unasked}\n" in cli("revert", "call-1", code=3).stderr


def test_more_conflicts_than_are_listed(deals: Connection, cli: Run) -> None:
    writes(
        deals,
        "call-3",
        "insert into public.deals select 'X-' || i, 'New', i from generate_series(1, 30) i",
    )
    deals.execute("update public.deals set stage = 'Mine' where id like 'X-%'")
    said = cli("plan", "call-3", code=3).stdout
    assert "In the way, 30 rows:\n" in said
    assert said.count("- public.deals (id=X-") == 20
    assert said.count("changed since by somebody, not captured") == 20
    assert "not looked up" not in said
    assert "- … and 10 more rows\n" in said


def test_skip_cascade_and_force_have_words_of_their_own(deals: Connection, cli: Run) -> None:
    deals.execute("update public.deals set stage = 'Negotiation' where id = 'D-881'")
    said = cli("plan", "--run", "run-42", "--on-conflict", "skip", code=3).stdout
    assert "   public.deals id=D-881: left as it is, row_changed\n" in said
    assert "\nLeft as it is, 1 row:\n- public.deals (id=D-881): row_changed" in said
    assert "1 row in 1 table, " in said
    said = cli("plan", "call-1", "--on-conflict", "skip", code=3).stdout
    assert "No row would be changed.\n" in said
    said = cli("plan", "call-1", "--on-conflict", "force").stdout
    assert "public.deals id=D-881: stage Negotiation → Qualified\n" in said

    writes(deals, "call-3", "update public.deals set amount = 0 where id = 'D-882'", run="b")
    writes(deals, "call-4", "update public.deals set amount = 1 where id = 'D-882'", run="c")
    said = cli("plan", "call-3", "--on-conflict", "cascade").stdout
    assert said.startswith("Undo 2 calls by sales-bot for Dana:\n\n1. crm (call-4, ")
    assert "\n2. crm (call-3, " in said


def test_force_says_whose_work_it_destroys(
    deals: Connection, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    writes(deals, "call-3", "update public.deals set amount = 1", run="b")
    deals.execute("update public.deals set amount = 2 where id = 'D-881'")
    writes(deals, "call-4", "delete from public.deals where id = 'D-882'", run="c")
    force = ("call-3", "--on-conflict", "force")
    said = lines(cli("plan", *force).stdout)
    # Whoever wrote last: a person, and a call that has deleted it.
    overwrites = "     overwrites what was written since by"
    person = f"{overwrites} {deals.info.user} at TIME"
    deleted = "     overwrites that it was deleted since by sales-bot at TIME (call-4)"
    assert said[3:7] == [
        "   public.deals id=D-881: amount 2.00 → 10.00",
        person,
        "   bring back public.deals id=D-882 (stage=New, amount=20.00)",
        deleted,
    ]
    assert said[-1] == "2 rows in 1 table, DURATION; overwrites later work in 2 rows."
    by_row = lines(cli("plan", *force, "--rows").stdout)
    assert (by_row.count(person), by_row.count(deleted)) == (1, 1)
    told = loaded(cli("plan", *force, "--json"))
    assert told["rows_overwritten"] == 2
    assert {(one["key"]["id"], one["reason"]) for one in told["overwritten"]} == {
        ("D-881", "row_changed"), ("D-882", "row_deleted"),
    }  # fmt: skip
    told = loaded(cli("plan", *force, "--rows", "--json"))
    assert told["rows_overwritten"] == 2
    assert {row["key"]["id"]: row["by"]["invocation"] for row in told["rows"]} == {
        "D-881": None,
        "D-882": "call-4",
    }
    assert "overwritten" not in loaded(cli("plan", "call-3", "--json", code=3))
    monkeypatch.setattr(_queries, "_PATIENCE", 0.0)
    said = lines(cli("plan", *force).stdout)
    assert overwrites.removesuffix(" by") in said
    assert "For lack of time 2 rows to be overwritten were not looked up:" in "\n".join(said)


def test_force_names_the_first_where_rows_are_many(deals: Connection, cli: Run) -> None:
    writes(
        deals, "call-3", "insert into public.deals select 'X-' || i from generate_series(1, 30) i"
    )
    writes(deals, "call-4", "update public.deals set stage = 'Mine' where id like 'X-%'", run="b")
    said = lines(cli("plan", "call-3", "--on-conflict", "force").stdout)
    assert "Overwrites later work, 30 rows:" in said
    named = [line for line in said if "changed since by sales-bot at TIME (call-4)" in line]
    assert len(named) == 20
    assert "- … and 10 more rows" in said
    assert said[-1].endswith("; overwrites later work in 30 rows.")
    told = loaded(cli("plan", "call-3", "--on-conflict", "force", "--json"))
    assert (told["rows_overwritten"], len(told["overwritten"])) == (30, 20)
    # Listed one by one they are all named.
    by_row = cli("plan", "call-3", "--on-conflict", "force", "--rows").stdout
    assert by_row.count("     overwrites what was written since by sales-bot at ") == 30
    assert "Overwrites later work" not in by_row


def test_even_force_does_not_break_constraints(deals: Connection, cli: Run) -> None:
    writes(deals, "call-4", "insert into public.deals values ('D-9', 'New', 1)", run="c")
    deals.execute(
        "alter table public.meetings add foreign key (deal) references public.deals;"
        "insert into public.meetings values (9, 'D-9', 'Lunch')"
    )
    said = cli("plan", "call-4", "--on-conflict", "force", code=3).stdout
    assert said.endswith(
        "\nEven force does not break constraints. Revert or change what stands in the way first, or"
        " instead use --on-conflict skip (leaves these rows).\n"
    )


def test_what_never_comes_back_is_no_later_work(deals: Connection, dsn: str, cli: Run) -> None:
    key = "public.deals: erased - it was erased and can never go back\n"
    table = "public.meetings: schema_changed - the table is gone\n"
    erased = "What was erased can never go back."
    gone = "Into a table that is gone nothing goes back."
    skip = "--on-conflict skip (leaves these rows).\n"
    deals.execute(
        "drop table public.meetings;"
        "select agentundo.erase('public.deals', '{\"id\": \"D-881\"}', 'request 1')"
    )
    for chosen, what, said in (
        (["call-1"], key, erased),
        (["call-2"], table, gone),
        (["call-1", "call-2"], table, f"{gone} {erased}"),
    ):
        plan = cli("plan", *chosen, code=3).stdout
        assert f"\n- {what}" in plan
        assert plan.endswith(f"\n{said} Add {skip}")
        plan = cli("plan", *chosen, "--on-conflict", "force", code=3).stdout
        assert plan.endswith(f"\n{said} Instead use {skip}")
        refused = cli("revert", *chosen, code=3).stderr
        assert refused.startswith(
            f"error: {'2 rows' if len(chosen) == 2 else '1 row'} cannot go back\n  "
        )
        assert f"\n  {what}" in refused
        assert refused.endswith(f"\n  hint: {said} Add {skip}")
        answer = loaded(cli("revert", *chosen, "--json", code=3))
        assert answer["message"].endswith(" cannot go back")
        asked = on_terminal("revert", *chosen, "--dsn", dsn, columns=200).text
        assert " cannot go back. Nothing was changed.\n" in asked
        assert said in asked
        left = cli("revert", *chosen, "--on-conflict", "skip", code=3).stdout
        assert f"\n- {what}" in left
    (count,) = loaded(cli("plan", "call-2", "--json", code=3))["counts"]
    assert count["conflicts"][0]["table_gone"] is True


def ways(text: str) -> set[str]:
    """Return the options that the last line offers."""
    return set(re.findall(r"--merge|skip|cascade|force", text.splitlines()[-1]))


def test_only_what_may_help_is_offered(deals: Connection, cli: Run) -> None:
    everything = {"skip", "cascade", "force"}
    writes(deals, "call-3", "update public.deals set stage = 'Mine' where id = 'D-881'", run="b")
    assert ways(cli("plan", "call-1", code=3).stdout) == everything
    deals.execute("update public.deals set stage = 'Lost' where id = 'D-881'")
    for given in ([], ["--merge"], ["--on-conflict", "cascade"]):
        # Somebody has written who had no tag: no cascade takes that back.
        offered = everything - {"cascade", *given[-1:]}
        assert ways(cli("plan", "call-1", *given, code=3).stdout) == offered
        assert ways(cli("revert", "call-1", *given, code=3).stderr) == offered
        answer = loaded(cli("revert", "call-1", "--json", *given, code=3))
        assert ways(answer["hint"]) == offered
    # Neither merge nor force brings a row back without the row that it refers to.
    writes(deals, "call-4", "insert into public.deals values ('D-9', 'New', 1)", run="c")
    deals.execute(
        "alter table public.meetings add foreign key (deal) references public.deals;"
        "insert into public.meetings values (9, 'D-9', 'Lunch')"
    )
    said = cli("plan", "call-4", code=3).stdout
    assert ways(said) == {"skip"}
    deals.execute("delete from public.meetings where id = 9")
    writes(deals, "call-5", "insert into public.meetings values (9, 'D-9', 'Lunch')", run="d")
    said = cli("plan", "call-4", code=3).stdout
    assert ways(said) == {"skip", "cascade"}
    assert "\nRevert or change what stands in the way first, or add --on-conflict skip" in said
    deals.execute("select agentundo.erase('public.meetings', '{\"id\": 1}', 'request 1')")
    assert ways(cli("plan", "call-2", code=3).stdout) == {"skip"}


def test_no_cascade_takes_a_persons_work_back(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set stage = 'Mine' where id = 'D-881'")
    assert ways(cli("plan", "call-1", code=3).stdout) == {"skip", "force"}


def test_merge_is_offered_where_it_works(deals: Connection, cli: Run) -> None:
    for table in TABLES:
        deals.execute("select agentundo.track(%s::regclass, 'all')", [table])
    writes(deals, "call-3", "update public.deals set stage = 'Lost'", run="b")
    deals.execute("update public.deals set amount = 11 where id = 'D-881'")
    said = cli("plan", "call-3", code=3).stdout
    assert ways(said) == {"--merge", "skip", "force"}
    assert ways(cli("revert", "call-3", code=3).stderr) == {"--merge", "skip", "force"}
    assert ways(cli("plan", "call-3", "--merge").stdout) == set()
    # The one row goes back by merge, the other does not: with skip that is what merge is for.
    deals.execute("update public.deals set stage = 'Mine' where id = 'D-882'")
    some = "Add --on-conflict skip (leaves these rows; with --merge only some of them) or --on"
    assert some in cli("plan", "call-3", code=3).stdout
    # A column that is new since is none that the call wrote.
    writes(deals, "call-4", "insert into public.meetings values (2, 'D-882', 'Lunch')", run="c")
    writes(deals, "call-5", "update public.meetings set title = 'Tea' where id = 2", run="d")
    deals.execute(
        "alter table public.meetings add column room text default 'A'; select agentundo.sync()"
    )
    deals.execute("update public.meetings set room = 'B' where id = 2")
    said = cli("plan", "call-5", code=3).stdout
    assert "(id=2): row_rewritten" in said
    assert ways(said) == {"--merge", "skip", "force"}
    cli("revert", "call-5", "--merge")
    row = deals.execute("select title, room from public.meetings where id = 2").fetchone()
    assert row == ("Lunch", "B")


def test_a_plan_shows_what_a_merge_writes(deals: Connection, cli: Run) -> None:
    """From a counter the call's own difference is subtracted."""
    deals.execute(
        "create table public.pages (id int primary key, visits int, cost numeric(10, 2), f float8,"
        " took interval, title text);"
        "insert into public.pages values (1, 17, 1.5, 0.3, '1 hour', 'a');"
        "select agentundo.track('public.pages', 'all')"
    )
    columns = ("visits", "cost", "f", "took")
    for column in columns:
        deals.execute("select agentundo.set_merge('public.pages', %s, 'delta')", [column])
    writes(
        deals,
        "call-3",
        "update public.pages set visits = 117, cost = 11.25, f = f + 0.1, took = took + '1 day',"
        " title = 'b'",
    )
    deals.execute(
        "update public.pages set visits = visits + 7, cost = cost + 1, f = f + 0.2,"
        " took = took + '2 hours'"
    )
    merge = ("call-3", "--merge")
    plan = cli("plan", *merge).stdout
    assert plan == cli("revert", *merge, "--dry-run").stdout
    shown = dict(re.findall(r"^     (\w+) (?:.*) → (.*)$", plan, re.MULTILINE))
    assert "     visits 124 → 24\n" in plan
    by_row = cli("plan", *merge, "--rows").stdout
    assert dict(re.findall(r"^     (\w+) (?:.*) → (.*)$", by_row, re.MULTILINE)) == shown
    (row,) = loaded(cli("plan", *merge, "--rows", "--json"))["rows"]
    assert (row["current"]["visits"], row["detail"]["delta"]["visits"]) == (124, "100")
    cli("revert", *merge)
    (written,) = deals.execute("select to_jsonb(p) - 'id' from public.pages p").fetchall()
    assert {name: str(value) for name, value in written[0].items()} == {
        **shown,
        "cost": str(float(shown["cost"])),
    }
    again = cli("redo", "call-3", "--dry-run").stdout
    assert "     visits 24 → 124\n" in again


def test_counts_tell_what_is_merged(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    writes(
        deals,
        "call-3",
        "insert into public.deals select 'X-' || i, 'New', i from generate_series(1, 30) i",
    )
    writes(deals, "call-4", "update public.deals set stage = 'Lost'", run="b")
    deals.execute("update public.deals set amount = 11 where id = 'D-881'")
    assert (
        "\npublic.deals: put back 1 row, but for columns that others have changed\n"
        "public.deals: put back 31 rows\n"
    ) in cli("plan", "call-4", "--merge").stdout


def test_rows_stand_in_the_order_of_their_keys(deals: Connection, cli: Run) -> None:
    deals.execute(
        "create table public.notes (id int primary key, a text);"
        "insert into public.notes select n, 'a' from unnest('{10,9,2,1}'::int[]) n;"
        "select agentundo.track('public.notes')"
    )
    writes(deals, "call-3", "update public.notes set a = 'x'")
    found = re.findall(r"id=(\d+)", cli("plan", "call-3").stdout)
    assert found == ["1", "2", "9", "10"]
    deals.execute("update public.notes set a = 'y'")
    found = re.findall(r"^- .*id=(\d+)", cli("plan", "call-3", code=3).stdout, re.MULTILINE)
    assert found == ["1", "2", "9", "10"]


def test_merge_puts_the_agents_columns_back(deals: Connection, cli: Run) -> None:
    deals.execute("select agentundo.track('public.deals', 'all')")
    deals.execute("update public.deals set amount = 11 where id = 'D-881'")
    said = cli("plan", "call-1", "--merge").stdout
    assert "   public.deals id=D-881: stage Won → Qualified\n" in said


def test_a_person_between_two_calls_is_named(deals: Connection, cli: Run) -> None:
    """What he wrote came before the second of them, whose row stands."""
    deals.execute("select agentundo.track('public.deals', 'all')")
    writes(deals, "call-5", "update public.deals set stage = 'A' where id = 'D-882'")
    deals.execute("update public.deals set amount = 7 where id = 'D-882'")
    writes(deals, "call-6", "update public.deals set stage = 'B' where id = 'D-882'")
    for chosen in (["call-5", "--on-conflict", "cascade"], ["call-5", "call-6"]):
        said = cli("plan", *chosen, code=3).stdout
        assert f"row_changed [amount] - changed since by {deals.info.user} at " in said
