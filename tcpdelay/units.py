"""Quantities with units: parsing as on the command line, and formatting as in a report.

Inside the package, times are in seconds, losses are fractions, rates are in bit/s and sizes in bytes. Formatting uses
quantiphy, which chooses the prefix and also rounds correctly across a change of prefix. Parsing does not use quantiphy:
it would read "0,1s" as one second, "2min" as two milli-inches and "1mbit/s" as one bit in 1000 seconds. With a unit
table of our own, an error message can also say which units are allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from quantiphy import Quantity

MAX_LENGTH = 64
SIZE_ROUNDING = 1e-9
"""Relative rounding error up to which a size counts as a whole number of bytes."""
DIGITS, MOST_DIGITS = 3, 9
"""Significant digits of a printed value: the usual number, and the largest number to make two values look different."""

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]")

# Keys in lower case: nobody means megaseconds by "100MS".
_TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "usecs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
}
# "m" is mega: nobody sends thousandths of a bit.
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}

_TIME_EXAMPLE = "write 100ms or 0.1s"
_FRACTION_EXAMPLE = "write 2% or 0.02"
_RATE_EXAMPLE = "write 64kbit/s or 2.5Mbit/s"
_SIZE_EXAMPLE = "write 174, 1448B or 1.4kB"


class _Rendered(Quantity):
    """A quantity with the micro sign."""

    map_sf = {"u": "\u00b5"}  # noqa: RUF012


def _split(text: str, name: str, kind: str, example: str) -> tuple[float, str, str]:
    """Return the number, the unit and the quoted text of one quantity; raise ValueError if there is no number."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{name}: {len(text)} characters are too many for a {kind}; {example}")
    stripped = text.strip()
    shown = repr(stripped)
    if not stripped:
        raise ValueError(f"{name}: empty, but a {kind} is needed; {example}")
    if _DECIMAL_COMMA.match(stripped):
        raise ValueError(f"{name}: {shown} has a comma; use a decimal point, {example}")
    match = NUMBER.match(stripped)
    if match is None:
        raise ValueError(f"{name}: {shown} is no {kind}; {example}")
    number = float(match.group())
    if math.isinf(number):
        raise ValueError(f"{name}: {shown} is too large for a {kind}; {example}")
    if number < 0:
        raise ValueError(f"{name}: {shown} is negative, but a {kind} cannot be; {example}")
    # -0 has a sign.
    return abs(number), stripped[match.end() :].strip(), shown


def _positive(value: float, name: str, shown: str, kind: str, allow_zero: bool) -> float:
    """Return the value if it is finite and, without `allow_zero`, above 0; raise ValueError if not."""
    if math.isinf(value):
        raise ValueError(f"{name}: {shown} is too large for a {kind}")
    if value == 0 and not allow_zero:
        raise ValueError(f"{name}: {shown} is 0, but the {kind} must be above 0")
    return value


def parse_time(text: str, name: str, *, allow_zero: bool = False) -> float:
    """Read a time with its unit."""
    number, unit, shown = _split(text, name, "time", _TIME_EXAMPLE)
    if not unit:
        first, second = ("ms", "s") if number >= 1 else ("s", "ms")
        raise ValueError(f"{name}: {shown} has no unit; write {number:g}{first} or {number:g}{second}")
    if unit.lower() == "m":
        raise ValueError(f"{name}: in {shown} the unit {unit!r} could be milliseconds or minutes; write ms or min")
    if unit.lower() not in _TIME_UNITS:
        raise ValueError(f"{name}: unknown time unit {unit!r}; use s, ms, us or min")
    scale = _TIME_UNITS[unit.lower()]
    # Dividing by a whole number gives the float nearest to the decimal number in the text: 7 ms is 0.007.
    value = number / round(1 / scale) if scale < 1 else number * scale
    return _positive(value, name, shown, "time", allow_zero)


def parse_fraction(text: str, name: str, *, allow_zero: bool = True, allow_one: bool = False) -> float:
    """Read a fraction up to 1, written as a decimal number or as a percentage."""
    number, unit, shown = _split(text, name, "fraction", _FRACTION_EXAMPLE)
    if unit not in ("", "%"):
        raise ValueError(f"{name}: unknown unit {unit!r} of a fraction; {_FRACTION_EXAMPLE}")
    if unit == "" and number >= 1:
        if number >= 100:
            raise ValueError(f"{name}: {number:g} is too large: write a percentage below 100%, or a fraction below 1")
        raise ValueError(
            f"{name}: {number:g} is neither a fraction below 1 nor a percentage; write {number:g}% or {number / 100:g}"
        )
    # Decimal arithmetic gives the float nearest to the decimal number: 99.9 % is 0.999.
    value = float(Decimal(repr(number)) / 100) if unit else number
    if value > 1 or (value == 1 and not allow_one):
        raise ValueError(f"{name}: {shown} is not below 100%; {_FRACTION_EXAMPLE}")
    return _positive(value, name, shown, "fraction", allow_zero)


def parse_rate(text: str, name: str, *, allow_zero: bool = False) -> float:
    """Read a bit rate, in bits or bytes per second."""
    number, unit, shown = _split(text, name, "rate", _RATE_EXAMPLE)
    if not unit:
        raise ValueError(f"{name}: {shown} has no unit; {_RATE_EXAMPLE}")
    scale = _rate_scale(unit)
    if scale is None:
        raise ValueError(f"{name}: unknown rate unit {unit!r}; use bit/s, kbit/s, Mbit/s, kB/s or MB/s")
    return _positive(number * scale, name, shown, "rate", allow_zero)


def _rate_scale(unit: str) -> float | None:
    """Return the bits per second in one `unit`, or None if there is no such unit."""
    match = re.fullmatch(r"([kKmMgG]i?)?(.+)", unit)
    if match is None:
        return None
    prefix, base = match.groups(default="")
    if base in ("b/s", "bps") or base.lower() in ("bit/s", "bits/s", "bitps"):
        return _PREFIXES[prefix.lower()]
    if base in ("B/s", "Bps") or base.lower() in ("byte/s", "bytes/s"):
        return 8 * _PREFIXES[prefix.lower()]
    return None


def parse_size(text: str, name: str, *, allow_zero: bool = False) -> int:
    """Read a size in bytes."""
    number, unit, shown = _split(text, name, "size", _SIZE_EXAMPLE)
    match = re.fullmatch(r"(?:([kKmMgG]i?)?(?:B|[bB]ytes?))?", unit)
    if match is None:
        raise ValueError(f"{name}: unknown size unit {unit!r}; use B, kB, MB, KiB or MiB")
    size = _positive(number * _PREFIXES[(match.group(1) or "").lower()], name, shown, "size", allow_zero)
    # In floating point, 1.001 kB is 1000.9999999999999 bytes.
    if abs(size - round(size)) > SIZE_ROUNDING * max(size, 1.0):
        raise ValueError(f"{name}: {shown} is {size:g} bytes, but a size is a whole number of bytes")
    return round(size)


def format_time(seconds: float, digits: int = DIGITS) -> str:
    """Return a time [s] with a suitable unit and `digits` significant digits; "never" if it is infinite."""
    if seconds == math.inf:
        return "never"
    if abs(seconds) >= 999.5:
        decimals = max(digits - len(f"{abs(seconds):.0f}"), 0)
        return f"{seconds:.{decimals}f} s" if abs(seconds) < 1e6 else f"{seconds:.{digits - 1}e} s"
    return str(_Rendered(seconds, "s").render(prec=digits - 1))


NEVER_SETTLES = "never settles"
"""Text for a delay that grows for as long as the flow sends."""
NOT_SETTLED = "not settled"
"""Text for a figure that depends on the length of the simulation."""
NOT_CARRIED = f"{NEVER_SETTLES}: TCP cannot carry this flow"
TOO_FEW = "too few messages"
"""Text for a quantile that the number of simulated or measured messages does not show."""


def format_known_time(seconds: float) -> str:
    """Return a time [s] with its unit; "too few messages" if it is NaN, which means that it is not known."""
    return TOO_FEW if math.isnan(seconds) else format_time(seconds)


def format_delay(seconds: float) -> str:
    """Return a delay [s] with its unit; "never settles" if it is infinite."""
    return NEVER_SETTLES if math.isinf(seconds) else format_time(seconds)


def quantile_name(quantile: float) -> str:
    """Return the usual short name of a quantile.

    >>> quantile_name(0.95), quantile_name(0.999)
    ('p95', 'p99.9')
    """
    return f"p{100 * quantile:.6g}"


def format_duration(seconds: float) -> str:
    """Return a time in a unit for planning: s, min, h or d.

    >>> format_duration(12.3), format_duration(600), format_duration(7 * 3600), format_duration(7 * 86400)
    ('13 s', '10 min', '7.0 h', '7.0 d')
    """
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} d"


def format_fraction(fraction: float, digits: int = DIGITS) -> str:
    """Return a fraction as a percentage with `digits` significant digits, 3 by default.

    A fraction between 0 and 1 is never rounded to 0 or 100 %. Large percentages have no exponent.
    """
    if 0 < fraction < 1e-5:
        return "< 0.001 %"
    if 1 - 0.5 * 10**-digits <= fraction < 1:
        return f"> {100 - 100 * 10**-digits:.{digits}g} %"
    rounded = f"{100 * fraction:.{digits}g}"
    return f"{float(rounded):.0f} %" if "e+" in rounded else f"{rounded} %"


def format_fraction_range(fractions: tuple[float, float]) -> str:
    """Return the range between two fractions, or one fraction if they look the same.

    >>> format_fraction_range((0.005, 0.025)), format_fraction_range((0.005, 0.005))
    ('0.5 % to 2.5 %', '0.5 %')
    """
    low, high = map(format_fraction, fractions)
    return low if low == high else f"{low} to {high}"


def format_rate(rate: float, digits: int = DIGITS) -> str:
    """Return a rate [bit/s] with its unit and `digits` significant digits; "unlimited" if it is infinite."""
    if rate == math.inf:
        return "unlimited"
    return str(_Rendered(rate, "bit/s").render(prec=digits - 1))


def format_size(size: float, digits: int = DIGITS) -> str:
    """Return a size [bytes] with its unit and `digits` significant digits, 3 by default.

    >>> format_size(960), format_size(94_080), format_size(0)
    ('960 B', '94.1 kB', '0 B')
    """
    return str(_Rendered(size, "B").render(prec=digits - 1))


def told_apart(written: Callable[[float, int], str], *values: float | None, error: float = 0.0) -> list[str]:
    """Return formatted values with enough digits that different values look different."""
    known = MOST_DIGITS if error == 0 else math.ceil(-math.log10(error))
    for digits in (*range(DIGITS, min(known, MOST_DIGITS) + 1), DIGITS):
        texts = ["" if value is None else written(value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def printable(line: str) -> str:
    """Escape the characters that would break the line or control the terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
