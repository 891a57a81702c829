"""Messages at random times, of random sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from tcpdelay.scenario.fields import Content, Quantity, described
from tcpdelay.scenario.sources.message_stream import BLOCK, Blocks, Source, message_array
from tcpdelay.scenario.sources.sizes import size_distribution


@described
class Messages(Source):
    """Messages that arrive at random (a Poisson process), with independent random sizes.

    Parameters
    ----------
    rate : float
        Mean number of messages per second [1/s], 1e-4 to 1e6.
    sizes : LognormalSizes, ParetoSizes, EmpiricalSizes or int
        Distribution of the sizes, or the size of all messages [bytes].

    Raises
    ------
    InvalidValueError
        If a value is out of its range; a ValueError.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.sizes import LognormalSizes
    >>> Messages(50, LognormalSizes(1000)).mean_bitrate
    400000.0
    """

    rate: Annotated[
        float,
        Quantity(
            kind="number", meaning="Mean number of messages per second.", low=1e-4, high=1e6, unit="1/s", example="50"
        ),
    ]
    sizes: Annotated[Any, Content(meaning="Distribution of the message sizes.", check=size_distribution)]

    @property
    def message_rate(self) -> float:
        """Mean number of messages per second [1/s]."""
        return self.rate

    @property
    def mean_bitrate(self) -> float:
        """Mean application bits per second [bit/s]."""
        return float(8 * self.rate * self.sizes.mean_size)

    def at_bitrate(self, bitrate: float) -> Messages:
        """Return the source at another mean bitrate [bit/s]: the distribution of the sizes is scaled."""
        return replace(self, sizes=self.sizes.scaled(self.scale_to(bitrate)))

    def generate(self, seed: int) -> Blocks:
        """Yield the messages of a seed."""
        import numpy as np

        times_random, sizes_random = (np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2))
        now = 0.0
        while True:
            times = np.cumsum(np.append(now, times_random.standard_exponential(BLOCK) / self.rate))[1:]
            yield message_array(times, self.sizes.sizes(sizes_random.random(BLOCK)))
            now = float(times[-1])
