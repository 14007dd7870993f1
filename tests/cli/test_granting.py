"""``grant``, and what roles are told when they lack something."""

from __future__ import annotations

import psycopg
import pytest

from tests.cli.conftest import Run, loaded, writes
from tests.conftest import Connection, MakeRole


@pytest.mark.parametrize("kind", ["app", "agent", "operator", "approver", "auditor"])
def test_grant_prints_or_applies(db: Connection, cli: Run, make_role: MakeRole, kind: str) -> None:
    role = make_role()
    member = f"select pg_has_role('{role}', 'agentundo_{kind}', 'member')".encode()
    assert cli("grant", role, "--as", kind).stdout == f'grant "agentundo_{kind}" to "{role}";\n'
    assert db.execute(member).fetchone() == (False,)
    answer = loaded(cli("grant", role, "--as", kind, "--apply", "--json"))
    assert answer == {
        "role": role,
        "as": kind,
        "sql": f'grant "agentundo_{kind}" to "{role}";',
        "already": False,
        "applied": True,
    }
    assert db.execute(member).fetchone() == (True,)
    said = cli("grant", role, "--as", kind, "--apply").stdout
    assert said == f"already: {role} is a member of agentundo_{kind}\n"
    said = cli("grant", role, "--as", kind).stdout
    assert said == f"already: {role} is a member of agentundo_{kind}\n"


def test_grant_applied_says_so(db: Connection, cli: Run, make_role: MakeRole) -> None:
    role = make_role()
    said = cli("grant", role, "--as", "auditor", "--apply").stdout
    assert said == f'granted: grant "agentundo_auditor" to "{role}";\n'


def test_grant_says_whose_select_is_missing(
    deals: Connection, cli: Run, make_role: MakeRole
) -> None:
    role = make_role()
    missing = f"note: {role} may not read public.deals, public.meetings: plans, diffs and histories"
    assert "may not read" not in cli("grant", role, "--as", "auditor").stderr
    said = cli("grant", role, "--as", "auditor", "--apply").stderr
    assert said.startswith(missing)
    assert f"grant select on public.deals, public.meetings to {role};" in said
    deals.execute(f"grant select on public.deals, public.meetings to {role}".encode())
    assert cli("grant", role, "--as", "auditor", "--apply").stderr == ""
    agent = make_role()
    assert cli("grant", agent, "--as", "agent", "--apply").stderr == ""


def test_grant_warns_of_what_does_not_go_together(
    db: Connection, cli: Run, make_role: MakeRole
) -> None:
    root = make_role("superuser")
    said = cli("grant", root, "--as", "agent").stderr
    assert f"note: {root} is a superuser: it can switch capture off and erase history." in said
    operator = make_role(member_of="agentundo_operator")
    said = cli("grant", operator, "--as", "agent").stderr
    assert f"note: {operator} is an agent and an operator, and counts as an operator." in said
    agent = make_role(member_of="agentundo_agent")
    assert "counts as an operator" in cli("grant", agent, "--as", "operator").stderr
    assert cli("grant", agent, "--as", "app").stderr == (
        f"note: {agent} is an agent and an app: an agent never reverts, so the app may not either."
        " Give the agent a role of its own.\n"
    )
    for kind in ("app", "operator"):
        role = make_role(member_of=f"agentundo_{kind}")
        assert "is no agent" not in cli("doctor", "--role", role).stdout


def test_grant_to_nobody_and_by_nobody(
    db: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    result = cli("grant", "nobody's", "--as", "app", code=1)
    assert 'error: There is no role "nobody\'s".' in result.stderr
    operator = make_role(member_of="agentundo_operator")
    other = make_role()
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=operator))
    result = cli("grant", other, "--as", "agent", "--apply", *as_role, code=5)
    assert result.stdout == ""
    assert "error: " in result.stderr
    assert (
        "  hint: To grant agentundo_agent one has to be a superuser or have it WITH ADMIN OPTION.\n"
    ) in result.stderr
    db.execute("alter role agentundo_approver rename to agentundo_approver_gone")
    try:
        result = cli("grant", other, "--as", "approver", code=1)
    finally:
        db.execute("alter role agentundo_approver_gone rename to agentundo_approver")
    assert "There is no role agentundo_approver" in result.stderr
    assert 'Run "agentundo upgrade" as a superuser or a role with CREATEROLE.' in result.stderr


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (["log"], "auditor, operator or app"),
        (["show", "call-1"], "auditor or operator"),
        (["status"], "auditor or operator"),
        (["doctor"], "auditor or operator"),
        (["events"], "auditor or operator"),
        (["plan", "call-1"], "auditor, operator or app"),
        (["diff", "call-1"], "auditor, operator or app"),
        (["history", "public.deals", "D-881"], "auditor, operator or app"),
        (["revert", "call-1"], "operator, or app with --scope and --by"),
        (["redo", "call-1"], "operator, or app with --scope and --by"),
        (["track", "public.deals"], "operator, and has to own the table"),
        (["untrack", "public.deals"], "operator, and has to own the table"),
        (["sync"], "operator"),
        (["purge", "--yes"], "operator"),
        (["erase", "public.deals", "1", "--reason", "r", "--yes"], "operator"),
        (["hold", "call-1", "--reason", "r"], "operator"),
        (["exec"], "app, agent or operator"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_role_without_rights_is_told_which_it_needs(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, command: list[str], needs: str
) -> None:
    role = make_role()
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    words = [*command, *as_role, *(["true"] if command == ["exec"] else [])]
    result = cli(*words, code=5)
    first = needs.partition(" ")[0].strip(",")
    assert result.stderr == (
        "error: permission denied for schema agentundo\n"
        f"  hint: For {command[0]} a role has to be {needs}. Whoever installed agentundo can run:"
        f" agentundo grant {role} --as {first} --apply\n"
    )


@pytest.mark.parametrize("kind", ["agent", "approver"])
def test_who_is_refused_is_not_told_about_scopes(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole, kind: str
) -> None:
    role = make_role(member_of=f"agentundo_{kind}")
    result = cli("log", "--dsn", psycopg.conninfo.make_conninfo(dsn, user=role), code=5)
    assert result.stderr.startswith("error: ")
    assert "note:" not in result.stderr


def test_an_app_is_told_what_is_not_for_it(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_app")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    for command in (["status"], ["doctor"], ["events"], ["show", "call-1"]):
        result = cli(*command, *as_role, code=5)
        assert result.stderr.splitlines()[1] == (
            f"  hint: For {command[0]} a role has to be auditor or operator. {role} is an app,"
            " which sees one scope: use another role for it. An app asks log, plan and diff, each"
            " with --scope."
        )
    for command in (["purge", "--yes"], ["track", "public.deals"], ["untrack", "public.deals"]):
        result = cli(*command, *as_role, code=5)
        assert f"{role} is an app, which sees one scope: use another role for it." in result.stderr
        assert "agentundo grant" not in result.stderr
    result = cli("plan", "--actor", "sales-bot", *as_role, code=5)
    assert "Only operators and auditors may choose by role, actor, tool or time." in result.stderr
    result = cli("revert", "call-1", *as_role, code=5)
    assert "error: the application must say who reverts\n" in result.stderr
    assert "  hint: Say whose decision this is: --by PERSON.\n" in result.stderr
    result = cli("diff", "call-1", *as_role, code=5)
    assert f"Grant SELECT on public.deals, or on some of its columns, to {role}." in result.stderr


def test_agents_read_and_revert_nothing(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_agent")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    asked = (["diff", "call-1"], ["revert", "call-1", "--by", "me"], ["log"], ["plan", "call-1"])
    # To be an app as well does not help.
    for also in ("", f"grant agentundo_app to {role}"):
        deals.execute(also.encode())
        for command in asked[:3] if also else asked:
            said = cli(*command, *as_role, code=5).stderr
            assert (
                f"  hint: {role} is an agent's role, and agents neither read nor revert, whatever"
                f" else they are. For {command[0]} another role is needed: "
            ) in said
            assert "agentundo grant" not in said


def test_an_app_lists_what_is_undoable_in_its_scope(
    deals: Connection, dsn: str, cli: Run, make_role: MakeRole
) -> None:
    role = make_role(member_of="agentundo_app")
    as_role = ("--dsn", psycopg.conninfo.make_conninfo(dsn, user=role))
    writes(deals, "call-3", "update public.deals set amount = 3", scope="acme", run="run-3")
    writes(deals, "call-4", "update public.deals set amount = 4", scope="other", run="run-4")
    told = loaded(cli("log", "--scope", "acme", "--json", *as_role))
    assert [(one["id"], one["status"], one["undoable"]) for one in told] == [
        ("call-3", "undoable", True)
    ]
    cli("revert", "call-4", "--scope", "other", "--by", "Dana", *as_role)
    told = loaded(cli("log", "--scope", "other", "--run", "run-4", "--json", *as_role))
    assert [(one["id"], one["status"]) for one in told] == [("call-4", "already_reverted")]
    said = cli("log", *as_role)
    assert said.stderr == "note: only what belongs to no scope; --scope names one\n"
    assert "call-1" in said.stdout
    assert "call-3" not in said.stdout
    said = cli("log", "--role", role, *as_role, code=5)
    assert "Only operators and auditors may choose by role." in said.stderr
