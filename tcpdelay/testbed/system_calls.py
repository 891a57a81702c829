"""The few Linux system calls that Python's standard library has no function for (before 3.12 and 3.13)."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNET = 0x40000000
CLOCK_MONOTONIC = 1
TIMER_ABSOLUTE = 1
PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
ADDR_NO_RANDOMIZE = 0x0040000
POWER_OFF = 0x4321FEDC
NANOSECONDS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.personality.argtypes = [ctypes.c_ulong]
_libc.reboot.argtypes = [ctypes.c_int]


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


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    """Mount a filesystem (mount(2))."""
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()))


def power_off() -> None:
    """Halt the machine at once (reboot(2)); for the first process of a guest only."""
    _checked(_libc.reboot(ctypes.c_int(POWER_OFF)))


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def wake_exactly() -> None:
    """Let the calling thread's timers fire when they are due instead of up to 50 us later (PR_SET_TIMERSLACK)."""
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
    """Return how often a timer has expired since the last call; 0 if it has not."""
    try:
        return int.from_bytes(os.read(descriptor, 8), "little")
    except BlockingIOError:
        return 0
