"""The E-model: the rating R of a telephone conversation, and its mean opinion score.

The narrowband model is ITU-T G.107 (06/2015). The wideband model is ITU-T G.107.1 (06/2019): it rates speech of 50 to
7000 Hz, up to R = 129. Numbers in parentheses are the equation numbers of these Recommendations.

The Recommendations count in milliseconds and percent. The public functions here take seconds and fractions. The echo
travels the paths of the conversation: T = Ta and Tr = 2 Ta, as in ITU-T G.114.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.declare import InvalidValueError

Numbers = NDArray[np.float64]

LONGEST_DELAY = 1e6
"""Longest delay [s] that is rated as it is. R is far below 0 there, and an infinite delay would give inf - inf."""
WORST_IMPAIRMENT = 95.0
"""Ie,eff when all packets are lost (7-29)."""
BASIC_RATING = 129.0
"""Ro,WB, the top of the wideband scale (7-2)."""
SCALE = BASIC_RATING / 100
"""Ratio of the wideband scale to the scale on which R = 100 is a MOS of 4.5 (A-1)."""


@overload
def mos_from_rating(rating: float) -> float: ...
@overload
def mos_from_rating(rating: Numbers | list[float]) -> Numbers: ...
def mos_from_rating(rating: ArrayLike) -> float | Numbers:
    """Return the mean opinion score of a rating R (ITU-T G.107, B-4).

    Below R = 6.5 the polynomial of the Recommendation falls below 1, the lowest score. The result there is 1.

    Parameters
    ----------
    rating : float or array_like
        R of the narrowband E-model. Divide R of the wideband E-model by 1.29 first. R below 0 counts as 0, and R above
        100 as 100.

    Returns
    -------
    float or ndarray
        Mean opinion scores, 1 to 4.5, in the shape of `rating`.

    Examples
    --------
    >>> [round(mos_from_rating(r), 2) for r in (93.2, 90, 70, 60, 50)]
    [4.41, 4.34, 3.6, 3.1, 2.58]
    """
    r = np.clip(np.asarray(rating, np.float64), 0.0, 100.0)
    mos: Numbers = np.maximum(1 + 0.035 * r + r * (r - 60) * (100 - r) * 7e-6, 1.0)
    return float(mos) if mos.ndim == 0 else mos


SMALLEST_USABLE_MOS = mos_from_rating(50.0)
"""Score of R = 50; ITU-T G.107, annex B, does not recommend a connection of a lower rating."""


@overload
def rating_from_mos(mos: float) -> float: ...
@overload
def rating_from_mos(mos: Numbers | list[float]) -> Numbers: ...
def rating_from_mos(mos: ArrayLike) -> float | Numbers:
    """Return the rating R that gives a mean opinion score (ITU-T G.107, Appendix I).

    Parameters
    ----------
    mos : float or array_like
        Mean opinion scores, 1 to 4.5.

    Returns
    -------
    float or ndarray
        R, 6.5 to 100, in the shape of `mos`. All R up to 6.5 give a score of 1; the result for 1 is 6.5.

    Raises
    ------
    ValueError
        If a score is outside its range.

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
    rating: Numbers = 20 / 3 * (8 - math.sqrt(226) * np.cos(h + math.pi / 3))
    return float(rating) if rating.ndim == 0 else rating


def _within(low: float, high: float, default: float) -> float:
    """Declare a field with its range and its default."""
    value: float = field(default=default, metadata={"range": (low, high)})
    return value


@dataclass(frozen=True)
class Transmission:
    """A telephone connection without its delay, codec and losses; the defaults are those of ITU-T G.107, Table 3.

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
        Advantage factor A, 0 to 20: the impairment that users accept in return for the advantage of access.
    minimum_delay : float
        mT, the shortest delay that users notice [s], 0.02 to 0.15. Table 1: 0.1 by default, 0.12 for users of low
        sensitivity, 0.15 for users of very low sensitivity.
    delay_sensitivity : float
        sT, 0.4 to 1. Table 1: 1 by default, 0.55 for low sensitivity, 0.4 for very low sensitivity.

    Raises
    ------
    ValueError
        If a value is outside its range.

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
        """No, the power sum of all noise at the 0 dBr point [dBm0p] (7-3 to 7-7)."""
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
        """Roe, the reference of the talker's echo rating (7-20)."""
        return -1.5 * (self.noise - self.rlr)

    @cached_property
    def loudness_impairment(self) -> float:
        """Iolr, the impairment by too low a loudness (7-9, 7-10)."""
        x = self.slr + self.rlr + 0.2 * (64 + self.noise - self.rlr)
        return 20.0 * float((1 + (x / 8) ** 8) ** (1 / 8) - x / 8)

    @cached_property
    def quantizing_impairment(self) -> float:
        """Iq, the impairment by quantizing distortion (7-13 to 7-17)."""
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
    """Return delays [s] in milliseconds, limited to `LONGEST_DELAY`."""
    return np.minimum(delay, LONGEST_DELAY) * 1e3


def sidetone_impairment(t: Numbers, transmission: Transmission) -> Numbers:
    """Return Ist, the impairment by a sidetone that is too loud or too low, at echo delays `t` [ms] (7-11, 7-12)."""
    echo = np.exp(-t / 4) * 10 ** (-transmission.telr / 10)
    stmro = -10 * np.log10(10 ** (-transmission.stmr / 10) + echo)
    return (
        12 * (1 + ((stmro - 13) / 6) ** 8) ** (1 / 8)
        - 28 * (1 + ((stmro + 1) / 19.4) ** 35) ** (1 / 35)
        - 13 * (1 + ((stmro - 3) / 33) ** 13) ** (1 / 13)
        + 29
    )


def echo_loudness(t: Numbers, telr: float) -> Numbers:
    """Return TERV, the perceived loudness rating of the talker's echo, at delays `t` [ms] (7-22)."""
    loudness: Numbers = telr - 40 * np.log10((1 + t / 10) / (1 + t / 150)) + 6 * np.exp(-0.3 * t * t)
    return loudness


def talker_echo_impairment(t: Numbers, basis: float, rating: Numbers) -> Numbers:
    """Return Idte from Roe and Re at delays `t` [ms] (7-19); below 1 ms, an echo counts as sidetone."""
    half = (basis - rating) / 2
    return np.where(t < 1, 0.0, (half + np.sqrt(half * half + 100) - 1) * -np.expm1(-t))


def listener_echo_impairment(tr: Numbers, basic_rating: float, wepl: float) -> Numbers:
    """Return Idle at round-trip delays `tr` [ms] (7-25, 7-26)."""
    half = (basic_rating - 10.5 * (wepl + 7) / np.sqrt(np.sqrt(tr + 1))) / 2
    return half + np.sqrt(half * half + 169)


def absolute_delay_impairment(ta: Numbers, transmission: Transmission) -> Numbers:
    """Return Idd, the impairment by the delays `ta` [ms] themselves (7-27, 7-28)."""
    power = 6 * transmission.delay_sensitivity
    x = np.log2(np.maximum(ta / (1e3 * transmission.minimum_delay), 1.0))
    return 25 * ((1 + x**power) ** (1 / power) - 3 * (1 + (x / 3) ** power) ** (1 / power) + 2)


def delay_impairment(delay: Numbers, transmission: Transmission) -> Numbers:
    """Return Id = Idte + Idle + Idd (7-18) of delays from mouth to ear [s]."""
    ta = milliseconds(delay)
    echo = 80 + 2.5 * (echo_loudness(ta, transmission.telr) - 14)
    return (
        talker_echo_impairment(ta, transmission.echo_basis, echo)
        + listener_echo_impairment(2 * ta, transmission.basic_rating, transmission.wepl)
        + absolute_delay_impairment(ta, transmission)
    )


def equipment_impairment(ie: float, bpl: float, loss: Numbers, burst_ratio: float = 1.0) -> Numbers:
    """Return Ie,eff, the impairment by codec and losses (7-29)."""
    percent = 100 * loss
    return ie + (WORST_IMPAIRMENT - ie) * percent / (percent / burst_ratio + bpl)


def narrowband_terms(delay: Numbers, transmission: Transmission) -> tuple[Numbers, Numbers]:
    """Return Ro - Is + A and Id, two of the terms of R = (Ro - Is + A) - Id - Ie,eff (7-1)."""
    simultaneous = (
        transmission.loudness_impairment
        + sidetone_impairment(milliseconds(delay), transmission)
        + transmission.quantizing_impairment
    )
    return transmission.basic_rating - simultaneous + transmission.advantage, delay_impairment(delay, transmission)


def wideband_echo_rating(t: Numbers, telr: float) -> Numbers:
    """Return Re,WB, the rating of the talker's echo, at delays `t` [ms] (7-7 to 7-10)."""
    correction = np.minimum(0.08 * t + 10, 18)
    return 80 + 3 * (echo_loudness(t, telr) + correction - 14)


def wideband_delay_impairment(delay: Numbers, transmission: Transmission) -> Numbers:
    """Return Id,WB = Idte,WB + Idle,WB + Idd,WB (7-4 to 7-14) of delays from mouth to ear [s].

    Equation (7-6) computes Roe,WB from a noise level that the Recommendation leaves open. Here Roe,WB follows from
    Ro,WB in the same way as Roe follows from Ro in the narrowband model: Roe = Ro + 1.5 (SLR + RLR) - 15. With the
    narrowband noise formula instead, R would be higher by 0.4 at 50 ms and by 1.1 at 400 ms.
    """
    ta = milliseconds(delay)
    basis = BASIC_RATING + 1.5 * (transmission.slr + transmission.rlr) - 15
    return (
        talker_echo_impairment(ta, basis, wideband_echo_rating(ta, transmission.telr))
        + listener_echo_impairment(2 * ta, BASIC_RATING, transmission.wepl)
        + SCALE * absolute_delay_impairment(ta, transmission)
    )


def wideband_terms(delay: Numbers, transmission: Transmission) -> tuple[Numbers, Numbers]:
    """Return Ro,WB - Is,WB + A and Id,WB, two of the terms of R,WB (7-1); Is,WB is 0 (7-3).

    The third term, Ie,eff,WB, has the formula of the narrowband model, with the same 95 (7-15).
    """
    given = np.full(np.shape(delay), BASIC_RATING + transmission.advantage)
    return given, wideband_delay_impairment(delay, transmission)
