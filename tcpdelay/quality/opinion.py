"""What people say of a call with a given rating: R and mean opinion score (ITU-T G.107, Annex B and Appendix I)."""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
        raise ValueError(f"mos must lie between 1 and 4.5, got {mos!r}")
    root = 15 * np.sqrt(-903522 + 1113960 * score - 202500 * score**2)
    h = np.arctan2(root, 18566 - 6750 * score) / 3
    rating: NDArray[np.float64] = 20 / 3 * (8 - math.sqrt(226) * np.cos(h + math.pi / 3))
    return float(rating) if rating.ndim == 0 else rating
