"""Predict and simulate the capture `video-delayed-ack` with both congestion controls, as a capture does not name it.

    python validation/pcap/congestion_control.py

Flow and path come from the captures of both ends, as in `tcpdelay analyze`, and the measured delay from the log of the
application. The script simulates one long connection, without and with delayed ACKs, and many connections as long as
the captured connection, at the loss that was configured in the testbed. They show how much captures of this length
differ, and how many have a shorter delay than the measured delay. The script writes the table of the documentation,
results-congestion-control.md, and takes about a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tcpdelay.capture.flow_capture import read_capture
from tcpdelay.capture.pcap.analysis import analyze_captures
from tcpdelay.models.predict import predict_delay
from tcpdelay.scenario.path import Path as NetworkPath
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack
from tcpdelay.sim.simulation import simulate
from tcpdelay.statistics import share_interval

HERE = Path(__file__).parent
LOG = HERE / "video-delayed-ack.parquet"
QUANTILE = 0.95
PACKETS = 4_000_000
SEED = 1
CAPTURES = 1000
"""Number of simulated connections as long as the captured connection; their seeds count from 0."""


def milliseconds(*times: float) -> str:
    """Return times as text."""
    return " to ".join(f"{1000 * time:.0f}" for time in times)


def predicted(flow: Flow, path: NetworkPath, low: float, high: float, stack: Linux) -> str:
    """Return the prediction at the estimated loss, and the predictions at the ends of its confidence interval."""
    at_loss = (
        predict_delay(
            rtt=path.rtt, loss=loss, packet_size=flow.packet_size, interval=flow.interval, stack=stack, method="chain"
        )
        for loss in (path.loss, low, high)
    )
    value, *ends = (distribution.quantile(QUANTILE) for distribution in at_loss)
    return f"{milliseconds(value)} ({milliseconds(*ends)})"


def simulated(flow: Flow, path: NetworkPath, stack: Linux) -> str:
    """Return the result of a long simulation, and its 95 % interval."""
    interval = simulate(flow, path, stack, packets=PACKETS, seed=SEED, quantile=QUANTILE).quantile_interval
    return f"{milliseconds(interval.value)} ({milliseconds(interval.low, interval.high)})"


def short_ones(flow: Flow, path: NetworkPath, stack: Linux, packets: int, measured: float) -> tuple[str, str]:
    """Return the middle half of the delays of connections of the captured length, and the share below `measured`."""
    quantiles = np.array(
        [simulate(flow, path, stack, packets=packets, seed=seed).quantile(QUANTILE) for seed in range(CAPTURES)]
    )
    low, middle, high = np.quantile(quantiles, [0.25, 0.5, 0.75])
    below = share_interval(int(np.count_nonzero(quantiles < measured)), CAPTURES)
    return (
        f"{milliseconds(middle)} ({milliseconds(low, high)})",
        f"{100 * below.value:.1f} % ({100 * below.low:.1f} % to {100 * below.high:.1f} %)",
    )


def main() -> None:
    """Write the table."""
    capture = read_capture(LOG)
    measured = float(capture.delay_distribution().quantile(QUANTILE))
    files = [LOG.with_name(f"{LOG.stem}.{end}.pcap.gz") for end in ("sender", "receiver")]
    analysis = analyze_captures(files)
    estimate, flow = analysis.estimate(), analysis.flow()
    path = estimate.path()
    set_to = NetworkPath(rtt=capture.settings["rtt"], loss=capture.settings["loss"])
    columns = {}
    for control in ("reno", "cubic"):
        stack = Stack.linux(congestion_control=control)
        delayed = Stack.linux(congestion_control=control, delayed_ack=True)
        columns[control] = [
            predicted(flow, path, *estimate.loss_interval, stack),
            simulated(flow, path, stack),
            simulated(flow, path, delayed),
            *short_ones(flow, set_to, delayed, analysis.messages, measured),
        ]
    labels = (
        "predicted (for the 95 % interval of the loss)",
        "simulated (95 % interval)",
        "simulated, with delayed acknowledgements (95 % interval)",
        f"median of {CAPTURES} simulated captures (half of them)",
        f"captures below the measured {milliseconds(measured)} ms (95 % interval)",
    )
    lines = ["| 95th percentile of the delay [ms] | Reno | CUBIC |", "|---|---|---|"]
    lines += [f"| {label} | {reno} | {cubic} |" for label, reno, cubic in zip(labels, *columns.values(), strict=True)]
    (HERE / "results-congestion-control.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
