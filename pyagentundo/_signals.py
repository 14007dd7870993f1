"""Signals that come while something must be brought to its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Signals that end a program without a word: a terminal that is closed, a shutdown, ``timeout``.
ENDINGS = ("SIGTERM", "SIGHUP")


@contextmanager
def handling(handler: signal._HANDLER, *names: str) -> Iterator[None]:
    """Handle signals within a block; those that are ignored already stay so.

    Args:
        handler: what `signal.signal` takes.
        names: of the signals; those that this platform lacks are left out.

    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals, and only it gets them
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    former = {}
    for number in numbers:
        # nohup, for example, has its own idea about SIGHUP
        if signal.getsignal(number) is not signal.SIG_IGN:
            former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in former.items():
            signal.signal(number, handler_before)
