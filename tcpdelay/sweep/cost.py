"""What a sweep will take, from a sample of its points tried here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tcpdelay.sweep.evaluation import evaluate, program, row_type
from tcpdelay.sweep.specification import SweepSpecification

TRIAL_TIME = 5.0
MOST_TRIED = 200


@dataclass(frozen=True)
class Cost:
    """What the runs of a sweep take on one processor of this machine.

    Attributes
    ----------
    tried, refused : int
        Runs tried, drawn at random, and how many of them were refused.
    mean, least, most : float
        Time of each [s].
    runs : int
        Runs of the sweep.
    size : int
        Size of the result [bytes], texts left out.
    """

    tried: int
    refused: int
    mean: float
    least: float
    most: float
    runs: int
    size: int

    @property
    def total(self) -> float:
        """Time of all runs together [s]."""
        return self.mean * self.runs


def estimated_cost(specification: SweepSpecification, trial_time: float = TRIAL_TIME) -> Cost:
    """Try some points of a sweep.

    Near saturation a chain takes a thousand times as long as elsewhere, so that a sample says little where such points
    are few.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    trial_time : float
        Time after which no further point is tried [s].

    Returns
    -------
    Cost
        Of at least one run.

    Examples
    --------
    >>> from tcpdelay.sweep.specification import read_sweep
    >>> voice = {"packet_size": 174, "interval": "20ms"}
    >>> cost = estimated_cost(read_sweep({"flow": voice, "grid": {"rtt": ["50ms", "100ms"], "loss": ["1%", "2%"]}}), 0)
    >>> cost.tried, cost.runs, cost.least <= cost.mean <= cost.most
    (1, 4, True)
    """
    runs = specification.runs
    drawn = np.random.default_rng(0).permutation(min(runs, MOST_TRIED)) * runs // min(runs, MOST_TRIED)
    # Kernels are compiled or loaded before anything is timed.
    evaluate(specification, int(drawn[0]), int(drawn[0]) + 1, program())
    times, refused = [], 0
    begun = time.monotonic()
    for run in drawn.tolist():
        before = time.monotonic()
        rows = evaluate(specification, run, run + 1, program())
        times.append(time.monotonic() - before)
        refused += int(rows.refusals[0] != "")
        if time.monotonic() - begun > trial_time:
            break
    size = runs * (row_type(specification.evaluation).itemsize + np.dtype(np.int32).itemsize)
    return Cost(len(times), refused, float(np.mean(times)), min(times), max(times), runs, size)
