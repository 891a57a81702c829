"""The statistics of a WebRTC connection as a browser dumps them, read into samples.

`RTCPeerConnection.getStats()` (W3C, "Identifiers for WebRTC's Statistics API") reports what was sent (`outbound-
rtp`), and what the other end received of it according to its RTCP reports (`remote-inbound-rtp`). Chrome's page
chrome://webrtc-internals saves the same values as one list per member.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from tcpdelay.capture.estimate import PathSample

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
            if unit is None:
                unit = next((in_a_second for smallest, in_a_second in _UNITS_OF_EPOCHS if time >= smallest), None)
            if unit is None and first is not None:
                unit = _MILLISECONDS if time - latest >= _SMALLEST_SPACING else 1.0
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
