"""Compare decisions about a target with whole distributions: verdicts, cells of regions, and edges.

    python validation/decisions.py [--seed 1] [--scenarios 1000] [--into validation/results/decisions.md]

Draws random scenarios, every other one at 30 to 98 % of the loss that TCP carries, and targets: within 3 % of a
quantile of the delay, where the two are hardest to agree, or a limit from 50 ms to 1 s. The whole distribution is that
of `DelayModel.delay_distribution`: solved to rounding, with a bound of the backlog that cuts off next to nothing. Cells
are those of a row that ends at the scenario, so that lower bounds from smaller losses are compared as well. Prints each
scenario in which a decision differs, and a table with the processor time of both.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath

import numpy as np

import tcpdelay as td
from tcpdelay.ask import Requested
from tcpdelay.budget import TooLargeError
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.chain.engine import SAME_DELAY
from tcpdelay.models.predict import carries, predict
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.study.region import NOT_COMPUTED

WORKERS = 2
STEPS = 50
"""Number of scenarios after which progress is printed, and the table written."""
HALVINGS = 12
LARGEST_LOSS = 0.3
MOST_PACKETS_PER_RTT = 25
QUANTILES = (0.95, 0.99, 0.999, 0.9999)
ROW = np.array([0.5, 0.7, 0.8, 0.9, 1.0])
"""Losses of a row of cells, in units of the scenario's loss."""
LONGEST_LIMIT = 10.0
"""Longest limit of a target [s]."""
EDGE_LOSSES = np.geomspace(1e-4, LARGEST_LOSS, 12)
"""Losses between which the edge is searched."""


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def draw(rng: np.random.Generator, near_capacity: bool) -> Scenario:
    """Return a scenario, near the largest loss that TCP carries or anywhere."""
    while True:
        flow = td.Flow(int(_between(rng, 60, 3000)), _between(rng, 0.004, 0.06), write_jitter=0.0)
        rtt, stack = _between(rng, 0.01, 0.3), td.Stack.linux(str(rng.choice(["cubic", "reno"])))
        if rtt / flow.interval <= MOST_PACKETS_PER_RTT:
            break
    carried, beyond = 1e-5, LARGEST_LOSS
    for _ in range(HALVINGS if near_capacity else 0):
        middle = math.sqrt(carried * beyond)
        if carries(Scenario(flow, td.Path(rtt, middle), stack)):
            carried = middle
        else:
            beyond = middle
    loss = carried * rng.uniform(0.3, 0.98) if near_capacity else _between(rng, 1e-4, LARGEST_LOSS)
    return Scenario(flow, td.Path(rtt, loss), stack)


WHOLE, VERDICT, CELL, BOUND, EDGE, SIDES = (
    "whole distributions",
    "verdict by a decision",
    "cell of a region, works or not",
    "delays of a cell, the same or lower bounds",
    "both sides of an edge",
    "whole distributions at the edges",
)


@dataclass
class Comparison:
    """How many decisions were compared, and how many differ, by kind; and the processor times [s]."""

    compared: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)

    def add(self, other: Comparison) -> None:
        """Add the counts and times of another comparison."""
        self.compared.update(other.compared)
        self.different.update(other.different)
        self.spent.update(other.spent)

    def note(self, kind: str, scenario: Scenario, target: td.Target, decided: bool, full: bool) -> None:
        """Count a decision, and print it if it differs from that by the whole distribution."""
        self.compared[kind] += 1
        if decided != full:
            self.different[kind] += 1
            print(f"{kind}: {decided}, by the whole distribution {full}: {scenario}, {target}", flush=True)

    def timed(self, kind: str, begun: float) -> None:
        """Add the processor time since `begun` to that of a kind of decision."""
        self.spent[kind] += time.process_time() - begun

    def table(self) -> str:
        """Return the counts and times as a table in Markdown."""
        lines = ["| | compared | different | processor time |", "| --- | ---: | ---: | ---: |"]
        for kind in (WHOLE, VERDICT, CELL, BOUND, EDGE, SIDES):
            counts = (f"{self.compared[kind]}", f"{self.different[kind]}") if kind in self.compared else ("", "")
            spent = f"{self.spent[kind]:.0f} s" if kind in self.spent else ""
            lines.append(f"| {kind} | {' | '.join(counts)} | {spent} |")
        return "\n".join(lines)


def whole(scenario: Scenario) -> td.DelayDistribution:
    """Return the whole distribution of the delay."""
    return DelayModel(scenario.flow, scenario.path, scenario.stack).delay_distribution()


def meets(distribution: td.DelayDistribution, target: td.Target) -> bool:
    """Return whether a whole distribution meets a target."""
    return distribution.sustainable and target.allows(distribution.late_fraction(target.latest))


def compare(scenario: Scenario, rng: np.random.Generator, found: Comparison) -> None:
    """Compare all decisions about one scenario."""
    begun = time.process_time()
    full = whole(scenario)
    found.timed(WHOLE, begun)
    quantile, share, limit = float(rng.choice(QUANTILES)), rng.uniform(0.97, 1.03), _between(rng, 0.05, 1.0)
    near_tie = float(full.quantile(quantile)) * share
    target = td.Target(near_tie if rng.random() < 0.5 and near_tie <= LONGEST_LIMIT else limit, quantile)

    begun = time.process_time()
    decision = predict(scenario, Requested(precision="decision", target=target), "chain")
    found.timed(VERDICT, begun)
    if decision.answered:
        found.note(VERDICT, scenario, target, decision.meets(target), meets(full, target))

    path = scenario.path
    asked = {"target": target, "codec": None}
    begun = time.process_time()
    row = td.working_region(scenario.flow, scenario.stack, rtt=path.rtt, loss=path.loss * ROW, **asked).isel(rtt=0)
    found.timed(CELL, begun)
    cell = row.isel(loss=-1)
    if cell.accuracy != NOT_COMPUTED:
        found.note(CELL, scenario, target, bool(cell.works), meets(full, target))
        exact = [*full.quantile([0.5, 0.95, 0.99]), full.mean, full.late_fraction(target.limit)]
        given = [float(cell[name]) for name in ("p50", "p95", "p99", "mean", "late_fraction")]
        lower = all(bound <= value * (1 + SAME_DELAY) for bound, value in zip(given, exact, strict=True))
        found.note(BOUND, scenario, target, lower, True)

    begun = time.process_time()
    edge = td.working_boundary(
        scenario.flow, scenario.stack, rtt=path.rtt, loss=EDGE_LOSSES, target=target, method="chain"
    )
    found.timed(EDGE, begun)
    begun = time.process_time()
    for loss, works in ((float(edge.works_up_to[0]), True), (float(edge.fails_from[0]), False)):
        at_edge = scenario if math.isnan(loss) else replace(scenario, path=td.Path(path.rtt, loss))
        # The range of the chain ends an edge as well.
        if at_edge is not scenario and predict(at_edge, method="chain").answered:
            found.note(EDGE, at_edge, target, works, meets(whole(at_edge), target))
    found.timed(SIDES, begun)


def compared(number: int, seed: int) -> Comparison | None:
    """Return the comparison of the random scenario of a number; None if a chain is too large."""
    rng, found = np.random.default_rng([seed, number]), Comparison()
    try:
        compare(draw(rng, near_capacity=number % 2 == 0), rng, found)
    except TooLargeError:
        return None
    return found


def main() -> None:
    """Compare the decisions about random scenarios, and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--into", type=FilePath, help="file for the table, in Markdown")
    arguments = parser.parse_args()
    found, too_large = Comparison(), 0
    with ProcessPoolExecutor(WORKERS) as workers:
        each = workers.map(partial(compared, seed=arguments.seed), range(arguments.scenarios))
        for number, one in enumerate(each, 1):
            if one is None:
                too_large += 1
            else:
                found.add(one)
            if number % STEPS == 0 or number == arguments.scenarios:
                print(f"{number} scenarios, {found.different.total()} differences", flush=True)
                command = f"python validation/decisions.py --seed {arguments.seed} --scenarios {number}"
                head = f"# Decisions and whole distributions\n\n`{command}`; {too_large} chains were too large."
                if arguments.into is not None:
                    arguments.into.write_text(f"{head}\n\n{found.table()}\n", encoding="utf-8")
    print(found.table())


if __name__ == "__main__":
    main()
