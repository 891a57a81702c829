"""The result of a prediction: the distribution of the delays of a flow's packets, and its expected error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.declare import InvalidValueError, UnitWarning, as_numbers, bounds, is_number
from tcpdelay.drawing import drawn
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Target
from tcpdelay.scenario.source import Source
from tcpdelay.scenario.stack import Stack
from tcpdelay.statistics import Interval
from tcpdelay.units import TOO_FEW, format_fraction, quantile_name, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


CUMULATION_NOISE = 1e-12
"""Rounding error up to which a cumulative weight counts as having reached a probability."""
LONGEST_PLAYOUT = 1.001 * bounds(Path, "rtt")[1]
"""Playout delay above which the unit is probably wrong [s]: the longest round-trip time, and what searches add."""
WEIGHT_SUM_TOLERANCE = 1e-9
"""Largest difference between the sum of the weights and 1."""
FEWEST_BEYOND = 10
"""Smallest expected number of sampled packets beyond a quantile that counts as known."""


@dataclass(frozen=True)
class Spread:
    """Statistics of the relative errors of predictions, without their signs."""

    # median, mean, p90: Median, mean and 90 % quantile of the errors, as fractions.
    median: float
    mean: float
    p90: float


USUAL_QUANTILE = 0.95
"""The quantile whose error is quoted if no other is asked for."""


@dataclass(frozen=True)
class ExpectedError(Spread):
    """The probable error of a prediction, as a fraction and without a sign.

    Parameters
    ----------
    median, mean, p90 : float
        Median, mean and 90 % quantile of the error of a quantile of the delay.
    mean_delay : Spread
        The statistics of the error of the mean delay.
    cases : int
        Number of scenarios in which the error was measured; 0 for the statistical error of a simulation.
    source : str
        Reference of the measured error, such as a set of captures.
    quantile : float
        The quantile of the delay whose error `median`, `mean` and `p90` are.
    sampling : float
        The sampling error of a simulation that nine of ten do not exceed, a fraction; 0 for a chain. `p90` contains it:
        its square is the sum of the squares of the model's error and of the sampling error.
    """

    mean_delay: Spread
    cases: int
    source: str
    quantile: float = USUAL_QUANTILE
    sampling: float = 0.0


UNKNOWN_ERROR = ExpectedError(np.nan, np.nan, np.nan, Spread(np.nan, np.nan, np.nan), 0, "")
"""The expected error where no error was measured."""


UNKNOWN = Interval(np.nan, np.nan, np.nan)
ENDLESS = Interval(np.inf, np.inf, np.inf)
"""Interval of a delay that is infinite."""
MOST_CARRIED = 10.0
"""Share of the rate above which the end of an interval says nothing."""


def carried_in_words(carried: Interval) -> str:
    """Return the interval of the rate that is carried, relative to the flow's rate, in words.

    Examples
    --------
    >>> carried_in_words(Interval(0.968, 0.925, 1.014)), carried_in_words(Interval(1.2, 0.8, np.inf))
    ('between 92.5 % and 101 %', '80 % or more')
    """
    low, high, _ = told_apart(format_fraction, carried.low, min(carried.high, MOST_CARRIED), 1.0)
    return f"between {low} and {high}" if carried.high < MOST_CARRIED else f"{low} or more"


Ending = Literal["", "its budget", "the clock"]
"""What ends a simulation before it has the packets that are requested."""


def ended_after(packets: int, ended_by: Ending) -> str:
    """Return the number of packets of a simulation in words, and what has ended it early.

    Examples
    --------
    >>> ended_after(5000, ""), ended_after(5000, "the clock")
    ('5000 packets', '5000 packets, where the clock ended the simulation')
    """
    return f"{packets} packets" + (f", where {ended_by} ended the simulation" if ended_by else "")


@dataclass(frozen=True)
class DelayParts:
    """The parts of the mean delay [s]."""

    network: float  # The one-way delay of the path
    backlog: float  # Waiting in the send buffer while the window is too small
    head_of_line: float  # Waiting at the receiver for a retransmission
    timeouts: float  # Waiting in the send buffer for a timeout, until its backlog is gone


class UnsettledWarning(UserWarning):
    """Delays depend on the length of the simulation, because the load is close to the rate that is carried."""


@dataclass(frozen=True)
class DelayDistribution:
    """Delays from write to in-order read, and their probabilities.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Delays [s], strictly ascending, 0 or more; at least one. An infinite delay means that the packet never arrives.
    weights : ndarray, shape (n,)
        Probability of each delay; the sum is 1.
    one_way_delay : float
        Delay of the network alone [s], without the delay that TCP adds.
    sustainable : bool
        False if the flow offers more than TCP can carry, so that the backlog grows without end.
    truncated_mass : float
        Probability that the model's backlog is at its bound; 0 if the model cuts nothing off.
    method : str
        Name of the model, such as "chain" or "simulation"; "measurement" if the delays were measured.
    scenario : tuple of Source, Path and Stack, optional
        The predicted scenario, if this is a prediction.
    ignored : mapping of str to str
        Fields of the scenario that the model ignored, and the values that it assumed instead.
    look_up_error : callable, optional
        Returns the expected error of a prediction.
    packets : int
        Number of packets or messages whose delays were simulated or measured; 0 if the distribution was computed.
    ended_by_clock : bool
        Whether a clock has ended the simulation: on a machine far slower than the estimate of its work. The same call
        may then have another result.
    ended_by_budget : bool
        Whether the simulation has fewer packets than requested, as more do not fit into the time that it may take.
    settled : bool
        False if the delays depend on the length of the simulation that has them, because the load is close to the rate
        that is carried.
    carried : Interval
        Rate that is carried, relative to the flow's rate, with its interval; NaN if it is not known.
    mean_interval, quantile_interval : Interval
        Mean delay and requested quantile [s] with their 95 % intervals; NaN unless the delays were simulated. They are
        NaN too if the delays are correlated over the whole simulation, or the messages are too few.
    probability : float
        Probability of the requested quantile.
    late_errors : tuple of ndarray
        Delays [s], ascending, and half the 95 % interval of the share of packets later than each; empty if unknown.
    by_kind : mapping of str to DelayDistribution
        Delays of each kind of message, such as "key frame", for sources with several kinds.
    parts : DelayParts or None
        Parts of the mean delay, if the model distinguishes them.
    backlogged : float
        Share of the time in which data wait in the send buffer, 0 to 1; NaN if it is not known.

    Raises
    ------
    ValueError
        If the two arrays do not describe a distribution.

    Examples
    --------
    >>> d = DelayDistribution(np.array([0.05, 0.15]), np.array([0.9, 0.1]), one_way_delay=0.05)
    >>> round(d.mean, 3), d.quantile(0.95), d.late_fraction(0.1)
    (0.06, 0.15, 0.1)
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    one_way_delay: float
    sustainable: bool = True
    truncated_mass: float = 0.0
    method: str = "chain"
    scenario: tuple[Source, Path, Stack] | None = field(default=None, repr=False, compare=False)
    ignored: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    look_up_error: Callable[[float], ExpectedError] | None = field(default=None, repr=False, compare=False)
    packets: int = field(default=0, repr=False, compare=False)
    ended_by_clock: bool = field(default=False, repr=False, compare=False, kw_only=True)
    ended_by_budget: bool = field(default=False, repr=False, compare=False, kw_only=True)
    settled: bool = field(default=True, kw_only=True)
    carried: Interval = field(default=UNKNOWN, kw_only=True)
    mean_interval: Interval = field(default=UNKNOWN, compare=False, kw_only=True)
    quantile_interval: Interval = field(default=UNKNOWN, compare=False, kw_only=True)
    probability: float = field(default=USUAL_QUANTILE, compare=False, kw_only=True)
    late_errors: tuple[NDArray[np.float64], NDArray[np.float64]] = field(
        default=(np.empty(0), np.empty(0)), compare=False, kw_only=True
    )
    by_kind: Mapping[str, DelayDistribution] = field(default_factory=dict, compare=False, kw_only=True)
    parts: DelayParts | None = field(default=None, compare=False, kw_only=True)
    backlogged: float = field(default=np.nan, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not is_number(self.one_way_delay):
            raise InvalidValueError("one_way_delay", self.one_way_delay, "be a number of seconds")
        values, weights = self.values, self.weights
        if values.ndim != 1 or values.shape != weights.shape or values.size == 0:
            raise ValueError(
                f"values and weights must be 1-d and of one length, got {values.shape} and {weights.shape}"
            )
        if not values[0] >= 0 or not (values[1:] > values[:-1]).all():
            raise InvalidValueError("values", values, "be strictly ascending delays from 0 on")
        if not weights.min() >= 0 or abs(weights.sum() - 1) > WEIGHT_SUM_TOLERANCE:
            raise InvalidValueError("weights", weights, f"be probabilities that sum to 1, not to {weights.sum()}")

    @classmethod
    def unsustainable(cls, one_way_delay: float) -> Self:
        """Return the distribution of a flow that TCP cannot carry: every delay is infinite.

        `one_way_delay` is the delay of the network alone [s].

        Examples
        --------
        >>> DelayDistribution.unsustainable(0.05).quantile(0.5)
        inf
        """
        found = cls(np.array([np.inf]), np.array([1.0]), one_way_delay, sustainable=False)
        return replace(found, mean_interval=ENDLESS, quantile_interval=ENDLESS)

    @classmethod
    def from_samples(cls, samples: ArrayLike, one_way_delay: float, method: str = "measurement") -> DelayDistribution:
        """Return the empirical distribution of measured or simulated delays.

        Parameters
        ----------
        samples : array_like, shape (n,)
            Delays [s], 0 or more; at least one.
        one_way_delay : float
            Delay of the network alone [s].
        method : str
            What the delays come from, such as "simulation".

        Raises
        ------
        ValueError
            If there is no sample, or a sample is negative.

        Examples
        --------
        >>> DelayDistribution.from_samples([0.2, 0.1, 0.1, 0.1], one_way_delay=0.1).weights.tolist()
        [0.75, 0.25]
        """
        values, counts = np.unique(as_numbers("samples", samples), return_counts=True)
        if values.size == 0:
            raise InvalidValueError("samples", samples, "hold at least one delay")
        return cls(values, counts / counts.sum(), one_way_delay, method=method, packets=int(counts.sum()))

    def described(
        self,
        scenario: tuple[Source, Path, Stack],
        ignored: Mapping[str, str],
        look_up_error: Callable[[float], ExpectedError],
    ) -> Self:
        """Return the same delays as the prediction of a scenario, with the parameters of the class.

        Examples
        --------
        >>> from tcpdelay.scenario.source import Flow
        >>> d = DelayDistribution(np.array([0.05, 0.15]), np.array([0.9, 0.1]), one_way_delay=0.05)
        >>> scenario = Flow(174, 0.020), Path(0.1, 0.02), Stack.linux()
        >>> d.described(scenario, {}, lambda quantile: UNKNOWN_ERROR).expected_error.cases
        0
        """
        # Not `replace`, which would check the delays again, in a tenth of the time of a small prediction.
        found = object.__new__(type(self))
        described = {"scenario": scenario, "ignored": ignored, "look_up_error": look_up_error}
        found.__dict__.update(self.__dict__ | described)
        found.__dict__.pop("expected_error", None)
        return found

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        return np.cumsum(self.weights)

    @cached_property
    def _beyond(self) -> NDArray[np.float64]:
        """P(delay >= value) for each value, and a final 0; summed from the largest value, which is more precise."""
        beyond = np.zeros(self.weights.size + 1)
        np.cumsum(self.weights[::-1], out=beyond[-2::-1])
        # Every packet is later than no delay at all, also where the weights sum to 1 but for a rounding error.
        beyond[0] = 1.0
        return beyond

    @cached_property
    def mean(self) -> float:
        """Mean delay [s]."""
        # Not a scalar product: for many values, BLAS would start threads. They take longer than the sum, and their
        # number changes the last digit.
        return float((self.values * self.weights).sum())

    @cached_property
    def std(self) -> float:
        """Standard deviation of the delay [s], the jitter of the flow; infinite if the mean is infinite."""
        if not np.isfinite(self.mean):
            return float("inf")
        return float(np.sqrt(((self.values - self.mean) ** 2 * self.weights).sum()))

    @property
    def jitter(self) -> float:
        """Standard deviation of the delay [s]."""
        return self.std

    @property
    def worst(self) -> float:
        """Largest delay of the distribution [s]."""
        return float(self.values[-1])

    @cached_property
    def expected_error(self) -> ExpectedError | None:
        """The probable error of this prediction; None if it is not known, or if this is not a prediction.

        The error is looked up at the first access, because the look-up takes as long as a prediction.
        """
        return None if self.look_up_error is None else self.look_up_error(USUAL_QUANTILE)

    @property
    def ended_note(self) -> str:
        """That the clock, so that another run may differ, or its budget has ended the simulation; empty otherwise."""
        reached = f" after {self.packets} packets" if self.packets else ""
        return f"ended by {self.ended_by}{reached}" if self.ended_by else ""

    @property
    def ended_by(self) -> Ending:
        """What has ended the simulation before it had its packets; empty if nothing has."""
        return "the clock" if self.ended_by_clock else "its budget" if self.ended_by_budget else ""

    @property
    def unsettled_note(self) -> str:
        """That the delays depend on the length of the simulation, and what is carried; empty if they have settled."""
        known = "" if np.isnan(self.carried.low) else f": {carried_in_words(self.carried)} of the rate is carried"
        return "" if self.settled else f"not settled after {ended_after(self.packets, self.ended_by)}{known}"

    def late_error(self, delay: float) -> float:
        """Return half the 95 % interval of the share of packets later than a delay [s]; 0 if it is not known."""
        if not is_number(delay):
            raise InvalidValueError("delay", delay, "be a number of seconds")
        delays, errors = self.late_errors
        return float(np.interp(delay, delays, errors)) if delays.size else 0.0

    def expected_error_of(self, quantile: float) -> ExpectedError | None:
        """Return the probable error of a quantile, above 0 and below 1, or of the next higher one that is known."""
        if not is_number(quantile):
            raise InvalidValueError("quantile", quantile, "be a number above 0 and below 1")
        return self.expected_error if self.look_up_error is None else self.look_up_error(quantile)

    @overload
    def quantile(self, probability: float) -> float: ...
    @overload
    def quantile(self, probability: NDArray[np.float64] | list[float]) -> NDArray[np.float64]: ...
    def quantile(self, probability: ArrayLike) -> float | NDArray[np.float64]:
        """Return the smallest delay d with P(delay <= d) >= probability.

        Parameters
        ----------
        probability : float or array_like
            Probabilities, 0 to 1; any shape.

        Returns
        -------
        float or ndarray
            Delays [s], in the shape of `probability`.

        Raises
        ------
        ValueError
            If a probability is outside 0 to 1.

        Warns
        -----
        UnsettledWarning
            If the delays depend on the length of the simulation.

        Examples
        --------
        >>> delays = DelayDistribution(np.array([0.05, 0.09, 0.25]), np.array([0.9, 0.08, 0.02]), one_way_delay=0.05)
        >>> delays.quantile(0.95), delays.quantile([0.5, 0.99]).tolist()
        (0.09, [0.05, 0.25])
        """
        if self.unsettled_note:
            told = f"{self.unsettled_note}; the delays depend on the length of the simulation"
            warnings.warn(told, UnsettledWarning, stacklevel=2)
        found: float | NDArray[np.float64] = self._quantile(probability)
        return found

    def _quantile(self, probability: Any) -> Any:
        """Return `quantile` without a warning."""
        probabilities = as_numbers("probability", probability)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise InvalidValueError("probability", probability, "lie between 0 and 1")
        places = np.searchsorted(self._cumulative, probabilities - CUMULATION_NOISE)
        result = self.values[np.minimum(places, self.values.size - 1)]
        return float(result) if probabilities.ndim == 0 else result

    def known_quantile(self, probability: float) -> float:
        """Return a quantile [s]; NaN if fewer than ten of the simulated or measured packets are expected beyond it.

        The largest of few delays say little of a high quantile. An infinite quantile is known in any case.

        Parameters
        ----------
        probability : float
            Probability, 0 to 1.

        Examples
        --------
        >>> d = DelayDistribution.from_samples([0.05] * 95 + [0.15] * 5, one_way_delay=0.05)
        >>> d.known_quantile(0.9), d.known_quantile(0.95)
        (0.05, nan)
        """
        if not is_number(probability):
            raise InvalidValueError("probability", probability, "be a number, 0 to 1")
        delay = self._quantile(probability)
        beyond = round((1 - probability) * self.packets, 6)
        return delay if not self.packets or beyond >= FEWEST_BEYOND or np.isinf(delay) else float("nan")

    @overload
    def late_fraction(self, playout_delay: float) -> float: ...
    @overload
    def late_fraction(self, playout_delay: NDArray[np.float64] | list[float]) -> NDArray[np.float64]: ...
    def late_fraction(self, playout_delay: ArrayLike) -> float | NDArray[np.float64]:
        """Return P(delay > playout_delay), the share of packets that are too late for a playout delay.

        Parameters
        ----------
        playout_delay : float or array_like
            Times from write to playout [s]; any shape, infinity allowed.

        Returns
        -------
        float or ndarray
            Shares, 0 to 1, in the shape of `playout_delay`.

        Raises
        ------
        ValueError
            If a playout delay is NaN.

        Warns
        -----
        UnitWarning
            If a finite playout delay is longer than all delays and than 60 s, the longest round-trip time of a path: it
            is probably in milliseconds.
        """
        limit = as_numbers("playout_delay", playout_delay)
        longest, slowest = (float(np.max(times, where=np.isfinite(times), initial=0)) for times in (limit, self.values))
        if np.isfinite(self.values[0]) and longest > max(slowest, LONGEST_PLAYOUT):
            told = f"playout_delay is in seconds, got {longest:.12g}; for {longest:.12g} ms write {longest / 1e3:.12g}"
            warnings.warn(told, UnitWarning, stacklevel=2)
        return self._later_than(limit)

    def _later_than(self, limit: NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Return `late_fraction` without a look at the unit."""
        if np.any(np.isnan(limit)):
            raise InvalidValueError("playout_delay", np.nan, "be a number of seconds")
        slack = CUMULATION_NOISE * np.where(np.isfinite(limit), np.abs(limit), 0.0)
        first = np.searchsorted(self.values, limit + slack, side="right")
        result = np.minimum(self._beyond[first], 1.0)
        return float(result) if limit.ndim == 0 else result

    @overload
    def cdf(self, delay: float) -> float: ...
    @overload
    def cdf(self, delay: NDArray[np.float64] | list[float]) -> NDArray[np.float64]: ...
    def cdf(self, delay: ArrayLike) -> float | NDArray[np.float64]:
        """Return P(delay <= d) for each d [s] in `delay`, in the shape of `delay`."""
        result = 1.0 - np.asarray(self._later_than(as_numbers("delay", delay)))
        return float(result) if result.ndim == 0 else result

    def meets(self, target: Target) -> bool:
        """Return whether the target's quantile of the delay is within its limit."""
        if not isinstance(target, Target):
            raise InvalidValueError("target", target, "be a Target")
        return target.is_met_by(self.quantile(target.quantile))

    def to_dataframe(self) -> DataFrame:
        """Return the distribution as a table: each delay [s], its probability, and that of no longer delay.

        Returns
        -------
        pandas.DataFrame
            Columns delay, probability and cumulative, by ascending delay.

        Examples
        --------
        >>> delays = DelayDistribution(np.array([0.02, 0.05]), np.array([0.9, 0.1]), one_way_delay=0.02)
        >>> print(delays.to_dataframe().to_string(index=False))
         delay  probability  cumulative
          0.02          0.9         0.9
          0.05          0.1         1.0
        """
        import pandas as pd

        return pd.DataFrame({"delay": self.values, "probability": self.weights, "cumulative": self._cumulative})

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the distribution.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; the current axes of pyplot by default.
        **options
            `thresholds`, delays [s] to mark, by name or as a list; `kind`, "both", "cdf", "density" or "survival";
            `label` and `color` of the curve; `counted`, what the shares are shares of, "packets" by default.

        Returns
        -------
        Axes
            Delays in seconds against shares as fractions.

        Raises
        ------
        ValueError
            If `kind` is not one of these four words.

        Examples
        --------
        >>> from matplotlib.figure import Figure
        >>> delays = DelayDistribution(np.array([0.05, 0.09, 0.25]), np.array([0.9, 0.08, 0.02]), one_way_delay=0.05)
        >>> ax = delays.plot(Figure().subplots(), thresholds={"limit": 0.200}, kind="cdf")
        """
        axes: Axes = drawn("charts.plot_distribution", self, ax, **options)
        return axes

    def _repr_html_(self) -> str:
        """Return the main figures as a table for notebooks."""
        return str(drawn("notebook.distribution_html", self, self.method))

    def __repr__(self) -> str:
        if not self.sustainable and not np.isfinite(self.mean):
            return f"DelayDistribution(unsustainable, one_way_delay={self.one_way_delay:.4g} s)"
        known = ((quantile_name(q), self.known_quantile(q)) for q in (0.5, 0.95, 0.99))
        quantiles = ", ".join(f"{name}={TOO_FEW if np.isnan(delay) else f'{delay:.4g} s'}" for name, delay in known)
        note = "" if self.sustainable else ", unsustainable"
        note += "".join(f", {said}" for said in (self.unsettled_note or self.ended_note,) if said)
        return f"DelayDistribution(mean={self.mean:.4g} s, {quantiles}{note})"
