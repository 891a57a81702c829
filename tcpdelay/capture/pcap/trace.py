"""One connection as arrays: the data segments of one direction, the acknowledgements of the other.

Also, from the data segments: which bytes of the stream were captured, when first, and when all bytes before them had
arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
NEVER = np.iinfo(np.int64).max
"""Stands for the time of what never came."""
BEGINNING = np.iinfo(np.int64).min
"""Stands for the time of what was there before the capture."""
_MOST_OVERLAPS = 20
"""Pieces of the stream per segment, in the mean, beyond which the capture is taken for damaged."""


@dataclass(frozen=True)
class Handshake:
    """What one end said in its SYN; None or False where that was not seen or not said.

    Attributes
    ----------
    time : int, optional
        When the SYN was captured [ns].
    mss : int, optional
        Largest segment it takes [bytes].
    window_scale : int, optional
        Logarithm of the scale of its windows.
    sack, timestamps : bool
        What it offered.
    """

    time: int | None = None
    mss: int | None = None
    window_scale: int | None = None
    sack: bool = False
    timestamps: bool = False


@dataclass(frozen=True)
class Span:
    """What counts of a stretch of a connection; the segments before and behind it only help to judge those in it.

    Attributes
    ----------
    begin, end : int
        Times [ns]: segments from `begin` on and before `end` count.
    low, high : int
        Bytes of the stream: those behind `low` up to `high` count, which are new in that time.
    """

    begin: int = -(2**62)
    end: int = 2**62
    low: int = -(2**62)
    high: int = 2**62

    def during(self, times: Integers) -> Flags:
        """Return which times count."""
        counted: Flags = (times >= self.begin) & (times < self.end)
        return counted

    def within(self, positions: Integers) -> Flags:
        """Return which positions behind a last byte count."""
        counted: Flags = (positions > self.low) & (positions <= self.high)
        return counted


@dataclass(frozen=True)
class DataSegments:
    """The segments with payload, in the order of capture.

    Attributes
    ----------
    time : ndarray of int64
        [ns since 1970]
    start, end : ndarray of int64
        First byte and the one behind the last, counted from the first payload byte of the connection.
    tsval, tsecr : ndarray of uint32
        Timestamps; only where `stamped`.
    ip_id : ndarray of int64
        Identification of the IPv4 packet, or 0.
    push, stamped : ndarray of bool
        Whether PSH is set, and whether there are timestamps.
    reached : int, optional
        Highest byte of the stream that was seen before all these; None where nothing was.
    """

    time: Integers
    start: Integers
    end: Integers
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    ip_id: Integers
    push: Flags
    stamped: Flags
    reached: int | None = None

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
    """The segments of the other direction, in the order of capture.

    Attributes
    ----------
    time : ndarray of int64
        [ns since 1970]
    ack : ndarray of int64
        First byte of the stream not received.
    left, right : ndarray of int64, shape (n, 2)
        First two blocks of SACK, in bytes of the stream; only as many as `blocks` says.
    blocks, window : ndarray of int64
        Blocks kept, and the window as in the header.
    length, seq : ndarray of int64
        Payload, and sequence number modulo 2^32.
    tsval, tsecr : ndarray of uint32
        Timestamps; only where `stamped`.
    stamped : ndarray of bool
        Whether there are timestamps.
    """

    time: Integers
    ack: Integers
    left: Integers
    right: Integers
    blocks: Integers
    window: Integers
    length: Integers
    seq: Integers
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    stamped: Flags

    @property
    def size(self) -> int:
        """Number of segments."""
        return self.time.size

    def first_covering(self, positions: Integers) -> Integers:
        """Return the index of the first acknowledgement of all before each position; `size` where there is none."""
        return np.searchsorted(np.maximum.accumulate(self.ack), positions)


@dataclass(frozen=True)
class Trace:
    """One connection in one capture, or a stretch of it: data in one direction, acknowledgements in the other.

    Attributes
    ----------
    name : str
        The file.
    first : int
        Time of the connection's first segment [ns].
    sender, receiver : Handshake
        The SYN of either end.
    handshake_end : int, optional
        When the end that sent the first SYN answered the other's [ns].
    data : DataSegments
        What the sender sent.
    acks : Acknowledgements
        What came back.
    base : int
        Sequence number of the first byte of the stream, modulo 2^32.
    mss : int
        Largest payload of a packet on the wire [bytes]: from the SYNs, or the largest seen.
    mss_known : bool
        Whether it comes from the SYNs.
    span : Span
        What of the stretch counts.
    passed : int, optional
        Highest byte of the stream that the next stretch does not hold any more.
    """

    name: str
    first: int
    sender: Handshake
    receiver: Handshake
    handshake_end: int | None
    data: DataSegments
    acks: Acknowledgements
    base: int
    mss: int
    mss_known: bool
    span: Span
    passed: int | None = None

    def wire_packets(self, lengths: Integers) -> Integers:
        """Return how many packets segments of these lengths are on the wire, where offloading left them whole."""
        return -(-lengths // self.mss)


@dataclass(frozen=True)
class Coverage:
    """The stream in pieces, cut wherever a segment begins or ends.

    Attributes
    ----------
    edges : ndarray of int64
        Where the pieces begin and end.
    first : ndarray of int64
        Index of the first segment that holds each piece; the number of segments where none does.
    time : ndarray of int64
        When each piece came first [ns]; where it is missing in the capture, when it was acknowledged, or `NEVER`.
    owner, piece : ndarray of int64
        All pairs of a segment and a piece it holds, by index.
    filled : ndarray of bool
        Which pieces were acknowledged but are not in the capture.
    before : int
        When all before the first piece had come [ns].
    """

    edges: Integers
    first: Integers
    time: Integers
    owner: Integers
    piece: Integers
    filled: Flags
    before: int

    @property
    def complete(self) -> Integers:
        """When each piece and all before it had come [ns]."""
        return np.maximum.accumulate(np.concatenate([[self.before], self.time]))[1:]

    def complete_at(self, position: int) -> int:
        """When all up to a byte of the stream had come [ns]; before the first piece, when all before that had."""
        behind = int(np.searchsorted(self.edges, position))
        return int(np.max(self.time[:behind], initial=self.before))

    def missing(self, span: Span) -> int:
        """How many of the bytes that count were acknowledged but are not in the capture."""
        return int(np.diff(self.edges)[self.filled & span.within(self.edges[1:])].sum())

    def holding(self, positions: Integers) -> Integers:
        """Return the index of the piece that ends at or behind each position and begins before it."""
        return np.clip(np.searchsorted(self.edges, positions) - 1, 0, self.time.size - 1)

    def within(self, positions: Integers) -> Flags:
        """Return which positions lie behind the first edge, up to the last."""
        inside: Flags = (positions > self.edges[0]) & (positions <= self.edges[-1])
        return inside


def coverage(data: DataSegments, acks: Acknowledgements, name: str, before: int = BEGINNING) -> Coverage:
    """Cut the stream into pieces.

    What lies before the highest byte that was seen before these segments is left out.

    Parameters
    ----------
    data : DataSegments
        At least one segment.
    acks : Acknowledgements
        What was acknowledged.
    name : str
        The file, for messages.
    before : int
        When all of the stream before `data.reached` had come [ns].

    Returns
    -------
    Coverage
        The pieces.

    Raises
    ------
    ValueError
        If the segments overlap as those of no TCP do.
    """
    start, end = data.start, data.end
    if data.reached is not None:
        start, end = np.maximum(start, data.reached), np.maximum(end, data.reached)
    edges = np.unique(np.concatenate([start, end, [data.reached]] if data.reached is not None else [start, end]))
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, end)
    counts = high - low
    if counts.sum() > _MOST_OVERLAPS * data.size + 100_000:
        raise ValueError(f"{name}: the segments of the connection overlap as those of no TCP do")
    owner = np.repeat(np.arange(data.size), counts)
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - low, counts)
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
