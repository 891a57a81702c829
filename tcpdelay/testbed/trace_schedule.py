"""When the packets of a queue leave a link whose rate varies, in plain Python: the guest has no compiled kernels."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

NANOSECONDS = 1_000_000_000
OPPORTUNITY = 1500
"""Bytes that an opportunity carries."""


@dataclass(frozen=True)
class Schedule:
    """What a link carries over time; it repeats.

    Attributes
    ----------
    times : list of int
        Times of the opportunities, or times from which on the rates hold [ns], ascending.
    period : int
        Time after which the schedule repeats [ns].
    rates : list of int
        Rates [bit/s]; if it is empty, each time is an opportunity to send 1500 bytes.
    delays : list of int
        Further delays after the link while each rate holds [ns]; empty without rates.
    """

    times: list[int]
    period: int
    rates: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)


class Departures:
    """The departures of packets that come in the order of time.

    Parameters
    ----------
    schedule : Schedule
        What the link carries. The rules are those of `tcpdelay.network.link_trace`.

    Examples
    --------
    Two packets of 800 bytes share the opportunity at 1 ms, and the rest of the second one leaves at 3 ms.

    >>> link = Departures(Schedule([1_000_000, 3_000_000], 3_000_000))
    >>> link.after(0, 800), link.after(0, 800)
    ((1000000, 1000000), (3000000, 3000000))
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._place = self._departed = self._arrived = 0
        self._left = OPPORTUNITY

    def after(self, time: int, size: int) -> tuple[int, int]:
        """Return when a packet of `size` bytes that comes at a time [ns] has left the link, and when it has arrived.

        Both differ by the delay after the link. No packet overtakes another one when this delay falls.
        """
        departed, delay = (self._by_rates if self._schedule.rates else self._by_opportunities)(time, size)
        self._departed = departed
        self._arrived = max(self._arrived, departed + delay)
        return departed, self._arrived

    def _by_opportunities(self, time: int, size: int) -> tuple[int, int]:
        """Return the time of the opportunity that carries the last byte; what an empty queue leaves is lost."""
        times, period = self._schedule.times, self._schedule.period
        cycle, offset = divmod(time, period)
        later = cycle * len(times) + bisect_right(times, offset)
        if later > self._place:
            self._place, self._left = later, OPPORTUNITY
        while size > self._left:
            size -= self._left
            self._place, self._left = self._place + 1, OPPORTUNITY
        self._left -= size
        cycle, place = divmod(self._place, len(times))
        return cycle * period + times[place], 0

    def _by_rates(self, time: int, size: int) -> tuple[int, int]:
        """Return when all bits are sent at the rates of the schedule, and the delay then."""
        times, rates, period = self._schedule.times, self._schedule.rates, self._schedule.period
        now, bits = max(time, self._departed), 8.0 * size
        while True:
            cycle, offset = divmod(now, period)
            place = bisect_right(times, offset) - 1
            end = cycle * period + (times[place + 1] if place + 1 < len(times) else period)
            carried = rates[place] * ((end - now) / NANOSECONDS)
            if carried >= bits:
                return min(now + round(bits / rates[place] * NANOSECONDS), end), self._schedule.delays[place]
            bits -= carried
            now = end
