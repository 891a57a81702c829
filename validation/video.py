"""Compare the chain of video with the simulator in random scenarios: `python validation/video.py`.

The script takes some ten minutes. It writes `results/video-chain.csv` with one line per scenario that the chain
supports, and the errors that predictions quote (`tcpdelay/accuracy/data`). It prints the errors of all frames, of key
frames and of other frames.
"""

from __future__ import annotations

import numpy as np

from scoring.source_chains import NUDGE, ChainComparison, uniform_logarithm
from tcpdelay.accuracy.errors import VIDEO_TABLE
from tcpdelay.scenario.media import Video
from tcpdelay.scenario.path import Path

RANDOM = 150
SEED = 61
RTT = (0.010, 0.300)
LOSS = (0.0005, 0.02)
BITRATE = (100e3, 5e6)
"""Ranges of the random scenarios, uniform in the logarithm."""
KEY_RATIO, VARIATION = (1.0, 20.0), (0.0, 0.6)
"""Ranges of the random videos, uniform."""
FRAME_RATES = (10.0, 15.0, 24.0, 25.0, 30.0, 50.0, 60.0)
KEY_INTERVALS = (1.0, 2.0, 4.0)
"""Frame rates [1/s] and times from key frame to key frame [s]."""


def draw(random: np.random.Generator) -> tuple[Video, Path]:
    """Return a random video on a random path."""
    rtt, loss, bitrate = (uniform_logarithm(random, ends) for ends in (RTT, LOSS, BITRATE))
    rate, period = float(random.choice(FRAME_RATES)), float(random.choice(KEY_INTERVALS))
    ratio, variation = (round(float(random.uniform(*ends)), 2) for ends in (KEY_RATIO, VARIATION))
    video = Video(round(bitrate), rate, period, ratio, variation, write_jitter=0.0)
    return video, Path(rtt=round(rtt, 3) + NUDGE, loss=float(f"{loss:.2g}"))


COMPARISON = ChainComparison(
    Video,
    ("bitrate", "frame_rate", "key_interval", "key_ratio", "variation"),
    draw,
    {"": (None, "all frames"), "key_": (1, "key frames"), "other_": (0, "other frames")},
    SEED,
    "video-chain.csv",
    VIDEO_TABLE,
)

if __name__ == "__main__":
    COMPARISON.run(__doc__, RANDOM)
