"""Giving up an answer that nobody waits for any more.

Only the main thread of a process gets a KeyboardInterrupt. Models in other threads ask between two calls of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class StoppedError(Exception):
    """An answer was given up before it was found."""


_stopped: ContextVar[Callable[[], bool] | None] = ContextVar("stopped", default=None)


@contextmanager
def answering_until(stopped: Callable[[], bool] | None) -> Iterator[None]:
    """Let models give up their answers in this thread once `stopped` returns True.

    Parameters
    ----------
    stopped : callable, optional
        Called often; returns whether to give up. Without it, no answer is given up.

    Examples
    --------
    >>> from tcpdelay.models.predict import predict_delay
    >>> with answering_until(lambda: True):
    ...     predict_delay(rtt=0.100, loss=0.02, packet_size=174, interval=0.020)
    Traceback (most recent call last):
    tcpdelay.models.stopping.StoppedError: the answer was given up
    """
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
