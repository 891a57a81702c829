"""What an application's users make of a prediction: the score of a call, or how a video plays."""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.distribution import DelayDistribution
from tcpdelay.quality.video import VideoPlayout, video_playout
from tcpdelay.quality.voice import CallTarget, Codec, VoiceQuality, best_playout_delay, voice_quality
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.target import Target

SHORTEST_PACKET, LONGEST_PACKET = 0.0025, 1.0
"""Intervals between which a codec's packets can be rated [s]."""


@dataclass(frozen=True)
class Call:
    """How a call is rated.

    Parameters
    ----------
    codec : Codec
        The codec that it is rated by.
    approximate : bool
        Whether the codec's numbers are no ITU-T's, or it stands in for one that has none.
    at_limit, best : VoiceQuality
        Played out after the target's limit, and after the delay with the best rating.
    """

    codec: Codec
    approximate: bool
    at_limit: VoiceQuality
    best: VoiceQuality


def call_experience(
    application: Application | None, flow: Flow, target: Target, distribution: DelayDistribution
) -> Call | None:
    """Return how a call is rated, or None where the application is none, or its packets cannot be rated.

    Parameters
    ----------
    application : Application or None
        What is carried.
    flow : Flow
        Its packets, which are taken to hold as much speech as lies between them.
    target : Target
        Its limit is the first playout delay that is rated.
    distribution : DelayDistribution
        Delays from write to in-order read.

    Returns
    -------
    Call or None
        The ratings.

    Examples
    --------
    >>> from tcpdelay.models.predict import predict_delay
    >>> from tcpdelay.scenario.applications import application
    >>> voip = application("voip")
    >>> delays = predict_delay(voip.flow, rtt=0.100, loss=0.02)
    >>> call = call_experience(voip, voip.flow, voip.target, delays)
    >>> 4 < call.at_limit.mos <= call.best.mos, call.approximate
    (True, False)
    """
    if application is None or application.codec is None:
        return None
    if not SHORTEST_PACKET <= flow.interval <= LONGEST_PACKET:
        return None
    codec = CallTarget(application.codec).codec_of(flow.interval)
    return Call(
        codec,
        codec.approximate or application.stands_in,
        voice_quality(distribution, codec, target.limit),
        best_playout_delay(distribution, codec),
    )


def video_experience(
    application: Application | None, flow: Flow, target: Target, distribution: DelayDistribution
) -> VideoPlayout | None:
    """Return how a video plays that starts after the target's limit, or None where the application is none.

    Parameters
    ----------
    application, flow, target, distribution
        As for `call_experience`.

    Returns
    -------
    VideoPlayout or None
        Start-up delay, late packets and stalls.

    Examples
    --------
    >>> from tcpdelay.models.predict import predict
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.scenario import Scenario
    >>> from tcpdelay.scenario.applications import application
    >>> video = application("live-video")
    >>> delays = predict(Scenario(video.flow, Path(rtt=0.020, loss=0.001)), method="chain").require()
    >>> video_experience(video, video.flow, video.target, delays).late_packets < 0.001
    True
    """
    if application is None or not application.video:
        return None
    return video_playout(distribution, target.limit, flow.interval)
