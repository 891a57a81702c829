"""Web-like cross traffic: users who fetch an object over a new connection, think, and fetch the next one."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

from tcpdelay.testbed.apps.streams import READ_SIZE, ReceivingStream, SendingStream
from tcpdelay.testbed.event_loop import EventLoop

MEAN_THINK_TIME = 1.0
MEAN_OBJECT = 12_000
"""Mean size of an object [bytes], before the cut at `LARGEST_OBJECT`."""
PARETO_SHAPE = 1.2
LARGEST_OBJECT = 1_000_000
NANOSECONDS = 1e9

Connect = Callable[[Callable[[socket.socket, socket.socket], None]], None]


class WebUser:
    """Fetches objects of Pareto-distributed size, with exponential pauses, until stopped.

    Parameters
    ----------
    loop : EventLoop
        Where to wait.
    connect : callable
        Opens a connection and hands both of its sockets on, the server's first.
    seed : int
        Seed of the sizes and pauses.

    References
    ----------
    Crovella, Bestavros, "Self-Similarity in World Wide Web Traffic", IEEE/ACM Transactions on Networking, 1997: sizes
    of transferred files are Pareto-distributed with a shape of about 1.2.
    """

    def __init__(self, loop: EventLoop, connect: Connect, seed: int) -> None:
        self.fetched = 0
        self._loop = loop
        self._connect = connect
        self._random = random.Random(seed)
        self._stopped = False
        self._streams: tuple[SendingStream, ReceivingStream] | None = None

    def think(self) -> None:
        """Pause, then fetch."""
        pause = self._random.expovariate(1 / MEAN_THINK_TIME)
        self._loop.at(time.monotonic_ns() + round(pause * NANOSECONDS), self._fetch)

    def _fetch(self) -> None:
        if not self._stopped:
            self._connect(self._serve)

    def _serve(self, server: socket.socket, browser: socket.socket) -> None:
        if self._stopped:
            server.close()
            browser.close()
            return
        smallest = MEAN_OBJECT * (PARETO_SHAPE - 1) / PARETO_SHAPE
        size = min(round(smallest * self._random.paretovariate(PARETO_SHAPE)), LARGEST_OBJECT)

        def on_data(received: int, _: int) -> None:
            if received == size:
                self.fetched += 1
                self._hang_up()
                if not self._stopped:
                    self.think()

        sending = SendingStream(self._loop, server)
        self._streams = sending, ReceivingStream(self._loop, browser, on_data, quick_ack=False)
        for start in range(0, size, READ_SIZE):
            sending.write(min(size - start, READ_SIZE))

    def _hang_up(self) -> None:
        if self._streams is not None:
            for stream in self._streams:
                stream.close()
            self._streams = None

    def stop(self) -> None:
        """Fetch no more and give up what is under way."""
        self._stopped = True
        self._hang_up()
