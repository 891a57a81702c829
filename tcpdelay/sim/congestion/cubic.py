"""CUBIC, and HyStart, which lets it leave slow start before it loses many segments (net/ipv4/tcp_cubic.c; RFC 9438).

References
----------
Ha, Rhee, "Hybrid Slow Start for High-Bandwidth and Long-Distance Networks", PFLDnet 2008.
"""

from __future__ import annotations

import numpy as np

from tcpdelay.compiling.compilation import kernel
from tcpdelay.sim.congestion.reno import NO_GROWTH, avoid_congestion, in_slow_start, left_by_slow_start, reduced_window
from tcpdelay.sim.records import Connection, WireRecord, ticks_now, to_ticks
from tcpdelay.sim.tcp import constants as tcp
from tcpdelay.sim.tcp.constants import NEVER

CUBIC_BITS = 10 + 3 * tcp.CUBIC_TIME_BITS
"""Binary digits of CUBIC_C_SCALED and of a cubed time."""
fast_converged = kernel()(tcp.fast_converged)


class State(Connection):
    """A connection with the state of CUBIC."""

    cubic_cnt: int
    cubic_last_max: int
    cubic_last_cwnd: int
    cubic_last_time: int
    cubic_origin: int
    cubic_k: int
    cubic_epoch: int
    cubic_ack_cnt: int
    cubic_tcp_cwnd: int
    # HyStart
    hystart_found: int
    cubic_delay_min: int
    hystart_round_start: int
    hystart_last_ack: int
    hystart_end_seq: int
    hystart_curr_rtt: int
    hystart_samples: int


@kernel()
def on_ack(c: State, acknowledged: int) -> None:
    """Grow the window (`cubictcp_cong_avoid`)."""
    left = left_by_slow_start(c, acknowledged)
    if left != NO_GROWTH:
        _update_cubic(c, left)
        avoid_congestion(c, left, c.cubic_cnt)


@kernel()
def _update_cubic(c: State, acknowledged: int) -> None:
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
def on_loss(c: State) -> int:
    """Return 717/1024 of the window, and end the epoch (`cubictcp_recalc_ssthresh`)."""
    c.cubic_epoch = 0
    # Fast convergence: a new flow seems to share the link, so this flow leaves it a larger share.
    c.cubic_last_max = fast_converged(c.snd_cwnd) if c.snd_cwnd < c.cubic_last_max else c.snd_cwnd
    return int(reduced_window(c.snd_cwnd, True))


@kernel()
def on_idle(c: State, wire: WireRecord) -> None:
    """Stop the clock of the cubic function while no segment is in flight (`cubictcp_cwnd_event`)."""
    if c.cubic_epoch:
        now = ticks_now(c)
        c.cubic_epoch = min(c.cubic_epoch + max(now - c.last_send, 0), now)


@kernel()
def on_timeout(c: State, wire: WireRecord, first: bool) -> None:
    """Reset the cubic function and HyStart (`bictcp_reset`)."""
    c.cubic_cnt = c.cubic_last_max = c.cubic_last_cwnd = c.cubic_last_time = c.cubic_origin = 0
    c.cubic_k = c.cubic_epoch = c.cubic_ack_cnt = c.cubic_tcp_cwnd = 0
    c.hystart_found = c.cubic_delay_min = 0
    begin_round(c)


@kernel()
def begin_round(c: State) -> None:
    """Begin a round, which ends when all data sent so far is acknowledged (`bictcp_hystart_reset`)."""
    c.hystart_round_start = c.hystart_last_ack = c.now
    c.hystart_end_seq = c.snd_nxt
    c.hystart_curr_rtt = NEVER
    c.hystart_samples = 0


@kernel()
def on_rtt(c: State, rtt: int) -> None:
    """Give HyStart the round-trip time of an ACK [us] (`cubictcp_acked`)."""
    if c.cubic_epoch and ticks_now(c) - c.cubic_epoch < tcp.SECOND // c.tick:
        return
    rtt = max(rtt, 1)
    if c.cubic_delay_min == 0 or rtt < c.cubic_delay_min:
        c.cubic_delay_min = rtt
    if not c.hystart_found and in_slow_start(c):
        _look_for_the_end(c, rtt)


@kernel()
def _look_for_the_end(c: State, rtt: int) -> None:
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
def _largest_rise(c: State) -> int:
    """Return the rise of the RTT [us] above which a queue builds up (`HYSTART_DELAY_THRESH`)."""
    return int(min(max(c.cubic_delay_min >> 3, tcp.HYSTART_DELAY_MIN), tcp.HYSTART_DELAY_MAX))


@kernel()
def _leave_slow_start(c: State) -> None:
    """Set the slow-start threshold to the window."""
    c.hystart_found = 1
    c.snd_ssthresh = c.snd_cwnd
