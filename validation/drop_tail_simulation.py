"""Compare the simulated shared link with the captures behind a drop-tail router.

`python validation/drop_tail_simulation.py` writes `validation/results/drop-tail-simulation.csv`.
"""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tcpdelay as td
from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.scenario.stack import kernel_of_release
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import NetworkResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Source, Web
from tcpdelay.sim.network.stacks import Dctcp, Udp
from tcpdelay.statistics import mean_interval, quantile_interval

HERE = Path(__file__).parent
SKIP = 10.0
"""Time at the start of every capture and simulation that is left out [s]: slow start of the long transfers."""
REPETITIONS = 10
"""Ratio of the simulated time to the duration of the capture."""
SEEDS = 3
"""Number of simulations for the loss, each as long as the capture."""
HEADERS = 66
"""Size of the Ethernet, IP and TCP headers with timestamps [bytes]; the router's queue counts them."""
DATAGRAM_HEADERS = 42
"""Size of the Ethernet, IP and UDP headers [bytes]."""
BURST = 2000
"""Bucket of the router's rate limit [bytes]."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def sources_of(capture: FlowCapture) -> list[Source]:
    """Return the sources of a capture's experiment: the measured flows, then the long transfers and the web users."""
    settings, hz = capture.settings, capture.runs[0].hz
    kernel = kernel_of_release(capture.runs[0].kernel)
    path = SharedPath(access_delay=settings["rtt"] / 2, in_host=True)
    control = settings["congestion_control"]
    beside = settings.get("cross_control") or control
    link = {"path": path, "header": HEADERS, "ecn": settings.get("ecn", False)}

    def options_of(name: str, delayed_ack: bool) -> dict[str, Any]:
        """Return stack and link of a TCP connection with a congestion control."""
        if name == "dctcp":
            return link | {"stack": Dctcp(delayed_ack, hz), "ecn": True, "l4s": settings.get("l4s", False)}
        return link | {"stack": td.Stack.linux(name, delayed_ack, hz=hz, kernel=kernel)}

    if settings["application"] == "udp":
        measured = link | {"stack": Udp(), "header": DATAGRAM_HEADERS, "l4s": settings.get("l4s", False)}
    else:
        measured = options_of(control, delayed_ack=False)
    cross = options_of(beside, delayed_ack=True)
    flows = settings["flows"]
    source: td.Source = capture.flow
    if "source" in settings:
        source = SourceSettings.from_table(settings["source"], recorded=True).source
    between = source.interval / flows if isinstance(source, td.Flow) else 0.0
    starts = [number * between for number in range(flows)]
    thinking = np.random.default_rng(0).exponential(1.0, settings["web_flows"])
    return [
        *(ConstantRate(flow=source, start=start, **measured) for start in starts),
        *(Bulk(**cross) for _ in range(settings["bulk_flows"])),
        *(Web(start=float(start), opened_by="sender", **cross) for start in thinking),
    ]


def simulate(capture: FlowCapture, lengths: float, skip: float, seed: int) -> NetworkResult:
    """Simulate a capture's experiment for `lengths` times its duration, without the first `skip` seconds."""
    settings = capture.settings
    in_bytes = settings["queue_bytes"] is not None
    bottleneck = Bottleneck(
        settings["bottleneck_rate"],
        settings["queue_bytes"] if in_bytes else settings["queue_packets"],
        unit="bytes" if in_bytes else "packets",
        burst=BURST,
    )
    duration = lengths * settings["duration"]
    return simulate_network(sources_of(capture), bottleneck, duration=duration, warm_up=skip, seed=seed)


def simulated_loss(capture: FlowCapture) -> float:
    """Return the share of packets lost in the whole experiment, like the router's counters."""
    queues = [simulate(capture, 1, 0.0, seed).queue for seed in range(1, SEEDS + 1)]
    return sum(queue.dropped for queue in queues) / sum(queue.offered for queue in queues)


def together(result: NetworkResult, flows: int) -> DelayDistribution:
    """Return the delays of the first flows of a simulation as one distribution."""
    parts = [(flow.delays, flow.delivered) for flow in result.flows[:flows] if flow.delays is not None]
    values = np.concatenate([delays.values for delays, _ in parts])
    weights = np.concatenate([delays.weights * packets for delays, packets in parts])
    order = np.argsort(values, kind="stable")
    distinct, places = np.unique(values[order], return_inverse=True)
    summed = np.bincount(places, weights[order])
    return DelayDistribution(distinct, summed / summed.sum(), parts[0][0].one_way_delay)


def compare(capture: FlowCapture) -> dict[str, str | float]:
    """Return the measured and the simulated figures."""
    settings = capture.settings
    result = simulate(capture, REPETITIONS, SKIP, 1)
    simulated = together(result, settings["flows"])
    measured = capture.delays(SKIP)
    packets = capture.runs[0].packets
    dropped = packets["bottleneck_dropped"]
    row: dict[str, str | float] = {
        "capture": capture.name,
        "loss_measured": dropped / (dropped + packets["bottleneck_sent"]),
        "loss_simulated": simulated_loss(capture),
    }
    intervals = {"mean": mean_interval(measured)}
    intervals |= {name: quantile_interval(measured, probability) for name, probability in QUANTILES.items()}
    values = {"mean": simulated.mean} | {name: simulated.quantile(p) for name, p in QUANTILES.items()}
    for name, interval in intervals.items():
        row |= {
            f"{name}_measured": interval.value,
            f"{name}_low": interval.low,
            f"{name}_high": interval.high,
            f"{name}_simulated": values[name],
            f"{name}_error": values[name] / interval.value - 1,
        }
    row["loss_error"] = float(row["loss_simulated"]) / float(row["loss_measured"]) - 1
    return row


def main() -> None:
    """Write the table of all comparisons, and print a summary."""
    rows = []
    with ProcessPoolExecutor() as pool:
        for row in pool.map(compare, read_captures(HERE / "captures" / "drop-tail.parquet")):
            rows.append(row)
            figures = ", ".join(
                f"{name} {row[f'{name}_measured']:.4g} {row[f'{name}_simulated']:.4g}"
                for name in ("loss", "mean", *QUANTILES)
            )
            print(f"{row['capture']}: {figures}", file=sys.stderr)
    with (HERE / "results" / "drop-tail-simulation.csv").open("w", newline="", encoding="utf-8") as output:
        table = csv.DictWriter(output, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        )
    print(f"{len(rows)} captures behind a drop-tail router; simulated / measured - 1:")
    for name in ("loss", "mean", *QUANTILES):
        errors = np.array([float(row[f"{name}_error"]) for row in rows])
        print(
            f"  {name:<5} median {np.median(errors):+.1%}, 90 % within {np.quantile(np.abs(errors), 0.9):.1%}, "
            f"largest {errors[np.argmax(np.abs(errors))]:+.1%}"
        )


if __name__ == "__main__":
    main()
