"""`tcpdelay relay`: the delay through a relay that ends TCP on one side, or on both."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from tcpdelay.cli.errors import argument_errors, option_name, predicting
from tcpdelay.cli.options import (
    OUTPUT,
    PATH,
    TRANSPORT,
    ScenarioOptions,
    chart_option,
    make_option,
    number,
    quantity,
    with_scenario,
)
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.cli.predict import FORMAT_HELP, Format
from tcpdelay.cli.scenario import SourceOptions, measurements, read_scenario, with_source
from tcpdelay.report.prediction import draw_prediction
from tcpdelay.report.relayed_messages import relay_record, relay_rows, relay_text
from tcpdelay.report.result_table import to_csv, to_json
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.stack import Linux

Transport = Literal["tcp", "udp"]
STACK_FIELDS = {field.name for field in fields(Linux)}

SUMMARY = "Simulate two legs with a relay between them."
EXAMPLES = """
\b
Examples:
  tcpdelay relay --app voip --rtt 40ms --loss 1% --first udp \\
      --second-rtt 80ms --second-loss 2% --buffer 100kB
  tcpdelay relay --app voip --rtt 80ms --loss 2% \\
      --second-rtt 40ms --second-loss 1% --second udp
  tcpdelay relay --bitrate 2Mbit/s --key-ratio 8 --rtt 30ms --loss 0.1% \\
      --second-rtt 60ms --second-loss 0.5%
"""


@with_scenario
@with_source
def relay(
    options: ScenarioOptions,
    source: SourceOptions,
    second_rtt: Annotated[
        float, quantity("--second-rtt", "time", PATH, "Round-trip time of the second leg. Example: 80ms.")
    ],
    second_loss: Annotated[
        float,
        quantity(
            "--second-loss",
            "fraction",
            PATH,
            "Probability that a segment or datagram is lost on the second leg. Example: 1%.",
            zero=True,
        ),
    ],
    first: Annotated[
        Transport, make_option("--first", TRANSPORT, "Transport of the first leg, whose path is --rtt and --loss.")
    ] = "tcp",
    second: Annotated[Transport, make_option("--second", TRANSPORT, "Transport of the second leg.")] = "tcp",
    buffer: Annotated[
        float | None,
        quantity(
            "--buffer",
            "size",
            TRANSPORT,
            "Buffer of the relay towards a second leg over TCP. If it is full, messages from UDP are dropped, and "
            "messages from TCP wait. Example: 64kB.",
            "no limit",
        ),
    ] = None,
    packets: Annotated[int | None, number("--packets", OUTPUT, "Number of simulated messages.", "100000")] = None,
    output_format: Annotated[Format, make_option("--format", OUTPUT, FORMAT_HELP)] = "text",
    chart: Annotated[Path | None, chart_option("the distribution")] = None,
) -> None:
    """Simulate messages that a relay reads from one connection, or from UDP, and writes to another.

    The options of the path describe the first leg. The options of TCP hold for both legs.
    """
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.sim.network.relay import simulate_relay
    from tcpdelay.sim.network.stacks import Udp

    refuse_other_than_chart(chart, "--chart")
    refuse_same_file([*measurements(options), *source.files], [("--chart", chart)])
    if first == second == "udp":
        for name in options.values:
            if name in STACK_FIELDS:
                raise typer.BadParameter(f"{option_name(name)}: does not go with UDP on both legs")
    scenario = read_scenario(options, source)
    with argument_errors("--second-rtt"):
        onward = NetworkPath(second_rtt, 0.0)
    with argument_errors("--second-loss"):
        onward = NetworkPath(second_rtt, second_loss)
    stacks = {"tcp": scenario.stack, "udp": Udp()}
    legs = (scenario.path, stacks[first]), (onward, stacks[second])
    with argument_errors(), predicting():
        size = None if buffer is None else int(buffer)
        result = simulate_relay(scenario.source, *legs, buffer=size, packets=packets, quantile=scenario.target.quantile)
    if chart is not None and result.delays is not None:
        write_chart(chart, draw_prediction(result.delays, scenario.target.limit), "--chart")
    if output_format == "text":
        print(relay_text(scenario.source, *legs, scenario.target, result), end="")
    else:
        record = relay_record(scenario.source, *legs, scenario.target, result)
        print(to_json(record) if output_format == "json" else to_csv(relay_rows(record)), end="")
