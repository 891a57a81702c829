"""Where the explorer predicts: round-trip times, losses and bitrates, each in equal steps of its logarithm.

Predictions on a grid of round-trip times, losses and bitrates.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from tcpdelay.models.accuracy import expected_error
from tcpdelay.models.chain import DelayModel
from tcpdelay.models.interface import TooLargeError
from tcpdelay.models.validity import LINUX_RANGE
from tcpdelay.quality.voice import best_playout_delay
from tcpdelay.questions.quantities import at_bitrate
from tcpdelay.scenario.applications import Application
from tcpdelay.scenario.fields import InvalidValueError
from tcpdelay.scenario.path import Path
from tcpdelay.scenario.stack import DEFAULT_STACK

BITRATE_SPAN = 4.0
"""Factor by which the bitrate goes below and above that of the application: one beyond is another application."""


@dataclass(frozen=True)
class Grid:
    """Numbers of points along each quantity, over the range in which the chain of Linux has been checked.

    Parameters
    ----------
    rtts, losses : int
        Round-trip times from 5 to 400 ms and losses from 0.01 to 10 %, at least 2 of each.
    bitrates : int
        Bitrates from a quarter to four times that of the application; odd, so that its own is among them, from 3 on.

    Raises
    ------
    ValueError
        If there are too few of one, or the number of bitrates is even.

    Examples
    --------
    >>> grid = Grid(rtts=3, losses=4, bitrates=3)
    >>> grid.loss.round(4).tolist(), grid.bitrate(64_000).round().tolist()
    ([0.0001, 0.001, 0.01, 0.1], [16000.0, 64000.0, 256000.0])
    """

    rtts: int
    losses: int
    bitrates: int

    def __post_init__(self) -> None:
        for name, least in (("rtts", 2), ("losses", 2), ("bitrates", 3)):
            if getattr(self, name) < least:
                raise InvalidValueError(name, getattr(self, name), f"be {least} or more")
        if self.bitrates % 2 == 0:
            raise InvalidValueError("bitrates", self.bitrates, "be odd")

    @property
    def rtt(self) -> NDArray[np.float64]:
        """Round-trip times [s], ascending."""
        return np.geomspace(*LINUX_RANGE.rtt, self.rtts)

    @property
    def loss(self) -> NDArray[np.float64]:
        """Losses, as fractions, ascending."""
        return np.geomspace(*LINUX_RANGE.loss, self.losses)

    def bitrate(self, of_application: float) -> NDArray[np.float64]:
        """Return the bitrates [bit/s], ascending, around that of an application."""
        return of_application * np.geomspace(1 / BITRATE_SPAN, BITRATE_SPAN, self.bitrates)


FINE = Grid(rtts=24, losses=31, bitrates=9)
"""The losses lie closest, as a quantile jumps where more than its share is lost."""
COARSE = Grid(rtts=9, losses=10, bitrates=5)


_BODY = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
_TAIL = (0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.997, 0.998, 0.999)
PROBABILITIES = np.array([*_BODY, *_TAIL])
"""Probabilities whose quantiles are kept; those of all presets' targets are among them."""
SMALLEST_HEADROOM = 1.1
"""What TCP could carry over what is sent, below which the chain takes too long for a whole grid."""
PART = 24
"""Places that a process computes at a time."""
CODECS = {"voip": "g711"}
"""Codecs of the presets whose calls can be rated: for Opus at 24 kbit/s or PCM no planning values are published."""

CELL = np.dtype(
    [
        ("headroom", np.float64),
        ("mean", np.float64),
        ("quantiles", np.float64, PROBABILITIES.shape),
        ("late_fraction", np.float64),
        ("mos", np.float64),
        ("expected_error", np.float64),
    ]
)
"""One prediction.

Headroom is what TCP could carry over what is sent, 1 or less where the backlog grows for ever. Delays are in seconds,
infinite there; NaN stands for what has not been computed, or has no meaning for the application.
"""


@dataclass(frozen=True)
class Surfaces:
    """Predictions for one application on a grid.

    Parameters
    ----------
    application : Application
        Whose packets and target.
    bitrate, rtt, loss : ndarray
        The grid's bitrates [bit/s], round-trip times [s] and losses, ascending.
    cells : ndarray of CELL, shape (bitrates, rtts, losses)
        The predictions.
    """

    application: Application
    bitrate: NDArray[np.float64]
    rtt: NDArray[np.float64]
    loss: NDArray[np.float64]
    cells: NDArray[np.void]


def predict_cell(application: Application, bitrate: float, rtt: float, loss: float) -> NDArray[np.void]:
    """Return the prediction of the chain of Linux for an application at another bitrate.

    Parameters
    ----------
    application : Application
        A preset; its packets grow with the bitrate up to one segment, beyond it they become more frequent.
    bitrate, rtt, loss : float
        Bitrate [bit/s] and round-trip time [s], above 0, and loss, 0 to below 1.

    Returns
    -------
    ndarray of CELL, shape ()
        The prediction. Without delays where headroom is between 1 and `SMALLEST_HEADROOM`, and without anything where
        the chain is too large.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> cell = predict_cell(application("voip"), bitrate=69_600, rtt=0.100, loss=0.02)
    >>> round(float(cell["mean"]), 4), round(float(cell["late_fraction"]), 3)
    (0.0635, 0.005)
    """
    cell = np.full((), np.nan, CELL)
    flow = at_bitrate(application.flow, bitrate, DEFAULT_STACK.mss)
    path = Path(rtt=rtt, loss=loss)
    try:
        model = DelayModel(flow, path, DEFAULT_STACK)
        headroom = max(1 - model.backlog_drift / flow.packet_rate, 0.0)
        if 1 < headroom < SMALLEST_HEADROOM:
            cell["headroom"] = headroom
            return cell
        delays = model.delay_distribution()
    except TooLargeError:
        return cell
    if not delays.sustainable and headroom > 1:
        # A backlog that does not fit into a chain; it is not known to be endless.
        cell["headroom"] = headroom
        return cell
    cell["headroom"] = headroom
    cell["mean"] = delays.mean
    cell["quantiles"] = delays.quantile(PROBABILITIES)
    cell["late_fraction"] = delays.late_fraction(application.target.limit)
    if application.name in CODECS:
        cell["mos"] = best_playout_delay(delays, CODECS[application.name]).mos
    cell["expected_error"] = expected_error(flow, path, DEFAULT_STACK, carried=delays.sustainable).median
    return cell


def predict_cells(application: Application, places: NDArray[np.float64]) -> NDArray[np.void]:
    """Return the predictions at places, an array of rows of bitrate [bit/s], round-trip time [s] and loss."""
    cells = np.empty(len(places), CELL)
    for number, (bitrate, rtt, loss) in enumerate(places.tolist()):
        cells[number] = predict_cell(application, bitrate, rtt, loss)
    return cells


def predict_in_processes(
    application: Application,
    places: NDArray[np.float64],
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.void]:
    """Return what `predict_cells` does, computed by several processes.

    Parameters
    ----------
    application : Application
        A preset.
    places : ndarray, shape (n, 3)
        Bitrates [bit/s], round-trip times [s] and losses.
    processes : int
        How many work, from 1 on; 1 is this one alone. A script that asks for more has to guard what it starts
        (``if __name__ == "__main__"``), as the `multiprocessing` module says.
    on_progress : callable, optional
        Called with the number of places done, and of all.

    Raises
    ------
    ValueError
        If `processes` is below 1.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> places = np.array([[69_600, 0.100, 0.02], [69_600, 0.100, 0.05]])
    >>> predict_in_processes(application("voip"), places)["mean"].round(3).tolist()
    [0.063, 0.085]
    """
    if processes < 1:
        raise InvalidValueError("processes", processes, "be 1 or more")
    cells = np.empty(len(places), CELL)
    # Each part has places from all over: near saturation one takes as long as hundreds elsewhere.
    count = max(len(places) // PART, 1)
    parts = [np.arange(first, len(places), count) for first in range(count)]
    if processes == 1:
        for number, part in enumerate(parts, 1):
            cells[part] = predict_cells(application, places[part])
            _report(on_progress, number, parts, places)
        return cells
    # Compiled here and kept, rather than by each process at once.
    cells[parts[0]] = predict_cells(application, places[parts[0]])
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_end_silently) as pool:
        futures = {pool.submit(predict_cells, application, places[part]): part for part in parts[1:]}
        for number, future in enumerate(as_completed(futures), 2):
            cells[futures[future]] = future.result()
            _report(on_progress, number, parts, places)
    return cells


def _end_silently() -> None:
    """Let an interrupt, which reaches all processes of a terminal, end this one without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _report(
    on_progress: Callable[[int, int], None] | None,
    done: int,
    parts: list[NDArray[np.int64]],
    places: NDArray[np.float64],
) -> None:
    if on_progress is not None:
        on_progress(round(len(places) * done / len(parts)), len(places))


def compute_surfaces(
    application: Application,
    grid: Grid,
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Surfaces:
    """Predict an application's delays on a grid; processes and progress are as in `predict_in_processes`.

    Examples
    --------
    >>> from tcpdelay.scenario.applications import application
    >>> surfaces = compute_surfaces(application("voip"), Grid(rtts=2, losses=2, bitrates=3))
    >>> surfaces.cells.shape, bool((surfaces.cells["headroom"][:, 0, 0] > 1).all())
    ((3, 2, 2), True)
    """
    bitrate = grid.bitrate(application.flow.bitrate)
    axes = np.meshgrid(bitrate, grid.rtt, grid.loss, indexing="ij")
    places = np.stack(axes, axis=-1).reshape(-1, 3)
    cells = predict_in_processes(application, places, processes, on_progress)
    return Surfaces(application, bitrate, grid.rtt, grid.loss, cells.reshape(axes[0].shape))
