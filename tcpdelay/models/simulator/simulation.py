"""The entry point of the simulator: the delays of a flow's packets, with their statistical error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import DelayDistribution, ExpectedError
from tcpdelay.models.accuracy import simulator_error, statistical_error
from tcpdelay.models.budget import MOST_SECONDS, TooLargeError, checked_budget
from tcpdelay.models.interface import UnsupportedError
from tcpdelay.models.quic.connections import QuicConnections
from tcpdelay.models.quic.records import NEVER_READ
from tcpdelay.models.simulator.batches import FEWEST_SHARES, UNKNOWN, Batches, carried_share, is_settled
from tcpdelay.models.simulator.connections import (
    CONNECTION_TIME,
    LONGEST_CONNECTION,
    SHORTEST_CONNECTION,
    Chunk,
    Connections,
)
from tcpdelay.models.simulator.engine import ALL_RULES
from tcpdelay.models.simulator.kinds import DelaysOfKind, KindsInBatches
from tcpdelay.models.simulator.records import Rules
from tcpdelay.models.simulator.sender import LARGEST_FLIGHT
from tcpdelay.models.simulator.window import PUBLIC_EVENT, public_events
from tcpdelay.models.simulator.writes import message_end
from tcpdelay.models.tcp import SECOND
from tcpdelay.models.throughput import LARGEST_SUSTAINABLE_UTILIZATION, reno_utilization
from tcpdelay.models.validity import CAPTURED, uncaptured_over_quic
from tcpdelay.scenario.applications import source_of
from tcpdelay.scenario.fields import InvalidValueError, is_number
from tcpdelay.scenario.kernels import TIME_BASED_RECOVERY
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import MESSAGE, Source
from tcpdelay.scenario.stack import CongestionControl, Linux, Quic, QuicControl, Stack, checked_profile

CHUNK = 50_000
"""Packets that one call of the compiled code simulates."""
MOST_PACKETS, MOST_SEGMENTS = 20_000_000, 100_000_000
"""Packets, and segments, after which a simulation of ten seconds ends at any precision; it takes about that."""
SLOWEST = 1.5
"""Multiple of this time after which it ends in any case: the rare losses or timers of a scenario may make it slow."""
SEGMENTS_PER_CHUNK = 2_000_000
"""Segments that one call of the compiled code simulates at most."""
HALF_WIDTH = 0.02
"""Half width of the confidence interval of the quantile by default, relative to the quantile."""
FEWEST_PACKETS = 1000
"""Smallest number of packets that a simulation counts."""
LARGEST_MESSAGE_RATE = 10_000.0
"""Largest mean rate of messages [1/s] of a source whose rate is not constant: the messages of 100 s can wait."""
NEVER = Interval(np.inf, np.inf, np.inf)
"""Interval of a delay that is infinite."""
MORE_PER_LOOK = 1.1
"""Growth of the number of packets between two estimates of the precision, which take time."""


@dataclass(frozen=True, repr=False)
class Simulation(DelayDistribution):
    """Simulated delays: their distribution, its statistical error, and the counts of the simulation.

    Attributes
    ----------
    seed : int
        Seed of all random numbers.
    settled : bool
        False if the delays are correlated over the whole simulation, or the quantile is not known to 100 %, as where
        the load is close to the rate that TCP carries. The delays are then those of this run: a longer run has others.
    carried : Interval
        Rate that TCP carries, relative to the flow's rate, with the interval of
        `tcpdelay.models.simulator.batches.carried_share`. The whole interval is below 1 where the backlog certainly
        grows for ever.
    rtt : float
        Round-trip time of the path [s].
    congestion_control : {"cubic", "reno", "bbr", "newreno"}
        Congestion control of the sender.
    compared : bool
        Whether captures like this have been compared with the simulator: of Linux, and of the implementations of QUIC,
        below 0.9 of the rate that Reno carries over TCP. No program follows "rfc9002" to the letter, and no capture of
        QUIC has lost ACKs, reordering or losses in bursts.
    mean_interval : Interval
        Mean delay [s] with its 95 % interval; NaN if delays are correlated over the whole simulation.
    quantile_interval : Interval
        The requested quantile [s] with its 95 % interval; NaN if delays are correlated over the whole simulation.
    probability : float
        Probability of the requested quantile.
    sender_delay, head_of_line_delay : float
        Parts of the mean delay beyond the network's one-way delay [s]: waiting in the send buffer, and waiting at the
        receiver for a lost segment, which may be the packet's own.
    counts : dict of int
        Segments sent, lost and retransmitted; recoveries, timeouts, probes, reordering timeouts, and needless
        reductions undone; ACKs sent and lost.
    late_errors : tuple of ndarray
        Delays [s], ascending, and half the 95 % interval of the share of packets later than each.
    by_kind : mapping of str to DelaysOfKind
        Delays of each kind of message, such as "key frame", for sources with several kinds.
    messages : structured array
        The packets or messages counted: `time` of the write since the first write counted [s], `size` [bytes] and the
        number of the `kind` in the source's `kinds`; empty without `trace`.
    sent_after, read_after : ndarray of float
        Time of each packet from its write to its first transmission, and to its read [s]; empty without `trace`.
    events : structured array
        The first 100 000 events at the sender; empty without `trace`. `time` is the time since the write of the first
        packet counted [s], and `kind` is one of `window.KINDS`. `start` and `end` are the positions in the stream that
        the event concerns [bytes since the start of that packet]. `cwnd` and `in_flight` are the congestion window and
        the segments in flight [segments].
    """

    method: str = "simulation"
    seed: int = 0
    settled: bool = True
    carried: Interval = UNKNOWN
    rtt: float = np.nan
    congestion_control: CongestionControl | QuicControl = "cubic"
    compared: bool = True
    mean_interval: Interval = UNKNOWN
    quantile_interval: Interval = UNKNOWN
    probability: float = 0.95
    sender_delay: float = 0.0
    head_of_line_delay: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    late_errors: tuple[NDArray[np.float64], NDArray[np.float64]] = field(
        default_factory=lambda: (np.empty(0), np.empty(0)), repr=False, compare=False
    )
    by_kind: Mapping[str, DelaysOfKind] = field(default_factory=dict, repr=False, compare=False)
    messages: NDArray[np.void] = field(default_factory=lambda: np.empty(0, MESSAGE), repr=False)
    sent_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    read_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, PUBLIC_EVENT), repr=False)

    def late_error(self, delay: float) -> float:
        """Return half the 95 % interval of the share of packets later than a delay [s]; 0 if it is not known."""
        delays, errors = self.late_errors
        return float(np.interp(delay, delays, errors)) if delays.size else 0.0

    @cached_property
    def expected_error(self) -> ExpectedError | None:
        """Error of the quantile and of the mean; None where no delay is finite, none has settled or it is not known."""
        if not (self.sustainable and self.settled and self.compared) or np.isinf(self.quantile_interval.value):
            return None
        statistical = statistical_error(self.quantile_interval, self.mean_interval, self.packets, self.probability)
        # A datagram that is lost waits for nothing: only those that arrive show a backlog.
        arrived = np.isfinite(self.values)
        mean = np.average(self.values[arrived], weights=self.weights[arrived]) if arrived.any() else np.inf
        added = float(mean - self.one_way_delay) / self.rtt
        return simulator_error(statistical, added, self.congestion_control)


def simulate(
    flow: Source | str,
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
    connection_time: float = CONNECTION_TIME,
    on_progress: Callable[[int, int], None] | None = None,
    max_seconds: float = MOST_SECONDS,
) -> Simulation:
    """Simulate the messages of a source over Linux TCP or QUIC, ACK by ACK.

    The delay of a message is the time from its write to the in-order read of its last byte. A packet of a `Flow` is a
    message; the parameters and results called packets count messages.

    Parameters
    ----------
    flow : Source or str
        A `Flow` or any other source, or the name of an application in `tcpdelay.scenario.applications`. A `Trace`
        without a period ends the simulation.
    path : Path
        The network: random losses, single or in bursts, of segments and of acknowledgements; constant delays or jitter.
    stack : Stack, optional
        `Stack.linux(...)`, its defaults if left out, or `Stack.quic(...)`, for which `rules`, `tick_offset`,
        `exact_ties` and `trace` must keep their defaults.
    packets : int, optional
        Number of packets or messages counted, 1000 to 1e9. The first 2000, or with BBR those of a connection's first
        ten seconds, are not counted. By default as many as `half_width` requires, but at most two million packets or
        ten million segments for each of `max_seconds`; `quantile_interval` has the precision reached.
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
    connection_time : float
        Age up to which the packets of a BBR connection count [s], 60 to 1e6; further packets use a new connection. The
        delays of BBR depend on this time, because its startup lasts for seconds to hours. Reno and CUBIC use a single
        connection: they forget its start within seconds.
    on_progress : callable, optional
        Function that is called with the number of packets simulated and the largest number of packets.
    max_seconds : float
        Processor time that a simulation without `packets` may take, roughly [s], 0.01 to 1e6. It determines the most
        packets, so that the result is the same on every machine. After 1.5 times this time, the simulation ends with
        the packets that it has.

    Returns
    -------
    Simulation
        The delays. Where the backlog grows without bound, every quantile is infinite. A simulation in which it is not
        certain whether the backlog grows is marked by `settled`.

    Raises
    ------
    TooLargeError
        If not enough packets for any statement fit into `max_seconds`; a ValueError.
    ValueError
        If a value is out of its range, the flow needs more segments in flight than the simulator can hold, or a trace
        has too few messages.

    Examples
    --------
    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=100_000, seed=1)
    >>> round(delays.mean, 3), round(delays.quantile(0.95), 3)
    (0.062, 0.14)

    A video, whose key frames take longer than its other frames:

    >>> from tcpdelay.scenario.sources.video import Video
    >>> delays = simulate(Video(1_000_000), Path(rtt=0.100, loss=0.005), packets=50_000)
    >>> {kind: round(of_kind.quantile(0.95), 2) for kind, of_kind in delays.by_kind.items()}
    {'other frame': 0.18, 'key frame': 0.28}

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
    source, path = source_of(flow), checked_path(path)
    stack = checked_profile(stack)
    if not isinstance(stack, Linux | Quic):
        raise InvalidValueError("stack", stack, "be one of Stack.linux(...) or Stack.quic(...)")
    for name, share in (("quantile", quantile), ("half_width", half_width)):
        if not 0 < share < 1:
            raise InvalidValueError(name, share, "lie between 0 and 1")
    if tick_offset is not None and not 0 <= tick_offset <= 1:
        raise InvalidValueError("tick_offset", tick_offset, "lie between 0 and 1 s")
    if packets is not None and not FEWEST_PACKETS <= packets <= 1e9:
        raise InvalidValueError("packets", packets, f"lie between {FEWEST_PACKETS} and 1e9")
    if not is_number(connection_time) or not SHORTEST_CONNECTION <= connection_time <= LONGEST_CONNECTION:
        allowed = f"lie between {SHORTEST_CONNECTION:g} and {LONGEST_CONNECTION:g} s"
        raise InvalidValueError("connection_time", connection_time, allowed)
    if seed < 0:
        raise InvalidValueError("seed", seed, "be 0 or more")
    if trace and packets is None:
        raise InvalidValueError("packets", packets, "be given with a trace")
    for refused in source_refusals(source, path, stack):
        raise refused
    checked_budget(max_seconds, None)
    longest = math.inf if packets is not None else SLOWEST * max_seconds
    connections: Connections | QuicConnections
    if isinstance(stack, Quic):
        of_kernel = {"rules": rules != ALL_RULES, "exact_ties": exact_ties, "tick_offset": tick_offset, "trace": trace}
        for name in (name for name, given in of_kernel.items() if given):
            raise ValueError(f"{name} is for Stack.linux(...), not for Stack.quic(...)")
        connections = QuicConnections(source, path, stack, seed, longest)
    else:
        if not rules.rack and TIME_BASED_RECOVERY.holds(stack.kernel):
            since = TIME_BASED_RECOVERY.since
            allowed = f"be True with Linux {stack.kernel}, which has no other recovery since {since}"
            raise InvalidValueError("rules.rack", rules.rack, allowed)
        connections = Connections(source, path, stack, seed, rules, exact_ties, tick_offset, connection_time, longest)
    most = packets_within(max_seconds, source, stack) if packets is None else packets
    available = available_messages(source, connections.warm_up, packets)
    if available is not None:
        most = min(most, available)
    sought = half_width if packets is None else None
    return _run(connections, most, seed, quantile, sought, trace, on_progress)


def _compared(source: Source, path: Path, stack: Linux | Quic) -> bool:
    """Return whether captures like this simulation have been compared with the simulator."""
    if isinstance(stack, Linux):
        return True
    # Nearer to the capacity, a capture of video differs by up to three times.
    used = reno_utilization(source, path)
    captured = stack.implementation in CAPTURED and not uncaptured_over_quic(path)
    return captured and used < LARGEST_SUSTAINABLE_UTILIZATION


def packets_within(max_seconds: float, source: Source, stack: Linux | Quic) -> int:
    """Return the most packets of a simulation that takes a time [s], but at least the fewest that it can have.

    Examples
    --------
    >>> packets_within(10.0, Flow(174, 0.020), Linux()), packets_within(10.0, Flow(1_000_000, 1.0), Linux())
    (20000000, 144717)
    """
    segments = segments_per_message(source, stack)
    return max(int(max_seconds / MOST_SECONDS * min(MOST_PACKETS, MOST_SEGMENTS // segments)), FEWEST_PACKETS)


def available_messages(source: Source, warm_up: int, packets: int | None) -> int | None:
    """Return how many messages of a source can be counted after a number at the beginning; None for any number.

    Raises
    ------
    InvalidValueError
        If the source ends before `packets` messages are counted, by default the fewest of a simulation.
    """
    available = countable(source, warm_up)
    fewest = packets or FEWEST_PACKETS
    if available is not None and available < fewest:
        hint = f"the first {warm_up} are not counted; with a period the trace repeats"
        raise InvalidValueError("source", source, f"have at least {warm_up + fewest} messages, or a period", hint)
    return available


def countable(source: Source, warm_up: int) -> int | None:
    """Return how many messages of a source follow a number at the beginning; None for a source that does not end."""
    return None if source.message_count is None else source.message_count - warm_up


def segments_per_message(source: Source, stack: Linux | Quic) -> int:
    """Return the number of segments, or of packets of QUIC, of a message of mean size."""
    return math.ceil(source.mean_size / stack.mss)


def source_refusals(source: Source, path: Path, stack: Linux | Quic) -> Iterator[UnsupportedError]:
    """Yield the reasons for which the simulator cannot hold the segments or messages of a source, or not their path."""
    segments = segments_per_message(source, stack) * ((path.rtt + path.jitter) * source.message_rate + 1)
    if segments > LARGEST_FLIGHT / 2:
        allowed = f"span less than {LARGEST_FLIGHT // 2} segments of the flow in a simulation, not {segments:.0f}"
        yield UnsupportedError("rtt", path.rtt, allowed)
    if not isinstance(source, Flow) and source.message_rate > LARGEST_MESSAGE_RATE:
        allowed = f"have at most {LARGEST_MESSAGE_RATE:.0f} messages per second in a simulation"
        yield UnsupportedError("source", source, allowed)


def _run(
    connections: Connections | QuicConnections,
    most_packets: int,
    seed: int,
    quantile: float,
    half_width: float | None,
    trace: bool,
    on_progress: Callable[[int, int], None] | None,
) -> Simulation:
    """Simulate until `most_packets` are counted or the quantile's interval is narrow enough; return the result.

    It also ends with the time of the connections.
    """
    batches, sums, kept = Batches(), np.zeros(2), []
    kinds = KindsInBatches(connections.source.kinds)
    written_per_read: list[float] = []
    carried = UNKNOWN
    # Each segment is sent 1 / (1 - loss) times.
    sent = segments_per_message(connections.source, connections.stack) / min(2 * (1 - connections.path.loss), 1.0)
    short = max(int(SEGMENTS_PER_CHUNK // sent), 1)
    chunk = connections.chunk(min(CHUNK, short, -(-most_packets // 20)))
    counted, looked = 0, 0
    # The packet trace is that of the first connection.
    first, wire = connections.state, connections.wire
    if trace:
        first.tracing = 1
    start = int(first.packets_read)
    while counted < most_packets:
        found = connections.advance(min(chunk, most_packets - counted), with_messages=trace)
        if connections.backlogged:
            return _unsustainable(connections, counted, seed, carried)
        if not found.packets:
            # The source has ended, or the time.
            break
        counted += found.packets
        batches.add(found.delays[0])
        sums += found.delays.sum(axis=1)
        written_per_read.append(found.written_per_read)
        kinds.add(found.delays[0], found.messages["kind"])
        if trace:
            kept.append(found)
        if len(written_per_read) >= FEWEST_SHARES and (counted >= MORE_PER_LOOK * looked or counted == most_packets):
            looked = counted
            carried = carried_share(written_per_read)
            if carried.high < 1:
                return _unsustainable(connections, counted, seed, carried)
            sought = half_width if batches.enough else None
            if sought is not None and batches.quantile(quantile).relative_half_width <= sought:
                break
        if on_progress is not None:
            on_progress(counted, most_packets)
    if time.thread_time() > connections.ends and (looked == 0 or counted < FEWEST_PACKETS):
        raise TooLargeError(
            f"the simulation has only reached {counted} packets in the time that it may take; allow more time, "
            "or use a longer interval or smaller packets"
        )
    values, counts = batches.histogram()
    quantile_interval, mean_interval = batches.quantile(quantile), batches.mean()
    settled = is_settled(quantile_interval)
    mean_delay, mean_sender = sums / counted / SECOND
    if values[-1] >= NEVER_READ:
        # Datagrams that are lost arrive never.
        mean_delay, values = np.inf, np.where(values >= NEVER_READ, np.inf, values)
        mean_interval = NEVER
        if quantile_interval.value >= NEVER_READ / SECOND:
            quantile_interval = NEVER
    path = connections.path
    return Simulation(
        np.asarray(values / SECOND, np.float64),
        counts / counts.sum(),
        path.forward_delay,
        packets=counted,
        seed=seed,
        settled=settled,
        carried=carried,
        rtt=path.rtt,
        congestion_control=connections.stack.congestion_control,
        compared=_compared(connections.source, path, connections.stack),
        mean_interval=mean_interval,
        quantile_interval=quantile_interval,
        probability=quantile,
        late_errors=batches.late_errors(),
        sender_delay=float(mean_sender),
        head_of_line_delay=float(mean_delay - mean_sender - path.forward_delay - path.jitter / 2),
        counts=connections.counts,
        by_kind=kinds.delays(path.forward_delay, quantile),
        **(_traced(kept, first, wire, start) if trace else {}),
    )


def _traced(kept: list[Chunk], connection: Any, wire: Any, start: int) -> dict[str, Any]:
    """Return what is kept of every packet, and the events at the sender from packet number `start` on."""
    read_after, sent_after = np.concatenate([chunk.delays for chunk in kept], axis=1) / SECOND
    messages = np.concatenate([chunk.messages for chunk in kept])
    events = wire.record.events[: connection.events]
    first_byte = int(message_end(connection, wire.record, start - 1))
    public = public_events(events, round(float(messages["time"][0]) * SECOND), first_byte)
    messages["time"] -= messages["time"][0]
    return {"messages": messages, "sent_after": sent_after, "read_after": read_after, "events": public}


def _unsustainable(
    connections: Connections | QuicConnections, packets: int, seed: int, carried: Interval
) -> Simulation:
    """Return the result for a flow that TCP cannot carry: all delays are infinite."""
    return Simulation(
        np.array([np.inf]),
        np.array([1.0]),
        connections.path.forward_delay,
        sustainable=False,
        packets=packets,
        seed=seed,
        carried=carried,
        mean_interval=NEVER,
        quantile_interval=NEVER,
        sender_delay=np.inf,
        head_of_line_delay=np.inf,
        counts=connections.counts,
    )
