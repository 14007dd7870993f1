"""The terminal: how wide it is, whether it shows colours, and text that is safe to show on it.

Names, ids and values come from agents and may hold anything, so control characters never reach the
terminal as such. In a pipe lines are as long as they have to be and nothing is cut or coloured.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import click

#: Controls, and what reorders or hides the text around it.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_assumed: ContextVar[int | None] = ContextVar("assumed", default=None)
#: Narrower than this, text is wrapped as if it were this wide.
_NARROWEST = 10


@contextmanager
def assumed_width(columns: int) -> Iterator[None]:
    """Print within a block as on a terminal of this width where there is none."""
    former = _assumed.set(columns)
    try:
        yield
    finally:
        _assumed.reset(former)


def printable(text: str) -> str:
    """Return the text with control characters written as escapes, newlines too."""
    return CONTROL.sub(
        lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def columns_of(text: str) -> int:
    """Return how many columns of a terminal the text takes; those of East Asia count twice."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


def cut(text: str, width: int) -> str:
    """Return the text in at most `width` columns; an ellipsis stands for the rest."""
    if columns_of(text) <= width:
        return text
    kept = ""
    room = max(width - 1, 0)
    for one in text:
        room -= columns_of(one)
        if room < 0:
            break
        kept += one
    return kept + "…"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text filled up with spaces to `width` columns."""
    fill = " " * (width - columns_of(text))
    return fill + text if right else text + fill


def wrapped(text: str, width: int | None, *, hang: int = 0) -> list[str]:
    """Return the text in lines of at most `width` columns, broken at spaces where there are any.

    Args:
        text: one paragraph; spaces that it begins with stand before all of its lines.
        width: None does not break it.
        hang: more spaces before its second and further lines.

    """
    if width is None or columns_of(text) <= width:
        return [text]
    width = max(width, _NARROWEST)
    indent = " " * min(len(text) - len(text.lstrip(" ")), width // 2)
    hanging = indent + " " * min(hang, width // 4)
    lines: list[str] = []
    line, empty = indent, True
    for word in text.split():
        while True:
            joined = line + word if empty else f"{line} {word}"
            if columns_of(joined) <= width:
                line, empty = joined, False
                break
            if not empty:
                lines.append(line)
                line, empty = hanging, True
                continue
            # The word alone is too long: an id, a key, a value. With the space it is cut also
            # where only its last letter finds no room.
            head = cut(f"{word} ", width - columns_of(line) + 1).removesuffix("…")
            lines.append(line + head)
            line, word = hanging, word[len(head) :]
    return [*lines, line] if not empty else lines


@dataclass(frozen=True)
class Screen:
    """One of the two streams, and what may be written to it.

    Attributes:
        err: stderr instead of stdout.
        width: columns, None where it is no terminal and none is assumed.
        colour: whether text may be coloured.
        arrow: what stands between an old value and a new one.
        dot: what stands between parts of a line.

    """

    err: bool
    width: int | None
    colour: bool
    arrow: str

    @classmethod
    def of(cls, *, err: bool = False, colour: str = "auto") -> Screen:
        """Look at a stream as it is now.

        Args:
            err: stderr instead of stdout.
            colour: ``always``, ``never``, or ``auto``: on a terminal, unless NO_COLOR is set.

        """
        stream = sys.stderr if err else sys.stdout
        terminal = stream.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        try:
            "→".encode(stream.encoding or "ascii")
            arrow = "→"
        except UnicodeEncodeError:
            arrow = "->"
        return cls(
            err=err,
            width=shutil.get_terminal_size().columns if terminal else _assumed.get(),
            colour=colour == "always" or (colour == "auto" and terminal and not plain),
            arrow=arrow,
        )

    def line(self, text: str = "", *, hang: int = 2, **style: Any) -> None:
        """Print a line, in several where the terminal is too narrow; `style` is click's."""
        for part in wrapped(text, self.width, hang=hang):
            click.echo(self.paint(part, **style), err=self.err, color=self.colour)

    def raw(self, text: str) -> None:
        """Print a line as it is."""
        click.echo(text, err=self.err, color=self.colour)

    def paint(self, text: str, **style: Any) -> str:
        """Return the text in colours, if this is a place for them."""
        return click.style(text, **style) if self.colour and style else text

    def fits(self, text: str) -> bool:
        """Tell whether the text goes into one line."""
        return self.width is None or columns_of(text) <= self.width
