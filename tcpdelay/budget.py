"""The time and the memory that one answer may take, and giving it up when nobody waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tcpdelay.declare import in_bytes, in_seconds

# Giving up an answer that nobody waits for any more.
#
# Only the main thread of a process gets a KeyboardInterrupt. Models in other threads ask between two calls of a kernel.


class StoppedError(Exception):
    """An answer was given up before it was found."""


_stopped: ContextVar[Callable[[], bool] | None] = ContextVar("stopped", default=None)


@contextmanager
def answering_until(stopped: Callable[[], bool] | None) -> Iterator[None]:
    """Let models give up their answers in this thread once `stopped` returns True."""
    token = _stopped.set(stopped)
    try:
        yield
    finally:
        _stopped.reset(token)


def give_up_if_stopped() -> None:
    """Raise StoppedError if the answer is to be given up.

    Examples
    --------
    >>> give_up_if_stopped()
    """
    stopped = _stopped.get()
    if stopped is not None and stopped():
        raise StoppedError("the answer was given up")


# The time and the memory that one answer may take, counted in estimates and not by a clock.
#
# The same scenario therefore has the same answer on every machine, at any load, and while kernels are compiled. Only a
# simulation on a machine that is many times slower than the estimate is ended by the clock, and says so.

MOST_SECONDS = 10.0
"""Processor time that an answer may take by default [s]."""
MOST_MEMORY = 2**30
"""Memory that an answer may take by default [bytes]."""
SECONDS_PER_UPDATE = 2e-9
"""Time in which the solver adds one number to another [s], roughly."""
SECONDS_PER_WORK = 50e-9
"""Time of a unit of a simulation's work [s], roughly: an event of TCP without a segment.

The units of events, of segments and of packets of QUIC were fitted to the processor times of random simulations that
took over 20 ms. Nine of ten estimates were 0.5 to 2.4 times the time of the kernels.
"""
WORK_PER_CALL = 100_000
"""Most work of one call of a simulator's kernel: 5 ms, after which an interrupt is noticed."""
LAST_RESORT = 20.0
"""Multiple of the estimated time after which the clock ends a simulation."""
SLICE = 0.5
"""Estimated time of one call of a kernel [s], after which an interrupt is noticed."""
TIME = in_seconds("Processor time of an answer, by an estimate.", 0.01, 1e6)
"""Declaration of the time that an answer may be allowed."""
MEMORY = in_bytes(
    "Memory of the chain of an answer.", 2**20, 2**50, example="500MB", allowed="lie between 1 MiB and 1 PiB (in bytes)"
)
"""Declaration of the memory that an answer may be allowed."""


class TooLargeError(ValueError):
    """A scenario needs more time or memory than its answer may take."""


def checked_budget(max_seconds: float = MOST_SECONDS, max_memory: float | None = None) -> None:
    """Raise an error if an allowed time or memory is out of its range."""
    TIME.require("max_seconds", max_seconds)
    if max_memory is not None:
        MEMORY.require("max_memory", max_memory)


@dataclass
class Budget:
    """What one answer may take, and what it has taken.

    Parameters
    ----------
    max_seconds : float
        Processor time that the answer may take [s].
    max_memory : float
        Memory that it may take [bytes].
    load : str
        The load in words, for error messages.
    spent : float
        Estimated time so far [s].

    Examples
    --------
    >>> budget = Budget(max_seconds=2.0, load="5 packets per round-trip time")
    >>> budget.spend(1.5)
    >>> budget.spend(1.5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tcpdelay.budget.TooLargeError: the chain needs about 3 s or more for 5 packets per round-trip time, and ...
    """

    max_seconds: float = MOST_SECONDS
    max_memory: float = MOST_MEMORY
    load: str = "this load"
    spent: float = 0.0

    def left(self) -> float:
        """Return the estimated time that is left [s], 0 or more; TooLargeError if more has been spent."""
        self.spend(0.0)
        return self.max_seconds - self.spent

    def spend(self, seconds: float) -> None:
        """Count the estimated time of the next step [s]; TooLargeError if it is not left, StoppedError if given up."""
        give_up_if_stopped()
        self.spent += seconds
        if self.spent > self.max_seconds:
            raise self._error(f"{self.spent:.3g} s or more", f"{self.max_seconds:g} s")

    def require_memory(self, needed: float) -> None:
        """Raise TooLargeError if the memory [bytes] may not be taken."""
        if needed > self.max_memory:
            raise self._error(f"{needed / 2**30:.1f} GiB", f"{self.max_memory / 2**30:.3g} GiB")

    def _error(self, needed: str, allowed: str) -> TooLargeError:
        return TooLargeError(
            f"the chain needs about {needed} for {self.load}, and at most {allowed} are allowed; "
            "use a longer interval, larger packets or a shorter rtt"
        )


@dataclass
class SimulationBudget:
    """The work that a simulation may do in a processor time [s], by estimate, and the work that it has done.

    Examples
    --------
    >>> budget = SimulationBudget(max_seconds=1e-3)
    >>> budget.start()
    >>> budget.next_call(), budget.is_spent
    (20000, False)
    >>> budget.spend(30_000)
    >>> budget.next_call(), budget.is_spent, budget.ended_by_clock
    (0, True, False)
    """

    max_seconds: float = math.inf
    work: int = 0
    ended_by_clock: bool = False
    _began: float = field(default=math.nan, init=False)

    @property
    def seconds(self) -> float:
        """Estimated processor time of the work so far [s]."""
        return self.work * SECONDS_PER_WORK

    @property
    def is_spent(self) -> bool:
        """Whether the simulation has ended because of its work or of the clock."""
        return self.ended_by_clock or self.seconds >= self.max_seconds

    def start(self) -> None:
        """Begin to look at the clock, once the kernels are compiled."""
        self._began = time.thread_time()

    def next_call(self) -> int:
        """Return the most work of the next call of a kernel, 0 if the budget is spent; StoppedError if given up."""
        give_up_if_stopped()
        if time.thread_time() - self._began > LAST_RESORT * self.max_seconds:
            self.ended_by_clock = True
        if self.is_spent:
            return 0
        left = (self.max_seconds - self.seconds) / SECONDS_PER_WORK
        return WORK_PER_CALL if left >= WORK_PER_CALL else math.ceil(left)

    def spend(self, work: int) -> None:
        """Count work that has been done."""
        self.work += work

    def error(self, reached: str, advice: str) -> TooLargeError:
        """Return the error that the budget is spent after `reached`, with advice."""
        spent = "in the time that it may take"
        if self.ended_by_clock:
            spent = "before the clock ended it on this slow machine"
        return TooLargeError(f"the simulation has only reached {reached} {spent}; {advice}")
