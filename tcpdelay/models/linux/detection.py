"""When a loss is found: RACK's rules (RFC 8985) for acknowledgements that come at given times."""

from __future__ import annotations

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.parameters import SAME_TIME, LinuxParameters
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD

FOLLOWED_LOSSES = 4
"""Further losses in a row by which the detection is put off."""


@kernel()
def detection_wait(p: LinuxParameters, close_acks: int, spacing_in_run: float, spacing_after_run: float) -> float:
    """Return the time from when the acknowledgement was due until the loss is found [slots].

    Later segments are acknowledged one by one: the first `close_acks` ACKs are `spacing_in_run` slots apart, all others
    `spacing_after_run` slots. The loss is found by the first ACK that is late by a quarter of the round-trip time or
    more, by the third ACK, or by the timer that the first ACK sets.
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
    """Return the mean wait if what would have told of the loss may be lost as well, and so on; `step` apart."""
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
    """Return the chance that a lost retransmission is found by nothing but the timeout.

    That takes that for each segment in flight at the time of the retransmission, as far as the window lets a new one
    follow, either it or the new one is lost, so that no acknowledgement comes for what was sent later.
    """
    if in_flight <= 0:
        return 1.0
    chances = max(min(in_flight, reduced - 1), 1)
    if p.followed_losses:
        # What was sent before the retransmission has got through, and what it releases meets the same burst.
        return float(p.next_loss**chances)
    return float((1 - (1 - p.loss) ** 2) ** chances)
