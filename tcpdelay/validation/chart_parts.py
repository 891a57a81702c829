"""What the figures of the validation share: colours, bars of intervals, names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tcpdelay.confidence import Interval
from tcpdelay.report.charts import BLUE, GREEN, ORANGE, PURPLE
from tcpdelay.validation.scores import Score

INK = "#1b1b1f"
COLORS = (BLUE, ORANGE, GREEN, PURPLE)


def with_ends(intervals: Sequence[Interval]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values, and the lengths of the bars below and above them, shape (2, n)."""
    table = np.array(intervals, np.float64).reshape(-1, 3)
    return table[:, 0], np.array([table[:, 0] - table[:, 1], table[:, 2] - table[:, 0]])


def model_names(scores: Iterable[Score]) -> list[str]:
    """Return the names of the models, each once."""
    return list(dict.fromkeys(score.model for score in scores))
