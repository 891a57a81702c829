"""The shared link: its queue and queue discipline, and the paths to and from it.

The kernels here are those of a queue that is first in, first out, and decides about a packet when it arrives.
`tcpdelay.sim.queues` has the others.

References
----------
.. [1] Floyd, Jacobson, "Random Early Detection Gateways for Congestion Avoidance", IEEE/ACM Transactions on Networking
   1(4), 1993, doi 10.1109/90.251892. The parameters have the paper's names.
.. [2] Floyd, "Recommendation on using the 'gentle_' variant of RED", 2000.
.. [3] Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002: marks beyond one
   bandwidth-delay product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tcpdelay.argument_types import check_field_types
from tcpdelay.compiling.compilation import kernel
from tcpdelay.declare import InvalidValueError, is_number
from tcpdelay.scenario.path import check_losses
from tcpdelay.scenario.path_presets import Discipline
from tcpdelay.sim.network.link_trace import TRACE_INTEGERS, LinkTrace, trace_departure
from tcpdelay.sim.queues.codel import DEFAULT_LIMIT
from tcpdelay.sim.queues.waiting import (
    BUCKET_FLOATS,
    BUCKET_INTEGERS,
    FULL_PACKET,
    LARGEST_LIMIT,
    LINK_ARRAYS,
    LINK_FLOATS,
    LINK_INTEGERS,
    MOST_QUEUES,
    conforms,
    next_departure,
)
from tcpdelay.sim.records import generator_addresses, uniform

DROP_TAIL, RED, DRED, CODEL, FQ_CODEL, PIE, CAKE, DUALPI2, POLICER = range(9)
"""Queue disciplines; CODEL to DUALPI2 are managed (`tcpdelay.sim.queues.managed_link`)."""
LINK_RING = 1 << 16
"""Largest number of packets whose departures are kept."""
DROPPED, WAITING = -1, -2
"""In place of the time of departure: the packet is dropped, or waits in a managed queue."""
PASSED, MARKED, REFUSED = range(3)
"""What a queue discipline decides about a packet."""
FEWEST_MARKS = 0.1
"""Share of the packets that Dred marks when the queue is one bandwidth-delay product long."""
NANOSECONDS_PER_MICROSECOND = 1000
NANOSECONDS = 1e9
"""Nanoseconds per second."""
_MASK = LINK_RING - 1

_INTEGERS = (
    "discipline in_bytes capacity gentle last_departure first next queued queued_bytes marked count "
    "offered dropped marks carried_bytes busy sojourn next_double random_state "
    f"{BUCKET_INTEGERS} {LINK_INTEGERS} {TRACE_INTEGERS}"
)
_FLOATS = f"nanoseconds_per_byte min_th max_th max_p w_q avg mean_packet_size threshold {BUCKET_FLOATS} {LINK_FLOATS}"
LINK = np.dtype(
    [(name, np.float64) for name in _FLOATS.split()]
    + [(name, np.int64) for name in _INTEGERS.split()]
    + [("departures", np.int64, LINK_RING), ("sizes", np.int64, LINK_RING), *LINK_ARRAYS]
)
"""The link: its settings, the packets in the queue, and the counts. Times are nanoseconds."""


@kernel()
def enqueue(link: Any, now: int, size: int, marks_allowed: bool) -> int:
    """Process the arrival of a packet at the queue; packets must arrive in the order of time.

    A packet counts as queued until its last bit has left. `link.marked` is 1 if this packet has been marked.
    """
    time = now * NANOSECONDS_PER_MICROSECOND
    _let_depart(link, time)
    link.offered += 1
    link.marked = 0
    verdict = PASSED
    if link.discipline == RED:
        verdict = _random_early_detection(link, time, size)
    elif link.discipline == DRED:
        verdict = _mark_beyond_threshold(link)
    elif link.discipline == POLICER:
        verdict = PASSED if conforms(link, time, size) else REFUSED
    if verdict == MARKED and not marks_allowed:
        verdict = REFUSED
    full = link.queued_bytes + size > link.capacity if link.in_bytes else link.queued >= link.capacity
    if full or verdict == REFUSED:
        link.dropped += 1
        return DROPPED
    if verdict == MARKED:
        link.marks += 1
        link.marked = 1
    service = round(size * link.nanoseconds_per_byte)
    if link.discipline == POLICER:
        departure = time
    elif link.trace_kind:
        departure = trace_departure(link, time, size)
        service = departure - max(link.last_departure, time)
        link.virtual_finish = departure
    else:
        departure = next_departure(link, time, size)
    link.last_departure = departure
    link.departures[link.next & _MASK] = departure
    link.sizes[link.next & _MASK] = size
    link.next += 1
    link.queued += 1
    link.queued_bytes += size
    link.carried_bytes += size
    link.busy += service
    link.sojourn += departure - time
    return (departure + int(link.added_delay) + NANOSECONDS_PER_MICROSECOND // 2) // NANOSECONDS_PER_MICROSECOND


@kernel()
def _let_depart(link: Any, time: int) -> None:
    """Remove the packets from the queue that have left by a time [ns]."""
    while link.first < link.next and link.departures[link.first & _MASK] <= time:
        link.queued -= 1
        link.queued_bytes -= link.sizes[link.first & _MASK]
        link.first += 1


@kernel()
def _length(link: Any) -> float:
    """Return the length of the queue in the unit of its capacity."""
    return float(link.queued_bytes if link.in_bytes else link.queued)


@kernel()
def _random_early_detection(link: Any, time: int, size: int) -> int:
    """Update the average queue length, and return the decision on a packet that arrives now."""
    length = _length(link)
    if link.queued > 0:
        link.avg += link.w_q * (length - link.avg)
    else:
        # The average decays as if packets of mean size had met an empty queue while the link was idle.
        idle = (time - link.last_departure) / (link.mean_packet_size * link.nanoseconds_per_byte)
        link.avg *= (1.0 - link.w_q) ** idle
    if link.avg < link.min_th:
        link.count = -1
        return PASSED
    limit = 2 * link.max_th if link.gentle else link.max_th
    if link.avg >= limit:
        link.count = 0
        return REFUSED
    if link.avg < link.max_th:
        p_b = link.max_p * (link.avg - link.min_th) / (link.max_th - link.min_th)
    else:
        p_b = link.max_p + (1.0 - link.max_p) * (link.avg - link.max_th) / link.max_th
    if link.in_bytes:
        p_b *= size / link.mean_packet_size
    link.count += 1
    # p_a = p_b / (1 - count p_b): the number of packets between two marks is uniform, not geometric.
    if link.count * p_b < 1.0:
        p_a = p_b / (1.0 - link.count * p_b)
        if uniform(link.next_double, link.random_state) >= p_a:
            return PASSED
    link.count = 0
    return MARKED


@kernel()
def _mark_beyond_threshold(link: Any) -> int:
    """Return Dred's decision on a packet; the threshold is one bandwidth-delay product."""
    beyond = _length(link) / link.threshold - 1.0
    if beyond < 0.0:
        return PASSED
    if beyond >= 1.0:
        return REFUSED
    share = FEWEST_MARKS + (1.0 - FEWEST_MARKS) * beyond
    return MARKED if uniform(link.next_double, link.random_state) < share else PASSED


Unit = Literal["packets", "bytes"]

FASTEST, SLOWEST = 1e12, 1e2
LONGEST_QUEUE = 65_000
PEAK_BURST = 2000
"""Default token bucket of the peak rate [bytes]: one packet, so that packets leave one by one."""
SMALLEST_PACKET = 40
"""Size of the smallest packet [bytes]; a queue limited in bytes holds up to `LONGEST_QUEUE` such packets."""


def check_range(name: str, value: object, low: float, high: float, unit: str) -> None:
    """Raise InvalidValueError unless a value is a number within the range."""
    if not is_number(value) or not low <= value <= high:
        raise InvalidValueError(name, value, f"lie between {low:g} and {high:g} {unit}")


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The shared link, with a bounded queue.

    Parameters
    ----------
    rate : float
        Rate of the link [bit/s], 100 to 1e12.
    capacity : int, optional
        Largest queue length, including the packet that is being sent [`unit`]: 1 to 65 000 packets, or 1 to 2 600 000
        bytes; absent with "policer". Of "codel", "fq_codel", "pie", "cake" and "dualpi2": 1 to 10 240 packets, by
        default as in Linux, which is 1000 packets, 10 240 for "fq_codel", 10 000 for "dualpi2", and 4 MiB of memory for
        "cake", taken for 1820 packets.
    unit : {"packets", "bytes"}
        Unit of the queue length.
    discipline : {"drop-tail", "red", "dred", "codel", "fq_codel", "pie", "cake", "dualpi2", "policer"}
        Which packets are dropped before the queue is full, or marked if the sender understands marks (ECN).
        "drop-tail": none. "red": by random early detection. "dred": a tenth of the packets once one bandwidth-delay
        product is queued; the share rises linearly to 1 at two of them, beyond which every packet is dropped.
        "codel": packets that leave, while all have waited longer than `target` for an `interval`. "fq_codel": the same
        in a queue for each connection, and the queues take turns. "pie": packets that arrive, with a probability that
        holds the queueing delay at `target`. "cake": as "fq_codel" with rules of its own; a packet leaves the link when
        its transmission begins, as CAKE is a shaper before a faster link. "dualpi2": packets of sources with `l4s` go
        first and are marked early, and others are dropped or marked so that the queueing delay is held at `target` and
        both kinds of senders have equal rates. Only `Linux`, `Dctcp`, `Quic` and `Udp` send over these five. "policer":
        no queue; packets for which the token bucket of `burst` bytes has no tokens are dropped, and all others pass at
        once.
    min_th, max_th : float
        RED: average queue lengths [`unit`] above which packets are marked, and dropped; 0 or more, `max_th` above
        `min_th`.
    max_p : float
        RED: share of the packets that are marked when the average reaches `max_th`, above 0 to 1.
    w_q : float
        RED: weight of the present queue length in the average, above 0 to 1.
    gentle : bool
        RED: above `max_th` the share rises linearly to 1 at twice `max_th`, instead of at once.
    mean_packet_size : int
        RED: size of a typical packet [bytes], 40 to 65 535. It sets the decay of the average while the link is idle.
        With a queue in bytes, packets of this size are marked with the share `max_p`.
    bandwidth_delay_product : float, optional
        Dred: one bandwidth-delay product [`unit`], above 0.
    burst : int
        Size of the link's token bucket [bytes], 0 to 1e6: bytes that may leave at once after a pause. 0 with "cake". Of
        "policer": 1 to 1e6 bytes.
    peak_rate : float, optional
        Rate at which the bytes of the token bucket leave [bit/s], above `rate`; by default they leave at once. Linux
        has it as `tbf ... peakrate`. It needs a `burst`, and does not go with "policer".
    peak_burst : int
        Size of the token bucket of the peak rate [bytes], 1514 to 1e6: the `minburst` of `tbf`.
    trace : LinkTrace, optional
        A rate that varies (`tcpdelay.sim.network.link_trace`); `rate` is then its mean. Not with a `burst`.
    target : float, optional
        Queueing delay at which "codel", "fq_codel", "pie", "cake" and "dualpi2" aim [s], 0.0001 to 5. By default 5 ms,
        and 15 ms for "pie" and "dualpi2". "cake" aims at the time of one and a half full packets if this is longer.
    interval : float, optional
        Time within which a sender reacts, for "codel", "fq_codel" and "cake" [s], 0.001 to 100; by default 20 times
        `target`, which is 100 ms. For "pie" and "dualpi2" the time between two updates of the probability, by default
        15 ms and 16 ms.
    quantum : int
        Bytes that a queue of "fq_codel" may send per turn, 256 to 65 535. "cake" derives them from the rate.
    flows : int
        Number of queues of "fq_codel" and "cake", 1 to 1024.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.

    References
    ----------
    Floyd, Jacobson, "Random Early Detection Gateways for Congestion Avoidance", IEEE/ACM Transactions on Networking,
    1993, doi 10.1109/90.251892; the defaults are the values of its simulations. CoDel: RFC 8289. FQ-CoDel: RFC 8290.
    PIE: RFC 8033. DualPI2: RFC 9332. CAKE: Høiland-Jørgensen, Täht, Morton, "Piece of CAKE", IEEE LANMAN 2018.

    Examples
    --------
    >>> Bottleneck(rate=3e6, capacity=100).discipline
    'drop-tail'
    >>> Bottleneck(rate=3e6, discipline="pie").queue_target
    0.015
    """

    rate: float
    capacity: int | None = None
    unit: Unit = "packets"
    discipline: Discipline = "drop-tail"
    min_th: float = 5.0
    max_th: float = 15.0
    max_p: float = 0.02
    w_q: float = 0.002
    gentle: bool = True
    mean_packet_size: int = 1000
    bandwidth_delay_product: float | None = None
    burst: int = 0
    peak_rate: float | None = None
    peak_burst: int = PEAK_BURST
    trace: LinkTrace | None = None
    target: float | None = None
    interval: float | None = None
    quantum: int = FULL_PACKET
    flows: int = MOST_QUEUES

    def __post_init__(self) -> None:
        check_field_types(self)
        scale = SMALLEST_PACKET if self.unit == "bytes" else 1
        check_range("rate", self.rate, SLOWEST, FASTEST, "bit/s")
        check_range("quantum", self.quantum, 256, 65_535, "bytes")
        check_range("flows", self.flows, 1, MOST_QUEUES, "queues")
        if self.managed:
            self._check_managed()
        else:
            if self.discipline != "policer":
                check_range("capacity", self.capacity, 1, LONGEST_QUEUE * scale, self.unit)
            for name in ("target", "interval"):
                if getattr(self, name) is not None:
                    raise InvalidValueError(name, getattr(self, name), f"go with {', '.join(map(repr, MANAGED))}")
        if self.trace is not None and self.discipline not in ("drop-tail", "red", "dred"):
            raise InvalidValueError("discipline", self.discipline, "be 'drop-tail', 'red' or 'dred' with a trace")
        self._check_buckets()
        check_range("max_p", self.max_p, 1e-9, 1, "of the packets")
        check_range("w_q", self.w_q, 1e-9, 1, "of the length")
        check_range("mean_packet_size", self.mean_packet_size, SMALLEST_PACKET, 65_535, "bytes")
        check_range("min_th", self.min_th, 0, LONGEST_QUEUE * scale, self.unit)
        if not self.min_th < self.max_th:
            raise InvalidValueError("max_th", self.max_th, f"be above min_th, {self.min_th:g} {self.unit}")
        if self.discipline == "dred" and not (self.bandwidth_delay_product or 0) > 0:
            raise InvalidValueError(
                "bandwidth_delay_product", self.bandwidth_delay_product, f"be above 0 {self.unit} with 'dred'"
            )

    def _check_buckets(self) -> None:
        policer = self.discipline == "policer"
        check_range("burst", self.burst, 1 if policer else 0, 1e6, "bytes")
        if self.trace is not None and self.burst:
            raise InvalidValueError("burst", self.burst, "be 0 bytes with a trace")
        if policer and (self.capacity is not None or self.unit != "packets"):
            name = "unit" if self.capacity is None else "capacity"
            raise InvalidValueError(name, getattr(self, name), "be absent with 'policer', which has no queue")
        check_range("peak_burst", self.peak_burst, FULL_PACKET, 1e6, "bytes")
        if self.peak_rate is None:
            return
        check_range("peak_rate", self.peak_rate, SLOWEST, FASTEST, "bit/s")
        if self.peak_rate <= self.rate:
            raise InvalidValueError("peak_rate", self.peak_rate, f"be above the rate, {self.rate:g} bit/s")
        if not self.burst or policer:
            raise InvalidValueError("peak_rate", self.peak_rate, "go with a burst, and not with 'policer'")

    def _check_managed(self) -> None:
        if self.unit != "packets":
            raise InvalidValueError("unit", self.unit, f"be 'packets' with {self.discipline!r}")
        check_range("capacity", self.limit, 1, LARGEST_LIMIT, "packets")
        check_range("target", self.queue_target, 1e-4, 5, "s")
        check_range("interval", self.queue_interval, 1e-3, 100, "s")
        if self.discipline == "cake" and self.burst:
            raise InvalidValueError("burst", self.burst, "be 0 bytes with 'cake', which has no token bucket")

    @property
    def managed(self) -> bool:
        """Whether the queue decides about packets when they leave, or lets flows overtake each other."""
        return self.discipline in MANAGED

    @property
    def limit(self) -> int:
        """Largest queue length [`unit`]: `capacity`, or the default of the discipline."""
        return DEFAULT_LIMITS.get(self.discipline, LONGEST_QUEUE) if self.capacity is None else self.capacity

    @property
    def queue_target(self) -> float:
        """Queueing delay at which a managed queue aims [s]: `target`, or the default of the discipline."""
        return TARGETS.get(self.discipline, CODEL_TARGET) if self.target is None else self.target

    @property
    def queue_interval(self) -> float:
        """The `interval` of a managed queue [s], or the default of the discipline."""
        if self.interval is not None:
            return self.interval
        return UPDATES.get(self.discipline, INTERVAL_OVER_TARGET * self.queue_target)


@dataclass(frozen=True, slots=True)
class SharedPath:
    """The path of one flow to the shared link, from there to the receiver, and back.

    Parameters
    ----------
    access_delay, exit_delay : float
        Constant delay before the link and after it [s], 0 to 60.
    return_delay : float, optional
        Constant delay of the acknowledgements [s], 0 to 60; by default `access_delay` + `exit_delay`.
    return_jitter : float
        Largest random delay of an acknowledgement beyond `return_delay` [s], 0 to 1. The random delay is uniformly
        distributed from 0 to this value, and the order of acknowledgements is kept. A small value prevents the phase
        effects of flows on exactly periodic paths.
    loss : float
        Probability that a packet is lost before it reaches the link, a fraction from 0 to 0.999.
    loss_burst : float
        Mean number of packets lost in a row, 1 to 100; above 1 the losses follow netem's Gilbert model.
    in_host : bool
        Whether packets spend the access delay in a queue of the sender's host, as in the testbed. `Linux` does not
        retransmit a segment that has not left the host, not even as a tail loss probe (`skb_still_in_host_queue`).
    bad_time, bad_loss : float
        Gilbert model in time, as in `tcpdelay.Path`: mean duration of the bad state [s], 0 to 60, and probability of a
        loss in it, above `loss` to 1.

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.

    Examples
    --------
    >>> SharedPath(access_delay=0.05).back
    0.05
    """

    access_delay: float
    exit_delay: float = 0.0
    return_delay: float | None = None
    return_jitter: float = 0.0
    loss: float = 0.0
    loss_burst: float = 1.0
    in_host: bool = False
    bad_time: float = 0.0
    bad_loss: float = 1.0

    def __post_init__(self) -> None:
        check_field_types(self)
        check_range("access_delay", self.access_delay, 0, 60, "s")
        check_range("exit_delay", self.exit_delay, 0, 60, "s")
        check_range("return_delay", self.back, 0, 60, "s")
        check_range("return_jitter", self.return_jitter, 0, 1, "s")
        check_range("loss", self.loss, 0, 0.999, "of the packets")
        check_range("loss_burst", self.loss_burst, 1, 100, "packets")
        check_range("bad_time", self.bad_time, 0, 60, "s")
        check_range("bad_loss", self.bad_loss, 0, 1, "of the packets")
        check_losses(self.loss, self.loss_burst, self.bad_time, self.bad_loss)

    @property
    def there(self) -> float:
        """Delay from sender to receiver [s], without the link's queue and transmission."""
        return self.access_delay + self.exit_delay

    @property
    def back(self) -> float:
        """Delay of the acknowledgements [s]."""
        return self.there if self.return_delay is None else self.return_delay


DISCIPLINES: dict[Discipline, int] = {name: number for number, name in enumerate(get_args(Discipline))}
DEFAULT_LIMITS: dict[Discipline, int] = {
    "codel": 1000,
    "fq_codel": LARGEST_LIMIT,
    "pie": 1000,
    "cake": DEFAULT_LIMIT,
    "dualpi2": 10_000,
}
"""Default limits of the managed queues [packets]: `codel_init`, `fq_codel_init`, `pie_params_init`,
`dualpi2_reset_default`."""
MANAGED = tuple(DEFAULT_LIMITS)
CODEL_TARGET, INTERVAL_OVER_TARGET = 0.005, 20
"""Target of CoDel [s], and its interval over the target (RFC 8289, 4.4)."""
TARGETS: dict[Discipline, float] = {"pie": 0.015, "dualpi2": 0.015}
"""Targets of the others [s] (RFC 8033, 4.2; RFC 9332, A.1)."""
UPDATES: dict[Discipline, float] = {"pie": 0.015, "dualpi2": 0.016}
"""Times between two updates of their probabilities [s]."""


def prepare_link(link: Any, bottleneck: Bottleneck, random: np.random.Generator) -> None:
    """Set the fields of the record of a link, of type `LINK` and all zero; it draws random numbers from `random`."""
    nanoseconds_per_byte = 8 * NANOSECONDS / bottleneck.rate
    burst_time = round(bottleneck.burst * nanoseconds_per_byte)
    peak_nanoseconds_per_byte = 0.0 if bottleneck.peak_rate is None else 8 * NANOSECONDS / bottleneck.peak_rate
    peak_burst_time = round(bottleneck.peak_burst * peak_nanoseconds_per_byte)
    link.next_double, link.random_state = generator_addresses(random)
    settings: dict[str, float] = {
        "discipline": DISCIPLINES[bottleneck.discipline],
        "in_bytes": int(bottleneck.unit == "bytes"),
        "capacity": bottleneck.limit,
        "nanoseconds_per_byte": nanoseconds_per_byte,
        "burst_time": burst_time,
        "virtual_finish": -burst_time,
        "peak_nanoseconds_per_byte": peak_nanoseconds_per_byte,
        "peak_burst_time": peak_burst_time,
        "peak_finish": -peak_burst_time,
        "min_th": bottleneck.min_th,
        "max_th": bottleneck.max_th,
        "max_p": bottleneck.max_p,
        "w_q": bottleneck.w_q,
        "gentle": int(bottleneck.gentle),
        "mean_packet_size": bottleneck.mean_packet_size,
        "threshold": bottleneck.bandwidth_delay_product or np.inf,
        "count": -1,
    }
    for name, value in settings.items():
        link[name] = value
    if bottleneck.trace is not None:
        bottleneck.trace.prepare(link)
