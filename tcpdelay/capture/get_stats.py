"""The statistics of a WebRTC connection as a browser dumps them, read into samples.

`RTCPeerConnection.getStats()` (W3C, "Identifiers for WebRTC's Statistics API") reports what was sent (`outbound-rtp`),
and what the other end received of it according to its RTCP reports (`remote-inbound-rtp`). Chrome's page
chrome://webrtc-internals saves the same values as one list per member.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tcpdelay.capture.path_sample import PathSample

_MILLISECONDS = 1e3
_MEMBERS = {
    "remote-inbound-rtp": ("roundTripTime", "packetsLost", "jitter", "timestamp", "localId", "kind", "ssrc"),
    "outbound-rtp": ("packetsSent", "kind", "ssrc"),
    "candidate-pair": ("currentRoundTripTime", "nominated", "timestamp"),
}
"""Members of the reports that are read, by their type."""
Report = list[dict[str, Any]]
"""What one call of getStats returned: its dictionaries."""


def read_reports(lines: Iterable[str], name: str) -> Iterator[Report]:
    """Yield the reports in a dump, each as soon as its line is read.

    Parameters
    ----------
    lines : iterable of str
        One report per line as JSON; or any of these as a single JSON text: a report, an array of reports, the file that
        chrome://webrtc-internals saves. A report is the array of getStats's dictionaries, or an object with the
        dictionaries by their ids.
    name : str
        Name of the dump in messages.

    Raises
    ------
    ValueError
        If the text is no JSON, or holds no report.

    Examples
    --------
    >>> [report] = read_reports(['[{"type": "outbound-rtp", "id": "O", "packetsSent": 5}]'], "stats.json")
    >>> report[0]["packetsSent"]
    5
    """
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
    tables: dict[str, dict[str, Any]] = {}
    known = isinstance(connections, dict) and all(isinstance(each, dict) for each in connections.values())
    if not known or len(connections) != 1:
        count = len(connections) if known else 0
        raise ValueError(f"{name}: holds {count} peer connections; save the page with one open connection")
    (connection,) = connections.values()
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


def stream_samples(reports: Iterable[Report], name: str, requested: str | None = None) -> Iterator[PathSample]:
    """Yield the samples of one outgoing stream.

    Parameters
    ----------
    reports : iterable of list
        The reports, as `read_reports` yields them.
    name : str
        Name of the dump in messages.
    requested : str, optional
        The kind ("audio", "video") or the SSRC of the stream, if there are several.

    Yields
    ------
    PathSample
        A sample for each report of the receiver; its round-trip time is that of the stream, or else of the nominated
        candidate pair.

    Raises
    ------
    ValueError
        If no stream or several streams match, no report of a receiver comes, or a value is no number.

    Examples
    --------
    >>> received = {"type": "remote-inbound-rtp", "localId": "O", "roundTripTime": 0.08, "packetsLost": 3}
    >>> sent = {"type": "outbound-rtp", "id": "O", "packetsSent": 900}
    >>> [sample] = stream_samples([[received | {"timestamp": 5000.0}, sent]], "stats.json")
    >>> sample.rtt, sample.sent, sample.lost, sample.time
    (0.08, 900, 3, 5.0)
    """
    chosen: object = None
    latest = -1.0
    most_lost = 0
    for report in reports:
        sent = {each.get("id"): each for each in report if each.get("type") == "outbound-rtp"}
        received = [each for each in report if each.get("type") == "remote-inbound-rtp"]
        received = [each for each in received if each.get("localId") in sent and "packetsLost" in each]
        if chosen is None and received:
            chosen = _choose([(each, sent[each["localId"]]) for each in received], name, requested)
        for each in received:
            time = _number(each, "timestamp", name, 0.0) / _MILLISECONDS
            if each["localId"] != chosen or time <= latest:
                continue
            latest = time
            # A receiver subtracts duplicates, so that the count may fall, or be below 0.
            most_lost = max(most_lost, int(_number(each, "packetsLost", name)))
            rtt = _number(each, "roundTripTime", name, 0.0) or _pair_rtt(report, name)
            yield PathSample(
                source="getStats",
                time=time,
                rtt=rtt or None,
                sent=int(_number(sent[chosen], "packetsSent", name)),
                lost=most_lost,
                jitter=_number(each, "jitter", name, 0.0) or None,
            )
    if chosen is None:
        raise ValueError(
            f"{name}: no report of a receiver (remote-inbound-rtp with its outbound-rtp); save the statistics at the "
            "end that sends, some seconds after the start"
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
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e18:
        raise ValueError(f"{name}: {member} of {values.get('type')} must be a number, got {found!r:.60}")
    return float(found)
