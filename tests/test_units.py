import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpdelay.units import (
    format_fraction,
    format_rate,
    format_time,
    parse_fraction,
    parse_rate,
    parse_size,
    parse_time,
    told_apart,
)

PARSERS = [parse_time, parse_fraction, parse_rate, parse_size]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("7ms", 0.007),
        ("0.1 s", 0.1),
        ("20us", 20e-6),
        ("20µs", 20e-6),
        ("20 \u03bcs", 20e-6),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1e-1s", 0.1),
        ("+3s", 3.0),
        ("2min", 120.0),
        ("5 minutes", 300.0),
        ("100MS", 0.1),
        ("  40 ms\n", 0.04),
    ],
)
def test_time_is_read_in_seconds(text, seconds):
    assert parse_time(text, "--rtt") == seconds


@pytest.mark.parametrize(
    ("text", "fraction"), [("2%", 0.02), ("0.02", 0.02), ("0.5 %", 0.005), ("0", 0.0), ("95%", 0.95)]
)
def test_fraction_is_read_plain_or_in_percent(text, fraction):
    assert parse_fraction(text, "--loss") == fraction


@pytest.mark.parametrize(
    ("text", "bits_per_second"),
    [
        ("64kbit/s", 64e3),
        ("64Kbit/s", 64e3),
        ("64 kbps", 64e3),
        ("64kb/s", 64e3),
        ("2.5Mbit/s", 2.5e6),
        ("2.5mbit/s", 2.5e6),
        ("1Mbps", 1e6),
        ("1 Gbit/s", 1e9),
        ("300 bit/s", 300.0),
        ("300 bits/s", 300.0),
        ("8 kB/s", 64e3),
        ("1 MBps", 8e6),
        ("10 bytes/s", 80.0),
        ("1Kibit/s", 1024.0),
    ],
)
def test_rate_is_read_in_bits_per_second(text, bits_per_second):
    assert parse_rate(text, "--bitrate") == bits_per_second


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("174", 174),
        ("174B", 174),
        ("1448 B", 1448),
        ("1448 bytes", 1448),
        ("1.4kB", 1400),
        ("1.001kB", 1001),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("2MB", 2_000_000),
        ("1e3", 1000),
    ],
)
def test_size_is_read_in_whole_bytes(text, size):
    value = parse_size(text, "--packet-size")
    assert value == size
    assert isinstance(value, int)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_time, "100", "'100' has no unit; write 100ms or 100s"),
        (parse_time, "20", "'20' has no unit; write 20ms or 20s"),
        (parse_time, "0.02", "'0.02' has no unit; write 0.02s or 0.02ms"),
        (parse_time, "3 parsec", "unknown time unit 'parsec'; use s, ms, us or min"),
        (parse_time, "2m", "in '2m' the unit 'm' could be milliseconds or minutes; write ms or min"),
        (parse_time, "2M", "in '2M' the unit 'M' could be milliseconds or minutes; write ms or min"),
        (parse_time, "0,1s", "'0,1s' has a comma; use a decimal point, write 100ms or 0.1s"),
        (parse_time, "-5ms", "'-5ms' is negative, but a time cannot be; write 100ms or 0.1s"),
        (parse_time, "0ms", "'0ms' is 0, but the time must be above 0"),
        (parse_time, "1e-400s", "'1e-400s' is 0, but the time must be above 0"),
        (parse_time, "1e400s", "'1e400s' is too large for a time; write 100ms or 0.1s"),
        (parse_time, "1e308min", "'1e308min' is too large for a time"),
        (parse_time, "nan", "'nan' is no time; write 100ms or 0.1s"),
        (parse_time, "inf", "'inf' is no time; write 100ms or 0.1s"),
        (parse_time, "ms", "'ms' is no time; write 100ms or 0.1s"),
        (parse_time, "5 m\ns", r"unknown time unit 'm\ns'; use s, ms, us or min"),
        (parse_time, " ", "empty, but a time is needed; write 100ms or 0.1s"),
        (parse_time, "1" * 500, "500 characters are too many for a time; write 100ms or 0.1s"),
        (parse_fraction, "2", "2 is neither a fraction below 1 nor a percentage; write 2% or 0.02"),
        (parse_fraction, "1", "1 is neither a fraction below 1 nor a percentage; write 1% or 0.01"),
        (parse_fraction, "200", "200 is too large: write a percentage below 100%, or a fraction below 1"),
        (parse_fraction, "100%", "'100%' is not below 100%; write 2% or 0.02"),
        (parse_fraction, "2 percent", "unknown unit 'percent' of a fraction; write 2% or 0.02"),
        (parse_rate, "64000", "'64000' has no unit; write 64kbit/s or 2.5Mbit/s"),
        (parse_rate, "64 KBPS", "unknown rate unit 'KBPS'; use bit/s, kbit/s, Mbit/s, kB/s or MB/s"),
        (parse_size, "0", "'0' is 0, but the size must be above 0"),
        (parse_size, "1.5B", "'1.5B' is 1.5 bytes, but a size is a whole number of bytes"),
        (parse_size, "1kb", "unknown size unit 'kb'; use B, kB, MB, KiB or MiB"),
        (parse_size, "5ms", "unknown size unit 'ms'; use B, kB, MB, KiB or MiB"),
    ],
)
def test_a_mistake_is_named_with_the_option_and_what_is_allowed(parse, text, message):
    with pytest.raises(ValueError, match="--option: ") as caught:
        parse(text, "--option")
    assert str(caught.value) == f"--option: {message}"


def test_zero_has_no_sign():
    assert [str(parse_fraction(text, "--loss")) for text in ("-0", "-0.0%")] == ["0.0", "0.0"]


def test_the_caller_decides_on_zero():
    assert parse_time("0s", "--delay", allow_zero=True) == 0
    assert parse_rate("0 bit/s", "--bitrate", allow_zero=True) == 0
    assert parse_size("0", "--size", allow_zero=True) == 0
    with pytest.raises(ValueError, match="must be above 0"):
        parse_fraction("0%", "--quantile", allow_zero=False)


def test_the_whole_is_a_percentage():
    assert parse_fraction("100%", "--bad-loss", allow_one=True) == 1
    with pytest.raises(ValueError, match=r"^--bad-loss: 1 is neither a fraction below 1 nor a percentage"):
        parse_fraction("1", "--bad-loss", allow_one=True)
    with pytest.raises(ValueError, match=r"^--bad-loss: '101%' is not below 100%"):
        parse_fraction("101%", "--bad-loss", allow_one=True)


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=70) | st.from_regex(r"\A[-+0-9.,eE]{1,9} ?[a-zA-Zµ%/]{0,7}\Z"))
def test_any_text_gives_a_finite_value_or_one_line(parse, text):
    try:
        value = parse(text, "--option")
    except ValueError as mistake:
        message = str(mistake)
        assert message.startswith("--option: ")
        assert message.isprintable()
    else:
        assert value >= 0
        assert math.isfinite(value)


@given(seconds=st.floats(1e-6, 1e9))
def test_a_printed_time_reads_back(seconds):
    assert parse_time(format_time(seconds), "") == pytest.approx(seconds, rel=0.0051)


@given(fraction=st.floats(1e-5, 0.9994))
def test_a_printed_fraction_reads_back(fraction):
    assert parse_fraction(format_fraction(fraction), "") == pytest.approx(fraction, rel=0.0051)


@given(rate=st.floats(1.0, 1e11))
def test_a_printed_rate_reads_back(rate):
    assert parse_rate(format_rate(rate), "") == pytest.approx(rate, rel=0.0051)


@given(value=st.integers(1, 10**6))
def test_written_units_agree(value):
    assert parse_time(f"{value}ms", "") == value / 1000
    assert parse_time(f"{value}us", "") == value / 1_000_000
    assert parse_rate(f"{value}kB/s", "") == parse_rate(f"{8 * value}kbit/s", "")
    assert parse_size(f"{value}KiB", "") == 1024 * value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (850e-6, "850 µs"),
        (0.0999996, "100 ms"),
        (0.9996, "1 s"),
        (1.35, "1.35 s"),
        (3600, "3600 s"),
        (2e9, "2.00e+09 s"),
        (math.inf, "never"),
    ],
)
def test_time_is_printed_in_three_digits(seconds, text):
    assert format_time(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (9e-6, "< 0.001 %"), (1e-5, "0.001 %"), (0.0173, "1.73 %"), (0.9996, "> 99.9 %"), (1, "100 %")],
)
def test_a_fraction_is_never_rounded_to_none_or_all(fraction, text):
    assert format_fraction(fraction) == text


@pytest.mark.parametrize(("rate", "text"), [(0, "0 bit/s"), (999_999, "1 Mbit/s"), (math.inf, "unlimited")])
def test_rate_is_printed_in_three_digits(rate, text):
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("written", "values", "texts"),
    [
        (format_time, (0.140, 0.139711), ["140 ms", "139.7 ms"]),
        (format_time, (0.150, 0.140, 0.139711), ["150 ms", "140 ms", "139.7 ms"]),
        (format_time, (0.140, None), ["140 ms", ""]),
        (format_time, (1034.42, 1034.44), ["1034.42 s", "1034.44 s"]),
        (format_fraction, (0.02, 0.0200004), ["2 %", "2.00004 %"]),
        (format_fraction, (1.0, 0.99996), ["100 %", "> 99.9 %"]),
        (format_fraction, (0.99996, 0.9998), ["> 99.99 %", "99.98 %"]),
        (format_rate, (2_500_000.0, 2_501_000.0), ["2.5 Mbit/s", "2.501 Mbit/s"]),
        (format_time, (0.2, 0.2), ["200 ms", "200 ms"]),
        (format_time, (0.2, 0.2 + 1e-13), ["200 ms", "200 ms"]),
    ],
)
def test_what_differs_is_written_so_that_it_looks_different(written, values, texts):
    assert told_apart(written, *values) == texts
