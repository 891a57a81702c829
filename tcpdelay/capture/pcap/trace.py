"""One connection as arrays: what was sent in one direction, and what came back in the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


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
