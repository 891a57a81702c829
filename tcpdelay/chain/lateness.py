"""The share of late packets where the backlog is cut off: what is beyond falls geometrically.

Beyond the longest shift a chain looks the same at every backlog, so that the probability of a backlog tends to a
geometric one (Neuts 1981, chapter 3; Takahashi 1981). A packet is sent with those behind it that were written since,
one per interval, so that its delay is its backlog, in intervals, and tends to a geometric one as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tcpdelay.chain.widening import COMPARED, UNDISTURBED

if TYPE_CHECKING:
    from tcpdelay.distribution import DelayDistribution


def late_share(distribution: DelayDistribution, limit: float, bound: float) -> float:
    """Return P(delay > limit) as it would be without the bound of the backlog.

    Parameters
    ----------
    distribution : DelayDistribution
        The delays with backlogs up to the bound.
    limit : float
        Delay [s] in question.
    bound : float
        Time [s] that the largest backlog stands for. Delays up to 0.6 of it are taken as they are, and from there on
        to fall as they do from the third to the fourth tenth of it to the fifth and sixth.

    Returns
    -------
    float
        The share, 0 to 1; that of the distribution itself where its delays do not fall.

    Examples
    --------
    Delays that halve every tenth of a second, cut off after one second:

    >>> import numpy as np
    >>> from tcpdelay import DelayDistribution
    >>> delays, shares = np.arange(0.05, 1.0, 0.1), 0.5 ** np.arange(1.0, 11.0)
    >>> cut = DelayDistribution(delays, shares / shares.sum(), one_way_delay=0.0)
    >>> [round(late_share(cut, limit, bound=1.0) / 0.5 ** (10 * limit), 3) for limit in (0.4, 2.0)]
    [1.0, 1.0]
    """
    one_way = distribution.one_way_delay
    end, span = one_way + UNDISTURBED * bound, COMPARED * bound
    beyond_start, beyond_middle, beyond_end = (
        distribution.late_fraction(delay) for delay in (end - 2 * span, end - span, end)
    )
    earlier, later = beyond_start - beyond_middle, beyond_middle - beyond_end
    if not 0 < later < earlier:
        return distribution.late_fraction(limit)
    ratio = later / earlier
    tail = later * ratio / (1 - ratio)
    if limit >= end:
        beyond = tail * ratio ** ((limit - end) / span)
    else:
        beyond = distribution.late_fraction(limit) - beyond_end + tail
    return float(beyond / (1 - beyond_end + tail))
