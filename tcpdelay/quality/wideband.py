"""The wideband E-model (ITU-T G.107.1, 06/2019): speech of 50 to 7000 Hz, rated up to 129."""

from __future__ import annotations

import numpy as np

from tcpdelay.quality.emodel import (
    Numbers,
    Transmission,
    absolute_delay_impairment,
    echo_loudness,
    listener_echo_impairment,
    milliseconds,
    talker_echo_impairment,
)

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
