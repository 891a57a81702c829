"""Recordings read into samples: statistics of WebRTC, repeated outputs of `ss -tin`, and captures of the testbed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from tcpdelay.capture.estimate import read_recording
from tcpdelay.capture.flow_capture import MICROSECONDS, FlowCapture, FlowRun, read_capture
from tcpdelay.capture.path_sample import PathSample, times_between
from tcpdelay.capture.ss import Connection, choose_connection, parse_ss
from tcpdelay.scenario.path import Path

# The statistics of a WebRTC connection as a browser dumps them, read into samples.
#
# `RTCPeerConnection.getStats()` (W3C, "Identifiers for WebRTC's Statistics API") reports what was sent (`outbound-
# rtp`), and what the other end received of it according to its RTCP reports (`remote-inbound-rtp`). Chrome's page
# chrome://webrtc-internals saves the same values as one list per member.

_UNITS_OF_EPOCHS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e9, 1.0))
"""Smallest time stamp since 1970 in nanoseconds, microseconds, milliseconds and seconds; the units in a second."""
_MILLISECONDS = 1e3
_SMALLEST_SPACING = 20.0
"""Smallest distance of time stamps that can be milliseconds: no receiver reports more often than every 20 ms."""
_LONGEST_ROUND_TRIP = 60.0
_MEMBERS = {
    "remote-inbound-rtp": ("roundTripTime", "packetsLost", "jitter", "timestamp", "localId", "kind", "ssrc"),
    "outbound-rtp": ("packetsSent", "kind", "ssrc"),
    "candidate-pair": ("currentRoundTripTime", "nominated", "timestamp"),
}
"""Members of the reports that are read, by their type."""
Report = list[dict[str, Any]]
"""What one call of getStats returned: its dictionaries."""


def read_reports(lines: Iterable[str], name: str) -> Iterator[Report]:
    """Yield the reports in a dump, each as soon as its line is read."""
    try:
        yield from _read_reports(lines, name)
    except RecursionError:
        raise ValueError(f"{name}: is nested too deeply for statistics of getStats") from None


def _read_reports(lines: Iterable[str], name: str) -> Iterator[Report]:
    """Yield the reports in the lines of a text, whatever its depth."""
    pending: list[str] = []
    count = 0
    for line in lines:
        if not pending and not line.strip():
            continue
        try:
            value = json.loads(line) if not pending else None
        except ValueError:
            value = None
        if value is None:
            pending.append(line)
            continue
        for report in _reports(value, name):
            count += 1
            yield report
    if pending:
        if count:
            raise ValueError(f"{name}: the line after {count} reports is no JSON: {pending[0].strip()!r:.60}")
        try:
            value = json.loads("".join(pending))
        except ValueError as error:
            raise ValueError(f"{name}: no JSON as getStats or chrome://webrtc-internals gives it: {error}") from None
        yield from _reports(value, name)
    elif not count:
        raise ValueError(f"{name}: is empty; statistics of getStats are expected")


def _reports(value: Any, name: str) -> Iterator[Report]:
    """Yield the reports in one JSON value."""
    if isinstance(value, dict) and "PeerConnections" in value:
        yield from _saved_reports(value["PeerConnections"], name)
        return
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list) or not all(isinstance(each, dict | list) for each in value):
        raise ValueError(f"{name}: an array of getStats's dictionaries is expected, got {json.dumps(value):.60}")
    if any(isinstance(each, list) for each in value) or any("type" not in each for each in value):
        for each in value:
            if isinstance(each, dict) and "type" in each:
                raise ValueError(f"{name}: mixes dictionaries of getStats with whole reports")
            yield from _reports(each, name)
        return
    yield value


def _saved_reports(connections: Any, name: str) -> Iterator[Report]:
    """Yield the reports in a file of chrome://webrtc-internals: it has a list of values for each member."""
    if not isinstance(connections, dict) or not all(isinstance(each, dict) for each in connections.values()):
        raise ValueError(f"{name}: PeerConnections must be an object with an object per connection")
    keys = {place: set(dict(each.get("stats") or {})) for place, each in connections.items()}
    if any("-goog" in key for each in keys.values() for key in each):
        raise ValueError(f"{name}: {_LEGACY_CHROME}; choose the standardized getStats API on the page")
    # Pages leave connections without streams behind.
    sending = [each for place, each in connections.items() if any(key.endswith("-packetsSent") for key in keys[place])]
    if len(sending) > 1:
        sending = [each for each in sending if _has_receiver(each)] or sending
    if len(sending) != 1:
        raise ValueError(
            f"{name}: {len(sending)} of {len(connections)} peer connections send a stream; save the page with one open "
            "connection, at the end that sends, before it closes"
        )
    tables: dict[str, dict[str, Any]] = {}
    (connection,) = sending
    for key, series in dict(connection.get("stats") or {}).items():
        statistic, _, member = str(key).rpartition("-")
        kind = series.get("statsType") if isinstance(series, dict) else None
        if kind in _MEMBERS and member in _MEMBERS[kind]:
            values = series.get("values", "[]")
            try:
                values = json.loads(values) if isinstance(values, str) else values
            except ValueError:
                raise ValueError(f"{name}: the values of {key!r:.60} are no JSON array") from None
            tables.setdefault(statistic, {"type": kind})[member] = values
    length = max((len(table.get("timestamp", ())) for table in tables.values()), default=0)
    for place in range(-length, 0):
        # All series end with the last report; a statistic that began later has fewer values.
        yield [
            {"id": statistic, "type": table["type"]}
            | {member: values[place] for member, values in table.items() if member != "type" and len(values) >= -place}
            for statistic, table in tables.items()
        ]


def _has_receiver(connection: dict[str, Any]) -> bool:
    series = dict(connection.get("stats") or {}).values()
    return any(isinstance(each, dict) and each.get("statsType") == "remote-inbound-rtp" for each in series)


def stream_samples(reports: Iterable[Report], name: str, requested: str | None = None) -> Iterator[PathSample]:
    """Yield the samples of one outgoing stream."""
    chosen: object = None
    latest = -math.inf
    most_lost = 0
    unit: float | None = None
    first: PathSample | None = None
    kinds: set[str] = set()
    for report in reports:
        kinds.update(_kinds(report))
        sent = {each.get("id"): each for each in report if each.get("type") == "outbound-rtp"}
        received = [each for each in report if each.get("type") == "remote-inbound-rtp"]
        received = [each for each in received if each.get("localId") in sent and "packetsLost" in each]
        if chosen is None and received:
            chosen = _choose([(each, sent[each["localId"]]) for each in received], name, requested)
        for each in received:
            time = _number(each, "timestamp", name, 0.0)
            if each["localId"] != chosen or time <= latest:
                continue
            unit = unit or _unit_of_epoch(time) or (None if first is None else _unit_of_spacing(time - latest))
            latest = time
            # A receiver subtracts duplicates, so that the count may fall, or be below 0.
            most_lost = max(most_lost, int(_number(each, "packetsLost", name)))
            rtt = _number(each, "roundTripTime", name, 0.0) or _pair_rtt(report, name)
            if rtt > _LONGEST_ROUND_TRIP:
                raise ValueError(f"{name}: roundTripTime must be in seconds, at most 60, got {rtt:g}")
            sample = PathSample(
                source="getStats",
                time=time,
                rtt=rtt or None,
                sent=int(_number(sent[chosen], "packetsSent", name)),
                lost=most_lost,
                jitter=_number(each, "jitter", name, 0.0) or None,
            )
            if unit is None:
                # The second sample shows the unit of times since the start of the page.
                first = sample
                continue
            for each_sample in (first, sample):
                if each_sample is not None:
                    yield replace(each_sample, time=each_sample.time / unit)
            first = None
    if first is not None:
        yield replace(first, time=first.time / _MILLISECONDS)
    if chosen is None:
        raise ValueError(f"{name}: {_reason_without_receiver(kinds)}")


def _unit_of_epoch(time: float) -> float | None:
    """Return how many units of a time stamp since 1970 make a second; None for other time stamps."""
    return next((unit for smallest, unit in _UNITS_OF_EPOCHS if time >= smallest), None)


def _unit_of_spacing(spacing: float) -> float:
    """Return how many units of time stamps at this distance make a second: they are milliseconds or seconds."""
    return _MILLISECONDS if spacing >= _SMALLEST_SPACING else 1.0


_LEGACY_CHROME = "holds the statistics (goog...) that Chrome had before version 117 beside the standard"


def _kinds(report: Report) -> Iterator[str]:
    """Yield the types of a report, and which older form it has."""
    for each in report:
        yield str(each.get("type"))
        if any(str(member).startswith("goog") for member in each):
            yield "goog"
        if "isRemote" in each or "mozRtt" in each:
            yield "isRemote"


def _reason_without_receiver(kinds: Set[str]) -> str:
    """Return why statistics hold no report of the receiver of a stream, and what to do."""
    if "goog" in kinds or "ssrc" in kinds:
        return f"{_LEGACY_CHROME}; save await peerConnection.getStats(), without a callback"
    if kinds & {"isRemote", "inboundrtp", "outboundrtp"}:
        return "holds statistics of an old Firefox (before 68) without remote-inbound-rtp; save them in a newer browser"
    if kinds & {"inbound-rtp", "remote-outbound-rtp"} and not kinds & {"outbound-rtp", "remote-inbound-rtp"}:
        return "holds the statistics of the end that receives (inbound-rtp); save them at the end that sends"
    return (
        "no report of a receiver (remote-inbound-rtp with its outbound-rtp); save the statistics at the end that "
        "sends, some seconds after the start"
    )


def _choose(streams: list[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str, requested: str | None) -> object:
    """Return the id of the only stream, or of the requested one."""

    def named(stream: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[str]:
        return [str(part.get(member)) for part in stream for member in ("kind", "ssrc") if member in part]

    matching = [stream for stream in streams if requested is None or requested in named(stream)]
    if len(matching) == 1:
        return matching[0][0]["localId"]
    listed = ", ".join(" ".join(dict.fromkeys(named(stream))) for stream in streams[:10])
    if requested is None:
        raise ValueError(f"{name}: {len(streams)} streams, choose one by its kind or SSRC: {listed}")
    raise ValueError(f"{name}: {len(matching)} streams match {requested!r:.60}; it holds {listed}")


def _pair_rtt(report: Report, name: str) -> float:
    """Return the round-trip time of the nominated candidate pair [s]; 0 if it is not known."""
    pairs = [each for each in report if each.get("type") == "candidate-pair" and each.get("nominated")]
    return max((_number(each, "currentRoundTripTime", name, 0.0) for each in pairs), default=0.0)


def _number(values: Mapping[str, Any], member: str, name: str, default: float | None = None) -> float:
    found = values.get(member, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e19:
        raise ValueError(f"{name}: {member} of {values.get('type')} must be a number, got {found!r:.60}")
    if found < 0 and member != "packetsLost":
        raise ValueError(f"{name}: {member} of {values.get('type')} must be 0 or more, got {found!r:.60}")
    return float(found)


# Recordings replayed: repeated outputs of `ss -tin`, and captures of the testbed, as samples in the order of time.

_TIME = re.compile(r"^(\d{1,10}(?:\.\d{1,9})?)\s*$", re.MULTILINE)
_CAPTURE_BEGINNING = b"PAR1"


def read_replay(file: str, requested: str | None = None) -> Iterator[tuple[PathSample, Connection | None]]:
    """Yield the samples of one connection in a recording."""
    if _is_capture(file):
        capture = read_capture(file)
        for sample in run_samples(capture, capture.runs[0]):
            yield sample, None
        return
    yield from recorded_samples(read_recording(file, "ss"), file, requested)


def _is_capture(file: str) -> bool:
    try:
        with FilePath(file).open("rb") as opened:
            return opened.read(len(_CAPTURE_BEGINNING)) == _CAPTURE_BEGINNING
    except (OSError, ValueError):
        # `read_recording` says why.
        return False


def recorded_samples(
    text: str, name: str, requested: str | None = None
) -> Iterator[tuple[PathSample, Connection | None]]:
    """Yield the samples of one connection in repeated outputs of `ss -tin`."""
    _, *parts = _TIME.split(text)
    if not parts:
        raise ValueError(f"{name}: no line with a time, as 'date +%s.%N' prints it, stands before an output of ss")
    ends: tuple[str, str] | None = None
    for time, output in zip(parts[::2], parts[1::2], strict=True):
        if not output.strip():
            continue
        connections = parse_ss(output, f"{name} at {time}")
        if ends is None:
            chosen = choose_connection(connections, requested, name)
            ends = chosen.local, chosen.peer
        found = [each for each in connections if (each.local, each.peer) == ends]
        if not found:
            return
        yield PathSample.of_connection(found[0], float(time)), found[0]
    if ends is None:
        raise ValueError(f"{name}: no output of ss follows the times")


def run_samples(capture: FlowCapture, run: FlowRun, start: float = 0.0, interval: float = 1.0) -> list[PathSample]:
    """Return what `ss` would have shown of a measured flow, once at a random moment of each interval.

    Round-trip time and retransmissions are the sampled TCP_INFO. A capture does not hold the numbers of segments sent
    and delivered at a time. The segments sent are the share of the packets written, times the number of segments of the
    run (OutSegs), and the retransmissions. The losses are the share of the retransmissions, times the losses of the
    run: all segments sent that the kernel does not count as delivered, less one for the SYN. The backlog holds the
    packets that are not read, or whose acknowledgement takes its way back.
    """
    columns = run.samples
    if run.messages is not None:
        raise ValueError(f"{capture.name}: has messages of several sizes; a replay needs packets of one size")
    if not columns.get("time", np.empty(0)).size:
        raise ValueError(f"{capture.name}: holds no samples of TCP_INFO")
    if columns["connection"].max():
        raise ValueError(f"{capture.name}: has several connections; a replay follows one")
    size, way_back = capture.settings["packet_size"], Path(capture.settings["rtt"], 0.0).forward_delay
    sampled, written = columns["time"] / MICROSECONDS, run.written / MICROSECONDS
    # The application reads in order, so times of acknowledgements are sorted.
    acknowledged = np.maximum.accumulate(written + run.delays) + way_back
    segments = run.counters.get("OutSegs", written.size) / written.size
    losses_per_retransmission = _losses_per_retransmission(run.counters)
    found = []
    for time in times_between(max(start, sampled[0]), min(sampled[-1], written[-1]), interval, run.seed):
        place = int(np.searchsorted(sampled, time, side="right")) - 1
        before, done = np.searchsorted(written, time, side="right"), np.searchsorted(acknowledged, time, side="right")
        retransmitted = int(columns["retransmits"][place])
        found.append(
            PathSample(
                source="testbed",
                time=float(time),
                rtt=float(columns["rtt"][place]) / MICROSECONDS or None,
                sent=round(int(before) * segments) + retransmitted,
                lost=round(retransmitted * losses_per_retransmission),
                backlog=int(before - done) * size,
                acknowledged=int(done) * size,
                congestion_window=int(columns["cwnd"][place]),
            )
        )
    return found


def _losses_per_retransmission(counters: Mapping[str, int]) -> float:
    """Return the quotient of the kernel's counters; 1 if it did not count them."""
    sent, delivered, again = (counters.get(name, 0) for name in ("TCPOrigDataSent", "TCPDelivered", "RetransSegs"))
    return max(sent + again - delivered + 1, 0) / again if sent and delivered and again else 1.0
