"""Compare the chain of speech with the simulator in random scenarios: `python validation/speech.py`.

The script takes some ten minutes. It writes `results/speech-chain.csv` with one line per scenario that the chain
supports, and the errors that predictions quote (`tcpdelay/accuracy/data`). It prints the errors of all packets, and of
the first packets of talk spurts.
"""

from __future__ import annotations

import numpy as np

from scoring.source_chains import NUDGE, ChainComparison, uniform_logarithm
from tcpdelay.accuracy.errors import SPEECH_TABLE
from tcpdelay.scenario.media import Speech
from tcpdelay.scenario.path import Path

RANDOM = 150
SEED = 59
RTT = (0.010, 0.400)
LOSS = (0.0005, 0.05)
SIZE = (40, 724)
INTERVAL = (0.010, 0.100)
LENGTH = (0.2, 5.0)
"""Ranges of the random scenarios, uniform in the logarithm; `LENGTH` is that of mean talk spurts and silences [s]."""
INTERVALS = (0.010, 0.020, 0.030, 0.040, 0.060)
"""Packet intervals of usual codecs [s]: half of the scenarios have one of them."""


def draw(random: np.random.Generator) -> tuple[Speech, Path]:
    """Return random speech on a random path."""
    rtt, loss, size, interval, talk, silence = (
        uniform_logarithm(random, ends) for ends in (RTT, LOSS, SIZE, INTERVAL, LENGTH, LENGTH)
    )
    usual = float(random.choice(INTERVALS))
    interval = usual if random.random() < 0.5 else interval
    speech = Speech(round(size), round(interval, 4), round(talk, 2), round(silence, 2), write_jitter=0.0)
    return speech, Path(rtt=round(rtt, 3) + NUDGE, loss=float(f"{loss:.2g}"))


COMPARISON = ChainComparison(
    Speech,
    ("packet_size", "interval", "talk", "silence"),
    draw,
    {"": (None, "all packets"), "first_": (1, "first packets of talk spurts")},
    SEED,
    "speech-chain.csv",
    SPEECH_TABLE,
)

if __name__ == "__main__":
    COMPARISON.run(__doc__, RANDOM)
