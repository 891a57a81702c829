"""The application's side: where its messages end in the stream, how large they are, and when they were written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.clocks import lower_line
from tcpdelay.capture.pcap.trace import DataSegments, Integers

MAX_MESSAGES_PER_SEGMENT = 2000
"""More cannot be in a segment, unless the sequence numbers are damaged or the size is wrong."""
_FEWEST = 20
"""Messages below which no size and no schedule is looked for."""
_COMMON = 0.02
"""Share of the writes from which a size counts as a candidate for that of all messages."""
_AGREEING = 0.95
"""Share of the writes that must be multiples of the size."""
_ON_TIME = 0.25
"""Largest lower quartile of what messages lag behind the schedule, in intervals."""


@dataclass(frozen=True)
class Messages:
    """The messages of a stream.

    Attributes
    ----------
    ends : ndarray of int64
        Position behind the last byte of each.
    sizes : ndarray of int64
        Their sizes [bytes].
    fixed : bool
        Whether all have one size.
    """

    ends: Integers
    sizes: Integers
    fixed: bool


@dataclass(frozen=True)
class Schedule:
    """A source that writes at a fixed interval.

    Attributes
    ----------
    first : float
        When the first message was written [ns], as near as the capture tells.
    interval : float
        From one message to the next [ns].
    """

    first: float
    interval: float

    def writes(self, count: int) -> NDArray[np.float64]:
        """Return when each of the messages was written [ns after the first]."""
        return np.asarray(self.interval * np.arange(count), np.float64)


def marked_ends(data: DataSegments) -> Integers:
    """Return the positions at which an application's write ended, as PSH marks them (RFC 9293, 3.9.1)."""
    return np.unique(data.end[data.push])


def fixed_size(ends: Integers) -> int | None:
    """Return the size of all messages, if they have one.

    Writes that waited leave together, so that the distance of two marks is a multiple of the size: it is the smallest
    common distance of which nearly all are multiples.

    Parameters
    ----------
    ends : ndarray of int64
        Where writes ended in the stream, ascending.

    Returns
    -------
    int or None
        The size [bytes]; None where there are too few writes or no such size.

    Examples
    --------
    >>> sizes = np.tile([160, 160, 160, 320, 160, 480], 10)
    >>> fixed_size(np.cumsum(sizes))
    160
    """
    distances = np.diff(ends)
    if distances.size < _FEWEST:
        return None
    values, counts = np.unique(distances, return_counts=True)
    for size in values[counts >= _COMMON * distances.size].tolist():
        if counts[values % size == 0].sum() >= _AGREEING * distances.size:
            return int(size)
    return None


def fixed_messages(data: DataSegments, size: int, anchor: int) -> Messages:
    """Return the messages of a stream that are all of one size.

    Parameters
    ----------
    data : DataSegments
        The stream.
    size : int
        The size [bytes], 1 or more.
    anchor : int
        A position where a message ends.

    Returns
    -------
    Messages
        Those that lie wholly within what was captured.

    Raises
    ------
    ValueError
        If there would be far more messages than segments can hold.
    """
    begin, end = int(data.start.min()), int(data.end.max())
    if (end - begin) // size > MAX_MESSAGES_PER_SEGMENT * data.size:
        raise ValueError(f"messages of {size} bytes are too small for {end - begin} bytes in {data.size} segments")
    first = begin + (anchor - begin) % size
    ends = np.arange(first if first - size >= begin else first + size, end + 1, size)
    return Messages(ends, np.full(ends.size, size), True)


def messages_of(data: DataSegments, message_size: int | None, framed: Integers | None) -> Messages:
    """Return the messages of a stream.

    Parameters
    ----------
    data : DataSegments
        The stream, at least one segment.
    message_size : int or None
        Size of all messages [bytes], if known.
    framed : ndarray of int64 or None
        Ends of the messages as their headers say, if they have such.

    Returns
    -------
    Messages
        By size or headers; else of the one size that is found; else by the marks of the application's writes.
    """
    marks = marked_ends(data)
    if framed is not None:
        ends = framed[(framed > data.start.min()) & (framed <= data.end.max())]
        sizes = np.diff(ends, prepend=ends[:1] * 0 + data.start.min())
        return Messages(ends, sizes, bool(ends.size) and bool(np.all(sizes == sizes[0])))
    size = fixed_size(marks) if message_size is None else message_size
    if size is None:
        return Messages(marks, np.diff(marks, prepend=data.start.min()), False)
    if message_size is not None and not data.start.min():
        return fixed_messages(data, size, 0)
    remainders, counts = np.unique(marks % size, return_counts=True)
    return fixed_messages(data, size, int(remainders[counts.argmax()]) if counts.size else int(data.start.min()))


def schedule_of(times: Integers) -> Schedule | None:
    """Return the schedule of a source that writes at a fixed interval.

    A message is never sent before it is written, so the writes lie on the line below all transmissions that is closest
    to them.

    Parameters
    ----------
    times : ndarray of int64
        When each message was sent or arrived first [ns]; one per write.

    Returns
    -------
    Schedule or None
        None where the messages follow no fixed interval, or are too few.

    Examples
    --------
    >>> late = np.tile([0, 3, 0, 0, 7], 10)
    >>> schedule = schedule_of(20 * np.arange(50) + late)
    >>> schedule.first, schedule.interval
    (0.0, 20.0)
    """
    if times.size < _FEWEST:
        return None
    index = np.arange(times.size, dtype=np.float64)
    height, interval = lower_line(index, (times - times[0]).astype(np.float64))
    if interval <= 0:
        return None
    lag = times - times[0] - (height + interval * index)
    if np.quantile(lag, 0.25) > _ON_TIME * interval:
        return None
    return Schedule(float(times[0]) + height, interval)
