"""The analysis of one or two captures: read, matched, classified, measured."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.clocks import ClockFit, fit_clocks
from tcpdelay.capture.pcap.connection_analysis import WINDOW, ConnectionAnalysis, DelayKind
from tcpdelay.capture.pcap.container import CaptureFile
from tcpdelay.capture.pcap.conversations import chosen, same_connection, survey
from tcpdelay.capture.pcap.coverage import NEVER, Coverage, coverage
from tcpdelay.capture.pcap.decoding import end_in_words
from tcpdelay.capture.pcap.framing import Framer, Framing
from tcpdelay.capture.pcap.matching import match_acknowledgements, match_data, shifted_to
from tcpdelay.capture.pcap.retransmissions import (
    Arrived,
    Sent,
    at_receiver,
    at_sender,
    duplicate_acknowledgements,
)
from tcpdelay.capture.pcap.round_trips import (
    DELAYED,
    RoundTrips,
    Side,
    captured_at,
    distance_to_receiver,
    handshake_times,
    receiver_round_trips,
    sender_round_trips,
)
from tcpdelay.capture.pcap.source import Messages, Schedule, messages_of, schedule_of
from tcpdelay.capture.pcap.trace import MAX_SEGMENTS, Integers, Trace, load_trace

_NANOSECONDS = 1e9
_FAR = 0.1
"""Share of the round-trip time from which a capture is not one at the receiver."""


@dataclass(frozen=True)
class _End:
    """A capture at one end."""

    trace: Trace
    pieces: Coverage


def analyze_captures(
    captures: Sequence[str | os.PathLike[str]],
    connection: str | None = None,
    *,
    framing: Framing = "auto",
    message_size: int | None = None,
    same_clock: bool = False,
) -> ConnectionAnalysis:
    """Analyse one TCP connection from a capture at its sender, at its receiver, or from both.

    Parameters
    ----------
    captures : sequence of str or path-like
        One or two files in pcap or pcapng, perhaps compressed by gzip; in any order. Each is read twice.
    connection : str, optional
        Either end of the connection, such as "10.0.0.2:5001", or a part of it; by default the one with most payload.
    framing : {"auto", "rfc4571", "length4", "websocket"}
        How messages are told apart: by the application's writes, or by headers in the payload.
    message_size : int, optional
        Size of all messages [bytes], 1 to 10 000 000, if it is known; only with framing "auto".
    same_clock : bool
        Whether two captures were stamped by one clock, so that nothing is to be fitted.

    Returns
    -------
    ConnectionAnalysis
        What the captures say.

    Raises
    ------
    ValueError
        If a file cannot be read, is damaged, holds no such connection, or contradicts the arguments or the other file.

    Examples
    --------
    >>> analysis = analyze_captures(["validation/pcap/voice.sender.pcap.gz"])
    >>> analysis.captured_at, analysis.packet_size, round(analysis.rtt_base, 4)
    (('sender',), 174.0, 0.1)
    """
    if not 1 <= len(captures) <= 2:
        raise ValueError(f"captures must be one or two files, got {len(captures)}")
    if message_size is not None and (framing != "auto" or not 1 <= message_size <= 10_000_000):
        raise ValueError(f"message_size must lie between 1 and 1e+07 bytes, with framing 'auto', got {message_size}")
    framer = None if framing == "auto" else Framer(framing)
    files = [CaptureFile(path) for path in captures]
    traces, ends, others = _load(files, connection, framer)
    notes = [file.cut for file in files if file.cut]
    notes += [
        f"{trace.name}: only the first {MAX_SEGMENTS} segments of the connection are analysed"
        for trace in traces
        if trace.shortened
    ]
    if others and connection is None:
        notes.append(f"{others} more connections with payload are in the capture; choose one by its address")
    at = _by_side(traces, notes)
    framed = None
    if framer is not None:
        if not framer.ends.size:
            raise ValueError(f"{files[0].name}: holds no complete message with the framing {framing!r}")
        # The framer read the first file; positions count from the first byte of the sender's.
        framed = framer.ends + shifted_to(traces[0], next(iter(at.values())).trace.base)
    return _analysis(at, traces[0], ends, message_size, framed, same_clock, notes)


def _load(
    files: Sequence[CaptureFile], connection: str | None, framer: Framer | None
) -> tuple[list[Trace], tuple[str, str], int]:
    """Return the connection in each file, its two ends, and how many others the first file holds."""
    overview = survey(files[0])
    first = chosen(overview, connection)
    sender, receiver = first.pair[first.sender], first.pair[1 - first.sender]
    traces = [load_trace(files[0], first, sender, framer)]
    for file in files[1:]:
        same = same_connection(survey(file), first)
        traces.append(load_trace(file, same, sender if sender in same.pair else same.pair[same.sender]))
    for file, trace in zip(files, traces, strict=True):
        if not trace.data.size:
            raise ValueError(f"{file.name}: holds no payload from {end_in_words(sender)}")
    others = sum(max(one.payload) > 0 for one in overview.conversations) - 1
    return traces, (end_in_words(sender), end_in_words(receiver)), others


def _by_side(traces: Sequence[Trace], notes: list[str]) -> dict[Side, _End]:
    """Return the captures by the end they were made at."""
    made = [_End(trace, coverage(trace.data, trace.acks, trace.name)) for trace in traces]
    for end in made:
        if end.pieces.missing:
            notes.append(f"{end.trace.name}: lacks {end.pieces.missing} bytes that were acknowledged")
    if len(made) == 1:
        side, near = captured_at(traces[0])
        if not near:
            notes.append(
                f"the capture was made between the two ends, nearer to the {side}, and is taken for that end's"
            )
        return {side: made[0]}
    distances = [distance_to_receiver(trace) for trace in traces]
    if distances[0] == distances[1]:
        raise ValueError(f"{traces[0].name} and {traces[1].name} were captured at the same place")
    sender = int(distances[1] > distances[0])
    if distances[1 - sender] > _FAR * distances[sender]:
        notes.append(f"{traces[1 - sender].name} was not made at the receiver; what lies behind it does not count")
    return {"sender": made[sender], "receiver": made[1 - sender]}


def _analysis(
    at: dict[Side, _End],
    first: Trace,
    ends: tuple[str, str],
    message_size: int | None,
    framed: Integers | None,
    same_clock: bool,
    notes: list[str],
) -> ConnectionAnalysis:
    """Measure everything."""
    sender, receiver = at.get("sender"), at.get("receiver")
    sent = at_sender(sender.trace, sender.pieces) if sender else None
    arrived = at_receiver(receiver.trace, receiver.pieces) if receiver else None
    trips, several = _round_trips(at, sent)
    base = float(trips.rtt.min()) if trips.rtt.size else math.nan
    clocks, counts, counted = _losses(sender, receiver, sent, arrived, same_clock, notes)
    one_way = clocks.forward_base if clocks else base / 2
    messages, schedule, read, transmitted = _messages(at, one_way, clocks, message_size, framed)
    kind, how, delays = _delays(at, messages, schedule, read, transmitted)
    data = first.data
    varying = [what for what, fixed in (("size", messages.fixed), ("interval", schedule)) if not fixed]
    if varying:
        notes.append(f"the messages have no fixed {' and '.join(varying)}; flow and prediction take the mean")
    interval = math.nan
    if schedule is not None:
        interval = schedule.interval / _NANOSECONDS
    elif messages.ends.size > 1 and np.ptp(transmitted):
        interval = float(np.ptp(transmitted)) / (messages.ends.size - 1) / _NANOSECONDS
    watched = (sender or at["receiver"]).trace
    repeated, needless = np.empty(0, np.bool_), np.empty(0, np.bool_)
    if sent is not None:
        repeated, needless = sent.repetition, sent.spurious
    elif arrived is not None:
        repeated, needless = arrived.repetition | arrived.duplicate, arrived.duplicate
    return ConnectionAnalysis(
        sender=ends[0],
        receiver=ends[1],
        captured_at=tuple(at),
        duration=(first.last - first.first) / _NANOSECONDS,
        payload=int(data.end.max() - data.start.min()),
        data_segments=data.size,
        acknowledgements=first.acks.size,
        rtt_times=trips.time,
        rtt_samples=trips.rtt,
        rtt_base=base,
        sent=counts[0],
        lost=counts[1],
        loss_counted=counted,
        retransmissions=_packets(watched, repeated),
        spurious_retransmissions=_packets(watched, needless),
        reordered=None if arrived is None else int(arrived.reordered.sum()),
        duplicates=None if arrived is None else int(arrived.duplicate.sum()),
        duplicate_acks=duplicate_acknowledgements(watched),
        mss=first.mss,
        mss_known=first.mss_known,
        sack=_both(first, "sack") or bool((first.acks.blocks > 0).any()),
        timestamps=bool(np.median(data.stamped) > 0),
        window_scale=_scales(first),
        several_acknowledged=several,
        delayed_ack=several > DELAYED,
        window=_window(watched),
        packet_size=float(messages.sizes.mean()) if messages.ends.size else math.nan,
        interval=interval,
        fixed_size=messages.fixed,
        fixed_interval=schedule is not None,
        messages=messages.ends.size,
        unfinished=int((read == NEVER).sum()),
        one_way_delay=one_way,
        clocks=clocks,
        delay_kind=kind,
        delay_measured=how,
        delay_samples=delays,
        notes=tuple(notes),
    )


def _round_trips(at: dict[Side, _End], sent: Sent | None) -> tuple[RoundTrips, float]:
    """Return the samples of the round-trip time, and the share of acknowledgements for several segments."""
    if sent is not None:
        return sender_round_trips(at["sender"].trace, sent.original, sent.resent)
    trace = at["receiver"].trace
    resent = trace.data.start < trace.data.before()
    _, several = sender_round_trips(trace, np.flatnonzero(~resent), resent)
    trips, shake = receiver_round_trips(trace), handshake_times(trace)
    if shake is None:
        return trips, several
    return RoundTrips(np.append(0.0, trips.time), np.append(max(shake), trips.rtt)), several


def _losses(
    sender: _End | None,
    receiver: _End | None,
    sent: Sent | None,
    arrived: Arrived | None,
    same_clock: bool,
    notes: list[str],
) -> tuple[ClockFit | None, tuple[int, int], str]:
    """Return the clocks' difference, packets sent and lost, and how they were counted."""
    if sender and receiver:
        matched = match_data(sender.trace, receiver.trace)
        sure = matched.known & ~matched.lost
        clocks = fit_clocks(
            (matched.sent[sure], matched.arrived[sure]),
            match_acknowledgements(sender.trace, receiver.trace),
            same_clock,
        )
        begin, end = clocks.to_sender(np.array([receiver.trace.first, receiver.trace.last]))
        base = round(clocks.forward_base * _NANOSECONDS)
        # What was sent while the other capture did not run is no loss.
        covered = (matched.sent + base >= begin) & (matched.sent + base <= end)
        counts = int(covered.sum()), int((matched.lost & covered).sum())
        if matched.duplicated:
            notes.append(f"{matched.duplicated} packets arrived that the capture at the sender does not show")
        if not counts[0]:
            raise ValueError(f"{sender.trace.name} and {receiver.trace.name} share no time")
        return clocks, counts, "packets sent that did not arrive, by both captures"
    if sender and sent:
        trace = sender.trace
        total = int(trace.wire_packets(trace.data.end - trace.data.start).sum())
        lost = _packets(trace, sent.repetition) - _packets(trace, sent.spurious)
        return None, (total, lost), "retransmissions that no report of the receiver shows to have been needless"
    assert receiver
    assert arrived
    trace = receiver.trace
    total = int(trace.wire_packets(trace.data.end - trace.data.start).sum())
    lost = _packets(trace, arrived.repetition)
    return None, (total + lost, lost), "retransmissions that arrived and filled a gap; lost retransmissions do not show"


def _packets(trace: Trace, which: NDArray[np.bool_]) -> int:
    """Return how many packets on the wire some of the segments are."""
    return int(trace.wire_packets((trace.data.end - trace.data.start)[which]).sum())


def _both(trace: Trace, what: str) -> bool:
    return bool(getattr(trace.sender, what) and getattr(trace.receiver, what))


def _scales(trace: Trace) -> tuple[int, int] | None:
    """Return the windows' scales, which hold if both ends offer one (RFC 7323, 2.2)."""
    if trace.sender.time is None or trace.receiver.time is None:
        return None
    of_sender, of_receiver = trace.sender.window_scale, trace.receiver.window_scale
    return (0, 0) if of_sender is None or of_receiver is None else (of_sender, of_receiver)


def _window(trace: Trace) -> NDArray[np.void]:
    """Return flight and the receiver's window at each transmission."""
    data, acks = trace.data, trace.acks
    behind = np.searchsorted(acks.time, data.time, side="right")
    acknowledged = np.concatenate([data.start[:1], np.maximum.accumulate(acks.ack)])[behind]
    window = np.zeros(data.size, WINDOW)
    window["time"] = (data.time - trace.first) / _NANOSECONDS
    window["flight"] = np.maximum(np.maximum.accumulate(data.end) - acknowledged, 0)
    scales = _scales(trace)
    factor = math.nan if scales is None else float(2 ** scales[1])
    window["receive_window"] = np.concatenate([[math.nan], acks.window * factor])[behind]
    return window


def _messages(
    at: dict[Side, _End],
    one_way: float,
    clocks: ClockFit | None,
    message_size: int | None,
    framed: Integers | None,
) -> tuple[Messages, Schedule | None, Integers, Integers]:
    """Return the messages, their schedule, and when each was read and sent first, by the sender's clock [ns]."""
    source = at.get("sender") or at["receiver"]
    data = source.trace.data
    messages = messages_of(data, message_size, framed)
    transmitted = source.pieces.time[source.pieces.holding(messages.ends)]
    receiver = at.get("receiver")
    if receiver is None:
        acks = source.trace.acks
        acknowledged = np.append(acks.time, NEVER)[acks.first_covering(messages.ends)]
        read = np.where(acknowledged == NEVER, NEVER, acknowledged - _ns(one_way))
    else:
        shifted = messages.ends - shifted_to(receiver.trace, source.trace.base)
        complete = receiver.pieces.complete[receiver.pieces.holding(shifted)]
        known = receiver.pieces.within(shifted) & (complete != NEVER)
        local = complete if clocks is None else clocks.to_sender(np.where(known, complete, receiver.trace.first))
        read = np.where(known, local, NEVER)
        if clocks is None:
            transmitted = transmitted - _ns(one_way)
    sent = transmitted < NEVER // 2
    schedule = schedule_of(transmitted) if sent.all() and transmitted.size else None
    return messages, schedule, read, transmitted


def _ns(seconds: float) -> int:
    return round(seconds * _NANOSECONDS) if math.isfinite(seconds) else 0


def _delays(
    at: dict[Side, _End], messages: Messages, schedule: Schedule | None, read: Integers, transmitted: Integers
) -> tuple[DelayKind | None, str, NDArray[np.float64]]:
    """Return what kind of delays there are, how they were measured, and the delays [s]."""
    finished = (read != NEVER) & (transmitted < NEVER // 2)
    nothing = np.empty(0, np.float64)
    if not finished.any():
        return None, "no message was delivered within the capture", nothing
    if schedule is None and "sender" not in at:
        return None, "a capture at the receiver does not show when messages of no fixed interval were sent", nothing
    ends_at = {
        ("sender", "receiver"): "to the arrival of its last byte and all before it, by both captures",
        ("sender",): "to its acknowledgement at the sender, less half the smallest round-trip time",
        ("receiver",): "to the arrival of its last byte and all before it; half the smallest round-trip time is "
        "assumed for the way there",
    }[tuple(at)]
    if schedule is None:
        delays = np.maximum((read - transmitted)[finished] / _NANOSECONDS, 0.0)
        return "transmission to read", f"from the first transmission of a message's last byte {ends_at}", delays
    origin = int(transmitted[0])
    written = schedule.first - origin + schedule.writes(messages.ends.size)
    delays = np.maximum(((read - origin)[finished] - written[finished]) / _NANOSECONDS, 0.0)
    return "write to read", f"from a message's write, as the fixed interval places it, {ends_at}", delays
