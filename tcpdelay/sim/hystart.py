"""HyStart: CUBIC leaves slow start before it loses much (net/ipv4/tcp_cubic.c).

References
----------
Ha, Rhee, "Hybrid Slow Start for High-Bandwidth and Long-Distance Networks", PFLDnet 2008.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from tcpdelay.sim.clock import SECOND, ticks_now
from tcpdelay.sim.records import NEVER
from tcpdelay.sim.window import in_slow_start

LOW_WINDOW = 16
"""Window from which on slow start may end early [segments] (hystart_low_window)."""
TRAIN_GAP = 2000
"""Time between two acknowledgements of a train at most [us] (hystart_ack_delta_us)."""
LONGEST_ACK_DELAY = 1000
"""What a train may take beyond the path's delay [us]; the kernel's is shorter beyond some 2 Gbit/s only."""
FEWEST_SAMPLES = 8
SMALLEST_RISE, LARGEST_RISE = 4000, 16_000
"""Bounds of an eighth of the path's delay, by which the round-trip time rises as a queue begins [us]."""


@njit(cache=True)
def begin_round(c: Any) -> None:
    """Begin a round, which ends as what has been sent until now is acknowledged (`bictcp_hystart_reset`)."""
    c.hystart_round_start = c.hystart_last_ack = c.now
    c.hystart_end_seq = c.snd_nxt
    c.hystart_curr_rtt = NEVER
    c.hystart_samples = 0


@njit(cache=True)
def forget_rounds(c: Any) -> None:
    """Look for the end of slow start anew, as after a timeout (`bictcp_reset`)."""
    c.hystart_found = c.hystart_delay_min = 0
    begin_round(c)


@njit(cache=True)
def note_rtt(c: Any, rtt: int) -> None:
    """Take the round-trip time of an acknowledgement [us] (`cubictcp_acked`)."""
    if not c.cubic or (c.cubic_epoch and ticks_now(c) - c.cubic_epoch < SECOND // c.tick):
        return
    rtt = max(rtt, 1)
    if c.hystart_delay_min == 0 or rtt < c.hystart_delay_min:
        c.hystart_delay_min = rtt
    if not c.hystart_found and in_slow_start(c):
        _look_for_the_end(c, rtt)


@njit(cache=True)
def _look_for_the_end(c: Any, rtt: int) -> None:
    """End slow start if acknowledgements came in a train for half of the path's delay, or later (`hystart_update`)."""
    if c.snd_una > c.hystart_end_seq:
        begin_round(c)
    if c.snd_cwnd < LOW_WINDOW:
        return
    if c.now - c.hystart_last_ack <= TRAIN_GAP:
        c.hystart_last_ack = c.now
        # Nothing is paced, so that a window leaves at once, and half of the delay tells.
        if c.now - c.hystart_round_start > (c.hystart_delay_min + LONGEST_ACK_DELAY) >> 1:
            _leave_slow_start(c)
    c.hystart_curr_rtt = min(c.hystart_curr_rtt, rtt)
    if c.hystart_samples < FEWEST_SAMPLES:
        c.hystart_samples += 1
    elif c.hystart_curr_rtt > c.hystart_delay_min + min(max(c.hystart_delay_min >> 3, SMALLEST_RISE), LARGEST_RISE):
        _leave_slow_start(c)


@njit(cache=True)
def _leave_slow_start(c: Any) -> None:
    c.hystart_found = 1
    c.snd_ssthresh = c.snd_cwnd
