"""The result of an analysis: path, source, TCP and delays of one connection.

The series and distributions of a long capture are condensed, so that their memory does not grow with the capture.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.capture.pcap.round_trips import ClockFit, Side
from tcpdelay.capture.pcap.trace import NANOSECONDS, Integers
from tcpdelay.declare import bounds, documented, meaning
from tcpdelay.delays import DelayDistribution
from tcpdelay.scenario.messages import Trace as MessageTrace
from tcpdelay.scenario.source import Flow, Source
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, Linux
from tcpdelay.sim.batches import Histogram, merge, to_digits
from tcpdelay.statistics import BATCHES, mean_interval

MOST_VALUES = 2**17
"""Number of values of a series, or of different values of a distribution, above which it is condensed."""
MOST_TRACED = 2**20
"""Largest number of messages whose times and sizes are kept."""
BLOCK = 2**17
"""Number of rows of a table that are read together."""
TABLE_BYTES_IN_MEMORY = 2**22
"""Size above which a table is in a temporary file [bytes]."""
RoundTripKind = Literal["mean", "smallest", "upper bound"]
DelayKind = Literal["write to read", "transmission to read"]
WINDOW = np.dtype([("time", np.float64), ("flight", np.int64), ("receive_window", np.float64)])
"""Time since the first segment [s], bytes in flight after a transmission, and the receiver's window [bytes] or nan."""


class Series:
    """Columns of consecutive values; if there are too many, neighbours are combined in pairs, by a function of each."""

    def __init__(self, *combine: np.ufunc) -> None:
        self._combine = combine
        self.columns: list[NDArray[np.float64]] = [np.empty(0) for _ in combine]
        self.step = 1
        self.count = 0

    def add(self, *columns: NDArray[np.float64]) -> None:
        """Append values: arrays of equal length, one per column."""
        size = columns[0].size
        if not size:
            return
        begins = np.arange(-(self.count % self.step), size, self.step)
        begins[0] = 0
        for number, (combine, new) in enumerate(zip(self._combine, columns, strict=True)):
            old, reduced = self.columns[number], combine.reduceat(new, begins)
            if self.count % self.step:
                old[-1], reduced = combine(old[-1], reduced[0]), reduced[1:]
            self.columns[number] = np.concatenate([old, reduced])
        self.count += size
        while self.columns[0].size > MOST_VALUES:
            pairs = np.arange(0, self.columns[0].size, 2)
            self.columns = [
                combine.reduceat(column, pairs) for combine, column in zip(self._combine, self.columns, strict=True)
            ]
            self.step *= 2


class RoundTripSeries:
    """Samples of the round-trip time [s]: their number, mean, deviation and extremes, and means over time."""

    def __init__(self) -> None:
        self._series = Series(np.minimum, np.add)
        self._reference = self._sum = self._squares = 0.0
        self.smallest = self.largest = math.nan

    def add(self, times: NDArray[np.float64], samples: NDArray[np.float64]) -> None:
        """Append samples [s] and the times at which they ended [s]."""
        if not samples.size:
            return
        if not self._series.count:
            self._reference = float(samples.mean())
        self._series.add(times, samples)
        # Squares of deviations from a value near the mean lose no digits.
        self._sum += float((samples - self._reference).sum())
        self._squares += float(((samples - self._reference) ** 2).sum())
        self.smallest = float(np.fmin(self.smallest, samples.min()))
        self.largest = float(np.fmax(self.largest, samples.max()))

    @property
    def step(self) -> int:
        """Number of consecutive samples in each mean."""
        return self._series.step

    @property
    def count(self) -> int:
        """Number of samples."""
        return self._series.count

    @property
    def times(self) -> NDArray[np.float64]:
        """Time at which the first of each `step` samples ended [s]."""
        return self._series.columns[0]

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean of each `step` samples [s]; up to 2^17 samples, the samples."""
        sums, step = self._series.columns[1], self._series.step
        counts = np.full(sums.size, step)
        if self.count % step:
            counts[-1] = self.count % step
        return np.asarray(sums / counts, np.float64)

    @property
    def mean(self) -> float:
        """Mean of all samples [s]; NaN without samples."""
        return self._reference + self._sum / self.count if self.count else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation of all samples [s]; NaN without samples."""
        if not self.count:
            return math.nan
        return math.sqrt(max(self._squares / self.count - (self._sum / self.count) ** 2, 0.0))


class Delays:
    """The delays of messages: a series of values, and a distribution."""

    def __init__(self) -> None:
        self._series = Series(np.maximum)
        self._histogram: Histogram = (np.empty(0, np.int64), np.empty(0, np.int64))

    def add(self, delays: NDArray[np.float64]) -> None:
        """Append delays [s], not negative."""
        self._series.add(delays)
        values, counts = np.unique(np.rint(delays * NANOSECONDS).astype(np.int64), return_counts=True)
        self._histogram = merge([self._histogram, (values, counts)])
        if self._histogram[0].size > MOST_VALUES:
            values, counts = self._histogram
            self._histogram = merge([(to_digits(values), counts)])

    @property
    def samples(self) -> NDArray[np.float64]:
        """The delay of each message [s]; above 2^17 messages, the largest delay of each run of messages."""
        return self._series.columns[0]

    def distribution(self, one_way_delay: float) -> DelayDistribution | None:
        """Return the distribution of the delays of all messages; None without delays."""
        if not self._series.count:
            return None
        if self._series.step == 1:
            return DelayDistribution.from_samples(self.samples, one_way_delay)
        values, counts = self._histogram
        packets = int(counts.sum())
        shares = counts / packets
        return DelayDistribution(values / NANOSECONDS, shares, one_way_delay, method="measurement", packets=packets)


class Table:
    """Rows of two times [ns], in memory or, if there are many, in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=TABLE_BYTES_IN_MEMORY)  # noqa: SIM115 (lives as long as the table)

    def add(self, first: Integers, second: Integers) -> None:
        """Append rows."""
        try:
            self._file.write(np.column_stack([first, second]).astype(np.int64).tobytes())
        except OSError as error:
            raise ValueError(f"a temporary file cannot be written: {error.strerror or error}") from None

    def blocks(self) -> Iterator[tuple[Integers, Integers]]:
        """Yield all rows, `BLOCK` rows at a time."""
        self._file.seek(0)
        while content := self._file.read(16 * BLOCK):
            both = np.frombuffer(content, np.int64).reshape(-1, 2)
            yield both[:, 0], both[:, 1]
        self._file.seek(0, 2)

    def close(self) -> None:
        """Remove the temporary file."""
        self._file.close()


@documented(eq=False, kw_only=True)
class ConnectionAnalysis:
    """One direction of a TCP connection, measured in one or two captures.

    Examples
    --------
    >>> from tcpdelay.capture.pcap.analysis import analyze_captures
    >>> analysis = analyze_captures(["validation/pcap/voice.sender.pcap.gz", "validation/pcap/voice.receiver.pcap.gz"])
    >>> analysis.flow(), analysis.constant_rate, round(analysis.estimate().rtt, 4)
    (Flow(packet_size=174, interval=0.02), True, 0.1)
    """

    sender: str = meaning("Address and port of the end that sent the payload.")
    receiver: str = meaning("Address and port of the other end.")
    captured_at: tuple[Side, ...] = meaning("The ends at which the captures were made.")
    duration: float = meaning("Time from the first to the last segment [s].")
    payload: int = meaning("Bytes of the stream, without retransmissions.")
    data_segments: int = meaning("Number of segments with payload in the first capture.")
    acknowledgements: int = meaning("Number of segments of the other direction in the first capture.")
    rtt_times: NDArray[np.float64] = meaning(
        "Times since the first segment at which the round-trip times were sampled [s], ascending.", repr=False
    )
    rtt_samples: NDArray[np.float64] = meaning(
        "Round-trip times [s]. A capture at the sender shows the time from data to acknowledgement; a capture at the "
        "receiver alone shows upper bounds. Of more than 2^17 samples, means of equally many consecutive samples, at "
        "most 2^17 means.",
        repr=False,
    )
    rtt_count: int = meaning("Number of samples of the round-trip time.")
    rtt_base: float = meaning("Smallest round-trip time [s].")
    rtt_mean: float = meaning("Mean of all samples [s].")
    rtt_max: float = meaning("Largest of all samples [s].")
    rtt_deviation: float = meaning("Standard deviation of all samples [s].")
    rtt_kind: RoundTripKind = meaning(
        "The figure that is the round-trip time `rtt`: the mean of the samples, the smallest round-trip time, or an "
        "upper bound of it, because each sample may contain a time for which an end waited."
    )
    rtt_measured: str = meaning("A description of the measurement of the round-trip time.")
    sent: int = meaning("Number of packets on the wire with payload.")
    lost: int = meaning("Number of lost packets.")
    loss_counted: str = meaning("A description of the way in which the losses were counted.")
    retransmissions: int = meaning(
        "Number of retransmitted packets. A capture at the receiver shows only packets that arrived."
    )
    spurious_retransmissions: int = meaning("Number of spurious retransmissions.")
    reordered: int | None = meaning("Number of overtaken segments; None without a capture at the receiver.")
    duplicates: int | None = meaning("Number of segments without new data; None without a capture at the receiver.")
    duplicate_acks: int = meaning("Number of duplicate ACKs while data were outstanding.")
    mss: int = meaning("Largest payload of a packet [bytes].")
    mss_known: bool = meaning("Whether `mss` is from the handshake, and not the largest payload seen.")
    sack: bool = meaning("Whether both ends used selective acknowledgements.")
    timestamps: bool = meaning("Whether both ends used timestamps.")
    window_scale: tuple[int, int] | None = meaning(
        "Logarithms (base 2) of the scales of the sender's and the receiver's window; None if the handshake was not "
        "captured."
    )
    several_acknowledged: float = meaning(
        "Share of ACKs of two or more segments among the ACKs of new data that cover no retransmission."
    )
    delayed_ack: bool = meaning("Whether this share shows that acknowledgements are delayed.")
    carried_acks: float = meaning("Share of the same ACKs that are carried on data of the other end.")
    window: NDArray[np.void] = meaning(
        "Bytes in flight and the receiver's window at each transmission. Of more than 2^17 transmissions, the largest "
        "flight and the smallest window of equally many consecutive transmissions, at most 2^17 rows.",
        repr=False,
    )
    packet_size: float = meaning(
        "Size of the application's messages [bytes], including the headers of their framing; the mean if it varies."
    )
    interval: float = meaning("Time between two messages [s]; the mean if it varies.")
    fixed_size: bool = meaning("Whether all messages have one size.")
    fixed_interval: bool = meaning("Whether the messages follow a fixed interval.")
    messages: int = meaning("Number of messages in the stream.")
    unfinished: int = meaning("Number of messages whose delivery is not in the capture.")
    message_times: NDArray[np.float64] = meaning(
        "Time of each message's write since the first [s], as the fixed interval places it. Without a fixed interval "
        "it is the time at which the last byte was first sent, or arrived in a capture at the receiver alone. Empty "
        "if the connection carried more than 2^20 messages.",
        repr=False,
    )
    message_sizes: NDArray[np.int64] = meaning("Size of these messages [bytes].", repr=False)
    one_way_delay: float = meaning(
        "Smallest delay from sender to receiver [s]; half the smallest round-trip time by assumption."
    )
    clocks: ClockFit | None = meaning("Offset and skew of the two captures' clocks.")
    delay_kind: DelayKind | None = meaning(
        "Begin and end of each delay. It begins with the write, at a time that follows from the fixed interval, or "
        "with the first transmission of the last byte of the message. It ends when this byte and all earlier bytes "
        "have arrived. None if no delays could be measured."
    )
    delay_measured: str = meaning("A description of the measurement of the delays.")
    delay_samples: NDArray[np.float64] = meaning(
        "The delay of each message [s]. Of more than 2^17 messages, the largest delay of equally many consecutive "
        "messages, at most 2^17 values.",
        repr=False,
    )
    delays: DelayDistribution | None = meaning(
        "The distribution of all delays, of the kind `delay_kind`. If there are more than 2^17 different delays, each "
        "is rounded to within 0.02 %. None if no delays could be measured.",
        repr=False,
    )
    notes: tuple[str, ...] = meaning("Limitations of the measurement.", default=())

    @property
    def rtt(self) -> float:
        """Mean round-trip time [s]; the smallest round-trip time if the samples contain waiting times."""
        return self.rtt_mean if self.rtt_kind == "mean" and self.rtt_count else self.rtt_base

    @property
    def constant_rate(self) -> bool:
        """Whether all messages have one size and follow a fixed interval."""
        return self.fixed_size and self.fixed_interval

    @property
    def loss(self) -> float:
        """Share of the packets that were lost, a fraction from 0 to 1."""
        return self.lost / self.sent

    @property
    def loss_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the loss, two fractions from 0 to 1."""
        return PathEstimate(source="pcap", rtt=1.0, sent=self.sent, lost=self.lost).loss_interval

    @property
    def largest_flight(self) -> int:
        """Largest number of bytes in flight."""
        return int(self.window["flight"].max())

    @property
    def smallest_receive_window(self) -> float:
        """Smallest window that the receiver offered [bytes]; NaN if its scale is unknown."""
        return float(np.fmin.reduce(self.window["receive_window"]))

    def estimate(self) -> PathEstimate:
        """Return the path estimate of this connection.

        Returns
        -------
        PathEstimate
            The mean round-trip time with its interval by batch means, and the counts of packets.

        Raises
        ------
        ValueError
            If the captures hold no sample of the round-trip time.
        """
        samples = self.rtt_samples
        if not math.isfinite(self.rtt_base) or self.rtt_base <= 0:
            raise ValueError("the captures hold no acknowledgement that shows the round-trip time")
        without_waits = self.rtt_kind == "mean"
        interval = None
        if without_waits and samples.size >= BATCHES:
            found = mean_interval([samples])
            interval = (found.low, found.high)
        return PathEstimate(
            source="pcap",
            rtt=self.rtt,
            sent=self.sent,
            lost=self.lost,
            rtt_min=self.rtt_base,
            rtt_max=self.rtt_max if without_waits else None,
            rtt_deviation=self.rtt_deviation if without_waits else None,
            rtt_interval=interval,
            mss=self.mss,
        )

    def stack(self) -> KnownStack:
        """Return the stack for predictions: the default of `predict_delay`, with the connection's segment size."""
        smallest, largest = bounds(Linux, "mss")
        return replace(DEFAULT_STACK, mss=int(min(max(self.mss, smallest), largest)))

    def trace(self, period: float | None = None) -> MessageTrace:
        """Return the messages of the connection as a source.

        Parameters
        ----------
        period : float, optional
            Time after which the messages repeat [s], later than the last message; by default the trace ends.

        Returns
        -------
        tcpdelay.scenario.messages.Trace
            Times and sizes of the messages. Without a fixed interval, a message that waited in the send buffer has the
            time at which it was sent: its wait is not part of a simulated delay.

        Raises
        ------
        ValueError
            If the capture holds no message, or more than are kept.
        """
        if not self.message_times.size:
            raise ValueError(f"a trace holds 1 to {MOST_TRACED} messages, and the connection carried {self.messages}")
        return MessageTrace(self.message_times, self.message_sizes, period)

    def source(self) -> Source:
        """Return what the application sent: a flow of constant rate, or else the captured messages, again and again.

        Returns
        -------
        Flow or tcpdelay.scenario.messages.Trace
            The flow, also if its messages are more than are kept.

        Raises
        ------
        ValueError
            If the capture holds too few messages.
        """
        flow = self.flow()
        if self.constant_rate or not self.message_times.size:
            return flow
        return self.trace(period=float(self.message_times[-1]) + flow.interval)

    def flow(self) -> Flow:
        """Return the flow: size and interval of the messages, or the means if they vary.

        Returns
        -------
        tcpdelay.scenario.source.Flow
            The flow.

        Raises
        ------
        ValueError
            If the capture holds too few messages, or the means are outside the range of `Flow`.
        """
        if not math.isfinite(self.interval):
            raise ValueError(f"the connection carried {self.messages} messages, too few for their interval")
        # Six digits: further digits are noise of the fit.
        return Flow(max(round(self.packet_size), 1), float(f"{self.interval:.6g}"))
