"""Recordings replayed: repeated outputs of `ss -tin`, and captures of the testbed, as samples in the order of time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath

import numpy as np

from tcpdelay.capture.estimate import read_recording
from tcpdelay.capture.flow_capture import MICROSECONDS, FlowCapture, FlowRun, read_capture
from tcpdelay.capture.path_sample import PathSample, times_between
from tcpdelay.capture.ss import Connection, choose_connection, parse_ss
from tcpdelay.scenario.path import Path

_TIME = re.compile(r"^(\d{1,10}(?:\.\d{1,9})?)\s*$", re.MULTILINE)
_CAPTURE_BEGINNING = b"PAR1"


def read_replay(file: str, requested: str | None = None) -> Iterator[tuple[PathSample, Connection | None]]:
    """Yield the samples of one connection in a recording.

    Parameters
    ----------
    file : str
        A file with outputs of `ss -tin`, each after a line with its time in seconds, as `date +%s.%N` prints it. Or a
        capture of the testbed, sampled about once a second.
    requested : str, optional
        Address of either end of the connection, or a part of it, if the recording holds several connections.

    Yields
    ------
    tuple
        The sample, and the connection as `ss` showed it; None for a capture of the testbed.

    Raises
    ------
    ValueError
        If the file cannot be read or holds no samples, or if no connection or several connections match.
    """
    if _is_capture(file):
        capture = read_capture(file)
        for sample in run_samples(capture, capture.runs[0]):
            yield sample, None
        return
    yield from recorded_samples(read_recording(file, "ss"), file, requested)


def _is_capture(file: str) -> bool:
    try:
        with FilePath(file).open("rb") as opened:
            return opened.read(len(_CAPTURE_BEGINNING)) == _CAPTURE_BEGINNING
    except (OSError, ValueError):
        # `read_recording` says why.
        return False


def recorded_samples(
    text: str, name: str, requested: str | None = None
) -> Iterator[tuple[PathSample, Connection | None]]:
    r"""Yield the samples of one connection in repeated outputs of `ss -tin`.

    Parameters
    ----------
    text : str
        The outputs, each after a line with its time [s].
    name : str
        Name of the recording in messages.
    requested : str, optional
        As for `read_replay`.

    Raises
    ------
    ValueError
        If there is no line with a time, an output is malformed, or no connection or several connections match.

    Examples
    --------
    >>> output = "ESTAB 0 870 10.0.0.1:4000 10.0.0.2:5001\n cubic rtt:101/1 data_segs_out:{} retrans:0/5 minrtt:100\n"
    >>> text = "".join(f"{1700000000 + second}\n{output.format(500 + 50 * second)}" for second in range(3))
    >>> [sample.sent for sample, _ in recorded_samples(text, "ss.log")]
    [500, 550, 600]
    """
    _, *parts = _TIME.split(text)
    if not parts:
        raise ValueError(f"{name}: no line with a time, as 'date +%s.%N' prints it, stands before an output of ss")
    ends: tuple[str, str] | None = None
    for time, output in zip(parts[::2], parts[1::2], strict=True):
        if not output.strip():
            continue
        connections = parse_ss(output, f"{name} at {time}")
        if ends is None:
            chosen = choose_connection(connections, requested, name)
            ends = chosen.local, chosen.peer
        found = [each for each in connections if (each.local, each.peer) == ends]
        if not found:
            return
        yield PathSample.of_connection(found[0], float(time)), found[0]
    if ends is None:
        raise ValueError(f"{name}: no output of ss follows the times")


def run_samples(capture: FlowCapture, run: FlowRun, start: float = 0.0, interval: float = 1.0) -> list[PathSample]:
    """Return what `ss` would have shown of a measured flow, once at a random moment of each interval.

    Round-trip time and retransmissions are the sampled TCP_INFO. A capture does not hold the numbers of segments sent
    and delivered at a time. The segments sent are the share of the packets written, times the number of segments of the
    run (OutSegs), and the retransmissions. The losses are the share of the retransmissions, times the losses of the
    run: all segments sent that the kernel does not count as delivered, less one for the SYN. The backlog holds the
    packets that are not read, or whose acknowledgement takes its way back.

    Parameters
    ----------
    capture : FlowCapture
        The capture, with one connection.
    run : FlowRun
        A run of it that has samples of TCP_INFO.
    start : float
        Time of the first sample [s since the start of writing].
    interval : float
        Mean distance of the samples [s], above 0.

    Raises
    ------
    ValueError
        If the run has no samples of TCP_INFO, has several connections, or messages of several sizes.
    """
    columns = run.samples
    if run.messages is not None:
        raise ValueError(f"{capture.name}: has messages of several sizes; a replay needs packets of one size")
    if not columns.get("time", np.empty(0)).size:
        raise ValueError(f"{capture.name}: holds no samples of TCP_INFO")
    if columns["connection"].max():
        raise ValueError(f"{capture.name}: has several connections; a replay follows one")
    size, way_back = capture.settings["packet_size"], Path(capture.settings["rtt"], 0.0).forward_delay
    sampled, written = columns["time"] / MICROSECONDS, run.written / MICROSECONDS
    # The application reads in order, so times of acknowledgements are sorted.
    acknowledged = np.maximum.accumulate(written + run.delays) + way_back
    segments = run.counters.get("OutSegs", written.size) / written.size
    losses_per_retransmission = _losses_per_retransmission(run.counters)
    found = []
    for time in times_between(max(start, sampled[0]), min(sampled[-1], written[-1]), interval, run.seed):
        place = int(np.searchsorted(sampled, time, side="right")) - 1
        before, done = np.searchsorted(written, time, side="right"), np.searchsorted(acknowledged, time, side="right")
        retransmitted = int(columns["retransmits"][place])
        found.append(
            PathSample(
                source="testbed",
                time=float(time),
                rtt=float(columns["rtt"][place]) / MICROSECONDS or None,
                sent=round(int(before) * segments) + retransmitted,
                lost=round(retransmitted * losses_per_retransmission),
                backlog=int(before - done) * size,
                acknowledged=int(done) * size,
                congestion_window=int(columns["cwnd"][place]),
            )
        )
    return found


def _losses_per_retransmission(counters: Mapping[str, int]) -> float:
    """Return the quotient of the kernel's counters; 1 if it did not count them."""
    sent, delivered, again = (counters.get(name, 0) for name in ("TCPOrigDataSent", "TCPDelivered", "RetransSegs"))
    return max(sent + again - delivered + 1, 0) / again if sent and delivered and again else 1.0
