"""What the demo is shown on: it prints a step, runs it for real, and its output follows."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any

import click
import psycopg

from pyagentundo.cli._screen import Screen, assumed_width, columns_of, wrapped
from pyagentundo.errors import AgentUndoError

#: Longer lines are hard to read, however wide the terminal.
_WIDEST = 80
_REPORT = "This is a defect of pyagentundo. Please report it with what was printed."


class Stage:
    """Shows and runs what happens in the demo.

    Args:
        main: the command ``agentundo``.

    """

    def __init__(self, main: click.Command) -> None:
        self.screen = Screen.of()
        self._main = main
        self._width = min(self.screen.width or _WIDEST, _WIDEST)

    def scene(self, title: str) -> None:
        """Begin a part of the story."""
        self.screen.raw("")
        for line in wrapped(title, self._width):
            self.screen.raw(self.screen.paint(line, bold=True, fg="cyan"))
        self.screen.raw(self.screen.paint("-" * min(len(title), self._width), fg="cyan"))

    def say(self, text: str) -> None:
        """Tell what is going on, in a paragraph."""
        self.screen.raw("")
        for line in wrapped(text, self._width):
            self.screen.raw(line)

    def typed(self, *words: str) -> None:
        """Show what a person types into a shell, without running it; the words are quoted."""
        self._typed("$", words, " \\")

    def run(self, *arguments: str, code: int = 0) -> None:
        """Run a command of ``agentundo``, on this terminal.

        Args:
            arguments: of the command.
            code: the exit code with which it has to end.

        Raises:
            AgentUndoError: it ended with another one.

        """
        self.typed("agentundo", *(shlex.quote(argument) for argument in arguments))
        # As on a terminal: what goes wrong stands where it went wrong, also in a pipe.
        with redirect_stderr(sys.stdout), assumed_width(_WIDEST):
            ended = self._main.main(list(arguments), prog_name="agentundo", standalone_mode=False)
        self.require((ended or 0) == code, f"The command ended with {ended or 0}, not with {code}.")
        if code:
            self.screen.line(f"(exit code {code})", dim=True)

    def python(self, function: Callable[..., None], *arguments: Any) -> None:
        """Show the source of a function, and call it."""
        self.screen.raw("")
        for line in inspect.getsource(function).rstrip().splitlines():
            self.screen.line(f"  {line}".rstrip(), hang=4, fg="yellow")
        function(*arguments)

    def sql(self, conn: psycopg.Connection[Any], statement: str) -> None:
        """Show a statement, run it as the connection's role, and show its answer."""
        self._typed(f"{conn.info.user}=>", f"{statement};".split(" "))
        self.screen.line(conn.execute(statement.encode()).statusmessage or "")

    def require(self, holds: bool, otherwise: str) -> None:
        """Stop the demo if something is not as it has to be.

        Raises:
            AgentUndoError: it is not.

        """
        if not holds:
            raise AgentUndoError(f"The demo went wrong. {otherwise}", hint=_REPORT)

    def _typed(self, prompt: str, words: Sequence[str], mark: str = "") -> None:
        """Print what somebody types, broken between words so that it can be typed as it stands."""
        self.screen.raw("")
        lines = [prompt]
        for word in words:
            if columns_of(f"{lines[-1]} {word}{mark}") > self._width and lines[-1] != prompt:
                lines[-1] += mark
                lines.append("   ")
            lines[-1] += f" {word}"
        for line in lines:
            self.screen.raw(self.screen.paint(line, bold=True))
