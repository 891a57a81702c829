"""The guideline rules as data: when each holds, what it does here, and how Linux is told.

Effects are computed for the scenario: by the chain where it can switch the rule, else as a bound that follows from the
protocol. Rules after Brosh et al., IEEE/ACM Transactions on Networking 2010, section VI; settings are those of
Linux 6.1 (Documentation/networking/ip-sysctl.rst, tcp(7)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tcpdelay.applications import Target
from tcpdelay.chain.model import DelayModel
from tcpdelay.distribution import DelayDistribution
from tcpdelay.scenario import MAX_INTERVAL, MIN_INTERVAL, MIN_MSS, Flow, Path
from tcpdelay.units import format_fraction
from tcpdelay.validity import KnownStack

Level = Literal["tcp", "application"]
Status = Literal["set", "default", "built in", "gone", "not a setting"]

DELAYED_ACK = 0.040
"""Longest that Linux withholds an ACK at first [s] (TCP_DELACK_MIN)."""
INITIAL_WINDOW = 10
"""Initial congestion window of Linux since 2.6.39 [segments] (RFC 6928)."""
DEFAULT_RECEIVE_BUFFER = 6 * 2**20
"""Largest receive buffer that Linux's auto-tuning takes by default [bytes] (net.ipv4.tcp_rmem)."""
FAR_TAIL = 0.999


@dataclass(frozen=True)
class Effect:
    """What following a rule does to the target's delay quantile.

    Parameters
    ----------
    basis : {"chain", "bound"}
        Whether both delays come from the chain, or only a bound of the delay saved is known.
    without, with_rule : float, optional
        The quantile [s] without and with the rule; infinite where TCP cannot carry the flow.
    saves_up_to : float, optional
        Largest delay saved per packet [s].
    """

    basis: Literal["chain", "bound"]
    without: float | None = None
    with_rule: float | None = None
    saves_up_to: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """One rule of the guideline, for one scenario.

    Parameters
    ----------
    key : str
        Stable name of the rule.
    level : {"tcp", "application"}
        Who follows it.
    title, reason : str
        What to do, and why.
    condition : str
        When the rule holds.
    applies : bool
        Whether it holds here.
    status : {"set", "default", "built in", "gone", "not a setting"}
        Whether it has to be set on today's Linux.
    setting : str
        The exact setting, or what stands in its place.
    effect : Effect, optional
        What it does here, where that can be said.
    """

    key: str
    level: Level
    title: str
    reason: str
    condition: str
    applies: bool
    status: Status
    setting: str
    effect: Effect | None = None


@dataclass(frozen=True)
class Situation:
    """What the rules look at: the scenario, its target, and the delays predicted for it."""

    flow: Flow
    path: Path
    stack: KnownStack
    target: Target
    distribution: DelayDistribution

    @property
    def load(self) -> float:
        """Packets per round-trip time."""
        return self.path.rtt / self.flow.interval

    @property
    def quantile_now(self) -> float:
        """The target's quantile as predicted [s]."""
        return self.distribution.quantile(self.target.quantile)

    def quantile(self, flow: Flow | None = None, path: Path | None = None, stack: KnownStack | None = None) -> float:
        """Return the target's quantile [s] with something changed."""
        model = DelayModel(flow or self.flow, path or self.path, stack or self.stack)
        return model.delay_distribution().quantile(self.target.quantile)

    def switch(self, name: str, without: Any, with_rule: Any) -> Effect | None:
        """Return the effect of a setting of the stack, or None where its chain has no such one."""
        if name not in {field.name for field in fields(self.stack)}:
            return None
        try:
            before, after = (
                self.quantile(stack=replace(self.stack, **{name: value})) for value in (without, with_rule)
            )
            return Effect("chain", before, after)
        except ValueError:
            # The chain is too large, or does not know what is switched.
            return None

    def change(
        self, flow: Flow | None = None, path: Path | None = None, stack: KnownStack | None = None
    ) -> Effect | None:
        """Return the effect of changing something else, or None where no chain can be solved for it."""
        try:
            return Effect("chain", self.quantile_now, self.quantile(flow, path, stack))
        except ValueError:
            return None


def _tcp_rules(s: Situation) -> list[Recommendation]:
    stack, flow = s.stack, s.flow
    small = flow.packet_size < stack.mss
    nagle_wait = min(s.path.rtt, math.ceil(stack.mss / flow.packet_size) * flow.interval)
    variant = getattr(stack, "variant", "sack")
    backlog_bytes = flow.bitrate / 8 * (s.distribution.quantile(FAR_TAIL) + s.path.rtt)
    return [
        Recommendation(
            "nagle",
            "tcp",
            "Switch Nagle's algorithm off",
            "It holds a small packet back until all earlier ones are acknowledged, or a full segment is there.",
            "packets smaller than a segment",
            small,
            "set",
            "setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, 1) at the sender",
            Effect("bound", saves_up_to=nagle_wait),
        ),
        Recommendation(
            "delayed-ack",
            "tcp",
            "Switch delayed acknowledgements off at the receiver",
            "Late ACKs open the window late while there is a backlog.",
            "a backlog can build up",
            True,
            "set",
            "setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, 1) after every read, or `ip route change … quickack 1`",
            Effect("bound", saves_up_to=DELAYED_ACK),
        ),
        Recommendation(
            "sack",
            "tcp",
            "Keep selective acknowledgements on",
            "Several losses of one window are repaired together instead of by a timeout.",
            "always",
            True,
            "default",
            "sysctl net.ipv4.tcp_sack=1 on both ends",
            s.switch("variant", "reno", "sack" if variant == "reno" else variant),
        ),
        Recommendation(
            "limited-transmit",
            "tcp",
            "Use limited transmit (RFC 3042)",
            "New segments on the first two duplicate ACKs give small windows the third one: no timer is waited for.",
            "always",
            True,
            "built in",
            "always on in Linux; no setting",
            s.switch("limited_transmit", False, True),
        ),
        Recommendation(
            "window-validation",
            "tcp",
            "Switch window validation after idle off (RFC 2861)",
            "The window that earlier losses needed stays open for the next one.",
            "always",
            True,
            "set",
            "sysctl net.ipv4.tcp_slow_start_after_idle=0 at the sender",
            s.switch("window_validation", True, False),
        ),
        Recommendation(
            "byte-counting",
            "tcp",
            "Switch appropriate byte counting off (RFC 3465)",
            "It would grow the window by bytes, which small packets have few of.",
            "packets smaller than a segment",
            small,
            "gone",
            "net.ipv4.tcp_abc was removed in Linux 3.9; Linux counts segments, so nothing is left to do",
        ),
        Recommendation(
            "initial-window",
            "tcp",
            "Start with a window that admits the load",
            "The first packets need not wait for the window to open.",
            f"more than {INITIAL_WINDOW} packets per round-trip time",
            s.load > INITIAL_WINDOW,
            "set",
            f"ip route change … initcwnd {math.ceil(s.load)} (default {INITIAL_WINDOW})",
        ),
        Recommendation(
            "metrics",
            "tcp",
            "Do not inherit ssthresh from earlier connections",
            "One bad connection would keep the windows of the next ones small.",
            "several connections to one host",
            True,
            "default",
            "sysctl net.ipv4.tcp_no_ssthresh_metrics_save=1 (the default since 5.6); "
            "net.ipv4.tcp_no_metrics_save=1 for all metrics",
        ),
        Recommendation(
            "receive-buffer",
            "tcp",
            "Give the receive buffer room for what piles up behind a loss",
            f"Here up to {backlog_bytes:.0f} bytes."
            if math.isfinite(backlog_bytes)
            else "Here no buffer is large enough: TCP cannot carry the flow.",
            f"more than the {DEFAULT_RECEIVE_BUFFER} bytes that Linux's auto-tuning allows",
            backlog_bytes > DEFAULT_RECEIVE_BUFFER,
            "default",
            "sysctl net.ipv4.tcp_rmem (third value), or SO_RCVBUF",
        ),
    ]


def _in_pieces(flow: Flow, pieces: int) -> Flow:
    return Flow(math.ceil(flow.packet_size / pieces), flow.interval / pieces)


def _application_rules(s: Situation) -> list[Recommendation]:
    flow, path, stack = s.flow, s.path, s.stack
    small = flow.packet_size < stack.mss
    per_segment = max(1, stack.mss // flow.packet_size)
    uneven = small and stack.mss % flow.packet_size != 0
    rules = [
        Recommendation(
            "split",
            "application",
            "Write each packet in two halves",
            "The window counts segments: more, smaller ones keep it open and bring duplicate ACKs sooner.",
            "at least two bytes per packet, and room for the headers",
            flow.packet_size >= 2,
            "not a setting",
            "two send() calls with TCP_NODELAY, back to back",
            s.change(flow=_in_pieces(flow, 2)) if flow.packet_size >= 2 and flow.interval >= 2 * MIN_INTERVAL else None,
        ),
        Recommendation(
            "parallel",
            "application",
            "Spread the packets over two connections",
            "A loss holds up only half of the packets; waiting for those of the other connection is left out.",
            "the receiver can put the packets in order again",
            True,
            "not a setting",
            "packets in turn; better: to the connection with the smaller send queue (ioctl SIOCOUTQ)",
            s.change(flow=replace(flow, interval=2 * flow.interval)) if 2 * flow.interval <= MAX_INTERVAL else None,
        ),
        Recommendation(
            "segment-ratio",
            "application",
            "Let whole packets fill a segment",
            "No packet then waits for the segment that carries its rest.",
            "packets smaller than a segment, of which no whole number fills one",
            uneven,
            "set",
            f"setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, {per_segment * flow.packet_size}), or another packet size",
            s.change(stack=replace(stack, mss=per_segment * flow.packet_size))
            if uneven and per_segment * flow.packet_size >= MIN_MSS
            else None,
        ),
        Recommendation(
            "silence",
            "application",
            "Keep sending small packets in silence",
            "The window does not decay, so that speech does not begin in a small one.",
            f"pauses of more than a timeout, and more than {INITIAL_WINDOW} packets per round-trip time",
            s.load > INITIAL_WINDOW,
            "not a setting",
            f"at least {math.ceil(s.load)} packets per round-trip time",
        ),
        Recommendation(
            "proactive-drop",
            "application",
            "Drop packets that would come too late before they are sent",
            f"Of all packets {format_fraction(s.distribution.late_fraction(s.target.limit))} would be of no use, "
            "and delay those behind them.",
            "the application can do without single packets",
            s.distribution.late_fraction(s.target.limit) > 0,
            "not a setting",
            "ioctl SIOCOUTQ before each send; TCP_NOTSENT_LOWAT keeps the unsent data with the application",
        ),
    ]
    if path.bottleneck == "packets" and small:
        rules.append(
            Recommendation(
                "byte-queue",
                "application",
                "Keep the bottleneck's queue in bytes, where it is yours",
                "Small packets then fit where large ones are dropped.",
                "your own router, and losses from its full queue",
                True,
                "set",
                "tc qdisc replace … bfifo limit BYTES in place of pfifo",
                s.change(path=replace(path, bottleneck="bytes")),
            )
        )
    return rules


def recommendations(situation: Situation) -> list[Recommendation]:
    """Return all rules for one situation, those of TCP first; rules that do not hold here are marked so.

    Parameters
    ----------
    situation : Situation
        The scenario with its target and predicted delays.

    Returns
    -------
    list of Recommendation
        Each with its effect where one can be computed.

    Examples
    --------
    >>> from tcpdelay.scenario import Stack
    >>> flow, path = Flow(174, 0.020), Path(rtt=0.100, loss=0.02)
    >>> stack = Stack.newreno_2008(backlog_bound="grow")
    >>> d = DelayModel(flow, path, stack).delay_distribution()
    >>> rules = {rule.key: rule for rule in recommendations(Situation(flow, path, stack, Target(0.2), d))}
    >>> effect = rules["limited-transmit"].effect
    >>> effect.with_rule < effect.without
    True
    """
    return _tcp_rules(situation) + _application_rules(situation)
