"""The output of `ping`, fping, mtr, nping, MikroTik and iperf3, read into a path estimate."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import statistics
from typing import Any, NamedTuple

from tcpdelay.capture.estimate import PathEstimate, milliseconds_to_seconds, read_recording
from tcpdelay.statistics import student_quantile

# The outputs of fping, mtr, nping, MikroTik and iperf3, read into a path estimate.

_PLAIN_NUMBER = r"(\d{1,9}(?:\.\d{1,6})?)"
_FPING = re.compile(
    rf"^(\S{{1,300}}) *: ?xmt/rcv/%(?:loss|return) = (\d{{1,9}})/(\d{{1,9}})/\d{{1,3}}%"
    rf"(?:, ?min/avg/max = {_PLAIN_NUMBER}/{_PLAIN_NUMBER}/{_PLAIN_NUMBER})?\s*$",
    re.MULTILINE,
)
_FPING_TIMES = re.compile(
    r"^\S{1,300} +: (?:\d{1,9}(?:\.\d{1,6})?|-)(?: (?:\d{1,9}(?:\.\d{1,6})?|-))*\s*$", re.MULTILINE
)
_FPING_STATISTICS = re.compile(
    rf"(\d{{1,9}}) ICMP Echos sent\s+(\d{{1,9}}) ICMP Echo Replies received.*?{_PLAIN_NUMBER} ms \(min.*?"
    rf"{_PLAIN_NUMBER} ms \(avg.*?{_PLAIN_NUMBER} ms \(max",
    re.DOTALL,
)
_NPING = re.compile(
    rf"Max rtt: {_PLAIN_NUMBER}ms \| Min rtt: {_PLAIN_NUMBER}ms \| Avg rtt: {_PLAIN_NUMBER}ms\s+"
    r"[^\n]*?sent: (\d{1,9}) [^\n]*?Rcvd: (\d{1,9}) "
)
_ROUTER_TIME = r"(\d{1,9})ms(?:(\d{1,3})us)?"
_MIKROTIK = re.compile(
    rf"sent=(\d{{1,9}}) received=(\d{{1,9}}) packet-loss=\d{{1,3}}%"
    rf"(?: min-rtt={_ROUTER_TIME} avg-rtt={_ROUTER_TIME} max-rtt={_ROUTER_TIME})?"
)
_MTR_HEADER = re.compile(r"^.* Loss% .*\bSnt\b.*$", re.MULTILINE)
_MTR_CSV = "Mtr_Version,"
_OTHERS = {
    r"^ *(?:traceroute to|Tracing route|tracert)\b": "traceroute sends three packets to each hop; record ping or mtr",
    r"^\[ *(?:\d+|SUM)\].* [KMG]?bits/sec": "iperf prints no round-trip time as text; record iperf3 --json",
    r"^Source +Destination +IPV4Address": "Test-Connection prints no losses; record ping -n 100 HOST",
    r"^x \d+ \d+\r?\n(?:[xhpd] .*\n)": "mtr --raw prints no summary; record mtr --json or mtr --report",
}
"""How the output of a program that shows no round-trip time or loss begins a line, and what to record in its place."""
_MTR_HOP = re.compile(r"^ *\d{1,3}\.[ |]")
_MICROSECONDS = 1e6


def estimate_of_another_tool(text: str, name: str) -> PathEstimate | None:
    """Return the estimate from the output of a program other than ping; None for other text."""
    if text.lstrip().startswith("{"):
        return _from_json(text, name)
    if found := list(_FPING.finditer(text)):
        _only(len(found), "fping", name)
        _, sent, received, *times = found[0].groups()
        in_seconds = None if times[0] is None else [milliseconds_to_seconds(time) for time in times]
        return _estimate(int(sent), int(received), in_seconds, name)
    if lines := _FPING_TIMES.findall(text):
        _only(len(lines), "fping", name)
        cells = lines[0].partition(" : ")[2].split()
        values = [milliseconds_to_seconds(cell) for cell in cells if cell != "-"]
        summary = [min(values), statistics.fmean(values), max(values)] if values else None
        return _estimate(len(cells), len(values), summary, name)
    if found := list(_FPING_STATISTICS.finditer(text)):
        _only(len(found), "fping", name)
        sent, received, *times = found[0].groups()
        return _estimate(int(sent), int(received), [milliseconds_to_seconds(time) for time in times], name)
    if found := list(_NPING.finditer(text)):
        _only(len(found), "nping", name)
        high, low, mean, sent, received = found[0].groups()
        return _estimate(int(sent), int(received), [milliseconds_to_seconds(time) for time in (low, mean, high)], name)
    if found := list(_MIKROTIK.finditer(text)):
        # A long run has a running total on each page.
        sent, received, *times = found[-1].groups()
        parts = zip(times[::2], times[1::2], strict=True)
        shown = [int(whole) / 1e3 + int(rest or 0) / 1e6 for whole, rest in parts if whole]
        return _estimate(int(sent), int(received), shown or None, name)
    if text.startswith(_MTR_CSV):
        return _from_hops(list(csv.DictReader(text.splitlines())), name)
    if headers := list(_MTR_HEADER.finditer(text)):
        _only(len(headers), "mtr", name)
        columns = headers[0][0].split()
        columns = columns[columns.index("Loss%") :]
        hops = [line.split() for line in text[headers[0].end() :].splitlines() if _MTR_HOP.match(line)]
        hops = [hop[-len(columns) :] for hop in hops if len(hop) > len(columns)]
        return _from_hops([dict(zip(columns, hop, strict=True)) for hop in hops], name)
    return None


def advice_for_another_tool(text: str) -> str:
    """Return what to record in place of the output of a program without round-trip times or losses; else ""."""
    return next((advice for line, advice in _OTHERS.items() if re.search(line, text, re.MULTILINE)), "")


def _only(count: int, tool: str, name: str) -> None:
    if count > 1:
        raise ValueError(f"{name}: {count} results of {tool}; give one run to one host per file")


def _estimate(sent: int, received: int, times: list[float] | None, name: str) -> PathEstimate:
    """Return the estimate from counts and from the smallest, mean and largest round-trip time [s]."""
    if received > sent or (received and times is None):
        raise ValueError(f"{name}: contradicts itself: {sent} sent, {received} received, times {times}")
    if times is None:
        raise ValueError(f"{name}: none of {sent} packets came back, so there is nothing to predict from")
    low, mean, high = times
    if not mean > 0 or not low <= mean <= high:
        raise ValueError(
            f"{name}: the round-trip times must be above 0 and in order, got {low:g}, {mean:g}, {high:g} s"
        )
    return PathEstimate(source="ping", rtt=mean, sent=sent, lost=sent - received, rtt_min=low, rtt_max=high)


def _from_json(text: str, name: str) -> PathEstimate:
    try:
        lines = [line for line in text.splitlines() if '"summary"' in line and '"xmt"' in line]
        if lines:
            _only(len(lines), "fping", name)
            summary = json.loads(lines[0])["summary"]
            times = [float(summary[key]) / 1000 for key in ("rttMin", "rttAvg", "rttMax")] if summary["rcv"] else None
            return _estimate(int(summary["xmt"]), int(summary["rcv"]), times, name)
        values = json.loads(text)
        if "report" in values:
            report = values["report"]
            return _from_hops(report.get("hubs") or report["mtr"]["hubs"], name)
        if "end" in values and "start" in values:
            return _from_iperf(values, name)
    except RecursionError:
        raise ValueError(f"{name}: the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: the JSON is cut off or damaged: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"{name}: no JSON as mtr or iperf3 prints it: {type(error).__name__} {error!s:.60}") from None
    raise ValueError(f"{name}: no JSON as 'mtr --json' or 'iperf3 --json' prints it")


def _from_hops(hops: list[dict[str, Any]], name: str) -> PathEstimate:
    """Return the estimate to the last hop of mtr."""
    if not hops:
        raise ValueError(f"{name}: no hop as mtr prints it; the output is cut off")
    hop = hops[-1]
    try:
        sent, share = int(hop["Snt"]), float(str(hop["Loss%"]).rstrip("%"))
        times = [float(hop[column]) / 1000 for column in ("Best", "Avg", "Wrst")]
    except (KeyError, ValueError):
        raise ValueError(f"{name}: the last hop of mtr lacks one of Loss%, Snt, Best, Avg and Wrst") from None
    if not 0 <= share < 100 or sent < 1:
        raise ValueError(f"{name}: the last hop of mtr did not answer; the host may answer ping")
    return _estimate(sent, sent - round(sent * share / 100), times, name)


def _from_iperf(values: dict[str, Any], name: str) -> PathEstimate:
    """Return the estimate from the TCP connections of iperf3: the kernel's round-trip times and retransmissions."""
    if "error" in values:
        raise ValueError(f"{name}: iperf3 ended with an error: {values['error']!s:.100}")
    if values["start"]["test_start"]["protocol"] != "TCP":
        raise ValueError(f"{name}: iperf3 measures no round-trip time over UDP; run it over TCP, or take ping")
    senders = [stream["sender"] for stream in values["end"]["streams"]]
    if not senders or not all(sender.get("mean_rtt") and "retransmits" in sender for sender in senders):
        raise ValueError(
            f"{name}: iperf3 shows no round-trip times and retransmissions of its sender; run it on Linux at the end "
            "that sends (without -R)"
        )
    mss = int(values["start"].get("tcp_mss") or values["start"]["tcp_mss_default"])
    again = sum(int(sender["retransmits"]) for sender in senders)
    sent = sum(-(-int(sender["bytes"]) // mss) for sender in senders) + again
    low, mean, high = (
        combine(float(sender[f"{figure}_rtt"]) for sender in senders) / _MICROSECONDS
        for figure, combine in (("min", min), ("mean", statistics.fmean), ("max", max))
    )
    return PathEstimate(source="iperf3", rtt=mean, sent=sent, lost=again, rtt_min=low, rtt_max=high, mss=mss)


# The output of `ping`, read into a path estimate.
#
# The words are translated, so the parser uses the structure of the summary at the end. On Unix, this is a title between
# dashes, a line with the counts and a percentage, and a line of three or four round-trip times. On Windows, these are
# three counts behind "=" and a percentage, and three round-trip times behind "=". The library jc has a parser for ping,
# but it reads English only, raises an IndexError on a shell prompt after the summary, silently returns the last of two
# runs, accepts a file without summary, and reads 33,3 % with a decimal comma as 3 %.

# Solaris prints four dashes and no spaces.
_TITLE = re.compile(r"^[ \t]*(?:--- .* ---|-{4}[\w\[].*\w-{4})[ \t]*\r?$", re.MULTILINE)
# Every run of digits has a largest length: the counts of a ping that ran for years have ten digits.
_COUNT = re.compile(r"(?<![\d+.,%])\d{1,12}(?![\d.,]*\d)")
# The percent sign is behind the number or, in Turkish, before the number.
_PERCENTAGE = re.compile(r"(?<![\d.,])(\d{1,3}(?:[.,]\d{1,9})?(?:e-\d\d)?) ?%|%(\d{1,3}(?:[.,]\d{1,9})?(?:e-\d\d)?)")
_EXTRA_PACKETS = re.compile(r"\+(\d{1,12})\s?(d[uo][bp])?", re.IGNORECASE)
_NUMBER = r"(\d{1,9}(?:[.,]\d{1,6})?)"
_TIMES = re.compile(rf"= *{_NUMBER}/{_NUMBER}/{_NUMBER}(?:/{_NUMBER})? *[^\d\s/.,]")
# Solaris has the unit at the beginning of the line.
_TIMES_BEHIND_UNIT = re.compile(rf"\(ms\)[^=]{{1,80}}= *{_NUMBER}/{_NUMBER}/{_NUMBER}(?:/{_NUMBER})?$")
_REPLY = re.compile(rf"seq[=:] ?(\d{{1,9}})\D.*[=<] ?{_NUMBER} ?[^\d\s/.,]")
_ROUTER_SUMMARY = re.compile(rf"\((\d{{1,9}})/(\d{{1,9}})\)(?:,[^=\n]{{1,80}}= *{_NUMBER}/{_NUMBER}/{_NUMBER} *ms)?")
_BETWEEN = r"[^=\d]{1,120}"
_WINDOWS_COUNT = r"= *(\d{1,12})(?!\d)"
_WINDOWS_COUNTS = re.compile(
    rf"{_WINDOWS_COUNT}{_BETWEEN}{_WINDOWS_COUNT}{_BETWEEN}{_WINDOWS_COUNT}[^=\d%]{{0,80}}"
    r"(?:%(\d{1,3})|(\d{1,3}) ?%)"
)
# The letters of a unit can be lost with the code page.
_UNIT = r"[^\s\d=,;:.]{1,12}"
_WINDOWS_TIME = rf"= *{_NUMBER} ?{_UNIT}"
_WINDOWS_TIMES = re.compile(rf"{_WINDOWS_TIME}{_BETWEEN}{_WINDOWS_TIME}{_BETWEEN}{_WINDOWS_TIME}")
_WINDOWS_REPLY = re.compile(rf"[=<] ?\d{{1,9}} ?{_UNIT}(?: TTL=\d{{1,3}})?\s*$", re.MULTILINE)
# A letter of another code page is read as U+FFFD.
_WINDOWS_ERROR = re.compile(
    r"^[^\n=<]*?(?:\d(?:\.\d{1,3}){3}|:[\da-f:]{1,40}(?:%\d{1,5})?)[^\n=<:]{0,20}: ?(?:[^\W\d]|\ufffd)[^\n=<]*$",
    re.MULTILINE,
)
_LONGEST_SUMMARY = 10_000
_ACCEPTED_ERROR = 0.02
"""Largest error of the mean round-trip time that duplicates may cause, as a share of the mean."""


class _Summary(NamedTuple):
    """The counts of a run, and the smallest, mean and largest time and their standard deviation, if printed [s]."""

    sent: int
    received: int
    times: tuple[float, float, float, float | None] | None


def read_ping(path: str | os.PathLike[str]) -> PathEstimate:
    """Estimate the path from a file with the output of `ping`, or of one of the tools that `parse_ping` reads.

    Parameters
    ----------
    path : str or path-like
        A file with the output of one run, at most 64 MiB, in UTF-8, UTF-16 or a code page of Windows.

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

    The output can be from Linux iputils, BusyBox, toybox, macOS, BSD, Solaris, hping3, a Cisco router or Windows, in
    any language, over IPv4 or IPv6, and with -D, -O, -q, -f or -A. It can also be the output of fping, mtr,
    nping or the ping of a router of Huawei or MikroTik, or the JSON of fping, mtr or iperf3.

    The loss is the loss of the round trip: it includes lost replies, so the loss of data segments may be lower. Answers
    such as "unreachable" count as lost. Duplicate replies count neither as received nor in the round-trip times. If
    Ctrl-C ended the run, the last request may count as lost although its reply was still in flight; `ping -c` waits for
    the reply. The confidence interval assumes independent round-trip times; consecutive ones are correlated, so the
    interval is somewhat too narrow. Windows cuts all times to whole milliseconds. iperf3 measures at full load, so
    queues raise both round-trip time and loss.
    """
    other = estimate_of_another_tool(text, name)
    if other is not None:
        return other
    summary = _summary(text, name)
    if summary.received == 0:
        raise ValueError(f"{name}: none of {summary.sent} packets came back, so there is nothing to predict from")
    if summary.times is None:
        raise ValueError(
            f"{name}: {summary.received} packets received, but no complete line 'rtt min/avg/max/mdev = ... ms'; "
            "the file is cut off, or ping -s below 16 left no room for the time"
        )
    rtt_min, rtt, rtt_max, deviation = summary.times
    if not rtt_min <= rtt <= rtt_max:
        shown = "/".join(f"{1000 * time:.3f}" for time in (rtt_min, rtt, rtt_max))
        raise ValueError(f"{name}: the round-trip times are not in order: {shown} ms")
    if rtt == 0:
        raise ValueError(f"{name}: the mean round-trip time is 0 ms, which is too short to predict from")
    return PathEstimate(
        source="ping",
        rtt=rtt,
        sent=summary.sent,
        lost=summary.sent - summary.received,
        rtt_min=rtt_min,
        rtt_max=rtt_max,
        rtt_deviation=deviation,
        rtt_interval=None if deviation is None else _mean_interval(rtt, deviation, summary.received, rtt_min),
    )


def _summary(text: str, name: str) -> _Summary:
    """Return the only summary in the output."""
    titles = list(_TITLE.finditer(text))
    found = titles or list(_WINDOWS_COUNTS.finditer(text)) or _router_summaries(text)
    if len(found) > 1:
        raise ValueError(f"{name}: {len(found)} ping summaries; give one run per file")
    if not found:
        if advice := advice_for_another_tool(text):
            raise ValueError(f"{name}: {advice}")
        windows = _WINDOWS_REPLY.search(text) and not _REPLY.search(text)
        count = "ping -n 100 HOST" if windows else "ping -c 100 HOST, on Windows ping -n 100 HOST"
        raise ValueError(
            f"{name}: no summary as ping prints it at its end ('{'Ping' if windows else '--- host ping'} statistics "
            f"{'for host:' if windows else '---'}'); record again and let ping finish ({count}) or end it with Ctrl-C"
        )
    read = {_TITLE: _unix_summary, _WINDOWS_COUNTS: _windows_summary, _ROUTER_SUMMARY: _router_summary}
    return read[found[0].re](text, found[0], name)


def _router_summaries(text: str) -> list[re.Match[str]]:
    """Return the summaries of Cisco routers: the replies and requests in parentheses, and three times."""
    return [each for each in _ROUTER_SUMMARY.finditer(text) if each[3] or int(each[1]) == 0 < int(each[2])]


def _router_summary(_: str, found: re.Match[str], name: str) -> _Summary:
    """Return the summary of a Cisco router."""
    received, sent = int(found[1]), int(found[2])
    if received > sent:
        raise ValueError(f"{name}: the summary contradicts itself: {sent} sent, {received} received")
    if found[3] is None:
        return _Summary(sent, received, None)
    low, mean, high = map(milliseconds_to_seconds, found.group(3, 4, 5))
    return _Summary(sent, received, (low, mean, high, None))


def _unix_summary(text: str, title: re.Match[str], name: str) -> _Summary:
    """Return the summary behind a title between dashes."""
    behind = text[title.end() :][:_LONGEST_SUMMARY]
    lines = [line.strip() for line in behind.splitlines() if line.strip()]
    counts = lines[0] if lines else ""
    if len(lines) > 2 and len(_COUNT.findall(counts)) == 1 and counts[0].isdigit():
        # Huawei prints the packets sent and received and the loss in a line each.
        counts = ", ".join(lines[:3])
    sent, received = _counts(counts, name)
    matches = (_TIMES.search(line) or _TIMES_BEHIND_UNIT.search(line) for line in lines)
    printed = next((match for match in matches if match is not None), None)
    if printed is None:
        return _Summary(sent, received, None)
    low, mean, high = map(milliseconds_to_seconds, printed.group(1, 2, 3))
    deviation = None if printed[4] is None else milliseconds_to_seconds(printed[4])
    times = _without_duplicates(text[: title.start()], counts, sent, received, (low, mean, high, deviation), name)
    return _Summary(sent, received, times)


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
    _check_counts(sent, received, float((percentage[1] or percentage[2]).replace(",", ".")), name)
    return sent, received


def _check_counts(sent: int, received: int, percentage: float, name: str) -> None:
    if sent == 0:
        raise ValueError(f"{name}: ping sent no packet, so there is nothing to predict from")
    # Some versions cut the percentage to a whole number.
    if received > sent or abs(percentage - 100 * (sent - received) / sent) >= 1:
        raise ValueError(
            f"{name}: the summary contradicts itself: {sent} sent, {received} received, {percentage:g} % lost"
        )


def _without_duplicates(
    replies: str,
    counts: str,
    sent: int,
    received: int,
    printed: tuple[float, float, float, float | None],
    name: str,
) -> tuple[float, float, float, float | None]:
    """Return the round-trip times without those of duplicate replies, which the summary includes."""
    times: dict[str, float] = {}
    repeated = 0
    for line in replies.splitlines():
        match = _REPLY.search(line)
        if match is None:
            continue
        repeated += match[1] in times
        times.setdefault(match[1], milliseconds_to_seconds(match[2]))
    # The sequence numbers of a long run wrap, and its replies may be listed in part.
    if len(times) == received:
        if not repeated:
            return printed
        values = list(times.values())
        deviation = None if printed[3] is None else statistics.pstdev(values)
        return min(values), statistics.fmean(values), max(values), deviation
    extra = _EXTRA_PACKETS.search(counts)
    # The first extra packets are the duplicates. If there are none, these are error messages of packets that were lost.
    if extra is None or not (extra[2] or int(extra[1]) > sent - received):
        return printed
    duplicates = int(extra[1])
    _, mean, high, _ = printed
    smallest = (mean * (received + duplicates) - duplicates * high) / max(received, 1)
    if smallest < (1 - _ACCEPTED_ERROR) * mean:
        raise ValueError(
            f"{name}: the times include {duplicates} duplicate replies, as to a broadcast address; ping one host, and "
            "without -q, so that the replies show which are duplicates"
        )
    return printed


def _windows_summary(text: str, counts: re.Match[str], name: str) -> _Summary:
    """Return the summary of Windows: three counts with a percentage, then the smallest, largest and mean time."""
    sent, received = int(counts[1]), int(counts[2])
    _check_counts(sent, received, float(counts[4] or counts[5]), name)
    # Windows counts an error message, such as "unreachable", as a reply.
    received -= min(len(_WINDOWS_ERROR.findall(text[: counts.start()])), received)
    printed = _WINDOWS_TIMES.search(text[counts.end() :][:_LONGEST_SUMMARY])
    if printed is None:
        return _Summary(sent, received, None)
    low, high, mean = map(milliseconds_to_seconds, printed.groups())
    return _Summary(sent, received, (low, mean, high, None))


def _mean_interval(mean: float, deviation: float, received: int, smallest: float) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean [s], limited below by the smallest value; None for a single value."""
    if received < 2:
        return None
    # ping divides by the number of values n, not by n - 1.
    half_width = student_quantile(received - 1, 0.95) * deviation / math.sqrt(received - 1)
    return max(mean - half_width, smallest), mean + half_width
