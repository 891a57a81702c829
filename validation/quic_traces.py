"""Loss detection of aioquic and quic-go, read from their qlogs, beside what RFC 9002 gives from the same numbers.

tcpdelay testbed run validation/specs/quic/traces.toml -o FOLDER
python validation/quic_traces.py FOLDER --output validation/results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKET_THRESHOLD = 3
TIME_THRESHOLD = 9 / 8
GRANULARITY = 1.0
"""Granularity of timers (RFC 9002, section 6.1.2) [ms]."""
MAX_ACK_DELAY = {"aioquic": 25.0, "quic-go": 26.0}
"""The receiver's transport parameter max_ack_delay [ms]: aioquic's `_serialize_transport_parameters`, and quic-go's
MaxAckDelayInclGranularity (internal/protocol/params.go)."""
ROWS = 10
SAME_INSTANT = 0.05
"""Longest time between an ACK and the losses that it shows [ms]."""
NOT_ELICITING = {"ack", "padding", "connection_close"}


@dataclass
class Estimates:
    """What the sender knows of the round-trip time [ms]."""

    min_rtt: float = 0.0
    latest_rtt: float = 0.0
    smoothed_rtt: float = 0.0
    rtt_variance: float = 0.0

    def update(self, data: dict[str, Any]) -> None:
        """Take over the values of an event `metrics_updated`, which holds those that changed."""
        for name in vars(self):
            if name in data:
                setattr(self, name, float(data[name]))

    @property
    def time_threshold(self) -> float:
        """Time from sending to loss by time (RFC 9002, section 6.1.2) [ms]."""
        return max(TIME_THRESHOLD * max(self.smoothed_rtt, self.latest_rtt), GRANULARITY)

    def probe_timeout(self, implementation: str) -> float:
        """Probe timeout without back-off (RFC 9002, section 6.2.1) [ms]."""
        return self.smoothed_rtt + max(4 * self.rtt_variance, GRANULARITY) + MAX_ACK_DELAY[implementation]


def events(file: Path) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Yield time [ms], name and data of the events in a qlog: JSON of aioquic, or a sequence of JSON of quic-go."""
    text = file.read_text(encoding="utf-8")
    if text.startswith("\x1e"):
        found = [json.loads(part) for part in text.split("\x1e") if part.strip()][1:]
    else:
        found = json.loads(text)["traces"][0]["events"]
    start = found[0]["time"] if found else 0.0
    for event in found:
        yield event["time"] - start, event["name"].partition(":")[2], event["data"]


@dataclass
class Trace:
    """Losses and probe timeouts of one sender, as rows of tables."""

    losses: list[list[str]]
    timeouts: list[list[str]]


def read_trace(file: Path, implementation: str) -> Trace:
    """Return the losses and the probe timeouts in the qlog of a sender."""
    sent: dict[int, float] = {}
    estimates, trace = Estimates(), Trace([], [])
    last_sent, last_ack, largest_acked, expired = 0.0, -1.0, -1, 0
    for now, name, data in events(file):
        header = data.get("header", {})
        kinds = {frame["frame_type"] for frame in data.get("frames", [])}
        if name == "packet_sent" and header["packet_type"] == "1RTT":
            sent[header["packet_number"]] = now
            if kinds - NOT_ELICITING:
                last_sent = now
        elif name == "packet_received" and "ack" in kinds and header["packet_type"] == "1RTT":
            acked = [range_[-1] for frame in data["frames"] for range_ in frame.get("acked_ranges", [])]
            largest_acked, last_ack = max(largest_acked, *acked), now
            # quic-go logs its count of timeouts; aioquic sets it to 0 at each ACK.
            expired = 0 if implementation == "aioquic" else expired
        elif name == "metrics_updated":
            estimates.update(data)
            expired = data.get("pto_count", expired)
        elif name == "loss_timer_updated" and data["event_type"] == "expired" and data.get("timer_type") == "pto":
            trace.timeouts.append(_timeout(now - last_sent, expired, estimates, implementation))
        elif name == "packet_lost":
            number = data.get("packet_number", data.get("header", {}).get("packet_number"))
            if number not in sent:
                continue
            elapsed = now - sent[number]
            trigger = data.get("trigger") or _trigger(number, largest_acked, now - last_ack, elapsed, estimates)
            if trigger == "probe timeout":
                trace.timeouts.append(_timeout(now - last_sent, expired, estimates, implementation))
                expired += 1
            trace.losses.append(_loss(now, number, elapsed, trigger.replace("_", " "), estimates))
    return trace


def _trigger(number: int, largest_acked: int, since_ack: float, elapsed: float, estimates: Estimates) -> str:
    """Return why aioquic takes a packet for lost: its log does not say."""
    if since_ack <= SAME_INSTANT and largest_acked - number >= PACKET_THRESHOLD:
        return "reordering threshold"
    if largest_acked > number and elapsed >= estimates.time_threshold - SAME_INSTANT:
        return "time threshold"
    return "probe timeout"


def _loss(now: float, number: int, elapsed: float, trigger: str, estimates: Estimates) -> list[str]:
    values = (estimates.min_rtt, estimates.latest_rtt, estimates.smoothed_rtt, estimates.rtt_variance)
    threshold = estimates.time_threshold
    return [
        f"{now / 1e3:.3f}",
        str(number),
        f"{elapsed:.2f}",
        f"{elapsed / estimates.smoothed_rtt:.3f}",
        trigger,
        *(f"{value:.2f}" for value in values),
        f"{threshold:.2f}",
    ]


def _timeout(period: float, backoff: int, estimates: Estimates, implementation: str) -> list[str]:
    expected = estimates.probe_timeout(implementation) * 2**backoff
    return [
        f"{period:.2f}",
        str(backoff),
        f"{expected:.2f}",
        f"{period - expected:+.2f}",
        f"{estimates.smoothed_rtt:.2f}",
        f"{estimates.rtt_variance:.2f}",
    ]


LOSS_COLUMNS = (
    *("time [s]", "packet", "send to lost [ms]", "in smoothed RTT", "trigger", "min RTT", "latest RTT"),
    *("smoothed RTT", "rttvar", "RFC 9002: time threshold"),
)
TIMEOUT_COLUMNS = ("from last send [ms]", "back-off 2^n: n", "RFC 9002 [ms]", "difference", "smoothed RTT", "rttvar")


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows[:ROWS]), ""]


def report(folder: Path) -> str:
    """Return the tables of all senders' qlogs in a folder as Markdown."""
    lines = [
        "# Loss detection of aioquic and quic-go in their own logs",
        "",
        "Times in ms. The first ten losses of each flow, and the first ten probe timeouts, over 60 ms and 5 % loss.",
        "RFC 9002: a packet is lost when a packet three numbers later is acknowledged (6.1.1), or",
        "9/8 max(smoothed RTT, latest RTT) after its sending if a later one is (6.1.2); the probe timeout is",
        "(smoothed RTT + max(4 rttvar, 1 ms) + max_ack_delay) 2^n (6.2.1). quic-go logs the trigger; that of",
        "aioquic follows from the ACKs. quic-go logs no loss at a probe timeout; aioquic calls the oldest",
        "packet of a probe lost.",
        "",
    ]
    for file in sorted(folder.glob("*.sender.qlog")):
        implementation = next(name for name in MAX_ACK_DELAY if file.name.startswith(name))
        trace = read_trace(file, implementation)
        interval = file.name.partition("B-")[2].partition("-")[0]
        counts = {reason: sum(row[4] == reason for row in trace.losses) for reason in {row[4] for row in trace.losses}}
        told = ", ".join(f"{count} by {reason}" for reason, count in sorted(counts.items()))
        lines += [
            f"## {implementation}, a packet every {interval}",
            "",
            f"{len(trace.losses)} losses{told and f': {told}'}.",
            "",
        ]
        lines += _table(LOSS_COLUMNS, trace.losses)
        lines += [f"{len(trace.timeouts)} probe timeouts.", ""]
        if trace.timeouts:
            lines += _table(TIMEOUT_COLUMNS, trace.timeouts)
    return "\n".join(lines)


def main() -> None:
    """Print the tables, and write them to a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the captures of specs/quic/traces.toml")
    parser.add_argument("--output", type=Path, help="folder for quic-traces.md")
    arguments = parser.parse_args()
    text = report(arguments.folder)
    print(text)
    if arguments.output is not None:
        (arguments.output / "quic-traces.md").write_text(f"{text.rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
