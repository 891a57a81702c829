"""The figure of delays after a single loss: the comb of one recovery, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tcpdelay.report.chart_labels import LABEL_SIZE, linear_time_axis, tidy
from tcpdelay.units import format_fraction, format_time
from tcpdelay.validation.chart_parts import COLORS, INK
from tcpdelay.validation.scores import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECOVERIES = (
    (0.020, 0.01, 174),
    (0.300, 0.01, 174),
    (0.020, 0.01, 1448),
    (0.100, 0.01, 1448),
)
"""Round-trip time [s], loss and packet size [bytes] of the cases that are drawn: small and large round-trip times."""
INTERVAL = 0.020
"""Time between two packets of the flows that are drawn [s]."""
CONTROL = "cubic"
_SHIFT = 0.16
"""How far measured and predicted places stand apart [packets]."""
_ROOM = 1.35
"""Height of the axis over the largest delay, which leaves room for the legend."""


def recovery_cases(scores: Sequence[Score]) -> list[Score]:
    """Return one score for each of `RECOVERIES` that was measured and that a model predicts packet by packet."""
    cases: dict[tuple[float, float, int], Score] = {}
    for score in scores:
        experiment, pattern = score.measured.experiment, score.prediction.after_loss
        case = (experiment.rtt, experiment.loss, experiment.packet_size)
        drawn = experiment.interval == INTERVAL and experiment.congestion_control == CONTROL
        known = pattern is not None and pattern.size and score.measured.after_loss.size
        if known and drawn and case in RECOVERIES:
            cases.setdefault(case, score)
    return [cases[case] for case in RECOVERIES if case in cases]


def draw_recoveries(figure: Figure, cases: Sequence[Score]) -> None:
    """Draw the delay of each packet after an isolated loss, measured beside predicted, a panel per case."""
    rows = -(-len(cases) // 2)
    panels = figure.subplots(rows, 2, squeeze=False).flat
    for ax, score in zip(panels, cases, strict=False):
        tidy(ax)
        linear_time_axis(ax.yaxis)
        experiment = score.measured.experiment
        assert score.prediction.after_loss is not None
        shown = (
            (score.measured.after_loss, INK, "o", f"measured, {experiment.congestion_control}", -_SHIFT),
            (score.prediction.after_loss, COLORS[1], "s", score.model, _SHIFT),
        )
        for (low, middle, high), color, marker, label, shift in shown:
            places = np.arange(middle.size) + shift
            ends = [middle - low, high - middle]
            ax.errorbar(
                places, middle, yerr=ends, fmt=marker, markersize=3, mfc="none", linewidth=0.8, color=color, label=label
            )
        ax.set_ylim(0.0, _ROOM * max(score.measured.after_loss.max(), score.prediction.after_loss.max()))
        ax.xaxis.get_major_locator().set_params(integer=True)
        title = (
            f"{experiment.packet_size} B, RTT {format_time(experiment.rtt)}, loss {format_fraction(experiment.loss)}"
        )
        ax.set_title(title, fontsize=LABEL_SIZE)
        ax.set_xlabel("packets after the lost one")
        ax.set_ylabel("delay")
        ax.legend(loc="upper right")
    for ax in panels:
        ax.set_axis_off()
