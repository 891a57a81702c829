"""The segments of one connection, read in batches, and in stretches with a margin before and behind each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from dpkt.tcp import TH_ACK, TH_PUSH, TH_RST, TH_SYN
from numpy.typing import NDArray

from tcpdelay.capture.pcap.container import CaptureFile, Packet
from tcpdelay.capture.pcap.decoding import Conversation, Framer, Segment, options_of, segment_of
from tcpdelay.capture.pcap.trace import (
    NANOSECONDS,
    Acknowledgements,
    DataSegments,
    Flags,
    Handshake,
    Integers,
    Span,
    Trace,
    opened_by,
)
from tcpdelay.units import format_time

# The segments of one connection of a capture, read in batches, with sequence numbers that do not wrap.

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
    """Consecutive segments of a connection, by ascending time."""

    # data, acks: The sender's segments with payload, and the acknowledgements of the other end.
    data: NDArray[np.void]
    acks: NDArray[np.void]
    # first, last: Times of the first and the last segment of any kind [ns].
    first: int
    last: int
    # Time at which the end that sent the first SYN answered the other end's SYN [ns], if captured here.
    handshake_end: int | None


class ConnectionSegments:
    """The segments of one connection in one capture, by the packets that are `kept`."""

    def __init__(
        self,
        capture: CaptureFile,
        conversation: Conversation,
        sender: bytes,  # The end whose payload is analysed
        framer: Framer | None = None,  # Finds the ends of messages in the sender's payload
        kept: Callable[[Packet, Segment], bool] | None = None,
        label: str = "",  # Distinguishes parts of the file
    ) -> None:
        self.name = capture.name + label
        self.base = 0  # Sequence number of the first byte of the stream, modulo 2^32; known from the first batch on
        self.shakes = {True: Handshake(), False: Handshake()}  # The SYN of the sender, and of the other end
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
        options = [shake.options.mss for shake in (sender, receiver) if shake.options.mss]
        mss = self._largest if self._largest <= _DEFAULT_MSS + _TIMESTAMPS_LENGTH else _DEFAULT_MSS
        if options and sender.time is not None and receiver.time is not None:
            stamped = sender.options.timestamps is not None and receiver.options.timestamps is not None
            mss = min(options) - _TIMESTAMPS_LENGTH * stamped
        return max(mss, 1), bool(options)

    def batches(self) -> Iterator[Batch]:
        """Read the capture and yield its segments, `AT_A_TIME` at a time."""
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
                self.shakes[forward] = Handshake(packet.time, options, bool(segment.flags & TH_ACK))
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
    """Return the position nearest to `near` among all positions that equal `numbers` modulo 2^32."""
    distance = (numbers.astype(np.int64) - base - near + 2**31) % 2**32 - 2**31
    return near + distance


def unwrapped(numbers: NDArray[np.uint32]) -> Integers:
    """Return sequence numbers without the wrap at 2^32: each is the nearest possible to its predecessor."""
    if not numbers.size:
        return np.empty(0, np.int64)
    steps = np.diff(numbers).view(np.int32).astype(np.int64)
    return np.concatenate([[np.int64(numbers[0])], np.int64(numbers[0]) + np.cumsum(steps)])


# Long connections, read in stretches of a fixed number of segments, with a margin before and behind each stretch.
#
# The reader counts segments that occur twice in the file, and can leave out the second copies.

_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that spreads numbers over 64 bits; a sort by the product puts equal segments side by side."""
_COMPARED = ("seq", "ack", "length", "tsval", "tsecr", "left", "right", "window", "ip_id", "flags")
_COPIED_SHARE = 0.1
"""Share of copies among the segments above which packets count as captured twice."""
_FEWEST_CERTAIN_COPIES = 3
"""Number of copies below which the network may have duplicated packets."""
_UNCERTAIN_COPIED_SHARE = 1 / 3
"""The same share, if a copy might be a retransmission or a repeated acknowledgement."""
_FEWEST_UNCERTAIN_COPIES = 10
"""Number of such copies below which their share may be chance."""
_LONGEST_CERTAIN_LAG = 1_000_000_000
"""Longest time between the copies of a packet on a path [ns]; a later segment may be a retransmission."""
FEWEST_SEGMENTS = 1000
"""Number of segments from which a batch is also judged alone, so that copies that begin late are found."""
_LAG_QUANTILE = 0.9
"""Quantile of the distances of copies that counts as their distance; the rest may be pairs of different packets."""
LENGTH = 2**18
"""Number of segments, of both directions together, that count in one stretch."""
MARGIN = 2**16
"""Number of segments before and behind the stretch that are also in memory."""
_UNBOUNDED = Span()


class _Direction:
    """Copies among the segments of one direction."""

    def __init__(self) -> None:
        self.segments = self.sure = self.likely = 0
        self.lags: Integers = np.empty(0, np.int64)
        self._many_at_once = False

    def add(self, rows: NDArray[np.void], numbered: Flags) -> None:
        """Count further rows; `numbered` marks the rows that can be equal only if they are copies."""
        sent = rows["seq"].astype(np.uint64) << np.uint64(32) | rows["tsval"]
        answered = rows["ack"].astype(np.uint64) << np.uint64(16) | rows["ip_id"]
        # The rows are by ascending time. A stable sort keeps that order among equal rows.
        order = np.argsort((sent * _HASH_MULTIPLIER ^ answered) * _HASH_MULTIPLIER, kind="stable")
        same = np.ones(max(rows.size - 1, 0), np.bool_)
        for name in _COMPARED:
            column = rows[name][order]
            equal = column[1:] == column[:-1]
            same &= equal if equal.ndim == 1 else equal.all(axis=1)
        copies = order[1:][same]
        lags = rows["time"][copies] - rows["time"][order[:-1][same]]
        if copies.size:
            self.lags = lags
        certain = numbered[copies] & (lags <= _LONGEST_CERTAIN_LAG)
        sure, likely = int(np.count_nonzero(certain)), int(np.count_nonzero(~certain))
        self.segments, self.sure, self.likely = self.segments + rows.size, self.sure + sure, self.likely + likely
        self._many_at_once |= rows.size >= FEWEST_SEGMENTS and _are_many(rows.size, sure, likely)

    @property
    def many(self) -> bool:
        """Whether the number of copies, in all batches or in one batch, shows that packets were captured twice."""
        return self._many_at_once or _are_many(self.segments, self.sure, self.likely)

    @property
    def lag(self) -> int:
        """Delay of a copy after its original [ns]: the 90 % quantile of the last copies."""
        return int(np.quantile(self.lags, _LAG_QUANTILE)) if self.lags.size else 0


def _are_many(segments: int, sure: int, likely: int) -> bool:
    """Return whether the number of copies among the segments shows that packets were captured twice."""
    uncertain = sure + likely > _UNCERTAIN_COPIED_SHARE * segments and likely >= _FEWEST_UNCERTAIN_COPIES
    return (sure > _COPIED_SHARE * segments and sure >= _FEWEST_CERTAIN_COPIES) or uncertain


class Copies:
    """Counts the segments of a connection that equal an earlier segment in all numbers of TCP and IPv4.

    A retransmission has another identification or a later timestamp. If a stack sends neither, the share of equal
    segments decides: no working connection retransmits half of its segments.
    """

    def __init__(self) -> None:
        self._data, self._acks = _Direction(), _Direction()

    def add(self, data: NDArray[np.void], acks: NDArray[np.void]) -> None:
        """Count further rows of `segments.SEGMENT`, by ascending time."""
        self._data.add(data, data["stamped"] | (data["ip_id"] != 0))
        # Equal acknowledgements are normal within a tick of the timestamps; without timestamps and identification,
        # at any time.
        distinct = acks[acks["stamped"] | (acks["ip_id"] != 0)]
        self._acks.add(distinct, distinct["ip_id"] != 0)

    @property
    def many(self) -> bool:
        """Whether the number of copies shows that packets were captured twice."""
        return self._data.many or self._acks.many

    @property
    def count(self) -> int:
        """Number of copies in both directions."""
        return sum(direction.sure + direction.likely for direction in (self._data, self._acks))

    @property
    def lags(self) -> tuple[int, int]:
        """Delay of a copy after its original, of data and of acknowledgements [ns]."""
        return self._data.lag, self._acks.lag


class FirstOnly:
    """Distinguishes the first copy of a packet from further copies within a time [ns]."""

    def __init__(self, within: int) -> None:
        self._within = within
        self._seen: OrderedDict[tuple[object, ...], int] = OrderedDict()

    def __call__(self, packet: Packet, segment: Segment) -> bool:
        """Return whether a packet is the first copy."""
        seen, oldest = self._seen, packet.time - self._within
        while seen and next(iter(seen.values())) < oldest:
            seen.popitem(last=False)
        # The last field, the offset of the payload, depends on the link layer.
        key = segment[:-1]
        if key in seen:
            return False
        seen[key] = packet.time
        return True


class _Cut(NamedTuple):
    """The end of a stretch: its segments are before `time`, and reach up to byte `position` of the stream."""

    time: int
    position: int


class StretchSource:
    """One capture of a connection, cut into stretches."""

    def __init__(self, segments: ConnectionSegments) -> None:
        self.name = segments.name
        self._segments = segments
        self._batches = segments.batches()
        self._data = self._acks = np.zeros(0, SEGMENT)
        self._reached: int | None = None
        self._span = Span(end=_UNBOUNDED.begin, high=_UNBOUNDED.low)
        self._handshake_end: int | None = None
        self._ended = False
        # Times of the first segment and of the last segment read so far [ns].
        self.first, self.last = _UNBOUNDED.end, _UNBOUNDED.begin
        self.misplaced = 0  # Segments left out because the stretch of their time had ended when they were read
        self.copies = Copies()

    @property
    def base(self) -> int:
        """Sequence number of the first byte of the stream, modulo 2^32."""
        return self._segments.base

    @property
    def framer(self) -> Framer | None:
        """The framer that reads the payload."""
        return self._segments.framer

    @property
    def in_memory(self) -> int:
        """Number of segments in memory, of both directions."""
        return self._data.size + self._acks.size

    def begin(self) -> None:
        """Read the first segments, unless they have been read."""
        if self.first == _UNBOUNDED.end:
            self._read()

    def beginning(self) -> Trace:
        """Return the first segments as one stretch; only before `stretch` is called."""
        self.begin()
        return self._trace(_UNBOUNDED)

    def cut(self) -> _Cut | None:
        """Continue to read, and return the end of the next stretch; None if it holds all remaining segments."""
        begin = self._span.end
        while not self._ended:
            remaining = sum(np.count_nonzero(rows["time"] >= begin) for rows in (self._data, self._acks))
            if remaining >= LENGTH + MARGIN:
                break
            self._read()
        times = self._times()
        first = int(np.searchsorted(times, begin))
        if times.size - first < LENGTH + MARGIN:
            return None
        # All segments of one time belong to one stretch.
        time = int(times[first + LENGTH])
        if time == times[first]:
            time += 1
        ends = (self._data["start"] + self._data["length"])[self._data["time"] < time]
        return _Cut(time, int(ends.max(initial=self._span.high)))

    def _times(self) -> Integers:
        return np.sort(np.concatenate([self._data["time"], self._acks["time"]]))

    def _read(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            return
        self.first, self.last = min(self.first, batch.first), max(self.last, batch.last)
        if self._handshake_end is None:
            self._handshake_end = batch.handshake_end
        self.copies.add(batch.data, batch.acks)
        self._data, self._acks = self._joined(self._data, batch.data), self._joined(self._acks, batch.acks)

    def _joined(self, rows: NDArray[np.void], new: NDArray[np.void]) -> NDArray[np.void]:
        timely = new["time"] >= self._span.end
        if not timely.all():
            self.misplaced += int(np.count_nonzero(~timely))
            new = new[timely]
        joined = np.concatenate([rows, new])
        if rows.size and new.size and new["time"][0] < rows["time"][-1]:
            joined = joined[np.argsort(joined["time"], kind="stable")]
        return joined

    def stretch(self, cut: _Cut | None, limit: int) -> Trace:
        """Return the next stretch, up to byte `limit` of the stream, and forget the segments before its margin."""
        if cut is not None and cut.position == limit:
            end = cut.time
        else:
            beyond = self._data["start"] + self._data["length"] > limit
            end = int(self._data["time"][beyond.argmax()]) if beyond.any() else _UNBOUNDED.end
        span = Span(self._span.end, max(end, self._span.end), self._span.high, limit)
        trace = self._trace(span)
        self._span = span
        self._forget()
        return replace(trace, passed=self._reached)

    def _forget(self) -> None:
        times = self._times()
        first = max(int(np.searchsorted(times, self._span.end)) - MARGIN, 0)
        if not first:
            return
        keep_from = times[first]
        gone = self._data[self._data["time"] < keep_from]
        if gone.size:
            highest = int((gone["start"] + gone["length"]).max())
            self._reached = highest if self._reached is None else max(highest, self._reached)
        self._data = self._data[self._data["time"] >= keep_from]
        self._acks = self._acks[self._acks["time"] >= keep_from]

    def _trace(self, span: Span) -> Trace:
        data, acks, segments = self._data, self._acks, self._segments
        mss, known = segments.mss
        position = acks["position"].copy()
        of_data = {name: data[name].copy() for name in ("time", "start", "tsval", "tsecr", "stamped")}
        of_acks = {name: acks[name].copy() for name in ("time", "tsval", "tsecr", "stamped")}
        of_acks |= {name: acks[name].astype(np.int64) for name in ("blocks", "window", "length", "seq")}
        of_acks |= {side: placed(acks[side], position[:, None], segments.base) for side in ("left", "right")}
        return Trace(
            segments.name,
            self.first,
            segments.shakes[True],
            segments.shakes[False],
            self._handshake_end,
            DataSegments(
                **of_data,
                end=data["start"] + data["length"],
                ip_id=data["ip_id"].astype(np.int64),
                push=data["flags"] & TH_PUSH != 0,
                reached=self._reached,
            ),
            Acknowledgements(**of_acks, ack=position),
            segments.base,
            mss,
            known,
            span,
        )


def stretches(sources: Sequence[StretchSource]) -> Iterator[tuple[Trace, ...]]:
    """Yield one or two captures of a connection, stretch by stretch; all end at the same byte of the stream."""
    while True:
        cuts = [source.cut() for source in sources]
        shifts = [shift_between(source.base, sources[0].base) for source in sources]
        limits = [cut.position + shift for cut, shift in zip(cuts, shifts, strict=True) if cut is not None]
        limit = min(limits, default=_UNBOUNDED.high)
        yield tuple(
            source.stretch(cut, limit - shift) for source, cut, shift in zip(sources, cuts, shifts, strict=True)
        )
        if not limits:
            return


def shift_between(base: int, other: int) -> int:
    """Return the difference between positions relative to sequence number `other` and positions relative to `base`."""
    return (base - other + 2**31) % 2**32 - 2**31
