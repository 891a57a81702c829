"""When RACK (RFC 8985) detects a loss, given the times at which later segments are acknowledged."""

from __future__ import annotations

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD

FOLLOWED_LOSSES = 4
"""Number of lost ACK-triggering segments in a row that are followed while a loss waits for detection."""


@kernel()
def detection_wait(p: LinuxParameters, close_acks: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return how long after the due time of its ACK a lost segment is detected [slots].

    Each later segment has an ACK of its own. The first of three events detects the loss: an ACK that arrives RACK's
    reordering wait or more after the due time, the third ACK, or the timer that the first ACK starts (RFC 8985, 6.2).

    Parameters
    ----------
    p : LinuxParameters
        Parameters of the chain.
    close_acks : int
        Number of ACKs that follow one another closely, 0 or more; they come first.
    spacing_in_run, spacing_after_run : float
        Time before each of these ACKs, and before each later ACK; above 0 [slots].

    Returns
    -------
    float
        Time from the due time of the ACK to the detection [slots].

    Examples
    --------
    With an RTT of five packet intervals the third ACK would come at 3. RACK's timer fires earlier.

    >>> from tcpdelay import Flow, Path, Stack
    >>> from tcpdelay.models.linux.parameters import linux_parameters
    >>> p = linux_parameters(Flow(174, 0.02), Path(0.1, 0.02), Stack.linux(hz=1000))
    >>> round(detection_wait(p, 0, 1.0, 1.0), 3), round(p.timer, 3)
    (1.375, 1.375)
    """
    time = 0.0
    for place in range(1, 1000):
        time += spacing_in_run if place <= close_acks else spacing_after_run
        if time >= p.reordering_wait - SAME_TIME:
            return time if place == 1 else min(time, float(p.timer))
        if place >= DUPLICATE_THRESHOLD:
            return time
        following = time + (spacing_in_run if place + 1 <= close_acks else spacing_after_run)
        if following > p.timer:
            return max(float(p.timer), time)
    return time


@kernel()
def mean_detection_wait(p: LinuxParameters, wait: float, step: float) -> float:
    """Return the mean wait for detection if the segments that would trigger it may be lost too [slots].

    A lost segment sends no SACK, so the next one detects the loss (`tcp_rack_detect_loss`; RFC 8985, 6.2). Once an
    earlier SACK has started RACK's timer, it is the upper limit (`tcp_rack_mark_lost`).

    `wait` is the wait if all of them arrive. Each further lost segment adds `step`, the time between ACKs.
    """
    mean, chance, this = 0.0, 1.0, wait
    for place in range(FOLLOWED_LOSSES):
        mean += chance * (1 - p.next_loss) * this
        chance *= p.next_loss
        this = wait + step * (place + 1)
        if step < p.reordering_wait and wait > step:
            this = min(this, max(p.timer, wait))
    return float(mean + chance * this)


@kernel()
def timeout_chance(p: LinuxParameters, in_flight: int, reduced: int) -> float:
    """Return the probability that only the retransmission timeout finds a lost retransmission.

    RACK finds the loss by the ACK of any segment that was sent after the retransmission (`tcp_rack_detect_loss`; RFC
    8985, 6.2). Each segment in flight releases one new segment when it is acknowledged (PRR, `tcp_cwnd_reduction`), as
    far as the reduced window allows. If in each of these pairs either segment is lost, only the timeout finds the loss
    (`tcp_retransmit_timer`). For n pairs the probability is (1 - (1 - p)^2)^n.

    Parameters
    ----------
    p : LinuxParameters
        Parameters of the chain.
    in_flight : int
        Segments in flight when the retransmission is sent. With none, the probability is 1.
    reduced : int
        Congestion window after the reduction [segments].

    Returns
    -------
    float
        Probability, 0 to 1.

    Examples
    --------
    >>> from tcpdelay import Flow, Path, Stack
    >>> from tcpdelay.models.linux.parameters import linux_parameters
    >>> p = linux_parameters(Flow(174, 0.02), Path(0.1, 0.02), Stack.linux())
    >>> timeout_chance(p, 0, 4), round(timeout_chance(p, 1, 4), 6)
    (1.0, 0.0396)
    """
    if in_flight <= 0:
        return 1.0
    pairs = max(min(in_flight, reduced - 1), 1)
    if p.followed_losses:
        # The segments in flight have passed the burst, but the new segments meet the same burst as the retransmission.
        return float(p.next_loss**pairs)
    return float((1 - (1 - p.loss) ** 2) ** pairs)
