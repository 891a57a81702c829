"""Losses in bursts, packet by packet: how many are lost in a row, when that is found, and what repairs it.

After a packet that got through the next one is lost with the probability `loss`, after a lost one with `next_loss`
(Gilbert 1960). A burst goes on with whatever is sent next; so one that takes all that the window allows is still there
when the tail loss probe and the timeouts retransmit.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from tcpdelay.chain.linux.detection import DUPLICATE_THRESHOLD, SAME_TIME, detection_wait

PROBE_FLIGHTS = 2
"""Round-trip times after which a tail loss probe is sent (RFC 8985, 7.2)."""


@njit(cache=True)
def followed_losses(p: Any, window: int) -> int:
    """Return up to how many losses in a row out of an open window are told apart; the last stands for all beyond."""
    return int(max(min(window - 1, p.followed_losses), 1))


@njit(cache=True)
def probe_interval(p: Any) -> float:
    """Return how long after the last packet the tail loss probe is sent [slots]."""
    return float(PROBE_FLIGHTS * p.load + p.probe_slack)


@njit(cache=True)
def outage_chance(p: Any, window: int) -> float:
    """Return the chance that all that the window allows after a lost packet is lost as well."""
    if p.followed_losses == 0:
        return 0.0
    # Between packets that come later than a probe, the probe is the next one sent.
    probes = 1 if probe_interval(p) < 1 and window > 2 else 0
    return float(p.next_loss ** (window - 1 + probes))


@njit(cache=True)
def burst_chance(p: Any, window: int, lost: int) -> float:
    """Return the chance that, after a first loss, so many packets are lost in a row, but not the whole window."""
    most = followed_losses(p, window)
    begin, end = p.next_loss ** (lost - 1), p.next_loss**lost
    if probe_interval(p) < 1:
        begin *= p.next_loss if lost > 2 else 1.0
        end *= p.next_loss if lost > 1 else 1.0
    if lost == most:
        end = outage_chance(p, window)
    return float(begin - end)


@njit(cache=True)
def burst_wait(p: Any, lost: int) -> float:
    """Return the time from when the first acknowledgement was due until `lost` losses in a row are found [slots]."""
    if lost == 1:
        return detection_wait(p, 0, 1.0, 1.0)
    if lost > 1 and probe_interval(p) < 1:
        return lost - 1 + probe_interval(p)
    if lost >= p.reordering_wait - SAME_TIME:
        return float(lost)
    overdue = math.ceil(p.reordering_wait - SAME_TIME)
    return float(min(max(p.timer, float(lost)), float(min(overdue, lost + DUPLICATE_THRESHOLD - 1))))


@njit(cache=True)
def probe_time(p: Any, window: int) -> float:
    """Return when the probe or timeout comes after the first of so many losses, which are all that the window allows.

    Both timers run until the first one's timeout at most.
    """
    return float(min(window - 1 + probe_interval(p), p.timeout))


@njit(cache=True)
def repair_segments(p: Any, lost: int) -> int:
    """Return in how many segments losses in a row are sent again: small ones share them."""
    segment = float(max(p.packets_per_segment, 1.0))
    return math.ceil(lost / segment - SAME_TIME)


@njit(cache=True)
def repair_rounds(segments: int) -> int:
    """Return how many round-trip times after the first the last segment is sent again, with nothing else under way.

    Each acknowledgement lets two of them go.
    """
    return math.floor(math.log2(max(segments, 1)) + SAME_TIME)


@njit(cache=True)
def more_lost(p: Any, segments: float, next_to_loss: bool) -> float:
    """Return the chance that any of so many segments is lost; the first of them may be next to a loss."""
    kept = (1 - p.loss) ** segments
    if next_to_loss and p.followed_losses and segments >= 1:
        kept *= (1 - p.next_loss) / (1 - p.loss)
    return float(1 - kept)


@njit(cache=True)
def last_loss_weight(p: Any, place: int, under_way: int) -> float:
    """Return a weight of the last loss of a flight being at that place after the first."""
    if p.followed_losses == 0:
        return float((1 - p.loss) ** (under_way - place))
    lost = p.mean_loss + (1 - p.mean_loss) * (p.next_loss - p.loss) ** place
    after = under_way - place
    return float(lost * ((1 - p.next_loss) * (1 - p.loss) ** (after - 1) if after > 0 else 1.0))
