"""Round-trip times and the end in one capture; the losses and the difference of the clocks in two captures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import NANOSECONDS, Flags, Integers, Span, Trace, expanded, opened_by
from tcpdelay.units import format_time

Side = Literal["sender", "receiver"]

FEWEST_PROMPT = 10
"""Number of samples from ACKs that did not wait from which samples from ACKs that may have waited are left out."""
_LOW_PROBABILITY = 0.1
"""Probability of the low quantile of times from a segment to its acknowledgement."""
_SAME_MACHINE = 1e-3
"""Round-trip time up to which both ends count as one machine [s]."""
_NEAR_END_SHARE = 0.9
"""Share of the round-trip time to the other end from which a capture counts as made at the nearer end."""
DELAYED_SHARE = 0.1
"""Share of ACKs of two or more segments from which acknowledgements count as delayed."""
CARRIED_SHARE = 0.1
"""Share of ACKs carried on data from which acknowledgements count as waiting for the data of the other end."""
_CLEARLY_NEARER = 2
"""Ratio of the distances to both ends from which a capture of two-way data is certainly at the nearer end."""


@dataclass(frozen=True)
class RoundTrips:
    """Samples of the round-trip time."""

    end: Integers  # Time at which each sample ended [ns]
    rtt: NDArray[np.float64]  # The samples [s], by ascending time
    # Whether the sample is from an acknowledgement of one segment, which may have waited for a second segment, or
    # from an acknowledgement carried on data, which may have waited for the data.
    may_have_waited: Flags

    def counted(self, span: Span) -> RoundTrips:
        """Return the samples that ended within a span."""
        during = span.during(self.end)
        return RoundTrips(self.end[during], self.rtt[during], self.may_have_waited[during])


@dataclass
class AcknowledgementCounts:
    """Counts of acknowledgements of new data that cover no retransmission."""

    # several, carried, all: Number of acknowledgements of two or more segments, number of acknowledgements carried on
    # data, and number of all acknowledgements.
    several: int = 0
    carried: int = 0
    all: int = 0

    @property
    def several_share(self) -> float:
        """Share of the acknowledgements of two or more segments."""
        return self.several / self.all if self.all else 0.0

    @property
    def carried_share(self) -> float:
        """Share of the acknowledgements that are carried on data."""
        return self.carried / self.all if self.all else 0.0

    @property
    def singles_wait(self) -> bool:
        """Whether ACKs are delayed, and the ACKs of several segments suffice for the round-trip time."""
        return self.several_share > DELAYED_SHARE and self.several >= FEWEST_PROMPT


@dataclass(frozen=True)
class _Advances:
    """Acknowledgements of new data: their indices, and the first and last original segment that each ACK covers."""

    index: Integers
    low: Integers
    last: Integers
    clean: Flags


def _advances(trace: Trace, original: Integers, resent: Flags) -> _Advances:
    """Return the acknowledgements of new data; `clean` marks the acknowledgements that cover no segment sent twice."""
    acks, ends = trace.acks, trace.data.end[original]
    highest = np.maximum.accumulate(acks.ack)
    before = acks.before()
    low = np.searchsorted(ends, before, side="right")
    last = np.searchsorted(ends, highest, side="right") - 1
    index = np.flatnonzero((highest > before) & (last >= low))
    twice = np.concatenate([[0], np.cumsum(resent[original])])
    clean = twice[last[index] + 1] == twice[low[index]]
    # An ACK can be captured before its segment: two devices deliver out of order, or the capture is damaged.
    clean &= acks.time[index] >= trace.data.time[original[last[index]]]
    return _Advances(index, low[index], last[index], clean)


def sender_round_trips(trace: Trace, original: Integers, resent: Flags, counts: AcknowledgementCounts) -> RoundTrips:
    """Return round-trip times from data to acknowledgement.

    Each acknowledgement of new data gives one sample, from the newest segment that it covers. It gives no sample if
    one of these segments was sent twice (Karn and Partridge, SIGCOMM 1987, doi 10.1145/55482.55484), unless the echoed
    timestamp shows which transmission it answers (RFC 7323, 4). A first SACK block that ends behind all earlier
    blocks also gives a sample. If acknowledgements are delayed, an acknowledgement of one segment may have waited. An
    acknowledgement carried on data may have waited for the next write of the other end.
    """
    acks, data = trace.acks, trace.data
    found = _advances(trace, original, resent)
    clean = found.index[found.clean]
    newest = original[found.last[found.clean]]
    several = found.last[found.clean] > found.low[found.clean]
    counted = trace.span.during(acks.time[clean])
    carried = acks.length[clean] > 0
    counts.several += int(np.count_nonzero(several & counted))
    counts.carried += int(np.count_nonzero(carried & counted))
    counts.all += int(np.count_nonzero(counted))
    pairs = [(acks.time[clean], data.time[newest]), _by_sack(trace, original, resent), _by_echo(trace, found, original)]
    at = np.concatenate([end for end, _ in pairs])
    sent = np.concatenate([begin for _, begin in pairs])
    # SACK blocks and the ACKs of retransmissions leave at once (RFC 5681, 4.2).
    may_have_waited = np.zeros(at.size, np.bool_)
    may_have_waited[: several.size] = ~several | carried
    order = np.argsort(at, kind="stable")
    return RoundTrips(at[order], ((at - sent) / NANOSECONDS)[order], may_have_waited[order]).counted(trace.span)


def _by_sack(trace: Trace, original: Integers, resent: Flags) -> tuple[Integers, Integers]:
    """Return the times of acknowledgement and transmission of segments that a SACK block reported first."""
    acks, data = trace.acks, trace.data
    right = np.where(acks.blocks > 0, acks.right[:, 0], 0)
    reached = np.maximum.accumulate(np.maximum(right, acks.ack))
    new = np.flatnonzero(right[1:] > reached[:-1]) + 1
    new = new[right[new] > acks.ack[new]]
    ends = data.end[original]
    place = np.minimum(np.searchsorted(ends, right[new]), max(ends.size - 1, 0))
    sent = original[place]
    kept = (data.end[sent] == right[new]) & ~resent[sent] & (data.time[sent] <= acks.time[new])
    return acks.time[new[kept]], data.time[sent[kept]]


def _by_echo(trace: Trace, found: _Advances, original: Integers) -> tuple[Integers, Integers]:
    """Return the times of acknowledgement and transmission of repetitions whose timestamp was echoed."""
    acks, data = trace.acks, trace.data
    doubtful = found.index[~found.clean]
    doubtful = doubtful[acks.stamped[doubtful]]
    stamped = np.flatnonzero(data.stamped)
    order = stamped[np.argsort(data.tsval[stamped], kind="stable")]
    echoed = acks.tsecr[doubtful]
    low = np.searchsorted(data.tsval[order], echoed)
    high = np.searchsorted(data.tsval[order], echoed, side="right")
    # Segments of one tick of the sender's clock cannot be distinguished.
    single = high - low == 1
    sent, answered = order[low[single]], doubtful[single]
    begins = acks.before()[answered]
    kept = (data.start[sent] <= begins) & (data.end[sent] > begins) & (data.time[sent] <= acks.time[answered])
    return acks.time[answered[kept]], data.time[sent[kept]]


def receiver_round_trips(trace: Trace) -> RoundTrips:
    """Return upper bounds of the round-trip time: from an acknowledgement to the data that echo its timestamp.

    The next data segment of the sender echoes the timestamp of an acknowledgement. Each sample is therefore the
    round-trip time and the waiting time of the sender; the smallest samples are close to the round-trip time.
    """
    acks, data = trace.acks, trace.data
    sent = np.flatnonzero(acks.stamped)
    values, first = np.unique(acks.tsval[sent], return_index=True)
    arrived = np.flatnonzero(data.stamped)
    echoes, first_echo = np.unique(data.tsecr[arrived], return_index=True)
    _, at_ack, at_data = np.intersect1d(values, echoes, assume_unique=True, return_indices=True)
    begin, end = acks.time[sent[first[at_ack]]], data.time[arrived[first_echo[at_data]]]
    kept = end >= begin
    order = np.argsort(end[kept], kind="stable")
    rtt = ((end - begin)[kept] / NANOSECONDS)[order]
    return RoundTrips(end[kept][order], rtt, np.zeros(rtt.size, np.bool_)).counted(trace.span)


def handshake_times(trace: Trace) -> tuple[float, float] | None:
    """Return the time from the first SYN to the second SYN, and from the second SYN to its acknowledgement [s]."""
    sender, receiver, end = trace.sender.time, trace.receiver.time, trace.handshake_end
    if sender is None or receiver is None or end is None:
        return None
    return abs(receiver - sender) / NANOSECONDS, (end - max(sender, receiver)) / NANOSECONDS


def distance_to_receiver(trace: Trace) -> float:
    """Return a small quantile of the time from data or a SYN to its ACK [s]; 0 if nothing was acknowledged."""
    distance = _time_to_acknowledgement(trace)
    return distance if math.isfinite(distance) else 0.0


def _time_to_acknowledgement(trace: Trace) -> float:
    """Return a small quantile of the time from data or a SYN to its ACK [s]; infinite without acknowledgements."""
    acks, data = trace.acks, trace.data
    covering = acks.first_covering(data.end)
    waits = np.append(acks.time, 0)[covering] - data.time
    waits = waits[(covering < acks.size) & (waits >= 0)]
    # An ACK just behind a spurious retransmission answers the original, so the minimum would be too small.
    distance = float(np.quantile(waits, _LOW_PROBABILITY)) / NANOSECONDS if waits.size else math.inf
    shake = handshake_times(trace)
    if shake is not None:
        distance = min(distance, shake[not opened_by(trace.sender, trace.receiver)])
    return distance


def distance_to_sender(trace: Trace) -> float:
    """Return the smallest time from an ACK or a SYN to its echo by the sender [s]; infinite without echoes."""
    echoes = receiver_round_trips(trace).rtt
    distance = float(echoes.min()) if echoes.size else math.inf
    shake = handshake_times(trace)
    if shake is not None:
        distance = min(distance, shake[opened_by(trace.sender, trace.receiver)])
    return distance


def captured_at(trace: Trace, backward: Trace | None = None) -> tuple[Side, bool]:
    """Return the end at which a capture was made, or the nearer end.

    In a capture at the sender, acknowledgements follow a round-trip time after the data. In a capture at the receiver,
    they follow at once, and the echoes of their timestamps follow a round-trip time later. If nothing shows the
    distance to the sender, a capture with acknowledgements within a millisecond counts as made at the receiver. If the
    round-trip time is below a millisecond, every capture counts as made at the sender.

    If data flow in both directions, the data of the other direction show the same distances, and ends answer later
    because their acknowledgements wait for data.
    """
    to_receiver, to_sender = _time_to_acknowledgement(trace), distance_to_sender(trace)
    if backward is not None:
        to_receiver = min(to_receiver, distance_to_sender(backward))
        to_sender = min(to_sender, _time_to_acknowledgement(backward))
    if math.isinf(to_receiver):
        to_receiver = 0.0
    if math.isinf(to_sender):
        return ("sender" if to_receiver > _SAME_MACHINE else "receiver"), True
    if to_receiver + to_sender <= _SAME_MACHINE:
        # On one machine, both ends are equally near. A capture at the sender shows more.
        return "sender", True
    nearer: Side = "sender" if to_receiver >= to_sender else "receiver"
    if backward is not None:
        return nearer, max(to_receiver, to_sender) >= _CLEARLY_NEARER * min(to_receiver, to_sender)
    return nearer, max(to_receiver, to_sender) >= _NEAR_END_SHARE * (to_receiver + to_sender)


# Two captures of one connection: the segments that arrived, and the offset and skew of the two clocks.

SHORTEST_SPAN = 10.0
"""Shortest span of samples from which a skew is estimated [s]."""
MAX_SKEW = 1e-3
"""Largest credible skew; quartz clocks keep within 0.2 ms per second."""
_FEWEST_SAMPLES = 20
_MOST_PIECES = 20


@dataclass(frozen=True)
class ClockFit:
    """The offset and skew of the receiver's clock against the sender's clock."""

    origin: int  # Time of the sender's clock at which the offset holds [ns]
    offset: float  # Time of the receiver's clock minus time of the sender's clock [s]
    skew: float  # Growth of the offset per second; 0 if it cannot be estimated
    # Disagreement of the two directions about the offset over the capture [s]: half of the change that the fitted
    # lines of both directions leave together. It does not show a constant difference of the two delays.
    residual: float
    # forward_base, backward_base: Smallest delays of the two directions [s]; assumed to be equal, unless both
    # captures have the same clock.
    forward_base: float
    backward_base: float
    same_clock: bool = False  # Whether one clock stamped both captures, so that nothing is fitted or assumed

    def to_sender(self, times: Integers) -> Integers:
        """Convert times of the receiver's clock to the sender's clock [ns]."""
        since = times - self.origin - round(self.offset * NANOSECONDS)
        corrected = since - np.rint(since * (self.skew / (1 + self.skew))).astype(np.int64)
        return np.asarray(self.origin + corrected, np.int64)


class LowerHull:
    """The lower convex hull of points that are added in batches."""

    def __init__(self) -> None:
        self.x = self.y = np.empty(0)
        self.count = 0
        self._sum = 0.0
        self.span = (np.inf, -np.inf)

    def add(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Add points, by ascending `x`."""
        if not x.size:
            return
        self.count += x.size
        self._sum += float(x.sum())
        self.span = min(self.span[0], float(x[0])), max(self.span[1], float(x[-1]))
        hull = _lower_hull(x, y)
        if self.x.size:
            x, y = np.concatenate([self.x, x[hull]]), np.concatenate([self.y, y[hull]])
            order = np.lexsort((y, x))
            x, y = x[order], y[order]
            hull = _lower_hull(x, y)
        self.x, self.y = x[hull], y[hull]

    def line(self) -> tuple[float, float]:
        """Return height at x = 0 and slope of the line below all points with the smallest sum of distances to them.

        The line is the edge of the hull at the mean of x: Moon, Skelly and Towsley, "Estimation and removal of clock
        skew from network delay measurements", INFOCOM 1999, doi 10.1109/INFCOM.1999.749287. The slope is 0 if all x
        are equal.
        """
        middle = self._sum / self.count
        if self.x.size == 1:
            return float(self.y[0]), 0.0
        b = min(max(int(np.searchsorted(self.x, middle, side="right")), 1), self.x.size - 1)
        slope = float((self.y[b] - self.y[b - 1]) / (self.x[b] - self.x[b - 1]))
        return float(self.y[b - 1] - slope * self.x[b - 1]), slope

    def height(self, slope: float) -> float:
        """Return the height at x = 0 of the highest line with this slope below all points."""
        return float((self.y - slope * self.x).min())


def _lower_hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the lower convex hull by Andrew's monotone chain."""
    # Among points with the same x, only the lowest can be on the hull. Long captures are thinned out first.
    spans = np.minimum(((x - x[0]) * (50_000 / max(float(x[-1] - x[0]), 1e-9))).astype(np.int64), 49_999)
    order = np.lexsort((y, spans))
    candidates = np.sort(order[np.concatenate([[True], np.diff(spans[order]) > 0])])
    hull: list[int] = []
    for i in candidates.tolist():
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        if hull and x[hull[-1]] == x[i]:
            if y[i] >= y[hull[-1]]:
                continue
            hull.pop()
        hull.append(i)
    return hull


class ClockSamples:
    """The difference of two clocks, from packets that both captures hold. Only the convex hulls are kept."""

    def __init__(self, same_clock: bool = False) -> None:
        self._same_clock = same_clock
        self._origin: int | None = None
        self._forward, self._backward = LowerHull(), LowerHull()

    def add(self, forward: tuple[Integers, Integers], backward: tuple[Integers, Integers]) -> None:
        """Add packets."""
        begins = [int(times[0]) for times, _ in (forward, backward) if times.size]
        if not begins:
            return
        if self._origin is None:
            self._origin = min(begins)
        for hull, (at_sender, at_receiver), sign in ((self._forward, forward, 1), (self._backward, backward, -1)):
            hull.add((at_sender - self._origin) / NANOSECONDS, sign * (at_receiver - at_sender) / NANOSECONDS)

    def fit(self) -> ClockFit:
        """Return the offset and skew of the receiver's clock against the sender's clock."""
        forward, backward = self._forward, self._backward
        for direction, hull in (("data", forward), ("acknowledgements", backward)):
            if not hull.count:
                raise ValueError(f"the captures share no {direction} by which their clocks could be compared")
        assert self._origin is not None
        if self._same_clock:
            bases = forward.height(0.0), backward.height(0.0)
            if min(bases) < 0:
                early = format_time(-min(bases))
                raise ValueError(f"a packet arrives {early} before it is sent: one clock did not stamp both captures")
            return ClockFit(self._origin, 0.0, 0.0, 0.0, *bases, same_clock=True)
        skew = residual = 0.0
        span = min(last - first for first, last in (forward.span, backward.span))
        if span >= SHORTEST_SPAN and min(forward.count, backward.count) >= _FEWEST_SAMPLES:
            (_, rising), (_, falling) = forward.line(), backward.line()
            skew = (rising - falling) / 2
            residual = abs(rising + falling) * span / 2
            # A larger skew means that one of the clocks was set, not that it is slow.
            if abs(skew) > MAX_SKEW:
                skew = 0.0
        low_forward, low_backward = forward.height(skew), backward.height(-skew)
        base = (low_forward + low_backward) / 2
        if base < 0:
            raise ValueError(
                f"packets arrive {format_time(-base)} before they are sent, whatever the difference of the clocks: "
                "a clock was set meanwhile, or time stamps are damaged; analyze one of the captures alone"
            )
        return ClockFit(self._origin, (low_forward - low_backward) / 2, skew, residual, base, base)


@dataclass(frozen=True)
class Transmissions:
    """The sender's packets on the wire, and their arrivals in the receiver's capture."""

    # sent, arrived: Time of each packet at the sender, and of its arrival by the receiver's clock [ns]; 0 if it was
    # lost.
    sent: Integers
    arrived: Integers
    lost: Flags  # Whether a packet was lost
    # Whether the arrival certainly belongs to this transmission, and not to another transmission of the same bytes.
    known: Flags
    # Number of arrivals without a transmission: the network duplicated them, or the sender's capture lacks them.
    duplicated: int


def match_data(sender: Trace, receiver: Trace) -> Transmissions:
    """Find each packet of the sender's capture in the receiver's capture.

    The last byte of a packet in the stream identifies the packet, together with its timestamp if there is one.
    Segments that offloading has joined are first split into packets.
    """
    data, arrivals = sender.data, receiver.data
    counts = sender.wire_packets(data.end - data.start)
    if counts.sum() > _MOST_PIECES * data.size + 100_000:
        raise ValueError(f"{sender.name}: the segments are too large for the segment size of {sender.mss} bytes")
    of, place = expanded(np.zeros_like(counts), counts)
    ends = np.minimum(data.start[of] + (place + 1) * sender.mss, data.end[of])
    marks = np.unique(ends)
    # Every transmission and arrival of the byte at a mark. Below, `own` marks the pairs whose mark ends the packet.
    low = np.searchsorted(marks, data.start[of] + place * sender.mss, side="right")
    high = np.searchsorted(marks, ends, side="right")
    shift = shift_between(receiver.base, sender.base)
    low_arrived = np.searchsorted(marks, arrivals.start + shift, side="right")
    high_arrived = np.searchsorted(marks, arrivals.end + shift, side="right")
    if max((high - low).sum() / max(of.size, 1), (high_arrived - low_arrived).sum() / max(arrivals.size, 1)) > 100:
        raise ValueError(f"{sender.name}: the segments of the connection overlap more than those of any TCP")
    packet, mark = expanded(low, np.maximum(high - low, 0))
    arrival, mark_arrived = expanded(low_arrived, np.maximum(high_arrived - low_arrived, 0))
    stamps = bool(data.stamped.all() and arrivals.stamped.all())
    stamp_sent = data.tsval[of[packet]].astype(np.int64) * stamps
    stamp_arrived = arrivals.tsval[arrival].astype(np.int64) * stamps
    keys, key = np.unique(
        np.concatenate([mark << 32 | stamp_sent, mark_arrived << 32 | stamp_arrived]), return_inverse=True
    )
    key_sent, key_arrived = key[: packet.size], key[packet.size :]
    sent_of, arrived_of = np.bincount(key_sent, minlength=keys.size), np.bincount(key_arrived, minlength=keys.size)
    # Among the transmissions of one key, the earliest count as lost: a sender repeats lost data until they arrive.
    order = np.argsort(key_sent, kind="stable")
    rank = np.empty(packet.size, np.int64)
    rank[order] = expanded(np.zeros_like(sent_of), sent_of)[1]
    missing = np.maximum(sent_of - arrived_of, 0)
    order_arrived = np.argsort(key_arrived, kind="stable")
    begins = np.cumsum(arrived_of) - arrived_of
    which = np.minimum(rank - missing[key_sent], arrived_of[key_sent] - 1)
    own = (marks[mark] == ends[packet]) & sender.span.within(ends[packet])
    packet, rank, which, key_sent = packet[own], rank[own], which[own], key_sent[own]
    lost = rank < missing[key_sent]
    arrived = np.zeros(lost.size, np.int64)
    arrived[~lost] = arrivals.time[arrival[order_arrived[(begins[key_sent] + which)[~lost]]]]
    known = (sent_of[key_sent] == 1) & (arrived_of[key_sent] == 1)
    beyond = np.maximum(arrived_of - sent_of, 0)[np.unique(key_sent)].sum()
    return Transmissions(data.time[of[packet]], arrived, lost, known, int(beyond))


def match_acknowledgements(sender: Trace, receiver: Trace) -> tuple[Integers, Integers]:
    """Return the times of the ACKs that each capture has once, at sender and receiver, by their own clocks [ns]."""
    keys = []
    for trace in (sender, receiver):
        acks = trace.acks
        fields = (acks.seq, acks.ack % 2**32, acks.right[:, 0] * (acks.blocks > 0) % 2**32, acks.tsval, acks.tsecr)
        shifted = [np.asarray(field, np.int64) for field in fields]
        # Positions count from the first byte of each capture.
        shifted[1] = (shifted[1] + trace.base) % 2**32
        shifted[2] = np.where(acks.blocks > 0, (shifted[2] + trace.base) % 2**32, 0)
        keys.append(np.stack([*shifted, acks.length, acks.window], axis=1))
    both = np.concatenate(keys)
    if not both.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, key = np.unique(both, axis=0, return_inverse=True)
    key = key.ravel()
    left, right = key[: len(keys[0])], key[len(keys[0]) :]
    single = (np.bincount(left, minlength=both.size) == 1) & (np.bincount(right, minlength=both.size) == 1)
    at_left = np.flatnonzero(single[left])
    at_right = np.flatnonzero(single[right])
    at_right = at_right[np.argsort(right[at_right])][np.searchsorted(np.sort(right[at_right]), left[at_left])]
    counted = sender.span.during(sender.acks.time[at_left])
    return sender.acks.time[at_left][counted], receiver.acks.time[at_right][counted]
