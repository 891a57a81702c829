"""Media: speech as utterances and pauses, and video as frames, of which every so many are larger key frames."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from tcpdelay.declare import InvalidValueError, choice, described, in_bytes, in_seconds, like, number, quantity
from tcpdelay.scenario.messages import Trace
from tcpdelay.scenario.source import (
    BLOCK,
    TYPICAL_WRITE_JITTER,
    WRITE_JITTER,
    Blocks,
    Flow,
    Source,
    message_array,
    whole_bytes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Speech and utterances: bursts of packets at a fixed interval, with pauses between.

BURSTS = 256
"""Bursts that are drawn together."""


_IN_SECONDS = "the time is given in seconds"


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

    packet_size: int = in_bytes("Application bytes per packet of speech.", 1, 10_000_000, example="174")
    interval: float = in_seconds(
        "Time between two packets of a talk spurt.", 1e-4, 60.0, example="20ms", hint=_IN_SECONDS
    )
    talk: float = in_seconds("Mean length of a talk spurt.", 0.001, 1000.0, example="1s", hint=_IN_SECONDS, default=1.0)
    silence: float = in_seconds(
        "Mean length of a silence.", 0.001, 1000.0, example="1350ms", hint=_IN_SECONDS, default=1.35
    )
    write_jitter: float = like(WRITE_JITTER, default=TYPICAL_WRITE_JITTER)

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

    packet_size: int = in_bytes("Application bytes per chunk of a reply.", 1, 10_000_000, example="174")
    interval: float = in_seconds("Audio in a chunk.", 1e-4, 60.0, example="20ms", hint=_IN_SECONDS)
    speed: float = number(
        "Audio written per time, relative to real time.", 1.0, 1000.0, "times", example="3", default=3.0
    )
    length: float = in_seconds(
        "Mean length of the audio of a reply.", 0.001, 1000.0, example="4s", hint=_IN_SECONDS, default=4.0
    )
    pause: float = in_seconds(
        "Mean time from the end of a reply's audio to the next reply.",
        0.001,
        1000.0,
        example="4s",
        hint=_IN_SECONDS,
        default=4.0,
    )
    write_jitter: float = like(WRITE_JITTER, default=TYPICAL_WRITE_JITTER)

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


FrameSizes = Literal["lognormal", "weibull"]

# Video: frames at a constant rate.

KEY_FRAME = "key frame"
"""Name of the kind of messages that can be decoded without earlier messages."""
WEIBULL_SHAPE = 0.8099
"""Shape k of the frame sizes in the evaluation methodology of IEEE 802.11ax."""
WEIBULL_SCALE = 6950 / 2e6
"""Scale lambda of these sizes per bitrate [bytes per bit/s]: 6950 bytes at 2 Mbit/s, 54210 bytes at 15.6 Mbit/s."""


@described
class Video(Source):
    """A video: one frame per frame interval, each written at once; the first frame of each group is a key frame.

    The sizes of all key frames have one distribution, those of the other frames have another. The mean sizes follow
    from bitrate, frame rate and `key_ratio`: with n frames from a key frame to the next, and the mean size B = bitrate
    / (8 frame_rate) of all frames, the mean size of a frame that is no key frame is

        B n / (n - 1 + key_ratio).

    Sizes are independent of each other and rounded to whole bytes, at least 1 byte.

    Raises
    ------
    InvalidValueError
        If a value is out of its range, or the mean size of a frame is below one byte; a ValueError.

    References
    ----------
    IEEE 802.11-14/0571r12, "11ax Evaluation Methodology", Appendix 2, buffered video streaming: Weibull sizes with
    k = 0.8099, and lambda = 6950, 13900, 20850, 27800, 34750 and 54210 bytes at 2, 4, 6, 8, 10 and 15.6 Mbit/s. The
    figures were read in ns-3 (`TgaxVideoTraffic`, src/applications), not in the document itself.

    Examples
    --------
    >>> video = Video(2_500_000, key_ratio=8)
    >>> [round(size) for size in video.mean_sizes]
    [9328, 74627]
    >>> video.kinds[video.messages(0.5)["kind"][0]]
    'key frame'
    """

    bitrate: float = quantity(
        "Mean application bits per second of the video.", 1.0, 1e11, "bit/s", "rate", example="2.5Mbit/s"
    )
    frame_rate: float = number("Frames per second.", 0.1, 1000.0, "1/s", example="30", default=30.0)
    key_interval: float = in_seconds(
        "Time from a key frame to the next.",
        0.001,
        3600.0,
        details="Rounded to a whole number of frames, at least one.",
        example="2s",
        hint="the time is given in seconds",
        default=2.0,
    )
    key_ratio: float = number(
        "Mean size of a key frame relative to other frames; 1: no key frames.",
        1.0,
        1000.0,
        "times",
        example="8",
        default=8.0,
    )
    variation: float = number(
        "Standard deviation of lognormal frame sizes relative to their mean.",
        0.0,
        3.0,
        "times the mean",
        details="It holds for key frames and for other frames, each about their mean. With Weibull sizes it has "
        "no effect.",
        example="0.3",
        default=0.3,
    )
    frame_sizes: FrameSizes = choice(
        "Distribution of the frame sizes: lognormal, or weibull as for IEEE 802.11ax.",
        details='"weibull" has the shape of the evaluation methodology of IEEE 802.11ax, k = 0.8099, so that '
        "the standard deviation is 1.24 times the mean.",
        default="lognormal",
    )
    write_jitter: float = like(WRITE_JITTER, default=TYPICAL_WRITE_JITTER)

    def __post_init__(self) -> None:
        smallest = self.mean_sizes[0]
        if smallest < 1:
            least = self.bitrate / smallest
            allowed = f"be {least:.6g} bit/s or more, so that a frame has at least one byte in the mean"
            raise InvalidValueError("bitrate", self.bitrate, allowed)

    @classmethod
    def ieee80211ax(cls, bitrate: float) -> Video:
        """Return the buffered video stream of the evaluation methodology of IEEE 802.11ax, without key frames.

        The mean frame size and the bitrate give a frame rate of 32.02 per second, the same at every bitrate.

        Parameters
        ----------
        bitrate : float
            Mean application bits per second [bit/s], 1 to 1e11; in the methodology 2, 4, 6, 8, 10 or 15.6 Mbit/s.

        Raises
        ------
        InvalidValueError
            If the bitrate is out of its range; a ValueError.

        Examples
        --------
        >>> round(Video.ieee80211ax(2e6).frame_rate, 2)
        32.02
        """
        mean_per_bitrate = WEIBULL_SCALE * math.gamma(1 + 1 / WEIBULL_SHAPE)
        return cls(bitrate, frame_rate=1 / (8 * mean_per_bitrate), key_ratio=1.0, frame_sizes="weibull")

    @classmethod
    def fit(cls, trace: Trace) -> Video:
        """Estimate the parameters of a video from a trace of its frames.

        The frame sizes of the returned video are lognormal.

        Key frames are the frames labelled "key", "key frame", "I" or "IDR". Without such labels they follow from the
        logarithms of the sizes of the first 10 000 frames, which are divided into two classes: by the distance of the
        larger frames that leaves the smallest sum of squares within the classes, or by a mixture of two normal
        distributions, if its likelihood is larger. The price of further parameters is that of Schwarz (1978). The
        class of larger frames is divided again, as P frames and key frames are in a video with B frames, for as long
        as the likelihood grows by a factor of e^10. At least five key frames are needed, else the fit has none.

        Sizes have no order in `Video`: slow changes of the content become variation from frame to frame.

        Parameters
        ----------
        trace : Trace
            At least ten frames at a constant rate, each one message.

        Returns
        -------
        Video
            `bitrate` and `frame_rate` are means of the trace. `key_ratio` is the ratio of the mean sizes of key frames
            and other frames, `key_interval` the mean distance of key frames, and `variation` the standard deviation of
            all sizes, each relative to the mean of its class. Without key frames `key_ratio` is 1, and `key_interval`
            is one frame.

        Raises
        ------
        InvalidValueError
            If the messages are fewer than ten, or do not come at a constant rate; a ValueError.

        References
        ----------
        Schwarz, "Estimating the Dimension of a Model", Annals of Statistics 6 (1978).

        Examples
        --------
        >>> frames = Video(2_500_000, key_ratio=8, key_interval=1).messages(600)
        >>> video = Video.fit(Trace(frames["time"], frames["size"]))
        >>> round(video.key_ratio, 1), round(video.key_interval, 3), round(video.variation, 2)
        (8.0, 1.0, 0.3)
        """
        # It needs NumPy, but the command line reads the declarations of this module for its help.
        from tcpdelay.scenario.video_fit import fitted_parameters

        return cls(*fitted_parameters(trace))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Other frames and key frames."""
        return ("other frame", KEY_FRAME)

    @property
    def group(self) -> int:
        """Number of frames from a key frame to the next."""
        return max(round(self.key_interval * self.frame_rate), 1)

    @property
    def mean_sizes(self) -> tuple[float, float]:
        """Mean size of a frame that is no key frame, and of a key frame [bytes]."""
        other = self.bitrate / 8 / self.frame_rate * self.group / (self.group - 1 + self.key_ratio)
        return other, self.key_ratio * other

    @property
    def message_rate(self) -> float:
        """Frames per second [1/s]."""
        return self.frame_rate

    @property
    def mean_bitrate(self) -> float:
        """Mean application bits per second [bit/s]."""
        return self.bitrate

    def at_bitrate(self, bitrate: float) -> Video:
        """Return the video at another mean bitrate [bit/s]: key frames and other frames change in proportion."""
        return replace(self, bitrate=bitrate)

    def generate(self, seed: int) -> Blocks:
        """Yield the frames of a seed."""
        import numpy as np

        random = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
        draw = self._relative_sizes(random)
        means = np.array(self.mean_sizes)
        first = 0
        while True:
            numbers = np.arange(first, first + BLOCK)
            key = (numbers % self.group == 0).astype(np.uint8) if self.key_ratio > 1 else np.zeros(BLOCK, np.uint8)
            yield message_array(numbers / self.frame_rate, whole_bytes(means[key] * draw(BLOCK)), key)
            first += BLOCK

    def _relative_sizes(self, random: np.random.Generator) -> Callable[[int], NDArray[np.float64]]:
        """Return the function that draws sizes relative to their mean."""
        if self.frame_sizes == "weibull":
            scale = 1 / math.gamma(1 + 1 / WEIBULL_SHAPE)
            return lambda count: scale * random.weibull(WEIBULL_SHAPE, count)
        # The mean of a lognormal variable is exp(mu + sigma^2 / 2), its coefficient of variation the root of
        # exp(sigma^2) - 1.
        variance = math.log1p(self.variation**2)
        return lambda count: random.lognormal(-variance / 2, math.sqrt(variance), count)
