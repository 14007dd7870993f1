"""Hints in the words of the command line.

The server's hints name its functions and arguments, because most who call them write SQL. Here, and
only here, they are put into commands and options. What has no command of its own stays SQL.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pyagentundo import dsn as dsns
from pyagentundo.cli._reasons import CAUSED, WRITTEN
from pyagentundo.cli._standing import Standing
from pyagentundo.cli._tables import count

_NAMED = r"E?'((?:[^']|'')*)'"


def _command(name: str, options: str = "") -> re.Pattern[str]:
    return re.compile(rf"\bselect agentundo\.{name}\((?:{_NAMED})?{options}\)")


def _typed(name: str, options: str = "") -> str:
    return f"agentundo {name} {{table}}{options}"


class Helps(enum.Enum):
    """How many of the rows in the way an option gets an undo past."""

    ALL = enum.auto()
    SOME = enum.auto()
    NOT = enum.auto()


_MERGE = "--merge (puts back only the columns that nobody else changed)"
_SKIP = "--on-conflict skip (leaves these rows)"
_SKIP_LESS = "--on-conflict skip (leaves these rows; with --merge only some of them)"
_CASCADE = "--on-conflict cascade (takes later calls back first)"
_FORCE = "--on-conflict force (overwrites; needs --by and --reason)"
_FORCE_FAILS = "Even force does not break constraints"
_REMOVE = "Revert or change what stands in the way first"
LOOK = '"agentundo plan --rows" with the same options shows every row.'

NO_KEY = "The key columns have other types: give a value that each of them can hold."
NO_TABLE = (
    'Write it with its schema, such as sales.deals; "agentundo status" lists what is tracked. Names'
    " with capitals or spaces are quoted as in SQL, and in a shell once more:"
    " 'sales.\"My Deals\"'."
)

# A table's name, where there is one, is the first group.
_PATTERNS: list[tuple[re.Pattern[str], str]] = [
    (
        _command("untrack", r", (?:keep_history => )?false"),
        _typed("untrack", " --drop-history"),
    ),
    (_command("untrack"), _typed("untrack")),
    (_command("track"), _typed("track")),
    (_command("sync"), _typed("sync")),
    (
        re.compile(rf"\bCall agentundo\.track\({_NAMED}\) first\b"),
        f'Run "{_typed("track")}" first',
    ),
]

# In this order: longer texts before what they contain.
_TEXTS: list[tuple[str, str]] = [
    ("See agentundo.plan(). Then revert with ", 'See "agentundo plan --rows". Then add '),
    ("merge => true (puts back only the columns that nobody else changed)", _MERGE),
    ("on_conflict => 'skip' (leaves these rows)", _SKIP),
    ("'cascade' (takes later agent work along)", _CASCADE),
    ("or 'force'", f"or {_FORCE}"),
    (
        "Even force does not break constraints. See agentundo.plan(); revert or change what stands"
        " in the way first.",
        f"{_FORCE_FAILS}: {_REMOVE.lower()}. {LOOK}",
    ),
    (
        "See agentundo.plan(). Nothing was changed; remove what stands in the way, or use"
        " on_conflict => 'skip'.",
        "Nothing was changed. Remove what stands in the way, or leave these rows with --on-conflict"
        f" skip. {LOOK}",
    ),
    (
        "Give reverted_by => the person whose decision this is.",
        "Say whose decision this is: --by PERSON.",
    ),
    (
        "Check the id and the scope; agentundo.undoable() lists what there is.",
        'Check the id and --scope; "agentundo log" lists what there is.',
    ),
    (
        "Check the run and the scope; agentundo.undoable() lists what there is.",
        'Check --run and --scope; "agentundo log" lists what there is.',
    ),
    (
        "Give the id that the write was tagged with; agentundo.undoable() lists them.",
        'Give the id that the write was tagged with; "agentundo log" lists them.',
    ),
    ("The view agentundo.tracked lists what is.", '"agentundo status" lists what is.'),
    (
        'See "agentundo.check()" for what is tracked, and the limits in the documentation.',
        '"agentundo status" lists what is tracked.',
    ),
    ("Call agentundo.track() first.", 'Run "agentundo track" for it first.'),
    ('Run "select agentundo.track(...)" as', 'Run "agentundo track TABLE" as'),
    ("Call track() as the owner of the table.", "Run it as the owner of the table."),
    ("exempt an invocation with agentundo.hold()", 'exempt an invocation with "agentundo hold"'),
    (
        "Grant agentundo_app, agentundo_operator or agentundo_auditor to the role; agents may not.",
        'Run "agentundo grant ROLE --as auditor --apply" as a role that may (or as app, operator);'
        " agents may not.",
    ),
    (
        "Let the application do it: a role that is a member of agentundo_app, or of"
        " agentundo_operator.",
        'Use a role that was granted it with "agentundo grant ROLE --as operator" (or as app).',
    ),
    (
        "This is for members of agentundo_operator and for those who may act for the owner of"
        " schema agentundo.",
        'Use a role that was granted it with "agentundo grant ROLE --as operator".',
    ),
    (
        "then call revert again. A higher lock_timeout makes it wait longer.",
        "then run the command again. PGOPTIONS='-c lock_timeout=5min' makes it wait longer.",
    ),
    ("Begin a new transaction and call revert again.", "Run the command again."),
    ("Call revert again.", "Run the command again."),
    ("Call it as a statement of its own, in a transaction of its own.", "Run the command again."),
    ("followed only by agentundo.sync()", 'followed only by "agentundo sync"'),
    ("followed only by sync()", 'followed only by "agentundo sync"'),
    ("its history stays until purge()", 'its history stays until "agentundo purge"'),
    (
        "begin anew with untrack(..., false) and track()",
        'begin anew with "agentundo untrack TABLE --drop-history" and "agentundo track TABLE"',
    ),
    ("call agentundo.sync() after", 'run "agentundo sync" after'),
    ("or give the DSN.", "or give --dsn."),
    ("Give a JSON object with the key columns:", "Give COLUMN=VALUE for each of the key columns:"),
    ("Steps count from 1.", "--from-step counts from 1."),
    (
        "tagged writes to a changed table are refused before that",
        "before that tagged writes to a changed table are refused, and with --capture all"
        " everybody's",
    ),
]

# What a name or an id stands in is left alone: it may hold the word.
_SQL_WORDS = re.compile(r"E?'(?:[^']|'')*'|(?<![.\w])((?:an )?)invocation(s?)\b(?!\.|\()")

_READERS = "auditor or operator"
_UNDOERS = "operator, or app with --scope and --by"
#: What each command needs, as `agentundo grant --as` calls it.
_NEEDED = {
    "log": "auditor, operator or app",
    "show": _READERS,
    "events": _READERS,
    "status": _READERS,
    "doctor": _READERS,
    "diff": "auditor, operator or app",
    "history": "auditor, operator or app",
    "plan": "auditor, operator or app",
    "revert": _UNDOERS,
    "redo": _UNDOERS,
    "track": "operator, and has to own the table",
    "untrack": "operator, and has to own the table",
    "sync": "operator",
    "purge": "operator",
    "erase": "operator",
    "hold": "operator",
    "exec": "app, agent or operator",
}


def spoken(hint: str | None, command: str | None = None) -> str | None:
    """Return a hint of the server, or of this package, in the words of the command line.

    What check() finds and what is noted beside an answer is put into them, too.

    Args:
        hint: as it came; None stays None.
        command: the name of the command that failed, None when it does not matter.

    """
    if hint is None:
        return None
    for text, ours in _TEXTS:
        hint = hint.replace(text, ours)
    for pattern, typed in _PATTERNS:
        hint = pattern.sub(lambda match, typed=typed: _filled(typed, match), hint)  # type: ignore[misc]
    if command == "history":
        # A single key column needs no name.
        hint = re.sub(r"(key columns: \w+)\.$", r"\1, or the value alone.", hint)
    return in_words(hint)


def there(hint: str | None, dsn: str | None) -> str | None:
    """Return a hint that ends with a command, for the database that was given.

    Args:
        hint: such as ``Run: agentundo install``.
        dsn: what --dsn said; its password is not shown.

    """
    if dsn is None or hint is None or not hint.startswith("Run: agentundo "):
        return hint
    return f"{hint} --dsn {shlex.quote(dsns.without_secrets(dsn))}"


def is_run(run: str, command: str | None) -> str:
    """Return what to do with the id of a run where that of a call was expected."""
    option = f"--run {shlex.quote(run)}"
    if command in ("log", "plan", "revert"):
        return f"{run} is a run, not a call: give it as {option}."
    return f"{run} is a run, not a call: agentundo log {option} lists its calls."


def in_words(message: str) -> str:
    """Return an error's text in the words of the command line: what SQL names invocation is a call.

    Args:
        message: of the server, or of this package.

    """
    return _SQL_WORDS.sub(
        lambda found: found[0] if found[1] is None else f"{'a ' if found[1] else ''}call{found[2]}",
        message,
    )


def cascade_may_help(how: Mapping[str, Any], conflicts: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether cascade could get an undo past these rows, as far as they themselves say.

    It takes back later calls. What somebody wrote without a tag, captured or not, it leaves.
    """
    untagged = any(
        "by" in conflict and (conflict["by"] or {}).get("invocation") is None
        for conflict in conflicts
    )
    reasons = {conflict.get("reason") for conflict in conflicts}
    return how.get("on_conflict") != "cascade" and reasons <= {*WRITTEN, *CAUSED} and not untagged


def merge_may_help(how: Mapping[str, Any], conflicts: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether merge could get an undo past some of these rows."""
    reasons = {conflict.get("reason") for conflict in conflicts}
    return not how.get("merge") and not reasons.isdisjoint({"row_changed", "row_rewritten"})


def unasked(rows: int, *, which: str = "in the way") -> str:
    """Say that of some rows nobody looked up who wrote them.

    Args:
        rows: how many.
        which: what is to be said of them.

    """
    these = f"row {which} was" if rows == 1 else f"rows {which} were"
    return (
        f"For lack of time {rows:,} {these} not looked up: agentundo history TABLE KEY says who"
        " wrote one."
    )


def _lost(conflict: Mapping[str, Any]) -> str | None:
    """Return why nothing ever brings a row back; None where something may."""
    if conflict.get("reason") == "erased":
        return "What was erased can never go back."
    return "Into a table that is gone nothing goes back." if conflict.get("table_gone") else None


def never(conflicts: Sequence[Mapping[str, Any]], total: int) -> str | None:
    """Return what to say of an undo where later work and constraints are not what stops it."""
    return f"{count(total, 'row')} cannot go back" if any(map(_lost, conflicts)) else None


def ways_out(
    how: Mapping[str, Any],
    conflicts: Sequence[Mapping[str, Any]],
    *,
    merge: Helps,
    cascade: bool,
) -> str:
    """Return which further options would get an undo past these rows.

    Args:
        how: the options that were given: ``on_conflict`` and ``merge``.
        conflicts: the rows in the way.
        merge: of how many of them merge would make something that goes back.
        cascade: whether cascade would help, as far as is known.

    """
    mode = how.get("on_conflict") or "abort"
    reasons = {conflict.get("reason") for conflict in conflicts}
    ways = []
    if merge is Helps.ALL:
        ways.append(_MERGE)
    ways.append(_SKIP_LESS if merge is Helps.SOME else _SKIP)
    if cascade:
        ways.append(_CASCADE)
    if mode != "force" and reasons <= {*WRITTEN}:
        ways.append(_FORCE)
    verb = "Add" if mode == "abort" else "Instead use"
    lost = sorted({why for why in map(_lost, conflicts) if why})
    if lost:  # whatever else is in the way, only without these rows anything goes back
        return f"{' '.join(lost)} {verb} {_SKIP_LESS if merge is Helps.SOME else _SKIP}."
    options = " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
    if mode == "force":
        return f"{_FORCE_FAILS}. {_REMOVE}, or instead use {options}."
    if reasons <= {*WRITTEN}:
        return f"{verb} {options}."
    return f"{_REMOVE}, or {verb.lower()} {options}."


def missing_right(command: str | None, me: Standing | None) -> str | None:
    """Return what to do about a command that the server did not let a role run.

    Args:
        command: its name.
        me: what the role is already; None when nobody could find out.

    """
    needed = _NEEDED.get(command or "")
    if needed is None:
        return None
    needs = f"For {command} a role has to be {needed}."
    if me is not None and me.is_agent:
        return not_for_agents(command, me)
    if me is not None and me.is_app:
        # Made auditor or operator as well, it would see every scope.
        asks = " An app asks log, plan and diff, each with --scope." if needed == _READERS else ""
        return f"{needs} {me.role} is an app, which sees one scope: use another role for it.{asks}"
    role = "ROLE" if me is None else shlex.quote(me.role)
    first = re.split(r"\W", needed)[0]
    return (
        f"{needs} Whoever installed agentundo can run: agentundo grant {role} --as {first} --apply"
    )


def not_for_agents(command: str | None, me: Standing | None) -> str | None:
    """Return what to tell an agent's role, which no further grant helps; None for any other."""
    needed = _NEEDED.get(command or "")
    if needed is None or me is None or not me.is_agent:
        return None
    return (
        f"{me.role} is an agent's role, and agents neither read nor revert, whatever else they are."
        f" For {command} another role is needed: {needed}."
    )


def _filled(typed: str, match: re.Match[str]) -> str:
    name = (match[1] or "").replace("''", "'")
    return " ".join(typed.format(table=shlex.quote(name) if name else "").split())
