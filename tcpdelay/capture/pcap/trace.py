"""One connection as arrays: the data segments of one direction, and the acknowledgements of the other direction.

From the data segments follows the coverage of the stream: which bytes were captured, when each byte arrived first, and
when all bytes before it had arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
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
