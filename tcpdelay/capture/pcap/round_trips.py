"""Round-trip times as a sender or a receiver sees them, delayed acknowledgements, and where a capture was made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.trace import Flags, Integers, Span, Trace

Side = Literal["sender", "receiver"]

_NANOSECONDS = 1e9
_FEWEST_WHOLE = 10
"""Samples of acknowledgements for two or more segments from which those for one are left out."""
_SMALL = 0.1
_AT_ONCE = 1e-3
_AT_THE_END = 0.9
DELAYED = 0.1
"""Share of acknowledgements for two or more segments from which acknowledgements count as delayed."""


@dataclass(frozen=True)
class RoundTrips:
    """Samples of the round-trip time.

    Attributes
    ----------
    end : ndarray of int64
        When each sample ended [ns].
    rtt : ndarray of float
        The samples [s], by ascending time.
    single : ndarray of bool
        Which came from an acknowledgement of one segment only, which may have waited for a second one.
    """

    end: Integers
    rtt: NDArray[np.float64]
    single: Flags

    def counted(self, span: Span) -> RoundTrips:
        """Return the samples that ended in a span."""
        during = span.during(self.end)
        return RoundTrips(self.end[during], self.rtt[during], self.single[during])


@dataclass
class AcknowledgedTogether:
    """How many acknowledgements of new data there are, where nothing was sent again, and how many cover several.

    Attributes
    ----------
    several, all : int
        Those for two and more segments, and all.
    """

    several: int = 0
    all: int = 0

    @property
    def share(self) -> float:
        """Share of those for two and more segments."""
        return self.several / self.all if self.all else 0.0

    @property
    def singles_wait(self) -> bool:
        """Whether acknowledgements are delayed and those for several segments tell the round-trip time well enough."""
        return self.share > DELAYED and self.several >= _FEWEST_WHOLE


@dataclass(frozen=True)
class _Advances:
    """Acknowledgements of new data: index, and the first and last of the original segments that each covers."""

    index: Integers
    low: Integers
    last: Integers
    clean: Flags


def _advances(trace: Trace, original: Integers, resent: Flags) -> _Advances:
    """Return the acknowledgements of new data; `clean` are those that cover no segment sent twice."""
    acks, ends = trace.acks, trace.data.end[original]
    highest = np.maximum.accumulate(acks.ack)
    before = np.concatenate([[np.int64(0)], highest[:-1]])
    low = np.searchsorted(ends, before, side="right")
    last = np.searchsorted(ends, highest, side="right") - 1
    index = np.flatnonzero((highest > before) & (last >= low))
    twice = np.concatenate([[0], np.cumsum(resent[original])])
    clean = twice[last[index] + 1] == twice[low[index]]
    # Captured before the segment itself: the order of two devices, or a damaged capture.
    clean &= acks.time[index] >= trace.data.time[original[last[index]]]
    return _Advances(index, low[index], last[index], clean)


def sender_round_trips(trace: Trace, original: Integers, resent: Flags, together: AcknowledgedTogether) -> RoundTrips:
    """Return round-trip times from data to acknowledgement.

    Each acknowledgement of new data gives one sample, by the newest segment that it covers; none where one of the
    segments covered was sent twice (Karn and Partridge, SIGCOMM 1987, doi 10.1145/55482.55484), unless the timestamp
    that it echoes tells which transmission it answers (RFC 7323, 4). A first block of SACK that reaches farther
    than any before gives one as well. Where acknowledgements are delayed, those for one segment may have waited.

    Parameters
    ----------
    trace : Trace
        A capture at the sender.
    original : ndarray of int64
        Indices of the segments with new data.
    resent : ndarray of bool
        Which segments were sent again, or are repetitions.
    together : AcknowledgedTogether
        Where the acknowledgements are counted.

    Returns
    -------
    RoundTrips
        The samples that end in this stretch, perhaps none.
    """
    acks, data = trace.acks, trace.data
    found = _advances(trace, original, resent)
    clean = found.index[found.clean]
    newest = original[found.last[found.clean]]
    several = found.last[found.clean] > found.low[found.clean]
    counted = trace.span.during(acks.time[clean])
    together.several += int(np.count_nonzero(several & counted))
    together.all += int(np.count_nonzero(counted))
    pairs = [(acks.time[clean], data.time[newest]), _by_sack(trace, original, resent), _by_echo(trace, found, original)]
    at = np.concatenate([end for end, _ in pairs])
    sent = np.concatenate([begin for _, begin in pairs])
    single = np.zeros(at.size, np.bool_)
    single[: several.size] = ~several
    order = np.argsort(at, kind="stable")
    return RoundTrips(at[order], ((at - sent) / _NANOSECONDS)[order], single[order]).counted(trace.span)


def _by_sack(trace: Trace, original: Integers, resent: Flags) -> tuple[Integers, Integers]:
    """Return times of acknowledgement and transmission of segments that a block of SACK reported first."""
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
    """Return the same of repetitions that an acknowledgement names by their timestamp."""
    acks, data = trace.acks, trace.data
    doubtful = found.index[~found.clean]
    doubtful = doubtful[acks.stamped[doubtful]]
    stamped = np.flatnonzero(data.stamped)
    order = stamped[np.argsort(data.tsval[stamped], kind="stable")]
    echoed = acks.tsecr[doubtful]
    low = np.searchsorted(data.tsval[order], echoed)
    high = np.searchsorted(data.tsval[order], echoed, side="right")
    # Several segments of one tick of the sender's clock cannot be told apart.
    single = high - low == 1
    sent, answered = order[low[single]], doubtful[single]
    begins = np.concatenate([[np.int64(0)], np.maximum.accumulate(acks.ack)[:-1]])[answered]
    kept = (data.start[sent] <= begins) & (data.end[sent] > begins) & (data.time[sent] <= acks.time[answered])
    return acks.time[answered[kept]], data.time[sent[kept]]


def receiver_round_trips(trace: Trace) -> RoundTrips:
    """Return upper bounds of the round-trip time from acknowledgements to the data that echo their timestamp.

    The sender answers an acknowledgement with the next segment that it sends anyway, so each sample holds what the
    sender waited besides the round-trip time; the smallest ones are close to it.

    Parameters
    ----------
    trace : Trace
        A capture at the receiver.

    Returns
    -------
    RoundTrips
        One sample per echoed timestamp that ends in this stretch; none without timestamps.
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
    rtt = ((end - begin)[kept] / _NANOSECONDS)[order]
    return RoundTrips(end[kept][order], rtt, np.zeros(rtt.size, np.bool_)).counted(trace.span)


def handshake_times(trace: Trace) -> tuple[float, float] | None:
    """Return the time from the first SYN to the second, and from there to its acknowledgement [s].

    Returns
    -------
    tuple of float or None
        The round-trip time seen from the opener's side and from the other end's; None where no handshake was seen.
    """
    sender, receiver, end = trace.sender.time, trace.receiver.time, trace.handshake_end
    if sender is None or receiver is None or end is None:
        return None
    return abs(receiver - sender) / _NANOSECONDS, (end - max(sender, receiver)) / _NANOSECONDS


def distance_to_receiver(trace: Trace) -> float:
    """Return a small time from data or a SYN to its acknowledgement [s]; 0 where nothing was acknowledged."""
    acks, data = trace.acks, trace.data
    covering = acks.first_covering(data.end)
    waits = np.append(acks.time, 0)[covering] - data.time
    waits = waits[(covering < acks.size) & (waits >= 0)]
    # An acknowledgement just behind a needless repetition answers the original, so the smallest of all will not do.
    distance = float(np.quantile(waits, _SMALL)) / _NANOSECONDS if waits.size else math.inf
    shake = handshake_times(trace)
    if shake is not None:
        distance = min(distance, shake[not _opened_by_sender(trace)])
    return distance if math.isfinite(distance) else 0.0


def distance_to_sender(trace: Trace) -> float:
    """Return the smallest time from an acknowledgement or a SYN to its echo by the sender [s]; infinite without any."""
    echoes = receiver_round_trips(trace).rtt
    distance = float(echoes.min()) if echoes.size else math.inf
    shake = handshake_times(trace)
    if shake is not None:
        distance = min(distance, shake[_opened_by_sender(trace)])
    return distance


def captured_at(trace: Trace) -> tuple[Side, bool]:
    """Return the end that a capture was made at, or next to.

    At the sender, acknowledgements come a round-trip time after the data; at the receiver at once, and there it is the
    echo of their timestamps that takes the round-trip time. Where nothing tells how far the sender is, a capture whose
    data are acknowledged within a millisecond counts as the receiver's. Of a connection with a round-trip time below a
    millisecond every capture counts as the sender's.

    Parameters
    ----------
    trace : Trace
        The capture.

    Returns
    -------
    tuple of Side and bool
        The nearer end, and whether it is so near that the other distance is at least nine tenths of the whole.
    """
    to_receiver, to_sender = distance_to_receiver(trace), distance_to_sender(trace)
    if math.isinf(to_sender):
        return ("sender" if to_receiver > _AT_ONCE else "receiver"), True
    if to_receiver + to_sender <= _AT_ONCE:
        # On one machine both are equally near, and the sender's view says more.
        return "sender", True
    nearer: Side = "sender" if to_receiver >= to_sender else "receiver"
    return nearer, max(to_receiver, to_sender) >= _AT_THE_END * (to_receiver + to_sender)


def _opened_by_sender(trace: Trace) -> bool:
    return (trace.sender.time or 0) <= (trace.receiver.time or 0)
