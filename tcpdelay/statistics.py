"""Confidence intervals of correlated delays, by batch means, and of shares of independent trials."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.declare import InvalidValueError

BATCHES = 20
CONFIDENCE = 0.95
FEWEST_BLOCKS = 16
"""Smallest number of blocks that show by default whether they are independent; fewer show a long correlation rarely."""
CORRELATION_QUANTILE = 2.326
"""Quantile of the normal distribution beyond which blocks count as correlated: 99 %, one-sided."""


class Interval(NamedTuple):
    """An estimate and its confidence interval, in the unit of the samples."""

    value: float  # The estimate
    # low, high: Ends of the interval.
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width, divided by the estimate; infinite if the estimate is 0 or infinite."""
        finite = self.value != 0 and np.isfinite([self.value, self.low, self.high]).all()
        return (self.high - self.low) / (2 * self.value) if finite else float("inf")


def difference_interval(first: Interval, second: Interval) -> Interval:
    """Return the difference of two independent estimates, with its interval at the confidence of both.

    Zou, Donner, "Construction of confidence intervals about effect measures: a general approach", Statistics in
    Medicine 27, 2008: each end is as far from the difference as the distances of the two ends, added as squares.

    >>> difference_interval(Interval(9.0, 6.0, 12.0), Interval(5.0, 1.0, 9.0))
    Interval(value=4.0, low=-1.0, high=9.0)
    """
    value = first.value - second.value
    low = value - float(np.hypot(first.value - first.low, second.high - second.value))
    high = value + float(np.hypot(first.high - first.value, second.value - second.low))
    return Interval(value, low, high)


def mean_interval(
    sequences: Sequence[NDArray[np.float64]], confidence: float = CONFIDENCE, batches: int = BATCHES
) -> Interval:
    """Return the mean of the samples of independent runs, each in the order of time, and its confidence interval.

    The interval is that of Student's distribution over the means of batches: Law, "Simulation Modeling and Analysis",
    chapter on output data analysis. A batch should be far longer than the correlation of the samples; otherwise the
    interval is too narrow. An infinite sample makes all three infinite.
    """
    weights, means = _batch_means(sequences, batches)
    if not np.isfinite(means).all():
        return Interval(float("inf"), float("inf"), float("inf"))
    value, half_width = student(weights, means, confidence)
    return Interval(value, value - half_width, value + half_width)


def quantile_interval(
    sequences: Sequence[NDArray[np.float64]],
    probability: float,
    confidence: float = CONFIDENCE,
    batches: int = BATCHES,
) -> Interval:
    """Return the smallest sample that at least `probability` of the samples do not exceed, and its confidence interval.

    Batch means, as in `mean_interval`, give the confidence interval of the share of samples up to the quantile. The
    ends of the result are the quantiles at the ends of that interval. Infinite samples are allowed.
    """
    _count(sequences, batches)
    ordered = np.sort(np.concatenate([np.asarray(sequence, np.float64) for sequence in sequences]))
    value = _quantile(ordered, probability)
    below = [(np.asarray(sequence) <= value).astype(np.float64) for sequence in sequences]
    weights, shares = _batch_means(below, batches)
    _, half_width = student(weights, shares, confidence)
    return Interval(value, _quantile(ordered, probability - half_width), _quantile(ordered, probability + half_width))


def share_interval(count: int, of: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the share of `count` successes in independent trials and its exact interval; NaN, 0 and 1 without trials.

    Clopper, Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", Biometrika
    26(4), 1934.
    """
    if not 0 <= count <= of:
        raise InvalidValueError("count", count, f"lie between 0 and the number of trials ({of})")
    from scipy.special import betaincinv

    beyond = (1 - confidence) / 2
    low = float(betaincinv(count, of - count + 1, beyond)) if count else 0.0
    high = float(betaincinv(count + 1, of - count, 1 - beyond)) if count < of else 1.0
    return Interval(count / of if of else float("nan"), low, high)


def dispersion(of: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Return the factor by which successes in groups of trials vary more than independent successes.

    With k_i successes of n_i trials in m groups, and the share p of all, it is Pearson's sum of
    (k_i - n_i p)^2 / (n_i p (1 - p)), divided by m - 1 (McCullagh, Nelder, "Generalized Linear Models", section 4.5).
    """
    of, counts = of[of > 0], counts[of > 0]
    share = counts.sum() / of.sum() if of.size else 0.0
    if of.size < 2 or not 0 < share < 1:
        return 1.0
    squares = (counts - of * share) ** 2 / (of * share * (1 - share))
    return max(1.0, float(squares.sum()) / (of.size - 1))


def count_interval(count: int, confidence: float = CONFIDENCE) -> Interval:
    """Return a number of events and the confidence interval of its mean, for events of a Poisson process.

    Garwood, "Fiducial Limits for the Poisson Distribution", Biometrika 28(3/4), 1936.
    """
    if count < 0:
        raise InvalidValueError("count", count, "be 0 or more")
    from scipy.special import gammaincinv

    beyond = (1 - confidence) / 2
    low = float(gammaincinv(count, beyond)) if count else 0.0
    return Interval(float(count), low, float(gammaincinv(count + 1, 1 - beyond)))


def are_independent(means: NDArray[np.float64]) -> bool:
    """Return whether consecutive block means show no positive serial correlation.

    The ratio of half the sum of (x_(i+1) - x_i)^2 to the sum of (x_i - mean)^2 of n independent means has the mean 1
    and the variance (n - 2) / (n^2 - 1). A trend, or a correlation as long as a block, makes it smaller.
    (von Neumann, Annals of Mathematical Statistics 12(4), 1941; Fishman, Management Science 24(5), 1978.)
    """
    count = means.size
    squares = float(((means - means.mean()) ** 2).sum())
    if squares == 0:
        return True
    ratio = float((np.diff(means) ** 2).sum()) / squares / 2
    return ratio >= 1 - CORRELATION_QUANTILE * float(np.sqrt((count - 2) / (count**2 - 1)))


def independent_block(means: NDArray[np.float64], fewest: int = FEWEST_BLOCKS) -> int | None:
    """Return the size of the smallest blocks whose means are independent."""
    size = 1
    while means.size >= fewest * size:
        if are_independent(merged(means, size)):
            return size
        size *= 2
    return None


def merged(means: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the means of blocks of `size` consecutive means each; the first means that fill no block are left out."""
    count = means.size // size
    return np.asarray(means[means.size - count * size :].reshape(count, size).mean(axis=1), np.float64)


def _quantile(ordered: NDArray[np.float64], probability: float) -> float:
    """Return the smallest of the ordered samples that at least `probability` of them do not exceed."""
    place = int(np.ceil(probability * ordered.size - 1e-9)) - 1
    return float(ordered[min(max(place, 0), ordered.size - 1)])


def _count(sequences: Sequence[NDArray[np.float64]], batches: int) -> int:
    """Return the number of samples; raise ValueError if it is smaller than the number of batches."""
    total = sum(len(sequence) for sequence in sequences)
    if batches < 2 or total < batches:
        raise InvalidValueError("batches", batches, f"lie between 2 and the number of samples ({total})")
    return total


def _batch_means(
    sequences: Sequence[NDArray[np.float64]], batches: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sizes and the means of about `batches` batches, none of which spans two runs."""
    total = _count(sequences, batches)
    parts = []
    for sequence in sequences:
        count = max(1, round(batches * len(sequence) / total))
        parts += [part for part in np.array_split(np.asarray(sequence, np.float64), count) if part.size]
    return np.array([float(part.size) for part in parts]), np.array([part.mean() for part in parts])


def student(
    weights: NDArray[np.float64], means: NDArray[np.float64], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the weighted mean of the batch means and half the width of its interval, by Student's distribution."""
    value = float(np.average(means, weights=weights))
    if means.size < 2:
        return value, float("inf")
    spread = float(np.average((means - value) ** 2, weights=weights)) * means.size / (means.size - 1)
    return value, student_quantile(means.size - 1, confidence) * float(np.sqrt(spread / means.size))


@lru_cache(maxsize=256)
def student_quantile(freedom: int, confidence: float) -> float:
    """Return the size that Student's distribution exceeds with the probability 1 - `confidence`.

    The probability of a smaller size is a concave sum of powers of cos a, with a = atan(t / sqrt(n)) (Abramowitz,
    Stegun, 26.7.3 and 26.7.4): Newton's iteration rises from 0. SciPy has it too, but takes half a second to load.
    """
    odd, angle = freedom % 2, 0.0
    slope = 2 * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    while True:
        cosine, powers = math.cos(angle), 0.0
        term = cosine if odd else 1.0
        for power in range(2 + odd, freedom + 1, 2):
            powers += term
            term *= cosine**2 * (power - 1) / power
        within = math.sin(angle) * powers
        step = (confidence - (2 / math.pi * (angle + within) if odd else within)) / (slope * cosine ** (freedom - 1))
        angle += step
        if not step > sys.float_info.epsilon * angle:
            return math.sqrt(freedom) * math.tan(angle)
