"""Whether TCP carries a flow, by the chain's delays, its capacity and the simulator: `python validation/carried.py`.

The 2000 random flows write 10 to 60 packets per round-trip time. Of these scenarios, 200 are near the capacity, and
are simulated as well. The script takes some 20 minutes, and writes `results/carried.csv` and `results/carried.md`.

The chain must say that a flow is carried if and only if its capacity is above the flow's rate. Chain and simulator may
disagree within the stated error of the capacity (`is_near_capacity`, `is_beyond_capacity`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pandas as pd

from tcpdelay.accuracy.errors import is_beyond_capacity, is_near_capacity
from tcpdelay.chain import engine as chain
from tcpdelay.chain.delay_model import DelayModel
from tcpdelay.models.predict import capacity, predict
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.scenario import Scenario
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack
from tcpdelay.sim.simulation import simulate

RESULTS = FilePath(__file__).parent / "results"
SCENARIOS, AT_EDGE = 2000, 200
CONTROLS = ("cubic", "reno", "bbr")
SHORTEST_RTT, LONGEST_RTT = 0.020, 0.400
SMALLEST_LOSS, LARGEST_LOSS = 2e-4, 0.15
PACKETS_PER_RTT = (10.0, 60.0)
PACKET_SIZES = (60, 1448)
SHARES_AT_EDGE = (0.75, 1.6)
"""Capacities of the scenarios near the edge, relative to the flow's rate."""
HALVINGS = 12
PACKETS = 400_000
STEPS = 100
"""Number of scenarios between two lines of progress."""
PRECISE_TAIL_ERROR, PRECISE_CELLS = 1e-5, 12_000_000


def share(scenario: Scenario) -> float:
    """Return the capacity relative to the flow's rate."""
    return capacity(scenario) / scenario.flow.packet_rate


def drawn(number: int) -> Scenario:
    """Return a random scenario."""
    random = np.random.default_rng([number, 41])
    rtt = SHORTEST_RTT * (LONGEST_RTT / SHORTEST_RTT) ** random.random()
    interval = rtt / random.uniform(*PACKETS_PER_RTT)
    loss = SMALLEST_LOSS * (LARGEST_LOSS / SMALLEST_LOSS) ** random.random()
    flow = Flow(int(random.integers(*PACKET_SIZES, endpoint=True)), float(f"{interval:.4g}"), write_jitter=0.0)
    path = Path(rtt=float(f"{rtt:.4g}"), loss=float(f"{loss:.4g}"))
    return Scenario(flow, path, Stack.linux(CONTROLS[number % len(CONTROLS)]))


def near_edge(number: int) -> Scenario | None:
    """Return a random scenario whose capacity is about as large as the flow's rate; None if no loss makes it so."""
    scenario = drawn(number)
    target = np.random.default_rng([number, 43]).uniform(*SHARES_AT_EDGE)

    def with_loss(loss: float) -> Scenario:
        return replace(scenario, path=replace(scenario.path, loss=float(f"{loss:.4g}")))

    low, high = np.log(SMALLEST_LOSS), np.log(LARGEST_LOSS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = share(with_loss(np.exp(middle)))
        low, high = (middle, high) if not found < target else (low, middle)
    found = with_loss(np.exp(low))
    return found if SHARES_AT_EDGE[0] / 1.1 < share(found) < SHARES_AT_EDGE[1] * 1.1 else None


def scenarios(count: int, at_edge: int) -> Iterator[tuple[int, bool, Scenario]]:
    """Yield number, whether it is near the edge, and scenario."""
    number, left = 0, at_edge
    while number < count:
        scenario = near_edge(number) if left else drawn(number)
        edge = left > 0 and scenario is not None
        left -= edge
        yield number, edge, scenario or drawn(number)
        number += 1


def row(number: int, scenario: Scenario) -> dict[str, object]:
    """Return what the chain says."""
    begun = time.process_time()
    answer = predict(scenario, method="chain")
    seconds = time.process_time() - begun
    flow, path = scenario.flow, scenario.path
    ratio = share(scenario)
    return {
        "number": number,
        "packet_size": flow.packet_size,
        "interval": flow.interval,
        "rtt": path.rtt,
        "loss": path.loss,
        "congestion_control": scenario.stack.congestion_control,
        "capacity_share": float(f"{ratio:.5g}"),
        "status": answer.status,
        "chain_carries": answer.sustainable if answer.answered else None,
        "chain_mean": float(f"{answer.mean:.5g}") if answer.answered else np.nan,
        "contradicts": bool(answer.answered and answer.sustainable != (ratio > 1)),
        "seconds": round(seconds, 4),
    }


def simulated(scenario: Scenario, ratio: float, carries: bool) -> dict[str, object]:
    """Return what the simulator says, and whether it disagrees with the chain beyond the stated error."""
    found = simulate(scenario.source, scenario.path, scenario.stack, packets=PACKETS, seed=1)
    stated = is_near_capacity(ratio) or (not carries and not is_beyond_capacity(ratio))
    return {
        "simulation_carries": found.sustainable,
        "simulation_settled": found.settled,
        "simulation_mean": float(f"{found.mean:.5g}"),
        "disagrees_beyond_error": bool(found.sustainable != carries and not stated),
    }


def precise_mean(scenario: Scenario) -> float:
    """Return the mean delay by the chain with backlogs that are followed much further [s]."""
    known = chain.LARGEST_TAIL_ERROR, chain.MOST_CELLS
    try:
        chain.LARGEST_TAIL_ERROR, chain.MOST_CELLS = PRECISE_TAIL_ERROR, PRECISE_CELLS
        budget = chain.budget_for(600.0, 2.0**33)
        return DelayModel(scenario.flow, scenario.path, scenario.stack, budget).delay_distribution().mean
    finally:
        chain.LARGEST_TAIL_ERROR, chain.MOST_CELLS = known


def compared(count: int, at_edge: int) -> pd.DataFrame:
    """Return one row per scenario."""
    rows: list[dict[str, object]] = []
    for number, edge, scenario in scenarios(count, at_edge):
        found = row(number, scenario)
        carries = bool(found["chain_carries"])
        if edge:
            found |= simulated(scenario, float(found["capacity_share"]), carries)
            if carries and found["status"] == "exact":
                found["precise_mean"] = float(f"{precise_mean(scenario):.5g}")
        rows.append(found)
        if len(rows) % STEPS == 0:
            print(f"{len(rows)} scenarios ...", file=sys.stderr, flush=True)
    return pd.DataFrame(rows)


def in_words(table: pd.DataFrame) -> str:
    """Return the page of the results."""
    edge = table[table["simulation_carries"].notna()]
    wrong = edge[edge["simulation_carries"] != edge["chain_carries"]]
    both = edge[
        edge["simulation_carries"].eq(True) & edge["chain_carries"].eq(True) & edge["simulation_settled"].eq(True)
    ]
    lines = [
        "# Whether TCP carries a flow",
        "",
        "`python validation/carried.py` writes this page.",
        "",
        f"- Random scenarios of 10 to 60 packets per round-trip time: {len(table)}, of which "
        f"{int((table['capacity_share'] > 1).sum())} are carried.",
        f"- The chain's delays contradict its capacity: {int(table['contradicts'].sum())}.",
        f"- Chains that are too large, or refused: {int((~table['status'].isin(['exact', 'not carried'])).sum())}.",
        f"- Scenarios near the capacity that were simulated: {len(edge)}. "
        f"Chain and simulator disagree in {len(wrong)}, "
        f"in {int(edge['disagrees_beyond_error'].sum())} of them beyond the stated error of the capacity.",
    ]
    precise = edge.dropna(subset=["precise_mean"])
    apart = np.abs(precise["chain_mean"] / precise["precise_mean"] - 1)
    lines.append(
        f"- Mean delay of {len(precise)} of them beside backlogs that are followed much further: "
        f"{apart.median():.2%} off in the median, {apart.quantile(0.9):.2%} in nine of ten, {apart.max():.2%} at most."
    )
    labels = ["1 to 1.1", "1.1 to 1.25", "1.25 to 1.5", "1.5 to 1.8"]
    group = pd.cut(both["capacity_share"], [1, 1.1, 1.25, 1.5, 1.8], labels=labels)
    error = both["chain_mean"] / both["simulation_mean"] - 1
    lines += [
        "",
        "Mean delay of the chain, relative to the simulator's, where both carry the flow:",
        "",
        "| Capacity over rate | Control | Scenarios | Median of the error | Median of its size |",
        "|---|---|---:|---:|---:|",
    ]
    for (label, control), errors in error.groupby([group, both["congestion_control"]], observed=True):
        lines.append(f"| {label} | {control} | {len(errors)} | {errors.median():+.1%} | {errors.abs().median():.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, help="number of scenarios (%(default)s)")
    parser.add_argument("--at-edge", type=int, default=AT_EDGE, help="of which near the capacity (%(default)s)")
    parser.add_argument("--output", type=FilePath, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    table = compared(arguments.scenarios, arguments.at_edge)
    table.to_csv(arguments.output / "carried.csv", index=False)
    page = in_words(table)
    (arguments.output / "carried.md").write_text(page)
    print(page, end="")


if __name__ == "__main__":
    main()
