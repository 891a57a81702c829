"""What each of the kernel's rules is worth: the simulator's errors with one of them left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from tcpdelay.models.simulator.records import Rules
from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.validation.error_tables import error_row
from tcpdelay.validation.measured import MeasuredDelay
from tcpdelay.validation.models import Prediction
from tcpdelay.validation.scores import Score
from tcpdelay.validation.simulated import simulate_flow, simulated_flow

EVERY = 5
"""One in so many captures is simulated: names come in fours of one path, and so all four kinds have their turn."""
FEW_PACKETS = 4
"""Packets per round-trip time below which three duplicate acknowledgements hardly come together."""
ALL_RULES = "all rules"


def variants() -> dict[str, Rules]:
    """Return the sets of rules that are compared: all, and all but one.

    Examples
    --------
    >>> variants()["all but f_rto"].f_rto
    False
    """
    return {ALL_RULES: Rules()} | {f"all but {rule.name}": Rules(**{rule.name: False}) for rule in fields(Rules)}


def cases(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return those captures of a collection whose errors are compared: one in `EVERY` of the plain ones with losses."""
    plain = [capture for capture in measured if capture.plain and capture.experiment.loss > 0]
    return sorted(plain, key=lambda capture: capture.name)[::EVERY]


def ablation_table(
    measured: Sequence[MeasuredDelay], on_progress: Callable[[str], None] = lambda variant: None
) -> ResultTable:
    """Simulate captures with each rule left out.

    Parameters
    ----------
    measured : sequence of MeasuredDelay
        The captures.
    on_progress : callable, optional
        Called before each set of rules with its name.

    Returns
    -------
    ResultTable
        The simulator's errors, one row per set of rules; all have the same losses.
    """
    chosen, rows = cases(measured), []
    for name, rules in variants().items():
        on_progress(name)
        scores = []
        for capture in chosen:
            simulated = simulated_flow(capture)
            if simulated is not None:
                prediction = Prediction(*simulate_flow(replace(simulated, rules=rules)))
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
        f"|simulated / measured - 1| over those of every {EVERY}th capture under random loss that TCP carried with a "
        f"utilization below 0.9; 'fewer than {FEW_PACKETS}' is over those with fewer than {FEW_PACKETS} packets "
        "per round-trip time. Means leave out what is predicted never to settle; 'never' counts it.",
    )
