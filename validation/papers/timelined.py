"""Time-lined TCP in the experiments of its thesis (chapter 4), its published figures, and data read in time.

`python validation/papers timelined` writes `validation/results/papers/timelined-*.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from comparison import (
    Figure,
    interval_over_seeds,
    published_figures,
    with_interval,
    write_comparison,
    write_table,
)
from numpy.typing import NDArray

import tcpdelay as td
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import FlowResult
from tcpdelay.sim.network.simulation import Network, prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Sections, Source
from tcpdelay.sim.network.stacks import Classic, TimeLined, Udp
from tcpdelay.sim.records import RING

SEEDS, FEW_SEEDS = range(1, 17), range(1, 6)
DURATION, WARM_UP = 500.0, 50.0
RATE = 1.5e6
LINK = Bottleneck(rate=RATE, capacity=400)
ACCESS_DELAY, ACCESS_RATE = 0.002, 10e6
PACKET, ACK = 1500, 40
SECTION = 700_000
Row = Mapping[str, str | float]
Values = dict[str, list[float]]


@dataclass(frozen=True)
class Scenario:
    """The scenario of Table 4.1: time-lined and TCP flows in turn, because flows that start together have an order.

    A packet of 1500 bytes holds 1500 bytes of data, so that a section has 467 packets, as in the thesis. A section of
    `size` bytes is written every `deadline` seconds, when the deadline of the section before it passes. As in section
    4.1 all flows start together; `starts` lets them start at random within a time [s], and `jitter` is the largest
    random delay of an ACK [s], which the thesis does not mention. What else differs between two seeds is the phase of
    the clock of each host.
    """

    flows: int = 30
    window: int = 10
    delay: float = 0.020
    deadline: float = 5.0
    size: int = SECTION
    lifetime: float | None = None
    starts: float = 0.0
    jitter: float = 0.0
    transport: tuple[tuple[str, float], ...] = ()

    @property
    def path(self) -> SharedPath:
        """The path over the link, including the transmission times of a packet and an ACK on the other, idle links."""
        there = ACCESS_DELAY + 8 * PACKET / ACCESS_RATE
        back = 8 * ACK * (2 / ACCESS_RATE + 1 / RATE)
        return SharedPath(there, self.delay + there, self.delay + 2 * ACCESS_DELAY + back, return_jitter=self.jitter)

    def _settings(self) -> dict[str, Any]:
        return {"mss": PACKET, "receiver_window": self.window, "initial_window": 1, **dict(self.transport)}

    def _sections(self, stack: Stack, start: float) -> Source:
        return Sections(path=self.path, stack=stack, size=self.size, interval=self.deadline, start=start, header=0)

    def time_lined(self, start: float) -> Source:
        """Return a flow of sections over Time-lined TCP; each lives for `lifetime`, by default until its deadline."""
        return self._sections(TimeLined(deadline=self.lifetime or self.deadline, **self._settings()), start)

    def sections_over_tcp(self, start: float) -> Source:
        """Return the same sections over TCP."""
        return self._sections(Classic("reno", **self._settings()), start)

    def tcp(self, start: float) -> Source:
        """Return a TCP flow that always has data."""
        return Bulk(path=self.path, stack=Classic("reno", **self._settings()), start=start, header=0)

    def sources(self, every_other: Callable[[float], Source], seed: int) -> list[Source]:
        """Return all flows; every second one is TCP."""
        starts = np.random.default_rng(seed).uniform(0, self.starts, self.flows)
        return [(self.tcp if number % 2 else every_other)(float(start)) for number, start in enumerate(starts)]

    def run(self, every_other: Callable[[float], Source], seed: int) -> Network:
        """Return the records after the simulated time."""
        network = prepare(self.sources(every_other, seed), LINK, seed, WARM_UP, DURATION)
        network.advance(DURATION)
        return network

    def simulate(self, every_other: Callable[[float], Source], seed: int) -> tuple[FlowResult, ...]:
        """Return the results of every other flow."""
        sources = self.sources(every_other, seed)
        return simulate_network(sources, LINK, duration=DURATION, warm_up=WARM_UP, seed=seed).flows[::2]


def rates_of(network: Network) -> NDArray[np.float64]:
    """Return the throughputs of the flows [bit/s]."""
    rates: NDArray[np.float64] = 8 * network.flows["bytes_read"] / (DURATION - WARM_UP)
    return rates


def friendliness_ratio(rates: NDArray[np.float64]) -> float:
    """Return F: the mean throughput of the time-lined flows, every other one, over that of the TCP flows."""
    return float(rates[::2].mean() / rates[1::2].mean())


def separation_index(rates: NDArray[np.float64]) -> float:
    """Return S: the largest throughput over the smallest."""
    return float(rates.max() / rates.min())


def friendliness_of_tcp(rates: NDArray[np.float64]) -> tuple[float, float]:
    """Return F_best and F_worst of flows that are all TCP (section 4.2.1).

    F_best compares the flows of odd rank with those of even rank, the larger mean over the smaller; F_worst compares
    the faster half with the slower half.
    """
    ranked = np.sort(rates)
    half = ranked.size // 2
    odd, even = ranked[::2].mean(), ranked[1::2].mean()
    return float(max(odd, even) / min(odd, even)), float(ranked[half:].mean() / ranked[:half].mean())


@cache
def rates_of_tcp(scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """Return the throughputs of flows that are all TCP [bit/s]."""
    return rates_of(scenario.run(scenario.tcp, seed))


@cache
def figures_of(scenario: Scenario) -> Values:
    """Return the figures of a scenario for each seed, of the mixed flows and of flows that are all TCP.

    Recoveries (fast retransmits), timeouts, segments sent again and the smoothed round-trip time are means over the
    time-lined flows and over the TCP flows beside them, and the first three count the whole simulation.
    """
    figures: Values = {}
    without_sections = replace(scenario, deadline=Scenario.deadline)
    for seed in SEEDS:
        mixed, baseline = scenario.run(scenario.time_lined, seed), rates_of_tcp(without_sections, seed)
        rates = rates_of(mixed)
        best, worst = friendliness_of_tcp(baseline)
        slow = np.sort(rates[1::2])[: max(scenario.flows // 4, 1)]
        in_network = scenario.delay * 2 + 4 * ACCESS_DELAY
        found: dict[str, float] = {
            "F": friendliness_ratio(rates),
            "F_best": best,
            "F_worst": worst,
            "S_MIX": separation_index(rates),
            "S_TCP": separation_index(baseline),
            # Those TCP flows that are slower than the other half of the TCP flows.
            "slow_tcp": slow.mean() / ((rates.sum() - slow.sum()) / (rates.size - slow.size)),
            "dropped": mixed.flows["segments_dropped"].sum() / mixed.flows["segments_sent"].sum(),
            # By Little's law, of all flows [packets].
            "window": (mean_queue(mixed) + RATE / 8 / PACKET * in_network) / scenario.flows,
        }
        for name, of_connection in (
            ("recoveries", "recoveries"),
            ("timeouts", "timeouts"),
            ("retransmissions", "segments_retransmitted"),
            ("round_trip", "srtt"),
        ):
            values = np.array([float(connection[of_connection]) for connection in mixed.connections])
            found[name], found[f"{name}_tcp"] = values[::2].mean(), values[1::2].mean()
        for name, value in found.items():
            figures.setdefault(name, []).append(float(value))
    return figures


def mean_queue(network: Network) -> float:
    """Return the mean number of packets in the queue."""
    return float(network.link[0].sojourn) / 1e9 / DURATION


def sweeps() -> Iterable[tuple[str, float, Scenario]]:
    """Yield each scenario with the name and the value of the varied parameter.

    The thesis names the values of the windows. Of the other parameters it names the range and some values.
    """
    for flows in (2, 10, 20, 30, 40, 50):
        yield "flows", flows, Scenario(flows=flows)
    for window in (5, 10, 20, 40, 80):
        yield "window", window, Scenario(window=window)
    for delay in (0.005, 0.010, 0.020, 0.040, 0.080, 0.160):
        yield "delay", delay, Scenario(delay=delay)
    for deadline in (0.5, 1.0, 2.5, 5.0, 12.5, 62.5):
        yield "deadline", deadline, Scenario(deadline=deadline)
    for deadline in (0.5, 1.0, 2.5, 5.0, 12.5, 62.5):
        yield "deadline, windows of 20", deadline, Scenario(deadline=deadline, window=20)


RANDOM: dict[str, Any] = {"starts": 5.0, "jitter": 8 * PACKET / RATE}
"""Starts within the time of a section, and ACKs delayed by up to the time of a packet on the link."""
UNSTATED: dict[str, dict[str, Any]] = {
    "all flows start together, no random delays": {},
    "starts at random within 5 s": {"starts": RANDOM["starts"]},
    "ACKs delayed by up to 8 ms": {"jitter": RANDOM["jitter"]},
    "both": RANDOM,
    "ticks of 0.5 s": {"transport": (("tick", 0.5),)},
    "ticks of 0.01 s, minimum timeout 0.2 s": {"transport": (("tick", 0.01), ("rto_min", 0.2))},
    "delayed ACKs": {"transport": (("ack_delay", 0.2),)},
    "initial window of 2": {"transport": (("initial_window", 2),)},
}
"""Values of what the thesis does not state."""


def unstated() -> Iterable[Row]:
    """Yield F and S where flows lose packets, for other values of what the thesis does not state."""
    for name, changed in UNSTATED.items():
        row: dict[str, str | float] = {"setting": name}
        for label, scenario in (
            ("window 20", Scenario(window=20, **changed)),
            ("50 flows", Scenario(flows=50, **changed)),
        ):
            figures = figures_of(scenario)
            for quantity in ("F", "F_worst", "S_MIX", "S_TCP"):
                row |= with_interval(f"{label} {quantity}", figures[quantity])
        yield row


def on_time() -> Iterable[Row]:
    """Yield the share of the bytes read within a section's interval, by the rate of a flow over its fair share.

    In the case "early", the sender gives up a section earlier, by the time that a packet waits in the queue.
    """
    default = Scenario(**RANDOM)
    fair = RATE / default.flows
    for window in (10, 20):
        for load in (0.5, 0.9, 1.0, 1.2, 2.0, 8 * SECTION / default.deadline / fair):
            scenario = replace(default, window=window, size=round(load * fair * default.deadline / 8))
            row: dict[str, str | float] = {"window": window, "load": load}
            queueing = 8 * PACKET / RATE * min(scenario.flows * window, LINK.capacity)
            early = replace(scenario, lifetime=scenario.deadline - queueing)
            for name, every_other in (
                ("tltcp", scenario.time_lined),
                ("early", early.time_lined),
                ("tcp", scenario.sections_over_tcp),
            ):
                results = [scenario.simulate(every_other, seed) for seed in FEW_SEEDS]
                late = [float(np.mean([flow.late_fraction(scenario.deadline) for flow in seed])) for seed in results]
                read = [float(np.mean([flow.delivered_fraction for flow in seed])) for seed in results]
                row |= with_interval(f"{name}_on_time", [1 - share for share in late])
                row |= with_interval(f"{name}_read", read)
            yield row


def real_time() -> Iterable[Row]:
    """Yield the shares of lost and late packets of a voice call over a path with random losses."""
    path, playout = SharedPath(0.030), 0.200
    flow = td.Flow(160, 0.020, write_jitter=0.0)
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
            row |= with_interval(f"{name}_late", [result.late_fraction(playout) for result in results])
            row |= with_interval(f"{name}_lost", [result.lost / result.offered for result in results])
        yield row


FRAMES = "IBBPBBPBBPBB"
"""A group of pictures in the order of storage: the first two B frames are displayed before the I frame."""
FRAME_TIME, FRAME_SIZES = 0.040, {"I": 5, "P": 3, "B": 1}
LEAD = 1.2
"""Time from the write of an I frame to the deadline of its group [s]."""
KINDS = [f"{kind}{place:02}" for place, kind in enumerate(FRAMES)]


def lifetime_of(place: int) -> float:
    """Return the time from the write of a frame to its deadline [s], given its place in the order of storage.

    All frames of a group have one deadline, except those displayed before the I frame, which have that of the group
    before (section 3.3.1).
    """
    group = 0 if FRAMES[place] != "B" or "P" in FRAMES[:place] else 1
    return LEAD - FRAME_TIME * (place + group * len(FRAMES))


def media() -> Iterable[Row]:
    """Yield the shares of frames that are read whole and in time, by type, of a video beside a TCP flow.

    A frame is in time if it is read 0.5 s after its deadline at the latest: the queue of 50 packets takes 0.4 s.
    """
    link, path = Bottleneck(rate=RATE, capacity=50), SharedPath(0.03, return_jitter=RANDOM["jitter"])
    units = [FRAME_SIZES[kind] for kind in FRAMES]
    period = FRAME_TIME * len(FRAMES)
    for load in (0.5, 0.8, 1.0, 1.5, 2.0):
        unit = load * RATE / 2 / 8 * period / sum(units)
        times, sizes = FRAME_TIME * np.arange(len(FRAMES)), [round(unit * number) for number in units]
        trace = td.Trace(times, sizes, period, KINDS)
        deadlines = {kind: lifetime_of(place) for place, kind in enumerate(KINDS)}
        row: dict[str, str | float] = {"load": load}
        for name, source in (
            ("tltcp", ConstantRate(flow=trace, path=path, stack=TimeLined(), deadlines=deadlines)),
            ("tcp", ConstantRate(flow=trace, path=path, stack=Classic("reno"))),
        ):
            results = [
                simulate_network(
                    [source, Bulk(path=path, stack=Classic("reno"))], link, duration=300, warm_up=20, seed=seed
                ).flows[0]
                for seed in FEW_SEEDS
            ]
            for frame_type in FRAME_SIZES:
                chosen = {kind: limit + 0.5 for kind, limit in deadlines.items() if kind.startswith(frame_type)}
                row |= with_interval(
                    f"{name}_{frame_type}",
                    [
                        1 - float(np.mean([flow.by_kind[kind].late_fraction(limit) for kind, limit in chosen.items()]))
                        for flow in results
                    ],
                )
            row |= with_interval(
                f"{name}_gaps", [flow.gap_bytes / (flow.offered / len(FRAMES) * sum(sizes)) for flow in results]
            )
        yield row


TRACED = 14.0
"""Time for which the thesis shows the sequence numbers of Figure 4.2 [s]."""


def arrivals(seed: int) -> dict[str, NDArray[np.int64]]:
    """Return when each packet of Figure 4.2 first arrived [us], and its sequence number, for both flows."""
    scenario = Scenario(flows=2, deadline=1.0)
    network = prepare(scenario.sources(scenario.time_lined, seed), LINK, seed, 0.0, TRACED)
    network.advance(TRACED)
    found = {}
    for number, name in enumerate(("tltcp", "tcp")):
        flow, connection, segments = network.flows[number], network.connections[number], network.wires[number].segments
        sent = int(connection.snd_max)
        assert sent < RING
        by_arrival = np.argsort(flow.arrived[:sent], kind="stable")
        arrived = flow.arrived[:sent][by_arrival]
        there = (segments["received"][:sent][by_arrival] > 0) & (arrived <= TRACED * 1e6)
        found[f"{name}_time"] = arrived[there]
        found[name] = segments["start"][:sent][by_arrival][there] // PACKET
    return found


def sequence() -> Iterable[Row]:
    """Yield the sequence numbers of Figure 4.2 over time, one row for each packet of each flow."""
    found = arrivals(1)
    for name in ("tltcp", "tcp"):
        for time, number in zip(found[f"{name}_time"], found[name], strict=True):
            yield {"flow": name, "time": time / 1e6, "number": int(number)}


def figures_of_transfer() -> dict[tuple[str, str], list[float]]:
    """Return the figures of section 4.1 for each seed, by condition and quantity."""
    figures: dict[tuple[str, str], list[float]] = {}
    packets = -(-SECTION // PACKET)
    for seed in SEEDS:
        found = arrivals(seed)
        counts = {name: found[name].size for name in ("tltcp", "tcp")}
        jumps = np.flatnonzero(np.diff(found["tltcp"]) > 1)
        values = {
            ("sections of 700 000 bytes", "packets of a section"): packets,
            ("slopes of the two plots", "Time-lined TCP / TCP"): counts["tltcp"] / counts["tcp"],
            ("deadlines of 1 s", "time between two jumps"): np.diff(found["tltcp_time"][jumps + 1]).mean() / 1e6,
            ("first packet after a jump", "packets from a multiple of 467"): (
                found["tltcp"][jumps + 1] % packets
            ).max(),
        }
        for name, condition in (("tltcp", "Time-lined TCP"), ("tcp", "TCP")):
            values[condition, "packets delivered in 14 s"] = counts[name]
            values[condition, "throughput"] = 8 * PACKET * counts[name] / TRACED / 1e3
        for key, value in values.items():
            figures.setdefault(key, []).append(float(value))
    return figures


ITEMS = {
    "Figure 4.3": ("flows", "{:g} flows", 1),
    "Figure 4.4": ("window", "window of {:g}", 1),
    "Figure 4.5": ("delay", "delay of {:g} ms", 1e3),
    "Figure 4.6": ("deadline", "deadline of {:g} s", 1),
}
"""The parameter that each figure varies, and how `validation/published/timelined.csv` names its values."""


def quantity_of(figure: Figure, found: Values, of: Callable[[float], Values]) -> NDArray[np.float64]:
    """Return a published quantity for each seed, given the values of its scenario and those of other scenarios."""
    values = {name: np.array(of_seeds) for name, of_seeds in found.items()}

    def relative(name: str, other: float) -> NDArray[np.float64]:
        return values[name] / np.array(of(other)[name])

    name = figure.quantity.partition(";")[0]
    if name in values:
        return values[name]
    derived: dict[str, Callable[[], NDArray[np.float64]]] = {
        "F - F_best": lambda: values["F"] - values["F_best"],
        "S_MIX - S_TCP": lambda: values["S_MIX"] - values["S_TCP"],
        "F_worst - 1": lambda: values["F_worst"] - 1,
        "S_TCP - 1": lambda: values["S_TCP"] - 1,
        "slow TCP flows / all other flows": lambda: values["slow_tcp"],
        "segments sent again: Time-lined TCP / TCP": lambda: values["retransmissions"] / values["retransmissions_tcp"],
        "F / F with windows of 20": lambda: relative("F", 20),
        "F / F with windows of 40": lambda: relative("F", 40),
        "S_MIX / S_MIX with windows of 40": lambda: relative("S_MIX", 40),
        "mean window / that with windows of 20": lambda: relative("window", 20),
        "mean window / that with windows of 40": lambda: relative("window", 40),
        "estimated round-trip time: Time-lined TCP / TCP": lambda: values["round_trip"] / values["round_trip_tcp"],
        "fast retransmits of a flow less those with 2.5 s": lambda: values["recoveries"] - of(2.5)["recoveries"],
    }
    return derived[name]()


REASONS = {
    "Section 4.1": "The thesis says approximately 900; the link carries 875 packets for each flow in 14 s at most.",
    "Figure 4.3": "50 TCP flows alone share more evenly than in the thesis, because flows that start together stay in "
    "step; with random starts F_worst is 1.8 and S_TCP 3.2 (table of what the thesis does not state).",
    "Figure 4.4": "The thesis shows one run. From seed to seed, which is here the phase of the clocks, the standard "
    "deviations with windows of 20 are 0.3 (F and S_MIX) and 0.35 (S_TCP).",
    "Figure 4.6": "30 windows of 10 packets cannot overflow a queue of 400, so no packet is dropped here, and F is "
    "below 1 by 0.05 % only. The thesis explains its lower F with losses and timeouts that its printed parameters do "
    "not give. Where packets are lost here (windows of 20), F at 0.5 s is above 1: the ACK of the next section "
    "covers a loss that a `seq_update` hides, so the sender does not time out.",
}
"""The likely reason of the distances of an item."""


def published(found: Mapping[tuple[str, float], Values]) -> None:
    """Write each published figure beside ours, given the figures of all scenarios by parameter and value."""
    transfer = figures_of_transfer()
    for size, deadline in ((SECTION, 5.0), (SECTION, 0.5)):
        transfer[f"700 000 bytes every {deadline:g} s", "rate of a source"] = [8e-6 * size / deadline] * len(SEEDS)
    ours = {}
    for figure in published_figures("timelined"):
        if figure.item in ITEMS:
            varied, condition, factor = ITEMS[figure.item]
            by_condition = {condition.format(factor * value): value for name, value in found if name == varied}
            scenario = found[varied, by_condition[figure.condition]]
            values = quantity_of(figure, scenario, lambda value, varied=varied: found[varied, value])
        else:
            values = np.array(transfer[figure.condition, figure.quantity])
        ours[figure] = interval_over_seeds(values.tolist())
    write_comparison("timelined", ours, REASONS)


def write(table_name: str, rows: Iterable[Row]) -> None:
    """Write a table as CSV, and print its rows to standard error."""
    kept = []
    for row in rows:
        kept.append(row)
        if table_name != "sequence":
            print(table_name, *list(row.values())[:6], file=sys.stderr)
    write_table(f"timelined-{table_name}", kept)


def main() -> None:
    """Write all tables."""
    write("sequence", sequence())
    found = {(name, value): figures_of(scenario) for name, value, scenario in sweeps()}
    write(
        "friendliness",
        (
            {"varied": varied, "value": value}
            | {
                column: number
                for name, values in figures.items()
                for column, number in with_interval(name, values).items()
            }
            for (varied, value), figures in found.items()
        ),
    )
    published(found)
    write("unstated", unstated())
    write("on-time", on_time())
    write("real-time", real_time())
    write("media", media())


if __name__ == "__main__":
    main()
