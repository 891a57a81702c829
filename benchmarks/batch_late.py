"""Late fractions of tables answered from an empty cache, against the chain.

`python benchmarks/batch_late.py --app game` or `--app voip --threshold 0.123`

20 000 rows, uniform over round-trip times of 60 to 250 ms and losses of 0.5 to 5 %, where late fractions are large,
refine a new surface; as many of them as asked for are compared.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import binomtest

from tcpdelay.questions.region.question import question
from tcpdelay.questions.tables.interpolation import LATE
from tcpdelay.questions.tables.surface import STATED, Surface, solve_scenarios
from tcpdelay.scenario.applications import application

ROWS = 20_000
RTT, LOSS = (0.060, 0.250), (0.005, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--app", default="voip")
    parser.add_argument("--threshold", type=float, help="in seconds, by default the application's")
    parser.add_argument("--compared", type=int, default=1500)
    options = parser.parse_args()
    surface = Surface(question(application(options.app).name, None, options.threshold, None))
    rng = np.random.default_rng(1)
    rtt, loss = rng.uniform(*RTT, ROWS), rng.uniform(*LOSS, ROWS)
    late = surface.answer(rtt, loss).columns[LATE, : options.compared]
    rows = list(zip(rtt[: options.compared].tolist(), loss[: options.compared].tolist(), strict=True))
    exact = solve_scenarios(surface.asked, rows)
    truth, within = exact.answer[:, LATE], exact.late_within.T
    allowed = np.maximum(STATED.of_late * truth, STATED.late_error)
    for name, error in (
        ("at the threshold", np.abs(late - truth)),
        ("as stated", np.maximum(within[0] - late, late - within[1])),
    ):
        beyond = int((error > allowed).sum())
        interval = binomtest(beyond, late.size).proportion_ci()
        print(f"beyond, {name}: {beyond / late.size:.1%} ({interval.low:.1%} to {interval.high:.1%})")
    often = truth > 0.001
    ratio = late[often] / truth[often]
    print(f"where above 0.1 %: {ratio.min():.2f} to {ratio.max():.2f} times what it should be")


if __name__ == "__main__":
    main()
