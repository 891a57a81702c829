"""Long connections in stretches: so many segments at a time, and as many around them as a judgement needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from dpkt.tcp import TH_PUSH
from numpy.typing import NDArray

from tcpdelay.capture.pcap.copies import Copies
from tcpdelay.capture.pcap.framing import Framer
from tcpdelay.capture.pcap.segments import SEGMENT, ConnectionSegments, placed
from tcpdelay.capture.pcap.trace import Acknowledgements, DataSegments, Span, Trace

LENGTH = 2**18
"""Segments of either direction, together, that count in one stretch."""
MARGIN = 2**16
"""Segments before and behind them that are in memory as well."""
_WHOLE = Span()


class _Cut(NamedTuple):
    """Where a stretch may end: the time before which its segments lie, and the highest byte they reach."""

    time: int
    position: int


class StretchSource:
    """One capture of a connection, cut into stretches.

    Parameters
    ----------
    segments : ConnectionSegments
        The connection's segments.

    Attributes
    ----------
    name : str
        The file.
    first, last : int
        Times of the first segment, and of the last one so far [ns].
    misplaced : int
        Segments that came so late in the file, by their times, that their stretch was over. They are left out.
    copies : Copies
        Segments that occur twice, as far as read.
    """

    def __init__(self, segments: ConnectionSegments) -> None:
        self.name = segments.name
        self._segments = segments
        self._batches = segments.batches()
        self._data = self._acks = np.zeros(0, SEGMENT)
        self._reached: int | None = None
        self._span = Span(end=_WHOLE.begin, high=_WHOLE.low)
        self._handshake_end: int | None = None
        self._ended = False
        self.first, self.last = _WHOLE.end, _WHOLE.begin
        self.misplaced = 0
        self.copies = Copies()

    @property
    def base(self) -> int:
        """Sequence number of the first byte of the stream, modulo 2^32."""
        return self._segments.base

    @property
    def framer(self) -> Framer | None:
        """What reads the payload."""
        return self._segments.framer

    def begin(self) -> None:
        """Read the first segments, unless that has been done."""
        if self.first == _WHOLE.end:
            self._read()

    def beginning(self) -> Trace:
        """Return the first segments as one stretch; before any other is asked for."""
        self.begin()
        return self._trace(_WHOLE)

    def cut(self) -> _Cut | None:
        """Read on, and return where the next stretch may end; None if all that is left may be in it."""
        begin = self._span.end
        while not self._ended:
            remaining = sum(np.count_nonzero(rows["time"] >= begin) for rows in (self._data, self._acks))
            if remaining >= LENGTH + MARGIN:
                break
            self._read()
        times = np.sort(np.concatenate([self._data["time"], self._acks["time"]]))
        first = int(np.searchsorted(times, begin))
        if times.size - first < LENGTH + MARGIN:
            return None
        # All segments of one time belong to one stretch.
        time = int(times[first + LENGTH])
        if time == times[first]:
            time += 1
        ends = (self._data["start"] + self._data["length"])[self._data["time"] < time]
        return _Cut(time, int(ends.max(initial=self._span.high)))

    def _read(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            return
        self.first, self.last = min(self.first, batch.first), max(self.last, batch.last)
        if self._handshake_end is None:
            self._handshake_end = batch.handshake_end
        self.copies.add(batch.data, batch.acks)
        self._data, self._acks = self._joined(self._data, batch.data), self._joined(self._acks, batch.acks)

    def _joined(self, rows: NDArray[np.void], new: NDArray[np.void]) -> NDArray[np.void]:
        timely = new["time"] >= self._span.end
        if not timely.all():
            self.misplaced += int(np.count_nonzero(~timely))
            new = new[timely]
        joined = np.concatenate([rows, new])
        if rows.size and new.size and new["time"][0] < rows["time"][-1]:
            joined = joined[np.argsort(joined["time"], kind="stable")]
        return joined

    def stretch(self, cut: _Cut | None, limit: int) -> Trace:
        """Return the next stretch, which goes to byte `limit` of the stream, and forget what lies before its margin.

        Parameters
        ----------
        cut : _Cut or None
            What `cut` returned.
        limit : int
            The position; that of `cut`, or a lower one.
        """
        if cut is not None and cut.position == limit:
            end = cut.time
        else:
            beyond = self._data["start"] + self._data["length"] > limit
            end = int(self._data["time"][beyond.argmax()]) if beyond.any() else _WHOLE.end
        span = Span(self._span.end, max(end, self._span.end), self._span.high, limit)
        trace = self._trace(span)
        self._span = span
        self._forget()
        return replace(trace, passed=self._reached)

    def _forget(self) -> None:
        times = np.sort(np.concatenate([self._data["time"], self._acks["time"]]))
        first = max(int(np.searchsorted(times, self._span.end)) - MARGIN, 0)
        if not first:
            return
        keep_from = times[first]
        gone = self._data[self._data["time"] < keep_from]
        if gone.size:
            highest = int((gone["start"] + gone["length"]).max())
            self._reached = highest if self._reached is None else max(highest, self._reached)
        self._data = self._data[self._data["time"] >= keep_from]
        self._acks = self._acks[self._acks["time"] >= keep_from]

    def _trace(self, span: Span) -> Trace:
        data, acks, segments = self._data, self._acks, self._segments
        mss, known = segments.mss
        position = acks["position"].copy()
        return Trace(
            segments.name,
            self.first,
            segments.shakes[True],
            segments.shakes[False],
            self._handshake_end,
            DataSegments(
                data["time"].copy(),
                data["start"].copy(),
                data["start"] + data["length"],
                data["tsval"].copy(),
                data["tsecr"].copy(),
                data["ip_id"].astype(np.int64),
                data["flags"] & TH_PUSH != 0,
                data["stamped"].copy(),
                self._reached,
            ),
            Acknowledgements(
                acks["time"].copy(),
                position,
                placed(acks["left"], position[:, None], segments.base),
                placed(acks["right"], position[:, None], segments.base),
                acks["blocks"].astype(np.int64),
                acks["window"].astype(np.int64),
                acks["length"].astype(np.int64),
                acks["seq"].astype(np.int64),
                acks["tsval"].copy(),
                acks["tsecr"].copy(),
                acks["stamped"].copy(),
            ),
            segments.base,
            mss,
            known,
            span,
        )


def stretches(sources: Sequence[StretchSource]) -> Iterator[tuple[Trace, ...]]:
    """Yield one or two captures of a connection stretch by stretch, all up to the same byte of the stream.

    Parameters
    ----------
    sources : sequence of StretchSource
        The captures.

    Yields
    ------
    tuple of Trace
        The stretch in each capture. The last one has no end.
    """
    while True:
        cuts = [source.cut() for source in sources]
        shifts = [shift_between(source.base, sources[0].base) for source in sources]
        limits = [cut.position + shift for cut, shift in zip(cuts, shifts, strict=True) if cut is not None]
        limit = min(limits, default=_WHOLE.high)
        yield tuple(
            source.stretch(cut, limit - shift * bool(limits))
            for source, cut, shift in zip(sources, cuts, shifts, strict=True)
        )
        if not limits:
            return


def shift_between(base: int, other: int) -> int:
    """Return what has to be added to positions that count from sequence number `base` so that they do from `other`.

    Examples
    --------
    >>> shift_between(5, 2**32 - 1)
    6
    """
    return (base - other + 2**31) % 2**32 - 2**31
