"""The link of the testbed, and the path between two programs in a guest."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from tcpdelay.declare import Choice, Content, Flag, InvalidValueError, Quantity, described, in_seconds
from tcpdelay.scenario.link import BURST, LINK_DEFAULTS, PEAK_RATE, QUEUE_TARGET, RATE, LinkSettings

if TYPE_CHECKING:
    from tcpdelay.sim.network.link_trace import LinkTrace


# A link: delay, losses, and a rate with a queue before it, in one direction or in both.

QueueKind = Literal["fifo", "codel", "fq_codel", "red", "pie", "cake", "dualpi2", "policer"]


EMULATED = frozenset(
    {"loss_burst", "bad_time", "bad_loss", "jitter", "jitter_distribution", "jitter_correlation", "in_order"}
)
"""Settings of a link that the testbed applies (`queues`, `network`). It refuses others unless they have no effect."""


@dataclass(frozen=True)
class Schedule:
    """What a link carries over time; it repeats."""

    times: list[int]  # Times of the opportunities, or times from which on the rates hold [ns], ascending
    period: int  # Time after which the schedule repeats [ns]
    # Rates [bit/s]; if it is empty, each time is an opportunity to send 1500 bytes.
    rates: list[int] = field(default_factory=list)
    # Further delays after the link while each rate holds [ns]; empty without rates.
    delays: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Link(LinkSettings):
    """One direction of an emulated path: the settings of `EmulatedPath` and `Experiment`, which check them."""

    delay: float  # Constant delay [s], 0 to 274
    loss: float = 0.0
    rate: float | None = None
    queue: QueueKind = "fifo"
    # A fifo before a rate has one of the two limits.
    queue_packets: int | None = None
    queue_bytes: int | None = None
    queue_target: float | None = None
    ecn: bool = False
    l4s: bool = False
    burst: int | None = None
    peak_rate: float | None = None
    reordering: float = 0.0
    trace: Schedule | None = None

    @classmethod
    def of(cls, settings: object, **changed: Any) -> Link:
        """Return the link with the settings of an `EmulatedPath` or an `Experiment` that it has too, some changed."""
        shared = {each.name: getattr(settings, each.name) for each in fields(cls) if hasattr(settings, each.name)}
        return cls(**(shared | changed))


@dataclass(frozen=True)
class DuplexLink:
    """A link in both directions, between two hosts or routers."""

    # first, second: Names of its ends.
    first: str
    second: str
    # forward, backward: The way from the first to the second end, and the way back.
    forward: Link
    backward: Link
    name: str = ""  # Name in the counts of packets; empty for the only link of a network


# The path between two programs in a guest, alike in both directions unless told otherwise.


def _checked_trace(value: object) -> LinkTrace | None:
    if value is None:
        return None
    # Imported here: it loads NumPy, which the help and most guests do without.
    from tcpdelay.sim.network.link_trace import LinkTrace

    if not isinstance(value, LinkTrace):
        raise InvalidValueError("trace", value, "be a LinkTrace")
    return value


PathRtt: TypeAlias = Annotated[
    float,
    in_seconds(
        "Round-trip time.",
        1e-6,
        10.0,
        details="Each direction has half of this delay, and the queues add to it.",
        example="100ms",
        hint="the round-trip time is given in seconds: 100 ms is 0.100",
    ),
]
Rate: TypeAlias = Annotated[float, replace(RATE, meaning="Rate of a bottleneck.", low=1e4, high=1e9, example="5Mbit/s")]
Queue: TypeAlias = Annotated[
    QueueKind,
    Choice(
        meaning="Queue discipline at the bottleneck: fifo, or a discipline that keeps the queue short.",
        details="A policer has no queue: it drops what exceeds its token bucket of `burst` bytes.",
    ),
]
QueuePackets: TypeAlias = Annotated[
    int,
    Quantity(
        kind="count",
        meaning="Limit of this queue in packets.",
        details="Without it, a fifo and red have 1000, and the other queues have the kernel's limit. red counts "
        "packets of 1514 B. cake has a limit of its own.",
        low=1,
        high=100_000,
        unit="packets",
        example="100",
        default_words="1000 for a fifo and red, or the kernel's",
    ),
]
QueueTarget: TypeAlias = Annotated[
    float, replace(QUEUE_TARGET, meaning="Queueing delay at which the queue aims; not for a fifo.", low=0.001, high=1.0)
]
Ecn: TypeAlias = Annotated[
    bool, Flag(meaning="Negotiate ECN: the queue marks packets instead of dropping them. Not with fifo.")
]
Burst: TypeAlias = Annotated[
    int,
    replace(
        BURST,
        details="One packet without it (net/sched/sch_tbf.c). Not with cake, which has no token bucket.",
        low=2000,
        default_words="one packet",
    ),
]
PeakRate: TypeAlias = Annotated[
    float, replace(PEAK_RATE, details=f"{PEAK_RATE.details} Its own bucket holds one packet.", low=1e4, high=1e10)
]
_loss = partial(
    Quantity,
    kind="fraction",
    low=0.0,
    high=0.5,
    unit="fraction of packets",
    example="1%",
    allowed="be a fraction from 0 to 0.5",
)


def refuse_settings(settings: LinkSettings) -> None:
    """Raise InvalidValueError for a setting of a link that the testbed does not apply."""
    for name, default in LINK_DEFAULTS.items():
        if name not in EMULATED and (value := getattr(settings, name)) != default:
            raise InvalidValueError(name, value, f"be {default} in the testbed")


@described
class EmulatedPath(LinkSettings):
    """The path between a client and a server in a guest. All values hold for each direction.

    Raises
    ------
    InvalidValueError
        If a value is not a number, is out of its range or contradicts another value; a ValueError.

    Examples
    --------
    >>> path = EmulatedPath(rtt=0.1, loss=0.01, server_loss=0)
    >>> path.forward.loss, path.backward.loss, path.backward.delay
    (0.01, 0.0, 0.05)
    """

    rtt: PathRtt
    loss: Annotated[float, _loss(meaning="Probability that a packet is lost, in each direction.")] = 0.0
    server_loss: (
        Annotated[
            float,
            _loss(
                meaning="Probability that a packet from the server is lost.",
                details="`loss` without it.",
                example="0%",
                default_words="that of --loss",
            ),
        ]
        | None
    ) = None
    _: KW_ONLY
    reordering: Annotated[
        float,
        _loss(
            meaning="Share of the packets that pass without the delay of the path, and overtake the packets in flight."
        ),
    ] = 0.0
    rate: Rate | None = None
    burst: Burst | None = None
    peak_rate: PeakRate | None = None
    trace: Annotated[
        Any,
        Content(
            meaning="What the bottleneck carries over time, in place of a rate.",
            details="It begins with the run and repeats, and its queue is a fifo. "
            "`tcpdelay.sim.network.link_trace.read_link_trace` reads one.",
            check=_checked_trace,
            type_name="LinkTrace",
        ),
    ] = None
    queue: Queue = "fifo"
    queue_packets: QueuePackets | None = None
    queue_target: QueueTarget | None = None
    ecn: Ecn = False

    def __post_init__(self) -> None:
        refuse_settings(self)
        for loss in (self.loss, self.forward.loss, self.backward.loss):
            self._check_losses(loss)
        self._check_jitter(self.reordering)
        if self.jitter_correlation > 0 and self.reordering > 0:
            raise InvalidValueError("reordering", self.reordering, "be 0 with correlated jitter")
        if self.trace is not None:
            if self.rate is not None:
                raise InvalidValueError("rate", self.rate, "be absent with a trace of the link")
            if self.queue != "fifo":
                raise InvalidValueError("queue", self.queue, "be 'fifo' with a trace of the link or outages")
        elif self.rate is None and (self.queue != "fifo" or self.queue_packets is not None):
            name = "queue" if self.queue != "fifo" else "queue_packets"
            raise InvalidValueError(name, getattr(self, name), "go with a rate")
        for name in ("burst", "peak_rate"):
            if getattr(self, name) is not None:
                if self.trace is not None:
                    raise InvalidValueError(name, getattr(self, name), "be absent with a trace of the link or outages")
                if self.rate is None:
                    raise InvalidValueError(name, getattr(self, name), "go with a rate")
        if self.rate is not None:
            check_buckets(self.queue, self.rate, self.burst, self.peak_rate)
        for name in ("queue_target", "ecn"):
            if self.queue not in MANAGED and getattr(self, name):
                raise InvalidValueError(name, getattr(self, name), f"go with a queue of {', '.join(MANAGED)}")
        without_limit = {"cake": "cake, which limits its memory", "policer": "a policer, which has no queue"}
        if self.queue in without_limit and self.queue_packets is not None:
            allowed = f"be absent with {without_limit[self.queue]}"
            raise InvalidValueError("queue_packets", self.queue_packets, allowed)

    @property
    def forward(self) -> Link:
        """The way from the client to the server."""
        return self._link(self.loss)

    @property
    def backward(self) -> Link:
        """The way from the server to the client."""
        return self._link(self.loss if self.server_loss is None else self.server_loss)

    def _link(self, loss: float) -> Link:
        limit = DEVICE_LIMIT if self.queue_packets is None and self.queue in ("fifo", "red") else self.queue_packets
        trace = None if self.trace is None else _schedule(self.trace)
        return Link.of(self, delay=self.rtt / 2, loss=loss, queue_packets=limit, trace=trace)


def check_buckets(queue: QueueKind, rate: float, burst: int | None, peak_rate: float | None) -> None:
    """Raise InvalidValueError unless the token buckets of a bottleneck [bytes, bit/s] suit its queue and its rate."""
    if burst is not None and queue == "cake":
        raise InvalidValueError("burst", burst, "be absent with cake, which has no token bucket")
    if burst is not None and 8 * burst / rate > LONGEST_BURST:
        raise InvalidValueError("burst", burst, f"last at most {LONGEST_BURST} s at the rate")
    if burst is None and queue == "policer":
        raise InvalidValueError("burst", burst, "go with a policer")
    if peak_rate is None:
        return
    if burst is None or queue == "policer":
        raise InvalidValueError("peak_rate", peak_rate, "go with a burst, and not with a policer")
    if peak_rate <= rate:
        raise InvalidValueError("peak_rate", peak_rate, f"be above the rate, {rate:g} bit/s")


def _schedule(trace: LinkTrace) -> Schedule:
    return Schedule(trace.times.tolist(), trace.period, trace.rates.tolist(), trace.delays.tolist())


DEVICE_LIMIT = 1000
"""Length of the queue of a device in Linux [packets]."""
LONGEST_BURST = 274
"""Longest time that a token bucket lasts in the kernel [s]: 32 bits in units of 64 ns."""
MANAGED = tuple(kind for kind in get_args(QueueKind) if kind not in ("fifo", "policer"))
"""Queues that the kernel keeps short."""
