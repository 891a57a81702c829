"""The rating of a call over TCP by the E-model, the speech codecs as data, and the playout of speech."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.declare import (
    InvalidValueError,
    bounds,
    content,
    described,
    documented,
    instance_of,
    is_number,
    meaning,
    number,
)
from tcpdelay.delays import DelayDistribution
from tcpdelay.quality.emodel import (
    SCALE,
    Numbers,
    Transmission,
    equipment_impairment,
    mos_from_rating,
    narrowband_terms,
    wideband_terms,
)
from tcpdelay.quality.player import Player

# The rating of a call over TCP by the E-model, and the speech codecs as data.
#
# A packet that arrives after its playout time counts as lost. A longer playout delay loses fewer packets, but the delay
# itself lowers the rating.

SHORTEST_PACKET, LONGEST_PACKET = 0.0025, 1.0
"""Range of the speech in a packet [s] with which a codec can be rated."""


@documented()
class Codec:
    """A speech codec with the numbers that the E-model needs.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> Codec("mine", ie=5, bpl=15, packet_interval=0.020, lookahead=0.005).delay
    0.025
    """

    name: str = meaning("Short name.")
    ie: float = meaning("Equipment impairment factor without losses, Ie or Ie,WB, from 0 to below 95.")
    bpl: float = meaning("Packet-loss robustness factor, Bpl or Bpl,WB, above 0.")
    packet_interval: float = meaning(
        "Duration of the speech in a packet [s], 0.0025 to 1; the packet can be sent only after this time."
    )
    lookahead: float = meaning(
        "Duration of the speech after the packet that the encoder needs [s], 0 to 1.", default=0.0
    )
    wideband: bool = meaning("Whether the factors are those of the wideband E-model (ITU-T G.107.1).", default=False)
    approximate: bool = meaning(
        "True where a factor is not an ITU-T planning value for exactly this codec.", default=False
    )
    basis: str = meaning("Source of the numbers.", default="")

    def __post_init__(self) -> None:
        if not 0 <= self.ie < 95:
            raise InvalidValueError("ie", self.ie, "lie between 0 and 95")
        if not 0 < self.bpl < float("inf"):
            raise InvalidValueError("bpl", self.bpl, "be a number above 0")
        if not SHORTEST_PACKET <= self.packet_interval <= LONGEST_PACKET:
            allowed = f"lie between {SHORTEST_PACKET:g} s and {LONGEST_PACKET:g} s"
            raise InvalidValueError("packet_interval", self.packet_interval, allowed)
        if not 0 <= self.lookahead <= 1:
            raise InvalidValueError("lookahead", self.lookahead, "lie between 0 s and 1 s")

    @property
    def delay(self) -> float:
        """Time from the first sound in a packet until the packet can be sent [s] (ITU-T G.114, without processing)."""
        return self.packet_interval + self.lookahead


_APPENDIX_I = "ITU-T G.113 Appendix I (05/2002)"
_DIOTIC = "ITU-T G.113 (09/2024) Tables IV.3 and IV.4, two ears"
_OPUS = "fitted to random losses in published code of M. Alahmadi; confirmed by no paper, and not from ITU-T"

_ALL = (
    Codec("g711", 0, 25.1, 0.020, basis=f"{_APPENDIX_I}, with concealment (G.711 Appendix I), packets of 10 ms"),
    Codec("g711-no-plc", 0, 4.3, 0.020, basis=f"{_APPENDIX_I}, without concealment, packets of 10 ms"),
    Codec("g729a", 11, 19.0, 0.020, 0.005, basis=f"{_APPENDIX_I}, G.729A with VAD, 8 kbit/s"),
    Codec("g723.1", 15, 16.1, 0.030, 0.0075, basis=f"{_APPENDIX_I}, with VAD, 6.3 kbit/s"),
    Codec("gsm-efr", 5, 10.0, 0.020, basis=f"{_APPENDIX_I}, 12.2 kbit/s"),
    Codec("amr-12.2", 5, 10.0, 0.020, approximate=True, basis="as GSM-EFR, whose speech coder it is (3GPP TS 26.071)"),
    Codec("amr-wb-12.65", 20, 4.3, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec("amr-wb-23.05", 8, 4.6, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec("amr-wb-23.85", 10, 4.9, 0.020, 0.005, wideband=True, basis=_DIOTIC),
    Codec(
        "g722",
        13,
        4.3,
        0.020,
        0.0015,
        wideband=True,
        approximate=True,
        basis="Ie,WB of 64 kbit/s, one ear (ITU-T G.113 Appendix IV); it has no Bpl,WB, so this is AMR-WB 12.65's",
    ),
    Codec("opus-nb-11", 2.0, 16.0, 0.020, 0.0065, approximate=True, basis=_OPUS),
    Codec("opus-wb-15", 18.1, 18.7, 0.020, 0.0065, wideband=True, approximate=True, basis=_OPUS),
)

CODECS = {codec.name: codec for codec in _ALL}
"""The codecs by name."""


def codec_named(name: object) -> Codec:
    """Return the codec of this name in `CODECS`; raise a ValueError that lists the known names if there is none."""
    if not isinstance(name, str) or name not in CODECS:
        raise InvalidValueError("codec", name, f"be one of {', '.join(CODECS)}")
    return CODECS[name]


DEFAULT_TRANSMISSION = Transmission()


@documented()
class VoiceQuality:
    """The rating of a call at one playout delay."""

    r: float = meaning(
        "Rating R: 93.2 for a perfect narrowband call, 128.8 for a perfect wideband call, below 0 for a very bad call."
    )
    mos: float = meaning(
        "Mean opinion score, 1 to 4.5. Do not compare a narrowband with a wideband score: their scales differ."
    )
    delay_impairment: float = meaning("Id, the impairment by delay and echo.")
    loss_impairment: float = meaning("Ie,eff, the impairment by the codec and late packets.")
    late_fraction: float = meaning("Share of the packets that arrive after their playout time.")
    playout_delay: float = meaning("Time from the write of a packet to its playout [s].")
    mouth_to_ear: float = meaning("Sum of `playout_delay` and the codec's own delay [s].")


def _resolved(codec: str | Codec, burst_ratio: float) -> Codec:
    """Return the codec, given by name or as itself; raise ValueError if the burst ratio is out of its range."""
    if not 1 <= burst_ratio < float("inf"):
        raise InvalidValueError("burst_ratio", burst_ratio, "be a number from 1 on")
    return codec_named(codec) if isinstance(codec, str) else codec


def _terms(
    delay: Numbers, loss: Numbers, codec: Codec, burst_ratio: float, transmission: Transmission
) -> tuple[Numbers, Numbers, Numbers]:
    """Return R on the codec's own scale, and the impairments by delay and by codec and losses."""
    given, delay_taken = (wideband_terms if codec.wideband else narrowband_terms)(delay, transmission)
    equipment = equipment_impairment(codec.ie, codec.bpl, loss, burst_ratio)
    return given - delay_taken - equipment, delay_taken, equipment


def voice_rating(
    mouth_to_ear: ArrayLike,
    loss: ArrayLike,
    codec: str | Codec = "g711",
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> Numbers:
    """Return the rating R of calls, for arrays of delays and losses.

    Parameters
    ----------
    mouth_to_ear : float or array_like
        Delays from mouth to ear [s], 0 or more.
    loss : float or array_like
        Shares of packets that are not played, 0 to 1; broadcast against `mouth_to_ear`.
    codec : str or Codec
        A name in `CODECS`, or your own codec.
    burst_ratio : float
        BurstR, 1 or more: mean length of a loss burst, divided by the mean length with independent losses.
    transmission : Transmission
        The rest of the connection.

    Returns
    -------
    ndarray
        R, in the broadcast shape. With the default transmission it is at most 93.2, or 128.8 with a wideband codec; it
        can be below 0.

    Raises
    ------
    ValueError
        If a value is outside its range.

    References
    ----------
    ITU-T G.107 (7-1), and ITU-T G.107.1 (7-1) for wideband codecs.

    Examples
    --------
    >>> voice_rating([[0.1], [0.3]], [0.0, 0.05]).round(1)
    array([[90.7, 74.9],
           [72.7, 56.9]])
    """
    codec = _resolved(codec, burst_ratio)
    delays, losses = np.broadcast_arrays(np.asarray(mouth_to_ear, np.float64), np.asarray(loss, np.float64))
    if not np.all(delays >= 0):
        raise InvalidValueError("mouth_to_ear", delays.min(), "be seconds from 0 on")
    if not np.all((losses >= 0) & (losses <= 1)):
        raise InvalidValueError("loss", losses[~((losses >= 0) & (losses <= 1))].flat[0], "lie between 0 and 1")
    return _terms(delays, losses, codec, burst_ratio, transmission)[0]


def voice_mos(
    mouth_to_ear: ArrayLike,
    loss: ArrayLike,
    codec: str | Codec = "g711",
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> Numbers:
    """Return the mean opinion score of calls, for arrays of delays and losses.

    Parameters
    ----------
    mouth_to_ear, loss, codec, burst_ratio, transmission
        As for `voice_rating`.

    Returns
    -------
    ndarray
        Mean opinion scores, 1 to 4.5, in the broadcast shape.

    Raises
    ------
    ValueError
        If a value is outside its range.

    References
    ----------
    ITU-T G.107 (B-4), and ITU-T G.107.1 (A-1) for wideband codecs.

    Examples
    --------
    >>> voice_mos([[0.1], [0.3]], [0.0, 0.05]).round(1)
    array([[4.4, 3.8],
           [3.7, 2.9]])
    """
    codec = _resolved(codec, burst_ratio)
    return mos_from_rating(voice_rating(mouth_to_ear, loss, codec, burst_ratio, transmission) / _scale(codec))


def _scale(codec: Codec) -> float:
    """Return the divisor that brings R of the codec to the scale of `mos_from_rating`."""
    return SCALE if codec.wideband else 1.0


def voice_quality(
    distribution: DelayDistribution,
    codec: str | Codec = "g711",
    playout_delay: float | None = None,
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> VoiceQuality:
    """Rate a call over TCP by the E-model: packets later than the playout delay count as lost.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    codec : str or Codec
        A name in `CODECS`, or your own codec. Its packets must be the packets of the distribution's flow.
    playout_delay : float, optional
        Time from write to playout [s], 0 or more and finite; by default the playout delay with the best rating.
    burst_ratio : float
        BurstR, 1 or more. 1 means that packets are late independently of one another. Over TCP they are not: one loss
        delays several packets together. So 1 overrates a call with late packets. The E-model's formula is verified up
        to 2 (ITU-T G.107, Table 3).
    transmission : Transmission
        The rest of the connection.

    Returns
    -------
    VoiceQuality
        Rating, score, impairments and late fraction.

    Raises
    ------
    ValueError
        If a value is outside its range.

    References
    ----------
    ITU-T G.107, and ITU-T G.107.1 for wideband codecs.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.15]), np.array([0.95, 0.05]), one_way_delay=0.05)
    >>> [round(voice_quality(d, playout_delay=t).mos, 2) for t in (0.05, 0.15)]
    [3.84, 4.29]
    """
    if playout_delay is None:
        return best_playout_delay(distribution, codec, burst_ratio, transmission)
    if not 0 <= playout_delay < float("inf"):
        raise InvalidValueError("playout_delay", playout_delay, "be a number of seconds from 0 on")
    codec = _resolved(codec, burst_ratio)
    delays = np.array([playout_delay], np.float64)
    return _best(delays, distribution.late_fraction(delays), codec, burst_ratio, transmission)


def _best(
    playout: Numbers, late: Numbers, codec: Codec, burst_ratio: float, transmission: Transmission
) -> VoiceQuality:
    """Return the quality at the playout delay [s] with the best rating, given the late fraction at each."""
    ratings, delay_taken, equipment = _terms(playout + codec.delay, late, codec, burst_ratio, transmission)
    best = int(np.argmax(ratings))
    return VoiceQuality(
        r=float(ratings[best]),
        mos=mos_from_rating(float(ratings[best]) / _scale(codec)),
        delay_impairment=float(delay_taken[best]),
        loss_impairment=float(equipment[best]),
        late_fraction=float(late[best]),
        playout_delay=float(playout[best]),
        mouth_to_ear=float(playout[best]) + codec.delay,
    )


def best_playout_delay(
    distribution: DelayDistribution,
    codec: str | Codec = "g711",
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> VoiceQuality:
    """Find the fixed playout delay with the best rating.

    Only the delays in the distribution are tried. Between two of them no further packet arrives, while R falls with
    growing delay. (R falls for delays above 2.5 ms, and every codec's own delay is at least that long.) So no other
    playout delay is better.

    Parameters
    ----------
    distribution, codec, burst_ratio, transmission
        As for `voice_quality`.

    Returns
    -------
    VoiceQuality
        The quality at this delay. If no packet ever arrives, the playout delay is infinite and all packets are late.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.1, 0.6]), np.array([0.95, 0.049, 0.001]), one_way_delay=0.05)
    >>> best_playout_delay(d).playout_delay
    0.1
    >>> best_playout_delay(DelayDistribution.unsustainable(0.05)).mos
    1.0
    """
    codec = _resolved(codec, burst_ratio)
    delays = distribution.values[: np.searchsorted(distribution.values, np.inf)]
    if delays.size == 0:
        return _best(np.array([np.inf]), np.ones(1), codec, burst_ratio, transmission)
    return _best(delays, distribution.late_fraction(delays), codec, burst_ratio, transmission)


@described
class CallTarget:
    """A demand on a call over TCP.

    References
    ----------
    ITU-T G.107 (the E-model).

    Examples
    --------
    >>> CallTarget("g711", mos=4.0).codec_of(0.040).packet_interval
    0.04
    """

    codec: str | Codec = content(
        "A name in `tcpdelay.quality.CODECS`, or your own codec.",
        instance_of("codec", str, Codec),
        "str or Codec",
        details="Each packet is assumed to hold one interval of speech.",
        default="g711",
    )
    mos: float | None = number(
        "Smallest mean opinion score; by default, the best score is searched for.",
        1,
        4.5,
        "",
        allowed="lie between 1 and 4.5",
        default=None,
    )

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            codec_named(self.codec)

    def codec_of(self, interval: float) -> Codec:
        """Return the codec with packets of `interval` [s], 0.0025 to 1."""
        codec = codec_named(self.codec) if isinstance(self.codec, str) else self.codec
        return replace(codec, packet_interval=interval)

    def is_met_by(self, call: VoiceQuality) -> bool:
        """Return whether packets of the call arrive at all, and the call has the score.

        Examples
        --------
        >>> delays = DelayDistribution(np.array([0.05, 0.15]), np.array([0.95, 0.05]), one_way_delay=0.05)
        >>> CallTarget(mos=4.0).is_met_by(best_playout_delay(delays))
        True
        """
        return call.playout_delay < np.inf and (self.mos is None or call.mos >= self.mos)


# The playout of speech and of a voice agent's replies: the buffer without gaps, and when each chunk is played.

LONGEST_BUFFER = bounds(Player, "startup")[1]
"""Largest playout buffer [s], as of a video player."""


@dataclass(frozen=True)
class PlayedBursts:
    """How the chunks of talk spurts or replies are played."""

    starts: NDArray[np.int64]  # Number of the first chunk of each burst
    # Smallest playout buffer without a gap in each burst [s], from the arrival of its first chunk to its playout
    required: NDArray[np.float64]
    played: NDArray[np.float64]  # Time at which each chunk begins to play [s]


def play_bursts(
    read: NDArray[np.float64], starts: NDArray[np.int64], interval: float, buffer: float = 0.0
) -> PlayedBursts:
    r"""Play bursts of audio, such as talk spurts, in chunks of equal length.

    The chunks of a burst have the length :math:`\Delta` and are read at :math:`r_0, r_1, \dots`. The playout begins B
    after :math:`r_0`, so chunk k is due at :math:`r_0 + B + k \Delta`. The burst has no gap if

    .. math:: B \ge \max_k (r_k - r_0 - k \Delta).

    If a chunk is late, the player waits for this chunk, and plays the rest of the burst later: chunk k begins at

    .. math:: p_k = \max(r_0 + B + k \Delta, \max_{i \le k} (r_i + (k - i) \Delta)).

    Parameters
    ----------
    read : ndarray, shape (chunks,)
        Time at which each chunk was read in order [s].
    starts : ndarray of int, shape (bursts,)
        Number of the first chunk of each burst, in ascending order from 0 on.
    interval : float
        Length Δ of the audio in a chunk [s], above 0.
    buffer : float
        Time B from the arrival of the first chunk of a burst to its playout [s], 0 to 3600.

    Returns
    -------
    PlayedBursts
        The buffer that each burst requires, and the playout with the given buffer.

    Raises
    ------
    InvalidValueError
        If a value is out of its range.

    Examples
    --------
    The third of four chunks of 20 ms comes 50 ms late, at the same time as the fourth chunk:

    >>> bursts = play_bursts(np.array([0.05, 0.07, 0.14, 0.14]), np.array([0]), interval=0.020)
    >>> bursts.required.round(3).tolist(), bursts.played.round(3).tolist()
    ([0.05], [0.05, 0.07, 0.14, 0.16])
    """
    if not is_number(interval) or not 0 < interval < np.inf:
        raise InvalidValueError("interval", interval, "be a number of seconds above 0")
    require_buffer(buffer)
    if not starts.size or starts[0] != 0 or np.any(np.diff(starts) <= 0) or starts[-1] >= read.size:
        raise InvalidValueError("starts", starts, "ascend from 0 to below the number of chunks")
    lengths = np.diff(np.append(starts, read.size))
    place = np.arange(read.size) - np.repeat(starts, lengths)
    # Lateness of each chunk if the burst played from the arrival of its first chunk on.
    late = read - np.repeat(read[starts], lengths) - place * interval
    required = np.maximum.reduceat(late, starts)
    # Each burst is raised above all earlier bursts, so that the running maximum begins anew with each burst.
    step = float(late.max() - late.min()) + buffer + 1.0
    burst = np.repeat(np.arange(starts.size), lengths)
    waited = np.maximum.accumulate(np.maximum(late, buffer) + step * burst) - step * burst
    return PlayedBursts(starts, required, np.repeat(read[starts], lengths) + waited + place * interval)


def require_buffer(buffer: object) -> None:
    """Raise InvalidValueError if a playout buffer [s] is out of its range."""
    if not is_number(buffer) or not 0 <= buffer <= LONGEST_BUFFER:
        raise InvalidValueError("buffer", buffer, f"be a number of seconds from 0 to {LONGEST_BUFFER:g}")
