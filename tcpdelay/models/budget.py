"""The time and the memory that one answer may take, counted in estimates and not by a clock.

The same scenario therefore has the same answer on every machine, at any load, and while kernels are compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

from tcpdelay.models.stopping import give_up_if_stopped
from tcpdelay.scenario.fields import InvalidValueError, is_number

MOST_SECONDS = 10.0
"""Processor time that an answer may take by default [s]."""
MOST_MEMORY = 2**30
"""Memory that an answer may take by default [bytes]."""
SECONDS_PER_UPDATE = 2e-9
"""Time in which the solver adds one number to another [s], roughly."""
SLICE = 0.5
"""Estimated time of one call of a kernel [s], after which an interrupt is noticed."""
SHORTEST, LONGEST = 0.01, 1e6
"""Bounds of the time that an answer may be allowed [s]."""
LEAST_MEMORY, MOST_ALLOWED = 2**20, 2**50
"""Bounds of the memory that an answer may be allowed [bytes]."""


class TooLargeError(ValueError):
    """A scenario needs more time or memory than its answer may take."""


def checked_budget(max_seconds: float = MOST_SECONDS, max_memory: float | None = None) -> None:
    """Raise an error if an allowed time or memory is out of its range.

    Parameters
    ----------
    max_seconds : float
        Processor time [s], 0.01 to 1e6.
    max_memory : float, optional
        Memory [bytes], 1 MiB to 1 PiB.

    Raises
    ------
    InvalidValueError
        If one of them is out of its range.

    Examples
    --------
    >>> checked_budget(10.0, 0)
    Traceback (most recent call last):
    tcpdelay.scenario.fields.InvalidValueError: max_memory must lie between 1 MiB and 1 PiB (in bytes), got 0
    """
    if not is_number(max_seconds) or not SHORTEST <= max_seconds <= LONGEST:
        raise InvalidValueError("max_seconds", max_seconds, f"lie between {SHORTEST:g} and {LONGEST:g} s")
    if max_memory is not None and not (is_number(max_memory) and LEAST_MEMORY <= max_memory <= MOST_ALLOWED):
        allowed = "lie between 1 MiB and 1 PiB (in bytes)"
        raise InvalidValueError("max_memory", max_memory, allowed)


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
    tcpdelay.models.budget.TooLargeError: the chain needs about 3 s or more for 5 packets per round-trip time, and ...
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
