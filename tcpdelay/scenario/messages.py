"""Messages at random times, with distributions of their sizes; and a trace of messages, from memory or a file."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from tcpdelay.declare import InvalidValueError, as_numbers, content, described, in_seconds, like, number, shown
from tcpdelay.scenario.source import (
    BLOCK,
    TYPICAL_WRITE_JITTER,
    WRITE_JITTER,
    Blocks,
    Source,
    message_array,
    whole_bytes,
)
from tcpdelay.store import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

# Distributions of message sizes.

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

    mean: float = number("Mean size of a message.", 1.0, 1e6, "bytes", example="1000")
    variation: float = number(
        "Standard deviation of the sizes relative to their mean.",
        0.0,
        3.0,
        "times the mean",
        example="0.5",
        default=0.5,
    )

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

    smallest: float = number("Smallest size of a message.", 1.0, LARGEST_SIZE, "bytes", example="1000")
    shape: float = number(
        "Shape of the Pareto distribution.",
        0.1,
        10.0,
        "",
        details="A smaller shape has more large sizes.",
        example="1.5",
        default=1.5,
    )
    largest: float = number(
        "Largest size of a message.", 1.0, LARGEST_SIZE, "bytes", example="1000000", default=1_000_000.0
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

    values: Any = content(
        "Measured sizes of messages.",
        checked_sizes,
        "array_like of int",
        details="In bytes, 1 to 1e9, in any order; a size that occurs more often has a larger probability.",
    )

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
    >>> from tcpdelay.scenario.messages import LognormalSizes
    >>> Messages(50, LognormalSizes(1000)).mean_bitrate
    400000.0
    """

    rate: float = number("Mean number of messages per second.", 1e-4, 1e6, "1/s", example="50")
    sizes: Any = content(
        "Distribution of the message sizes.",
        size_distribution,
        "LognormalSizes, ParetoSizes, EmpiricalSizes or int",
        details="A number is the size of all messages in bytes.",
    )
    write_jitter: float = like(WRITE_JITTER, default=TYPICAL_WRITE_JITTER)

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


# A trace of messages: their times and sizes, from memory or from a file.

LATEST = 1e9
"""Largest time of a trace [s]."""
LATEST_CLOCK = 1e11
"""Largest time of a clock in seconds, of some year beyond 5000; the time since 1970 in milliseconds is larger."""
COLUMNS = ("time", "size")
"""Required columns of a file."""
LABEL_COLUMN = "kind"
"""Optional column of a file: the kind of each message, as text."""
MOST_KINDS = 256


@dataclass(frozen=True)
class Labels:
    """The kind of each message of a trace."""

    names: tuple[str, ...]  # The kinds
    codes: NDArray[np.uint8]  # Number of the kind of each message in `names`


def checked_labels(labels: Any) -> Labels | None:
    """Return the kinds of messages as `Labels`; raise InvalidValueError if they are no list of texts."""
    import numpy as np

    if labels is None or isinstance(labels, Labels):
        return labels
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "UT" or not values.size:
        raise InvalidValueError("labels", labels, "be a list or array of texts")
    names, codes = np.unique(values, return_inverse=True)
    if names.size > MOST_KINDS:
        raise InvalidValueError("labels", names.size, f"have at most {MOST_KINDS} different kinds")
    return Labels(tuple(map(str, names)), codes.astype(np.uint8))


def checked_times(times: Any) -> NDArray[np.float64]:
    """Return times as a read-only array; raise InvalidValueError if they are not ascending or out of range."""
    import numpy as np

    try:
        # A copy: the caller may change the array later.
        values = np.array(times, np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim != 1 or values.size == 0:
        raise InvalidValueError("times", times, "be a list or array of one or more times in seconds")
    if (descents := values[1:] < values[:-1]).any():
        place = int(np.argmax(descents)) + 1
        allowed = f"be {shown(values[place - 1])} s or later, as the time before"
        raise InvalidValueError(f"times[{place}]", values[place], allowed, "sort the messages by time")
    good = (values >= 0) & (values <= LATEST)
    if not good.all():
        place = int(np.argmin(good))
        hint = "subtract the first time" if LATEST < values[place] <= LATEST_CLOCK else ""
        if LATEST_CLOCK < values[place] < np.inf:
            hint = "the unit is probably milliseconds or less, such as since 1970: write seconds"
        raise InvalidValueError(f"times[{place}]", values[place], f"lie between 0 and {LATEST:g} s", hint)
    values.setflags(write=False)
    return values


@described
class Trace(Source):
    """Recorded messages: the time of each write, and the size.

    Raises
    ------
    InvalidValueError
        If the trace is empty, times are negative or not ascending, a size is below one byte, or there are not as many
        sizes or labels as times; a ValueError.

    Examples
    --------
    >>> trace = Trace([0.0, 0.033, 0.066], [9000, 1200, 1100], period=0.1)
    >>> trace, trace.mean_bitrate
    (Trace(3 messages in 0.066 s, period=0.1), 904000.0)
    """

    times: Any = content(
        "Times of the writes.",
        checked_times,
        "array_like of float",
        details="In seconds, ascending, 0 to 1e9. Messages of the same time are written one after another.",
    )
    sizes: Any = content("Size of each message.", checked_sizes, "array_like of int", details="In bytes, 1 to 1e9.")
    period: float | None = in_seconds(
        "Time after which the messages repeat.",
        0.0,
        LATEST,
        low_excluded=True,
        details="Later than the last time. Without it, the trace ends with its last message.",
        example="60s",
        default_words="the trace ends",
        default=None,
    )
    labels: Any = content(
        "Kind of each message.",
        checked_labels,
        "array_like of str",
        details='Such as "key frame"; without labels, all messages are of one kind. At most 256 kinds.',
        default=None,
    )
    write_jitter: float = like(WRITE_JITTER, default=0.0)

    def __post_init__(self) -> None:
        counts = {"sizes": self.sizes.size} | ({} if self.labels is None else {"labels": self.labels.codes.size})
        for name, count in counts.items():
            if count != self.times.size:
                raise InvalidValueError(name, count, f"have as many values as times, {self.times.size}")
        if self.period is not None and self.period <= self.times[-1]:
            raise InvalidValueError("period", self.period, f"be later than the last time, {shown(self.times[-1])} s")

    @classmethod
    def read(cls, file: str | os.PathLike[str], period: float | None = None) -> Trace:
        """Return the trace in a CSV or Parquet file.

        Times count from the first message: a file may have the times of any clock in seconds, such as since 1970. The
        file is read in batches. Memory holds the times, sizes and kinds, some 40 bytes for each message.

        Parameters
        ----------
        file : str or path-like
            A file with the columns `time` [s] and `size` [bytes], and optionally `kind`, a text. Other columns are not
            used.
        period : float, optional
            Time after which the messages repeat [s].

        Raises
        ------
        ValueError
            If the file cannot be read, lacks a column, or holds no valid trace; the message begins with the file's
            name.

        Examples
        --------
        >>> Trace.read("no-such-trace.csv")
        Traceback (most recent call last):
        ValueError: no-such-trace.csv: cannot be read: No such file or directory
        """
        path = FilePath(file)
        try:
            times, sizes, labels = _content_of(path)
            # Other times are refused, with their values in the file.
            if times.size and times[0] >= 0 and times[-1] <= LATEST_CLOCK and (times[1:] >= times[:-1]).all():
                times -= times[0]
            return cls(times, sizes, period, labels)
        except InvalidValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        period = "" if self.period is None else f", period={self.period:g}"
        late = f", write_jitter={self.write_jitter:g}" if self.write_jitter else ""
        return f"Trace({self.times.size} messages in {self.times[-1]:g} s{period}{late})"

    @property
    def _content(self) -> tuple[object, ...]:
        kinds = () if self.labels is None else (self.labels.names, self.labels.codes.tobytes())
        return self.times.tobytes(), self.sizes.tobytes(), self.period, self.write_jitter, *kinds

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of messages."""
        return ("message",) if self.labels is None else self.labels.names

    @property
    def message_count(self) -> int | None:
        """Number of messages; None with a period."""
        return int(self.times.size) if self.period is None else None

    @property
    def duration(self) -> float:
        """Time of one repetition [s].

        Without a period, it is the time of the last write and the mean time between two writes.
        """
        if self.period is not None:
            return self.period
        count = self.times.size
        return float(self.times[-1] + (self.times[-1] - self.times[0]) / (count - 1) if count > 1 else self.times[-1])

    @property
    def message_rate(self) -> float:
        """Mean number of messages per second of `duration` [1/s]; NaN for one message at the time 0."""
        return self.times.size / self.duration if self.duration else float("nan")

    @property
    def mean_bitrate(self) -> float:
        """Mean application bits per second of `duration` [bit/s]; NaN for one message at the time 0."""
        return float(8 * self.sizes.sum() / self.duration) if self.duration else float("nan")

    def at_bitrate(self, bitrate: float) -> Trace:
        """Return the trace at another mean bitrate [bit/s]: each size is scaled, to whole bytes."""
        return replace(self, sizes=whole_bytes(self.sizes * self.scale_to(bitrate)))

    def generate(self, seed: int) -> Blocks:
        """Yield the messages, which are the same for each seed."""
        repetition = 0
        while repetition == 0 or self.period is not None:
            begin = repetition * (self.period or 0.0)
            for first in range(0, self.times.size, BLOCK):
                part = slice(first, first + BLOCK)
                kinds = 0 if self.labels is None else self.labels.codes[part]
                yield message_array(begin + self.times[part], self.sizes[part], kinds)
            repetition += 1


def _content_of(path: FilePath) -> tuple[NDArray[np.float64], NDArray[np.int64], Labels | None]:
    """Return times, sizes and kinds of the messages in a file; raise ValueError if it cannot be read."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    times, sizes, codes = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    names: dict[str, int] = {}
    try:
        for batch in _batches(path):
            for name in batch.schema.names:
                if batch.column(name).null_count:
                    raise ValueError(f"{path}: column {name!r} has empty cells")
            # Copies, because PyArrow's buffers are larger than their content.
            for parts, name, kind in ((times, "time", pa.float64()), (sizes, "size", pa.int64())):
                parts.append(pc.cast(batch.column(name), kind).to_numpy(zero_copy_only=False).copy())
            if LABEL_COLUMN in batch.schema.names:
                texts = pc.utf8_trim_whitespace(pc.cast(batch.column(LABEL_COLUMN), pa.string()))
                coded = pc.dictionary_encode(texts)
                numbers = [names.setdefault(text, len(names)) for text in coded.dictionary.to_pylist()]
                if len(names) > MOST_KINDS:
                    raise ValueError(f"{path}: column {LABEL_COLUMN!r} has more than {MOST_KINDS} different kinds")
                codes.append(np.array(numbers, np.uint8)[coded.indices.to_numpy()])
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {one_line(error)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is neither Parquet nor text in UTF-8") from None
    except pa.ArrowException as error:
        raise ValueError(f"{path}: is no trace: {one_line(error)}") from None
    if not any(part.size for part in times):
        raise ValueError(f"{path}: has no messages")
    labels = Labels(tuple(names), _joined(codes)) if names else None
    return _joined(times), _joined(sizes), labels


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts as one array; the list is empty then, so that memory does not hold them twice."""
    import numpy as np

    result = np.empty(sum(part.size for part in parts), parts[0].dtype)
    end = result.size
    while parts:
        part = parts.pop()
        result[end - part.size : end] = part
        end -= part.size
    return result


def _batches(path: FilePath) -> Iterator[Any]:
    """Yield the columns of a trace in a CSV or Parquet file, as record batches."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    with path.open("rb") as opened:
        is_parquet = opened.read(4) == b"PAR1"
    if is_parquet:
        with pq.ParquetFile(path) as parquet:
            yield from parquet.iter_batches(columns=_required_columns(path, parquet.schema_arrow.names))
        return
    types = {"time": pa.float64(), "size": pa.float64(), LABEL_COLUMN: pa.string()}
    # The header is read first, because blanks about a name belong to the name. Each reader opens the file: PyArrow's
    # threads read ahead, and would take blocks of a shared one from each other.
    with pyarrow.csv.open_csv(path) as header:
        given = header.schema.names
    names = [name.strip() for name in given]
    wanted = [given[names.index(name)] for name in _required_columns(path, names)]
    convert = pyarrow.csv.ConvertOptions(
        include_columns=wanted, column_types={name: types[name.strip()] for name in wanted}
    )
    with pyarrow.csv.open_csv(path, convert_options=convert) as reader:
        for batch in reader:
            yield batch.rename_columns([name.strip() for name in wanted])


def _required_columns(path: FilePath, names: list[str]) -> list[str]:
    """Return the columns of a file that a trace uses; raise ValueError if one is missing or not unique."""
    for name in COLUMNS:
        if name not in names:
            found = shown(", ".join(names))
            raise ValueError(f"{path}: lacks a column {name!r}; required are {' and '.join(COLUMNS)}, it has {found}")
    for name in (*COLUMNS, LABEL_COLUMN):
        if names.count(name) > 1:
            raise ValueError(f"{path}: has more than one column {name!r}")
    return [name for name in (*COLUMNS, LABEL_COLUMN) if name in names]
