"""What a foreign key can do to the rows that refer to another."""

from __future__ import annotations

ACTIONS = ["no action", "restrict", "cascade", "set null", "set default"]
#: On delete and on update: each with itself, and those that hide each other's mistakes.
PAIRS = [
    *zip(ACTIONS, ACTIONS, strict=True),
    ("no action", "cascade"),
    ("cascade", "no action"),
    ("restrict", "set null"),
    ("set default", "restrict"),
]
