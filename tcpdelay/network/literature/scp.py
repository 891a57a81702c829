"""SCP: a window over datagrams that follows the rate of the acknowledgements; names beside are those of the paper.

Every packet is acknowledged by its number and nothing is sent again. As no packet overtakes another, one that is
acknowledged before an earlier one shows that the earlier one is lost.

References
----------
.. [1] Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
.. [2] Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988: the estimate of the round-trip time.

How flows of SCP that misjudge the path share a link: the closed form for two of them.

With a window W_l = r T_brtt + W_D each, two flows behind one queue have rates in the ratio of their windows.

References
----------
.. [1] Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.records import NEVER, RING
from tcpdelay.network.bottleneck import DROPPED, check_range
from tcpdelay.network.records import BULK, cross, is_write_due, note_lost, note_read, note_write
from tcpdelay.network.result import spread

SLOW_START, STEADY, CONGESTED, PAUSED = range(4)
"""States."""
LARGEST_WINDOW = 1000.0
"""Packets that may be outstanding; after timeouts twice as many acknowledgements may be under way."""
LARGEST_TIMEOUT = 64e6
"""Where the timeout is not doubled further [us], as in 4.3BSD."""
_MASK = RING - 1

_GROUPS = {
    "sender": "now state following oldest recover paused_at timer_at pace_at",
    "rate": "counted counted_since",
    "path": "first_ack next_ack",
    "counts": "timeouts",
}
_FLOATS = {
    "settings": "backlog rate_gain rto_min first_timeout",
    "window": "window carry threshold rate next_send",
    "estimator": "base_rtt rtt deviation rto",
}
SCP = np.dtype(
    [(name, np.float64) for names in _FLOATS.values() for name in names.split()]
    + [(name, np.int64) for names in _GROUPS.values() for name in names.split()]
)
"""A connection.

In the paper's symbols `window` is W_l, `threshold` W_ss, `backlog` W_D, `rate` the estimated rate of acknowledgements
[packets/us], 0 while it is not known, `base_rtt`, `rtt` and `deviation` T_brtt, T_rtt and D_rtt [us]. Packets from
`oldest` to before `following` are outstanding; `recover` is the first one sent while congested. The window need not be
whole: what it has beyond whole packets is left to the next packet as `carry`, so it holds on the average.
"""


@kernel()
def next_time(flow: Any, s: Any, wire: Any) -> int:
    """Return when something happens next, in the order of which all flows are advanced."""
    arrival = wire.acknowledgements[s.first_ack & _MASK].arrival if s.first_ack < s.next_ack else NEVER
    return int(min(min(arrival, s.timer_at), min(s.pace_at, flow.next_write)))


@kernel()
def step(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Let the next thing happen: an acknowledgement, a timer or a write; parameters as for `linux.step`."""
    acknowledgement = wire.acknowledgements[s.first_ack & _MASK]
    s.now = next_time(flow, s, wire)
    if s.first_ack < s.next_ack and acknowledgement.arrival == s.now:
        s.first_ack += 1
        _acknowledge(s, wire, acknowledgement.segment)
    elif s.timer_at == s.now:
        _time_out(s)
    elif s.pace_at != s.now and is_write_due(flow, link):
        note_write(flow, s.now)
    _send(flow, s, wire, link, samples)


@kernel()
def count_up(flow: Any, s: Any) -> None:
    """Add to the flow's counts those of a connection that is given up."""
    flow.timeouts += s.timeouts


@kernel()
def reset(s: Any) -> None:
    """Forget all that is known of the path, what is outstanding included, and begin anew with slow start."""
    s.state = SLOW_START
    s.window, s.threshold = 1.0, LARGEST_WINDOW
    s.base_rtt, s.rtt, s.deviation, s.rto = np.inf, 0.0, 0.0, s.first_timeout
    s.rate = s.next_send = s.carry = 0.0
    s.recover = -1
    s.oldest = s.following
    s.timer_at = NEVER
    # No acknowledgement may be left to wake a sender that has data.
    s.pace_at = s.now if s.following > 0 else NEVER


@kernel()
def update_estimate(s: Any, elapsed: int) -> None:
    """Take a round-trip time into the estimates, as in TCP, and set the timeout by them."""
    s.base_rtt = min(s.base_rtt, float(elapsed))
    if s.rtt == 0.0:
        s.rtt, s.deviation = float(elapsed), elapsed / 2.0
    else:
        error = elapsed - s.rtt
        s.rtt += error / 8.0
        s.deviation += (abs(error) - s.deviation) / 4.0
    s.rto = max(s.rtt + 4.0 * s.deviation, s.rto_min)


@kernel()
def _set_timer(s: Any) -> None:
    """Let the retransmission timer's like run for what is outstanding."""
    s.timer_at = s.now + int(np.ceil(s.rto)) if s.following > s.oldest else NEVER


@kernel()
def _acknowledge(s: Any, wire: Any, number: int) -> None:
    """Take an acknowledgement; one of a packet that has been given up tells nothing."""
    if number < s.oldest:
        return
    update_estimate(s, s.now - wire.segments[number & _MASK].sent)
    gap, first_lost = number > s.oldest, s.oldest <= s.recover < number
    s.oldest = number + 1
    _set_timer(s)
    if s.state == CONGESTED:
        if first_lost:
            _back_off(s)
        elif number == s.recover:
            _enter_steady(s)
    elif gap:
        _back_off(s)
    elif s.state == SLOW_START:
        s.window = min(s.window + 1.0, LARGEST_WINDOW)
        # A window in full use keeps the pipe full, T_brtt long, and what is more than that is queued.
        if s.window >= s.threshold or s.window * (s.rtt - s.base_rtt) > s.backlog * s.rtt:
            _enter_steady(s)
    else:
        _count(s)


@kernel()
def _enter_steady(s: Any) -> None:
    """Keep the window until the rate of the acknowledgements that follow is known."""
    s.state = STEADY
    s.rate = 0.0
    s.counted = 0
    s.counted_since = s.now


@kernel()
def _count(s: Any) -> None:
    """Count an acknowledgement; once per round trip update the rate, and the window by it."""
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
def _back_off(s: Any) -> None:
    """Halve the window; the next packet to be sent will tell whether that was enough."""
    s.state = CONGESTED
    s.window = s.threshold = max(s.window / 2.0, 1.0)
    s.rate = 0.0
    s.recover = s.following


@kernel()
def _time_out(s: Any) -> None:
    """Give up all that is outstanding, as nothing of it has been acknowledged for so long."""
    s.timeouts += 1
    s.rto = max(min(2.0 * s.rto, LARGEST_TIMEOUT), s.rto)
    first_lost = s.oldest <= s.recover < s.following
    s.oldest = s.following
    _set_timer(s)
    if s.state != CONGESTED or first_lost:
        _back_off(s)


@kernel()
def _resume(s: Any) -> None:
    """End a pause with slow start; each T_brtt of it has made what the window says about the path half as good."""
    halvings = (s.now - s.paused_at) // max(s.base_rtt, 1.0)
    s.window = max(s.window * 0.5**halvings, 1.0)
    s.state = SLOW_START


@kernel()
def _has_data(flow: Any, s: Any) -> bool:
    """Whether there is a packet to be sent."""
    if flow.application == BULK:
        return bool(flow.first_write <= s.now < flow.stop)
    return bool(s.following < flow.packets_written)


@kernel()
def _send(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send what the window and the pace allow."""
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
def _is_ring_full(s: Any, wire: Any) -> bool:
    """Whether there is no room for another packet, as acknowledgements of many that were given up are under way."""
    return bool(s.first_ack < s.next_ack and s.following - wire.acknowledgements[s.first_ack & _MASK].segment >= RING)


@kernel()
def _transmit(flow: Any, s: Any, wire: Any, link: Any, samples: Any) -> None:
    """Send the next packet, and let the receiver acknowledge it if it gets through."""
    number = s.following
    s.following += 1
    s.carry = (s.window + s.carry) % 1.0
    wire.segments[number & _MASK].sent = s.now
    if s.oldest == number:
        _set_timer(s)
    if s.base_rtt < np.inf:
        s.next_send = max(s.next_send, float(s.now)) + s.base_rtt / s.window
    if flow.application == BULK:
        note_write(flow, s.now)
    arrival = cross(flow, link, s.now, flow.message)
    if arrival == DROPPED:
        note_lost(flow)
        return
    note_read(flow, samples, s.now, arrival, arrival)
    acknowledgement = wire.acknowledgements[s.next_ack & _MASK]
    acknowledgement.arrival = arrival + flow.return_delay
    acknowledgement.segment = number
    s.next_ack += 1
    spread(flow, wire, s.next_ack - 1, s.next_ack)


Fraction = np.float64 | NDArray[np.float64]


def scp_rate_beside(
    other_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return the rate of an SCP flow a beside another one, b, at the same queue.

    .. math:: r_a = \frac{r_b W_D}{r_b (e_b - e_a) + W_D}

    Parameters
    ----------
    other_rate : array_like
        Rate of the other flow, r_b [packets/s], above 0.
    error, other_error : array_like
        By how much the smallest RTT that each flow has seen is too large, e_a and e_b [s], 0 or more.
    backlog : float
        Packets that each means to keep queued, W_D, 0.1 to 1000.

    Returns
    -------
    float or ndarray
        Its rate [packets/s]; infinite where the other flow's rate is not possible at any rate of this one.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998: the
    analysis of two flows, from r_a / r_b = W_a / W_b.

    Examples
    --------
    >>> print(scp_rate_beside(50.0))
    50.0
    >>> print(scp_rate_beside(50.0, other_error=0.030))
    33.3333333
    """
    rate, difference = _checked(other_rate, "other_rate", error, other_error, backlog)
    kept = rate * difference + backlog
    result: Fraction = np.divide(rate * backlog, kept, out=np.full(kept.shape, np.inf), where=kept > 0)[()]
    return result


def scp_share(
    link_rate: ArrayLike, error: ArrayLike = 0.0, other_error: ArrayLike = 0.0, backlog: float = 3.0
) -> Fraction:
    r"""Return which part of a full link an SCP flow has beside another one.

    `scp_rate_beside` together with r_a + r_b = C is a quadratic equation. With :math:`u = C (e_b - e_a) / W_D`, the
    difference of the errors in times that the link takes for W_D packets,

    .. math:: \frac{r_a}{C} = \frac{2}{2 + u + \sqrt{4 + u^2}}.

    Parameters
    ----------
    link_rate : array_like
        Rate of the link, C [packets/s], above 0.
    error, other_error : array_like
        By how much the smallest RTT that each flow has seen is too large, e_a and e_b [s], 0 or more.
    backlog : float
        Packets that each means to keep queued, W_D, 0.1 to 1000.

    Returns
    -------
    float or ndarray
        The part, 0 to 1.

    Raises
    ------
    ValueError
        If a value is out of its range.

    References
    ----------
    Cen, Pu, Walpole, "Flow and Congestion Control for Internet Media Streaming Applications", SPIE 3310, 1998.

    Examples
    --------
    A flow that begins while another one keeps its three packets queued never sees the empty path:

    >>> print(scp_share(100.0, error=0.0, other_error=3 / 100.0))
    0.381966
    """
    rate, difference = _checked(link_rate, "link_rate", error, other_error, backlog)
    u = rate * difference / backlog
    smaller = 2.0 / (2.0 + np.abs(u) + np.sqrt(4.0 + u * u))
    # The parts of both flows are one together; so no difference of large numbers is needed for a negative u.
    result: Fraction = np.where(u >= 0, smaller, 1.0 - smaller)[()]
    return result


def _checked(
    rate: ArrayLike, name: str, error: ArrayLike, other_error: ArrayLike, backlog: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rate and how much larger the other flow's error is, of one shape."""
    rates, errors, others = (np.asarray(value, np.float64) for value in (rate, error, other_error))
    check_range("backlog", backlog, 0.1, 1000, "packets")
    if not np.all(rates > 0):
        raise ValueError(f"{name} must be above 0 packets/s, got {rate!r}")
    for argument, values in (("error", errors), ("other_error", others)):
        if not np.all(values >= 0):
            raise ValueError(f"{argument} must be 0 s or more, got {values.min():g}")
    broadcast = np.broadcast_arrays(rates, others - errors)
    return broadcast[0], broadcast[1]
