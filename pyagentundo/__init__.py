"""Undo for what AI agents write to a PostgreSQL database.

The product is SQL, installed in the database by ``agentundo install``; this package installs it,
talks to it and gives it a command line.
"""

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
