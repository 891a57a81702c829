"""A link whose rate varies: a trace of delivery opportunities, or of rates and delays, and its departures."""

from __future__ import annotations

import csv
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tcpdelay.compiling.compilation import kernel
from tcpdelay.declare import InvalidValueError, is_number
from tcpdelay.sim.network.waiting import Link

# What a link carries over time: a trace of delivery opportunities, or of rates and delays, with outages.
#
# References:
# [1] Netravali, Sivaraman, Das, Goyal, Winstein, Mickens, Balakrishnan, "Mahimahi: Accurate Record-and-Replay for
#    HTTP", USENIX ATC 2015. The format of traces of opportunities, and the rules by which packets use these, are those
#    of its program `mm-link` (link_queue.cc, `LinkQueue::rationalize`).
# [2] Winstein, Sivaraman, Balakrishnan, "Stochastic Forecasts Achieve High Throughput and Low Delay over Cellular
#    Networks", NSDI 2013: such traces of cellular links.

OPPORTUNITY = 1500
"""Bytes that one opportunity carries: mahimahi's 1504 bytes less the 4 bytes that its device adds to a packet."""
FIXED, OPPORTUNITIES, RATES = range(3)
"""Kinds of links: of one rate, with a trace of opportunities, with a trace of rates."""
LONGEST_OUTAGE = 600.0
"""Longest time in which a link carries nothing [s]."""
MOST_ENTRIES = 20_000_000
LONGEST_TRACE = 1e6
"""Longest trace [s]."""
FASTEST = 1e12
"""Highest rate [bit/s]."""
LONGEST_DELAY = 60.0
NANOSECONDS = 1_000_000_000
_MILLISECOND = 1_000_000
COLUMNS = ("time", "rate", "delay")


@dataclass(frozen=True, eq=False)
class LinkTrace:
    """What a link carries over time; the trace repeats."""

    # Times of the opportunities, or times from which on the rates hold [ns], ascending from 0 or more
    times: NDArray[np.int64]
    period: int  # Time after which the trace repeats [ns]
    # Rates [bit/s]; if it is empty, each time is an opportunity to send 1500 bytes
    rates: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    # Further delays after the link while each rate holds [ns]; empty without rates
    delays: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of_opportunities(cls, milliseconds: Sequence[int] | NDArray[np.int64]) -> LinkTrace:
        """Return a trace of opportunities to send 1500 bytes."""
        times = np.asarray(milliseconds, np.int64)
        fault = _fault_of_opportunities(times)
        if fault is not None:
            raise InvalidValueError("milliseconds", int(times[fault[0]]) if times.size else None, fault[1])
        return cls(times * _MILLISECOND, int(times[-1]) * _MILLISECOND)

    @classmethod
    def of_rates(
        cls, times: Sequence[float], rates: Sequence[float], delays: Sequence[float] | None = None
    ) -> LinkTrace:
        """Return a trace of rates over time."""
        rows = list(zip(times, rates, delays or [0.0] * len(times), strict=True))
        fault = _fault_of_rates(rows)
        if fault is not None:
            raise InvalidValueError(fault[1], rows[fault[0]][COLUMNS.index(fault[1])] if rows else None, fault[2])
        begin, held, later = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        end = begin[-1] + (begin[-1] - begin[-2] if len(begin) > 1 else LONGEST_TRACE)
        return cls(
            np.round(begin * NANOSECONDS).astype(np.int64),
            round(end * NANOSECONDS),
            np.round(held).astype(np.int64),
            np.round(later * NANOSECONDS).astype(np.int64),
        )

    def with_outages(self, every: float, duration: float) -> LinkTrace:
        """Return the trace with periodic outages, such as handovers: nothing leaves at the beginning of each period.

        The periods begin anew whenever the trace repeats; a trace shorter than a period is first repeated until it is
        as long.
        """
        if not is_number(duration) or not 0 < duration <= LONGEST_OUTAGE:
            raise InvalidValueError("duration", duration, f"lie between 0 and {LONGEST_OUTAGE:g} s")
        if not is_number(every) or not duration < every <= LONGEST_TRACE:
            raise InvalidValueError("every", every, f"lie between the duration of {duration:g} s and 1e+06 s")
        step, silent = round(every * NANOSECONDS), round(duration * NANOSECONDS)
        if (repeats := -(-step // self.period)) > 1:
            return self._repeated(repeats, every).with_outages(every, duration)
        if not self.rates.size:
            kept = self.times[self.times % step >= silent]
            if kept.size == 0:
                raise InvalidValueError("duration", duration, "leave some opportunities of the trace")
            return LinkTrace(kept, self.period)
        # One rate for ever repeats with the outages.
        period = step if len(self.times) == 1 else self.period
        outages = np.arange(0, period, step)
        times = np.unique(np.concatenate([self.times, outages, np.minimum(outages + silent, period - 1)]))
        place = np.searchsorted(self.times, times, side="right") - 1
        rates = np.where(times % step < silent, 0, self.rates[place])
        if not rates.any():
            raise InvalidValueError("duration", duration, "leave some rate of the trace")
        return LinkTrace(times, period, rates, self.delays[place])

    def _repeated(self, repeats: int, every: float) -> LinkTrace:
        """Return the trace several times in a row, so that it is as long as the time between two outages."""
        if repeats * len(self.times) > MOST_ENTRIES:
            raise InvalidValueError("every", every, f"span at most {MOST_ENTRIES} entries of the trace")
        times = np.add.outer(np.arange(repeats) * self.period, self.times).ravel()
        return LinkTrace(times, repeats * self.period, np.tile(self.rates, repeats), np.tile(self.delays, repeats))

    @property
    def duration(self) -> float:
        """Time after which the trace repeats [s]."""
        return self.period / NANOSECONDS

    @property
    def mean_rate(self) -> float:
        """Mean rate of the link [bit/s]."""
        if not self.rates.size:
            return 8.0 * OPPORTUNITY * len(self.times) / self.duration
        held = np.diff(np.append(self.times, self.period + self.times[0]))
        return float(self.rates @ (held / self.period))

    def prepare(self, link: Link) -> None:
        """Set the fields of a link of type `LINK`; it has the addresses of arrays of this trace, which must exist."""
        link.trace_kind = RATES if self.rates.size else OPPORTUNITIES
        link.trace_times, link.trace_rates, link.trace_delays = (
            array.ctypes.data for array in (self.times, self.rates, self.delays)
        )
        link.trace_length, link.trace_period, link.opportunity_left = len(self.times), self.period, OPPORTUNITY


def _fault_of_opportunities(times: NDArray[np.int64]) -> tuple[int, str] | None:
    """Return the number of the first entry at fault, and what must be; None if there is no fault."""
    if times.size == 0:
        return 0, "have one time or more"
    if times.size > MOST_ENTRIES:
        return MOST_ENTRIES, f"have at most {MOST_ENTRIES} times"
    if times[0] < 0:
        return 0, "be 0 ms or more"
    gaps = np.diff(times, prepend=0)
    if (descending := np.flatnonzero(gaps < 0)).size:
        return int(descending[0]), "not be before the time ahead of it"
    if times[-1] == 0:
        return times.size - 1, "end after 0 ms: a trace lasts up to its last time"
    if times[-1] > 1e3 * LONGEST_TRACE:
        return times.size - 1, f"be at most {1e3 * LONGEST_TRACE:g} ms"
    if (endless := np.flatnonzero(gaps > 1e3 * LONGEST_OUTAGE)).size:
        return int(endless[0]), f"come within {LONGEST_OUTAGE:g} s of the time ahead of it: a longer outage is endless"
    return None


def _fault_of_rates(rows: Sequence[Sequence[float]]) -> tuple[int, str, str] | None:
    """Return the number of the first row at fault, its column, and what must be; None if there is no fault."""
    if not rows:
        return 0, "time", "have one row or more"
    for number, (time, rate, delay) in enumerate(rows):
        if number == 0 and time != 0:
            return number, "time", "be 0 in the first row"
        if number and not rows[number - 1][0] < time <= LONGEST_TRACE:
            return number, "time", f"be after that of the row ahead of it, and at most {LONGEST_TRACE:g} s"
        if not 0 <= rate <= FASTEST:
            return number, "rate", f"lie between 0 and {FASTEST:g} bit/s"
        if not 0 <= delay <= LONGEST_DELAY:
            return number, "delay", f"lie between 0 and {LONGEST_DELAY:g} s"
    if not any(round(rate) for _, rate, _ in rows):
        return 0, "rate", "be 1 bit/s or more in one row: the link carries nothing"
    # An outage may begin at the end of the trace and go on when it repeats.
    held, silent = np.append(np.diff([time for time, _, _ in rows]), 0.0), 0.0
    held[-1] = held[-2] if len(rows) > 1 else 0.0
    for number in (*range(len(rows)), *range(len(rows))):
        silent = 0.0 if round(rows[number][1]) else silent + held[number]
        if silent > LONGEST_OUTAGE:
            return number, "rate", f"be above 0 at least once in {LONGEST_OUTAGE:g} s: a longer outage is endless"
    return None


def read_link_trace(file: Path) -> LinkTrace:
    """Read a trace: opportunities in the format of mahimahi, or a CSV of rates."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file}: is no text") from None
    return _read_rates(file, text) if Path(file).suffix.lower() == ".csv" else _read_opportunities(file, text)


def _read_opportunities(file: Path, text: str) -> LinkTrace:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        if not (line.isascii() and line.isdecimal() and len(line) < 12):
            raise ValueError(f"{file}, line {number}: must be a whole number of milliseconds, got {line[:40]!r}")
    times = np.array([int(line) for _, line in lines], np.int64)
    fault = _fault_of_opportunities(times)
    if fault is not None:
        if not lines:
            raise ValueError(f"{file}: is empty")
        raise ValueError(f"{file}, line {lines[fault[0]][0]}: must {fault[1]}, got {lines[fault[0]][1]}")
    return LinkTrace.of_opportunities(times)


def _read_rates(file: Path, text: str) -> LinkTrace:
    reader = csv.reader(text.splitlines())
    names = [name.strip() for name in next(reader, [])]
    if not {"time", "rate"} <= set(names) <= set(COLUMNS) or len(set(names)) < len(names):
        raise ValueError(f"{file}, line 1: must name the columns time, rate and optionally delay, got {names}")
    rows: list[tuple[float, ...]] = []
    numbers = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        try:
            entry = dict(zip(names, map(float, cells), strict=True))
        except ValueError:
            got = ",".join(cells)[:60]
            raise ValueError(f"{file}, line {reader.line_num}: must be {len(names)} numbers, got {got!r}") from None
        rows.append(tuple(entry.get(name, 0.0) for name in COLUMNS))
        numbers.append(reader.line_num)
    fault = _fault_of_rates(rows)
    if fault is not None:
        if not rows:
            raise ValueError(f"{file}: has no row")
        value = rows[fault[0]][COLUMNS.index(fault[1])]
        raise ValueError(f"{file}, line {numbers[fault[0]]}: {fault[1]} must {fault[2]}, got {value:g}")
    times, rates, delays = zip(*rows, strict=True)
    return LinkTrace.of_rates(times, rates, delays)


def varying_link(
    rate: float | None, file: Path | None, outage_every: float | None, outage: float | None
) -> LinkTrace | None:
    """Return the trace of a link by a file, or by a rate with outages; None for a link that never varies."""
    if rate is not None and file is not None:
        raise InvalidValueError("link_trace", str(file), "be absent with a rate")
    if (outage_every is None) != (outage is None):
        if outage is None:
            raise InvalidValueError("outage_every", outage_every, "go with the duration of an outage")
        raise InvalidValueError("outage", outage, "go with the time between two outages")
    trace = None if file is None else read_link_trace(file)
    if outage_every is None or outage is None:
        return trace
    if trace is None:
        if rate is None:
            raise InvalidValueError("outage", outage, "go with a rate or a trace of the link")
        trace = LinkTrace.of_rates([0.0], [rate])
    try:
        return trace.with_outages(outage_every, outage)
    except InvalidValueError as error:
        name = {"every": "outage_every", "duration": "outage"}[error.name]
        raise InvalidValueError(name, error.value, error.allowed) from None


# The departures of packets from a link with a trace; `link_trace` has the rules and their sources.


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
def _entry_time(link: Link, place: int) -> int:
    """Return the time of an entry of the trace [ns]; the trace repeats, so places go on beyond its length."""
    return int((place // link.trace_length) * link.trace_period + _load(link.trace_times, place % link.trace_length))


@kernel()
def trace_departure(link: Link, time: int, size: int) -> int:
    """Return when the next packet has left a link with a trace; `link.added_delay` is its further delay [ns]."""
    exit_before = link.last_departure + link.added_delay
    if link.trace_kind == OPPORTUNITIES:
        departure = _departure_by_opportunities(link, time, size)
    else:
        departure = _departure_by_rates(link, time, size)
    # No packet overtakes another one when the delay falls.
    link.added_delay = max(link.added_delay, exit_before - departure)
    return int(departure)


@kernel()
def _departure_by_opportunities(link: Link, time: int, size: int) -> int:
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
def _departure_by_rates(link: Link, time: int, size: int) -> int:
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
