"""Which bytes of the stream were captured, when first, and when all before them had come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcpdelay.capture.pcap.trace import Acknowledgements, DataSegments, Flags, Integers, Span

NEVER = np.iinfo(np.int64).max
"""Stands for the time of what never came."""
BEGINNING = np.iinfo(np.int64).min
"""Stands for the time of what was there before the capture."""
_MOST_OVERLAPS = 20
"""Pieces of the stream per segment, in the mean, beyond which the capture is taken for damaged."""


@dataclass(frozen=True)
class Coverage:
    """The stream in pieces, cut wherever a segment begins or ends.

    Attributes
    ----------
    edges : ndarray of int64
        Where the pieces begin and end.
    first : ndarray of int64
        Index of the first segment that holds each piece; the number of segments where none does.
    time : ndarray of int64
        When each piece came first [ns]; where it is missing in the capture, when it was acknowledged, or `NEVER`.
    owner, piece : ndarray of int64
        All pairs of a segment and a piece it holds, by index.
    filled : ndarray of bool
        Which pieces were acknowledged but are not in the capture.
    before : int
        When all before the first piece had come [ns].
    """

    edges: Integers
    first: Integers
    time: Integers
    owner: Integers
    piece: Integers
    filled: Flags
    before: int

    @property
    def complete(self) -> Integers:
        """When each piece and all before it had come [ns]."""
        return np.maximum.accumulate(np.concatenate([[self.before], self.time]))[1:]

    def complete_at(self, position: int) -> int:
        """When all up to a byte of the stream had come [ns]; before the first piece, when all before that had."""
        behind = int(np.searchsorted(self.edges, position))
        return int(np.max(self.time[:behind], initial=self.before))

    def missing(self, span: Span) -> int:
        """How many of the bytes that count were acknowledged but are not in the capture."""
        return int(np.diff(self.edges)[self.filled & span.within(self.edges[1:])].sum())

    def holding(self, positions: Integers) -> Integers:
        """Return the index of the piece that ends at or behind each position and begins before it."""
        return np.clip(np.searchsorted(self.edges, positions) - 1, 0, self.time.size - 1)

    def within(self, positions: Integers) -> Flags:
        """Return which positions lie behind the first edge, up to the last."""
        inside: Flags = (positions > self.edges[0]) & (positions <= self.edges[-1])
        return inside


def coverage(data: DataSegments, acks: Acknowledgements, name: str, before: int = BEGINNING) -> Coverage:
    """Cut the stream into pieces.

    What lies before the highest byte that was seen before these segments is left out.

    Parameters
    ----------
    data : DataSegments
        At least one segment.
    acks : Acknowledgements
        What was acknowledged.
    name : str
        The file, for messages.
    before : int
        When all of the stream before `data.reached` had come [ns].

    Returns
    -------
    Coverage
        The pieces.

    Raises
    ------
    ValueError
        If the segments overlap as those of no TCP do.
    """
    start, end = data.start, data.end
    if data.reached is not None:
        start, end = np.maximum(start, data.reached), np.maximum(end, data.reached)
    edges = np.unique(np.concatenate([start, end, [data.reached]] if data.reached is not None else [start, end]))
    low, high = np.searchsorted(edges, start), np.searchsorted(edges, end)
    counts = high - low
    if counts.sum() > _MOST_OVERLAPS * data.size + 100_000:
        raise ValueError(f"{name}: the segments of the connection overlap as those of no TCP do")
    owner = np.repeat(np.arange(data.size), counts)
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - low, counts)
    first = np.full(edges.size - 1, data.size)
    np.minimum.at(first, piece, owner)
    lacking = first == data.size
    time = np.where(lacking, NEVER, data.time[np.minimum(first, data.size - 1)])
    filled = np.zeros(lacking.size, np.bool_)
    if lacking.any() and acks.size:
        acknowledged = acks.first_covering(edges[1:][lacking])
        time[lacking] = np.append(acks.time, NEVER)[acknowledged]
        filled = lacking & (time < NEVER)
    return Coverage(edges, first, time, owner, piece, filled, before)
