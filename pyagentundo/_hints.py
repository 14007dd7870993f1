"""Hints in the words of Python, and what a role needs.

The server's hints name its functions and arguments, because most who call them write SQL.
`AgentUndo` has methods and arguments of the same names.
"""

from __future__ import annotations

import re

_METHODS = "plan|revert|redo|undoable|diff|row_history|row_version|check|tag|record_effect"
_CALL = re.compile(rf"\bagentundo\.({_METHODS})\(")
_ARGUMENT = re.compile(r"\b(on_conflict|merge|reason|reverted_by|scope) => ")

_DENIED = re.compile(r"permission denied for (?:function|view|table|schema|sequence) (\w+)$")
_NOT_AGENTS = "an agent's role may not, whatever else it is: use another one"
#: Who may call what; a role that is a member already is not told to become one.
_NEEDED = {
    "revert redo": "Members of agentundo_operator may, and of agentundo_app within a scope;"
    f" {_NOT_AGENTS}.",
    "plan plan_run plan_summary undoable diff row_history row_version effects_of": "Members of"
    " agentundo_operator and agentundo_auditor may, and of agentundo_app within a scope;"
    f" {_NOT_AGENTS}.",
    "invocations runs changes events effects tracked check": "Members of agentundo_operator and"
    " agentundo_auditor read this, of every scope. A member of agentundo_app asks undoable(),"
    f" plan() and diff() with its scope; {_NOT_AGENTS}.",
    "tag record_invocation commit_invocation fail_invocation record_effect": "Grant agentundo_app"
    " (tag, record, plan, revert within a scope) or agentundo_agent (tag, record) to it.",
    "agentundo": "Grant agentundo_app (tag, record, plan, revert within a scope), agentundo_agent"
    " (tag, record), agentundo_operator (everything) or agentundo_auditor (read) to it.",
}


def spoken(hint: str | None) -> str | None:
    """Return a hint of the server in the words of Python; None stays None."""
    if hint is None:
        return None
    hint = _ARGUMENT.sub(r"\1=", _CALL.sub(r"\1(", hint))
    hint = hint.replace("Give a JSON object with", "Give a dict with")
    return hint.replace("=true", "=True").replace("=false", "=False").replace("=null", "=None")


def missing_right(message: str) -> str:
    """Return what a role needs that got this message from the server."""
    denied = _DENIED.search(message)
    for names, needed in _NEEDED.items():
        if denied and denied[1] in names.split():
            return needed
    return "Whoever owns it can grant the right."
