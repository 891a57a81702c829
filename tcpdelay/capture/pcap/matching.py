"""Two captures of one connection laid over each other: what of the sent segments arrived, and the clocks' samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import Flags, Integers, Trace

_MOST_PIECES = 20


@dataclass(frozen=True)
class Transmissions:
    """The packets that the sender put on the wire, as far as the receiver's capture covers them.

    Attributes
    ----------
    sent, arrived : ndarray of int64
        Time of each at the sender, and of its arrival by the receiver's clock [ns]; 0 where it was lost.
    lost : ndarray of bool
        Which did not arrive.
    known : ndarray of bool
        Which transmission it was is certain, not only that one of several of the same bytes arrived.
    duplicated : int
        Arrivals beyond what was sent: duplicated by the network, or missing in the sender's capture.
    """

    sent: Integers
    arrived: Integers
    lost: Flags
    known: Flags
    duplicated: int


def match_data(sender: Trace, receiver: Trace) -> Transmissions:
    """Find each packet of the sender's capture in the receiver's.

    Packets are recognized by the last byte of the stream they hold, and by their timestamps where there are any.
    Segments that offloading left whole in either capture are taken apart first.

    Parameters
    ----------
    sender, receiver : Trace
        The two captures.

    Returns
    -------
    Transmissions
        In the order of sending: those that count in this stretch, by the last byte they hold.

    Raises
    ------
    ValueError
        If the segments are larger than packets can be, or overlap as no TCP does.
    """
    data, arrivals = sender.data, receiver.data
    counts = sender.wire_packets(data.end - data.start)
    if counts.sum() > _MOST_PIECES * data.size + 100_000:
        raise ValueError(f"{sender.name}: the segments are too large for the segment size of {sender.mss} bytes")
    of = np.repeat(np.arange(data.size), counts)
    place = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.minimum(data.start[of] + (place + 1) * sender.mss, data.end[of])
    marks = np.unique(ends)
    # Every transmission and arrival of a mark's byte; `own` where the mark is the end of a packet itself.
    low = np.searchsorted(marks, data.start[of] + place * sender.mss, side="right")
    high = np.searchsorted(marks, ends, side="right")
    shift = shift_between(receiver.base, sender.base)
    low_arrived = np.searchsorted(marks, arrivals.start + shift, side="right")
    high_arrived = np.searchsorted(marks, arrivals.end + shift, side="right")
    if max((high - low).sum() / max(of.size, 1), (high_arrived - low_arrived).sum() / max(arrivals.size, 1)) > 100:
        raise ValueError(f"{sender.name}: the segments of the connection overlap as those of no TCP do")
    packet, mark = _expanded(low, high)
    arrival, mark_arrived = _expanded(low_arrived, high_arrived)
    stamps = bool(data.stamped.all() and arrivals.stamped.all())
    stamp_sent = data.tsval[of[packet]].astype(np.int64) * stamps
    stamp_arrived = arrivals.tsval[arrival].astype(np.int64) * stamps
    keys, key = np.unique(
        np.concatenate([mark << 32 | stamp_sent, mark_arrived << 32 | stamp_arrived]), return_inverse=True
    )
    key_sent, key_arrived = key[: packet.size], key[packet.size :]
    sent_of, arrived_of = np.bincount(key_sent, minlength=keys.size), np.bincount(key_arrived, minlength=keys.size)
    # Of several of one key the earliest are taken for lost: a sender repeats what was lost until it arrives.
    order = np.argsort(key_sent, kind="stable")
    rank = np.empty(packet.size, np.int64)
    rank[order] = np.arange(packet.size) - np.repeat(np.cumsum(sent_of) - sent_of, sent_of)
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


def _expanded(low: Integers, high: Integers) -> tuple[Integers, Integers]:
    """Return all pairs of an index and a number from `low` to below `high` of that index."""
    counts = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(low.size), counts)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts - low, counts)


def match_acknowledgements(sender: Trace, receiver: Trace) -> tuple[Integers, Integers]:
    """Return the times of acknowledgements at the sender and at the receiver, each by its own clock [ns].

    Only those that occur once in each capture are used; numbers, blocks and timestamps must be equal.

    Parameters
    ----------
    sender, receiver : Trace
        The two captures.

    Returns
    -------
    tuple of ndarray
        Those that count in this stretch, by ascending time at the sender; perhaps empty.
    """
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
