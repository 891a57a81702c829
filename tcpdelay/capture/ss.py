"""The output of `ss -tin`, read into one path estimate per TCP connection.

The format is that of iproute2: one line per socket, then its TCP information as words and `key:value` pairs. Only what
is set is printed, so a missing counter is 0. No library reads this part: the `ss` parser of jc stops at the socket.
"""

from __future__ import annotations

import io
import os
import re
from decimal import Decimal
from typing import Any

from tcpdelay.capture.connection import Connection, choose_connection
from tcpdelay.capture.recording import read_recording

_COUNT = re.compile(r"\d{1,19}")
_DECIMAL = re.compile(r"\d{1,12}(?:\.\d{1,9})?(?:e[-+]\d\d)?")
_RATE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?(?:e[-+]\d\d)?)([KkMGT]?)bps")
_RATE_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_OPTIONS = {"ts", "usec_ts", "sack", "ecn", "ecnseen", "fastopen"}
_COUNTERS = {
    "mss": "mss",
    "cwnd": "congestion_window",
    "ssthresh": "slow_start_threshold",
    "bytes_sent": "bytes_sent",
    "bytes_retrans": "bytes_retransmitted",
    "segs_out": "segments_out",
    "data_segs_out": "data_segments_out",
    "data_segs_in": "data_segments_in",
    "delivered": "delivered",
    "lost": "marked_lost",
    "dsack_dups": "spurious_retransmissions",
}
_RATES = {"send": "send_rate", "delivery_rate": "delivery_rate"}


def read_ss(path: str | os.PathLike[str], connection: str | None = None) -> Connection:
    """Return the one connection in a file that `ss -tin` wrote, or the one asked for.

    Parameters
    ----------
    path : str or path-like
        The file, at most 64 MiB.
    connection : str, optional
        The local or the peer end, or a part of it, such as "10.0.0.2:5001".

    Returns
    -------
    Connection
        A connection whose `estimate` succeeds: the only such one that matches.

    Raises
    ------
    ValueError
        If the file cannot be read or holds no connection, if none or several match (the message lists them), or if the
        only one shows no round-trip time or sent no data.
    """
    return choose_connection(read_connections(path), connection, os.fspath(path))


def read_connections(path: str | os.PathLike[str]) -> list[Connection]:
    """Return all connections in a file that `ss -tin` wrote; see `parse_ss`."""
    return parse_ss(read_recording(path, "ss"), os.fspath(path))


def parse_ss(text: str, name: str = "ss output") -> list[Connection]:
    """Return all TCP connections that `ss -tin` printed, in the order of their first appearance.

    Any of the options -e, -m, -n, -o, -p, -H and -O may have been given too. Listening sockets are left out. If the
    output of several calls is joined, the last state of each connection counts, as its counters are running totals.

    Parameters
    ----------
    text : str
        The output.
    name : str
        What the text is called in messages, such as the name of its file.

    Returns
    -------
    list of Connection
        At least one.

    Raises
    ------
    ValueError
        If there is no connection, a number is malformed, or the text ends in the middle of a connection.

    Examples
    --------
    >>> (connection,) = parse_ss('''
    ... ESTAB 0  870  10.0.0.1:38590  10.0.0.2:5001
    ...   cubic wscale:6,6 rto:310 rtt:101/1.287 mss:1448 cwnd:4 data_segs_out:2883 retrans:0/50 minrtt:100
    ... ''')
    >>> connection.peer, connection.congestion_control, connection.rtt, connection.retransmissions
    ('10.0.0.2:5001', 'cubic', 0.101, 50)
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    facts: dict[str, Any] | None = None
    number = 0
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.isspace():
            continue
        ends, rest = _socket(line)
        if ends is not None:
            facts = rows[ends] = {}
        if facts is not None:
            _read_information(rest, facts, f"{name}: line {number}")
    # The kernel prints these behind the retransmissions; without them a number may be cut, and losses missing.
    if facts and "rtt" in facts and not text.endswith("\n") and not facts.keys() & {"rtt_min", "receive_space"}:
        raise ValueError(f"{name}: line {number}: the output of ss is cut off here")
    connections = []
    for (local, peer), row in rows.items():
        row.pop("receive_space", None)
        if not peer.endswith(":*"):
            connections.append(Connection(local=local, peer=peer, **row))
    if not connections:
        raise ValueError(f"{name}: no TCP connection as 'ss -tin' prints it")
    return connections


def _socket(line: str) -> tuple[tuple[str, str] | None, str]:
    """Return the two ends, if the line starts a socket, and the rest of the line.

    Before the ends stand the two queue lengths, before these the state and the protocol, unless left out by ss.
    """
    words = line.split(maxsplit=6)
    for first in range(min(3, len(words) - 3)):
        receive_queue, send_queue, local, peer = words[first : first + 4]
        if _COUNT.fullmatch(receive_queue) and _COUNT.fullmatch(send_queue) and ":" in local and ":" in peer:
            behind = line.split(maxsplit=first + 4)
            return (local, peer), behind[-1] if len(behind) > first + 4 else ""
    return None, line


def _read_information(line: str, facts: dict[str, Any], place: str) -> None:
    """Add to `facts` what one line says."""
    before = ""
    for word in _without_processes(line).split():
        key, colon, value = word.partition(":")
        if key in ("wscale", "rto") and colon and "congestion_control" not in facts and _is_name(before):
            facts["congestion_control"] = before
        if before in _RATES:
            facts[_RATES[before]] = _rate(word, place)
        elif word == "app_limited":
            facts["app_limited"] = True
        elif colon and key in _COUNTERS:
            facts[_COUNTERS[key]] = _count(value, word, place)
        elif colon and key == "rcv_space":
            facts["receive_space"] = True
        elif colon and key == "rto":
            facts["retransmission_timeout"] = _seconds(value, word, place)
        elif colon and key == "minrtt":
            facts["rtt_min"] = _seconds(value, word, place)
        elif colon and key == "rtt":
            smoothed, _, deviation = value.partition("/")
            facts["rtt"], facts["rtt_deviation"] = _seconds(smoothed, word, place), _seconds(deviation, word, place)
        elif colon and key == "retrans":
            in_flight, _, total = value.partition("/")
            facts["retransmissions_in_flight"] = _count(in_flight, word, place)
            facts["retransmissions"] = _count(total, word, place)
        before = word


def _without_processes(line: str) -> str:
    """Return the line without what -p adds, as the name of a process is any text."""
    start, end = line.find("users:(("), line.rfind("))")
    return line if start < 0 or end < start else line[:start] + line[end + 2 :]


def _is_name(word: str) -> bool:
    return bool(word) and ":" not in word and word not in _OPTIONS and word[0].isalpha()


def _count(digits: str, word: str, place: str) -> int:
    if not _COUNT.fullmatch(digits):
        raise ValueError(f"{place}: {word!r:.60} is malformed: a whole number is expected")
    return int(digits)


def _seconds(milliseconds: str, word: str, place: str) -> float:
    if not _DECIMAL.fullmatch(milliseconds):
        raise ValueError(f"{place}: {word!r:.60} is malformed: a number of milliseconds is expected")
    return float(Decimal(milliseconds).scaleb(-3))


def _rate(word: str, place: str) -> float:
    match = _RATE.fullmatch(word)
    if match is None:
        raise ValueError(f"{place}: {word!r:.60} is malformed: a rate in bps is expected")
    return float(match[1]) * _RATE_PREFIXES[match[2]]
