"""Solve the published chain under other readings of its text, and with window validation and limited transmit.

`python validation/papers readings` writes `validation/results/papers/readings.csv` and `timeouts-avoided.csv` in some
minutes. The chain is the plain formulation of the tests, `tests/published_chain.py`: each reading replaces one rule.
Brosh et al., "The Delay-Friendliness of TCP for Real-Time Traffic", 2010.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from brosh import INTERVAL, RETURN_PROPAGATION, router_rows
from comparison import published_figures, write_table
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import spsolve
from typing_extensions import override

import tcpdelay as td

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from published_chain import PublishedChain, Rules, State, Step, published_chain

LOSSES = (0.005, 0.02, 0.1)
GRID = [
    (td.Flow(size, INTERVAL, write_jitter=0.0), td.Path(rtt, loss))
    for size in (174, 1448)
    for rtt in (0.020, 0.100, 0.300)
    for loss in LOSSES
]
"""Paths and flows of the measurements (Section IV-A)."""


class NoPackets(Rules):
    """A network-limited visit without a backlog delivers no packet, as equation 6 gives for b = 0."""

    @override
    def packets_sent(self, w: int, b: int, segments: int) -> int:
        return super().packets_sent(w, b, segments) if b else 0


class BacklogZero(Rules):
    """Fast recovery of an application-limited sender begins without a backlog, as equation 1 gives."""

    @override
    def steps(self, state: State) -> Iterator[Step]:
        for step in super().steps(state):
            application_limited = state[0] >= self.load and state[1:] == (0, 0)
            yield step._replace(target=(step.target[0], 0, 1)) if application_limited and step.repaired else step


class HalfOfWindow(Rules):
    """The window after a loss in an application-limited state follows from w, as elsewhere, and not from r."""

    @override
    def steps(self, state: State) -> Iterator[Step]:
        for step in super().steps(state):
            application_limited = state[0] >= self.load and state[1:] == (0, 0)
            halved = step._replace(target=((state[0] + 3) // 2, 3, 1))
            yield halved if application_limited and step.repaired else step


class NoGrowth(Rules):
    """A window below the load keeps its size if no backlog remains: the text has no rule for this case."""

    @override
    def grown_window(self, w: int, new_backlog: int) -> int:
        return w if new_backlog == 0 and w < self.load else super().grown_window(w, new_backlog)


class IntervalAsDuration(Rules):
    """A network-limited round without loss takes 1/f, as the appendix prints, and not a round-trip time."""

    @override
    def steps(self, state: State) -> Iterator[Step]:
        for step in super().steps(state):
            network_limited = state[0] > 0 and state[2] == 0 and not step.repaired and step.target[0] > 0
            yield step._replace(duration=float(self.interval)) if network_limited else step


class LoadDown(Rules):
    """A load that is no whole number is rounded down."""

    def __init__(self, flow: td.Flow, path: td.Path, stack: td.Stack) -> None:
        super().__init__(flow, path, stack)
        self.load = max(1, int(self.rtt / self.interval))


class LoadUp(Rules):
    """A load that is no whole number is rounded up."""

    def __init__(self, flow: td.Flow, path: td.Path, stack: td.Stack) -> None:
        super().__init__(flow, path, stack)
        self.load = -int(-self.rtt // self.interval)


class ShareSwapped(Rules):
    """Q(w) is the share of fast retransmits, as equation 12 prints, and not that of timeouts."""

    @override
    def events(self, loss: Fraction, w: int, application_limited: bool) -> tuple[float, float, float]:
        success, fast, times_out = super().events(loss, w, application_limited)
        return (success, times_out, fast) if self.loss_pattern == "correlated" else (success, fast, times_out)


class ShareOfRest(Rules):
    """An application-limited sender takes Q(w - 1), as equation 12 prints, and not Q(w)."""

    @override
    def events(self, loss: Fraction, w: int, application_limited: bool) -> tuple[float, float, float]:
        success, fast, times_out = super().events(loss, w, application_limited)
        if self.loss_pattern == "correlated" and application_limited and w > 1:
            _, fast_of_rest, timeout_of_rest = super().events(loss, w - 1, False)
            fast = (1 - success) * fast_of_rest / (fast_of_rest + timeout_of_rest)
            times_out = 1 - success - fast
        return success, fast, times_out


class ShareAtLeastOne(Rules):
    """Equation 11 with its printed maximum, which is 1 for every window: each loss ends in a timeout."""

    @override
    def events(self, loss: Fraction, w: int, application_limited: bool) -> tuple[float, float, float]:
        success, fast, times_out = super().events(loss, w, application_limited)
        return (success, 0.0, fast + times_out) if self.loss_pattern == "correlated" else (success, fast, times_out)


class LaterThanLost(PublishedChain):
    """Packets after a lost one are delivered (3 + i)/f later than a round trip, as equations 4 and 5 print."""

    @property
    @override
    def delays(self) -> tuple[np.ndarray, np.ndarray]:
        rules, late = self.rules, []
        for source, _, step in self.transitions:
            b, mass = self.states[source][1], self.stationary[source] * step.probability
            if step.repaired:
                late += [(1, b + 3 + i, mass) for i in range(step.packets)]
            elif step.packets:
                late.append((0, b, mass * step.packets))
        trips, intervals, weights = np.array(late).T
        values = float(rules.forward_delay) + trips * float(rules.rtt) + intervals * float(rules.interval)
        order = np.argsort(values)
        return values[order], weights[order] / weights.sum()


READINGS: dict[str, tuple[type[Rules], type[PublishedChain]]] = {
    "as in this project": (Rules, PublishedChain),
    "no packets leave in a round without backlog (equation 6)": (NoPackets, PublishedChain),
    "fast recovery begins with backlog 0 (equation 1)": (BacklogZero, PublishedChain),
    "the window after a loss is (w + 3) / 2": (HalfOfWindow, PublishedChain),
    "no growth without backlog below the load": (NoGrowth, PublishedChain),
    "a round takes 1/f (appendix)": (IntervalAsDuration, PublishedChain),
    "packets after a lost one wait (3 + i)/f (equation 4)": (Rules, LaterThanLost),
    "r rounded down": (LoadDown, PublishedChain),
    "r rounded up": (LoadUp, PublishedChain),
    "Q is the share of fast retransmits (equation 12)": (ShareSwapped, PublishedChain),
    "Q(w - 1) if application limited (equation 12)": (ShareOfRest, PublishedChain),
    "the maximum of equation 11": (ShareAtLeastOne, PublishedChain),
}
"""What is replaced. Equations 11 and 12 hold for correlated losses only."""


def solved(
    flow: td.Flow,
    path: td.Path,
    stack: td.Stack,
    rules: type[Rules] = Rules,
    kind: type[PublishedChain] = PublishedChain,
) -> PublishedChain:
    """Return a chain, solved by sparse elimination, which is faster than that of the tests and less exact."""
    plain = published_chain(flow, path, stack, rules)
    chain = kind(plain.rules, plain.states, plain.transitions)
    size = len(chain.states)
    sources, targets, steps = zip(*chain.transitions, strict=True)
    matrix = csr_array(([step.probability for step in steps], (sources, targets)), shape=(size, size))
    # The first state has weight 1, the balance of the others follows, and the sum is scaled to 1.
    balance = (eye_array(size - 1) - matrix[1:, 1:].T).tocsc()
    weights = np.append(1.0, spsolve(balance, matrix[[0], 1:].toarray()[0]))
    chain.__dict__["stationary"] = weights / weights.sum()
    return chain


def timeouts_per_packet(chain: PublishedChain) -> float:
    """Return how many first timeouts there are for each packet that is delivered."""
    timeouts = packets = 0.0
    for source, target, step in chain.transitions:
        mass = chain.stationary[source] * step.probability
        packets += mass * step.packets
        first = chain.states[source][0] > 0 and chain.states[target][0] == 0
        timeouts += mass * first
    return timeouts / packets


def compare_readings() -> Iterator[dict[str, object]]:
    """Compare each reading with ours on the grid of random losses, and with the model columns of Tables V and VI."""
    table = router_rows(published_figures("brosh"))
    stack = td.Stack.newreno_2008()
    reference = {}
    for name, (rules, kind) in READINGS.items():
        print(name, file=sys.stderr)
        row: dict[str, object] = {"reading": name}
        for case in GRID:
            chain = solved(*case, stack, rules, kind)
            figures = np.array([chain.quantile(0.95), chain.mean])
            reference.setdefault(case, figures)
            row.setdefault("changes", []).append(figures / reference[case] - 1)  # type: ignore[attr-defined]
        changes = np.array(row.pop("changes"))
        row |= {"p95_largest": float(max(changes[:, 0], key=abs)), "mean_median": float(np.median(changes[:, 1]))}
        row["mean_largest"] = float(max(changes[:, 1], key=abs))
        for unit in ("packets", "bytes"):
            distances = [
                solved(line.flow, line.path(line.rtt - RETURN_PROPAGATION), stack, rules, kind).quantile(0.95)
                / line.printed["p95, model"]
                - 1
                for line in table
                if line.unit == unit
            ]
            row[f"{unit}_median"] = float(np.median(np.abs(distances)))
            row[f"{unit}_within_5_percent"] = int(np.sum(np.abs(distances) <= 0.05))
        yield row


def compare_timeouts() -> Iterator[dict[str, object]]:
    """Compare the timeouts with window validation with those without, and with limited transmit."""
    for interval in (0.020, 0.030):
        for size in (174, 724, 1448):
            for rtt in (0.100, 0.300):
                for loss in (0.01, 0.05, 0.1):
                    flow, path = td.Flow(size, interval, write_jitter=0.0), td.Path(rtt, loss)
                    row: dict[str, object] = {"packet_size": size, "interval": interval, "rtt": rtt, "loss": loss}
                    with_validation = td.Stack.newreno_2008(window_validation=True)
                    before = timeouts_per_packet(solved(flow, path, with_validation))
                    for name, changed in (
                        ("without validation", {"window_validation": False}),
                        ("limited transmit", {"limited_transmit": True}),
                        ("both", {"window_validation": False, "limited_transmit": True}),
                    ):
                        chain = solved(flow, path, replace(with_validation, **changed))
                        if name == "without validation":
                            row |= {"load": chain.rules.load, "overestimate": overestimate(chain)}
                        row[name] = 1 - timeouts_per_packet(chain) / before
                    yield row


def overestimate(chain: PublishedChain) -> float:
    """Return by how much the window exceeds the load in application-limited states, in the mean."""
    load = chain.rules.load
    limited = [w >= load and (b, phase) == (0, 0) for w, b, phase in chain.states]
    windows = np.array([w for w, _, _ in chain.states])
    return float(np.average(windows[limited], weights=chain.stationary[limited]) / load - 1)


def main() -> None:
    """Write both tables."""
    print(write_table("readings", compare_readings(), digits=4))
    print(write_table("timeouts-avoided", compare_timeouts(), digits=4))


if __name__ == "__main__":
    main()
