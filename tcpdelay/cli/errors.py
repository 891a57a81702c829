"""Progress, interrupts, and errors in one line that names the option, the value and what is allowed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tcpdelay.models.validity import ValidityWarning
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.units import format_duration

INTERRUPTED = 130
"""Exit status of an interrupted command, as of shells: 128 and the number of the signal."""
ERASE_LINE = "\r\x1b[K"
QUIET_TIME = 1.0
"""Time from the start to the first line of `counting` [s]."""
REFRESH_TIME = 0.2
"""Shortest time between two lines of `counting` [s]."""
TERMINAL_INTERVAL, FILE_INTERVAL = 0.5, 30.0
"""Shortest times between two lines of a `StatusLine`, on a terminal and in a file [s]."""


def announce_prediction() -> None:
    """Show on a terminal that a prediction is running; the kernels may have to be compiled first."""
    if sys.stderr.isatty():
        print("Predicting ...", end="", file=sys.stderr, flush=True)


def print_progress(line: str) -> None:
    """Print a line of progress to stderr: on a terminal in place of the previous line, in a file below it."""
    if sys.stderr.isatty():
        print(f"{ERASE_LINE}{line}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def erase_progress() -> None:
    """Erase the line of progress on a terminal."""
    if sys.stderr.isatty():
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


@contextmanager
def predicting() -> Iterator[None]:
    """Show on a terminal that a prediction is running, and let Ctrl-C kill the process.

    Compiled code sees no KeyboardInterrupt until it returns. Numba crashes if a KeyboardInterrupt is pending while it
    turns a result into a named tuple.
    """
    announce_prediction()
    try:
        with _on_interrupt(signal.SIG_DFL):
            yield
    finally:
        erase_progress()


@contextmanager
def interrupted_once() -> Iterator[Callable[[], None]]:
    """Let the first Ctrl-C raise KeyboardInterrupt, and a second one kill the process.

    The interrupted code may swallow the exception, as PyArrow does while it looks for pandas, or replace it. Python
    itself swallows an exception in a callback of an import or in a destructor. The
    function that this context manager yields raises the exception again. Call this function now and then.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    def raise_swallowed() -> None:
        if interrupted:
            raise KeyboardInterrupt

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        # Python would print the exception with a traceback.
        if unraisable.exc_type is not KeyboardInterrupt:
            reported_before(unraisable)

    reported_before, sys.unraisablehook = sys.unraisablehook, report
    try:
        with _on_interrupt(interrupt):
            try:
                yield raise_swallowed
            except Exception:
                raise_swallowed()
                raise
    finally:
        sys.unraisablehook = reported_before


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle Ctrl-C with `handler`, unless a handler is set already."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def counting(doing: str, what: str) -> Callable[[int, int], None]:
    """Return a function that shows on a terminal how many points are done, once the work has taken a second."""
    started = shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if sys.stderr.isatty() and now - started >= QUIET_TIME and now - shown >= REFRESH_TIME:
            shown = now
            print_progress(f"{doing} {done} of {total} {what} ...")

    return show


def counting_down(doing: str, what: str) -> Callable[[int, int], None]:
    """Return a function that shows how many points are done, and about how long the others take."""
    line, estimate = StatusLine(), TimeLeft()

    def show(done: int, total: int) -> None:
        line.show(f"{doing} {done} of {total} {what}{estimate.in_words(done, total)}")

    return show


class TimeLeft:
    """An estimate of the time that the other points of a piece of work take.

    The estimate takes them to last as long as the points done since the first call: the first points may wait for the
    compilation. It begins again with the next piece of work, when fewer points are done than before.
    """

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = 0

    def in_words(self, done: int, total: int) -> str:
        """Return the estimate as the end of a line; an empty text while it is not known."""
        now = time.monotonic()
        if self._first is None or done < self._last:
            self._first = now, done
        self._last = done
        started, before = self._first
        if done == before:
            return ""
        return f", about {format_duration((now - started) / (done - before) * (total - done))} left"


class StatusLine:
    """One line of progress on a terminal; in a file, a line every half minute."""

    def __init__(self) -> None:
        self._interval = TERMINAL_INTERVAL if sys.stderr.isatty() else FILE_INTERVAL
        self._start = self._shown = time.monotonic()

    def show(self, text: str) -> None:
        """Show a text, unless a text was shown a moment ago."""
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._shown = now
            print_progress(f"{text}, {now - self._start:.0f} s")


_OPTIONS = {
    "columns": "--column",
    "table": "TABLE",
    "captures": "CAPTURE",
    "directory": "--output",
    "group": "--group",
    "profile": "--stack",
    "playout_delay": "--playout",
    "send_buffer": "--bulk",
    "sources": "--bulk and --web",
    "capacity": "--queue",
    "target": "--queue-target",
    "quantiles": "--quantile",
    "late_after": "--limit",
    "frame_rate": "--fps",
}
"""The options of arguments that have another name on the command line."""


def option_name(argument: str) -> str:
    """Return the option that sets an argument of the library.

    Examples
    --------
    >>> option_name("ack_loss"), option_name("late_after")
    ('--ack-loss', '--limit')
    """
    return _OPTIONS.get(argument) or f"--{argument.replace('_', '-')}"


SIMULATION_HINT = "tcpdelay predict --stack linux --method simulation models it"
"""Hint for a value that the chain refuses and the simulator accepts."""
QUIC_SIMULATION_HINT = "--method simulation or auto models it"
"""The same for the chain of QUIC."""


@contextmanager
def argument_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ValueError of the library into an error of the command line.

    Parameters
    ----------
    option : str, optional
        The option at fault; by default the option of the argument that the error names.

    Examples
    --------
    >>> from tcpdelay.scenario.source import Flow
    >>> try:
    ...     with argument_errors():
    ...         Flow(packet_size=0, interval=0.020)
    ... except typer.BadParameter as error:
    ...     print(error.message)
    --packet-size: must lie between 1 and 1e+07 bytes, got 0
    """
    try:
        yield
    except InvalidValueError as error:
        # Imported here: it loads NumPy, which the help does without.
        from tcpdelay.models.interface import QUIC_SIMULATED, SIMULATED

        # The hint says how to write the value in Python.
        own = option_name(error.name)
        named = f"{own}:" if option in (None, own) else f"{option}: {error.name}"
        known = {SIMULATED: f"; {SIMULATION_HINT}", QUIC_SIMULATED: f"; {QUIC_SIMULATION_HINT}"}
        hint = known.get(error.hint, "")
        raise typer.BadParameter(f"{named} {error.fault}{hint}") from error
    except ValueError as error:
        raise typer.BadParameter(f"{error}" if option is None else f"{option}: {error}") from error


def one_line(error: typer.TyperException, command: str) -> str:
    """Return an error in one line: the command, the option and the fault."""
    # A missing argument has no message of its own.
    if isinstance(error, typer.BadParameter) and error.message:
        message = _invalid_value(error.__cause__) or error.message.removeprefix("Value error, ")
        if error.param is not None and not message.startswith("--"):
            message = f"{error.param.opts[0]}: {message}"
    else:
        message = error.format_message()
        message = message[:1].lower() + message[1:]
        if isinstance(error, typer.BadParameter):
            message = f"{message.rstrip('.')}; {command} --help has examples"
    # "..." stays: it is a part of a command.
    return printable(f"{command}: {message if message.endswith('...') else message.rstrip('.')}")


def _invalid_value(fault: BaseException | None) -> str | None:
    """Return what is wrong with a value that Typer could not read; None if a parser of this program says it."""
    # Pydantic, which reads values for Typer, takes a quarter of a second to import.
    found = getattr(fault, "errors", None)
    if found is None or (first := found()[0])["type"] == "value_error":
        return None
    kind, _, _ = first["type"].partition("_")
    wanted = {"int": "be a whole number", "float": "be a number"}.get(kind)
    wanted = wanted or first["msg"].removeprefix("Input should ")
    return f"must {wanted}, got {first['input']!r:.60}"


def print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without its category and source line, in place of `warnings.showwarning`."""
    text = str(message).replace("_", " ") if isinstance(message, ValidityWarning) else str(message)
    # A line of progress may be on the terminal.
    before = ERASE_LINE if sys.stderr.isatty() else ""
    print(before + printable(f"warning: {text}"), file=sys.stderr)


def printable(line: str) -> str:
    r"""Escape the characters that would break the line or control the terminal.

    Examples
    --------
    >>> print(printable("a\nb"))
    a\nb
    """
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
