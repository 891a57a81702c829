"""The congestion window: how Reno, CUBIC and DCTCP grow it, and how losses, marks and idle time reduce it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.records import MOST_EVENTS, OPEN, Connection, WireRecord, in_flight, in_reduction, ticks_now, to_ticks
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.bbr import save_window
from tcpdelay.sim.tcp.constants import NEVER

# DCTCP: the window shrinks in proportion to the share of marked segments (RFC 8257; net/ipv4/tcp_dctcp.c).
#
# It grows as with Reno.

MAX_ALPHA = 1024
"""All segments are marked (`DCTCP_MAX_ALPHA`); alpha begins with this value."""
SHIFT_G = 4
"""Binary logarithm of 1 / g (`dctcp_shift_g`)."""
SMALLEST_WINDOW = 2


@kernel()
def update_alpha(c: Connection, acknowledged: int, delivered: int) -> None:
    """Set alpha = (1 - g) alpha + g F per round trip, with its share F of marked segments (`dctcp_update_alpha`)."""
    if acknowledged < c.next_seq:
        return
    alpha = c.dctcp_alpha
    # A small alpha falls to 0, not just near it.
    alpha -= (alpha >> SHIFT_G) or alpha
    alpha += (c.delivered_ce << (10 - SHIFT_G)) // max(delivered - c.old_delivered, 1)
    c.dctcp_alpha = min(alpha, MAX_ALPHA)
    c.next_seq, c.old_delivered, c.delivered_ce = c.snd_nxt, delivered, 0


@kernel()
def marked_threshold(c: Connection) -> int:
    """Return the slow-start threshold after marks: window (1 - alpha / 2) (`dctcp_ssthresh`)."""
    return int(max(c.snd_cwnd - (c.snd_cwnd * c.dctcp_alpha >> 11), SMALLEST_WINDOW))


@kernel()
def react_to_loss(c: Connection) -> None:
    """Set the threshold after a loss to half of the window (`dctcp_react_to_loss`)."""
    if c.dctcp:
        c.snd_ssthresh = max(c.snd_cwnd >> 1, SMALLEST_WINDOW)


# The congestion window: when it may grow, how Reno and CUBIC grow it, and how losses and idle time reduce it.
#
# HyStart lets CUBIC leave slow start before it loses many segments (net/ipv4/tcp_cubic.c). The module also has the
# packet trace: the events at the sender, in the order of time.
#
# References:
# Ha, Rhee, "Hybrid Slow Start for High-Bandwidth and Long-Distance Networks", PFLDnet 2008.

CUBIC_BITS = 10 + 3 * tcp.CUBIC_TIME_BITS
"""Binary digits of CUBIC_C_SCALED and of a cubed time."""
fast_converged = kernel()(tcp.fast_converged)
reduced_window = kernel()(tcp.reduced_window)


@kernel()
def in_slow_start(c: Connection) -> bool:
    """Return whether the window is below the slow-start threshold."""
    return bool(c.snd_cwnd < c.snd_ssthresh)


@kernel()
def is_window_the_limit(c: Connection) -> bool:
    """Return whether the window, not the application, has limited the sender recently (`tcp_is_cwnd_limited`)."""
    if c.is_cwnd_limited:
        return True
    return in_slow_start(c) and c.snd_cwnd < 2 * c.max_packets_out


@kernel()
def validate_window(c: Connection, limited: bool) -> None:
    """Record whether the window was the limit, and reduce it after idle time (`tcp_cwnd_validate`; RFC 2861).

    The flag is cleared only after all segments that were outstanding when it was set have been acknowledged. The window
    is reduced only if no new data has been acknowledged for a whole retransmission timeout, because such ACKs renew the
    time stamp.
    """
    if c.snd_una >= c.cwnd_usage_seq or limited or (not c.is_cwnd_limited and c.packets_out > c.max_packets_out):
        c.is_cwnd_limited = limited
        c.max_packets_out = c.packets_out
        c.cwnd_usage_seq = c.snd_nxt
    now = ticks_now(c)
    if is_window_the_limit(c):
        c.snd_cwnd_used = 0
        c.snd_cwnd_stamp = now
        return
    c.snd_cwnd_used = max(c.snd_cwnd_used, c.packets_out)
    if c.window_validation and now - c.snd_cwnd_stamp >= c.rto:
        if c.ca_state == OPEN:
            used = max(c.snd_cwnd_used, tcp.INITIAL_WINDOW)
            if used < c.snd_cwnd:
                c.snd_ssthresh = max(c.snd_ssthresh, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
                c.snd_cwnd = (c.snd_cwnd + used) >> 1
            c.snd_cwnd_used = 0
        c.snd_cwnd_stamp = now


@kernel()
def restart_after_idle(c: Connection) -> None:
    """Halve the window, before a write, for each idle retransmission timeout (`tcp_cwnd_restart`; RFC 2861)."""
    now = ticks_now(c)
    idle = now - c.last_send
    if not c.window_validation or c.packets_out or c.last_send == 0 or idle <= c.rto:
        return
    if not in_reduction(c):
        c.snd_ssthresh = max(c.snd_ssthresh, (c.snd_cwnd >> 1) + (c.snd_cwnd >> 2))
    smallest = min(tcp.INITIAL_WINDOW, c.snd_cwnd)
    idle -= c.rto
    while idle > 0 and c.snd_cwnd > smallest:
        c.snd_cwnd >>= 1
        idle -= c.rto
    c.snd_cwnd = max(c.snd_cwnd, smallest)
    c.snd_cwnd_stamp = now
    c.snd_cwnd_used = 0


@kernel()
def grow_window(c: Connection, acknowledged: int) -> None:
    """Grow the window for a number of acknowledged segments (`tcp_reno_cong_avoid`, `cubictcp_cong_avoid`)."""
    if c.application_limited_rule and not is_window_the_limit(c):
        return
    if in_slow_start(c):
        grown = min(c.snd_cwnd + acknowledged, c.snd_ssthresh)
        acknowledged -= grown - c.snd_cwnd
        c.snd_cwnd = grown
        if acknowledged == 0:
            return
    segments = c.snd_cwnd
    if c.cubic:
        _update_cubic(c, acknowledged)
        segments = c.cubic_cnt
    if c.snd_cwnd_cnt >= segments:
        c.snd_cwnd_cnt = 0
        c.snd_cwnd += 1
    c.snd_cwnd_cnt += acknowledged
    if c.snd_cwnd_cnt >= segments:
        steps = c.snd_cwnd_cnt // segments
        c.snd_cwnd_cnt -= steps * segments
        c.snd_cwnd += steps


@kernel()
def _update_cubic(c: Connection, acknowledged: int) -> None:
    """Set the number of ACKs for which the window grows by one segment (`bictcp_update`; RFC 9438)."""
    now = ticks_now(c)
    hz = tcp.SECOND // c.tick
    c.cubic_ack_cnt += acknowledged
    if c.cubic_last_cwnd == c.snd_cwnd and now - c.cubic_last_time <= hz // tcp.CUBIC_UPDATES_PER_SECOND:
        return
    if c.cubic_epoch == 0 or now != c.cubic_last_time:
        c.cubic_last_cwnd = c.snd_cwnd
        c.cubic_last_time = now
        if c.cubic_epoch == 0:
            c.cubic_epoch = now
            c.cubic_ack_cnt = acknowledged
            c.cubic_tcp_cwnd = c.snd_cwnd
            c.cubic_origin = max(c.cubic_last_max, c.snd_cwnd)
            c.cubic_k = cube_root((1 << CUBIC_BITS) // tcp.CUBIC_C_SCALED * (c.cubic_origin - c.snd_cwnd))
        elapsed = (now - c.cubic_epoch + to_ticks(c, c.cubic_delay_min) << tcp.CUBIC_TIME_BITS) // hz
        distance = elapsed - c.cubic_k
        climb = tcp.CUBIC_C_SCALED * abs(distance) ** 3 >> CUBIC_BITS
        target = c.cubic_origin + (climb if distance >= 0 else -climb)
        c.cubic_cnt = (
            c.snd_cwnd // (target - c.snd_cwnd) if target > c.snd_cwnd else tcp.CUBIC_SLOWEST_GROWTH * c.snd_cwnd
        )
        if c.cubic_last_max == 0:
            c.cubic_cnt = min(c.cubic_cnt, tcp.CUBIC_FIRST_GROWTH)
    window = c.snd_cwnd * tcp.CUBIC_RENO_EIGHTHS >> 3
    while c.cubic_ack_cnt > window:
        c.cubic_ack_cnt -= window
        c.cubic_tcp_cwnd += 1
    if c.cubic_tcp_cwnd > c.snd_cwnd:
        c.cubic_cnt = min(c.cubic_cnt, c.snd_cwnd // (c.cubic_tcp_cwnd - c.snd_cwnd))
    c.cubic_cnt = max(c.cubic_cnt, tcp.CUBIC_FASTEST_GROWTH)


@kernel()
def cube_root(value: int) -> int:
    """Return the cube root, rounded; the kernel's approximation differs by at most 0.2 %."""
    return int(np.rint(np.cbrt(value)))


@kernel()
def reduced_threshold(c: Connection) -> int:
    """Return the slow-start threshold after a loss (BBR has none), and store the window (`tcp_ca_ops.ssthresh`)."""
    if c.bbr:
        save_window(c)
        return int(c.snd_ssthresh)
    if c.dctcp:
        return int(marked_threshold(c))
    if c.cubic:
        c.cubic_epoch = 0
        # Fast convergence: a new flow seems to share the link, so this flow leaves it a larger share.
        converges = c.snd_cwnd < c.cubic_last_max
        c.cubic_last_max = fast_converged(c.snd_cwnd) if converges else c.snd_cwnd
    return int(reduced_window(c.snd_cwnd, c.cubic == 1))


@kernel()
def forget_cubic(c: Connection) -> None:
    """Reset the cubic function, as after a timeout (`bictcp_reset`)."""
    c.cubic_cnt = c.cubic_last_max = c.cubic_last_cwnd = c.cubic_last_time = c.cubic_origin = 0
    c.cubic_k = c.cubic_epoch = c.cubic_ack_cnt = c.cubic_tcp_cwnd = 0


@kernel()
def begin_round(c: Connection) -> None:
    """Begin a round, which ends when all data sent so far is acknowledged (`bictcp_hystart_reset`)."""
    c.hystart_round_start = c.hystart_last_ack = c.now
    c.hystart_end_seq = c.snd_nxt
    c.hystart_curr_rtt = NEVER
    c.hystart_samples = 0


@kernel()
def forget_rounds(c: Connection) -> None:
    """Reset HyStart, as after a timeout (`bictcp_reset`)."""
    c.hystart_found = c.cubic_delay_min = 0
    begin_round(c)


@kernel()
def note_rtt(c: Connection, rtt: int) -> None:
    """Give HyStart the round-trip time of an ACK [us] (`cubictcp_acked`)."""
    if not c.cubic or (c.cubic_epoch and ticks_now(c) - c.cubic_epoch < tcp.SECOND // c.tick):
        return
    rtt = max(rtt, 1)
    if c.cubic_delay_min == 0 or rtt < c.cubic_delay_min:
        c.cubic_delay_min = rtt
    if not c.hystart_found and in_slow_start(c):
        _look_for_the_end(c, rtt)


@kernel()
def _look_for_the_end(c: Connection, rtt: int) -> None:
    """Leave slow start if a train of ACKs lasts half of the smallest RTT, or if the RTT rises (`hystart_update`)."""
    if c.snd_una > c.hystart_end_seq:
        begin_round(c)
    if c.snd_cwnd < tcp.HYSTART_LOW_WINDOW:
        return
    if c.now - c.hystart_last_ack <= tcp.HYSTART_ACK_DELTA:
        c.hystart_last_ack = c.now
        # Without pacing a window leaves at once, so the kernel compares with half of the delay.
        if c.now - c.hystart_round_start > (c.cubic_delay_min + tcp.HYSTART_ACK_DELAY) >> 1:
            _leave_slow_start(c)
    c.hystart_curr_rtt = min(c.hystart_curr_rtt, rtt)
    if c.hystart_samples < tcp.HYSTART_MIN_SAMPLES:
        c.hystart_samples += 1
    elif c.hystart_curr_rtt > c.cubic_delay_min + _largest_rise(c):
        _leave_slow_start(c)


@kernel()
def _largest_rise(c: Connection) -> int:
    """Return the rise of the RTT [us] above which a queue builds up (`HYSTART_DELAY_THRESH`)."""
    return int(min(max(c.cubic_delay_min >> 3, tcp.HYSTART_DELAY_MIN), tcp.HYSTART_DELAY_MAX))


@kernel()
def _leave_slow_start(c: Connection) -> None:
    """Set the slow-start threshold to the window."""
    c.hystart_found = 1
    c.snd_ssthresh = c.snd_cwnd


KINDS = (
    "sent",
    "retransmitted",
    "lost",
    "acknowledged",
    "sacked",
    "recovery",
    "reordering timer",
    "probe",
    "timeout",
    "undone",
)
SENT, SENT_AGAIN, LOST_ON_PATH, ACKNOWLEDGED, NEWLY_SACKED, IN_RECOVERY, REORDERING, PROBE, TIMEOUT, UNDONE = range(10)
"""Kinds of events in the packet trace, and their names."""
PUBLIC_EVENT = np.dtype(
    [("time", np.float64), ("kind", "U16")] + [(name, np.int64) for name in ("start", "end", "cwnd", "in_flight")]
)


@kernel()
def note(c: Connection, wire: WireRecord, kind: int, start: int, end: int) -> None:
    """Record an event now that concerns the stream from `start` to before `end`, unless the trace is full or off."""
    if not c.tracing or c.events >= MOST_EVENTS:
        return
    event = wire.events[c.events]
    event.time, event.kind, event.start, event.end = c.now, kind, start, end
    event.cwnd, event.in_flight = c.snd_cwnd, in_flight(c)
    c.events += 1


def public_events(events: NDArray[np.void], first_write: int, first_byte: int) -> NDArray[np.void]:
    """Return recorded events with their kind in words, in seconds and bytes from the first packet that counts."""
    result = np.empty(events.size, PUBLIC_EVENT)
    result["time"] = (events["time"] - first_write) / tcp.SECOND
    result["kind"] = np.array(KINDS)[events["kind"]]
    for name in ("start", "end"):
        result[name] = events[name] - first_byte
    for name in ("cwnd", "in_flight"):
        result[name] = events[name]
    return result
