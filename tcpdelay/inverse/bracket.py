"""Where something stops to work along one quantity: a walk, then a bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

STEPS_PER_DOUBLING = 2
RELATIVE_TOLERANCE = 0.01


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
    step = 2 ** (1 / STEPS_PER_DOUBLING)
    inside = start
    found = works(start)
    if found:
        while inside < highest:
            outside = min(inside * step, highest)
            found = works(outside)
            if not found:
                break
            inside = outside
        else:
            return Bracket(highest, None)
    else:
        outside = start
        while True:
            if outside <= lowest:
                return Bracket(None, outside)
            inside = max(outside / step, lowest)
            found_inside = works(inside)
            if found_inside:
                break
            outside, found = inside, found_inside
    while outside / inside > 1 + RELATIVE_TOLERANCE:
        middle = math.sqrt(inside * outside)
        found_middle = works(middle)
        if found_middle:
            inside = middle
        else:
            outside, found = middle, found_middle
    return Bracket(inside, outside, known=found is not None)
