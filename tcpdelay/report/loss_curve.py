"""The target's delay quantile as a function of the loss, around a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import UnsupportedError

if TYPE_CHECKING:
    from tcpdelay.advice.guideline import Guideline

POINTS, FEW_POINTS = 30, 12
"""Losses that are looked at, and those where the limit is long in packets: curves are smooth there, chains large."""
LONG_LIMIT = 200
"""Packets written within the limit from which on it is long."""
LOWEST, HIGHEST = 1e-5, 0.5
USUAL_LOSS = 0.01
"""Centre of the curve where neither the scenario nor its margin has a loss above 0."""
BELOW, ABOVE = 6.0, 4.0
"""How far the curve reaches below the smaller and above the larger of the scenario's loss and its edge."""
CEILING = 4.0
"""Multiple of the limit at which the curve ends: what lies beyond is late by any measure, and slow to compute."""
SMALLEST_RESERVE = 0.05
"""Drift of the backlog, relative to the packet rate, below which the chain takes too long for a chart."""
CRITICAL_STEPS = 12


@dataclass(frozen=True)
class LossCurve:
    """Delay quantile against loss.

    Parameters
    ----------
    loss : ndarray, shape (n,)
        Losses [fraction], ascending, above 0.
    quantile : ndarray, shape (n,)
        The target's quantile at each [s], finite.
    lowest, highest : float
        Range of the loss asked for; the curve may end earlier.
    critical : float or None
        Loss from which on TCP cannot carry the flow, if it lies within the range.
    """

    loss: NDArray[np.float64]
    quantile: NDArray[np.float64]
    lowest: float
    highest: float
    critical: float | None


def loss_curve(guideline: Guideline) -> LossCurve:
    """Return the target's quantile at losses around the scenario's.

    The curve ends where the quantile is a few times the limit, or where TCP is close to not carrying the flow.

    Examples
    --------
    >>> from tcpdelay import guideline
    >>> curve = loss_curve(guideline(rtt=0.100, loss=0.02, packet_size=174, interval=0.020))
    >>> bool(curve.quantile[0] < 0.2 < curve.quantile[-1])
    True
    """
    edge = next(margin.edge for margin in guideline.margins if margin.quantity == "loss")
    anchors = [loss for loss in (guideline.path.loss, edge) if loss] or [USUAL_LOSS]
    lowest = max(LOWEST, min(anchors) / BELOW)
    highest = max(min(HIGHEST, max(anchors) * ABOVE), max(anchors))
    points = POINTS if guideline.target.limit < LONG_LIMIT * guideline.flow.interval else FEW_POINTS
    losses, quantiles = [], []
    for loss in sorted({*np.geomspace(lowest, highest, points).tolist(), *anchors}):
        model = _model(guideline, loss)
        if model is None or model.backlog_drift > -SMALLEST_RESERVE * guideline.flow.packet_rate:
            break
        losses.append(loss)
        quantiles.append(model.delay_distribution().quantile(guideline.target.quantile))
        if quantiles[-1] > CEILING * guideline.target.limit:
            break
    critical = _critical_loss(guideline, losses[-1] if losses else lowest, highest)
    return LossCurve(np.array(losses), np.array(quantiles), lowest, highest, critical)


def _model(guideline: Guideline, loss: float) -> DelayModel | None:
    """Return the chain at another loss, or None where it comes in longer bursts than the chain can follow."""
    try:
        return DelayModel(guideline.flow, replace(guideline.path, loss=loss), guideline.stack)
    except UnsupportedError:
        return None


def _critical_loss(guideline: Guideline, carried: float, highest: float) -> float | None:
    """Return the loss between `carried` and `highest` at which the drift of the backlog turns positive, if known."""
    if _carries(guideline, highest) is not False:
        return None
    grows = highest
    for _ in range(CRITICAL_STEPS):
        middle = math.sqrt(carried * grows)
        if _carries(guideline, middle):
            carried = middle
        else:
            grows = middle
    return grows


def _carries(guideline: Guideline, loss: float) -> bool | None:
    model = _model(guideline, loss)
    return None if model is None else model.backlog_drift < 0
