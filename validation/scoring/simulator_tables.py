"""Tables of the simulator: captures that it cannot simulate, repeats of captures, and the effect of each rule.

If a few long stalls dominate the delays, a capture of some minutes is too short, and its confidence interval is not
reliable. Many simulations of the same experiment, each as long as the capture, show the range of delays that chance
alone produces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from tcpdelay.delays import DelayDistribution
from tcpdelay.report.document import Cell, Column, ResultTable
from tcpdelay.report.validation import error_row
from tcpdelay.sim.records import Rules
from tcpdelay.sim.simulation import simulate
from tcpdelay.study.validation.captures import MeasuredDelay
from tcpdelay.study.validation.predictions import (
    QUANTITIES,
    SAME_DELAY,
    SIMULATOR,
    Prediction,
    Score,
    not_simulated,
    simulate_flow,
    simulated_flow,
    simulated_messages,
)

REPEATS = 40
"""Number of simulations of each capture: 95 % of random results are between the lowest and the highest of these."""
FARTHEST = 12
"""Number of captures that are repeated: the simulated delays of these captures are farthest from the intervals."""
EVERY = 5
"""One in five captures is simulated. Four captures in a row share a path, so that all four kinds are chosen."""
FEW_PACKETS = 4
"""With fewer packets per round-trip time than this, three duplicate ACKs are rare."""
ALL_RULES = "all rules"


def not_simulated_table(measured: Sequence[MeasuredDelay]) -> ResultTable:
    """Return the kinds of captures that the simulator cannot simulate, with their number."""
    counts: dict[tuple[str, str], int] = {}
    for capture in measured:
        reason = not_simulated(capture.experiment)
        if reason:
            key = capture.collection, reason
            counts[key] = counts.get(key, 0) + 1
    rows: list[dict[str, Cell]] = [
        {"collection": collection, "reason": reason, "captures": count}
        for (collection, reason), count in counts.items()
    ]
    columns = (Column("collection", "captures"), Column("reason", "with"), Column("captures", "number", "count"))
    return ResultTable("not-simulated", "Captures that the simulator cannot simulate", columns, rows)


def farthest(scores: Sequence[Score]) -> list[MeasuredDelay]:
    """Return the captures whose simulated delays are farthest outside the captures' intervals."""

    def distance(score: Score) -> float:
        return max(abs(score.error_beyond_interval(quantity)) for quantity in QUANTITIES)

    own = [score for score in scores if score.model == SIMULATOR.name and score.comparable]
    return [score.measured for score in sorted(own, key=distance, reverse=True)[:FARTHEST] if distance(score) > 0]


def in_bursts(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures with losses in bursts.

    A burst continues with every segment sent, including retransmissions, so that timeouts double repeatedly. A capture
    of acceptable length is too short for such delays.
    """
    return [capture for capture in measured if capture.experiment.loss_burst > 1]


def in_states(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures with losses in bad states of the path, which a timer ends."""
    return [capture for capture in measured if capture.experiment.bad_time > 0]


def repeated(capture: MeasuredDelay) -> Iterator[DelayDistribution]:
    """Yield `REPEATS` simulations of the length of a capture; none of a capture that the simulator cannot simulate."""
    flow, messages = simulated_flow(capture), simulated_messages(capture)
    for repeat in range(1, REPEATS + 1):
        if flow is not None:
            seeds = tuple(seed + repeat * (1 << 32) for seed in flow.seeds)
            yield simulate_flow(replace(flow, packets=capture.sizes, seeds=seeds, ends=True))
        elif messages is not None:
            source, path, stack = messages.source, messages.path, messages.stack
            seed = messages.seed + repeat
            yield simulate(source, path, stack, packets=capture.offered, seed=seed, rules=messages.rules)


def repeats_table(
    name: str,
    title: str,
    measured: Sequence[MeasuredDelay],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ResultTable:
    """Return each capture with the lowest and highest of `REPEATS` simulations of the same length."""
    rows: list[dict[str, Cell]] = []
    for done, capture in enumerate(measured):
        on_progress(done, len(measured))
        values: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
        for distribution in repeated(capture):
            once = Score(capture, SIMULATOR.name, Prediction(distribution))
            for quantity, found in values.items():
                found.append(once.predicted(quantity))
        if not all(values.values()):
            continue
        row: dict[str, Cell] = {"capture": capture.name}
        for quantity, found in values.items():
            low, high, value = min(found), max(found), getattr(capture, quantity).value
            row |= {quantity: value, f"lowest_{quantity}": low, f"highest_{quantity}": high}
            row[f"below_{quantity}"] = float(np.mean(np.array(found) < value))
            row[f"between_{quantity}"] = bool(low - SAME_DELAY <= value <= high + SAME_DELAY)
        rows.append(row)
    columns = (
        Column("capture", "capture"),
        *(
            column
            for quantity in QUANTITIES
            for column in (
                Column(quantity, f"{quantity}, measured", "time"),
                Column(f"lowest_{quantity}", "simulated: lowest", "time"),
                Column(f"highest_{quantity}", "highest", "time"),
            )
        ),
    )
    between = sum(bool(row[f"between_{quantity}"]) for row in rows for quantity in QUANTITIES)
    note = (
        f"Each capture beside {REPEATS} simulations of the same length. Of the {len(rows) * len(QUANTITIES)} measured "
        f"values, {between} are between the lowest and the highest simulated value, or less than 1 ms outside; 95 in "
        "100 are expected by chance."
    )
    return ResultTable(name, title, columns, rows, note if rows else "")


def variants() -> dict[str, Rules]:
    """Return the sets of rules to compare: all rules, and all but one rule."""
    return {ALL_RULES: Rules()} | {f"all but {rule.name}": Rules(**{rule.name: False}) for rule in fields(Rules)}


def cases(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures to compare: one in `EVERY` plain captures with losses."""
    plain = [capture for capture in measured if capture.plain and capture.experiment.loss > 0]
    return sorted(plain, key=lambda capture: capture.name)[::EVERY]


def ablation_table(
    measured: Sequence[MeasuredDelay], on_progress: Callable[[str], None] = lambda variant: None
) -> ResultTable:
    """Simulate captures without each of the rules; return the simulator's errors, one row per set of rules."""
    chosen, rows = cases(measured), []
    for name, rules in variants().items():
        on_progress(name)
        scores = []
        for capture in chosen:
            simulated = simulated_flow(capture)
            if simulated is not None:
                prediction = Prediction(simulate_flow(replace(simulated, rules=rules)))
                scores.append(Score(capture, name, prediction))
        comparable = [score for score in scores if score.comparable]
        few = [score for score in comparable if score.measured.path.rtt / score.measured.flow.interval < FEW_PACKETS]
        row: dict[str, Cell] = {"rules": name, **error_row(comparable)}
        row |= {f"few_{key}": value for key, value in error_row(few).items()}
        rows.append(row | {"sustainable_right": sum(score.sustainable_call_right for score in scores) / len(scores)})
    shown = [
        Column(f"{statistic}_{quantity}", f"{statistic} {quantity}", "distance")
        for quantity in ("p95", "p99", "mean")
        for statistic in ("median", "mean")
    ]
    columns = (
        Column("rules", "rules"),
        Column("cases", "cases", "count"),
        *shown,
        Column("median_mean_distance", "median of W1", "distance"),
        Column("median_largest_gap", "median of KS", "distance"),
        Column("spread_standard_errors", "spread of standard errors apart", "ratio"),
        *(Column(f"few_{column.key}", f"fewer than 4: {column.heading}", column.kind) for column in shown[:4]),
        Column("never", "never", "count"),
    )
    return ResultTable(
        "ablation",
        "The simulator with one of the kernel's rules left out",
        columns,
        rows,
        f"|simulated / measured - 1| of every {EVERY}th capture with random loss, where TCP carried the flow with a "
        f"utilization below 0.9; 'fewer than {FEW_PACKETS}': only captures with fewer than {FEW_PACKETS} packets per "
        "round-trip time. Means leave out infinite predictions; 'never' counts them.",
    )
