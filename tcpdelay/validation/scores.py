"""Predictions beside measurements: how far apart, and by how much more than the measurement is uncertain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tcpdelay.confidence import Interval
from tcpdelay.validation.measured import QUANTILES, MeasuredDelay
from tcpdelay.validation.models import Prediction, Predictions

QUANTITIES = ("p50", "p95", "p99", "mean")
LARGEST_SUSTAINABLE_UTILIZATION = 0.9
"""Share of the fair TCP rate below which a case counts as one that TCP should carry."""


@dataclass(frozen=True)
class Score:
    """One model's prediction of one capture.

    Parameters
    ----------
    measured : MeasuredDelay
        The capture.
    model : str
        Name of the model.
    prediction : Prediction
        What it says.
    """

    measured: MeasuredDelay
    model: str
    prediction: Prediction

    def measurement(self, quantity: str) -> Interval:
        """Return the measured delay [s], one of `QUANTITIES`, with its interval."""
        interval: Interval = getattr(self.measured, quantity)
        return interval

    def predicted(self, quantity: str) -> float:
        """Return the predicted delay [s], one of `QUANTITIES`; infinite if never, NaN if the chain was not solved."""
        return self.prediction.mean if quantity == "mean" else self.prediction.quantile(QUANTILES[quantity])

    def error(self, quantity: str) -> float:
        """Return the prediction's relative error: predicted / measured - 1; NaN where either is not known."""
        return relative_error(self.predicted(quantity), self.measurement(quantity).value)

    def error_beyond_interval(self, quantity: str) -> float:
        """Return the relative distance from the nearest end of the measurement's interval; 0 inside of it."""
        return error_beyond(self.predicted(quantity), self.measurement(quantity))

    @property
    def sustainable_call_right(self) -> bool:
        """Whether the model says rightly if TCP carries the flow."""
        return self.prediction.sustainable == self.measured.sustainable

    @property
    def comparable(self) -> bool:
        """Whether delays can be compared: the utilization is below 0.9, and TCP did carry the flow."""
        return self.measured.utilization < LARGEST_SUSTAINABLE_UTILIZATION and self.measured.sustainable


def relative_error(predicted: float, measured: float) -> float:
    """Return predicted / measured - 1, or NaN where that says nothing.

    Examples
    --------
    >>> round(relative_error(0.19, 0.2), 3), relative_error(float("inf"), 0.2)
    (-0.05, inf)
    """
    if not (math.isfinite(measured) and measured > 0):
        return float("nan")
    return predicted / measured - 1


def error_beyond(predicted: float, measured: Interval) -> float:
    """Return the distance of a prediction from an interval, relative to the measured value, with its sign.

    Examples
    --------
    >>> round(error_beyond(0.26, Interval(0.2, 0.18, 0.22)), 3), error_beyond(0.21, Interval(0.2, 0.18, 0.22))
    (0.2, 0.0)
    """
    if not (math.isfinite(measured.value) and measured.value > 0) or math.isnan(predicted):
        return float("nan")
    if measured.low <= predicted <= measured.high:
        return 0.0
    nearest = measured.low if predicted < measured.low else measured.high
    return (predicted - nearest) / measured.value


def score(
    measured: Sequence[MeasuredDelay],
    predictions: Predictions,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Return the score of each model for each capture.

    Parameters
    ----------
    measured : sequence of MeasuredDelay
        The captures.
    predictions : Predictions
        The models, and what is already known of them.
    on_progress : callable, optional
        Called before each capture with the number of those done and of all.

    Returns
    -------
    list of Score
        All models of the first capture, then those of the second, and so on.
    """
    scores = []
    for done, capture in enumerate(measured):
        on_progress(done, len(measured))
        scores += [
            Score(capture, name, predictions.of(name, capture.flow, capture.path)) for name in predictions.models
        ]
    return scores
