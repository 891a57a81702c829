"""TCP-RC: delays and forged packets by loss and round-trip time, compared with the same TCP without forging.

`python validation/protocols/tcp_rc.py` writes `validation/results/protocols/tcp_rc.csv`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import product
from multiprocessing import get_context

import numpy as np
from tables import write_table

import tcpdelay as td
from tcpdelay.confidence import student
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import ConstantRate
from tcpdelay.network.stacks import Classic, Recovery

SEEDS = range(1, 9)
PROCESSES = 2
DURATION, WARM_UP = 600.0, 10.0
PACKET_SIZE = 500
RECOVERIES: tuple[Recovery, ...] = ("reno", "sack", "newreno")
INTERVALS, RTTS, LOSSES = (0.020, 0.010), (0.030, 0.060, 0.120), (0.0025, 0.005, 0.01, 0.015, 0.02)
FAST = Bottleneck(1e9, 10_000)


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    recovery: Recovery
    interval: float
    rtt: float
    loss: float
    forging: bool

    def source(self) -> ConstantRate:
        """Return the flow, with the timers of Linux 2.4."""
        return ConstantRate(
            flow=td.Flow(PACKET_SIZE, self.interval),
            path=SharedPath(self.rtt / 2, loss=self.loss),
            stack=Classic(recovery=self.recovery, tick=0.01, rto_min=0.2),
            forging=self.forging,
        )


def simulate(scenario: Scenario) -> dict[str, object]:
    """Return the means over seeds and halves of their 95 % intervals."""
    runs = []
    for seed in SEEDS:
        (flow,) = simulate_network([scenario.source()], FAST, duration=DURATION, warm_up=WARM_UP, seed=seed).flows
        if flow.delays is None:
            raise ValueError(f"nothing was delivered in {scenario}")
        runs.append(
            {
                "mean_ms": 1e3 * flow.delays.mean,
                "p50_ms": 1e3 * float(flow.delays.quantile(0.5)),
                "p99_ms": 1e3 * float(flow.delays.quantile(0.99)),
                "largest_ms": 1e3 * flow.delays.worst,
                "sender_ms": 1e3 * flow.sender_delay,
                "receiver_ms": 1e3 * flow.receiver_delay,
                "forged_percent": 100 * flow.lost / flow.offered,
                "sent_again_percent": 100 * flow.retransmissions / flow.offered,
                "timeouts": float(flow.timeouts),
                "throughput_kbps": flow.throughput / 1e3,
            }
        )
    row: dict[str, object] = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
    for name in runs[0]:
        values = np.array([run[name] for run in runs])
        row[name], row[f"{name}_ci95"] = student(np.ones(values.size), values)
    return row


def main() -> None:
    """Write the table."""
    scenarios = [Scenario(*values) for values in product(RECOVERIES, INTERVALS, RTTS, LOSSES, (False, True))]
    rows = []
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for scenario, row in zip(scenarios, pool.map(simulate, scenarios, chunksize=4), strict=True):
            print(f"{scenario}: {row['mean_ms']:.4g} ms", file=sys.stderr)
            rows.append(row)
    write_table("tcp_rc", rows, digits=5)


if __name__ == "__main__":
    main()
