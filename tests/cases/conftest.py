"""Connections of the cases: none of them may hang."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Connect, Connection
from tests.support.undo import IMPATIENT


@pytest.fixture
def connect(connect: Connect) -> Connect:
    """Return what makes connections whose statements give up after a while."""

    def make(*, user: str | None = None, **options: Any) -> Connection:
        options.setdefault("options", IMPATIENT)
        return connect(user=user, **options)

    return make
