"""The figures of the validation as SVG: predictions beside measurements with their intervals."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tcpdelay.report.chart_labels import LABEL_SIZE
from tcpdelay.validation.delay_charts import draw_by_loss, draw_overlays, is_stream, overlay_cases
from tcpdelay.validation.error_charts import draw_errors, draw_scatter
from tcpdelay.validation.recovery_charts import draw_recoveries, recovery_cases
from tcpdelay.validation.scores import Score

SMALL, LARGE = 174, 1448
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tcpdelay",
    "font.size": LABEL_SIZE,
    "legend.frameon": False,
    "legend.fontsize": LABEL_SIZE - 1,
    "figure.facecolor": "white",
}


def figures(scores: Sequence[Score]) -> dict[str, bytes]:
    """Return the figures as SVG by file name.

    Parameters
    ----------
    scores : sequence of Score
        The scores of plain captures.

    Returns
    -------
    dict of bytes
        One figure per entry; one that would be empty is left out.
    """
    comparable = [score for score in scores if score.comparable]
    drawn: dict[str, bytes] = {}
    if comparable:
        drawn["p95-scatter.svg"] = draw_svg(lambda figure: draw_scatter(figure, comparable), (12.0, 4.6))
        drawn["error-by-utilization.svg"] = draw_svg(lambda figure: draw_errors(figure, scores), (12.0, 4.2))
    # Timer rates would be drawn over one another.
    clock = min((score.measured.hz for score in scores), default=0)
    one_clock = [score for score in scores if score.measured.hz == clock]
    cases = overlay_cases(one_clock)
    if cases:
        height = 3.1 * math.ceil(len(cases) / 2)
        drawn["distributions.svg"] = draw_svg(lambda figure: draw_overlays(figure, cases), (10.0, height))
    recoveries = recovery_cases(one_clock)
    if recoveries:
        height = 3.1 * math.ceil(len(recoveries) / 2)
        drawn["after-loss.svg"] = draw_svg(lambda figure: draw_recoveries(figure, recoveries), (10.0, height))
    for size, name in ((SMALL, "p95-by-loss-small.svg"), (LARGE, "p95-by-loss-large.svg")):
        own = [score for score in one_clock if is_stream(score.measured, size)]
        if own:
            drawn[name] = draw_svg(partial(draw_by_loss, scores=own), (10.0, 5.0))
    return drawn


def draw_svg(draw: Callable[[Figure], None], size: tuple[float, float]) -> bytes:
    """Return what `draw` puts on a figure of that size [inches] as SVG."""
    image = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()
