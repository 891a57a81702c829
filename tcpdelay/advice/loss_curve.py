"""The target's quantile of the delay as a function of the loss, around a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.interface import Model
from tcpdelay.models.predict import AnsweredBy, capacity, predict
from tcpdelay.questions.margins import Margin
from tcpdelay.questions.search import bracket
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.target import Target

POINTS, FEW_POINTS = 30, 12
"""Number of losses on the curve: usually, and where a point takes long: in a simulation, or with a long limit."""
LONG_LIMIT = 200
"""Number of the flow's intervals from which a limit counts as long."""
NEAR_EDGE = 0.8
"""Loss, relative to the edge, at which the curve of a long limit ends: near saturation, one point takes a second."""
LOWEST, HIGHEST = 1e-5, 0.5
"""Range of the losses of a curve."""
USUAL_LOSS = 0.01
"""Centre of the curve if neither the scenario nor its margin has a loss above 0."""
BELOW, ABOVE = 6.0, 4.0
"""Factors by which the curve extends below and above the scenario's loss and its edge."""
CEILING = 4.0
"""Multiple of the limit at which the curve ends."""
SMALLEST_RESERVE = 0.05
"""Smallest difference of capacity and packet rate, relative to the packet rate, at which a point is computed."""
CRITICAL_TOLERANCE = 0.001
"""Relative tolerance of the critical loss."""


@dataclass(frozen=True)
class LossCurve:
    """The target's quantile of the delay as a function of the loss.

    Parameters
    ----------
    loss : ndarray, shape (n,)
        Losses [fraction], ascending, above 0.
    quantile : ndarray, shape (n,)
        The target's quantile at each loss [s], finite.
    lowest, highest : float
        Range of losses around the scenario; the curve may end below `highest`.
    critical : float or None
        Smallest loss at which TCP cannot carry the flow; None if it is not within the range.
    """

    loss: NDArray[np.float64]
    quantile: NDArray[np.float64]
    lowest: float
    highest: float
    critical: float | None


def loss_curve(scenario: Scenario, target: Target, margin: Margin, model: AnsweredBy | Model = "chain") -> LossCurve:
    """Return the target's quantile at losses around a scenario.

    The curve ends where the quantile is four times the limit, or where TCP is close to its capacity.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    target : Target
        The demand on the delay.
    margin : Margin
        The margin of the scenario's loss.
    model : {"chain"} or Model
        The model, as from `tcpdelay.models.predict.model_to_compare`. Simulations give few points and no critical loss.

    Returns
    -------
    LossCurve
        The curve.

    Examples
    --------
    >>> from tcpdelay.scenario.path import Path
    >>> from tcpdelay.scenario.source import Flow
    >>> scenario = Scenario(Flow(174, 0.020), Path(rtt=0.100, loss=0.02))
    >>> curve = loss_curve(scenario, Target(0.2), Margin("loss", 0.02, 0.058))
    >>> bool(curve.quantile[0] < 0.2 < curve.quantile[-1])
    True
    """
    here, edge = scenario.path.loss, margin.edge
    anchors = [loss for loss in (here, edge) if loss] or [USUAL_LOSS]
    lowest = max(LOWEST, min(anchors) / BELOW)
    highest = max(min(HIGHEST, max(anchors) * ABOVE), max(anchors))
    source = scenario.source
    limit_is_long = isinstance(source, Flow) and target.limit >= LONG_LIMIT * source.interval
    few = limit_is_long or model != "chain"
    requested = {*np.geomspace(lowest, highest, FEW_POINTS if few else POINTS).tolist(), *anchors}
    if limit_is_long and edge is not None and not margin.at_least:
        requested = {loss for loss in requested if loss <= NEAR_EDGE * edge or loss == here}
    losses: list[float] = []
    quantiles: list[float] = []
    rate = source.message_rate
    for loss in sorted(requested):
        changed = _at(scenario, loss)
        # The capacity is NaN if the chain does not know it. Then the comparison is false, and the curve ends.
        if model == "chain" and not capacity(changed) - rate >= SMALLEST_RESERVE * rate:
            break
        answer = predict(changed, method=model)
        delay = answer.require().quantile(target.quantile) if answer.answered else math.inf
        # Close to its capacity the chain may be too large for the backlog, although TCP carries the flow.
        if delay == math.inf:
            break
        losses.append(loss)
        quantiles.append(delay)
        if quantiles[-1] > CEILING * target.limit:
            break
    critical = _critical_loss(scenario, losses[-1] if losses else lowest, highest)
    return LossCurve(np.array(losses), np.array(quantiles), lowest, highest, critical)


def _at(scenario: Scenario, loss: float) -> Scenario:
    """Return the scenario with another loss."""
    return replace(scenario, path=replace(scenario.path, loss=loss))


def _critical_loss(scenario: Scenario, carried: float, highest: float) -> float | None:
    """Return the smallest loss between `carried` and `highest` at which TCP cannot carry the flow; None if unknown."""

    def excess(loss: float) -> float | None:
        largest = capacity(_at(scenario, loss))
        return None if math.isnan(largest) else 1 - largest / scenario.source.message_rate

    distance = excess(highest)
    if distance is None or distance < 0 or carried == highest:
        return None
    return bracket(excess, highest, carried, highest, CRITICAL_TOLERANCE).outside
