"""The entry point of the simulator: the delays of a flow's packets, with their statistical error.

Delays are kept in one histogram per batch of packets, so memory does not grow with the length of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval, student
from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import statistical_error
from tcpdelay.models.simulator.engine import ALL_RULES, advance, new_connection
from tcpdelay.models.simulator.records import Rules, Wire
from tcpdelay.models.simulator.sender import LARGEST_FLIGHT
from tcpdelay.models.simulator.window import PUBLIC_EVENT, public_events
from tcpdelay.models.tcp import SECOND
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Stack

MOST_BATCHES = 64
"""Number of batches at which neighbouring batches are merged."""
FEWEST_BATCHES = 20
"""Smallest number of batches for a confidence interval."""
MOST_VALUES = 65_536
"""Largest number of different delays in a batch that are kept to the microsecond."""
DIGITS = 12
"""Binary digits of a rounded delay; the rounding error is at most 0.02 %."""

Histogram: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Batches:
    """Histograms of consecutive batches of packets. All batches are of one size; it doubles at `MOST_BATCHES` batches.

    Delays are exact to the microsecond. In a batch with more than `MOST_VALUES` different delays, `to_digits` rounds
    them.
    """

    def __init__(self) -> None:
        self._histograms: list[Histogram] = []
        self._pending: list[Histogram] = []
        self._merged = 1

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of a chunk of packets; all chunks should have the same length."""
        self._pending.append(np.unique(delays, return_counts=True))
        if len(self._pending) == self._merged:
            self._histograms.append(_bounded(merge(self._pending)))
            self._pending = []
        if len(self._histograms) == MOST_BATCHES:
            pairs = zip(self._histograms[::2], self._histograms[1::2], strict=True)
            self._histograms = [_bounded(merge(list(pair))) for pair in pairs]
            self._merged *= 2

    def histogram(self) -> Histogram:
        """Return all delays [us], ascending, and the number of packets with each delay."""
        return merge([*self._histograms, *self._pending])

    @property
    def enough(self) -> bool:
        """Whether there are enough batches for a confidence interval."""
        return len(self._histograms) >= FEWEST_BATCHES

    def mean(self) -> Interval:
        """Return the mean delay [s] and its 95 % interval."""
        return mean_of(self._histograms)

    def quantile(self, probability: float) -> Interval:
        """Return a quantile of the delay [s] and its 95 % interval."""
        return quantile_of(self._histograms, self.histogram(), probability)


def _bounded(histogram: Histogram) -> Histogram:
    """Return a histogram of at most `MOST_VALUES` different delays; more are rounded."""
    values, counts = histogram
    return histogram if values.size <= MOST_VALUES else merge([(to_digits(values), counts)])


def to_digits(delays: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return delays, whole numbers from 0, rounded to `DIGITS` binary digits.

    Examples
    --------
    >>> to_digits(np.array([4095, 4099, 1_000_001])).tolist()
    [4095, 4100, 999936]
    """
    _, digits = np.frexp(delays.astype(np.float64))
    step = np.int64(1) << np.maximum(digits.astype(np.int64) - DIGITS, 0)
    result: NDArray[np.int64] = (delays + step // 2) // step * step
    return result


def mean_of(batches: list[Histogram]) -> Interval:
    """Return the mean [s] of the delays [us] in batches, and its 95 % interval."""
    counts = np.array([float(count.sum()) for _, count in batches])
    means = np.array([float(value @ count) for value, count in batches]) / counts / SECOND
    value, half_width = student(counts, means)
    return Interval(value, value - half_width, value + half_width)


def quantile_of(batches: list[Histogram], together: Histogram, probability: float) -> Interval:
    """Return a quantile [s] of the delays [us] in `together`, and its 95 % interval from the spread of the batches."""
    values, counts = together
    reached = np.cumsum(counts) / counts.sum()

    def at(share: float) -> int:
        return int(values[min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])

    middle = at(probability)
    sizes = np.array([float(count.sum()) for _, count in batches])
    below = np.array([float(count[value <= middle].sum()) for value, count in batches]) / sizes
    _, half_width = student(sizes, below)
    ends = (middle, at(max(probability - half_width, 0.0)), at(min(probability + half_width, 1.0)))
    return Interval(*(end / SECOND for end in ends))


def merge(histograms: list[Histogram]) -> Histogram:
    """Return the sum of histograms: the values, ascending, and their counts."""
    if not histograms:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    values, places = np.unique(np.concatenate([value for value, _ in histograms]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([count for _, count in histograms]))
    return values, counts


CHUNK = 50_000
"""Packets that one call of the compiled code simulates."""
WARM_UP = 2_000
"""Packets at the beginning that are not counted."""
MOST_PACKETS, MOST_SEGMENTS = 20_000_000, 100_000_000
"""Packets, and segments, after which a simulation ends at any precision; this takes some ten seconds."""
HALF_WIDTH = 0.02
"""Half width of the confidence interval of the quantile by default, relative to the quantile."""
MORE_PER_LOOK = 1.1
"""Growth of the number of packets between two estimates of the precision, which take time."""
LONG_RUN = 8
"""Consecutive chunks in which a backlog must grow to count as unbounded."""
GROWTH = 0.005
"""Smallest growth of an unbounded backlog over these chunks, as a share of the packets written."""
UNKNOWN = Interval(np.nan, np.nan, np.nan)
COUNTS = (
    "segments_sent",
    "segments_lost",
    "segments_retransmitted",
    "recoveries",
    "timeouts",
    "probes",
    "reordering_timeouts",
    "undone",
    "acks_sent",
    "acks_lost",
)


@dataclass(frozen=True, repr=False)
class Simulation(DelayDistribution):
    """Simulated delays: their distribution, its statistical error, and the counts of the simulation.

    Attributes
    ----------
    packets : int
        Number of packets counted.
    seed : int
        Seed of all random numbers.
    mean_interval : Interval
        Mean delay [s] with its 95 % interval.
    quantile_interval : Interval
        The requested quantile [s] with its 95 % interval.
    sender_delay, head_of_line_delay : float
        Parts of the mean delay beyond the network's one-way delay [s]: waiting in the send buffer, and waiting at the
        receiver for a lost segment, which may be the packet's own.
    counts : dict of int
        Segments sent, lost and retransmitted; recoveries, timeouts, probes, reordering timeouts, and needless
        reductions undone; ACKs sent and lost.
    sent_after, read_after : ndarray of float
        Time of each packet from its write to its first transmission, and to its read [s]; empty without `trace`.
    events : structured array
        The first 100 000 events at the sender; empty without `trace`. `time` is the time since the write of the first
        packet counted [s], and `kind` is one of `window.KINDS`. `start` and `end` are the positions in the stream that
        the event concerns [bytes since the start of that packet]. `cwnd` and `in_flight` are the congestion window and
        the segments in flight [segments].
    """

    method: str = "simulation"
    packets: int = 0
    seed: int = 0
    mean_interval: Interval = UNKNOWN
    quantile_interval: Interval = UNKNOWN
    sender_delay: float = 0.0
    head_of_line_delay: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    sent_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    read_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, PUBLIC_EVENT), repr=False)

    @cached_property
    def expected_error(self) -> ExpectedError | None:
        """Statistical error of the requested quantile and of the mean; None where no delay is finite."""
        if not self.sustainable:
            return None
        return statistical_error(self.quantile_interval, self.mean_interval, self.packets)


def simulate(
    flow: Flow,
    path: Path,
    stack: Stack | None = None,
    *,
    packets: int | None = None,
    seed: int = 0,
    quantile: float = 0.95,
    half_width: float = HALF_WIDTH,
    rules: Rules = ALL_RULES,
    tick_offset: float | None = None,
    exact_ties: bool = False,
    trace: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Simulate a flow over Linux TCP, ACK by ACK.

    Parameters
    ----------
    flow : Flow
        The packets.
    path : Path
        The network: random losses, single or in bursts, of segments and of acknowledgements; constant delays or jitter.
    stack : Stack, optional
        `Stack.linux(...)`, its defaults if left out.
    packets : int, optional
        Number of packets counted, 1000 to 1e9. By default as many as `half_width` requires, but at most 20 million
        packets or 100 million segments; `quantile_interval` has the precision reached.
    seed : int
        Seed of all random numbers, 0 or more; the same seed gives the same result.
    quantile : float
        The quantile to which `half_width` refers, above 0 and below 1.
    half_width : float
        Half width of the quantile's 95 % interval, relative to the quantile, above 0 and below 1.
    rules : Rules
        The kernel's rules that the simulation follows; by default all.
    tick_offset : float, optional
        Time from a tick of the kernel's clock to the first write [s], 0 to 1. By default it is drawn anew for every
        50 000 packets, because flows and kernels have no common clock.
    exact_ties : bool
        Whether times are exact to the microsecond. By default the round-trip time is 1 us longer, and ACKs arrive at
        least 1 us apart. The reason: if the kernel retransmits a segment in the microsecond in which it also sends a
        new segment, it marks the retransmission as lost. Where the round-trip time is a multiple of the interval, this
        would happen again and again, as it does in virtual time, but on no real path. With exact ties the path's delay
        is spent in a queue of the sender's host, as in the testbed; the kernel does not retransmit a segment that is
        still in this queue.
    trace : bool
        Whether to keep the delays of every packet, in the order of writing, and the first events at the sender; this
        requires `packets`.
    on_progress : callable, optional
        Function that is called with the number of packets simulated and the largest number of packets.

    Returns
    -------
    Simulation
        The delays. Where the backlog grows without bound, every quantile is infinite.

    Raises
    ------
    ValueError
        If a value is out of its range, or the flow needs more segments in flight than the simulator can hold.

    Examples
    --------
    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=100_000, seed=1)
    >>> round(delays.mean, 3), round(delays.quantile(0.95), 3)
    (0.062, 0.14)

    The events of the first segment that is lost:

    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=10_000, seed=1, trace=True)
    >>> lost = delays.events[delays.events["kind"] == "lost"][0]
    >>> concerned = (delays.events["start"] <= lost["start"]) & (lost["start"] < delays.events["end"])
    >>> for event in delays.events[concerned]:
    ...     print(f"{event['time'] - lost['time']:.3f} s: {event['kind']}")
    0.000 s: sent
    0.000 s: lost
    0.128 s: reordering timer
    0.128 s: recovery
    0.128 s: retransmitted
    0.228 s: acknowledged
    """
    stack = Stack.linux() if stack is None else stack
    if not isinstance(stack, Linux):
        raise InvalidValueError("stack", stack, "be one of Stack.linux(...)")
    if path.loss_pattern != "random":
        raise InvalidValueError(
            "loss_pattern",
            path.loss_pattern,
            "be 'random' in a simulation",
            "bursts are given by bad_time or loss_burst",
        )
    for name, share in (("quantile", quantile), ("half_width", half_width)):
        if not 0 < share < 1:
            raise InvalidValueError(name, share, "lie between 0 and 1")
    if tick_offset is not None and not 0 <= tick_offset <= 1:
        raise InvalidValueError("tick_offset", tick_offset, "lie between 0 and 1 s")
    if packets is not None and not 1000 <= packets <= 1e9:
        raise InvalidValueError("packets", packets, "lie between 1000 and 1e9")
    if seed < 0:
        raise InvalidValueError("seed", seed, "be 0 or more")
    if trace and packets is None:
        raise InvalidValueError("packets", packets, "be given with a trace")
    segments = segments_in_round_trip(flow, path, stack)
    if segments > LARGEST_FLIGHT / 2:
        raise InvalidValueError("rtt", segments, f"be less than {LARGEST_FLIGHT // 2} segments of the flow long")
    connection, wire = new_connection(flow, path, stack, seed, rules, exact_ties)
    if tick_offset is not None:
        connection.tick_phase += round(tick_offset * SECOND) % connection.tick - connection.tick_phase % connection.tick
    advance(connection, wire, WARM_UP)
    most = min(MOST_PACKETS, MOST_SEGMENTS // -(-flow.packet_size // stack.mss)) if packets is None else packets
    sought = half_width if packets is None else None
    return _run(connection, wire, path, most, seed, quantile, sought, tick_offset is None, trace, on_progress)


def segments_in_round_trip(flow: Flow, path: Path, stack: Linux) -> float:
    """Return the number of segments that a flow sends in the longest round-trip time without losses."""
    return -(-flow.packet_size // stack.mss) * ((path.rtt + path.jitter) / flow.interval + 1)


def _run(
    connection: Any,
    wire: Wire,
    path: Path,
    most_packets: int,
    seed: int,
    quantile: float,
    half_width: float | None,
    drifting: bool,
    trace: bool,
    on_progress: Callable[[int, int], None] | None,
) -> Simulation:
    """Simulate until `most_packets` are counted or the quantile's interval is narrow enough; return the result."""
    batches, sums, backlogs, traces = Batches(), np.zeros(2), [], []
    chunk = min(CHUNK, -(-most_packets // 20))
    counted, looked = 0, 0
    connection.tracing = int(trace)
    start = int(connection.packets_read)
    while counted < most_packets:
        first = int(connection.packets_read)
        size = min(chunk, most_packets - counted)
        if drifting:
            connection.tick_phase += int(wire.random.integers(connection.tick))
        advance(connection, wire, first + size)
        delays = wire.delays_of(first, size)
        counted += size
        batches.add(delays[0])
        sums += delays.sum(axis=1)
        if trace:
            traces.append(delays)
        backlogs.append(int(connection.packets_written - connection.packets_read))
        if _grows(backlogs, counted):
            return _unsustainable(path, counted, seed, connection)
        if half_width is not None and batches.enough and counted >= MORE_PER_LOOK * looked:
            looked = counted
            if batches.quantile(quantile).relative_half_width <= half_width:
                break
        if on_progress is not None:
            on_progress(counted, most_packets)
    values, counts = batches.histogram()
    mean_delay, mean_sender = sums / counted / SECOND
    kept = np.concatenate(traces, axis=1) / SECOND if trace else np.empty((2, 0))
    events = wire.record.events[: connection.events]
    return Simulation(
        np.asarray(values / SECOND, np.float64),
        counts / counts.sum(),
        path.forward_delay,
        packets=counted,
        seed=seed,
        mean_interval=batches.mean(),
        quantile_interval=batches.quantile(quantile),
        sender_delay=float(mean_sender),
        head_of_line_delay=float(mean_delay - mean_sender - path.forward_delay - path.jitter / 2),
        counts=_counts(connection),
        sent_after=kept[1],
        read_after=kept[0],
        events=public_events(events, start * int(connection.interval), start * int(connection.packet_size)),
    )


def _counts(connection: Any) -> dict[str, int]:
    """Return the counts of a connection by name."""
    return {name: int(connection[name]) for name in COUNTS}


def _grows(backlogs: list[int], packets: int) -> bool:
    """Return whether the number of packets written but not read grows without bound."""
    if len(backlogs) < LONG_RUN:
        return False
    recent = backlogs[-LONG_RUN:]
    rising = all(later > earlier for earlier, later in pairwise(recent))
    return rising and recent[-1] - recent[0] > GROWTH * packets


def _unsustainable(path: Path, packets: int, seed: int, connection: Any) -> Simulation:
    """Return the result for a flow that TCP cannot carry: all delays are infinite."""
    never = Interval(np.inf, np.inf, np.inf)
    return Simulation(
        np.array([np.inf]),
        np.array([1.0]),
        path.forward_delay,
        sustainable=False,
        packets=packets,
        seed=seed,
        mean_interval=never,
        quantile_interval=never,
        sender_delay=np.inf,
        head_of_line_delay=np.inf,
        counts=_counts(connection),
    )
