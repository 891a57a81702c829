"""What is shown while a command works, and how it is interrupted."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ERASE_LINE = "\r\x1b[K"
QUIET_TIME = 1.0
"""Time for which nothing is shown [s]."""
REFRESH_TIME = 0.2


@contextmanager
def predicting() -> Iterator[None]:
    """Show on a terminal that a prediction is under way, and let Ctrl-C end it at once."""
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        print("Predicting; the very first time this takes a minute or so ...", end="", file=sys.stderr, flush=True)
    try:
        with _ended_by_interrupt():
            yield
    finally:
        if on_terminal:
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C kill the process.

    Compiled code sees no KeyboardInterrupt until it returns, and Numba crashes if one is pending while it turns a
    result into a named tuple.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def counting(doing: str, what: str) -> Callable[[int, int], None]:
    """Return what shows on a terminal how far something is, once it has taken a second."""
    started = shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if sys.stderr.isatty() and now - started >= QUIET_TIME and now - shown >= REFRESH_TIME:
            shown = now
            print(f"{ERASE_LINE}{doing} {done} of {total} {what} ...", end="", file=sys.stderr, flush=True)

    return show
