"""One connection as arrays: the data segments of one direction, and the acknowledgements of the other direction.

From the data segments follows the coverage of the stream: which bytes were captured, when each byte arrived first, and
when all bytes before it had arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.decoding import Options

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
NANOSECONDS = 1e9
"""Number of nanoseconds in a second."""
NEVER = np.iinfo(np.int64).max
"""The time of bytes that never arrived."""
BEGINNING = np.iinfo(np.int64).min
"""The time of bytes that arrived before the capture."""
_MOST_OVERLAPS = 20
"""Mean number of pieces of the stream per segment above which the capture counts as damaged."""


class Handshake(NamedTuple):
    """The SYN of one end."""

    time: int | None = None  # Time at which it was captured [ns]; None if it was not seen
    options: Options = Options()
    answers: bool = False  # Whether it acknowledges the SYN of the other end


def opened_by(end: Handshake, other: Handshake) -> bool:
    """Return whether an end opened the connection; both SYNs must have been seen.

    A server in virtual time answers within the nanosecond, so the times alone do not tell. They decide only if both
    ends opened at once (RFC 9293, 3.5).
    """
    if end.answers != other.answers:
        return other.answers
    return (end.time or 0) <= (other.time or 0)


@dataclass(frozen=True)
class Span:
    """The part of a stretch that counts; segments before and behind it only help to classify its segments."""

    # begin, end: Times [ns]: segments count from `begin` on and before `end`.
    begin: int = -(2**62)
    end: int = 2**62
    # low, high: Bytes of the stream: bytes behind `low` up to `high` count.
    low: int = -(2**62)
    high: int = 2**62

    def during(self, times: Integers) -> Flags:
        """Return a mask of the times that count."""
        counted: Flags = (times >= self.begin) & (times < self.end)
        return counted

    def within(self, positions: Integers) -> Flags:
        """Return a mask of the positions, each behind a last byte, that count."""
        counted: Flags = (positions > self.low) & (positions <= self.high)
        return counted


@dataclass(frozen=True)
class DataSegments:
    """The segments with payload, in the order of capture."""

    time: Integers  # [ns since 1970]
    # start, end: First byte, and byte behind the last, counted from the first payload byte of the connection.
    start: Integers
    end: Integers
    # tsval, tsecr: Timestamps; only where `stamped`.
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    ip_id: Integers  # Identification of the IPv4 packet, or 0
    # push, stamped: Whether PSH is set, and whether there are timestamps.
    push: Flags
    stamped: Flags
    reached: int | None = None  # Highest byte of the stream seen before these segments; None if there was none

    @property
    def size(self) -> int:
        """Number of segments."""
        return self.time.size

    def before(self) -> Integers:
        """Return for each segment the highest byte of the stream that was seen before it."""
        highest = np.maximum.accumulate(self.end)
        if self.reached is None:
            return np.concatenate([self.start[:1], highest[:-1]])
        return np.asarray(np.maximum(np.concatenate([[self.reached], highest])[: self.size], self.reached), np.int64)


@dataclass(frozen=True)
class Acknowledgements:
    """The segments of the receiver, in the order of capture."""

    time: Integers  # [ns since 1970]
    ack: Integers  # First byte of the stream not received
    # left, right: Edges of the first two SACK blocks, as positions in the stream; the first `blocks` columns are
    # valid.
    left: Integers
    right: Integers
    # blocks, window: Number of valid blocks, and the window as in the header.
    blocks: Integers
    window: Integers
    # length, seq: Payload, and sequence number modulo 2^32.
    length: Integers
    seq: Integers
    # tsval, tsecr: Timestamps; only where `stamped`.
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    stamped: Flags  # Whether there are timestamps

    @property
    def size(self) -> int:
        """Number of segments."""
        return self.time.size

    def before(self) -> Integers:
        """Return for each acknowledgement the highest number acknowledged before it; 0 for the first."""
        return np.concatenate([[np.int64(0)], np.maximum.accumulate(self.ack)[:-1]])

    def first_covering(self, positions: Integers) -> Integers:
        """Return the index of the first ACK of all bytes before each position; `size` if there is none."""
        return np.searchsorted(np.maximum.accumulate(self.ack), positions)


@dataclass(frozen=True)
class Trace:
    """One connection in one capture, or a stretch: data in one direction, acknowledgements in the other direction."""

    name: str  # The file
    first: int  # Time of the connection's first segment [ns]
    # sender, receiver: The SYN of either end.
    sender: Handshake
    receiver: Handshake
    handshake_end: int | None  # Time at which the end that sent the first SYN answered the other end's SYN [ns]
    data: DataSegments  # The sender's segments
    acks: Acknowledgements  # The segments of the other end
    base: int  # Sequence number of the first byte of the stream, modulo 2^32
    mss: int  # Largest payload of a packet on the wire [bytes]: from the SYNs, or the largest seen
    mss_known: bool  # Whether `mss` is from the SYNs
    span: Span  # The part of the stretch that counts
    passed: int | None = None  # Highest byte of the stream that the next stretch no longer holds

    def wire_packets(self, lengths: Integers) -> Integers:
        """Return the number of packets on the wire for segments of these lengths, which offloading may have joined."""
        return -(-lengths // self.mss)


@dataclass(frozen=True)
class Coverage:
    """The stream in pieces, cut wherever a segment begins or ends."""

    edges: Integers  # Positions at which pieces begin and end
    # Index of the first segment that holds each piece; the number of segments if no segment holds the piece.
    first: Integers
    # First arrival of each piece [ns]. If the capture lacks the piece: its acknowledgement, or `NEVER`.
    time: Integers
    # owner, piece: Indices of all pairs of a segment and a piece in this segment.
    owner: Integers
    piece: Integers
    filled: Flags  # Whether a piece was acknowledged but is not in the capture
    before: int  # Time at which all bytes before the first piece had arrived [ns]

    @property
    def complete(self) -> Integers:
        """Time at which each piece and all bytes before it had arrived [ns]."""
        return np.maximum.accumulate(np.concatenate([[self.before], self.time]))[1:]

    def complete_at(self, position: int) -> int:
        """Return the time at which all bytes up to a position had arrived [ns]."""
        behind = int(np.searchsorted(self.edges, position))
        return int(np.max(self.time[:behind], initial=self.before))

    def missing(self, span: Span) -> int:
        """Return the number of counted bytes that were acknowledged but are not in the capture."""
        return int(np.diff(self.edges)[self.filled & span.within(self.edges[1:])].sum())

    def holding(self, positions: Integers) -> Integers:
        """Return for each position the index of the piece that begins before it and ends at or behind it."""
        return np.clip(np.searchsorted(self.edges, positions) - 1, 0, self.time.size - 1)

    def within(self, positions: Integers) -> Flags:
        """Return a mask of the positions behind the first edge, up to the last edge."""
        inside: Flags = (positions > self.edges[0]) & (positions <= self.edges[-1])
        return inside


def coverage(data: DataSegments, acks: Acknowledgements, name: str, before: int = BEGINNING) -> Coverage:
    """Cut the stream into pieces, from the highest byte on that was seen before these segments."""
    start, end = data.start, data.end
    if data.reached is not None:
        start, end = np.maximum(start, data.reached), np.maximum(end, data.reached)
    edges = np.unique(np.concatenate([start, end, [data.reached]] if data.reached is not None else [start, end]))
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, end)
    counts = high - low
    if counts.sum() > _MOST_OVERLAPS * data.size + 100_000:
        raise ValueError(f"{name}: the segments of the connection overlap more than those of any TCP")
    owner, piece = expanded(low, counts)
    first = np.full(edges.size - 1, data.size)
    np.minimum.at(first, piece, owner)
    lacking = first == data.size
    time = np.where(lacking, NEVER, data.time[np.minimum(first, data.size - 1)])
    filled = np.zeros(lacking.size, np.bool_)
    if lacking.any() and acks.size:
        acknowledged = acks.first_covering(edges[1:][lacking])
        time[lacking] = np.append(acks.time, NEVER)[acknowledged]
        filled = lacking & (time < NEVER)
    return Coverage(edges, first, time, owner, piece, filled, before)


def expanded(first: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return all pairs of an index i and one of the `counts[i]` numbers from `first[i]` on."""
    owner = np.repeat(np.arange(counts.size), counts)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts - first, counts)


# The segments of one capture by their kind: new data, retransmitted, spurious, reordered or duplicate.

_REORDERING_TIME = 3_000_000
"""Time [ns] within which a late segment counts as overtaken, if neither timestamp nor identification decides."""
_MOST_IN_REPORT = 1000
"""Largest number of repetitions that one report of duplicates (D-SACK) can cover."""


@dataclass(frozen=True)
class Sent:
    """The segments of a capture at the sender."""

    original: Integers  # Indices of the segments that hold only new data
    repetition: Flags  # Whether a segment is a repetition
    resent: Flags  # Whether a segment is a repetition or was repeated
    # Whether a repetition was unnecessary: an acknowledgement shows that an earlier transmission had arrived.
    spurious: Flags


@dataclass(frozen=True)
class Arrived:
    """The segments of a capture at the receiver."""

    repetition: Flags  # Whether a segment is a retransmission that filled a gap
    reordered: Flags  # Whether a later segment overtook the segment
    # Whether a segment held no new data: the capture shows its earlier arrival or the acknowledgement of it.
    duplicate: Flags


def at_sender(trace: Trace, pieces: Coverage) -> Sent:
    """Classify the segments of a capture at the sender: new data, repetitions, spurious repetitions.

    A repetition is spurious if an acknowledgement or a SACK block covered it before it was sent, if the receiver
    reports it as a duplicate (D-SACK, RFC 2883), or if the acknowledgement that covers it echoes a timestamp older than
    its own (Eifel, RFC 3522). If these acknowledgements were lost, the spurious repetition is not recognized.
    """
    data = trace.data
    before = data.before()
    probes = _window_probes(data, trace.acks)
    reached = _without(probes, data).before()
    repetition = data.start < reached
    repetition &= ~_keep_alive(data, trace.acks, before)
    times_held = np.bincount(pieces.piece, minlength=pieces.time.size)
    resent = repetition.copy()
    resent[pieces.owner[times_held[pieces.piece] > 1]] = True
    original = np.flatnonzero((data.start >= reached) & ~probes)
    spurious = _by_eifel(data, trace.acks, repetition) | acknowledged_before(data, trace.acks, repetition)
    _mark_reported(data, trace.acks, repetition, spurious)
    return Sent(original, repetition, resent, spurious)


def _keep_alive(data: DataSegments, acks: Acknowledgements, before: Integers) -> Flags:
    """Return a mask of the keep-alive probes: one byte that was acknowledged before (RFC 9293, 3.8.4)."""
    covered = acks.first_covering(data.end)
    known = np.append(acks.time, NEVER)[covered] < data.time
    probes: Flags = (data.end - data.start == 1) & (data.end == before) & known
    return probes


def _window_probes(data: DataSegments, acks: Acknowledgements) -> Flags:
    """Return a mask of the window probes: a byte beyond a closed window, which the receiver drops (RFC 9293, 3.8.6)."""
    last = np.searchsorted(acks.time, data.time) - 1
    probes: Flags = (data.end - data.start == 1) & (last >= 0)
    at = last[probes]
    probes[probes] = (acks.window[at] == 0) & (data.start[probes] >= acks.ack[at])
    return probes


def _without(probes: Flags, data: DataSegments) -> DataSegments:
    """Return the segments, where the window probes have no length."""
    return replace(data, end=np.where(probes, data.start, data.end))


def acknowledged_before(data: DataSegments, acks: Acknowledgements, repetition: Flags) -> Flags:
    """Return a mask of the repetitions of bytes that an acknowledgement or a SACK block covered before."""
    covered = np.zeros(data.size, np.bool_)
    again = np.flatnonzero(repetition)
    # A repetition may continue with new data.
    start, end = data.start[again], np.minimum(data.end[again], data.before()[again])
    # An acknowledgement with the same time may be the answer.
    known = np.searchsorted(acks.time, data.time[again])
    reached = np.concatenate([[np.int64(data.start.min(initial=0))], np.maximum.accumulate(acks.ack)])[known]
    covered[again[end <= reached]] = True
    if not acks.blocks.any():
        return covered
    first_sent = data.time[np.searchsorted(np.maximum.accumulate(data.end), start, side="right")]
    since = np.searchsorted(acks.time, first_sent)
    for place in np.flatnonzero(end > reached).tolist():
        reports = slice(since[place], known[place])
        held = (acks.left[reports] <= start[place]) & (acks.right[reports] >= end[place])
        held &= np.arange(2) < acks.blocks[reports, None]
        covered[again[place]] = held.any()
    return covered


def _by_eifel(data: DataSegments, acks: Acknowledgements, repetition: Flags) -> Flags:
    """Return a mask of the repetitions that the answer to an earlier transmission acknowledged (Eifel)."""
    spurious = np.zeros(data.size, np.bool_)
    again = np.flatnonzero(repetition & data.stamped)
    covering = acks.first_covering(data.end[again])
    again, covering = again[covering < acks.size], covering[covering < acks.size]
    begins = acks.before()[covering]
    # The receiver echoes the timestamp of the segment at the left edge of its window (RFC 7323, 4.3).
    leftmost = (data.start[again] <= begins) & (acks.time[covering] > data.time[again]) & acks.stamped[covering]
    older = (acks.tsecr[covering] - data.tsval[again]).view(np.int32) < 0
    spurious[again[leftmost & older]] = True
    return spurious


def _mark_reported(data: DataSegments, acks: Acknowledgements, repetition: Flags, spurious: Flags) -> None:
    """Mark the repetitions in a D-SACK block: a block at or below the ACK, or within the next block (RFC 2883)."""
    left, right = acks.left[:, 0], acks.right[:, 0]
    below = right <= acks.ack
    within = (acks.blocks > 1) & (left >= acks.left[:, 1]) & (right <= acks.right[:, 1])
    reports = np.flatnonzero((acks.blocks > 0) & (right > left) & (below | within))
    again = np.flatnonzero(repetition)
    by_start = again[np.lexsort((again, data.start[again]))]
    starts = data.start[by_start]
    reported = np.zeros(data.size, np.bool_)
    for report in reports.tolist():
        low, high = np.searchsorted(starts, (left[report], right[report]))
        near = by_start[low : min(high, low + _MOST_IN_REPORT)]
        near = near[(data.time[near] < acks.time[report]) & ~reported[near]]
        reached = right[report]
        for i in near[::-1].tolist():
            # A repetition that is only partly a duplicate was necessary for the rest.
            if data.end[i] <= reached:
                reported[i] = spurious[i] = True
                reached = data.start[i]


def at_receiver(trace: Trace, pieces: Coverage) -> Arrived:
    """Classify the segments of a capture at the receiver: retransmitted, reordered, duplicate.

    A late segment arrives behind a segment with later data. It was overtaken if its timestamp is older than the
    timestamp of the other segment, or, with equal timestamps, if its IPv4 identification is older; else it was sent
    again. If neither decides, a segment that is less than 3 ms late counts as overtaken.
    """
    data = trace.data
    late = data.start < _without(_window_probes(data, trace.acks), data).before()
    newest = np.zeros(data.size, np.int64)
    np.maximum.at(newest, pieces.owner, pieces.first[pieces.piece])
    duplicate = newest < np.arange(data.size)
    # The capture can lack the first arrival.
    duplicate |= acknowledged_before(data, trace.acks, late)
    duplicate &= late
    candidates = np.flatnonzero(late & ~duplicate)
    overtaker = np.searchsorted(np.maximum.accumulate(data.end), data.end[candidates])
    stamps = (data.tsval[candidates] - data.tsval[overtaker]).view(np.int32).astype(np.int64)
    stamps[~(data.stamped[candidates] & data.stamped[overtaker])] = 0
    numbers = (data.ip_id[candidates] - data.ip_id[overtaker] + 2**15) % 2**16 - 2**15
    numbers[(data.ip_id[candidates] == 0) & (data.ip_id[overtaker] == 0)] = 0
    waited = data.time[candidates] - data.time[overtaker]
    age = np.where(stamps != 0, stamps, np.where(numbers != 0, numbers, waited - _REORDERING_TIME))
    reordered, repetition = np.zeros(data.size, np.bool_), np.zeros(data.size, np.bool_)
    reordered[candidates[age < 0]] = True
    repetition[candidates[age >= 0]] = True
    return Arrived(repetition, reordered, duplicate)


def duplicate_acknowledgements(trace: Trace) -> int:
    """Return the number of duplicate ACKs: no payload, and the number and window of the previous ACK (RFC 5681, 2)."""
    acks, data = trace.acks, trace.data
    behind = np.searchsorted(data.time, acks.time[1:], side="right")
    sent = np.maximum.accumulate(np.concatenate([[np.int64(data.reached or 0)], data.end]))[behind]
    repeated = (acks.length[1:] == 0) & (np.diff(acks.ack) == 0) & (np.diff(acks.window) == 0)
    return int(np.count_nonzero(repeated & (sent > acks.ack[1:]) & trace.span.during(acks.time[1:])))
