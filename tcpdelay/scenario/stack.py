"""The transport that carries the flow: a TCP implementation, or QUIC; and the rules of Linux, by kernel version.

The rules were read in the sources of Linux 6.1.192, 6.12.117 and 7.3.4. Where a rule is older than the oldest of these
sources that has it, its first version is the one that the kernel's history gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from tcpdelay.declare import (
    Field,
    Flag,
    InvalidValueError,
    Kind,
    Quantity,
    choice,
    declarations,
    described,
    flag,
    in_bytes,
    in_seconds,
    like,
    quantity,
)
from tcpdelay.store import read_toml

# Versions of the Linux kernel, and the rules of its TCP that differ between them.

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

    def allows(self, value: object) -> bool:
        """Return whether a value is a version that the models describe."""
        return isinstance(value, str) and is_at_least(value, OLDEST)

    def refusal(self, name: str, value: object) -> InvalidValueError:
        """Return the error for a value that is not such a version."""
        allowed = f'be a version of Linux of at least {OLDEST} in two numbers, such as "{NEWEST_VALIDATED}"'
        return InvalidValueError(name, value, allowed)


def kernel_version(meaning: str, **more: Any) -> Any:
    """Declare a version of the Linux kernel; `more` are further fields of the declaration."""
    return KernelVersion(meaning=meaning, required="default" not in more, **more)


@dataclass(frozen=True)
class KernelRule:
    """A rule of TCP that newer kernels have and older ones lack; `kernels.toml` says what its fields are."""

    name: str
    since: str
    function: str
    file: str
    commit: str
    read_in: str
    meaning: str
    used_by: str
    before: int = 0
    after: int = 0

    def holds(self, kernel: str) -> bool:
        """Return whether a version of Linux has the rule."""
        return is_at_least(kernel, self.since)

    def value(self, kernel: str) -> int:
        """Return the value of the rule in a version of Linux; 0 for a rule without a value."""
        return self.after if self.holds(kernel) else self.before


_RULES = {key: KernelRule(**table) for key, table in read_toml(Path(__file__).with_name("kernels.toml")).items()}
KERNEL_RULES = tuple(_RULES.values())
"""All rules that differ between versions, from old to new."""
DELAYED_ACK_BELOW_TIMEOUT = _RULES["DELAYED_ACK_BELOW_TIMEOUT"]
RTO_MIN_OPTION = _RULES["RTO_MIN_OPTION"]
DELACK_MAX_OPTION = _RULES["DELACK_MAX_OPTION"]
RTO_MAX_OPTION = _RULES["RTO_MAX_OPTION"]
TIME_BASED_RECOVERY = _RULES["TIME_BASED_RECOVERY"]
COMPRESSION_PERCENT = _RULES["COMPRESSION_PERCENT"]
COMPRESSION_SLACK = _RULES["COMPRESSION_SLACK"]


# The sizes of the packets of implementations of QUIC, which decide how much data a packet carries.

QuicImplementation = Literal["rfc9002", "aioquic", "quic-go", "quinn"]


@dataclass(frozen=True)
class QuicPacket:
    """The sizes of a full packet [bytes of UDP payload]."""

    datagram_size: int = 1200  # Largest UDP payload (RFC 9000, 14); windows are multiples of it
    # Bytes besides the frames: short header, connection ID, packet number, authentication tag
    packet_overhead: int = 27
    frame_overhead: int = 8  # Bytes of a STREAM or DATAGRAM frame besides its data

    @property
    def payload(self) -> int:
        """Most bytes of data of a packet with one frame."""
        return self.datagram_size - self.packet_overhead - self.frame_overhead


QUIC_PACKETS: Mapping[QuicImplementation, QuicPacket] = {
    "rfc9002": QuicPacket(),
    "aioquic": QuicPacket(),
    "quic-go": QuicPacket(datagram_size=1280, packet_overhead=23),
    "quinn": QuicPacket(datagram_size=1452, packet_overhead=26),
}
"""The sizes by implementation: of aioquic 1.7, quic-go 0.59 and quinn 0.11 (after path MTU discovery on Ethernet), and
by RFC 9002 the smallest datagram that a path of QUIC must carry."""


# The transport that carries the flow: a TCP implementation, or QUIC.

Variant = Literal["newreno", "sack", "reno"]
BacklogBound = Literal["published", "grow"]
CongestionControl = Literal["cubic", "reno", "bbr", "westwood"]
LOSS_BASED_CONTROLS = ("cubic", "reno")
"""Congestion controls that take a loss for congestion: losses reduce the window."""
StackName = Literal["linux", "newreno_2008", "quic"]
QuicControl = Literal["newreno", "cubic", "bbr"]
QUIC_CONTROLS: Mapping[QuicImplementation, tuple[QuicControl, ...]] = {
    "rfc9002": ("newreno", "cubic", "bbr"),
    "aioquic": ("newreno", "cubic"),
    # NewSentPacketHandler always asks for Reno (internal/ackhandler/sent_packet_handler.go).
    "quic-go": ("newreno",),
    "quinn": ("newreno", "cubic"),
}
"""Congestion controls by implementation: aioquic 1.7 and quic-go 0.59 have no BBR; quinn's is experimental."""
Delivery = Literal["stream", "stream_per_message", "stream_per_group", "datagram"]

DELAYED_ACK: Flag = flag(
    "Let the receiver delay acknowledgements by the kernel's rules.",
    details="If not, it acknowledges each segment at once.",
)
HZ: Quantity = quantity(
    "Timer interrupts per second (CONFIG_HZ).",
    100,
    1000,
    "interrupts per second",
    "count",
    details="A timer expires at one of these interrupts.",
    example="1000",
)
MSS: Quantity = in_bytes("Largest segment payload.", 88, 65495, example="1448B")
WINDOW_VALIDATION: Flag = flag(
    "Reduce the congestion window after idle time (RFC 2861).",
    details="In Linux the sysctl net.ipv4.tcp_slow_start_after_idle.",
)
_TIMEOUT_HINT = "the timeout is given in seconds"
_CONTROL_MEANING = (
    f"Congestion control of the sender: {', '.join(get_args(CongestionControl))}, the first by default; over QUIC "
    f"{', '.join(get_args(QuicControl))}."
)


@dataclass(frozen=True, slots=True)
class Stack:
    """A transport; one of the profiles, such as `Stack.linux`, makes it."""

    if TYPE_CHECKING:
        linux: ClassVar[type[Linux]]
        newreno_2008: ClassVar[type[NewReno2008]]
        quic: ClassVar[type[Quic]]


@described
class Linux(Stack):
    """The TCP of a Linux kernel since 4.18, with SACK, timestamps, RACK, proportional rate reduction and F-RTO.

    RFC 8985 (RACK and tail loss probe), RFC 6937 (proportional rate reduction), RFC 9438 (CUBIC), RFC 5681, RFC 6298,
    RFC 5682 (F-RTO), RFC 2861 (window validation).

    Examples
    --------
    >>> Stack.linux(congestion_control="reno").hz
    250
    """

    congestion_control: CongestionControl = choice(
        _CONTROL_MEANING,
        details="After a loss, CUBIC reduces the window to 0.7, Reno to half of its size. BBR (version 1) sends at "
        "the rate that it measures, whatever is lost. Westwood+ reduces the window to what a measured rate fills.",
        default="cubic",
    )
    delayed_ack: bool = like(DELAYED_ACK, default=False)
    window_validation: bool = like(WINDOW_VALIDATION, default=True)
    hz: int = like(HZ, default=250)
    rto_min: float = in_seconds(
        "Minimum retransmission timeout beyond the round-trip time (RTO_MIN).",
        0.001,
        120.0,
        example="200ms",
        hint=_TIMEOUT_HINT,
        default=0.2,
    )
    mss: int = like(MSS, default=1448)
    kernel: str = kernel_version(
        "Version of Linux at both ends.",
        details='From 4.18 on, such as "6.12"; the default is the newest version whose captures were compared with '
        "the models. `tcpdelay.scenario.stack.KERNEL_RULES` lists what differs between versions.",
        default=NEWEST_VALIDATED,
    )
    rto_max: float = in_seconds(
        "Maximum retransmission timeout (TCP_RTO_MAX_MS).",
        1.0,
        120.0,
        details="The socket option, or the sysctl net.ipv4.tcp_rto_max_ms, of Linux 6.15.",
        example="5s",
        hint=_TIMEOUT_HINT,
        default=120.0,
    )
    delack_max: float = in_seconds(
        "Largest delay of an ACK (TCP_DELACK_MAX_US), with --delayed-ack.",
        0.001,
        0.2,
        details="More than a tick. The socket option is of Linux 6.15.",
        example="20ms",
        hint="the delay is given in seconds",
        default=0.2,
    )

    def __post_init__(self) -> None:
        for name, rule in _SETTINGS_SINCE.items():
            field = declarations(Linux)[name]
            if getattr(self, name) != field.default and not rule.holds(self.kernel):
                allowed = f"be {field.default:g} s before Linux {rule.since} (kernel is {self.kernel})"
                raise InvalidValueError(name, getattr(self, name), allowed)
        if self.delack_max * self.hz <= 1:
            raise InvalidValueError("delack_max", self.delack_max, f"exceed a tick of the kernel ({1 / self.hz:g} s)")


_SETTINGS_SINCE: dict[str, KernelRule] = {"rto_max": RTO_MAX_OPTION, "delack_max": DELACK_MAX_OPTION}
"""Settings that a kernel has since a version, with the rule that says so."""


@described
class NewReno2008(Stack):
    """The TCP of the published Markov chain (Brosh et al. 2010).

    Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
    Transactions on Networking, 2010, doi 10.1109/TNET.2010.2050780.

    Examples
    --------
    >>> Stack.newreno_2008(limited_transmit=True).mss
    1448
    """

    variant: Variant = choice(
        "Loss recovery: newreno, sack or reno.",
        details="It decides how the sender repairs several losses in one window.",
        default="newreno",
    )
    limited_transmit: bool = flag(
        "Send a new segment on each of the first two duplicate ACKs (RFC 3042).", default=False
    )
    window_validation: bool = like(WINDOW_VALIDATION, default=False)
    initial_timeout: float | None = in_seconds(
        "First retransmission timeout.",
        1e-6,
        120.0,
        details="4 round-trip times without a value, as published.",
        example="1s",
        hint=_TIMEOUT_HINT,
        default_words="4 round-trip times",
        default=None,
    )
    mss: int = like(MSS, default=1448)
    backlog_bound: BacklogBound = choice(
        "Bound of the send buffer: fixed as published, or growing with the backlog.",
        details='"published" limits the backlog to 16 packets per packet of load, as in the paper; if TCP '
        'cannot carry the load, the result depends on this limit. "grow" raises the limit until the '
        "probability beyond it is below 1e-6; if TCP cannot carry the load, all delays are infinite.",
        default="published",
    )

    def first_timeout(self, rtt: float) -> float:
        """Return the first retransmission timeout [s] on a path of round-trip time `rtt` [s]."""
        return 4 * rtt if self.initial_timeout is None else self.initial_timeout


@described
class Quic(Stack):
    """The QUIC transport, by the letter of RFC 9002 or as an implementation has it.

    RFC 9000 (QUIC), RFC 9002 (loss detection and congestion control), RFC 9221 (datagrams), RFC 9438 (CUBIC).

    Examples
    --------
    >>> Stack.quic("aioquic", delivery="stream_per_message").max_ack_delay
    0.025
    """

    implementation: QuicImplementation = choice(
        "Implementation of QUIC: rfc9002, aioquic, quic-go or quinn.",
        details="It decides about loss recovery, congestion control, pacing and acknowledgements: "
        "`tcpdelay.sim.quic.connection` has the rules.",
        default="rfc9002",
    )
    congestion_control: QuicControl = choice(
        _CONTROL_MEANING,
        details='CUBIC is that of RFC 9438 with "rfc9002", and has its own form with "aioquic" and "quinn", whose '
        'default it is. BBR is version 1 as in Linux, with "rfc9002" only. quic-go gives no choice.',
        default="newreno",
    )
    delivery: Delivery = choice(
        "How messages travel over QUIC: stream, stream_per_message, stream_per_group or datagram.",
        details="In order on one stream; each on a stream of its own, so that none waits for another; in order "
        "within a group, such as a key frame of a video and the frames up to the next; or in DATAGRAM "
        "frames (RFC 9221), whose losses nobody repairs. A message that is lost has an infinite delay.",
        default="stream",
    )
    max_ack_delay: float = in_seconds(
        "Largest delay of an ACK of QUIC (max_ack_delay).",
        0.001,
        1.0,
        details="RFC 9000, section 18.2.",
        example="25ms",
        hint="the delay is given in seconds",
        default=0.025,
    )
    group: int = quantity(
        "Messages of a group, with --delivery stream_per_group.",
        1,
        1_000_000,
        "messages",
        "count",
        details="A group of a video is one of its groups of pictures.",
        example="10",
        default=10,
    )

    def __post_init__(self) -> None:
        known = QUIC_CONTROLS[self.implementation]
        if self.congestion_control not in known:
            allowed = f"be {' or '.join(map(repr, known))} with {self.implementation}"
            raise InvalidValueError("congestion_control", self.congestion_control, allowed)

    @property
    def mss(self) -> int:
        """Most bytes of data of a packet, as the segment size of a TCP; the implementation sets it."""
        return QUIC_PACKETS[self.implementation].payload


Stack.linux, Stack.newreno_2008, Stack.quic = Linux, NewReno2008, Quic

KnownTcp: TypeAlias = NewReno2008 | Linux
"""A TCP of one of the profiles."""
KnownStack: TypeAlias = KnownTcp | Quic
"""A transport of one of the profiles."""

DEFAULT_STACK = Stack.linux()
"""The default stack: a current Linux kernel."""
PROFILES: dict[StackName, KnownStack] = {
    "linux": DEFAULT_STACK,
    "newreno_2008": Stack.newreno_2008(backlog_bound="grow"),
    "quic": Stack.quic(),
}
"""The stacks by name, with their default settings."""
DEFAULT_PROFILE: StackName = "linux"


def transport_name(stack: Stack) -> str:
    """Return the name of the transport of a stack: "TCP" or "QUIC"."""
    return "QUIC" if isinstance(stack, Quic) else "TCP"


def profiles_with(setting: str) -> list[StackName]:
    """Return the names of the profiles that have a setting."""
    return [name for name, stack in PROFILES.items() if setting in declarations(type(stack))]


def checked_profile(stack: Stack | StackName | None) -> KnownStack:
    """Return the stack, which comes from a profile or is its name; without a stack, that of a current Linux kernel."""
    if stack is None:
        return DEFAULT_STACK
    if isinstance(stack, str) and stack in PROFILES:
        return PROFILES[stack]
    if not isinstance(stack, KnownStack):
        names = ", ".join(map(repr, PROFILES))
        raise InvalidValueError(
            "stack", stack, f"come from one of the profiles, such as Stack.linux(), or be the name of one: {names}"
        )
    return stack


def checked_linux(stack: Stack | StackName | None) -> Linux:
    """Return the stack of a Linux kernel; without a stack, that of a current one."""
    stack = checked_profile(stack)
    if not isinstance(stack, Linux):
        raise InvalidValueError("stack", stack, "be one of Stack.linux(...)")
    return stack
