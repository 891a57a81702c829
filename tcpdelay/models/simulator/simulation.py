"""The front door of the simulator: how late the packets of a flow are, with the statistical error of the answer.

Delays are kept as a histogram per batch of packets, so that memory does not grow with the length of a simulation.
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
FEWEST_BATCHES = 20
MICROSECONDS = 1e6
MOST_VALUES = 65_536
"""Different delays of a batch up to which all are kept to the microsecond."""

DIGITS = 12
"""Binary digits of a delay that are kept at least where not all are: it is known to 0.02 %."""

Histogram: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class Batches:
    """Histograms of consecutive batches of equally many packets; once there are too many, neighbours are merged.

    Delays are exact to the microsecond; in batches of more than `MOST_VALUES` different ones, `to_digits` rounds them.
    """

    def __init__(self) -> None:
        self._histograms: list[Histogram] = []
        self._pending: list[Histogram] = []
        self._merged = 1

    def add(self, delays: NDArray[np.int64]) -> None:
        """Add the delays [us] of one chunk of packets; all chunks should be of one length."""
        self._pending.append(np.unique(delays, return_counts=True))
        if len(self._pending) == self._merged:
            self._histograms.append(_bounded(merge(self._pending)))
            self._pending = []
        if len(self._histograms) == MOST_BATCHES:
            pairs = zip(self._histograms[::2], self._histograms[1::2], strict=True)
            self._histograms = [_bounded(merge(list(pair))) for pair in pairs]
            self._merged *= 2

    def histogram(self) -> Histogram:
        """Return all delays [us], ascending, and how often each occurred."""
        return merge([*self._histograms, *self._pending])

    @property
    def enough(self) -> bool:
        """Whether there are batches enough for a confidence interval."""
        return len(self._histograms) >= FEWEST_BATCHES

    def mean(self) -> Interval:
        """Return the mean delay [s] and its 95 % interval."""
        return mean_of(self._histograms)

    def quantile(self, probability: float) -> Interval:
        """Return a quantile of the delay [s] and its 95 % interval."""
        return quantile_of(self._histograms, self.histogram(), probability)


def _bounded(histogram: Histogram) -> Histogram:
    """Return a histogram that has not too many values, rounded if need be."""
    values, counts = histogram
    return histogram if values.size <= MOST_VALUES else merge([(to_digits(values), counts)])


def to_digits(delays: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return delays, whole and not negative, rounded to `DIGITS` binary digits.

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
    """Return the mean [s] of batches of delays [us] and its 95 % interval."""
    counts = np.array([float(count.sum()) for _, count in batches])
    means = np.array([float(value @ count) for value, count in batches]) / counts / MICROSECONDS
    value, half_width = student(counts, means)
    return Interval(value, value - half_width, value + half_width)


def quantile_of(batches: list[Histogram], together: Histogram, probability: float) -> Interval:
    """Return a quantile [s] of the delays [us] in all of `together` and its 95 % interval, known from the batches."""
    values, counts = together
    reached = np.cumsum(counts) / counts.sum()

    def at(share: float) -> int:
        return int(values[min(int(np.searchsorted(reached, share - 1e-12)), values.size - 1)])

    middle = at(probability)
    sizes = np.array([float(count.sum()) for _, count in batches])
    below = np.array([float(count[value <= middle].sum()) for value, count in batches]) / sizes
    _, half_width = student(sizes, below)
    ends = (middle, at(max(probability - half_width, 0.0)), at(min(probability + half_width, 1.0)))
    return Interval(*(end / MICROSECONDS for end in ends))


def merge(histograms: list[Histogram]) -> Histogram:
    """Return one histogram of all: values, ascending, and how often each occurred."""
    if not histograms:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    values, places = np.unique(np.concatenate([value for value, _ in histograms]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([count for _, count in histograms]))
    return values, counts


CHUNK = 50_000
"""Packets that are simulated in one go."""
WARM_UP = 2_000
"""Packets at the beginning that do not count."""
MOST_PACKETS, MOST_SEGMENTS = 20_000_000, 100_000_000
"""Packets, and segments of them, after which a simulation ends whatever its precision: that takes some ten seconds."""
HALF_WIDTH = 0.02
MORE_PER_LOOK = 1.1
"""How many times more packets there are each time the precision is looked at: a look costs as much as many packets."""
LONG_RUN = 8
"""Chunks over which a backlog must have grown to count as growing for ever."""
GROWTH = 0.005
"""Share of the packets written by which it must have grown."""
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
    """Simulated delays: a distribution, and what stands behind it.

    Attributes
    ----------
    packets : int
        Packets that count.
    seed : int
        Seed of the losses.
    mean_interval : Interval
        Mean delay [s] with its 95 % interval.
    quantile_interval : Interval
        The quantile asked for [s], with its 95 % interval.
    sender_delay, head_of_line_delay : float
        Parts of the mean beyond the network's one-way delay [s]: waiting in the send buffer, and behind a lost
        segment, one's own included.
    counts : dict of int
        Segments sent, lost and retransmitted; recoveries, timeouts, probes, reordering timeouts, and reductions undone
        as needless; acknowledgements sent and lost.
    sent_after, read_after : ndarray of float
        Of each packet, from write to first transmission and to read [s]; empty unless a trace was asked for.
    events : structured array
        The first 100 000 events at the sender, if a trace was asked for: `time` after the write of the first packet
        that counts [s], `kind` (one of `window.KINDS`), `start` and `end` of what it concerns in the stream
        [bytes after that packet's first], and then the window `cwnd` and what is `in_flight` [segments].
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
        """Statistical error of the quantile asked for and of the mean; None where no delay is finite."""
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
        Packets that count, 1000 to 1e9; by default as many as `half_width` takes, but 20 million packets or
        100 million segments at most: `quantile_interval` says what precision was reached.
    seed : int
        Seed of the losses, 0 or more; one seed gives one result.
    quantile : float
        The quantile that is to be known precisely, above 0 and below 1.
    half_width : float
        Half width of its 95 % interval, relative to it, above 0 and below 1.
    rules : Rules
        Which of the kernel's rules are followed; all by default.
    tick_offset : float, optional
        Time from a tick of the kernel's clock to the first write [s], 0 to 1; by default it is drawn anew for every
        50 000 packets, as flows and kernels have no common clock.
    exact_ties : bool
        Whether times are exact to the microsecond. By default the round-trip time is 1 us longer, and
        acknowledgements arrive at least 1 us after another: what the kernel sends again in the microsecond in which it
        has also sent something new, it takes for lost once more. Where the round-trip time is a multiple of the
        interval, that would happen again and again, as in virtual time but on no real path. With exact ties the path's
        delay is, as in the testbed, spent in a queue of the sender's host, where nothing is sent again that is there.
    trace : bool
        Whether to keep the delays of every packet, in the order of writing, and what happened to the first of them;
        `packets` must then be given.
    on_progress : callable, optional
        Called with the packets that are done and the most that there will be.

    Returns
    -------
    Simulation
        The delays. Where the backlog grows for as long as the flow lasts, every quantile is infinite.

    Raises
    ------
    ValueError
        If a value is out of its range, or more segments would be under way than there is room for.

    Examples
    --------
    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=100_000, seed=1)
    >>> round(delays.mean, 3), round(delays.quantile(0.95), 3)
    (0.062, 0.14)

    What happened to the first segment that is lost:

    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=10_000, seed=1, trace=True)
    >>> lost = delays.events[delays.events["kind"] == "lost"][0]
    >>> of_it = delays.events[(delays.events["start"] <= lost["start"]) & (lost["start"] < delays.events["end"])]
    >>> for event in of_it:
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
            "loss_pattern", path.loss_pattern, "be 'random' in a simulation", "bursts are given by loss_burst"
        )
    _check("quantile", quantile, 0, 1, "")
    _check("half_width", half_width, 0, 1, "")
    if tick_offset is not None and not 0 <= tick_offset <= 1:
        raise InvalidValueError("tick_offset", tick_offset, "lie between 0 and 1 s")
    if packets is not None and not 1000 <= packets <= 1e9:
        raise InvalidValueError("packets", packets, "lie between 1000 and 1e9")
    if seed < 0:
        raise InvalidValueError("seed", seed, "be 0 or more")
    if trace and packets is None:
        raise InvalidValueError("packets", packets, "be given with a trace")
    segments = -(-flow.packet_size // stack.mss) * ((path.rtt + path.jitter) / flow.interval + 1)
    if segments > LARGEST_FLIGHT / 2:
        raise InvalidValueError("rtt", segments, f"be less than {LARGEST_FLIGHT // 2} segments of the flow long")
    connection, wire = new_connection(flow, path, stack, seed, rules, exact_ties)
    if tick_offset is not None:
        connection.tick_phase += round(tick_offset * SECOND) % connection.tick - connection.tick_phase % connection.tick
    advance(connection, wire, WARM_UP)
    most = min(MOST_PACKETS, MOST_SEGMENTS // -(-flow.packet_size // stack.mss)) if packets is None else packets
    sought = half_width if packets is None else None
    return _run(connection, wire, path, most, seed, quantile, sought, tick_offset is None, trace, on_progress)


def _check(name: str, value: float, low: float, high: float, unit: str) -> None:
    if not low < value < high:
        raise InvalidValueError(name, value, f"lie between {low:g} and {high:g}{unit}")


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
    mean_delay, mean_sender = sums / counted / MICROSECONDS
    kept = np.concatenate(traces, axis=1) / MICROSECONDS if trace else np.empty((2, 0))
    events = wire.record.events[: connection.events]
    return Simulation(
        np.asarray(values / MICROSECONDS, np.float64),
        counts / counts.sum(),
        path.forward_delay,
        packets=counted,
        seed=seed,
        mean_interval=batches.mean(),
        quantile_interval=batches.quantile(quantile),
        sender_delay=float(mean_sender),
        head_of_line_delay=float(mean_delay - mean_sender - path.forward_delay - path.jitter / 2),
        counts={name: int(connection[name]) for name in COUNTS},
        sent_after=kept[1],
        read_after=kept[0],
        events=public_events(events, start * int(connection.interval), start * int(connection.packet_size)),
    )


def _grows(backlogs: list[int], packets: int) -> bool:
    """Whether the packets written but not read keep growing with the length of the flow."""
    if len(backlogs) < LONG_RUN:
        return False
    recent = backlogs[-LONG_RUN:]
    rising = all(later > earlier for earlier, later in pairwise(recent))
    return rising and recent[-1] - recent[0] > GROWTH * packets


def _unsustainable(path: Path, packets: int, seed: int, connection: Any) -> Simulation:
    counts = {name: int(connection[name]) for name in COUNTS}
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
        counts=counts,
    )
