"""Who evaluates the runs: threads of this process, or the workers of a Dask cluster, behind one interface.

Hands the missing runs of a sweep to workers, and keeps what comes back.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Event
from typing import Any

from tcpdelay.processors import processors
from tcpdelay.questions.sweep.evaluation import OtherProgramError, Results, Rows, evaluate, program
from tcpdelay.questions.sweep.specification import SweepSpecification
from tcpdelay.scenario.fields import InvalidValueError

MOST_THREADS = 256
CONNECTION_TIME = 10.0
"""Time within which a scheduler has to answer [s]."""


@dataclass(frozen=True)
class Workers:
    """Where runs are evaluated.

    Attributes
    ----------
    executor : Executor
        Takes calls, as in `concurrent.futures`.
    width : callable
        Returns how many calls are worked on at a time, now; 0 while there is nobody.
    lost : tuple of exception types
        What a call raises whose workers died again and again.
    stop : Event or None
        Asks calls under way to return early, where they can be reached.
    """

    executor: Executor
    width: Callable[[], int]
    lost: tuple[type[Exception], ...] = ()
    stop: Event | None = None

    def submit(self, specification: SweepSpecification, start: int, stop: int, budget: float) -> Future[Rows]:
        """Have the runs from `start` to before `stop` evaluated, or as many as take `budget` [s]."""
        stopped = None if self.stop is None else self.stop.is_set
        return self.executor.submit(evaluate, specification, start, stop, program(), budget, stopped)


@contextmanager
def threads(number: int | None = None) -> Iterator[Workers]:
    """Give threads of this process, one for each of its processors unless told otherwise.

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
    >>> with threads(2) as workers:
    ...     workers.width()
    2
    """
    width = processors() if number is None else number
    if not 1 <= width <= MOST_THREADS:
        raise InvalidValueError("workers", number, f"be a whole number from 1 to {MOST_THREADS}")
    stop = Event()
    with ThreadPoolExecutor(width, thread_name_prefix="sweep") as pool:
        try:
            yield Workers(pool, lambda: width, stop=stop)
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """Give the workers of a Dask cluster, all that there are at any time.

    Parameters
    ----------
    address : str
        Address of its scheduler, such as "tcp://127.0.0.1:8786".

    Raises
    ------
    ValueError
        If Dask is not installed, or no scheduler answers there.
    """
    try:
        dask: Any = import_module("dask")
        distributed: Any = import_module("distributed")
    except ImportError:
        raise InvalidValueError(
            "scheduler", address, "be left out where Dask is missing (pip install 'tcpdelay[cluster]')"
        ) from None
    try:
        # Whoever needs longer is not there; by default Dask tries again for half a minute.
        with dask.config.set({"distributed.comm.timeouts.connect": f"{CONNECTION_TIME}s"}):
            # Without a security loader, whose certificates only the client has.
            if not dask.config.get("distributed.client.security-loader", None):
                with ThreadPoolExecutor(1) as elsewhere:
                    # The caller, such as a notebook, may have an event loop of its own.
                    elsewhere.submit(asyncio.run, _reach(distributed, address)).result()
            client = distributed.Client(address, timeout=CONNECTION_TIME, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidValueError(
            "scheduler", address, f"be the address of a running Dask scheduler ({reason})"
        ) from None

    def width() -> int:
        try:
            return sum(client.nthreads().values())
        except Exception:
            # Whatever is wrong with the connection, the calls under way will say so.
            return 0

    try:
        yield Workers(client.get_executor(pure=False), width, (distributed.KilledWorker,))
    finally:
        # Also cancels what is not done.
        client.close(timeout=CONNECTION_TIME)


async def _reach(distributed: Any, address: str) -> None:
    """Raise OSError if nobody speaks as a scheduler does at an address.

    A client that has not found its scheduler would try to close its connection for as long, and print a traceback.
    """
    security = distributed.Security().get_connection_args("client")
    connection = await distributed.comm.connect(address, timeout=CONNECTION_TIME, **security)
    await connection.close()


SHORTEST_BUDGET = 2.0
"""Time that a worker gets for a part at least [s]: what a killed sweep loses."""
LONGEST_SHARE, LONGEST_BUDGET = 1 / 200, 60.0
"""Share of the time so far that a part may take beyond that, and the longest [s]: long sweeps make fewer files."""
STORING_TIME = 0.05
"""Time that storing a part may take [s] for this process to keep up with all workers."""
MOST_RUNS_IN_PART = 20_000
PATIENCE = 0.5
"""Time after which progress is shown even if nothing has come back [s]."""
WIDTH_AGE = 2.0
"""Time for which the number of workers is taken to stay what it was [s]."""
MOST_LOSSES = 3
"""Times that a single run is given out anew after the scheduler has given it up, by default when four workers died."""


class SweepFailedError(Exception):
    """A sweep could not go on; what is finished is kept."""


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Attributes
    ----------
    done, total : int
        Runs evaluated, those of earlier attempts included, and all.
    workers : int
        How many are worked on at a time.
    seconds_left : float
        Estimate of the remaining time [s]; NaN before there is one.
    """

    done: int
    total: int
    workers: int
    seconds_left: float


class Schedule:
    """The runs that are missing, under way, and done.

    Parameters
    ----------
    specification : SweepSpecification
        The sweep.
    results : Results
        Where results go; what is there already is not evaluated again.
    workers : Workers
        Who evaluates.
    store : callable
        Keeps the rows of a part, before they count as done.
    on_progress : callable
        Told of every part, and about twice a second.
    """

    def __init__(
        self,
        specification: SweepSpecification,
        results: Results,
        workers: Workers,
        store: Callable[[Rows], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._specification = specification
        self._results = results
        self._workers = workers
        self._store = store
        self._on_progress = on_progress
        self._missing = deque(results.gaps())
        self._under_way: dict[Future[Rows], tuple[int, int]] = {}
        self._losses: Counter[int] = Counter()
        self._begun = time.monotonic()
        self._done = int(results.done.sum())
        self._first: tuple[float, int] | None = None
        self._width, self._width_read = workers.width(), self._begun

    def run(self) -> None:
        """Evaluate all that is missing.

        Raises
        ------
        SweepFailedError
            If workers die on the same runs again and again, run another program, or cannot be reached any more.
        KeyboardInterrupt
            If interrupted; threads finish the run that they are at, and all finished runs are kept.
        """
        try:
            while self._missing or self._under_way:
                self._give_out()
                finished, _ = wait(self._under_way, PATIENCE, FIRST_COMPLETED)
                for future in finished:
                    self._take_in(future)
                self._show()
        except KeyboardInterrupt:
            self._save_the_rest()
            raise

    def _give_out(self) -> None:
        """Give every worker a part, and one more to go on with."""
        now = time.monotonic()
        if now - self._width_read > WIDTH_AGE:
            self._width, self._width_read = self._workers.width(), now
        width = max(self._width, 1)
        budget = max(SHORTEST_BUDGET, STORING_TIME * width, min((now - self._begun) * LONGEST_SHARE, LONGEST_BUDGET))
        while self._missing and len(self._under_way) < 2 * width:
            start, stop = self._missing.popleft()
            left = self._results.done.size - self._done
            # Towards the end parts become smaller, so that all workers end at about the same time.
            end = min(stop, start + min(MOST_RUNS_IN_PART, 1 + left // (4 * width)))
            if end < stop:
                self._missing.appendleft((end, stop))
            self._under_way[self._workers.submit(self._specification, start, end, budget)] = (start, end)

    def _take_in(self, future: Future[Rows]) -> None:
        start, stop = self._under_way[future]
        try:
            rows = future.result()
        except self._workers.lost:
            del self._under_way[future]
            self._split(start, stop)
            return
        except CancelledError:
            raise SweepFailedError("the scheduler is gone") from None
        except OtherProgramError as error:
            raise SweepFailedError(f"{error}; install the same on all machines") from None
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise SweepFailedError(f"a worker failed: {type(error).__name__}: {reason}") from error
        self._store(rows)
        self._results.add(rows)
        self._done += rows.values.size
        # Before the first part comes back, kernels are loaded or compiled: that says nothing about the rest.
        self._first = self._first or (time.monotonic(), self._done)
        # Only now: an interrupt before it has the part stored once more.
        del self._under_way[future]
        if rows.stop < stop:
            self._missing.appendleft((rows.stop, stop))

    def _split(self, start: int, stop: int) -> None:
        """Give runs out anew whose workers died, by halves, so that at last one run is left to blame."""
        if stop - start > 1:
            middle = (start + stop) // 2
            self._missing.extendleft([(middle, stop), (start, middle)])
            return
        self._losses[start] += 1
        if self._losses[start] > MOST_LOSSES:
            raise SweepFailedError(f"run {start} ended the workers that tried it, again and again")
        self._missing.appendleft((start, stop))

    def _save_the_rest(self) -> None:
        """Keep what is done, and of what threads are at, all finished runs."""
        if self._workers.stop is not None:
            self._workers.stop.set()
            for future in self._under_way:
                future.cancel()
            wait(self._under_way)
        for future in [future for future in self._under_way if future.done() and not future.cancelled()]:
            if future.exception() is None:
                self._take_in(future)

    def _show(self) -> None:
        total, seconds_left = self._results.done.size, math.nan
        if self._first is not None and self._done > self._first[1]:
            begun, done = self._first
            seconds_left = (time.monotonic() - begun) / (self._done - done) * (total - self._done)
        self._on_progress(Progress(self._done, total, self._width, seconds_left))
