"""Running the command as people do: on a terminal of some width, or as a program of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "pyagentundo"]
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PATIENCE = 30.0
#: What would speak louder than the terminal itself; pytest's workers have COLUMNS.
_TAKEN_OUT = ("NO_COLOR", "COLUMNS", "LINES")


@dataclass(frozen=True)
class Session:
    """What a terminal showed, and how the command ended."""

    raw: str
    code: int

    @property
    def text(self) -> str:
        """The output without colours."""
        return _ANSI.sub("", self.raw)

    @property
    def lines(self) -> list[str]:
        """The lines of the output without colours."""
        return self.text.split("\n")


def on_terminal(
    *arguments: str,
    columns: int = 80,
    answer: str | None = None,
    interrupt_after: str | None = None,
    meanwhile: Callable[[str], bool] | None = None,
    patience: float = _PATIENCE,
    **environment: str,
) -> Session:
    """Run ``agentundo`` on a pseudo-terminal.

    Args:
        arguments: of the command.
        columns: the terminal's width.
        answer: typed when it asks.
        interrupt_after: interrupted, as by Ctrl-C, once this was shown.
        meanwhile: called with what was shown so far until it returns true, to do something else.
        patience: how long it may take, in seconds.
        environment: further variables.

    """
    return _attended(
        [*COMMAND, *arguments],
        columns=columns,
        answer=answer,
        interrupt_after=interrupt_after,
        meanwhile=meanwhile,
        patience=patience,
        environment=environment,
    )


def shell_on_terminal(command: str, *, columns: int = 80, **environment: str) -> Session:
    """Run what somebody types into a shell on a pseudo-terminal."""
    return _attended(["bash", "-c", command], columns=columns, environment=environment)


def _attended(
    command: list[str],
    *,
    columns: int,
    environment: dict[str, str],
    answer: str | None = None,
    interrupt_after: str | None = None,
    meanwhile: Callable[[str], bool] | None = None,
    patience: float = _PATIENCE,
) -> Session:
    terminal, end = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in _TAKEN_OUT}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**inherited, "TERM": "xterm", **environment},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    os.close(end)
    shown = ""
    try:
        for shown in _read(terminal, patience):
            if answer is not None and "[y/N]" in shown:
                os.write(terminal, answer.encode() + b"\n")
                answer = None
            if interrupt_after is not None and interrupt_after in shown:
                os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all in front
                interrupt_after = None
            if meanwhile is not None and meanwhile(shown):
                meanwhile = None
        return Session(shown.replace("\r\n", "\n"), process.wait(_PATIENCE))
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


def heed_interrupts() -> None:
    """Undo what a shell does to jobs in its background: they, and all their children, ignore it."""
    for number in (signal.SIGINT, signal.SIGHUP):  # nohup and background jobs ignore them
        signal.signal(number, signal.SIG_DFL)


def _read(terminal: int, patience: float) -> Iterator[str]:
    """Yield all that was shown so far, again and again, until the program has closed its end."""
    os.set_blocking(terminal, False)
    shown = b""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            shown += os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            return  # how Linux says that nobody writes any more
        yield shown.decode(errors="replace")
    raise TimeoutError(shown.decode(errors="replace"))


def as_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``agentundo`` without a terminal; stdin is empty."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
