"""Make the explorer's spoken sentences again: python docs/spoken_sentence.py; needs espeak-ng."""

import subprocess
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly

FILE = Path(__file__).parents[1] / "tcpdelay" / "report" / "templates" / "spoken_sentences.wav"
SENTENCES = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background."
"""The first two of the Harvard sentences (IEEE Recommended Practice for Speech Quality Measurements, 1969)."""
RATE = 8000
"""Samples per second, as in telephony."""
LOUDEST = 120
"""Largest distance of an 8-bit sample from silence, which is 128."""

if __name__ == "__main__":
    command = ["espeak-ng", "-v", "en-gb", "-s", "165", "--stdout", SENTENCES]
    spoken = BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    with wave.open(spoken) as made:
        rate, frames = made.getframerate(), made.readframes(1 << 30)
    # espeak-ng cannot know the length when it writes to a pipe, so the frames themselves count.
    samples = resample_poly(np.frombuffer(frames, "<i2").astype(float), RATE, rate)
    levels = np.rint(128 + LOUDEST * samples / abs(samples).max()).astype(np.uint8)
    with wave.open(str(FILE), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(1)
        written.setframerate(RATE)
        written.writeframes(levels.tobytes())
