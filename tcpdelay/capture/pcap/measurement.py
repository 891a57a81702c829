"""The measurement of a connection, stretch by stretch, and its segments by their kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.clocks import ClockFit, ClockSamples, match_acknowledgements, match_data
from tcpdelay.capture.pcap.connection_analysis import WINDOW, RoundTripKind, RoundTripSeries, Series, Table
from tcpdelay.capture.pcap.messages import Deliveries, MessageFinder
from tcpdelay.capture.pcap.round_trips import (
    CARRIED_SHARE,
    FEWEST_PROMPT,
    AcknowledgementCounts,
    RoundTrips,
    Side,
    handshake_times,
    receiver_round_trips,
    sender_round_trips,
)
from tcpdelay.capture.pcap.trace import (
    BEGINNING,
    NANOSECONDS,
    NEVER,
    Acknowledgements,
    Coverage,
    DataSegments,
    Flags,
    Integers,
    Trace,
    coverage,
)

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


# The measurement of a connection, stretch by stretch: round-trip times, losses, windows, messages, delays.

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
