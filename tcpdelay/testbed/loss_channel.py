"""Losses in time: a timer switches the loss of an experiment's path between a good and a bad state."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from pyroute2 import IPRoute

from tcpdelay.scenario.path import Path
from tcpdelay.testbed.event_loop import NANOSECONDS, EventLoop, end_process, start_process
from tcpdelay.testbed.link import Link
from tcpdelay.testbed.queues import set_netem


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


class LossSwitch:
    """A process that switches the losses of a device from now on; it ends with its parent.

    It must be made in the namespace of the device, whose root queue is netem.

    Parameters
    ----------
    device : int
        Index of the device.
    link : Link
        Link with a `bad_time` and with losses.
    seed : str
        Seed of the times.
    """

    def __init__(self, device: int, link: Link, seed: str) -> None:
        self._process = start_process(lambda: self._switch(device, link, seed))

    @staticmethod
    def _switch(device: int, link: Link, seed: str) -> None:
        netlink, loop = IPRoute(), EventLoop()

        def set_loss(loss: float) -> None:
            set_netem(netlink, "change", device, replace(link, loss=loss))

        path = Path(2 * link.delay, link.loss, bad_time=link.bad_time, bad_loss=link.bad_loss)
        LossChannel(loop, path, set_loss, seed).start(time.monotonic_ns())
        loop.run(lambda: False)

    def close(self) -> None:
        """End the process."""
        end_process(self._process)
