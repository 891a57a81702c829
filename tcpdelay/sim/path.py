"""The path: it decides which segments are lost, and when the other segments arrive."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.random_numbers import Generator, uniform
from tcpdelay.compiling.record_types import Array, Record
from tcpdelay.scenario.jitter import TABLE_SIZE, jitter_table, table_delay
from tcpdelay.scenario.path import LossBursts, Path
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER, SECOND

NANOSECONDS = 1000
"""Nanoseconds per microsecond, the unit of a connection's times."""
LARGEST_SHARE = 1.0 - 2.0**-53
"""Largest number below 1."""
ALWAYS = 1 << 60
"""Number of segments until the next loss on a path without loss."""
PATH_FIELDS = frozenset(
    {
        "rtt",
        "loss",
        "loss_pattern",
        "bottleneck",
        "one_way_delay",
        "loss_burst",
        "bad_time",
        "bad_loss",
        "ack_loss",
        "jitter",
        "jitter_distribution",
        "jitter_correlation",
        "in_order",
        "reordering",
    }
)
"""Fields of a path that the simulator knows. It refuses other fields unless they have their default value."""


class Transit(Record):
    """A segment or packet in the network."""

    arrival: int  # Time of its arrival
    segment: int  # Its number
    following: int  # Number after the last segment that it carries
    sent: int  # Time at which it was sent


class LossState(Record):
    """The losses of a path, with the names of `Path`, and their state."""

    loss: float
    loss_burst: float
    bad_time: float  # In microseconds
    bad_loss: float
    until_loss: int
    in_burst: int
    state_time: int


class PathState(LossState):
    """The path of a connection of TCP or QUIC, and its state."""

    rtt: int
    one_way_delay: int
    jitter: int
    tabled: int
    jitter_correlation: float
    jitter_state: float  # State of the normal process of the jitter
    in_order: int
    reordering: float
    correlated: int
    byte_queue: int
    loss_round_end: int
    rest_lost: int
    last_arrival: int
    first_transit: int
    next_transit: int
    # Fields that the sender has too
    now: int
    mss: int


class TransitRing(Generator):
    """The packets in transit, and what draws their losses and delays."""

    transit: Array[Transit]
    jitter_table: Annotated[Array[int], TABLE_SIZE, np.int16]  # netem's table of a jitter that is not uniform


def is_reordering(path: Path) -> bool:
    """Return whether segments can overtake other segments, so that arrivals must be put in the order of time."""
    return path.jitter > 0 or path.reordering > 0


gilbert_probabilities = kernel()(tcp.gilbert_probabilities)
_table_delay = kernel()(table_delay)


@kernel()
def segments_until_loss(wire: Generator, loss: float) -> int:
    """Draw the number of segments up to and including the next lost segment."""
    if loss <= 0.0:
        return ALWAYS
    return 1 + int(min(np.log(1.0 - uniform(wire.next_double, wire.random_state)) / np.log1p(-loss), ALWAYS))


def drop_tail_settings(path: Path) -> dict[str, int]:
    """Return the fields of a connection by which `is_dropped` knows the queue of the path."""
    return {"correlated": int(path.loss_pattern == "correlated"), "byte_queue": int(path.bottleneck == "bytes")}


def path_settings(path: Path, wire: TransitRing, random: np.random.Generator) -> dict[str, float]:
    """Return the delays of a path, its reordering and its loss of ACKs, as fields of the record of a connection."""
    tabled = path.jitter_distribution != "uniform"
    if tabled:
        wire.jitter_table[:] = jitter_table(path.jitter_distribution)
    return {
        "one_way_delay": round(path.forward_delay * SECOND),
        "jitter": round(path.jitter * SECOND),
        "tabled": int(tabled),
        "jitter_correlation": path.jitter_correlation,
        # The first segment meets the stationary state of the correlated process.
        "jitter_state": random.standard_normal() if path.jitter_correlation else 0.0,
        "in_order": int(path.in_order),
        "reordering": path.reordering,
        "ack_loss": path.ack_loss,
    }


def loss_settings(wire: Generator, loss: float, bursts: LossBursts) -> dict[str, float]:
    """Return the initial state of the losses, as fields of the record that `is_lost` reads."""
    return {
        "loss": loss,
        "loss_burst": bursts.loss_burst,
        "bad_time": bursts.bad_time * SECOND,
        "bad_loss": bursts.bad_loss,
        "until_loss": segments_until_loss(wire, loss),
        # After an infinite time, the first segment meets the stationary state.
        "state_time": -NEVER,
    }


@kernel()
def is_bad(c: LossState, wire: Generator, now: int) -> bool:
    """Draw the state of the path now [us], given its state at the segment before.

    The durations of both states are exponentially distributed, with the means b = `bad_time` and g. So the state is a
    Markov chain in continuous time, and is bad after t with probability

        pi + (bad - pi) exp(-t (1/b + 1/g)),

    where bad is 1 if the state was bad, else 0, and pi = b / (b + g) = loss / `bad_loss` is the share of time in the
    bad state. It follows that 1/b + 1/g = 1 / (b (1 - pi)).
    """
    share = c.loss / c.bad_loss
    kept = np.exp(-(now - c.state_time) / (c.bad_time * (1.0 - share)))
    c.in_burst = 1 if uniform(wire.next_double, wire.random_state) < share + (c.in_burst - share) * kept else 0
    c.state_time = now
    return bool(c.in_burst == 1)


@kernel()
def is_lost(c: LossState, wire: Generator, now: int) -> bool:
    """Draw whether the segment that is sent now [us] is lost: in the bad state only, if there is a `bad_time`.

    With `loss_burst` above 1, losses follow netem's Gilbert model (`tcp.gilbert_probabilities`), segment by segment.
    """
    if c.bad_time > 0.0:
        return is_bad(c, wire, now) and uniform(wire.next_double, wire.random_state) < c.bad_loss
    if c.loss_burst <= 1.0:
        c.until_loss -= 1
        if c.until_loss > 0:
            return False
        c.until_loss = segments_until_loss(wire, c.loss)
        return True
    enter, leave = gilbert_probabilities(c.loss, c.loss_burst)
    lost = c.in_burst == 1
    if lost:
        c.in_burst = 0 if uniform(wire.next_double, wire.random_state) < leave else 1
    elif uniform(wire.next_double, wire.random_state) < enter:
        c.in_burst = 1
    return bool(lost)


@kernel()
def is_dropped(c: PathState, wire: Generator, size: int) -> bool:
    """Draw whether a segment with `size` bytes of data that is sent now is lost, also in a drop-tail queue.

    With correlated losses, the rest of a round is lost with its first lost segment (Padhye, Firoiu, Towsley, Kurose,
    "Modeling TCP throughput", SIGCOMM 1998, II). A round begins with the first segment after the round before, and ends
    when the ACK of this segment arrives, or would arrive. A retransmission is a segment of the round in which it is
    sent.

    A queue limited in bytes drops a small segment with the share `size` / MSS of the probability for a full segment
    (Brosh et al. 2010).
    """
    if c.correlated and c.now >= c.loss_round_end:
        c.loss_round_end, c.rest_lost = c.now + c.rtt, 0
    if c.rest_lost:
        return True
    lost = is_lost(c, wire, c.now)
    if lost and c.byte_queue:
        lost = uniform(wire.next_double, wire.random_state) * c.mss < size
    c.rest_lost = 1 if lost and c.correlated else 0
    return bool(lost)


@kernel()
def depart(c: PathState, wire: TransitRing, number: int, following: int) -> int:
    """Put a transmission that is not lost in transit, with its jitter; return when it arrives unless overtaken [us]."""
    arrival = arrival_time(c, wire)
    put_in_transit(c, wire, number, following, arrival)
    if c.reordering > 0.0 and uniform(wire.next_double, wire.random_state) < c.reordering:
        overtake(c, wire)
    return int(arrival)


@kernel()
def arrival_time(c: PathState, wire: TransitRing) -> int:
    """Draw when a transmission that is sent now arrives [us]."""
    arrival = c.now + network_delay(c, wire)
    if c.in_order:
        # As in netem with a rate, nothing leaves before the packets ahead (`netem_enqueue`), or together with them.
        arrival = max(arrival, c.last_arrival + 1)
        c.last_arrival = arrival
    return int(arrival)


@kernel()
def network_delay(c: PathState, wire: TransitRing) -> int:
    """Draw the delay of a transmission, with its jitter [us]."""
    if c.jitter == 0:
        return int(c.one_way_delay)
    share = uniform(wire.next_double, wire.random_state)
    if c.jitter_correlation > 0.0:
        share = correlated_share(c, wire, share)
    if not c.tabled:
        return int(c.one_way_delay + int(share * (c.jitter + 1)))
    # Mean and standard deviation [ns] as in netem, whose table has the deviation from the mean.
    deviation = NANOSECONDS // 2 * c.jitter
    entry = int(wire.jitter_table[int(share * TABLE_SIZE)])
    delay = _table_delay(NANOSECONDS * c.one_way_delay + deviation, deviation, entry)
    return int((delay + NANOSECONDS // 2) // NANOSECONDS)


@kernel()
def correlated_share(c: PathState, wire: Generator, share: float) -> float:
    """Return a number from 0 to below 1, uniformly distributed, and correlated with the number before.

    The numbers are probabilities of a normal process z = r z' + sqrt(1 - r^2) e, with the correlation r and the value
    z' before. The normal number e follows from two uniform numbers (Box and Muller, 1958).
    """
    angle = 2.0 * np.pi * uniform(wire.next_double, wire.random_state)
    normal = np.sqrt(-2.0 * np.log(1.0 - share)) * np.cos(angle)
    r = c.jitter_correlation
    c.jitter_state = r * c.jitter_state + np.sqrt(1.0 - r * r) * normal
    return float(min(0.5 * math.erfc(-c.jitter_state / math.sqrt(2.0)), LARGEST_SHARE))


@kernel()
def put_in_transit(c: PathState, wire: TransitRing, number: int, following: int, arrival: int) -> None:
    """Put the segments from `number` to before `following` in transit, which is sorted by the time of arrival [us]."""
    mask = wire.transit.shape[0] - 1
    place = c.next_transit
    while place > c.first_transit and wire.transit[(place - 1) & mask].arrival > arrival:
        earlier, later = wire.transit[(place - 1) & mask], wire.transit[place & mask]
        later.arrival, later.segment = earlier.arrival, earlier.segment
        later.following, later.sent = earlier.following, earlier.sent
        place -= 1
    segment = wire.transit[place & mask]
    segment.arrival, segment.segment, segment.following, segment.sent = arrival, number, following, c.now
    c.next_transit += 1


@kernel()
def overtake(c: PathState, wire: TransitRing) -> None:
    """Let the last segment in transit overtake the segment ahead, which then arrives 1 us after it."""
    if c.next_transit - c.first_transit < 2:
        return
    mask = wire.transit.shape[0] - 1
    first, second = wire.transit[(c.next_transit - 2) & mask], wire.transit[(c.next_transit - 1) & mask]
    first.segment, second.segment = second.segment, first.segment
    first.following, second.following = second.following, first.following
    first.sent, second.sent = second.sent, first.sent
    first.arrival = second.arrival
    second.arrival += 1


@kernel()
def next_arrival(c: PathState, wire: TransitRing) -> int:
    """Return when the next segment in transit arrives, or `NEVER`."""
    if c.first_transit == c.next_transit:
        return NEVER
    return int(wire.transit[c.first_transit & (wire.transit.shape[0] - 1)].arrival)


@kernel()
def leave_transit(c: PathState, wire: TransitRing) -> Transit:
    """Take the next segment in transit from the path."""
    segment = wire.transit[c.first_transit & (wire.transit.shape[0] - 1)]
    c.first_transit += 1
    return segment
