"""How a call over TCP is rated: what comes too late for its playout is lost, and waiting longer costs too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tcpdelay.distribution import DelayDistribution
from tcpdelay.quality.codecs import Codec, codec_named
from tcpdelay.quality.emodel import (
    Numbers,
    Transmission,
    equipment_impairment,
    narrowband_terms,
)
from tcpdelay.quality.opinion import mos_from_rating
from tcpdelay.quality.wideband import SCALE, wideband_terms

DEFAULT_TRANSMISSION = Transmission()


@dataclass(frozen=True)
class VoiceQuality:
    """How a call is rated at one playout delay.

    Parameters
    ----------
    r : float
        Rating: 93.2 for a perfect narrowband call, 128.8 for a perfect wideband one; below 0 where nothing is right.
    mos : float
        Mean opinion score, 1 to 4.5. Scores of the narrowband and of the wideband model are not on one scale.
    delay_impairment : float
        Id, what delay and echo take from the rating.
    loss_impairment : float
        Ie,eff, what the codec and late packets take from it.
    late_fraction : float
        Share of the packets that come too late to be played.
    playout_delay : float
        Time from the write of a packet to its playout [s].
    mouth_to_ear : float
        `playout_delay` and the codec's own delay [s].
    """

    r: float
    mos: float
    delay_impairment: float
    loss_impairment: float
    late_fraction: float
    playout_delay: float
    mouth_to_ear: float


def _resolved(codec: str | Codec, burst_ratio: float) -> Codec:
    """Return the codec itself, with the burst ratio checked."""
    if not 1 <= burst_ratio < float("inf"):
        raise ValueError(f"burst_ratio must be a number from 1 on, got {burst_ratio}")
    return codec_named(codec) if isinstance(codec, str) else codec


def _terms(
    delay: Numbers, loss: Numbers, codec: Codec, burst_ratio: float, transmission: Transmission
) -> tuple[Numbers, Numbers, Numbers]:
    """Return R on the codec's own scale, and what delay and equipment take from it."""
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
    """Return the rating R of calls, for whole maps of delay and loss.

    Parameters
    ----------
    mouth_to_ear : float or array_like
        Delays from mouth to ear [s], from 0 on.
    loss : float or array_like
        Shares of packets that are not played, 0 to 1; broadcast against `mouth_to_ear`.
    codec : str or Codec
        A name in `CODECS`, or a codec of one's own.
    burst_ratio : float
        Mean length of a run of losses over that of independent losses, from 1 on.
    transmission : Transmission
        The rest of the connection.

    Returns
    -------
    ndarray
        R in the common shape of the two, at most 93.2, or 128.8 of a wideband codec, by default; also below 0.

    Raises
    ------
    ValueError
        If a value lies outside its range.

    Examples
    --------
    >>> voice_rating([[0.1], [0.3]], [0.0, 0.05]).round(1)
    array([[90.7, 74.9],
           [72.7, 56.9]])
    """
    codec = _resolved(codec, burst_ratio)
    delays, losses = np.broadcast_arrays(np.asarray(mouth_to_ear, np.float64), np.asarray(loss, np.float64))
    if not np.all(delays >= 0):
        raise ValueError("mouth_to_ear must be seconds from 0 on")
    if not np.all((losses >= 0) & (losses <= 1)):
        raise ValueError("loss must lie between 0 and 1")
    return _terms(delays, losses, codec, burst_ratio, transmission)[0]


def voice_mos(
    mouth_to_ear: ArrayLike,
    loss: ArrayLike,
    codec: str | Codec = "g711",
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> Numbers:
    """Return the mean opinion score of calls, 1 to 4.5; parameters and errors are those of `voice_rating`.

    Examples
    --------
    >>> voice_mos([[0.1], [0.3]], [0.0, 0.05]).round(1)
    array([[4.4, 3.8],
           [3.7, 2.9]])
    """
    codec = _resolved(codec, burst_ratio)
    return mos_from_rating(voice_rating(mouth_to_ear, loss, codec, burst_ratio, transmission) / _scale(codec))


def _scale(codec: Codec) -> float:
    """Return what R is divided by before it gives a score."""
    return SCALE if codec.wideband else 1.0


def voice_quality(
    distribution: DelayDistribution,
    codec: str | Codec = "g711",
    playout_delay: float | None = None,
    burst_ratio: float = 1.0,
    transmission: Transmission = DEFAULT_TRANSMISSION,
) -> VoiceQuality:
    """Rate a call over TCP by the E-model: what is later than the playout delay counts as lost.

    Parameters
    ----------
    distribution : DelayDistribution
        Delays from write to in-order read.
    codec : str or Codec
        A name in `CODECS`, or a codec of one's own, whose packets are those of the distribution's flow.
    playout_delay : float, optional
        Time from write to playout [s], from 0 on and finite; by default that with the best rating.
    burst_ratio : float
        BurstR, from 1 on. 1 takes late packets for independent. Over TCP they are not: all that is held up by one loss
        is late together, so 1 flatters the call wherever the late fraction counts. The E-model's formula is checked
        up to 2 (ITU-T G.107, Table 3).
    transmission : Transmission
        The rest of the connection.

    Returns
    -------
    VoiceQuality
        Rating, score and where they come from.

    Raises
    ------
    ValueError
        If a value lies outside its range.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.15]), np.array([0.95, 0.05]), one_way_delay=0.05)
    >>> [round(voice_quality(d, playout_delay=t).mos, 2) for t in (0.05, 0.15)]
    [3.84, 4.29]
    """
    if playout_delay is None:
        return best_playout_delay(distribution, codec, burst_ratio, transmission)
    if not 0 <= playout_delay < float("inf"):
        raise ValueError(f"playout_delay must be a number of seconds from 0 on, got {playout_delay}")
    codec = _resolved(codec, burst_ratio)
    delays = np.array([playout_delay], np.float64)
    return _best(delays, distribution.late_fraction(delays), codec, burst_ratio, transmission)


def _best(
    playout: Numbers, late: Numbers, codec: Codec, burst_ratio: float, transmission: Transmission
) -> VoiceQuality:
    """Return the account of the best of some playout delays."""
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

    Between two delays that occur nothing more comes in time, and R falls as the delay grows (from 2.5 ms on, and no
    codec's delay is shorter). So the best of the delays that occur is the best of all at which anything is played.

    Parameters
    ----------
    distribution, codec, burst_ratio, transmission
        As in `voice_quality`.

    Returns
    -------
    VoiceQuality
        The rating there. Where no packet ever comes, the playout delay is infinite and all are late.

    Raises
    ------
    ValueError
        If a value lies outside its range.

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
