"""What the captures of one connection say: path, source, TCP and delays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.estimate import PathEstimate
from tcpdelay.capture.pcap.clocks import ClockFit
from tcpdelay.capture.pcap.round_trips import Side
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario.fields import bounds
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, Linux

DelayKind = Literal["write to read", "transmission to read"]

WINDOW = np.dtype([("time", np.float64), ("flight", np.int64), ("receive_window", np.float64)])
"""Time since the first segment [s], bytes in flight behind a transmission, and the receiver's window [bytes] or nan."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ConnectionAnalysis:
    """One TCP connection, as one or two captures show it.

    Parameters
    ----------
    sender, receiver : str
        The end that sent the payload, and the other one: address and port.
    captured_at : tuple of {"sender", "receiver"}
        Where the captures were made.
    duration : float
        From the first to the last segment [s].
    payload : int
        Bytes of the stream, without repetitions.
    data_segments, acknowledgements : int
        Segments with payload, and segments of the other direction, in the first capture.
    rtt_times, rtt_samples : ndarray of float
        Times since the first segment and round-trip times [s], in the order of time. At the sender from data to
        acknowledgement; from a capture at the receiver only, upper bounds. Of more than 2^17, means of so many
        consecutive ones that no more are left.
    rtt_count : int
        Samples of the round-trip time.
    rtt_base, rtt_mean, rtt_max, rtt_deviation : float
        Smallest, mean and largest round-trip time, and standard deviation, of all samples [s].
    sent, lost : int
        Packets on the wire with payload, and how many of them were lost.
    loss_counted : str
        How the losses were counted, in words.
    retransmissions, spurious_retransmissions : int
        Packets sent again, and those of them that were needless; from a capture at the receiver only those that came.
    reordered, duplicates : int or None
        Segments that were overtaken, and those that brought nothing new; None without a capture at the receiver.
    duplicate_acks : int
        Acknowledgements that repeat the one before while data are outstanding.
    mss : int
        Largest payload of a packet [bytes].
    mss_known : bool
        Whether it was in the handshake, or is the largest that occurred.
    sack, timestamps : bool
        Whether both ends used them.
    window_scale : tuple of int, optional
        Logarithms of the scales of the sender's and the receiver's window; None where the handshake was not captured.
    several_acknowledged : float
        Share of the acknowledgements of new data that cover two or more segments, where nothing was sent again.
    delayed_ack : bool
        Whether that is so many that acknowledgements are delayed.
    window : ndarray of WINDOW
        Bytes in flight and the receiver's window at each transmission; of more than 2^17, the largest flight and the
        smallest window of so many consecutive ones that no more are left.
    packet_size : float
        Size of the application's messages [bytes], headers of their framing included; their mean if it varies.
    interval : float
        Time from one message to the next [s]; the mean if it varies.
    fixed_size, fixed_interval : bool
        Whether all messages have that size, and whether they follow that interval.
    messages, unfinished : int
        Messages in the stream, and those whose delivery lies beyond the capture.
    one_way_delay : float
        Smallest delay from sender to receiver [s]; half the smallest round-trip time by assumption.
    clocks : ClockFit, optional
        How the clocks of two captures differed.
    delay_kind : {"write to read", "transmission to read"}, optional
        From the write as the fixed interval places it, or from the first transmission of a message's last byte, to
        when it and all before it had come; None where no delays could be told.
    delay_measured : str
        How the delays were measured, in words.
    delay_samples : ndarray of float
        The delay of each message [s]; of more than 2^17, the largest of so many consecutive ones that no more are left.
    delays : DelayDistribution or None
        The distribution of all delays, of the kind `delay_kind`; of more than 2^17 different ones, each is known to
        0.02 %. None where none could be told.
    notes : tuple of str
        What the reader has to know before relying on the numbers.

    Examples
    --------
    >>> from tcpdelay.capture.pcap.analysis import analyze_captures
    >>> analysis = analyze_captures(["validation/pcap/voice.sender.pcap.gz", "validation/pcap/voice.receiver.pcap.gz"])
    >>> analysis.flow(), analysis.constant_rate, round(analysis.estimate().rtt, 4)
    (Flow(packet_size=174, interval=0.02), True, 0.1)
    """

    sender: str
    receiver: str
    captured_at: tuple[Side, ...]
    duration: float
    payload: int
    data_segments: int
    acknowledgements: int
    rtt_times: NDArray[np.float64] = field(repr=False)
    rtt_samples: NDArray[np.float64] = field(repr=False)
    rtt_count: int
    rtt_base: float
    rtt_mean: float
    rtt_max: float
    rtt_deviation: float
    sent: int
    lost: int
    loss_counted: str
    retransmissions: int
    spurious_retransmissions: int
    reordered: int | None
    duplicates: int | None
    duplicate_acks: int
    mss: int
    mss_known: bool
    sack: bool
    timestamps: bool
    window_scale: tuple[int, int] | None
    several_acknowledged: float
    delayed_ack: bool
    window: NDArray[np.void] = field(repr=False)
    packet_size: float
    interval: float
    fixed_size: bool
    fixed_interval: bool
    messages: int
    unfinished: int
    one_way_delay: float
    clocks: ClockFit | None
    delay_kind: DelayKind | None
    delay_measured: str
    delay_samples: NDArray[np.float64] = field(repr=False)
    delays: DelayDistribution | None = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def rtt(self) -> float:
        """Mean round-trip time [s]; from a capture at the receiver only, the smallest."""
        return self.rtt_mean if "sender" in self.captured_at and self.rtt_count else self.rtt_base

    @property
    def constant_rate(self) -> bool:
        """Whether messages are of one size and follow a fixed interval."""
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
        """Most bytes in flight."""
        return int(self.window["flight"].max())

    @property
    def smallest_receive_window(self) -> float:
        """Smallest window that the receiver offered [bytes]; nan where its scale is not known."""
        return float(np.fmin.reduce(self.window["receive_window"]))

    def estimate(self) -> PathEstimate:
        """Return the path estimate of this connection.

        Returns
        -------
        PathEstimate
            With the mean round-trip time and its interval by batch means, and the counts of packets.

        Raises
        ------
        ValueError
            If the captures hold no sample of the round-trip time.
        """
        from tcpdelay.confidence import BATCHES, mean_interval

        samples = self.rtt_samples
        if not math.isfinite(self.rtt_base) or self.rtt_base <= 0:
            raise ValueError("the captures hold no acknowledgement that tells the round-trip time")
        at_sender = "sender" in self.captured_at
        interval = None
        if at_sender and samples.size >= BATCHES:
            found = mean_interval([samples])
            interval = (found.low, found.high)
        return PathEstimate(
            source="pcap",
            rtt=self.rtt,
            sent=self.sent,
            lost=self.lost,
            rtt_min=self.rtt_base,
            rtt_max=self.rtt_max if at_sender else None,
            rtt_deviation=self.rtt_deviation if at_sender else None,
            rtt_interval=interval,
            mss=self.mss,
        )

    def stack(self) -> KnownStack:
        """Return the TCP to predict with: that of `predict_delay`, with the connection's segment size."""
        smallest, largest = bounds(Linux, "mss")
        return replace(DEFAULT_STACK, mss=int(min(max(self.mss, smallest), largest)))

    def flow(self) -> Flow:
        """Return the flow: size and interval of the messages, or their means if they vary.

        Returns
        -------
        tcpdelay.scenario.source.Flow
            The flow.

        Raises
        ------
        ValueError
            If the capture holds too few messages to tell, or the means lie outside the range of `Flow`.
        """
        if not math.isfinite(self.interval):
            raise ValueError(f"the connection carried {self.messages} messages, too few for their interval")
        # The last digits are those of the fit.
        return Flow(max(round(self.packet_size), 1), float(f"{self.interval:.6g}"))
