"""Versions of the Linux kernel, and the rules of its TCP that differ between them.

The rules were read in the sources of Linux 6.1.192, 6.12.117 and 7.3.4. Where a rule is older than the oldest of these
sources that has it, its first version is the one that the kernel's history gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BeforeValidator

from tcpdelay.declare import Field, InvalidValueError, Kind, Value

OLDEST = "4.18"
"""The oldest version whose TCP the models describe: it has RACK with a reordering window, and F-RTO with SACK."""
VALIDATED = ("6.1", "6.12", "7.3")
"""Versions whose captures were compared with the models, from old to new."""
NEWEST_VALIDATED = VALIDATED[-1]
_VERSION = re.compile(r"[1-9]\d?\.\d{1,3}")


def version_numbers(text: object) -> tuple[int, int] | None:
    """Return the two numbers of a version of Linux; None if the text is no version."""
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def is_at_least(kernel: str, version: str) -> bool:
    """Return whether a version of Linux is another version or newer.

    >>> is_at_least("6.12", "6.7"), is_at_least("6.1", "6.7")
    (True, False)
    """
    numbers, least = version_numbers(kernel), version_numbers(version)
    return numbers is not None and least is not None and numbers >= least


def kernel_of_release(release: str) -> str:
    """Return the version of a release, as `uname -r` prints it; the newest validated version if it is unknown.

    >>> kernel_of_release("6.1.192"), kernel_of_release("6.8.0-45-generic"), kernel_of_release("")
    ('6.1', '6.8', '7.3')
    """
    version = ".".join(release.split(".")[:2])
    return version if is_at_least(version, OLDEST) else NEWEST_VALIDATED


@dataclass(frozen=True, kw_only=True)
class KernelVersion(Field):
    """Declaration of a version of the Linux kernel: two numbers in a text."""

    kind: Kind = "word"
    example: str = "6.12"

    def __iter__(self) -> Iterator[object]:
        """Yield the check for pydantic."""
        yield BeforeValidator(self._checked)

    def _checked(self, value: object) -> object:
        if not self.allows(value):
            raise self.refusal("kernel", value)
        return value

    def allows(self, value: object) -> bool:
        """Return whether a value is a version that the models describe."""
        return isinstance(value, str) and is_at_least(value, OLDEST)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is not such a version."""
        allowed = f'be a version of Linux of at least {OLDEST} in two numbers, such as "{NEWEST_VALIDATED}"'
        return InvalidValueError(name, value, allowed)

    def read(self, name: str, written: object) -> Value:
        """Return a version from a text."""
        if not isinstance(written, str):
            raise InvalidValueError(name, written, "be text in quotes")
        return written


@dataclass(frozen=True)
class KernelRule:
    """A rule of TCP that newer kernels have and older ones lack."""

    name: str  # The rule in a few words: a socket option or a sysctl by its name
    since: str  # First version with the rule
    function: str  # Function of the kernel that holds the rule
    file: str  # File of the function
    # The commit that brought the rule, by the first twelve digits of its name; several have commas between them.
    commit: str
    read_in: str  # The oldest of the three sources in which the rule was read
    meaning: str  # What the rule does, in one or two sentences
    used_by: str  # Where the models follow it
    # before, after: The value that the rule changes, in older and in newer kernels; 0 for a rule without a value.
    before: int = 0
    after: int = 0

    def holds(self, kernel: str) -> bool:
        """Return whether a version of Linux has the rule."""
        return is_at_least(kernel, self.since)

    def value(self, kernel: str) -> int:
        """Return the value of the rule in a version of Linux."""
        return self.after if self.holds(kernel) else self.before


DELAYED_ACK_BELOW_TIMEOUT = KernelRule(
    "delayed ACKs below RTO_MIN",
    "6.7",
    "tcp_delack_max",
    "net/ipv4/tcp_output.c",
    "bbf80d713fe7",
    "6.12",
    "An ACK is delayed at most by the minimum retransmission timeout of the receiver's host less one tick.",
    "simulator, with `delayed_ack`",
)
RTO_MIN_SYSCTL = KernelRule(
    "sysctl net.ipv4.tcp_rto_min_us",
    "6.11",
    "tcp_init_sock",
    "net/ipv4/tcp.c",
    "f086edef71be",
    "6.12",
    "Sets the minimum retransmission timeout of new connections. Older kernels have only a route's metric rto_min.",
    "`rto_min`",
)
RTO_MIN_OPTION = KernelRule(
    "socket option TCP_RTO_MIN_US",
    "6.15",
    "do_tcp_setsockopt",
    "net/ipv4/tcp.c",
    "f38805c5d26f",
    "7.3",
    "Sets the minimum retransmission timeout of a connection: from more than one tick to 200 ms.",
    "`rto_min`; advice for sparse flows",
)
DELACK_MAX_OPTION = KernelRule(
    "socket option TCP_DELACK_MAX_US",
    "6.15",
    "do_tcp_setsockopt",
    "net/ipv4/tcp.c",
    "9552f90835ef",
    "7.3",
    "Sets the largest delay of an ACK of a connection: from more than one tick to 200 ms. Older kernels refuse "
    "`delack_max`.",
    "`delack_max`: simulator, with `delayed_ack`",
)
RTO_MAX_OPTION = KernelRule(
    "socket option TCP_RTO_MAX_MS, sysctl net.ipv4.tcp_rto_max_ms",
    "6.15",
    "tcp_rto_max",
    "include/net/tcp.h",
    "54a378f43425, 1280c26228bd",
    "7.3",
    "Sets the largest retransmission timeout: 1 to 120 s. Older kernels have 120 s (TCP_RTO_MAX) and refuse `rto_max`.",
    "`rto_max`: simulator, and the chain of sparse flows",
)
TIME_BASED_RECOVERY = KernelRule(
    "losses are found by time alone",
    "6.17",
    "tcp_identify_packet_loss",
    "net/ipv4/tcp_input.c",
    "1c120191dcec",
    "7.3",
    "RFC 6675 is gone, so the sysctl net.ipv4.tcp_recovery = 0 no longer switches RACK off. `Rules(rack=False)` is "
    "refused.",
    "simulator",
)
COMPRESSION_PERCENT = KernelRule(
    "sysctl net.ipv4.tcp_comp_sack_rtt_percent",
    "6.19",
    "__tcp_ack_snd_check",
    "net/ipv4/tcp_input.c",
    "416dd649f3aa",
    "7.3",
    "A compressed SACK waits at most 33 % of the RTT; before, 5 %. 1 ms remains the limit (tcp_comp_sack_delay_ns), so "
    "that only round-trip times below 20 ms notice it.",
    "simulator",
    before=5,
    after=33,
)
COMPRESSION_SLACK = KernelRule(
    "default of sysctl net.ipv4.tcp_comp_sack_slack_ns",
    "6.19",
    "tcp_sk_init",
    "net/ipv4/tcp_ipv4.c",
    "ca412f25d6b2",
    "7.3",
    "The timer of a compressed SACK is up to 10 us late; before, 100 us.",
    "simulator",
    before=100,
    after=10,
)
KERNEL_RULES = (
    DELAYED_ACK_BELOW_TIMEOUT,
    RTO_MIN_SYSCTL,
    RTO_MIN_OPTION,
    DELACK_MAX_OPTION,
    RTO_MAX_OPTION,
    TIME_BASED_RECOVERY,
    COMPRESSION_PERCENT,
    COMPRESSION_SLACK,
)
"""All rules that differ between versions, from old to new."""
