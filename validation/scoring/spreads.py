"""Errors of a model in many scenarios, summed up in a few numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tcpdelay.accuracy.errors import NORMAL_MEAN, NORMAL_MEDIAN, NORMAL_P90, REACHED
from tcpdelay.delays import Spread


def spread_of(errors: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> Spread:
    """Return median, mean and 90 % quantile of the sizes of errors, weighted if `weights` are given."""
    sizes = np.abs(errors)
    shares = np.ones(sizes.size) if weights is None else weights
    order = np.argsort(sizes)
    reached = np.cumsum(shares[order]) / shares.sum()
    median, p90 = sizes[order[np.searchsorted(reached, np.array([0.5, 0.9]) - REACHED)]].tolist()
    return Spread(median, float((sizes * shares).sum() / shares.sum()), p90)


def model_spread(errors: NDArray[np.float64], sampling: NDArray[np.float64]) -> Spread:
    r"""Return median, mean and 90 % quantile of the errors of a model in captures, without the captures' own errors.

    A capture of finite length has a standard error :math:`s` (`sampling`, as the errors relative to the captured
    value), which is independent of the model's error. So nine of ten errors :math:`e` are within
    :math:`\sqrt{m^2 + (1.645 s)^2}` if nine of ten errors of the model are within m, and

    .. math:: m = Q_{0.9}\left( \sqrt{\max(0, e^2 - (1.645 s)^2)} \right);

    the median and the mean likewise.
    """

    def beyond(share: float) -> NDArray[np.float64]:
        return np.sqrt(np.maximum(errors**2 - (share * sampling) ** 2, 0.0))

    mean = max(np.abs(errors).mean() ** 2 - (NORMAL_MEAN * sampling.mean()) ** 2, 0.0)
    p90 = float(np.quantile(beyond(NORMAL_P90), 0.9))
    # A few quantiles at the edge of a step would make the mean larger than nine of ten errors.
    return Spread(float(np.median(beyond(NORMAL_MEDIAN))), min(math.sqrt(mean), p90), p90)
