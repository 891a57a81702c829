"""The target's quantile of the delay as a function of the loss, around a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.predict import capacity, predict
from tcpdelay.questions.margins import Margin
from tcpdelay.questions.search import bracket
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.target import Target

POINTS, FEW_POINTS = 30, 12
"""Losses on the curve, and losses where the limit is long: there curves are smooth, and chains large."""
LONG_LIMIT = 200
"""Limit, in intervals of the flow, from which on it counts as long."""
NEAR_EDGE = 0.8
"""Loss, relative to the edge, at which the curve of a long limit ends: near saturation, one point takes a second."""
LOWEST, HIGHEST = 1e-5, 0.5
USUAL_LOSS = 0.01
"""Centre of the curve where neither the scenario nor its margin has a loss above 0."""
BELOW, ABOVE = 6.0, 4.0
"""Ratios by which the curve reaches below the smaller and above the larger of the scenario's loss and its edge."""
CEILING = 4.0
"""Multiple of the limit at which the curve ends."""
SMALLEST_RESERVE = 0.05
"""Smallest difference of capacity and packet rate, relative to the packet rate, at which a point is computed."""
CRITICAL_TOLERANCE = 0.001


@dataclass(frozen=True)
class LossCurve:
    """Delay quantile against loss.

    Parameters
    ----------
    loss : ndarray, shape (n,)
        Losses [fraction], ascending, above 0.
    quantile : ndarray, shape (n,)
        The target's quantile at each loss [s], finite.
    lowest, highest : float
        Range of losses around the scenario; the curve may end earlier.
    critical : float or None
        Loss from which on TCP cannot carry the flow, if it is within the range.
    """

    loss: NDArray[np.float64]
    quantile: NDArray[np.float64]
    lowest: float
    highest: float
    critical: float | None


def loss_curve(scenario: Scenario, target: Target, margin: Margin) -> LossCurve:
    """Return the target's quantile at losses around a scenario.

    The curve ends where the quantile is four times the limit, or where TCP is close to its capacity.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    target : Target
        The demand on the delay.
    margin : Margin
        How far the scenario's loss may go.

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
    wanted = {*np.geomspace(lowest, highest, POINTS).tolist(), *anchors}
    if target.limit >= LONG_LIMIT * scenario.flow.interval:
        last = highest if edge is None or margin.at_least else NEAR_EDGE * edge
        few = {*np.geomspace(lowest, highest, FEW_POINTS).tolist(), *anchors}
        wanted = {loss for loss in few if loss <= last or loss == here}
    losses: list[float] = []
    quantiles: list[float] = []
    rate = scenario.flow.packet_rate
    for loss in sorted(wanted):
        changed = _at(scenario, loss)
        # NaN where the model does not know: the comparison is false, and the curve ends.
        if not capacity(changed) - rate >= SMALLEST_RESERVE * rate:
            break
        losses.append(loss)
        quantiles.append(predict(changed, method="chain").require().quantile(target.quantile))
        if quantiles[-1] > CEILING * target.limit:
            break
    critical = _critical_loss(scenario, losses[-1] if losses else lowest, highest)
    return LossCurve(np.array(losses), np.array(quantiles), lowest, highest, critical)


def _at(scenario: Scenario, loss: float) -> Scenario:
    return replace(scenario, path=replace(scenario.path, loss=loss))


def _critical_loss(scenario: Scenario, carried: float, highest: float) -> float | None:
    """Return the loss between `carried` and `highest` from which on TCP cannot carry the flow, if that is known."""

    def excess(loss: float) -> float | None:
        largest = capacity(_at(scenario, loss))
        return None if math.isnan(largest) else 1 - largest / scenario.flow.packet_rate

    distance = excess(highest)
    if distance is None or distance < 0 or carried == highest:
        return None
    return bracket(excess, highest, carried, highest, CRITICAL_TOLERANCE).outside
