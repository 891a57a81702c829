"""The second pass: one connection as arrays, with sequence numbers that do not wrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dpkt.tcp import TH_ACK, TH_PUSH, TH_RST, TH_SYN
from numpy.typing import NDArray

from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.conversations import Conversation, Generations
from tcpdelay.capture.pcap.decoding import options_of, segment_of
from tcpdelay.capture.pcap.framing import Framer

SEGMENT = np.dtype(
    [
        ("time", np.int64),
        ("seq", np.uint32),
        ("ack", np.uint32),
        ("length", np.uint32),
        ("tsval", np.uint32),
        ("tsecr", np.uint32),
        ("left", np.uint32, (2,)),
        ("right", np.uint32, (2,)),
        ("window", np.uint16),
        ("ip_id", np.uint16),
        ("flags", np.uint16),
        ("forward", np.bool_),
        ("stamped", np.bool_),
        ("blocks", np.uint8),
    ]
)
"""What is kept of a segment: 53 bytes, with the first two blocks of SACK."""
MAX_SEGMENTS = 2**24
"""Segments of a connection that are analysed; they take about 3 GiB at the most."""
_CHUNK = 16384
_DEFAULT_MSS = 1448
_TIMESTAMPS_LENGTH = 12

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
    """

    time: Integers
    start: Integers
    end: Integers
    tsval: NDArray[np.uint32]
    tsecr: NDArray[np.uint32]
    ip_id: Integers
    push: Flags
    stamped: Flags

    @property
    def size(self) -> int:
        """Number of segments."""
        return self.time.size

    def before(self) -> Integers:
        """Return for each segment the highest byte of the stream that was seen before it."""
        highest = np.maximum.accumulate(self.end)
        return np.concatenate([self.start[:1], highest[:-1]])


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
    """One connection in one capture, seen as data in one direction and acknowledgements in the other.

    Attributes
    ----------
    name : str
        The file.
    first, last : int
        Times of its first and last segment [ns].
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
    shortened : bool
        Whether the connection goes on behind its first `MAX_SEGMENTS`.
    """

    name: str
    first: int
    last: int
    sender: Handshake
    receiver: Handshake
    handshake_end: int | None
    data: DataSegments
    acks: Acknowledgements
    base: int
    mss: int
    mss_known: bool
    shortened: bool

    def wire_packets(self, lengths: Integers) -> Integers:
        """Return how many packets segments of these lengths are on the wire, where offloading left them whole."""
        return -(-lengths // self.mss)


def load_trace(capture: CaptureFile, conversation: Conversation, sender: bytes, framer: Framer | None = None) -> Trace:
    """Read one connection of a capture.

    Parameters
    ----------
    capture : CaptureFile
        The capture.
    conversation : Conversation
        The connection, as the first pass found it.
    sender : bytes
        The end of it whose payload is analysed.
    framer : Framer, optional
        What reads the payload of the sender's segments for the ends of messages.

    Returns
    -------
    Trace
        The connection, or its first `MAX_SEGMENTS`.

    Raises
    ------
    ValueError
        If the file has changed since, or if the framer cannot read the payload.
    """
    rows = np.zeros(min(conversation.segments, MAX_SEGMENTS), SEGMENT)
    shakes = {True: Handshake(), False: Handshake()}
    pair = conversation.pair
    generations = Generations()
    chunk: list[tuple[object, ...]] = []
    filled = 0
    for packet in capture:
        segment = segment_of(packet.link, packet.data, packet.wire_length)
        if segment is None or (segment.source != pair[0] and segment.source != pair[1]):
            continue
        if segment.target != pair[0] and segment.target != pair[1]:
            continue
        if generations.number(pair, segment) != conversation.generation:
            continue
        forward = segment.source == sender
        options = options_of(segment.options)
        if segment.flags & TH_SYN and shakes[forward].time is None:
            shakes[forward] = Handshake(
                packet.time, options.mss, options.window_scale, options.sack_permitted, options.timestamps is not None
            )
        if framer is not None and forward and segment.length:
            payload = packet.data[segment.payload : segment.payload + segment.length]
            try:
                framer.feed(segment.seq + bool(segment.flags & TH_SYN), payload, segment.length, packet.number)
            except ValueError as error:
                raise ValueError(f"{capture.name}: {error}") from None
        sack = (*options.sack, (0, 0), (0, 0))[:2]
        chunk.append(
            (
                packet.time,
                segment.seq,
                segment.ack,
                segment.length,
                *(options.timestamps or (0, 0)),
                (sack[0][0], sack[1][0]),
                (sack[0][1], sack[1][1]),
                segment.window,
                segment.ip_id,
                segment.flags,
                forward,
                options.timestamps is not None,
                min(len(options.sack), 2),
            )
        )
        if len(chunk) == _CHUNK:
            filled = _store(rows, filled, chunk, capture.name)
            chunk.clear()
        if filled + len(chunk) == MAX_SEGMENTS:
            break
    filled = _store(rows, filled, chunk, capture.name)
    rows = rows[:filled]
    if np.any(np.diff(rows["time"]) < 0):
        # Several queues of a device may deliver slightly out of order.
        rows = rows[np.argsort(rows["time"], kind="stable")]
    return _trace(capture.name, rows, shakes[True], shakes[False], filled < conversation.segments)


def _store(rows: NDArray[np.void], filled: int, chunk: list[tuple[object, ...]], name: str) -> int:
    if filled + len(chunk) > rows.size:
        raise ValueError(f"{name}: changed while it was read")
    rows[filled : filled + len(chunk)] = chunk
    return filled + len(chunk)


def _trace(name: str, rows: NDArray[np.void], sender: Handshake, receiver: Handshake, shortened: bool) -> Trace:
    forward = rows["forward"] & (rows["flags"] & TH_RST == 0)
    backward = ~rows["forward"] & (rows["flags"] & TH_ACK != 0) & (rows["flags"] & TH_RST == 0)
    sent = rows[forward]
    # A SYN takes one sequence number itself.
    begin = sent["seq"] + (sent["flags"] & TH_SYN != 0)
    seq = unwrapped(begin)
    syn = (sent["flags"] & TH_SYN != 0).nonzero()[0]
    length = sent["length"].astype(np.int64)
    first = int(syn[0]) if syn.size else int((length > 0).argmax())
    base = int(begin[first]) if begin.size else 0
    start = seq - (seq[first] if seq.size else 0)
    carries = length > 0
    data = DataSegments(
        sent["time"][carries],
        start[carries],
        (start + length)[carries],
        sent["tsval"][carries],
        sent["tsecr"][carries],
        sent["ip_id"][carries].astype(np.int64),
        sent["flags"][carries] & TH_PUSH != 0,
        sent["stamped"][carries],
    )
    options = [shake.mss for shake in (sender, receiver) if shake.mss]
    largest = int(length.max(initial=1))
    mss = largest if largest <= _DEFAULT_MSS + _TIMESTAMPS_LENGTH else _DEFAULT_MSS
    if options and sender.time is not None and receiver.time is not None:
        mss = min(options) - _TIMESTAMPS_LENGTH * (sender.timestamps and receiver.timestamps)
    times = rows["time"]
    acks = _acknowledgements(rows[backward], data, base)
    end = _handshake_end(rows, sender.time, receiver.time)
    first_time, last_time = int(times.min()), int(times.max())
    return Trace(
        name,
        first_time,
        last_time,
        sender,
        receiver,
        end,
        data,
        acks,
        base,
        max(mss, 1),
        bool(options),
        shortened,
    )


def _handshake_end(rows: NDArray[np.void], sender: int | None, receiver: int | None) -> int | None:
    """Return when the end that opened the connection answered the SYN of the other."""
    if sender is None or receiver is None:
        return None
    answers = (rows["forward"] == (sender <= receiver)) & (rows["flags"] & TH_SYN == 0)
    answers &= rows["time"] >= max(sender, receiver)
    return int(rows["time"][answers.argmax()]) if answers.any() else None


def _acknowledgements(rows: NDArray[np.void], data: DataSegments, base: int) -> Acknowledgements:
    """Place acknowledgements in the stream, next to the highest byte that was seen before each."""
    highest = np.maximum.accumulate(np.concatenate([[0], data.end]))
    near = highest[np.searchsorted(data.time, rows["time"], side="right")]
    ack = _placed(rows["ack"], near, base)
    return Acknowledgements(
        rows["time"],
        ack,
        _placed(rows["left"], ack[:, None], base),
        _placed(rows["right"], ack[:, None], base),
        rows["blocks"].astype(np.int64),
        rows["window"].astype(np.int64),
        rows["length"].astype(np.int64),
        rows["seq"].astype(np.int64),
        rows["tsval"],
        rows["tsecr"],
        rows["stamped"],
    )


def _placed(numbers: NDArray[np.uint32], near: Integers, base: int) -> Integers:
    """Return the position in the stream, of all that have these numbers modulo 2^32, that is nearest to `near`."""
    distance = (numbers.astype(np.int64) - base - near + 2**31) % 2**32 - 2**31
    return near + distance


def unwrapped(numbers: NDArray[np.uint32]) -> Integers:
    """Return sequence numbers without the wrap at 2^32, each next to the one before it.

    Parameters
    ----------
    numbers : ndarray of uint32
        Numbers modulo 2^32, such that each is within 2^31 of the one before.

    Returns
    -------
    ndarray of int64
        The same numbers modulo 2^32; the first as it is.

    Examples
    --------
    >>> unwrapped(np.array([4294967290, 4, 4294967295, 20], np.uint32)).tolist()
    [4294967290, 4294967300, 4294967295, 4294967316]
    """
    if not numbers.size:
        return np.empty(0, np.int64)
    steps = np.diff(numbers).view(np.int32).astype(np.int64)
    return np.concatenate([[np.int64(numbers[0])], np.int64(numbers[0]) + np.cumsum(steps)])
