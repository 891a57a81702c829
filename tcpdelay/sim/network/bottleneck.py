"""The shared link: its queue and queue discipline, and the paths to and from it.

A queue that is first in, first out, decides about a packet when it arrives. At a link with a managed queue, packets
wait, and the link takes the next one when it is free; `queue_disciplines` decides which.

References
----------
.. [1] Floyd, Jacobson, "Random Early Detection Gateways for Congestion Avoidance", IEEE/ACM Transactions on Networking
   1(4), 1993, doi 10.1109/90.251892. The parameters have the paper's names.
.. [2] Floyd, "Recommendation on using the 'gentle_' variant of RED", 2000.
.. [3] Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002: marks beyond one
   bandwidth-delay product.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Literal, Protocol, get_args

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import generator_addresses, uniform
from tcpdelay.declare import (
    InvalidValueError,
    Quantity,
    choice,
    content,
    described,
    flag,
    fraction,
    in_bytes,
    in_seconds,
    instance_of,
    like,
    quantity,
)
from tcpdelay.scenario.path import (
    BURST,
    CAPACITY,
    DISCIPLINE,
    LONGEST_QUEUE,
    PEAK_RATE,
    QUEUE_TARGET,
    RATE,
    SMALLEST_PACKET,
    Discipline,
    LossBursts,
)
from tcpdelay.sim.network.link_trace import LinkTrace, trace_departure
from tcpdelay.sim.network.queue_disciplines import (
    DEFAULT_LIMIT,
    dequeue_cake,
    dequeue_codel,
    dequeue_dualpi2,
    dequeue_fq_codel,
    dequeue_pie,
    enqueue_cake,
    enqueue_dualpi2,
    enqueue_fq_codel,
    enqueue_pie,
    start_cake,
    start_dualpi2,
    start_pie,
)
from tcpdelay.sim.network.waiting import (
    DISCARDED,
    FULL_PACKET,
    LARGEST_LIMIT,
    LINK_RING,
    MOST_QUEUES,
    NOBODY,
    Link,
    append,
    conclude,
    conforms,
    empty_queues,
    next_departure,
    take_slot,
)
from tcpdelay.sim.tcp.constants import NEVER

DROP_TAIL, RED, DRED, CODEL, FQ_CODEL, PIE, CAKE, DUALPI2, POLICER = range(9)
"""Queue disciplines; CODEL to DUALPI2 are managed (`tcpdelay.sim.network.bottleneck`)."""
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


@kernel()
def enqueue(link: Link, now: int, size: int, marks_allowed: bool) -> int:
    """Process the arrival of a packet at the queue, in the order of time; `link.marked` is 1 if it has been marked."""
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
def _let_depart(link: Link, time: int) -> None:
    """Remove the packets from the queue that have left by a time [ns]."""
    while link.first < link.next and link.departures[link.first & _MASK] <= time:
        link.queued -= 1
        link.queued_bytes -= link.sizes[link.first & _MASK]
        link.first += 1


@kernel()
def _length(link: Link) -> float:
    """Return the length of the queue in the unit of its capacity."""
    return float(link.queued_bytes if link.in_bytes else link.queued)


@kernel()
def _random_early_detection(link: Link, time: int, size: int) -> int:
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
def _mark_beyond_threshold(link: Link) -> int:
    """Return Dred's decision on a packet; the threshold is one bandwidth-delay product."""
    beyond = _length(link) / link.threshold - 1.0
    if beyond < 0.0:
        return PASSED
    if beyond >= 1.0:
        return REFUSED
    share = FEWEST_MARKS + (1.0 - FEWEST_MARKS) * beyond
    return MARKED if uniform(link.next_double, link.random_state) < share else PASSED


Unit = Literal["packets", "bytes"]
_share = partial(fraction, unit="", low_excluded=True, high_excluded=False, allowed="be a fraction above 0, up to 1")
_LENGTH = replace(CAPACITY, kind="number", details="In `unit`.", low=0, default_words="")
_DELAY: Quantity = in_seconds("Constant delay before the link.", 0, 60, example="50ms")


@described
class Bottleneck:
    """The shared link, with a bounded queue.

    The disciplines drop packets before the queue is full, or mark them if the sender understands marks (ECN):

    - "drop-tail": none. "red": by random early detection.
    - "dred": a tenth of the packets once one bandwidth-delay product is queued; the share rises linearly to 1 at two of
      them, beyond which every packet is dropped.
    - "codel": packets that leave, while all have waited longer than `target` for an `interval`. "fq_codel": the same in
      a queue for each connection, and the queues take turns.
    - "pie": packets that arrive, with a probability that holds the queueing delay at `target`.
    - "cake": as "fq_codel" with rules of its own; a packet leaves the link when its transmission begins, as CAKE is a
      shaper before a faster link.
    - "dualpi2": packets of sources with `l4s` go first and are marked early, and others are dropped or marked so that
      the queueing delay is held at `target` and both kinds of senders have equal rates.
    - "policer": no queue; packets for which the token bucket of `burst` bytes has no tokens are dropped, and all others
      pass at once.

    Only `Linux`, `Dctcp`, `Quic` and `Udp` send over "codel", "fq_codel", "pie", "cake" and "dualpi2".

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

    rate: float = like(RATE, default_words="")
    capacity: int | None = like(CAPACITY, default=None)
    unit: Unit = choice("Unit of the queue length.", default="packets")
    discipline: Discipline = like(DISCIPLINE, default="drop-tail")
    min_th: float = like(_LENGTH, meaning="RED: average length above which packets are marked.", default=5.0)
    max_th: float = like(_LENGTH, meaning="RED: average length above which packets are dropped.", default=15.0)
    max_p: float = _share("RED: share of the packets that are marked when the average reaches `max_th`.", default=0.02)
    w_q: float = _share("RED: weight of the present queue length in the average.", default=0.002)
    gentle: bool = flag(
        "RED: above `max_th` the share rises linearly to 1 at twice `max_th`, instead of at once.", default=True
    )
    mean_packet_size: int = in_bytes(
        "RED: size of a typical packet.",
        SMALLEST_PACKET,
        65_535,
        details="It sets the decay of the average while the link is idle. With a queue in bytes, packets of this "
        "size are marked with the share `max_p`.",
        default=1000,
    )
    bandwidth_delay_product: float | None = like(
        _LENGTH,
        meaning="Dred: one bandwidth-delay product.",
        low_excluded=True,
        high=1e15,
        allowed="be above 0",
        default=None,
    )
    burst: int = like(BURST, details="0 with cake, and at least 1 with a policer.", default=0)
    peak_rate: float | None = like(
        PEAK_RATE, details=f"{PEAK_RATE.details} Linux has it as `tbf ... peakrate`.", default=None
    )
    peak_burst: int = like(
        BURST,
        meaning="Token bucket of the peak rate: the `minburst` of `tbf`, by default one packet.",
        low=FULL_PACKET,
        example="2000B",
        default=2000,
    )
    trace: LinkTrace | None = content(
        "A rate that varies (`tcpdelay.sim.network.link_trace`); `rate` is then its mean.",
        instance_of("trace", LinkTrace),
        "LinkTrace",
        details="Not with a `burst`.",
        default=None,
    )
    target: float | None = like(
        QUEUE_TARGET, details='"cake" aims at the time of one and a half full packets if this is longer.', default=None
    )
    interval: float | None = in_seconds(
        "Time within which a sender reacts, for codel, fq_codel and cake.",
        1e-3,
        100,
        details="By default 20 times `target`, which is 100 ms. For pie and dualpi2 the time between two "
        "updates of the probability, by default 15 ms and 16 ms.",
        default=None,
    )
    quantum: int = in_bytes(
        "Bytes that a queue of fq_codel may send per turn; cake derives them from the rate.",
        256,
        65_535,
        default=FULL_PACKET,
    )
    flows: int = quantity(
        "Number of queues of fq_codel and cake.", 1, MOST_QUEUES, "queues", "count", default=MOST_QUEUES
    )

    def __post_init__(self) -> None:
        if self.managed:
            self._check_managed()
        elif self.discipline != "policer" or self.capacity is not None:
            most = LONGEST_QUEUE * (SMALLEST_PACKET if self.unit == "bytes" else 1)
            replace(CAPACITY, high=most, unit=self.unit).require("capacity", self.capacity)
            replace(_LENGTH, high=most, unit=self.unit).require("min_th", self.min_th)
        for name in () if self.managed else ("target", "interval"):
            if getattr(self, name) is not None:
                raise InvalidValueError(name, getattr(self, name), f"go with {', '.join(map(repr, MANAGED))}")
        if self.trace is not None and self.discipline not in ("drop-tail", "red", "dred"):
            raise InvalidValueError("discipline", self.discipline, "be 'drop-tail', 'red' or 'dred' with a trace")
        self._check_buckets()
        if not self.min_th < self.max_th:
            raise InvalidValueError("max_th", self.max_th, f"be above min_th, {self.min_th:g} {self.unit}")
        if self.discipline == "dred" and self.bandwidth_delay_product is None:
            raise InvalidValueError("bandwidth_delay_product", None, f"be above 0 {self.unit} with 'dred'")

    def _check_buckets(self) -> None:
        policer = self.discipline == "policer"
        if policer:
            replace(BURST, low=1).require("burst", self.burst)
        if self.trace is not None and self.burst:
            raise InvalidValueError("burst", self.burst, "be 0 bytes with a trace")
        if policer and (self.capacity is not None or self.unit != "packets"):
            name = "unit" if self.capacity is None else "capacity"
            raise InvalidValueError(name, getattr(self, name), "be absent with 'policer', which has no queue")
        if self.peak_rate is None:
            return
        if self.peak_rate <= self.rate:
            raise InvalidValueError("peak_rate", self.peak_rate, f"be above the rate, {self.rate:g} bit/s")
        if not self.burst or policer:
            raise InvalidValueError("peak_rate", self.peak_rate, "go with a burst, and not with 'policer'")

    def _check_managed(self) -> None:
        if self.unit != "packets":
            raise InvalidValueError("unit", self.unit, f"be 'packets' with {self.discipline!r}")
        replace(CAPACITY, high=LARGEST_LIMIT, unit="packets").require("capacity", self.limit)
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


@described
class SharedPath(LossBursts):
    """The path of one flow to the shared link, from there to the receiver, and back.

    Examples
    --------
    >>> SharedPath(access_delay=0.05).back
    0.05
    """

    access_delay: float = like(_DELAY)
    exit_delay: float = like(_DELAY, meaning="Constant delay after the link.", default=0.0)
    return_delay: float | None = like(
        _DELAY,
        meaning="Constant delay of the acknowledgements; by default `access_delay` + `exit_delay`.",
        default=None,
    )
    return_jitter: float = in_seconds(
        "Largest random delay of an acknowledgement beyond `return_delay`.",
        0,
        1,
        details="The random delay is uniformly distributed from 0 to this value, and the order of "
        "acknowledgements is kept. A small value prevents the phase effects of flows on exactly periodic paths.",
        default=0.0,
    )
    loss: float = fraction(
        "Probability that a packet is lost before it reaches the link.",
        high=0.999,
        high_excluded=False,
        unit="of the packets",
        default=0.0,
    )
    _: KW_ONLY
    in_host: bool = flag(
        "Whether packets spend the access delay in a queue of the sender's host, as in the testbed.",
        details="`Linux` does not retransmit a segment that has not left the host, not even as a tail loss probe "
        "(`skb_still_in_host_queue`).",
        default=False,
    )

    def __post_init__(self) -> None:
        _DELAY.require("return_delay", self.back)
        self._check_losses(self.loss)

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


def prepare_link(link: Link, bottleneck: Bottleneck, random: np.random.Generator) -> None:
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


# The link with a managed queue: packets that arrive wait, and when the link is free it takes the next packet.
#
# Linux has the queue behind a token bucket (net/sched/sch_tbf.c). The bucket takes a packet from the queue when it has
# sent the packet before, and holds this packet until it has the tokens for it. So CoDel decides about a packet when the
# packet before has left. CAKE shapes by itself: it lets a packet leave when its turn comes, and then waits for as long
# as the link takes for it.


def prepare_managed_link(link: Link, bottleneck: Bottleneck) -> None:
    """Set the fields of the record of a link that only managed links use."""
    empty_queues(link)
    link.managed, link.next_service = 1, NEVER
    link.target = round(bottleneck.queue_target * NANOSECONDS)
    link.interval = round(bottleneck.queue_interval * NANOSECONDS)
    link.quantum, link.queues_used = bottleneck.quantum, bottleneck.flows
    if link.discipline == PIE:
        start_pie(link)
    elif link.discipline == CAKE:
        start_cake(link, link.target)
    elif link.discipline == DUALPI2:
        start_dualpi2(link)


class Sender(Protocol):
    """A flow, as the queue knows it."""

    number: int
    transfers: int
    ecn: int
    access_delay: int


@kernel()
def wait(link: Link, flow: Sender, now: int, length: int, segment: int, following: int) -> bool:
    """Let a packet of a flow arrive at the queue; return False if it is dropped, because no slot is free."""
    link.offered += 1
    slot = take_slot(link)
    if slot == NOBODY:
        link.dropped += 1
        return False
    time = (now + flow.access_delay) * NANOSECONDS_PER_MICROSECOND
    packet = link.packets[slot]
    packet.flow, packet.transfer, packet.sent = flow.number, flow.transfers, now
    packet.segment, packet.following = segment, following
    packet.length, packet.enqueued = length, time
    packet.ecn, packet.marked = flow.ecn, 0
    if link.discipline == CODEL and link.queued >= link.capacity:
        conclude(link, slot, DISCARDED)
    elif link.discipline == CODEL:
        append(link, 0, slot)
    elif link.discipline == FQ_CODEL:
        enqueue_fq_codel(link, slot)
    elif link.discipline == PIE:
        enqueue_pie(link, slot, time)
    elif link.discipline == DUALPI2:
        enqueue_dualpi2(link, slot, time)
    else:
        enqueue_cake(link, slot, time)
    if link.next_service == NEVER and link.queued > 0:
        link.next_service = max(time, link.virtual_finish) if link.discipline == CAKE else time
    return True


@kernel()
def serve(link: Link) -> None:
    """Take the next packet from the queue at `link.next_service`, and note when the link is free again."""
    now = link.next_service
    # The packet that has left counted as queued while the token bucket held it.
    if link.service_length:
        link.queued -= 1
        link.queued_bytes -= link.service_length
        link.service_length = 0
    if link.discipline == FQ_CODEL:
        slot = dequeue_fq_codel(link, now)
    elif link.discipline == CODEL:
        slot = dequeue_codel(link, 0, now)
    elif link.discipline == PIE:
        slot = dequeue_pie(link, now)
    elif link.discipline == DUALPI2:
        slot = dequeue_dualpi2(link, now)
    else:
        slot = dequeue_cake(link, now)
    if slot == NOBODY:
        link.next_service = NEVER
        return
    length = link.packets[slot].length
    free = next_departure(link, now, length)
    departure = free
    if link.discipline == CAKE:
        departure = now
        link.next_service = free if link.queued else NEVER
    else:
        link.queued += 1
        link.queued_bytes += length
        link.service_length = length
        link.next_service = free
    link.carried_bytes += length
    link.busy += round(length * link.nanoseconds_per_byte)
    link.sojourn += departure - link.packets[slot].enqueued
    conclude(link, slot, departure)


@kernel()
def service_time(link: Link) -> int:
    """Return when the link takes the next packet [us], or `NEVER`; a packet that arrives then is in time."""
    return int(link.next_service // NANOSECONDS_PER_MICROSECOND if link.next_service < NEVER else NEVER)
