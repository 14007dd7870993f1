"""Points in time as people type them, and lengths of time as they read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

import click

_UNITS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNIT = {word: _SECONDS[unit] for unit, words in _UNITS.items() for word in words}
_PART = re.compile(rf"(\d+)\s*({'|'.join(sorted(_UNIT, key=len, reverse=True))})\b[\s,]*")
_AGE = re.compile(rf"((?:{_PART.pattern})+)(?:ago)?")

ACCEPTED = (
    'a time such as "2026-11-30 14:05", an age such as "2h", "30m" or "1 day ago",'
    ' "today", "yesterday" or "now"'
)


def now() -> datetime:
    """Return the present time; tests set it."""
    return datetime.now(UTC)


def parse(text: str) -> datetime:
    """Read a point in time; without a zone it is that of this machine.

    Args:
        text: ISO 8601; or an age such as ``2h``, ``30m``, ``1 day 2 hours``, ``2 weeks ago``; or
            what PostgreSQL calls ``today`` and ``yesterday`` (midnight) or ``now``.

    Raises:
        ValueError: it is none of these; the text says what is accepted.

    """
    wanted = text.strip().lower()
    if wanted == "now":
        return now()
    days_ago = {"today": 0, "yesterday": 1}.get(wanted)
    if days_ago is not None:
        day = now().astimezone().date() - timedelta(days=days_ago)
        return datetime.combine(day, time.min).astimezone()
    try:
        age = _AGE.fullmatch(wanted)
        if age:
            seconds = sum(int(number) * _UNIT[unit] for number, unit in _PART.findall(age[1]))
            return now() - timedelta(seconds=seconds)
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {ACCEPTED}") from None


def option(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Read the value of an option such as --since."""
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, param) from None


def duration(seconds: float) -> str:
    """Return a length of time as people say it: ``less than a second``, ``about 40 s``."""
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"
