"""The published chain (w, b, l) of a CBR source over NewReno, SACK or Reno: states, events, transitions and delays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpdelay.ask import SIMULATED, UnsupportedError, refused_lateness, unknown_fields
from tcpdelay.budget import SECONDS_PER_UPDATE
from tcpdelay.chain.chains import FlowChain
from tcpdelay.chain.engine import Profile
from tcpdelay.chain.events import Events, begin, finished, new_events, put
from tcpdelay.chain.solver.aggregation import geometric_groups, within_bound
from tcpdelay.chain.solver.state_space import (
    HEAD_OF_LINE,
    NO_PACKETS,
    QUEUED,
    Phases,
    Rows,
    Transitions,
    packets_leaving,
    round_half_up,
)
from tcpdelay.chain.solver.stationary import (
    BYTES_PER_PHASE,
    NEGLIGIBLE_LOSS,
    NarrowSolution,
    RequestedFigures,
    after_timeout,
    backlogged_time,
    solve_narrow,
    sum_up,
    updates_per_sweep,
)
from tcpdelay.chain.solver.sweeps import copy, scale, total
from tcpdelay.compiling.compilation import allocation_free, kernel
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008
from tcpdelay.sim.tcp.constants import DUPLICATE_THRESHOLD

# The events that end a visit to a state: no loss, a fast retransmit, or a timeout.
#
# The sums over loss patterns have closed forms. B_p(n, i) is the binomial probability. The term of i losses whose
# retransmissions all survive is T(i) = B_p(w, i) (1-p)^i. Over all i these terms add up to (1-p^2)^w. So the patterns
# that are not repaired are summed directly. The difference P_loss - P_FR would lose digits at small loss.

NEWRENO, SACK, RENO = 0, 1, 2
"""Codes of the variants."""
VARIANT_CODES = {"newreno": NEWRENO, "sack": SACK, "reno": RENO}

RENO_TWO_LOSS_WINDOW = 10
"""Smallest window in which Reno repairs two losses of one window (Fall and Floyd 1996)."""


class LossEvents(NamedTuple):
    """Probabilities of the events of a visit, indexed by the congestion window."""

    success: NDArray[np.float64]
    fast_retransmit: NDArray[np.float64]
    timeout: NDArray[np.float64]


@kernel()
def _repaired_pattern(trials: int, losses: int, loss: float) -> float:
    """Return B_p(trials, losses) (1-p)^losses: the probability of the losses, and that all retransmissions arrive."""
    if losses < 0 or losses > trials:
        return 0.0
    coefficient = 1.0
    few = min(losses, trials - losses)
    for i in range(few):
        coefficient *= (trials - i) / (i + 1.0)
    return coefficient * (loss * (1 - loss)) ** losses * (1 - loss) ** (trials - losses)


@kernel()
def timeout_share_correlated(window: int, loss: float, limited_transmit: bool) -> float:
    """Return Q(w): the share of loss indications that end in a timeout under drop-tail losses.

    The first k segments of the lossy round arrive, with probability A(k) = p q^k / (1 - q^w), and their ACKs release k
    more. The first m of these arrive, each causes a duplicate ACK, and m >= 3 repairs the loss: 1 - Q = q^3 S(3), where
    S(j) is the sum of A(k) over k >= j (Padhye et al. 1998, equation 24). Limited transmit adds the cases m = 1, where
    two more segments must arrive, q^2, and m = 2, where one of two must arrive, 1 - p^2 (Brosh et al. 2010, equation
    15). Together 1 - Q = q^3 (S(1) + 2 p S(2) + p^2 S(3)).
    """
    log_survival = math.log1p(-loss)
    three_arrive = math.exp(3 * log_survival)
    repaired = three_arrive * _at_least_arrive(3, window, loss)
    if limited_transmit:
        terms = _at_least_arrive(1, window, loss) + 2 * loss * _at_least_arrive(2, window, loss)
        repaired = three_arrive * terms + loss**2 * repaired
    return 1.0 - repaired


@kernel()
def _at_least_arrive(segments: int, window: int, loss: float) -> float:
    """Return the sum of A(k) over k >= `segments`: so many segments of a lossy round arrive before its first loss."""
    if window <= segments:
        return 0.0
    log_survival = math.log1p(-loss)
    rest_lost = -math.expm1((window - segments) * log_survival)
    return math.exp(segments * log_survival) * rest_lost / -math.expm1(window * log_survival)


@kernel()
def loss_events(
    largest_window: int, loss: float, one_packet: bool, variant: int, correlated: bool, limited_transmit: bool
) -> LossEvents:
    """Return the probabilities of success, fast retransmit and timeout for each window from 0 to `largest_window`.

    With `one_packet` the chain is application limited: a visit covers one packet, otherwise a whole window.
    """
    success = np.zeros(largest_window + 1)
    fast_retransmit = np.zeros(largest_window + 1)
    timeout = np.zeros(largest_window + 1)
    if loss <= 0.0:
        success[:] = 1.0
        return LossEvents(success, fast_retransmit, timeout)
    log_survival = math.log1p(-loss)
    log_repair = math.log1p(-loss * loss)
    for window in range(1, largest_window + 1):
        if one_packet:
            # The packet is the first of i lost packets: p B_p(w-1, i-1) (1-p)^i = (1-p) p T'(i-1).
            others, first = window - 1, loss * (1 - loss)
            any_lost = loss
            unrepaired = -loss * math.expm1(log_survival + others * log_repair)
        else:
            others, first = window, 1.0
            any_lost = -math.expm1(window * log_survival)
            unrepaired = -math.expm1(window * log_repair)
        offset = window - others
        all_but_none = first * _repaired_pattern(others, window - offset, loss)
        all_but_one = first * _repaired_pattern(others, window - 1 - offset, loss) if window > 1 else 0.0
        all_but_two = first * _repaired_pattern(others, window - 2 - offset, loss) if window > 2 else 0.0

        if variant == RENO:
            repaired = 0.0
            if window > DUPLICATE_THRESHOLD:
                repaired += first * _repaired_pattern(others, 1 - offset, loss)
            if window >= RENO_TWO_LOSS_WINDOW:
                repaired += first * _repaired_pattern(others, 2 - offset, loss)
            ends_in_timeout = any_lost - repaired
        else:
            ends_in_timeout = unrepaired + all_but_none + all_but_one + all_but_two
        if correlated:
            ends_in_timeout = timeout_share_correlated(window, loss, limited_transmit) * any_lost
        elif limited_transmit:
            # One or two survivors each release a new segment, whose ACKs complete the three duplicates (RFC 3042).
            # Reno repairs only a single loss in these small windows.
            if window > 1 and (variant != RENO or window == 2):
                ends_in_timeout -= all_but_one * (1 - loss) ** 2
            if window > 2 and (variant != RENO or window == 3):
                ends_in_timeout -= all_but_two * (1 - loss**2)
        if window == 1 or (window <= DUPLICATE_THRESHOLD and not limited_transmit):
            # There are too few duplicate ACKs for a fast retransmit. Its probability is exactly 0, as in the equations.
            ends_in_timeout = any_lost
        timeout[window] = min(max(ends_in_timeout, 0.0), any_lost)
        fast_retransmit[window] = any_lost - timeout[window]
        success[window] = 1 - any_lost if one_packet else math.exp(window * log_survival)
    return LossEvents(success, fast_retransmit, timeout)


# The published chain (w, b, l) of a CBR source over TCP NewReno, SACK or Reno.
#
# Source: Brosh, Baset, Misra, Rubenstein, Schulzrinne, "The Delay-Friendliness of TCP for Real-Time Traffic", IEEE/ACM
# Transactions on Networking, 2010, doi 10.1109/TNET.2010.2050780. The published text contradicts itself in some places.
# The documentation of the chain lists how this module reads them.

BACKOFF_STAGES = 6
"""Number of back-off stages of the retransmission timeout."""
WINDOW_PER_LOAD = 8
"""Largest congestion window, as a multiple of the load."""
BACKLOG_PER_LOAD = 16
"""Largest backlog, as a multiple of the load."""


class Parameters(NamedTuple):
    """The symbols of the published chain for one scenario."""

    load: int  # r: packets per round-trip time, at least 1
    # packet_size, mss: a and MSS [bytes].
    packet_size: int
    mss: int
    # interval, rtt, initial_timeout: 1/f, RTT and T0 [s].
    interval: float
    rtt: float
    initial_timeout: float
    # loss, loss_of_one_packet: p, and p' of a packet that is sent alone.
    loss: float
    loss_of_one_packet: float
    variant: int  # NEWRENO, SACK or RENO
    # correlated, limited_transmit, window_validation: Drop-tail losses, limited transmit (RFC 3042) and congestion
    # window validation (RFC 2861).
    correlated: bool
    limited_transmit: bool
    window_validation: bool


PATH_FIELDS = frozenset({"rtt", "loss", "loss_pattern", "bottleneck", "one_way_delay"})
"""Fields of a path that the chain takes into account. It refuses any other field unless it has its default."""


def published_refusals(flow: Flow, path: Path, stack: NewReno2008) -> Iterator[UnsupportedError]:
    """Yield an error for each field of the scenario that the chain refuses."""
    yield from refused_lateness(flow, "in a Markov chain")
    yield from unknown_fields(path, PATH_FIELDS, "in a Markov chain", SIMULATED)
    if path.bottleneck == "bytes" and path.loss * flow.packet_size >= stack.mss:
        allowed = f"be below mss / loss = {stack.mss / path.loss:g} bytes behind a byte-based bottleneck"
        yield UnsupportedError("packet_size", flow.packet_size, allowed)


def parameters(flow: Flow, path: Path, stack: NewReno2008) -> Parameters:
    """Return the chain's parameters: load r = max(1, round(f RTT)) packets per RTT, timeout T0, losses p and p'."""
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
    """Return the number of phases: the back-off stages, then three phases for each window (`phase_kinds`)."""
    return BACKOFF_STAGES + 3 * WINDOW_PER_LOAD * load


def phase_kinds(load: int) -> list[str]:
    """Return the kind of each phase."""
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


@allocation_free()
def _put_sending(
    e: Events,
    target: int,
    when_empty: int,
    shift: int,
    probability: float,
    duration: float,
    packets: int,
    packets_when_empty: int,
    pattern: int,
) -> None:
    """Put a transition with which packets leave: at most `packets`, with a pattern of their delays."""
    before = e.put[0]
    put(e, target, when_empty, float(shift), probability, duration)
    for event in range(before, e.put[0]):
        sent = e.transitions[event]
        sent.packets, sent.packets_when_empty, sent.pattern = packets, packets_when_empty, pattern


@kernel()
def published_transitions(p: Parameters) -> tuple[Phases, Transitions]:
    """Return the phases and transitions of the published chain."""
    r, f = p.load, 1.0 / p.interval
    largest_window = WINDOW_PER_LOAD * r
    e = new_events(phase_count(r), 2 * BACKOFF_STAGES + 7 * largest_window)
    round_events = loss_events(largest_window, p.loss, False, p.variant, p.correlated, p.limited_transmit)
    packet_events = loss_events(largest_window, p.loss_of_one_packet, True, p.variant, p.correlated, p.limited_transmit)
    first_timeout_packets = float(round_half_up(p.initial_timeout * f))

    for stage in range(1, BACKOFF_STAGES + 1):
        begin(e, stage - 1, 0, stage)
        sent = p.mss // p.packet_size
        _put_sending(e, backlogged_phase(1), _empty(1, r), _shift(p, 1), 1 - p.loss, p.rtt, sent, 0, QUEUED)
        next_stage = min(stage + 1, BACKOFF_STAGES) - 1
        timeout = 2.0**stage * p.initial_timeout
        put(e, next_stage, next_stage, float(round_half_up(timeout * f)), p.loss, timeout)

    for window in range(1, largest_window + 1):
        sent, at_once = window * p.mss // p.packet_size, min(r, window)
        begin(e, _recovering(window), window, 1)
        same, empty = backlogged_phase(window), _empty(window, r)
        _put_sending(e, same, empty, _shift(p, window), 1.0, p.rtt, sent, at_once, QUEUED)

        begin(e, same, window, 0)
        grown = _grown_window(p, window)
        empty = _empty(grown if window < r else (r if p.window_validation else window), r)
        chance = round_events.success[window]
        _put_sending(e, backlogged_phase(grown), empty, _shift(p, window), chance, p.rtt, sent, at_once, QUEUED)
        sent = (window + DUPLICATE_THRESHOLD) * p.mss // p.packet_size
        recovering = _recovering((window + DUPLICATE_THRESHOLD) // 2)
        chance, shift = round_events.fast_retransmit[window], _shift(p, window + DUPLICATE_THRESHOLD)
        _put_sending(e, recovering, recovering, shift, chance, p.rtt, sent, at_once, HEAD_OF_LINE)
        put(e, 0, 0, first_timeout_packets, round_events.timeout[window], p.initial_timeout)

        phase = _application_limited(window)
        begin(e, phase, window, 0)
        if window >= r:
            _put_sending(e, phase, phase, 0, packet_events.success[window], p.interval, 1, 1, QUEUED)
            recovering = _recovering((r + DUPLICATE_THRESHOLD) // 2)
            chance, time = packet_events.fast_retransmit[window], p.rtt + DUPLICATE_THRESHOLD * p.interval
            _put_sending(e, recovering, recovering, DUPLICATE_THRESHOLD, chance, time, r, r, HEAD_OF_LINE)
            put(e, 0, 0, first_timeout_packets, packet_events.timeout[window], p.initial_timeout)
    return finished(e)


@kernel()
def start_phase(load: int) -> int:
    """Return the phase of the state (r, 0, 0), in which the chain starts."""
    return _empty(load, load)


# The published chain as a `Profile`: delays from the probabilities of its states.

SUMMATION_NOISE = 1e-17
"""Weight below which an entry of the lattice is a rounding residue of rises and falls that cancel."""
SECONDS_PER_PHASE = 1e-6
"""Time in which a phase is made [s]."""
BYTES_PER_SLOT = 24
"""Memory of a delay, its weight and its place in a lattice [bytes]."""
SAME_LATTICE = 1e-9
"""Distance, in packet intervals, below which the two lattices coincide."""


@kernel()
def delay_lattices(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], load: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of the delays L + k/f and L + RTT + (k - load)/f, for k = 0, 1, ...; not normalised."""
    queued = np.zeros(rows[0].bound + 1)
    delivered_late = np.zeros(rows[0].bound + load + DUPLICATE_THRESHOLD + 2)
    for phase in range(phases.size - 1):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance, pattern = transitions.probability[event], transitions.pattern[event]
            if chance <= 0.0 or pattern == NO_PACKETS:
                continue
            for cell in range(rows.offset[phase], rows.offset[phase + 1]):
                weight = probability[cell] * chance
                if weight == 0.0:
                    continue
                backlog = rows.low[phase] + cell - rows.offset[phase]
                packets = packets_leaving(transitions, event, backlog)
                if pattern == QUEUED:
                    queued[backlog] += weight * packets
                elif packets > 0:
                    latest = backlog + DUPLICATE_THRESHOLD + load
                    delivered_late[latest + 1] -= weight
                    delivered_late[latest - packets + 1] += weight
    height = 0.0
    for place in range(delivered_late.size):
        height += delivered_late[place]
        delivered_late[place] = height if height > SUMMATION_NOISE else 0.0
    return queued, delivered_late


@kernel()
def spread_lattice(weights: NDArray[np.float64], beyond: NDArray[np.float64], ratio: float) -> NDArray[np.float64]:
    """Return the weights of a lattice with `beyond`, the delays at the bound, spread by `geometric_groups`."""
    means, shares = geometric_groups(0, ratio)
    spread = np.zeros(weights.size + int(means[-1]) + 2)
    copy(weights, spread[: weights.size])
    for place in range(beyond.size):
        if beyond[place] > 0.0:
            for group in range(means.size):
                # Two neighbouring delays of the lattice have the mean of the group.
                behind = int(means[group])
                upper = means[group] - behind
                spread[place + behind] += beyond[place] * shares[group] * (1.0 - upper)
                spread[place + behind + 1] += beyond[place] * shares[group] * upper
    return spread


@kernel()
def merge_lattices(
    queued: NDArray[np.float64],
    delivered_late: NDArray[np.float64],
    one_way_delay: float,
    rtt: float,
    interval: float,
    load: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the two lattices: return ascending delays [s] and their weights, which sum to 1."""
    values = np.empty(queued.size + delivered_late.size)
    weights = np.empty(values.size)
    apart = rtt / interval - load
    if abs(apart) <= SAME_LATTICE * max(1.0, load):
        apart = 0.0
    i, j, filled = 0, 0, 0
    while i < queued.size or j < delivered_late.size:
        late = j + apart
        if j == delivered_late.size or (i < queued.size and i < late):
            value, weight = i * interval, queued[i]
            i += 1
        elif i < queued.size and i == late:
            value, weight = i * interval, queued[i] + delivered_late[j]
            i += 1
            j += 1
        else:
            value, weight = late * interval, delivered_late[j]
            j += 1
        if weight > 0.0:
            values[filled], weights[filled] = one_way_delay + value, weight
            filled += 1
    if filled > 0:
        scale(weights[:filled], 1 / total(weights[:filled]))
    return values[:filled], weights[:filled]


@kernel()
def _packet_intervals_waited(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Return sums over all packets, each weighted with the probability of its transition.

    The sums are the number of packets, the backlog b that they meet, the number of packets delivered after a fast
    retransmit, and the term 3 - i of the delays of these packets.
    """
    bound, ratio = rows[0].bound, rows[0].ratio
    packets_sum, waited, late, behind = 0.0, 0.0, 0.0, 0.0
    for phase in range(phases.size - 1):
        for event in range(phases.first_transition[phase], phases.first_transition[phase + 1]):
            chance, pattern = transitions.probability[event], transitions.pattern[event]
            if chance <= 0.0 or pattern == NO_PACKETS:
                continue
            for cell in range(rows.offset[phase], rows.offset[phase + 1]):
                backlog = rows.low[phase] + cell - rows.offset[phase]
                packets = packets_leaving(transitions, event, backlog)
                weight = probability[cell] * chance * packets
                packets_sum += weight
                waited += weight * backlog
                if backlog == bound:
                    waited += weight * ratio / (1.0 - ratio)
                if pattern == HEAD_OF_LINE:
                    late += weight
                    behind += weight * (DUPLICATE_THRESHOLD - (packets - 1) / 2)
    return packets_sum, waited, late, behind


@kernel()
def mean_delay_parts(
    phases: Phases, transitions: Transitions, rows: Rows, probability: NDArray[np.float64], rtt: float, interval: float
) -> tuple[float, float, float]:
    """Return the parts of the mean delay [s]: the backlog, head-of-line blocking, and the backlog after a timeout."""
    packets, waited, late, behind = _packet_intervals_waited(phases, transitions, rows, probability)
    labelled = after_timeout(phases, transitions, rows, probability)
    _, waited_after_timeout, _, _ = _packet_intervals_waited(phases, transitions, rows, labelled)
    head_of_line = (late * rtt + behind * interval) / packets
    timeouts = min(waited_after_timeout, waited) * interval / packets
    return waited * interval / packets - timeouts, head_of_line, timeouts


@kernel(nogil=True, joins=True)
def _summed_up(
    p: Parameters,
    forward_delay: float,
    grows: bool,
    figures: RequestedFigures,
    result: NDArray[np.float64],
    most_updates: float,
) -> tuple[int, NDArray[np.float64], NDArray[np.float64], float]:
    """Solve the chain within its first bound: see `Profile.sum_up`."""
    phases, transitions = published_transitions(p)
    start, backlogged, bound = start_phase(p.load), backlogged_phase(p.load), BACKLOG_PER_LOAD * p.load
    outcome, rows, probability, cut, drift = solve_narrow(
        phases, transitions, start, backlogged, bound, grows, figures.limit, most_updates
    )
    values = weights = probability
    if probability.size > 0:
        queued, late = delay_lattices(phases, transitions, rows, probability, p.load)
        values, weights = merge_lattices(queued, late, forward_delay, p.rtt, p.interval, p.load)
    return sum_up(outcome, values, weights, cut, grows, figures, result), values, weights, drift


class PublishedProfile(Profile):
    """The chain of Brosh et al. (2010) for one scenario."""

    def __init__(self, flow: Flow, path: Path, stack: NewReno2008) -> None:
        super().__init__(flow, path)
        self._parameters = parameters(flow, path, stack)
        self.load: int = self._parameters.load
        self.lossless = self._parameters.loss == 0
        self.grows = stack.backlog_bound == "grow"
        self.first_bound = BACKLOG_PER_LOAD * self.load
        self.least_memory = float(phase_count(self.load) * BYTES_PER_PHASE)
        self.least_seconds = phase_count(self.load) * SECONDS_PER_PHASE

    @property
    def start(self) -> int:
        """The phase in which the chain starts: a window of the load, without a backlog."""
        return start_phase(self.load)

    @property
    def backlogged(self) -> int:
        """A phase with a backlog: the window of the load."""
        return backlogged_phase(self.load)

    @cached_property
    def structure(self) -> tuple[Phases, Transitions]:
        """Phases and transitions."""
        return published_transitions(self._parameters)

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each phase."""
        return np.array(phase_kinds(self.load))

    def cost_of_delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float]:
        """Return the estimated time [s] and memory [bytes] that `delays` takes: both lattices, and their union."""
        slots = 2 * int(rows["bound"][0]) + self.load
        return updates_per_sweep(*self.structure, rows) * SECONDS_PER_UPDATE, float(BYTES_PER_SLOT * slots)

    def delays(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ascending delays [s] and their weights."""
        ratio = float(rows["ratio"][0])
        if ratio > 0:
            within = within_bound(self.structure[0], rows, probability)
            below = delay_lattices(*self.structure, rows, within, self.load)
            beyond = delay_lattices(*self.structure, rows, probability - within, self.load)
            queued, late = (spread_lattice(*both, ratio) for both in zip(below, beyond, strict=True))
        else:
            queued, late = delay_lattices(*self.structure, rows, probability, self.load)
        return merge_lattices(queued, late, self.path.forward_delay, self.path.rtt, self.flow.interval, self.load)

    def mean_parts(self, rows: Rows, probability: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the parts of the mean delay without the one-way delay [s]: backlog, head of line, timeouts."""
        return mean_delay_parts(*self.structure, rows, probability, self.path.rtt, self.flow.interval)

    def backlogged_time(self, rows: Rows, probability: NDArray[np.float64]) -> float:
        """Return the share of time in states with a backlog."""
        return backlogged_time(*self.structure, rows, probability)

    def sum_up(self, figures: RequestedFigures, result: NDArray[np.float64], most_updates: float) -> NarrowSolution:
        """Solve the chain within its first bound and compute the requested figures."""
        forward_delay = self.path.forward_delay
        return NarrowSolution(*_summed_up(self._parameters, forward_delay, self.grows, figures, result, most_updates))


class PublishedChain(FlowChain):
    """The Markov chain of Brosh et al. (2010)."""

    stack = NewReno2008
    path_fields = PATH_FIELDS
    compilation = merge_lattices, None

    def refusals(self, scenario: Scenario) -> Iterator[UnsupportedError]:
        """Yield the fields of a scenario whose values the chain refuses."""
        assert isinstance(scenario.stack, NewReno2008)
        return published_refusals(scenario.flow, scenario.path, scenario.stack)

    def profile(self, scenario: Scenario) -> PublishedProfile:
        """Return the chain of a scenario."""
        assert isinstance(scenario.stack, NewReno2008)
        return PublishedProfile(scenario.flow, scenario.path, scenario.stack)
