"""Loss detection of aioquic and quic-go in their own logs (qlog), beside the simulator's.

The packets and ACKs of a log are given to the loss detection of the simulator, which says when each packet is lost and
when a probe timeout expires. The log says when the implementation did so.

    tcpdelay testbed run validation/specs/quic/traces.toml -o FOLDER
    python validation/quic_traces.py FOLDER --output validation/results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from tcpdelay.scenario.path import Path
from tcpdelay.scenario.source import Flow
from tcpdelay.scenario.stack import QuicImplementation, Stack
from tcpdelay.sim.quic.connection import IN_FLIGHT, LOST
from tcpdelay.sim.quic.engine import new_connection
from tcpdelay.sim.quic.sender import (
    GRANULARITY,
    PACKET_THRESHOLD,
    SKIPPED,
    TIME_THRESHOLD,
    declare_lost,
    on_acknowledgement,
    on_timer,
    probe_timeout,
    timer_at,
)
from tcpdelay.sim.tcp.constants import NEVER

IMPLEMENTATIONS: tuple[QuicImplementation, ...] = ("aioquic", "quic-go")
CONSTANTS = (
    ("packet threshold", "K_PACKET_THRESHOLD = 3", "packetThreshold = 3", f"{PACKET_THRESHOLD}"),
    ("time threshold", "K_TIME_THRESHOLD = 9 / 8", "timeThreshold = 9.0 / 8", f"{TIME_THRESHOLD:g}"),
    ("granularity", "K_GRANULARITY = 0.001", "TimerGranularity = time.Millisecond", f"{GRANULARITY / 1000:g} ms"),
)
"""Constants of loss detection: of aioquic (quic/recovery.py), of quic-go (internal/ackhandler, and params.go in
internal/protocol), and of the simulator."""
ROWS = 10
SAME_INSTANT = 0.05
"""Longest time between the events of a log that belong to one ACK or timer [ms]."""
NOT_ELICITING = {"ack", "padding", "connection_close"}
ESTIMATES = ("min_rtt", "latest_rtt", "smoothed_rtt", "rtt_variance")
MICROSECONDS = 1000
"""Microseconds in a millisecond: logs have milliseconds, and the simulator microseconds."""


def events(file: FilePath) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Yield time [ms], name and data of the events in a qlog: JSON of aioquic, or a sequence of JSON of quic-go."""
    text = file.read_text(encoding="utf-8")
    if text.startswith("\x1e"):
        found = [json.loads(part) for part in text.split("\x1e") if part.strip()][1:]
    else:
        found = json.loads(text)["traces"][0]["events"]
    start = found[0]["time"] if found else 0.0
    for event in found:
        yield event["time"] - start, event["name"].partition(":")[2], event["data"]


class Replay:
    """The simulator's loss detection, with the packets and ACKs of a log; times in ms.

    It begins with the `estimates` that the handshake has left in the log.
    """

    def __init__(self, implementation: QuicImplementation, estimates: Mapping[str, float]) -> None:
        source, path = Flow(174, 0.020, write_jitter=0.0), Path(rtt=0.060, loss=0.0)
        self._connection, wire = new_connection(source, path, Stack.quic(implementation), seed=1)
        self._wire = wire.record
        self._packets = self._wire.packets
        self._mask = self._packets.size - 1
        self._rank = 0
        self._probes = 0
        self._in_flight: set[int] = set()
        self.lost: dict[int, tuple[float, float, float]] = {}
        """Time of the loss, smoothed RTT and RTT variation then, by packet."""
        c = self._connection
        c.smallest_rtt, c.latest_rtt, c.smoothed_rtt, c.rtt_variation = (
            MICROSECONDS * estimates[name] for name in ESTIMATES
        )

    @property
    def estimate(self) -> float:
        """Smoothed round-trip time [ms]."""
        return float(self._connection.smoothed_rtt / MICROSECONDS)

    def begin(self, number: int) -> None:
        """Begin with the packet of a number."""
        self._connection.first_packet = self._connection.next_packet = number

    def send(self, number: int, now: float, size: int) -> None:
        """Send an ack-eliciting packet; numbers between it and the one before are of other packets, or skipped.

        A probe carries the data of the oldest packet in flight, which then counts as lost.
        """
        c = self._connection
        if self._probes:
            self._probes -= 1
            for oldest in sorted(self._in_flight)[:1]:
                declare_lost(c, self._wire, self._packets[oldest & self._mask])
                self._in_flight.discard(oldest)
        for other in range(c.next_packet, number):
            packet = self._packets[other & self._mask]
            packet["state"], packet["rank"], packet["frames"] = LOST, 0, SKIPPED
        packet = self._packets[number & self._mask]
        packet["sent"], packet["length"], packet["state"] = round(MICROSECONDS * now), size, IN_FLIGHT
        packet["rank"] = packet["frames"] = 0
        c.next_packet, c.last_sent = number + 1, packet["sent"]
        c.in_flight += size
        c.eliciting += 1
        self._in_flight.add(number)

    def acknowledge(self, ranges: Sequence[Sequence[int]], delay: float, now: float) -> None:
        """Process an ACK of ranges of packets, which was delayed."""
        c = self._connection
        self._rank += 1
        for number in self._in_flight:
            if any(each[0] <= number <= each[-1] for each in ranges):
                self._packets[number & self._mask]["rank"] = self._rank
        ack = self._wire.acknowledgements[0]
        ack.rank, ack.largest = self._rank, max(each[-1] for each in ranges)
        ack.delay = round(MICROSECONDS * delay)
        c.now = round(MICROSECONDS * now)
        on_acknowledgement(c, self._wire, ack)
        self._note(now)

    def advance(self, now: float) -> None:
        """Let the timers of lost packets expire that are due before a time."""
        c = self._connection
        while c.loss_time != NEVER and c.loss_time < MICROSECONDS * now:
            c.now = c.loss_time
            on_timer(c, self._wire)
            self._note(c.now / MICROSECONDS)

    def expire(self) -> tuple[float, float, int]:
        """Let the probe timeout expire; return its time, its time without back-off [ms], and the doublings before."""
        c = self._connection
        expected = timer_at(c) / MICROSECONDS, probe_timeout(c) / MICROSECONDS, int(c.probe_count)
        c.probe_count += 1
        self._probes = int(c.probes)
        return expected

    def _note(self, now: float) -> None:
        """Note which packets are no longer in flight."""
        c = self._connection
        for number in tuple(self._in_flight):
            state = self._packets[number & self._mask]["state"]
            if state != IN_FLIGHT:
                self._in_flight.discard(number)
            if state == LOST:
                self.lost[number] = now, c.smoothed_rtt / MICROSECONDS, c.rtt_variation / MICROSECONDS


@dataclass
class Trace:
    """Losses and probe timeouts of one sender.

    `losses` has time, packet, time since its sending, smoothed RTT and RTT variation of the log; `timeouts` has time
    since the last sending, doublings, and the simulator's time since the last sending and time without back-off [ms].
    """

    losses: list[tuple[float, int, float, dict[str, float]]] = field(default_factory=list)
    timeouts: list[tuple[float, int, float, float]] = field(default_factory=list)
    simulated: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    sent: dict[int, float] = field(default_factory=dict)


def read_trace(file: FilePath, implementation: QuicImplementation) -> Trace:
    """Return the losses and the probe timeouts in the qlog of a sender, and those of the simulator."""
    trace, estimates = Trace(), dict.fromkeys(ESTIMATES, 0.0)
    replay: Replay | None = None
    last_sent = largest_acked = -1.0
    for now, name, data in events(file):
        frames = data.get("frames", [])
        kinds = {frame["frame_type"] for frame in frames}
        header = data.get("header", {})
        in_data = header.get("packet_type") == "1RTT"
        if replay is not None:
            replay.advance(now)
        if name == "metrics_updated":
            estimates |= {key: float(data[key]) for key in ESTIMATES if key in data}
            for when, _, _, known in trace.losses[-ROWS:]:
                if now - when <= SAME_INSTANT:
                    known |= estimates
        elif name == "packet_sent" and in_data and kinds - NOT_ELICITING:
            if replay is None:
                if not kinds & {"stream", "datagram"}:
                    continue
                replay = Replay(implementation, estimates)
                replay.begin(header["packet_number"])
                trace.simulated = replay.lost
            replay.send(header["packet_number"], now, data["raw"]["length"])
            trace.sent[header["packet_number"]] = last_sent = now
        elif replay is None:
            continue
        elif name == "packet_received" and in_data and "ack" in kinds:
            for frame in frames:
                if frame["frame_type"] == "ack":
                    replay.acknowledge(frame["acked_ranges"], frame.get("ack_delay", 0.0), now)
                    largest_acked = max(largest_acked, *(each[-1] for each in frame["acked_ranges"]))
        elif name == "loss_timer_updated" and data["event_type"] == "expired" and data["timer_type"] == "pto":
            trace.timeouts.append(_timeout(replay, now, last_sent))
        elif name == "packet_lost":
            number = data.get("packet_number", header.get("packet_number"))
            # aioquic logs the packet whose data a probe carries as lost: nothing sent later has been acknowledged.
            if "trigger" not in data and number > largest_acked:
                trace.timeouts.append(_timeout(replay, now, last_sent))
            elif number in trace.sent:
                trace.losses.append((now, number, now - trace.sent[number], dict(estimates)))
    return trace


def _timeout(replay: Replay, now: float, last_sent: float) -> tuple[float, int, float, float]:
    expires, period, doublings = replay.expire()
    return now - last_sent, doublings, expires - last_sent, period


LOSS_COLUMNS = (
    *("time [s]", "packet", "sent to lost", "simulator", "smoothed RTT", "simulator"),
    *("RTT variation", "simulator"),
)
TIMEOUT_COLUMNS = ("since the last packet", "simulator", "difference", "without back-off", "doublings")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _losses(trace: Trace) -> list[str]:
    """Return the first losses as a table, with how many of all the simulator finds, and how late."""
    rows, apart = [], []
    for when, number, elapsed, known in trace.losses:
        if number not in trace.simulated:
            continue
        at, smoothed, variation = trace.simulated[number]
        apart.append(at - when)
        pairs = ((elapsed, elapsed + at - when), (known["smoothed_rtt"], smoothed), (known["rtt_variance"], variation))
        rows.append(
            [f"{when / 1000:.3f}", str(number), *(f"{value:.2f}" for pair in pairs for value in pair)],
        )
    found = f"{len(trace.losses)} losses, of which the simulator finds {len(rows)}"
    more = len(trace.simulated) - len(rows)
    if not rows:
        return [f"{found}.", ""]
    farthest = max(apart, key=abs)
    return [f"{found}, and {more} more; largest difference {farthest:+.2f} ms.", "", *_table(LOSS_COLUMNS, rows[:ROWS])]


def _timeouts(trace: Trace) -> list[str]:
    """Return the first probe timeouts as a table."""
    rows = [
        [f"{period:.2f}", f"{simulated:.2f}", f"{simulated - period:+.2f}", f"{single:.2f}", str(doublings)]
        for period, doublings, simulated, single in trace.timeouts
    ]
    if not rows:
        return ["No probe timeout.", ""]
    farthest = max((simulated - period for period, _, simulated, _ in trace.timeouts), key=abs)
    said = f"{len(rows)} probe timeouts; largest difference {farthest:+.2f} ms."
    return [said, "", *_table(TIMEOUT_COLUMNS, rows[:ROWS])]


def report(folder: FilePath) -> str:
    """Return the tables of all senders' qlogs in a folder as Markdown."""
    lines = [
        "# Loss detection of aioquic and quic-go in their own logs, and of the simulator",
        "",
        "Times in ms. The first ten losses of each flow, and the first ten probe timeouts, over 60 ms and 5 % loss.",
        "The simulator's loss detection is given the packets and ACKs of the log. A loss is found by an ACK or by a",
        "timer (RFC 9002, 6.1); the probe timeout is the time since the last packet (6.2). The timers of Go wait for",
        "whole milliseconds. The delay of an ACK is taken off a sample of the RTT unless the rest is shorter than the",
        "smallest RTT (5.3). On this path without jitter they differ by microseconds, by which quic-go's log is late:",
        "its estimates and the replayed ones differ where the log hides on which side a sample was.",
        "",
        *_table(("constant", "aioquic", "quic-go", "simulator"), CONSTANTS),
    ]
    for file in sorted(folder.glob("*.sender.qlog")):
        implementation = next(name for name in IMPLEMENTATIONS if file.name.startswith(name))
        trace = read_trace(file, implementation)
        interval = file.name.partition("B-")[2].partition("-")[0]
        lines += [f"## {implementation}, a packet every {interval}", "", *_losses(trace), *_timeouts(trace)]
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write them to a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=FilePath, help="folder with the captures of specs/quic/traces.toml")
    parser.add_argument("--output", type=FilePath, help="folder for quic-traces.md")
    arguments = parser.parse_args()
    text = report(arguments.folder)
    print(text)
    if arguments.output is not None:
        (arguments.output / "quic-traces.md").write_text(f"{text.rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
