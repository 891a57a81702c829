"""Who works out the points of a grid: threads of this process, other processes, or the workers of a Dask cluster.

One schedule serves all three. It hands out ranges of points, takes results back in any order, gives points out again
whose workers died, and reports progress. Points that are known already, as from a checkpoint, are left out.
"""

from __future__ import annotations

import asyncio
import math
import os
import platform
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures import Executor as Pool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module, metadata
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpdelay.scenario.fields import InvalidValueError

PACKAGE = Path(__file__).parents[1]
MOST_THREADS = 256
MOST_USEFUL_THREADS = 4
"""Threads beyond which small chains wait for Python's lock: only the kernels run without it."""
CONNECTION_TIME = 10.0
"""Time within which a Dask scheduler has to answer [s]."""
SHORTEST_BUDGET = 2.0
"""Shortest time that a worker gets for a part [s]: the work that a killed sweep loses."""
LONGEST_SHARE, LONGEST_BUDGET = 1 / 200, 60.0
"""Part of the time so far that a part may take beyond that, and its longest time [s]: long sweeps write fewer files."""
STORING_TIME = 0.05
"""Time that storing a part may take [s] for this process to keep up with all workers."""
MOST_RUNS_IN_PART = 20_000
REPORTING_INTERVAL = 0.5
"""Time after which progress is reported even if no part has come back [s]."""
WIDTH_AGE = 2.0
"""Time after which the number of workers is read again [s]."""
MOST_LOSSES = 3
"""Times that a single run is given out again after Dask has given it up, by default when four workers died."""


def processors() -> int:
    """Return the number of processors that this process may use.

    Examples
    --------
    >>> processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def program() -> str:
    """Return what a result depends on beside its specification: this package, byte for byte, and what compiles it.

    Examples
    --------
    >>> program() == program()
    True
    """
    sources = sha256()
    for file in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.glob("models/data/*.csv"))):
        sources.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    packages = ("tcpdelay", "numba", "numpy", "scipy")
    versions = [f"{package} {metadata.version(package)}" for package in packages]
    return ", ".join([f"{versions[0]} ({sources.hexdigest()[:12]})", *versions[1:], platform.machine()])


class OtherProgramError(Exception):
    """A worker runs another version of this program than the process that asks it."""


class SweepFailedError(Exception):
    """A sweep could not go on; finished runs are kept."""


class Work(Protocol):
    """Runs that are numbered from 0 on and do not depend on one another."""

    @property
    def size(self) -> int:
        """Number of runs."""
        ...

    @property
    def row_type(self) -> np.dtype[np.void]:
        """Type of the results of one run."""
        ...

    def fill(self, row: Any, number: int) -> str:
        """Write the results of one run to `row`; return why there are none, or an empty text."""
        ...


@dataclass(frozen=True)
class Rows:
    """Results of consecutive runs.

    Attributes
    ----------
    start : int
        Number of the first run.
    values : structured ndarray, shape (n,)
        Results; NaN and False for refused runs.
    refusals : ndarray of str, shape (n,)
        Why a run was refused; empty if it was not.
    """

    start: int
    values: NDArray[np.void]
    refusals: NDArray[np.str_]

    @property
    def stop(self) -> int:
        """Number of the run after the last one."""
        return self.start + self.values.size


class Results:
    """Results by the number of the run, filled in in any order.

    Attributes
    ----------
    values : structured ndarray, shape (runs,)
        Results of the type that the work gives.
    done : ndarray of bool, shape (runs,)
        Which runs are finished.
    refusals : dict
        Why runs were refused, by number.

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
        """Fill in the results of some runs."""
        self.values[rows.start : rows.stop] = rows.values
        self.done[rows.start : rows.stop] = True
        for place in np.flatnonzero(rows.refusals != ""):
            self.refusals[rows.start + int(place)] = str(rows.refusals[place])

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of runs that are missing: the first run, and the run after the last one."""
        edges = np.flatnonzero(np.diff(np.concatenate([[True], self.done, [True]]).astype(np.int8)))
        yield from ((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


def blank_row(row: Any) -> None:
    """Set a row to NaN and False."""
    for name in row.dtype.names:
        row[name] = np.nan if row.dtype[name].base.kind == "f" else 0


def work_through(
    work: Work,
    start: int,
    stop: int,
    expected_program: str | None = None,
    budget: float = math.inf,
    stopped: Callable[[], bool] | None = None,
) -> Rows:
    """Work out the runs from `start` to before `stop`, or as many of them as there is time for.

    Parameters
    ----------
    work : Work
        The runs.
    start, stop : int
        Numbers of runs.
    expected_program : str, optional
        What `program` must return here; by default it is not compared.
    budget : float
        Time [s] after which no further run is begun.
    stopped : callable, optional
        Asked before every run but the first whether to stop.

    Returns
    -------
    Rows
        Results of at least one run.

    Raises
    ------
    OtherProgramError
        If this process runs another program.
    """
    if expected_program is not None and program() != expected_program:
        raise OtherProgramError(f"a worker runs {program()}, but the sweep {expected_program}")
    deadline = time.monotonic() + budget
    values = np.zeros(stop - start, work.row_type)
    refusals: list[str] = []
    for run in range(start, stop):
        if run > start and (time.monotonic() > deadline or (stopped is not None and stopped())):
            break
        refusals.append(work.fill(values[run - start], run))
    return Rows(start, values[: len(refusals)], np.array(refusals, np.str_))


@dataclass(frozen=True)
class Executor:
    """Workers behind one interface.

    Attributes
    ----------
    pool : concurrent.futures.Executor
        Takes calls.
    width : callable
        Returns how many calls are worked on at the same time, now; 0 while there is no worker.
    lost : tuple of exception types
        What a call raises whose workers died again and again.
    stop : Event or None
        Asks calls under way to return early; None if they cannot be reached.
    remote : bool
        Whether workers may run another version of the program, and their failures end the sweep with one line.
    compiles_first : bool
        Whether the first run is done in this process, so that workers find compiled kernels.
    """

    pool: Pool
    width: Callable[[], int]
    lost: tuple[type[Exception], ...] = ()
    stop: Event | None = None
    remote: bool = False
    compiles_first: bool = False

    def submit(self, work: Work, start: int, stop: int, budget: float) -> Future[Rows]:
        """Have the runs from `start` to before `stop` worked out, or as many as take `budget` [s]."""
        stopped = None if self.stop is None else self.stop.is_set
        expected = program() if self.remote else None
        return self.pool.submit(work_through, work, start, stop, expected, budget, stopped)


@contextmanager
def threads(number: int | None = None) -> Iterator[Executor]:
    """Provide threads of this process, by default one for each of its processors.

    The kernels run without Python's lock. Processes would take a second each to start, and outlive a killed parent.

    Parameters
    ----------
    number : int, optional
        How many, 1 to 256.

    Raises
    ------
    ValueError
        If the number lies outside its range.

    Examples
    --------
    >>> with threads(2) as executor:
    ...     executor.width()
    2
    """
    width = processors() if number is None else number
    if not 1 <= width <= MOST_THREADS:
        raise InvalidValueError("workers", number, f"be a whole number from 1 to {MOST_THREADS}")
    stop = Event()
    with ThreadPoolExecutor(width, thread_name_prefix="sweep") as pool:
        try:
            yield Executor(pool, lambda: width, stop=stop)
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def processes(number: int) -> Iterator[Executor]:
    """Provide several processes, for work of which much is done in Python; one process is a thread of this one.

    A script that asks for several has to guard what it starts (``if __name__ == "__main__"``), as the
    `multiprocessing` module says.

    Parameters
    ----------
    number : int
        How many, from 1 on.

    Raises
    ------
    ValueError
        If the number is below 1.
    """
    if number < 1:
        raise InvalidValueError("processes", number, "be 1 or more")
    if number == 1:
        with threads(1) as executor:
            yield executor
        return
    with ProcessPoolExecutor(number, mp_context=get_context("spawn"), initializer=_end_silently) as pool:
        try:
            yield Executor(pool, lambda: number, compiles_first=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_silently() -> None:
    """Let an interrupt, which reaches all processes of a terminal, end this one without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Provide the workers of a Dask cluster, all that there are at any time.

    Parameters
    ----------
    address : str
        Address of its scheduler, such as "tcp://127.0.0.1:8786".

    Raises
    ------
    ValueError
        If Dask is not installed, or no scheduler answers at the address.
    """
    try:
        dask: Any = import_module("dask")
        distributed: Any = import_module("distributed")
    except ImportError:
        raise InvalidValueError(
            "scheduler", address, "be left out where Dask is missing (pip install 'tcpdelay[cluster]')"
        ) from None
    try:
        # By default Dask would try for half a minute.
        with dask.config.set({"distributed.comm.timeouts.connect": f"{CONNECTION_TIME}s"}):
            # A security loader's certificates are known to the client alone.
            if not dask.config.get("distributed.client.security-loader", None):
                with ThreadPoolExecutor(1) as elsewhere:
                    # The caller, such as a notebook, may have an event loop of its own.
                    elsewhere.submit(asyncio.run, _reach(distributed, address)).result()
            client = distributed.Client(address, timeout=CONNECTION_TIME, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        allowed = f"be the address of a running Dask scheduler ({reason})"
        raise InvalidValueError("scheduler", address, allowed) from None

    def width() -> int:
        try:
            return sum(client.nthreads().values())
        except Exception:
            # If the connection is broken, the calls under way report it.
            return 0

    try:
        yield Executor(client.get_executor(pure=False), width, (distributed.KilledWorker,), remote=True)
    finally:
        # This also cancels unfinished calls.
        client.close(timeout=CONNECTION_TIME)


async def _reach(distributed: Any, address: str) -> None:
    """Raise OSError if no Dask scheduler answers at an address.

    A client that has not found its scheduler would try to close its connection for as long, and print a traceback.
    """
    security = distributed.Security().get_connection_args("client")
    connection = await distributed.comm.connect(address, timeout=CONNECTION_TIME, **security)
    await connection.close()


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Attributes
    ----------
    done, total : int
        Finished runs, including those of earlier attempts, and all runs.
    workers : int
        How many runs are worked on at the same time.
    seconds_left : float
        Estimate of the remaining time [s]; NaN until there is one.
    """

    done: int
    total: int
    workers: int
    seconds_left: float


class Schedule:
    """The runs that are missing, under way, and done.

    Parameters
    ----------
    work : Work
        The runs.
    results : Results
        Where results go; runs that are done already are left out.
    executor : Executor
        The workers.
    store : callable, optional
        Keeps the rows of a part before they count as done.
    on_progress : callable, optional
        Called after every part, and about twice a second.
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
        """Work out all runs that are missing.

        Raises
        ------
        SweepFailedError
            If workers die on the same runs again and again, run another program, or cannot be reached any more.
        KeyboardInterrupt
            If interrupted; threads finish their current run, and all finished runs are kept.
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
        """Give every worker a part, and a second one so that it need not wait."""
        now = time.monotonic()
        if now - self._width_read > WIDTH_AGE:
            self._width, self._width_read = self._executor.width(), now
        width = max(self._width, 1)
        budget = max(SHORTEST_BUDGET, STORING_TIME * width, min((now - self._begun) * LONGEST_SHARE, LONGEST_BUDGET))
        while self._missing and len(self._under_way) < 2 * width:
            start, stop = self._missing.popleft()
            left = self._results.done.size - self._done
            # Towards the end parts become smaller, so that all workers end at about the same time.
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
            raise SweepFailedError("the scheduler is gone") from None
        except OtherProgramError as error:
            raise SweepFailedError(f"{error}; install the same on all machines") from None
        except Exception as error:
            if not self._executor.remote:
                raise
            reason = str(error).partition("\n")[0]
            raise SweepFailedError(f"a worker failed: {type(error).__name__}: {reason}") from error
        self._keep(rows, stop)
        # Only now: after an interrupt before this line the part is stored once more.
        del self._under_way[future]

    def _keep(self, rows: Rows, stop: int) -> None:
        """Keep the rows of a part that was to end before run `stop`."""
        if self._store is not None:
            self._store(rows)
        self._results.add(rows)
        self._done += rows.values.size
        # Before the first part is finished, kernels are loaded or compiled: that time is no measure of the rest.
        self._first = self._first or (time.monotonic(), self._done)
        if rows.stop < stop:
            self._missing.appendleft((rows.stop, stop))

    def _split(self, start: int, stop: int) -> None:
        """Give out runs again whose workers died, by halves, until the run to blame is alone in its part."""
        if stop - start > 1:
            middle = (start + stop) // 2
            self._missing.extendleft([(middle, stop), (start, middle)])
            return
        self._losses[start] += 1
        if self._losses[start] > MOST_LOSSES:
            raise SweepFailedError(f"run {start} ended the workers that tried it, again and again")
        self._missing.appendleft((start, stop))

    def _keep_finished_runs(self) -> None:
        """Keep the finished parts, and all finished runs of the parts that threads work on."""
        if self._executor.stop is not None:
            self._executor.stop.set()
            for future in self._under_way:
                future.cancel()
            wait(self._under_way)
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


def work_out(
    work: Work, executor: Executor | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Results:
    """Work out all runs, by default in up to four threads of this process.

    Always in other threads: Numba does not survive an interrupt while it unpacks the arguments of a kernel.

    Parameters
    ----------
    work : Work
        The runs.
    executor : Executor, optional
        The workers.
    on_progress : callable, optional
        Called with the number of runs done, and of all, whenever the former has grown.

    Returns
    -------
    Results
        Results of all runs.
    """
    results = Results(work.size, work.row_type)
    shown = 0

    def report(progress: Progress) -> None:
        nonlocal shown
        if on_progress is not None and progress.done > shown:
            shown = progress.done
            on_progress(progress.done, progress.total)

    if executor is not None:
        Schedule(work, results, executor, on_progress=report).run()
        return results
    with threads(max(min(processors(), MOST_USEFUL_THREADS, work.size), 1)) as own:
        Schedule(work, results, own, on_progress=report).run()
    return results
