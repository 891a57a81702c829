"""Surfaces solved before there are rows, so that the first table of a flow is answered at full speed."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from tcpdelay.batch.cache import load_surface, save_surface, surface_path
from tcpdelay.batch.interpolation import LARGEST_LOSS, LARGEST_RTT, SMALLEST_RTT
from tcpdelay.batch.surface import WORTH_PREPARING, OnPrepared
from tcpdelay.region.question import question
from tcpdelay.scenario import Flow, Stack, is_number, shown
from tcpdelay.validity import validated_range

SAVED_EVERY = 30.0
"""Time after which what has been solved is kept [s]."""


class Prepared(NamedTuple):
    """What has been prepared.

    Attributes
    ----------
    left : float
        Share of the region, in the logarithms of round-trip time and loss, whose rows are still solved one by one.
    chains : int
        Chains that the surface holds.
    path : str
        Where it is kept.
    """

    left: float
    chains: int
    path: str


def prepare_surface(
    flow: Flow | str,
    stack: Stack | None = None,
    *,
    threshold: float | None = None,
    quantile: float | None = None,
    rtt: tuple[float, float] | None = None,
    loss: tuple[float, float] | None = None,
    left: float = WORTH_PREPARING,
    on_progress: OnPrepared = None,
) -> Prepared:
    """Solve ahead what `predict_many` interpolates between, over a region of round-trip times and losses.

    The surface goes to the user's cache, from which `predict_many` and `tcpdelay batch` take it for the same flow, TCP
    and target. What an earlier run or table has solved counts; an interrupt keeps what has been solved.

    Parameters
    ----------
    flow : Flow or str
        Packet size and interval, or the name of one of `tcpdelay.applications`, which brings its target along.
    stack : Stack, optional
        The TCP implementation; by default that of a current Linux kernel.
    threshold : float, optional
        Largest delay of any use [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    rtt, loss : tuple of float, optional
        Round-trip times [s], within 1e-4 to 2, and losses, within 0 to 0.5, from and to; by default the range in which
        the model has been checked.
    left : float
        Share of that region, in the logarithms of both, that may be left to be solved row by row, above 0 and below 1.
    on_progress : callable, optional
        Called with the share that is left, and the number of chains solved so far.

    Returns
    -------
    Prepared
        What is left, how many chains the surface holds, and where it is.

    Raises
    ------
    ValueError
        If an argument lies outside its range.
    OSError
        If the surface cannot be kept.

    Examples
    --------
    >>> prepare_surface("voip", rtt=(0.02, 0.021), loss=(0.001, 0.0011), left=0.1).left
    0.0
    """
    asked = question(flow, stack, threshold, quantile)
    known = validated_range(asked.stack)
    rtt = known.rtt if rtt is None else _checked("rtt", rtt, SMALLEST_RTT, LARGEST_RTT, " s")
    loss = known.loss if loss is None else _checked("loss", loss, 0.0, LARGEST_LOSS)
    if not (is_number(left) and 0 < left < 1):
        raise ValueError(f"left must lie above 0 and below 1, got {shown(left)}")
    surface, path = load_surface(asked), surface_path(asked)

    def keep() -> None:
        if not save_surface(surface):
            raise OSError(f"{path} cannot be written")

    # What cannot be kept is solved for nothing.
    keep()
    saved = time.monotonic()

    def prepared(share: float, chains: int) -> None:
        nonlocal saved
        if time.monotonic() - saved > SAVED_EVERY:
            keep()
            saved = time.monotonic()
        if on_progress is not None:
            on_progress(share, chains)

    try:
        share = surface.prepare(rtt, loss, left, prepared)
    except BaseException:
        save_surface(surface)
        raise
    keep()
    return Prepared(share, len(surface.node_at), str(path))


def _checked(name: str, given: Any, lowest: float, highest: float, unit: str = "") -> tuple[float, float]:
    """Return the two ends of a range."""
    ends = list(given) if np.iterable(given) else [given]
    if len(ends) == 2 and all(map(is_number, ends)) and lowest <= ends[0] < ends[1] <= highest:
        return float(ends[0]), float(ends[1])
    told = " to ".join(map(shown, ends)) if len(ends) == 2 and not isinstance(given, str) else repr(given)
    raise ValueError(f"{name} must be a range, from low to high, within {lowest:g} to {highest:g}{unit}, got {told}")
