"""The messages of the application: their size and interval, and the times at which they were written, sent and read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.clocks import ClockFit, LowerHull
from tcpdelay.capture.pcap.connection_analysis import MOST_TRACED, MOST_VALUES, DelayKind, Delays, Table
from tcpdelay.capture.pcap.round_trips import Side
from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import NANOSECONDS, NEVER, Coverage, DataSegments, Integers, Span, Trace

MAX_MESSAGES_PER_SEGMENT = 2000
"""Largest credible number of messages in a segment; a larger number means damaged sequence numbers or a wrong size."""
_AT_A_TIME = 2**18
_FEWEST_MESSAGES = 20
"""Smallest number of messages from which a size or a schedule is estimated."""
_CANDIDATE_SHARE = 0.02
"""Smallest share of the writes with a size that can be the size of all messages."""
_MULTIPLES_SHARE = 0.95
"""Smallest share of the writes whose distances are multiples of the size."""
_LARGEST_LAG = 0.25
"""Largest lower quartile of the lag of messages behind the schedule, in intervals."""


@dataclass(frozen=True)
class Schedule:
    """A source that writes at a fixed interval."""

    first: float  # Time at which the first message in the capture was written [ns]
    interval: float  # Time between two messages [ns]

    def writes(self, first: int, count: int) -> NDArray[np.float64]:
        """Return the times at which `count` messages from number `first` on were written [ns after message 0]."""
        return np.asarray(self.interval * np.arange(first, first + count), np.float64)


def marked_ends(data: DataSegments) -> Integers:
    """Return the positions at which the writes of the application ended, marked by PSH (RFC 9293, 3.9.1)."""
    return np.unique(data.end[data.push])


def fixed_size(ends: Integers) -> int | None:
    """Return the size of all messages, if it is fixed.

    Writes that waited leave together, so the distance of two marks is a multiple of the size. The size is the smallest
    frequent distance that divides nearly all distances.
    """
    distances = np.diff(ends)
    if distances.size < _FEWEST_MESSAGES:
        return None
    values, counts = np.unique(distances, return_counts=True)
    for size in values[counts >= _CANDIDATE_SHARE * distances.size].tolist():
        if counts[values % size == 0].sum() >= _MULTIPLES_SHARE * distances.size:
            return int(size)
    return None


class MessageFinder:
    """Finds the messages of a stream, stretch by stretch.

    Headers in the payload show the ends of messages, if it is `framed`. Else all messages have one size, if the size is
    known or is found in the first stretch with enough writes. Else each write of the application is a message.
    """

    def __init__(self, message_size: int | None, framed: bool) -> None:
        self.count = self.bytes = 0
        self._known, self._framed = message_size, framed
        self._size = message_size
        self._anchor: int | None = None
        self._origin: int | None = None
        self._decided = framed
        self._newest: int | None = None
        self._sizes: tuple[int, int] | None = None
        self._distances = self._multiples = 0

    @property
    def fixed(self) -> bool:
        """Whether all messages have one size."""
        if self._framed:
            return self._sizes is not None and self._sizes[0] == self._sizes[1]
        return self._size is not None and not self.size_changes

    @property
    def size_changes(self) -> bool:
        """Whether the distances of later writes are not multiples of the size that was found first."""
        found = self._size is not None and self._known is None and not self._framed
        return found and self._distances > 0 and self._multiples < _MULTIPLES_SHARE * self._distances

    @property
    def mean_size(self) -> float:
        """Mean size [bytes]; nan without messages."""
        return self.bytes / self.count if self.count else float("nan")

    def ends(self, data: DataSegments, span: Span, framed: Integers) -> Iterator[tuple[Integers, Integers]]:
        """Yield in batches the position behind the last byte and the size of each message that counts."""
        if self._origin is None:
            self._origin = self._newest = int(data.start.min())
        low, high = max(span.low, self._origin), min(span.high, int(data.end.max()))
        if self._framed:
            yield from self._taken(framed[(framed > self._origin) & (framed <= high)])
            return
        marks = marked_ends(data)
        if not self._decided:
            self._decide(marks, data)
        marks = marks[(marks > low) & (marks <= high)]
        if self._size is None:
            yield from self._taken(marks)
            return
        distances = np.diff(marks)
        self._distances += distances.size
        self._multiples += int(np.count_nonzero(distances % self._size == 0))
        if (high - low) // self._size > MAX_MESSAGES_PER_SEGMENT * data.size:
            raise ValueError(
                f"messages of {self._size} bytes are too small for {high - low} bytes in {data.size} segments"
            )
        assert self._anchor is not None
        size = self._size
        begin = max(self._origin + size - 1, low) + 1
        for first in range(begin + (self._anchor - begin) % size, high + 1, size * _AT_A_TIME):
            yield from self._taken(np.arange(first, min(first + size * _AT_A_TIME, high + 1), size))

    def _decide(self, marks: Integers, data: DataSegments) -> None:
        assert self._origin is not None
        self._decided = self._known is not None or marks.size > _FEWEST_MESSAGES
        if self._size is None:
            self._size = fixed_size(marks)
        if self._size is None:
            return
        if self._known is not None and not self._origin:
            self._anchor = 0
            return
        remainders, counts = np.unique(marks % self._size, return_counts=True)
        self._anchor = int(remainders[counts.argmax()]) if counts.size else self._origin

    def _taken(self, ends: Integers) -> Iterator[tuple[Integers, Integers]]:
        """Count ends of messages and their sizes, and yield both unless there are none."""
        if not ends.size:
            return
        assert self._newest is not None
        if self._size is not None and not self._framed:
            sizes = np.full(ends.size, self._size)
        else:
            sizes = np.diff(ends, prepend=self._newest)
            self._newest = int(ends[-1])
            least, most = self._sizes or (int(sizes[0]), int(sizes[0]))
            self._sizes = min(least, int(sizes.min())), max(most, int(sizes.max()))
        self.bytes += int(sizes.sum())
        self.count += ends.size
        yield ends, sizes


class ScheduleFinder:
    """Finds the schedule of a source from the transmissions of its messages [ns], which are added in batches."""

    def __init__(self) -> None:
        self.count = 0
        self.span = (NEVER, 0)
        self.first = 0
        self._hull = LowerHull()
        self._index, self._since = np.empty(0), np.empty(0)
        self._step = 1

    def add(self, times: Integers) -> None:
        """Add the times at which messages were first sent or arrived [ns], one per write."""
        if not times.size:
            return
        if not self.count:
            self.first = int(times[0])
        index = np.arange(self.count, self.count + times.size, dtype=np.float64)
        since = (times - self.first).astype(np.float64)
        self._hull.add(index, since)
        kept = index % self._step == 0
        self._index, self._since = np.append(self._index, index[kept]), np.append(self._since, since[kept])
        while self._index.size > MOST_VALUES:
            self._index, self._since, self._step = self._index[::2], self._since[::2], 2 * self._step
        self.count += times.size
        self.span = min(self.span[0], int(times.min())), max(self.span[1], int(times.max()))

    def schedule(self, earlier: int = 0) -> Schedule | None:
        """Return the schedule; None if the messages follow no fixed interval, or are too few.

        A message is never sent before it is written. The times of the writes are therefore the line below all
        transmissions that is closest to them.
        """
        if self.count < _FEWEST_MESSAGES:
            return None
        height, interval = self._hull.line()
        if interval <= 0:
            return None
        lag = self._since - (height + interval * self._index)
        if np.quantile(lag, 0.25) > _LARGEST_LAG * interval:
            return None
        return Schedule(float(self.first - earlier) + height, interval)


class MeasuredDelays(NamedTuple):
    """The delays of the messages."""

    kind: DelayKind | None  # The two events between which delays were measured; None without delays
    how: str  # A description of the measurement
    delays: Delays
    unfinished: int  # Number of messages whose delivery is not in the capture


class Deliveries:
    """The delivery of a connection's messages, stretch by stretch; the first capture shows when messages were sent."""

    def __init__(self, sides: tuple[Side, ...], messages: MessageFinder) -> None:
        self._sides, self._messages = sides, messages
        self._transmissions = ScheduleFinder()
        self._times = Table()
        self._written: list[Integers] = []

    def take(
        self, framed: Integers, source: Trace, sent: Coverage | None, receiver: Trace | None, arrived: Coverage | None
    ) -> None:
        """Find the messages of a stretch."""
        if sent is None:
            return
        complete = None if arrived is None else arrived.complete
        for ends, sizes in self._messages.ends(source.data, source.span, framed):
            transmitted = sent.time[sent.holding(ends)]
            if receiver is None:
                read = np.append(source.acks.time, NEVER)[source.acks.first_covering(ends)]
            elif arrived is None or complete is None:
                read = np.full(ends.size, NEVER)
            else:
                shifted = ends - shift_between(receiver.base, source.base)
                read = np.where(arrived.within(shifted), complete[arrived.holding(shifted)], NEVER)
            self._transmissions.add(transmitted)
            self._times.add(transmitted, read)
            self._keep(transmitted, sizes)

    def _keep(self, transmitted: Integers, sizes: Integers) -> None:
        """Keep times and sizes of messages, unless there are more than a trace holds."""
        if self._transmissions.count > MOST_TRACED:
            self._written = []
        else:
            self._written.append(np.array([transmitted, sizes]))

    def messages(self, schedule: Schedule | None) -> tuple[NDArray[np.float64], Integers]:
        """Return when each message was written, since the first [s], and its size [bytes].

        Without a schedule, a message is taken to be written when its last byte was first sent or arrived. Messages
        whose transmission is not in the capture are left out. Both arrays are empty if there are more than
        `MOST_TRACED` messages.
        """
        transmitted, sizes = np.concatenate([np.empty((2, 0), np.int64), *self._written], axis=1)
        known = transmitted < NEVER // 2
        times = np.maximum.accumulate(transmitted[known]).astype(np.float64)
        if schedule is not None:
            times = schedule.writes(0, transmitted.size)[known]
        since = (times - times[:1]) / NANOSECONDS
        return since, sizes[known]

    def schedule(self, one_way: float) -> Schedule | None:
        """Return the schedule of the writes, by the sender's clock; None if there is no schedule."""
        if self._transmissions.span[1] >= NEVER // 2:
            return None
        return self._transmissions.schedule(self._way_there(one_way))

    def _way_there(self, one_way: float) -> int:
        """Return the time from the transmission of a message to its time in the first capture [ns]."""
        return 0 if "sender" in self._sides else _nanoseconds(one_way)

    def mean_interval(self) -> float:
        """Return the mean time between two messages [s]; NaN if unknown."""
        (first, last), count = self._transmissions.span, self._transmissions.count
        return float(last - first) / (count - 1) / NANOSECONDS if count > 1 and last > first else math.nan

    def delays(self, schedule: Schedule | None, one_way: float, clocks: ClockFit | None) -> MeasuredDelays:
        """Return the delays."""
        earlier = self._way_there(one_way)
        origin = self._transmissions.first - earlier
        known = schedule is not None or "sender" in self._sides
        delays, unfinished, number, any_finished = Delays(), 0, 0, False
        for transmitted, read in self._times.blocks():
            finished = (read != NEVER) & (transmitted < NEVER // 2)
            unfinished += int(np.count_nonzero(read == NEVER))
            any_finished |= bool(finished.any())
            if known:
                came = self._by_sender(read[finished], one_way, clocks)
                if schedule is None:
                    since = (came - transmitted[finished]).astype(np.float64)
                else:
                    written = schedule.first - origin + schedule.writes(number, transmitted.size)
                    since = (came - origin) - written[finished]
                delays.add(np.maximum(since / NANOSECONDS, 0.0))
            number += transmitted.size
        if not any_finished:
            return MeasuredDelays(None, "no message was delivered within the capture", delays, unfinished)
        if not known:
            how = "a capture at the receiver does not show when messages of no fixed interval were sent"
            return MeasuredDelays(None, how, delays, unfinished)
        ends_at = {
            ("sender", "receiver"): "to the arrival of its last byte and all earlier bytes, by both captures",
            ("sender",): "to its acknowledgement at the sender, less half the smallest round-trip time",
            ("receiver",): "to the arrival of its last byte and all earlier bytes; half the smallest round-trip time "
            "is assumed for the way from the sender",
        }[self._sides]
        if schedule is None:
            how = f"from the first transmission of a message's last byte {ends_at}"
            return MeasuredDelays("transmission to read", how, delays, unfinished)
        how = f"from a message's write, as the fixed interval places it, {ends_at}"
        return MeasuredDelays("write to read", how, delays, unfinished)

    def close(self) -> None:
        """Remove the temporary files."""
        self._times.close()

    def _by_sender(self, read: NDArray[np.int64], one_way: float, clocks: ClockFit | None) -> Integers:
        """Return the times at which messages were read, by the sender's clock [ns]."""
        if "receiver" not in self._sides:
            return read - _nanoseconds(one_way)
        return read if clocks is None else clocks.to_sender(read)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS) if math.isfinite(seconds) else 0
