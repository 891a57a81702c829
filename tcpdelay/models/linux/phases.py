"""The phases of the chain: their kinds, their numbers, and the functions that append their transitions.

Phases are numbered in the order in which a flow passes through them from a timeout to an open window. A congestion
window is *open* while it lets every packet leave as soon as it is written; otherwise it *limits* the sender.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from tcpdelay.models.compilation import kernel
from tcpdelay.models.linux.detection import DETECTIONS
from tcpdelay.models.linux.parameters import MOST_GROUPS_IN_ROUND, SAME_TIME, SMALLEST_WINDOW, LinuxParameters
from tcpdelay.models.linux.rounds import make_rounds
from tcpdelay.models.solver.state_space import Records, Transitions

TIMEOUT, REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR_OPEN, ROUND, OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING, LOST = range(
    11
)
"""Kinds of phases.

- TIMEOUT: until a retransmission timeout and its retransmission.
- REPAIR_MORE: in recovery, until the last of several losses is retransmitted.
- REPAIR_AGAIN: in recovery, until a lost retransmission is retransmitted.
- REPAIR: from the last retransmission to its ACK, one round-trip time later.
- REPAIR_OPEN: the same after a loss in an open window.
- ROUND: one round-trip time in which the window limits the sender.
- OPEN: one slot in which the window is open.
- LOST_OPEN, LOST_REPAIRING, LOST: from a loss to its detection; the loss occurred in an open window, during REPAIR, or
  in a round. With correlated losses, LOST has two phases per group of losses, also for losses during REPAIR.
  A lost packet of several segments has a LOST_OPEN and a REPAIR_OPEN for each way in which RACK detects the loss; see
  `Detection`.
- LOST_TWO: from a loss in an open window to its detection if the next packet is lost too. With loss bursts or
  correlated losses: the same for several consecutive losses.
"""
KIND_NAMES = (
    "timeout",
    "repair_more",
    "repair_again",
    "repair",
    "repair_open",
    "round",
    "open",
    "lost_open",
    "lost_two",
    "lost_repairing",
    "lost",
)
"""Names of the kinds, by their numbers."""
PER_WINDOW = (REPAIR_MORE, REPAIR_AGAIN, REPAIR, REPAIR, REPAIR_OPEN)
"""Kinds of the phases of recovery that each window has. The second REPAIR is the one of `even_repair_phase`."""
OPEN_KINDS = (OPEN, LOST_OPEN, LOST_TWO, LOST_REPAIRING)
SENDING = np.dtype(
    [
        ("kind", np.int64),
        ("run", np.int64),
        ("openings", np.float64),
        ("spacing_in_run", np.float64),
        ("spacing_after_run", np.float64),
        ("duration", np.float64),
        ("wait", np.float64),
        ("timeout_chance", np.float64),
        ("in_run", np.int64),
        ("place", np.int64),
        ("round_trips", np.int64),
        ("lost", np.int64),
        ("repeated_loss", np.float64),
        ("written_later", np.float64),
        ("written_first", np.float64),
        ("fading", np.float64),
    ],
    align=True,
)
Sending: TypeAlias = Records
"""What happens in each phase; one record per phase, or a single record.

- kind: kind of the phase.
- run, spacing_in_run, spacing_after_run: spacing of the ACKs that release segments, as in `Openings`.
- openings: number of ACKs that release a segment; in an open window, number of packets that leave.
- duration: duration of the phase [slots].
- wait: time from the due time of an ACK to the detection of the loss; in REPAIR_OPEN, from the loss [slots].
- timeout_chance: probability that only the timeout finds a lost retransmission.
- in_run: whether the lost segment belonged to the run.
- place: in a round whose rest is lost, the number of the first lost segment, counted from 1.
- round_trips: round-trip times from a write to the ACKs of this phase, through segments that ACKs have released.
- lost: number of packets of a loss burst, or of lost segments of a round; in an outage, the window.
- repeated_loss: in LOST_OPEN, probability that the repair takes a further retransmission.
- written_later, written_first, fading: see `written_share`; `fading` is 0 for a flow of constant rate.
"""


@kernel()
def written_share(later: float, first: float, fading: float, time: float) -> float:
    """Return the share of packets that speech writes at a time after the beginning of a phase [slots].

    It is `later` + `first` exp(-`fading` time): the probability that the speaker talks at this time.
    """
    return later if fading == 0.0 else later + first * math.exp(-fading * time)


class Layout(NamedTuple):
    """The rounds of the chain and the numbers of its phases.

    Attributes
    ----------
    rounds, first_rounds : record array
        One `ROUND_RECORD` per round, and one `FIRST_ROUNDS` record per reduced window.
    runs_remain : bool
        Whether the run of a round survives a recovery from the loss of one of its segments; see `make_rounds`.
    repairs, first_round, opens, losses, bursts : int
        First phase of the recoveries, of the rounds, of the open windows, of the losses in rounds, and of the
        consecutive losses in an open window.
    loss_kinds : int
        Number of phases of losses per round.
    burst_kinds : int
        Number of phases of consecutive losses per window.
    later_detections : int
        First phase of the losses that RACK detects late, in packets of several segments.
    size : int
        Number of phases.
    """

    rounds: Records
    first_rounds: Records
    runs_remain: bool
    repairs: int
    first_round: int
    opens: int
    losses: int
    loss_kinds: int
    bursts: int
    burst_kinds: int
    later_detections: int
    size: int


@kernel()
def make_layout(p: LinuxParameters) -> Layout:
    """Return the rounds and the numbers of the phases for a scenario."""
    rounds, first_rounds, runs_remain = make_rounds(p)
    top, filled = p.largest_window, rounds.size
    repairs = p.backoffs
    first_round = repairs + len(PER_WINDOW) * (top + 1)
    opens = first_round + filled
    losses = opens + len(OPEN_KINDS) * (top + 1)
    loss_kinds = 2 * MOST_GROUPS_IN_ROUND if p.rest_lost else 2
    bursts = losses + loss_kinds * filled
    later_detections = bursts + p.followed_losses * (top + 1)
    size = later_detections
    if p.segments_per_packet > 1:
        size += 2 * (DETECTIONS - 1) * (top + 1)
    return Layout(
        rounds,
        first_rounds,
        runs_remain,
        repairs,
        first_round,
        opens,
        losses,
        loss_kinds,
        bursts,
        p.followed_losses,
        later_detections,
        size,
    )


@kernel()
def repair_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of a recovery of that kind with the reduced window `window`."""
    place = len(PER_WINDOW) - 1 if kind == REPAIR_OPEN else kind - REPAIR_MORE
    return int(layout.repairs + len(PER_WINDOW) * window + place)


@kernel()
def even_repair_phase(layout: Layout, window: int) -> int:
    """Return the phase REPAIR that leads to rounds with evenly spaced ACKs.

    It follows the loss of a segment outside the run, if runs remain.
    """
    return repair_phase(layout, window, REPAIR) + 1


@kernel()
def open_phase(layout: Layout, window: int, kind: int) -> int:
    """Return the phase of that kind, one of `OPEN_KINDS`, with that window."""
    return int(layout.opens + len(OPEN_KINDS) * window + kind - OPEN)


@kernel()
def lost_open_phase(layout: Layout, window: int, detection: int) -> int:
    """Return the phase LOST_OPEN with that window and that way of detection, one of `DETECTIONS`."""
    if detection == 0:
        return open_phase(layout, window, LOST_OPEN)
    return int(layout.later_detections + 2 * ((DETECTIONS - 1) * window + detection - 1))


@kernel()
def repair_open_phase(layout: Layout, window: int, detection: int) -> int:
    """Return the phase REPAIR_OPEN with the reduced window `window` after that way of detection."""
    if detection == 0:
        return repair_phase(layout, window, REPAIR_OPEN)
    return lost_open_phase(layout, window, detection) + 1


@kernel()
def round_phase(layout: Layout, number: int) -> int:
    """Return the phase of round `number`."""
    return int(layout.first_round + number)


@kernel()
def start_phase(p: LinuxParameters, layout: Layout) -> int:
    """Return the phase in which the chain starts: an open window that no longer grows."""
    return open_phase(layout, p.flight + 2, OPEN)


@kernel()
def backlogged_phase(layout: Layout) -> int:
    """Return a phase with a backlog: the round with the smallest window."""
    return round_phase(layout, int(layout.first_rounds[SMALLEST_WINDOW].after_repair))


@kernel()
def lost_phase(layout: Layout, number: int, kind: int) -> int:
    """Return the phase of a loss in round `number`.

    `kind` is 1 if the lost segment belonged to the run, else 0. If the rest of the round is lost, each group of losses
    has two phases: see `drop_tail_rounds`.
    """
    return int(layout.losses + layout.loss_kinds * number + kind)


@kernel()
def burst_phase(layout: Layout, window: int, lost: int) -> int:
    """Return the phase of `lost` consecutive losses, at least two, in an open window; 0: the whole window is lost."""
    return int(layout.bursts + layout.burst_kinds * window + max(lost - 1, 0))


@kernel()
def put(t: Transitions, row: int, target: int, when_empty: int, shift: float, chance: float, duration: float) -> int:
    """Append an event. If `shift` is not a whole number, append two events with whole shifts and the same mean."""
    if chance <= 0.0:
        return row
    low = math.floor(shift + SAME_TIME)
    part = shift - low
    for step in range(2):
        share = part if step else 1 - part
        if share > SAME_TIME:
            t.target[row] = target
            t.target_when_empty[row] = when_empty
            t.shift[row] = low + step
            t.probability[row] = chance * share
            t.duration[row] = duration
            row += 1
    return row


@kernel()
def put_rounds(
    t: Transitions,
    row: int,
    layout: Layout,
    window: int,
    after_open: bool,
    opened: bool,
    shift: float,
    chance: float,
    duration: float,
) -> int:
    """Append the event that a recovery with the reduced window `window` leads to its first round.

    At the end of a recovery the window is the reduced window (`tcp_end_cwnd_reduction`; RFC 6937, 3).
    `opened` says whether the window is open for a flow without a backlog.
    """
    first = layout.first_rounds[window]
    empty = open_phase(layout, window, OPEN)
    for larger in range(2):
        number = first.after_repair_larger if larger else first.after_repair
        if after_open:
            number = first.after_open_larger if larger else first.after_open
        target = round_phase(layout, number)
        share = first.larger if larger else 1 - first.larger
        row = put(t, row, target, empty if opened else target, shift, chance * share, duration)
    return row


@kernel()
def put_repeat(t: Transitions, row: int, phase: int, shift: float, sent: float, chance: float) -> int:
    """Append an event that stays in its phase. The shift is rounded, and the duration is adapted to it.

    `sent` is the number of packets that leave.
    """
    if chance <= 0.0:
        return row
    whole = math.floor(shift + 0.5)
    t.target[row] = t.target_when_empty[row] = phase
    t.shift[row] = whole
    t.probability[row] = chance
    t.duration[row] = max(whole + sent, 0.0)
    return row + 1


@kernel()
def put_outcomes(
    t: Transitions,
    row: int,
    layout: Layout,
    repeated_loss: float,
    only_timeout: float,
    more: float,
    share: float,
    reduced: int,
    clean: int,
    shift: float,
    duration: float,
) -> int:
    """Append the four outcomes of a detected loss, which together have the probability `share`.

    RACK finds a lost retransmission like any other lost segment (`tcp_rack_detect_loss`; RFC 8985, 6.2).
    The retransmission is lost and only a timeout finds this loss (`only_timeout` is the probability of the latter); the
    retransmission is lost and RACK finds this loss; the flight has `more` losses; or the recovery has no further loss
    and leads to the phase `clean`.
    """
    again = repair_phase(layout, reduced, REPAIR_AGAIN)
    several = repair_phase(layout, reduced, REPAIR_MORE)
    row = put(t, row, 0, 0, shift, share * (repeated_loss * only_timeout), duration)
    row = put(t, row, again, again, shift, share * (repeated_loss * (1 - only_timeout)), duration)
    row = put(t, row, several, several, shift, share * ((1 - repeated_loss) * more), duration)
    return put(t, row, clean, clean, shift, share * ((1 - repeated_loss) * (1 - more)), duration)
