"""JSON to and from the server, exactly.

Numbers that are not whole go and come as `Decimal`: a float would change the cents of an amount.
What JSON or PostgreSQL cannot hold is refused here, where the message can say what it was.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from psycopg.abc import AdaptContext
from psycopg.types import json as psycopg_json

from pyagentundo.errors import UsageError

# Python refuses to turn longer texts into an int.
_LONG = 4000
# Levels. Python counts calls within calls, and gives up somewhere beyond.
_DEEPEST = 200
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')
# What PostgreSQL's numeric holds, of which jsonb makes its numbers.
_BEFORE_POINT, _AFTER_POINT = 131_072, 16_383


def loads(text: str | bytes) -> Any:
    """Read JSON; numbers that are not whole, and very long ones, become `Decimal`.

    What is nested more deeply than we write it comes as text: an agent may record anything, and
    keeps nobody from reading the log.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if _is_deep(text):
        return text
    return json.loads(text, parse_float=Decimal, parse_int=_whole)


def _is_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return False
    depth = 0
    for match in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > _DEEPEST:
            return True
    return False


def _whole(text: str) -> int | Decimal:
    return int(text) if len(text) < _LONG else Decimal(text)


class _Json(psycopg_json.JsonLoader):
    def load(self, data: Any) -> Any:
        return loads(bytes(data))


class _JsonBinary(psycopg_json.JsonBinaryLoader):
    def load(self, data: Any) -> Any:
        return loads(bytes(data))


class _Jsonb(psycopg_json.JsonbLoader):
    def load(self, data: Any) -> Any:
        return loads(bytes(data))


class _JsonbBinary(psycopg_json.JsonbBinaryLoader):
    def load(self, data: Any) -> Any:
        return loads(bytes(data[1:]))  # the first byte is the format's version


def load_exactly(cursor: AdaptContext) -> None:
    """Let a cursor read JSON as `loads` does; its connection is left as it is."""
    adapters = cursor.adapters
    assert adapters is not None  # noqa: S101 - a cursor has its own
    adapters.register_loader("json", _Json)
    adapters.register_loader("json", _JsonBinary)
    adapters.register_loader("jsonb", _Jsonb)
    adapters.register_loader("jsonb", _JsonbBinary)


def dumps(value: Any, *, what: str) -> str | None:
    """Return a value as JSON text, None for None.

    Beside JSON's own types: Decimal (as an exact number), dates and times (ISO 8601), timedelta
    (seconds), UUID, Enum (its value), paths, sets, dataclasses, and objects with ``model_dump()``.

    Args:
        value: what to write.
        what: its name in messages, such as ``input``.

    Raises:
        UsageError: it holds something that JSON or PostgreSQL's jsonb cannot.

    """
    if value is None:
        return None
    try:
        text = _encode(value, what)
    except RecursionError:
        text = None
    if text is None or _is_deep(text):
        raise UsageError(f"{what} contains itself, or is nested too deeply.", hint=_HINT)
    return text


_HINT = "Give what JSON can hold: dicts with text keys, lists, texts, numbers, booleans, None."


def _encode(value: Any, what: str) -> str:
    if isinstance(value, Enum):
        return _encode(value.value, what)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(check_text(value, what), ensure_ascii=False)
    if isinstance(value, int | Decimal):
        return _number(Decimal(value), what)
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else json.dumps(str(value))
    if isinstance(value, Mapping):
        return _join("{}", (f"{_key(k, what)}: {_encode(v, what)}" for k, v in value.items()))
    if isinstance(value, set | frozenset):
        # In an order of its own: the same call must give the same text again.
        return _join("[]", sorted(_encode(item, what) for item in value))
    if isinstance(value, list | tuple):
        return _join("[]", (_encode(item, what) for item in value))
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return _encode(convert(value), what)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        return _encode({name: getattr(value, name) for name in names}, what)
    if callable(getattr(value, "model_dump", None)):
        return _encode(value.model_dump(), what)
    raise UsageError(
        f"{what} holds something of type {type(value).__qualname__}, which is no JSON.", hint=_HINT
    )


def _number(value: Decimal, what: str) -> str:
    if not value.is_finite():
        # There is no number for these; PostgreSQL's own to_jsonb() writes them as text too.
        return json.dumps(str(value))
    _, _, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - it is finite
    if value.adjusted() >= _BEFORE_POINT or -exponent > _AFTER_POINT:
        raise UsageError(
            f"{what} holds a number of more digits than PostgreSQL can store.",
            hint=f"There may be {_BEFORE_POINT} before the point and {_AFTER_POINT} after it.",
        )
    return str(value)


_CONVERSIONS: dict[Any, Callable[[Any], Any]] = {
    datetime: datetime.isoformat,  # before date, which it is too
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: Decimal(str(value.total_seconds())),
    UUID: str,
    PurePath: str,
}


def _join(brackets: str, parts: Any) -> str:
    return brackets[0] + ", ".join(parts) + brackets[1]


def _key(key: Any, what: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, str):
        raise UsageError(f"{what} has the key {key!r}, which is no text.", hint=_HINT)
    return json.dumps(check_text(key, what), ensure_ascii=False)


def check_text(value: Any, what: str) -> str:
    """Return a text that PostgreSQL can hold.

    Raises:
        UsageError: it is no text, contains the character NUL, or half a surrogate pair.

    """
    if not isinstance(value, str):
        raise UsageError(
            f"{what} is of type {type(value).__qualname__}, not a text.",
            hint=f"Give {what} as a str, or leave it out.",
        )
    if "\0" in value:
        raise UsageError(
            f"{what} contains the character NUL, which PostgreSQL cannot store.",
            hint="Remove it, or store the bytes in another form.",
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} contains half of a surrogate pair, which is no character.",
            hint='Repair it with .encode(errors="replace").decode().',
        ) from None
    return value


def storable(text: str, *, limit: int = 10_000) -> str:
    """Return a text that can be stored whatever was in it, cut to so many characters."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
