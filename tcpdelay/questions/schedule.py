"""The schedule of a grid's runs, whoever executes them.

The schedule gives ranges of runs to workers, takes results back in any order, repeats runs whose workers died, and
reports progress. Runs that are known already, for example from a checkpoint, are left out.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait

import numpy as np
from numpy.typing import NDArray

from tcpdelay.questions.execution import (
    MOST_USEFUL_THREADS,
    Executor,
    OtherProgramError,
    Progress,
    Rows,
    SweepFailedError,
    Work,
    processors,
    threads,
    work_through,
)

SHORTEST_BUDGET = 2.0
"""Shortest time of a part [s]; a killed sweep loses about as much work."""
LONGEST_SHARE, LONGEST_BUDGET = 1 / 200, 60.0
"""A part may take this share of the elapsed time, and at most this time [s], so that long sweeps write fewer files."""
STORING_TIME = 0.05
"""Time to store a part [s]. Parts take so long that this process keeps up with all workers."""
MOST_RUNS_IN_PART = 20_000
REPORTING_INTERVAL = 0.5
"""Time after which progress is reported even if no part is finished [s]."""
WIDTH_AGE = 2.0
"""Time after which the number of workers is read again [s]."""
LONGEST_FAREWELL = 1.0
"""Time for which an interrupted process waits for its threads [s]: compiling and some calls of kernels take longer."""
MOST_LOSSES = 3
"""Number of times that a single run is repeated after Dask has given it up, by default because four workers died."""


class Results:
    """Results by the number of the run, which arrive in any order.

    Attributes
    ----------
    values : structured ndarray, shape (runs,)
        Results; the type is `Work.row_type`.
    done : ndarray of bool, shape (runs,)
        Which runs are finished.
    refusals : dict
        Reasons why runs were refused, by the number of the run.

    Examples
    --------
    >>> results = Results(3, np.dtype([("mean", float)]))
    >>> results.add(Rows(1, results.values[1:2], np.array([""])))
    >>> list(results.gaps())
    [(0, 1), (2, 3)]
    """

    def __init__(self, size: int, row_type: np.dtype[np.void]) -> None:
        self.values: NDArray[np.void] = np.zeros(size, row_type)
        self.done: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.refusals: dict[int, str] = {}

    def add(self, rows: Rows) -> None:
        """Add the results of some runs."""
        self.values[rows.start : rows.stop] = rows.values
        self.done[rows.start : rows.stop] = True
        for place in np.flatnonzero(rows.refusals != ""):
            self.refusals[rows.start + int(place)] = str(rows.refusals[place])

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of missing runs: the first run, and the run after the last one."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.done, [True]]).astype(np.int8)))
        yield from ((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


class Schedule:
    """The runs that are missing, running, and done.

    Parameters
    ----------
    work : Work
        The runs.
    results : Results
        Receives the results; runs that are done already are left out.
    executor : Executor
        The workers.
    store : callable, optional
        Called with the rows of a part, to keep them before they count as done.
    on_progress : callable, optional
        Called with a `Progress` after every part, and about twice a second.
    """

    def __init__(
        self,
        work: Work,
        results: Results,
        executor: Executor,
        store: Callable[[Rows], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._work = work
        self._results = results
        self._executor = executor
        self._store = store
        self._on_progress = on_progress
        self._missing = deque(results.gaps())
        self._under_way: dict[Future[Rows], tuple[int, int]] = {}
        self._losses: Counter[int] = Counter()
        self._begun = time.monotonic()
        self._done = int(results.done.sum())
        self._first: tuple[float, int] | None = None
        self._width, self._width_read = executor.width(), self._begun

    def run(self) -> None:
        """Do all missing runs.

        Raises
        ------
        SweepFailedError
            If workers die repeatedly on the same run, run another program, or can no longer be reached.
        KeyboardInterrupt
            If interrupted; threads give up their current run, and all finished runs are kept.
        """
        try:
            if self._executor.compiles_first and self._missing:
                start, stop = self._missing.popleft()
                self._keep(work_through(self._work, start, start + 1), stop)
            while self._missing or self._under_way:
                self._give_out()
                finished, _ = wait(self._under_way, REPORTING_INTERVAL, FIRST_COMPLETED)
                for future in finished:
                    self._take_in(future)
                    self._report()
                if not finished:
                    self._report()
        except KeyboardInterrupt:
            self._keep_finished_runs()
            raise

    def _give_out(self) -> None:
        """Give every worker a part, and a second part so that it does not wait."""
        now = time.monotonic()
        if now - self._width_read > WIDTH_AGE:
            self._width, self._width_read = self._executor.width(), now
        width = max(self._width, 1)
        budget = max(SHORTEST_BUDGET, STORING_TIME * width, min((now - self._begun) * LONGEST_SHARE, LONGEST_BUDGET))
        while self._missing and len(self._under_way) < 2 * width:
            start, stop = self._missing.popleft()
            left = self._results.done.size - self._done
            # Parts become smaller towards the end, so that all workers finish at about the same time.
            end = min(stop, start + min(MOST_RUNS_IN_PART, 1 + left // (4 * width)))
            if end < stop:
                self._missing.appendleft((end, stop))
            self._under_way[self._executor.submit(self._work, start, end, budget)] = (start, end)

    def _take_in(self, future: Future[Rows]) -> None:
        start, stop = self._under_way[future]
        try:
            rows = future.result()
        except self._executor.lost:
            del self._under_way[future]
            self._split(start, stop)
            return
        except CancelledError:
            raise SweepFailedError("the connection to the scheduler is lost") from None
        except OtherProgramError as error:
            raise SweepFailedError(f"{error}; install the same version on all machines") from None
        except Exception as error:
            if not self._executor.remote:
                raise
            reason = str(error).partition("\n")[0]
            raise SweepFailedError(f"a worker failed: {type(error).__name__}: {reason}") from error
        self._keep(rows, stop)
        # Last, so that after an interrupt before this line the part is stored once more.
        del self._under_way[future]

    def _keep(self, rows: Rows, stop: int) -> None:
        """Keep the rows of a part whose last run was to be the run before `stop`."""
        if self._store is not None:
            self._store(rows)
        self._results.add(rows)
        self._done += rows.values.size
        # The first part loads or compiles kernels, so the time left is estimated from the later parts.
        self._first = self._first or (time.monotonic(), self._done)
        if rows.stop < stop:
            self._missing.appendleft((rows.stop, stop))

    def _split(self, start: int, stop: int) -> None:
        """Repeat runs whose workers died, in halves, until the run that kills them is alone in its part."""
        if stop - start > 1:
            middle = (start + stop) // 2
            self._missing.extendleft([(middle, stop), (start, middle)])
            return
        self._losses[start] += 1
        if self._losses[start] > MOST_LOSSES:
            raise SweepFailedError(f"run {start} repeatedly ended its workers")
        self._missing.appendleft((start, stop))

    def _keep_finished_runs(self) -> None:
        """Keep the finished parts, and the finished runs of parts in threads."""
        if self._executor.stop is not None:
            self._executor.stop.set()
            for future in self._under_way:
                future.cancel()
            wait(self._under_way, LONGEST_FAREWELL)
        for future in [future for future in self._under_way if future.done() and not future.cancelled()]:
            if future.exception() is None:
                self._take_in(future)

    def _report(self) -> None:
        if self._on_progress is None:
            return
        total, seconds_left = self._results.done.size, math.nan
        if self._first is not None and self._done > self._first[1]:
            begun, done = self._first
            seconds_left = (time.monotonic() - begun) / (self._done - done) * (total - self._done)
        self._on_progress(Progress(self._done, total, self._width, seconds_left))


def work_out(work: Work, on_progress: Callable[[int, int], None] | None = None) -> Results:
    """Do all runs in up to four threads of this process.

    The main thread only waits: Numba does not survive an interrupt while it unpacks the arguments of a kernel.

    Parameters
    ----------
    work : Work
        The runs.
    on_progress : callable, optional
        Called with the number of runs done, and of all runs, whenever more runs are done.

    Returns
    -------
    Results
        Results of all runs.
    """
    results = Results(work.size, work.row_type)
    reported = 0

    def report(progress: Progress) -> None:
        nonlocal reported
        if on_progress is not None and progress.done > reported:
            reported = progress.done
            on_progress(progress.done, progress.total)

    with threads(max(min(processors(), MOST_USEFUL_THREADS, work.size), 1)) as executor:
        Schedule(work, results, executor, on_progress=report).run()
    return results
