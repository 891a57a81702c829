"""The published chain (w, b, l) of a CBR source over TCP NewReno, SACK or Reno.

Source: Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
Transactions on Networking, 2010, doi 10.1109/TNET.2010.2050780. The published text contradicts itself in some places.
The documentation of the chain lists how this module reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tcpdelay.models.compilation import kernel, records
from tcpdelay.models.interface import SIMULATED, UnsupportedError, unknown_fields
from tcpdelay.models.published.events import VARIANT_CODES, loss_events
from tcpdelay.models.solver.profile import NEGLIGIBLE_LOSS
from tcpdelay.models.solver.state_space import (
    HEAD_OF_LINE,
    PHASE,
    QUEUED,
    TRANSITION,
    Phases,
    Transitions,
    round_half_up,
)
from tcpdelay.models.tcp import DUPLICATE_THRESHOLD
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008

BACKOFF_STAGES = 6
"""Number of back-off stages of the retransmission timeout."""
WINDOW_PER_LOAD = 8
"""Largest congestion window, as a multiple of the load."""
BACKLOG_PER_LOAD = 16
"""Largest backlog, as a multiple of the load."""


class Parameters(NamedTuple):
    """The symbols of the published chain for one scenario.

    Attributes
    ----------
    load : int
        r: packets per round-trip time, at least 1.
    packet_size, mss : int
        a and MSS [bytes].
    interval, rtt, initial_timeout : float
        1/f, RTT and T0 [s].
    loss, loss_of_one_packet : float
        p, and p' of a packet that is sent alone.
    variant : int
        NEWRENO, SACK or RENO.
    correlated, limited_transmit, window_validation : bool
        Drop-tail losses, limited transmit (RFC 3042) and congestion window validation (RFC 2861).
    """

    load: int
    packet_size: int
    mss: int
    interval: float
    rtt: float
    initial_timeout: float
    loss: float
    loss_of_one_packet: float
    variant: int
    correlated: bool
    limited_transmit: bool
    window_validation: bool


PATH_FIELDS = frozenset({"rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay"})
"""Fields of a path that the chain takes into account. It refuses any other field unless it has its default."""


def published_refusals(flow: Flow, path: Path, stack: NewReno2008) -> Iterator[UnsupportedError]:
    """Yield an error for each field of the scenario that the chain refuses.

    Examples
    --------
    >>> [refused.name for refused in published_refusals(Flow(174, 0.02), Path(0.1, 0.02, jitter=0.005), NewReno2008())]
    ['jitter']
    """
    yield from unknown_fields(path, PATH_FIELDS, "in a Markov chain", SIMULATED)
    if path.bottleneck == "bytes" and path.loss * flow.packet_size >= stack.mss:
        allowed = f"be below mss / loss = {stack.mss / path.loss:g} bytes behind a byte-based bottleneck"
        yield UnsupportedError("packet_size", flow.packet_size, allowed)


def parameters(flow: Flow, path: Path, stack: NewReno2008) -> Parameters:
    """Return the chain's parameters: load r = max(1, round(f RTT)) packets per RTT, timeout T0, losses p and p'.

    Raises
    ------
    UnsupportedError
        If the chain refuses a field of the path, for example jitter, loss bursts or lost ACKs, or if a byte-based
        bottleneck would drop packets with a probability of 1 or more.
    """
    for refused in published_refusals(flow, path, stack):
        raise refused
    loss_of_one_packet = path.loss
    if path.bottleneck == "bytes":
        loss_of_one_packet *= flow.packet_size / stack.mss
    lossless = loss_of_one_packet < NEGLIGIBLE_LOSS
    return Parameters(
        load=max(1, round_half_up(path.rtt / flow.interval)),
        packet_size=flow.packet_size,
        mss=stack.mss,
        interval=flow.interval,
        rtt=path.rtt,
        initial_timeout=stack.first_timeout(path.rtt),
        loss=0.0 if lossless else path.loss,
        loss_of_one_packet=0.0 if lossless else loss_of_one_packet,
        variant=VARIANT_CODES[stack.variant],
        correlated=path.loss_pattern == "correlated",
        limited_transmit=stack.limited_transmit,
        window_validation=stack.window_validation,
    )


@kernel()
def phase_count(load: int) -> int:
    """Return the number of phases: the back-off stages, then three phases for each window.

    The three phases are fast recovery, backlogged, and application limited.
    """
    return BACKOFF_STAGES + 3 * WINDOW_PER_LOAD * load


def phase_kinds(load: int) -> list[str]:
    """Return the kind of each phase.

    Examples
    --------
    >>> kinds = phase_kinds(5)
    >>> len(kinds) == phase_count(5), kinds[0], kinds[-3:]
    (True, 'timeout', ['recovery', 'backlogged', 'application_limited'])
    """
    return ["timeout"] * BACKOFF_STAGES + ["recovery", "backlogged", "application_limited"] * (WINDOW_PER_LOAD * load)


@kernel()
def _recovering(window: int) -> int:
    """Return the phase of `window` in fast recovery."""
    return BACKOFF_STAGES + 3 * (window - 1)


@kernel()
def backlogged_phase(window: int) -> int:
    """Return the phase of `window` outside recovery with a backlog, or with a window below the load."""
    return BACKOFF_STAGES + 3 * (window - 1) + 1


@kernel()
def _application_limited(window: int) -> int:
    """Return the phase of `window` in which the application limits the sender."""
    return BACKOFF_STAGES + 3 * (window - 1) + 2


@kernel()
def _empty(window: int, load: int) -> int:
    """Return the phase of `window` with an empty backlog: application limited if the window admits the load."""
    return _application_limited(window) if window >= load else backlogged_phase(window)


@kernel()
def _shift(p: Parameters, segments: int) -> int:
    """Return the change of the backlog in a round: (r a - segments M) / a packets, rounded half up."""
    change = p.load * p.packet_size - segments * p.mss
    return (2 * change + p.packet_size) // (2 * p.packet_size)


@kernel()
def _grown_window(p: Parameters, window: int) -> int:
    """Return the window after a round without loss that leaves a backlog: doubled in slow start, otherwise w + 1."""
    grown = 2 * window if 2 * window < p.load else window + 1
    return min(grown, WINDOW_PER_LOAD * p.load)


@kernel()
def _put(
    t: Transitions, row: int, target: int, target_when_empty: int, shift: int, probability: float, duration: float
) -> int:
    """Append a transition with which no packet leaves: the other fields of the record are 0."""
    t.target[row] = target
    t.target_when_empty[row] = target_when_empty
    t.shift[row] = shift
    t.probability[row] = probability
    t.duration[row] = duration
    return row + 1


@kernel()
def _send(t: Transitions, row: int, packets: int, packets_when_empty: int, pattern: int) -> None:
    """Set how many packets leave with a transition, and the pattern of their delays."""
    t.packets[row] = packets
    t.packets_when_empty[row] = packets_when_empty
    t.pattern[row] = pattern


@kernel()
def published_transitions(p: Parameters) -> tuple[Phases, Transitions]:
    """Return the phases and transitions of the published chain."""
    r, f = p.load, 1.0 / p.interval
    largest_window = WINDOW_PER_LOAD * r
    phases_total = phase_count(r)
    rows = 2 * BACKOFF_STAGES + 7 * largest_window
    phases: Phases = records(phases_total + 1, PHASE)
    t: Transitions = records(rows, TRANSITION)
    round_events = loss_events(largest_window, p.loss, False, p.variant, p.correlated, p.limited_transmit)
    packet_events = loss_events(largest_window, p.loss_of_one_packet, True, p.variant, p.correlated, p.limited_transmit)
    first_timeout_packets = round_half_up(p.initial_timeout * f)
    row = 0

    for stage in range(1, BACKOFF_STAGES + 1):
        phase = stage - 1
        phases.recovery[phase] = stage
        phases.first_transition[phase] = row
        row = _put(t, row, backlogged_phase(1), _empty(1, r), _shift(p, 1), 1 - p.loss, p.rtt)
        _send(t, row - 1, p.mss // p.packet_size, 0, QUEUED)
        next_stage = min(stage + 1, BACKOFF_STAGES) - 1
        timeout = 2.0**stage * p.initial_timeout
        row = _put(t, row, next_stage, next_stage, round_half_up(timeout * f), p.loss, timeout)

    for window in range(1, largest_window + 1):
        sent = window * p.mss // p.packet_size
        sent_in_recovery = (window + DUPLICATE_THRESHOLD) * p.mss // p.packet_size
        recovering = _recovering((window + DUPLICATE_THRESHOLD) // 2)

        phase = _recovering(window)
        phases.window[phase] = window
        phases.recovery[phase] = 1
        phases.first_transition[phase] = row
        row = _put(t, row, backlogged_phase(window), _empty(window, r), _shift(p, window), 1.0, p.rtt)
        _send(t, row - 1, sent, min(r, window), QUEUED)

        phase = backlogged_phase(window)
        phases.window[phase] = window
        phases.first_transition[phase] = row
        grown = _grown_window(p, window)
        empty_window = grown if window < r else (r if p.window_validation else window)
        chance = round_events.success[window]
        row = _put(t, row, backlogged_phase(grown), _empty(empty_window, r), _shift(p, window), chance, p.rtt)
        _send(t, row - 1, sent, min(r, window), QUEUED)
        chance, shift = round_events.fast_retransmit[window], _shift(p, window + DUPLICATE_THRESHOLD)
        row = _put(t, row, recovering, recovering, shift, chance, p.rtt)
        _send(t, row - 1, sent_in_recovery, min(r, window), HEAD_OF_LINE)
        row = _put(t, row, 0, 0, first_timeout_packets, round_events.timeout[window], p.initial_timeout)

        phase = _application_limited(window)
        phases.window[phase] = window
        phases.first_transition[phase] = row
        if window >= r:
            row = _put(t, row, phase, phase, 0, packet_events.success[window], p.interval)
            _send(t, row - 1, 1, 1, QUEUED)
            recovering = _recovering((r + DUPLICATE_THRESHOLD) // 2)
            chance, duration = packet_events.fast_retransmit[window], p.rtt + DUPLICATE_THRESHOLD * p.interval
            row = _put(t, row, recovering, recovering, DUPLICATE_THRESHOLD, chance, duration)
            _send(t, row - 1, r, r, HEAD_OF_LINE)
            row = _put(t, row, 0, 0, first_timeout_packets, packet_events.timeout[window], p.initial_timeout)
    phases.first_transition[phases_total] = row
    return phases, t


@kernel()
def start_phase(load: int) -> int:
    """Return the phase of the state (r, 0, 0), in which the chain starts."""
    return _empty(load, load)
