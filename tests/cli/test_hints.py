"""The server's hints in the words of the command line: nobody is told to call a function."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pyagentundo._sql import SqlFiles
from pyagentundo.cli._hints import in_words, missing_right, spoken

#: What has no command of its own and stays SQL.
_ONLY_SQL = re.compile(
    r"agentundo\.(set_policy|set_scope_owner|set_trigger|tag|record_invocation)\("
)
_SPEAKS_SQL = re.compile(
    r"agentundo\.\w+\(|\w+ => |(?<![\w.])(?:check|plan|purge|redo|revert|sync|track|untrack)\("
)
#: How sentences begin that are no hints: what check() finds, and what is noted.
_BEGINNINGS = ("there is ", "agentundo: % may ")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ('Run "select agentundo.sync()".', 'Run "agentundo sync".'),
        (
            "Run \"select agentundo.sync('public.t')\" as a role that may, then repeat the write.",
            'Run "agentundo sync public.t" as a role that may, then repeat the write.',
        ),
        (
            'As the owner run "select agentundo.track(\'"My CRM"."it\'\'s"\')" again.',
            'As the owner run "agentundo track \'"My CRM"."it\'"\'"\'s"\'" again.',
        ),
        (
            "Run \"select agentundo.untrack('public.t', false)\" and"
            " \"select agentundo.track('public.t')\".",
            'Run "agentundo untrack public.t --drop-history" and "agentundo track public.t".',
        ),
        (
            "Run \"select agentundo.untrack('t', keep_history => false)\".",
            'Run "agentundo untrack t --drop-history".',
        ),
        (
            "Call agentundo.track('public.t') first: only then is it captured.",
            'Run "agentundo track public.t" first: only then is it captured.',
        ),
        (
            "changed tables are followed only by agentundo.sync()",
            'changed tables are followed only by "agentundo sync"',
        ),
        (
            "Restore a whole one, or begin anew with untrack(..., false) and track().",
            'Restore a whole one, or begin anew with "agentundo untrack TABLE --drop-history" and'
            ' "agentundo track TABLE".',
        ),
        ("Begin a new transaction and call revert again.", "Run the command again."),
        ("Call revert again.", "Run the command again."),
        (
            "See agentundo.plan(). Then revert with merge => true (puts back only the columns that"
            " nobody else changed), on_conflict => 'skip' (leaves these rows), 'cascade' (takes"
            " later agent work along) or 'force'.",
            'See "agentundo plan --rows". Then add --merge (puts back only the columns that nobody'
            " else changed), --on-conflict skip (leaves these rows), --on-conflict cascade (takes"
            " later calls back first) or --on-conflict force (overwrites; needs --by and"
            " --reason).",
        ),
        ("Something else.", "Something else."),
    ],
)
def test_calls_become_commands(hint: str, said: str) -> None:
    assert spoken(hint) == said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("there is no invocation 'nope'", "there is no call 'nope'"),
        (
            "'bot' may not revert invocation 'an invocation'",
            "'bot' may not revert call 'an invocation'",
        ),
        ("no invocation was named", "no call was named"),
        ("these invocations go on writing", "these calls go on writing"),
        ("an invocation is somebody else's", "a call is somebody else's"),
        (
            "a session tagged with agent.invocation may not force",
            "a session tagged with agent.invocation may not force",
        ),
    ],
)
def test_invocations_are_calls(message: str, said: str) -> None:
    assert in_words(message) == said


def test_no_hint_stays_no_hint() -> None:
    assert spoken(None, "log") is None
    assert missing_right("sql", None) is None
    assert missing_right(None, None) is None


def hints() -> Iterator[str]:
    """Yield the literals of the SQL files that a person could be told, as they come out."""
    for path in SqlFiles().files():
        for line in path.read_text().splitlines():
            text = line.strip()
            if text.startswith("--") or (text.startswith("'") and text.endswith("';")):
                continue  # comments, and what COMMENT ON says of functions
            for literal in re.findall(r"'((?:[^']|'')*)'", line):
                text = literal.replace("''", "'")
                # Sentences, not names or pieces of statements.
                if re.search(r"[a-z] [a-z]+ [a-z]", text) and (
                    text[:1].isupper() or text.startswith(_BEGINNINGS)
                ):
                    yield text.replace("%1$L", "'public.t'").replace("%L", "'public.t'")


def test_there_are_hints_to_look_at() -> None:
    assert sum(1 for _ in hints()) > 50


@pytest.mark.parametrize("hint", sorted(set(filter(_SPEAKS_SQL.search, hints()))))
def test_no_hint_of_the_server_speaks_sql_here(hint: str) -> None:
    said = spoken(hint)
    assert said is not None
    left = [found[0] for found in _SPEAKS_SQL.finditer(said)]
    assert all(_ONLY_SQL.match(call) or call.startswith("again") for call in left), said
