"""The phases of losses in a row out of an open window, and of all that the window allows being lost."""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from tcpdelay.chain.linux.bursts import (
    burst_chance,
    burst_wait,
    followed_losses,
    more_lost,
    outage_chance,
    probe_time,
    repair_rounds,
    repair_segments,
)
from tcpdelay.chain.linux.detection import SAME_TIME, timeout_chance
from tcpdelay.chain.linux.events import put, put_outcomes
from tcpdelay.chain.linux.layout import (
    LOST_OPEN,
    LOST_TWO,
    OPEN,
    REPAIR,
    REPAIR_OPEN,
    SMALLEST_WINDOW,
    Layout,
    burst_phase,
    open_phase,
    repair_phase,
)
from tcpdelay.chain.linux.windows import reduced_window
from tcpdelay.chain.transitions import Phases, Transitions


@njit(cache=True)
def put_bursts(
    p: Any, t: Transitions, row: int, layout: Layout, window: int, shift: float, chance: float, duration: float
) -> int:
    """Append a first loss out of an open window, by how many are lost in a row with it."""
    for lost in range(1, followed_losses(p, window) + 1):
        target = open_phase(layout, window, LOST_OPEN) if lost == 1 else burst_phase(layout, window, lost)
        row = put(t, row, target, target, shift, chance * burst_chance(p, window, lost), duration)
    target = burst_phase(layout, window, 0)
    return put(t, row, target, target, shift, chance * outage_chance(p, window), duration)


@njit(cache=True)
def put_outage(
    p: Any, t: Transitions, row: int, layout: Layout, window: int, shift: float, chance: float, time: float
) -> int:
    """Append what follows the probe at `time` after a whole window is lost: it tells of that, or the timeout does."""
    rest = p.load * (1 + repair_rounds(repair_segments(p, window)))
    repair = repair_phase(layout, reduced_window(window, p.cubic), REPAIR)
    row = put(t, row, 0, 0, shift, chance * p.next_loss, time)
    probe = p.packets_per_segment
    return put(t, row, repair, repair, shift + rest - probe, chance * (1 - p.next_loss), time + rest)


@njit(cache=True)
def add_bursts(p: Any, t: Transitions, row: int, layout: Layout, phases: Phases, sending: Any) -> int:
    """Append the phases of losses in a row, for each window."""
    for window in range(p.largest_window + 1):
        for place in range(layout.burst_kinds):
            lost = place + 1 if place else 0
            phase = burst_phase(layout, window, lost)
            phases.window[phase], phases.recovery[phase], sending.kind[phase] = window, LOST_TWO - OPEN, LOST_TWO
            phases.first_transition[phase] = row
            sending.lost[phase] = lost
            if window < SMALLEST_WINDOW or lost > followed_losses(p, window):
                continue
            if lost:
                row = _add_burst(p, t, row, layout, sending, phase, window, lost)
            else:
                time = probe_time(p, window)
                packets = math.ceil(time - SAME_TIME) - 1
                sent = min(packets, window - 1)
                sending.duration[phase], sending.openings[phase], sending.lost[phase] = time, sent, window
                row = put_outage(p, t, row, layout, window, packets - sent, 1.0, time)
    return row


@njit(cache=True)
def _add_burst(
    p: Any, t: Transitions, row: int, layout: Layout, sending: Any, phase: int, window: int, lost: int
) -> int:
    """Append the phase of that many losses in a row, until the last one is sent again."""
    wait = burst_wait(p, lost)
    found = p.load + wait
    packets = math.ceil(found - SAME_TIME) - 1
    sent = min(packets, window - 1)
    further = repair_segments(p, lost) - 1
    reduced = reduced_window(window, p.cubic)
    without_tell = timeout_chance(p, min(sent - lost + 1, window - 1 - lost), reduced)
    sending.duration[phase], sending.wait[phase], sending.openings[phase] = found, wait, sent
    sending.timeout_chance[phase] = without_tell
    waiting = packets - sent + further
    clean = repair_phase(layout, reduced, REPAIR if waiting else REPAIR_OPEN)
    repeated = 1 - (1 - p.repeated_loss) * (1 - p.loss) ** further
    more = more_lost(p, max(sent - lost, 0), False)
    return put_outcomes(t, row, layout, repeated, without_tell, more, 1.0, reduced, clean, waiting, found + further)
