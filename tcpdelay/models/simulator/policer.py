"""How BBR detects a policer, which drops what exceeds a rate: two intervals with many losses and about the same rate.

Such an interval has at least four rounds (net/ipv4/tcp_bbr.c, "long-term" bandwidth sampling, `lt_bw`).

References
----------
Flach et al., "An Internet-Wide Analysis of Traffic Policing", SIGCOMM 2016.
"""

from __future__ import annotations

from typing import Any

from tcpdelay.models import tcp
from tcpdelay.models.compilation import kernel
from tcpdelay.models.simulator.pacing import bytes_per_second
from tcpdelay.models.tcp import BBR_BANDWIDTH, BBR_GAIN


@kernel()
def _begin_interval(c: Any) -> None:
    """Begin an interval of samples (`bbr_reset_lt_bw_sampling_interval`)."""
    c.bbr_lt_last_stamp = c.delivered_mstamp // tcp.MILLISECOND
    c.bbr_lt_last_delivered = c.delivered
    c.bbr_lt_last_lost = c.lost
    c.bbr_lt_rtt_cnt = 0


@kernel()
def reset_policer(c: Any) -> None:
    """Forget the policer (`bbr_reset_lt_bw_sampling`)."""
    c.bbr_lt_bw = c.bbr_lt_use_bw = c.bbr_lt_is_sampling = 0
    _begin_interval(c)


@kernel()
def sample_policer(c: Any, cycling: bool, losses: int, application_limited: int) -> bool:
    """Look for a policer; return whether to probe for bandwidth again (`bbr_lt_bw_sampling`).

    Parameters
    ----------
    c : record
        The connection.
    cycling : bool
        Whether the mode is PROBE_BW.
    losses : int
        Segments newly marked as lost.
    application_limited : int
        1 if the application has limited the rate, else 0.
    """
    if c.bbr_lt_use_bw:
        if cycling and c.bbr_round_start:
            c.bbr_lt_rtt_cnt += 1
            if c.bbr_lt_rtt_cnt >= tcp.BBR_POLICED_ROUNDS:
                reset_policer(c)
                return True
        return False
    if not c.bbr_lt_is_sampling:
        if not losses:
            return False
        _begin_interval(c)
        c.bbr_lt_is_sampling = 1
    if application_limited:
        reset_policer(c)
        return False
    if c.bbr_round_start:
        c.bbr_lt_rtt_cnt += 1
    if c.bbr_lt_rtt_cnt > 4 * tcp.BBR_INTERVAL_ROUNDS:
        reset_policer(c)
    elif c.bbr_lt_rtt_cnt >= tcp.BBR_INTERVAL_ROUNDS and losses:
        _end_interval(c)
    return False


@kernel()
def _end_interval(c: Any) -> None:
    """End an interval if at least a fifth of its segments were lost (`bbr_lt_bw_interval_done`).

    Two intervals with about the same rate show a policer.
    """
    lost, delivered = c.lost - c.bbr_lt_last_lost, c.delivered - c.bbr_lt_last_delivered
    duration = c.delivered_mstamp // tcp.MILLISECOND - c.bbr_lt_last_stamp
    if delivered == 0 or lost * BBR_GAIN < tcp.BBR_POLICED_LOSS * delivered or duration < 1:
        return
    bandwidth = delivered * BBR_BANDWIDTH // (duration * tcp.MILLISECOND)
    if c.bbr_lt_bw and _is_alike(c, abs(bandwidth - c.bbr_lt_bw)):
        c.bbr_lt_bw = (bandwidth + c.bbr_lt_bw) >> 1
        c.bbr_lt_use_bw = 1
        c.bbr_pacing_gain = BBR_GAIN
        c.bbr_lt_rtt_cnt = 0
        return
    c.bbr_lt_bw = bandwidth
    _begin_interval(c)


@kernel()
def _is_alike(c: Any, difference: int) -> bool:
    """Return whether two rates differ by at most an eighth or 500 bytes per second."""
    if difference * BBR_GAIN <= tcp.BBR_POLICED_RATIO * c.bbr_lt_bw:
        return True
    return bool(bytes_per_second(c, difference, BBR_GAIN) <= tcp.BBR_POLICED_DIFFERENCE)
