"""The quality of a call or a video over TCP, from the distribution of its delays: E-model rating and video playout."""

from tcpdelay.quality.emodel import Transmission, mos_from_rating, rating_from_mos
from tcpdelay.quality.experience import VideoPlayout, smallest_buffer, video_playout
from tcpdelay.quality.voice import (
    CODECS,
    Codec,
    VoiceQuality,
    best_playout_delay,
    codec_named,
    voice_mos,
    voice_quality,
    voice_rating,
)

__all__ = [
    "CODECS",
    "Codec",
    "Transmission",
    "VideoPlayout",
    "VoiceQuality",
    "best_playout_delay",
    "codec_named",
    "mos_from_rating",
    "rating_from_mos",
    "smallest_buffer",
    "video_playout",
    "voice_mos",
    "voice_quality",
    "voice_rating",
]
