"""Undo for what AI agents write to a PostgreSQL database.

The product is SQL, installed in the database by ``agentundo install``; this package installs it,
talks to it and gives it a command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyagentundo.errors import (
        AgentUndoError,
        ApprovalRequired,
        BlastRadiusExceeded,
        DsnError,
        GuardedStatement,
        InstallError,
        InvocationClosed,
        InvocationNotFound,
        LockTimeout,
        NotInstalled,
        NotPermitted,
        NotTrackable,
        RecordTampered,
        SchemaDrift,
        UndoConflict,
        UndoExpired,
        VersionMismatch,
    )

__version__ = "0.1.0"

__all__ = [
    "AgentUndoError",
    "ApprovalRequired",
    "BlastRadiusExceeded",
    "DsnError",
    "GuardedStatement",
    "InstallError",
    "InvocationClosed",
    "InvocationNotFound",
    "LockTimeout",
    "NotInstalled",
    "NotPermitted",
    "NotTrackable",
    "RecordTampered",
    "SchemaDrift",
    "UndoConflict",
    "UndoExpired",
    "VersionMismatch",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for.

    Nothing here needs psycopg before that: where libpq is missing, the command line can still be
    started and say so (`pyagentundo.cli`).
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("pyagentundo.errors"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
