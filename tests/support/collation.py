"""A collation under which different texts are equal."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.undo import Connection


def make_blind_collation(conn: Connection, name: str) -> None:
    """Make a collation that ignores case; skip the test if the server knows no such."""
    icu = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
    try:
        conn.execute(f"create collation {name} ({icu})".encode())
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
