"""The program: its commands, its exit status, and one line for an error."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Annotated, cast

import typer

from tcpdelay import __version__
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.cli import captures, emulation, grid, predict, report, solve, tables, warm_up, watch
from tcpdelay.cli.errors import INTERRUPTED, GroupedHelp, ProgramHelp, one_line, print_warning
from tcpdelay.declare import ColumnUnitWarning, UnitWarning
from tcpdelay.store import error_in_words
from tcpdelay.units import printable

EXAMPLES = """
\b
Examples:
  tcpdelay report --rtt 100ms --loss 2% --app voip
  tcpdelay predict --rtt 100ms --loss 2% --app voip
  tcpdelay compare --rtt 100ms --loss 2% --app voip
  tcpdelay solve loss --rtt 100ms --app voip
  tcpdelay region --app voip
  tcpdelay report --help      # the usual options
  tcpdelay report --help-all  # all options
"""

# Rich would draw frames around the help, and cut off the names of options to fit 80 columns.
app = typer.Typer(
    cls=ProgramHelp,
    help="How late are the packets of a real-time flow over TCP, and what helps?",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in {
    "report": report.report,
    "predict": predict.predict,
    "proxy": emulation.proxy,
    "relay": predict.relay,
    "exchange": predict.exchange,
    "watch": watch.watch,
    "compare": predict.compare,
    "analyze": captures.analyze,
    "solve": solve.solve,
    "region": grid.region,
    "paths": report.paths,
    "playout": grid.playout,
    "batch": tables.batch,
    "prepare": tables.prepare,
    "sweep": tables.sweep,
    "explore": grid.explore,
    "validate": captures.validate,
    "run": emulation.run,
    "warm-up": warm_up.warm_up,
}.items():
    # The options of the two programs of `run` are no options of this one.
    _settings = {"allow_interspersed_args": _name != "run"}
    app.command(
        _name, cls=GroupedHelp, epilog=_command.examples, short_help=_command.summary, context_settings=_settings
    )(_command.run)
app.add_typer(captures.app, name="testbed", short_help=captures.SUMMARY)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tcpdelay {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@cache
def program(command: str | None = None) -> ProgramHelp:
    """Return the program with all its commands, or with one: to build all takes as long as a hundred predictions."""
    chosen = copy(app)
    chosen.registered_commands = [each for each in app.registered_commands if command in (None, each.name)]
    chosen.registered_groups = [each for each in app.registered_groups if command in (None, each.name)]
    return cast(ProgramHelp, typer.main.get_command(chosen))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    _make_writable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ValidityWarning)
            # Times on the command line have units.
            warnings.simplefilter("ignore", UnitWarning)
            warnings.simplefilter("always", ColumnUnitWarning)
            warnings.showwarning = print_warning
            # A page names the command that made it.
            one = program(*_named_commands(arguments)[:1])
            status = one.main(arguments, prog_name="tcpdelay", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except typer.TyperException as error:
        print(one_line(error, " ".join(["tcpdelay", *_named_commands(arguments)])), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        _give_up_output(error)
        return 1
    return status if isinstance(status, int) else 0


def _named_commands(arguments: Sequence[str]) -> list[str]:
    """Return the names at the beginning of the arguments: a command, or a group and its command."""
    commands = {command.name for command in app.registered_commands}
    of_groups = {"testbed": {command.name for command in captures.app.registered_commands}}
    first, second = [*arguments[:2], "", ""][:2]
    if first in of_groups:
        return [first, second] if second in of_groups[first] else [first]
    return [first] if first in commands else []


def _make_writable() -> None:
    # A stream that the caller has closed is None.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # If the encoding of a terminal lacks the micro sign, a question mark is printed.
        sys.stdout.reconfigure(errors="replace")


def _give_up_output(error: OSError) -> None:
    if not isinstance(error, BrokenPipeError):
        print(printable(f"tcpdelay: {error_in_words(error)}"), file=sys.stderr)
    # At its end, Python flushes the buffer, which would fail again.
    with suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
