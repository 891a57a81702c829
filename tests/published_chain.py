"""The published (w, b, l) chain written out plainly: what the compiled kernels compute, and their independent check.

A state is (congestion window w, backlog b in packets, recovery phase l). With the load r = packets per round trip:
application limited (AL): w >= r, b = 0, l = 0; network limited (NL): every other w > 0 with l = 0; fast recovery (FR):
w > 0, l = 1; timeout (TO): w = 0, l = 1 ... 6 is the back-off stage. The chain starts in (r, 0, 0).

Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", 2010, doi 10.1109/TNET.2010.2050780; Padhye et al.,
"Modeling TCP Throughput", 1998; Fall, Floyd, "Simulation-based Comparisons of Tahoe, Reno and SACK TCP", 1996.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, cached_property
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import NewReno2008

Array = npt.NDArray[np.float64]
State = tuple[int, int, int]
HALF = Fraction(1, 2)  # floor(x + HALF) rounds half up


class Step(NamedTuple):
    """One transition: where to, how likely, how long it takes [s], how many packets it delivers."""

    target: State
    probability: float
    duration: float
    packets: int
    repaired: bool = False  # by fast retransmit


@cache
def event_probabilities(
    loss: Fraction, w: int, application_limited: bool, loss_pattern: str, stack: NewReno2008
) -> tuple[float, float, float]:
    """Return the probabilities of no loss, of loss repaired by fast retransmit and of loss that ends in a timeout.

    AL looks at one packet, NL at a whole window of w. The timeout, P_loss - P_FR, can be as small as loss**2: so many
    decimals are carried that it is still right to the last digit of a float.
    """
    if loss == 0:
        return 1.0, 0.0, 0.0
    with localcontext() as context:
        context.prec = 60 + 2 * len(str(loss.denominator))
        p = Decimal(loss.numerator) / Decimal(loss.denominator)
        q = 1 - p

        def lost(i: int) -> Decimal:
            """B(i): i of the window's w segments are lost; in AL the looked-at packet is one of them."""
            if application_limited:
                return p * math.comb(w - 1, i - 1) * p ** (i - 1) * q ** (w - i)
            return math.comb(w, i) * p**i * q ** (w - i)

        no_loss = q if application_limited else q**w
        any_loss, repaired = 1 - no_loss, Decimal(0)
        if loss_pattern == "correlated":
            # The first k segments of the round arrive, the rest is lost; their ACKs release k more, of which m arrive
            # before the next loss. Limited transmit: two ACKs release two segments, one releases one, and that another
            spared = {1: q**2, 2: 1 - p**2} if stack.limited_transmit else {}
            for k in range(1, w):
                arrive = {m: q**m * (p if m < k else 1) for m in range(1, min(k, 2) + 1)}
                enough = sum((arrive[m] * spared.get(m, 0) for m in arrive), q**3 if k >= 3 else Decimal(0))
                repaired += any_loss * p * q**k / (1 - q**w) * enough
        elif w > 3:
            # Every retransmission must arrive. NewReno, SACK: any losses that leave three duplicate ACKs.
            # Reno: one loss, or two in a window of at least 10
            most = w - 3 if stack.variant != "reno" else 2 if w >= 10 else 1
            repaired = sum((lost(i) * q**i for i in range(1, most + 1)), Decimal(0))
        # Limited transmit: one or two duplicate ACKs release new segments for the missing ones; Reno repairs one loss
        for i, new_segments in ((w - 1, q**2), (w - 2, 1 - p**2)):
            random_losses = loss_pattern == "random" and stack.limited_transmit
            if random_losses and i >= 1 and (stack.variant != "reno" or i == 1):
                repaired += lost(i) * q**i * new_segments
        return float(no_loss), float(min(repaired, any_loss)), float(max(Decimal(0), any_loss - repaired))


class Rules:
    """The transitions out of each state, for one flow, path and stack."""

    def __init__(self, flow: Flow, path: Path, stack: NewReno2008) -> None:
        if stack.backlog_bound != "published":
            raise ValueError(f"backlog_bound must be 'published', got {stack.backlog_bound!r}")
        self.stack, self.loss_pattern, self.packet_size = stack, path.loss_pattern, flow.packet_size
        self.interval, self.rtt, self.loss = (Fraction(str(x)) for x in (flow.interval, path.rtt, path.loss))
        self.forward_delay = self.rtt / 2 if path.one_way_delay is None else Fraction(str(path.one_way_delay))
        self.timeout = 4 * self.rtt if stack.initial_timeout is None else Fraction(str(stack.initial_timeout))
        self.load = max(1, math.floor(self.rtt / self.interval + HALF))
        share = Fraction(flow.packet_size, stack.mss) if path.bottleneck == "bytes" else 1
        self.single_packet_loss = min(Fraction(1), self.loss * share)

    def events(self, loss: Fraction, w: int, application_limited: bool) -> tuple[float, float, float]:
        """Return the probabilities of no loss, of a repaired loss and of a timeout."""
        return event_probabilities(loss, w, application_limited, self.loss_pattern, self.stack)

    def backlog_after_round(self, b: int, segments: int) -> int:
        """Return (b a + r a - segments M)+ in whole packets: a round trip's writes come in, its segments leave."""
        a = self.packet_size
        left = max(0, b * a + self.load * a - segments * self.stack.mss)
        return min((2 * left + a) // (2 * a), 16 * self.load)

    def backlog_after_timeout(self, b: int, backoff: int) -> int:
        """Return the backlog after waiting `backoff` times the first timeout."""
        return min(b + math.floor(backoff * self.timeout / self.interval + HALF), 16 * self.load)

    def packets_sent(self, w: int, b: int, segments: int) -> int:
        """Return how many whole packets leave in `segments`; without a backlog, what is written and admitted."""
        a = self.packet_size
        return min(self.load, w) if b == 0 else min(b * a, segments * self.stack.mss) // a

    def grown_window(self, w: int, new_backlog: int) -> int:
        """Return w+ after a network-limited round without loss."""
        if new_backlog == 0 and w >= self.load:
            return self.load if self.stack.window_validation else w
        return min(2 * w if 2 * w < self.load else w + 1, 8 * self.load)

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the transitions out of `state`, those of probability 0 included."""
        w, b, phase = state
        r, rtt, timeout = self.load, float(self.rtt), float(self.timeout)
        if w == 0:  # TO
            backed_off = (0, self.backlog_after_timeout(b, 2**phase), min(phase + 1, 6))
            yield Step((1, self.backlog_after_round(b, 1), 0), float(1 - self.loss), rtt, self.packets_sent(w, b, 1))
            yield Step(backed_off, float(self.loss), 2**phase * timeout, 0)
            return
        left, sent = self.backlog_after_round(b, w), self.packets_sent(w, b, w)
        if phase == 1:  # FR
            yield Step((w, left, 0), 1.0, rtt, sent)
            return
        application_limited = b == 0 and w >= r
        loss = self.single_packet_loss if application_limited else self.loss
        success, fast, times_out = self.events(loss, w, application_limited)
        if application_limited:  # AL
            yield Step(state, success, float(self.interval), 1)
            yield Step(((r + 3) // 2, 3, 1), fast, float(self.rtt + 3 * self.interval), r, True)
        else:  # NL
            recovering = ((w + 3) // 2, self.backlog_after_round(b, w + 3), 1)
            yield Step((self.grown_window(w, left), left, 0), success, rtt, sent)
            yield Step(recovering, fast, rtt, self.packets_sent(w, b, w + 3), True)
        yield Step((0, self.backlog_after_timeout(b, 1), 1), times_out, timeout, 0)


@dataclass(frozen=True)
class PublishedChain:
    """The reachable states, the transitions (indices of source and target, step), and what follows from them."""

    rules: Rules
    states: list[State]
    transitions: list[tuple[int, int, Step]]

    @cached_property
    def matrix(self) -> Array:
        """Transition probabilities Q, shape (n, n)."""
        q = np.zeros((len(self.states), len(self.states)))
        for source, target, step in self.transitions:
            q[source, target] += step.probability
        return q

    @cached_property
    def stationary(self) -> Array:
        """The solution of pi Q = pi, sum pi = 1, shape (n,); 0 outside the one closed class."""
        n_classes, label = connected_components(csr_array(self.matrix), connection="strong")
        closed = set(range(n_classes)) - {label[i] for i, j, _ in self.transitions if label[i] != label[j]}
        if len(closed) != 1:
            raise ValueError(f"the chain must have one closed class of states, got {len(closed)}")
        members = np.flatnonzero(label == closed.pop())
        # Direct elimination of one state after the other, last found first: a path through state k becomes a path past
        # it. Nothing is subtracted (Grassmann, Taksar, Heyman 1985), so rare states too are right to the last digits
        a = self.matrix[np.ix_(members, members)].astype(np.longdouble)
        for k in range(len(members) - 1, 0, -1):
            into, out_of = np.flatnonzero(a[:k, k]), np.flatnonzero(a[k, :k])
            a[into, k] /= a[k, out_of].sum()
            a[np.ix_(into, out_of)] += np.outer(a[into, k], a[k, out_of])
        x = np.ones(len(members), dtype=np.longdouble)
        for k in range(1, len(members)):
            x[k] = x[:k] @ a[:k, k]
        pi = np.zeros(len(self.states))
        pi[members] = x / x.sum()
        return pi

    @cached_property
    def delays(self) -> tuple[Array, Array]:
        """Distinct delays [s], ascending, and their weights, which sum to 1."""
        # The i-th packet takes L + b/f, with fast retransmit L + RTT + (b + 3 - i)/f, and never less than L
        rules, by_delay = self.rules, defaultdict[tuple[int, int], float](float)
        for source, _, step in self.transitions:
            b, mass = self.states[source][1], self.stationary[source] * step.probability
            if step.repaired:
                for i in range(step.packets):
                    by_delay[1, b + 3 - i] += mass
            elif step.packets:
                by_delay[0, b] += mass * step.packets
        weights: dict[Fraction, float] = defaultdict(float)
        for (round_trips, intervals), mass in by_delay.items():
            beyond = round_trips * rules.rtt + intervals * rules.interval
            weights[rules.forward_delay + max(Fraction(0), beyond)] += mass
        total = math.fsum(weights.values())
        if total == 0:
            raise ValueError("no packet is ever delivered: its segments never fit the window")
        ordered = sorted(weights)
        return np.array([float(d) for d in ordered]), np.array([weights[d] / total for d in ordered])

    @property
    def mean(self) -> float:
        """Mean delay [s]."""
        return math.fsum(d * weight for d, weight in zip(*self.delays, strict=True))

    @property
    def std(self) -> float:
        """Standard deviation of the delay [s], the published jitter."""
        values, weights = self.delays
        return math.sqrt(math.fsum((values - self.mean) ** 2 * weights))

    def quantile(self, alpha: float) -> float:
        """Return the smallest delay d [s] with P(D <= d) >= alpha."""
        values, weights = self.delays
        return float(values[np.searchsorted(np.cumsum(weights), alpha - 1e-12)])

    def late_fraction(self, playout_delay: float) -> float:
        """Return P(D > playout_delay), the delay in seconds."""
        return math.fsum(weight for d, weight in zip(*self.delays, strict=True) if d > playout_delay)

    @property
    def backlogged_time_fraction(self) -> float:
        """Share of time spent in states with a backlog."""
        times = [self.stationary[s] * step.probability * step.duration for s, _, step in self.transitions]
        return math.fsum(compress(times, (self.states[s][1] > 0 for s, _, _ in self.transitions))) / math.fsum(times)


def published_chain(flow: Flow, path: Path, stack: NewReno2008, kind: type[Rules] = Rules) -> PublishedChain:
    """Return the published chain, or one with other rules: all states that (r, 0, 0) leads to, found breadth first."""
    rules = kind(flow, path, stack)
    states, transitions = [(rules.load, 0, 0)], []
    index = {states[0]: 0}
    for source in states:  # grows as states are found
        for step in rules.steps(source):
            if step.probability > 0:
                if step.target not in index:
                    index[step.target] = len(states)
                    states.append(step.target)
                transitions.append((index[source], index[step.target], step))
    return PublishedChain(rules, states, transitions)
