"""The output of `ping`, read into a path estimate.

The parser reads only the summary at the end, and uses its structure, because the words are translated: a title
between dashes, a line with the counts and a percentage, and a line of three or four round-trip times. The library jc
has a parser for ping, but this parser raises an IndexError on a shell prompt after the summary, silently returns the
last of two runs, accepts a file without summary, and reads 33,3 % with a decimal comma as 3 %.
"""

from __future__ import annotations

import math
import os
import re
from decimal import Decimal

from scipy.special import stdtrit

from tcpdelay.capture.estimate import PathEstimate, read_recording

_TITLE = re.compile(r"^[ \t]*--- .* ---[ \t]*\r?$", re.MULTILINE)
# Every run of digits has a largest length: the counts of a ping that ran for years have ten digits.
_COUNT = re.compile(r"(?<![\d+.,%])\d{1,12}(?![\d.,]*\d)")
# The percent sign is behind the number or, in Turkish, before the number.
_PERCENTAGE = re.compile(r"(?<![\d.,])(\d{1,3}(?:[.,]\d{1,9})?(?:e-\d\d)?) ?%|%(\d{1,3}(?:[.,]\d{1,9})?(?:e-\d\d)?)")
_TIMES = re.compile(r"= *(\d{1,9}[.,]\d{3})/(\d{1,9}[.,]\d{3})/(\d{1,9}[.,]\d{3})(?:/(\d{1,9}[.,]\d{3}))? *[^\d\s/.,]")
_LONGEST_SUMMARY = 10_000


def read_ping(path: str | os.PathLike[str]) -> PathEstimate:
    """Estimate the path from a file with the output of `ping`.

    Parameters
    ----------
    path : str or path-like
        A file with the output of one run, at most 64 MiB.

    Returns
    -------
    PathEstimate
        The estimate of `parse_ping`.

    Raises
    ------
    ValueError
        If the file cannot be read, or `parse_ping` refuses the text; the message names the file.
    """
    return parse_ping(read_recording(path, "ping"), os.fspath(path))


def parse_ping(text: str, name: str = "ping output") -> PathEstimate:
    """Estimate the path from the output of `ping`.

    The output can be from Linux iputils, BusyBox or macOS, in any language, over IPv4 or IPv6, and with -D, -O, -q, -f
    or -A. The loss is the loss of the round trip: it includes lost replies, so the loss of data segments may be lower.
    Answers such as "unreachable" count as lost. If Ctrl-C ended the run, the last request may count as lost although
    its reply was still in flight; `ping -c` waits for the reply. The confidence interval assumes independent
    round-trip times; consecutive ones are correlated, so the interval is somewhat too narrow.

    Parameters
    ----------
    text : str
        The output of one run, with its summary.
    name : str
        Name of the text in messages, such as its file name.

    Returns
    -------
    PathEstimate
        Mean, extremes, standard deviation (if the program prints it) and confidence interval of the round-trip time
        [s]; numbers of packets sent and lost.

    Raises
    ------
    ValueError
        If the summary is missing, cut off or contradicts itself, if there are several summaries, or if no reply was
        received.

    Examples
    --------
    >>> estimate = parse_ping('''
    ... --- 10.0.0.2 ping statistics ---
    ... 200 packets transmitted, 196 received, 2% packet loss, time 40305ms
    ... rtt min/avg/max/mdev = 100.230/101.539/193.251/8.372 ms
    ... ''')
    >>> estimate.rtt, estimate.loss
    (0.101539, 0.02)
    """
    titles = list(_TITLE.finditer(text))
    if not titles:
        raise ValueError(
            f"{name}: no summary as ping prints it at its end ('--- host ping statistics ---'); "
            "record again and let ping finish (ping -c 100 HOST) or end it with Ctrl-C"
        )
    if len(titles) > 1:
        raise ValueError(f"{name}: {len(titles)} ping summaries; give one run per file")
    behind = text[titles[0].end() :][:_LONGEST_SUMMARY]
    summary = [line.strip() for line in behind.splitlines() if line.strip()]
    sent, received = _counts(summary[0] if summary else "", name)
    if received == 0:
        raise ValueError(f"{name}: none of {sent} packets came back, so there is nothing to predict from")
    rtt_min, rtt, rtt_max, deviation = _round_trip_times(summary, name, received)
    return PathEstimate(
        source="ping",
        rtt=rtt,
        sent=sent,
        lost=sent - received,
        rtt_min=rtt_min,
        rtt_max=rtt_max,
        rtt_deviation=deviation,
        rtt_interval=None if deviation is None else _mean_interval(rtt, deviation, received, rtt_min),
    )


def _counts(line: str, name: str) -> tuple[int, int]:
    """Return the numbers of packets sent and received from the summary's first line."""
    counts = _COUNT.findall(line)
    percentage = _PERCENTAGE.search(line)
    if len(counts) < 2 or percentage is None:
        # If nothing was sent, there is no percentage.
        if counts[:1] == ["0"]:
            raise ValueError(f"{name}: ping sent no packet, so there is nothing to predict from")
        raise ValueError(
            f"{name}: the summary is cut off: the line with packets sent, received and lost is not complete"
        )
    sent, received = int(counts[0]), int(counts[1])
    if sent == 0:
        raise ValueError(f"{name}: ping sent no packet, so there is nothing to predict from")
    stated = float((percentage[1] or percentage[2]).replace(",", "."))
    # Some versions cut the percentage to a whole number.
    if received > sent or abs(stated - 100 * (sent - received) / sent) >= 1:
        raise ValueError(f"{name}: the summary contradicts itself: {sent} sent, {received} received, {stated:g} % lost")
    return sent, received


def _round_trip_times(summary: list[str], name: str, received: int) -> tuple[float, float, float, float | None]:
    """Return the smallest, mean and largest round-trip time and the standard deviation, if printed [s]."""
    match = next((match for line in summary if (match := _TIMES.search(line))), None)
    if match is None:
        raise ValueError(
            f"{name}: {received} packets received, but no complete line 'rtt min/avg/max/mdev = ... ms'; "
            "the file is cut off, or ping -s below 16 left no room for the time"
        )
    low, mean, high = (_seconds(time) for time in match.group(1, 2, 3))
    deviation = None if match[4] is None else _seconds(match[4])
    if not low <= mean <= high:
        raise ValueError(f"{name}: the round-trip times are not in order: {match.group().strip('= ')}")
    if mean == 0:
        raise ValueError(f"{name}: the mean round-trip time is 0 ms, which is too short to predict from")
    return low, mean, high, deviation


def _seconds(milliseconds: str) -> float:
    return float(Decimal(milliseconds.replace(",", ".")).scaleb(-3))


def _mean_interval(mean: float, deviation: float, received: int, smallest: float) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean [s], limited below by the smallest value; None for a single value."""
    if received < 2:
        return None
    # ping divides by the number of values n, not by n - 1.
    half_width = float(stdtrit(received - 1, 0.975)) * deviation / math.sqrt(received - 1)
    return max(mean - half_width, smallest), mean + half_width
