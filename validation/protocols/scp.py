"""Simulate the published scenario of SCP, and test its analysis of two flows.

`python validation/protocols/scp.py` writes `validation/results/protocols/scp-*.csv` in some minutes. Published figures:
Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tables import write_table

import tcpdelay as td
from tcpdelay.confidence import mean_interval
from tcpdelay.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.network.literature.scp import scp_share
from tcpdelay.network.preparation import prepare
from tcpdelay.network.simulation import simulate_network
from tcpdelay.network.sources import Bulk, ConstantRate
from tcpdelay.network.stacks import Classic, Scp, Udp

SEEDS = range(1, 11)
JITTER = 0.005
"""Random delay of the acknowledgements [s]."""
MODEM = Bottleneck(rate=28_800, capacity=15 * 28_800 // 8, unit="bytes")
PUBLISHED_BACKLOG = {"SCP": 1.2, "Classic TCP": 16.0}
"""Buffering delay on the modem [s]."""
TCP_WINDOW = 65_536 // 1460
RTT = 0.100
STEP, LENGTH = 2.0, 150
"""Length of a part of the time on the modem [s], and number of parts."""
SETTLED = 500.0
"""Time before the share of two flows is measured, and time during which it is measured [s]."""
Row = dict[str, str | float]


def mean_and_interval(name: str, values: Sequence[float]) -> Row:
    """Return the mean of one value per seed, and its 95 % interval by Student's distribution."""
    interval = mean_interval([np.array(values)], batches=len(values))
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def buffering(stack: td.Stack, seed: int) -> list[float]:
    """Return the mean wait at the modem of the packets that arrive in each part of the time [s]."""
    start = float(np.random.default_rng(seed).uniform(0, 1))
    source = Bulk(path=SharedPath(RTT / 2, return_jitter=JITTER), stack=stack, start=start)
    until = LENGTH * STEP
    network = prepare([source], MODEM, seed, 0.0, until)
    link, before, delays = network.link[0], np.zeros(2), []
    for end in np.arange(1, LENGTH + 1) * STEP:
        network.advance(end)
        sojourn, packets = (counts := np.array([link.sojourn / 1e9, link.offered - link.dropped])) - before
        before = counts
        service = 8 * (1460 + source.header_size) / MODEM.rate
        # In a part without packets, the wait of a packet that would arrive at its end.
        delays.append(sojourn / packets - service if packets else max(link.virtual_finish / 1e9 - end, 0.0))
    return delays


def backlog() -> Iterator[Row]:
    """Compare the buffering delay of SCP and of TCP on a modem, over time."""
    for name, stack in (("SCP", Scp()), ("Classic TCP", Classic(recovery="reno", receiver_window=TCP_WINDOW))):
        runs = np.array([buffering(stack, seed) for seed in SEEDS])
        for part, delays in enumerate(runs.T):
            row: Row = {"transport": name, "time": (part + 0.5) * STEP, "published_settled": PUBLISHED_BACKLOG[name]}
            yield row | mean_and_interval("delay", delays.tolist()) | {"largest": float(delays.max())}


def share_of_first(link: Bottleneck, one_way: float, offset: float, seed: int) -> dict[str, float]:
    """Return the shares of two SCP flows and the errors of their base RTTs; the second flow begins later."""
    path = SharedPath(one_way, return_jitter=0.001)
    start = float(np.random.default_rng(seed).uniform(0, 0.1))
    sources = [Bulk(path=path, stack=Scp(), start=start), Bulk(path=path, stack=Scp(), start=start + offset)]
    packet = 8 * (1460 + sources[0].header_size)
    network = prepare(sources, link, seed, 0.0, 2 * SETTLED)
    network.advance(SETTLED)
    before = network.flows.segments_carried.copy()
    network.advance(2 * SETTLED)
    carried = network.flows.segments_carried - before
    base_rtts = np.array([float(connection.base_rtt) for connection in network.connections]) / 1e6
    errors = base_rtts - (2 * one_way + packet / link.rate)
    return {
        "error": float(errors[0]),
        "other_error": float(errors[1]),
        "share": carried[0] / carried.sum(),
        # The link counts in nanoseconds, so a base RTT may be too small by one nanosecond.
        "closed_form": float(scp_share(link.rate / packet, *np.maximum(errors, 0.0))),
        "fairness": carried.sum() ** 2 / (2 * (carried**2.0).sum()),
    }


def shares() -> Iterator[Row]:
    """Let two SCP flows share a link, and compare their shares with the closed form."""
    for rate, one_way in ((500e3, 0.050), (1e6, 0.050), (2e6, 0.020), (10e6, 0.050)):
        for offset in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 30.0):
            runs = [share_of_first(Bottleneck(rate, 2000), one_way, offset, seed) for seed in SEEDS]
            row: Row = {"rate": rate, "rtt": 2 * one_way, "offset": offset}
            for name in runs[0]:
                row |= mean_and_interval(name, [run[name] for run in runs])
            yield row | mean_and_interval("difference", [run["share"] - run["closed_form"] for run in runs])


def beside_tcp() -> Iterator[Row]:
    """Let an SCP flow and another flow share a link of 2 Mbit/s, with buffers of several sizes."""
    rate = 2e6
    stacks = {
        "Classic TCP": Classic(recovery="reno", receiver_window=1000),
        "Linux TCP (CUBIC)": td.Stack.linux(congestion_control="cubic"),
        "SCP": Scp(),
    }
    for name, stack in stacks.items():
        for depth in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
            link = Bottleneck(rate, round(depth * RTT * rate / 8), unit="bytes")
            part, sojourn, loss = [], [], []
            for seed in SEEDS:
                path = SharedPath(RTT / 2, return_jitter=JITTER)
                start = float(np.random.default_rng(seed).uniform(0, 1))
                sources = [Bulk(path=path, stack=Scp(), start=start), Bulk(path=path, stack=stack)]
                result = simulate_network(sources, link, duration=600, warm_up=100, seed=seed)
                first, second = result.flows
                part.append(first.throughput / (first.throughput + second.throughput))
                sojourn.append(result.queue.mean_sojourn)
                loss.append(first.segments_dropped / first.segments_sent)
            row: Row = {"other": name, "buffer_in_bdp": depth}
            yield (
                row
                | mean_and_interval("share", part)
                | mean_and_interval("sojourn", sojourn)
                | (mean_and_interval("loss", loss))
            )


def constant_rate() -> Iterator[Row]:
    """Compare voice over SCP, Linux TCP and datagrams where 2 % of the packets are lost at random."""
    stacks = {
        "SCP": Scp(),
        "SCP, r not filtered": Scp(rate_gain=1.0),
        "Linux TCP (CUBIC)": td.Stack.linux(congestion_control="cubic"),
        "datagrams": Udp(),
    }
    fast = Bottleneck(1e9, 60_000)
    for interval in (0.010, 0.020, 0.040, 0.080):
        for name, stack in stacks.items():
            values: dict[str, list[float]] = {"mean": [], "p95": [], "lost": [], "unfinished": [], "late": []}
            for seed in SEEDS:
                path = SharedPath(RTT / 2, return_jitter=JITTER, loss=0.02)
                source = ConstantRate(flow=td.Flow(174, interval), path=path, stack=stack)
                flow = simulate_network([source], fast, duration=2000, warm_up=100, seed=seed).flows[0]
                assert flow.delays is not None
                values["mean"].append(flow.delays.mean)
                values["p95"].append(flow.delays.quantile(0.95))
                values["lost"].append(flow.lost / flow.offered)
                values["unfinished"].append(flow.unfinished / flow.offered)
                values["late"].append(flow.late_fraction(0.200))
            row: Row = {"transport": name, "interval": interval}
            for measure, runs in values.items():
                row |= mean_and_interval(measure, runs)
            yield row


EXPERIMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "scp-backlog": backlog,
    "scp-shares": shares,
    "scp-beside-tcp": beside_tcp,
    "scp-constant-rate": constant_rate,
}


def write(name: str) -> Path:
    """Run an experiment, write its table, and return the file."""
    rows = []
    for row in EXPERIMENTS[name]():
        print(name, *row.values(), file=sys.stderr)
        rows.append(row)
    return write_table(name, rows)


def main() -> None:
    """Write all tables, with two processes."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for file in pool.map(write, EXPERIMENTS):
            print(file)


if __name__ == "__main__":
    main()
