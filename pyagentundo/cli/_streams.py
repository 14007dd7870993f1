"""The standard streams, in whatever state we get them.

A daemon, a scheduler or ``>&-`` may give us none, a disk may be full, a reader may be gone. A
stream that is missing leads nowhere. What stderr does not take is lost: nobody is there to be told.
What stdout does not take ends the command, because its answer is what it is for. But once something
is committed, the answer goes to stderr and the exit code stays: who takes a failed write for a
command that has done nothing does it again.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import click

#: Whether the command that is being run has committed something.
_committed: ContextVar[bool] = ContextVar("_committed", default=False)


class OutputLost(click.ClickException):
    """Stdout does not take what a command answers."""

    def __init__(self, error: OSError) -> None:
        super().__init__(_told(error))
        self._error = error

    def show(self, file: Any = None) -> None:
        """Say so, unless somebody has just stopped reading, as ``| head`` does."""
        if self._error.errno != errno.EPIPE:
            click.echo(f"error: {self.message}", file=file, err=True)


def committed() -> None:
    """Note that something is committed: from now on nothing that stdout does is a failure."""
    _committed.set(True)


def has_committed() -> bool:
    """Tell whether something is committed."""
    return _committed.get()


@contextmanager
def mended() -> Iterator[None]:
    """Let a command of the block use the streams, whatever state they are in."""
    former = sys.stdin, sys.stdout, sys.stderr
    mark = _committed.set(False)
    _take_numbers()
    with ExitStack() as opened:
        if sys.stdin is None:
            sys.stdin = opened.enter_context(_nowhere("r"))
        sys.stderr = _mended(sys.stderr or opened.enter_context(_nowhere("w")), _Stderr(), opened)
        sys.stdout = _mended(
            sys.stdout or opened.enter_context(_nowhere("w")), _Stdout(sys.stderr), opened
        )
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = former
            _committed.reset(mark)


def _take_numbers() -> None:
    """Open what is closed of the first three files: else the next one opened has such a number.

    A connection that is number 2 would get all that libpq, or a program of exec, writes to stderr.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)


def _nowhere(mode: str) -> TextIO:
    return Path(os.devnull).open(mode, encoding="utf-8")  # type: ignore[return-value]


def _mended(stream: TextIO, output: _Output, opened: ExitStack) -> TextIO:
    """Return a stream that writes through `output` to where another one does.

    What a terminal's encoding lacks is shown as an escape and is no reason to fail either.
    """
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if isinstance(raw, _Output) or not isinstance(raw, io.RawIOBase):
        # Mended already, or no file: a test's, or that of a program that runs us.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        return stream
    opened.callback(output.end)
    output.file = raw
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


class _Output(io.RawIOBase):
    """A file that deals itself with what it does not take.

    Attributes:
        file: the file.

    """

    file: io.RawIOBase

    def __init__(self) -> None:
        self._lost: OSError | None = None
        self._is_over = False

    def writable(self) -> bool:
        """Tell io that this is for writing."""
        return True

    def fileno(self) -> int:
        """Return the file's number."""
        return self.file.fileno()

    def isatty(self) -> bool:
        """Tell whether the file is a terminal."""
        return self.file.isatty()

    def end(self) -> None:
        """Drop what is still to come: what io could not write it tries again at the very end."""
        self._is_over = True

    def write(self, data: Any, /) -> int | None:
        """Write, or do something else with the data."""
        if self._is_over:
            return len(data)
        if self._lost is None:
            try:
                return self.file.write(data)
            except OSError as error:
                self._lost = error
                self._lose(error)
        self._replace(bytes(data), self._lost)
        return len(data)

    def _lose(self, error: OSError) -> None:
        """Take it that nothing can be written any more."""

    def _replace(self, data: bytes, error: OSError) -> None:
        """Do something else with what cannot be written."""


class _Stderr(_Output):
    """What it does not take is lost."""


class _Stdout(_Output):
    """What it does not take goes to stderr if something is committed, and ends the command else."""

    def __init__(self, stderr: TextIO) -> None:
        super().__init__()
        # Not what is sys.stderr then: the demo makes that the same as stdout.
        self._stderr = stderr

    def _lose(self, error: OSError) -> None:
        if has_committed():
            click.echo(f"note: {_told(error)}", file=self._stderr)

    def _replace(self, data: bytes, error: OSError) -> None:
        if not has_committed():
            raise OutputLost(error)
        click.echo(data.decode(sys.stdout.encoding, "replace"), file=self._stderr, nl=False)


def _told(error: OSError) -> str:
    return f"stdout cannot be written: {error.strerror or error}"
