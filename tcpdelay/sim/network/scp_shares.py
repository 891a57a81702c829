"""How flows of SCP that misjudge the path share a link: the closed form for two of them.

With a window W_l = r T_brtt + W_D each, two flows behind one queue have rates in the ratio of their windows.

References
----------
.. [1] Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.sim.network.bottleneck import check_range

Fraction = np.float64 | NDArray[np.float64]


def scp_rate_beside(
    other_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return the rate of an SCP flow a beside another one, b, at the same queue.

    .. math:: r_a = \frac{r_b W_D}{r_b (e_b - e_a) + W_D}

    Parameters
    ----------
    other_rate : array_like
        Rate of the other flow, r_b [packets/s], above 0.
    error, other_error : array_like
        By how much the smallest RTT that each flow has seen is too large, e_a and e_b [s], 0 or more.
    backlog : float
        Packets that each means to keep queued, W_D, 0.1 to 1000.

    Returns
    -------
    float or ndarray
        Its rate [packets/s]; infinite where the other flow's rate is not possible at any rate of this one.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998: the
    analysis of two flows, from r_a / r_b = W_a / W_b.

    Examples
    --------
    >>> print(scp_rate_beside(50.0))
    50.0
    >>> print(scp_rate_beside(50.0, other_error=0.030))
    33.3333333
    """
    rate, difference = _checked(other_rate, "other_rate", error, other_error, backlog)
    kept = rate * difference + backlog
    result: Fraction = np.divide(rate * backlog, kept, out=np.full(kept.shape, np.inf), where=kept > 0)[()]
    return result


def scp_share(
    link_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return which part of a full link an SCP flow has beside another one.

    `scp_rate_beside` together with r_a + r_b = C is a quadratic equation. With :math:`u = C (e_b - e_a) / W_D`, the
    difference of the errors in times that the link takes for W_D packets,

    .. math:: \frac{r_a}{C} = \frac{2}{2 + u + \sqrt{4 + u^2}}.

    Parameters
    ----------
    link_rate : array_like
        Rate of the link, C [packets/s], above 0.
    error, other_error : array_like
        By how much the smallest RTT that each flow has seen is too large, e_a and e_b [s], 0 or more.
    backlog : float
        Packets that each means to keep queued, W_D, 0.1 to 1000.

    Returns
    -------
    float or ndarray
        The part, 0 to 1.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.

    Examples
    --------
    A flow that begins while another one keeps its three packets queued never sees the empty path:

    >>> print(scp_share(100.0, error=0.0, other_error=3 / 100.0))
    0.381966
    """
    rate, difference = _checked(link_rate, "link_rate", error, other_error, backlog)
    u = rate * difference / backlog
    smaller = 2.0 / (2.0 + np.abs(u) + np.sqrt(4.0 + u * u))
    # The parts of both flows are one together; so no difference of large numbers is needed for a negative u.
    result: Fraction = np.where(u >= 0, smaller, 1.0 - smaller)[()]
    return result


def _checked(
    rate: ArrayLike, name: str, error: ArrayLike, other_error: ArrayLike, backlog: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rate and how much larger the other flow's error is, of one shape."""
    rates, errors, others = (np.asarray(value, np.float64) for value in (rate, error, other_error))
    check_range("backlog", backlog, 0.1, 1000, "packets")
    if not np.all(rates > 0):
        raise ValueError(f"{name} must be above 0 packets/s, got {rate!r}")
    for argument, values in (("error", errors), ("other_error", others)):
        if not np.all(values >= 0):
            raise ValueError(f"{argument} must be 0 s or more, got {values.min():g}")
    broadcast = np.broadcast_arrays(rates, others - errors)
    return broadcast[0], broadcast[1]
