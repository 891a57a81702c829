"""The rules for the application.

The rules follow Brosh et al. [1]_; some use newer features of today's systems. TCP_NOTSENT_LOWAT exists since Linux
3.12 (commit c9bee3b7fdec), and on macOS, where its number is 0x201 (CPython's bpo-40060). The number of unsent bytes
comes from the ioctl SIOCOUTQ of tcp(7), and on macOS from SO_NWRITE of sys/socket.h; Windows reports only the ideal
backlog [2]_. Browsers have bufferedAmount [3]_ and a largest age of datagrams [4]_.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, section VI, doi 10.1109/TNET.2010.2050780.
.. [2] Microsoft, "SIO_IDEAL_SEND_BACKLOG_QUERY control code".
.. [3] WHATWG, WebSockets standard, bufferedAmount.
.. [4] W3C, WebTransport, outgoingMaxAge.
"""

from __future__ import annotations

from dataclasses import replace

from tcpdelay.advice.playout import fast_retransmit_playout, timeout_in_words, timeout_playout
from tcpdelay.advice.rule import NOT_SETTLED, Effect, Rule, Settings, Situation, always
from tcpdelay.models.tcp import INITIAL_WINDOW
from tcpdelay.models.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.questions.quantities import at_bitrate
from tcpdelay.scenario.fields import bounds
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux, Quic
from tcpdelay.units import format_fraction, format_rate, format_time

MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MIN_MSS, _ = bounds(Linux, "mss")
HEURISTICS = "docs/protocols/heuristics.md"
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
        "docs/working-region.md",
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
        "docs/chain-linux.md",
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
        "docs/chain-linux.md",
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
        Settings(*["at least {load} packets per round-trip time"] * 4),
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
