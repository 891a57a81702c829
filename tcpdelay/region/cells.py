"""The cells of a region: the chain solved at every round-trip time and loss, in several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.model import ChainTooLargeError, DelayModel, DelaySummary
from tcpdelay.chain.narrow import NEGLIGIBLE_TRUNCATION, Wanted
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
    limit, share = asked.target.limit, asked.target.quantile
    wanted = Wanted(
        np.array([0.5, 0.95, 0.99, share]), np.array([limit]), limit if beyond == "bound" else np.inf, share
    )

    def solve_row(row: int) -> None:
        for column in range(loss.size):
            cells[row, column] = _cell(asked, Path(float(rtt[row]), float(loss[column])), wanted)

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


def _cell(asked: Question, path: Path, wanted: Wanted) -> tuple[float | bool | int, ...]:
    """Return the fields of one cell."""
    try:
        found = DelayModel(asked.flow, path, asked.stack).summary_up_to(wanted)
    except ChainTooLargeError:
        # What cannot be computed is not promised.
        return (np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, False, False, NOT_COMPUTED)
    p50, p95, p99, chosen = found.quantiles.tolist()
    works = chosen <= asked.target.limit
    return (p50, p95, p99, chosen, found.mean, found.late_fractions[0], found.sustainable, works, _accuracy(found))


def _accuracy(found: DelaySummary) -> int:
    if not found.sustainable:
        return UNSUSTAINABLE
    return LOWER_BOUND if found.truncated_mass >= NEGLIGIBLE_TRUNCATION else EXACT
