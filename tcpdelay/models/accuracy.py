"""The expected error of a prediction: its error in similar scenarios."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.distribution import ExpectedError, Spread
from tcpdelay.models.throughput import connection_utilization, utilization_map
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import KnownStack, Linux, NewReno2008, Stack, checked_profile
from tcpdelay.units import format_fraction, quantile_name

TABLES = {1.0: "linux-errors.csv", 1.5: "linux-errors-burst1.5.csv", 2.0: "linux-errors-burst2.csv"}
"""Files with the errors of the chain of `Stack.linux`, by the longest mean burst of losses [segments] they apply to.

`validation/error_map.py score` writes the first file, `validation/bursts.py` the other two.
"""
NEIGHBOURS = 25
"""Scenarios that give an expected error: enough for a 90 % quantile, and few enough to be similar."""
FEATURES = ("rtt", "loss", "utilization", "packets_per_rtt")
"""The quantities that make scenarios similar, each on a logarithmic scale."""
COLUMNS = (*FEATURES, "cubic", "carried", "p95", "mean")
"""Columns of a table of errors."""
REACHED = 1e-9
"""Tolerance of the comparison of a cumulative weight with a share."""
WRONG_CALL = 1.0
"""Error of a prediction that is wrong about whether TCP carries the flow."""
SIMULATED_RATE_ERROR = 0.047
"""If packets always wait to be sent, Linux 6.1 sends up to this share more packets a second than the simulator.

`validation/near_capacity.py` compares both rates on eight paths.
"""
CAPACITY_ERROR = 0.085 + SIMULATED_RATE_ERROR
"""Error of the largest rate that the chain says TCP carries.

Nine of ten are within 8.5 % of a simulation (`validation/capacity.py`). The simulation itself may be too slow.
"""
LARGEST_CAPACITY_ERROR = 0.225 + SIMULATED_RATE_ERROR
"""Error by which that rate is too small at most: the largest of `validation/capacity.py`, and the simulation's own."""
SIMULATIONS = "simulations of scenarios like this one"
SIMULATED_BURSTS = "simulations of losses in bursts in scenarios like this one"
SIMULATED_CALLS = f"{SIMULATIONS}, where being wrong about whether TCP carries the flow counts as 100 %"
STUDENT_95 = 2.09
"""Half width of a 95 % interval in standard errors: Student's quantile for 20 batches."""
NORMAL_MEDIAN, NORMAL_MEAN, NORMAL_P90 = 0.674, 0.798, 1.645
"""Median, mean and 90 % quantile of the size of the error of an estimate, in standard errors."""


PUBLISHED_ERROR = ExpectedError(
    median=0.67,
    mean=1.54,
    p90=4.28,
    mean_delay=Spread(0.27, 0.59, 1.60),
    cases=432,
    source="captures of Linux 6.1 under random losses, predictions being too high as a rule",
)

BEYOND_CAPACITY = ExpectedError(
    median=0.0,
    mean=0.0,
    p90=0.0,
    mean_delay=Spread(0.0, 0.0, 0.0),
    cases=250,
    source="simulations of the largest rate that TCP carries",
)
"""The chain's error if a flow's rate is far above the rate that TCP carries: the delay is infinite."""

SIMULATOR_ERROR = ExpectedError(
    median=0.0001,
    mean=0.0153,
    p90=0.0486,
    mean_delay=Spread(0.0061, 0.0156, 0.0386),
    cases=432,
    source="captures of Linux 6.1 under random losses, with their own statistical error",
)
"""The simulator's error in captures (`validation/results/scores.csv`), the lower bound of errors measured with it."""

BBR_ERROR = ExpectedError(
    median=0.0021,
    mean=0.0232,
    p90=0.0758,
    mean_delay=Spread(0.0055, 0.0125, 0.0379),
    cases=41,
    source="captures of BBR in Linux 6.1, 20 minutes each",
)
"""The simulator's error in captures of BBR; `validation/bbr.py` computes these figures."""

BACKLOG_ERRORS = (
    (1.0, ExpectedError(0.048, 0.134, 0.298, Spread(0.060, 0.118, 0.234), 52, "captures of Linux 6.1 with backlogs")),
    (4.0, ExpectedError(0.331, 0.346, 0.616, Spread(0.315, 0.346, 0.612), 34, "captures near TCP's capacity")),
)
"""The simulator's error in captures, by the shortest mean delay beyond the network's own, in round-trip times.

Near the capacity, a small error of the rate makes a large error of the delay. `backlog_errors` in
`validation/near_capacity.py` computes these figures.
"""


@dataclass(frozen=True)
class ErrorTable:
    """Errors of a chain in many scenarios.

    Parameters
    ----------
    features : ndarray, shape (n, 4)
        The scenarios' `FEATURES`: round-trip time [s], loss, utilization and packets per round-trip time, all above 0.
    cubic, carried : ndarray of bool, shape (n,)
        Whether the congestion control is CUBIC, and whether the chain says that TCP carries the flow.
    p95, mean : ndarray, shape (n,)
        Relative errors of the 95th percentile and of the mean delay, with their signs. Their size is `WRONG_CALL` where
        chain and simulator disagree on whether TCP carries the flow, and 0 where both say that TCP does not.
    """

    features: NDArray[np.float64]
    cubic: NDArray[np.bool_]
    carried: NDArray[np.bool_]
    p95: NDArray[np.float64]
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
            table = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
        except ValueError as error:
            raise ValueError(f"{file}: holds no table of errors: {error}") from None
        if table.shape[1] != len(COLUMNS):
            raise ValueError(f"{file}: holds no table of errors: it has {table.shape[1]} columns, not {len(COLUMNS)}")
        cubic, carried, p95, mean = table[:, len(FEATURES) :].T
        return cls(table[:, : len(FEATURES)], cubic == 1, carried == 1, p95, mean)

    def to_csv(self) -> str:
        """Return the table as CSV, with four digits."""
        table = np.column_stack([self.features, self.cubic, self.carried, self.p95, self.mean])
        text = io.StringIO()
        np.savetxt(text, table, "%.4g", ",", header=",".join(COLUMNS), comments="")
        return text.getvalue()

    @cached_property
    def _places(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The logarithms of the features, and their standard deviations."""
        places = np.log(self.features)
        return places, np.maximum(places.std(axis=0), 1e-9)

    def _within(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of `features`; values outside the table's range are moved to its edge."""
        return np.log(np.clip(features, self.features.min(axis=0), self.features.max(axis=0)))

    def expected(self, features: NDArray[np.float64], cubic: bool, carried: bool) -> ExpectedError:
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

        Returns
        -------
        ExpectedError
            Error over the `NEIGHBOURS` most similar scenarios, weighted by similarity; NaN if there are none.
        """
        places, spread = self._places
        alike = np.flatnonzero((self.cubic == cubic) & (self.carried == carried))
        if not alike.size:
            return ExpectedError(np.nan, np.nan, np.nan, Spread(np.nan, np.nan, np.nan), 0, SIMULATIONS)
        at = self._within(features)
        distances = np.sqrt((((places[alike] - at) / spread) ** 2).sum(axis=1))
        nearest = np.argsort(distances)[: NEIGHBOURS + 1]
        weights = _tricube(distances[nearest])
        counted = weights > 0
        chosen, weights = alike[nearest[counted]], weights[counted]
        return ExpectedError(
            **vars(spread_of(self.p95[chosen], weights)),
            mean_delay=spread_of(self.mean[chosen], weights),
            cases=int(chosen.size),
            source=SIMULATIONS if carried else SIMULATED_CALLS,
        )

    def expected_p95(self, features: NDArray[np.float64], cubic: bool, carried: bool) -> NDArray[np.float64]:
        """Return the error of the 95th percentile, as `expected` gives it, of many scenarios at once.

        Parameters
        ----------
        features : ndarray, shape (n, 4)
            The scenarios' `FEATURES`.
        cubic, carried : bool
            As for `expected`.

        Returns
        -------
        ndarray, shape (n, 3)
            Median, mean and 90 % quantile of the error; NaN if the table has no such scenarios.
        """
        from scipy.spatial import KDTree

        places, spread = self._places
        alike = np.flatnonzero((self.cubic == cubic) & (self.carried == carried))
        if not (alike.size and features.size):
            return np.full((features.shape[0], 3), np.nan)
        ranks = np.arange(1, min(NEIGHBOURS + 1, alike.size) + 1)
        distances, nearest = KDTree(places[alike] / spread).query(self._within(features) / spread, ranks)
        sizes, weights = np.abs(self.p95[alike[nearest]]), _tricube(np.asarray(distances))
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


def expected_error_map(
    flow: Flow,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    stack: KnownStack,
    carried: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return `expected_error` of the 95th percentile at each round-trip time and loss.

    Parameters
    ----------
    flow, stack
        The flow and its TCP.
    rtt, loss : ndarray, one-dimensional
        Round-trip times [s] and losses.
    carried : ndarray of bool, shape (rtt, loss)
        Whether the chain says that TCP carries the flow.

    Returns
    -------
    ndarray, shape (rtt, loss, 3)
        Median, mean and 90 % quantile of the error, as fractions.

    Examples
    --------
    >>> at, lost = np.array([0.1]), np.array([0.02])
    >>> expected_error_map(Flow(174, 0.020), at, lost, Stack.newreno_2008(), np.array([[True]]))
    array([[[0.67, 1.54, 4.28]]])
    """
    if isinstance(stack, NewReno2008):
        return np.broadcast_to(_figures(PUBLISHED_ERROR), (*carried.shape, 3))
    utilizations = utilization_map(flow, rtt, loss, stack)
    rtts, losses = np.broadcast_arrays(rtt[:, None], loss)
    features = np.stack([rtts, losses, utilizations, rtts / flow.interval], axis=-1)
    found = np.empty((*carried.shape, 3))
    cubic = stack.congestion_control == "cubic"
    found[~carried] = linux_table().expected_p95(features[~carried], cubic, False)
    found[carried] = np.maximum(linux_table().expected_p95(features[carried], cubic, True), _figures(SIMULATOR_ERROR))
    return found


def _figures(spread: Spread) -> NDArray[np.float64]:
    """Return median, mean and 90 % quantile as an array."""
    return np.array([spread.median, spread.mean, spread.p90])


def features_of(flow: Flow, path: Path, stack: Linux) -> NDArray[np.float64]:
    """Return the `FEATURES` of a scenario.

    Examples
    --------
    >>> features_of(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Linux()).round(3).tolist()
    [0.1, 0.02, 0.118, 5.0]
    """
    return np.array([path.rtt, path.loss, connection_utilization(flow, path, stack), path.rtt / flow.interval])


def linux_table_file(burst: float = 1.0) -> FilePath:
    """Return the file with the errors of the chain of `Stack.linux` for a mean burst of losses [segments].

    It is the table of the next longer burst, or the last table for a burst longer than all of them.
    """
    known = next((longest for longest in sorted(TABLES) if burst <= longest), max(TABLES))
    return FilePath(__file__).parent / "data" / TABLES[known]


@cache
def linux_table(burst: float = 1.0) -> ErrorTable:
    """Return the errors of the chain of `Stack.linux` for a mean burst of losses [segments]; the file is read once."""
    return ErrorTable.read(linux_table_file(burst))


def simulator_error(statistical: ExpectedError, added: float, bbr: bool = False) -> ExpectedError:
    """Return the expected error of a simulation: the statistical error, or the error in captures with such delays.

    The larger of both counts. With BBR the error in captures of BBR counts too.

    Parameters
    ----------
    statistical : ExpectedError
        The statistical error.
    added : float
        Mean delay beyond the network's own delay, in round-trip times.
    bbr : bool
        Whether BBR controls congestion.

    Examples
    --------
    >>> exact = ExpectedError(0.01, 0.01, 0.02, Spread(0.01, 0.01, 0.02), 0, "the statistical error")
    >>> [simulator_error(exact, added).p90 for added in (0.1, 2, 10)]
    [0.02, 0.298, 0.616]
    """
    least = [BBR_ERROR] if bbr else []
    least += [known for shortest, known in BACKLOG_ERRORS if added >= shortest][-1:]
    found = statistical
    for known in least:
        found = replace(_no_less(known, found), quantile=statistical.quantile)
    return found


def is_near_capacity(share: float) -> bool:
    """Return whether the chain may be wrong about whether TCP carries a flow.

    Parameters
    ----------
    share : float
        Largest rate that TCP carries by the chain, relative to the flow's rate; NaN if it is not known.

    Examples
    --------
    >>> is_near_capacity(0.95), is_near_capacity(1.5)
    (True, False)
    """
    return abs(share - 1) < CAPACITY_ERROR


def is_beyond_capacity(share: float) -> bool:
    """Return whether a flow's rate is above any rate that TCP may carry, so that the chain is not wrong about it.

    Parameters
    ----------
    share : float
        Largest rate that TCP carries by the chain, relative to the flow's rate; NaN if it is not known.

    Examples
    --------
    >>> is_beyond_capacity(0.5), is_beyond_capacity(0.9)
    (True, False)
    """
    return share * (1 + LARGEST_CAPACITY_ERROR) < 1


def expected_error(
    flow: Flow, path: Path, stack: Stack, carried: bool = True, capacity: float = math.nan
) -> ExpectedError:
    """Return the expected error of a chain's prediction.

    Parameters
    ----------
    flow, path, stack
        The scenario. Of a Linux stack only congestion control and segment size are used.
    carried : bool
        Whether the chain says that TCP carries the flow.
    capacity : float
        Largest packet rate [1/s] that TCP carries by the chain; NaN if it is not known.

    Returns
    -------
    ExpectedError
        For `Stack.linux`, the error in the most similar of the simulated scenarios. Where TCP carries the flow, it is
        at least the simulator's own error. Near the capacity, `p90` is at least `WRONG_CALL`. Far beyond the capacity
        it is 0. With losses in bursts, each figure is the larger of the errors with and without bursts. For the
        published chain, the error over all captures.

    Raises
    ------
    ValueError
        If `stack` is of no known profile.

    Examples
    --------
    >>> expected_error(Flow(174, 0.020), Path(rtt=0.100, loss=0.02), Stack.newreno_2008()).median
    0.67
    """
    stack = checked_profile(stack)
    if isinstance(stack, NewReno2008):
        return PUBLISHED_ERROR
    if path.loss_burst == 1 and is_beyond_capacity(capacity / flow.packet_rate):
        return BEYOND_CAPACITY
    scenario = features_of(flow, path, stack), stack.congestion_control == "cubic", carried
    found = linux_table(path.loss_burst).expected(*scenario)
    if is_near_capacity(capacity / flow.packet_rate):
        found = replace(found, p90=max(found.p90, WRONG_CALL))
    if not carried:
        return found
    found = _no_less(found, SIMULATOR_ERROR)
    if path.loss_burst == 1:
        return found
    return _no_less(replace(found, source=SIMULATED_BURSTS), linux_table().expected(*scenario))


def _no_less(found: ExpectedError, least: ExpectedError) -> ExpectedError:
    """Return the larger of two expected errors, figure by figure."""
    return replace(found, **vars(_at_least(found, least)), mean_delay=_at_least(found.mean_delay, least.mean_delay))


def _at_least(found: Spread, least: Spread) -> Spread:
    """Return the larger of two spreads, figure by figure; NaN where `found` is."""
    return Spread(*(max(getattr(found, name), getattr(least, name)) for name in ("median", "mean", "p90")))


def statistical_error(quantile: Interval, mean: Interval, packets: int, probability: float = 0.95) -> ExpectedError:
    """Return the expected error of an estimate from its 95 % intervals.

    Parameters
    ----------
    quantile, mean : Interval
        Quantile and mean delay [s] with their 95 % intervals.
    packets : int
        Number of packets in the estimate, 1 or more.
    probability : float
        Probability of the quantile, above 0 and below 1.

    Returns
    -------
    ExpectedError
        The error of a normally distributed estimate.

    Examples
    --------
    >>> found = statistical_error(Interval(0.200, 0.196, 0.204), Interval(0.1, 0.1, 0.1), 1000)
    >>> round(found.median, 4), found.mean_delay.p90
    (0.0065, 0.0)
    """

    def normal(interval: Interval) -> Spread:
        error = interval.relative_half_width / STUDENT_95
        return Spread(NORMAL_MEDIAN * error, NORMAL_MEAN * error, NORMAL_P90 * error)

    found, words = normal(quantile), f"the statistical error of {packets} simulated packets"
    return ExpectedError(**vars(found), mean_delay=normal(mean), cases=0, source=words, quantile=probability)


def in_words(error: ExpectedError, of: float | str | None = None) -> str:
    """Describe an expected error in words.

    Parameters
    ----------
    error : ExpectedError
        The error.
    of : float or str, optional
        The quantile that is asked for, or the name of another result; if the error was measured at another quantile,
        the words say so.

    Examples
    --------
    >>> in_words(ExpectedError(0.021, 0.0345, 0.1, Spread(0.01, 0.02, 0.05), 40, "simulations"), 0.99)
    'p95, not p99, 2.1 % off in the median, 3.5 % in the mean, up to 10 % in nine of ten: 40 simulations'
    >>> in_words(ExpectedError(0.021, 0.0345, 0.1, Spread(0.01, 0.02, 0.05), 40, "simulations"))
    'p95 2.1 % off in the median, 3.5 % in the mean, up to 10 % in nine of ten: 40 simulations'
    """
    if math.isnan(error.median):
        return "not known"
    median, mean, p90 = (format_fraction(float(f"{share:.2g}")) for share in (error.median, error.mean, error.p90))
    basis = f"{error.cases} {error.source}" if error.cases else error.source
    other = "" if of is None or of == error.quantile else f", not {of if isinstance(of, str) else quantile_name(of)},"
    measured = f"{quantile_name(error.quantile)}{other}"
    return f"{measured} {median} off in the median, {mean} in the mean, up to {p90} in nine of ten: {basis}"
