"""Distributions of message sizes, and messages at random times."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from tcpdelay.declare import Content, InvalidValueError, as_numbers, described, number
from tcpdelay.scenario.sources.message_stream import (
    BLOCK,
    TYPICAL_WRITE_JITTER,
    Blocks,
    Source,
    WriteJitter,
    message_array,
    whole_bytes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


LARGEST_SIZE = 1e9
"""Largest size of a message [bytes]."""


class SizeDistribution(ABC):
    """A distribution of message sizes."""

    __slots__ = ()

    @property
    @abstractmethod
    def mean_size(self) -> float:
        """Mean size [bytes], before sizes are rounded to whole bytes."""

    @abstractmethod
    def scaled(self, factor: float) -> SizeDistribution:
        """Return the distribution of sizes that are larger by a factor, above 0."""

    def at(self, probability: ArrayLike) -> NDArray[np.float64]:
        """Return the quantiles of probabilities [bytes], which are at least 0 and below 1."""
        probabilities = as_numbers("probability", probability)
        # In this form NaN is refused too.
        if not ((probabilities >= 0) & (probabilities < 1)).all():
            raise InvalidValueError("probability", probability, "be at least 0 and below 1")
        return self._at(probabilities)

    @abstractmethod
    def _at(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the quantiles of probabilities that have been checked [bytes]."""

    def sizes(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return whole sizes [bytes], at least 1, from random numbers that are uniform from 0 to below 1."""
        return whole_bytes(self._at(uniform))


@described
class LognormalSizes(SizeDistribution):
    """Lognormal sizes. Sizes above 1e9 bytes become 1e9 bytes, which changes the mean by less than 0.01 %.

    Examples
    --------
    >>> LognormalSizes(1000, 0.5).mean_size
    1000.0
    """

    mean: Annotated[float, number("Mean size of a message.", 1.0, 1e6, "bytes", example="1000")]
    variation: Annotated[
        float,
        number("Standard deviation of the sizes relative to their mean.", 0.0, 3.0, "times the mean", example="0.5"),
    ] = 0.5

    @property
    def mean_size(self) -> float:
        """Mean size [bytes]."""
        return self.mean

    def scaled(self, factor: float) -> LognormalSizes:
        """Return the distribution of sizes that are larger by a factor."""
        return replace(self, mean=factor * self.mean)

    def _at(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np
        from scipy.special import ndtri

        variance = math.log1p(self.variation**2)
        if variance == 0:
            return np.full(probability.shape, self.mean)
        # The probability 0, whose quantile is 0, has no logarithm.
        normal = ndtri(np.maximum(probability, 2.0**-54))
        sizes = self.mean * np.exp(math.sqrt(variance) * normal - variance / 2)
        return np.asarray(np.minimum(sizes, LARGEST_SIZE), np.float64)


@described
class ParetoSizes(SizeDistribution):
    """Pareto sizes under the condition that they are not above an upper limit.

    Examples
    --------
    >>> round(ParetoSizes(1000, shape=1.5, largest=1_000_000).mean_size)
    2905
    """

    smallest: Annotated[float, number("Smallest size of a message.", 1.0, LARGEST_SIZE, "bytes", example="1000")]
    shape: Annotated[
        float,
        number(
            "Shape of the Pareto distribution.",
            0.1,
            10.0,
            "",
            details="A smaller shape has more large sizes.",
            example="1.5",
        ),
    ] = 1.5
    largest: Annotated[float, number("Largest size of a message.", 1.0, LARGEST_SIZE, "bytes", example="1000000")] = (
        1_000_000.0
    )

    def __post_init__(self) -> None:
        if self.largest <= self.smallest:
            raise InvalidValueError("largest", self.largest, f"be above smallest, {self.smallest:g} bytes")

    @property
    def _kept(self) -> float:
        """Probability that a size without an upper limit is not above the limit."""
        return -math.expm1(self.shape * math.log(self.smallest / self.largest))

    @property
    def mean_size(self) -> float:
        """Mean size [bytes].

        The density a s^a x^(-a-1) / `_kept` from s to l has the mean a s^a / `_kept` times the integral of x^-a.
        """
        shape, low, high = self.shape, self.smallest, self.largest
        integral = math.log(high / low) if shape == 1 else (high ** (1 - shape) - low ** (1 - shape)) / (1 - shape)
        return float(shape * low**shape * integral / self._kept)

    def scaled(self, factor: float) -> ParetoSizes:
        """Return the distribution of sizes that are larger by a factor."""
        return replace(self, smallest=factor * self.smallest, largest=factor * self.largest)

    def _at(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(self.smallest * (1 - self._kept * probability) ** (-1 / self.shape), np.float64)


def checked_sizes(sizes: Any) -> NDArray[np.int64]:
    """Return sizes as a read-only array of whole bytes; raise InvalidValueError if there is an error in them."""
    import numpy as np

    try:
        # A copy: the caller may change the array later.
        values = np.array(sizes)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iuf":
        raise InvalidValueError("sizes", sizes, "be a list or array of one or more sizes in bytes")
    # Also false for NaN.
    good = (values >= 1) & (values <= LARGEST_SIZE)
    if values.dtype.kind == "f":
        good &= values == np.floor(values)
    if not good.all():
        place = int(np.argmin(good))
        raise InvalidValueError(f"sizes[{place}]", values[place], "be a whole number of bytes from 1 to 1000000000")
    whole = values.astype(np.int64, copy=False)
    whole.setflags(write=False)
    return whole


@described
class EmpiricalSizes(SizeDistribution):
    """Measured sizes, each with the same probability.

    Raises
    ------
    InvalidValueError
        If there is no size, or a size is out of its range; a ValueError.

    Examples
    --------
    >>> EmpiricalSizes([100, 100, 400]).mean_size
    200.0
    """

    values: Annotated[
        Any,
        Content(
            meaning="Measured sizes of messages.",
            details="In bytes, 1 to 1e9, in any order; a size that occurs more often has a larger probability.",
            check=checked_sizes,
            type_name="array_like of int",
        ),
    ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmpiricalSizes) and self.values.tobytes() == other.values.tobytes()

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    @property
    def mean_size(self) -> float:
        """Mean size [bytes]."""
        return float(self.values.mean())

    def scaled(self, factor: float) -> EmpiricalSizes:
        """Return the distribution of sizes that are larger by a factor, to whole bytes."""
        return EmpiricalSizes(whole_bytes(factor * self.values))

    def _at(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        return np.asarray(np.sort(self.values)[(probability * self.values.size).astype(np.int64)], np.float64)


def size_distribution(sizes: SizeDistribution | float | Sequence[int]) -> SizeDistribution:
    """Return a distribution of sizes; a number means that all messages have this size."""
    if isinstance(sizes, SizeDistribution):
        return sizes
    if isinstance(sizes, (int, float)) and not isinstance(sizes, bool):
        return EmpiricalSizes([sizes])
    raise InvalidValueError("sizes", sizes, "be LognormalSizes, ParetoSizes, EmpiricalSizes, or one size in bytes")


# Messages at random times, of random sizes.


@described
class Messages(Source):
    """Messages that arrive at random (a Poisson process), with independent random sizes.

    Examples
    --------
    >>> from tcpdelay.scenario.sources.sizes import LognormalSizes
    >>> Messages(50, LognormalSizes(1000)).mean_bitrate
    400000.0
    """

    rate: Annotated[float, number("Mean number of messages per second.", 1e-4, 1e6, "1/s", example="50")]
    sizes: Annotated[
        Any,
        Content(
            meaning="Distribution of the message sizes.",
            details="A number is the size of all messages in bytes.",
            check=size_distribution,
            type_name="LognormalSizes, ParetoSizes, EmpiricalSizes or int",
        ),
    ]
    write_jitter: WriteJitter = TYPICAL_WRITE_JITTER

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
