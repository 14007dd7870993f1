"""Undo for what AI agents write to a PostgreSQL database.

The product is SQL, installed in the database by ``agentundo install``; this package installs it,
talks to it and gives it a command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyagentundo._aio.client import AsyncAgentUndo
    from pyagentundo._ambient import ActiveInvocation
    from pyagentundo._sync.client import AgentUndo
    from pyagentundo.errors import (
        AgentUndoError,
        ApprovalRequired,
        BlastRadiusExceeded,
        CommitUnknown,
        DsnError,
        GuardedStatement,
        InstallError,
        InvocationClosed,
        InvocationNotFound,
        InvocationPending,
        LockTimeout,
        NotInstalled,
        NotPermitted,
        NotTrackable,
        PoolTimeout,
        RecordTampered,
        RecordUnavailable,
        SchemaDrift,
        UndoConflict,
        UndoExpired,
        UsageError,
        VersionMismatch,
    )
    from pyagentundo.results import (
        Conflict,
        DiffRow,
        Effect,
        Event,
        Finding,
        HistoryRow,
        Invocation,
        Plan,
        PlanCount,
        PlanRow,
        Recorded,
        RevertResult,
        Run,
        Undoable,
    )
    from pyagentundo.selection import Selection

__version__ = "0.1.0"

__all__ = [
    "ActiveInvocation",
    "AgentUndo",
    "AgentUndoError",
    "ApprovalRequired",
    "AsyncAgentUndo",
    "BlastRadiusExceeded",
    "CommitUnknown",
    "Conflict",
    "DiffRow",
    "DsnError",
    "Effect",
    "Event",
    "Finding",
    "GuardedStatement",
    "HistoryRow",
    "InstallError",
    "Invocation",
    "InvocationClosed",
    "InvocationNotFound",
    "InvocationPending",
    "LockTimeout",
    "NotInstalled",
    "NotPermitted",
    "NotTrackable",
    "Plan",
    "PlanCount",
    "PlanRow",
    "PoolTimeout",
    "RecordTampered",
    "RecordUnavailable",
    "Recorded",
    "RevertResult",
    "Run",
    "SchemaDrift",
    "Selection",
    "UndoConflict",
    "UndoExpired",
    "Undoable",
    "UsageError",
    "VersionMismatch",
    "__version__",
]

#: Where each name lives. Imported when it is asked for (see __getattr__).
_HOMES = {
    "pyagentundo._aio.client": ("AsyncAgentUndo",),
    "pyagentundo._ambient": ("ActiveInvocation",),
    "pyagentundo._sync.client": ("AgentUndo",),
    "pyagentundo.errors": (
        "AgentUndoError",
        "ApprovalRequired",
        "BlastRadiusExceeded",
        "CommitUnknown",
        "DsnError",
        "GuardedStatement",
        "InstallError",
        "InvocationClosed",
        "InvocationNotFound",
        "InvocationPending",
        "LockTimeout",
        "NotInstalled",
        "NotPermitted",
        "NotTrackable",
        "PoolTimeout",
        "RecordTampered",
        "RecordUnavailable",
        "SchemaDrift",
        "UndoConflict",
        "UndoExpired",
        "UsageError",
        "VersionMismatch",
    ),
    "pyagentundo.results": (
        "Conflict",
        "DiffRow",
        "Effect",
        "Event",
        "Finding",
        "HistoryRow",
        "Invocation",
        "Plan",
        "PlanCount",
        "PlanRow",
        "Recorded",
        "RevertResult",
        "Run",
        "Undoable",
    ),
    "pyagentundo.selection": ("Selection",),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for.

    Nothing here needs psycopg before that: where libpq is missing, the command line can still be
    started and say so (`pyagentundo.cli`).
    """
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
