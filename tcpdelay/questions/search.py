"""Where something stops to work along one quantity: a walk, then a search between its last two steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

STEPS_PER_DOUBLING = 2
RELATIVE_TOLERANCE = 0.01
NEAREST_TO_AN_END = 0.9
"""Least distance, in tolerances, of a value tried from both ends of what is left: so the last one ends the search."""
STEPS_PER_HALVING = 3
"""Every so many steps what is left is halved, should interpolation go slowly."""


@dataclass(frozen=True)
class Bracket:
    """Both sides of an edge.

    Parameters
    ----------
    inside : float or None
        Largest value found that works; None if none was met.
    outside : float or None
        Smallest value above it found that does not, or the last one tried if none was met; None if the search ended
        with the highest value allowed, which works.
    known : bool
        Whether it is known that `outside` does not work, rather than that there is no answer for it.
    """

    inside: float | None
    outside: float | None
    known: bool = True


def bracket(works: Callable[[float], bool | None], start: float, lowest: float, highest: float) -> Bracket:
    """Walk from `start` to where `works` changes, then bisect to one percent.

    From a value that works the walk goes up, else down, in steps of a factor of the square root of two.

    Parameters
    ----------
    works : callable
        Says of a value whether it works; None where there is no answer, and there the walk turns as well.
    start : float
        Where the walk begins, above 0.
    lowest, highest : float
        How far it goes, above 0.

    Returns
    -------
    Bracket
        Both sides of the edge, no more than one percent apart.

    Examples
    --------
    >>> found = bracket(lambda value: value < 3, start=1.0, lowest=0.1, highest=100.0)
    >>> found.inside < 3 <= found.outside, found.outside / found.inside < 1.01
    (True, True)
    >>> bracket(lambda value: value < 3, start=1.0, lowest=0.1, highest=2.0)
    Bracket(inside=2.0, outside=None, known=True)
    """

    def excess(value: float) -> float | None:
        found = works(value)
        return None if found is None else -1.0 if found else 1.0

    return bracket_by_excess(excess, start, lowest, highest)


def bracket_by_excess(excess: Callable[[float], float | None], start: float, lowest: float, highest: float) -> Bracket:
    """Walk from `start` as `bracket` does, then interpolate by how far values are from working.

    Between the last two steps the next value is where a straight line through the excesses, over the logarithm of the
    value, is 0; the excess of an end that stays is halved, as in the Illinois variant of the regula falsi.

    Parameters
    ----------
    excess : callable
        Says of a value how far it is from working: finite, and up to 0 where it works; None where there is no answer.
    start, lowest, highest : float
        As in `bracket`.

    Returns
    -------
    Bracket
        Both sides of the edge, no more than one percent apart.

    References
    ----------
    Dowell and Jarratt, "A modified regula falsi method for computing the root of an equation", BIT 11 (1971).

    Examples
    --------
    >>> tried = []
    >>> found = bracket_by_excess(lambda value: tried.append(value) or value**2 - 9, 1.0, lowest=0.1, highest=100.0)
    >>> found.inside <= 3 < found.outside, found.outside / found.inside < 1.01, len(tried)
    (True, True, 9)
    """
    step = 2 ** (1 / STEPS_PER_DOUBLING)
    inside = start
    now = excess(start)
    if now is not None and now <= 0:
        below = now
        while inside < highest:
            outside = min(inside * step, highest)
            now = excess(outside)
            if now is None or now > 0:
                break
            inside, below = outside, now
        else:
            return Bracket(highest, None)
    else:
        outside = start
        while True:
            if outside <= lowest:
                return Bracket(None, outside)
            inside = max(outside / step, lowest)
            found = excess(inside)
            if found is not None and found <= 0:
                below = found
                break
            outside, now = inside, found
    return _narrowed(excess, inside, below, outside, now)


def _narrowed(
    excess: Callable[[float], float | None], inside: float, below: float, outside: float, above: float | None
) -> Bracket:
    """Narrow what lies between `inside` and `outside`, with excesses `below` and `above` 0."""
    weights, known, step = [1.0, 1.0], above is not None, 0
    while outside / inside > 1 + RELATIVE_TOLERANCE:
        step += 1
        place = 0.5
        if above is not None and step % STEPS_PER_HALVING:
            place = -below * weights[0] / (above * weights[1] - below * weights[0])
        nearest = min(NEAREST_TO_AN_END * math.log(1 + RELATIVE_TOLERANCE) / math.log(outside / inside), 0.5)
        middle = inside * (outside / inside) ** min(max(place, nearest), 1 - nearest)
        found = excess(middle)
        if found is not None and found <= 0:
            inside, below, weights = middle, found, [1.0, weights[1] / 2]
        else:
            outside, above, known, weights = middle, found, found is not None, [weights[0] / 2, 1.0]
    return Bracket(inside, outside, known=known)
