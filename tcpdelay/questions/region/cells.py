"""The lines of a region in several threads: the solver runs without Python's lock.

The cells of a region: the chain solved at every round-trip time and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.chain import DelayModel, DelaySummary, summary
from tcpdelay.models.interface import TooLargeError
from tcpdelay.models.solver.narrow import NEGLIGIBLE_TRUNCATION, RequestedFigures
from tcpdelay.processors import processors
from tcpdelay.questions.region.question import Question
from tcpdelay.scenario.path import Path

MOST_THREADS = 4
"""Beyond, threads would wait for Python's own lock: only the solver runs without it."""


def for_each_line(
    solve: Callable[[int], None], lines: int, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Call `solve` with the number of each line, the last one first, in several threads.

    Parameters
    ----------
    solve : callable
        Takes the number of a line.
    lines : int
        How many there are.
    on_progress : callable, optional
        Called with the number of lines done, and of all.

    Examples
    --------
    >>> done = set()
    >>> for_each_line(done.add, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    with ThreadPoolExecutor(min(processors(), MOST_THREADS, lines)) as pool:
        # Long round-trip times take longest: first, so that no thread is left alone with one at the end.
        solved = [pool.submit(solve, line) for line in range(lines - 1, -1, -1)]
        try:
            for done, each in enumerate(as_completed(solved), start=1):
                each.result()
                if on_progress is not None:
                    on_progress(done, lines)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


Beyond = Literal["bound", "exact"]

EXACT, LOWER_BOUND, UNSUSTAINABLE, NOT_COMPUTED = range(4)
ACCURACIES = ("exact", "lower_bound", "unsustainable", "not_computed")
"""What the figures of a cell are, by number."""
CELL = np.dtype(
    [
        ("p50", np.float64),
        ("p95", np.float64),
        ("p99", np.float64),
        ("quantile", np.float64),
        ("mean", np.float64),
        ("late_fraction", np.float64),
        ("unplayed", np.float64),
        ("playout_delay", np.float64),
        ("sustainable", np.bool_),
        ("works", np.bool_),
        ("accuracy", np.int8),
    ]
)


class Playout(NamedTuple):
    """When a packet is played, and what share is not.

    Attributes
    ----------
    delay : float
        Time from write to playout [s].
    late : float
        Share of the packets that come later.
    """

    delay: float
    late: float


def solve_cells(
    asked: Question,
    rtt: NDArray[np.float64],
    loss: NDArray[np.float64],
    beyond: Beyond = "bound",
    playout: float | Callable[[DelayDistribution], Playout] | None = None,
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
    playout : float or callable, optional
        Time from write to playout [s], or what finds it from the distribution, which takes longer; by default the
        target's limit.
    on_progress : callable, optional
        Called with the round-trip times done, and their number.

    Returns
    -------
    ndarray of CELL, shape (rtt, loss)
        Delays [s] and shares.
    """
    cells = np.zeros((rtt.size, loss.size), CELL)
    limit, share = asked.target.limit, asked.target.quantile
    at = playout if isinstance(playout, float) else limit
    wanted = RequestedFigures(
        np.array([0.5, 0.95, 0.99, share]), np.array([limit, at]), limit if beyond == "bound" else np.inf, share
    )

    def solve_row(row: int) -> None:
        for column in range(loss.size):
            path = Path(float(rtt[row]), float(loss[column]))
            try:
                model = DelayModel(asked.flow, path, asked.stack)
                if callable(playout):
                    distribution = model.distribution_up_to(wanted.limit, wanted.share)
                    found, played = summary(distribution, wanted), playout(distribution)
                else:
                    found = model.summary_up_to(wanted)
                    played = Playout(at, found.late_fractions[1])
            except TooLargeError:
                # What cannot be computed is not promised.
                cells[row, column] = (*[np.nan] * 8, False, False, NOT_COMPUTED)
                continue
            p50, p95, p99, chosen = found.quantiles.tolist()
            late = found.late_fractions[0]
            cells[row, column] = (
                *(p50, p95, p99, chosen, found.mean, late, played.late, played.delay),
                *(found.sustainable, chosen <= limit, _accuracy(found)),
            )

    for_each_line(solve_row, rtt.size, on_progress)
    return cells


def _accuracy(found: DelaySummary) -> int:
    if not found.sustainable:
        return UNSUSTAINABLE
    return LOWER_BOUND if found.truncated_mass >= NEGLIGIBLE_TRUNCATION else EXACT
