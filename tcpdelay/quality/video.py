"""How a video over TCP plays: what start-up delay buys, and how often and how long it stalls."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.distribution import CUMULATION_NOISE, DelayDistribution
from tcpdelay.scenario.fields import InvalidValueError


@dataclass(frozen=True)
class VideoPlayout:
    """How a video plays from a buffer.

    Parameters
    ----------
    startup_delay : float
        Time from the write of the first packet to the first picture [s].
    late_packets : float
        Share of the packets that come after they are due; also the share of the time in which the picture stands.
    late_frames : float
        Share of the frames that are not whole when they are due.
    stalls_per_minute : float
        Largest mean number of stalls in a minute; infinite where nothing comes in time.
    mean_stall : float
        Mean length of a stall if there are so many [s]; 0 where there is none, infinite where nothing comes in time.
    """

    startup_delay: float
    late_packets: float
    late_frames: float
    stalls_per_minute: float
    mean_stall: float


def video_playout(
    distribution: DelayDistribution, buffer: float, interval: float, packets_per_frame: int = 1
) -> VideoPlayout:
    """Say how a video plays that starts when its first packet was written `buffer` ago.

    What is assumed:

    - Packets are written every `interval`, and each is due `buffer` after it was written, for ever: after a stall the
      player catches up with the sender, as a live player does. One that goes on where it stood has a longer buffer
      from then on, and stalls less often.
    - The packets of a frame are written one after another, `interval` apart, and the frame is due `buffer` after the
      first of them. TCP delivers in order, so the frame is whole when its last packet is.
    - Packets are read in order, so no packet's delay is shorter than that of the one before by more than `interval`.
      So the last late packet of every stall is late by no more than that, and stalls are at most as frequent as such
      packets: P(B < D <= B + interval) / interval. They are as frequent as that, and the picture stands no longer than
      for each late packet's own time, if all that one loss holds up is read at once. Where no delay lies in that
      range, the range goes up to the next that occurs.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    buffer : float
        Time from the write of a packet until it is due [s], from 0 on and finite.
    interval : float
        Time between two writes [s], above 0; that of the distribution's flow.
    packets_per_frame : int
        Packets of one frame, from 1 on.

    Returns
    -------
    VideoPlayout
        Start-up delay, late packets and frames, and stalls.

    Raises
    ------
    ValueError
        If a value lies outside its range.

    Examples
    --------
    >>> delays, shares = np.array([0.05, 0.20, 0.22, 0.24]), np.array([0.97, 0.01, 0.01, 0.01])
    >>> d = DelayDistribution(delays, shares, one_way_delay=0.05)
    >>> play = video_playout(d, buffer=0.2, interval=0.020)
    >>> round(play.late_packets, 3), round(play.stalls_per_minute, 1), round(play.mean_stall, 3)
    (0.02, 30.0, 0.04)
    """
    if not 0 <= buffer < float("inf"):
        raise InvalidValueError("buffer", buffer, "be a number of seconds from 0 on")
    if not 0 < interval < float("inf"):
        raise InvalidValueError("interval", interval, "be a number of seconds above 0")
    if packets_per_frame < 1:
        raise InvalidValueError("packets_per_frame", packets_per_frame, "be 1 or more")
    late = distribution.late_fraction(float(buffer))
    stalls = _stalls_per_second(distribution, buffer, interval)
    return VideoPlayout(
        startup_delay=float(buffer),
        late_packets=late,
        late_frames=distribution.late_fraction(buffer - (packets_per_frame - 1) * interval),
        stalls_per_minute=60 * stalls,
        mean_stall=late / stalls if 0 < stalls < np.inf else stalls,
    )


def _stalls_per_second(distribution: DelayDistribution, buffer: float, interval: float) -> float:
    """Return how often the last late packet of a stall passes; infinite where a stall never ends."""
    slack = buffer * CUMULATION_NOISE
    first_beyond = int(np.searchsorted(distribution.values, buffer + slack, side="right"))
    if first_beyond == distribution.values.size:
        return 0.0
    smallest_beyond = float(distribution.values[first_beyond])
    if first_beyond == 0 or smallest_beyond == np.inf:
        return float("inf")
    last = max(buffer + interval, smallest_beyond)
    share = distribution.late_fraction(float(buffer)) - distribution.late_fraction(last)
    return share / (last - buffer)


def smallest_buffer(distribution: DelayDistribution, late_fraction: float) -> float:
    """Return the shortest buffer with which no more than a given share of the packets is late.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    late_fraction : float
        Largest share of late packets, from 0 to below 1.

    Returns
    -------
    float
        The buffer [s], one of the delays that occur; infinite where TCP cannot carry the flow.

    Raises
    ------
    ValueError
        If the share lies outside its range.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.25, 0.45]), np.array([0.98, 0.01, 0.01]), one_way_delay=0.05)
    >>> smallest_buffer(d, 0.01), smallest_buffer(d, 0)
    (0.25, 0.45)
    >>> smallest_buffer(DelayDistribution.unsustainable(0.05), 0.01)
    inf
    """
    if not 0 <= late_fraction < 1:
        raise InvalidValueError("late_fraction", late_fraction, "be a share from 0 to below 1")
    late = distribution.late_fraction(distribution.values)
    return float(distribution.values[np.argmax(late <= late_fraction + CUMULATION_NOISE)])
