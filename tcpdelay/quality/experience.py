"""The quality that an application's users experience: the score of a call, or the stalls of a video."""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.emodel import SMALLEST_USABLE_MOS
from tcpdelay.quality.video import VideoPlayout, video_playout
from tcpdelay.quality.voice import (
    LONGEST_PACKET,
    SHORTEST_PACKET,
    CallTarget,
    Codec,
    VoiceQuality,
    best_playout_delay,
    voice_quality,
)
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.target import Target


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
