"""The schedule of a grid's runs, and its workers: threads, other processes, or a Dask cluster."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
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

from tcpdelay.budget import StoppedError, answering_until
from tcpdelay.declare import InvalidValueError, is_number

PACKAGE = Path(__file__).parents[1]
MOST_THREADS = 256
MOST_USEFUL_THREADS = 4
"""With more threads than this, small chains wait for Python's lock: only the kernels run without it."""
CONNECTION_TIME = 10.0
"""Time within which a Dask scheduler must answer [s]."""


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def program() -> str:
    """Return the program that computes results: a digest of this package, and versions of the libraries and machine."""
    sources = sha256()
    for file in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.glob("accuracy/data/*.csv"))):
        sources.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    packages = ("tcpdelay", "numba", "numpy", "scipy")
    versions = [f"{package} {metadata.version(package)}" for package in packages]
    return ", ".join([f"{versions[0]} ({sources.hexdigest()[:12]})", *versions[1:], platform.machine()])


class OtherProgramError(Exception):
    """A worker runs another version of this program than the process that started the sweep."""


class SweepFailedError(Exception):
    """A sweep cannot continue; finished runs are kept."""


class Work(Protocol):
    """Independent runs, numbered from 0."""

    @property
    def size(self) -> int:
        """Number of runs."""
        ...

    @property
    def row_type(self) -> np.dtype[np.void]:
        """Type of the results of one run."""
        ...

    def fill(self, row: Any, number: int) -> str:
        """Write the results of one run to `row`; return why the run is refused, or an empty text."""
        ...


@dataclass(frozen=True)
class Rows:
    """Results of consecutive runs."""

    start: int  # Number of the first run
    values: NDArray[np.void]  # Results; NaN and False for refused runs
    refusals: NDArray[np.str_]  # The reason why a run was refused; empty for all other runs

    @property
    def stop(self) -> int:
        """Number of the run after the last one."""
        return self.start + self.values.size


def work_through(
    work: Work,
    start: int,
    stop: int,
    expected_program: str | None = None,
    budget: float = math.inf,
    stopped: Callable[[], bool] | None = None,
) -> Rows:
    """Do the runs from `start` to before `stop`, or as many as the time allows."""
    if expected_program is not None and program() != expected_program:
        raise OtherProgramError(f"a worker runs {program()}, but the sweep {expected_program}")
    deadline = time.monotonic() + budget
    values = np.zeros(stop - start, work.row_type)
    refusals: list[str] = []
    with answering_until(stopped):
        for run in range(start, stop):
            if run > start and (time.monotonic() > deadline or (stopped is not None and stopped())):
                break
            try:
                refusals.append(work.fill(values[run - start], run))
            except StoppedError:
                if run == start:
                    raise
                break
    return Rows(start, values[: len(refusals)], np.array(refusals, np.str_))


@dataclass(frozen=True)
class Executor:
    """One interface to all kinds of workers."""

    pool: Pool  # Executes calls
    width: Callable[[], int]  # Returns the number of calls that run at the same time; 0 while there is no worker
    lost: tuple[type[Exception], ...] = ()  # Exceptions that a call raises if its workers died repeatedly
    stop: Event | None = None  # If set, running calls return early; None if workers cannot see it
    # Whether workers may run another version of the program. Their failures end the sweep with a message of one line.
    remote: bool = False
    compiles_first: bool = False  # Whether this process does the first run, so that workers find compiled kernels

    def submit(self, work: Work, start: int, stop: int, budget: float) -> Future[Rows]:
        """Let a worker do the runs from `start` to before `stop`, or as many as `budget` allows [s]."""
        stopped = None if self.stop is None else self.stop.is_set
        expected = program() if self.remote else None
        return self.pool.submit(work_through, work, start, stop, expected, budget, stopped)


@contextmanager
def threads(number: int | None = None) -> Iterator[Executor]:
    """Provide threads of this process, by default one for each of its processors.

    The kernels run without Python's lock. A process would take a second to start, and would outlive a killed parent.
    """
    width = processors() if number is None else number
    if not is_number(width) or not 1 <= width <= MOST_THREADS or width != int(width):
        raise InvalidValueError("workers", number, f"be a whole number from 1 to {MOST_THREADS}")
    stop = Event()
    # As a context manager, the pool would wait for all of its threads.
    pool = ThreadPoolExecutor(int(width), thread_name_prefix="sweep")
    try:
        yield Executor(pool, lambda: width, stop=stop)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def processes(number: int) -> Iterator[Executor]:
    """Provide several processes, for runs that spend much time in Python; with 1, provide a thread of this process.

    A script that starts several processes needs the guard ``if __name__ == "__main__"``, as the documentation of
    `multiprocessing` explains.
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
    """End this process without a traceback on an interrupt, which reaches all processes of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Provide all workers that a Dask cluster has at any time."""
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
            # Only the client knows the certificates of a security loader.
            if not dask.config.get("distributed.client.security-loader", None):
                with ThreadPoolExecutor(1) as elsewhere:
                    # This thread may already run an event loop, for example in a notebook.
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
            # If the connection is broken, the running calls report it.
            return 0

    try:
        yield Executor(client.get_executor(pure=False), width, (distributed.KilledWorker,), remote=True)
    finally:
        # This also cancels unfinished calls.
        client.close(timeout=CONNECTION_TIME)


async def _reach(distributed: Any, address: str) -> None:
    """Raise OSError if no Dask scheduler answers at an address.

    A client that finds no scheduler would spend the same time again to close its connection, and print a traceback.
    """
    security = distributed.Security().get_connection_args("client")
    connection = await distributed.comm.connect(address, timeout=CONNECTION_TIME, **security)
    await connection.close()


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep.

    Attributes
    ----------
    done, total : int
        Number of finished runs, including runs of earlier attempts, and number of all runs.
    workers : int
        Number of runs that are done at the same time.
    seconds_left : float
        Estimate of the remaining time [s]; NaN until there is an estimate.
    """

    done: int
    total: int
    workers: int
    seconds_left: float


def counts_of(on_progress: Callable[[int, int], None] | None) -> Callable[[Progress], None]:
    """Return a function that gives the numbers of finished and of all runs to another one, if there is one."""

    def report(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(progress.done, progress.total)

    return report


# The schedule of a grid's runs, whoever executes them.
#
# The schedule gives ranges of runs to workers, takes results back in any order, repeats runs whose workers died, and
# reports progress. Runs that are known already, for example from a checkpoint, are left out.

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
    """Results by the number of the run, which arrive in any order."""

    def __init__(self, size: int, row_type: np.dtype[np.void]) -> None:
        self.values: NDArray[np.void] = np.zeros(size, row_type)  # Results; the type is `Work.row_type`
        self.done: NDArray[np.bool_] = np.zeros(size, np.bool_)  # Which runs are finished
        self.refusals: dict[int, str] = {}  # Reasons why runs were refused, by the number of the run

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
    """The runs that are missing, running, and done."""

    def __init__(
        self,
        work: Work,
        results: Results,  # Receives the results; runs that are done already are left out
        executor: Executor,
        # Called with the rows of a part, to keep them before they count as done.
        store: Callable[[Rows], None] | None = None,
        # Called with a `Progress` after every part, and about twice a second.
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
        """Do all missing runs."""
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
