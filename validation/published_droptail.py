"""Compare the chain with the published figures for a drop-tail router."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from statistics import median

from rich.console import Console
from rich.table import Table

from tcpdelay.models.predict import predict
from tcpdelay.scenario.path import Bottleneck, Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

PUBLISHED = FilePath(__file__).parent / "published" / "brosh_droptail.csv"
INTERVAL = 0.020
RETURN_PROPAGATION = 0.050
"""One-way propagation of the published set-up [s]; its model columns imply L = RTT - 50 ms."""


@dataclass(frozen=True)
class PublishedCase:
    """One published row and our predictions of its 95th percentile [s].

    `ours` uses the default one-way delay, L = RTT / 2; `ours_implied` uses the one-way delay that the published model
    columns imply, L = RTT - 50 ms. Both use the published first timeout of 4 RTT, and drop-tail losses.
    """

    packet_size: int
    queue: str
    loss: float
    rtt: float
    measured: float
    published_model: float
    utilization: float
    ours: float
    ours_implied: float

    @property
    def error(self) -> float:
        """Relative difference between our default prediction and the measurement."""
        return self.ours / self.measured - 1

    @property
    def published_error(self) -> float:
        """Relative difference between the published model and the measurement."""
        return self.published_model / self.measured - 1

    @property
    def distance(self) -> float:
        """Relative difference between our prediction, with the implied one-way delay, and the published model."""
        return self.ours_implied / self.published_model - 1


def comparisons() -> list[PublishedCase]:
    """Predict every published row."""
    result = []
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            flow = Flow(int(row["packet_size"]), INTERVAL)
            rtt, loss = float(row["rtt"]), float(row["loss_percent"]) / 100
            bottleneck: Bottleneck = "bytes" if row["queue"] == "byte" else "packets"
            path = Path(rtt, loss, "correlated", bottleneck)
            result.append(
                PublishedCase(
                    packet_size=flow.packet_size,
                    queue=row["queue"],
                    loss=loss,
                    rtt=rtt,
                    measured=float(row["p95_measured"]),
                    published_model=float(row["p95_model"]),
                    utilization=float(row["utilization"]),
                    ours=predicted_p95(flow, path),
                    ours_implied=predicted_p95(flow, replace(path, one_way_delay=rtt - RETURN_PROPAGATION)),
                )
            )
    return result


def predicted_p95(flow: Flow, path: Path) -> float:
    """Return the 95th percentile of the published chain [s]."""
    return predict(Scenario(flow, path, Stack.newreno_2008()), method="chain").require().quantile(0.95)


def median_error(rows: list[PublishedCase]) -> float:
    """Return the median absolute difference between our default predictions and the measurements."""
    return median(abs(row.error) for row in rows)


def to_table(rows: list[PublishedCase]) -> Table:
    """Return the comparison as a table."""
    table = Table(title="95th percentile of the delay in seconds, drop-tail router")
    for heading in (
        "packet",
        "queue",
        "loss",
        "RTT",
        "utilization",
        "measured 2008",
        "published model",
        "our chain, L = RTT/2",
        "L = RTT − 50 ms",
        "ours / measured − 1",
        "published / measured − 1",
        "ours / published − 1",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.packet_size} B",
            row.queue,
            f"{row.loss:.2%}",
            f"{row.rtt:.3f}",
            f"{row.utilization:.3f}",
            f"{row.measured:.3f}",
            f"{row.published_model:.3f}",
            f"{row.ours:.3f}",
            f"{row.ours_implied:.3f}",
            f"{row.error:+.0%}",
            f"{row.published_error:+.0%}",
            f"{row.distance:+.0%}",
        )
    return table


def main() -> None:
    """Print the table and the medians."""
    rows = comparisons()
    console = Console(width=180)
    console.print(to_table(rows))
    console.print(f"Median |ours / measured − 1|: {median_error(rows):.0%}")
    console.print(f"Median |published / measured − 1|: {median(abs(row.published_error) for row in rows):.0%}")
    for queue in ("packet", "byte"):
        distances = [abs(row.distance) for row in rows if row.queue == queue]
        console.print(f"Median |ours / published − 1|, queue in {queue}s: {median(distances):.0%}")


if __name__ == "__main__":
    main()
