"""What people say of a call with a given rating: R and mean opinion score (ITU-T G.107, Annex B and Appendix I).

The E-model: how a telephone conversation is rated (ITU-T G.107, 06/2015, narrowband).

Equation numbers are those of the Recommendation. It counts in milliseconds and percent; what is public here takes
seconds and fractions. The echo's paths are the conversation's own: T = Ta and Tr = 2 Ta, as in ITU-T G.114.

The wideband E-model (ITU-T G.107.1, 06/2019): speech of 50 to 7000 Hz, rated up to 129.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.scenario.fields import InvalidValueError


@overload
def mos_from_rating(rating: float) -> float: ...
@overload
def mos_from_rating(rating: NDArray[np.float64] | list[float]) -> NDArray[np.float64]: ...
def mos_from_rating(rating: ArrayLike) -> float | NDArray[np.float64]:
    """Return the mean opinion score that a rating R stands for (ITU-T G.107, B-4).

    Below R = 6.5 the polynomial of the Recommendation falls under 1, which no opinion can; there it is 1.

    Parameters
    ----------
    rating : float or array_like
        R of the narrowband E-model; that of the wideband one is to be divided by 1.29 first.

    Returns
    -------
    float or ndarray
        Mean opinion scores, 1 to 4.5.

    Examples
    --------
    >>> [round(mos_from_rating(r), 2) for r in (93.2, 90, 70, 60, 50)]
    [4.41, 4.34, 3.6, 3.1, 2.58]
    """
    r = np.clip(np.asarray(rating, np.float64), 0.0, 100.0)
    mos: NDArray[np.float64] = np.maximum(1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6, 1.0)
    return float(mos) if mos.ndim == 0 else mos


@overload
def rating_from_mos(mos: float) -> float: ...
@overload
def rating_from_mos(mos: NDArray[np.float64] | list[float]) -> NDArray[np.float64]: ...
def rating_from_mos(mos: ArrayLike) -> float | NDArray[np.float64]:
    """Return the rating R that gives a mean opinion score (ITU-T G.107, Appendix I).

    Parameters
    ----------
    mos : float or array_like
        Mean opinion scores, 1 to 4.5.

    Returns
    -------
    float or ndarray
        R, 6.5 to 100; 6.5 for a score of 1, which all smaller ones give too.

    Raises
    ------
    ValueError
        If a score lies outside its range.

    Examples
    --------
    >>> round(rating_from_mos(4.41), 1), round(rating_from_mos(3.6), 1)
    (93.2, 70.1)
    """
    score = np.asarray(mos, np.float64)
    if not np.all((score >= 1) & (score <= 4.5)):
        raise InvalidValueError("mos", mos, "lie between 1 and 4.5")
    root = 15 * np.sqrt(-903522 + 1113960 * score - 202500 * score**2)
    h = np.arctan2(root, 18566 - 6750 * score) / 3
    rating: NDArray[np.float64] = 20 / 3 * (8 - math.sqrt(226) * np.cos(h + math.pi / 3))
    return float(rating) if rating.ndim == 0 else rating


Numbers = NDArray[np.float64]

LONGEST_DELAY = 1e6
"""Delay [s] that stands for all longer ones: there R is far below 0, and infinity would be taken from infinity."""
WORST_IMPAIRMENT = 95.0
"""What Ie,eff comes to when all is lost (7-29)."""


def _within(low: float, high: float, default: float) -> float:
    value: float = field(default=default, metadata={"range": (low, high)})
    return value


@dataclass(frozen=True)
class Transmission:
    """All of a telephone connection but its delay, its codec and its losses; by default as in Table 3 of ITU-T G.107.

    Parameters
    ----------
    slr, rlr : float
        Send and receive loudness rating [dB], 0 to 18 and -5 to 14.
    stmr, lstr : float
        Sidetone masking and listener sidetone rating [dB], 10 to 20 and 13 to 23.
    ds : float
        D-value of the telephone at the sending side, -3 to 3.
    telr, wepl : float
        Loudness rating of the talker's echo and weighted echo path loss [dB], 5 to 65 and 5 to 110.
    qdu : float
        Quantizing distortion units, 1 to 14.
    nc, nfor : float
        Circuit noise [dBm0p], -80 to -40, and noise floor at the receiving side [dBmp], -120 to -50.
    ps, pr : float
        Room noise at the sending and at the receiving side [dB(A)], 35 to 85.
    advantage : float
        Advantage factor A: what users put up with for the sake of access, 0 to 20.
    minimum_delay : float
        mT, the shortest delay that is noticed [s], 0.02 to 0.15. Table 1 has 0.1 for users in general, 0.12 and 0.15
        for those of low and of very low sensitivity.
    delay_sensitivity : float
        sT, 0.4 to 1. Table 1 has 1, and 0.55 and 0.4 for low and very low sensitivity.

    Raises
    ------
    ValueError
        If a value lies outside its range.

    Examples
    --------
    >>> round(Transmission().basic_rating, 2), round(Transmission().nominal_rating, 1)
    (94.77, 93.2)
    """

    slr: float = _within(0, 18, 8)
    rlr: float = _within(-5, 14, 2)
    stmr: float = _within(10, 20, 15)
    lstr: float = _within(13, 23, 18)
    ds: float = _within(-3, 3, 3)
    telr: float = _within(5, 65, 65)
    wepl: float = _within(5, 110, 110)
    qdu: float = _within(1, 14, 1)
    nc: float = _within(-80, -40, -70)
    nfor: float = _within(-120, -50, -64)
    ps: float = _within(35, 85, 35)
    pr: float = _within(35, 85, 35)
    advantage: float = _within(0, 20, 0)
    minimum_delay: float = _within(0.02, 0.15, 0.1)
    delay_sensitivity: float = _within(0.4, 1, 1)

    def __post_init__(self) -> None:
        for each in fields(self):
            low, high = each.metadata["range"]
            if not low <= (value := getattr(self, each.name)) <= high:
                raise InvalidValueError(each.name, value, f"lie between {low} and {high}")

    @cached_property
    def noise(self) -> float:
        """All noise together at the 0 dBr point, No [dBm0p] (7-3 to 7-7)."""
        olr = self.slr + self.rlr
        sending = self.ps - self.slr - self.ds - 100 + 0.004 * (self.ps - olr - self.ds - 14) ** 2
        room = self.pr + 10 * math.log10(1 + 10 ** ((10 - self.lstr) / 10))
        receiving = self.rlr - 121 + room + 0.008 * (room - 35) ** 2
        floor = self.nfor + self.rlr
        return 10 * math.log10(sum(10 ** (each / 10) for each in (self.nc, sending, receiving, floor)))

    @cached_property
    def basic_rating(self) -> float:
        """Ro, the rating of the signal-to-noise ratio (7-2)."""
        return 15 - 1.5 * (self.slr + self.noise)

    @cached_property
    def echo_basis(self) -> float:
        """Roe, against which the talker's echo is rated (7-20)."""
        return -1.5 * (self.noise - self.rlr)

    @cached_property
    def loudness_impairment(self) -> float:
        """Iolr, what too low a loudness costs (7-9, 7-10)."""
        x = self.slr + self.rlr + 0.2 * (64 + self.noise - self.rlr)
        return 20.0 * float((1 + (x / 8) ** 8) ** (1 / 8) - x / 8)

    @cached_property
    def quantizing_impairment(self) -> float:
        """Iq, what quantizing distortion costs (7-13 to 7-17)."""
        q = 37 - 15 * math.log10(self.qdu)
        g = 1.07 + 0.258 * q + 0.0602 * q**2
        y = (self.basic_rating - 100) / 15 + 46 / 8.4 - g / 9
        z = 46 / 30 - g / 40
        return 15 * math.log10(1 + 10**y + 10**z)

    @cached_property
    def nominal_rating(self) -> float:
        """R without delay, codec and losses; 93.2 by default (7.7)."""
        given, taken = narrowband_terms(np.zeros(1), self)
        return float(given[0] - taken[0])


def milliseconds(delay: Numbers) -> Numbers:
    """Return delays [s] in milliseconds, none so long that the terms of the model are no numbers."""
    result: Numbers = np.minimum(delay, LONGEST_DELAY) * 1e3
    return result


def sidetone_impairment(t: Numbers, transmission: Transmission) -> Numbers:
    """Return Ist, what an unfit sidetone costs, at echo delays `t` [ms] (7-11, 7-12)."""
    echo = np.exp(-t / 4) * 10 ** (-transmission.telr / 10)
    stmro = -10 * np.log10(10 ** (-transmission.stmr / 10) + echo)
    result: Numbers = (
        12 * (1 + ((stmro - 13) / 6) ** 8) ** (1 / 8)
        - 28 * (1 + ((stmro + 1) / 19.4) ** 35) ** (1 / 35)
        - 13 * (1 + ((stmro - 3) / 33) ** 13) ** (1 / 13)
        + 29
    )
    return result


def echo_loudness(t: Numbers, telr: float) -> Numbers:
    """Return TERV, how loud the talker's echo seems at delays `t` [ms] (7-22)."""
    result: Numbers = telr - 40 * np.log10((1 + t / 10) / (1 + t / 150)) + 6 * np.exp(-0.3 * t * t)
    return result


def talker_echo_impairment(t: Numbers, basis: float, rating: Numbers) -> Numbers:
    """Return Idte from Roe and Re at delays `t` [ms]; below 1 ms an echo is sidetone (7-19)."""
    half = (basis - rating) / 2
    result: Numbers = np.where(t < 1, 0.0, (half + np.sqrt(half * half + 100) - 1) * -np.expm1(-t))
    return result


def listener_echo_impairment(tr: Numbers, basic_rating: float, wepl: float) -> Numbers:
    """Return Idle at round-trip delays `tr` [ms] (7-25, 7-26)."""
    half = (basic_rating - 10.5 * (wepl + 7) / np.sqrt(np.sqrt(tr + 1))) / 2
    result: Numbers = half + np.sqrt(half * half + 169)
    return result


def absolute_delay_impairment(ta: Numbers, transmission: Transmission) -> Numbers:
    """Return Idd, what the delay `ta` [ms] itself costs (7-27, 7-28)."""
    power = 6 * transmission.delay_sensitivity
    x = np.log2(np.maximum(ta / (1e3 * transmission.minimum_delay), 1.0))
    result: Numbers = 25 * ((1 + x**power) ** (1 / power) - 3 * (1 + (x / 3) ** power) ** (1 / power) + 2)
    return result


def delay_impairment(delay: Numbers, transmission: Transmission) -> Numbers:
    """Return Id = Idte + Idle + Idd (7-18) of delays from mouth to ear [s].

    Examples
    --------
    >>> delay_impairment(np.array([0.15, 0.25]), Transmission()).round(2)
    array([ 3.82, 14.18])
    """
    ta = milliseconds(delay)
    echo = 80 + 2.5 * (echo_loudness(ta, transmission.telr) - 14)
    return (
        talker_echo_impairment(ta, transmission.echo_basis, echo)
        + listener_echo_impairment(2 * ta, transmission.basic_rating, transmission.wepl)
        + absolute_delay_impairment(ta, transmission)
    )


def equipment_impairment(ie: float, bpl: float, loss: Numbers, burst_ratio: float = 1.0) -> Numbers:
    """Return Ie,eff (7-29), what codec and losses cost.

    Parameters
    ----------
    ie, bpl : float
        Impairment factor and robustness of the codec.
    loss : ndarray
        Shares of packets that are not played, 0 to 1.
    burst_ratio : float
        BurstR: mean length of a run of losses over that of independent losses, from 1 on.

    Returns
    -------
    ndarray
        Ie,eff, in the shape of `loss`.

    Examples
    --------
    >>> equipment_impairment(11, 19, np.array([0.0, 0.02]))
    array([11., 19.])
    """
    percent = 100 * loss
    return ie + (WORST_IMPAIRMENT - ie) * percent / (percent / burst_ratio + bpl)


def narrowband_terms(delay: Numbers, transmission: Transmission) -> tuple[Numbers, Numbers]:
    """Return Ro - Is + A and Id, of which R = (Ro - Is + A) - Id - Ie,eff consists (7-1).

    Parameters
    ----------
    delay : ndarray
        Delays from mouth to ear [s], from 0 on.
    transmission : Transmission
        The rest of the connection.

    Returns
    -------
    tuple of ndarray
        What the connection gives, and what its delay takes.

    Examples
    --------
    >>> given, taken = narrowband_terms(np.array([0.0, 0.2]), Transmission())
    >>> (given - taken).round(1)
    array([93.2, 85.8])
    """
    simultaneous = (
        transmission.loudness_impairment
        + sidetone_impairment(milliseconds(delay), transmission)
        + transmission.quantizing_impairment
    )
    given: Numbers = transmission.basic_rating - simultaneous + transmission.advantage
    return given, delay_impairment(delay, transmission)


BASIC_RATING = 129.0
"""Ro,WB, the top of the scale (7-2)."""
SCALE = BASIC_RATING / 100
"""How much longer the wideband scale is than that of a MOS of 4.5 at R = 100 (A-1)."""


def wideband_echo_rating(t: Numbers, telr: float) -> Numbers:
    """Return Re,WB, how the talker's echo is rated at delays `t` [ms] (7-7 to 7-10)."""
    correction = np.minimum(0.08 * t + 10, 18)
    result: Numbers = 80 + 3 * (echo_loudness(t, telr) + correction - 14)
    return result


def wideband_delay_impairment(delay: Numbers, transmission: Transmission) -> Numbers:
    """Return Id,WB = Idte,WB + Idle,WB + Idd,WB (7-4 to 7-14) of delays from mouth to ear [s].

    The Recommendation's (7-6) has Roe,WB from a noise that it leaves open. Here Roe,WB comes from Ro,WB as Roe comes
    from Ro in the narrowband model, Roe = Ro + 1.5 (SLR + RLR) - 15. With the narrowband noise formula instead, R
    would be higher by 0.4 at 50 ms and by 1.1 at 400 ms.

    Examples
    --------
    >>> wideband_delay_impairment(np.array([0.05, 0.2, 0.4]), Transmission()).round(1)
    array([ 1.1,  6.3, 34.5])
    """
    ta = milliseconds(delay)
    basis = BASIC_RATING + 1.5 * (transmission.slr + transmission.rlr) - 15
    return (
        talker_echo_impairment(ta, basis, wideband_echo_rating(ta, transmission.telr))
        + listener_echo_impairment(2 * ta, BASIC_RATING, transmission.wepl)
        + SCALE * absolute_delay_impairment(ta, transmission)
    )


def wideband_terms(delay: Numbers, transmission: Transmission) -> tuple[Numbers, Numbers]:
    """Return Ro,WB - Is,WB + A and Id,WB, of which R,WB consists with Ie,eff,WB (7-1); Is,WB is 0 (7-3).

    Ie,eff,WB is by the narrowband formula, with its 95 (7-15).

    Parameters
    ----------
    delay : ndarray
        Delays from mouth to ear [s], from 0 on.
    transmission : Transmission
        Of which loudness ratings, echo, advantage and sensitivity to delay count, and noise and sidetone do not.

    Returns
    -------
    tuple of ndarray
        What the connection gives, and what its delay takes.

    Examples
    --------
    >>> given, taken = wideband_terms(np.array([0.0, 0.2]), Transmission())
    >>> (given - taken).round(1)
    array([128.8, 122.7])
    """
    given: Numbers = np.full(np.shape(delay), BASIC_RATING + transmission.advantage)
    return given, wideband_delay_impairment(delay, transmission)
