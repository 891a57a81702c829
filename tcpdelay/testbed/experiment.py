"""One experiment of the testbed: source, path, stack, and the cross traffic."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tcpdelay.declare import InvalidValueError, bounds
from tcpdelay.scenario.applications import constant_rate
from tcpdelay.scenario.jitter import JitterDistribution, check_jitter
from tcpdelay.scenario.path import Path, check_losses
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.sources.source_settings import SourceSettings
from tcpdelay.scenario.sources.video import KEY_FRAME
from tcpdelay.scenario.stack import Delivery
from tcpdelay.testbed.emulated_path import EmulatedPath, QueueKind, check_buckets

Application = Literal["cbr", "adaptive", "udp", "source", "quic"]
Scheduling = Literal["blind", "intelligent"]
CongestionControl = Literal["reno", "cubic", "bbr", "vegas", "westwood", "dctcp"]
Implementation = Literal["aioquic", "quic-go", "quinn"]
QUIC_CONGESTION_CONTROLS = {"aioquic": ("reno", "cubic"), "quic-go": ("reno",), "quinn": ("cubic", "reno")}
"""Congestion control of each QUIC implementation, the default first: aioquic's package `quic.congestion`, quic-go's
`NewSentPacketHandler` (internal/ackhandler/sent_packet_handler.go), which gives no choice, and quinn's module
`congestion` (its BBR is experimental)."""

MAX_DURATION = 86_400.0
MAX_FLOWS = 64
MAX_CROSS_FLOWS = 400
MIN_DATAGRAM = 8
"""Size of the number that a datagram carries [bytes]; QUIC's has number and count of parts."""
VIRTUAL_TIME_START = 1_700_000_000_000_000_000
"""Calendar time at the start of a run in virtual time [ns since 1970]; a repeated run needs the same time."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Measured flows of one kind over one path; times in s, sizes in bytes, rates in bit/s.

    Parameters
    ----------
    application : {"cbr", "adaptive", "udp", "source", "quic"}
        "cbr" writes one packet per interval. "adaptive" writes the next packet as soon as the socket accepts it.
        "udp" sends one datagram per interval. "source" writes the messages of `source`. "quic" writes one packet per
        interval, or the messages of `source`, over QUIC.
    source : SourceSettings, optional
        The source of the messages, for the applications "source" and "quic"; `packet_size` and `interval` then have no
        effect.
    packet_size : int
        Application bytes per packet [bytes], 1 to 65 000.
    interval : float
        Time between two packets [s], 0.001 to 60; an adaptive source ignores it.
    pieces : int
        Writes into which a packet is split, 1 to 16.
    connections : int
        Parallel connections over which the packets of one flow are spread, 1 to 16.
    scheduling : {"blind", "intelligent"}
        Choice of the connection for a packet: round robin, or, among the connections outside a retransmission
        timeout, the connection with the least unacknowledged data.
    nodelay : bool
        Whether TCP_NODELAY is set, which switches Nagle's algorithm off.
    notsent_lowat : int, optional
        TCP_NOTSENT_LOWAT of an adaptive source [bytes], 1 to 10 000 000; None: the source fills the send buffer.
    implementation : {"aioquic", "quic-go", "quinn"}
        The QUIC implementation of both ends, for the application "quic" only.
    delivery : {"stream", "stream_per_message", "stream_per_group", "datagram"}
        How QUIC carries messages: all on one stream, each on a new stream, each group on a new stream, or in DATAGRAM
        frames (RFC 9221), where a message larger than a datagram is split and has arrived when all its parts have.
    group : int
        Messages in a group, 1 to 100 000, for "stream_per_group" and sources without key frames. A group of a video
        begins with a key frame.
    flows : int
        Number of measured flows of this kind that share the path, 1 to 64.
    rtt : float
        Round-trip time without queueing [s], 1e-6 to 10; each direction has half of this delay.
    loss : float
        Probability that a data segment is dropped, 0 to 0.5.
    loss_burst : float
        Mean number of packets lost in a row, 1 to 100; above 1 the losses follow netem's Gilbert model.
    bad_time, bad_loss : float
        Losses in time, as in `tcpdelay.Path`: mean duration of the bad state [s], 0 to 60, and probability of a loss in
        it, above `loss` to 1. A timer changes netem's loss at the end of each state.
    ack_loss : float
        Probability that a packet from the receiver to the sender is dropped, 0 to 0.5.
    jitter : float
        Largest additional delay of a packet from the sender to the receiver [s], 0 to 1; each is drawn uniformly from 0
        to this, so packets may overtake each other.
    jitter_distribution : {"uniform", "normal", "pareto", "paretonormal"}
        Distribution of the additional delay, as in `tcpdelay.Path`: uniform, or a table of netem.
    jitter_correlation : float
        Correlation between the additional delays of a packet and the packet ahead, 0 to 0.999. A process in a node of
        its own adds such delays, because netem's correlation has no effect on delays.
    in_order : bool
        Whether packets keep their order despite the jitter.
    bottleneck_rate : float, optional
        Rate of a bottleneck link [bit/s], 1e4 to 1e9.
    queue_packets, queue_bytes : int, optional
        Size of the bottleneck's queue, 1 to 100 000 packets or 1514 to 100 000 000 bytes. A fifo needs exactly one of
        the two. The other queues have the kernel's limit unless `queue_packets` is given, red has 1000 packets of
        1514 B, and cake has a limit of its own.
    queue : {"fifo", "codel", "fq_codel", "red", "pie", "cake", "dualpi2", "policer"}
        Queue before the bottleneck: drop-tail, or one of the kernel's disciplines that keep it short. A policer has no
        queue: it drops what exceeds its token bucket of `burst` bytes.
    queue_target : float, optional
        Queueing delay at which such a discipline aims [s], 0.001 to 1; by default that of the kernel, for red 5 ms.
    ecn : bool
        Whether both ends negotiate ECN, and the queue marks their packets in place of a drop; not for a fifo.
    l4s : bool
        Whether the measured flows use the L4S queue of "dualpi2": datagrams carry ECT(1). TCP must be "dctcp", whose
        ECT(0) the queue then takes for L4S, because the kernel has no congestion control that sends ECT(1).
    burst : int, optional
        Token bucket of the bottleneck's rate [bytes], 2000 to 1 000 000; by default one packet. Not with cake.
    peak_rate : float, optional
        Rate at which the bytes of the token bucket leave [bit/s], above `bottleneck_rate` to 1e10; by default they
        leave at once. Not with cake or a policer.
    congestion_control : {"reno", "cubic", "bbr", "vegas", "westwood", "dctcp"}
        Congestion control of the TCP connections of the experiment, or of QUIC: "reno" or, with aioquic and quinn,
        "cubic". "dctcp" negotiates ECN also without `ecn`.
    cross_control : {"reno", "cubic", "bbr", "vegas", "westwood", "dctcp"}, optional
        Congestion control of the long transfers and web users, if it is another one.
    delayed_ack : bool
        Whether the receiver may delay acknowledgements; else, it sets TCP_QUICKACK after each read. Small packets of a
        constant bit rate are acknowledged one by one in both cases.
    sack, slow_start_after_idle : bool
        The sysctls net.ipv4.tcp_sack and net.ipv4.tcp_slow_start_after_idle.
    recovery, early_retrans : int
        The sysctls net.ipv4.tcp_recovery (1: RACK; 0: off), 0 to 7, and net.ipv4.tcp_early_retrans (3: tail loss
        probe; 0: off), 0 to 4.
    rto_min : float, optional
        Smallest time that the retransmission timeout of the measured flows adds to the round-trip time [s], 0.001 to
        10: the socket option TCP_RTO_MIN_US, and a metric of the route with a kernel that lacks it or refuses the
        value. None: the kernel's default, 0.2.
    bulk_flows, web_flows : int
        Numbers of long transfers and web users beside the measured flows, 0 to 400.
    duration : float
        Time during which packets are written [s], 1 to 86 400.

    Raises
    ------
    ValueError
        If a value has the wrong type, is out of range or contradicts another value.

    Examples
    --------
    >>> experiment = Experiment(packet_size=174, interval=0.02, rtt=0.1, loss=0.02, congestion_control="reno")
    >>> experiment.name
    'cbr-174B-20ms-rtt100ms-loss2pct-reno'
    """

    application: Application = "cbr"
    source: SourceSettings | None = None
    packet_size: int = 174
    interval: float = 0.020
    pieces: int = 1
    connections: int = 1
    scheduling: Scheduling = "blind"
    nodelay: bool = True
    notsent_lowat: int | None = None
    implementation: Implementation = "aioquic"
    delivery: Delivery = "stream"
    group: int = 10
    flows: int = 1
    rtt: float = 0.100
    loss: float = 0.0
    loss_burst: float = 1.0
    bad_time: float = 0.0
    bad_loss: float = 1.0
    ack_loss: float = 0.0
    jitter: float = 0.0
    jitter_distribution: JitterDistribution = "uniform"
    jitter_correlation: float = 0.0
    in_order: bool = False
    bottleneck_rate: float | None = None
    queue_packets: int | None = None
    queue_bytes: int | None = None
    queue: QueueKind = "fifo"
    queue_target: float | None = None
    ecn: bool = False
    l4s: bool = False
    burst: int | None = None
    peak_rate: float | None = None
    congestion_control: CongestionControl = "cubic"
    cross_control: CongestionControl | None = None
    delayed_ack: bool = False
    sack: bool = True
    slow_start_after_idle: bool = True
    recovery: int = 1
    early_retrans: int = 3
    rto_min: float | None = None
    bulk_flows: int = 0
    web_flows: int = 0
    duration: float = 60.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("application", Application),
            ("scheduling", Scheduling),
            ("congestion_control", CongestionControl),
            ("cross_control", CongestionControl),
            ("implementation", Implementation),
            ("delivery", Delivery),
            ("queue", QueueKind),
            ("jitter_distribution", JitterDistribution),
        ):
            value = getattr(self, name)
            if value not in get_args(allowed) and not (value is None and name in _OPTIONAL):
                raise InvalidValueError(name, value, f"be one of {', '.join(map(repr, get_args(allowed)))}")
        for name in ("nodelay", "delayed_ack", "sack", "slow_start_after_idle", "ecn", "l4s", "in_order"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidValueError(name, getattr(self, name), "be true or false")
        for name, (low, high, unit) in _RANGES.items():
            self._check_range(name, low, high, unit)
        self._check_combination()

    def _check_range(self, name: str, low: float, high: float, unit: str) -> None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return
        whole = name in _WHOLE
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise InvalidValueError(name, value, f"be a {'whole number' if whole else 'number'} of {unit}")
        if not (low <= value <= high and math.isfinite(value)):
            raise InvalidValueError(name, value, f"lie between {low:g} and {high:g} {unit}")
        if not whole:
            object.__setattr__(self, name, float(value))

    def _check_combination(self) -> None:
        check_losses(self.loss, self.loss_burst, self.bad_time, self.bad_loss)
        check_jitter(self.jitter, self.jitter_distribution, self.jitter_correlation, self.in_order)
        self._check_queue()
        if self.application == "source" and self.source is None:
            raise ValueError("the application 'source' needs a source")
        if self.application not in ("source", "quic") and self.source is not None:
            raise ValueError(f"a source goes with the applications 'source' and 'quic', got {self.application!r}")
        self._check_quic()
        if self.application != "cbr" and (self.pieces > 1 or self.connections > 1):
            raise ValueError(f"pieces and connections are for the application 'cbr', not {self.application!r}")
        if self._sends_datagrams and self.source is None and self.packet_size < MIN_DATAGRAM:
            raise InvalidValueError(
                "packet_size", self.packet_size, f"be at least {MIN_DATAGRAM} bytes when it is sent in datagrams"
            )
        if self.notsent_lowat is not None and self.application != "adaptive":
            raise ValueError(f"notsent_lowat is for the application 'adaptive', not {self.application!r}")
        if self.pieces > self.packet_size:
            raise InvalidValueError("pieces", self.pieces, f"not exceed packet_size ({self.packet_size} bytes)")
        unlimited = self.bottleneck_rate is None and self.loss == 0
        if unlimited and (self.application == "adaptive" or self.bulk_flows):
            raise ValueError("a source that fills its window needs a path with loss or with a bottleneck_rate")

    def _check_queue(self) -> None:
        """Check that the settings of the bottleneck's queue go with each other."""
        limits = [name for name in ("queue_packets", "queue_bytes") if getattr(self, name) is not None]
        changed = [name for name in _OF_QUEUE if getattr(self, name) != _DEFAULTS[name]]
        buckets = [name for name in _OF_BUCKET if getattr(self, name) is not None]
        if self.bottleneck_rate is None and limits + changed + buckets:
            raise ValueError(f"{(limits + changed + buckets)[0]} needs a bottleneck_rate")
        if self.bottleneck_rate is None:
            return
        check_buckets(self.queue, self.bottleneck_rate, self.burst, self.peak_rate)
        if self.queue == "fifo":
            if len(limits) != 1:
                raise ValueError(
                    f"bottleneck_rate needs one of queue_packets and queue_bytes, got {len(limits)} of them"
                )
            if changed:
                raise InvalidValueError(changed[0], getattr(self, changed[0]), "go with a queue other than 'fifo'")
        allowed = {"fifo": limits, "cake": [], "policer": []}.get(self.queue, ["queue_packets"])
        for name in limits:
            if name not in allowed:
                raise InvalidValueError(name, getattr(self, name), f"be absent with {self.queue}")
        if self.queue == "policer" and (self.ecn or self.queue_target is not None):
            name = "ecn" if self.ecn else "queue_target"
            raise InvalidValueError(name, getattr(self, name), "be absent with policer")
        if self.l4s and self.queue != "dualpi2":
            raise InvalidValueError("l4s", self.l4s, "go with the queue 'dualpi2'")
        if self.l4s and self.application != "udp" and self.congestion_control != "dctcp":
            raise InvalidValueError("congestion_control", self.congestion_control, "be 'dctcp' with l4s")

    def _check_quic(self) -> None:
        """Check that no setting of TCP is changed for QUIC, and no setting of QUIC for TCP."""
        quic = self.application == "quic"
        for name in _OF_TCP if quic else _OF_QUIC:
            if getattr(self, name) != _DEFAULTS[name]:
                where = "does not go with" if quic else "is for the application 'quic', not"
                raise ValueError(f"{name} {where} {self.application!r}")
        known = QUIC_CONGESTION_CONTROLS[self.implementation]
        if quic and self.congestion_control not in known:
            one = " or ".join(map(repr, known))
            raise InvalidValueError(
                "congestion_control", self.congestion_control, f"be {one} with {self.implementation}"
            )

    @property
    def _sends_datagrams(self) -> bool:
        return self.application == "udp" or (self.application == "quic" and self.delivery == "datagram")

    @property
    def messages(self) -> SourceSettings | None:
        """The source whose messages are written from a file: `source`, or the packets of QUIC; None for the others."""
        if self.application == "quic" and self.source is None:
            return SourceSettings(Flow(self.packet_size, self.interval))
        return self.source

    @property
    def key_kind(self) -> int | None:
        """Number of the kind of messages that begins a group; None if a group begins every `group` messages."""
        kinds = () if self.source is None else self.source.source.kinds
        return kinds.index(KEY_FRAME) if KEY_FRAME in kinds else None

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Experiment:
        """Return the experiment with the settings of a table; raise ValueError if a key is unknown.

        The source may be a table too. With a source, the application is "source" unless another one is given. For the
        application "quic" the default congestion control is that of the implementation.
        """
        known = {field.name for field in fields(cls)}
        for key in table:
            if key not in known:
                raise ValueError(f"{key!r} is no setting of an experiment; there are {', '.join(sorted(known))}")
        if table.get("application") == "quic":
            control = QUIC_CONGESTION_CONTROLS.get(table.get("implementation", cls.implementation), ("reno",))[0]
            table = {"congestion_control": control, **table}
        source = table.get("source")
        if source is None:
            return cls(**table)
        for name in _OF_PACKETS:
            if name in table:
                raise ValueError(f"{name} does not go with a source, which has its own sizes and times")
        settings = source if isinstance(source, SourceSettings) else SourceSettings.from_table(source)
        return cls(**{"application": "source", **table, "source": settings})

    @property
    def routed(self) -> bool:
        """Whether the path has a router with a bottleneck."""
        return self.bottleneck_rate is not None

    @property
    def flow(self) -> Flow:
        """The measured flow, for the models; raises InvalidValueError if the rate is not constant."""
        return constant_rate(Flow(self.packet_size, self.interval) if self.source is None else self.source.source)

    @property
    def path(self) -> Path:
        """The configured path, for the models: without queueing."""
        return Path(self.rtt, self.loss)

    @property
    def lossy_path(self) -> Path:
        """The configured path with jitter, bursts of losses and lost acknowledgements, for the simulator."""
        return Path(
            self.rtt,
            self.loss,
            loss_burst=self.loss_burst,
            ack_loss=self.ack_loss,
            jitter=self.jitter,
            jitter_distribution=self.jitter_distribution,
            jitter_correlation=self.jitter_correlation,
            in_order=self.in_order,
            bad_time=self.bad_time,
            bad_loss=self.bad_loss,
        )

    @property
    def name(self) -> str:
        """A name that distinguishes experiments: the main settings, then all settings that differ from the default."""
        parts: list[str] = [self.application] if self.source is None else []
        if self.application == "quic":
            parts = [self.implementation, self.delivery.replace("_", "-")]
        parts.append(f"{self.packet_size}B" if self.source is None else self.source.label)
        if self.application in ("cbr", "udp") or (self.application == "quic" and self.source is None):
            parts.append(f"{1e3 * self.interval:g}ms")
        parts += [f"rtt{1e3 * self.rtt:g}ms", f"loss{100 * self.loss:g}pct"]
        if self.application != "udp":
            parts.append(self.congestion_control)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LABELS and value != field.default:
                parts.append(_LABELS[field.name].format(_shown(value)))
        return "-".join(parts)

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of a hash of all settings."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:8]

    def to_json(self) -> str:
        """Return all settings that have an effect as one line of JSON."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        unused: tuple[str, ...] = ("source",) if self.source is None else _OF_PACKETS
        unused += _OF_TCP if self.application == "quic" else _OF_QUIC
        unused += tuple(name for name in _ADDED_LATER if getattr(self, name) == _DEFAULTS[name])
        if self.queue == "fifo":
            unused += _OF_QUEUE
        if self.source is not None:
            settings["source"] = self.source.table
        return json.dumps({name: value for name, value in settings.items() if name not in unused}, sort_keys=True)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


_OF_PACKETS = ("packet_size", "interval")
"""Settings of packets of one size and interval, which a source replaces."""
_OF_QUIC = ("implementation", "delivery", "group")
_OF_QUEUE = ("queue", "queue_target", "ecn", "l4s")
_OF_BUCKET = ("burst", "peak_rate")
_OF_JITTER = ("jitter_distribution", "jitter_correlation", "in_order")
_ADDED_LATER = ("rto_min", "jitter", "l4s", "cross_control", *_OF_BUCKET, *_OF_JITTER)
"""Settings that earlier captures lack: without an effect they stay out, so that names and hashes do not change."""
_OF_TCP = (
    *("pieces", "connections", "scheduling", "nodelay", "notsent_lowat", "delayed_ack", "sack"),
    *("slow_start_after_idle", "recovery", "early_retrans", "rto_min", "bulk_flows", "web_flows", "cross_control"),
)
_DEFAULTS = {field.name: field.default for field in fields(Experiment)}
_RANGES: dict[str, tuple[float, float, str]] = {
    "packet_size": (1, 65_000, "bytes"),
    "interval": (0.001, 60, "s"),
    "pieces": (1, 16, "writes"),
    "connections": (1, 16, "connections"),
    "notsent_lowat": (1, 10_000_000, "bytes"),
    "group": (1, 100_000, "messages"),
    "flows": (1, MAX_FLOWS, "flows"),
    "rtt": (bounds(Path, "rtt")[0], 10, "s"),
    "loss": (0, 0.5, "of the packets"),
    "loss_burst": (1, 100, "packets"),
    "bad_time": (*bounds(Path, "bad_time"), "s"),
    "bad_loss": (*bounds(Path, "bad_loss"), "of the packets"),
    "ack_loss": (0, 0.5, "of the packets"),
    "jitter": (*bounds(Path, "jitter"), "s"),
    "jitter_correlation": (0, 0.999, "(a correlation)"),
    "bottleneck_rate": (1e4, 1e9, "bit/s"),
    "queue_packets": (1, 100_000, "packets"),
    "queue_bytes": (1514, 100_000_000, "bytes"),
    "queue_target": (*bounds(EmulatedPath, "queue_target"), "s"),
    "burst": (*bounds(EmulatedPath, "burst"), "bytes"),
    "peak_rate": (*bounds(EmulatedPath, "peak_rate"), "bit/s"),
    "recovery": (0, 7, "(a sysctl)"),
    "early_retrans": (0, 4, "(a sysctl)"),
    "rto_min": (0.001, 10, "s"),
    "bulk_flows": (0, MAX_CROSS_FLOWS, "flows"),
    "web_flows": (0, MAX_CROSS_FLOWS, "users"),
    "duration": (1, MAX_DURATION, "s"),
}
_OPTIONAL = {field.name for field in fields(Experiment) if field.default is None}
_WHOLE = {field.name for field in fields(Experiment) if field.type in ("int", "int | None")}
_LABELS = {
    "pieces": "split{}",
    "connections": "par{}",
    "scheduling": "{}",
    "nodelay": "nodelay-{}",
    "notsent_lowat": "lowat{}",
    "group": "group{}",
    "flows": "flows{}",
    "loss_burst": "burst{}",
    "bad_time": "bad{}s",
    "bad_loss": "badloss{}",
    "ack_loss": "ackloss{}",
    "jitter": "jitter{}s",
    "jitter_distribution": "{}",
    "jitter_correlation": "corr{}",
    "in_order": "inorder-{}",
    "bottleneck_rate": "rate{}",
    "queue_packets": "queue{}p",
    "queue_bytes": "queue{}B",
    "queue": "{}",
    "queue_target": "target{}s",
    "ecn": "ecn-{}",
    "l4s": "l4s-{}",
    "burst": "bucket{}B",
    "peak_rate": "peak{}",
    "cross_control": "cross-{}",
    "delayed_ack": "delack-{}",
    "sack": "sack-{}",
    "slow_start_after_idle": "ssai-{}",
    "recovery": "recovery{}",
    "early_retrans": "earlyretrans{}",
    "rto_min": "rtomin{}s",
    "bulk_flows": "bulk{}",
    "web_flows": "web{}",
}
