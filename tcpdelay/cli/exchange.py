"""`tcpdelay exchange`: how long a request and its response take."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from tcpdelay.cli.errors import argument_errors, predicting
from tcpdelay.cli.options import (
    FLOW,
    FLOW_OPTIONS,
    OTHER_STACKS,
    OUTPUT,
    ScenarioOptions,
    chart_option,
    make_option,
    number,
    quantity,
    with_scenario,
)
from tcpdelay.cli.output import refuse_other_than_chart, refuse_same_file, write_chart
from tcpdelay.cli.predict import FORMAT_HELP, Format
from tcpdelay.cli.scenario import measurements, read_path
from tcpdelay.report.prediction import draw_prediction
from tcpdelay.report.relayed_messages import exchange_record, exchange_text
from tcpdelay.report.result_table import record_text

SUMMARY = "Simulate requests and responses, one after the other."
EXAMPLES = """
\b
Examples:
  tcpdelay exchange --rtt 10ms --loss 1% --request-size 800B --response-size 800B
  tcpdelay exchange --rtt 10ms --loss 1% --request-size 800B --response-size 800B --writes 2
  tcpdelay exchange --rtt 80ms --loss 1% --request-size 300B --response-size 40kB \\
      --think-time 1s --answer-time 50ms --format json
"""


@partial(with_scenario, left_out=(*FLOW_OPTIONS, *OTHER_STACKS))
def exchange(
    options: ScenarioOptions,
    request_size: Annotated[float, quantity("--request-size", "size", FLOW, "Size of a request. Example: 800B.")],
    response_size: Annotated[float, quantity("--response-size", "size", FLOW, "Size of a response. Example: 40kB.")],
    think_time: Annotated[
        float | None,
        quantity("--think-time", "time", FLOW, "From a response to the next request.", "0s", zero=True),
    ] = None,
    answer_time: Annotated[
        float | None,
        quantity("--answer-time", "time", FLOW, "From a request to its response, at the server.", "0s", zero=True),
    ] = None,
    writes: Annotated[int, number("--writes", FLOW, "Number of writes of each message.", "1")] = 1,
    exchanges: Annotated[int, number("--exchanges", OUTPUT, "Number of simulated exchanges.", "40000")] = 40_000,
    seed: Annotated[int, number("--seed", OUTPUT, "Seed of the random numbers.", "0")] = 0,
    output_format: Annotated[Format, make_option("--format", OUTPUT, FORMAT_HELP)] = "text",
    chart: Annotated[Path | None, chart_option("the distribution")] = None,
) -> None:
    """Simulate a client that asks, waits for the whole response, and asks again.

    --loss holds for both directions; --ack-loss gives the direction of the responses a loss of its own. --limit and
    --quantile are about the time from the write of a request to the read of its response.
    """
    # Imported here, because the help waits for no NumPy.
    from tcpdelay.sim.exchanges import simulate_exchanges

    refuse_other_than_chart(chart, "--chart")
    refuse_same_file(measurements(options), [("--chart", chart)])
    path, stack, target = read_path(options)
    if options["ack_loss"] is None:
        path = replace(path, ack_loss=path.loss)
    sizes = int(request_size), int(response_size)
    with argument_errors(), predicting():
        found = simulate_exchanges(
            *sizes,
            path,
            stack,
            think_time=think_time or 0.0,
            answer_time=answer_time or 0.0,
            writes=writes,
            exchanges=exchanges,
            seed=seed,
            quantile=target.quantile,
        )
    if chart is not None:
        write_chart(chart, draw_prediction(found, target.limit, "exchanges"), "--chart")
    if output_format == "text":
        print(exchange_text(path, sizes, target, found), end="")
    else:
        print(record_text(exchange_record(path, sizes, target, found), output_format), end="")
