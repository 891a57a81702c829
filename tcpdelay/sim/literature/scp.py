"""SCP: a window over datagrams that follows the rate of the acknowledgements.

Every packet is acknowledged by its number, and no packet is sent again. No packet overtakes another, so when a packet
is acknowledged, all earlier packets that are not acknowledged are lost. The module also has the closed form for two
flows that share a link.

References
----------
.. [1] Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
.. [2] Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988: the estimate of the round-trip time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.compiling.record_types import Record, record_type
from tcpdelay.declare import InvalidValueError, Quantity
from tcpdelay.sim.network.bottleneck import DROPPED, SharedPath
from tcpdelay.sim.network.stacks import Scp
from tcpdelay.sim.network.transport import (
    BULK,
    IP_HEADER,
    UDP_HEADER,
    FlowRecord,
    Samples,
    Transport,
    add_return_jitter,
    cross,
    is_write_due,
    note_lost,
    note_read,
    note_write,
)
from tcpdelay.sim.network.waiting import Link
from tcpdelay.sim.records import MASK, RING, WireRecord
from tcpdelay.sim.tcp.constants import NEVER, SECOND

SLOW_START, STEADY, CONGESTED, PAUSED = range(4)
"""States of the sender."""
LARGEST_WINDOW = 1000.0
"""Largest number of outstanding packets, L_w; the paper does not print its value."""
LARGEST_TIMEOUT = 64e6
"""Largest timeout [us], as in 4.3BSD."""
HEADER = 4
"""Bytes of the packet number in each datagram, part of the 1472 bytes of a datagram of the paper."""


class ScpConnection(Record):
    """A connection.

    The paper does not say what happens to a fraction of a window; here it is carried over to the next packet as
    `carry`, so that the mean number of outstanding packets equals the window.
    """

    # Settings
    backlog: float  # W_D in the paper
    rate_gain: float
    rto_min: float
    first_timeout: float
    # Window
    window: float  # W_l
    carry: float
    threshold: float  # W_ss
    rate: float  # Estimated rate of the acknowledgements [packets/us], 0 while it is unknown
    next_send: float
    # Estimator [us]
    base_rtt: float  # T_brtt
    rtt: float  # T_rtt
    deviation: float  # D_rtt
    rto: float
    # Sender
    now: int
    state: int
    following: int  # The packets from `oldest` to before it are outstanding
    oldest: int
    recover: int  # First packet sent in the congested state
    paused_at: int
    timer_at: int  # The timer of a packet ends at `gone` of its segment
    pace_at: int
    reset_at: int
    reset_interval: int
    # Rate
    counted: int
    counted_since: int
    # Path
    first_ack: int
    next_ack: int
    # Counts
    timeouts: int


@kernel()
def next_time(flow: FlowRecord, s: ScpConnection, wire: WireRecord) -> int:
    """Return when the next event of the connection is due."""
    arrival = wire.acknowledgements[s.first_ack & MASK].arrival if s.first_ack < s.next_ack else NEVER
    return int(min(min(arrival, s.timer_at), min(min(s.pace_at, s.reset_at), flow.next_write)))


@kernel()
def step(flow: FlowRecord, s: ScpConnection, wire: WireRecord, link: Link, samples: Samples) -> int:
    """Process the next event: an acknowledgement, a timer, a reset or a write; return when the following is due."""
    acknowledgement = wire.acknowledgements[s.first_ack & MASK]
    s.now = next_time(flow, s, wire)
    if s.first_ack < s.next_ack and acknowledgement.arrival == s.now:
        s.first_ack += 1
        _acknowledge(s, wire, acknowledgement.segment)
    elif s.timer_at == s.now:
        _time_out(s, wire)
    elif s.reset_at == s.now:
        s.reset_at += s.reset_interval
        reset(s)
    elif s.pace_at != s.now and is_write_due(flow, link):
        note_write(flow, s.now)
    _send(flow, s, wire, link, samples)
    return int(next_time(flow, s, wire))


@kernel()
def end(flow: FlowRecord, s: ScpConnection) -> None:
    """Add the counts of a connection to the counts of the flow."""
    flow.timeouts += s.timeouts


@kernel()
def reset(s: ScpConnection) -> None:
    """Forget the estimates of the path and the outstanding packets; the next packet begins slow start."""
    s.state = PAUSED
    s.window, s.threshold = 1.0, LARGEST_WINDOW
    s.base_rtt, s.rtt, s.deviation, s.rto = np.inf, 0.0, 0.0, s.first_timeout
    s.rate = s.next_send = s.carry = 0.0
    s.recover = -1
    s.oldest = s.following
    s.timer_at = s.pace_at = NEVER


@kernel()
def update_estimate(s: ScpConnection, elapsed: int) -> None:
    """Update the estimates with a measured round-trip time [us], as in TCP, and derive the timeout from them."""
    s.base_rtt = min(s.base_rtt, float(elapsed))
    if s.rtt == 0.0:
        s.rtt, s.deviation = float(elapsed), elapsed / 2.0
    else:
        error = elapsed - s.rtt
        s.rtt += error / 8.0
        s.deviation += (abs(error) - s.deviation) / 4.0
    s.rto = max(s.rtt + 4.0 * s.deviation, s.rto_min)


@kernel()
def _watch_oldest(s: ScpConnection, wire: WireRecord) -> None:
    """Wait for the timer of the oldest outstanding packet, if there is one."""
    s.timer_at = max(wire.segments[s.oldest & MASK].gone, s.now) if s.following > s.oldest else NEVER


@kernel()
def _acknowledge(s: ScpConnection, wire: WireRecord, number: int) -> None:
    """Process an acknowledgement; acknowledgements of packets that were given up are ignored."""
    if number < s.oldest:
        return
    update_estimate(s, s.now - wire.segments[number & MASK].sent)
    gap, first_lost = number > s.oldest, s.oldest <= s.recover < number
    s.oldest = number + 1
    _watch_oldest(s, wire)
    if s.state == CONGESTED:
        if first_lost:
            _back_off(s)
        elif number == s.recover:
            _enter_steady(s)
    elif gap:
        _back_off(s)
    elif s.state == SLOW_START:
        s.window = min(s.window + 1.0, LARGEST_WINDOW)
        # The packets of the window beyond the bandwidth-delay product, W_l (1 - T_brtt / T_rtt), are queued.
        if s.window >= s.threshold or s.window * (s.rtt - s.base_rtt) > s.backlog * s.rtt:
            _enter_steady(s)
    else:
        _count(s)


@kernel()
def _enter_steady(s: ScpConnection) -> None:
    """Enter the steady state; the window is kept until the rate of the following acknowledgements is known."""
    s.state = STEADY
    s.rate = 0.0
    s.counted = 0
    s.counted_since = s.now


@kernel()
def _count(s: ScpConnection) -> None:
    """Count an acknowledgement; once per round trip, update the rate and the window, W_l = r T_brtt + W_D."""
    s.counted += 1
    elapsed = s.now - s.counted_since
    if elapsed < max(s.rtt, 1.0):
        return
    rate = s.counted / elapsed
    s.rate = rate if s.rate == 0.0 else s.rate + s.rate_gain * (rate - s.rate)
    s.window = s.threshold = min(s.rate * s.base_rtt + s.backlog, LARGEST_WINDOW)
    s.counted = 0
    s.counted_since = s.now


@kernel()
def _back_off(s: ScpConnection) -> None:
    """Halve the window; the fate of the next packet shows whether that was enough."""
    s.state = CONGESTED
    s.window = s.threshold = max(s.window / 2.0, 1.0)
    s.rate = 0.0
    s.recover = s.following


@kernel()
def _time_out(s: ScpConnection, wire: WireRecord) -> None:
    """Process the end of the timer of the oldest outstanding packet: the packet is lost."""
    number = s.oldest
    s.oldest += 1
    _watch_oldest(s, wire)
    if s.state != CONGESTED or number == s.recover:
        s.timeouts += 1
        s.rto = max(min(2.0 * s.rto, LARGEST_TIMEOUT), s.rto)
        _back_off(s)


@kernel()
def _resume(s: ScpConnection) -> None:
    """End a pause with slow start; the window is halved for each T_brtt of the pause."""
    halvings = (s.now - s.paused_at) // max(s.base_rtt, 1.0)
    s.window = max(s.window * 0.5**halvings, 1.0)
    s.state = SLOW_START


@kernel()
def _has_data(flow: FlowRecord, s: ScpConnection) -> bool:
    """Return whether there is a packet to send."""
    if flow.application == BULK:
        return bool(flow.first_write <= s.now < flow.stop)
    return bool(s.following < flow.packets_written)


@kernel()
def _send(flow: FlowRecord, s: ScpConnection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Send the packets that the window and the pace allow."""
    s.pace_at = NEVER
    while _has_data(flow, s):
        if s.state == PAUSED:
            _resume(s)
        if s.following - s.oldest + 1 > s.window + s.carry or _is_ring_full(s, wire):
            return
        if s.next_send > s.now:
            s.pace_at = int(np.ceil(s.next_send))
            return
        _transmit(flow, s, wire, link, samples)
    if s.following == s.oldest and s.state != PAUSED:
        s.state = PAUSED
        s.paused_at = s.now


@kernel()
def _is_ring_full(s: ScpConnection, wire: WireRecord) -> bool:
    """Return whether acknowledgements of packets that were given up fill the ring."""
    return bool(s.first_ack < s.next_ack and s.following - wire.acknowledgements[s.first_ack & MASK].segment >= RING)


@kernel()
def _transmit(flow: FlowRecord, s: ScpConnection, wire: WireRecord, link: Link, samples: Samples) -> None:
    """Send the next packet; if it arrives, the receiver acknowledges it."""
    number = s.following
    s.following += 1
    s.carry = (s.window + s.carry) % 1.0
    segment = wire.segments[number & MASK]
    segment.sent, segment.gone = s.now, s.now + int(np.ceil(s.rto))
    if s.oldest == number:
        _watch_oldest(s, wire)
    if s.base_rtt < np.inf:
        s.next_send = max(s.next_send, float(s.now)) + s.base_rtt / s.window
    if flow.application == BULK:
        note_write(flow, s.now)
    arrival = cross(flow, link, s.now, flow.message)
    if arrival == DROPPED:
        note_lost(flow, 0)
        return
    note_read(flow, samples, s.now, arrival, arrival)
    acknowledgement = wire.acknowledgements[s.next_ack & MASK]
    acknowledgement.arrival = arrival + flow.return_delay
    acknowledgement.segment = number
    s.next_ack += 1
    add_return_jitter(flow, wire, s.next_ack - 1, s.next_ack)


def prepare(stack: Scp, path: SharedPath, flow: FlowRecord, connection: ScpConnection, phase: int) -> None:
    """Prepare a connection."""
    connection.backlog, connection.rate_gain = stack.backlog, stack.rate_gain
    connection.rto_min, connection.first_timeout = stack.rto_min * SECOND, stack.first_timeout * SECOND
    connection.reset_at = NEVER
    if stack.reset_interval is not None:
        connection.reset_at = connection.reset_interval = round(stack.reset_interval * SECOND)
    reset(connection)


TRANSPORT = Transport(
    state=record_type(ScpConnection),
    header=IP_HEADER + UDP_HEADER + HEADER,
    features=frozenset({"constant rate", "bulk"}),
    prepare=prepare,
    next_time=next_time,
    step=step,
    end=end,
)


Fraction = np.float64 | NDArray[np.float64]


def scp_rate_beside(
    other_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return the rate of an SCP flow a [packets/s] that shares a queue with an SCP flow b of the rate r_b.

    .. math:: r_a = \frac{r_b W_D}{r_b (e_b - e_a) + W_D}

    e_a and e_b are the errors of the smallest RTT that each flow has measured [s]. Each flow tries to keep W_D packets
    queued (`backlog`). The rate is infinite where flow b cannot reach its rate beside any rate of flow a.

    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998: the
    analysis of two flows, from r_a / r_b = W_a / W_b.
    """
    rate, difference = _checked(other_rate, "other_rate", error, other_error, backlog)
    kept = rate * difference + backlog
    result: Fraction = np.divide(rate * backlog, kept, out=np.full(kept.shape, np.inf), where=kept > 0)[()]
    return result


def scp_share(
    link_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return the share of a full link of the rate C [packets/s] that an SCP flow a gets beside an SCP flow b.

    `scp_rate_beside` and r_a + r_b = C give a quadratic equation. With :math:`u = C (e_b - e_a) / W_D`, the difference
    of the errors divided by the time in which the link sends W_D packets, its solution is

    .. math:: \frac{r_a}{C} = \frac{2}{2 + u + \sqrt{4 + u^2}}.

    A flow that begins while another flow keeps W_D packets queued never measures the RTT of the empty path: its error
    is W_D / C.
    """
    rate, difference = _checked(link_rate, "link_rate", error, other_error, backlog)
    u = rate * difference / backlog
    smaller = 2.0 / (2.0 + np.abs(u) + np.sqrt(4.0 + u * u))
    # The shares of both flows add up to one, which avoids a difference of large numbers for a negative u.
    result: Fraction = np.where(u >= 0, smaller, 1.0 - smaller)[()]
    return result


def _checked(
    rate: ArrayLike, name: str, error: ArrayLike, other_error: ArrayLike, backlog: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rates, and the differences of the flows' errors [s], as arrays of one shape."""
    rates, errors, others = (np.asarray(value, np.float64) for value in (rate, error, other_error))
    Quantity(kind="number", meaning="", low=0.1, high=1000, unit="packets").require("backlog", backlog)
    if not np.all(rates > 0):
        raise InvalidValueError(name, rate, "be above 0 packets/s")
    for argument, values in (("error", errors), ("other_error", others)):
        if not np.all(values >= 0):
            raise InvalidValueError(argument, float(values.min()), "be 0 s or more")
    broadcast = np.broadcast_arrays(rates, others - errors)
    return broadcast[0], broadcast[1]
