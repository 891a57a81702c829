"""Speech and utterances: bursts of packets at a fixed interval, with pauses between."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Annotated, Self

from tcpdelay.declare import described, in_bytes, in_seconds, number
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import (
    BLOCK,
    TYPICAL_WRITE_JITTER,
    Blocks,
    Source,
    WriteJitter,
    message_array,
)

BURSTS = 256
"""Bursts that are drawn together."""


_time = partial(in_seconds, hint="the time is given in seconds")


class _Bursts(Source):
    """Bursts whose audio has an exponentially distributed length, and exponentially distributed pauses after it.

    A burst has a packet at its start, and a packet for each further interval that begins within its audio.
    """

    __slots__ = ()

    packet_size: int
    interval: float

    @property
    @abstractmethod
    def _mean_length(self) -> float:
        """Mean length of the audio of a burst [s]."""

    @property
    @abstractmethod
    def _mean_pause(self) -> float:
        """Mean time from the end of the audio to the next burst [s]."""

    @property
    def _spacing(self) -> float:
        """Time between two writes within a burst [s]."""
        return self.interval

    @property
    def packets_per_burst(self) -> float:
        """Mean number of packets in a burst.

        An exponential length L with the mean m holds ceil(L / interval) packets. Their mean is the sum of P(L > k
        interval) over k = 0, 1, ..., which is 1 / (1 - exp(-interval / m)).
        """
        return -1 / math.expm1(-self.interval / self._mean_length)

    @property
    def message_rate(self) -> float:
        """Mean packets per second, pauses included [1/s]."""
        return self.packets_per_burst / (self._mean_length + self._mean_pause)

    @property
    def mean_bitrate(self) -> float:
        """Mean application bits per second, pauses included [bit/s]."""
        return 8 * self.packet_size * self.message_rate

    def at_bitrate(self, bitrate: float) -> Self:
        """Return the source at another mean bitrate [bit/s]: the size of its packets changes, to whole bytes."""
        size = max(1, round(self.packet_size * self.scale_to(bitrate)))
        # Speech and Utterances are dataclasses.
        return replace(self, packet_size=size)  # type: ignore[type-var]

    def generate(self, seed: int) -> Blocks:
        """Yield the packets of a seed."""
        import numpy as np

        lengths_random, pauses_random = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2)
        )
        begin = 0.0
        while True:
            lengths = self._mean_length * lengths_random.standard_exponential(BURSTS)
            pauses = self._mean_pause * pauses_random.standard_exponential(BURSTS)
            begins = np.cumsum(np.append(begin, lengths + pauses))
            counts = np.maximum(np.ceil(lengths / self.interval).astype(np.int64), 1)
            ends = np.cumsum(counts)
            # Bursts of minutes have millions of packets.
            for first in range(0, int(ends[-1]), BLOCK):
                numbers = np.arange(first, min(first + BLOCK, ends[-1]))
                burst = np.searchsorted(ends, numbers, side="right")
                places = numbers - (ends - counts)[burst]
                yield message_array(begins[burst] + places * self._spacing, self.packet_size, places == 0)
            begin = float(begins[-1])


@described
class Speech(_Bursts):
    """Speech of one party of a conversation with silence suppression: talk spurts and silences.

    Both have exponentially distributed lengths. During a talk spurt there is a packet per interval. In speech the
    lengths have heavier tails than exponential lengths (Jiang and Schulzrinne 2000).

    References
    ----------
    ITU-T Recommendation P.59, "Artificial conversational speech" (1993), is the usual source of exponential talk spurts
    and pauses. Its table could not be read for this program; the literature quotes means of 1.004 s and 1.587 s from
    it. The defaults of 1.0 s and 1.35 s are a convention, by which a party talks 43 % of the time.

    W. Jiang, H. Schulzrinne, "Analysis of On-Off Patterns in VoIP and Their Effect on Voice Traffic Aggregation",
    ICCCN 2000.

    Examples
    --------
    >>> speech = Speech(174, 0.020)
    >>> round(speech.mean_bitrate), speech.messages(0.05)["time"].tolist()
    (29914, [0.0, 0.02, 0.04])
    """

    packet_size: Annotated[int, in_bytes("Application bytes per packet of speech.", 1, 10_000_000, example="174")]
    interval: Annotated[float, _time("Time between two packets of a talk spurt.", 1e-4, 60.0, example="20ms")]
    talk: Annotated[float, _time("Mean length of a talk spurt.", 0.001, 1000.0, example="1s")] = 1.0
    silence: Annotated[float, _time("Mean length of a silence.", 0.001, 1000.0, example="1350ms")] = 1.35
    write_jitter: WriteJitter = TYPICAL_WRITE_JITTER

    @property
    def kinds(self) -> tuple[str, ...]:
        """Packets, and the first packets of talk spurts."""
        return ("packet", "first packet")

    @property
    def without_silence(self) -> Flow:
        """The flow that sends a packet in every interval: the speech of a party that never stops talking."""
        return Flow(self.packet_size, self.interval, self.write_jitter)

    @property
    def _mean_length(self) -> float:
        return self.talk

    @property
    def _mean_pause(self) -> float:
        return self.silence


@described
class Utterances(_Bursts):
    """The replies of a voice agent: audio written faster than it plays, then a pause.

    The length of a reply's audio is exponentially distributed. The agent writes the audio in chunks, `speed` times
    faster than it plays. It writes nothing more until the audio has played without delay and an exponentially
    distributed pause has passed, in which the user speaks and the agent thinks.

    Notes
    -----
    The defaults of speed, length and pause are assumptions about a typical agent and come from no publication.

    Examples
    --------
    One second of 16-bit PCM at 24 kHz in chunks of 20 ms:

    >>> replies = Utterances(960, 0.020, speed=4)
    >>> replies.messages(0.02)["time"].tolist()
    [0.0, 0.005, 0.01, 0.015]
    """

    packet_size: Annotated[int, in_bytes("Application bytes per chunk of a reply.", 1, 10_000_000, example="174")]
    interval: Annotated[float, _time("Audio in a chunk.", 1e-4, 60.0, example="20ms")]
    speed: Annotated[
        float,
        number("Audio written per time, relative to real time.", 1.0, 1000.0, "times", example="3"),
    ] = 3.0
    length: Annotated[float, _time("Mean length of the audio of a reply.", 0.001, 1000.0, example="4s")] = 4.0
    pause: Annotated[
        float, _time("Mean time from the end of a reply's audio to the next reply.", 0.001, 1000.0, example="4s")
    ] = 4.0
    write_jitter: WriteJitter = TYPICAL_WRITE_JITTER

    @property
    def kinds(self) -> tuple[str, ...]:
        """Chunks, and the first chunks of replies."""
        return ("chunk", "first chunk")

    @property
    def _mean_length(self) -> float:
        return self.length

    @property
    def _mean_pause(self) -> float:
        return self.pause

    @property
    def _spacing(self) -> float:
        return self.interval / self.speed
