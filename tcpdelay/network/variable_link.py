"""The departures of packets from a link with a trace; `link_trace` has the rules and their sources."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, types
from numba.extending import intrinsic

from tcpdelay.models.compilation import kernel
from tcpdelay.network.link_trace import NANOSECONDS, OPPORTUNITIES, OPPORTUNITY

TRACE_INTEGERS = (
    "trace_kind trace_times trace_rates trace_delays trace_length trace_period trace_place opportunity_left added_delay"
)
"""Fields of a link: the kind, the addresses of the arrays of the trace, and the place in the trace. Times are [ns]."""


def _type_load(typing_context: Any, address: Any, place: Any) -> Any:
    """Load an integer of 64 bits from an array at an address."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(array, [values[1]]))

    return types.int64(types.int64, types.int64), generate


def _load_in_python(address: int, place: int) -> int:
    """Load the integer from Python, where NUMBA_DISABLE_JIT=1 is set."""
    return ctypes.c_int64.from_address(int(address) + 8 * int(place)).value


_load: Any = _load_in_python if config.DISABLE_JIT else intrinsic(_type_load)  # type: ignore[attr-defined]


@kernel()
def _entry_time(link: Any, place: int) -> int:
    """Return the time of an entry of the trace [ns]; the trace repeats, so places go on beyond its length."""
    return int((place // link.trace_length) * link.trace_period + _load(link.trace_times, place % link.trace_length))


@kernel()
def trace_departure(link: Any, time: int, size: int) -> int:
    """Return when a packet has left a link with a trace, and keep the place in the trace.

    Packets must come in the order of time. The path's further delay at the departure is then `link.added_delay` [ns].

    Parameters
    ----------
    link : record
        The link.
    time : int
        Time at which the packet arrives at the queue [ns].
    size : int
        Bytes on the link, headers included.

    Returns
    -------
    int
        The time of departure [ns].
    """
    exit_before = link.last_departure + link.added_delay
    if link.trace_kind == OPPORTUNITIES:
        departure = _departure_by_opportunities(link, time, size)
    else:
        departure = _departure_by_rates(link, time, size)
    # No packet overtakes another one when the delay falls.
    link.added_delay = max(link.added_delay, exit_before - departure)
    return int(departure)


@kernel()
def _departure_by_opportunities(link: Any, time: int, size: int) -> int:
    """Return the time of the opportunity that carries the last byte of a packet [ns].

    An opportunity is lost, or what is left of it, if the queue is empty when it comes.
    """
    # Skip whole repetitions, then the opportunities up to the arrival.
    first = (time // link.trace_period - 1) * link.trace_length
    if first > link.trace_place:
        link.trace_place, link.opportunity_left = first, OPPORTUNITY
    while _entry_time(link, link.trace_place) <= time:
        link.trace_place, link.opportunity_left = link.trace_place + 1, OPPORTUNITY
    # Use opportunities until all bytes are sent.
    remaining = size
    while remaining > link.opportunity_left:
        remaining -= link.opportunity_left
        link.trace_place, link.opportunity_left = link.trace_place + 1, OPPORTUNITY
    link.opportunity_left -= remaining
    return int(_entry_time(link, link.trace_place))


@kernel()
def _departure_by_rates(link: Any, time: int, size: int) -> int:
    """Return when the link has sent all bits of a packet at the rates of the trace [ns]."""
    now = max(time, link.last_departure)
    # Find the entry in force; the entry that follows ends it.
    first = (now // link.trace_period - 1) * link.trace_length
    link.trace_place = max(link.trace_place, first)
    while _entry_time(link, link.trace_place + 1) <= now:
        link.trace_place += 1
    # Send at the rate of each entry until all bits are sent.
    bits = 8.0 * size
    while True:
        rate = _load(link.trace_rates, link.trace_place % link.trace_length)
        end = _entry_time(link, link.trace_place + 1)
        if rate * ((end - now) / NANOSECONDS) >= bits:
            link.added_delay = _load(link.trace_delays, link.trace_place % link.trace_length)
            return int(min(now + round(bits / rate * NANOSECONDS), end))
        bits -= rate * ((end - now) / NANOSECONDS)
        now = end
        link.trace_place += 1
