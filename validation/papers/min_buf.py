"""MIN_BUF: simulate the published scenario, and compare TCP_NOTSENT_LOWAT with captures of the kernel.

`python validation/papers/min_buf.py [scenario] [wake-up] [captures]` writes `min_buf.csv` and `min_buf-published.csv`,
`min_buf-wake-up.csv`, and `notsent_lowat.csv` in `validation/results/papers/`; all by default.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import numpy as np
from comparison import Figure, interval_over_seeds, published_figures, write_comparison, write_table

import tcpdelay as td
from tcpdelay.capture.flow_capture import FlowCapture, read_captures
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.linux import MinBuf
from tcpdelay.sim.network.result import FlowResult
from tcpdelay.sim.network.simulation import simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Source, Transfers
from tcpdelay.sim.network.stacks import Classic, Udp
from tcpdelay.statistics import Interval, student

CAPTURES = Path(__file__).parents[1] / "captures" / "heuristics.parquet"
SEEDS = range(1, 5)
PROCESSES = 2

ELEPHANTS, MOUSE_SIZE, DATAGRAM = 15, 20_000, 1000
ELEPHANTS_FROM, MICE_FROM, DATAGRAMS_FROM, ELEPHANTS_UNTIL, OTHERS_UNTIL, END = 5.0, 20.0, 40.0, 60.0, 75.0, 80.0
DATAGRAM_SHARE = 0.1
MICE_SHARE = {"drop-tail": 0.3, "ecn": 0.5}
"""Share of the bandwidth that the mice have; the paper chose their number for it."""
PUBLISHED_MICE = 80
"""Their number in the condition that Figures 2 and 7 show."""
SEND_BUFFER = 65_536
FRAME = 1500
JITTER = 0.001
"""Random delay of the ACKs [s], which prevents phase effects of exactly constant paths."""
START_WINDOW = 0.1
"""The sources of a group begin at random within this time [s]."""
NO_LIMIT = 4 << 20
"""A limit of unsent bytes that is never reached; the source still waits for `poll`."""
RATES, RTTS = (30e6, 12e6), (0.100, 0.050, 0.025)
QUEUE, SHORT_QUEUE = 1.0, 0.25
"""Length of the queue in bandwidth-delay products: as the paper suggests, and as a variation."""
WAKE_UPS = (0.0, 0.002, 0.010)
STREAMS = {"std": None, "m10": MinBuf(1, 0), "m13": MinBuf(1, 3), "m20": MinBuf(2, 0)}
NAMES = {"std": "64 KB", "m10": "MIN_BUF(1, 0)", "m13": "MIN_BUF(1, 3)", "m20": "MIN_BUF(2, 0)"}
STACK = Classic(
    recovery="sack",
    receiver_window=44,
    limited_transmit=True,
    tick=0.01,
    rto_min=0.2,
    ack_delay=0.04,
    window_validation=True,
)
"""Linux 2.4: ticks of 10 ms, timeouts from 200 ms, windows of 64 KB, delayed ACKs, congestion window validation."""
QUANTITIES = {
    "share within 200 ms": "d200",
    "share within 500 ms": "d500",
    "mean delay": "mean_ms",
    "normalized throughput": "normalized_throughput",
    "largest delay, at most the axis": "worst_ms",
}
SCHEDULED_LATE = "the published sender lost rate because its process was scheduled late; ours writes at once"
RARE = "the largest of some 20 000 delays depends on single timeouts"
REASONS = {
    "Table I": "as Table II",
    "Table II": "the length of the router's queue is not published; with a quarter of a bandwidth-delay product the "
    "means differ less. With 64 KB the delay is 64 KB over the stream's rate, which is not published either",
    "Table III": SCHEDULED_LATE,
    "Section II-B": SCHEDULED_LATE,
    "Fig. 2": "Linux 2.4 starts a connection with the ssthresh of the last connection to the same host, and a file of "
    "the testbed waits for its process; neither is simulated, so that our mice send more",
    "Fig. 3": RARE,
    "Fig. 4": RARE,
}


@dataclass(frozen=True)
class Scenario:
    """A row of the table: the link, the send buffer of the measured stream, and the number of mice."""

    discipline: str
    rate: float
    rtt: float
    queue: float
    stream: str = "m10"
    mice: int = 20
    wake_up: float = 0.0

    @property
    def packets(self) -> float:
        """One bandwidth-delay product [packets]."""
        return self.rate * self.rtt / 8 / FRAME

    @property
    def condition(self) -> str:
        """The condition of the published figures."""
        return f"{self.rate / 1e6:.0f} Mbit/s, RTT {self.rtt * 1e3:.0f} ms, {NAMES[self.stream]}"

    @property
    def bottleneck(self) -> Bottleneck:
        """The shared link."""
        if self.discipline == "ecn":
            return Bottleneck(
                self.rate, 2 * round(self.packets) + 1, discipline="dred", bandwidth_delay_product=self.packets
            )
        return Bottleneck(self.rate, max(round(self.queue * self.packets), 2))

    def sources(self, seed: int) -> list[Source]:
        """Return the measured stream, the elephants, the CBR traffic and the mice, in this order."""
        random = np.random.default_rng(seed)
        path = SharedPath(self.rtt / 2, return_jitter=JITTER)
        common = {"path": path, "stack": STACK, "ecn": self.discipline == "ecn"}
        min_buf = STREAMS[self.stream]

        def starts(first: float, number: int) -> list[float]:
            return [first + float(later) for later in random.uniform(0, START_WINDOW, number)]

        datagrams = replace(td.Flow.from_bitrate(DATAGRAM_SHARE * self.rate, DATAGRAM), write_jitter=0.0)
        return [
            Bulk(**common, min_buf=min_buf, send_buffer=None if min_buf else SEND_BUFFER, wake_up=self.wake_up),
            *(
                Bulk(**common, send_buffer=SEND_BUFFER, start=start, stop=ELEPHANTS_UNTIL)
                for start in starts(ELEPHANTS_FROM, ELEPHANTS)
            ),
            ConstantRate(flow=datagrams, path=path, stack=Udp(), start=DATAGRAMS_FROM, stop=OTHERS_UNTIL),
            *(
                Transfers(**common, mean_size=MOUSE_SIZE, start=start, stop=OTHERS_UNTIL)
                for start in starts(MICE_FROM, self.mice)
            ),
        ]

    def share_of_mice(self, seed: int) -> float:
        """Return the share of the bandwidth that the mice have while all or most other flows send."""
        found = simulate_network(
            self.sources(seed), self.bottleneck, duration=ELEPHANTS_UNTIL, warm_up=MICE_FROM, seed=seed
        )
        return sum(flow.throughput for flow in found.flows[-self.mice :]) / self.rate


def with_mice(scenario: Scenario) -> Scenario:
    """Return the scenario with the number of mice that have the share of the paper, to 0.02."""
    wanted = MICE_SHARE[scenario.discipline]
    for _ in range(5):
        share = scenario.share_of_mice(SEEDS[0])
        if abs(share - wanted) < 0.02:
            break
        # The share saturates: it grows as n / (n + constant).
        odds = wanted / (1 - wanted) * (1 - share) / share
        scenario = replace(scenario, mice=max(round(scenario.mice * odds), 1))
    print(f"{scenario}: mice have {share:.3f}", file=sys.stderr)
    return scenario


def scenarios() -> Iterator[list[Scenario]]:
    """Yield the conditions of all rows: as published, with ECN where the paper shows it, and with a short queue."""
    links = [Scenario("drop-tail", rate, rtt, QUEUE) for rate, rtt in product(RATES, RTTS)]
    yield links
    yield [replace(links[0], discipline="ecn", queue=2 * QUEUE)]
    yield [replace(link, queue=SHORT_QUEUE) for link in links]


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
        "worst_ms": 1e3 * flow.delays.worst,
        "sender_ms": 1e3 * flow.sender_delay,
        "network_ms": 1e3 * flow.network_delay,
        "receiver_ms": 1e3 * flow.receiver_delay,
        "retransmissions": float(flow.retransmissions),
        "timeouts": float(flow.timeouts),
        "throughput_mbps": flow.throughput / 1e6,
    }


Runs = dict[Scenario, list[dict[str, float]]]


def simulate_all(scenarios: Iterable[Scenario], pool: ProcessPoolExecutor) -> Runs:
    """Simulate scenarios, the standard stream of a condition before the others, and normalize the throughput."""
    every = list(scenarios)
    found: Runs = {}
    standard = 0.0
    for scenario, runs in zip(every, pool.map(simulate, every), strict=True):
        if scenario.stream == "std":
            standard = fmean(run["throughput_mbps"] for run in runs)
        found[scenario] = [run | {"normalized_throughput": run["throughput_mbps"] / standard} for run in runs]
        print(f"{len(found)}/{len(every)} {scenario}: {fmean(run['mean_ms'] for run in runs):.4g} ms", file=sys.stderr)
    return found


def summary(values: list[float]) -> tuple[float, float]:
    """Return the mean over seeds and half of its 95 % interval."""
    mean, half_width = student(np.ones(len(values)), np.array(values))
    return float(mean), float(half_width)


def write_runs(name: str, found: Runs) -> None:
    """Write the means over the seeds of all scenarios."""
    rows = []
    for scenario, runs in found.items():
        row: dict[str, object] = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
        for figure in runs[0]:
            row[figure], row[f"{figure}_ci95"] = summary([run[figure] for run in runs])
        rows.append(row)
    write_table(name, rows, digits=5)


def write_published(found: Runs, shares: dict[str, Interval]) -> None:
    """Write each published figure beside ours; `shares` has the share of 80 mice for each figure that shows it."""
    by_condition = {
        scenario.condition: runs
        for scenario, runs in found.items()
        if (scenario.discipline, scenario.queue) == ("drop-tail", QUEUE)
    }

    def over_seeds(condition: str, quantity: str) -> Interval:
        return interval_over_seeds([run[QUANTITIES[quantity]] for run in by_condition[condition]])

    def of_all_conditions(stream: str) -> list[str]:
        return [condition for condition in by_condition if condition.endswith(NAMES[stream])]

    ours: dict[Figure, Interval] = {}
    for figure in published_figures("min_buf"):
        if figure.item in shares:
            ours[figure] = shares[figure.item]
        elif figure.item == "Section II":
            ours[figure] = Interval(*[1e3 * 8 * SEND_BUFFER / 300e3] * 3)
        elif figure.item == "Section II-B":
            alike = of_all_conditions("m10")
            rates = [[run[QUANTITIES[figure.quantity]] for run in by_condition[each]] for each in alike]
            ours[figure] = interval_over_seeds([fmean(of_seed) for of_seed in zip(*rates, strict=True)])
        elif figure.item == "Section IV-B":
            alike = of_all_conditions("m13")
            ours[figure] = min((over_seeds(each, figure.quantity) for each in alike), key=lambda each: each.value)
        else:
            ours[figure] = over_seeds(figure.condition, figure.quantity)
    write_comparison("min_buf", ours, REASONS)


def write_scenario() -> None:
    """Simulate the published scenario; write all figures, and the published figures beside ours."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        found: Runs = {}
        for conditions in scenarios():
            found |= simulate_all(
                (
                    replace(link, stream=stream)
                    for link in pool.map(with_mice, conditions)
                    for stream in (STREAMS if link.queue >= QUEUE else ("std", "m10"))
                ),
                pool,
            )
            write_runs("min_buf", found)
        shares = {}
        for item, discipline in (("Fig. 2", "drop-tail"), ("Fig. 7", "ecn")):
            shown = Scenario(discipline, RATES[0], RTTS[0], QUEUE, mice=PUBLISHED_MICE)
            shares[item] = interval_over_seeds(list(pool.map(shown.share_of_mice, SEEDS)))
    write_published(found, shares)


def write_wake_up() -> None:
    """Simulate the published scenario with a process of the source that is scheduled late."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        link = with_mice(Scenario("drop-tail", min(RATES), max(RTTS), QUEUE))
        late = (replace(link, stream=stream, wake_up=wake_up) for wake_up, stream in product(WAKE_UPS, STREAMS))
        write_runs("min_buf-wake-up", simulate_all(late, pool))


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


def compare(capture: FlowCapture) -> list[dict[str, object]]:
    """Return the measured figures, and the simulated figures with the same limit and with each MIN_BUF."""
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


def write_captures() -> None:
    """Compare all captures of the adaptive source."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        rows = [row for rows in pool.map(compare, read_captures(CAPTURES, "adaptive-*")) for row in rows]
    write_table("notsent_lowat", rows, digits=5)


PARTS: dict[str, Callable[[], None]] = {
    "scenario": write_scenario,
    "wake-up": write_wake_up,
    "captures": write_captures,
}


def main() -> None:
    """Write the chosen tables."""
    parser = argparse.ArgumentParser(description="Compute the figures of MIN_BUF anew.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    chosen = parser.parse_args().parts or list(PARTS)
    if not set(chosen) <= set(PARTS):
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {' '.join(chosen)!r}")
    for part in chosen:
        PARTS[part]()


if __name__ == "__main__":
    main()
