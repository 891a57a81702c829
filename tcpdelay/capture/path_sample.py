"""Samples of a live connection, taken by `ss -tin`; the path and the delay estimated from the last minutes."""

from __future__ import annotations

import math
import re
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.estimate import PathEstimate, Source
from tcpdelay.capture.ss import Connection, choose_connection, parse_ss
from tcpdelay.declare import InvalidValueError
from tcpdelay.statistics import BATCHES, Interval, dispersion, mean_interval, quantile_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSample:
    """Round-trip time and counters of a connection at one time; the counters are totals since the connection began."""

    source: Source
    time: float  # Time of the sample [s], on any clock
    rtt: float | None  # Round-trip time [s], above 0; None if it is not known yet
    # sent, lost: Numbers of segments or packets sent, including retransmissions, and lost.
    sent: int
    lost: int
    # backlog, unsent: Payload in the send buffer that is not acknowledged, and that has not been sent [bytes].
    backlog: int | None = None
    unsent: int | None = None
    acknowledged: int | None = None  # Payload acknowledged [bytes]
    jitter: float | None = None  # Interarrival jitter that the receiver reports [s] (RFC 3550, section 6.4.1)
    mss: int | None = None  # Largest segment payload [bytes]
    congestion_window: int | None = None  # [segments]

    @classmethod
    def of_connection(cls, connection: Connection, time: float) -> PathSample:
        """Return the sample that one output of `ss` holds."""
        return cls(
            source="ss",
            time=time,
            rtt=connection.rtt or None,
            sent=connection.segments_sent or 0,
            lost=connection.segments_lost,
            backlog=connection.send_queue,
            unsent=connection.unsent_bytes,
            acknowledged=connection.bytes_acknowledged,
            mss=connection.mss,
            congestion_window=connection.congestion_window,
        )


@dataclass(frozen=True)
class MeasuredDelays:
    """Delays from the write to the in-order arrival, measured by the backlog of the sender; times in s."""

    # mean, quantile: Mean delay and quantile of the delay, with their 95 % confidence intervals.
    mean: Interval
    quantile: Interval


class PathWindow:
    """The samples of the last `length` seconds of one connection."""

    # `whole_connection`: losses count from the beginning of the connection, and not from the oldest sample.
    def __init__(self, length: float, whole_connection: bool = False) -> None:
        if not length > 0:
            raise InvalidValueError("window", length, "be above 0 s")
        self._length, self._whole_connection = length, whole_connection
        self._samples: deque[PathSample] = deque()

    def add(self, sample: PathSample) -> None:
        """Add a sample, and drop the samples that are older than the window."""
        if self._samples:
            last = self._samples[-1]
            if sample.time < last.time:
                raise ValueError(f"the samples are not in the order of time: {sample.time:.3f} s after {last.time:.3f}")
            if sample.sent < last.sent:
                raise ValueError(f"the number of packets sent fell from {last.sent} to {sample.sent}")
        self._samples.append(sample)
        while self._samples[0].time < sample.time - self._length:
            self._samples.popleft()

    @property
    def span(self) -> float:
        """Time between the oldest and the latest sample of the window [s]; 0 without samples."""
        return self._samples[-1].time - self._samples[0].time if self._samples else 0.0

    def estimate(self) -> PathEstimate | None:
        """Return the path: the mean of the round-trip times, and the losses of the window."""
        times = [sample.rtt for sample in self._samples if sample.rtt]
        if not times:
            return None
        last = self._samples[-1]
        before = (0, 0) if self._whole_connection else (self._samples[0].sent, self._samples[0].lost)
        sent = last.sent - before[0]
        # Reported duplicates lower the count of losses, and a receiver's count may run ahead of the sender's.
        lost = min(max(last.lost - before[1], 0), max(sent, 0))
        if lost >= sent:
            return None
        mean = mean_interval([np.array(times)]) if len(times) >= BATCHES else None
        return PathEstimate(
            source=last.source,
            rtt=mean.value if mean is not None else math.fsum(times) / len(times),
            sent=sent,
            lost=lost,
            rtt_min=min(times),
            rtt_max=max(times),
            rtt_interval=None if mean is None else (max(mean.low, min(times)), mean.high),
            dispersion=self._dispersion(),
            mss=last.mss,
            congestion_window=last.congestion_window,
        )

    def _dispersion(self) -> float:
        """Return how much more the losses vary over the batches of the window than independent losses would."""
        counters = np.array([(sample.sent, sample.lost) for sample in self._samples], np.float64)
        batches = min(len(counters) - 1, BATCHES)
        ends = np.linspace(0, len(counters) - 1, batches + 1).round().astype(int)
        sent, lost = np.diff(counters[ends], axis=0).T
        return dispersion(sent, lost)

    def delays(self, way_back: float, quantile: float) -> MeasuredDelays | None:
        r"""Return the delays that follow from the backlog, for a program that writes at a constant rate.

        A packet leaves the backlog when its acknowledgement arrives, so with the payload :math:`q` in the send buffer
        and the rate :math:`r` of acknowledged payload, the mean time from write to acknowledgement is

        .. math:: W = \overline q / r

        (Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9(3), 1961). TCP acknowledges in order:
        a packet is in the buffer at the time :math:`x` after its write exactly if its delay exceeds :math:`x`. With
        packets written at a constant rate, :math:`q / r` at random times has therefore the distribution of the delays,
        to within one packet interval. The way of the acknowledgement is subtracted.
        """
        known = [
            (sample.time, sample.backlog, sample.acknowledged)
            for sample in self._samples
            if sample.backlog is not None and sample.acknowledged is not None
        ]
        if len(known) < BATCHES or known[-1][0] <= known[0][0]:
            return None
        rate = (known[-1][2] - known[0][2]) / (known[-1][0] - known[0][0])
        if rate <= 0:
            return None
        waited = np.array([backlog for _, backlog, _ in known], np.float64) / rate
        return MeasuredDelays(
            _less(mean_interval([waited]), way_back), _less(quantile_interval([waited], quantile), way_back)
        )

    def rate(self) -> float | None:
        """Return the rate at which payload was acknowledged in the window [bit/s]; None if it is not known."""
        if self.span <= 0:
            return None
        first, last = self._samples[0].acknowledged, self._samples[-1].acknowledged
        return None if first is None or last is None else 8 * (last - first) / self.span


def _less(interval: Interval, way_back: float) -> Interval:
    """Return an interval of times that is shorter by `way_back`, but not below 0."""
    return Interval(*(max(end - way_back, 0.0) for end in interval))


def times_between(start: float, end: float, interval: float, seed: int = 0) -> NDArray[np.float64]:
    """Return sampling times, one at a random moment of each interval, not always in the same phase of a flow."""
    count = int((end - start) / interval)
    found: NDArray[np.float64] = start + interval * (np.arange(count) + np.random.default_rng(seed).random(count))
    return found


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
        return _parsed(_of_process(_output([*_COMMAND, *self.filters]), self.process), self.what)

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
                return PathSample.of_connection(found, time.time()), found
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


def _of_process(output: str, process: int | None) -> str:
    """Return the lines of `ss --oneline` that name a process; all lines for None."""
    named = re.compile(rf"\bpid={process},")
    return "".join(line for line in output.splitlines(keepends=True) if process is None or named.search(line))


def _parsed(output: str, what: str) -> list[Connection]:
    return parse_ss(output, what) if output.strip() else []
