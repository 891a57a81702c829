"""Samples of a live connection, and what follows from those of the last minutes: the path and the measured delay."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.estimate import PathEstimate, Source
from tcpdelay.capture.ss import Connection
from tcpdelay.confidence import BATCHES, Interval, dispersion, mean_interval, quantile_interval
from tcpdelay.scenario.fields import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSample:
    """Round-trip time and counters of a connection at one time; the counters are totals since the connection began.

    Parameters
    ----------
    source : {"ss", "getStats", "testbed"}
        Source of the sample.
    time : float
        Time of the sample [s], on any clock.
    rtt : float, optional
        Round-trip time [s], above 0; None if it is not known yet.
    sent, lost : int
        Numbers of segments or packets sent, including retransmissions, and lost.
    backlog : int, optional
        Payload in the send buffer that is not acknowledged [bytes].
    unsent : int, optional
        Payload in the send buffer that has not been sent [bytes].
    acknowledged : int, optional
        Payload acknowledged [bytes].
    jitter : float, optional
        Interarrival jitter that the receiver reports [s] (RFC 3550, section 6.4.1).
    mss, congestion_window : int, optional
        Largest segment payload [bytes], and congestion window [segments].

    Examples
    --------
    >>> PathSample(source="ss", time=0.0, rtt=0.1, sent=500, lost=5).lost
    5
    """

    source: Source
    time: float
    rtt: float | None
    sent: int
    lost: int
    backlog: int | None = None
    unsent: int | None = None
    acknowledged: int | None = None
    jitter: float | None = None
    mss: int | None = None
    congestion_window: int | None = None

    @classmethod
    def of_connection(cls, connection: Connection, time: float) -> PathSample:
        """Return the sample that one output of `ss` holds.

        Parameters
        ----------
        connection : Connection
            The connection.
        time : float
            Time of the output [s].

        Examples
        --------
        >>> ends = {"local": "10.0.0.1:4000", "peer": "10.0.0.2:5001"}
        >>> PathSample.of_connection(Connection(**ends, rtt=0.1, data_segments_out=50, retransmissions=2), 0.0).lost
        2
        """
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
    """Delays from the write to the in-order arrival, measured by the backlog of the sender; times in s.

    Attributes
    ----------
    mean, quantile : Interval
        Mean delay and quantile of the delay, with their 95 % confidence intervals.
    """

    mean: Interval
    quantile: Interval


class PathWindow:
    """The samples of the last minutes of one connection.

    Parameters
    ----------
    length : float
        Time for which samples are kept [s], above 0.
    whole_connection : bool
        Count losses from the beginning of the connection, as `Connection.estimate` does, not from the oldest sample.

    Raises
    ------
    InvalidValueError
        If `length` is not above 0.

    Examples
    --------
    >>> window = PathWindow(length=60.0)
    >>> for second in range(3):
    ...     window.add(PathSample(source="ss", time=second, rtt=0.1, sent=1000 + 50 * second, lost=20 + second))
    >>> window.estimate().sent, window.estimate().lost
    (100, 2)
    """

    def __init__(self, length: float, whole_connection: bool = False) -> None:
        if not length > 0:
            raise InvalidValueError("window", length, "be above 0 s")
        self._length, self._whole_connection = length, whole_connection
        self._samples: deque[PathSample] = deque()

    def add(self, sample: PathSample) -> None:
        """Add a sample, and drop the samples that are older than the window.

        Raises
        ------
        ValueError
            If the sample is older than the last one, or has sent less: it then belongs to another connection.
        """
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
        """Return the path: the mean of the round-trip times, and the losses of the window.

        With a single sample and `whole_connection`, this is the estimate of `Connection.estimate`.

        Returns
        -------
        PathEstimate or None
            The estimate; the round-trip time has a confidence interval from 20 samples on. None while the round-trip
            time is unknown or no packet has arrived.
        """
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

        Parameters
        ----------
        way_back : float
            Delay from the receiver to the sender [s], 0 or more.
        quantile : float
            Probability of the quantile, above 0 and below 1.

        Returns
        -------
        MeasuredDelays or None
            The delays; None with fewer than 20 samples, without a backlog in the samples, or if nothing was
            acknowledged.

        Examples
        --------
        >>> window = PathWindow(length=60.0)
        >>> for second in range(30):
        ...     counters = {"sent": 50 * second, "lost": 0, "backlog": 870, "acknowledged": 8700 * second}
        ...     window.add(PathSample(source="ss", time=second, rtt=0.1, **counters))
        >>> round(window.delays(way_back=0.05, quantile=0.95).quantile.value, 3)
        0.05
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
    """Return sampling times, one at a random moment of each interval.

    Samples at regular times would meet a regular flow always in the same phase.

    Parameters
    ----------
    start, end : float
        First and last time [s], `start` <= `end`.
    interval : float
        Mean distance [s], above 0.
    seed : int
        Seed of the random moments.

    Examples
    --------
    >>> times_between(0.0, 3.0, 1.0).size
    3
    """
    count = int((end - start) / interval)
    found: NDArray[np.float64] = start + interval * (np.arange(count) + np.random.default_rng(seed).random(count))
    return found
