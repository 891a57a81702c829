"""`tcpdelay prepare`: answers for `tcpdelay batch`, solved before there is a table."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from tcpdelay.cli.errors import INTERRUPTED, StatusLine, argument_errors, interrupted_once
from tcpdelay.cli.options import OUTPUT, PATH_OPTIONS, Range, ScenarioOptions, quantity, range_option, with_scenario
from tcpdelay.cli.scenario import read_demand
from tcpdelay.units import format_fraction, parse_fraction, parse_time

SUMMARY = "Solve ahead, so that batch answers tables of a flow at full speed."
EXAMPLES = """
\b
Examples:
  tcpdelay prepare --app voip --rtt 20ms..200ms --loss 0.1%..5%
  tcpdelay prepare --app voip
  tcpdelay prepare --packet-size 1200 --interval 20ms --limit 150ms --left 1%

\b
Rows in the region are then answered at once, except in the share that is left.
All of 5 to 400 ms and 0.01 to 10 % takes a few minutes for voip, more for
larger packets; Ctrl-C keeps all solved paths.
"""


@partial(with_scenario, left_out=PATH_OPTIONS)
def prepare(
    options: ScenarioOptions,
    rtt: Annotated[
        Range | None, range_option("--rtt", parse_time, "TIME", "Range of the round-trip time.", "5ms..400ms")
    ] = None,
    loss: Annotated[
        Range | None,
        range_option(
            "--loss", parse_fraction, "SHARE", "Range of the share of the segments that is lost.", "0.01%..10%"
        ),
    ] = None,
    left: Annotated[
        float | None,
        quantity(
            "--left", parse_fraction, "SHARE", OUTPUT, "Share of the region that may be left unsolved.",
            "0.01%",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Solve the paths of a whole region ahead, and keep their answers for the tables of `tcpdelay batch`."""
    flow, stack, target = read_demand(options)
    from tcpdelay.questions.tables.lattice import WORTH_PREPARING, prepare_surface

    shown = StatusLine()
    try:
        with argument_errors(), interrupted_once() as raise_swallowed:

            def on_progress(share: float, chains: int) -> None:
                raise_swallowed()
                shown.show(f"{chains} paths, {format_fraction(share)} left")

            prepared = prepare_surface(
                flow,
                stack,
                threshold=target.limit,
                quantile=target.quantile,
                rtt=None if rtt is None else (rtt.low, rtt.high),
                loss=None if loss is None else (loss.low, loss.high),
                left=WORTH_PREPARING if left is None else left,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        shown.erase()
        print("tcpdelay prepare: interrupted; all solved paths are kept, and the next run continues", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    shown.erase()
    left_over = format_fraction(prepared.left)
    print(f"{left_over} of the region is left unsolved; the answers for {prepared.chains} paths are kept in")
    print(prepared.path)
