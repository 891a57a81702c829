"""The rules for TCP.

The rules follow Brosh et al. [1]_. The settings of Linux 6.1 are from ip-sysctl.rst [2]_ and tcp(7). The settings of
macOS are from its tcp(4) and xnu's sources [3]_; the defaults are those that `sysctl -a` prints. The settings of
Windows are from Microsoft's references [4]_ [5]_. Chromium's sources show that it switches Nagle's algorithm off on
every connection that it opens [6]_.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, section VI, doi 10.1109/TNET.2010.2050780.
.. [2] Linux, Documentation/networking/ip-sysctl.rst; tcp_no_ssthresh_metrics_save: commit 65e6d90168f3, Linux 5.6.
.. [3] Apple, xnu, bsd/man/man4/tcp.4 and bsd/netinet/tcp_input.c (`limited_txmt`, net.inet.tcp.rfc3465).
.. [4] Microsoft, "Set-NetTCPSetting", module NetTCPIP; "Registry entry to control TCP acknowledgment behavior"
   (TcpAckFrequency); mstcpip.h (SIO_TCP_SET_ACK_FREQUENCY).
.. [5] Microsoft, "IPPROTO_TCP socket options" (TCP_NODELAY).
.. [6] Chromium, net/socket/tcp_socket_posix.cc and tcp_socket_win.cc, SetDefaultOptionsForClient.
"""

from __future__ import annotations

import math

from tcpdelay.advice.rule import NO_EFFECT, NO_EVIDENCE, Effect, Rule, Settings, Situation, always
from tcpdelay.models.linux.timeouts import is_sparse
from tcpdelay.models.tcp import DELAYED_ACK_MIN, INITIAL_WINDOW
from tcpdelay.models.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.scenario.kernels import RTO_MIN_OPTION
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import format_time

DEFAULT_RECEIVE_BUFFER = 6 * 2**20
"""Largest receive buffer that Linux's auto-tuning sets by default [bytes] (net.ipv4.tcp_rmem)."""
FAR_TAIL = 0.999
"""Quantile of the delay that decides how much data can be waiting in the receive buffer."""
SHORT_TIMEOUT = 0.020
"""Minimum retransmission timeout beyond the RTT that is recommended for sparse flows [s]."""

SWITCHES = "validation/results/switches.csv"
SYSTEM_OF_BROWSER = "cannot be set there; the setting of the operating system applies"


def _nagle_wait(s: Situation) -> Effect:
    """Return the longest wait by Nagle's algorithm: for an acknowledgement, or until a segment is full."""
    filled = math.ceil(s.stack.mss / s.flow.packet_size) * s.flow.interval
    return s.saves_at_most(min(s.path.rtt, filled))


def _sack(s: Situation) -> Effect | None:
    """Return the effect of SACK on a stack without it, or of doing without it; None if the stack always has it."""
    variant = getattr(s.stack, "variant", None)
    return s.switch("variant", "reno" if variant == "sack" else variant, "sack")


def _slow_start(s: Situation) -> Effect:
    """Return that only the first packets gain: the duration of slow start until the window admits the load."""
    duration = s.path.rtt * math.ceil(math.log2(max(s.load / INITIAL_WINDOW, 1)))
    return Effect("none", reason=f"only the first packets gain, up to {format_time(duration)} each")


def backlog_bytes(s: Situation) -> float:
    """Return the data that can be waiting at the receiver for a lost segment [bytes], except in one case in 1000.

    It is infinite if TCP cannot carry the flow, or a simulation has not settled.
    """
    waiting = math.inf if s.distribution is None else s.distribution.quantile(FAR_TAIL)
    return s.flow.bitrate / 8 * (waiting + s.path.rtt)


def _timer_alone_repairs(s: Situation) -> bool:
    """Return whether a timer alone repairs losses, and the socket option TCP_RTO_MIN_US can shorten it."""
    stack = s.stack
    if not (isinstance(stack, Linux) and RTO_MIN_OPTION.holds(stack.kernel) and stack.rto_min >= SHORT_TIMEOUT):
        return False
    return s.path.jitter < SHORT_TIMEOUT and is_sparse(s.flow, s.path, stack)


def _unread(s: Situation) -> Effect:
    """Return that no model has a receive buffer, and how much data can wait in it."""
    return Effect("unknown", reason=f"the models have no receive buffer; here up to {backlog_bytes(s):.0f} bytes wait")


TCP_RULES = (
    Rule(
        "nagle",
        "tcp",
        "Switch Nagle's algorithm off",
        "It holds a small packet back until all earlier packets are acknowledged, or until a segment is full.",
        "packets smaller than a segment",
        lambda s: s.small,
        _nagle_wait,
        "set",
        Settings(
            linux="setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1) at the sender",
            macos="setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1) at the sender",
            windows="setsockopt(s, IPPROTO_TCP, TCP_NODELAY, TRUE) at the sender",
            browser="cannot be set there; Chromium does so on every connection that it opens",
        ),
        SWITCHES,
        finding=lambda s: "All delays in this report are without it.",
    ),
    Rule(
        "delayed-ack",
        "tcp",
        "Switch delayed acknowledgements off at the receiver",
        "While there is a backlog, a delayed ACK delays the next segment.",
        "a backlog can build up",
        always,
        lambda s: s.saves_at_most(DELAYED_ACK_MIN),
        "set",
        Settings(
            linux="setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, 1) after every read, or `ip route change … quickack 1`",
            macos="`sysctl net.inet.tcp.delayed_ack=0`, of the whole system (3, automatic, is the default)",
            windows="`WSAIoctl` with `SIO_TCP_SET_ACK_FREQUENCY` and 1, or `Set-NetTCPSetting -DelayedAckFrequency 1`, "
            "or the interface's registry value `TcpAckFrequency` = 1",
            browser=SYSTEM_OF_BROWSER,
        ),
        SWITCHES,
        stack_field=("delayed_ack", False),
        any_source=True,
    ),
    Rule(
        "sack",
        "tcp",
        "Keep selective acknowledgements on",
        "Several losses of one window are repaired together instead of by a timeout.",
        "always",
        always,
        lambda s: _sack(s) or NO_EFFECT,
        "default",
        Settings(
            linux="sysctl net.ipv4.tcp_sack=1 on both ends",
            macos="`sysctl net.inet.tcp.sack=1`, the default",
            windows="on by default; no setting known to us",
            browser=SYSTEM_OF_BROWSER,
        ),
        SWITCHES,
        any_source=True,
    ),
    Rule(
        "limited-transmit",
        "tcp",
        "Use limited transmit (RFC 3042)",
        "New segments sent on the first two duplicate ACKs cause a third one in small windows; no timeout is needed.",
        "always",
        always,
        lambda s: s.switch("limited_transmit", False, True) or NO_EFFECT,
        "built in",
        Settings(
            linux="always on in Linux; no setting",
            macos="always on; no setting",
            windows="cannot be set there; whether it is on is not documented",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/validation.md",
        any_source=True,
    ),
    Rule(
        "window-validation",
        "tcp",
        "Switch window validation after idle off (RFC 2861)",
        "A window that has grown after a loss is kept through a pause, for the next loss.",
        "always",
        always,
        lambda s: s.switch("window_validation", True, False),
        "set",
        Settings(
            linux="sysctl net.ipv4.tcp_slow_start_after_idle=0 at the sender",
            windows="`Set-NetTCPSetting -CwndRestart False`",
            browser=SYSTEM_OF_BROWSER,
        ),
        SWITCHES,
        stack_field=("window_validation", False),
        any_source=True,
    ),
    Rule(
        "bbr",
        "tcp",
        "Use BBR as the sender's congestion control",
        "It sends at the rate that it measures; random losses do not reduce its window. On a full link with a short "
        "queue it takes more than its share from Reno and CUBIC.",
        "a Linux sender whose flow takes more than a third of the fair TCP rate",
        lambda s: isinstance(s.stack, Linux) and s.utilization > RULE_OF_THUMB_UTILIZATION,
        lambda s: s.switch_or_simulate("congestion_control", "bbr"),
        "set",
        Settings(
            linux='setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) at the sender, after `modprobe tcp_bbr`; or '
            "sysctl net.ipv4.tcp_congestion_control=bbr",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/bbr.md",
        stack_field=("congestion_control", "bbr"),
        any_source=True,
    ),
    Rule(
        "minimum-timeout",
        "tcp",
        f"Lower the minimum retransmission timeout to {format_time(SHORT_TIMEOUT)}",
        "No later packet shows the loss of a sparse flow's packet, so the packet waits for a timer of RTT plus this "
        "minimum, 200 ms by default.",
        f"a sender with Linux {RTO_MIN_OPTION.since} or newer, packets further apart than the retransmission timeout, "
        f"and a jitter below {format_time(SHORT_TIMEOUT)}",
        _timer_alone_repairs,
        lambda s: s.switch("rto_min", getattr(s.stack, "rto_min", None), SHORT_TIMEOUT),
        "set",
        Settings(
            linux=f"setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, {SHORT_TIMEOUT * 1e6:.0f}) at the sender",
            browser=SYSTEM_OF_BROWSER,
        ),
        "validation/results/sparse.md",
        finding=lambda s: "If the RTT varies by more than the minimum, packets that have arrived are sent again.",
        stack_field=("rto_min", SHORT_TIMEOUT),
    ),
    Rule(
        "byte-counting",
        "tcp",
        "Switch appropriate byte counting off (RFC 3465)",
        "The window would grow by the acknowledged bytes, and small packets have few bytes.",
        "packets smaller than a segment",
        lambda s: s.small,
        lambda s: NO_EFFECT,
        "gone",
        Settings(
            linux="net.ipv4.tcp_abc was removed in Linux 3.9; Linux counts segments, so nothing is left to do",
            macos="`sysctl net.inet.tcp.rfc3465=0` (1 is the default)",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/protocols/heuristics.md",
    ),
    Rule(
        "initial-window",
        "tcp",
        "Start with a window that admits the load",
        "The first packets then do not wait for slow start; later packets gain nothing.",
        f"more than {INITIAL_WINDOW} packets per round-trip time",
        lambda s: s.load > INITIAL_WINDOW,
        _slow_start,
        "set",
        Settings(
            linux=f"ip route change … initcwnd {{load}} (default {INITIAL_WINDOW})",
            windows="`Set-NetTCPSetting -InitialCongestionWindowMss {load}`, even numbers up to 64",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/protocols/heuristics.md",
    ),
    Rule(
        "metrics",
        "tcp",
        "Do not inherit ssthresh from earlier connections",
        "One bad connection would keep the windows of later connections small.",
        "several connections to one host",
        always,
        lambda s: NO_EFFECT,
        "default",
        Settings(
            linux="sysctl net.ipv4.tcp_no_ssthresh_metrics_save=1 (the default since 5.6); "
            "net.ipv4.tcp_no_metrics_save=1 for all metrics",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/testbed.md",
        any_source=True,
    ),
    Rule(
        "receive-buffer",
        "tcp",
        "Make the receive buffer large enough for the data behind a loss",
        "A full receive buffer stops the sender until the lost segment has arrived.",
        f"more than the {DEFAULT_RECEIVE_BUFFER} bytes that Linux's auto-tuning allows",
        lambda s: DEFAULT_RECEIVE_BUFFER < backlog_bytes(s) < math.inf,
        _unread,
        "set",
        Settings(
            linux="sysctl net.ipv4.tcp_rmem (third value), or SO_RCVBUF",
            macos="`sysctl net.inet.tcp.autorcvbufmax`, or SO_RCVBUF",
            windows="`Set-NetTCPSetting -AutoTuningLevelLocal Normal`, the default, or SO_RCVBUF",
            browser=SYSTEM_OF_BROWSER,
        ),
        NO_EVIDENCE,
    ),
)
"""Rules that the operating system follows, by itself or by a setting."""
