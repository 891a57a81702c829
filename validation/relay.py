"""Messages through coturn in the guest, beside `simulate_relay`: `python validation/relay.py --output FOLDER`.

A TURN client talks to coturn over TCP, and coturn to the client's peer over UDP. Both legs are emulated, in virtual
time. Messages go from the client to the peer ("tcp to udp") or from the peer to the client ("udp to tcp"). The
simulation gets the messages that were written, with the header of TURN. Nothing is fitted.

Beside the guest for virtual time (`tcpdelay testbed build-kernel --hz 250`) this needs Debian's packages coturn,
python3-aioice, iproute2 and tcpdump.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import tcpdelay as td
from tcpdelay.sim.network.relay import RelayResult
from tcpdelay.statistics import Interval, mean_interval, quantile_interval
from tcpdelay.testbed.backends import VirtualTimeBackend
from tcpdelay.testbed.programs import run_programs
from tcpdelay.testbed.topology import EmulatedPath
from tcpdelay.testbed.virtual_kernel import DEFAULT_KERNEL

HZ = 250
ENDS = Path(__file__).with_name("relay_ends.py")
DEBIAN_PYTHON = "/usr/bin/python3"
"""The interpreter to which python3-aioice belongs."""
SET_UP = 60.0
"""Time for the start of coturn, the allocation, and the last messages [s]."""
WARM_UP = 2000
"""Messages that are not counted: as many as `simulate_relay` does not count."""
LONGEST = 480.0
"""Longest run [s]: after 500 s the client renews its channel, and lets messages wait."""
DATAGRAM = 1200
"""Payload into which the frames of the video are cut, as RTP does [bytes]."""
CHANNEL_HEADER, ALIGNMENT = 4, 4
"""Header of a message in a TURN channel, and the multiple to which it is padded over TCP [bytes] (RFC 8656, 12.4)."""
BUFFER = 32_768 + 2 * 65_536 * 1448 // (1448 + 1280)
"""Bytes that coturn 4.6 holds towards a client over TCP.

Its own queue drops a message with which it would hold 64 << 9 bytes (BUFFEREVENT_MAX_UDP_TO_TCP_WRITE). The kernel's
send buffer is set to 65 536 bytes (UR_CLIENT_SOCK_BUF_SIZE), which Linux doubles, and in which each full segment also
counts the some 1280 bytes of its `struct sk_buff` and headers.
"""
QUANTILES = (0.5, 0.95, 0.99)
SIMULATED = 300_000
"""Messages of a simulation: those that were written, again and again."""


@dataclass(frozen=True)
class Case:
    """Messages in one direction."""

    name: str
    source: td.Source  # The messages, without headers
    # rtt, loss: Round-trip time [s] and loss of the leg over TCP.
    rtt: float
    loss: float
    # delay, lost: One-way delay [s] and loss of the leg over UDP.
    delay: float
    lost: float
    sends: str  # The end that sends: client or relay
    spacing: float = 0.0  # Smallest time between two datagrams of a frame [s]


CASES = (
    Case("voice, tcp to udp", td.Flow(160, 0.020, write_jitter=0.0), 0.080, 0.02, 0.020, 0.01, "client"),
    Case("voice, udp to tcp", td.Flow(160, 0.020, write_jitter=0.0), 0.080, 0.02, 0.020, 0.01, "relay"),
    Case(
        "paced video, udp to tcp",
        td.Video(1_000_000, write_jitter=0.0),
        0.060,
        0.01,
        0.020,
        0.002,
        "relay",
        spacing=0.001,
    ),
    Case("video in bursts, udp to tcp", td.Video(1_000_000, write_jitter=0.0), 0.060, 0.01, 0.020, 0.002, "relay"),
)


def datagrams(messages: NDArray[np.void], spacing: float) -> td.Trace:
    """Return messages cut into datagrams of `DATAGRAM` bytes at most, with at least `spacing` [s] between two."""
    parts = -(-messages["size"] // DATAGRAM)
    times, sizes = np.repeat(messages["time"], parts), np.full(parts.sum(), DATAGRAM)
    sizes[np.cumsum(parts) - 1] = messages["size"] - (parts - 1) * DATAGRAM
    earliest = spacing * np.arange(times.size)
    # A datagram begins with its number.
    return td.Trace(np.maximum.accumulate(times - earliest) + earliest, np.maximum(sizes, 8))


def measured(case: Case, trace: td.Trace, duration: float, seed: int) -> NDArray[np.float64]:
    """Send the messages of a trace through coturn; return the delay of each [s], or NaN if it does not arrive."""

    def command(end: str, action: str, messages: Path) -> list[str]:
        path = [f"{1e3 * case.delay:g}ms", f"{100 * case.lost:g}%"] if end == "relay" else []
        words = shlex.join([DEBIAN_PYTHON, str(ENDS), end, action, *path])
        return ["sh", "-c", f"ln -sf {shlex.quote(str(messages))} messages; exec {words}"]

    with tempfile.TemporaryDirectory() as place:
        messages = Path(place, "messages")
        messages.write_text(
            "".join(f"{time:.6f},{size}\n" for time, size in zip(trace.times, trace.sizes, strict=True))
        )
        reads = "relay" if case.sends == "client" else "client"
        path, limit = EmulatedPath(rtt=case.rtt, loss=case.loss, server_loss=0.0), duration + SET_UP
        sender, reader = command(case.sends, "send", messages), command(reads, "read", messages)
        guest, directory = VirtualTimeBackend(HZ), Path(place, "run")
        run = run_programs(sender, reader, path, directory, guest, duration=limit, seed=seed, trusted=True)
        if any(run.status.values()):
            raise RuntimeError(
                (run.directory / "client.stderr").read_text() + (run.directory / "server.stderr").read_text()
            )
        written = np.fromfile(run.directory / "scratch" / "written", np.int64)
        numbers, times = np.fromfile(run.directory / "scratch" / "read", np.int64).reshape(2, -1)
    delays = np.full(written.size, np.nan)
    delays[numbers] = (times - written[numbers]) / 1e9
    return delays


def simulated(case: Case, trace: td.Trace, duration: float) -> RelayResult:
    """Return the simulation of the same messages, repeated, with the header of TURN."""
    sizes = -(-(trace.sizes + CHANNEL_HEADER) // ALIGNMENT) * ALIGNMENT
    repeated = td.Trace(trace.times, sizes, period=duration)
    # Neither end of the connection sets TCP_QUICKACK.
    tcp = td.Path(case.rtt, case.loss), td.Stack.linux(hz=HZ, delayed_ack=True, kernel=DEFAULT_KERNEL)
    udp = td.Path(2 * case.delay, case.lost), td.Udp()
    if case.sends == "client":
        return td.simulate_relay(repeated, tcp, udp, packets=SIMULATED)
    return td.simulate_relay(repeated, udp, tcp, packets=SIMULATED, buffer=BUFFER)


def compared(case: Case, duration: float, runs: int) -> Iterator[dict[str, float | str]]:
    """Yield a row for each figure of a case: measured with its 95 % interval, and simulated."""
    trace = datagrams(case.source.messages(duration), case.spacing)
    delays, gone = [], []
    for seed in range(runs):
        of_run = measured(case, trace, duration, seed)[WARM_UP:]
        gone.append(np.isnan(of_run).astype(float))
        delays.append(of_run[gone[-1] == 0])
    prediction = simulated(case, trace, duration)
    assert prediction.delays is not None
    figures: list[tuple[str, Interval, float]] = [
        ("mean", mean_interval(delays), prediction.delays.mean),
        *((f"p{100 * q:g}", quantile_interval(delays, q), prediction.delays.quantile(q)) for q in QUANTILES),
        ("lost or dropped", mean_interval(gone), prediction.lost_share + prediction.dropped_share),
    ]
    for name, interval, figure in figures:
        yield {
            "case": case.name,
            "figure": name,
            "messages": sum(map(len, gone)),
            "measured": interval.value,
            "low": interval.low,
            "high": interval.high,
            "simulated": figure,
            "difference": figure / interval.value - 1,
        }


def markdown(table: pd.DataFrame) -> str:
    """Return the results as a table in Markdown: delays in milliseconds, shares in percent."""
    lines = ["| case | figure | measured | 95 % interval | simulated | difference |", "|---|---|---:|---:|---:|---:|"]
    for row in table.itertuples():
        factor, unit, digits = (100, "%", 2) if row.figure == "lost or dropped" else (1e3, "ms", 1)
        values = (row.measured, row.low, row.high, row.simulated)
        found, low, high, simulated = (f"{factor * value:.{digits}f}" for value in values)
        cells = f"{found} {unit} | {low} to {high} | {simulated} {unit} | {100 * row.difference:+.1f} %"
        lines.append(f"| {row.case} | {row.figure} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and simulate all cases; print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for relay.csv and relay.md")
    parser.add_argument("--duration", type=float, default=LONGEST, help="length of a run [s], 60 to 480")
    parser.add_argument("--runs", type=int, default=2, help="runs of each case")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this case")
    arguments = parser.parse_args()
    if not 60 <= arguments.duration <= LONGEST or arguments.runs < 1:
        parser.error("--duration must be 60 to 480, and --runs 1 or more")
    rows = []
    for case in CASES:
        if arguments.case in (None, case.name):
            print(f"{case.name} ...", file=sys.stderr)
            rows += compared(case, arguments.duration, arguments.runs)
    table = pd.DataFrame(rows)
    print(markdown(table), end="")
    if arguments.output is not None:
        table.to_csv(arguments.output / "relay.csv", index=False, float_format="%.6g")
        (arguments.output / "relay.md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
