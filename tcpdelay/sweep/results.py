"""The results of all runs in one table, filled in any order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tcpdelay.sweep.evaluation import Rows, row_type
from tcpdelay.sweep.specification import SweepSpecification


class Results:
    """Results by the number of the run.

    Attributes
    ----------
    values : structured ndarray, shape (runs,)
        Fields of `row_type`.
    done : ndarray of bool, shape (runs,)
        Which runs have been evaluated.
    refusals : dict
        Why runs were refused, by number.

    Examples
    --------
    >>> from tcpdelay.sweep.specification import Axis, Evaluation
    >>> results = Results(SweepSpecification((), (Axis("rtt", (0.1, 0.2, 0.3)),), Evaluation()))
    >>> results.add(Rows(1, results.values[1:2], np.array([""])))
    >>> list(results.gaps())
    [(0, 1), (2, 3)]
    """

    def __init__(self, specification: SweepSpecification) -> None:
        self.values: NDArray[np.void] = np.zeros(specification.runs, row_type(specification.evaluation))
        self.done: NDArray[np.bool_] = np.zeros(specification.runs, np.bool_)
        self.refusals: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        """Fill in the results of some runs."""
        self.values[rows.start : rows.stop] = rows.values
        self.done[rows.start : rows.stop] = True
        for place in np.flatnonzero(rows.refusals != ""):
            self.refusals[rows.start + int(place)] = str(rows.refusals[place])

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Return the ranges of runs that are missing: the first, and the one after the last."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.done, [True]]).astype(np.int8)))
        yield from ((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
