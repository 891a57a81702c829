"""Waits for timers and sockets without ever spinning: a spinning process would stop a guest's virtual time."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import time
from collections.abc import Callable

from tcpdelay.testbed.system_calls import expirations, set_timer, timer

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
NEVER = 2**62


class EventLoop:
    """Calls functions when a time has come or a socket is ready; all times in ns of the monotonic clock.

    asyncio rounds timers up to whole milliseconds, which would show in every delay; timerfd does not.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._periodic: dict[int, int] = {}
        self._pending: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alarm = timer()
        self._alarm_time = NEVER
        self.watch(self._alarm, READABLE, self._run_pending)

    def watch(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` whenever one of the `events` holds for a descriptor."""
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, events)

    def pause(self, descriptor: int, length: int) -> None:
        """Do not call the handler of a watched descriptor for a while.

        A socket can be reported as writable and yet take nothing, when the kernel is short of memory for buffers.
        """
        handler = self._handlers[descriptor]
        self._epoll.modify(descriptor, 0)

        def resume() -> None:
            if self._handlers.get(descriptor) is handler:
                self._epoll.modify(descriptor, WRITABLE)

        self.at(time.monotonic_ns() + length, resume)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; to be called before it is closed."""
        del self._handlers[descriptor]
        self._epoll.unregister(descriptor)

    def every(self, interval: int, first: int, handler: Callable[[int], None]) -> int:
        """Call `handler(expirations)` at `first` and then every `interval`; returns what `cancel` takes."""
        descriptor = timer()
        set_timer(descriptor, first, interval)

        def expired(_: int) -> None:
            count = expirations(descriptor)
            if count:
                handler(count)

        self.watch(descriptor, READABLE, expired)
        # Descriptors are used again once closed, so a repetition has a number of its own.
        number = next(self._order)
        self._periodic[number] = descriptor
        return number

    def cancel(self, repetition: int) -> None:
        """End a repetition that `every` has begun; a second time is allowed."""
        descriptor = self._periodic.pop(repetition, None)
        if descriptor is not None:
            self.forget(descriptor)
            os.close(descriptor)

    def at(self, when: int, handler: Callable[[], None]) -> None:
        """Call `handler()` once, at `when` or at once if that is past."""
        heapq.heappush(self._pending, (when, next(self._order), handler))
        self._set_alarm()

    def _set_alarm(self) -> None:
        first = self._pending[0][0] if self._pending else NEVER
        if first != self._alarm_time:
            self._alarm_time = first
            # A time of zero would switch the timer off.
            set_timer(self._alarm, max(first, 1))

    def _run_pending(self, _: int) -> None:
        expirations(self._alarm)
        self._alarm_time = NEVER
        while self._pending and self._pending[0][0] <= time.monotonic_ns():
            heapq.heappop(self._pending)[2]()
        self._set_alarm()

    def run(self, finished: Callable[[], bool]) -> None:
        """Serve events until `finished()`, which is asked after every batch of them."""
        handlers = self._handlers
        wait = self._epoll.poll
        while not finished():
            for descriptor, events in wait():
                # A handler earlier in this batch may have ended the watch.
                handler = handlers.get(descriptor)
                if handler is not None:
                    handler(events)

    def close(self) -> None:
        """Close the loop's timers and its epoll descriptor."""
        for descriptor in [*self._periodic.values(), self._alarm]:
            os.close(descriptor)
        self._periodic.clear()
        self._epoll.close()
