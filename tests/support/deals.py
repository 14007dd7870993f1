"""Deals and the notes that refer to them: what many tests write to."""

from __future__ import annotations

from typing import Any

from tests.support.undo import Connection, rows

TABLES = ("public.deals", "public.notes")
#: Makes a function for triggers that write deals their own way.
TOUCH = """
create function touch() returns trigger language plpgsql as
$$ begin new.owner := 'trigger'; return new; end $$;
"""


def deal(db: Connection, number: int) -> tuple[Any, ...] | None:
    """Return stage, owner and amount of a deal."""
    found = rows(db, "select stage, owner, amount from deals where id = %s", number)
    return found[0] if found else None
