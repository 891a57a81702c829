"""Losses of a drop-tail queue: how many segments are lost with the first loss of a round, and when this is detected.

With the first lost segment of a round, all further segments of the round are lost (Padhye, Firoiu, Towsley, Kurose,
"Modeling TCP throughput", SIGCOMM 1998, II). A round lasts one round-trip time from its first segment on: it has the
segments of a window that limits the sender, or the packets that are written in a round-trip time.

The numbers of lost segments of a round are put in groups, each with a phase of its own. The last group is always the
loss of the whole round.
"""

from __future__ import annotations

import math

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD


@kernel()
def most_lost(segments: int, groups: int, group: int) -> int:
    """Return the largest number of lost segments in a group, counted from 1; 0 for the group 0.

    The first group has one lost segment, the last group all `segments` of the round. With as many groups as segments,
    each number has a group of its own.

    Examples
    --------
    >>> [most_lost(6, 6, group) for group in range(7)], [most_lost(30, 5, group) for group in range(6)]
    ([0, 1, 2, 3, 4, 5, 6], [0, 1, 10, 19, 29, 30])
    """
    if group <= 0:
        return 0
    if group >= groups:
        return segments
    if group == 1:
        return 1
    return int(1 + (group - 1) * (segments - 2) / (groups - 2) + SAME_TIME)


@kernel()
def typical_lost(segments: int, groups: int, group: int) -> int:
    """Return the number of lost segments with which the chain computes for a group: the middle one of the group.

    Examples
    --------
    >>> [typical_lost(30, 5, group) for group in range(1, 6)]
    [1, 6, 15, 24, 30]
    """
    fewest = most_lost(segments, groups, group - 1) + 1
    return (fewest + most_lost(segments, groups, group)) // 2


@kernel()
def rest_chance(loss: float, segments: int, fewer: int, most: int) -> float:
    """Return the probability that more than `fewer`, and at most `most`, segments of a round with a loss are lost.

    If j segments are lost, the first of them is number k = segments + 1 - j of the round. It is the first with the
    probability p (1 - p)^(k - 1), p being the `loss`, 0 to below 1.

    Examples
    --------
    >>> [round(rest_chance(0.1, 3, lost - 1, lost), 4) for lost in (1, 2, 3)]
    [0.2989, 0.3321, 0.369]
    """
    if most <= fewer:
        return 0.0
    if loss <= 0.0:
        return (most - fewer) / segments
    kept = math.log1p(-loss)
    lost_after = math.exp(kept * (segments - most)) * -math.expm1(kept * (most - fewer))
    return float(lost_after / -math.expm1(kept * segments))


@kernel()
def first_sack_wait(p: LinuxParameters, first: float, spacing: float, sacks: int) -> float:
    """Return the time from the due time of the first lost segment's ACK to the detection of the losses [slots].

    The first SACK is that of the first segment of the next round. It detects the losses if RACK's reordering window is
    over by then. Otherwise RACK's timer, a SACK after the reordering window, or the third SACK detects them
    (`tcp_rack_detect_loss`, `tcp_rack_mark_lost`; RFC 8985, 6.2).

    Parameters
    ----------
    p : LinuxParameters
        Parameters of the chain.
    first : float
        Time from the due time to the first SACK [slots].
    spacing : float
        Time between SACKs [slots].
    sacks : int
        Number of SACKs, 1 or more.
    """
    if first >= p.reordering_wait - SAME_TIME:
        return first
    wait = max(float(p.timer), first)
    if sacks >= DUPLICATE_THRESHOLD:
        wait = min(wait, first + (DUPLICATE_THRESHOLD - 1) * spacing)
    if spacing > 0:
        overdue = math.ceil((p.reordering_wait - first) / spacing - SAME_TIME)
        if overdue < sacks:
            wait = min(wait, first + overdue * spacing)
    return wait


@kernel()
def rest_timeout_chance(p: LinuxParameters, sacks: int) -> float:
    """Return the probability that only the timeout finds the loss of the first retransmission.

    The first SACK begins a round, as it arrives one round-trip time after its segment, the first of a round. If it
    detects the losses, the retransmission is the first segment of the round. With it all segments are lost that the
    SACKs of this round release, and no SACK follows. If `sacks` SACKs came before the detection, so many segments are
    sent in the next round, and RACK finds the loss by the first of them that arrives.
    """
    return 1.0 if sacks <= 0 else float(p.loss)


@kernel()
def rest_timeout(p: LinuxParameters, sacks: int, repairing: float) -> float:
    """Return the probability that the repair of the losses of a round ends in a timeout.

    The first retransmission is lost, and only the timeout finds this: see `rest_timeout_chance`. Or the first
    retransmission of a later round-trip time of the repair is lost. `repairing` is the time from the first to the last
    retransmission [slots].
    """
    later = math.floor(repairing / p.load + SAME_TIME)
    return float(1 - (1 - p.loss * rest_timeout_chance(p, sacks)) * (1 - p.loss) ** later)


@kernel()
def retransmission_times(
    p: LinuxParameters, segments: int, sacks: int, spacing: float, reduced: int, by_first: bool
) -> tuple[float, float]:
    """Return the times of the last retransmission and of the next ACK, from the first retransmission on [slots].

    Each SACK releases a retransmission, as fewer segments than ssthresh are in flight (PRR; `tcp_cwnd_reduction`; RFC
    6937, 3). Each ACK of a retransmission releases two, up to the reduced window. The next ACK lets new packets leave.

    Parameters
    ----------
    p : LinuxParameters
        Parameters of the chain.
    segments : int
        Segments to retransmit, 1 or more.
    sacks : int
        SACKs from the detection on, with the SACK that detects the losses; 1 or more.
    spacing : float
        Time between SACKs [slots].
    reduced : int
        Congestion window after the reduction [segments].
    by_first : bool
        Whether the first SACK detects the losses.

    Examples
    --------
    >>> from tcpdelay import Flow, Path, Stack
    >>> from tcpdelay.models.linux.parameters import linux_parameters
    >>> p = linux_parameters(Flow(1448, 0.02), Path(0.2, 0.02), Stack.linux())
    >>> for segments, sacks in ((3, 4), (3, 3), (7, 2)):
    ...     print(retransmission_times(p, segments, sacks, 1.0, 8, True))
    (2.0, 3.0)
    (2.0, 10.0)
    (20.0, 20.25)
    """
    acks = max(sacks, 1)
    if by_first and (acks == 1 or p.timer < 2 * spacing):
        # The first SACK leaves out the segments that were sent in the reordering window before its own. If RACK's timer
        # marks them as lost before the next SACK, their places in the window are free (`tcp_rack_reo_timeout`).
        acks += max(math.ceil(p.reordering_wait / spacing - SAME_TIME) - 1, 0)
    in_round, begin = acks, 0.0
    while segments > in_round:
        segments -= in_round
        begin += p.load
        in_round = max(min(2 * in_round, reduced), 1)
    between = spacing * acks / in_round
    last = begin + (segments - 1) * between
    return last, last + between if segments < in_round else begin + p.load
