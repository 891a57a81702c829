"""What is kept of long captures: series, distributions and tables in memory that does not grow with the capture."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.trace import Integers
from tcpdelay.distribution import DelayDistribution
from tcpdelay.models.simulator.simulation import Histogram, merge, to_digits

MOST_VALUES = 2**17
"""Values of a series, or different values of a distribution, that are kept as they are."""
BLOCK = 2**17
"""Rows of a table that are handled at a time."""
_IN_MEMORY = 2**22
"""Bytes of a table from which it goes to a temporary file."""


class Series:
    """Columns of consecutive values; once they are too many, two neighbours become one, again and again.

    Parameters
    ----------
    *combine : numpy.ufunc
        What makes one value of two, for each column: such as `numpy.minimum`, `numpy.maximum`, `numpy.add`.

    Examples
    --------
    >>> series = Series(np.minimum, np.add)
    >>> series.add(np.arange(4.0), np.array([5.0, 6, 7, 8]))
    >>> series.columns[1].tolist(), series.step
    ([5.0, 6.0, 7.0, 8.0], 1)
    """

    def __init__(self, *combine: np.ufunc) -> None:
        self._combine = combine
        self.columns: list[NDArray[np.float64]] = [np.empty(0) for _ in combine]
        self.step = 1
        self.count = 0

    def add(self, *columns: NDArray[np.float64]) -> None:
        """Append values, one array of the same length per column."""
        size = columns[0].size
        if not size:
            return
        begins = np.arange(-(self.count % self.step), size, self.step)
        begins[0] = 0
        for number, (combine, new) in enumerate(zip(self._combine, columns, strict=True)):
            old, reduced = self.columns[number], combine.reduceat(new, begins)
            if self.count % self.step:
                old[-1], reduced = combine(old[-1], reduced[0]), reduced[1:]
            self.columns[number] = np.concatenate([old, reduced])
        self.count += size
        while self.columns[0].size > MOST_VALUES:
            pairs = np.arange(0, self.columns[0].size, 2)
            self.columns = [
                combine.reduceat(column, pairs) for combine, column in zip(self._combine, self.columns, strict=True)
            ]
            self.step *= 2


class RoundTripSeries:
    """Samples of the round-trip time: their number, mean, deviation and extremes, and the course of their means.

    Attributes
    ----------
    largest, smallest : float
        [s]; nan without samples.
    """

    def __init__(self) -> None:
        self._series = Series(np.minimum, np.add)
        self._reference = self._sum = self._squares = 0.0
        self.smallest = self.largest = math.nan

    def add(self, times: NDArray[np.float64], samples: NDArray[np.float64]) -> None:
        """Append samples [s] and when they ended [s]."""
        if not samples.size:
            return
        if not self._series.count:
            self._reference = float(samples.mean())
        self._series.add(times, samples)
        # Sums of squares about a value near the mean keep their digits.
        self._sum += float((samples - self._reference).sum())
        self._squares += float(((samples - self._reference) ** 2).sum())
        self.smallest = float(np.fmin(self.smallest, samples.min()))
        self.largest = float(np.fmax(self.largest, samples.max()))

    @property
    def count(self) -> int:
        """Number of samples."""
        return self._series.count

    @property
    def times(self) -> NDArray[np.float64]:
        """When the first of each `step` samples ended [s]."""
        return self._series.columns[0]

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean of each `step` samples [s]; the samples themselves unless they are very many."""
        sums, step = self._series.columns[1], self._series.step
        counts = np.full(sums.size, step)
        if self.count % step:
            counts[-1] = self.count % step
        return np.asarray(sums / counts, np.float64)

    @property
    def mean(self) -> float:
        """Mean of all samples [s]; nan without any."""
        return self._reference + self._sum / self.count if self.count else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation of all samples [s]; nan without any."""
        if not self.count:
            return math.nan
        return math.sqrt(max(self._squares / self.count - (self._sum / self.count) ** 2, 0.0))


class Delays:
    """The delays of messages: one by one as long as they are few, and as a distribution."""

    def __init__(self) -> None:
        self._series = Series(np.maximum)
        self._histogram: Histogram = (np.empty(0, np.int64), np.empty(0, np.int64))

    def add(self, delays: NDArray[np.float64]) -> None:
        """Append delays [s], not negative."""
        self._series.add(delays)
        values, counts = np.unique(np.rint(delays * 1e9).astype(np.int64), return_counts=True)
        self._histogram = merge([self._histogram, (values, counts)])
        if self._histogram[0].size > MOST_VALUES:
            values, counts = self._histogram
            self._histogram = merge([(to_digits(values), counts)])

    @property
    def samples(self) -> NDArray[np.float64]:
        """The delay of each message [s]; of very many, the largest of so many consecutive ones that few are left."""
        return self._series.columns[0]

    def distribution(self, one_way_delay: float) -> DelayDistribution | None:
        """Return the distribution of the delays of all messages; None without any."""
        if not self._series.count:
            return None
        if self._series.step == 1:
            return DelayDistribution.from_samples(self.samples, one_way_delay)
        values, counts = self._histogram
        return DelayDistribution(values / 1e9, counts / counts.sum(), one_way_delay)


class Table:
    """Rows of two times [ns], in memory or, if they are many, in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (lives as long as the table)
        self.rows = 0

    def add(self, first: Integers, second: Integers) -> None:
        """Append rows."""
        try:
            self._file.write(np.column_stack([first, second]).astype(np.int64).tobytes())
        except OSError as error:
            raise ValueError(f"a temporary file cannot be written: {error.strerror or error}") from None
        self.rows += first.size

    def blocks(self) -> Iterator[tuple[Integers, Integers]]:
        """Yield all rows, `BLOCK` of them at a time."""
        self._file.seek(0)
        while content := self._file.read(16 * BLOCK):
            both = np.frombuffer(content, np.int64).reshape(-1, 2)
            yield both[:, 0], both[:, 1]
        self._file.seek(0, 2)

    def close(self) -> None:
        """Remove what is on disk."""
        self._file.close()
