"""The rules for the application.

Rules after Brosh et al. [1]_, and what today's systems add. TCP_NOTSENT_LOWAT: Linux 3.12, commit c9bee3b7fdec, and
macOS, where it is 0x201 (CPython's bpo-40060). Unsent bytes: ioctl SIOCOUTQ in tcp(7), SO_NWRITE of macOS in
sys/socket.h, Windows has the ideal backlog alone [2]_. Browsers: bufferedAmount [3]_, largest
age of datagrams [4]_.

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
from tcpdelay.advice.rule import NO_EFFECT, Effect, Rule, Settings, Situation, always
from tcpdelay.models.tcp import INITIAL_WINDOW
from tcpdelay.models.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.questions.quantities import at_bitrate
from tcpdelay.scenario.fields import bounds
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Linux
from tcpdelay.units import format_fraction, format_rate

MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MIN_MSS, _ = bounds(Linux, "mss")
HEURISTICS = "docs/protocols/heuristics.md"
CAPTURED_HEURISTICS = "validation/results/heuristics.csv"
IN_CODE = "in the application's code"
NO_TCP = "`bufferedAmount` of the WebSocket; better no TCP: datagrams of WebTransport or a data channel of WebRTC"


def _uneven(s: Situation) -> bool:
    return s.small and s.stack.mss % s.flow.packet_size != 0


def _whole_packets(s: Situation) -> Effect | None:
    if not _uneven(s) or s.whole_packets < MIN_MSS:
        return None
    return s.change(stack=replace(s.stack, mss=s.whole_packets))


def _lower_bitrate(s: Situation) -> Effect | None:
    """Return the effect of the largest bitrate that meets the target."""
    if s.works or s.bitrate is None or s.bitrate.edge is None:
        return None
    return s.change(flow=at_bitrate(s.flow, s.bitrate.edge, s.stack.mss))


def _byte_queue(s: Situation) -> Effect | None:
    """Return the effect of a queue in bytes, which cannot be known to have dropped what was lost."""
    changed = s.change(path=replace(s.path, bottleneck="bytes")) if s.path.bottleneck == "packets" else None
    return changed and replace(changed, provided="all losses come from that queue being full")


def _capacity(s: Situation) -> str:
    """Say how large a bitrate may be, and how much of the fair rate the present one takes."""
    side = "below" if s.utilization <= RULE_OF_THUMB_UTILIZATION else "above"
    taken = f"it takes {format_fraction(s.utilization)} of the fair rate, {side} the rule of thumb of one third"
    if s.bitrate is None or s.bitrate.edge is None:
        return f"No bitrate was found that meets the target; {taken}."
    most = "or more" if s.bitrate.at_least else "at most"
    edge, now = format_rate(s.bitrate.edge), format_rate(s.flow.bitrate)
    return f"The target is met with {edge} {most}; this is {now}, and {taken}."


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
        Settings(*["a lower rate of the codec or of the camera"] * 4),
        "docs/working-region.md",
        finding=_capacity,
    ),
    Rule(
        "playout-loss",
        "application",
        "Play out after L + RTT + 3/f to hide single losses",
        "A packet that is lost once then arrives in time, as do the packets that wait for it.",
        "the receiver can delay playout",
        always,
        lambda s: s.played_after(fast_retransmit_playout(s.flow, s.path)),
        "not a setting",
        Settings(IN_CODE, IN_CODE, IN_CODE, "start the `AudioBufferSourceNode` of each packet that much later"),
        "docs/chain-linux.md",
    ),
    Rule(
        "playout-timeout",
        "application",
        "Play out after RTT + RTO to hide single timeouts",
        "A packet whose loss only a timeout finds then arrives in time.",
        "the receiver can delay playout by that time",
        always,
        lambda s: s.played_after(timeout_playout(s.path, s.stack)),
        "not a setting",
        Settings(IN_CODE, IN_CODE, IN_CODE, "start the `AudioBufferSourceNode` of each packet that much later"),
        "docs/chain-linux.md",
        finding=lambda s: timeout_in_words(s.stack),
    ),
    Rule(
        "split",
        "application",
        "Write each packet in two halves",
        "The window counts segments: more, smaller ones keep it open and bring duplicate ACKs sooner.",
        "at least two bytes per packet, and room for the headers",
        lambda s: s.flow.packet_size >= 2,
        lambda s: s.split(2) if s.flow.packet_size >= 2 and s.flow.interval >= 2 * MIN_INTERVAL else None,
        "not a setting",
        Settings(
            "two send() calls with TCP_NODELAY, back to back",
            "two send() calls with TCP_NODELAY, back to back",
            "two send() calls with TCP_NODELAY, back to back",
            "two messages of a WebSocket; whether they become two writes is up to the browser",
        ),
        CAPTURED_HEURISTICS,
    ),
    Rule(
        "parallel",
        "application",
        "Spread the packets over two connections",
        "A loss holds up only half of the packets; those of the other connection are waited for.",
        "the receiver can put the packets in order again",
        always,
        lambda s: s.spread(2) if 2 * s.flow.interval <= MAX_INTERVAL else None,
        "not a setting",
        Settings(
            "packets in turn; better: to the connection with the smaller send queue (ioctl SIOCOUTQ)",
            "packets in turn; better: to the connection with the smaller send queue (SO_NWRITE)",
            "packets in turn",
            "two WebSockets, packets in turn; better: to the one with the smaller `bufferedAmount`",
        ),
        CAPTURED_HEURISTICS,
    ),
    Rule(
        "segment-ratio",
        "application",
        "Let whole packets fill a segment",
        "No packet then waits for the segment that carries its rest.",
        "packets smaller than a segment, of which no whole number fills one",
        _uneven,
        _whole_packets,
        "set",
        Settings(
            "setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, {segment}), or another packet size",
            "setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, {segment}), or another packet size",
            "another packet size",
            "another packet size, the message's header and TLS counted in",
        ),
        "validation/results/ablation.csv",
    ),
    Rule(
        "silence",
        "application",
        "Keep sending small packets in silence",
        "The window does not decay, so that speech does not begin in a small one.",
        f"pauses of more than a timeout, and more than {INITIAL_WINDOW} packets per round-trip time",
        lambda s: s.load > INITIAL_WINDOW,
        lambda s: Effect("bound", saves_up_to=s.path.rtt),
        "not a setting",
        Settings(*["at least {load} packets per round-trip time"] * 4),
        HEURISTICS,
    ),
    Rule(
        "proactive-drop",
        "application",
        "Drop packets that would come too late before they are sent",
        "They would be of no use, and delay those behind them.",
        "the application can do without single packets, and some come too late",
        lambda s: s.late_now > 0,
        lambda s: Effect("bound", s.late_now, quantity="late fraction"),
        "not a setting",
        Settings(
            "ioctl SIOCOUTQ before each send",
            "getsockopt SO_NWRITE before each send",
            "`WSAIoctl` with `SIO_IDEAL_SEND_BACKLOG_QUERY` tells how much should be on its way, not how much is",
            NO_TCP,
        ),
        HEURISTICS,
    ),
    Rule(
        "notsent-lowat",
        "application",
        "Keep unsent data in the application",
        "What is not yet with TCP can still be dropped, or encoded anew at a lower rate.",
        "the application drops packets or adapts its rate, and backlogs build up",
        lambda s: s.late_now > 0,
        lambda s: NO_EFFECT,
        "set",
        Settings(
            "setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1448), and write when poll() says so",
            "setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1448), and write when kqueue() says so",
            "cannot be set there; `SIO_IDEAL_SEND_BACKLOG_QUERY` bounds what to hand over",
            NO_TCP,
        ),
        CAPTURED_HEURISTICS,
        finding=lambda s: "For a constant bit rate it changes no delay by itself.",
    ),
    Rule(
        "byte-queue",
        "application",
        "Keep the bottleneck's queue in bytes, where it is yours",
        "Small packets then fit where large ones are dropped.",
        "your own router whose queue counts packets, packets smaller than a segment, and losses from its full queue",
        lambda s: s.path.bottleneck == "packets" and s.small,
        _byte_queue,
        "set",
        Settings("tc qdisc replace … bfifo limit BYTES in place of pfifo"),
        "validation/results/drop-tail.csv",
    ),
)
"""Rules that the application follows."""
