"""The facts of TCP: thresholds, timers and formulas that chains, simulator, shared link, testbed and advice share.

Each fact has the symbol of the Linux kernel, its function or file, and the section of the RFC. Unless noted, times are
whole microseconds and windows are segments, as in the kernel. Functions take and return plain numbers, so that numba
can compile them.

References
----------
Linux 6.1, include/net/tcp.h, net/ipv4/tcp_input.c, tcp_output.c, tcp_recovery.c, tcp_timer.c, tcp_cubic.c, tcp_bbr.c;
RFC 5681, RFC 6298, RFC 6928, RFC 8985, RFC 9438.
"""

from __future__ import annotations

from tcpdelay.scenario.stack import Linux

SECOND = 1_000_000
"""Microseconds per second."""
NEVER = 1 << 62
"""Time of an event that is not scheduled."""
MILLISECOND = 1000
"""Step of the timestamps [us] (tcp_time_stamp_raw; RFC 7323, 5.4)."""

DUPLICATE_THRESHOLD = 3
"""Duplicate ACKs, or segments SACKed beyond a hole, that indicate a loss (sysctl tcp_reordering; RFC 5681, 3.2).

RACK waits for reordered segments while fewer segments are SACKed (tcp_rack_reo_wnd; RFC 8985, 6.2).
"""
REORDERING_SHARE = 4
"""RACK waits a quarter of the smallest RTT for reordered segments (tcp_rack_reo_wnd; RFC 8985, 6.2)."""
LARGEST_REORDERING = 300
"""Largest distance of reordering that is counted [segments] (sysctl tcp_max_reordering)."""
LARGEST_REORDERING_STEPS = 255
"""Largest wait after D-SACKs, in quarters of the smallest RTT (struct tcp_sock, rack.reo_wnd_steps: 8 bits)."""
REORDERING_RECOVERIES = 16
"""Number of recoveries for which a longer wait lasts (TCP_RACK_RECOVERY_THRESH)."""

TIMER_SLACK = 2000
"""Time added to RACK's timer, and to the probe's timer with several segments in flight (TCP_TIMEOUT_MIN_US)."""
PROBE_ROUND_TRIPS = 2
"""Smoothed RTTs after which a tail loss probe is sent (tcp_schedule_loss_probe; RFC 8985, 7.2)."""
RTO_MIN = Linux().rto_min
"""Minimum time that the retransmission timeout adds to the smoothed RTT [s] (TCP_RTO_MIN)."""
TIMEOUT_MIN_TICKS = 2
"""Smallest timeout [ticks] (TCP_TIMEOUT_MIN)."""
FIRST_TIMEOUT = 1.0
"""Retransmission timeout before the first sample of the RTT [s] (TCP_TIMEOUT_INIT; RFC 6298, 2.1)."""

INITIAL_WINDOW = 10
"""Initial congestion window (TCP_INIT_CWND; RFC 6928)."""
SMALLEST_THRESHOLD = 2
"""Minimum of the slow-start threshold after a loss (tcp_reno_ssthresh, cubictcp_recalc_ssthresh; RFC 5681, 3.1)."""
INFINITE_THRESHOLD = 0x7FFFFFFF
"""Slow-start threshold before the first loss (TCP_INFINITE_SSTHRESH)."""

CUBIC_BETA, CUBIC_SCALE = 717, 1024
"""CUBIC's multiplicative decrease, 717/1024 (tcp_cubic.c, beta and BICTCP_BETA_SCALE; RFC 9438, 4.6 has 0.7)."""
CUBIC_C = 0.4
"""Scale of the cubic function [segments per cubed second] (RFC 9438, 5.1)."""
CUBIC_C_SCALED = 410
"""`CUBIC_C` in 1024ths (tcp_cubic.c, cube_rtt_scale = 10 bic_scale)."""
CUBIC_TIME_BITS = 10
"""Binary digits of the time unit of the cubic function, 1/1024 s (tcp_cubic.c, BICTCP_HZ)."""
CUBIC_RENO_EIGHTHS = 8 * (CUBIC_SCALE + CUBIC_BETA) // 3 // (CUBIC_SCALE - CUBIC_BETA)
"""Eighths of a window of ACKs, 15, per segment of the Reno-friendly window (tcp_cubic.c, beta_scale; RFC 9438, 4.3)."""
CUBIC_SLOWEST_GROWTH = 100
"""Largest number of windows of ACKs per segment of growth (tcp_cubic.c, bictcp_update)."""
CUBIC_FIRST_GROWTH = 20
"""Largest number of ACKs per segment of growth before the first loss (tcp_cubic.c, bictcp_update)."""
CUBIC_FASTEST_GROWTH = 2
"""Smallest number of ACKs per segment of growth (tcp_cubic.c, bictcp_update)."""
CUBIC_UPDATES_PER_SECOND = 32
"""Largest number of updates of the growth per second for an unchanged window (tcp_cubic.c, bictcp_update: HZ / 32)."""

HYSTART_LOW_WINDOW = 16
"""Smallest window at which HyStart may end slow start (tcp_cubic.c, hystart_low_window)."""
HYSTART_ACK_DELTA = 2000
"""Largest time between two ACKs of a train (tcp_cubic.c, hystart_ack_delta_us)."""
HYSTART_ACK_DELAY = 1000
"""Time by which a train may exceed the path's delay (hystart_ack_delay; smaller only above some 2 Gbit/s)."""
HYSTART_MIN_SAMPLES = 8
"""RTT samples of a round before HyStart compares their minimum with the path's delay (HYSTART_MIN_SAMPLES)."""
HYSTART_DELAY_MIN, HYSTART_DELAY_MAX = 4000, 16_000
"""Bounds of the rise of the RTT, an eighth of the path's delay, that indicates a queue (HYSTART_DELAY_MIN, _MAX)."""

BBR_BANDWIDTH = 1 << 24
"""Unit of BBR's bandwidths: 2^-24 segments per microsecond (tcp_bbr.c, BW_UNIT)."""
BBR_GAIN = 256
"""BBR's gain of 1 (tcp_bbr.c, BBR_UNIT)."""
BBR_HIGH_GAIN = BBR_GAIN * 2885 // 1000 + 1
"""Gain of pacing rate and window in startup, 2 / ln 2: the rate doubles in each round (bbr_high_gain)."""
BBR_DRAIN_GAIN = BBR_GAIN * 1000 // 2885
"""Gain of the pacing rate that drains the queue of startup (bbr_drain_gain)."""
BBR_WINDOW_GAIN = 2 * BBR_GAIN
"""Gain of the window while BBR probes for bandwidth (bbr_cwnd_gain)."""
BBR_PROBING_GAINS = (BBR_GAIN * 5 // 4, BBR_GAIN * 3 // 4)
"""Gains of the pacing rate in the first phases of the gain cycle; in the other phases it is 1 (bbr_pacing_gain)."""
BBR_CYCLE = 8
"""Phases of the gain cycle (CYCLE_LEN)."""
BBR_BANDWIDTH_ROUNDS = BBR_CYCLE + 2
"""Rounds of which the largest delivery rate is the bandwidth (bbr_bw_rtts)."""
BBR_MIN_RTT_TIME, BBR_PROBE_RTT_TIME = 10 * SECOND, 200 * MILLISECOND
"""Age of the smallest RTT at which it is measured again, and the time that this takes (bbr_min_rtt_win_sec,
bbr_probe_rtt_mode_ms)."""
BBR_SMALLEST_WINDOW = 4
"""Smallest window except in a recovery, and the window that measures the smallest RTT (bbr_cwnd_min_target)."""
BBR_FULL_GROWTH, BBR_FULL_ROUNDS = BBR_GAIN * 5 // 4, 3
"""Startup ends after three rounds in which the bandwidth does not grow by a quarter (bbr_full_bw_thresh, _cnt)."""
BBR_PACING_MARGIN = 1
"""Percentage by which the pacing rate is below the bandwidth (bbr_pacing_margin_percent)."""
BBR_MIN_TSO_RATE = 1_200_000 // 8
"""Pacing rate below which BBR's quantum is one segment [bytes per second] (bbr_min_tso_rate)."""
BBR_LARGEST_QUANTUM = 0x7F
"""Largest quantum (bbr_tso_segs_goal)."""
BBR_EXTRA_ACKED_ROUNDS, BBR_EXTRA_ACKED_TIME = 5, 100 * MILLISECOND
"""Rounds over which aggregated ACKs are counted, and the largest time that they bridge (bbr_extra_acked_win_rtts,
bbr_extra_acked_max_us)."""
BBR_LONGEST_EPOCH = 1 << 20
"""Segments after which the count of aggregated ACKs starts again (bbr_ack_epoch_acked_reset_thresh)."""
BBR_INTERVAL_ROUNDS, BBR_POLICED_ROUNDS = 4, 48
"""Fewest rounds of an interval that may show a policer, and rounds at a policer's rate (bbr_lt_intvl_min_rtts,
bbr_lt_bw_max_rtts)."""
BBR_POLICED_LOSS = 50
"""Ratio of lost to delivered segments, in 256ths, from which there may be a policer (bbr_lt_loss_thresh)."""
BBR_POLICED_RATIO, BBR_POLICED_DIFFERENCE = BBR_GAIN // 8, 4000 // 8
"""Relative difference, in 256ths, and difference [bytes per second] of rates that count as equal (bbr_lt_bw_ratio,
bbr_lt_bw_diff)."""

UNPACED_SEGMENTS = 10
"""Segments at the start of a connection that are not paced (tcp_update_skb_after_send)."""
PACING_SHIFT = 10
"""Binary logarithm of the ratio of a second to the time for which segments are sent as one (sk_pacing_shift)."""
LARGEST_SUPERSEGMENT = 65_215
"""Largest payload that the kernel sends as one [bytes] (GSO_LEGACY_MAX_SIZE - 1 - MAX_TCP_HEADER)."""

DELAYED_ACK_MIN = 0.040
"""Smallest delay of an ACK [s] (TCP_DELACK_MIN, HZ / 25)."""
DELAYED_ACKS_MIN, DELAYED_ACKS_MAX, DELAYED_ACKS_PUSHED = 25, 2, 5
"""Delays of an ACK as parts of a second: TCP_DELACK_MIN, HZ / 2, and TCP_DELACK_MAX if data was pushed (HZ / 5)."""
QUICK_ACKS = 16
"""Segments acknowledged at once at the start of a connection or after a long silence (TCP_MAX_QUICKACKS)."""
INITIAL_RECEIVE_MSS = 536
"""Receiver's first estimate of the sender's segment size [bytes] (TCP_MSS_DEFAULT)."""
UNCOMPRESSED_SACKS = 3
"""Number of SACKs sent at once after a hole, before SACKs are compressed (TCP_FASTRETRANS_THRESH)."""
COMPRESSION_DELAY = 1000
"""Largest delay of a compressed SACK (sysctl tcp_comp_sack_delay_ns)."""
PAWS_WINDOW = 1
"""How much older than the latest timestamp a segment may be that is not discarded [ms] (TCP_PAWS_WINDOW)."""

WHEEL_LEVEL_SHIFT = 3
"""Binary logarithm of the ratio of the resolutions of two levels of the timer wheel (LVL_CLK_SHIFT)."""
WHEEL_FIRST_LEVEL = 63
"""Ticks ahead from which the timer wheel uses its second level (LVL_START in kernel/time/timer.c)."""


def reduced_window(window: int, cubic: bool) -> int:
    """Return the slow-start threshold after a loss: 717/1024 of the window with CUBIC, otherwise half of the window.

    `cubictcp_recalc_ssthresh` and `tcp_reno_ssthresh`; RFC 9438, 4.6, and RFC 5681, 3.1.
    """
    return max(window * CUBIC_BETA // CUBIC_SCALE if cubic else window // 2, SMALLEST_THRESHOLD)


def fast_converged(window: int) -> int:
    """Return the window that CUBIC stores by fast convergence (`cubictcp_recalc_ssthresh`; RFC 9438, 4.7)."""
    return window * (CUBIC_SCALE + CUBIC_BETA) // (2 * CUBIC_SCALE)


def gilbert_probabilities(loss: float, mean_burst: float) -> tuple[float, float]:
    """Return the probabilities to enter and to leave the bad state, in which every segment is lost.

    This is Gilbert's model (1960) as in netem (linux/pkt_sched.h, NETEM_LOSS_GE; net/sched/sch_netem.c, loss_gilb_ell):
    leave = 1 / mean_burst, enter = leave loss / (1 - loss).
    """
    leave = 1.0 / mean_burst
    return leave * loss / (1.0 - loss), leave


def to_ticks(duration: int, tick: int) -> int:
    """Return a duration in ticks of the kernel's clock, rounded up (`usecs_to_jiffies`)."""
    return (duration + tick - 1) // tick


def wheel_expiry(now: int, ticks: int) -> int:
    """Return the tick at which a timer fires that is set for `ticks` after the tick `now` (kernel/time/timer.c).

    The kernel's timer wheel never fires early, so it rounds up by at least one tick, and by more for a timer further
    ahead: a retransmission timeout of 75 ticks can be 8 ticks late.
    """
    shift = 0
    while ticks >= WHEEL_FIRST_LEVEL << shift:
        shift += WHEEL_LEVEL_SHIFT
    return (((now + ticks) >> shift) + 1) << shift
