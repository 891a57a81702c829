"""Round-trip times in one capture, and the end at which the capture was made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.trace import NANOSECONDS, Flags, Integers, Span, Trace, opened_by

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
