"""The path in a recording: round-trip time and loss with their confidence intervals.

`read_recording` reads a text recording from disk, up to a largest size, and refuses a file that is no text.
"""

from __future__ import annotations

import codecs
import math
import os
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from tcpdelay.declare import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.statistics import BATCHES, Interval, dispersion, mean_interval, quantile_interval

Source = Literal["ping", "ss", "pcap", "testbed", "getStats", "iperf3"]
MAX_RECORDING_SIZE = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEstimate:
    """Round-trip time and loss of a path, estimated from counts."""

    source: Source  # A program, a packet capture, a capture of the testbed, or a browser; "ping" also for fping and mtr
    rtt: float  # Mean round-trip time [s], above 0; from `ss`, the kernel's smoothed RTT
    # sent, lost: Numbers of packets or segments sent, at least 1, and of those that were lost.
    sent: int
    lost: int
    # rtt_min, rtt_max: Smallest and largest round-trip time [s].
    rtt_min: float | None = None
    rtt_max: float | None = None
    rtt_deviation: float | None = None  # Standard deviation [s]; from `ss`, its smoothed mean deviation
    rtt_interval: tuple[float, float] | None = None  # 95 % confidence interval of the mean round-trip time [s]
    dispersion: float = 1.0  # Variance of the number of losses over that with independent losses, at least 1
    timeout_beyond_rtt: float | None = None  # What the retransmission timeout adds to the RTT [s], if not as in Linux
    mss: int | None = None  # Largest segment payload in use [bytes]
    congestion_window: int | None = None  # Congestion window at the time of recording [segments]

    def __post_init__(self) -> None:
        if not self.rtt > 0:
            raise InvalidValueError("rtt", self.rtt, "be above 0 s")
        if self.sent < 1:
            raise InvalidValueError("sent", self.sent, "be at least 1")
        if not 0 <= self.lost <= self.sent:
            raise InvalidValueError("lost", self.lost, f"lie between 0 and sent = {self.sent}")
        if not self.dispersion >= 1:
            raise InvalidValueError("dispersion", self.dispersion, "be 1 or more")

    @property
    def loss(self) -> float:
        """Point estimate of the loss: the lost share of the packets, a fraction from 0 to 1."""
        return self.lost / self.sent

    @property
    def loss_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the loss, two fractions from 0 to 1.

        The exact interval of Clopper and Pearson, Biometrika 26, 1934, doi 10.1093/biomet/26.4.404. Losses in bursts
        tell as much as fewer independent packets: both counts are divided by `dispersion` (Rao and Scott, "A Simple
        Method for the Analysis of Clustered Binary Data", Biometrics 48(2), 1992). At a dispersion of 1 the losses
        count as independent, and on a path that loses several packets in a row the true interval is wider.
        """
        lost, kept = self.lost / self.dispersion, (self.sent - self.lost) / self.dispersion
        low = float(betaincinv(lost, kept + 1, 0.025)) if lost else 0.0
        high = float(betaincinv(lost + 1, kept, 0.975)) if kept else 1.0
        return low, high

    @property
    def loss_for_prediction(self) -> float:
        """The loss for predictions: the point estimate, or a small positive loss if nothing was lost.

        A path that lost none of n packets may still lose packets, and a prediction at loss 0 would promise that no
        packet is ever late. The loss is then the median of Beta(1/2, n + 1/2), the distribution of the loss under
        Jeffreys' prior: about 0.23 / n, too high or too low with equal probability. Brown, Cai and DasGupta recommend
        this prior for binomial proportions (Statistical Science 16(2), 2001, doi 10.1214/ss/1009213286).
        """
        return self.loss if self.lost else float(betaincinv(0.5, self.sent + 0.5, 0.5))

    def path(self, **changes: Any) -> Path:
        """Return the path for predictions."""
        return Path(**{"rtt": self.rtt, "loss": self.loss_for_prediction, **changes})


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


def read_recording(path: str | os.PathLike[str], program: str) -> str:
    """Return the text in a file that holds the output of `program`."""
    name = os.fspath(path)
    try:
        with FilePath(name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # The size of a pipe or a device is unknown, so the read has a limit as well.
            content = file.read(MAX_RECORDING_SIZE + 1) if size <= MAX_RECORDING_SIZE else b""
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"{name!r} is no valid file name") from None
    if size > MAX_RECORDING_SIZE or len(content) > MAX_RECORDING_SIZE:
        shown = f"{max(size, len(content)) / 2**20:.0f} MiB"
        raise ValueError(f"{name}: {shown} are too many for the output of {program}; at most 64 MiB are read")
    text = _unquoted(_decoded(content))
    if "\0" in text:
        raise ValueError(f"{name}: holds binary data, not the text that {program} prints")
    if not text.strip():
        raise ValueError(f"{name}: is empty; the text that {program} prints is expected")
    return text


SAMPLE = 10_000
"""Bytes at the beginning of a file that show its encoding."""
LEAST_ASCII = 0.2
"""Least share of ASCII characters in UTF-16; texts in other scripts have them in digits, spaces and line ends."""


def _decoded(content: bytes) -> str:
    """Return the text of a file; the redirection of PowerShell writes UTF-16."""
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif _is_text_of(content[:SAMPLE:2], content[1:SAMPLE:2]):
        encoding = "utf-16-le"
    elif _is_text_of(content[1:SAMPLE:2], content[:SAMPLE:2]):
        encoding = "utf-16-be"
    return content.decode(encoding, errors="replace")


def _is_text_of(low: bytes, high: bytes) -> bool:
    """Return whether the bytes are UTF-16 text in printable ASCII, from the low and the high byte of each character."""
    plain = bytes(character for character, above in zip(low, high, strict=False) if above == 0)
    return len(plain) > LEAST_ASCII * len(low) and all(each >= ord(" ") or each in b"\t\r\n" for each in plain)


def _unquoted(text: str) -> str:
    """Return a text without the marks of a quotation, a comment or a difference, if each of its lines has one."""
    lines = text.splitlines(keepends=True)
    marks = {line.lstrip()[:1] for line in lines if line.strip()}
    if len(marks) != 1 or not marks <= {*">|#+"}:
        return text
    return "".join(line.replace(min(marks), "", 1).removeprefix(" ") for line in lines)


def milliseconds_to_seconds(text: str) -> float:
    """Return a decimal number of milliseconds, with a point or a comma, in seconds."""
    return float(Decimal(text.replace(",", ".")).scaleb(-3))
