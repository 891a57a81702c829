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
from tcpdelay.cli import (
    analyze,
    batch,
    compare,
    explore,
    paths,
    playout,
    predict,
    proxy,
    region,
    report,
    run,
    solve,
    sweep,
    testbed,
    validate,
    warm_up,
    watch,
)
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
for _command, _summary, _examples in (
    (report.report, report.SUMMARY, report.EXAMPLES),
    (predict.predict, predict.SUMMARY, predict.EXAMPLES),
    (proxy.proxy, proxy.SUMMARY, proxy.EXAMPLES),
    (predict.relay, predict.RELAY_SUMMARY, predict.RELAY_EXAMPLES),
    (predict.exchange, predict.EXCHANGE_SUMMARY, predict.EXCHANGE_EXAMPLES),
    (watch.watch, watch.SUMMARY, watch.EXAMPLES),
    (compare.compare, compare.SUMMARY, compare.EXAMPLES),
    (analyze.analyze, analyze.SUMMARY, analyze.EXAMPLES),
    (solve.solve, solve.SUMMARY, solve.EXAMPLES),
    (region.region, region.SUMMARY, region.EXAMPLES),
    (paths.paths, paths.SUMMARY, paths.EXAMPLES),
    (playout.playout, playout.SUMMARY, playout.EXAMPLES),
    (batch.batch, batch.BATCH_SUMMARY, batch.BATCH_EXAMPLES),
    (batch.prepare, batch.PREPARE_SUMMARY, batch.PREPARE_EXAMPLES),
    (sweep.sweep, sweep.SUMMARY, sweep.EXAMPLES),
    (explore.explore, explore.SUMMARY, explore.EXAMPLES),
    (validate.validate, validate.SUMMARY, validate.EXAMPLES),
):
    app.command(_command.__name__, cls=GroupedHelp, epilog=_examples, short_help=_summary)(_command)
# The options of the two programs are no options of this one.
app.command(
    "run",
    cls=GroupedHelp,
    epilog=run.EXAMPLES,
    short_help=run.SUMMARY,
    context_settings={"allow_interspersed_args": False},
)(run.run)
app.command("warm-up", cls=GroupedHelp, epilog=warm_up.EXAMPLES, short_help=warm_up.SUMMARY)(warm_up.warm_up)
app.add_typer(testbed.app, name="testbed", short_help=testbed.SUMMARY)


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
    of_groups = {"testbed": {command.name for command in testbed.app.registered_commands}}
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
