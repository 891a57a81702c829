"""What a command shows and writes: progress, errors in one line, its help, and results in files."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.encapsulation import RTP_SPLITS
from tcpdelay.scenario.path import PATH_PRESETS
from tcpdelay.scenario.scenario import APPLICATIONS, FIELDS, OTHER_APPLICATIONS, SOURCE_FIELDS
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.store import unfinished_path
from tcpdelay.units import format_duration, format_fraction, format_rate, format_time, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcpdelay.report.document import ResultTable

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

    def __init__(self, on_terminal: float = TERMINAL_INTERVAL) -> None:
        self._interval = on_terminal if sys.stderr.isatty() else FILE_INTERVAL
        self._start = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the start [s]."""
        return time.monotonic() - self._start

    def show(self, text: str) -> None:
        """Show a text with the time since the start, unless a text was shown a moment ago."""
        self.show_text(f"{text}, {self.seconds:.0f} s")

    def show_text(self, text: str) -> None:
        """Show a text alone, unless a text was shown a moment ago."""
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._shown = now
            print_progress(text)


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
    """Return the option that sets an argument of the library."""
    return _OPTIONS.get(argument) or f"--{argument.replace('_', '-')}"


SIMULATION_HINT = "tcpdelay predict --stack linux --method simulation models it"
"""Hint for a value that the chain refuses and the simulator accepts."""
QUIC_SIMULATION_HINT = "--method simulation or auto models it"
"""The same for the chain of QUIC."""


@contextmanager
def argument_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ValueError of the library into an error of the command line."""
    try:
        yield
    except InvalidValueError as error:
        # Imported here: it loads NumPy, which the help does without.
        from tcpdelay.ask import QUIC_SIMULATED, SIMULATED

        # The hint says how to write the value in Python.
        own = option_name(error.name)
        named = f"{own}:" if option in (None, own) else f"{option}: {error.name}"
        known = {SIMULATED: f"; {SIMULATION_HINT}", QUIC_SIMULATED: f"; {QUIC_SIMULATION_HINT}"}
        known[RTP_SPLITS] = f"; {RTP_SPLITS} (--packet-size, --source)"
        known[OTHER_APPLICATIONS] = f"; {OTHER_APPLICATIONS} (--bitrate 15Mbit/s --fps 60 --limit 50ms)"
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


# The help of the commands: usual options first, rare options on request, and the presets of `--app`.

USUAL_FIELDS = frozenset(
    {"packet_size", "interval", "rtt", "loss", "limit", "quantile", "congestion_control", "delivery"},
)
"""Fields of a scenario whose options `--help` explains."""
RARE_FIELDS = (FIELDS.keys() | SOURCE_FIELDS.keys()) - USUAL_FIELDS
"""Fields whose options `--help` only names."""
_EVERYTHING = "tcpdelay: help of all options"
"""Key in the context of a command whose help explains all options."""


def presets() -> list[tuple[str, str]]:
    """Return name, packets and target of each application."""
    return [
        (
            preset.name,
            f"{preset.title}: {_sent(preset.source)}; {format_fraction(preset.target.quantile)} within "
            f"{format_time(preset.target.limit)}",
        )
        for preset in APPLICATIONS.values()
    ]


def _sent(source: Source) -> str:
    """Return what an application sends: its packets, or the mean bitrate if its rate is not constant."""
    if isinstance(source, Flow):
        return f"{source.packet_size} B every {format_time(source.interval)} ({format_rate(source.bitrate)})"
    return f"{type(source).__name__} ({format_rate(source.mean_bitrate)} in the mean)"


def _print_everything(context: typer.Context, requested: bool) -> None:
    if requested:
        context.meta[_EVERYTHING] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_print_everything, is_eager=True, help="Explain all options and exit."),
]
"""Annotation of the parameter `help_all`: the option that explains rare options too."""


class FilesCommand(TyperCommand):
    """A command that refuses an empty name of a file: as a path, it would be the working directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        # Behind "--", `run` has the command lines of programs.
        own = args[: args.index("--")] if "--" in args else args
        any_empty = any(not word or (word.startswith("--") and word.endswith("=")) for word in own)
        rest = super().parse_args(ctx, args)
        for param in self.get_params(ctx) if any_empty else ():
            value = ctx.params.get(param.name)
            if Path() in (value if isinstance(value, list | tuple) else [value]):
                name = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name
                raise typer.BadParameter(f"{name}: the name of the file is empty")
        return rest


class GroupedHelp(FilesCommand):
    """A command whose help groups the options by the headings of their declarations.

    Of a command with `HelpAll`, `--help` explains the usual options and names the rest; `--help-all` explains all.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and presets into the help."""
        folded = any(option.name == "help_all" for option in self.params) and _EVERYTHING not in ctx.meta
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        only_named = []
        for option in self.get_params(ctx):
            entry = option.get_help_record(ctx)
            if entry is None:
                continue
            if option.param_type_name == "argument":
                # Typer adds the type of the language to the name.
                groups["Arguments"].append((option.metavar or option.name, entry[1]))
            elif folded and option.name in RARE_FIELDS:
                only_named.append(option.opts[0])
            else:
                groups.setdefault(getattr(option, "rich_help_panel", None) or "Other", []).append(entry)
        for heading, entries in groups.items():
            if entries:
                with formatter.section(heading):
                    formatter.write_dl(entries)
        if only_named:
            with formatter.section("More options (explained by --help-all)"):
                # click's own wrapping breaks the names of options at their hyphens.
                indent, width = " " * formatter.current_indent, formatter.width - formatter.current_indent
                for line in textwrap.wrap(", ".join(only_named), width, break_on_hyphens=False):
                    formatter.write(f"{indent}{line}\n")
        if any(option.name == "app" for option in self.params):
            _write_presets(formatter)
        if any(option.name == "path" for option in self.params):
            _write_paths(formatter)


class ProgramHelp(TyperGroup):
    """The program, whose help lists the presets below the commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write commands and presets into the help."""
        super().format_commands(ctx, formatter)
        _write_presets(formatter)


def _write_presets(formatter: Any) -> None:
    with formatter.section("Applications of --app"):
        formatter.write_dl(presets())


def _write_paths(formatter: Any) -> None:
    with formatter.section("Paths of --path, whose sources tcpdelay paths prints"):
        formatter.write_dl([(preset.name, preset.title) for preset in PATH_PRESETS.values()])


Named = tuple[str, str | Path | None]
"""An option or argument, and the file or folder that it names, if it is given."""

# Results in files: output files that cannot be written are refused before the work begins.

CHART_SUFFIXES = (".svg", ".png", ".pdf")
SUFFIXES = {"text": ".txt", "markdown": ".md", "html": ".html", "json": ".json", "csv": ".csv", "netcdf": ".nc"}
"""The suffix of the files of each format."""


def refuse_other_than_chart(path: Path | None, option: str) -> None:
    """Raise typer.BadParameter if `option` names a file without the suffix of a chart, or in a missing folder."""
    if path is None:
        return
    if path.suffix.lower() not in CHART_SUFFIXES:
        raise typer.BadParameter(f"{option}: {str(path)!r} does not end in one of {', '.join(CHART_SUFFIXES)}")
    refuse_missing_folder(path, option)


def write_chart(path: Path, figure: Figure, option: str) -> None:
    """Write a figure atomically, in the format that the file's suffix stands for."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."))
    write_atomically(path, image.getvalue(), option)


def format_by_suffix(output: Path | None, formats: object) -> Any:
    """Return the format, one of a `Literal` of formats, of the file in `--output`; text without this option."""
    if output is None:
        return "text"
    suffixes = {SUFFIXES[name]: name for name in get_args(formats)}
    suffix = output.suffix.lower()
    if suffix not in suffixes:
        refuse_directory(output, "--output")
        raise typer.BadParameter(
            f"--output: {str(output)!r} does not end in one of {', '.join(suffixes)}; choose with --format"
        )
    return suffixes[suffix]


def refuse_directory(path: Path, option: str) -> None:
    """Raise typer.BadParameter if `option` names a directory."""
    with suppress(OSError):
        if path.is_dir():
            raise typer.BadParameter(f"{option}: {str(path)!r} is a directory; name a file")


def refuse_missing_folder(path: Path | None, option: str) -> None:
    """Raise typer.BadParameter if `option` names a new file in a folder that does not exist, or that is read-only."""
    if path is None:
        return
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {error.strerror}") from None
    # Any other fault, such as too long a name, is reported when the file is written.
    with suppress(OSError):
        # For a symbolic link, the folder of its target counts.
        folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            what = f"{str(folder)!r} is no folder" if folder.exists() else f"the folder {str(folder)!r} does not exist"
            raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {what}")
        if not path.exists() and not os.access(folder, os.W_OK):
            raise typer.BadParameter(
                f"{option}: {str(path)!r} cannot be written: the folder {str(folder)!r} is read-only"
            )


def refuse_same_file(inputs: Iterable[Named], outputs: Iterable[Named]) -> None:
    """Raise typer.BadParameter if an output would replace a file that is read, or another output."""
    read = [(name, Path(path)) for name, path in inputs if path is not None]
    written: list[tuple[str, Path]] = []
    for option, path in ((name, Path(path)) for name, path in outputs if path is not None):
        for name, other in (*read, *written):
            if _is_same_file(path, other):
                what = f"what {name} names" if name.startswith("--") else f"the {name.lower()} itself"
                raise typer.BadParameter(f"{option}: {str(path)!r} is {what}; name another file")
        for name, folder in read:
            if _is_in_folder(path, folder):
                raise typer.BadParameter(
                    f"{option}: {str(path)!r} is in the folder that {name} names; name a file elsewhere"
                )
        written.append((option, path))


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths denote the same file or folder, which need not exist."""
    try:
        return path.samefile(other) and (path.is_file() or path.is_dir())
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _is_in_folder(path: Path, folder: Path) -> bool:
    """Return whether a file would be within an existing folder, at any depth."""
    with suppress(OSError):
        return folder.is_dir() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return False


def write_atomically(path: Path, content: bytes, option: str) -> None:
    """Write a file so that it holds either its previous content or all of the new content."""
    try:
        if path.exists():
            # To replace a file needs permission for its directory only. Opening the file raises an error if it is
            # write-protected or a directory.
            with path.open("ab") as file:
                if not path.is_file():
                    file.write(content)
                    return
        target = path.resolve()
        temporary = unfinished_path(target)
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{option}: {str(path)!r} cannot be written: {error.strerror or error}") from error


def rendered(table: ResultTable, chosen: Literal["text", "csv", "json"]) -> str:
    """Return a table as CSV, JSON or text."""
    return {"csv": table.to_csv, "json": table.to_json, "text": table.to_text}[chosen]()


def write(content: str, output: Path | None, option: str = "--output") -> None:
    """Write a text to the file that `option` names, or print it if there is none."""
    if output is None:
        print(content, end="")
    else:
        write_atomically(output, content.encode(), option)
