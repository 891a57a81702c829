"""The program: its commands, its exit status, and one line for an error; `warm-up` compiles what the commands need."""

from __future__ import annotations

import io
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Annotated, Any, NamedTuple, cast

import typer

from tcpdelay import __version__
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.cli import captures, emulation, grid, predict, report, solve, tables, watch
from tcpdelay.cli.options import command
from tcpdelay.cli.output import (
    INTERRUPTED,
    GroupedHelp,
    ProgramHelp,
    StatusLine,
    erase_progress,
    one_line,
    predicting,
    print_warning,
)
from tcpdelay.declare import ColumnUnitWarning, UnitWarning
from tcpdelay.store import error_in_words
from tcpdelay.units import format_duration, printable

# `tcpdelay warm-up`: compile what the commands need, so that no later command waits.

LEAST_SHARE = 0.05
"""Smallest share of a processor that an estimate of the time assumes."""


class Part(NamedTuple):
    """A part of the program: its name for the user, the processor time that its compilation takes [s], a run of it."""

    name: str
    seconds: float
    run: Callable[[], object]


def parts() -> tuple[Part, ...]:
    """Return the parts of the program that are compiled; the processor times are those of a processor of 2023."""
    import numpy as np

    from tcpdelay.advice.guideline import findings
    from tcpdelay.advice.judged_delays import GuidelineRequest
    from tcpdelay.models.predict import predict
    from tcpdelay.quality.player import Player, play
    from tcpdelay.scenario import Flow, Path, Speech, Stack, Video
    from tcpdelay.scenario.scenario import Scenario, Target
    from tcpdelay.sim.engine import LiveConnection
    from tcpdelay.sim.network.bottleneck import MANAGED, Bottleneck, SharedPath
    from tcpdelay.sim.network.relay import simulate_relay
    from tcpdelay.sim.network.simulation import simulate_network
    from tcpdelay.sim.network.sources import Bulk, ConstantRate, Web
    from tcpdelay.sim.network.stacks import Classic, Scp, Udp
    from tcpdelay.sim.simulation import simulate

    flow, path, bursts = Flow(174, 0.020), Path(rtt=0.1, loss=0.02), Path(rtt=0.1, loss=0.01, loss_burst=2)
    linux, bbr, quic = Stack.linux(), Stack.linux(congestion_control="bbr"), Stack.quic()
    messages = Stack.quic(delivery="stream_per_message")

    def call(stack: Any) -> ConstantRate:
        return ConstantRate(flow=flow, path=SharedPath(0.05), stack=stack)

    def others() -> None:
        for source in (Speech(174, 0.020), Video(500_000)):
            predict(Scenario(source, Path(rtt=0.02, loss=0.005), linux), method="chain")
        predict(Scenario(flow, path, bbr), method="chain")

    def simulator() -> None:
        for source in (flow, Video(500_000)):
            simulate(source, bursts, linux, packets=2000, trace=True)
        simulate(flow, path, bbr, packets=2000)
        LiveConnection(path, linux, seed=1).advance(0, 3000)

    def shared_links() -> None:
        classic: list[Any] = [Bulk(path=SharedPath(0.05), stack=Scp()), Web(path=SharedPath(0.05), stack=linux)]
        classic += [call(stack) for stack in (linux, Classic(), Udp(), quic)]
        simulate_network(classic, Bottleneck(rate=3e6, capacity=50), duration=5)
        for discipline in MANAGED:
            simulate_network([call(linux), call(Udp())], Bottleneck(rate=1e5, discipline=discipline), duration=3)

    return (
        Part("the chain of Linux", 40, lambda: findings(GuidelineRequest(Scenario(flow, path, linux), Target(0.2)))),
        Part("the published chain", 8, lambda: predict(Scenario(flow, path, Stack.newreno_2008()), method="chain")),
        Part("the chains of speech, video and BBR", 8, others),
        Part("the simulator", 12, simulator),
        Part("the simulator of QUIC", 12, lambda: simulate(flow, path, quic, packets=2000)),
        Part("the chain of QUIC", 3, lambda: predict(Scenario(flow, path, messages), method="chain")),
        Part("relays", 8, lambda: simulate_relay(flow, (path, Udp()), (bursts, linux), buffer=1000, packets=1000)),
        Part("shared links", 20, shared_links),
        Part("players of video", 1, lambda: play(np.arange(3.0), np.arange(3.0), Player(startup=0.2))),
    )


class Estimate:
    """How far the compilation of some parts is, and about how long it still takes.

    The processor time that is left is known from the parts; beside other work the clock runs faster than this.
    """

    def __init__(self, whole: float) -> None:
        self._whole, self._before = whole, 0.0
        self._began = time.monotonic(), time.process_time()
        self._part_began = self._began[1]

    def done(self, seconds: float) -> None:
        """Note that a part of this processor time is compiled."""
        self._before += seconds
        self._part_began = time.process_time()

    def in_words(self, seconds: float) -> str:
        """Return share and time left, while a part of this processor time is compiled."""
        clock, used = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        done = self._before + min(time.process_time() - self._part_began, seconds)
        share = min(max(used / clock, LEAST_SHARE), 1.0) if clock > 0 else 1.0
        return f"{100 * done / self._whole:.0f} %, about {format_duration((self._whole - done) / share)} left"


@command(
    "Compile the parts of this program now, so that no later command waits.",
    """
Examples:
  tcpdelay warm-up
""",
)
def warm_up() -> None:
    """Compile all parts of the program that are compiled, and store them for later commands.

    If the compiled kernels that came with the installation are right for this machine, there is nothing to do. Else a
    line says why they are not used. The estimate of the time left takes other work on the machine into account.
    """
    from tcpdelay.compiling.stored_kernels import unusable

    reason = unusable()
    if reason is None:
        print("Nothing to compile: the installation has the kernels for this machine.")
        return
    print(f"Compiling: {reason}.")
    chosen = parts()
    began = time.monotonic()
    with warnings.catch_warnings(), predicting():
        warnings.simplefilter("ignore")
        compile_parts(chosen)
    print(f"Compiled in {format_duration(time.monotonic() - began)}.")


def compile_parts(chosen: tuple[Part, ...]) -> None:
    """Run all parts, and show how far they are at each kernel."""
    from tcpdelay.compiling.compilation import shown_by

    line, estimate = StatusLine(), Estimate(sum(part.seconds for part in chosen))
    for number, part in enumerate(chosen, 1):

        def show(number: int = number, part: Part = part) -> None:
            line.show(f"Compiling {part.name} ({number} of {len(chosen)}), {estimate.in_words(part.seconds)}")

        with shown_by(show):
            part.run()
        estimate.done(part.seconds)
    erase_progress()


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
    "warm-up": warm_up,
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
