"""The rules of the guideline: for TCP, for the application, and for QUIC."""

from __future__ import annotations

import math
from dataclasses import replace

from tcpdelay.accuracy.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.advice.playout import fast_retransmit_playout, timeout_in_words, timeout_playout
from tcpdelay.advice.rule import NO_EFFECT, NO_EVIDENCE, NOT_SETTLED, Effect, Rule, Settings, Situation, always, has
from tcpdelay.chain.linux.parameters import is_sparse
from tcpdelay.declare import bounds
from tcpdelay.scenario.kernels import RTO_MIN_OPTION, is_at_least
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Quic
from tcpdelay.sim.tcp.constants import DELAYED_ACK_MIN, INITIAL_WINDOW
from tcpdelay.study.search import at_bitrate
from tcpdelay.units import format_fraction, format_rate, format_time

# The rules for TCP.
#
# The rules follow Brosh et al. [1]. The settings of Linux 6.1 are from ip-sysctl.rst [2] and tcp(7). The settings of
# macOS are from its tcp(4) and xnu's sources [3]; the defaults are those that `sysctl -a` prints. The settings of
# Windows are from Microsoft's references [4] [5]. Chromium's sources show that it switches Nagle's algorithm off on
# every connection that it opens [6].
#
# References:
# [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
#    Transactions on Networking, 2010, section VII, doi 10.1109/TNET.2010.2050780.
# [2] Linux, Documentation/networking/ip-sysctl.rst; tcp_no_ssthresh_metrics_save: commit 65e6d90168f3, Linux 5.6.
# [3] Apple, xnu, bsd/man/man4/tcp.4 and bsd/netinet/tcp_input.c (`limited_txmt`, net.inet.tcp.rfc3465).
# [4] Microsoft, "Set-NetTCPSetting", module NetTCPIP; "Registry entry to control TCP acknowledgment behavior"
#    (TcpAckFrequency); mstcpip.h (SIO_TCP_SET_ACK_FREQUENCY).
# [5] Microsoft, "IPPROTO_TCP socket options" (TCP_NODELAY).
# [6] Chromium, net/socket/tcp_socket_posix.cc and tcp_socket_win.cc, SetDefaultOptionsForClient.

DEFAULT_RECEIVE_BUFFER = 6 * 2**20
"""Largest receive buffer that Linux's auto-tuning sets by default [bytes] (net.ipv4.tcp_rmem)."""
FAR_TAIL = 0.999
"""Quantile of the delay that decides how much data can be waiting in the receive buffer."""
SHORT_TIMEOUT = 0.020
"""Minimum retransmission timeout beyond the RTT that is recommended for sparse flows [s]."""
RECOMMENDED_WINDOW, INITIAL_WINDOW_OF_2008 = 4, 2
"""Initial windows [segments]: the one that Brosh et al. recommend (RFC 3390), and that of RFC 2581."""
NO_INHERITANCE = "5.6"
"""First version of Linux in which a connection does not inherit ssthresh by default."""
NO_UNORDERED_READ = "no system has such a call for TCP"

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


def _initial_window(s: Situation) -> int:
    """Return the segments with which the sender starts: ten in Linux, two in a TCP of 2008."""
    return INITIAL_WINDOW if isinstance(s.stack, Linux) else INITIAL_WINDOW_OF_2008


def _slow_start(s: Situation) -> Effect:
    """Return that only the first packets gain: the duration of slow start until the window admits the load."""
    duration = s.path.rtt * math.ceil(math.log2(max(s.load / _initial_window(s), 1)))
    if not duration:
        return Effect("none", reason="the first window admits the load")
    return Effect("none", reason=f"only the first packets gain, up to {format_time(duration)} each")


def _starts_afresh(s: Situation) -> bool:
    """Return whether a connection does not inherit ssthresh by default."""
    return not isinstance(s.stack, Linux) or is_at_least(s.stack.kernel, NO_INHERITANCE)


def _unordered(s: Situation) -> Effect:
    """Return that no system has such a call, and how much of the mean delay it would save."""
    parts, mean = s.of_verdict.parts, math.nan if s.distribution is None else s.distribution.mean
    if parts is None or not math.isfinite(mean):
        return Effect("none", reason=NO_UNORDERED_READ)
    saved = f"{format_time(parts.head_of_line)} of the mean delay of {format_time(mean)} is this wait"
    return Effect("none", reason=f"{NO_UNORDERED_READ}; {saved}")


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
        followed=has("delayed_ack", False),
        any_source=True,
    ),
    Rule(
        "sack",
        "tcp",
        "Use selective acknowledgements (SACK)",
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
        followed=has("variant", "sack"),
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
        "docs/accuracy/validation.md",
        followed=has("limited_transmit", True),
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
        followed=has("window_validation", False),
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
        "docs/explained/bbr.md",
        followed=has("congestion_control", "bbr"),
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
        followed=has("rto_min", SHORT_TIMEOUT),
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
        "docs/appendix/protocols/heuristics.md",
        followed=always,
    ),
    Rule(
        "initial-window",
        "tcp",
        f"Start with a window of at least {RECOMMENDED_WINDOW} segments that admits the load",
        "The first packets then do not wait for slow start; later packets gain nothing.",
        "always",
        always,
        _slow_start,
        "set",
        Settings(
            linux=f"ip route change … initcwnd {{load}}, but no less than the default of {INITIAL_WINDOW}",
            windows="`Set-NetTCPSetting -InitialCongestionWindowMss {load}`, even numbers up to 64",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/appendix/protocols/heuristics.md",
        followed=lambda s: _initial_window(s) >= max(RECOMMENDED_WINDOW, s.load),
    ),
    Rule(
        "metrics",
        "tcp",
        "Do not inherit ssthresh from earlier connections",
        "One bad connection would keep the windows of later connections small.",
        "several connections to one host",
        always,
        lambda s: NO_EFFECT if _starts_afresh(s) else Effect("unknown", reason="the models have no earlier connection"),
        "default",
        Settings(
            linux=f"sysctl net.ipv4.tcp_no_ssthresh_metrics_save=1 (the default since {NO_INHERITANCE}); "
            "net.ipv4.tcp_no_metrics_save=1 for all metrics",
            browser=SYSTEM_OF_BROWSER,
        ),
        "docs/how-to/testbed.md",
        followed=_starts_afresh,
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
            linux="SO_RCVBUF, which ends auto-tuning, or sysctl net.ipv4.tcp_rmem (third value)",
            macos="`sysctl net.inet.tcp.autorcvbufmax`, or SO_RCVBUF",
            windows="`Set-NetTCPSetting -AutoTuningLevelLocal Normal`, the default, or SO_RCVBUF",
            browser=SYSTEM_OF_BROWSER,
        ),
        NO_EVIDENCE,
    ),
    Rule(
        "unordered-read",
        "tcp",
        "Read packets before an earlier lost packet has arrived",
        "The receiver has them already, but TCP hands them over in order only.",
        "packets of use without the packets before them",
        always,
        _unordered,
        "missing",
        Settings(
            linux="does not exist in TCP; QUIC with a stream for each message does it",
            macos="does not exist in TCP; QUIC with a stream for each message does it",
            windows="does not exist in TCP; QUIC with a stream for each message does it",
            browser="WebTransport: `createUnidirectionalStream()` for each message",
        ),
        "docs/explained/quic.md",
        any_source=True,
    ),
)
"""Rules that the operating system follows, by itself or by a setting."""


# The rules for the application.
#
# The rules follow Brosh et al. [1]; some use newer features of today's systems. TCP_NOTSENT_LOWAT exists since Linux
# 3.12 (commit c9bee3b7fdec), and on macOS, where its number is 0x201 (CPython's bpo-40060). The number of unsent bytes
# comes from the ioctl SIOCOUTQ of tcp(7), and on macOS from SO_NWRITE of sys/socket.h; Windows reports only the ideal
# backlog [2]. Browsers have bufferedAmount [3] and a largest age of datagrams [4].
#
# References:
# [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
#    Transactions on Networking, 2010, section VII, doi 10.1109/TNET.2010.2050780.
# [2] Microsoft, "SIO_IDEAL_SEND_BACKLOG_QUERY control code".
# [3] WHATWG, WebSockets standard, bufferedAmount.
# [4] W3C, WebTransport, outgoingMaxAge.

MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MIN_MSS, _ = bounds(Linux, "mss")
HEURISTICS = "docs/appendix/protocols/heuristics.md"
CAPTURED_HEURISTICS = "validation/results/heuristics.csv"
IN_CODE = "in the application's code"
IN_TURN, LEAST_BUSY = "par-2-blind", "par-2"
"""Names in a comparison of two connections that take turns, and of the less busy of two connections."""
TWO_CALLS = "two send() calls with TCP_NODELAY, back to back"
NO_TCP = "`bufferedAmount` of the WebSocket; better without TCP: WebTransport datagrams or a WebRTC data channel"


def _uneven(s: Situation) -> bool:
    """Return whether packets are smaller than a segment, and no whole number of packets fills a segment."""
    return s.small and s.stack.mss % s.flow.packet_size != 0


def _whole_packets(s: Situation) -> Effect | None:
    """Return the effect of segments that hold whole packets; None if such a segment is too small for a stack."""
    assert not isinstance(s.stack, Quic)
    return s.change(stack=replace(s.stack, mss=s.whole_packets)) if s.whole_packets >= MIN_MSS else None


def _lower_bitrate(s: Situation) -> Effect | None:
    """Return the effect of the largest bitrate that meets the target."""
    if s.works:
        return Effect("none", reason="the target is met at this bitrate")
    if s.bitrate is None or s.bitrate.edge is None:
        return Effect("none", reason="no bitrate was found that meets the target")
    edge = s.bitrate.edge
    source = s.source
    return s.change(at_bitrate(source, edge, s.stack.mss) if isinstance(source, Flow) else source.at_bitrate(edge))


def _dropped(s: Situation) -> Effect:
    """Return the share of packets that are late now, which bounds the gain of dropping them."""
    if s.distribution is None:
        return NOT_SETTLED
    return Effect(
        "bound",
        s.late_now,
        quantity="late fraction",
        provided="the application can do without single packets",
        reason="the target is met without" if s.works else None,
    )


def _byte_queue(s: Situation) -> Effect | None:
    """Return the effect of a queue limited in bytes; it is not known whether that queue dropped the lost packets."""
    changed = s.change(path=replace(s.path, bottleneck="bytes"))
    return changed and replace(changed, provided="all losses come from that queue being full")


def _longer_playout(s: Situation) -> Effect:
    """Return the effect of a playout that hides a timeout; no gain if the playout that hides one loss is enough."""
    shorter, longer = fast_retransmit_playout(s.flow, s.path), timeout_playout(s.path, s.stack)
    effect = s.played_after(longer)
    if effect.reason is None and s.target.limit < shorter <= longer and s.allowed_after(shorter):
        return replace(effect, reason=f"{format_time(shorter)}, which hides a single loss, is enough")
    return effect


def _capacity(s: Situation) -> str:
    """Return in words the largest bitrate that meets the target, and the flow's share of the fair rate."""
    side = "below" if s.utilization <= RULE_OF_THUMB_UTILIZATION else "above"
    taken = f"The flow takes {format_fraction(s.utilization)} of the fair rate, {side} the rule of thumb of one third."
    if s.bitrate is None or s.bitrate.edge is None:
        return f"No bitrate was found that meets the target. {taken}"
    edge = format_rate(s.bitrate.edge) + (" or more" if s.bitrate.at_least else "")
    return f"The target is met up to {edge}; the flow sends {format_rate(s.source.mean_bitrate)}. {taken}"


APPLICATION_RULES = (
    Rule(
        "bitrate",
        "application",
        "Send no more than TCP carries in time",
        "Below about one third of the fair rate of TCP, backlogs are rare.",
        "flows that miss the target, or take more than a third of the fair rate",
        lambda s: not s.works or s.utilization > RULE_OF_THUMB_UTILIZATION,
        _lower_bitrate,
        "not a setting",
        Settings(*["{lower_rate}"] * 4),
        "docs/accuracy/claims.md",
        finding=_capacity,
        any_source=True,
    ),
    Rule(
        "playout-loss",
        "application",
        "Play out after L + RTT + 3/f to hide single losses",
        "A packet that is lost once then arrives in time, and so do the packets that wait for it.",
        "a call or a video, which the receiver plays out",
        lambda s: s.played_out,
        lambda s: s.played_after(fast_retransmit_playout(s.flow, s.path)),
        "not a setting",
        Settings(IN_CODE, IN_CODE, IN_CODE, "start the `AudioBufferSourceNode` of each packet that much later"),
        "docs/appendix/chain-linux.md",
    ),
    Rule(
        "playout-timeout",
        "application",
        "Play out after RTT + RTO to hide single timeouts",
        "A packet whose loss is detected only by a timeout then arrives in time.",
        "a call or a video, which the receiver plays out",
        lambda s: s.played_out,
        _longer_playout,
        "not a setting",
        Settings(IN_CODE, IN_CODE, IN_CODE, "start the `AudioBufferSourceNode` of each packet that much later"),
        "docs/appendix/chain-linux.md",
        finding=lambda s: timeout_in_words(s.stack),
    ),
    Rule(
        "split",
        "application",
        "Write each packet in two halves",
        "The window counts segments. More and smaller segments let it grow, and bring duplicate ACKs sooner.",
        "at least two bytes per packet, and capacity for the additional headers",
        lambda s: s.flow.packet_size >= 2,
        lambda s: s.split(2) if s.flow.interval >= 2 * MIN_INTERVAL else None,
        "not a setting",
        Settings(
            TWO_CALLS,
            TWO_CALLS,
            TWO_CALLS,
            "two messages of a WebSocket; whether they become two writes is up to the browser",
        ),
        CAPTURED_HEURISTICS,
    ),
    Rule(
        "parallel",
        "application",
        "Spread the packets over two connections",
        "A loss holds up only one connection; to keep the order, the packets of the other connection wait for it. "
        f"The effect is for connections that take turns, {IN_TURN} in tcpdelay compare. Sending each packet over the "
        f"less busy connection, {LEAST_BUSY} there, has other delays, shorter for some flows and longer for others.",
        "a protocol with several connections (RTMP has one), and a receiver that puts the packets in order again",
        always,
        lambda s: s.spread(2) if 2 * s.flow.interval <= MAX_INTERVAL else None,
        "not a setting",
        Settings(
            "packets in turn; or each to the connection with the smaller send queue (ioctl SIOCOUTQ)",
            "packets in turn; or each to the connection with the smaller send queue (SO_NWRITE)",
            "packets in turn",
            "two WebSockets, packets in turn; or each to the WebSocket with the smaller `bufferedAmount`",
        ),
        CAPTURED_HEURISTICS,
    ),
    Rule(
        "segment-ratio",
        "application",
        "Let whole packets fill a segment",
        "No packet then waits for a second segment that carries its end.",
        "packets smaller than a segment, where no whole number of packets fills a segment",
        _uneven,
        _whole_packets,
        "set",
        Settings(
            "setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, {segment}), or another packet size",
            "setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, {segment}), or another packet size",
            "another packet size",
            "another packet size; count the message's header and TLS too",
        ),
        "validation/results/ablation.csv",
    ),
    Rule(
        "silence",
        "application",
        "Keep sending small packets in silence",
        "The congestion window then does not decay, so speech does not resume with a small window.",
        f"pauses of more than a timeout, and more than {INITIAL_WINDOW} packets per round-trip time",
        lambda s: s.load > INITIAL_WINDOW,
        lambda s: Effect("none", reason="this flow has no pauses"),
        "not a setting",
        Settings(
            "at least {load} packets per round-trip time; one byte each is enough, as Linux counts packets",
            *["at least {load} packets per round-trip time"] * 3,
        ),
        HEURISTICS,
    ),
    Rule(
        "proactive-drop",
        "application",
        "Drop packets that would come too late before they are sent",
        "They are of no use, and they delay the packets behind them.",
        "the application can do without single packets, and some packets come too late",
        lambda s: s.late_now != 0,
        _dropped,
        "not a setting",
        Settings(
            "ioctl SIOCOUTQ before each send",
            "getsockopt SO_NWRITE before each send",
            "`WSAIoctl` with `SIO_IDEAL_SEND_BACKLOG_QUERY` returns how much data should be in flight, not how much is",
            NO_TCP,
        ),
        HEURISTICS,
        any_source=True,
    ),
    Rule(
        "notsent-lowat",
        "application",
        "Keep unsent data in the application",
        "Data that TCP does not have yet can still be dropped, or encoded again at a lower rate.",
        "the application drops packets or adapts its rate, and backlogs build up",
        lambda s: s.late_now != 0,
        lambda s: Effect("none", reason="at a constant bitrate it changes no delay by itself"),
        "set",
        Settings(
            "setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1448), and write when poll() reports it as writable",
            "setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1448), and write when kqueue() reports it as writable",
            "cannot be set there; `SIO_IDEAL_SEND_BACKLOG_QUERY` returns how much data to write at most",
            NO_TCP,
        ),
        CAPTURED_HEURISTICS,
    ),
    Rule(
        "byte-queue",
        "application",
        "Limit the bottleneck's queue in bytes, if the router is yours",
        "A nearly full queue then still takes small packets where it drops large packets.",
        "your own router whose queue counts packets, packets smaller than a segment, and losses from its full queue",
        lambda s: s.path.bottleneck == "packets" and s.small,
        _byte_queue,
        "set",
        Settings("tc qdisc replace … bfifo limit BYTES in place of pfifo"),
        "validation/results/drop-tail.csv",
    ),
)
"""Rules that the application follows."""


# The rules for a flow over QUIC.
#
# QUIC runs in the program. Its settings are options of the QUIC library, so rules on TCP settings do not apply.
#
# References:
# [1] RFC 9000, sections 2.1 (streams), 13.2 (acknowledgements) and 18.2 (max_ack_delay).
# [2] RFC 9002, section 6.2.1: the probe timeout contains max_ack_delay.
# [3] RFC 9221: datagrams.
# [4] W3C, WebTransport: createUnidirectionalStream, datagrams.

EVIDENCE = "docs/explained/quic.md"
SHORT_ACK_DELAY = 0.005
"""The `max_ack_delay` that is recommended [s]."""
STREAMS = "a unidirectional stream for each message, with the end of the stream in the same write"
DATAGRAMS = "the library's DATAGRAM frames (RFC 9221)"
ACK_DELAY = "the transport parameter max_ack_delay of the receiver, if its library has a setting for it"

(_BITRATE,) = (rule for rule in APPLICATION_RULES if rule.key == "bitrate")


def _delivery(s: Situation) -> str:
    """Return how messages travel now."""
    assert isinstance(s.stack, Quic)
    return s.stack.delivery


def _max_ack_delay(s: Situation) -> float:
    """Return the longest delay of an ACK [s]."""
    assert isinstance(s.stack, Quic)
    return s.stack.max_ack_delay


def _datagrams(s: Situation) -> Effect | None:
    """Return the effect of datagrams, which only an application can use that can do without a message."""
    effect = s.switch("delivery", _delivery(s), "datagram")
    return effect and replace(effect, provided="the application can do without the messages that are lost")


QUIC_RULES = (
    Rule(
        "delivery-per-message",
        "application",
        "Send each message on a stream of its own",
        "Messages on one stream wait for a lost message before them; messages on streams of their own do not.",
        "messages on streams that the receiver can use in any order",
        lambda s: _delivery(s) != "datagram",
        lambda s: s.switch("delivery", _delivery(s), "stream_per_message"),
        "not a setting",
        Settings(STREAMS, STREAMS, STREAMS, "WebTransport: `createUnidirectionalStream()` for each message"),
        EVIDENCE,
        followed=has("delivery", "stream_per_message"),
        any_source=True,
    ),
    Rule(
        "datagrams",
        "application",
        "Send messages as datagrams (RFC 9221)",
        "A lost datagram is not sent again, and delays nothing; the message is lost.",
        "messages that are of no use when late",
        always,
        _datagrams,
        "not a setting",
        Settings(DATAGRAMS, DATAGRAMS, DATAGRAMS, "WebTransport: write to `datagrams`"),
        EVIDENCE,
        followed=has("delivery", "datagram"),
        any_source=True,
    ),
    Rule(
        "max-ack-delay",
        "tcp",
        "Shorten max_ack_delay at the receiver",
        "The sender learns of a loss from ACKs, and its probe timeout waits for max_ack_delay beyond the RTT.",
        f"a max_ack_delay above {SHORT_ACK_DELAY * 1e3:g} ms, and messages that are sent again",
        lambda s: _max_ack_delay(s) > SHORT_ACK_DELAY and _delivery(s) != "datagram",
        lambda s: s.switch("max_ack_delay", _max_ack_delay(s), SHORT_ACK_DELAY),
        "set",
        Settings(ACK_DELAY, ACK_DELAY, ACK_DELAY),
        EVIDENCE,
        any_source=True,
    ),
    replace(
        _BITRATE,
        title="Send no more than QUIC carries in time",
        reason="Below about one third of the fair rate of TCP Reno, which NewReno of QUIC follows, backlogs are rare.",
        evidence=EVIDENCE,
    ),
)
"""Rules for the application, and for the library of QUIC that it uses."""
