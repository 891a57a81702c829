"""Questions over ranges of round-trip time and loss: source, stack and target, and the values of both ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.models.budget import MOST_SECONDS, checked_budget
from tcpdelay.models.predict import supports
from tcpdelay.scenario.applications import source_of, target_of
from tcpdelay.scenario.fields import InvalidValueError, bounds
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.message_stream import Source
from tcpdelay.scenario.stack import KnownStack, Quic, Stack, checked_profile
from tcpdelay.scenario.target import Target

SHORTEST_RTT, LONGEST_RTT = 0.010, 0.400
LOWEST_LOSS, HIGHEST_LOSS = 0.001, 0.10
"""Default range of round-trip times [s] and losses."""
DEFAULT_POINTS = 40
ORDINARY_PATH = Path(rtt=0.1, loss=0.01)
"""A path that all chains know."""


@dataclass(frozen=True)
class Question:
    """A checked question: a source, its transport, the demand on its delay, and what an answer may take [s, bytes]."""

    flow: Source
    stack: KnownStack
    target: Target
    max_seconds: float = MOST_SECONDS
    max_memory: float | None = None

    @property
    def simulated(self) -> bool:
        """Whether no chain answers, because the source is no `Flow`, or the chain of QUIC refuses source or stack."""
        if isinstance(self.stack, Quic):
            return bool(supports(Scenario(self.flow, ORDINARY_PATH, self.stack)).refused)
        return not isinstance(self.flow, Flow)


def question(
    flow: Source | str,
    stack: Stack | None,
    limit: float | None,
    quantile: float | None,
    max_seconds: float = MOST_SECONDS,
    max_memory: float | None = None,
) -> Question:
    """Return the checked question; its default target is the target of the application, or 95 % within 200 ms.

    Parameters
    ----------
    flow : Source or str
        The source, or the name of an application in `tcpdelay.scenario.applications`.
    stack : Stack, optional
        The TCP stack; by default the stack of a current Linux kernel.
    limit : float, optional
        Latest useful arrival [s], above 0.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1.
    max_seconds : float
        Processor time that an answer may take [s], 0.01 to 1e6, by an estimate.
    max_memory : float, optional
        Memory that the chain may take for an answer [bytes], 2**20 to 2**50; by default 1 GiB.

    Returns
    -------
    Question
        Flow, stack, target, and what an answer may take.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or outside its range.

    Examples
    --------
    >>> question("voip", None, None, 0.99).target
    Target(limit=0.2, quantile=0.99)
    """
    default = target_of(flow)
    target = Target(
        default.limit if limit is None else limit,
        default.quantile if quantile is None else quantile,
    )
    checked_budget(max_seconds, max_memory)
    # The name of a cached answer has these numbers: 10 and 10.0 are the same.
    memory = None if max_memory is None else float(max_memory)
    return Question(source_of(flow), checked_profile(stack), target, float(max_seconds), memory)


def round_trip_times(rtt: ArrayLike | None) -> NDArray[np.float64]:
    """Return round-trip times [s], ascending; by default 40 from 10 ms to 400 ms, in equal ratios.

    Raises
    ------
    ValueError
        If a value is not a number from 1e-6 to 60 s, or the values do not ascend.

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
        If a value is not a fraction above 0 (with `allow_zero`, 0 or more) and below 1, or the values do not ascend.

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
    """Return a number, or a list of ascending numbers, from `low` to `high` as an array."""
    try:
        array = np.atleast_1d(np.asarray(values, np.float64))
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or array.size == 0:
        raise InvalidValueError(name, values, "be a number or a list of at least one number")
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
