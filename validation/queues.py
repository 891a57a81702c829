"""Compare simulated queues with the kernel's, on the captures of `queue-captures/`: `python validation/queues.py`.

It writes `results/queues.csv` with one line per capture, and `results/queues.md` with the errors of each queue.
`specs/queues/` makes the captures again.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from drop_tail_simulation import BURST, sources_of, together
from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.sim.network.bottleneck import Bottleneck
from tcpdelay.sim.network.result import NetworkResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.statistics import quantile_interval

HERE = Path(__file__).parent
QUEUES = ("codel", "fq_codel", "pie", "cake", "dualpi2", "tbf", "policer")
"""Queues by the names in the table; "tbf" is a first-in first-out queue behind a token bucket of several packets."""
SKIP = 10.0
"""Time at the start of every capture and simulation that is left out of the delays [s]: slow start of the long
transfers."""
SEEDS = 6
"""Number of simulations of each capture."""
ALLOWED = {0.5: 0.05, 0.9: 0.10}
"""Largest errors that are allowed in the median and in nine of ten captures."""


def bottleneck_of(capture: FlowCapture) -> Bottleneck:
    """Return the link of a capture, whose queue has the kernel's defaults."""
    settings = capture.settings
    managed = settings.get("queue", "fifo")
    burst = settings.get("burst") or (0 if managed == "cake" else BURST)
    # The kernel rounds PIE's update interval up to whole ticks.
    hz = capture.runs[0].hz
    interval = -(-15 * hz // 1000) / hz if managed == "pie" else None
    discipline = "drop-tail" if managed == "fifo" else managed
    in_bytes = settings.get("queue_bytes") is not None
    return Bottleneck(
        settings["bottleneck_rate"],
        settings["queue_bytes" if in_bytes else "queue_packets"],
        unit="bytes" if in_bytes else "packets",
        discipline=discipline,
        interval=interval,
        burst=burst,
        peak_rate=settings.get("peak_rate"),
    )


def simulate(capture: FlowCapture, skip: float, seed: int) -> NetworkResult:
    """Simulate a capture's experiment for its duration, without the first `skip` seconds."""
    sources, duration = sources_of(capture), capture.settings["duration"]
    return simulate_network(sources, bottleneck_of(capture), duration=duration, warm_up=skip, seed=seed)


def seeds_of(capture: FlowCapture) -> list[int]:
    """Return the seeds of the simulations: those that repeat the messages of the capture, or different ones."""
    if "source" not in capture.settings:
        return list(range(1, SEEDS + 1))
    return [
        SourceSettings.from_table(capture.settings["source"], recorded=True).seed + number for number in range(SEEDS)
    ]


def signalled(result: NetworkResult) -> float:
    """Return the share of packets that a simulated queue has dropped or marked."""
    return (result.queue.dropped + result.queue.marked) / result.queue.offered


def compare(capture: FlowCapture) -> dict[str, str | float]:
    """Return the measured and the simulated figures of a capture."""
    settings, counts = capture.settings, capture.runs[0].packets
    runs = [simulate(capture, SKIP, seed) for seed in seeds_of(capture)]
    p95s = [together(run, settings["flows"]).quantile(0.95) for run in runs]
    measured = quantile_interval(capture.delays(SKIP), 0.95)
    # The router counts all packets of the experiment.
    shares = [signalled(simulate(capture, 0.0, seed)) for seed in seeds_of(capture)]
    signals = counts["bottleneck_dropped"] + counts.get("bottleneck_marked", 0)
    share = signals / (counts["bottleneck_dropped"] + counts["bottleneck_sent"])
    return {
        "queue": settings.get("queue", "tbf"),
        "capture": capture.name,
        "p95_measured": measured.value,
        "p95_low": measured.low,
        "p95_high": measured.high,
        "p95_simulated": float(np.mean(p95s)),
        "p95_deviation": float(np.std(p95s, ddof=1)),
        "p95_error": float(np.mean(p95s)) / measured.value - 1,
        "signals": signals,
        "share_measured": share,
        "share_simulated": float(np.mean(shares)),
        "share_deviation": float(np.std(shares, ddof=1)),
        "share_error": float(np.mean(shares)) / share - 1 if signals else float("nan"),
    }


def summary(rows: pd.DataFrame) -> str:
    """Return the table of the errors, by queue and of all captures."""
    lines = [
        f"Simulated figures against {len(rows)} captures. Allowed: "
        + ", ".join(f"{error:.0%} in {share:.0%} of the captures" for share, error in ALLOWED.items())
        + ". Deviation: standard deviation of simulations of a capture's length.",
        "",
        "| queue | figure | captures | median error | nine of ten within | largest | within two deviations |",
        "|---|---|---|---|---|---|---|",
    ]
    for queue in (*QUEUES, "all"):
        part = rows if queue == "all" else rows[rows.queue == queue]
        for figure, name in (("p95", "95th percentile"), ("share", "drops and marks")):
            chosen = part[part.signals > 0] if figure == "share" else part
            errors = chosen[f"{figure}_error"].abs()
            off = (chosen[f"{figure}_simulated"] - chosen[f"{figure}_measured"]).abs()
            # Two captures of one experiment differ by chance as two simulations of its length do.
            inside = (off <= 2 * chosen[f"{figure}_deviation"]).mean()
            lines.append(
                f"| {queue} | {name} | {len(chosen)} | {errors.median():.1%} | {errors.quantile(0.9):.1%} | "
                f"{errors.max():.1%} | {inside:.0%} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Write the tables."""
    sets = [HERE / "queue-captures" / f"{queue.replace('_', '-')}.parquet" for queue in QUEUES]
    rows = []
    with ProcessPoolExecutor() as pool:
        for found in pool.map(compare, chain.from_iterable(map(read_captures, sets))):
            rows.append(found)
            print(
                f"{found['capture']}: "
                f"p95 {found['p95_measured']:.4f} {found['p95_simulated']:.4f} {found['p95_error']:+.1%}, "
                f"share {found['share_measured']:.5f} {found['share_simulated']:.5f} {found['share_error']:+.1%} "
                f"of {found['signals']} (deviation {found['share_deviation'] / (found['share_simulated'] or 1):.1%})",
                file=sys.stderr,
            )
    table = pd.DataFrame(rows)
    table.to_csv(HERE / "results" / "queues.csv", index=False, float_format="%.6g", lineterminator="\n")
    (HERE / "results" / "queues.md").write_text(summary(table) + "\n", encoding="utf-8")
    print(summary(table))


if __name__ == "__main__":
    main()
