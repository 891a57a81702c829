"""TCP-RC: delays from the departure and from the write, forged packets, and playback times beside plain TCP.

`python validation/papers/tcp_rc.py` writes `validation/results/papers/tcp_rc*.csv`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from comparison import interval_over_seeds, published_figures, write_comparison, write_table
from numpy.typing import NDArray

import tcpdelay as td
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.literature import classic
from tcpdelay.sim.literature.classic import ACKNOWLEDGEMENTS, GAPS_WAITED
from tcpdelay.sim.network.bottleneck import Bottleneck, SharedPath
from tcpdelay.sim.network.simulation import prepare, simulate_network
from tcpdelay.sim.network.sources import Bulk, ConstantRate
from tcpdelay.sim.network.stacks import Classic, Recovery
from tcpdelay.sim.records import RING
from tcpdelay.statistics import Interval

SEEDS = range(1, 9)
DURATION, WARM_UP = 200.0, 5.0
PLAYBACK, PLAYBACK_WARM_UP = 600.0, 10.0
PACKET_SIZE, RTT = 500, 0.060
RECOVERIES: tuple[Recovery, ...] = ("sack", "reno", "newreno")
INTERVALS, LOSSES = (0.010, 0.020), (0.005, 0.01, 0.02)
RTTS, PLAYBACK_LOSSES = (
    (0.010, 0.020, 0.030, 0.040, 0.060, 0.080, 0.100, 0.120),
    (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03),
)
FAST = Bottleneck(1e9, 10_000)
MICROSECOND = 1e-6
REASONS = {
    "Section 1": "A packet directly behind a lost one waits for three mean times between arrivals, which a loss makes "
    "longer. Behind several lost packets, and while the window lets few packets go, it waits longer still. Ours is the "
    "largest delay of 200 s at each of three losses, more packets than the figure of the paper shows.",
    "Section 3.2": "A fast retransmission waits for three further packets, here 30 ms; the published delay leaves no "
    "time for them, so the packets of the paper leave in bursts. The largest delay of TCP-RC: as in section 1. "
    "Timeouts: at 2 % of loss a window more often loses several packets, or the packet that is sent again.",
    "Figure 3": "The paper prints no playback times, and says in words what the curves show.",
}


def stack(recovery: Recovery) -> Classic:
    """Return a stack with the timers of Linux 2.4."""
    return Classic(recovery=recovery, mss=1448, tick=0.01, rto_min=0.2)


@dataclass(frozen=True)
class Run:
    """A flow of constant rate of the published scenario, packet by packet."""

    # from_write, from_departure: Delay of each packet that is read [s].
    from_write: NDArray[np.float64]
    from_departure: NDArray[np.float64]
    received: NDArray[
        np.float64
    ]  # From its departure until each packet is read or forged, as the paper measures it [s]
    # forged, sent_again, timeouts: Numbers of packets forged, of segments sent again, and of timeouts.
    forged: int
    sent_again: int
    timeouts: int


@kernel()
def record(
    flow: Any, s: Any, wire: Any, link: Any, samples: Any, until: int, departures: Any, delays: Any, events: Any
) -> int:
    """Simulate a flow up to a time [us]; return how many events had a read or a forged packet.

    `departures` gets the time at which each packet leaves, `delays` the delay of each packet that is read, and `events`
    how many packets have been read and lost after each event.
    """
    left = read = lost = used = 0
    while s.now < until:
        before = s.snd_max
        classic.step(flow, s, wire, link, samples)
        for number in range(before, s.snd_max):
            while left < departures.size and (left + 1) * flow.message <= wire.segments[number % RING].end:
                departures[left] = s.now
                left += 1
        if samples.used or flow.lost > lost:
            for place in range(samples.used):
                delays[read] = samples.keys[place]
                read += 1
            samples.used, lost = 0, flow.lost
            events[used, 0], events[used, 1] = read, lost
            used += 1
    return int(used)


def run(recovery: Recovery, interval: float, loss: float, forging: bool, seed: int, lost: int | None = None) -> Run:
    """Simulate a flow event by event, to know when each packet leaves; without random losses, `lost` is lost alone."""
    source = ConstantRate(
        flow=td.Flow(PACKET_SIZE, interval, write_jitter=0.0),
        path=SharedPath(RTT / 2, loss=loss),
        stack=stack(recovery),
        forging=forging,
    )
    network = prepare([source], FAST, seed, 0.0, DURATION)
    flow, wire, sender = network.flows[0], network.wires[0], network.connections[0]
    if lost is not None:
        flow.until_loss = lost + 1
    between = round(interval / MICROSECOND)
    packets = round(DURATION / interval) + 1
    departures, delays, events = (
        np.zeros(packets, np.int64),
        np.zeros(packets, np.int64),
        np.zeros((packets, 2), np.int64),
    )
    until = round(DURATION / MICROSECOND)
    used = record(flow, sender, wire, network.link[0], network.samples[0], until, departures, delays, events)
    reads: list[float] = []
    first = forged = 0
    for end, all_forged in events[:used].tolist():
        reads += _read_times(len(reads), delays[first:end].tolist(), all_forged - forged, between)
        first, forged = end, all_forged
    skipped = round(WARM_UP / interval)
    read = np.array(reads[skipped:], dtype=float)
    sent = departures[skipped : len(reads)].astype(float)
    written = between * np.arange(skipped, len(reads), dtype=float)
    real = ~np.isnan(read)
    # A forged packet is read together with the packet behind it.
    forged_at = read.copy()
    for place in np.flatnonzero(~real)[::-1]:
        forged_at[place] = forged_at[place + 1] if place + 1 < read.size else math.nan
    received = (forged_at - sent) * MICROSECOND
    return Run(
        (read - written)[real] * MICROSECOND,
        (read - sent)[real] * MICROSECOND,
        received[~np.isnan(received)],
        int((~real).sum()),
        int(sender.segments_retransmitted),
        int(sender.timeouts),
    )


def _read_times(first: int, delays: list[int], lost: int, between: int) -> list[float]:
    """Return when the packets from number `first` on were read, NaN for each of the `lost` packets among them.

    Packets read at the same time have delays that differ by the time between their writes; a larger difference shows
    lost packets between them. The others are in front.
    """
    gaps = [0] * len(delays)
    for place in range(len(delays) - 1, 0, -1):
        steps, rest = divmod(delays[place - 1] - delays[place], between)
        if rest == 0 and 1 < steps <= lost + 1:
            gaps[place] = steps - 1
            lost -= steps - 1
    if delays:
        gaps[0] = lost
    times: list[float] = []
    for gap, delay in zip(gaps, delays, strict=True):
        times += [math.nan] * gap
        times.append((first + len(times)) * between + delay)
    return times if delays else [math.nan] * lost


def columns(name: str, interval: Interval) -> dict[str, float]:
    """Return a value and half its 95 % interval as columns."""
    return {name: interval.value, f"{name}_ci95": (interval.high - interval.low) / 2}


Runs = dict[tuple[Recovery, float, float, bool], list[Run]]


def all_runs() -> Runs:
    """Return the runs of all scenarios, one per seed."""
    runs: Runs = {}
    for scenario in product(RECOVERIES, INTERVALS, LOSSES, (False, True)):
        runs[scenario] = [run(*scenario, seed) for seed in SEEDS]
        print(*scenario, f"{1e3 * runs[scenario][0].received.mean():.4g} ms", file=sys.stderr)
    return runs


def delay_rows(runs: Runs) -> Iterator[dict[str, object]]:
    """Yield one row per scenario, with both measures of the delay."""
    for (recovery, interval, loss, forging), results in runs.items():
        row: dict[str, object] = {
            "recovery": recovery,
            "interval": interval,
            "rtt": RTT,
            "loss": loss,
            "forging": forging,
        }
        for name, values in (
            ("mean_ms", [1e3 * result.from_write.mean() for result in results]),
            ("departed_mean_ms", [1e3 * result.received.mean() for result in results]),
            ("departed_p50_ms", [1e3 * float(np.median(result.received)) for result in results]),
            ("departed_p99_ms", [1e3 * float(np.quantile(result.received, 0.99)) for result in results]),
            ("departed_largest_ms", [1e3 * result.received.max() for result in results]),
            ("forged_percent", [100 * result.forged / (result.forged + result.from_write.size) for result in results]),
            ("timeouts", [float(result.timeouts) for result in results]),
        ):
            row |= columns(name, interval_over_seeds(values))
        yield row


def playback_time(rtt: float, loss: float, seed: int) -> tuple[float, float, float]:
    """Return the playback time of TCP-RC over that of TCP with SACK, and both times [s per Mbit]."""
    times = []
    for forging in (True, False):
        source = Bulk(path=SharedPath(rtt / 2, loss=loss), stack=stack("sack"), forging=forging)
        (flow,) = simulate_network([source], FAST, duration=PLAYBACK, warm_up=PLAYBACK_WARM_UP, seed=seed).flows
        # Forged packets are played too.
        times.append(1e6 / (flow.throughput * flow.offered / (flow.offered - flow.lost)))
    return times[0] / times[1], times[0], times[1]


def playback_rows() -> Iterator[dict[str, object]]:
    """Yield the playback times of Figure 3: over the round-trip time at 1 % of loss, and over the loss at 60 ms."""
    for rtt, loss in [(rtt, 0.01) for rtt in RTTS] + [(RTT, loss) for loss in PLAYBACK_LOSSES]:
        ratios, forging, waiting = zip(*(playback_time(rtt, loss, seed) for seed in SEEDS), strict=True)
        row: dict[str, object] = {"rtt": rtt, "loss": loss}
        for name, values in (("ratio", ratios), ("tcp_rc", forging), ("tcp", waiting)):
            row |= columns(name, interval_over_seeds(values))
        print(*row.values(), file=sys.stderr)
        yield row


def published(runs: Runs) -> dict[tuple[str, str, str], list[float]]:
    """Return our figure for each seed by item, condition and quantity."""
    interval = 0.010
    tcp, forging = ({loss: runs["sack", interval, loss, kind] for loss in LOSSES} for kind in (False, True))
    seeds = range(len(SEEDS))
    one_way = RTT / 2

    def over_losses(of: dict[float, list[Run]], measure: object) -> list[float]:
        return [float(measure(np.concatenate([of[loss][n].received for loss in LOSSES]))) for n in seeds]  # type: ignore[operator]

    every = "loss 0.5 to 2 %"
    # The lost packet, which waits longest, and the packet three intervals of 10 ms behind it.
    received = 1e3 * run("sack", interval, 0.0, False, 1, lost=2000).received
    alone = received[received.argmax() + np.array([0, 3])]
    return {
        ("Section 2.1", "a packet is overtaken", "packets until it is declared missing"): [float(GAPS_WAITED)] * 2,
        ("Section 2.2", "a packet is declared missing", "ACKs that ask for it"): [float(ACKNOWLEDGEMENTS)] * 2,
        ("Section 3.2", "TCP, a fast retransmission", "delay of the lost packet"): [float(alone[0])] * 2,
        ("Section 3.2", "TCP, sent 30 ms after a lost packet", "delay"): [float(alone[1])] * 2,
        ("Section 3.2", "TCP, a timeout", "delay of the lost packet (around)"): [
            1e3 * float(np.median(result.received[result.received > 0.2])) for result in tcp[0.02]
        ],
        ("Section 1", f"TCP-RC, {every}", "median delay / one-way delay"): [
            value / one_way for value in over_losses(forging, np.median)
        ],
        ("Section 1", f"TCP-RC, {every}", "largest delay / round-trip time (slightly more than)"): [
            value / RTT for value in over_losses(forging, np.max)
        ],
        ("Section 1", "TCP-RC, loss 2 %", "mean delay / one-way delay (slightly more than)"): [
            float(result.received.mean()) / one_way for result in forging[0.02]
        ],
        ("Section 1", f"TCP, {every}", "largest delay / round-trip time (over)"): [
            value / RTT for value in over_losses(tcp, np.max)
        ],
        ("Section 1", "TCP, loss 2 %", "mean delay / one-way delay (as much as)"): [
            float(result.received.mean()) / one_way for result in tcp[0.02]
        ],
        ("Section 3.2", "TCP, loss 1 %", "delay of most packets"): [
            1e3 * float(np.median(result.received)) for result in tcp[0.01]
        ],
        ("Section 3.2", "TCP, loss 2 % and 0.5 %", "ratio of the numbers of timeouts"): [
            tcp[0.02][n].timeouts / max(tcp[0.005][n].timeouts, 1) for n in seeds
        ],
        ("Section 3.2", f"TCP-RC, {every}", "smallest delay"): [1e3 * value for value in over_losses(forging, np.min)],
        ("Section 3.2", f"TCP-RC, {every}", "largest delay"): [1e3 * value for value in over_losses(forging, np.max)],
    }


def compare(runs: Runs, playback: Iterable[dict[str, object]]) -> None:
    """Write our figures beside those of the paper."""
    ours = {key: interval_over_seeds(values) for key, values in published(runs).items()}
    ratios = {(row["rtt"], row["loss"]): row for row in playback}
    for figure in published_figures("tcp_rc"):
        if figure.item == "Figure 3":
            loss, rtt = (float(part.split()[1]) for part in figure.condition.split(", "))
            row = ratios[rtt / 1000, loss / 100]
            value, half = float(str(row["ratio"])), float(str(row["ratio_ci95"]))
            ours[figure[:3]] = Interval(value, value - half, value + half)
    found = {figure: ours[figure[:3]] for figure in published_figures("tcp_rc") if figure[:3] in ours}
    write_comparison("tcp_rc", found, REASONS)


def main() -> None:
    """Write all tables."""
    started = time.monotonic()
    playback = list(playback_rows())
    write_table("tcp_rc-playback", playback, digits=5)
    runs = all_runs()
    write_table("tcp_rc", delay_rows(runs), digits=5)
    compare(runs, playback)
    print(f"{math.ceil((time.monotonic() - started) / 60)} min", file=sys.stderr)


if __name__ == "__main__":
    main()
