"""What is asked of a region: which flow, over which TCP, within which delay, at which round-trip times and losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.scenario.applications import APPLICATIONS
from tcpdelay.scenario.fields import InvalidValueError, bounds, is_number
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import DEFAULT_STACK, KnownStack, Stack, checked_profile
from tcpdelay.scenario.target import Target

SHORTEST_RTT, LONGEST_RTT = 0.010, 0.400
LOWEST_LOSS, HIGHEST_LOSS = 0.001, 0.10
"""Range of round-trip times [s] and losses where none are given."""
DEFAULT_POINTS = 40
LARGEST_REGION = 1_000_000
"""Cells that a region may have."""
_DEFAULT_LIMIT, _DEFAULT_QUANTILE = 0.200, 0.95


@dataclass(frozen=True)
class Question:
    """A flow, its TCP and the target that tells what works, all checked."""

    flow: Flow
    stack: KnownStack
    target: Target


def question(flow: Flow | str, stack: Stack | None, threshold: float | None, quantile: float | None) -> Question:
    """Return the question with its defaults filled in: those of the application, or 95 % within 200 ms.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of one of `tcpdelay.scenario.applications`.
    stack : Stack, optional
        Its TCP; by default that of `tcpdelay.predict_delay`.
    threshold, quantile : float, optional
        Largest delay [s], above 0, and the share of the packets that must arrive by then, above 0 and below 1.

    Returns
    -------
    Question
        All of them.

    Raises
    ------
    ValueError
        If one is none or lies outside its range.

    Examples
    --------
    >>> question("voip", None, None, 0.99).target
    Target(limit=0.2, quantile=0.99)
    """
    target = Target(_DEFAULT_LIMIT, _DEFAULT_QUANTILE)
    preset = APPLICATIONS.get(flow) if isinstance(flow, str) else None
    if preset is not None:
        flow, target = preset.flow, preset.target
    if not isinstance(flow, Flow):
        raise InvalidValueError("flow", flow, f"be a Flow or one of {', '.join(APPLICATIONS)}")
    limit = target.limit if threshold is None else threshold
    if not (is_number(limit) and 0 < limit < float("inf")):
        raise InvalidValueError("threshold", limit, "be a number of seconds above 0")
    share = target.quantile if quantile is None else quantile
    return Question(flow, DEFAULT_STACK if stack is None else checked_profile(stack), Target(limit, share))


def round_trip_times(rtt: ArrayLike | None) -> NDArray[np.float64]:
    """Return round-trip times [s], ascending; by default 40 from 10 ms to 400 ms, in equal ratios.

    Raises
    ------
    ValueError
        If they are no such numbers, 1e-6 to 60 s.

    Examples
    --------
    >>> round_trip_times([0.05, 0.1])
    array([0.05, 0.1 ])
    """
    if rtt is None:
        return np.geomspace(SHORTEST_RTT, LONGEST_RTT, DEFAULT_POINTS)
    return _ascending("rtt", rtt, *bounds(Path, "rtt"), "s")


def losses(loss: ArrayLike | None, *, allow_zero: bool = False) -> NDArray[np.float64]:
    """Return losses, ascending; by default 40 from 0.1 % to 10 %, in equal ratios.

    Raises
    ------
    ValueError
        If they are no such fractions, above 0 and below 1, or from 0 on if `allow_zero`.

    Examples
    --------
    >>> losses(0.02)
    array([0.02])
    """
    if loss is None:
        return np.geomspace(LOWEST_LOSS, HIGHEST_LOSS, DEFAULT_POINTS)
    smallest = 0.0 if allow_zero else float(np.nextafter(0, 1))
    return _ascending("loss", loss, smallest, float(np.nextafter(1, 0)), "")


def _ascending(name: str, values: ArrayLike, low: float, high: float, unit: str) -> NDArray[np.float64]:
    """Return a number or a list of ascending numbers of a range as an array."""
    try:
        array = np.atleast_1d(np.asarray(values, np.float64))
    except (TypeError, ValueError):
        raise InvalidValueError(name, values, "be a number or a list of numbers") from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidValueError(name, values, "be a number or a list of numbers, one at least")
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        allowed = (
            f"between {low:g} and {high:g} {unit}"
            if unit
            else f"fractions {'from' if low == 0 else 'above'} 0 and below 1"
        )
        raise InvalidValueError(name, array[outside][0], f"be {allowed}")
    if not np.all(np.diff(array) > 0):
        raise InvalidValueError(name, array, "ascend")
    return array
