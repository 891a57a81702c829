"""Packets that a capture shows twice: how many, how far apart, and how to leave out the second ones."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from tcpdelay.capture.pcap.container import Packet
from tcpdelay.capture.pcap.decoding import Segment
from tcpdelay.capture.pcap.trace import Flags, Integers

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads numbers over 64 bits, so that what is equal is sorted side by side, and quickly."""
_COMPARED = ("seq", "ack", "length", "tsval", "tsecr", "left", "right", "window", "ip_id", "flags")
_MANY = 0.1
"""Share of segments that are copies from which a capture shows packets twice."""
_MANY_LIKELY = 1 / 3
"""The same where a segment might be a retransmission or an acknowledgement said again."""
_FEWEST_LIKELY = 10
"""Copies below which such a share may be chance."""
_FEWEST_SEGMENTS = 1000
"""Segments, read together, from which they are judged by themselves, lest copies that begin late go under."""
_ALMOST_ALL = 0.9
"""Share of the copies that tells how far apart they are: the others may be pairs of different packets."""


class _Direction:
    """Copies among the segments of one direction."""

    def __init__(self) -> None:
        self.segments = self.sure = self.likely = 0
        self.lags: Integers = np.empty(0, np.int64)
        self._many_at_once = False

    def add(self, rows: NDArray[np.void], numbered: Flags) -> None:
        """Count in some more rows; `numbered` are those of which no two would be equal."""
        sent = rows["seq"].astype(np.uint64) << np.uint64(32) | rows["tsval"]
        answered = rows["ack"].astype(np.uint64) << np.uint64(16) | rows["ip_id"]
        # Rows are by ascending time, which a stable sort keeps.
        order = np.argsort((sent * _ODD ^ answered) * _ODD, kind="stable")
        same = np.ones(max(rows.size - 1, 0), np.bool_)
        for name in _COMPARED:
            column = rows[name][order]
            equal = column[1:] == column[:-1]
            same &= equal if equal.ndim == 1 else equal.all(axis=1)
        copies = order[1:][same]
        if copies.size:
            self.lags = rows["time"][copies] - rows["time"][order[:-1][same]]
        sure, likely = int(np.count_nonzero(numbered[copies])), int(np.count_nonzero(~numbered[copies]))
        self.segments, self.sure, self.likely = self.segments + rows.size, self.sure + sure, self.likely + likely
        self._many_at_once |= rows.size >= _FEWEST_SEGMENTS and _are_many(rows.size, sure, likely)

    @property
    def many(self) -> bool:
        """Whether they are so many, of all or of those read together, that packets were captured twice."""
        return self._many_at_once or _are_many(self.segments, self.sure, self.likely)

    @property
    def lag(self) -> int:
        """How much later nine in ten of the last copies came, at most [ns]."""
        return int(np.quantile(self.lags, _ALMOST_ALL)) if self.lags.size else 0


def _are_many(segments: int, sure: int, likely: int) -> bool:
    """Return whether so many of some segments are copies that packets were captured twice."""
    return sure > _MANY * segments or (sure + likely > _MANY_LIKELY * segments and likely >= _FEWEST_LIKELY)


class Copies:
    """Counts the segments of a connection that equal an earlier one in all that TCP and IPv4 number.

    A retransmission has another identification or a later timestamp. Where a stack sends neither, no connection that
    works sends half of its segments again.

    Examples
    --------
    >>> from tcpdelay.capture.pcap.segments import SEGMENT
    >>> data = np.zeros(6, SEGMENT)
    >>> data["time"], data["ip_id"] = [0, 2, 10, 12, 20, 22], [1, 1, 2, 2, 3, 3]
    >>> copies = Copies()
    >>> copies.add(data, np.zeros(0, SEGMENT))
    >>> copies.many, copies.count, copies.lags
    (True, 3, (2, 0))
    """

    def __init__(self) -> None:
        self._data, self._acks = _Direction(), _Direction()

    def add(self, data: NDArray[np.void], acks: NDArray[np.void]) -> None:
        """Count in some more rows of `segments.SEGMENT`, by ascending time."""
        self._data.add(data, data["stamped"] | (data["ip_id"] != 0))
        # Acknowledgements are said again at once, within a tick of the timestamps, and with neither for ever.
        told_apart = acks[acks["stamped"] | (acks["ip_id"] != 0)]
        self._acks.add(told_apart, told_apart["ip_id"] != 0)

    @property
    def many(self) -> bool:
        """Whether they are so many that packets were captured twice."""
        return self._data.many or self._acks.many

    @property
    def count(self) -> int:
        """How many there are, of both directions."""
        return sum(each.sure + each.likely for each in (self._data, self._acks))

    @property
    def lags(self) -> tuple[int, int]:
        """How much later nine in ten of the last copies came, at most, of data and of acknowledgements [ns]."""
        return self._data.lag, self._acks.lag


class FirstOnly:
    """Tells the first copies from those that follow within a time.

    Parameters
    ----------
    within : int
        The time [ns].

    Examples
    --------
    >>> segment = Segment(b"a", b"b", 1, 1, 16, 64, 100, ip_id=7, options=b"", payload=54)
    >>> first = FirstOnly(within=1000)
    >>> [first(Packet(number, time, 1, 154, b""), segment) for number, time in enumerate((0, 1000, 2001))]
    [True, False, True]
    """

    def __init__(self, within: int) -> None:
        self._within = within
        self._seen: OrderedDict[tuple[object, ...], int] = OrderedDict()

    def __call__(self, packet: Packet, segment: Segment) -> bool:
        """Return whether a packet is the first of its kind."""
        seen, oldest = self._seen, packet.time - self._within
        while seen and next(iter(seen.values())) < oldest:
            seen.popitem(last=False)
        # Where the payload begins depends on the link layer.
        key = segment[:-1]
        if key in seen:
            return False
        seen[key] = packet.time
        return True
