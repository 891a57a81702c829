"""Workers for the runs of a grid: threads of this process, other processes, or the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
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

from tcpdelay.models.stopping import StoppedError, answering_until
from tcpdelay.scenario.fields import InvalidValueError

PACKAGE = Path(__file__).parents[1]
MOST_THREADS = 256
MOST_USEFUL_THREADS = 4
"""With more threads than this, small chains wait for Python's lock: only the kernels run without it."""
CONNECTION_TIME = 10.0
"""Time within which a Dask scheduler must answer [s]."""


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
    """Return the program that computes results: a digest of this package, and versions of the libraries and machine.

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
    """Results of consecutive runs.

    Attributes
    ----------
    start : int
        Number of the first run.
    values : structured ndarray, shape (n,)
        Results; NaN and False for refused runs.
    refusals : ndarray of str, shape (n,)
        The reason why a run was refused; empty for all other runs.
    """

    start: int
    values: NDArray[np.void]
    refusals: NDArray[np.str_]

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
    """Do the runs from `start` to before `stop`, or as many as the time allows.

    Parameters
    ----------
    work : Work
        The runs.
    start, stop : int
        Number of the first run, and of the run after the last one.
    expected_program : str, optional
        The value that `program` must return in this process; by default it is not compared.
    budget : float
        Time after which no further run begins [s].
    stopped : callable, optional
        Called before every run but the first, and often within a run; returns whether to stop. A run that is under way
        is given up.

    Returns
    -------
    Rows
        Results of at least one run.

    Raises
    ------
    OtherProgramError
        If this process runs another program.
    StoppedError
        If the first run is given up.
    """
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
    """One interface to all kinds of workers.

    Attributes
    ----------
    pool : concurrent.futures.Executor
        Executes calls.
    width : callable
        Returns the number of calls that run at the same time; 0 while there is no worker.
    lost : tuple of exception types
        Exceptions that a call raises if its workers died repeatedly.
    stop : Event or None
        If set, running calls return early; None if workers cannot see it.
    remote : bool
        Whether workers may run another version of the program. Their failures end the sweep with a message of one line.
    compiles_first : bool
        Whether this process does the first run, so that workers find compiled kernels.
    """

    pool: Pool
    width: Callable[[], int]
    lost: tuple[type[Exception], ...] = ()
    stop: Event | None = None
    remote: bool = False
    compiles_first: bool = False

    def submit(self, work: Work, start: int, stop: int, budget: float) -> Future[Rows]:
        """Let a worker do the runs from `start` to before `stop`, or as many as `budget` allows [s]."""
        stopped = None if self.stop is None else self.stop.is_set
        expected = program() if self.remote else None
        return self.pool.submit(work_through, work, start, stop, expected, budget, stopped)


@contextmanager
def threads(number: int | None = None) -> Iterator[Executor]:
    """Provide threads of this process, by default one for each of its processors.

    The kernels run without Python's lock. A process would take a second to start, and would outlive a killed parent.

    Parameters
    ----------
    number : int, optional
        Number of threads, 1 to 256.

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
    # As a context manager, the pool would wait for all of its threads.
    pool = ThreadPoolExecutor(width, thread_name_prefix="sweep")
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

    Parameters
    ----------
    number : int
        Number of processes, 1 or more.

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
    """End this process without a traceback on an interrupt, which reaches all processes of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Provide all workers that a Dask cluster has at any time.

    Parameters
    ----------
    address : str
        Address of the scheduler, such as "tcp://127.0.0.1:8786".

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
