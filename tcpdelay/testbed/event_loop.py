"""An event loop that sleeps until a timer or a socket is ready, and the Linux system calls that it needs.

A busy process would stop the virtual time of a guest. Python's standard library has no functions for these system
calls (before 3.12 and 3.13).
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import random
import select
import signal
import struct
import time
from collections.abc import Callable

CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
MS_BIND = 4096
MNT_DETACH = 2
CLOCK_MONOTONIC = 1
TIMER_ABSOLUTE = 1
PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
ADDR_NO_RANDOMIZE = 0x0040000
POWER_OFF = 0x4321FEDC
NANOSECONDS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.personality.argtypes = [ctypes.c_ulong]
_libc.reboot.argtypes = [ctypes.c_int]
READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
NEVER = 2**62


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare_network() -> None:
    """Move the calling thread into a new, empty network namespace (unshare(2)); needs CAP_SYS_ADMIN."""
    _checked(_libc.unshare(CLONE_NEWNET))


def enter_network(namespace: int) -> None:
    """Move the calling thread into the network namespace behind a file descriptor (setns(2))."""
    _checked(_libc.setns(namespace, CLONE_NEWNET))


def mount(source: str, target: str, kind: str, options: str = "", flags: int = 0) -> None:
    """Mount a filesystem (mount(2))."""
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()))


def unshare_mounts() -> None:
    """Give this process mounts of its own, at first a copy of the present ones (unshare(2)); needs CAP_SYS_ADMIN."""
    _checked(_libc.unshare(CLONE_NEWNS))


def unmount(target: str) -> None:
    """Detach a filesystem, also if it is in use (umount2(2))."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH))


def power_off() -> None:
    """Halt the machine at once (reboot(2)); for the first process of a guest only."""
    _checked(_libc.reboot(ctypes.c_int(POWER_OFF)))


def die_with_parent(signal_number: int) -> None:
    """Make the kernel send this process a signal when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def start_process(work: Callable[[], None]) -> int:
    """Run a function that never returns in a process that ends with this one; return its number."""
    process = os.fork()
    if process == 0:
        try:
            die_with_parent(signal.SIGKILL)
            wake_exactly()
            work()
        finally:
            os._exit(1)
    return process


def end_process(process: int) -> None:
    """End a process that `start_process` has started."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def wake_exactly() -> None:
    """Make the calling thread's timers fire exactly when due, not up to 50 us later (PR_SET_TIMERSLACK)."""
    _checked(_libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0))


def fix_addresses() -> None:
    """Switch off address randomization for the programs that this process starts (personality(2))."""
    _checked(_libc.personality(ADDR_NO_RANDOMIZE))


def timer() -> int:
    """Return the descriptor of a new timer on the monotonic clock (timerfd_create(2)), closed on exec."""
    return _checked(_libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def set_timer(descriptor: int, first: int, interval: int = 0) -> None:
    """Let a timer expire at a time [ns, monotonic clock, above 0], then every `interval` [ns; 0: once]."""
    setting = struct.pack("qqqq", *divmod(interval, NANOSECONDS), *divmod(first, NANOSECONDS))
    _checked(_libc.timerfd_settime(descriptor, TIMER_ABSOLUTE, setting, None))


def expirations(descriptor: int) -> int:
    """Return how often a timer has expired since the last call."""
    try:
        return int.from_bytes(os.read(descriptor, 8), "little")
    except BlockingIOError:
        return 0


def moment_of(seed: int, earliest: int) -> int:
    """Return a moment that follows from a seed: the first within 10 ms after a whole second [ns, monotonic clock].

    What comes before takes longer if Python compiles modules. From here on the kernel's timers find the same ticks.
    """
    return -(-earliest // NANOSECONDS) * NANOSECONDS + random.Random(seed).randrange(NANOSECONDS // 100)


def sleep_until(moment: int) -> None:
    """Sleep until a time [ns, monotonic clock], to the nanosecond where the clock is virtual."""
    descriptor = timer()
    set_timer(descriptor, moment)
    select.select([descriptor], [], [])
    os.close(descriptor)


class EventLoop:
    """Calls functions at given times or when a socket is ready; all times in ns of the monotonic clock.

    asyncio rounds timers up to whole milliseconds, which would show in every delay; timerfd does not.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._periodic: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._pending: list[tuple[int, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._alarm = timer()
        self._alarm_time = NEVER
        self.watch(self._alarm, READABLE, self._run_pending)

    def watch(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler(events)` whenever one of the `events` is true for a descriptor."""
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, events)

    def pause(self, descriptor: int, length: int) -> None:
        """Suspend the handler of a watched descriptor for a time.

        If the kernel is short of memory for buffers, it can report a socket as writable and still accept no data.
        """
        handler = self._handlers[descriptor]
        self._epoll.modify(descriptor, 0)

        def resume() -> None:
            if self._handlers.get(descriptor) is handler:
                self._epoll.modify(descriptor, WRITABLE)

        self.at(time.monotonic_ns() + length, resume)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before the descriptor is closed."""
        del self._handlers[descriptor]
        self._epoll.unregister(descriptor)

    def every(self, interval: int, first: int, handler: Callable[[int], None]) -> int:
        """Call `handler(expirations)` at `first` and then every `interval`; return a number for `cancel`."""
        descriptor = timer()
        set_timer(descriptor, first, interval)
        handled = 0

        def call(count: int) -> None:
            nonlocal handled
            handled += count
            if count > 0:
                handler(count)

        def catch_up(end: int) -> None:
            call(-(-(end - first) // interval) - handled)

        self.watch(descriptor, READABLE, lambda _: call(expirations(descriptor)))
        # Closed descriptors are reused, so a repetition has a number of its own.
        number = next(self._order)
        self._periodic[number] = descriptor, catch_up
        return number

    def cancel(self, repetition: int, end: int | None = None) -> None:
        """End a repetition that `every` has begun, which may have ended already; what was due before `end` comes first.

        A busy machine may wake the loop after both the last repetitions and what ends them.
        """
        found = self._periodic.pop(repetition, None)
        if found is None:
            return
        descriptor, catch_up = found
        self.forget(descriptor)
        os.close(descriptor)
        if end is not None:
            catch_up(end)

    def at(self, when: int, handler: Callable[[], object]) -> None:
        """Call `handler()` once at time `when`, or immediately if `when` is past."""
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
        """Handle events until `finished()` is true; it is called after every batch of events."""
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
        for descriptor in [*(descriptor for descriptor, _ in self._periodic.values()), self._alarm]:
            os.close(descriptor)
        self._periodic.clear()
        self._epoll.close()
