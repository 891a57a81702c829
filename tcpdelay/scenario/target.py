"""The demand on the delay."""

from __future__ import annotations

from typing import Annotated

from tcpdelay.scenario.fields import Quantity, described

ROUNDING = 1e-9
"""Relative difference by which a delay may be beyond the limit: that of sums in another order."""
SHARE_ROUNDING = 1e-12
"""Difference by which a share of late packets may be beyond what is allowed: rounding of a sum of probabilities."""
DEFAULT_LIMIT = 0.200
"""Limit where neither it nor an application is given [s]."""


@described
class Target:
    """A demand on the delay: its `quantile` must not be above `limit`.

    Parameters
    ----------
    limit : float
        Latest useful arrival [s], above 0: packets later than this count as late.
    quantile : float
        Share of the packets that must arrive by then, above 0 and below 1.

    Raises
    ------
    InvalidValueError
        If a value is no number or is out of its range; a ValueError.

    Examples
    --------
    >>> Target(limit=0.2).quantile
    0.95
    """

    limit: Annotated[
        float,
        Quantity(
            kind="time",
            meaning="Latest useful arrival: packets later than this count as late.",
            low=0.0,
            low_excluded=True,
            high=1e300,
            unit="s",
            example="200ms",
            default_words="that of --app, or 200ms",
            allowed="be a number of seconds above 0",
        ),
    ]
    quantile: Annotated[
        float,
        Quantity(
            kind="fraction",
            meaning="Share of the packets that must arrive by then.",
            low=0.0,
            low_excluded=True,
            high=1.0,
            high_excluded=True,
            unit="fraction of packets",
            example="95%",
            default_words="that of --app, or 95%",
            allowed="lie between 0 and 1",
        ),
    ] = 0.95

    def is_met_by(self, delay: float) -> bool:
        """Return whether a delay [s], that of the target's quantile, is within the limit.

        A delay that is on the limit but for rounding counts as within it.

        Examples
        --------
        >>> Target(limit=0.2).is_met_by(0.2 + 1e-15), Target(limit=0.2).is_met_by(0.201)
        (True, False)
        """
        return delay <= self.latest

    @property
    def latest(self) -> float:
        """Longest delay [s] that is within the limit, rounding included."""
        return self.limit * (1 + ROUNDING)

    def allows(self, late_fraction: float) -> bool:
        """Return whether so few packets are later than `latest` that the target is met.

        This is `is_met_by` in terms of the share of late packets: the quantile is within the limit exactly where the
        share of later packets is at most 1 - quantile.

        Examples
        --------
        >>> Target(limit=0.2).allows(0.05), Target(limit=0.2).allows(0.051)
        (True, False)
        """
        return late_fraction <= 1 - self.quantile + SHARE_ROUNDING
