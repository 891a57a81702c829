"""A table of the errors of a chain in many scenarios, in which similar scenarios are looked up."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import USUAL_QUANTILE, ExpectedError, Spread
from tcpdelay.units import quantile_name

NEIGHBOURS = 25
"""Scenarios that give an expected error: enough for a 90 % quantile, and few enough to be similar."""
FEATURES = ("rtt", "loss", "utilization", "packets_per_rtt")
"""The quantities that make scenarios similar, each on a logarithmic scale."""
FLAGS = ("cubic", "carried")
QUANTILES = (0.95, 0.99, 0.999)
"""Quantiles of the delay whose errors a table may hold."""
REACHED = 1e-9
"""Tolerance of the comparison of a cumulative weight with a share."""
WRONG_CALL = 1.0
"""Error of a prediction that is wrong about whether TCP carries the flow."""
SIMULATIONS = "simulations of scenarios like this one"
SIMULATED_CALLS = f"{SIMULATIONS}, where being wrong about whether TCP carries the flow counts as 100 %"


@dataclass(frozen=True)
class ErrorTable:
    """Errors of a chain in many scenarios.

    Parameters
    ----------
    features : ndarray, shape (n, 4)
        The scenarios' `FEATURES`: round-trip time [s], loss, utilization and packets per round-trip time, all above 0.
    cubic, carried : ndarray of bool, shape (n,)
        Whether the congestion control is CUBIC, and whether the chain says that TCP carries the flow.
    quantiles : mapping of float to ndarray, shape (n,)
        Relative errors of quantiles of the delay by their probabilities, with their signs. Their size is `WRONG_CALL`
        where chain and simulator disagree on whether TCP carries the flow, and 0 where both say that TCP does not.
    mean : ndarray, shape (n,)
        Relative errors of the mean delay.
    """

    features: NDArray[np.float64]
    cubic: NDArray[np.bool_]
    carried: NDArray[np.bool_]
    quantiles: Mapping[float, NDArray[np.float64]]
    mean: NDArray[np.float64]

    @classmethod
    def read(cls, file: FilePath) -> ErrorTable:
        """Return the table that `to_csv` wrote into a file.

        Raises
        ------
        ValueError
            If the file has no table of errors.
        """
        try:
            names = file.read_text().partition("\n")[0].split(",")
            columns = dict(zip(names, np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2).T, strict=True))
            features = np.column_stack([columns[name] for name in FEATURES])
            cubic, carried = (columns[name] == 1 for name in FLAGS)
            held = {quantile: quantile_name(quantile) for quantile in QUANTILES}
            quantiles = {quantile: columns[name] for quantile, name in held.items() if name in names}
            return cls(features, cubic, carried, quantiles, columns["mean"])
        except (KeyError, ValueError) as error:
            raise ValueError(f"{file}: holds no table of errors: {error}") from None

    def to_csv(self) -> str:
        """Return the table as CSV, with three digits, and errors to 1e-5."""
        errors = np.round(np.column_stack([*self.quantiles.values(), self.mean]), 5)
        table = np.column_stack([self.features, self.cubic, self.carried, errors])
        names = (*FEATURES, *FLAGS, *map(quantile_name, self.quantiles), "mean")
        text = io.StringIO()
        np.savetxt(text, table, "%.3g", ",", header=",".join(names), comments="")
        return text.getvalue()

    @cached_property
    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The smallest and the largest value of each feature, and the standard deviation of its logarithm."""
        spread = np.maximum(np.log(self.features).std(axis=0), 1e-9)
        return self.features.min(axis=0), self.features.max(axis=0), spread

    def _place(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of features in standard deviations; values outside the range are moved to its edge."""
        low, high, spread = self._range
        return np.log(np.clip(features, low, high)) / spread

    @cached_property
    def _groups(self) -> dict[tuple[bool, bool], tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """The rows with one congestion control and one statement of the chain, and their places."""
        groups = {}
        for cubic, carried in product((False, True), repeat=2):
            rows = np.flatnonzero((self.cubic == cubic) & (self.carried == carried))
            groups[cubic, carried] = rows, self._place(self.features[rows])
        return groups

    def known_quantile(self, quantile: float) -> float:
        """Return the lowest quantile with known errors that is not below `quantile`, or the highest one."""
        return min((known for known in self.quantiles if known >= quantile), default=max(self.quantiles))

    def expected(
        self, features: NDArray[np.float64], cubic: bool, carried: bool, quantile: float = USUAL_QUANTILE
    ) -> ExpectedError:
        """Return the error in the scenarios of the table that are most similar to a scenario.

        Only scenarios with the same congestion control and the same statement of the chain are used.

        Parameters
        ----------
        features : ndarray, shape (4,)
            The scenario's `FEATURES`; values outside the table's range are moved to its edge.
        cubic : bool
            Whether the congestion control is CUBIC.
        carried : bool
            Whether the chain says that TCP carries the flow.
        quantile : float
            Quantile of the delay whose error is asked for; it is that of `known_quantile`.

        Returns
        -------
        ExpectedError
            Error over the `NEIGHBOURS` most similar scenarios, weighted by similarity; NaN if there are none.
        """
        alike, places = self._groups[bool(cubic), bool(carried)]
        if not alike.size:
            return ExpectedError(np.nan, np.nan, np.nan, Spread(np.nan, np.nan, np.nan), 0, SIMULATIONS)
        known = self.known_quantile(quantile)
        distances = np.sqrt(((places - self._place(features)) ** 2).sum(axis=1))
        nearest = np.argsort(distances)[: NEIGHBOURS + 1]
        weights = _tricube(distances[nearest])
        counted = weights > 0
        chosen, weights = alike[nearest[counted]], weights[counted]
        return ExpectedError(
            **vars(spread_of(self.quantiles[known][chosen], weights)),
            mean_delay=spread_of(self.mean[chosen], weights),
            cases=int(chosen.size),
            source=SIMULATIONS if carried else SIMULATED_CALLS,
            quantile=known,
        )

    def expected_of_many(
        self, features: NDArray[np.float64], cubic: bool, carried: bool, quantile: float = USUAL_QUANTILE
    ) -> NDArray[np.float64]:
        """Return the error of a quantile, as `expected` gives it, of many scenarios at once.

        Parameters
        ----------
        features : ndarray, shape (n, 4)
            The scenarios' `FEATURES`.
        cubic, carried, quantile
            As for `expected`.

        Returns
        -------
        ndarray, shape (n, 3)
            Median, mean and 90 % quantile of the error; NaN if the table has no such scenarios.
        """
        from scipy.spatial import KDTree

        alike, places = self._groups[bool(cubic), bool(carried)]
        if not (alike.size and features.size):
            return np.full((features.shape[0], 3), np.nan)
        ranks = np.arange(1, min(NEIGHBOURS + 1, alike.size) + 1)
        distances, nearest = KDTree(places).query(self._place(features), ranks)
        errors = self.quantiles[self.known_quantile(quantile)]
        sizes, weights = np.abs(errors[alike[nearest]]), _tricube(np.asarray(distances))
        order = np.argsort(sizes, axis=1)
        sizes, weights = np.take_along_axis(sizes, order, 1), np.take_along_axis(weights, order, 1)
        reached = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
        at = [np.argmax(reached >= share - REACHED, axis=1) for share in (0.5, 0.9)]
        median, p90 = (sizes[np.arange(sizes.shape[0]), place] for place in at)
        return np.column_stack([median, np.average(sizes, axis=1, weights=weights), p90])


def _tricube(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tricube weights of local regression for distances that ascend along the last axis.

    The largest distance sets the scale, so its weight is 0.
    """
    farthest = distances[..., -1:]
    weights = (1 - np.divide(distances, farthest, out=np.zeros_like(distances), where=farthest > 0) ** 3) ** 3
    return np.where(weights.any(axis=-1, keepdims=True), weights, 1.0)


def spread_of(errors: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> Spread:
    """Return median, mean and 90 % quantile of the sizes of errors, weighted if `weights` are given.

    Examples
    --------
    >>> spread_of(np.array([-0.01, 0.02, 0.06]))
    Spread(median=0.02, mean=0.03, p90=0.06)
    """
    sizes = np.abs(errors)
    shares = np.ones(sizes.size) if weights is None else weights
    order = np.argsort(sizes)
    reached = np.cumsum(shares[order]) / shares.sum()
    median, p90 = (float(sizes[order[np.searchsorted(reached, share - REACHED)]]) for share in (0.5, 0.9))
    return Spread(median, float(np.average(sizes, weights=shares)), p90)
