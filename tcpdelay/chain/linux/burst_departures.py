"""The packets that leave while losses in a row out of an open window are found, and those of a whole window lost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.compilation import allocation_free
from tcpdelay.chain.linux.bins import add, add_repaired
from tcpdelay.chain.linux.bursts import (
    burst_chance,
    burst_wait,
    followed_losses,
    outage_chance,
    probe_time,
    repair_rounds,
    repair_segments,
)


@allocation_free()
def _add_outage(p: Any, bins: NDArray[np.float64], window: int, place: int, weight: float) -> None:
    """Add a packet of a window that is lost as a whole, that many packets after the first.

    The probe, and each timeout after it, is lost like any segment that follows a lost one.
    """
    left = probe_time(p, window) - place
    later = p.load * repair_rounds(repair_segments(p, place + 1))
    add(bins, 0.0, left + p.load + later, weight * (1 - p.next_loss))
    rest = weight * p.next_loss
    waited = 0.0
    for stage in range(p.backoffs):
        waited += p.timeout * 2.0**stage
        ends = 1.0 if stage == p.backoffs - 1 else 1 - p.next_loss
        add(bins, 0.0, left + waited + later, rest * ends)
        rest *= p.next_loss


@allocation_free()
def add_first_of_burst(
    p: Any, bins: NDArray[np.float64], age: float, window: int, without_tell: float, weight: float
) -> None:
    """Add a packet that is lost out of an open window, by how many are lost in a row with it."""
    for lost in range(1, followed_losses(p, window) + 1):
        this = weight * burst_chance(p, window, lost)
        left = p.load + burst_wait(p, lost)
        add_repaired(bins, age, left, this, p.repeated_loss, p.load + 1.0, without_tell, p.timeout)
    _add_outage(p, bins, window, 0, weight * outage_chance(p, window))


@allocation_free()
def add_burst_phase(p: Any, bins: NDArray[np.float64], window: int, s: Any, weight: float) -> None:
    """Add the packets that leave after the first of several losses, themselves lost or behind lost ones."""
    further = repair_segments(p, s.lost) - 1
    for place in range(1, int(s.openings) + 1):
        if s.lost == window:
            _add_outage(p, bins, window, place, weight)
            continue
        later = repair_segments(p, place + 1) - 1 if place < s.lost else further
        left = max(s.duration + later - place, 0.0)
        add_repaired(bins, 0.0, left, weight, p.repeated_loss, p.load + 1.0, s.timeout_chance, p.timeout)
