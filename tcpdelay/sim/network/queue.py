"""The shared link: a first-in first-out queue of bounded length, and what drops or marks packets before it is full.

References
----------
.. [1] Floyd, Jacobson, "Random Early Detection Gateways for Congestion Avoidance", IEEE/ACM Transactions on Networking
   1(4), 1993, doi 10.1109/90.251892. Names of parameters are the paper's.
.. [2] Floyd, "Recommendation on using the 'gentle_' variant of RED", 2000.
.. [3] Goel, Krasic, Li, Walpole, "Supporting Low-Latency TCP-Based Media Streams", IWQoS 2002: marks beyond one
   bandwidth-delay product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tcpdelay.sim.uniform import uniform

DROP_TAIL, RED, DRED = range(3)
"""Disciplines."""
LINK_RING = 1 << 16
"""Packets in the queue that there is room for."""
DROPPED = -1
"""What `enqueue` returns in place of a time of departure."""
PASSED, MARKED, REFUSED = range(3)
FEWEST_MARKS = 0.1
"""Share of the packets that are marked as soon as the queue is one bandwidth-delay product long."""
_NANOSECONDS = 1000
_MASK = LINK_RING - 1

_INTEGERS = (
    "discipline in_bytes capacity gentle virtual_finish last_departure first next queued queued_bytes marked count "
    "offered dropped marks carried_bytes busy sojourn next_double random_state"
)
_FLOATS = "nanoseconds_per_byte burst_time min_th max_th max_p w_q avg mean_packet_size threshold"
LINK = np.dtype(
    [(name, np.float64) for name in _FLOATS.split()]
    + [(name, np.int64) for name in _INTEGERS.split()]
    + [("departures", np.int64, LINK_RING), ("sizes", np.int64, LINK_RING)]
)
"""The link: its settings, what is in the queue, and what has been counted. Times within are nanoseconds."""


@njit(cache=True)
def enqueue(link: Any, now: int, size: int, marks_allowed: bool) -> int:
    """Let a packet arrive at the queue; arrivals must come in the order of time.

    A packet counts as queued until its last bit has left. `link.marked` says whether this packet has been marked.

    Parameters
    ----------
    link : record
        The link.
    now : int
        Time [us].
    size : int
        Bytes on the link, headers included.
    marks_allowed : bool
        Whether the packet may be marked where it would otherwise be dropped early (ECN).

    Returns
    -------
    int
        Time at which the packet has left the link [us], or `DROPPED`.
    """
    time = now * _NANOSECONDS
    _let_depart(link, time)
    link.offered += 1
    link.marked = 0
    verdict = PASSED
    if link.discipline == RED:
        verdict = _random_early_detection(link, time, size)
    elif link.discipline == DRED:
        verdict = _mark_beyond_threshold(link)
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
    # A bucket of tokens lets the link be ahead of itself by as much as the bucket holds.
    link.virtual_finish = max(link.virtual_finish, time - link.burst_time) + service
    departure = max(int(link.virtual_finish), time)
    link.last_departure = departure
    link.departures[link.next & _MASK] = departure
    link.sizes[link.next & _MASK] = size
    link.next += 1
    link.queued += 1
    link.queued_bytes += size
    link.carried_bytes += size
    link.busy += service
    link.sojourn += departure - time
    return (departure + _NANOSECONDS // 2) // _NANOSECONDS


@njit(cache=True)
def _let_depart(link: Any, time: int) -> None:
    """Take out of the queue what has left by a time [ns]."""
    while link.first < link.next and link.departures[link.first & _MASK] <= time:
        link.queued -= 1
        link.queued_bytes -= link.sizes[link.first & _MASK]
        link.first += 1


@njit(cache=True)
def _length(link: Any) -> float:
    """Return the length of the queue in the unit of its capacity."""
    return float(link.queued_bytes if link.in_bytes else link.queued)


@njit(cache=True)
def _random_early_detection(link: Any, time: int, size: int) -> int:
    """Update the average length, and say what it means for a packet that arrives now."""
    length = _length(link)
    if link.queued > 0:
        link.avg += link.w_q * (length - link.avg)
    else:
        # As if so many packets of middling size had met an empty queue while the link was idle.
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
    # Spread evenly: the gap between two marks is uniform, not geometric.
    if link.count * p_b < 1.0:
        p_a = p_b / (1.0 - link.count * p_b)
        if uniform(link.next_double, link.random_state) >= p_a:
            return PASSED
    link.count = 0
    return MARKED


@njit(cache=True)
def _mark_beyond_threshold(link: Any) -> int:
    """Say what the length of the queue means for a packet, given one bandwidth-delay product as the threshold."""
    beyond = _length(link) / link.threshold - 1.0
    if beyond < 0.0:
        return PASSED
    if beyond >= 1.0:
        return REFUSED
    share = FEWEST_MARKS + (1.0 - FEWEST_MARKS) * beyond
    return MARKED if uniform(link.next_double, link.random_state) < share else PASSED
