"""When each packet of a measured flow was written and read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

NOT_READ = -1


class PacketLog:
    """Write and read times of the packets of one flow, in the order of writing [ns, monotonic clock].

    Attributes
    ----------
    written, read : array of int
        The times; `NOT_READ` where a packet has not been read.
    """

    def __init__(self) -> None:
        self.written = array("q")
        self.read = array("q")
        self.outstanding = 0

    def write(self, when: int) -> int:
        """Note that a packet was written, with the time before the write; returns its number."""
        self.written.append(when)
        self.read.append(NOT_READ)
        self.outstanding += 1
        return len(self.written) - 1

    def arrive(self, number: int, when: int) -> None:
        """Note that a packet was read; a second copy counts for nothing."""
        if self.read[number] == NOT_READ:
            self.read[number] = when
            self.outstanding -= 1


class StreamPackets:
    """The packets of equal size in one byte stream, found again by counting bytes.

    Parameters
    ----------
    log : PacketLog
        Where to note the arrivals.
    packet_size : int
        Bytes per packet, above 0.
    """

    def __init__(self, log: PacketLog, packet_size: int) -> None:
        self._log = log
        self._packet_size = packet_size
        self._numbers = array("q")
        self._arrived = 0

    def append(self, number: int) -> None:
        """Note that the packet of that number is the next one in the stream."""
        self._numbers.append(number)

    def on_data(self, received: int, now: int) -> None:
        """Note the packets that are complete once `received` bytes have been read by `now` [ns]."""
        complete = received // self._packet_size
        while self._arrived < complete:
            self._log.arrive(self._numbers[self._arrived], now)
            self._arrived += 1


def split_evenly(size: int, pieces: int) -> Sequence[int]:
    """Return `pieces` sizes that differ by at most one byte and add up to `size`.

    Examples
    --------
    >>> split_evenly(10, 4)
    [3, 3, 2, 2]
    """
    quotient, rest = divmod(size, pieces)
    return [quotient + 1] * rest + [quotient] * (pieces - rest)
