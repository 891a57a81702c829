"""Captures beside simulated repeats of the same length: whether a capture is one that the simulator would make.

Where a few long stalls make up the delays, no capture of a few minutes settles, and its own confidence interval, which
supposes that it did, says little. Simulating the same experiment many times, each as long as the capture, tells what
chance makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tcpdelay.report.result_table import Cell, Column, ResultTable
from tcpdelay.validation.measured import MeasuredDelay
from tcpdelay.validation.models import SIMULATOR, Prediction
from tcpdelay.validation.scores import QUANTITIES, SAME_DELAY, Score
from tcpdelay.validation.simulated import simulate_flow, simulated_flow

REPEATS = 40
"""Repeats of each capture: the lowest and the highest enclose 95 % of what chance makes of it."""
FARTHEST = 12
"""Captures whose simulated delays are farthest from their intervals that are repeated."""


def farthest(scores: Sequence[Score]) -> list[MeasuredDelay]:
    """Return the captures that the simulator is farthest from, beyond their own intervals."""

    def distance(score: Score) -> float:
        return max(abs(score.error_beyond_interval(quantity)) for quantity in QUANTITIES)

    own = [score for score in scores if score.model == SIMULATOR.name and score.comparable]
    return [score.measured for score in sorted(own, key=distance, reverse=True)[:FARTHEST] if distance(score) > 0]


def in_bursts(measured: Sequence[MeasuredDelay]) -> list[MeasuredDelay]:
    """Return the captures with losses in bursts.

    A burst goes on with every segment sent, retransmissions included, so that timeouts double time and again: such
    delays settle within no affordable capture.
    """
    return [capture for capture in measured if capture.experiment.loss_burst > 1]


def repeats_table(
    name: str,
    title: str,
    measured: Sequence[MeasuredDelay],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ResultTable:
    """Return each capture beside `REPEATS` simulations of its length: lowest and highest, and whether it lies between.

    Parameters
    ----------
    name, title : str
        As for `ResultTable`.
    measured : sequence of MeasuredDelay
        Captures that the simulator describes; others are left out.
    on_progress : callable, optional
        Called before each capture with the number of those done and of all.

    Returns
    -------
    ResultTable
        One row per capture.
    """
    rows: list[dict[str, Cell]] = []
    for done, capture in enumerate(measured):
        on_progress(done, len(measured))
        simulated = simulated_flow(capture)
        if simulated is None:
            continue
        values: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
        for repeat in range(REPEATS):
            seeds = tuple(seed + (repeat + 1) * (1 << 32) for seed in simulated.seeds)
            prediction = Prediction(*simulate_flow(replace(simulated, packets=capture.sizes, seeds=seeds, ends=True)))
            once = Score(capture, SIMULATOR.name, prediction)
            for quantity, found in values.items():
                found.append(once.predicted(quantity))
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
        f"Each capture beside {REPEATS} simulations as long as it is. Of the {len(rows) * len(QUANTITIES)} measured "
        f"values {between} lie between the lowest and the highest simulated one, or less than 1 ms from there; by "
        "chance 95 in 100 would."
    )
    return ResultTable(name, title, columns, rows, note if rows else "")
