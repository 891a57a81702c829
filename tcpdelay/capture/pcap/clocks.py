"""Two captures of one connection: the segments that arrived, and the offset and skew of the two clocks.

Offset and skew follow from the smallest delays of both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import NANOSECONDS, Flags, Integers, Trace, expanded
from tcpdelay.units import format_time

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
