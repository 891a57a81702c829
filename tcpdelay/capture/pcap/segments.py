"""The segments of one connection of a capture, read in batches, with sequence numbers that do not wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from dpkt.tcp import TH_ACK, TH_RST, TH_SYN
from numpy.typing import NDArray

from tcpdelay.capture.pcap.container import CaptureFile, Packet
from tcpdelay.capture.pcap.conversations import Conversation
from tcpdelay.capture.pcap.decoding import Framer, Segment, options_of, segment_of
from tcpdelay.capture.pcap.trace import NANOSECONDS, Handshake, Integers, opened_by
from tcpdelay.units import format_time

SEGMENT = np.dtype(
    [
        ("time", np.int64),
        ("start", np.int64),
        ("position", np.int64),
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
"""The record of a segment: 69 bytes, with the first two SACK blocks.

`start` is the position in the stream at which the payload of a forward segment begins. `position` is the position that
a backward segment acknowledges.
"""
AT_A_TIME = 2**16
"""Number of segments in a batch."""
MOST_DISORDER, MOST_STRAY = 1_000_000_000, 10
"""Time by which packets may be earlier than others in front of them [ns], and how many in a row may exceed it.

Queues disorder packets by less. A clock that is set back puts all the packets behind it too early.
"""
_DEFAULT_MSS = 1448
_TIMESTAMPS_LENGTH = 12


@dataclass(frozen=True)
class Batch:
    """Consecutive segments of a connection, by ascending time.

    Attributes
    ----------
    data, acks : ndarray of SEGMENT
        The sender's segments with payload, and the acknowledgements of the other end.
    first, last : int
        Times of the first and the last segment of any kind [ns].
    handshake_end : int, optional
        Time at which the end that sent the first SYN answered the other end's SYN [ns], if captured here.
    """

    data: NDArray[np.void]
    acks: NDArray[np.void]
    first: int
    last: int
    handshake_end: int | None


class ConnectionSegments:
    """The segments of one connection in one capture.

    Parameters
    ----------
    capture : CaptureFile
        The capture.
    conversation : Conversation
        The connection, as the first pass found it.
    sender : bytes
        The end whose payload is analysed.
    framer : Framer, optional
        Finds the ends of messages in the sender's payload.
    kept : callable, optional
        Returns whether a packet of the connection counts; by default, all packets count.
    label : str
        Text appended to the name of the file, to distinguish its parts.

    Attributes
    ----------
    name : str
        The file, with the label of the part.
    base : int
        Sequence number of the first byte of the stream, modulo 2^32; known from the first batch on.
    shakes : dict
        The SYN of the sender (True) and of the other end (False).
    """

    def __init__(
        self,
        capture: CaptureFile,
        conversation: Conversation,
        sender: bytes,
        framer: Framer | None = None,
        kept: Callable[[Packet, Segment], bool] | None = None,
        label: str = "",
    ) -> None:
        self.name = capture.name + label
        self.base = 0
        self.shakes = {True: Handshake(), False: Handshake()}
        self._capture, self._conversation, self._sender = capture, conversation, sender
        self.framer, self._kept = framer, kept
        self._largest = conversation.largest[int(conversation.pair[1] == sender)]
        self._placed: int | None = None
        self._newest = np.uint32(0)
        self._highest = 0

    @property
    def mss(self) -> tuple[int, bool]:
        """Largest payload of a packet on the wire [bytes], and whether it is from the SYNs; else, the largest seen."""
        sender, receiver = self.shakes[True], self.shakes[False]
        options = [shake.mss for shake in (sender, receiver) if shake.mss]
        mss = self._largest if self._largest <= _DEFAULT_MSS + _TIMESTAMPS_LENGTH else _DEFAULT_MSS
        if options and sender.time is not None and receiver.time is not None:
            mss = min(options) - _TIMESTAMPS_LENGTH * (sender.timestamps and receiver.timestamps)
        return max(mss, 1), bool(options)

    def batches(self) -> Iterator[Batch]:
        """Read the capture and yield its segments, `AT_A_TIME` at a time.

        Raises
        ------
        ValueError
            If the framer cannot read the payload, or the times run backwards.
        """
        source = self._rows()
        while (rows := np.fromiter(islice(source, AT_A_TIME), SEGMENT)).size:
            yield self._batch(rows)

    def _rows(self) -> Iterator[tuple[object, ...]]:
        conversation, sender, framer, kept = self._conversation, self._sender, self.framer, self._kept
        pair = conversation.pair
        latest = behind = 0
        for packet in self._capture:
            if packet.number < conversation.first_packet:
                continue
            if packet.number > conversation.last_packet:
                return
            segment = segment_of(packet.link, packet.data, packet.wire_length)
            if segment is None or (segment.source != pair[0] and segment.source != pair[1]):
                continue
            if segment.target != pair[0] and segment.target != pair[1]:
                continue
            if kept is not None and not kept(packet, segment):
                continue
            behind = behind + 1 if packet.time < latest - MOST_DISORDER else 0
            if behind > MOST_STRAY:
                back = format_time((latest - packet.time) / NANOSECONDS)
                raise ValueError(
                    f"{self.name}: packet {packet.number} and the {MOST_STRAY} before it were captured {back} before "
                    "others in front of them: the clock was set back, or captures were joined; cut the file there, or "
                    "sort it with reordercap"
                )
            latest = max(latest, packet.time)
            forward = segment.source == sender
            options = options_of(segment.options)
            if segment.flags & TH_SYN and self.shakes[forward].time is None:
                self.shakes[forward] = Handshake(
                    packet.time,
                    options.mss,
                    options.window_scale,
                    options.sack_permitted,
                    options.timestamps is not None,
                    bool(segment.flags & TH_ACK),
                )
            if framer is not None and forward and segment.length:
                payload = packet.data[segment.payload : segment.payload + segment.length]
                try:
                    framer.feed(segment.seq + bool(segment.flags & TH_SYN), payload, segment.length, packet.number)
                except ValueError as error:
                    raise ValueError(f"{self.name}: {error}") from None
            sack = (*options.sack, (0, 0), (0, 0))[:2]
            yield (
                packet.time,
                0,
                0,
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

    def _batch(self, rows: NDArray[np.void]) -> Batch:
        """Place segments in the stream, after the segments of the previous batch."""
        times = rows["time"]
        if np.any(np.diff(times) < 0):
            # Several queues of a device may deliver slightly out of order.
            rows = rows[np.argsort(times, kind="stable")]
            times = rows["time"]
        usable = rows["flags"] & TH_RST == 0
        data = self._place_data(rows[rows["forward"] & usable])
        acks = rows[~rows["forward"] & usable & (rows["flags"] & TH_ACK != 0)]
        self._place_acknowledgements(acks, data)
        return Batch(data, acks, int(times[0]), int(times[-1]), self._handshake_end(rows))

    def _place_data(self, sent: NDArray[np.void]) -> NDArray[np.void]:
        """Return the segments with payload, with `start` filled in."""
        syn = sent["flags"] & TH_SYN != 0
        # A SYN takes one sequence number.
        begin = sent["seq"] + syn
        carries = sent["length"] > 0
        if begin.size:
            if self._placed is None:
                opening = syn.nonzero()[0]
                first = int(opening[0]) if opening.size else int(carries.argmax())
                numbers = unwrapped(begin)
                sent["start"] = numbers - numbers[first]
                self.base = int(begin[first])
            else:
                numbers = unwrapped(np.concatenate([[self._newest], begin]))
                sent["start"] = self._placed + numbers[1:] - numbers[0]
            self._placed, self._newest = int(sent["start"][-1]), begin[-1]
        return sent[carries]

    def _place_acknowledgements(self, acks: NDArray[np.void], data: NDArray[np.void]) -> None:
        """Fill in `position`: the position nearest to the highest byte seen before the acknowledgement."""
        if self._placed is None and acks.size:
            # No segment of the sender has been captured yet.
            self.base, self._placed, self._newest = int(acks["ack"][0]), 0, acks["ack"][0]
        highest = np.maximum.accumulate(np.concatenate([[self._highest], data["start"] + data["length"]]))
        near = highest[np.searchsorted(data["time"], acks["time"], side="right")]
        acks["position"] = placed(acks["ack"], near, self.base)
        self._highest = int(highest[-1])

    def _handshake_end(self, rows: NDArray[np.void]) -> int | None:
        sender, receiver = self.shakes[True].time, self.shakes[False].time
        if sender is None or receiver is None:
            return None
        opened_by_sender = opened_by(self.shakes[True], self.shakes[False])
        answers = (rows["forward"] == opened_by_sender) & (rows["flags"] & TH_SYN == 0)
        answers &= rows["time"] >= max(sender, receiver)
        return int(rows["time"][answers.argmax()]) if answers.any() else None


def placed(numbers: NDArray[np.uint32], near: Integers, base: int) -> Integers:
    """Return the position nearest to `near` among all positions that equal `numbers` modulo 2^32.

    Examples
    --------
    >>> placed(np.array([5, 4294967295], np.uint32), np.array([2**32, 2**32]), base=0).tolist()
    [4294967301, 4294967295]
    """
    distance = (numbers.astype(np.int64) - base - near + 2**31) % 2**32 - 2**31
    return near + distance


def unwrapped(numbers: NDArray[np.uint32]) -> Integers:
    """Return sequence numbers without the wrap at 2^32: each is the nearest possible to its predecessor.

    Parameters
    ----------
    numbers : ndarray of uint32
        Numbers modulo 2^32; each is within 2^31 of its predecessor.

    Returns
    -------
    ndarray of int64
        Numbers that equal the given ones modulo 2^32; the first is unchanged.

    Examples
    --------
    >>> unwrapped(np.array([4294967290, 4, 4294967295, 20], np.uint32)).tolist()
    [4294967290, 4294967300, 4294967295, 4294967316]
    """
    if not numbers.size:
        return np.empty(0, np.int64)
    steps = np.diff(numbers).view(np.int32).astype(np.int64)
    return np.concatenate([[np.int64(numbers[0])], np.int64(numbers[0]) + np.cumsum(steps)])
