"""The measurement of a connection, stretch by stretch: its messages, round-trip times, losses, windows and delays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.connection_analysis import (
    MOST_TRACED,
    MOST_VALUES,
    WINDOW,
    DelayKind,
    Delays,
    RoundTripKind,
    RoundTripSeries,
    Series,
    Table,
)
from tcpdelay.capture.pcap.round_trips import (
    CARRIED_SHARE,
    FEWEST_PROMPT,
    AcknowledgementCounts,
    ClockFit,
    ClockSamples,
    LowerHull,
    RoundTrips,
    Side,
    handshake_times,
    match_acknowledgements,
    match_data,
    receiver_round_trips,
    sender_round_trips,
)
from tcpdelay.capture.pcap.stretches import shift_between
from tcpdelay.capture.pcap.trace import (
    BEGINNING,
    NANOSECONDS,
    NEVER,
    Coverage,
    DataSegments,
    Flags,
    Integers,
    Span,
    Trace,
    at_receiver,
    at_sender,
    coverage,
    duplicate_acknowledgements,
)

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
        # PSH marks the ends of the writes of the application (RFC 9293, 3.9.1).
        marks = np.unique(data.end[data.push])
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


TO_ACKNOWLEDGEMENT = "time from data to acknowledgement"
TO_CARRIED_ACKNOWLEDGEMENT = "smallest time from data to an acknowledgement, most of which are carried on data"
TO_ECHO = "smallest time from an acknowledgement to the data that echo its timestamp"
BY_BOTH_CAPTURES = "sum of the smallest delays of both ways, by both captures"
HANDSHAKE = "time of the handshake"


class PathRoundTrips(NamedTuple):
    """The round-trip time of the path, as one direction shows it."""

    trips: RoundTripSeries  # The samples
    base: float  # Smallest round-trip time [s]; NaN if unknown
    # The figure that is the round-trip time: the mean of the samples, or the smallest round-trip time, or an upper
    # bound of it, because all samples may contain a time for which an end waited.
    kind: RoundTripKind
    how: str  # A description of the measurement

    def better(self, other: PathRoundTrips) -> PathRoundTrips:
        """Return the more certain of two results; of two bounds, the lower bound."""
        order: list[RoundTripKind] = ["mean", "smallest", "upper bound"]

        def doubt(found: PathRoundTrips) -> tuple[bool, int, float]:
            return math.isnan(found.base), order.index(found.kind), 0.0 if found.kind == "mean" else found.base

        return other if doubt(other) < doubt(self) else self


@dataclass
class EndTotals:
    """The counts of one capture of the connection."""

    # data, acks, stamped: Numbers of segments with payload, segments of the other end, and segments with payload and
    # timestamps.
    data: int = 0
    acks: int = 0
    stamped: int = 0
    # lowest, highest: First and last byte of the stream in the capture.
    lowest: int = 2**62
    highest: int = -(2**62)
    missing: int = 0  # Number of bytes that were acknowledged but not captured
    sack: bool = False  # Whether a SACK block was seen
    # packets, repeated, spurious, filling: Numbers of packets on the wire: all packets, retransmissions, spurious
    # retransmissions, and, at the receiver, retransmissions that filled a gap.
    packets: int = 0
    repeated: int = 0
    spurious: int = 0
    filling: int = 0
    # reordered, duplicates: At the receiver, numbers of overtaken segments, and of segments without new data.
    reordered: int = 0
    duplicates: int = 0
    duplicate_acks: int = 0  # Number of duplicate ACKs
    complete: int = BEGINNING  # Time at which all bytes before the next stretch had arrived [ns]
    # Smallest time between two packets, if not 0 [ns]: the clock of the capture advances in steps of at most this.
    clock_step: int = NEVER

    def count(self, trace: Trace) -> None:
        """Add the counts that do not depend on the end of the capture."""
        data, acks, span = trace.data, trace.acks, trace.span
        during = span.during(data.time)
        self.data += int(np.count_nonzero(during))
        self.acks += int(np.count_nonzero(span.during(acks.time)))
        self.stamped += int(np.count_nonzero(during & data.stamped))
        self.lowest = int(data.start[during].min(initial=self.lowest))
        self.highest = int(data.end[during].max(initial=self.highest))
        gaps = np.diff(np.sort(np.concatenate([data.time, acks.time])))
        self.clock_step = int(gaps[gaps > 0].min(initial=self.clock_step))
        self.sack |= bool((acks.blocks > 0).any())
        self.packets += wire_packets(trace, during)
        self.duplicate_acks += duplicate_acknowledgements(trace)

    def cover(self, trace: Trace) -> Coverage | None:
        """Return the stretch in pieces; None if it holds no data."""
        if not trace.data.size:
            return None
        pieces = coverage(trace.data, trace.acks, trace.name, self.complete)
        self.missing += pieces.missing(trace.span)
        if trace.passed is not None:
            complete = pieces.complete_at(trace.passed)
            # Bytes that the capture lacks have arrived nevertheless.
            self.complete = complete if complete < NEVER else BEGINNING
        return pieces


def wire_packets(trace: Trace, which: Flags) -> int:
    """Return the number of packets on the wire in the segments that a mask selects."""
    return int(trace.wire_packets((trace.data.end - trace.data.start)[which]).sum())


class Measurement:
    """Round-trip times, losses, windows, messages and delays of one connection."""

    def __init__(self, sides: tuple[Side, ...], messages: MessageFinder, same_clock: bool) -> None:
        self.sides = sides
        self.totals = {side: EndTotals() for side in sides}
        self.acknowledged = AcknowledgementCounts()
        self.duplicated = 0  # Packets that arrived but are not in the capture at the sender
        self._all_trips, self._prompt_trips = RoundTripSeries(), RoundTripSeries()
        self._handshake = math.nan
        self._window = Series(np.minimum, np.maximum, np.fmin)
        self._clocks = ClockSamples(same_clock)
        self._transmissions = Table()
        self.deliveries = Deliveries(sides, messages)

    def take(self, at: dict[Side, Trace], framed: Integers) -> None:
        """Measure a stretch."""
        pieces = {side: self.totals[side].cover(trace) for side, trace in at.items()}
        for side, trace in at.items():
            self.totals[side].count(trace)
        watched = at[self.sides[0]]
        shake = handshake_times(watched)
        if shake is not None:
            self._handshake = max(shake)
        self._take_round_trips(at, pieces)
        if len(at) == 2:
            self._take_losses(at["sender"], at["receiver"])
        self._take_window(watched)
        self.deliveries.take(framed, watched, pieces[self.sides[0]], at.get("receiver"), pieces.get("receiver"))

    def _take_round_trips(self, at: dict[Side, Trace], pieces: dict[Side, Coverage | None]) -> None:
        for side, trace in at.items():
            covered = pieces[side]
            if covered is None:
                continue
            totals, during = self.totals[side], trace.span.during(trace.data.time)
            if side == "sender":
                sent = at_sender(trace, covered)
                totals.repeated += wire_packets(trace, sent.repetition & during)
                totals.spurious += wire_packets(trace, sent.spurious & during)
                self._add_trips(trace, sender_round_trips(trace, sent.original, sent.resent, self.acknowledged))
                continue
            arrived = at_receiver(trace, covered)
            totals.repeated += wire_packets(trace, (arrived.repetition | arrived.duplicate) & during)
            totals.spurious += wire_packets(trace, arrived.duplicate & during)
            totals.filling += wire_packets(trace, arrived.repetition & during)
            totals.reordered += int(np.count_nonzero(arrived.reordered & during))
            totals.duplicates += int(np.count_nonzero(arrived.duplicate & during))
            if "sender" not in at:
                self._take_receiver_trips(trace)

    def _take_receiver_trips(self, trace: Trace) -> None:
        resent = trace.data.start < trace.data.before()
        sender_round_trips(trace, np.flatnonzero(~resent), resent, self.acknowledged)
        if not math.isnan(self._handshake) and not self._all_trips.count:
            self._all_trips.add(np.zeros(1), np.array([self._handshake]))
        self._add_trips(trace, receiver_round_trips(trace))

    def _add_trips(self, trace: Trace, trips: RoundTrips) -> None:
        since = (trips.end - trace.first) / NANOSECONDS
        self._all_trips.add(since, trips.rtt)
        prompt = ~trips.may_have_waited
        self._prompt_trips.add(since[prompt], trips.rtt[prompt])

    def _take_losses(self, sender: Trace, receiver: Trace) -> None:
        if not sender.data.size:
            return
        matched = match_data(sender, receiver)
        sure = matched.known & ~matched.lost
        self._clocks.add((matched.sent[sure], matched.arrived[sure]), match_acknowledgements(sender, receiver))
        self._transmissions.add(matched.sent, matched.lost.astype(np.int64))
        self.duplicated += matched.duplicated

    def _take_window(self, trace: Trace) -> None:
        """Add the bytes in flight and the receiver's window at each transmission."""
        data, acks = trace.data, trace.acks
        if not data.size:
            return
        behind = np.searchsorted(acks.time, data.time, side="right")
        acknowledged = np.concatenate([data.start[:1], np.maximum.accumulate(acks.ack)])[behind]
        flight = np.maximum(np.maximum.accumulate(data.end) - acknowledged, 0)
        scales = scales_of(trace)
        factor = math.nan if scales is None else float(2 ** scales[1])
        offered = np.concatenate([[math.nan], acks.window * factor])[behind]
        during = trace.span.during(data.time)
        since = (data.time - trace.first) / NANOSECONDS
        self._window.add(since[during], flight[during].astype(np.float64), offered[during])

    def close(self) -> None:
        """Remove the temporary files."""
        self._transmissions.close()
        self.deliveries.close()

    @property
    def carried(self) -> bool:
        """Whether the acknowledgements of these data are carried on data of the other end."""
        return self.acknowledged.carried_share > CARRIED_SHARE

    def round_trips(self, clocks: ClockFit | None) -> PathRoundTrips:
        """Return the round-trip time that this direction shows.

        If acknowledgements are delayed, the samples from ACKs of one segment are left out. If they are carried on data,
        the samples from carried ACKs are left out, or only the smallest sample counts.
        """
        at_sender, prompt = "sender" in self.sides, self._prompt_trips
        if at_sender and self.carried and prompt.count >= FEWEST_PROMPT:
            return PathRoundTrips(prompt, prompt.smallest, "mean", TO_ACKNOWLEDGEMENT)
        if at_sender and not self.carried:
            trips = prompt if self.acknowledged.singles_wait else self._all_trips
            return PathRoundTrips(trips, trips.smallest, "mean", TO_ACKNOWLEDGEMENT)
        trips = self._all_trips
        if clocks is not None:
            return PathRoundTrips(trips, clocks.forward_base + clocks.backward_base, "smallest", BY_BOTH_CAPTURES)
        smallest = float(np.fmin(trips.smallest, self._handshake))
        if smallest == self._handshake:
            return PathRoundTrips(trips, smallest, "smallest", HANDSHAKE)
        how = TO_CARRIED_ACKNOWLEDGEMENT if at_sender else TO_ECHO
        # A SYN is answered at once. Samples below the time of the handshake are therefore good bounds.
        return PathRoundTrips(trips, smallest, "upper bound" if math.isnan(self._handshake) else "smallest", how)

    @property
    def window(self) -> NDArray[np.void]:
        """Bytes in flight and the receiver's window, as `ConnectionAnalysis.window`."""
        window = np.zeros(self._window.columns[0].size, WINDOW)
        for name, column in zip(WINDOW.names or (), self._window.columns, strict=True):
            window[name] = column
        return window

    def clocks(self) -> ClockFit | None:
        """Return offset and skew of the clocks of two captures; None with one capture."""
        return self._clocks.fit() if len(self.sides) == 2 else None

    def losses(self, clocks: ClockFit | None, first: int, last: int) -> tuple[int, int, str]:
        """Return the numbers of packets sent and lost, and a description of the count."""
        if clocks is not None:
            begin, end = clocks.to_sender(np.array([first, last]))
            base = round(clocks.forward_base * NANOSECONDS)
            sent = lost = 0
            for times, missing in self._transmissions.blocks():
                # Packets that were sent while the other capture did not run do not count.
                covered = (times + base >= begin) & (times + base <= end)
                sent += int(np.count_nonzero(covered))
                lost += int(missing[covered].sum())
            return sent, lost, "packets sent that did not arrive, by both captures"
        totals = self.totals[self.sides[0]]
        if self.sides == ("sender",):
            how = "retransmissions that no acknowledgement shows to be spurious"
            return totals.packets, totals.repeated - totals.spurious, how
        how = "retransmissions that arrived and filled a gap; lost retransmissions do not show"
        return totals.packets + totals.filling, totals.filling, how


def scales_of(trace: Trace) -> tuple[int, int] | None:
    """Return the scales of the windows, 0 unless both ends offer a scale (RFC 7323, 2.2); None without handshake."""
    if trace.sender.time is None or trace.receiver.time is None:
        return None
    of_sender, of_receiver = trace.sender.options.window_scale, trace.receiver.options.window_scale
    return (0, 0) if of_sender is None or of_receiver is None else (of_sender, of_receiver)
