"""Compare decisions about a target with whole distributions, where the two are hardest to agree.

    python validation/decisions.py [--seed 1] [--seconds 60]

Draws random scenarios at 30 to 98 % of the loss that TCP carries, and targets within 3 % of a quantile of the delay.
Prints each scenario in which the decision differs, and the processor time of both ways.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np

import tcpdelay as td
from tcpdelay.ask import Requested
from tcpdelay.models.predict import carries, predict
from tcpdelay.scenario.scenario import Scenario

HALVINGS = 12
LARGEST_LOSS = 0.3
MOST_PACKETS_PER_RTT = 60


def draw(rng: np.random.Generator) -> tuple[Scenario, float, float]:
    """Return a scenario near saturation, a quantile, and a limit in units of the delay at that quantile."""

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    flow, rtt = td.Flow(int(between(60, 3000)), between(0.004, 0.06), write_jitter=0.0), between(0.01, 0.3)
    stack = td.Stack.linux(str(rng.choice(["cubic", "reno"])))
    carried, beyond = 1e-5, LARGEST_LOSS
    for _ in range(HALVINGS):
        middle = math.sqrt(carried * beyond)
        if carries(Scenario(flow, td.Path(rtt, middle), stack)):
            carried = middle
        else:
            beyond = middle
    scenario = Scenario(flow, td.Path(rtt, carried * rng.uniform(0.3, 0.98)), stack)
    return scenario, float(rng.choice([0.95, 0.99, 0.999, 0.9999])), rng.uniform(0.97, 1.03)


def main() -> None:
    """Draw scenarios for the time given, and print where a decision differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time")
    arguments = parser.parse_args()
    rng, compared, different, deciding, solving = np.random.default_rng(arguments.seed), 0, 0, 0.0, 0.0
    while time.process_time() < arguments.seconds:
        scenario, quantile, share = draw(rng)
        if scenario.path.rtt / scenario.flow.interval > MOST_PACKETS_PER_RTT:
            continue
        start = time.process_time()
        answer = predict(scenario, method="chain")
        solved = time.process_time()
        if not (answer.answered and answer.sustainable):
            continue
        target = td.Target(answer.require().quantile(quantile) * share, quantile)
        decision = predict(scenario, Requested(precision="decision", target=target), "chain")
        deciding, solving, compared = deciding + time.process_time() - solved, solving + solved - start, compared + 1
        if decision.meets(target) != answer.meets(target):
            different += 1
            print(scenario, target, decision.lateness, answer.require().late_fraction(target.limit))
    print(
        f"{different} of {compared} decisions differ; {deciding:.1f} s for decisions, {solving:.1f} s for distributions"
    )


if __name__ == "__main__":
    main()
