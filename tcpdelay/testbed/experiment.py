"""One experiment of the testbed: source, path, stack, and the cross traffic."""

from __future__ import annotations

import hashlib
import json
from dataclasses import KW_ONLY
from functools import partial
from typing import Any, Literal

from tcpdelay.declare import (
    InvalidValueError,
    choice,
    content,
    declarations,
    described,
    flag,
    fraction,
    in_bytes,
    in_seconds,
    instance_of,
    like,
    quantity,
    require_keys,
)
from tcpdelay.scenario.media import KEY_FRAME
from tcpdelay.scenario.path import LINK_DEFAULTS, LinkSettings, Path, link_settings
from tcpdelay.scenario.scenario import constant_rate
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.source_settings import SourceSettings
from tcpdelay.scenario.stack import Delivery
from tcpdelay.testbed.topology import (
    BOTTLENECK_RATE,
    BUCKET_PEAK_RATE,
    KERNEL_QUEUE_TARGET,
    NEGOTIATE_ECN,
    PATH_RTT,
    QUEUE,
    QUEUE_PACKETS,
    TOKEN_BUCKET,
    QueueKind,
    check_buckets,
    refuse_settings,
)

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


_count = partial(quantity, kind="count", low=1)
_sysctl = partial(quantity, kind="count", low=0, unit="(a sysctl)")
_share = partial(fraction, high=0.5, high_excluded=False, unit="of the packets")
_cross_flows = partial(quantity, kind="count", low=0, high=MAX_CROSS_FLOWS)


@described
class Experiment(LinkSettings):
    """Measured flows of one kind over one path; times in s, sizes in bytes, rates in bit/s.

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

    _: KW_ONLY
    application: Application = choice(
        "What writes the packets.",
        details='"cbr" writes one packet per interval. "adaptive" writes the next packet as soon as the socket '
        'accepts it. "udp" sends one datagram per interval. "source" writes the messages of `source`. "quic" '
        "writes one packet per interval, or the messages of `source`, over QUIC.",
        default="cbr",
    )
    source: SourceSettings | None = content(
        'The source of the messages, for "source" and "quic", in place of `packet_size` and `interval`.',
        instance_of("source", SourceSettings),
        "SourceSettings",
        default=None,
    )
    packet_size: int = in_bytes("Application bytes per packet.", 1, 65_000, default=174)
    interval: float = in_seconds("Time between two packets; an adaptive source ignores it.", 0.001, 60, default=0.020)
    pieces: int = _count("Writes into which a packet is split.", high=16, unit="writes", default=1)
    connections: int = _count(
        "Parallel connections over which the packets of one flow are spread.", high=16, unit="connections", default=1
    )
    scheduling: Scheduling = choice(
        "Choice of the connection for a packet: round robin, or, among the connections outside a "
        "retransmission timeout, the connection with the least unacknowledged data.",
        default="blind",
    )
    nodelay: bool = flag("Whether TCP_NODELAY is set, which switches Nagle's algorithm off.", default=True)
    notsent_lowat: int | None = in_bytes(
        "TCP_NOTSENT_LOWAT of an adaptive source; without it, the source fills the send buffer.",
        1,
        10_000_000,
        default=None,
    )
    implementation: Implementation = choice(
        'The QUIC implementation of both ends, for the application "quic" only.', default="aioquic"
    )
    delivery: Delivery = choice(
        "How QUIC carries messages: all on one stream, each on a new stream, each group on a new stream, "
        "or in DATAGRAM frames (RFC 9221), where a message larger than a datagram is split.",
        default="stream",
    )
    group: int = _count(
        'Messages in a group, for "stream_per_group"; a group of a video begins with a key frame.',
        high=100_000,
        unit="messages",
        default=10,
    )
    flows: int = _count(
        "Number of measured flows of this kind that share the path.", high=MAX_FLOWS, unit="flows", default=1
    )
    rtt: float = like(PATH_RTT, default=0.100)
    loss: float = _share("Probability that a data segment is dropped.", default=0.0)
    ack_loss: float = _share("Probability that a packet from the receiver to the sender is dropped.", default=0.0)
    bottleneck_rate: float | None = like(BOTTLENECK_RATE, default=None)
    queue_packets: int | None = like(QUEUE_PACKETS, default=None)
    queue_bytes: int | None = in_bytes(
        "Limit of the queue in bytes.",
        1514,
        100_000_000,
        details="A fifo needs exactly one of the two limits; the other queues have none in bytes.",
        default=None,
    )
    queue: QueueKind = like(QUEUE, default="fifo")
    queue_target: float | None = like(KERNEL_QUEUE_TARGET, default=None)
    ecn: bool = like(NEGOTIATE_ECN, default=False)
    l4s: bool = flag(
        'Whether the measured flows use the L4S queue of "dualpi2": datagrams carry ECT(1).',
        details='TCP must be "dctcp", whose ECT(0) the queue then takes for L4S, because the kernel has no '
        "congestion control that sends ECT(1).",
        default=False,
    )
    burst: int | None = like(TOKEN_BUCKET, default=None)
    peak_rate: float | None = like(BUCKET_PEAK_RATE, default=None)
    congestion_control: CongestionControl = choice(
        "Congestion control of the TCP connections of the experiment, or of QUIC: reno or, with aioquic "
        "and quinn, cubic.",
        details='"dctcp" negotiates ECN also without `ecn`.',
        default="cubic",
    )
    cross_control: CongestionControl | None = choice(
        "Congestion control of the long transfers and web users, if it is another one.", default=None
    )
    delayed_ack: bool = flag(
        "Whether the receiver may delay acknowledgements; else, it sets TCP_QUICKACK after each read.",
        details="Small packets of a constant bit rate are acknowledged one by one in both cases.",
        default=False,
    )
    sack: bool = flag("The sysctl net.ipv4.tcp_sack.", default=True)
    slow_start_after_idle: bool = flag("The sysctl net.ipv4.tcp_slow_start_after_idle.", default=True)
    recovery: int = _sysctl("The sysctl net.ipv4.tcp_recovery (1: RACK; 0: off).", high=7, default=1)
    early_retrans: int = _sysctl(
        "The sysctl net.ipv4.tcp_early_retrans (3: tail loss probe; 0: off).", high=4, default=3
    )
    rto_min: float | None = in_seconds(
        "Smallest time that the retransmission timeout of the measured flows adds to the round-trip "
        "time; the kernel's default is 0.2.",
        0.001,
        10,
        details="The socket option TCP_RTO_MIN_US, and a "
        "metric of the route with a kernel that lacks it or "
        "refuses the value.",
        default=None,
    )
    bulk_flows: int = _cross_flows("Long transfers beside the measured flows.", unit="flows", default=0)
    web_flows: int = _cross_flows("Web users beside the measured flows.", unit="users", default=0)
    duration: float = in_seconds("Time during which packets are written.", 1, MAX_DURATION, default=60.0)

    def __post_init__(self) -> None:
        refuse_settings(self)
        self._check_losses(self.loss)
        self._check_jitter()
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
            return SourceSettings(self._packets)
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
        require_keys(table, sorted(declarations(cls)), "setting of an experiment")
        if table.get("application") == "quic":
            implementation = table.get("implementation", _DEFAULTS["implementation"])
            control = QUIC_CONGESTION_CONTROLS.get(implementation, ("reno",))[0]
            table = {"congestion_control": control, **table}
        source = table.get("source")
        if source is None:
            return cls(**table)
        for name in _OF_PACKETS:
            if name in table:
                raise ValueError(f"{name} does not go with a source, which has its own sizes and times")
        settings = source if isinstance(source, SourceSettings) else SourceSettings.from_table(source, recorded=True)
        return cls(**{"application": "source", **table, "source": settings})

    @property
    def routed(self) -> bool:
        """Whether the path has a router with a bottleneck."""
        return self.bottleneck_rate is not None

    @property
    def flow(self) -> Flow:
        """The measured flow, for the models; raises InvalidValueError if the rate is not constant."""
        return constant_rate(self._packets if self.source is None else self.source.source)

    @property
    def _packets(self) -> Flow:
        """The packets of an experiment without a source, which the testbed writes exactly on time."""
        return Flow(self.packet_size, self.interval, write_jitter=0.0)

    @property
    def path(self) -> Path:
        """The configured path, for the models: without queueing."""
        return Path(self.rtt, self.loss)

    @property
    def lossy_path(self) -> Path:
        """The configured path with jitter, bursts of losses and lost acknowledgements, for the simulator."""
        return Path(self.rtt, self.loss, ack_loss=self.ack_loss, **link_settings(self))

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
        for name, label in _LABELS.items():
            if (value := getattr(self, name)) != _DEFAULTS[name]:
                parts.append(label.format(_shown(value)))
        return "-".join(parts)

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of a hash of all settings."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:8]

    def to_json(self) -> str:
        """Return all settings that have an effect as one line of JSON."""
        settings = {name: getattr(self, name) for name in _DEFAULTS}
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
_ADDED_LATER = (
    *("rto_min", "l4s", "cross_control", *_OF_BUCKET),
    *(name for name in LINK_DEFAULTS if name not in ("loss_burst", "bad_time", "bad_loss")),
)
"""Settings that earlier captures lack: without an effect they stay out, so that names and hashes do not change."""
_OF_TCP = (
    *("pieces", "connections", "scheduling", "nodelay", "notsent_lowat", "delayed_ack", "sack"),
    *("slow_start_after_idle", "recovery", "early_retrans", "rto_min", "bulk_flows", "web_flows", "cross_control"),
)
_DEFAULTS = {name: declaration.default for name, declaration in declarations(Experiment).items()}
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
_LABELS |= {name: f"{name.replace('_', '')}{{}}" for name in LINK_DEFAULTS if name not in _LABELS}
