"""Scores of predictions: errors, errors relative to the uncertainty of the measurement, and groups of captures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from tcpdelay.accuracy.throughput import LARGEST_SUSTAINABLE_UTILIZATION
from tcpdelay.declare import FORMATS
from tcpdelay.delays import DelayDistribution
from tcpdelay.statistics import Interval
from tcpdelay.study.validation.captures import QUANTILES, MeasuredDelay
from tcpdelay.study.validation.predictions import Prediction, Predictions
from tcpdelay.testbed.experiment import Experiment
from tcpdelay.units import format_fraction, format_time

QUANTITIES = ("p50", "p95", "p99", "mean")
HALF_WIDTH = 2.09
"""Half the interval of a mean, in standard errors: Student's quantile for 20 batches."""
SAME_DELAY = 0.001
"""Delays that differ by less than this count as the same delay where shares of packets are compared [s].

Delays have a few typical values. Without this tolerance, a shift of a typical value by a microsecond would count as a
large difference.
"""
RTT_GROUPS = (0.050, 0.160)
UTILIZATION_BANDS = (0.1, 1 / 3, 2 / 3, 0.9)
_Grouping = tuple[str, Callable[[MeasuredDelay], tuple[float, str]]]


@dataclass(frozen=True)
class Score:
    """One model's prediction of one capture."""

    measured: MeasuredDelay  # The capture
    model: str  # Name of the model
    prediction: Prediction

    def measurement(self, quantity: str) -> Interval:
        """Return a measured quantity of `QUANTITIES` [s] with its interval."""
        interval: Interval = getattr(self.measured, quantity)
        return interval

    def predicted(self, quantity: str) -> float:
        """Return a predicted quantity of `QUANTITIES` [s]; infinite if not carried, NaN if not solved."""
        return self.prediction.mean if quantity == "mean" else self.prediction.quantile(QUANTILES[quantity])

    def error(self, quantity: str) -> float:
        """Return the prediction's relative error, predicted / measured - 1; NaN if a value is unknown."""
        return relative_error(self.predicted(quantity), self.measurement(quantity).value)

    def error_beyond_interval(self, quantity: str) -> float:
        """Return the relative distance from the nearest end of the measurement's interval; 0 inside the interval."""
        return error_beyond(self.predicted(quantity), self.measurement(quantity))

    def inside_interval(self, quantity: str) -> bool:
        """Return whether the prediction is within the measurement's interval, or less than `SAME_DELAY` from it."""
        interval = self.measurement(quantity)
        return interval.low - SAME_DELAY <= self.predicted(quantity) <= interval.high + SAME_DELAY

    @property
    def standard_errors_apart(self) -> float:
        """Predicted minus measured mean delay, in standard errors of the measurement; NaN if a value is unknown."""
        half_width = (self.measured.mean.high - self.measured.mean.low) / 2
        if not 0 < half_width < math.inf:
            return float("nan")
        return (self.predicted("mean") - self.measured.mean.value) * HALF_WIDTH / half_width

    @cached_property
    def mean_distance(self) -> float:
        """Mean distance between the quantiles of both distributions (Wasserstein-1), over the measured mean delay.

        Infinite if the model predicts that TCP cannot carry the flow; NaN if a distribution is unknown.
        """
        if self.prediction.distribution is None:
            return float("nan")
        return mean_distance(self.prediction.distribution, self.measured.distribution)

    @cached_property
    def largest_gap(self) -> float:
        """Largest difference in the share of packets read in time (Kolmogorov-Smirnov); NaN if unknown."""
        if self.prediction.distribution is None:
            return float("nan")
        return largest_gap(self.prediction.distribution, self.measured.distribution)

    @property
    def sustainable_call_right(self) -> bool:
        """Whether the model predicts correctly if TCP carries the flow."""
        return self.prediction.sustainable == self.measured.sustainable

    @property
    def comparable(self) -> bool:
        """Whether delays can be compared: the utilization is below 0.9, and TCP carried the flow."""
        return self.measured.utilization < LARGEST_SUSTAINABLE_UTILIZATION and self.measured.sustainable


def relative_error(predicted: float, measured: float) -> float:
    """Return predicted / measured - 1; NaN if the measured value is not finite or not positive.

    Examples
    --------
    >>> round(relative_error(0.19, 0.2), 3), relative_error(float("inf"), 0.2)
    (-0.05, inf)
    """
    if not (math.isfinite(measured) and measured > 0):
        return float("nan")
    return predicted / measured - 1


def error_beyond(predicted: float, measured: Interval) -> float:
    """Return the distance of a prediction from an interval, relative to the measured value, with its sign."""
    if not (math.isfinite(measured.value) and measured.value > 0) or math.isnan(predicted):
        return float("nan")
    if measured.low <= predicted <= measured.high:
        return 0.0
    nearest = measured.low if predicted < measured.low else measured.high
    return (predicted - nearest) / measured.value


def mean_distance(predicted: DelayDistribution, measured: DelayDistribution) -> float:
    """Return the mean distance between the quantiles of two distributions, relative to the measured mean."""
    if not (math.isfinite(measured.mean) and measured.mean > 0):
        return float("nan")
    if not math.isfinite(predicted.mean):
        return float("inf")
    places = np.minimum(np.concatenate([np.cumsum(one.weights)[:-1] for one in (predicted, measured)]), 1.0)
    edges = np.concatenate([[0.0], np.sort(places), [1.0]])
    middles = (edges[1:] + edges[:-1]) / 2
    distances = np.abs(predicted.quantile(middles) - measured.quantile(middles))
    return float(np.diff(edges) @ distances) / measured.mean


def largest_gap(one: DelayDistribution, other: DelayDistribution, same: float = SAME_DELAY) -> float:
    """Return the largest difference of two cumulative distributions, with a tolerance for shifted delays."""

    def excess(upper: DelayDistribution, lower: DelayDistribution) -> float:
        delays = upper.values[np.isfinite(upper.values)]
        if not delays.size:
            return 0.0
        return float(np.max(np.cumsum(upper.weights)[: delays.size] - lower.cdf(delays + same)))

    return max(excess(one, other), excess(other, one), 0.0)


def predictable(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures with losses: without losses, the delay is the network's delay."""
    return [capture for capture in measured if capture.experiment.loss > 0 or capture.experiment.routed]


def score(
    measured: Sequence[MeasuredDelay],
    predictions: Predictions,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Return the score of each model for each capture that the model can predict."""
    scores = []
    for done, capture in enumerate(measured):
        on_progress(done, len(measured))
        for part in (capture, *capture.by_kind.values()):
            for name in predictions.models:
                prediction = predictions.of(name, part)
                if prediction is not None:
                    scores.append(Score(part, name, prediction))
    return scores


def rtt_group(rtt: float) -> tuple[int, str]:
    """Return the rank and the name of the group of round-trip times that `rtt` [s] belongs to.

    Examples
    --------
    >>> rtt_group(0.020), rtt_group(0.160)
    ((0, 'below 50 ms'), (1, '50 ms to 160 ms'))
    """
    low, high = (format_time(edge) for edge in RTT_GROUPS)
    if rtt < RTT_GROUPS[0]:
        return 0, f"below {low}"
    return (1, f"{low} to {high}") if rtt <= RTT_GROUPS[1] else (2, f"above {high}")


def _utilization_band(measured: MeasuredDelay) -> tuple[float, str]:
    below = 0.0
    for place, edge in enumerate(UTILIZATION_BANDS):
        if measured.utilization < edge:
            return place, f"{below:.2g} to {edge:.2g}"
        below = edge
    return len(UTILIZATION_BANDS), f"{below:.2g} and more"


GROUPINGS: Sequence[_Grouping] = (
    ("RTT", lambda measured: rtt_group(measured.path.rtt)),
    ("loss", lambda measured: (measured.experiment.loss, format_fraction(measured.experiment.loss))),
    ("messages", lambda measured: (0, measured.words)),
    ("packet size", lambda measured: (measured.source.mean_size, f"{measured.source.mean_size:.0f} B")),
    ("interval", lambda measured: (1 / measured.source.message_rate, format_time(1 / measured.source.message_rate))),
    ("utilization", _utilization_band),
    ("HZ", lambda measured: (measured.hz, str(measured.hz))),
    ("congestion control", lambda measured: (0, measured.experiment.congestion_control)),
)
"""The groupings of errors: each returns the rank and the name of a capture's group."""


def difference(experiment: Experiment, default: Experiment) -> str:
    """Return in words the settings of an experiment that differ from the settings of a default experiment."""
    changed = []
    for field in fields(Experiment):
        value = getattr(experiment, field.name)
        if value != getattr(default, field.name):
            shown = FORMATS["flag"](value) if isinstance(value, bool) else value
            changed.append(f"{field.name} {shown}")
    return ", ".join(changed)
