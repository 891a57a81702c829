"""The analysis of one or two captures: read and match them, classify their segments, and measure."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from dpkt import pcap

from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
from tcpdelay.capture.pcap.container import CaptureFile, Packet
from tcpdelay.capture.pcap.decoding import (
    Conversation,
    Framer,
    Framing,
    Segment,
    chosen,
    end_in_words,
    matches,
    same_connection,
    survey,
)
from tcpdelay.capture.pcap.measurement import Measurement, MessageFinder, PathRoundTrips, scales_of
from tcpdelay.capture.pcap.round_trips import (
    DELAYED_SHARE,
    ClockFit,
    Side,
    captured_at,
    distance_to_receiver,
    distance_to_sender,
)
from tcpdelay.capture.pcap.stretches import (
    ConnectionSegments,
    Copies,
    FirstOnly,
    StretchSource,
    shift_between,
    stretches,
)
from tcpdelay.capture.pcap.trace import NANOSECONDS, Trace
from tcpdelay.declare import InvalidValueError
from tcpdelay.units import format_fraction, format_time

# Captures that show a connection at several places: the interface or the stations separate the places.

_SMALLEST_SHARE = 0.1
"""Smallest number of packets of a place, in either direction, as a share of the packets of the busiest place."""
_MOST_PLACES = 8
"""Largest number of places that are distinguished; places with more packets come first."""
_LARGEST_COPY_DISTANCE = 0.02
"""Largest distance of copies captured at one place, as a share of the round-trip time."""

Kept = Callable[[Packet, Segment], bool]


class Place(NamedTuple):
    """The place at which a packet was captured."""

    interface: int  # Number of the interface in a pcapng file
    ifindex: int | None = None  # Interface index of the system, in Linux cooked v2
    stations: tuple[bytes, ...] = ()  # Both Ethernet addresses, sorted, so that they are equal in both directions

    def in_words(self, among: list[Place]) -> str:
        """Return a description that distinguishes this place from the other places in `among`."""
        interfaces = {place.interface for place in among}
        if len(interfaces) == len(among):
            return f"interface {self.interface}"
        stations = f"stations {' and '.join(station.hex(':') for station in self.stations)}"
        words = stations if self.ifindex is None else f"interface index {self.ifindex}"
        return words if len(interfaces) == 1 else f"interface {self.interface}, {words}"


def at(place: Place) -> Kept:
    """Return a function that returns whether a packet was captured at a place."""
    return lambda packet, segment: place_of(packet) == place


def place_of(packet: Packet) -> Place:
    """Return the place at which a packet was captured."""
    data = packet.data
    if packet.link == pcap.DLT_LINUX_SLL2:
        return Place(packet.interface, int.from_bytes(data[4:8]))
    if packet.link == pcap.DLT_EN10MB:
        return Place(packet.interface, stations=tuple(sorted((data[:6], data[6:12]))))
    return Place(packet.interface)


@dataclass(frozen=True)
class ConnectionInFile:
    """The connection in one file, which shows it at one or several places."""

    capture: CaptureFile  # The file
    conversation: Conversation  # The connection in it
    sender: bytes  # The end whose payload is analysed
    framing: Framing = "auto"  # Way to find the ends of messages
    copies: Copies | None = None  # Copies that an earlier reading found; they need not be among the first segments

    def sources(self, notes: list[str]) -> list[StretchSource]:
        """Return the captures in the file: one capture, or a capture at the sender and a capture at the receiver."""
        source = self._source()
        source.begin()
        # An earlier reading that omitted second copies has counted no copies. The first segments show them again.
        copies = self.copies if self.copies is not None and self.copies.many else source.copies
        if not copies.many:
            return [source]
        self.capture.readings += 1
        places = self._places()
        if len(places) < 2:
            return [self._first_only(copies.lags, None, "", notes)]
        words = {place: place.in_words(places) for place in places}
        labels = {place: f" ({words[place]})" for place in places}
        unframed = replace(self, framing="auto")
        views = {place: unframed._again(at(place), labels[place]) for place in places}
        traces = {place: view.beginning() for place, view in views.items()}
        far, *_, near = sorted(places, key=lambda place: -distance_to_receiver(traces[place]))
        name = self.capture.name
        if captured_at(traces[far]) != ("sender", True) or captured_at(traces[near]) != ("receiver", True):
            several = " and ".join(words.values())
            notes.append(f"{name}: packets occur twice, at {several}; the packets of {words[far]} count")
            return [self._chosen(views[far], at(far), labels[far], notes)]
        notes.append(f"{name}: holds both ends, the sender's at {words[far]}, the receiver's at {words[near]}")
        # The capture at the sender gives the positions of messages.
        return [
            self._chosen(views[far], at(far), labels[far], notes),
            unframed._chosen(views[near], at(near), labels[near], notes),
        ]

    def _chosen(self, view: StretchSource, kept: Kept, label: str, notes: list[str]) -> StretchSource:
        """Return the capture at one place, whose first segments were read without a framer."""
        if view.copies.many:
            return self._first_only(view.copies.lags, kept, label, notes)
        return view if self.framing == "auto" else self._again(kept, label)

    def _again(self, kept: Kept, label: str) -> StretchSource:
        self.capture.readings += 1
        return self._source(kept, label)

    def _source(self, kept: Kept | None = None, label: str = "") -> StretchSource:
        framer = None if self.framing == "auto" else Framer(self.framing)
        return StretchSource(ConnectionSegments(self.capture, self.conversation, self.sender, framer, kept, label))

    def _places(self) -> list[Place]:
        """Return the places at which most of the connection was captured, in both directions."""
        packets = {True: Counter[Place](), False: Counter[Place]()}

        def count(packet: Packet, segment: Segment) -> bool:
            packets[segment.source == self.sender][place_of(packet)] += 1
            return False

        for _ in ConnectionSegments(self.capture, self.conversation, self.sender, kept=count).batches():
            pass
        least = [_SMALLEST_SHARE * max(counted.values(), default=0) for counted in packets.values()]
        most = packets[True].most_common(_MOST_PLACES)
        return sorted(place for place, sent in most if sent >= least[0] and packets[False][place] >= max(least[1], 1))

    def _first_only(self, lags: tuple[int, int], kept: Kept | None, label: str, notes: list[str]) -> StretchSource:
        """Return the connection without second copies, if the copies are close enough to be from one place."""
        first = FirstOnly(2 * max(lags))
        source = self._again(
            first if kept is None else lambda packet, segment: kept(packet, segment) and first(packet, segment), label
        )
        trace = source.beginning()
        distances = distance_to_receiver(trace), distance_to_sender(trace)
        apart = format_time(max(lags) / NANOSECONDS)
        if (
            source.copies.many
            or sum(lags) > _LARGEST_COPY_DISTANCE * sum(filter(math.isfinite, distances)) * NANOSECONDS
        ):
            raise ValueError(
                f"{source.name}: packets of this connection appear twice, {apart} apart, as where captures of two "
                "places were merged; give the captures of the two ends as two files"
            )
        notes.append(f"{source.name}: packets occur twice, {apart} apart; the second copies are left out")
        return source


_LARGEST_DISTANCE = 0.1
"""Distance to the receiver, as a share of the round-trip time, above which a capture is not at the receiver."""
_COARSE_CLOCK = 0.1
"""Step of the clock, as a share of the mean round-trip time, above which the clock explains a round-trip time of 0."""
MOST_MESSAGE_BYTES = 10_000_000
"""Largest size of all messages [bytes] that can be given."""


class _Question(NamedTuple):
    """What is analysed, and how; `copies` are the copies in each file that an earlier attempt found."""

    files: Sequence[CaptureFile]
    conversations: Sequence[Conversation]
    framing: Framing
    message_size: int | None
    same_clock: bool
    copies: Sequence[Copies] | None = None


class _Direction(NamedTuple):
    """A direction of a connection: its captures, whether they are parts of one file, its ends in words, and notes."""

    sources: list[StretchSource]
    sender: str
    receiver: str
    separated: bool
    notes: list[str]


class _Measured(NamedTuple):
    """A measured direction; `first` is a stretch of the first file."""

    direction: _Direction
    sides: tuple[Side, ...]
    first: Trace
    measurement: Measurement
    messages: MessageFinder
    clocks: ClockFit | None


def analyze_captures(
    captures: Sequence[str | os.PathLike[str]],
    connection: str | None = None,
    *,
    framing: Framing = "auto",
    message_size: int | None = None,
    same_clock: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ConnectionAnalysis:
    """Analyse the direction of a TCP connection with the most payload; the parameters are as in `analyze_directions`.

    Returns
    -------
    ConnectionAnalysis
        The first result of `analyze_directions`.

    Raises
    ------
    ValueError
        As `analyze_directions`.

    Examples
    --------
    >>> analysis = analyze_captures(["validation/pcap/voice.sender.pcap.gz"])
    >>> analysis.captured_at, analysis.packet_size, round(analysis.rtt_base, 4)
    (('sender',), 174.0, 0.1)
    """
    return analyze_directions(
        captures,
        connection,
        framing=framing,
        message_size=message_size,
        same_clock=same_clock,
        on_progress=on_progress,
    )[0]


def analyze_directions(
    captures: Sequence[str | os.PathLike[str]],
    connection: str | None = None,
    *,
    framing: Framing = "auto",
    message_size: int | None = None,
    same_clock: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[ConnectionAnalysis, ...]:
    """Analyse a TCP connection from a capture at either end, or from both: each direction with a flow of data.

    Parameters
    ----------
    captures : sequence of str or path-like
        One or two files in pcap or pcapng, optionally compressed by gzip, in any order. A single file may hold the
        captures of both ends. Each file is read twice, once more if data flow in both directions, and more often if
        packets occur twice in the file. Only a stretch of the connection is in memory.
    connection : str, optional
        Either end of the connection, such as "10.0.0.2:5001", or a part of it; by default, the connection with the
        most payload.
    framing : {"auto", "rfc4571", "length4", "websocket"}
        Way to find the ends of messages: the writes of the application ("auto"), or headers in the payload.
    message_size : int, optional
        Size of all messages [bytes] of the direction with the most payload, 1 to 10 000 000, if it is known; only with
        framing "auto".
    same_clock : bool
        Whether the same clock stamped both captures; then no offset is fitted.
    on_progress : callable, optional
        Called from time to time with the megabytes read so far, and with the megabytes to read.

    Returns
    -------
    tuple of ConnectionAnalysis
        The direction with the most payload and, if the other end sent at least 20 segments with payload, the other
        direction. Both have the more certain estimate of the round-trip time.

    Raises
    ------
    ValueError
        If a file cannot be read, is damaged, or does not hold the connection; if it holds each packet at two places
        that cannot be distinguished; if it contradicts the arguments or the other file.

    Examples
    --------
    >>> [found.captured_at for found in analyze_directions(["validation/pcap/voice.sender.pcap.gz"])]
    [('sender',)]
    """
    if not 1 <= len(captures) <= 2:
        raise InvalidValueError("captures", len(captures), "be one or two files")
    check_message_size(message_size, framing)
    files = [CaptureFile(path) for path in captures]
    if on_progress is not None:
        _report_progress(files, on_progress)
    found, notes = _conversations(files, connection)
    asked = _Question(files, found, framing, message_size, same_clock)
    senders = found[0].senders
    for file in files:
        file.readings += len(senders) - 1
    try:
        return _analyzed(asked, notes)
    except _LateCopiesError as late:
        copies = late.copies
    # The second attempt is outside of the handler, because the error keeps the memory of the first attempt alive.
    for file in files:
        file.readings += len(senders)
    return _analyzed(asked._replace(copies=copies), notes)


class _LateCopiesError(Exception):
    """Packets occur twice, but not among the first segments; `copies` are the copies in each file."""

    def __init__(self, copies: list[Copies]) -> None:
        super().__init__()
        self.copies = copies


def _analyzed(asked: _Question, notes: Sequence[str]) -> tuple[ConnectionAnalysis, ...]:
    """Analyse both directions."""
    sender, *others = asked.conversations[0].senders
    main = _opened(asked, sender)
    main.notes.extend(notes)
    backward: Trace | None = None
    with ExitStack() as held:
        found = []
        for other in others:
            try:
                # The notes on the files are the same for both directions.
                direction = _opened(asked, other)._replace(notes=[])
                backward, forward = direction.sources[0].beginning(), main.sources[0].beginning()
                found.append(_measured(asked._replace(message_size=None), direction, forward, held))
            except ValueError as error:
                main.notes.append(f"the data from {end_in_words(other)} are not analysed: {error}")
        found.insert(0, _measured(asked, main, backward, held))
        trips = [measured.measurement.round_trips(measured.clocks) for measured in found]
        if len(found) > 1:
            trips = [own.better(other) for own, other in zip(trips, trips[::-1], strict=True)]
        return tuple(_analysis(measured, of_path) for measured, of_path in zip(found, trips, strict=True))


def _measured(asked: _Question, direction: _Direction, backward: Trace | None, held: ExitStack) -> _Measured:
    """Measure one direction; `backward` is the beginning of the other direction in the first file, if it has data."""
    sources, notes = direction.sources, direction.notes
    framer = sources[0].framer
    messages = MessageFinder(asked.message_size, framer is not None)
    measurement: Measurement | None = None
    sides: tuple[Side, ...] = ()
    trace: Trace | None = None
    for traces in stretches(sources):
        if asked.copies is None and not direction.separated and any(source.copies.many for source in sources):
            raise _LateCopiesError([source.copies for source in sources])
        if measurement is None:
            if not all(part.data.size for part in traces):
                continue
            sides = _sides(traces, backward, notes)
            in_order: tuple[Side, ...] = ("sender", "receiver") if len(sides) == 2 else sides
            measurement = held.enter_context(closing(Measurement(in_order, messages, asked.same_clock)))
            trace = traces[0]
        at = {side: traces[sides.index(side)] for side in measurement.sides}
        framed = np.empty(0, np.int64)
        if framer is not None:
            # The framer read the first file. Positions count from the first byte in the sender's capture.
            framed = framer.take(traces[0].span.high) + shift_between(traces[0].base, at[measurement.sides[0]].base)
        measurement.take(at, framed)
    if measurement is None or trace is None:
        raise ValueError(f"{sources[0].name}: holds no payload from {direction.sender}")
    if framer is not None and not messages.count:
        raise ValueError(f"{sources[0].name}: holds no complete message with the framing {asked.framing!r}")
    return _Measured(direction, sides, trace, measurement, messages, measurement.clocks())


def check_message_size(message_size: int | None, framing: Framing) -> None:
    """Raise ValueError if a size of all messages [bytes] is out of range, or cannot be combined with the framing."""
    if message_size is None:
        return
    if framing != "auto":
        raise InvalidValueError("message_size", message_size, f"be left out with the framing {framing!r}")
    if not 1 <= message_size <= MOST_MESSAGE_BYTES:
        raise InvalidValueError("message_size", message_size, f"lie between 1 and {MOST_MESSAGE_BYTES:g} bytes")


def _report_progress(files: Sequence[CaptureFile], on_progress: Callable[[int, int], None]) -> None:
    """Make each file report the progress of all files."""
    read = [0] * len(files)
    for number, file in enumerate(files):

        def show(done: int, number: int = number) -> None:
            read[number] = done
            on_progress(sum(read) // 10**6, sum(file.readings * file.size for file in files) // 10**6)

        file.on_progress = show


def _conversations(files: Sequence[CaptureFile], connection: str | None) -> tuple[list[Conversation], list[str]]:
    """Return the connection in each file, and notes on the files and their other connections."""
    overview = survey(files[0], None if connection is None else matches(connection))
    first = chosen(overview, connection)
    found = [first]
    for file in files[1:]:
        others = survey(file, lambda other: other.pair == first.pair or other.seqs == first.seqs)
        found.append(same_connection(others, first))
    notes = [file.cut for file in files if file.cut]
    more = sum(max(conversation.payload) > 0 for conversation in overview.conversations) - 1
    if connection is None and (more or overview.forgotten):
        count = f"at least {more + overview.forgotten}" if overview.forgotten else f"{more}"
        notes.append(f"{count} more connections with payload are in the capture; choose one by its address")
    return found, notes


def _opened(asked: _Question, sender: bytes) -> _Direction:
    """Open the direction of a connection in each file; `sender` is its sender in the first file."""
    files, first = asked.files, asked.conversations[0]
    from_larger = sender == first.pair[first.sender]
    notes: list[str] = []
    in_files = []
    for number, (file, conversation) in enumerate(zip(files, asked.conversations, strict=True)):
        # Addresses may be translated between the files.
        larger = conversation.pair[conversation.sender if from_larger else 1 - conversation.sender]
        source = sender if sender in conversation.pair else larger
        if number and not conversation.payload[conversation.pair.index(source)]:
            raise ValueError(f"{file.name}: holds no payload from {end_in_words(source)}")
        known = None if asked.copies is None else asked.copies[number]
        in_file = ConnectionInFile(file, conversation, source, "auto" if number else asked.framing, known)
        in_files.append(in_file.sources(notes))
    for file, of_file in zip(files, in_files, strict=True):
        if len(files) > 1 and len(of_file) > 1:
            raise ValueError(f"{file.name}: holds both ends of the connection; give it alone")
    (receiver,) = set(first.pair) - {sender}
    sources = [source for of_file in in_files for source in of_file]
    return _Direction(sources, end_in_words(sender), end_in_words(receiver), len(sources) > len(files), notes)


def _sides(traces: Sequence[Trace], backward: Trace | None, notes: list[str]) -> tuple[Side, ...]:
    """Return the end at which each capture was made, from its first stretch, and the data of the other direction."""
    if len(traces) == 1:
        side, certain = captured_at(traces[0], backward)
        if not certain and backward is not None:
            notes.append(
                f"the capture does not clearly show at which end it was made, and counts as made at the {side}; "
                "capture the handshake, or give captures of both ends"
            )
        elif not certain:
            notes.append(
                f"the capture was made between the two ends, nearer to the {side}, and counts as made at this end"
            )
        return (side,)
    distances = [distance_to_receiver(trace) for trace in traces]
    if distances[0] == distances[1]:
        raise ValueError(f"{traces[0].name} and {traces[1].name} were captured at the same place")
    sender = int(distances[1] > distances[0])
    # With data in both directions, acknowledgements wait for data also at the receiver.
    if backward is None and distances[1 - sender] > _LARGEST_DISTANCE * distances[sender]:
        notes.append(
            f"{traces[1 - sender].name} was not made at the receiver; losses and delays behind it do not count"
        )
    return ("sender", "receiver") if sender == 0 else ("receiver", "sender")


def _analysis(found: _Measured, path: PathRoundTrips) -> ConnectionAnalysis:
    """Return the result of a measured direction, with the round-trip time of the path."""
    (sources, sender, receiver, _, notes), sides, first, measurement, messages, clocks = found
    totals = measurement.totals
    own, watched = totals[sides[0]], totals[measurement.sides[0]]
    for side, source in zip(sides, sources, strict=True):
        if totals[side].missing:
            notes.append(f"{source.name}: lacks {totals[side].missing} bytes that were acknowledged")
        if source.copies.many:
            notes.append(
                f"{source.name}: {source.copies.count} packets occur twice, as where captures of two places were "
                "merged, and count as sent again; loss and round-trip time are not reliable"
            )
        if source.misplaced:
            notes.append(f"{source.name}: {source.misplaced} packets are far behind later packets and are left out")
    trips = path.trips
    at_receiver = sources[sides.index("receiver")] if "receiver" in sides else sources[0]
    sent, lost, counted = measurement.losses(clocks, at_receiver.first, at_receiver.last)
    if measurement.duplicated:
        notes.append(f"{measurement.duplicated} packets arrived that the capture at the sender does not show")
    if not sent:
        raise ValueError(f"{' and '.join(source.name for source in sources)} share no time")
    one_way = clocks.forward_base if clocks else path.base / 2
    deliveries = measurement.deliveries
    schedule = deliveries.schedule(one_way)
    measured = deliveries.delays(schedule, one_way, clocks)
    message_times, message_sizes = deliveries.messages(schedule)
    if messages.size_changes:
        notes.append("the size of the messages changes; the stream is divided into messages of the first size")
    varying = [what for what, fixed in (("size", messages.fixed), ("interval", schedule)) if not fixed]
    if varying:
        notes.append(f"the messages have no fixed {' and '.join(varying)}; the flow takes the mean")
    notes += _notes_on_times(found, path)
    arrived = totals.get("receiver")
    return ConnectionAnalysis(
        sender=sender,
        receiver=receiver,
        captured_at=measurement.sides,
        duration=(sources[0].last - sources[0].first) / NANOSECONDS,
        payload=own.highest - own.lowest,
        data_segments=own.data,
        acknowledgements=own.acks,
        rtt_times=trips.times,
        rtt_samples=trips.means,
        rtt_count=trips.count,
        rtt_base=path.base,
        rtt_mean=trips.mean,
        rtt_max=trips.largest,
        rtt_deviation=trips.deviation,
        rtt_kind=path.kind,
        rtt_measured=path.how,
        sent=sent,
        lost=lost,
        loss_counted=counted,
        retransmissions=watched.repeated,
        spurious_retransmissions=watched.spurious,
        reordered=None if arrived is None else arrived.reordered,
        duplicates=None if arrived is None else arrived.duplicates,
        duplicate_acks=watched.duplicate_acks,
        mss=first.mss,
        mss_known=first.mss_known,
        sack=(first.sender.options.sack_permitted and first.receiver.options.sack_permitted) or own.sack,
        timestamps=2 * own.stamped >= own.data,
        window_scale=scales_of(first),
        several_acknowledged=measurement.acknowledged.several_share,
        delayed_ack=measurement.acknowledged.several_share > DELAYED_SHARE,
        carried_acks=measurement.acknowledged.carried_share,
        window=measurement.window,
        packet_size=messages.mean_size,
        interval=schedule.interval / NANOSECONDS if schedule is not None else deliveries.mean_interval(),
        fixed_size=messages.fixed,
        fixed_interval=schedule is not None,
        messages=messages.count,
        unfinished=measured.unfinished,
        message_times=message_times,
        message_sizes=message_sizes,
        one_way_delay=one_way,
        clocks=clocks,
        delay_kind=measured.kind,
        delay_measured=measured.how,
        delay_samples=measured.delays.samples,
        delays=measured.delays.distribution(one_way),
        notes=tuple(notes),
    )


def _notes_on_times(found: _Measured, path: PathRoundTrips) -> list[str]:
    """Return the notes on times that a coarse clock or the waiting of an end before its answer changed."""
    notes = []
    step = found.measurement.totals[found.sides[0]].clock_step / NANOSECONDS
    if path.base == 0 and step > _COARSE_CLOCK * path.trips.mean:
        notes.append(
            f"the clock of the capture advances in steps of {format_time(step)}: round-trip times and delays are known "
            f"only to within {format_time(step)}; capture with a finer clock, or measure the round-trip time with ping"
        )
    if path.kind == "upper bound" and not math.isnan(path.base):
        notes.append(
            f"the round-trip time is an upper bound, the {path.how}: the other end may have waited for its next write; "
            "capture the handshake, or give captures of both ends"
        )
    if found.measurement.sides == ("sender",) and found.measurement.carried:
        share = format_fraction(found.measurement.acknowledged.carried_share)
        notes.append(
            f"{share} of the acknowledgements are carried on data: measured delays are too long by up to the interval "
            "of the other direction"
        )
    return notes
