"""The output of `ss -tin`, of a file or a live connection, read into one path estimate per TCP connection.

iproute2 prints one line per socket, and then its TCP information as words and `key:value` pairs. `ss` prints only
counters above 0, so a missing counter is 0. No library reads the TCP information: the `ss` parser of jc reads only the
line of the socket.
"""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Any

from tcpdelay.capture.estimate import PathEstimate, PathSample, read_recording

_MOST_LISTED = 10
_TIME = re.compile(r"^(\d{1,10}(?:\.\d{1,9})?)\s*$", re.MULTILINE)
_COUNT = re.compile(r"\d{1,19}")
_DECIMAL = re.compile(r"\d{1,12}(?:\.\d{1,9})?(?:e[-+]\d\d)?")
_RATE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?(?:e[-+]\d\d)?)([KkMGT]?)bps")
_RATE_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_OPTIONS = {"ts", "usec_ts", "sack", "ecn", "ecnseen", "fastopen"}
_COUNTERS = {
    "backoff": "backoff",
    "mss": "mss",
    "cwnd": "congestion_window",
    "ssthresh": "slow_start_threshold",
    "bytes_sent": "bytes_sent",
    "bytes_retrans": "bytes_retransmitted",
    "bytes_acked": "bytes_acknowledged",
    "segs_out": "segments_out",
    "data_segs_out": "data_segments_out",
    "data_segs_in": "data_segments_in",
    "delivered": "delivered",
    "unacked": "unacknowledged",
    "sacked": "selectively_acknowledged",
    "lost": "marked_lost",
    "notsent": "unsent_bytes",
    "dsack_dups": "spurious_retransmissions",
}
_RATES = {"send": "send_rate", "delivery_rate": "delivery_rate"}
_SOCKET_WORDS = "tcp ESTAB SYN-SENT SYN-RECV FIN-WAIT-1 FIN-WAIT-2 TIME-WAIT UNCONN CLOSE-WAIT LAST-ACK LISTEN CLOSING"
_STATES = frozenset(_SOCKET_WORDS.split())
_HEADER = frozenset({"State", "Netid"})
_BARE_WORDS = {*_OPTIONS, *_RATES, "pacing_rate", "max_pacing_rate", "app_limited"}
_OTHER_KEYS = (
    "wscale rto rtt ato pmtu rcvmss advmss bytes_received segs_in dctcp bbr lastsnd lastrcv lastack delivered_ce busy "
    "rwnd_limited sndbuf_limited retrans fackets reordering rcv_rtt rcv_space rcv_ssthresh minrtt reord_seen "
    "rcv_ooopack snd_wnd rcv_wnd rehash skmem users timer uid ino sk cgroup"
)
_KEYS = {*_COUNTERS, *_OTHER_KEYS.split()}
"""Words and keys that ss of iproute2 prints behind the ends of a connection (`tcp_stats_print` in misc/ss.c)."""
_END = re.compile(r"(?:\[[^\s\]]{1,80}\]|[^\s\[\]]{1,80}):(?:\d{1,5}|\*|[a-z][\w-]*)")
_IPV4_END = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?:%[^\s:]{1,16})?:(?:\d{1,5}|\*|[a-z][\w-]*)")
_WITHIN_A_WORD = re.compile(r"[\d.,/:%)].*|[KMGT]?b?ps|m?s")
"""First word of a line that cannot begin a word of ss: a bare number, the end of a number, or a unit."""
_WATCH = re.compile(r"\s*\S[^\n:]{0,40}\d[.,]\ds: [^\n]*\bss\b")
"""The title that watch prints over the output of ss, in any language."""
_LONGEST_WRAPPED_HEAD = 10
"""Number of lines over which a terminal may spread the ends of a connection."""
_DEFAULT_RTO_MIN, _LONGEST_TICK = 0.2, 0.011
"""Minimum of the retransmission timeout beyond the round-trip time, and its error by the timer of the kernel [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP connection in the output of `ss -tin`; a value is None if `ss` did not print it."""

    # local, peer: Address and port of both ends, as printed.
    local: str
    peer: str
    congestion_control: str | None = None  # Name of the congestion control
    # rtt, rtt_deviation, rtt_min: Smoothed round-trip time, its smoothed mean deviation, and the smallest round-trip
    # time of the last minutes [s].
    rtt: float | None = None
    rtt_deviation: float | None = None
    rtt_min: float | None = None
    retransmission_timeout: float | None = None  # Current retransmission timeout [s]
    backoff: int = 0  # Number of times that the retransmission timeout is doubled at present
    mss: int | None = None  # Largest segment payload [bytes]
    # congestion_window, slow_start_threshold: Congestion window and slow-start threshold [segments].
    congestion_window: int | None = None
    slow_start_threshold: int | None = None
    # bytes_sent, bytes_retransmitted: Payload sent, including retransmissions, and payload retransmitted [bytes].
    bytes_sent: int | None = None
    bytes_retransmitted: int | None = None
    # segments_out, data_segments_out, data_segments_in: Numbers of segments sent, and of data segments sent and
    # received, all including retransmissions.
    segments_out: int | None = None
    data_segments_out: int | None = None
    data_segments_in: int | None = None
    # retransmissions_in_flight, retransmissions: Numbers of retransmitted segments that are not acknowledged yet, and
    # of all retransmitted segments.
    retransmissions_in_flight: int = 0
    retransmissions: int = 0
    # unacknowledged, selectively_acknowledged: Numbers of segments that are sent and not acknowledged in order, and
    # of those that a SACK reported as arrived.
    unacknowledged: int = 0
    selectively_acknowledged: int = 0
    marked_lost: int | None = None  # Number of unacknowledged segments that the sender considers lost
    # Number of retransmissions that the receiver reported as duplicates (D-SACK).
    spurious_retransmissions: int | None = None
    # Number of segments that arrived, with the SYN, and with retransmissions that arrived as duplicates.
    delivered: int | None = None
    # send_rate, delivery_rate: Congestion window divided by the round-trip time, and the last measured delivery rate
    # [bit/s].
    send_rate: float | None = None
    delivery_rate: float | None = None
    app_limited: bool = False  # Whether the delivery rate was limited by the application
    send_queue: int | None = None  # Payload in the send buffer that is not acknowledged, sent or not [bytes] (Send-Q)
    unsent_bytes: int = 0  # Payload in the send buffer that has not been sent once [bytes]
    bytes_acknowledged: int | None = None  # Payload acknowledged [bytes]

    @property
    def segments_sent(self) -> int | None:
        """Number of segments for the loss: data segments, or all segments if the kernel (before 4.6) lacks this count.

        A kernel that counts received data segments also counts sent data segments, and does not print a count of 0.
        """
        if self.data_segments_out is None and self.data_segments_in is None:
            return self.segments_out
        return self.data_segments_out

    @property
    def segments_lost(self) -> int:
        """Number of lost segments: those sent that have not arrived and are no longer in flight.

        The kernel counts a segment as delivered when it is acknowledged, by a SACK too, and a spurious retransmission
        when a D-SACK reports it (`tcp_dsack_seen`); one delivery is the SYN (`tcp_rcv_synsent_state_process`). Segments
        in flight are those of `tcp_packets_in_flight`. The difference also counts the small segments that one
        retransmission repeats together. A kernel that does not print these counts (before 4.18) leaves the
        retransmissions without reported duplicates. A loss that was not repaired yet is not counted before the first
        retransmission.
        """
        if self.delivered is None or self.data_segments_out is None or not self.retransmissions:
            return max(self.retransmissions - (self.spurious_retransmissions or 0), 0)
        left = self.selectively_acknowledged + (self.marked_lost or 0)
        in_flight = self.unacknowledged - left + self.retransmissions_in_flight
        return max(self.data_segments_out - (self.delivered - 1) - in_flight, 0)

    @property
    def shortcoming(self) -> str | None:
        """The reason why no path can be estimated from this connection; None if a path can be estimated."""
        if not self.rtt:
            return "shows no round-trip time (was it recorded with the option -i, as in 'ss -tin'?)"
        if self.segments_out is None and self.data_segments_out is None and self.data_segments_in is None:
            return (
                "shows no numbers of segments, because its kernel or its ss does not count them (before Linux 4.2): "
                "measure with ping or a capture"
            )
        if not self.segments_sent:
            return "has sent no data, so its loss is unknown; record at the end that sends"
        if max(self.retransmissions, self.segments_lost) >= self.segments_sent:
            return (
                f"has sent {self.segments_sent} segments, {self.retransmissions} of them again: too few to predict from"
            )
        return None

    @property
    def timeout_beyond_rtt(self) -> float | None:
        """Time that the retransmission timeout adds to the round-trip time [s]; None if it is the minimum of Linux.

        The kernel adds its mean deviation, at least 200 ms, and rounds up to a tick of its timer (`__tcp_set_rto`).
        """
        if self.retransmission_timeout is None or self.rtt is None:
            return None
        beyond = self.retransmission_timeout / 2 ** min(self.backoff, 30) - self.rtt
        return beyond if beyond > 0 and abs(beyond - _DEFAULT_RTO_MIN) > _LONGEST_TICK else None

    def estimate(self) -> PathEstimate:
        """Return the path estimate of this connection.

        The round-trip time is the kernel's smoothed RTT: it shows the last dozen acknowledgements, not the whole
        connection. The loss is the share of lost segments among all data segments sent. It is an upper estimate: a
        spurious retransmission counts as a loss if the acknowledgement that reports the duplicate was lost.
        """
        if self.rtt is None or self.segments_sent is None or self.shortcoming:
            raise ValueError(f"the connection {_listed([self])} {self.shortcoming}")
        return PathEstimate(
            source="ss",
            rtt=self.rtt,
            sent=self.segments_sent,
            lost=self.segments_lost,
            rtt_min=self.rtt_min,
            rtt_deviation=self.rtt_deviation,
            timeout_beyond_rtt=self.timeout_beyond_rtt,
            mss=self.mss,
            congestion_window=self.congestion_window,
        )

    def sample(self, time: float) -> PathSample:
        """Return what the connection says of its path; `time` is when `ss` was run [s], by any clock."""
        return PathSample(
            source="ss",
            time=time,
            rtt=self.rtt or None,
            sent=self.segments_sent or 0,
            lost=self.segments_lost,
            backlog=self.send_queue,
            unsent=self.unsent_bytes,
            acknowledged=self.bytes_acknowledged,
            mss=self.mss,
            congestion_window=self.congestion_window,
        )


def choose_connection(connections: Sequence[Connection], requested: str | None, name: str) -> Connection:
    """Return the requested connection, or the only connection from which a path can be estimated."""
    matches = list(connections)
    if requested is not None:
        whole = [found for found in connections if requested in (found.local, found.peer)]
        matches = whole or [found for found in connections if requested in found.local or requested in found.peer]
        if not matches:
            raise ValueError(f"{name}: no connection matches {requested!r:.60}; it holds {_listed(connections)}")
    usable = [found for found in matches if found.shortcoming is None]
    if len(usable) == 1:
        return usable[0]
    if len(matches) == 1:
        raise ValueError(f"{name}: the connection {_listed(matches)} {matches[0].shortcoming}")
    if not usable:
        raise ValueError(
            f"{name}: no path can be estimated from any of {len(matches)} connections; "
            f"the first, {_listed(matches[:1])}, {matches[0].shortcoming}"
        )
    matching = "" if requested is None else f" that match {requested!r:.60}"
    raise ValueError(f"{name}: {len(usable)} connections{matching}, choose one by its address: {_listed(usable)}")


def _listed(connections: Sequence[Connection]) -> str:
    ends = [f"{found.local[:60]} -> {found.peer[:60]}" for found in connections[:_MOST_LISTED]]
    more = len(connections) - len(ends)
    return ", ".join(ends) + (f" and {more} more" if more else "")


def read_ss(path: str | os.PathLike[str], connection: str | None = None) -> Connection:
    """Return the only connection, or the requested connection, in a file with the output of `ss -tin`.

    Parameters
    ----------
    path : str or path-like
        The file, at most 64 MiB.
    connection : str, optional
        The local or the peer end, or a part of it, such as "10.0.0.2:5001".

    Returns
    -------
    Connection
        The only matching connection whose `estimate` succeeds.

    Raises
    ------
    ValueError
        If the file cannot be read or holds no connection; if no connection or several connections match (the message
        lists them); if the only match shows no round-trip time or sent no data.
    """
    return choose_connection(read_connections(path), connection, os.fspath(path))


def read_connections(path: str | os.PathLike[str]) -> list[Connection]:
    """Return all connections in a file with the output of `ss -tin`; see `parse_ss`."""
    return parse_ss(read_recording(path, "ss"), os.fspath(path))


def parse_ss(text: str, name: str = "ss output") -> list[Connection]:
    """Return all TCP connections in the output of `ss -tin`, in the order of their first appearance.

    `ss` may also have had the options -e, -m, -n, -o, -p, -H and -O. Lines that a terminal wrapped, also within words
    and numbers, are joined. Listening sockets are left out. If the text joins the output of several calls, the last
    state of each connection counts, because its counters are running totals.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    facts: dict[str, Any] | None = None
    number = 0
    for number, line in _records(text):
        ends, queued, rest = _socket(line)
        if ends is not None:
            facts = rows[ends] = {"send_queue": queued}
        if facts is not None:
            _read_information(rest, facts, f"{name}: line {number}")
    # `ss` prints these values behind the retransmissions. Without them, a number or the losses may be cut off.
    unended = [row for row in rows.values() if "rtt" in row and not row.keys() & {"rtt_min", "receive_space"}]
    if facts in unended and not text.endswith("\n"):
        raise ValueError(f"{name}: line {number}: the output of ss is cut off here")
    if unended and _WATCH.match(text):
        raise ValueError(
            f"{name}: watch has cut the lines of ss at the edge of the screen; record into a file (ss -tin > ss.txt)"
        )
    connections = []
    for (local, peer), row in rows.items():
        row.pop("receive_space", None)
        if not peer.endswith(":*"):
            connections.append(Connection(local=local, peer=peer, **row))
    if not connections:
        raise ValueError(f"{name}: no TCP connection as 'ss -tin' prints it")
    return connections


def _records(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of each socket as one line, joined where a terminal wrapped it, with the number of the last."""
    parts: list[str] = []
    last = ""
    number = 0
    for following, line in enumerate(io.StringIO(text), start=1):
        if line.isspace():
            last = ""
            continue
        words = line.split()
        head = "".join(parts) if 0 < len(parts) <= _LONGEST_WRAPPED_HEAD else ""
        if words[0] in _STATES | _HEADER or (_socket(line)[0] is not None and not _awaits_ends(head)):
            if parts:
                yield number, "".join(parts)
            parts, within = [], True
        elif _awaits_ends(head):
            within = not _has_ends(f"{head} {line}") and (
                _has_ends(head + line.lstrip()) or (bool(last) and _is_one_end(head, words[0]))
            )
        else:
            within = bool(last) and _is_one_word(last, words[0])
        parts.append(line.strip() if within else f" {line.strip()}")
        last = (last if within and len(words) == 1 and len(parts) > 1 else "") + words[-1]
        if line.rstrip("\r\n")[-1].isspace():
            last = ""
        number = following
    if parts:
        yield number, "".join(parts)


def _is_one_word(last: str, first: str) -> bool:
    """Return whether the last word of a line and the first word of the next line are parts of one word."""
    joined = last + first
    if last in _BARE_WORDS or _IPV4_END.fullmatch(first):
        return joined in _BARE_WORDS
    if last.count("(") > last.count(")") or _WITHIN_A_WORD.fullmatch(first):
        return True
    return joined in _BARE_WORDS or (":" not in last and joined.partition(":")[0] in _KEYS)


def _awaits_ends(head: str) -> bool:
    """Return whether a line begins with the state of a socket and lacks its ends."""
    return bool(head) and head.split(maxsplit=1)[0] in _STATES and not _has_ends(head)


def _has_ends(line: str) -> bool:
    """Return whether a line begins a socket and has both ends as addresses with ports."""
    ends = _socket(line)[0]
    return ends is not None and all(map(_END.fullmatch, ends))


def _is_one_end(head: str, first: str) -> bool:
    """Return whether the first word of a line continues the last word of the queue lengths and ends before it."""
    words = head.split()
    while words and not words[0].isdigit():
        del words[0]
    if len(words) < 3:
        return False
    return first.isdigit() or _END.fullmatch(words[-1]) is None


def _socket(line: str) -> tuple[tuple[str, str] | None, int, str]:
    """Return the two ends and the send queue [bytes], if the line starts a socket, and the rest of the line."""
    words = line.split(maxsplit=6)
    for first in range(min(3, len(words) - 3)):
        receive_queue, send_queue, local, peer = words[first : first + 4]
        if any(word[0].isdigit() for word in words[:first]):
            break
        if _COUNT.fullmatch(receive_queue) and _COUNT.fullmatch(send_queue) and ":" in local and ":" in peer:
            behind = line.split(maxsplit=first + 4)
            return (local, peer), int(send_queue), behind[-1] if len(behind) > first + 4 else ""
    return None, 0, line


def _read_information(line: str, facts: dict[str, Any], place: str) -> None:
    """Add the values in one line to `facts`."""
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
        elif _DECIMAL.fullmatch(word) and ":" in before:
            raise ValueError(
                f"{place}: {word!r:.60} follows {before!r:.60}, as where a terminal wrapped the lines within a number; "
                "record again into a file (ss -tin > ss.txt)"
            )
        before = word


def _without_processes(line: str) -> str:
    """Return the line without the processes that the option -p adds, because their names can be any text."""
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


def recorded_samples(
    text: str, name: str, requested: str | None = None
) -> Iterator[tuple[PathSample, Connection | None]]:
    """Yield the samples of one connection in repeated outputs of `ss -tin`."""
    _, *parts = _TIME.split(text)
    if not parts:
        raise ValueError(f"{name}: no line with a time, as 'date +%s.%N' prints it, stands before an output of ss")
    ends: tuple[str, str] | None = None
    for at, output in zip(parts[::2], parts[1::2], strict=True):
        if not output.strip():
            continue
        connections = parse_ss(output, f"{name} at {at}")
        if ends is None:
            chosen = choose_connection(connections, requested, name)
            ends = chosen.local, chosen.peer
        found = [each for each in connections if (each.local, each.peer) == ends]
        if not found:
            return
        yield found[0].sample(float(at)), found[0]
    if ends is None:
        raise ValueError(f"{name}: no output of ss follows the times")


# Repeated calls of `ss -tin` for one live connection, found by its process or by the host at the other end.

_COMMAND = ("ss", "--tcp", "--info", "--numeric", "--processes", "--no-header", "--oneline")
_PATIENCE = 10.0
"""Time after which a call of `ss` counts as failed [s]; it usually takes some milliseconds."""
_HOST_AND_PORT = re.compile(r"\[(?P<bracketed>[^]]+)\](?::(?P<port6>\d+))?|(?P<host>[^:\s]+)(?::(?P<port4>\d+))?")
_LARGEST_PORT = 65535


@dataclass(frozen=True)
class SsQuery:
    """The search for a live TCP connection."""

    filters: tuple[str, ...] = ()  # Filter of `ss`, as words; empty: all connections
    process: int | None = None  # The process that holds the connection
    requested: str | None = None  # Address of either end, or a part of it, if several connections match
    what: str = "ss"  # The search in words, for messages

    @classmethod
    def of_process(cls, process: int, requested: str | None = None) -> SsQuery:
        """Return the search for a connection of a process."""
        if process < 1 or not FilePath(f"/proc/{process}").exists():
            raise ValueError(f"there is no process {process}")
        return cls(process=process, requested=requested, what=f"process {process}")

    @classmethod
    def of_host(cls, host: str, requested: str | None = None) -> SsQuery:
        """Return the search for a connection to a host."""
        match = _HOST_AND_PORT.fullmatch(host)
        name = host if match is None else match["bracketed"] or match["host"]
        port = None if match is None else match["port6"] or match["port4"]
        if port is not None and not 1 <= int(port) <= _LARGEST_PORT:
            raise ValueError(f"{host!r:.60}: the port must lie between 1 and {_LARGEST_PORT}")
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "no valid name"
            raise ValueError(f"{host!r:.60}: no such host: {reason}") from None
        words: list[str] = []
        for address in dict.fromkeys(str(each[4][0]) for each in found):
            bare = f"[{address}]" if ":" in address else address
            words += [*(["or"] if words else []), "dst", bare if port is None else f"{bare}:{port}"]
        return cls(tuple(words), requested=requested, what=f"connections to {host:.60}")

    def connections(self) -> list[Connection]:
        """Return the connections that match, without the choice by address; none if there is none."""
        lines = _output([*_COMMAND, *self.filters]).splitlines(keepends=True)
        if self.process is not None:
            lines = [line for line in lines if re.search(rf"\bpid={self.process},", line)]
        output = "".join(lines)
        return parse_ss(output, self.what) if output.strip() else []

    def find(self) -> Connection:
        """Return the only connection that matches and from which a path can be estimated."""
        found = self.connections()
        if not found:
            hint = "; of other users' processes, only root sees the connections" if self.process is not None else ""
            raise ValueError(f"{self.what}: no TCP connection{hint}")
        return choose_connection(found, self.requested, self.what)

    def sample(self, connection: Connection) -> tuple[PathSample, Connection] | None:
        """Return a sample of a connection that `find` returned, and its state; None if the connection has ended."""
        ends = connection.local, connection.peer
        for found in self.connections():
            if (found.local, found.peer) == ends:
                # After a close the kernel keeps the addresses for a minute (FIN-WAIT-2, TIME-WAIT), without a state.
                if not found.congestion_control:
                    return None
                return found.sample(time.time()), found
        return None


def _output(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except FileNotFoundError:
        raise ValueError("the program ss is missing; Linux has it in the package iproute2") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the program ss failed: {error}") from None
    if ended.returncode:
        raise ValueError(f"the program ss failed: {' '.join(ended.stderr.split())[:200]}")
    return ended.stdout
