"""Time-lined TCP in the scenario of its thesis: fairness to TCP, jumps at deadlines, and data read in time.

`python validation/protocols/timelined.py` writes `validation/results/protocols/timelined-*.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tables import write_table

import tcpdelay as td
from tcpdelay.confidence import student
from tcpdelay.models.simulator.records import RING
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.preparation import prepare
from tcpdelay.network.result import FlowResult
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import Bulk, ConstantRate, Sections, Source
from tcpdelay.network.stacks import Classic, TimeLined, Udp
from tcpdelay.scenario.stack import Stack

SEEDS = range(1, 17)
DURATION, WARM_UP = 500.0, 50.0
LINK = Bottleneck(rate=1.5e6, capacity=400)
ACCESS_DELAY, ACCESS_RATE = 0.002, 10e6
PACKET, ACK, MSS = 1500, 40, 1460
SECTION, INTERVAL = 700_000, 5.0
"""Size of a section [bytes], and time between two sections [s]."""
JITTER = 8 * PACKET / LINK.rate
"""Largest random delay of an ACK [s]: the time of one packet on the link."""
FIGURES = "F", "S", "F_tcp", "S_tcp", "F_best", "F_worst", "lost", "timeouts", "timeouts_tcp"
Row = Mapping[str, str | float]


@dataclass(frozen=True)
class Scenario:
    """The published scenario: the first half of the flows is time-lined, the second half is TCP."""

    flows: int = 10
    window: int = 10
    delay: float = 0.020
    interval: float = INTERVAL
    size: int = SECTION
    deadline: float = INTERVAL

    @property
    def path(self) -> SharedPath:
        """The path over the link, including the transmission times of a packet and an ACK on the other, idle links."""
        there = ACCESS_DELAY + 8 * PACKET / ACCESS_RATE
        back = 8 * ACK * (2 / ACCESS_RATE + 1 / LINK.rate)
        return SharedPath(there, self.delay + there, self.delay + 2 * ACCESS_DELAY + back, return_jitter=JITTER)

    def _settings(self) -> dict[str, int]:
        return {"mss": MSS, "receiver_window": self.window, "initial_window": 1}

    def time_lined(self, start: float) -> Source:
        """Return a flow of sections over Time-lined TCP."""
        stack = TimeLined(deadline=self.deadline, **self._settings())
        return Sections(path=self.path, stack=stack, size=self.size, interval=self.interval, start=start)

    def sections_over_tcp(self, start: float) -> Source:
        """Return the same sections over TCP."""
        stack = Classic("reno", **self._settings())
        return Sections(path=self.path, stack=stack, size=self.size, interval=self.interval, start=start)

    def tcp(self, start: float) -> Source:
        """Return a TCP flow that always has data."""
        return Bulk(path=self.path, stack=Classic("reno", **self._settings()), start=start)

    def sources(self, first_half: Callable[[float], Source], seed: int) -> list[Source]:
        """Return all flows; each starts at random within the interval of a section, and the second half is TCP."""
        starts = np.random.default_rng(seed).uniform(0, INTERVAL, self.flows)
        half = self.flows // 2
        return [(first_half if number < half else self.tcp)(float(start)) for number, start in enumerate(starts)]

    def simulate(self, first_half: Callable[[float], Source], seed: int) -> tuple[FlowResult, ...]:
        """Return the results of all flows."""
        return simulate_network(
            self.sources(first_half, seed), LINK, duration=DURATION, warm_up=WARM_UP, seed=seed
        ).flows


def sweeps() -> Iterable[tuple[str, float, Scenario]]:
    """Yield each scenario with the name and the value of the varied parameter."""
    for flows in (2, 10, 20, 30, 40, 44, 50):
        yield "flows", flows, Scenario(flows=flows)
    for window in (5, 10, 20, 40, 50, 60, 80):
        yield "window", window, Scenario(window=window)
    for delay in (0.005, 0.010, 0.020, 0.040, 0.080, 0.160):
        yield "delay", delay, Scenario(delay=delay)
    for deadline in (0.5, 1.0, 2.5, 5.0, 12.5, 25.0, 62.5):
        size = round(SECTION * deadline / INTERVAL)
        filled = Scenario(deadline=deadline, interval=deadline, size=size)
        yield "deadline, sections that long", deadline, filled
        yield "deadline, sections every 5 s", deadline, Scenario(deadline=deadline)
        yield "deadline, sections that long, 50 flows", deadline, replace(filled, flows=50)


def interval_of(name: str, values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Return the mean over the seeds and its 95 % interval as columns."""
    mean, half_width = student(np.ones(len(values)), np.asarray(values))
    return {name: mean, f"{name}_low": mean - half_width, f"{name}_high": mean + half_width}


def friendliness(scenario: Scenario) -> dict[str, float]:
    """Return F and S, also of flows that are all TCP, split at random, and split into the slower and the faster half.

    Timeouts are the mean numbers of a time-lined flow and of a TCP flow in the whole simulation.
    """
    half = scenario.flows // 2
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in SEEDS:
        flows = scenario.simulate(scenario.time_lined, seed)
        for kind, rates in (
            ("", np.array([flow.throughput for flow in flows])),
            ("_tcp", np.array([flow.throughput for flow in scenario.simulate(scenario.tcp, seed)])),
        ):
            figures[f"F{kind}"].append(rates[:half].mean() / rates[half:].mean())
            figures[f"S{kind}"].append(rates.max() / rates.min())
        slowest_first = np.sort(rates)
        best = slowest_first[half:].mean() / slowest_first[:half].mean()
        figures["F_best"].append(best)
        figures["F_worst"].append(1 / best)
        figures["lost"].append(sum(flow.segments_dropped for flow in flows) / sum(flow.segments_sent for flow in flows))
        figures["timeouts"].append(sum(flow.timeouts for flow in flows[:half]) / half)
        figures["timeouts_tcp"].append(sum(flow.timeouts for flow in flows[half:]) / half)
    columns: dict[str, float] = {}
    for name, values in figures.items():
        columns |= interval_of(name, values)
    return columns


def on_time() -> Iterable[Row]:
    """Yield the share of the bytes read within a section's interval, by the rate of a flow over its fair share.

    In the case "early", the deadline is earlier by the time that a packet waits in the queue.
    """
    for flows in (10, 50):
        fair = LINK.rate * MSS / PACKET / flows
        for load in (0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 8 * SECTION / INTERVAL / fair):
            scenario = Scenario(flows=flows, size=round(load * fair * INTERVAL / 8))
            row: dict[str, str | float] = {"flows": flows, "load": load}
            queueing = 8 * PACKET / LINK.rate * min(flows * scenario.window, LINK.capacity)
            early = replace(scenario, deadline=INTERVAL - queueing)
            for name, first_half in (
                ("tltcp", scenario.time_lined),
                ("early", early.time_lined),
                ("tcp", scenario.sections_over_tcp),
            ):
                results = [scenario.simulate(first_half, seed)[: flows // 2] for seed in SEEDS]
                row |= interval_of(
                    f"{name}_on_time",
                    [1 - np.mean([flow.late_fraction(INTERVAL) for flow in seed]) for seed in results],
                )
                row |= interval_of(
                    f"{name}_read", [float(np.mean([flow.delivered_fraction for flow in seed])) for seed in results]
                )
            yield row


def real_time() -> Iterable[Row]:
    """Yield the shares of lost and late packets of a voice call over a path with random losses."""
    path, playout = SharedPath(0.030), 0.200
    flow = td.Flow(160, 0.020)
    stacks: dict[str, Stack] = {
        "tltcp": TimeLined(deadline=playout - path.there),
        "tcp": Classic("reno"),
        "tltcp_fine": TimeLined(deadline=playout - path.there, rto_min=0.2, tick=0.01),
        "tcp_fine": Classic("reno", rto_min=0.2, tick=0.01),
        "udp": Udp(),
    }
    for loss in (0.005, 0.01, 0.02, 0.05):
        row: dict[str, str | float] = {"loss": loss}
        for name, stack in stacks.items():
            source = ConstantRate(flow=flow, path=replace(path, loss=loss), stack=stack)
            link = Bottleneck(1e10, 1000)
            results = [simulate_network([source], link, duration=600, warm_up=10, seed=seed).flows[0] for seed in SEEDS]
            row |= interval_of(f"{name}_late", [result.late_fraction(playout) for result in results])
            row |= interval_of(f"{name}_p95", [1e3 * result.p95_interval.value for result in results])
            row |= interval_of(f"{name}_lost", [result.lost / result.offered for result in results])
        yield row


def sequence() -> Iterable[Row]:
    """Yield the acknowledged positions [bytes] of a time-lined and of a TCP flow, ten times a second."""
    scenario = Scenario()
    network = prepare(scenario.sources(scenario.time_lined, 1), LINK, 1, 0.0, DURATION)
    numbers = {"tltcp": 0, "tcp": scenario.flows // 2}
    for time in np.arange(0.1, 90.05, 0.1):
        network.advance(float(time))
        if time < 50:
            continue
        row: dict[str, str | float] = {"time": float(time), "start": network.flows[0].first_write / 1e6}
        for name, number in numbers.items():
            last = network.connections[number].snd_una - 1
            row[name] = MSS * int(network.wires[number].segments["start"][last % RING] + 1)
        yield row


def write(table_name: str, rows: Iterable[Row]) -> None:
    """Write a table as CSV, and print its rows to standard error."""
    kept = []
    for row in rows:
        kept.append({name: round(value, 9) if isinstance(value, float) else value for name, value in row.items()})
        if table_name != "sequence":
            print(table_name, *list(kept[-1].values())[:6], file=sys.stderr)
    write_table(f"timelined-{table_name}", kept)


def main() -> None:
    """Write all tables."""
    write("sequence", sequence())
    write("friendliness", ({"varied": name, "value": value} | friendliness(given) for name, value, given in sweeps()))
    write("on-time", on_time())
    write("real-time", real_time())


if __name__ == "__main__":
    main()
