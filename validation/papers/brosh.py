"""The delay-friendliness of TCP: every published figure beside chains and simulations of the TCP of 2008.

`python validation/papers/brosh.py [chains] [paths] [drops] [router]` computes the tables
`validation/results/papers/brosh-*.csv`, all by default, and then writes `brosh-published.csv` from them.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from comparison import RESULTS, Figure, interval_over_seeds, published_figures, write_comparison, write_table
from numpy.typing import NDArray
from scipy.optimize import brentq

import tcpdelay as td
from tcpdelay.accuracy.throughput import RULE_OF_THUMB_UTILIZATION, connection_utilization
from tcpdelay.accuracy.validity import ValidityWarning
from tcpdelay.delays import DelayDistribution
from tcpdelay.models.heuristics import parallel_delay, split_delay
from tcpdelay.scenario.messages import Messages
from tcpdelay.sim.batches import Histogram, merge
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.result import SlicedDelays
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate, Source
from tcpdelay.sim.network.stacks import Classic
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.statistics import Interval

CHAIN = td.Stack.newreno_2008()
TCP_2008 = Classic(
    recovery="sack",
    mss=1448,
    receiver_window=2000,
    initial_window=3,
    limited_transmit=True,
    tick=0.004,
    rto_min=0.2,
    window_validation=True,
)
"""Linux 2.6 with the settings of the paper: SACK, limited transmit, ACKs at once, no byte counting. Its window grows
only while it is full, and it keeps its size while the application uses a part of it."""
TRANSFER_2008 = replace(TCP_2008, ack_delay=0.04)
"""The long transfers: their settings are not published, so their receivers delay ACKs, as is the default."""
FAST = Bottleneck(1e12, 60_000)
"""A link without delay: all losses happen on the path."""

INTERVAL = 0.020
RETURN_PROPAGATION = 0.050
"""One-way propagation of the published router [s]; its model columns imply L = RTT - 50 ms."""
SIZES = {"Table V": 174, "Table VI": 1448}
LOSSES = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
RTTS = (0.020, 0.100, 0.300)
RUNS, RUN_SECONDS, WARM_UP = range(1, 11), 300.0, 10.0
"""Seeds of the runs of a lone flow: ten runs of five minutes, as published for configured losses."""
ROUTER_RUNS, ROUTER_SECONDS = range(1, 5), 30.0
"""Seeds of the runs through the router; the published runs were five, of five minutes each."""
JITTER_WINDOW = 10.0
"""Time in which a standard deviation of the delays is taken [s]."""


class Ours(NamedTuple):
    """A figure of ours with its 95 % interval, under the names of a published figure or of a figure beside it."""

    item: str
    condition: str
    quantity: str
    value: float
    low: float
    high: float


def exact(item: str, condition: str, quantity: str, value: float) -> Ours:
    """Return a figure without a statistical error."""
    return Ours(item, condition, quantity, value, value, value)


def over_runs(item: str, condition: str, quantity: str, values: Sequence[float]) -> Ours:
    """Return the mean over independent runs."""
    return Ours(item, condition, quantity, *interval_over_seeds(values))


# --- Tables V and VI: the settings that they print ---


class RouterRow(NamedTuple):
    """A row of Table V or VI: the flow, the queue, and the printed figures by quantity."""

    item: str
    condition: str
    flow: td.Flow
    unit: str
    web_flows: int
    printed: dict[str, float]

    @property
    def rtt(self) -> float:
        """Printed round-trip time [s]."""
        return self.printed["round-trip time"]

    @property
    def loss(self) -> float:
        """Printed share of lost packets."""
        return self.printed["loss"] / 100

    def path(self, one_way_delay: float, loss: float | None = None) -> td.Path:
        """Return the path with drop-tail losses."""
        bottleneck: Any = self.unit
        return td.Path(self.rtt, self.loss if loss is None else loss, "correlated", bottleneck, one_way_delay)


def router_rows(figures: Iterable[Figure]) -> list[RouterRow]:
    """Return the rows of Tables V and VI."""
    rows: dict[tuple[str, str], RouterRow] = {}
    for figure in figures:
        if figure.item not in SIZES:
            continue
        found = re.fullmatch(r"queue in (packets|bytes), (\d+) web flows", figure.condition)
        assert found is not None, figure
        flow = td.Flow(SIZES[figure.item], INTERVAL, write_jitter=0.0)
        row = RouterRow(figure.item, figure.condition, flow, found[1], int(found[2]), {})
        rows.setdefault((figure.item, figure.condition), row).printed[figure.quantity] = figure.value
    return list(rows.values())


def rate_of_loss_events(share: float, packets: int) -> float:
    """Return the probability p of the first loss of a round from the share of lost packets.

    With drop-tail losses the rest of a round of n packets is lost after its first loss, so that the share is
    sum over i of (1 - p)^i p (n - i) / n.
    """

    def excess(p: float) -> float:
        places = np.arange(packets)
        return float(((1 - p) ** places * p * (packets - places)).sum()) / packets - share

    return float(brentq(excess, 0.0, share))


HEURISTICS: dict[str, dict[str, Any]] = {
    "split 2": {"pieces": 2},
    "split 4": {"pieces": 4},
    "par 2": {"connections": 2, "scheduling": "intelligent"},
    "par 5": {"connections": 5, "scheduling": "intelligent"},
}


def heuristics_of(row: RouterRow) -> dict[str, dict[str, Any]]:
    """Return the heuristics that Table VIII has for a row: parallel connections only with a queue in packets."""
    return {name: how for name, how in HEURISTICS.items() if row.unit == "packets" or name.startswith("split")}


# --- chains ---


def chains(figures: list[Figure]) -> Iterator[Ours]:
    """Yield what the published chain and the closed forms say."""
    for row in router_rows(figures):
        events = rate_of_loss_events(row.loss, max(1, int(row.rtt / INTERVAL + 0.5)))
        for name, one_way_delay, loss in (
            ("p95, model", row.rtt - RETURN_PROPAGATION, row.loss),
            ("p95, chain with L = RTT / 2", row.rtt / 2, row.loss),
            ("p95, chain with the rate of loss events", row.rtt - RETURN_PROPAGATION, events),
        ):
            delays = td.DelayModel(row.flow, row.path(one_way_delay, loss), CHAIN).delay_distribution()
            yield exact(row.item, row.condition, name, delays.quantile(0.95))
            if name == "p95, model":
                yield exact(row.item, row.condition, "standard deviation, chain", delays.jitter)
                yield exact(row.item, row.condition, "largest delay, chain", float(delays.values[-1]))
        path = row.path(row.rtt / 2)
        yield exact(row.item, row.condition, "utilization", connection_utilization(row.flow, path, CHAIN))
        square_root = row.flow.bitrate / 8 * row.rtt * np.sqrt(2 * row.loss) / CHAIN.mss
        yield exact(row.item, row.condition, "utilization, square-root law", square_root)
        if row.item == "Table VI" and row.unit == "packets":
            yield from closed_forms(row, row.path(row.rtt / 2, events))
    yield from working_regions()
    yield from added_by_utilization()
    yield from sender_shares()
    yield from masked_by_playout()
    yield from blind_connections()


def closed_forms(row: RouterRow, path: td.Path) -> Iterator[Ours]:
    """Yield the gains of Table VIII by the closed forms, for the chains of 2008 and of today."""
    # The intervals of pieces and shares, and the losses per round, are beyond the range of the validation.
    warnings.simplefilter("ignore", ValidityWarning)
    for name, stack in (("chain of 2008", CHAIN), ("chain of Linux", td.Stack.linux("reno"))):
        plain = td.predict_delay(row.flow, path, stack, method="chain").quantile(0.95)
        for heuristic, delays in {
            **{f"split {n}": partial(split_delay, pieces=n) for n in (2, 4)},
            **{f"par {n}": partial(parallel_delay, connections=n) for n in (2, 5)},
        }.items():
            gain = 100 * (1 - delays(row.flow, path, stack).quantile(0.95) / plain)
            condition = f"{heuristic}, queue in packets, {row.web_flows} web flows"
            yield exact("Table VIII", condition, f"gain in p95, {name}", gain)


def working_regions() -> Iterator[Ours]:
    """Yield the largest loss of the published grid at which the chain meets the target, and the first beyond."""
    for name, flow, target in (
        ("voice", td.Flow(174, INTERVAL, write_jitter=0.0), td.Target(0.2, 0.95)),
        ("live streaming", td.Flow(1448, 0.030, write_jitter=0.0), td.Target(5.0, 0.999)),
    ):
        for rtt in RTTS:
            works = [td.predict_delay(flow, td.Path(rtt, loss), CHAIN, method="chain").meets(target) for loss in LOSSES]
            first = works.index(False) if False in works else len(works)
            percent = [0.0, *(100 * loss for loss in LOSSES), 100.0]
            condition = f"{name}, {1e3 * rtt:g} ms"
            low, high = percent[first : first + 2]
            yield Ours("Figure 6", condition, "loss up to which it works", low, low, high)
            slowest = max(
                td.predict_delay(flow, td.Path(rtt, loss), CHAIN, method="chain").values[-1] for loss in LOSSES
            )
            yield exact("Figure 6", condition, "largest delay of the chain at any loss", float(slowest))


def added_by_utilization(rtt: float = 0.1, loss: float = 0.01) -> Iterator[Ours]:
    """Yield the mean delay that the chain adds by utilization, in round-trip times; at one third by interpolation."""
    for size in (174, 724, 1448):
        shares, added, late = [], [], []
        for load in (*range(1, 13), *range(16, 61, 4)):
            flow = td.Flow(size, rtt / load, write_jitter=0.0)
            share = flow.bitrate / 8 * rtt * np.sqrt(2 * loss) / CHAIN.mss
            if share > 0.9:
                break
            delays = td.DelayModel(flow, td.Path(rtt, loss), CHAIN).delay_distribution()
            shares.append(share)
            added.append((delays.mean - delays.one_way_delay) / rtt)
            late.append((delays.quantile(0.95) - delays.one_way_delay) / rtt)
            yield exact("Figure 7", f"{size} B, 1 % loss", f"added at a utilization of {share:.3f}", added[-1])
        for name, values in (("mean delay", added), ("p95", late)):
            at_third = float(np.interp(RULE_OF_THUMB_UTILIZATION, shares, values))
            yield exact("Figure 7", f"{size} B, 1 % loss", f"{name} added at a third of the fair rate", at_third)


def sender_shares(rtt: float = 0.1) -> Iterator[Ours]:
    """Yield the share of the delay of TCP that packets spend in the send buffer, by the chain."""
    for size in (174, 724, 1448):
        for loss in LOSSES:
            parts = td.DelayModel(td.Flow(size, INTERVAL, write_jitter=0.0), td.Path(rtt, loss), CHAIN).delay_parts
            sender = parts.backlog + parts.timeouts
            condition = f"{size} B, {100 * loss:g} % loss"
            yield exact(
                "Figure 9", condition, "share at the sender, chain", 100 * sender / (sender + parts.head_of_line)
            )


def masked_by_playout(rtt: float = 0.1) -> Iterator[Ours]:
    """Yield the share of the packets that a playout delay of L + RTT + 3/f, or of 4 RTT, is long enough for."""
    for loss in (0.01, 0.03):
        for name, size in (("voice", 174), ("video", 1448)):
            delays = td.DelayModel(
                td.Flow(size, INTERVAL, write_jitter=0.0), td.Path(rtt, loss), CHAIN
            ).delay_distribution()
            for playout, delay in (("L + RTT + 3/f", 1.5 * rtt + 3 * INTERVAL), ("4 RTT", 4 * rtt)):
                share = 100 * (1 - delays.late_fraction(delay + 1e-9))
                yield exact("Figure 13", f"{name}, {100 * loss:g} % loss", f"read within {playout}, chain", share)


def blind_connections(rtt: float = 0.1) -> Iterator[Ours]:
    """Yield the gains of blind connections by the chain, as section VI-B has them, with random losses."""
    flow = td.Flow(1448, INTERVAL, write_jitter=0.0)
    for loss in (0.005, 0.01, 0.03):
        path = td.Path(rtt, loss)
        plain = td.predict_delay(flow, path, CHAIN, method="chain").quantile(0.95)
        for number in range(2, 7):
            shared = td.predict_delay(
                td.Flow(1448, number * INTERVAL, write_jitter=0.0), path, CHAIN, method="chain"
            ).quantile(0.95)
            in_order = parallel_delay(flow, path, CHAIN, number).quantile(0.95)
            condition = f"{number} blind connections, {100 * loss:g} % loss"
            yield exact("Section VI-B", condition, "gain in p95, each connection by itself", 100 * (1 - shared / plain))
            yield exact("Section VI-B", condition, "gain in p95, read in order", 100 * (1 - in_order / plain))


# --- a lone flow on a path with configured losses ---


class Run(NamedTuple):
    """What a run of a lone flow shows."""

    delays: DelayDistribution
    windowed_jitter: float
    sender_delay: float


def run_alone(flow: td.Flow, there: float, back: float, loss: float, seed: int, **how: Any) -> Run:
    """Simulate a lone flow for `RUN_SECONDS`; its jitter is the 95th percentile over windows of `JITTER_WINDOW`."""
    source = ConstantRate(flow=flow, path=SharedPath(there, return_delay=back, loss=loss), stack=TCP_2008, **how)
    end = WARM_UP + RUN_SECONDS
    network = prepare([source], FAST, seed, WARM_UP, end)
    network.advance(WARM_UP)
    histograms: list[Histogram] = []
    for window_end in np.arange(WARM_UP + JITTER_WINDOW, end + JITTER_WINDOW / 2, JITTER_WINDOW):
        # Packets that wait at the end are read, with their delay, before the run is summed up.
        last = window_end > end - JITTER_WINDOW / 2
        delays = SlicedDelays()
        network.advance(float(window_end) + (1000.0 if last else 0.0), delays)
        delays.end_slice()
        histograms.append(delays.of(0).histogram())
    values, counts = merge([histogram for histogram in histograms if histogram[0].size])
    deviations = [deviation(*histogram) for histogram in histograms if histogram[0].size]
    record = network.flows[0]
    return Run(
        DelayDistribution(values / SECOND, counts / counts.sum(), there),
        float(np.quantile(deviations, 0.95)),
        float(record.sender_delay) / (SECOND * counts.sum()),
    )


def deviation(values: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Return the standard deviation of delays [us], in seconds."""
    mean = values @ counts / counts.sum()
    return float(np.sqrt((values - mean) ** 2 @ counts / counts.sum())) / SECOND


def paths(figures: list[Figure]) -> Iterator[Ours]:
    """Yield simulations of a lone flow: at the printed loss and round-trip time, and on the grid of Figures 4 to 6."""
    for row in router_rows(figures):
        runs = [run_alone(row.flow, row.rtt - RETURN_PROPAGATION, RETURN_PROPAGATION, row.loss, seed) for seed in RUNS]
        named = partial(over_runs, row.item, row.condition)
        yield named("p95, measured", [run.delays.quantile(0.95) for run in runs])
        yield named("95 % jitter", [run.windowed_jitter for run in runs])
        yield named("standard deviation, simulated", [run.delays.jitter for run in runs])
        if row.item == "Table VI":
            if row.unit == "packets":
                condition = f"plain, queue in packets, {row.web_flows} web flows"
                yield over_runs("Table VIII", condition, "p95", [run.delays.quantile(0.95) for run in runs])
            yield from gains_at_printed_loss(row, figures, [run.delays.quantile(0.95) for run in runs])
        print(row.item, row.condition, file=sys.stderr)
    for size, interval in ((174, 0.020), (724, 0.020), (1448, 0.020), (1448, 0.030)):
        for rtt in RTTS:
            for loss in LOSSES:
                yield from at_configured_loss(td.Flow(size, interval, write_jitter=0.0), rtt, loss)
            print(size, interval, rtt, file=sys.stderr)


def gains_at_printed_loss(row: RouterRow, figures: list[Figure], plain: list[float]) -> Iterator[Ours]:
    """Yield the gains of Table VIII on a path of the same round-trip time, with the losses that it prints.

    The gains of parallel connections are those of each connection by itself; beside them are those of the packets that
    the application reads in order.
    """
    printed = {
        figure.condition: figure.value / 100
        for figure in figures
        if (figure.item, figure.quantity) == ("Table VIII", "loss")
    }
    run = partial(run_alone, there=row.rtt - RETURN_PROPAGATION, back=RETURN_PROPAGATION)
    for name, how in heuristics_of(row).items():
        condition = f"{name}, queue in {row.unit}, {row.web_flows} web flows"
        loss = printed.get(condition, row.loss)
        whole = gain_over(plain, [run(row.flow, loss=loss, seed=seed, **how) for seed in RUNS])
        if connections := how.get("connections"):
            share = td.Flow(row.flow.packet_size, connections * INTERVAL, write_jitter=0.0)
            apart = gain_over(plain, [run(share, loss=loss, seed=seed) for seed in RUNS])
            yield over_runs("Table VIII", condition, "gain in p95", apart)
            yield over_runs("Table VIII", condition, "gain in p95, read in order", whole)
        else:
            yield over_runs("Table VIII", condition, "gain in p95", whole)


def gain_over(plain: list[float], runs: list[Run]) -> list[float]:
    """Return by how many percent p95 is below that of the plain flow, in each run."""
    return [100 * (1 - run.delays.quantile(0.95) / p95) for run, p95 in zip(runs, plain, strict=True)]


def at_configured_loss(flow: td.Flow, rtt: float, loss: float) -> Iterator[Ours]:
    """Yield the delays of the simulation and of the chain at a configured loss."""
    condition = f"{flow.packet_size} B every {1e3 * flow.interval:g} ms, {1e3 * rtt:g} ms, {100 * loss:g} % loss"
    runs = [run_alone(flow, rtt / 2, rtt / 2, loss, seed) for seed in RUNS]
    chain = td.DelayModel(flow, td.Path(rtt, loss), CHAIN).delay_distribution()
    named = partial(over_runs, "Figure 4", condition)
    yield named("mean, simulated", [run.delays.mean for run in runs])
    yield named("p95, simulated", [run.delays.quantile(0.95) for run in runs])
    yield named("largest, simulated", [float(run.delays.values[-1]) for run in runs])
    yield named(
        "share at the sender, simulated",
        [100 * run.sender_delay / max(run.delays.mean - rtt / 2, 1e-9) for run in runs],
    )
    yield exact("Figure 4", condition, "mean, chain", chain.mean)
    yield exact("Figure 4", condition, "p95, chain", chain.quantile(0.95))


# --- chosen packets dropped ---


class AfterDrops(NamedTuple):
    """A flow of which chosen segments were dropped: by packet, write time and delay; by time, the window."""

    written: NDArray[np.floating[Any]]
    delays: NDArray[np.floating[Any]]
    times: NDArray[np.floating[Any]]
    windows: NDArray[np.floating[Any]]


STEP = 0.0005
"""Time between two looks at the simulated flow [s]."""
FIRST_DROP = 5.0
"""Time of the first drop [s]: the window has then forgotten its start."""


def after_drops(flow: td.Flow, rtt: float, gaps: Sequence[float], seconds: float) -> AfterDrops:
    """Simulate a flow that loses the first segment sent after `FIRST_DROP`, and after each of the `gaps` [s] later.

    Times count from the first drop. The path draws the loss when a segment reaches the link, half a round-trip time
    after it is sent.
    """
    source = ConstantRate(flow=flow, path=SharedPath(rtt / 2), stack=TCP_2008)
    network = prepare([source], FAST, 1, 0.0, FIRST_DROP + seconds)
    record, connection = network.flows[0], network.connections[0]
    due = [FIRST_DROP + rtt / 2 + gap for gap in (0.0, *gaps)]
    times = np.arange(0.0, FIRST_DROP + seconds, STEP, dtype=np.float64)
    read_by, windows = np.zeros(times.size, np.int64), np.zeros(times.size)
    for place, now in enumerate(times):
        network.advance(float(now))
        if due and now >= due[0]:
            due.pop(0)
            record.until_loss = 1
        read_by[place], windows[place] = record.packets_read, connection.cwnd
    packets = np.arange(int(record.packets_read))
    written = packets * flow.interval
    delays = times[np.searchsorted(read_by, packets, "right")] - written
    shown, seen = written >= FIRST_DROP - 1, times >= FIRST_DROP - 1
    return AfterDrops(written[shown] - FIRST_DROP, delays[shown], times[seen] - FIRST_DROP, windows[seen])


def drops(figures: list[Figure]) -> Iterator[Ours]:
    """Yield what one loss, and two close losses, do to large packets and to packets of half the size."""
    yield from one_drop()
    series: list[dict[str, float]] = []
    reductions = []
    for gap in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
        peaks = []
        for size, interval in ((1448, 0.010), (724, 0.005)):
            after = after_drops(td.Flow(size, interval, write_jitter=0.0), 0.3, [gap], 12.0)
            peaks.append(float(after.delays.max()))
            yield exact("Figure 10", f"{size} B, second loss after {1e3 * gap:g} ms", "peak delay", peaks[-1])
            if gap == 0.4:
                series += rows_of(10, size, after)
        reductions.append(100 * (1 - peaks[1] / peaks[0]))
    middle = float(np.median(reductions))
    yield Ours("Figure 10", "half-size packets", "peak delay lower by", middle, min(reductions), max(reductions))
    for size in (1448, 724):
        series += rows_of(8, size, after_drops(td.Flow(size, 0.010, write_jitter=0.0), 0.2, [], 12.0))
    write_table("brosh-series", series)


def one_drop(rtt: float = 0.2, interval: float = 0.010) -> Iterator[Ours]:
    """Yield what a single loss does to the flows of Figure 8."""
    load = rtt / interval
    for size in (1448, 724):
        after = after_drops(td.Flow(size, interval, write_jitter=0.0), rtt, [], 12.0)
        named = partial(exact, "Figure 8", f"{size} B")
        # The third duplicate ACK arrives three intervals and a round-trip time after the loss.
        detected = rtt + 3 * interval
        repaired = detected + rtt
        # Packets that are written before the loss is detected wait at the receiver, all later ones at the sender.
        blocked, limited = after.written < detected, after.written >= detected
        waiting = limited & (after.delays > rtt / 2 + interval / 2)
        below = (after.times > repaired) & (after.windows < load)
        yield named("largest delay from head-of-line blocking", float(after.delays[blocked].max()))
        yield named(
            "time from the repair until the window reaches the load", float(after.times[below].max()) - repaired
        )
        ends = float(after.written[waiting].max()) if waiting.any() else repaired
        yield named("time from the repair until no packet waits", ends - repaired)
        yield named("largest delay beyond L, after the loss is repaired", float(after.delays[limited].max()) - rtt / 2)
        yield named("window above the load afterwards", 100 * (float(after.windows[-1]) / load - 1))


def rows_of(figure: int, size: int, after: AfterDrops) -> list[dict[str, float]]:
    """Return the delays of a flow, and its window at the same times, as rows of a table."""
    windows = np.interp(after.written, after.times, after.windows)
    return [
        {"figure": figure, "size": size, "time": float(time), "delay": float(delay), "window": float(window)}
        for time, delay, window in zip(after.written, after.delays, windows, strict=True)
    ]


# --- the router ---

LINKS = {
    ("Table V", "packets"): Bottleneck(3e6, 100),
    ("Table V", "bytes"): Bottleneck(3e6, 50_000, unit="bytes"),
    ("Table VI", "packets"): Bottleneck(30e6, 100),
    ("Table VI", "bytes"): Bottleneck(30e6, 100_000, unit="bytes"),
}
MEASURED, TRANSFERS = 5, 5
PATH = SharedPath(0.05)
WEB = Messages(1 / 0.050, 512, write_jitter=0.0)
"""A web flow: packets of 512 B at exponentially distributed intervals with a mean of 50 ms, as the paper says."""


class Routed(NamedTuple):
    """A run through the router: p95 and largest delay, means over the measured flows; loss; mean round-trip time."""

    p95: float
    largest: float
    loss: float
    loss_of_measured: float
    rtt: float


def through_router(
    flow: td.Flow,
    link: Bottleneck,
    web_flows: int,
    seed: int,
    stack: Classic = TCP_2008,
    transfers: int = TRANSFERS,
    **how: Any,
) -> Routed:
    """Simulate five measured flows, long transfers and web flows through the router."""
    sources: list[Source] = [
        ConstantRate(flow=flow, path=PATH, stack=stack, start=number * INTERVAL / MEASURED, **how)
        for number in range(MEASURED)
    ]
    starts = 0.1 * np.arange(transfers)
    if web_flows == 0:
        # Nothing else is random without web flows.
        starts = np.random.default_rng(seed).uniform(0.0, 1.0, transfers)
    sources += [Bulk(path=PATH, stack=TRANSFER_2008, start=float(start)) for start in starts]
    sources += [ConstantRate(flow=WEB, path=PATH, stack=TCP_2008) for _ in range(web_flows)]
    result = simulate_network(sources, link, duration=WARM_UP + ROUTER_SECONDS, warm_up=WARM_UP, seed=seed)
    measured = result.flows[:MEASURED]
    delays = [flow.delays for flow in measured if flow.delays is not None]
    return Routed(
        float(np.mean([found.quantile(0.95) for found in delays])),
        float(np.mean([found.worst for found in delays])),
        100 * result.queue.loss_fraction,
        100 * sum(f.segments_dropped for f in measured) / sum(f.segments_sent for f in measured),
        2 * PATH.there + result.queue.mean_sojourn,
    )


def router(figures: list[Figure]) -> Iterator[Ours]:
    """Yield simulations of the router: Tables V, VI and VIII, Figures 11 and 12."""
    for row in router_rows(figures):
        link = LINKS[row.item, row.unit]
        plain = [through_router(row.flow, link, row.web_flows, seed) for seed in ROUTER_RUNS]
        named = partial(over_runs, row.item, row.condition)
        yield named("loss", [run.loss for run in plain])
        yield named("loss of the measured flows", [run.loss_of_measured for run in plain])
        yield named("round-trip time", [run.rtt for run in plain])
        yield named("p95, simulated router", [run.p95 for run in plain])
        if row.item == "Table V":
            counting = replace(TCP_2008, byte_counting=True)
            counted = [through_router(row.flow, link, row.web_flows, seed, counting) for seed in ROUTER_RUNS]
            yield over_runs("Figure 11", row.condition, "p95 with byte counting", [run.p95 for run in counted])
        else:
            yield from gains(row, link, plain)
        print(row.item, row.condition, file=sys.stderr)
    for transfers in (1, 5, 10, 20):
        for (item, unit), link in LINKS.items():
            flow = td.Flow(SIZES[item], INTERVAL, write_jitter=0.0)
            runs = [through_router(flow, link, 0, seed, transfers=transfers) for seed in ROUTER_RUNS]
            condition = f"{SIZES[item]} B, queue in {unit}, {transfers} FTP flows"
            yield over_runs("Figure 12", condition, "p95, simulated router", [run.p95 for run in runs])
            yield over_runs("Figure 12", condition, "largest delay, simulated router", [run.largest for run in runs])
        print(transfers, "FTP flows", file=sys.stderr)


def gains(row: RouterRow, link: Bottleneck, plain: list[Routed]) -> Iterator[Ours]:
    """Yield the gains of Table VIII; all measured flows use the heuristic."""
    if row.unit == "packets":
        condition = f"plain, queue in packets, {row.web_flows} web flows"
        yield over_runs("Table VIII", condition, "loss", [run.loss for run in plain])
    for name, how in heuristics_of(row).items():
        runs = [through_router(row.flow, link, row.web_flows, seed, **how) for seed in ROUTER_RUNS]
        condition = f"{name}, queue in {row.unit}, {row.web_flows} web flows"
        gain = [100 * (1 - run.p95 / other.p95) for run, other in zip(runs, plain, strict=True)]
        yield over_runs("Table VIII", condition, "gain in p95, simulated router", gain)
        yield over_runs("Table VIII", condition, "loss", [run.loss for run in runs])


# --- all parts ---

_ROUTER = (
    "Losses: the stacks and windows of the cross traffic are not published. Model: the printed loss counts all lost "
    "packets, and p only the first of a round. Measured: near saturation the loss rate and its bursts decide."
)
REASONS = {
    "Table V": _ROUTER,
    "Table VI": _ROUTER,
    "Table VIII": "Parallel connections: each by itself. Splitting: the path draws each loss by itself.",
    "Figure 6": "Up to 100 ms the chain cannot miss the 5 s of live streaming: its bound keeps all delays below 1.8 s. "
    "At 300 ms TCP does not carry this stream beyond 1 %.",
    "Figure 7": "The published statement gives the order of magnitude, and the mean is well below it.",
    "Figure 8": "Head-of-line blocking is 1.5 RTT and three intervals; the paper counts intervals of 20 ms, and "
    "the flow has 10 ms. The window depends on the losses before, which the paper does not show.",
    "Figure 10": "The paper does not say how far apart the losses are; the interval is the range over 50 to 800 ms.",
    "Abstract": "The printed gains of splitting in two have means of 14.9 % (packets) and 28.9 % (bytes).",
}

PARTS: dict[str, Callable[[list[Figure]], Iterator[Ours]]] = {
    "chains": chains,
    "paths": paths,
    "drops": drops,
    "router": router,
}


def in_the_abstract(ours: dict[tuple[str, str, str], Interval]) -> dict[tuple[str, str, str], Interval]:
    """Return what the abstract says of Table VIII, of our figures of that table."""

    def of_all(start: str) -> list[Interval]:
        found = [
            value
            for (item, condition, quantity), value in ours.items()
            if item == "Table VIII" and quantity == "gain in p95" and condition.startswith(start)
        ]
        return found

    result = {}
    for unit in ("packets", "bytes"):
        columns = np.mean(of_all(f"split 2, queue in {unit}"), axis=0)
        result["Abstract", f"split 2, queue in {unit}", "mean gain in p95"] = Interval(*map(float, columns))
    result["Abstract", "par 5, queue in packets", "largest gain in p95"] = max(of_all("par 5"))
    return result


def computed() -> dict[tuple[str, str, str], Interval]:
    """Return all figures of ours from the tables that have been written."""
    found = {}
    for part in PARTS:
        with (RESULTS / f"brosh-{part}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = row["item"], row["condition"], row["quantity"]
                found[key] = Interval(float(row["value"]), float(row["low"]), float(row["high"]))
    return found


def main() -> None:
    """Write the requested tables, and the comparison with the published figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS), help="tables to compute anew; by default all")
    asked = parser.parse_args().parts
    if strange := set(asked) - set(PARTS):
        parser.error(f"no such table: {', '.join(sorted(strange))}")
    figures = published_figures("brosh")
    for part in asked or PARTS:
        write_table(f"brosh-{part}", (row._asdict() for row in PARTS[part](figures)))
    ours = computed()
    ours |= in_the_abstract(ours)
    write_comparison("brosh", {figure: ours[figure[:3]] for figure in figures}, REASONS)


if __name__ == "__main__":
    main()
