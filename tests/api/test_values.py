"""Values of records go to the server and come back exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from pyagentundo import AgentUndo, _json
from pyagentundo._calls import new_id
from tests.conftest import Connection


class Stage(Enum):
    WON = "won"


class Size(IntEnum):
    BIG = 3


@dataclass
class Deal:
    id: int
    amount: Decimal


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"stage": Stage.WON}


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (True, True),
        ([1, 2**70, -1], [1, 2**70, -1]),
        (Decimal("0.10"), Decimal("0.10")),
        (Decimal("123456789012345678901234567890.123456789"), None),
        (Decimal("1E+5"), 100000),
        (Decimal("-0.0"), Decimal("0.0")),
        (0.1, Decimal("0.1")),
        (1e300, None),
        (float("nan"), "nan"),
        (Decimal("Infinity"), "Infinity"),
        (Decimal("sNaN"), "sNaN"),
        ("ä€😀\n\"\\'", "ä€😀\n\"\\'"),
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        ({Stage.WON.value: Stage.WON, "s": Size.BIG}, {"won": "won", "s": 3}),
        ({Stage.WON: 1}, {"won": 1}),
        (date(2026, 11, 30), "2026-11-30"),
        (datetime(2026, 11, 30, 1, 2, 3, 4, UTC), "2026-11-30T01:02:03.000004+00:00"),
        (time(1, 2), "01:02:00"),
        (timedelta(minutes=1, microseconds=1), Decimal("60.000001")),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Deal(1, Decimal("2.50")), {"id": 1, "amount": Decimal("2.50")}),
        (Model(), {"stage": "won"}),
        ([], []),
        ({}, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_there_and_back(value: Any, back: Any) -> None:
    text = _json.dumps(value, what="input")
    assert text is not None
    json.loads(text)
    expected = value if back is None else back
    found = _json.loads(text)
    assert found == (Decimal(repr(expected)) if isinstance(expected, float) else expected)


def test_through_the_server(undo: AgentUndo, db: Connection) -> None:
    value: Mapping[str, Any] = {
        "big": Decimal("123456789012345678901234567890.1234567890"),
        "cents": Decimal("0.10"),
        "whole": 2**70,
        "text": "ä€😀",
        "none": None,
    }
    with undo.invocation(input=value) as inv:
        inv.result = [Decimal("1.50"), 0.1]
    found = undo.get(inv.id)
    assert found.input == value
    assert str(found.input["big"]) == "123456789012345678901234567890.1234567890"
    assert found.result == [Decimal("1.50"), Decimal("0.1")]
    with undo.invocation(id=inv.id, input=dict(reversed(list(value.items())))) as again:
        assert (again.created, again.result) == (False, [Decimal("1.50"), Decimal("0.1")])


def test_nothing_is_not_null() -> None:
    assert _json.dumps(None, what="input") is None
    assert _json.dumps([None], what="input") == "[null]"


def test_ids() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {UUID(one).version for one in ids} == {7}
    assert {UUID(one).variant for one in ids} == {"specified in RFC 4122"}
    assert [one[:17] for one in ids] == sorted(one[:17] for one in ids)
    made = datetime.fromtimestamp((UUID(ids[0]).int >> 80) / 1000, UTC)
    assert abs(made - datetime.now(UTC)) < timedelta(minutes=1)
