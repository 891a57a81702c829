"""Measure memory and speed of `tcpdelay analyze` on captures of gibibytes, which this script writes first.

    python validation/pcap/large.py [GIBIBYTES ...] [--capture NAME]

By default, the sizes are 0.5, 1, 2.5 and 5 GiB, and all captures are written: one long connection at the sender, with
whole packets and with their first 128 bytes; one at both ends, each file of this size; and one among 17 000 short
connections per gibibyte. Each capture goes to a temporary directory (`TMPDIR`), a process of its own analyses it, and
then it is removed. The script compares the analysis with the written packets. It updates results-large.csv and the
table of the documentation; rows of captures that are not written again stay.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
GIBIBYTE = 2**30
START = 1_700_000_000_000_000_000
MSS = 1448
INTERVAL = 100_000
ONE_WAY = 10_000_000
JITTER = 500_000
LOST = 0.001
REPAIRED = 30_000_000
"""Time from a lost transmission to the retransmission [ns]."""
BLOCK = 2**16
QUIET = 2000
"""Messages without losses at both ends of a block, so that no recovery crosses the end."""
PER_SHORT = 12
"""Messages of a short connection."""
SHORT_PER_BLOCK = 2500
QUANTILES = (0.5, 0.95, 0.99)
HEADER = 66
PACKET = np.dtype(
    [
        ("seconds", "<u4"),
        ("nanoseconds", "<u4"),
        ("captured", "<u4"),
        ("wire", "<u4"),
        ("macs", "V12"),
        ("protocol", ">u2"),
        ("version", "u1"),
        ("service", "u1"),
        ("total", ">u2"),
        ("ip_id", ">u2"),
        ("fragment", ">u2"),
        ("hops", "u1"),
        ("transport", "u1"),
        ("ip_sum", ">u2"),
        ("source", ">u4"),
        ("target", ">u4"),
        ("source_port", ">u2"),
        ("target_port", ">u2"),
        ("seq", ">u4"),
        ("ack", ">u4"),
        ("offset_flags", ">u2"),
        ("window", ">u2"),
        ("sum", ">u2"),
        ("urgent", ">u2"),
        ("option", ">u4"),
        ("tsval", ">u4"),
        ("tsecr", ">u4"),
    ]
)
"""Record of libpcap, Ethernet, IPv4 and TCP with timestamps."""
ROW = np.dtype(
    [
        ("time", "i8"),
        ("forward", "?"),
        ("seq", "i8"),
        ("ack", "i8"),
        ("length", "i4"),
        ("flags", "u2"),
        ("port", "i8"),
        ("tsval", "i8"),
    ]
)
LONG = -1


@dataclass
class Writer:
    """Writes one capture."""

    out: BinaryIO
    size: int  # Bytes to write
    kept: int  # Largest number of bytes of a packet that are kept
    waiting: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, ROW))
    written: int = 0
    packets: int = 0

    def __post_init__(self) -> None:
        self.out.write(np.array([0xA1B23C4D, 0x00040002, 0, 0, self.kept, 1], "<u4").tobytes())

    def put(self, rows: NDArray[np.void], until: int) -> None:
        """Write the rows before the time `until`, in the order of time, and keep all later rows waiting."""
        rows = np.concatenate([self.waiting, rows])
        rows = rows[np.argsort(rows["time"], kind="stable")]
        ready = int(np.searchsorted(rows["time"], until))
        self.waiting = rows[ready:]
        rows = rows[:ready]
        packets = np.zeros(rows.size, PACKET)
        packets["seconds"], packets["nanoseconds"] = np.divmod(rows["time"], 10**9)
        packets["wire"] = HEADER + rows["length"]
        packets["captured"] = np.minimum(packets["wire"], self.kept)
        packets["protocol"], packets["version"], packets["hops"], packets["transport"] = 0x0800, 0x45, 64, 6
        packets["fragment"], packets["total"] = 0x4000, packets["wire"] - 14
        packets["ip_id"] = (np.arange(rows.size) + self.packets) % 2**16
        long = rows["port"] == LONG
        host = np.where(long, 0x0A000001, 0x0A010000 + (rows["port"] >> 14))
        port = np.where(long, 4000, 10_000 + (rows["port"] & 0x3FFF))
        packets["source"] = np.where(rows["forward"], host, 0x0A000002)
        packets["target"] = np.where(rows["forward"], 0x0A000002, host)
        packets["source_port"] = np.where(rows["forward"], port, 5001)
        packets["target_port"] = np.where(rows["forward"], 5001, port)
        packets["seq"], packets["ack"] = rows["seq"] % 2**32, rows["ack"] % 2**32
        packets["offset_flags"], packets["window"] = 0x8000 | rows["flags"], 4000
        packets["option"], packets["tsval"] = 0x0101080A, rows["tsval"] % 2**32
        sizes = 16 + packets["captured"].astype(np.int64)
        ends = np.cumsum(sizes)
        content = np.zeros(int(sizes.sum()), np.uint8)
        places = (ends - sizes)[:, None] + np.arange(PACKET.itemsize)
        content[places] = packets.view(np.uint8).reshape(-1, PACKET.itemsize)
        self.out.write(content.tobytes())
        self.written += content.size
        self.packets += rows.size


def blocks(dice: np.random.Generator) -> Iterator[tuple[NDArray[np.void], NDArray[np.void], NDArray[np.float64], int]]:
    """Yield packets at the sender, packets at the receiver, delays [s] and number of losses of a long connection."""
    first = 0
    while True:
        number = first + np.arange(BLOCK)
        sent = START + number * INTERVAL
        lost = dice.random(BLOCK) < LOST
        lost[:QUIET] = lost[-QUIET:] = False
        arrived = np.maximum.accumulate(sent + ONE_WAY + dice.exponential(JITTER, BLOCK).astype(np.int64))
        repeated = sent[lost] + REPAIRED
        came = arrived.copy()
        came[lost] = repeated + ONE_WAY
        complete = np.maximum.accumulate(came)
        data = rows(sent, True, 1 + number * MSS, 1, MSS, 0x18)
        again = rows(repeated, True, 1 + number[lost] * MSS, 1, MSS, 0x18)
        reached = first + np.searchsorted(complete, np.sort(came), side="right")
        answers = rows(np.sort(came) + 2000, False, 1, 1 + reached * MSS, 0, 0x10)
        at_sender = np.concatenate([data, again, later(answers, ONE_WAY)])
        at_receiver = np.concatenate([later(data, arrived - sent)[~lost], later(again, ONE_WAY), answers])
        yield at_sender, at_receiver, (complete - sent) / 1e9, int(lost.sum())
        first += BLOCK


def rows(time: Any, forward: bool, seq: Any, ack: Any, length: int, flags: int, port: Any = LONG) -> NDArray[np.void]:
    """Return packets as rows."""
    made = np.zeros(np.size(time), ROW)
    values = {"time": time, "forward": forward, "seq": seq, "ack": ack, "length": length, "flags": flags, "port": port}
    values["tsval"] = time // 10**6
    for name, value in values.items():
        made[name] = value
    return made


def later(packets: NDArray[np.void], by: Any) -> NDArray[np.void]:
    """Return packets as they are captured some time later."""
    moved = packets.copy()
    moved["time"] += by
    return moved


def short_connections(begin: int, first: int, dice: np.random.Generator) -> NDArray[np.void]:
    """Return short connections that begin within a block, numbered from `first`."""
    port = first + np.arange(SHORT_PER_BLOCK)
    opened = begin + dice.integers(0, BLOCK * INTERVAL - 200 * INTERVAL, SHORT_PER_BLOCK)
    isn = port * 7919
    made = [
        rows(opened, True, isn - 1, 0, 0, 0x02, port),
        rows(opened + 2 * ONE_WAY, False, 0, isn, 0, 0x12, port),
    ]
    for k in range(PER_SHORT):
        at = opened + 2 * ONE_WAY + (k + 1) * INTERVAL
        made.append(rows(at, True, isn + k * MSS, 1, MSS, 0x18, port))
        made.append(rows(at + 2 * ONE_WAY, False, 1, isn + (k + 1) * MSS, 0, 0x10, port))
    return np.concatenate(made)


def write(directory: Path, size: int, kept: int, ends: int, short: bool) -> tuple[list[Path], dict[str, Any]]:
    """Write one or two captures of `size` bytes; return the files and the figures of their content."""
    dice = np.random.default_rng(1)
    files = [directory / name for name in ("sender.pcap", "receiver.pcap")[:ends]]
    delays, lost, connections = [], 0, 1
    handles = [file.open("wb") for file in files]
    writers = [Writer(handle, size, kept) for handle in handles]
    for number, (at_sender, at_receiver, late, gone) in enumerate(blocks(dice), 1):
        until = START + number * BLOCK * INTERVAL
        if short:
            others = short_connections(until - BLOCK * INTERVAL, connections, dice)
            at_sender = np.concatenate([at_sender, others])
            connections += SHORT_PER_BLOCK
        delays.append(late.astype(np.float32))
        lost += gone
        last = writers[0].written >= size - writers[0].written // max(number - 1, 1)
        for writer, packets in zip(writers, (at_sender, at_receiver), strict=False):
            writer.put(packets, 2**62 if last else until)
        if last:
            break
    for handle in handles:
        handle.close()
    every = np.concatenate(delays)
    known = {f"p{100 * q:g}": float(np.quantile(every, q)) for q in QUANTILES}
    packets = sum(writer.packets for writer in writers)
    return files, {"packets": packets, "connections": connections, "lost": lost, **known}


ANALYSIS = """
import resource, sys
from pathlib import Path
from tcpdelay.cli import main
status = main(["analyze", *sys.argv[1:], "--format", "json"])
used = resource.getrusage(resource.RUSAGE_SELF)
# ru_maxrss is inherited from the process that started this one.
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(peak, used.ru_utime + used.ru_stime)
sys.exit(status)
"""


def analysed(files: list[Path]) -> tuple[dict[str, Any], float, float]:
    """Return the printed analysis, the peak memory of its process [MiB] and its processor time [s]."""
    command = [sys.executable, "-c", ANALYSIS, *map(str, files)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found, _, used = printed.rstrip().rpartition("\n")
    peak, seconds = map(float, used.split())
    return json.loads(found), peak / 1024, seconds


VARIANTS = {
    "whole packets": (65535, 1, False),
    "both ends": (65535, 2, False),
    "among many connections": (65535, 1, True),
    "128 bytes of each packet": (128, 1, False),
}


def measure(name: str, gibibytes: float) -> dict[str, Any]:
    """Write, analyse and remove one capture."""
    kept, ends, short = VARIANTS[name]
    with tempfile.TemporaryDirectory() as directory:
        files, written = write(Path(directory), round(gibibytes * GIBIBYTE), kept, ends, short)
        size = sum(file.stat().st_size for file in files)
        found, memory, seconds = analysed(files)
    row = {
        "capture": name,
        "size_gib": size / GIBIBYTE,
        "packets": written["packets"],
        "connections": written["connections"],
        "peak_mib": memory,
        "processor_s": seconds,
        "us_per_packet": 1e6 * seconds / written["packets"],
        "lost_written": written["lost"],
        "lost": found["lost"],
        "interval_exact": abs(found["interval"] - INTERVAL / 1e9) < 1e-12,
        "size_exact": found["packet_size"] == MSS,
    }
    for q in QUANTILES:
        label = f"p{100 * q:g}"
        row |= {f"{label}_written": written[label], label: found[label]}
    return row


def write_tables(table: list[dict[str, Any]]) -> None:
    """Write the results and the table of the documentation."""
    with (HERE / "results-large.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.9g}" if isinstance(value, float) else value for key, value in row.items()} for row in table
        )
    lines = [
        "| capture | size [GiB] | packets [million] | connections | memory at most [MiB] | time [us/packet] | "
        "lost, as written | error of p50, p95, p99 at most [us] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        error = max(abs(row[f"p{100 * q:g}"] - row[f"p{100 * q:g}_written"]) for q in QUANTILES)
        lines.append(
            f"| {row['capture']} | {row['size_gib']:.2f} | {row['packets'] / 1e6:.1f} | {row['connections']} | "
            f"{row['peak_mib']:.0f} | {row['us_per_packet']:.1f} | {row['lost']}, {row['lost_written']} | "
            f"{1e6 * error:.0f} |"
        )
    (HERE / "results-large.md").write_text("\n".join(lines) + "\n")


def earlier_rows() -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of the existing results, by capture and number of packets; this number follows from the size."""
    with (HERE / "results-large.csv").open(newline="") as file:
        table = [{key: read_cell(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return {(row["capture"], row["packets"]): row for row in table}


def read_cell(value: str) -> int | float | str:
    """Return a cell as a number if it is one, otherwise as text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


def main(sizes: list[float], names: list[str]) -> None:
    """Measure captures of all sizes."""
    table = earlier_rows()
    for name in names:
        for size in sizes:
            begun = time.monotonic()
            row = measure(name, size)
            table[name, row["packets"]] = row
            print(
                f"{name}, {size:g} GiB: {row['peak_mib']:.0f} MiB, {time.monotonic() - begun:.0f} s in all",
                file=sys.stderr,
            )
            write_tables(sorted(table.values(), key=lambda one: (list(VARIANTS).index(one["capture"]), one["packets"])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gibibytes", nargs="*", type=float, default=[0.5, 1, 2.5, 5])
    parser.add_argument("--capture", choices=VARIANTS, help="write only this capture")
    asked = parser.parse_args()
    main(asked.gibibytes, list(VARIANTS) if asked.capture is None else [asked.capture])
