"""The phases and events of a chain while they are put one after the other: the same record for every chain."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.chain.solver.state_space import PHASE, TRANSITION, Phases, Transitions
from tcpdelay.compiling.compilation import allocation_free, kernel, records

WHOLE = 1e-9
"""Difference of a number of packets from a whole number, or of a share from 0, that is rounding."""


class Events(NamedTuple):
    """The phases of a chain, and the events that have been put so far; phases begin in the order of their numbers."""

    phases: Phases
    transitions: Transitions
    put: NDArray[np.int64]  # One number: how many of `transitions` have been put


@kernel()
def new_events(phases: int, most: int) -> Events:
    """Return the phases of a chain without events, of which there will be at most `most`."""
    transitions: Transitions = records(most, TRANSITION)
    events = Events(records(phases + 1, PHASE), transitions, np.zeros(1, np.int64))
    events.phases.first_transition[:] = -1
    return events


@allocation_free(inlined=True)
def begin(e: Events, phase: int, window: int, recovery: int) -> None:
    """Begin a phase: the events that are put from now on are its events."""
    e.phases.window[phase], e.phases.recovery[phase], e.phases.first_transition[phase] = window, recovery, e.put[0]


@allocation_free(inlined=True)
def put(e: Events, target: int, when_empty: int, shift: float, probability: float, duration: float) -> None:
    """Put an event, which leads to `when_empty` if no backlog remains; one that never occurs is left out.

    If `shift` is not a whole number, two events with whole shifts have the same mean.
    """
    if probability <= 0.0:
        return
    low = math.floor(shift + WHOLE)
    part = shift - low
    for step in range(2):
        share = part if step else 1 - part
        if share > WHOLE:
            event = e.transitions[e.put[0]]
            event.target, event.target_when_empty, event.shift = target, when_empty, low + step
            event.probability, event.duration = probability * share, duration
            e.put[0] += 1


@allocation_free()
def put_repeat(e: Events, phase: int, shift: float, probability: float, sent: float) -> None:
    """Put an event that stays in its phase. The solver takes one such event of a phase, so its shift is rounded.

    `sent` packets leave. The duration is the time in which these packets and those of the shift are written [slots].
    """
    whole = float(math.floor(shift + 0.5))
    put(e, phase, phase, whole, probability, max(whole + sent, 0.0))


@kernel()
def finished(e: Events) -> tuple[Phases, Transitions]:
    """Return the phases and events of a chain; a phase that has not begun has no events."""
    e.phases.first_transition[e.phases.size - 1] = e.put[0]
    for phase in range(e.phases.size - 2, -1, -1):
        if e.phases.first_transition[phase] < 0:
            e.phases.first_transition[phase] = e.phases.first_transition[phase + 1]
    return e.phases, e.transitions[: e.put[0]]
