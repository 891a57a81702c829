"""Losses in time: a timer switches the loss of an experiment's path between a good and a bad state."""

from __future__ import annotations

import random
from collections.abc import Callable

from tcpdelay.scenario.path import Path
from tcpdelay.testbed.event_loop import NANOSECONDS, EventLoop


class LossChannel:
    """Gilbert's channel with exponentially distributed times in its states (`tcpdelay.Path`, `bad_time`).

    Parameters
    ----------
    loop : EventLoop
        The event loop.
    path : Path
        Path with a `bad_time` and with losses.
    set_loss : callable
        Called with the probability of a loss, 0 to 1, whenever it changes.
    seed : str
        Seed of the times.
    """

    def __init__(self, loop: EventLoop, path: Path, set_loss: Callable[[float], None], seed: str) -> None:
        self._loop = loop
        self._path = path
        self._set_loss = set_loss
        self._random = random.Random(seed)
        self._stopped = False
        self._bad = self._random.random() < path.loss / path.bad_loss
        self._end = 0

    def start(self, first: int) -> None:
        """Begin with a state in the stationary distribution at a time [ns, monotonic clock]."""
        self._end = first
        self._loop.at(first, self._enter)

    def _enter(self) -> None:
        """Enter the state that begins now, and set the timer for its end."""
        if self._stopped:
            return
        self._set_loss(self._path.bad_loss if self._bad else 0.0)
        mean = self._path.bad_time if self._bad else self._path.good_time
        self._end += round(self._random.expovariate(1 / mean) * NANOSECONDS)
        self._loop.at(self._end, self._leave)

    def _leave(self) -> None:
        self._bad = not self._bad
        self._enter()

    def stop(self) -> None:
        """End the switching."""
        self._stopped = True
