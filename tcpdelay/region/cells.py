"""The cells of a region: the chain solved at every round-trip time and loss, in several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.model import NEGLIGIBLE_TRUNCATION, ChainTooLargeError, DelayModel
from tcpdelay.distribution import DelayDistribution
from tcpdelay.processors import processors
from tcpdelay.region.question import Question
from tcpdelay.scenario import Path

Beyond = Literal["bound", "exact"]

EXACT, LOWER_BOUND, UNSUSTAINABLE, NOT_COMPUTED = range(4)
ACCURACIES = ("exact", "lower_bound", "unsustainable", "not_computed")
"""What the figures of a cell are, by number."""
MOST_THREADS = 4
"""Beyond, threads would wait for Python's own lock: only the solver runs without it."""
CELL = np.dtype(
    [
        ("p50", np.float64),
        ("p95", np.float64),
        ("p99", np.float64),
        ("quantile", np.float64),
        ("mean", np.float64),
        ("late_fraction", np.float64),
        ("sustainable", np.bool_),
        ("works", np.bool_),
        ("accuracy", np.int8),
    ]
)


def solve_cells(
    asked: Question,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    beyond: Beyond = "bound",
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.void]:
    """Solve the chain of every cell.

    Parameters
    ----------
    asked : Question
        Flow, TCP and target.
    rtt, loss : ndarray, one-dimensional
        Round-trip times [s] and losses.
    beyond : {"bound", "exact"}
        Whether cells that miss the target may hold lower bounds: see `DelayModel.distribution_up_to`.
    on_progress : callable, optional
        Called with the round-trip times done, and their number.

    Returns
    -------
    ndarray of CELL, shape (rtt, loss)
        Delays [s] and shares.
    """
    cells = np.zeros((rtt.size, loss.size), CELL)

    def solve_row(row: int) -> None:
        for column in range(loss.size):
            cells[row, column] = _cell(asked, Path(float(rtt[row]), float(loss[column])), beyond)

    # Long round-trip times take longest: first, so that no thread is left alone with one at the end.
    rows = range(rtt.size - 1, -1, -1)
    threads = min(processors(), MOST_THREADS, rtt.size)
    with ThreadPoolExecutor(threads) as pool:
        solved = [pool.submit(solve_row, row) for row in rows]
        try:
            for done, each in enumerate(as_completed(solved), start=1):
                each.result()
                if on_progress is not None:
                    on_progress(done, rtt.size)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return cells


def _cell(asked: Question, path: Path, beyond: Beyond) -> tuple[float | bool | int, ...]:
    """Return the fields of one cell."""
    target = asked.target
    try:
        model = DelayModel(asked.flow, path, asked.stack)
        if beyond == "bound":
            distribution = model.distribution_up_to(target.limit, target.quantile)
        else:
            distribution = model.delay_distribution()
    except ChainTooLargeError:
        # What cannot be computed is not promised.
        return (np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, False, False, NOT_COMPUTED)
    p50, p95, p99, chosen = distribution.quantile(np.array([0.5, 0.95, 0.99, target.quantile])).tolist()
    return (
        p50,
        p95,
        p99,
        chosen,
        distribution.mean,
        distribution.late_fraction(target.limit),
        distribution.sustainable,
        chosen <= target.limit,
        _accuracy(distribution),
    )


def _accuracy(distribution: DelayDistribution) -> int:
    if not distribution.sustainable:
        return UNSUSTAINABLE
    return LOWER_BOUND if distribution.truncated_mass >= NEGLIGIBLE_TRUNCATION else EXACT
