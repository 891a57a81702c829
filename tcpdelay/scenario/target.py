"""The demand on the delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, overload

from tcpdelay.declare import as_numbers, described, in_seconds
from tcpdelay.scenario.link import fraction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROUNDING = 1e-9
"""Relative rounding error by which a delay may exceed the limit; it depends on the order of a sum."""
SHARE_ROUNDING = 1e-12
"""Rounding error by which a share of late packets may exceed the allowed share: the error of a sum of probabilities."""
REPORTED_QUANTILES = (0.5, 0.95, 0.99)
"""Quantiles of the delay that every report gives, whatever the target."""
DEFAULT_LIMIT = 0.200
"""The limit [s] if neither a limit nor an application is given."""


@described
class Target:
    """A demand on the delay: the quantile of the delay must not exceed the limit.

    Examples
    --------
    >>> Target(limit=0.2).quantile
    0.95
    """

    limit: Annotated[
        float,
        in_seconds(
            "Latest useful arrival: packets later than this count as late.",
            0.0,
            1e300,
            low_excluded=True,
            example="200ms",
            default_words="the limit of --app, or 200ms",
            allowed="be a number of seconds above 0",
        ),
    ]
    quantile: Annotated[
        float,
        fraction(
            meaning="Share of the packets that must arrive within the limit.",
            low_excluded=True,
            unit="fraction of packets",
            example="95%",
            default_words="the quantile of --app, or 95%",
            allowed="lie between 0 and 1",
        ),
    ] = 0.95

    def is_met_by(self, delay: float) -> bool:
        """Return whether the quantile of the delay [s] is within the limit.

        A delay that exceeds the limit only by a rounding error is within the limit.

        Examples
        --------
        >>> Target(limit=0.2).is_met_by(0.2 + 1e-15), Target(limit=0.2).is_met_by(0.201)
        (True, False)
        """
        return delay <= self.latest

    @property
    def latest(self) -> float:
        """Longest delay [s] that counts as within the limit: the limit and a rounding error."""
        return self.limit * (1 + ROUNDING)

    @overload
    def allows(self, late_fraction: float) -> bool: ...
    @overload
    def allows(self, late_fraction: NDArray[np.float64]) -> NDArray[np.bool_]: ...
    def allows(self, late_fraction: float | NDArray[np.float64]) -> bool | NDArray[np.bool_]:
        """Return whether the target is met with this share of packets later than `latest`.

        This is equivalent to `is_met_by`: the quantile is within the limit exactly if the share of packets later than
        the limit is at most 1 - quantile.

        Examples
        --------
        >>> Target(limit=0.2).allows(0.05), Target(limit=0.2).allows(0.051)
        (True, False)
        """
        # Searches ask with a float, thousands of times.
        late = late_fraction if isinstance(late_fraction, float) else as_numbers("late_fraction", late_fraction)
        allowed = late <= 1 - self.quantile + SHARE_ROUNDING
        return allowed if isinstance(allowed, bool) or allowed.ndim else bool(allowed)
