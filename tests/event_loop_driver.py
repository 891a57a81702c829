"""Runs an event loop for a while, and a socket that takes as little as it is told."""

import time
from contextlib import suppress
from pathlib import Path

from tcpdelay.testbed.flows import READ_SIZE

MILLISECOND = 1_000_000


def run_until(loop, condition, seconds=20.0):
    deadline = time.monotonic_ns() + round(seconds * 1e9)
    loop.at(deadline, lambda: None)
    loop.run(lambda: condition() or time.monotonic_ns() >= deadline)
    assert condition()


def run_for(loop, seconds):
    end = time.monotonic_ns() + round(seconds * 1e9)
    loop.at(end, lambda: None)
    loop.run(lambda: time.monotonic_ns() >= end)


def fill(connection):
    """Write until the connection takes no more; returns the number of bytes."""
    written = 0
    with suppress(BlockingIOError):
        while True:
            written += connection.send(bytes(READ_SIZE))
    return written


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


class Stingy:
    """A socket that takes no more bytes per write than it is told, and nothing where that is 0."""

    def __init__(self, connection, amounts):
        self._connection = connection
        self._amounts = iter(amounts)
        self.taken = 0

    def send(self, data):
        amount = next(self._amounts, len(data))
        if amount == 0:
            raise BlockingIOError
        sent = self._connection.send(data[:amount])
        self.taken += sent
        return sent

    def __getattr__(self, name):
        return getattr(self._connection, name)
