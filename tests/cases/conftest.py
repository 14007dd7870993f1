"""Connections of the cases: none of them may hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Connect, Connection


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Return what makes connections whose statements give up after a while."""
    with ExitStack() as opened:

        def make(*, user: str | None = None, **options: Any) -> Connection:
            options.setdefault("autocommit", True)
            options.setdefault("options", "-c statement_timeout=20s")
            chosen = make_conninfo(dsn, user=user) if user else dsn
            return opened.enter_context(closing(psycopg.connect(chosen, **options)))

        yield make
