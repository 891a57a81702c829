"""The congestion window from round to round, and the times at which ACKs release segments.

A round is one round-trip time. After a loss the window is reduced; then Reno or CUBIC grows it.

While the window limits the sender, each ACK releases one segment: the ACK clock. The ACKs of a round therefore repeat
the spacing of the last round. When the window grows by one segment, one ACK releases two segments, and from then on
two ACKs follow each other closely. So a round begins with a *run* of closely spaced ACKs; the ACKs after the run are
further apart. After a loss in an open window, only the segments by which the window has grown since are in the run.
After any other recovery all segments are in the run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.tcp import constants as tcp

UPDATE_INTERVAL = 1 / tcp.CUBIC_UPDATES_PER_SECOND
"""Time after which CUBIC computes the growth of an unchanged window again [s]."""

FAST_CONVERGED = 0.4
"""Share q of the losses with fast convergence (RFC 9438, 4.7).

At a loss, CUBIC stores the window. If the window is smaller than the stored window, CUBIC stores 85 % of it instead:
fast convergence. Assume that the windows at losses are independent of each other. A window is smaller than the last one
in half of the cases, and smaller than 85 % of the last one in about a quarter. So q = (1 - q) / 2 + q / 4, or 0.4.
"""

fast_converged = kernel()(tcp.fast_converged)
_threshold = kernel()(tcp.reduced_window)


@kernel()
def reduced_window(p: LinuxParameters, window: int) -> int:
    """Return the window after a recovery from `window`, which BBR restores (`bbr_set_cwnd_to_recover_or_restore`)."""
    return int(window if p.bbr else _threshold(window, p.cubic))


@kernel()
def window_before(p: LinuxParameters, reduced: int) -> int:
    """Return the largest congestion window that a loss reduces to `reduced` or less [segments].

    This is the inverse of `reduced_window` (`tcp_reno_ssthresh`, `cubictcp_recalc_ssthresh`).
    """
    window = reduced
    while reduced_window(p, window + 1) <= reduced:
        window += 1
    return window


@kernel()
def stored_window(p: LinuxParameters, reduced: int) -> int:
    """Return the window that CUBIC stores at the loss that reduces the window to `reduced`, in the mean [segments].

    After a loss in an open window this is the window of the loss: it was as large at the loss before. In the mean it is
    w - q (w - 0.85 w), with the share q of losses with fast convergence (`cubictcp_recalc_ssthresh`; RFC 9438, 4.7).
    """
    before = window_before(p, reduced)
    return before if before > p.flight else round(before - FAST_CONVERGED * (before - fast_converged(before)))


@kernel()
def cubic_rate(window: int, target: int, reno_window: int, acks: int) -> tuple[int, int, int]:
    """Return how many acknowledged segments let CUBIC grow by one, and the Reno-friendly window with its ACKs.

    `acks` segments have been acknowledged since the Reno-friendly window last grew, which it does once per 15/8 windows
    (`bictcp_update`; RFC 9438, 4.3 to 4.5).

    >>> cubic_rate(20, 25, 20, 38), cubic_rate(20, 20, 22, 0)
    ((4, 21, 1), (10, 22, 0))
    """
    needed = window * tcp.CUBIC_RENO_EIGHTHS // 8
    while acks > needed:
        acks -= needed
        reno_window += 1
    per_segment = tcp.CUBIC_SLOWEST_GROWTH * window
    for ahead in (target - window, reno_window - window):
        if ahead > 0:
            per_segment = min(per_segment, window // ahead)
    return max(per_segment, tcp.CUBIC_FASTEST_GROWTH), reno_window, acks


@kernel()
def grow(window: int, credit: int, per_segment: int, acked: int) -> tuple[int, int]:
    """Return the window after an ACK of `acked` segments, and the acknowledged segments that have not yet counted.

    This is `tcp_cong_avoid_ai`: one segment of growth per `per_segment` acknowledged segments.
    """
    if credit >= per_segment:
        credit = 0
        window += 1
    credit += acked
    return window + credit // per_segment, credit % per_segment


@kernel()
def growing_windows(
    p: LinuxParameters, reduced: int, stored: int, rounds: NDArray[np.int64], grown: NDArray[np.float64]
) -> None:
    """Write the congestion window of each round after a recovery and its growth, while the window is the limit.

    Reno grows by one segment at the end of each round (RFC 5681, 3.1). CUBIC's integer arithmetic is followed ACK by
    ACK (`bictcp_update`, `tcp_cong_avoid_ai`; RFC 9438, 4.2 to 4.4), from the window `stored` at the last loss.
    """
    if not p.cubic:
        for place in range(rounds.size):
            rounds[place] = min(reduced + place, p.largest_window)
        return
    origin = max(stored, reduced)
    inflection = np.cbrt((origin - reduced) / tcp.CUBIC_C)
    window, reno_window, acks, credit, per_segment = reduced, reduced, 0, 0, tcp.CUBIC_SLOWEST_GROWTH * reduced
    updated_at, updated_window = -1.0, 0
    for place in range(rounds.size):
        rounds[place] = min(window, p.largest_window)
        if window >= p.largest_window:
            continue
        flight = window
        for ack in range(flight):
            grown[place] += (window - flight) / flight
            acks += 1
            time = (place + ack / flight) * p.rtt
            if updated_window != window or time - updated_at > UPDATE_INTERVAL + SAME_TIME:
                updated_window, updated_at = window, time
                # W_cubic = origin + C (t + RTT - K)^3, K being the time of the inflection (RFC 9438, 4.2) [segments].
                distance = time + p.rtt - inflection
                climb = np.floor(tcp.CUBIC_C * abs(distance) ** 3 + SAME_TIME)
                target = origin + (climb if distance >= 0 else -climb)
                per_segment, reno_window, acks = cubic_rate(window, int(target), reno_window, acks)
            window, credit = grow(window, credit, per_segment, 1)


SMALL_PACKETS = 2
"""Packets per segment from which packets count as small: a few segments then carry a whole backlog within a round."""


class AckClock(NamedTuple):
    """When the ACKs of a round release segments: `run` ACKs close together, then the other ACKs further apart."""

    run: int  # Number of ACKs in the run
    spacing_in_run: float  # Time before each ACK of the run [slots]
    spacing_after_run: float  # Time before each later ACK [slots]


@kernel()
def round_clock(p: LinuxParameters, window: int, reduced: int, all_in_run: bool) -> AckClock:
    """Return the ACK clock of a round whose window has grown from `reduced`.

    With `all_in_run` all ACKs belong to the run. While a backlog remains, an ACK that grows the window releases two
    segments back to back, and the ACK clock repeats this spacing (`tcp_cong_avoid_ai`, `tcp_write_xmit`).
    """
    load = p.load
    if p.packets_per_segment < SMALL_PACKETS:
        if all_in_run and p.full_segments:
            return AckClock(window - 1, 0.0, load)
        # While there is a backlog, each segment of growth leaves together with another segment.
        return AckClock(max(window - reduced, 0), 0.0, load / min(window, reduced))
    run = window - 1 if all_in_run else 0
    if not all_in_run and window > reduced:
        # The run starts at the beginning of the round and fills the gaps between the other ACKs, packet by packet.
        filled = (window - reduced) / (1 - reduced / load) if reduced < load else float(window)
        run = int(min(max(filled, float(window - reduced)), float(window)) + 0.5)
    if run >= load or run >= window:
        return AckClock(window, load / window, load / window)
    return AckClock(run, 1.0, (load - run) / (window - run))


@kernel()
def ack_time(clock: AckClock, place: int) -> float:
    """Return when the ACK number `place`, counted from 1, arrives after the last ACK of the round before [slots]."""
    run = clock.run
    if place <= run:
        return place * clock.spacing_in_run
    return run * clock.spacing_in_run + (place - run) * clock.spacing_after_run


# When ACKs meet late writes. See "When writes are late" in docs/appendix/chain-linux.md.

LATENESS_STEPS = 32
"""Number of steps of the integrals over the lateness of writes."""
MOST_FOLLOWED_WRITES = 32
"""Largest number of round-trip times over which the lateness of an ACK clock is followed."""
RARELY_EARLY = 1e-3
"""Share of ACKs that come before their write below which all come after it."""


@kernel()
def signed_part(time: float) -> float:
    """Return the time since the nearest whole slot, -0.5 to below 0.5 [slots]."""
    part = time - math.floor(time + SAME_TIME)
    return part if part < 0.5 else part - 1.0


@kernel()
def ack_offsets(p: LinuxParameters, round_trips: int) -> tuple[float, float, float]:
    """Return the share of ACKs that come before a write, their mean time after it, below 0, and that of other ACKs.

    `round_trips` is the number n of round-trip times from a write to the ACK. With exact writes all ACKs come at one
    time after a write, the fractional part of n r. With late writes, a write comes at V and the ACK at A:

        V = J U_0,   A = max (k f + J U_k, k = 1 ... n),

    where J is the `write_jitter`, the U_k are uniform from 0 to 1, and f is `signed_part(r)`. The maximum has this
    reason: an ACK that comes before a write finds no packet. The packet then leaves with its write, so that the ACK one
    round-trip time later has the lateness of this write. If k f leaves the slot, only n r and one lateness count.
    """
    whole = round_trips * p.load
    offset = whole - math.floor(whole + SAME_TIME)
    jitter, nearest = p.write_jitter, signed_part(whole)
    if jitter == 0.0 or abs(nearest) >= jitter:
        return 0.0, 0.0, offset
    drift, count = signed_part(p.load), min(round_trips, MOST_FOLLOWED_WRITES)
    if abs(drift) * round_trips >= 0.5:
        drift, count = nearest, 1
    first = max(drift, count * drift)
    last, step = first + jitter, jitter / LATENESS_STEPS
    # With the distribution function F of A, for any s: E s(A) = s(last) - integral of s' F.
    early, ahead, mean = _later_write(last, jitter), _time_to_write(last, jitter), last
    for place in range(LATENESS_STEPS):
        time, share = first + (place + 0.5) * step, 1.0
        for number in range(1, count + 1):
            share *= min(max((time - number * drift) / jitter, 0.0), 1.0)
        if 0.0 < time < jitter:
            early += share * step / jitter
        ahead += _later_write(time, jitter) * share * step
        mean -= share * step
    if early < RARELY_EARLY:
        return 0.0, 0.0, max(mean - jitter / 2, 0.0)
    return early, -ahead / early, (mean - jitter / 2 + ahead) / max(1 - early, RARELY_EARLY)


@kernel()
def _later_write(time: float, jitter: float) -> float:
    """Return the probability that a write is later than a time [slots]."""
    return 1 - min(max(time / jitter, 0.0), 1.0)


@kernel()
def _time_to_write(time: float, jitter: float) -> float:
    """Return the mean time from a time to a later write [slots]; 0 counts for an earlier write."""
    return jitter / 2 - time if time < 0 else (jitter - min(time, jitter)) ** 2 / (2 * jitter)
