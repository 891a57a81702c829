"""The rules of the guideline, with texts in `rules.toml`, and the playout delays that hide one loss or one timeout.

References
----------
.. [1] Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
   Transactions on Networking, 2010, section VII: L + RTT + 3/f, and 4 RTT for a timeout.
.. [2] RFC 9002, section 6.2.1: the probe timeout (PTO) of QUIC; 1 ms is its granularity (section 6.1.2).
.. [3] RFC 6298: the retransmission timeout is the smoothed round-trip time plus its variation; Linux adds at least
   TCP_RTO_MIN to the smoothed round-trip time (tcp_set_rto, __tcp_set_rto).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as File
from typing import Any, NamedTuple

from tcpdelay.accuracy.throughput import RULE_OF_THUMB_UTILIZATION
from tcpdelay.advice.recommendation import (
    NO_EFFECT,
    NO_EVIDENCE,
    NOT_SETTLED,
    NOT_THERE,
    Effect,
    Level,
    Rule,
    Settings,
    Situation,
    always,
    has,
    never,
)
from tcpdelay.ask import Answer
from tcpdelay.chain.linux.parameters import is_sparse
from tcpdelay.declare import bounds
from tcpdelay.models.predict import COMPARED_PACKETS, simulator
from tcpdelay.models.verdict import late_range
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import (
    DEFAULT_STACK,
    RTO_MIN_OPTION,
    KnownStack,
    KnownTcp,
    Linux,
    NewReno2008,
    Quic,
    is_at_least,
)
from tcpdelay.sim.quic.connection import IMPLEMENTATIONS
from tcpdelay.sim.tcp.constants import DELAYED_ACK_MIN, DUPLICATE_THRESHOLD, INITIAL_WINDOW, SECOND
from tcpdelay.store import read_toml
from tcpdelay.study.search import at_bitrate
from tcpdelay.units import format_fraction, format_rate, format_time

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
MIN_INTERVAL, MAX_INTERVAL = bounds(Flow, "interval")
MIN_MSS, _ = bounds(Linux, "mss")
IN_TURN, LEAST_BUSY = "par-2-blind", "par-2"
"""Names in a comparison of two connections that take turns, and of the less busy of two connections."""
SMALLEST_PART = 0.1
"""Smallest part of the present bitrate that is advised: encoders of video and speech cover a ratio of about ten."""
SHORT_ACK_DELAY = 0.005
"""The `max_ack_delay` that is recommended [s]."""


class Code(NamedTuple):
    """The code of a rule, as the fields of `Rule` of these names."""

    holds: Callable[[Situation], bool]
    effect: Callable[[Situation], Effect | None]
    finding: Callable[[Situation], str] | None = None
    followed: Callable[[Situation], bool] = never


NUMBERS = {
    "short_timeout": format_time(SHORT_TIMEOUT),
    "short_timeout_us": f"{SHORT_TIMEOUT * 1e6:.0f}",
    "rto_min_since": RTO_MIN_OPTION.since,
    "recommended_window": RECOMMENDED_WINDOW,
    "initial_window": INITIAL_WINDOW,
    "no_inheritance": NO_INHERITANCE,
    "receive_buffer": DEFAULT_RECEIVE_BUFFER,
    "in_turn": IN_TURN,
    "least_busy": LEAST_BUSY,
    "short_ack_delay": format_time(SHORT_ACK_DELAY),
    # The scenario gives these numbers and words later: see `Settings.filled_in`.
    **{name: f"{{{name}}}" for name in ("load", "segment", "lower_rate")},
}
"""Numbers of the model, and names, in the texts of the rules."""
TEXTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = read_toml(File(__file__).with_name("rules.toml"))


def _rules(group: str, level: Level, codes: Mapping[str, Code], browser: str = NOT_THERE) -> tuple[Rule, ...]:
    """Return the rules of a group of texts; `browser` is the setting in a browser where the texts have none."""
    rules = []
    for key, code in codes.items():
        texts = {
            name: text.format(**NUMBERS) if isinstance(text, str) else text for name, text in TEXTS[group][key].items()
        }
        anywhere = texts.pop("anywhere", None)
        others = {"linux": NOT_THERE, "macos": NOT_THERE, "windows": NOT_THERE, "browser": browser}
        settings = Settings(**{system: texts.pop(system, anywhere or other) for system, other in others.items()})
        fields: dict[str, Any] = {"level": level, "evidence": NO_EVIDENCE, **texts}
        rules.append(Rule(key=key, settings=settings, **fields, **code._asdict()))
    return tuple(rules)


# The playout delays that hide single losses.


@dataclass(frozen=True)
class PlayoutBuffer:
    """A playout delay [s] that hides one kind of loss, and the share of packets that are late with this delay."""

    masks: str
    formula: str
    delay: float
    late_fraction: float
    late_range: tuple[float, float]  # Smallest and largest share that the expected error of the prediction allows


def fast_retransmit_playout(flow: Flow, path: Path) -> float:
    """Return the playout delay [s] that hides one loss detected by three duplicate ACKs: L + RTT + 3/f."""
    return path.forward_delay + path.rtt + DUPLICATE_THRESHOLD * flow.interval


def timeout_playout(path: Path, stack: KnownStack = DEFAULT_STACK) -> float:
    """Return the playout delay [s] that hides one retransmission timeout of a stack.

    For Linux it is RTT + RTO, where the timeout RTO is at least RTT + `rto_min`. For the published chain it is the
    first timeout, by default 4 RTT. For QUIC it is L + PTO: without jitter the probe timeout PTO is RTT + 1 ms +
    `max_ack_delay`, and its probe carries the oldest data in flight.
    """
    if isinstance(stack, NewReno2008):
        return stack.first_timeout(path.rtt)
    if isinstance(stack, Quic):
        return path.forward_delay + path.rtt + _beyond_rtt(stack)
    return 2 * path.rtt + stack.rto_min


def _beyond_rtt(stack: Quic) -> float:
    """Return the time [s] that the probe timeout adds to the RTT: the granularity, and the announced delay of ACKs."""
    # Imported here, because it imports Numba, which takes a second.
    from tcpdelay.sim.quic.sender import GRANULARITY

    announced = IMPLEMENTATIONS[stack.implementation].settings(stack.max_ack_delay)["max_ack_delay"]
    return (GRANULARITY + announced) / SECOND


def timeout_in_words(stack: KnownStack) -> str:
    """Return the retransmission timeout of a stack in a sentence."""
    if isinstance(stack, NewReno2008):
        timeout = "4 RTT" if stack.initial_timeout is None else format_time(stack.initial_timeout)
        return f"The first retransmission timeout (RTO) of this TCP of 2008 is {timeout}."
    if isinstance(stack, Quic):
        return f"The probe timeout (PTO) of QUIC is RTT + {format_time(_beyond_rtt(stack))} without jitter."
    return f"The retransmission timeout (RTO) of Linux is at least RTT + {format_time(stack.rto_min)}."


def playout_buffers(answer: Answer) -> tuple[PlayoutBuffer, ...]:
    """Return the playout delays that hide single losses, each with its late fraction; none hides a lost datagram."""
    flow, path, stack = answer.scenario.flow, answer.scenario.path, answer.scenario.stack
    delays = answer.require()
    if isinstance(stack, Quic) and stack.delivery == "datagram":
        return ()
    if isinstance(stack, Quic):
        buffers = [
            ("a loss that three later packets show", "L + RTT + 3/f", fast_retransmit_playout(flow, path)),
            ("one probe timeout", "L + PTO", timeout_playout(path, stack)),
        ]
    else:
        buffers = _buffers_of_tcp(flow, path, stack)
    return tuple(
        PlayoutBuffer(masks, formula, delay, delays.late_fraction(delay), late_range(answer, delay))
        for masks, formula, delay in buffers
    )


def _buffers_of_tcp(flow: Flow, path: Path, stack: KnownTcp) -> list[tuple[str, str, float]]:
    """Return what each playout delay over TCP hides, its formula, and the delay [s]."""
    published = stack if isinstance(stack, NewReno2008) else NewReno2008()
    linux = stack if isinstance(stack, Linux) else Linux()
    return [
        ("one fast retransmit", "L + RTT + 3/f", fast_retransmit_playout(flow, path)),
        (
            "one timeout, TCP of 2008",
            "4 RTT" if published.initial_timeout is None else "RTO",
            timeout_playout(path, published),
        ),
        ("one timeout, Linux today", "RTT + RTO", timeout_playout(path, linux)),
    ]


# The rules for TCP.


def _nagle_wait(s: Situation) -> Effect:
    """Return the longest wait by Nagle's algorithm, until a segment is full; an ACK may wait for a repair."""
    return s.saves_at_most(math.ceil(s.stack.mss / s.flow.packet_size) * s.flow.interval)


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


def _inherited(s: Situation) -> Effect:
    """Return that no model has an earlier connection; no effect where nothing is inherited."""
    return NO_EFFECT if _starts_afresh(s) else Effect("unknown", reason="the models have no earlier connection")


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


TCP_RULES = _rules(
    "tcp",
    "tcp",
    {
        "nagle": Code(lambda s: s.small, _nagle_wait, lambda s: "All delays in this report are without it."),
        "delayed-ack": Code(always, lambda s: s.saves_at_most(DELAYED_ACK_MIN), followed=has("delayed_ack", False)),
        "sack": Code(always, lambda s: _sack(s) or NO_EFFECT, followed=has("variant", "sack")),
        "limited-transmit": Code(
            always,
            lambda s: s.switch("limited_transmit", False, True) or NO_EFFECT,
            followed=has("limited_transmit", True),
        ),
        "window-validation": Code(
            always, lambda s: s.switch("window_validation", True, False), followed=has("window_validation", False)
        ),
        "bbr": Code(
            lambda s: isinstance(s.stack, Linux) and s.utilization > RULE_OF_THUMB_UTILIZATION,
            lambda s: s.switch_or_simulate("congestion_control", "bbr"),
            followed=has("congestion_control", "bbr"),
        ),
        "minimum-timeout": Code(
            _timer_alone_repairs,
            lambda s: s.switch("rto_min", getattr(s.stack, "rto_min", None), SHORT_TIMEOUT),
            lambda s: "If the RTT varies by more than the minimum, packets that have arrived are sent again.",
            has("rto_min", SHORT_TIMEOUT),
        ),
        "byte-counting": Code(lambda s: s.small, lambda s: NO_EFFECT, followed=always),
        "initial-window": Code(
            always, _slow_start, followed=lambda s: _initial_window(s) >= max(RECOMMENDED_WINDOW, s.load)
        ),
        "metrics": Code(always, _inherited, followed=_starts_afresh),
        "receive-buffer": Code(lambda s: DEFAULT_RECEIVE_BUFFER < backlog_bytes(s) < math.inf, _unread),
        "unordered-read": Code(always, _unordered),
    },
    browser="cannot be set there; the setting of the operating system applies",
)
"""Rules that the operating system follows, by itself or by a setting."""


# The rules for the application.


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
    edge, source = s.bitrate.edge, s.source
    share = edge / source.mean_bitrate
    if share < SMALLEST_PART:
        lower_rate = f"{format_rate(edge)}, {format_fraction(share)} of the present bitrate"
        return Effect("none", reason=f"the target is met only up to {lower_rate}: too little for the same content")
    lower = at_bitrate(source, edge, s.stack.mss) if isinstance(source, Flow) else source.at_bitrate(edge)
    # A longer simulation than those of the search may miss the target at the edge itself.
    searched = s.bitrate.method == "simulation"
    return s.change(lower, model=simulator(COMPARED_PACKETS) if searched else None)


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


APPLICATION_RULES = _rules(
    "application",
    "application",
    {
        "bitrate": Code(lambda s: not s.works or s.utilization > RULE_OF_THUMB_UTILIZATION, _lower_bitrate, _capacity),
        "playout-loss": Code(lambda s: s.played_out, lambda s: s.played_after(fast_retransmit_playout(s.flow, s.path))),
        "playout-timeout": Code(lambda s: s.played_out, _longer_playout, lambda s: timeout_in_words(s.stack)),
        "split": Code(
            lambda s: s.flow.packet_size >= 2, lambda s: s.split(2) if s.flow.interval >= 2 * MIN_INTERVAL else None
        ),
        "parallel": Code(always, lambda s: s.spread(2) if 2 * s.flow.interval <= MAX_INTERVAL else None),
        "segment-ratio": Code(_uneven, _whole_packets),
        "silence": Code(lambda s: s.load > INITIAL_WINDOW, lambda s: Effect("none", reason="this flow has no pauses")),
        "proactive-drop": Code(lambda s: s.late_now != 0, _dropped),
        "notsent-lowat": Code(
            lambda s: s.late_now != 0,
            lambda s: Effect("none", reason="at a constant bitrate it changes no delay by itself"),
        ),
        "byte-queue": Code(lambda s: s.path.bottleneck == "packets" and s.small, _byte_queue),
    },
)
"""Rules that the application follows."""


# The rules for a flow over QUIC.

(_BITRATE,) = (rule for rule in APPLICATION_RULES if rule.key == "bitrate")


def _delivery(s: Situation) -> str:
    assert isinstance(s.stack, Quic)
    return s.stack.delivery


def _max_ack_delay(s: Situation) -> float:
    assert isinstance(s.stack, Quic)
    return s.stack.max_ack_delay


def _datagrams(s: Situation) -> Effect | None:
    """Return the effect of datagrams, which only an application can use that can do without a message."""
    effect = s.switch("delivery", _delivery(s), "datagram")
    return effect and replace(effect, provided="the application can do without the messages that are lost")


QUIC_RULES = (
    *_rules(
        "quic",
        "application",
        {
            "delivery-per-message": Code(
                lambda s: _delivery(s) != "datagram",
                lambda s: s.switch("delivery", _delivery(s), "stream_per_message"),
                followed=has("delivery", "stream_per_message"),
            ),
            "datagrams": Code(always, _datagrams, followed=has("delivery", "datagram")),
            "max-ack-delay": Code(
                lambda s: _max_ack_delay(s) > SHORT_ACK_DELAY and _delivery(s) != "datagram",
                lambda s: s.switch("max_ack_delay", _max_ack_delay(s), SHORT_ACK_DELAY),
            ),
        },
    ),
    replace(_BITRATE, **TEXTS["quic"]["bitrate"]),
)
"""Rules for the application, and for the library of QUIC that it uses."""
