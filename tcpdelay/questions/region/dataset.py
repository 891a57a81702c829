"""The region as a data set: every quantity over round-trip time and loss, with its unit and what it means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tcpdelay import __version__
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.accuracy import expected_error_map
from tcpdelay.models.throughput import utilization_map
from tcpdelay.quality.voice import Codec, best_playout_delay, codec_named, voice_mos
from tcpdelay.questions.region.cells import ACCURACIES, Beyond, Playout, solve_cells
from tcpdelay.questions.region.question import LARGEST_REGION, Question, losses, question, round_trip_times
from tcpdelay.scenario.fields import InvalidValueError, declarations
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import Stack

if TYPE_CHECKING:
    import xarray as xr

DIMENSIONS = ("rtt", "loss")
_ERRORS = ("median", "mean", "p90")


def working_region(
    flow: Flow | str,
    stack: Stack | None = None,
    *,
    rtt: ArrayLike | None = None,
    loss: ArrayLike | None = None,
    threshold: float | None = None,
    quantile: float | None = None,
    codec: str | None = "g711",
    playout_delay: float | Literal["threshold", "best"] = "threshold",
    beyond: Beyond = "bound",
    on_progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Predict the delay at every round-trip time and loss of a range, and say where the flow works.

    Parameters
    ----------
    flow : Flow or str
        The flow, or the name of one of `tcpdelay.scenario.applications`, which brings its threshold and quantile along.
    stack : Stack, optional
        Its TCP; by default that of a current Linux kernel.
    rtt : array_like, optional
        Round-trip times [s], ascending; by default 40 from 10 ms to 400 ms. The one-way delay is half of each.
    loss : array_like, optional
        Losses, ascending fractions from 0 to below 1; by default 40 from 0.1 % to 10 %.
    threshold : float, optional
        Largest delay of any use [s], above 0; by default the application's, or 0.2 s.
    quantile : float, optional
        Share of the packets that must arrive by then, above 0 and below 1; by default the application's, or 0.95.
    codec : str, optional
        Codec of `tcpdelay.quality` by which a call is rated; None leaves that out.
    playout_delay : float or {"threshold", "best"}
        Time from write to playout of the call that is rated [s], above 0; "best" is that with the best rating in each
        cell, as of `tcpdelay.quality.voice.best_playout_delay`, and takes two to four times as long.
    beyond : {"bound", "exact"}
        "bound" spends no more on a cell that misses the target than it takes to say so: its delays may then be lower
        bounds. "exact" takes ten times as long and more.
    on_progress : callable, optional
        Called with the number of round-trip times done, and of all.

    Returns
    -------
    xarray.Dataset
        Over rtt and loss: p50, p95, p99, the chosen quantile and the mean delay [s], infinite where TCP cannot carry
        the flow; late_fraction at the threshold; mos and playout_delay [s] of the call; utilization, sustainable,
        works; median, mean and 90 % quantile of the expected relative error of the 95th percentile; and accuracy, which
        marks exact cells (0), lower bounds (1), where a score is an upper bound, flows that TCP cannot carry (2) and
        chains too large to compute (3, all NaN).

    Raises
    ------
    ValueError
        If an argument is none of these or lies outside its range.

    Examples
    --------
    >>> region = working_region("voip", rtt=[0.05, 0.15], loss=[0.001, 0.02])
    >>> region.works.values
    array([[ True,  True],
           [ True, False]])
    >>> round(float(region.p95.sel(rtt=0.05, loss=0.02)), 3), region.p95.units
    (0.055, 's')
    """
    if beyond not in get_args(Beyond):
        raise InvalidValueError("beyond", beyond, f"be one of {', '.join(map(repr, get_args(Beyond)))}")
    asked = question(flow, stack, threshold, quantile)
    rtts, lost = round_trip_times(rtt), losses(loss, allow_zero=True)
    if rtts.size * lost.size > LARGEST_REGION:
        raise ValueError(
            f"rtt and loss must make at most {LARGEST_REGION} cells, got {rtts.size} x {lost.size} of them"
        )
    wait = _playout_delay(playout_delay, asked.target.limit)
    rated = None if codec is None else codec_named(codec)
    best = None if rated is None else partial(_best_playout, rated)
    cells = solve_cells(asked, rtts, lost, beyond, best if wait is None else wait, on_progress)
    # Its import costs more than a small region.
    import xarray as xr

    computed = np.where(np.isnan(cells["p50"]), np.nan, 1.0)
    limit, share = asked.target.limit, asked.target.quantile
    variables: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {
        "p50": (cells["p50"], _delay("median delay")),
        "p95": (cells["p95"], _delay("95th percentile of the delay")),
        "p99": (cells["p99"], _delay("99th percentile of the delay")),
        "quantile": (cells["quantile"], _delay(f"delay within which a share of {share:g} of the packets arrives")),
        "mean": (cells["mean"], _delay("mean delay")),
        "late_fraction": (cells["late_fraction"], _share(f"share of the packets later than {limit:g} s")),
        "utilization": (
            utilization_map(asked.flow, rtts, lost, asked.stack),
            _share("rate of the flow over the fair TCP rate"),
        ),
        "sustainable": (cells["sustainable"], {"long_name": "whether TCP can carry the flow at all"}),
        "works": (cells["works"], {"long_name": f"whether {share:g} of the packets arrive within {limit:g} s"}),
        "accuracy": (
            cells["accuracy"],
            {
                "long_name": "what the delays are",
                "flag_values": np.arange(len(ACCURACIES), dtype=np.int8),
                "flag_meanings": " ".join(ACCURACIES),
            },
        ),
    }
    if rated is not None:
        when = f"after {wait:g} s" if wait is not None else "when its rating is best"
        name = f"mean opinion score of a call with {codec} that plays out {when}, by the E-model"
        scores = voice_mos(
            np.nan_to_num(cells["playout_delay"], nan=0.0, posinf=np.inf) + rated.delay,
            np.nan_to_num(cells["unplayed"], nan=1.0),
            rated,
        )
        variables["mos"] = (scores * computed, {"long_name": name, "units": "1"})
        variables["playout_delay"] = (cells["playout_delay"], _delay("time from write to playout of the call"))
    errors = expected_error_map(asked.flow, rtts, lost, asked.stack, cells["sustainable"])
    for i, statistic in enumerate(_ERRORS):
        text = f"{statistic} of the expected relative error of the 95th percentile"
        variables[f"expected_error_{statistic}"] = (errors[..., i] * computed, _share(text))
    return xr.Dataset(
        {name: (DIMENSIONS, values, attributes) for name, (values, attributes) in variables.items()},
        coords={
            "rtt": ("rtt", rtts, declarations(Path)["rtt"].attributes),
            "loss": ("loss", lost, declarations(Path)["loss"].attributes),
        },
        attrs=_attributes(asked, codec, playout_delay, beyond),
    )


def _playout_delay(given: float | str, limit: float) -> float | None:
    """Return the time from write to playout [s], or None for the best one."""
    if given in ("threshold", "best"):
        return limit if given == "threshold" else None
    if isinstance(given, str) or not 0 < given < float("inf"):
        raise InvalidValueError("playout_delay", given, "be a number of seconds above 0, 'threshold' or 'best'")
    return float(given)


def _best_playout(codec: Codec, distribution: DelayDistribution) -> Playout:
    best = best_playout_delay(distribution, codec)
    return Playout(best.playout_delay, best.late_fraction)


def _delay(name: str) -> dict[str, Any]:
    return {"long_name": name, "units": "s"}


def _share(name: str) -> dict[str, Any]:
    return {"long_name": name, "units": "1"}


def _attributes(asked: Question, codec: str | None, playout_delay: float | str, beyond: Beyond) -> dict[str, Any]:
    """Return what was asked, as netCDF can hold it."""
    return {
        "title": "Predicted delay, from write to in-order read, of a constant-bit-rate flow over TCP",
        "source": f"tcpdelay {__version__}",
        "flow": repr(asked.flow),
        "packet_size": asked.flow.packet_size,
        "interval": asked.flow.interval,
        "stack": repr(asked.stack),
        "threshold": asked.target.limit,
        "quantile": asked.target.quantile,
        "codec": codec or "none",
        "playout_delay": playout_delay,
        "beyond": beyond,
        "comment": "delays in s; where accuracy is lower_bound, delays and late fraction are at least what is given",
    }
