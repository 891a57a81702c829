"""The quality that an application's users experience: the score of a call, or late packets and stalls of a video."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.declare import InvalidValueError, documented, is_number, meaning
from tcpdelay.delays import CUMULATION_NOISE, DelayDistribution
from tcpdelay.quality.emodel import SMALLEST_USABLE_MOS
from tcpdelay.quality.voice import (
    LONGEST_PACKET,
    SHORTEST_PACKET,
    CallTarget,
    Codec,
    VoiceQuality,
    best_playout_delay,
    voice_quality,
)
from tcpdelay.scenario.scenario import Application, Target
from tcpdelay.scenario.source import Flow


@documented()
class VideoPlayout:
    """How a video plays from a buffer."""

    startup_delay: float = meaning("Time from the write of the first packet to the first picture [s].")
    late_packets: float = meaning(
        "Share of the packets that arrive after they are due; also the share of time in which the picture stands still."
    )
    late_frames: float = meaning("Share of the frames that are not complete when they are due.")
    stalls_per_minute: float = meaning(
        "Upper bound of the mean number of stalls per minute; infinite if no packet arrives in time."
    )
    mean_stall: float = meaning(
        "Mean length of a stall [s] for that number of stalls; 0 if there is no stall, infinite if no packet arrives "
        "in time."
    )


def video_playout(
    distribution: DelayDistribution, buffer: float, interval: float, packets_per_frame: int = 1
) -> VideoPlayout:
    """Return how a video plays that starts `buffer` seconds after its first packet was written.

    Assumptions and derivation:

    - The sender writes a packet every `interval`. Each packet is due `buffer` after its write. After a stall, the
      player catches up with the sender, as a live player does. A player that does not catch up has a longer buffer
      from then on, and stalls less often.
    - The packets of a frame are written one after another, `interval` apart. The frame is due `buffer` after the write
      of its first packet. TCP delivers in order, so the frame is complete when its last packet arrives.
    - Packets are read in order, so a packet's delay D is at most `interval` shorter than the delay of the packet
      before it. So the last late packet of a stall is late by at most `interval`. With B = `buffer`, the number of
      stalls per second is therefore at most P(B < D <= B + interval) / interval. Where no delay of the distribution is
      in this range, the range extends to the next longer delay. If all packets that one loss holds up are read at
      once, this bound is reached, and the picture stands still for one interval per late packet.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    buffer : float
        Time from the write of a packet until it is due [s], 0 or more and finite.
    interval : float
        Time between two writes of the distribution's flow [s], above 0.
    packets_per_frame : int
        Packets of one frame, 1 or more.

    Returns
    -------
    VideoPlayout
        Start-up delay, late packets and frames, and stalls.

    Raises
    ------
    ValueError
        If a value is outside its range.

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
    """Return the upper bound of the stalls per second; infinite if a stall never ends."""
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
    """Return the shortest buffer with which at most a given share of the packets is late.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    late_fraction : float
        Largest share of late packets, 0 to below 1.

    Returns
    -------
    float
        The buffer [s], one of the delays of the distribution; infinite if TCP cannot carry the flow.

    Raises
    ------
    ValueError
        If the share is outside its range.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.25, 0.45]), np.array([0.98, 0.01, 0.01]), one_way_delay=0.05)
    >>> smallest_buffer(d, 0.01), smallest_buffer(d, 0)
    (0.25, 0.45)
    >>> smallest_buffer(DelayDistribution.unsustainable(0.05), 0.01)
    inf
    """
    require_share("late_fraction", late_fraction)
    late = distribution.late_fraction(distribution.values)
    return float(distribution.values[np.argmax(late <= late_fraction + CUMULATION_NOISE)])


def require_share(name: str, share: object) -> None:
    """Raise InvalidValueError if a share of late packets is no number from 0 to below 1."""
    if not is_number(share) or not 0 <= share < 1:
        raise InvalidValueError(name, share, "be a share from 0 to below 1")


# The quality of an application.


@dataclass(frozen=True)
class Call:
    """The ratings of a call."""

    codec: Codec  # The codec whose numbers are used
    # Whether the codec's numbers are not from ITU-T, or the codec replaces another one that cannot be rated.
    approximate: bool
    # at_limit, best: The quality with the target's limit as playout delay, and with the best playout delay.
    at_limit: VoiceQuality
    best: VoiceQuality
    usable: bool  # Whether the best score is at least `tcpdelay.quality.emodel.SMALLEST_USABLE_MOS`


def call_experience(
    application: Application | None, flow: Flow, target: Target, distribution: DelayDistribution
) -> Call | None:
    """Return the ratings of a call."""
    if application is None or application.codec is None:
        return None
    if not SHORTEST_PACKET <= flow.interval <= LONGEST_PACKET:
        return None
    codec = CallTarget(application.codec).codec_of(flow.interval)
    at_limit = voice_quality(distribution, codec, target.limit)
    # If no packet ever arrives, the limit is a better playout delay than an endless one.
    best = max(best_playout_delay(distribution, codec), at_limit, key=lambda quality: quality.mos)
    return Call(
        codec,
        codec.approximate or application.stands_in,
        at_limit,
        best,
        usable=best.mos >= SMALLEST_USABLE_MOS,
    )


def video_experience(
    application: Application | None, flow: Flow, target: Target, distribution: DelayDistribution
) -> VideoPlayout | None:
    """Return how a video plays if its start-up delay is the target's limit."""
    if application is None or not application.video:
        return None
    return video_playout(distribution, target.limit, flow.interval)
