"""Where the explorer predicts: round-trip times, losses and bitrates, each in equal steps of its logarithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.validity import LINUX_RANGE

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
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if self.bitrates % 2 == 0:
            raise ValueError(f"bitrates must be odd, got {self.bitrates}")

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
