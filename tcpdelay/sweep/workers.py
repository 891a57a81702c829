"""Who evaluates the runs: threads of this process, or the workers of a Dask cluster, behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import Event
from typing import Any

from tcpdelay.processors import processors
from tcpdelay.sweep.evaluation import Rows, evaluate, program
from tcpdelay.sweep.specification import SweepSpecification

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
        raise ValueError(f"workers must be a whole number from 1 to {MOST_THREADS}, got {number!r}")
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
        raise ValueError(
            f"scheduler must be left out where Dask is missing (pip install 'tcpdelay[cluster]'), got {address!r}"
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
        raise ValueError(
            f"scheduler must be the address of a running Dask scheduler, got {address!r}: {reason}"
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
