"""The entry point of the simulator: the delays of a flow's packets, with their statistical error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import SIMULATOR_ERROR, captured_error, simulator_error, statistical_error
from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION, reno_utilization
from tcpdelay.accuracy.validity import CAPTURED, CAPTURED_CONTROLS, uncaptured_over_quic
from tcpdelay.ask import (
    Answer,
    NotSettledError,
    Requested,
    Support,
    UnsupportedError,
    found_so_far,
    unknown_fields,
)
from tcpdelay.budget import MOST_SECONDS, SimulationBudget, TooLargeError, checked_budget
from tcpdelay.declare import SEED, InvalidValueError, Quantity, declarations, is_number
from tcpdelay.delays import UNKNOWN, USUAL_QUANTILE, DelayDistribution, DelayParts, ExpectedError
from tcpdelay.scenario.media import Speech, Utterances, Video
from tcpdelay.scenario.messages import Messages, Trace
from tcpdelay.scenario.path import Path, checked_path
from tcpdelay.scenario.scenario import Scenario, Target, checked_arguments, source_of
from tcpdelay.scenario.source import MESSAGE, Flow, Source, is_exact
from tcpdelay.scenario.stack import (
    TIME_BASED_RECOVERY,
    CongestionControl,
    Linux,
    Quic,
    QuicControl,
    Stack,
    StackName,
    checked_profile,
    transport_name,
)
from tcpdelay.sim.batches import (
    FEWEST_SHARES,
    Batches,
    KindBatches,
    LateShare,
    Sought,
    carried_share,
    wide_enough,
)
from tcpdelay.sim.connections import Chunk, Connections, Engine, State, warm_up
from tcpdelay.sim.engine import ALL_RULES, CONNECTION_TIME, LONGEST_CONNECTION, SHORTEST_CONNECTION, TCP
from tcpdelay.sim.path import PATH_FIELDS
from tcpdelay.sim.quic.connection import NEVER_READ
from tcpdelay.sim.quic.engine import QUIC
from tcpdelay.sim.records import Rings, Rules
from tcpdelay.sim.tcp.constants import SECOND
from tcpdelay.sim.tcp.sender import LARGEST_FLIGHT
from tcpdelay.sim.tcp.window import PUBLIC_EVENT, public_events
from tcpdelay.sim.writes import message_end
from tcpdelay.statistics import Interval

CHUNK = 50_000
"""Packets that one call of the compiled code simulates."""
MOST_PACKETS, MOST_SEGMENTS = 20_000_000, 100_000_000
"""Packets, and segments, after which a simulation of ten seconds ends at any precision; it takes about that."""
SLOWEST = 1.5
"""Multiple of this time, by its estimated work, after which it ends in any case: losses or timers may make it slow."""
REQUESTED = 100
"""Multiple of the usual time of as many packets that a simulation may take whose number of packets is requested.

Random scenarios took 0.1 to 25 times the usual time. More is only taken where hardly any segment arrives.
"""
SEGMENTS_PER_CHUNK = 2_000_000
"""Segments that one call of the compiled code simulates at most."""
WORK_OF_CHUNK = 8_000
"""Work of the statistics of such a call, in units of `SECONDS_PER_WORK`."""
HALF_WIDTH = 0.02
"""Half width of the confidence interval of the quantile by default, relative to the quantile."""
FEWEST_PACKETS = 1000
"""Smallest number of packets that a simulation counts."""
PACKETS = Quantity(
    kind="count",
    meaning="Packets that a simulation counts.",
    low=FEWEST_PACKETS,
    high=1e9,
    unit="packets",
    example="100000",
    allowed=f"be a whole number from {FEWEST_PACKETS} to 1e9",
)
"""Declaration of the packets of a simulation."""
LARGEST_MESSAGE_RATE = 10_000.0
"""Largest mean rate of messages [1/s] of a source without exact writes: the messages of 100 s can wait."""
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
        False if the delays are correlated over the whole simulation, or neither the quantile nor the share of later
        packets is known well enough, as where the load is close to the rate that TCP carries. The delays are then
        those of this run: a longer run has others. True if all messages of a source that ends are counted.
    carried : Interval
        Rate that TCP carries, relative to the flow's rate, with the interval of
        `tcpdelay.sim.batches.carried_share`. The whole interval is below 1 where the backlog certainly
        grows for ever.
    work_seconds : float
        Estimated processor time of the simulated events and segments [s], the same on every machine.
    rtt : float
        Round-trip time of the path [s].
    congestion_control : {"cubic", "reno", "bbr", "westwood", "newreno"}
        Congestion control of the sender.
    captured : ExpectedError, optional
        Error of the simulator in captures like this: of Linux, and of the implementations of QUIC, below 0.9 of the
        rate that Reno carries over TCP. None if there are none: no program follows "rfc9002" to the letter, and no
        capture of QUIC has reordering.
    counts : dict of int
        Segments sent, lost and retransmitted; recoveries, timeouts, probes, reordering timeouts, and needless
        reductions undone; D-SACKs received, segments discarded by PAWS; ACKs sent and lost.
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
    work_seconds: float = field(default=0.0, repr=False, compare=False)
    rtt: float = np.nan
    congestion_control: CongestionControl | QuicControl = "cubic"
    captured: ExpectedError | None = SIMULATOR_ERROR
    counts: dict[str, int] = field(default_factory=dict)
    messages: NDArray[np.void] = field(default_factory=lambda: np.empty(0, MESSAGE), repr=False)
    sent_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    read_after: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    events: NDArray[np.void] = field(default_factory=lambda: np.empty(0, PUBLIC_EVENT), repr=False)

    @property
    def sender_delay(self) -> float:
        """Part of the mean delay in which packets wait in the send buffer [s]."""
        return 0.0 if self.parts is None else self.parts.backlog

    @property
    def head_of_line_delay(self) -> float:
        """Part of the mean delay [s] in which packets wait at the receiver for a lost segment, maybe their own."""
        return 0.0 if self.parts is None else self.parts.head_of_line

    @cached_property
    def expected_error(self) -> ExpectedError | None:
        """Error of the quantile and of the mean; None where no delay is finite, none has settled or it is not known."""
        return self._error_of(self.quantile_interval, self.probability)

    def expected_error_of(self, quantile: float) -> ExpectedError | None:
        """Return the probable error of any quantile, above 0 and below 1; its interval follows from `late_errors`."""
        known = super().expected_error_of(quantile)
        if quantile == self.probability or not self.late_errors[0].size:
            return known
        value = self.quantile(quantile)
        half_width = self.late_error(value)
        ends = (self.quantile(max(quantile - half_width, 0.0)), self.quantile(min(quantile + half_width, 1.0)))
        return self._error_of(Interval(value, *ends), quantile)

    def _error_of(self, interval: Interval, probability: float) -> ExpectedError | None:
        """Return the error of a quantile with this interval, and of the mean; None where `expected_error` is None."""
        known = self.sustainable and self.settled and np.isfinite(interval.value)
        if self.captured is None or not known:
            return None
        statistical = statistical_error(interval, self.mean_interval, self.packets, probability)
        # A datagram that is lost waits for nothing: only those that arrive show a backlog.
        arrived = np.isfinite(self.values)
        mean = np.average(self.values[arrived], weights=self.weights[arrived]) if arrived.any() else np.inf
        added = float(mean - self.one_way_delay) / self.rtt
        return simulator_error(statistical, added, self.captured)


@checked_arguments
def simulate(
    flow: Source | str,
    path: Path,
    stack: Stack | StackName | None = None,
    *,
    packets: int | None = None,
    seed: int = 0,
    quantile: float = 0.95,
    half_width: float | None = None,
    decided: Target | None = None,
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
        A `Flow` or any other source, or the name of an application in `tcpdelay.scenario.scenario`. A `Trace`
        without a period ends the simulation.
    path : Path
        The network: random losses, single or in bursts, of segments and of acknowledgements; constant delays or jitter.
    stack : Stack or {"linux", "quic"}, optional
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
    half_width : float, optional
        Half width of the quantile's 95 % interval, relative to it, above 0 and below 1. By default 0.02; with a backlog
        0.3 of the simulator's error in captures with such backlogs, if that is larger.
    decided : Target, optional
        The simulation ends as soon as it is certain to 99.9 % whether more packets come later than this target's limit
        than the target allows. Its other figures are then less precise.
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
        is spent in a queue of the sender's host, as in earlier captures of the testbed; the kernel does not retransmit
        a segment that is still in this queue.
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
        Processor time that a simulation may take on an ordinary machine, roughly [s], 0.01 to 1e6. It is counted in
        packets, and in events and segments for 1.5 times this time, so that the result is the same on every machine.
        After 30 times this time, the clock ends the simulation, and `ended_by_clock` is True. A simulation of
        `packets` may take 100 times the usual time of as many packets if this is longer. If it ends before, it has
        not settled, and `ended_by_budget` or `ended_by_clock` is True.

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
    >>> from tcpdelay.scenario.source import Flow
    >>> delays = simulate(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), packets=100_000, seed=1)
    >>> round(delays.mean, 3), round(delays.quantile(0.95), 3)
    (0.062, 0.14)

    A video, whose key frames take longer than its other frames:

    >>> from tcpdelay.scenario.media import Video
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
    0.131 s: reordering timer
    0.131 s: recovery
    0.131 s: retransmitted
    0.231 s: acknowledged
    """
    source, path = source_of(flow), checked_path(path)
    stack = checked_profile(stack)
    if not isinstance(stack, Linux | Quic):
        raise InvalidValueError("stack", stack, "be one of Stack.linux(...) or Stack.quic(...)")
    for name, share in (("quantile", quantile), ("half_width", HALF_WIDTH if half_width is None else half_width)):
        declarations(Target)["quantile"].require(name, share)
    if tick_offset is not None and not (is_number(tick_offset) and 0 <= tick_offset <= 1):
        raise InvalidValueError("tick_offset", tick_offset, "lie between 0 and 1 s")
    if packets is not None:
        packets = PACKETS.require("packets", packets)
    if not is_number(connection_time) or not SHORTEST_CONNECTION <= connection_time <= LONGEST_CONNECTION:
        allowed = f"lie between {SHORTEST_CONNECTION:g} and {LONGEST_CONNECTION:g} s"
        raise InvalidValueError("connection_time", connection_time, allowed)
    seed = SEED.require("seed", seed)
    if trace and packets is None:
        raise InvalidValueError("packets", packets, "be given with a trace")
    for refused in source_refusals(source, path, stack):
        raise refused
    checked_budget(max_seconds, None)
    usual_budget = SimulationBudget(SLOWEST * max_seconds)
    budget = usual_budget if packets is None else requested_budget(packets, source, stack, max_seconds)
    engine: Engine[Any, Any] = QUIC if isinstance(stack, Quic) else TCP
    settings = {"rules": rules, "exact_ties": exact_ties}
    if isinstance(stack, Quic):
        of_kernel = {"rules": rules != ALL_RULES, "exact_ties": exact_ties, "tick_offset": tick_offset, "trace": trace}
        for name in (name for name, given in of_kernel.items() if given):
            raise ValueError(f"{name} is for Stack.linux(...), not for Stack.quic(...)")
        settings = {}
    elif not rules.rack and TIME_BASED_RECOVERY.holds(stack.kernel):
        since = TIME_BASED_RECOVERY.since
        allowed = f"be True with Linux {stack.kernel}, which has no other recovery since {since}"
        raise InvalidValueError("rules.rack", rules.rack, allowed)
    left_out = warm_up(source, stack)
    connections = Connections(
        engine,
        source,
        path,
        stack,
        seed,
        budget,
        left_out,
        settings,
        tick_offset,
        connection_time,
        with_messages=trace or len(source.kinds) > 1,
    )
    most = packets_within(max_seconds, source, stack) if packets is None else packets
    if (available := available_messages(source, left_out, packets)) is not None:
        most = min(most, available)
    usual = partial(wide_enough, HALF_WIDTH, _captured(source, path, stack), path)
    width = usual if half_width is None else lambda _: half_width
    sought = Sought(quantile, width if packets is None else None, decided)
    return _run(connections, most, seed, sought, trace, on_progress)


def _captured(source: Source, path: Path, stack: Linux | Quic) -> ExpectedError | None:
    """Return the simulator's error in captures like a simulation; None if none has been compared with the simulator."""
    if isinstance(stack, Quic):
        # Nearer to the capacity, a capture of video differs by up to three times.
        near = reno_utilization(source, path) >= LARGEST_SUSTAINABLE_UTILIZATION
        if near or stack.implementation not in CAPTURED or uncaptured_over_quic(path):
            return None
    elif stack.congestion_control not in CAPTURED_CONTROLS:
        return None
    return captured_error(stack)


def packets_within(max_seconds: float, source: Source, stack: Linux | Quic) -> int:
    """Return the most packets of a simulation that takes a time [s], but at least the fewest that it can have."""
    return max(int(max_seconds / MOST_SECONDS * _most_packets(source, stack)), FEWEST_PACKETS)


def _most_packets(source: Source, stack: Linux | Quic) -> int:
    """Return the packets that a simulation usually has in `MOST_SECONDS`."""
    return min(MOST_PACKETS, MOST_SEGMENTS // segments_per_message(source, stack))


def requested_budget(
    packets: int, source: Source, stack: Linux | Quic, max_seconds: float = MOST_SECONDS
) -> SimulationBudget:
    """Return what a simulation may take that is to have a number of packets.

    >>> from tcpdelay.scenario.source import Flow
    >>> [requested_budget(packets, Flow(174, 0.020), Linux()).max_seconds for packets in (2000, 1_000_000)]
    [15.0, 50.0]
    """
    usual = MOST_SECONDS * packets / _most_packets(source, stack)
    return SimulationBudget(max(SLOWEST * max_seconds, REQUESTED * usual))


def available_messages(source: Source, warm_up: int, packets: int | None) -> int | None:
    """Return how many messages of a source can be counted after a number at the beginning; None for any number."""
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
    segments = segments_per_message(source, stack) * ((path.rtt + path.largest_jitter) * source.message_rate + 1)
    if segments > LARGEST_FLIGHT / 2:
        allowed = f"span less than {LARGEST_FLIGHT // 2} segments of the flow in a simulation, not {segments:.0f}"
        yield UnsupportedError("rtt", path.rtt, allowed)
    if not is_exact(source) and source.message_rate > LARGEST_MESSAGE_RATE:
        allowed = f"have at most {LARGEST_MESSAGE_RATE:.0f} messages per second in a simulation"
        hint = "a Flow whose write_jitter is 0 may have more" if isinstance(source, Flow) else ""
        yield UnsupportedError("source", source, allowed, hint)


def _run(
    connections: Connections[State, Rings],
    most_packets: int,
    seed: int,
    sought: Sought,
    trace: bool,
    on_progress: Callable[[int, int], None] | None,
) -> Simulation:
    """Simulate until `most_packets` are counted, what is sought is known or the budget is spent; return the result."""
    batches, sums, kept = Batches(), np.zeros(2), []
    late = None if sought.decided is None else LateShare(sought.decided)
    names = connections.source.kinds
    kinds = {name: KindBatches() for name in names} if len(names) > 1 else {}
    written_per_read: list[float] = []
    # Each segment is sent 1 / (1 - loss) times.
    sent = segments_per_message(connections.source, connections.stack) / min(2 * (1 - connections.path.loss), 1.0)
    short = max(int(SEGMENTS_PER_CHUNK // sent), 1)
    chunk = connections.chunk(min(CHUNK, short, -(-most_packets // 20)))
    counted, looked, decided, carried = 0, 0, False, UNKNOWN
    # The packet trace is that of the first connection.
    first, wire = connections.state, connections.wire
    if trace:
        first["tracing"] = 1
    start = int(first.packets_read)
    for found in connections.chunks(most_packets, chunk):
        counted += found.packets
        batches.add(found.delays[0])
        if late is not None:
            late.add(found.delays[0])
        connections.budget.spend(WORK_OF_CHUNK)
        sums += found.delays[:2].sum(axis=1)
        written_per_read.append(found.written_per_read)
        for number, of_kind in enumerate(kinds.values()):
            of_kind.add(found.delays[0][found.messages["kind"] == number])
        if trace:
            kept.append(found)
        if counted >= MORE_PER_LOOK * looked or counted == most_packets:
            if decided := late is not None and late.is_decided:
                break
            if len(written_per_read) >= FEWEST_SHARES:
                looked = counted
                carried = carried_share(written_per_read)
                if carried.high < 1:
                    return _unsustainable(connections, counted, seed, carried)
                if sought.is_precise(batches):
                    break
        if on_progress is not None:
            on_progress(counted, most_packets)
    if connections.backlogged:
        return _unsustainable(connections, counted, seed, carried)
    if connections.budget.is_spent and (looked == 0 or counted < FEWEST_PACKETS):
        advice = "allow more time, or use a longer interval, smaller packets or a lower loss"
        raise connections.budget.error(f"{counted} packets", advice)
    # The delays of a source that ends are those of its messages, however TCP carries them.
    complete = countable(connections.source, connections.warm_up) == most_packets
    cut = sought.half_width is None and not decided and counted < most_packets and connections.budget.is_spent
    known = decided or batches.is_settled(sought.quantile)
    settled = not cut and (known or (complete and not connections.budget.is_spent))
    path = connections.path
    judged: dict[str, Any] = {"settled": settled, "carried": carried}
    mean_delay, mean_sender = (sums / counted / SECOND).tolist()
    if batches.histogram()[0][-1] >= NEVER_READ:
        mean_delay = np.inf
    # The drawn jitter may be less than its mean.
    head_of_line = max(mean_delay - mean_sender - path.forward_delay - path.mean_jitter, 0.0)
    return batches.delays(
        Simulation,
        path.forward_delay,
        sought.quantile,
        fewest=0,
        **judged,
        seed=seed,
        work_seconds=connections.budget.seconds,
        rtt=path.rtt,
        congestion_control=connections.stack.congestion_control,
        captured=_captured(connections.source, path, connections.stack),
        late_errors=batches.late_errors(),
        parts=DelayParts(path.forward_delay + path.mean_jitter, mean_sender, head_of_line, timeouts=0.0),
        counts=connections.counts,
        by_kind={
            name: of_kind.delays(DelayDistribution, path.forward_delay, sought.quantile, **judged)
            for name, of_kind in kinds.items()
            if of_kind.histogram()[0].size
        },
        ended_by_clock=connections.budget.ended_by_clock,
        ended_by_budget=cut and not connections.budget.ended_by_clock,
        **(_traced(kept, first, wire, start) if trace else {}),
    )


def _traced(kept: list[Chunk], connection: Any, wire: Any, start: int) -> dict[str, Any]:
    """Return what is kept of every packet, and the events at the sender from packet number `start` on."""
    read_after, sent_after = np.concatenate([chunk.delays[:2] for chunk in kept], axis=1) / SECOND
    messages = np.concatenate([chunk.messages for chunk in kept])
    events = wire.record.events[: connection.events]
    first_byte = int(message_end(connection, wire.record, start - 1))
    public = public_events(events, round(float(messages["time"][0]) * SECOND), first_byte)
    messages["time"] -= messages["time"][0]
    return {"messages": messages, "sent_after": sent_after, "read_after": read_after, "events": public}


def _unsustainable(connections: Connections[State, Rings], packets: int, seed: int, carried: Interval) -> Simulation:
    """Return the result for a flow that TCP cannot carry: all delays are infinite."""
    path = connections.path
    return replace(
        Simulation.unsustainable(path.forward_delay),
        packets=packets,
        seed=seed,
        carried=carried,
        work_seconds=connections.budget.seconds,
        parts=DelayParts(path.forward_delay + path.mean_jitter, np.inf, np.inf, timeouts=0.0),
        counts=connections.counts,
    )


# The simulator behind the interface of a model (`tcpdelay.ask`).

_SOURCES = (Flow, Video, Speech, Utterances, Messages, Trace)
_HONOURED = frozenset(name for part in (*_SOURCES, Linux, Quic) for name in declarations(part)) | PATH_FIELDS

PROLONGED = 8
"""Factor by which a simulation that has not settled is prolonged, divided by the segments of a packet."""


SEGMENTS_PER_PACKET = 6
"""Mean segments of a message up to which a simulation has as many messages as of small packets."""


@dataclass(frozen=True)
class Simulator:
    """The packet-level simulator of a Linux kernel's TCP and of QUIC."""

    # Number of packets of a simulation whose request has none, as `messages_like` counts messages; by default as many
    # as its precision requires. If the delays of this number of packets have not settled, eight times as many
    # segments are simulated.
    packets: int | None = None
    # Called in a simulation whose request has no such function, with the number of packets simulated and the largest
    # number of packets.
    on_progress: Callable[[int, int], None] | None = None
    because: str = ""  # Why it answers in place of the chain; the answers carry it as `simulated_because`
    name: ClassVar[str] = "simulation"

    def supports(self, scenario: Scenario) -> Support:
        """Return which fields the simulator honours and refuses."""
        return Support(_HONOURED, refused=tuple(_refusals(scenario)))

    def answer(self, scenario: Scenario, requested: Requested) -> Answer:
        """Return the simulated delays: p95 to 2 %, whatever the target, unless a number of packets is requested."""
        answered = partial(Answer, scenario, requested, self.name, simulated_because=self.because)
        for refused in self.supports(scenario).refused:
            return answered("unsupported", refusal=refused)
        source, path, stack = scenario.source, scenario.path, scenario.stack
        assert isinstance(stack, Linux | Quic)
        packets = None if self.packets is None else messages_like(self.packets, source, stack)
        decided = requested.target if requested.precision == "decision" else None
        # With a number of packets the target's quantile must have settled; else its length is the same for all targets.
        of_target = requested.target if requested.packets or packets else decided
        simulated = partial(
            _simulated_once,
            scenario,
            seed=requested.seed,
            on_progress=requested.on_progress or self.on_progress,
            max_seconds=requested.max_seconds,
            quantile=of_target.quantile if of_target else USUAL_QUANTILE,
            decided=decided,
        )
        try:
            found = simulated(packets=requested.packets or packets)
            if not found.settled and not found.ended_by and requested.packets is None and packets is not None:
                longer = at_hand(source, stack, PROLONGED * packets // segments_per_message(source, stack))
                found = simulated(packets=longer) if longer > packets else found
        except TooLargeError as error:
            return answered("too large", refusal=error)
        except MemoryError:
            return answered("too large", refusal=TooLargeError("the simulation needs more memory than there is"))
        if not found.settled:
            refusal = NotSettledError(
                found.packets, found.carried, transport=transport_name(stack), ended_by=found.ended_by
            )
            return answered("not settled", refusal=refusal)
        found = replace(found, scenario=(source, path, stack))
        target = requested.target
        return answered(
            "estimated" if found.sustainable else "not carried",
            found.quantile(np.array(requested.quantiles)),
            found.late_fraction(np.array(requested.late_after)),
            found.mean,
            found.sustainable,
            distribution=found,
            lateness=np.nan if target is None else found.late_fraction(target.limit),
            parts=found.parts if requested.parts else None,
        )

    def capacity(self, scenario: Scenario) -> float:
        """Return NaN: a simulation shows only whether TCP carries one packet rate."""
        return np.nan


def _simulated_once(
    scenario: Scenario,
    *,
    packets: int | None,
    decided: Target | None,
    on_progress: Callable[[int, int], None] | None,
    **options: Any,
) -> Simulation:
    """Return the simulation, which is known if it was made before within `solved_once`; a whole one answers all."""
    found = found_so_far.get()
    known = {} if found is None else found.simulations
    asked = (scenario.source, scenario.path, scenario.stack, packets, *options.values())
    for key in ((*asked, None), (*asked, decided)):
        if key in known:
            return cast(Simulation, known[key])
    made = simulate(*asked[:3], packets=packets, decided=decided, on_progress=on_progress, **options)
    whole = made.packets == packets or not made.sustainable
    known[*asked, None if whole else decided] = made
    return made


def messages_like(packets: int, source: Source, stack: Linux | Quic) -> int:
    """Return the messages of a source that take about as long as `packets` small packets, or all if it has fewer."""
    fewer = packets if isinstance(source, Flow) else int(SEGMENTS_PER_PACKET * packets * stack.mss / source.mean_size)
    return at_hand(source, stack, max(min(packets, fewer), FEWEST_PACKETS))


def at_hand(source: Source, stack: Linux | Quic, packets: int) -> int:
    """Return the smaller of `packets` and of the packets that the source has after the warm-up, if it ends."""
    available = countable(source, warm_up(source, stack))
    return packets if available is None else min(packets, max(available, FEWEST_PACKETS))


def _refusals(scenario: Scenario) -> Iterator[UnsupportedError]:
    """Yield the fields of a scenario whose values the simulator refuses."""
    source, path, stack = scenario.source, scenario.path, scenario.stack
    if not isinstance(stack, Linux | Quic):
        yield UnsupportedError("stack", stack, "be Stack.linux() or Stack.quic() in a simulation")
        return
    if isinstance(stack, Linux):
        yield from unknown_fields(path, PATH_FIELDS, "in a simulation")
    yield from source_refusals(source, path, stack)
