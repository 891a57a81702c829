"""MIN_BUF: simulate the published scenario, and compare TCP_NOTSENT_LOWAT with captures of the kernel.

`python validation/protocols/min_buf.py` writes `validation/results/protocols/min_buf.csv` and `notsent_lowat.csv`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tables import write_table

import tcpdelay as td
from tcpdelay.capture.flow_capture import FlowCapture, read_capture
from tcpdelay.confidence import student
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.literature.min_buf import MinBuf
from tcpdelay.network.result import FlowResult
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import Bulk, ConstantRate, Source, Transfers
from tcpdelay.network.stacks import Classic, Udp
from tcpdelay.scenario.stack import Stack

VALIDATION = Path(__file__).parents[1]
PUBLISHED = VALIDATION / "published" / "minbuf_30mbps.csv"
CAPTURES = VALIDATION / "captures" / "heuristics"
SEEDS = range(1, 9)
PROCESSES = 2

ELEPHANTS, MICE, MOUSE_SIZE, DATAGRAM = 15, 80, 20_000, 1000
ELEPHANTS_FROM, MICE_FROM, DATAGRAMS_FROM, ELEPHANTS_UNTIL, END = 5.0, 20.0, 40.0, 60.0, 75.0
DATAGRAM_SHARE = 0.1
SEND_BUFFER = 65_536
FRAME = 1500
JITTER = 0.001
"""Random delay of the ACKs [s], which prevents phase effects of exactly constant paths."""
START_WINDOW = 0.1
"""The sources of a group begin at random within this time [s]."""
NO_LIMIT = 4 << 20
"""A limit of unsent bytes that is never reached; the source still waits for `poll`."""
RATES, RTTS, QUEUES = (30e6, 12e6), (0.100, 0.050, 0.025), (0.25, 1.0)
STREAMS = {"std": None, "m10": MinBuf(1, 0), "m13": MinBuf(1, 3), "m20": MinBuf(2, 0)}
STACKS: dict[str, Stack] = {
    # Linux 2.4: ticks of 10 ms, timeouts from 200 ms, windows of 64 KB, delayed ACKs.
    "classic-sack": Classic(
        recovery="sack", receiver_window=44, limited_transmit=True, tick=0.01, rto_min=0.2, ack_delay=0.04
    ),
    "linux": td.Stack.linux(delayed_ack=True),
}
FIGURES = (
    "d200",
    "d500",
    "mean_ms",
    "sender_ms",
    "network_ms",
    "receiver_ms",
    "throughput_mbps",
    "normalized_throughput",
)


@dataclass(frozen=True)
class Scenario:
    """A row of the table: the stack, the link, and the send buffer of the measured stream."""

    stack: str
    discipline: str
    rate: float
    rtt: float
    queue: float
    stream: str

    @property
    def packets(self) -> float:
        """One bandwidth-delay product [packets]."""
        return self.rate * self.rtt / 8 / FRAME

    @property
    def bottleneck(self) -> Bottleneck:
        """The shared link."""
        if self.discipline == "ecn":
            return Bottleneck(
                self.rate, 2 * round(self.packets) + 1, discipline="dred", bandwidth_delay_product=self.packets
            )
        return Bottleneck(self.rate, max(round(self.queue * self.packets), 2))

    def sources(self, seed: int) -> list[Source]:
        """Return the measured stream and all other sources, which begin at random within a short time."""
        random = np.random.default_rng(seed)
        path = SharedPath(self.rtt / 2, return_jitter=JITTER)
        common = {"path": path, "stack": STACKS[self.stack], "ecn": self.discipline == "ecn"}
        min_buf = STREAMS[self.stream]

        def starts(first: float, number: int) -> list[float]:
            return [first + float(later) for later in random.uniform(0, START_WINDOW, number)]

        datagrams = td.Flow.from_bitrate(DATAGRAM_SHARE * self.rate, packet_size=DATAGRAM)
        return [
            Bulk(**common, min_buf=min_buf, send_buffer=None if min_buf else SEND_BUFFER),
            *(
                Bulk(**common, send_buffer=SEND_BUFFER, start=start, stop=ELEPHANTS_UNTIL)
                for start in starts(ELEPHANTS_FROM, ELEPHANTS)
            ),
            *(Transfers(**common, mean_size=MOUSE_SIZE, start=start) for start in starts(MICE_FROM, MICE)),
            ConstantRate(flow=datagrams, path=path, stack=Udp(), start=DATAGRAMS_FROM),
        ]


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios of all rows, the four streams of a scenario one after another."""
    for stack, rate, rtt in product(STACKS, RATES, RTTS):
        for discipline, queue in (*(("drop-tail", queue) for queue in QUEUES), ("ecn", 2.0)):
            for stream in STREAMS:
                yield Scenario(stack, discipline, rate, rtt, queue, stream)


def simulate(scenario: Scenario) -> list[dict[str, float]]:
    """Return the figures of the measured stream for each seed."""
    return [
        figures_of(simulate_network(scenario.sources(seed), scenario.bottleneck, duration=END, seed=seed).flows[0])
        for seed in SEEDS
    ]


def figures_of(flow: FlowResult) -> dict[str, float]:
    """Return the shares of packets in time, the parts of the mean delay, and the rate of a flow."""
    if flow.delays is None:
        raise ValueError(f"nothing was delivered of {flow.name}")
    return {
        "d200": float(flow.delays.cdf(0.2)),
        "d500": float(flow.delays.cdf(0.5)),
        "mean_ms": 1e3 * flow.delays.mean,
        "sender_ms": 1e3 * flow.sender_delay,
        "network_ms": 1e3 * flow.network_delay,
        "receiver_ms": 1e3 * flow.receiver_delay,
        "throughput_mbps": flow.throughput / 1e6,
    }


def summary(values: list[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval."""
    mean, half_width = student(np.ones(len(values)), np.array(values))
    return float(mean), float(half_width)


def published() -> dict[tuple[str, float], dict[str, str]]:
    """Return the published rows, by stream and round-trip time."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {(row["stream"], float(row["rtt_ms"]) / 1e3): row for row in rows}


def network_rows() -> list[dict[str, object]]:
    """Simulate all scenarios; rows have the published figures where they exist."""
    known, rows = published(), []
    everything = list(scenarios())
    standard = 0.0
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for number, (scenario, runs) in enumerate(zip(everything, pool.map(simulate, everything), strict=True)):
            if scenario.stream == "std":
                standard = float(np.mean([run["throughput_mbps"] for run in runs]))
            row: dict[str, object] = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
            for run in runs:
                run["normalized_throughput"] = run["throughput_mbps"] / standard
            for name in FIGURES:
                row[name], row[f"{name}_ci95"] = summary([run[name] for run in runs])
            figures = known.get((scenario.stream, scenario.rtt), {}) if scenario.rate == 30e6 else {}
            for name in ("d200", "d500", "mean_ms", "normalized_throughput"):
                row[f"published_{name}"] = figures.get(name, "") if scenario.discipline == "drop-tail" else ""
            rows.append(row)
            print(f"{number + 1}/{len(everything)} {scenario}: {row['mean_ms']:.4g} ms", file=sys.stderr)
    return rows


def capture_scenario(capture: FlowCapture, **admission: object) -> tuple[list[Source], Bottleneck]:
    """Return the sources and the link of a capture's experiment."""
    experiment, hz = capture.settings, capture.runs[0].hz
    path = SharedPath(experiment["rtt"] / 2, loss=experiment["loss"], in_host=True)
    control = experiment["congestion_control"]
    stack = td.Stack.linux(congestion_control=control, hz=hz, delayed_ack=experiment["delayed_ack"])
    sources: list[Source] = [
        Bulk(path=path, stack=stack, packet_size=experiment["packet_size"], header=66, **admission)
    ]
    bulk = td.Stack.linux(congestion_control=control, hz=hz, delayed_ack=True)
    sources += [Bulk(path=path, stack=bulk, header=66) for _ in range(experiment["bulk_flows"])]
    if experiment["bottleneck_rate"] is None:
        return sources, Bottleneck(1e12, 60_000)
    return sources, Bottleneck(experiment["bottleneck_rate"], experiment["queue_packets"], burst=2000)


def compare(file: Path) -> list[dict[str, object]]:
    """Return the measured figures, and the simulated figures with the same limit and with each MIN_BUF."""
    capture = read_capture(file)
    experiment = capture.settings
    limit = experiment["notsent_lowat"]
    measured = np.concatenate([run.delays for run in capture.runs])
    measured = measured[np.isfinite(measured)]
    seconds = experiment["duration"] * len({run.run for run in capture.runs})
    base = {
        "capture": capture.name,
        "rate": experiment["bottleneck_rate"] or "",
        "control": experiment["congestion_control"],
        "hz": capture.runs[0].hz,
        "notsent_lowat": limit or "",
    }
    rows: list[dict[str, object]] = [
        base
        | {
            "what": "measured",
            "mean_ms": 1e3 * measured.mean(),
            "p50_ms": 1e3 * np.quantile(measured, 0.5, method="inverted_cdf"),
            "p95_ms": 1e3 * np.quantile(measured, 0.95, method="inverted_cdf"),
            "throughput_mbps": 8 * experiment["packet_size"] * measured.size / seconds / 1e6,
        }
    ]
    ways: dict[str, dict[str, object]] = {"simulated": {"notsent_lowat": limit or NO_LIMIT}}
    if limit:
        ways |= {f"MIN_BUF({a},{b})": {"min_buf": MinBuf(a, b)} for a, b in ((1, 0), (1, 1), (1, 3), (1, 6), (2, 0))}
    for what, admission in ways.items():
        runs = []
        for seed in SEEDS:
            sources, link = capture_scenario(capture, **admission)
            flow = simulate_network(sources, link, duration=experiment["duration"], seed=seed).flows[0]
            if flow.delays is None:
                raise ValueError(f"nothing was delivered in {capture.name}")
            runs.append(
                {
                    "mean_ms": 1e3 * flow.delays.mean,
                    "p50_ms": 1e3 * float(flow.delays.quantile(0.5)),
                    "p95_ms": 1e3 * float(flow.delays.quantile(0.95)),
                    "throughput_mbps": flow.throughput / 1e6,
                }
            )
        row = base | {"what": what}
        for name in runs[0]:
            row[name], row[f"{name}_ci95"] = summary([run[name] for run in runs])
        rows.append(row)
    print(f"{capture.name}: " + ", ".join(f"{row['what']} {row['mean_ms']:.4g}" for row in rows), file=sys.stderr)
    return rows


def capture_rows() -> list[dict[str, object]]:
    """Compare all captures of the adaptive source."""
    files = sorted(CAPTURES.glob("adaptive-*.parquet"))
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        return [row for rows in pool.map(compare, files) for row in rows]


def main() -> None:
    """Write both tables."""
    write_table("notsent_lowat", capture_rows(), digits=5)
    write_table("min_buf", network_rows(), digits=5)


if __name__ == "__main__":
    main()
