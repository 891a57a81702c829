"""The analysis of one or two captures: read and match them, classify their segments, and measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np

from tcpdelay.capture.pcap.connection_analysis import ConnectionAnalysis
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.conversations import chosen, matches, same_connection, survey
from tcpdelay.capture.pcap.decoding import Framing, end_in_words
from tcpdelay.capture.pcap.measurement import Measurement, scales_of
from tcpdelay.capture.pcap.messages import MessageFinder
from tcpdelay.capture.pcap.places import ConnectionInFile
from tcpdelay.capture.pcap.round_trips import DELAYED_SHARE, Side, captured_at, distance_to_receiver
from tcpdelay.capture.pcap.stretches import Copies, StretchSource, shift_between, stretches
from tcpdelay.capture.pcap.trace import NANOSECONDS, Trace
from tcpdelay.scenario.fields import InvalidValueError

_LARGEST_DISTANCE = 0.1
"""Distance to the receiver, as a share of the round-trip time, above which a capture is not at the receiver."""
MOST_MESSAGE_BYTES = 10_000_000
"""Largest size of all messages [bytes] that can be given."""


class _Connection(NamedTuple):
    """The analysed connection: its captures, and its two ends in words."""

    sources: list[StretchSource]
    sender: str
    receiver: str


def analyze_captures(
    captures: Sequence[str | os.PathLike[str]],
    connection: str | None = None,
    *,
    framing: Framing = "auto",
    message_size: int | None = None,
    same_clock: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ConnectionAnalysis:
    """Analyse one TCP connection from a capture at its sender, at its receiver, or from both.

    Parameters
    ----------
    captures : sequence of str or path-like
        One or two files in pcap or pcapng, optionally compressed by gzip, in any order. A single file may hold the
        captures of both ends. Each file is read twice, or more often if packets occur twice in the file. Only a
        stretch of the connection is in memory.
    connection : str, optional
        Either end of the connection, such as "10.0.0.2:5001", or a part of it; by default, the connection with the
        most payload.
    framing : {"auto", "rfc4571", "length4", "websocket"}
        Way to find the ends of messages: the writes of the application ("auto"), or headers in the payload.
    message_size : int, optional
        Size of all messages [bytes], 1 to 10 000 000, if it is known; only with framing "auto".
    same_clock : bool
        Whether the same clock stamped both captures; then no offset is fitted.
    on_progress : callable, optional
        Called from time to time with the megabytes read so far, and with the megabytes to read.

    Returns
    -------
    ConnectionAnalysis
        The result.

    Raises
    ------
    ValueError
        If a file cannot be read, is damaged, or does not hold the connection; if it holds each packet at two places
        that cannot be distinguished; if it contradicts the arguments or the other file.

    Examples
    --------
    >>> analysis = analyze_captures(["validation/pcap/voice.sender.pcap.gz"])
    >>> analysis.captured_at, analysis.packet_size, round(analysis.rtt_base, 4)
    (('sender',), 174.0, 0.1)
    """
    if not 1 <= len(captures) <= 2:
        raise InvalidValueError("captures", len(captures), "be one or two files")
    check_message_size(message_size, framing)
    files = [CaptureFile(path) for path in captures]
    if on_progress is not None:
        _report_progress(files, on_progress)
    try:
        return _analyzed(files, connection, framing, message_size, same_clock, None)
    except _LateCopiesError as late:
        copies = late.copies
    # The second attempt is outside of the handler, because the error keeps the memory of the first attempt alive.
    for file in files:
        # The second attempt also reads each file twice: to list its connections, and to analyse one connection.
        file.readings += 2
    return _analyzed(files, connection, framing, message_size, same_clock, copies)


class _LateCopiesError(Exception):
    """Packets occur twice, but not among the first segments.

    Attributes
    ----------
    copies : list of Copies
        The copies in each file.
    """

    def __init__(self, copies: list[Copies]) -> None:
        super().__init__()
        self.copies = copies


def _analyzed(
    files: Sequence[CaptureFile],
    connection: str | None,
    framing: Framing,
    message_size: int | None,
    same_clock: bool,
    copies: Sequence[Copies] | None,
) -> ConnectionAnalysis:
    """Analyse a connection; `copies` are the copies that an earlier attempt found in each file.

    Raises
    ------
    _LateCopiesError
        If this attempt finds copies that are not among the first segments, and there was no earlier attempt.
    """
    notes: list[str] = []
    found = _opened(files, connection, framing, copies, notes)
    framer = found.sources[0].framer
    messages = MessageFinder(message_size, framer is not None)
    measurement: Measurement | None = None
    sides: tuple[Side, ...] = ()
    trace: Trace | None = None
    with ExitStack() as held:
        for traces in stretches(found.sources):
            if (
                copies is None
                and len(found.sources) == len(files)
                and any(source.copies.many for source in found.sources)
            ):
                raise _LateCopiesError([source.copies for source in found.sources])
            if measurement is None:
                if not all(part.data.size for part in traces):
                    continue
                sides = _sides(traces, notes)
                in_order: tuple[Side, ...] = ("sender", "receiver") if len(sides) == 2 else sides
                measurement = held.enter_context(closing(Measurement(in_order, messages, same_clock)))
                trace = traces[0]
            at = {side: traces[sides.index(side)] for side in measurement.sides}
            framed = np.empty(0, np.int64)
            if framer is not None:
                # The framer read the first file. Positions count from the first byte in the sender's capture.
                framed = framer.take(traces[0].span.high) + shift_between(traces[0].base, at[measurement.sides[0]].base)
            measurement.take(at, framed)
        if measurement is None or trace is None:
            raise ValueError(f"{files[0].name}: holds no payload from {found.sender}")
        if framer is not None and not messages.count:
            raise ValueError(f"{files[0].name}: holds no complete message with the framing {framing!r}")
        return _analysis(found, sides, trace, measurement, messages, notes)


def check_message_size(message_size: int | None, framing: Framing) -> None:
    """Raise ValueError if a size of all messages [bytes] is out of range, or cannot be combined with the framing.

    Examples
    --------
    >>> check_message_size(174, "rfc4571")
    Traceback (most recent call last):
    tcpdelay.scenario.fields.InvalidValueError: message_size must be left out with the framing 'rfc4571', got 174
    """
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


def _opened(
    files: Sequence[CaptureFile],
    connection: str | None,
    framing: Framing,
    copies: Sequence[Copies] | None,
    notes: list[str],
) -> _Connection:
    """Find the connection in each file."""
    known = [None] * len(files) if copies is None else copies
    overview = survey(files[0], None if connection is None else matches(connection))
    first = chosen(overview, connection)
    sender, receiver = first.pair[first.sender], first.pair[1 - first.sender]
    in_files = [ConnectionInFile(files[0], first, sender, framing, known[0]).sources(notes)]
    for file, seen in zip(files[1:], known[1:], strict=True):
        same = same_connection(survey(file, lambda other: other.pair == first.pair or other.seqs == first.seqs), first)
        source = sender if sender in same.pair else same.pair[same.sender]
        if not same.payload[same.pair.index(source)]:
            raise ValueError(f"{file.name}: holds no payload from {end_in_words(source)}")
        in_files.append(ConnectionInFile(file, same, source, copies=seen).sources(notes))
    for file, of_file in zip(files, in_files, strict=True):
        if len(files) > 1 and len(of_file) > 1:
            raise ValueError(f"{file.name}: holds both ends of the connection; give it alone")
    notes += [file.cut for file in files if file.cut]
    others = sum(max(conversation.payload) > 0 for conversation in overview.conversations) - 1
    if connection is None and (others or overview.forgotten):
        more = f"at least {others + overview.forgotten}" if overview.forgotten else f"{others}"
        notes.append(f"{more} more connections with payload are in the capture; choose one by its address")
    sources = [source for of_file in in_files for source in of_file]
    return _Connection(sources, end_in_words(sender), end_in_words(receiver))


def _sides(traces: Sequence[Trace], notes: list[str]) -> tuple[Side, ...]:
    """Return the end at which each capture was made, from its first stretch."""
    if len(traces) == 1:
        side, near = captured_at(traces[0])
        if not near:
            notes.append(
                f"the capture was made between the two ends, nearer to the {side}, and counts as made at this end"
            )
        return (side,)
    distances = [distance_to_receiver(trace) for trace in traces]
    if distances[0] == distances[1]:
        raise ValueError(f"{traces[0].name} and {traces[1].name} were captured at the same place")
    sender = int(distances[1] > distances[0])
    if distances[1 - sender] > _LARGEST_DISTANCE * distances[sender]:
        notes.append(
            f"{traces[1 - sender].name} was not made at the receiver; losses and delays behind it do not count"
        )
    return ("sender", "receiver") if sender == 0 else ("receiver", "sender")


def _analysis(
    found: _Connection,
    sides: tuple[Side, ...],
    first: Trace,
    measurement: Measurement,
    messages: MessageFinder,
    notes: list[str],
) -> ConnectionAnalysis:
    """Return the result of the measurement; `first` is a stretch of the first file."""
    totals = measurement.totals
    own, watched = totals[sides[0]], totals[measurement.sides[0]]
    for side, source in zip(sides, found.sources, strict=True):
        if totals[side].missing:
            notes.append(f"{source.name}: lacks {totals[side].missing} bytes that were acknowledged")
        if source.copies.many:
            notes.append(
                f"{source.name}: {source.copies.count} packets occur twice, as where captures of two places were "
                "merged, and count as sent again; loss and round-trip time are not reliable"
            )
        if source.misplaced:
            notes.append(f"{source.name}: {source.misplaced} packets are far behind later packets and are left out")
    trips, clocks = measurement.round_trips, measurement.clocks()
    at_receiver = found.sources[sides.index("receiver")] if "receiver" in sides else found.sources[0]
    sent, lost, counted = measurement.losses(clocks, at_receiver.first, at_receiver.last)
    if measurement.duplicated:
        notes.append(f"{measurement.duplicated} packets arrived that the capture at the sender does not show")
    if not sent:
        raise ValueError(f"{' and '.join(source.name for source in found.sources)} share no time")
    one_way = clocks.forward_base if clocks else trips.smallest / 2
    deliveries = measurement.deliveries
    schedule = deliveries.schedule(one_way)
    measured = deliveries.delays(schedule, one_way, clocks)
    if messages.size_changes:
        notes.append("the size of the messages changes; the stream is divided into messages of the first size")
    varying = [what for what, fixed in (("size", messages.fixed), ("interval", schedule)) if not fixed]
    if varying:
        notes.append(f"the messages have no fixed {' and '.join(varying)}; flow and prediction take the mean")
    arrived = totals.get("receiver")
    return ConnectionAnalysis(
        sender=found.sender,
        receiver=found.receiver,
        captured_at=measurement.sides,
        duration=(found.sources[0].last - found.sources[0].first) / NANOSECONDS,
        payload=own.highest - own.lowest,
        data_segments=own.data,
        acknowledgements=own.acks,
        rtt_times=trips.times,
        rtt_samples=trips.means,
        rtt_count=trips.count,
        rtt_base=trips.smallest,
        rtt_mean=trips.mean,
        rtt_max=trips.largest,
        rtt_deviation=trips.deviation,
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
        sack=bool(first.sender.sack and first.receiver.sack) or own.sack,
        timestamps=2 * own.stamped >= own.data,
        window_scale=scales_of(first),
        several_acknowledged=measurement.together.share,
        delayed_ack=measurement.together.share > DELAYED_SHARE,
        window=measurement.window,
        packet_size=messages.mean_size,
        interval=schedule.interval / NANOSECONDS if schedule is not None else deliveries.mean_interval(),
        fixed_size=messages.fixed,
        fixed_interval=schedule is not None,
        messages=messages.count,
        unfinished=measured.unfinished,
        one_way_delay=one_way,
        clocks=clocks,
        delay_kind=measured.kind,
        delay_measured=measured.how,
        delay_samples=measured.delays.samples,
        delays=measured.delays.distribution(one_way),
        notes=tuple(notes),
    )
