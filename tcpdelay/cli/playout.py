"""`tcpdelay playout`: the playout buffer at every round-trip time and loss of a table."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tcpdelay.budget import MOST_SECONDS
from tcpdelay.cli.errors import argument_errors, counting_down, predicting
from tcpdelay.cli.options import (
    PATH,
    PATH_OPTIONS,
    MaxMemory,
    MaxSeconds,
    ScenarioOptions,
    application_option,
    format_option,
    make_option,
    method_option,
    output_option,
    with_scenario,
    words_option,
)
from tcpdelay.cli.output import format_by_suffix, refuse_missing_folder, write
from tcpdelay.cli.scenario import NO_SOURCE, read_source
from tcpdelay.models.predict import AnsweredBy
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.stack import DEFAULT_PROFILE, CongestionControl
from tcpdelay.units import parse_fraction, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tcpdelay.report.answers import TitledTable

Format = Literal["text", "markdown", "html", "json", "csv"]
RTTS, LOSSES = "20ms,50ms,100ms,200ms,300ms", "0.1%,0.5%,1%,2%,5%"
"""Round-trip times and losses of a table by default."""
SUMMARY = "Make a table of playout buffers by round-trip time and loss."
EXAMPLES = """
\b
Examples:
  tcpdelay playout --app voip
  tcpdelay playout --app voip --rtt 40ms,80ms --loss 1%,2% -o wall.html
  tcpdelay playout --app voip --congestion-control cubic \\
      --congestion-control reno --method chain -o wall.md
  tcpdelay playout --app game --method chain --format csv

\b
The buffer is the delay within which the application's share of packets
arrives, less the one-way delay. "solve playout" answers for one path.
"""


def _values(text: str, name: str, parse: Callable[[str, str], float]) -> tuple[float, ...]:
    """Read values with commas between them."""
    return tuple(parse(part, name) for part in text.split(","))


def _values_option(name: str, metavar: str, description: str, parse: Callable[..., float]) -> Any:
    """Return an option that takes several values of a field of the path."""
    parser = partial(_values, name=name, parse=parse)
    return make_option(name, PATH, f"{description}, with commas between them.", metavar=metavar, parser=parser)


@partial(with_scenario, left_out=(*PATH_OPTIONS, "app", "congestion_control"))
def playout(
    options: ScenarioOptions,
    context: typer.Context,
    app: Annotated[list[Application] | None, application_option(" May be repeated: each makes a table.")] = None,
    congestion_control: Annotated[
        list[Any] | None,
        words_option(
            "--congestion-control",
            "Congestion control of the sender. May be repeated: each makes a table.",
            get_args(CongestionControl),
            "cubic",
        ),
    ] = None,
    rtt: Annotated[Any, _values_option("--rtt", "TIMES", "Round-trip times", parse_time)] = RTTS,
    loss: Annotated[Any, _values_option("--loss", "SHARES", "Losses of data segments", parse_fraction)] = LOSSES,
    method: Annotated[
        AnsweredBy,
        method_option(
            ", and the simulator where the chain has no answer or an expected error of 10 % or more.",
            answers="Model of each cell",
        ),
    ] = "auto",
    max_seconds: MaxSeconds = MOST_SECONDS,
    max_memory: MaxMemory = None,
    output_format: Annotated[
        Format | None, format_option("Output format; csv and json hold a row for each cell, in seconds and fractions.")
    ] = None,
    output: Annotated[Path | None, output_option(".html, .md, .csv, .json or .txt")] = None,
) -> None:
    """Make a table of playout buffers by round-trip time and loss, for each application and congestion control."""
    chosen = output_format or format_by_suffix(output, Format)
    refuse_missing_folder(output, "--output")
    # None stands for an option that was not given: the other options then say what is sent, or over which TCP.
    apps: list[Application | None] = [*dict.fromkeys(app or ())] or [None]
    controls: list[CongestionControl | None] = [*dict.fromkeys(congestion_control or ())] or [None]
    titled = [
        _table(options.changed(app=each, congestion_control=control), rtt, loss, method, max_seconds, max_memory)
        for each, control in product(apps, controls)
    ]
    write(_rendered(titled, chosen, shlex.join(["tcpdelay", *context.obj])), output)


def _table(
    options: ScenarioOptions,
    rtts: Sequence[float],
    losses: Sequence[float],
    method: AnsweredBy,
    max_seconds: float,
    max_memory: float | None,
) -> TitledTable:
    """Return the table of one application over one stack."""
    from tcpdelay.report.answers import TitledTable
    from tcpdelay.study.playout import playout_table

    source, stack, target = read_source(options, NO_SOURCE)
    app = options.app.name if options.app else None
    with argument_errors(), predicting():
        scenario = Scenario(source, NetworkPath(rtts[0], losses[0]), stack, target)
        table = playout_table(
            scenario,
            rtts,
            losses,
            method,
            max_seconds,
            max_memory,
            on_progress=counting_down("Predicting", f"paths of {app or 'the flow'}"),
        )
    return TitledTable(app, getattr(stack, "congestion_control", options.stack or DEFAULT_PROFILE), table)


def _rendered(titled: Sequence[TitledTable], chosen: Format, command: str) -> str:
    """Return the tables in a format, with the command that made them."""
    from tcpdelay.report.answers import long_table, to_markdown, to_page, to_text

    render: dict[Format, Callable[[], str]] = {
        "text": lambda: to_text(titled),
        "markdown": lambda: to_markdown(titled, command),
        "html": lambda: to_page(titled, command),
        "json": lambda: long_table(titled).to_json(),
        "csv": lambda: long_table(titled).to_csv(),
    }
    return render[chosen]()
